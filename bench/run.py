"""The bench: whole processes, alternating, medians and ratios; outputs compared before anything is timed.

`make bench ROWS=20000000 ROUNDS=5`, `make bench-b` for workload B. Each contestant is a process of its own, measured from start to end: wall time,
CPU time (user and system, children included) and peak memory as the kernel counts them. Nothing else should run.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import duckdb
from pyiceberg.catalog.sql import SqlCatalog

import workload_a
import workload_b

HERE = Path(__file__).parent
SENSORS, FILES = 1_000, 20
THREADS = 2
CREATE = [
    "table", "create", "iot.sensor", "--columns", "ts:timestamptz,device_id:string,value:double,quality:int",
    "--time-column", "ts", "--series-key", "device_id", "--partition", "month(ts),bucket(4,device_id)",
]  # fmt: skip
BACKFILL = [
    "backfill", "iot.sensor", "--map", "ts=timestamp,device_id=tag_name", "--tz", "Europe/Berlin", "--nonexistent", "shift",
    "--ambiguous", "later", "--on-source-conflict", "first", "--json",
]  # fmt: skip
DUCKDB_ORDERS = ("off", "on")
# By workload: who writes its files, what its texts need beside BACKFILL, what the floor calls its format.
WORKLOADS = {"a": (workload_a, [], "parquet"), "b": (workload_b, ["--decimal", ","], "csv")}


class Contestant:
    """One way to do the work: `prepare` is not timed, `command` is. The floor does only a part of the work."""

    def __init__(self, name, command, prepare=None, environment=None, iceberg=False, deduplicates=True, floor=False):
        self.name, self.command, self.prepare = name, command, prepare
        self.environment, self.iceberg, self.deduplicates, self.floor = environment or {}, iceberg, deduplicates, floor


def run(contestant, out):
    """A fresh output, then one process: wall seconds, CPU seconds, peak bytes, and what it said."""
    shutil.rmtree(out, ignore_errors=True)
    if contestant.prepare:
        contestant.prepare(out)
    os.sync()
    said = out.parent / f"{out.name}.stdout"
    measured = subprocess.run(
        [sys.executable, HERE / "measure.py", said, *contestant.command(out)],
        stdout=subprocess.PIPE, env={**os.environ, **contestant.environment}, check=True,
    )  # fmt: skip
    figures = json.loads(measured.stdout)
    if figures.pop("exit_code"):
        sys.exit(f"{contestant.name} failed: {' '.join(map(str, contestant.command(out)))}\n{said.read_text()}")
    return {**figures, "stdout": said.read_text()}


def readers_duckdb():
    extensions = Path(duckdb.__file__).parent.parent / "duckdb_ext" / "extensions"
    connection = duckdb.connect(config={"extension_directory": str(extensions), "autoinstall_known_extensions": "false"})
    for name in ("icu", "avro", "iceberg", "parquet"):
        connection.execute(f"LOAD {name}")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def fingerprint(contestant, out):
    """Rows, distinct keys, and a hash of keys and values that does not depend on order."""
    if contestant.iceberg:
        catalog = SqlCatalog("timelake", uri=f"sqlite:///{out}/catalog.db", warehouse=f"file://{out}/warehouse")
        source = f"iceberg_scan('{catalog.load_table('iot.sensor').metadata_location}')"
    else:
        source = f"read_parquet('{out}/**/*.parquet', hive_partitioning = false)"
    rows, keys, total = readers_duckdb().execute(f"""
        WITH r AS (SELECT hash(device_id, epoch_us(ts)) AS k, hash(device_id, epoch_us(ts), value, quality::INTEGER) AS h FROM {source})
        SELECT count(*), count(DISTINCT k), sum(h::HUGEINT) FROM r
    """).fetchone()
    return {"rows": rows, "keys": keys, "hash": str(total)}


def source_of(workload, rows, work):
    """The workload's files, made when they are not there."""
    source = work / f"workload-{workload}-{rows}"
    done = source / "_complete"
    if not done.exists():
        print(f"making {rows:,} rows in {source}", flush=True)
        shutil.rmtree(source, ignore_errors=True)
        WORKLOADS[workload][0].write(rows, SENSORS, source, FILES)
        done.touch()
    return source


def contestants(arguments, source):
    python, workload = arguments.peer_python, arguments.workload
    timelake = os.environ["TIMELAKE_BIN"]
    floor = Path(timelake).parent / "timelake-floor"
    _, options, floor_format = WORKLOADS[workload]

    def create_table(lake):
        subprocess.run([timelake, *CREATE, "--lake", lake], check=True, stdout=subprocess.DEVNULL)

    chosen = [
        Contestant("timelake", lambda lake: [timelake, *BACKFILL, *options, "--from", source, "--lake", lake], create_table, iceberg=True),
        *(
            Contestant(f"DuckDB ({order})", lambda out, order=order: [python, HERE / "peer_duckdb.py", workload, source, out, str(THREADS), order])
            for order in DUCKDB_ORDERS
        ),
        Contestant(
            "Polars", lambda out: [python, HERE / "peer_polars.py", workload, source, out], environment={"POLARS_MAX_THREADS": str(THREADS)}
        ),
    ]
    if workload == "a":
        append = Contestant(
            "PyIceberg, no dedup", lambda out: [python, HERE / "peer_pyiceberg.py", source, out], iceberg=True, deduplicates=False
        )
        chosen.append(append)
    return [*chosen, Contestant("floor", lambda out: [floor, floor_format, source, out, str(THREADS)], floor=True)]


def compare(all_contestants, work):
    """Runs each once. All that remove duplicates must have made the same rows, and the floor must have kept every row
    that timelake read. Returns those that go on: of DuckDB's two settings only the quicker one."""
    reference, rows_read, walls = None, None, {}
    for contestant in all_contestants:
        out = work / "out"
        result = run(contestant, out)
        walls[contestant.name] = result["wall_s"]
        if contestant.floor:
            rows = json.loads(result["stdout"])["rows"]
            print(f"  {contestant.name:22} {rows:>12,} rows", flush=True)
            if rows_read not in (None, rows):
                sys.exit(f"the floor decoded {rows} rows, timelake {rows_read}")
            continue
        if contestant.name == "timelake":
            rows_read = json.loads(result["stdout"])["rows_read"]
        found = fingerprint(contestant, out)
        print(f"  {contestant.name:22} {found['rows']:>12,} rows  {found['keys']:>12,} keys  hash {found['hash']}", flush=True)
        reference = reference or found
        same = found == reference if contestant.deduplicates else found["keys"] == reference["keys"] and found["rows"] >= reference["rows"]
        if not same or reference["rows"] != reference["keys"]:
            sys.exit(f"{contestant.name} did not make the rows that {all_contestants[0].name} made: {found}, not {reference}")
    slower = max((f"DuckDB ({order})" for order in DUCKDB_ORDERS), key=lambda name: walls.get(name, 0.0))
    return [c for c in all_contestants if c.name != slower], reference


def measure(going_on, rounds, work):
    results = {c.name: [] for c in going_on}
    for number in range(rounds):
        # Another one begins each round, so that none always runs after the same other.
        for contestant in going_on[number % len(going_on) :] + going_on[: number % len(going_on)]:
            result = run(contestant, work / "out")
            results[contestant.name].append(result)
            print(f"  round {number + 1}  {contestant.name:22} {result['wall_s']:7.2f} s", flush=True)
    return results


def medians(results):
    return {
        name: {field: statistics.median(r[field] for r in runs) for field in ("wall_s", "cpu_s", "peak_bytes")}
        for name, runs in results.items()
    }


def step_medians(runs):
    manifests = [json.loads(r["stdout"]) for r in runs]
    names = [s["step"] for s in manifests[0]["steps"]]
    return {n: statistics.median(next((s["seconds"] for s in m["steps"] if s["step"] == n), 0.0) for m in manifests) for n in names}


def table(middle):
    own = middle["timelake"]
    lines = ["| | wall | CPU | peak memory | wall ÷ timelake | CPU ÷ timelake | memory ÷ timelake |", "|---|--:|--:|--:|--:|--:|--:|"]
    for name, m in middle.items():
        ratios = " | ".join(f"{m[f] / own[f]:.2f}" for f in ("wall_s", "cpu_s", "peak_bytes"))
        lines.append(f"| {name} | {m['wall_s']:.2f} s | {m['cpu_s']:.2f} s | {m['peak_bytes'] / 1e6:,.0f} MB | {ratios} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=WORKLOADS, default="a")
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-python", required=True, help="Python with bench/requirements.txt")
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--only", help="comma-separated beginnings of names, for example timelake,DuckDB")
    parser.add_argument("--no-save", action="store_true", help="do not write bench/results-WORKLOAD.json")
    arguments = parser.parse_args()

    work = arguments.work.absolute()
    source = source_of(arguments.workload, arguments.rows, work)
    chosen = contestants(arguments, source)
    if arguments.only:
        chosen = [c for c in chosen if c.name.startswith(tuple(arguments.only.split(",")))]
    print("comparing outputs", flush=True)
    going_on, reference = compare(chosen, work)
    print("measuring", flush=True)
    results = measure(going_on, arguments.rounds, work)
    middle = medians(results)
    if "timelake" not in middle:
        print(json.dumps(middle, indent=1))
        return
    steps = step_medians(results["timelake"])
    print(f"\n{table(middle)}\n\ntimelake's steps: " + ", ".join(f"{n} {s:.2f} s" for n, s in steps.items()))
    shutil.rmtree(work / "out", ignore_errors=True)
    if not arguments.no_save:
        runs = {name: [{k: v for k, v in r.items() if k != "stdout"} for r in rs] for name, rs in results.items()}
        machine = {"cores": os.cpu_count(), "python": platform.python_version()}
        facts = {"workload": arguments.workload, "rows": arguments.rows, "rounds": arguments.rounds, "machine": machine, "output": reference, "medians": middle, "steps_s": steps, "runs": runs}
        (HERE / f"results-{arguments.workload}.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
