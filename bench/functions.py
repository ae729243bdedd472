"""The functions as Lambda has them: how large their zips are, how soon they start, how much memory a writer takes at the
largest unit that is planned for it."""

import argparse
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cloud import NAME, started

import needs
from pack import FUNCTIONS, pack
from proxy import Proxy
from runtime import Function

ZIP_BYTES = 15_000_000
INIT_SECONDS = 0.2
MEMORY_SHARE = 0.7
STARTS = 10
# A unit that is planned for fewer rows than this part of its limit tells nothing about the limit.
LEAST_FULL = 0.9
FULL = 0.97
SERIES = 1_000
PROBE_ROWS = 100_000
ROW_GROUP = 1 << 20
COLUMNS = "ts:timestamptz,device_id:string,value:double,quality:int"
CREATE = ["--time-column", "ts", "--series-key", "device_id", "--columns", COLUMNS, "--partition", "month(ts)"]


def export(rows):
    """Readings of one month, all series interleaved."""
    dice = np.random.default_rng(1)
    month = 31 * 86_400_000_000
    ts = 1_704_067_200_000_000 + np.arange(rows, dtype=np.int64) * month // rows
    names = pa.array([f"plant-{n % 7}.line-{n % 13}.sensor-{n:04}" for n in range(SERIES)])
    series = pa.DictionaryArray.from_arrays(pa.array(dice.integers(0, SERIES, rows, dtype=np.int32)), names)
    table = pa.table(
        {
            "ts": pa.array(ts).cast(pa.timestamp("us", "UTC")), "device_id": series.cast(pa.string()),
            "value": dice.normal(20, 5, rows).round(3), "quality": dice.choice([0, 192], rows).astype(np.int32),
        }
    )  # fmt: skip
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=ROW_GROUP)
    return out.getvalue()


class Bench:
    def __init__(self, cloud, functions, memory_mb):
        """`functions`: their executables by name."""
        self.cloud, self.functions, self.memory_mb = cloud, functions, memory_mb
        self.log = (cloud.folder / "functions.log").open("wb")

    def start(self, name, **environment):
        return Function(name, self.functions[name], {**self.cloud.environment, **environment}, self.memory_mb, self.log)

    def init_s(self, name, starts):
        times = []
        for _ in range(starts):
            with self.start(name) as function:
                times.append(function.init_s)
        return statistics.median(times)

    def planned(self, table, rows):
        """Loads so many rows as far as the messages of its units; gives its plan and the messages."""
        command = [needs.command(), "table", "create", f"iot.{table}", *CREATE, "--json"]
        environment = {**self.cloud.environment, "TIMELAKE_CONFIG": str(self.cloud.lake()), "TIMELAKE_LAKE": f"aws:{NAME}"}
        subprocess.run(command, env=environment, cwd=self.cloud.folder, stdout=subprocess.DEVNULL, check=True)
        body = export(rows)
        self.cloud.s3.put_object(Bucket=NAME, Key=f"{table}.parquet", Body=body)
        source = f"s3://{NAME}/{table}.parquet"
        with self.start("planner") as planner:
            answer = planner.call({"action": "plan", "request": {"table": f"iot.{table}", "rows": {"from": [source]}, "run": {}}, "options": {}})
        stored = self.cloud.s3.get_object(Bucket=NAME, Key=f"jobs/{answer['job']}/g{answer['gen']}/plan.json")
        plan = json.loads(stored["Body"].read())
        return {**plan, "source_bytes": len(body)}, self.messages()

    def messages(self):
        """What waits in the queue of the writers, as events."""
        url, events = self.cloud.queues["work"], []
        while found := self.cloud.sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"]).get("Messages"):
            for message in found:
                self.cloud.sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                record = {"messageId": message["MessageId"], "receiptHandle": message["ReceiptHandle"], "body": message["Body"]}
                record |= {"attributes": message["Attributes"], "messageAttributes": {}, "eventSource": "aws:sqs"}
                events.append({"Records": [record]})
        return events

    def writer(self):
        """One call of a writer at a unit that is as large as it may be."""
        limit = self.planned("probe", PROBE_ROWS)[0]["unit_rows_limit"]
        rows = int(limit * FULL)
        plan, events = self.planned("full", rows)
        units = [unit for group in plan["groups"] for unit in group["units"]]
        if len(units) != 1 or len(events) != 1 or units[0]["estimated_rows"] < LEAST_FULL * plan["unit_rows_limit"]:
            sys.exit(f"{rows:,} rows do not make one full unit: {[u['estimated_rows'] for u in units]} of {plan['unit_rows_limit']:,}")
        proxy = Proxy(self.cloud.emulator.port)
        try:
            with self.start("writer", AWS_ENDPOINT_URL=proxy.endpoint) as writer:
                before, begin = writer.peak_bytes(), time.monotonic()
                answer = writer.call(events[0])
                seconds, peak = time.monotonic() - begin, writer.peak_bytes()
        finally:
            proxy.stop()
        if answer["batchItemFailures"]:
            sys.exit(f"the writer gave its message back: {Path(self.log.name).read_text(encoding='utf-8')[-2000:]}")
        requests = [{"service": service, "operation": action, "requests": count} for (service, action), count in sorted(proxy.calls.items())]
        return {
            "memory_bytes": self.memory_mb << 20, "rows": rows, "rows_limit": plan["unit_rows_limit"], "row_bytes": plan["row_bytes"],
            "source_bytes": plan["source_bytes"], "started_bytes": before, "peak_bytes": peak, "seconds": seconds, "requests": requests,
        }  # fmt: skip


def unpacked(zips, folder):
    """The executables in the zips, and the sizes of these."""
    found, sizes = {}, {}
    for name in FUNCTIONS:
        path = Path(zips, name, "bootstrap.zip")
        if not path.exists():
            raise needs.Missing(f"there is no {path}: make zips, or --bins FOLDER with executables that are built")
        with zipfile.ZipFile(path) as archive:
            executable = Path(archive.extract("bootstrap", Path(folder, name)))
        executable.chmod(0o755)
        found[name], sizes[name] = executable, path.stat().st_size
    return found, sizes


def measured(arguments, folder):
    zips = arguments.zips
    if arguments.bins:
        zips = Path(folder, "zips")
        pack(arguments.bins, zips)
    functions, sizes = unpacked(zips, folder)
    with started() as cloud:
        bench = Bench(cloud, functions, arguments.memory)
        init = {name: bench.init_s(name, arguments.starts) for name in FUNCTIONS}
        return {"zip_bytes": sizes, "init_s": init, "writer": bench.writer()}


def targets(found):
    """(what, measured, at most)"""
    writer = found["writer"]
    rows = [(f"zip of the {name}, MB", size / 1e6, ZIP_BYTES / 1e6) for name, size in found["zip_bytes"].items()]
    rows += [(f"start of the {name}, ms", seconds * 1e3, INIT_SECONDS * 1e3) for name, seconds in found["init_s"].items()]
    return [*rows, ("peak memory of a writer, % of its memory", 100 * writer["peak_bytes"] / writer["memory_bytes"], 100 * MEMORY_SHARE)]


def tell(found):
    width = max(len(row["target"]) for row in found["targets"])
    print(f"{'target':<{width}}  {'measured':>9}  {'at most':>8}")
    for row in found["targets"]:
        print(f"{row['target']:<{width}}  {row['measured']:>9.1f}  {row['at_most']:>8.1f}  {'reached' if row['reached'] else 'MISSED'}")
    writer = found["writer"]
    print(
        f"\nthe writer: {writer['rows']:,} rows of at most {writer['rows_limit']:,} ({writer['row_bytes']} bytes each by the plan) in {writer['seconds']:.1f} s;"
        f" {writer['peak_bytes'] / (1 << 20):.0f} MiB of {writer['memory_bytes'] / (1 << 20):.0f} MiB, {writer['started_bytes'] / (1 << 20):.0f} MiB before its first event"
    )
    print(f"it read a source of {writer['source_bytes'] / 1e6:.1f} MB; what it asked for:")
    for row in writer["requests"]:
        print(f"  {row['service']:<10} {row['operation']:<20} {row['requests']:>5}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--zips", type=Path, default=Path("target/lambda"), help="folder of zips as make zips leaves them")
    parser.add_argument("--bins", type=Path, help="folder of executables, instead of zips: their sizes are not those on AWS")
    parser.add_argument("--memory", type=int, default=512, help="memory of the functions in MiB")
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument("--json", action="store_true", help="all figures as JSON, instead of a table")
    parser.add_argument("--no-save", action="store_true", help="do not write bench/results-functions.json")
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="timelake-functions-") as folder:
            found = measured(arguments, folder)
    except needs.Missing as missing:
        sys.exit(f"error: {missing}")
    rows = [{"target": what, "measured": value, "at_most": most, "reached": value <= most} for what, value, most in targets(found)]
    found = {"targets": rows, **found}
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        tell(found)
    if not arguments.no_save:
        Path(__file__).with_name("results-functions.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
