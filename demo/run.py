"""The demo: a historian's export into a table that live ingestion writes to, and a query. Everything is in `demo-out/`."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

import make_historian as historian

ROOT = Path(__file__).parent.parent
OUT = ROOT / "demo-out"
TABLE = "iot.sensor"

CREATE = [
    "table", "create", TABLE, "--columns", "ts:timestamptz,site:string,device_id:string,value:double,quality:int",
    "--time-column", "ts", "--series-key", "site,device_id", "--partition", "month(ts)",
]  # fmt: skip
BACKFILL = ["backfill", TABLE, "--from", "export", "--hive", "--map", "ts=timestamp,device_id=tag_name", "--tz", historian.ZONE]

QUERY = """
SELECT site, strftime(ts, '%Y-%m') AS month, count(*) AS rows, round(avg(value), 2) AS mean
FROM iceberg_scan('{metadata}') GROUP BY ALL ORDER BY ALL
"""


def say(text):
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def timelake(arguments):
    """Runs the command in demo-out as a user would type it there, with the default lake `./lake`."""
    print(f"$ timelake {shlex.join(arguments)}", flush=True)
    binary = os.environ["TIMELAKE_BIN"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIMELAKE_")}
    subprocess.run([binary, *arguments], cwd=OUT, check=True, env=environment)


def table():
    return SqlCatalog("timelake", uri=f"sqlite:///{OUT}/lake/catalog.db", warehouse=f"file://{OUT}/lake/warehouse").load_table(TABLE)


def live_rows():
    """What live ingestion has written since it began, on the last day of the export: every sensor, UTC.
    One sensor in fifty was calibrated anew since, so its live values differ from the export's."""
    parts = []
    for number, site in enumerate(historian.SITES):
        part = historian.readings(number, historian.END - historian.DAY, historian.END + np.timedelta64(12, "h"))
        sensor = np.arange(part.num_rows) % historian.SENSORS
        value = np.where(sensor % 50 == 0, part["value"].to_numpy() + 0.5, part["value"].to_numpy())
        parts.append(pa.table({
            "ts": part["timestamp"], "site": pa.array([site] * part.num_rows), "device_id": part["tag_name"],
            "value": pa.array(value), "quality": part["quality"].cast(pa.int32()),
        }))  # fmt: skip
    return pa.concat_tables(parts)


def query():
    extensions = Path(duckdb.__file__).parent.parent / "duckdb_ext" / "extensions"
    connection = duckdb.connect(config={"extension_directory": str(extensions), "autoinstall_known_extensions": "false"})
    for name in ("icu", "avro", "iceberg", "parquet"):
        connection.execute(f"LOAD {name}")
    connection.execute("SET TimeZone = 'UTC'")
    print(QUERY.strip().format(metadata="lake/warehouse/iot/sensor/metadata/...metadata.json"))
    connection.sql(QUERY.format(metadata=table().metadata_location)).show(max_rows=50)


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    say("1. The export of a historian: local time, delivered twice in places")
    historian.main(OUT / "export")
    say("2. A table, and the rows that live ingestion has written since 30 June")
    timelake(CREATE)
    rows = live_rows()
    live = table()
    live.append(rows.cast(live.schema().as_arrow()))
    print(f"{rows.num_rows:,} live rows")
    say("3. The backfill")
    timelake(BACKFILL)
    say("4. The same command again changes nothing")
    timelake(BACKFILL)
    say("5. DuckDB reads the table")
    query()


if __name__ == "__main__":
    main()
