"""The demo: a historian's export into a table that live ingestion writes to, and a query. Everything is in `demo-out/`."""

import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog.sql import SqlCatalog

import make_historian as historian

ROOT = Path(__file__).parent.parent
OUT = ROOT / "demo-out"
TABLE = "iot.sensor"
# A series whose repeated hour is looked at, from a while before until a while after it.
SITE, SENSOR = "berlin", historian.sensor_name(7)
REPEATED_DAY, REPEATED_FROM, REPEATED_TO = "27.10.2024", "01:30:00", "03:30:00"

CREATE = [
    "table", "create", TABLE, "--columns", "ts:timestamptz,site:string,device_id:string,value:double,quality:int,state:string",
    "--time-column", "ts", "--series-key", "site,device_id", "--partition", "month(ts)",
]  # fmt: skip
BACKFILL = [
    "backfill", TABLE, "--from", "export", "--hive", "--map", "ts=timestamp,device_id=tag_name",
    "--decimal", ",", "--null", historian.NO_DATA, "--bad-text-to", "state",
    "--ts-format", historian.TIME_FORMAT, "--tz", historian.ZONE, "--ambiguous", "infer",
]  # fmt: skip

BOTH_PASSES = f"""
SELECT strftime(timezone('{historian.ZONE}', ts), '%Y-%m-%d %H:%M') AS local, strftime(ts, '%Y-%m-%d %H:%M') AS utc, value, state
FROM iceberg_scan('{{metadata}}')
WHERE site = '{SITE}' AND device_id = '{SENSOR}'
  AND timezone('{historian.ZONE}', ts) BETWEEN '2024-10-27 01:30' AND '2024-10-27 03:30'
ORDER BY ts
"""
BY_SITE_AND_MONTH = """
SELECT site, strftime(ts, '%Y-%m') AS month, count(*) AS rows, round(avg(value), 2) AS mean, count(*) FILTER (value IS NULL) AS no_value,
       count(state) AS states
FROM iceberg_scan('{metadata}') GROUP BY ALL ORDER BY ALL
"""


def say(text):
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def timelake(arguments, show=True):
    """Runs the command in demo-out as a user would type it there, with the default lake `./lake`."""
    print(f"$ timelake {shlex.join(arguments)}", flush=True)
    binary = os.environ["TIMELAKE_BIN"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIMELAKE_")}
    return subprocess.run(
        [binary, *arguments], cwd=OUT, check=True, env=environment, text=True, stdout=None if show else subprocess.PIPE
    ).stdout


def table():
    return SqlCatalog("timelake", uri=f"sqlite:///{OUT}/lake/catalog.db", warehouse=f"file://{OUT}/lake/warehouse").load_table(TABLE)


def live_rows():
    """What live ingestion has written since it began, on the last day of the export: every sensor, UTC.
    One sensor in twenty was calibrated anew since, so its live values differ from the export's."""
    parts = []
    for number, site in enumerate(historian.SITES):
        part = historian.readings(number, historian.END - historian.DAY, historian.END + historian.DAY // 2)
        sensor = np.arange(part.num_rows) % historian.SENSORS
        value = np.where(sensor % 20 == 0, part["value"].to_numpy() + 0.5, part["value"].to_numpy())
        stateless = pc.equal(part["state"], "")
        parts.append(pa.table({
            "ts": part["timestamp"], "site": pa.array([site] * part.num_rows), "device_id": part["tag_name"],
            "value": pc.if_else(stateless, pa.array(value), None), "quality": part["quality"].cast(pa.int32()),
            "state": pc.if_else(pc.equal(part["state"], historian.CALIBRATING), part["state"], None),
        }))  # fmt: skip
    return pa.concat_tables(parts)


def show_source():
    """The lines of one series around the repeated hour, as they stand in the export."""
    path = OUT / "export" / f"site={SITE}" / "2024-10.csv.gz"
    print(path.relative_to(OUT))
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        print("  " + next(lines), end="")
        for line in lines:
            time, sensor = line.split(";")[:2]
            day, clock = time.split(" ")
            if sensor == SENSOR and day == REPEATED_DAY and REPEATED_FROM <= clock <= REPEATED_TO:
                print("  " + line, end="")


def show_decisions(job):
    manifest = json.loads(timelake(["backfill", "report", job, "--json"], show=False))
    for hour in manifest["repeated_hours"]:
        print(json.dumps(hour))


def query(connection, sql):
    print(sql.strip().format(metadata="lake/warehouse/iot/sensor/metadata/...metadata.json"))
    connection.sql(sql.format(metadata=table().metadata_location)).show(max_rows=50)


def reader():
    extensions = Path(duckdb.__file__).parent.parent / "duckdb_ext" / "extensions"
    connection = duckdb.connect(config={"extension_directory": str(extensions), "autoinstall_known_extensions": "false"})
    for name in ("icu", "avro", "iceberg", "parquet"):
        connection.execute(f"LOAD {name}")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    say("1. The export of a historian: CSV, local time, delivered twice in places. One series when the clock goes back:")
    historian.main(OUT / "export")
    show_source()
    say("2. A table, and the rows that live ingestion has written since 30 November")
    timelake(CREATE)
    rows = live_rows()
    live = table()
    live.append(rows.cast(live.schema().as_arrow()))
    print(f"{rows.num_rows:,} live rows")
    say("3. The backfill")
    timelake(BACKFILL)
    say("4. What was decided about the hour that happened twice, and the same series in the table")
    show_decisions("iot-sensor")
    connection = reader()
    query(connection, BOTH_PASSES)
    say("5. The same command again changes nothing")
    timelake(BACKFILL)
    say("6. DuckDB reads the table")
    query(connection, BY_SITE_AND_MONTH)


if __name__ == "__main__":
    main()
