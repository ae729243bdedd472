"""What staging and publishing very many files costs, at three sizes; each target with whether it was reached."""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SIZES = [(10_000, 100), (30_000, 300), (100_000, 1_000)]


def measured(program, work, files, units):
    folder = work / "metadata"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        done = subprocess.run([program, folder, str(files), str(units)], stdout=subprocess.PIPE, check=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = json.loads(done.stdout)
    if found["manifests"]["files"] != files:
        sys.exit(f"the published manifests hold {found['manifests']['files']} files, not {files}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--largest", type=int, default=SIZES[-1][0], help="leave out sizes above this")
    parser.add_argument("--no-save", action="store_true", help="do not write bench/results-metadata.json")
    arguments = parser.parse_args()
    sizes = [size for size in SIZES if size[0] <= arguments.largest]
    runs = {size: [measured(arguments.program, arguments.work, *size) for _ in range(arguments.rounds)] for size in sizes}
    middle = {size: {key: statistics.median(r[key] for r in found) for key in found[0] if key != "manifests"} for size, found in runs.items()}

    print("| files onto as many | units | wall | CPU | merging | a try | peak memory | manifests | largest |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for size in sizes:
        m, manifests = middle[size], runs[size][0]["manifests"]
        print(
            f"| {size[0]:,} | {size[1]:,} | {m['wall_s']:.2f} s | {m['cpu_s']:.2f} s | {m['merge_cpu_s']:.2f} s | {m['try_cpu_s']:.2f} s"
            f" | {m['peak_bytes'] / 1e6:,.0f} MB | {manifests['count']} | {manifests['largest_bytes'] / (1 << 20):.1f} MiB |"
        )
    last, manifests = middle[sizes[-1]], runs[sizes[-1]][0]["manifests"]
    targets = [
        ("merging, CPU seconds", last["merge_cpu_s"], 30),
        ("peak memory, MB", last["peak_bytes"] / 1e6, 400),
        ("a try from reload to swap, CPU seconds", last["try_cpu_s"], 1),
        ("largest manifest, MiB", manifests["largest_bytes"] / (1 << 20), 9),
        ("days that two manifests share", manifests["days_in_two_at_most"], 1),
    ]
    for smaller, larger in zip(sizes, sizes[1:]):
        grown = middle[larger]["cpu_s"] / middle[smaller]["cpu_s"] / (larger[0] / smaller[0])
        targets.append((f"CPU of {larger[0]:,} ÷ {smaller[0]:,}, by the ratio of sizes", grown, 1.2))
    print("\n| target | measured | at most | |\n|---|--:|--:|---|")
    for text, value, limit in targets:
        print(f"| {text} | {value:.2f} | {limit} | {'reached' if value <= limit else '**missed**'} |")
    if not arguments.no_save:
        facts = {"rounds": arguments.rounds, "runs": [{"files": f, "units": u, "runs": runs[f, u]} for f, u in sizes], "targets": targets}
        (HERE / "results-metadata.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
