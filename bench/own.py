"""The targets that Timelake sets itself: workloads C, D and F, threads and memory, beside workloads A, B and their floors.

`make bench-own ROWS=20000000 ROUNDS=5`. Same rules as in run.py (whole processes, alternating, medians, ratios);
`--only` takes beginnings of names. Prints what was measured, and each target with whether it was reached.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import run as bench
import workload_c

HERE = Path(__file__).parent
TIMELAKE = os.environ["TIMELAKE_BIN"]
FLOOR = Path(TIMELAKE).parent / "timelake-floor"
C_SERIES, C_FILES = 10_000, 10
LATE_ROWS, LATE_DAYS, SEED = 10_000, 300, 5
DEFAULT_MEMORY = 1 << 30
DAILY = [*bench.CREATE[:-1], "day(ts)"]
LATE = ["backfill", "iot.sensor", "--mode", "merge", "--json"]


def call(*words):
    done = subprocess.run([TIMELAKE, *map(str, words)], stdout=subprocess.PIPE, check=True)
    return done.stdout


def table_scan(lake):
    shown = json.loads(call("table", "show", "iot.sensor", "--lake", lake, "--json"))
    return f"iceberg_scan('{shown['metadata_location']}')"


def rows_of(lake):
    return bench.readers_duckdb().execute(f"SELECT count(*), count(DISTINCT hash(device_id, epoch_us(ts))) FROM {table_scan(lake)}").fetchone()


class Inputs:
    """Files the runs read, made once."""

    def __init__(self, work, rows):
        self.work, self.rows = work, rows
        self.a, self.b = bench.source_of("a", rows, work), bench.source_of("b", rows, work)
        self.c = self.made(f"workload-c-{rows // 2}", lambda out: workload_c.write(rows // 2, C_SERIES, out, C_FILES))
        self.half = self.made(f"half-{rows}", self.write_half)
        self.late = self.made(f"late-{rows}", self.write_late)

    def made(self, name, write):
        out = self.work / name
        if not (out / "_complete").exists():
            print(f"making {out}", flush=True)
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir(parents=True)
            write(out)
            (out / "_complete").touch()
        return out

    def write_half(self, out):
        """A random half of the keys of workload A, as the table has them afterwards."""
        lake = self.work / "half-lake"
        shutil.rmtree(lake, ignore_errors=True)
        call(*bench.CREATE, "--lake", lake)
        call(*bench.BACKFILL, "--from", self.a, "--lake", lake)
        bench.readers_duckdb().execute(
            f"COPY (SELECT * FROM {table_scan(lake)} WHERE hash(device_id, epoch_us(ts)) % 2 = 0 ORDER BY ts)"
            f" TO '{out}/half.parquet' (FORMAT parquet, COMPRESSION snappy)"
        )
        shutil.rmtree(lake)

    def write_late(self, out):
        """Late rows over 300 days: some keys are new, some are there already (none is certain to be: times are in microseconds)."""
        draw = random.Random(SEED)
        start = workload_c.START_US + 30 * 86_400 * 10**6
        at = sorted(start + draw.randrange(LATE_DAYS * 86_400 * 10**6) for _ in range(LATE_ROWS))
        sensors = [draw.randrange(bench.SENSORS) for _ in at]
        table = pa.table({
            "ts": pa.array(at, pa.timestamp("us", tz="UTC")),
            "device_id": pa.array([f"plant{s % 7}/line{s % 31}/sensor-{s:05d}" for s in sensors]),
            "value": pa.array([round(draw.gauss(20, 5), 2) for _ in at]), "quality": pa.array([0] * len(at), pa.int32()),
        })  # fmt: skip
        pq.write_table(table, out / "late.parquet")


def runs(inputs):
    """Name → contestant. `prepare` is not timed."""

    def created(lake, words=bench.CREATE):
        call(*words, "--lake", lake)

    def with_half(lake):
        created(lake)
        call("backfill", "iot.sensor", "--from", inputs.half, "--lake", lake, "--json")

    def with_days(lake):
        created(lake, DAILY)
        call(*bench.BACKFILL, "--from", inputs.a, "--lake", lake)

    def create_c(lake):
        columns = ",".join(["ts:timestamptz", "meter:string", *(f"v{n:02d}:double" for n in range(workload_c.COLUMNS))])
        created(lake, ["table", "create", "iot.sensor", "--columns", columns, "--time-column", "ts", "--series-key", "meter", "--partition", "month(ts)"])

    def load(source, *more, words=bench.BACKFILL):
        return lambda lake: [TIMELAKE, *words, *more, "--from", source, "--lake", lake]

    def floor(kind, source, threads):
        return lambda out: [FLOOR, kind, source, out, str(threads)]

    comma = ["--decimal", ","]
    made = [
        bench.Contestant("A", load(inputs.a), created),
        bench.Contestant("A with 1 thread", load(inputs.a, "--threads", "1"), created),
        bench.Contestant("floor of A", floor("parquet", inputs.a, 2), floor=True),
        bench.Contestant("floor of A with 1 thread", floor("parquet", inputs.a, 1), floor=True),
        bench.Contestant("B", load(inputs.b, *comma), created),
        bench.Contestant("floor of B", floor("csv", inputs.b, 2), floor=True),
        bench.Contestant("C", load(inputs.c, words=["backfill", "iot.sensor", "--json"]), create_c),
        bench.Contestant("D", load(inputs.a, "--mode", "merge"), with_half),
        bench.Contestant("F", load(inputs.late, words=LATE), with_days),
        bench.Contestant("floor of F", lambda lake: [FLOOR, "late", lake, lake, "2"], with_days, floor=True),
    ]
    return {c.name: c for c in made}


def check(name, result, lake, inputs, reference):
    """The rows are those they must be; before anything is timed."""
    manifest = json.loads(result["stdout"])
    if name.startswith("floor"):
        return
    found, keys = rows_of(lake) if name != "C" else (inputs.rows // 2,) * 2
    if name == "C" and manifest["rows_written"] + manifest["duplicates_collapsed"] + manifest["in_source_conflicts"] != inputs.rows // 2:
        sys.exit(f"C: {manifest}")
    reference.setdefault("A", found)
    if name == "F":
        files = manifest["written"]["files"]
        if files != LATE_DAYS or found < reference["A"]:
            sys.exit(f"F: {files} files for {LATE_DAYS} partitions, {found} rows")
    elif name != "C" and found != reference["A"]:
        sys.exit(f"{name}: {found} rows, not {reference['A']}")
    if found != keys:
        sys.exit(f"{name}: {found} rows of {keys} keys")
    print(f"  {name:22} {found:>12,} rows, every key once", flush=True)


def targets(middle, steps):
    """What was to be reached, measured, and the limit; those whose runs were left out are not listed."""

    def ratio(a, b, field):
        return middle[a][field] / middle[b][field] if a in middle and b in middle else None

    def at_most(text, value, limit):
        return (text, value, limit, value is not None and value <= limit)

    def at_least(text, value, limit):
        return (text, value, limit, value is not None and value >= limit)

    write = steps["A with 1 thread"]["write"] / steps["A"]["write"] if "A with 1 thread" in steps and "A" in steps else None
    memory = max((m["peak_bytes"] for n, m in middle.items() if not n.startswith("floor")), default=None)
    listed = [
        at_most("CPU of A ÷ its floor", ratio("A", "floor of A", "cpu_s"), 1.8),
        at_most("CPU of B ÷ its floor", ratio("B", "floor of B", "cpu_s"), 1.8),
        at_most("wall of D ÷ A", ratio("D", "A", "wall_s"), 1.7),
        at_most("wall of F ÷ A", ratio("F", "A", "wall_s"), 0.1),
        at_least("A: 1 thread ÷ 2 threads, wall", ratio("A with 1 thread", "A", "wall_s"), 1.6),
        at_least("A: 1 thread ÷ 2 threads, write step", write, 1.8),
        at_least("(floor of A: 1 thread ÷ 2 threads)", ratio("floor of A with 1 thread", "floor of A", "wall_s"), 0.0),
        at_most("peak memory of A ÷ 450 MB", middle["A"]["peak_bytes"] / 450e6 if "A" in middle else None, 1.0),
        at_most("largest peak memory ÷ --memory", memory / DEFAULT_MEMORY if memory else None, 1.0),
    ]
    return [t for t in listed if t[1] is not None]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--only", help="comma-separated names")
    parser.add_argument("--no-save", action="store_true", help="do not write bench/results-own.json")
    arguments = parser.parse_args()
    work = arguments.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    inputs = Inputs(work, arguments.rows)
    chosen = runs(inputs)
    if arguments.only:
        chosen = {name: c for name, c in chosen.items() if name in arguments.only.split(",")}
    print("comparing outputs", flush=True)
    reference = {}
    for name, contestant in chosen.items():
        check(name, bench.run(contestant, work / "out"), work / "out", inputs, reference)
    print("measuring", flush=True)
    results = bench.measure(list(chosen.values()), arguments.rounds, work)
    middle = bench.medians(results)
    steps = {n: bench.step_medians(r) for n, r in results.items() if not n.startswith("floor")}
    shutil.rmtree(work / "out", ignore_errors=True)

    print("\n| | wall | CPU | peak memory | write step |\n|---|--:|--:|--:|--:|")
    for name, m in middle.items():
        write = f"{steps[name]['write']:.2f} s" if name in steps else ""
        print(f"| {name} | {m['wall_s']:.2f} s | {m['cpu_s']:.2f} s | {m['peak_bytes'] / 1e6:,.0f} MB | {write} |")
    print("\n| target | measured | to reach | |\n|---|--:|--:|---|")
    reached = targets(middle, steps)
    for text, value, limit, good in reached:
        verdict = ("reached" if good else "**missed**") if limit else ""
        print(f"| {text} | {value:.2f} | {limit or ''} | {verdict} |")
    if not arguments.no_save:
        facts = {"rows": arguments.rows, "rounds": arguments.rounds, "medians": middle, "steps_s": steps, "targets": reached}
        (HERE / "results-own.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
