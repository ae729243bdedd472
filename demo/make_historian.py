"""Makes the export of a plant historian as gzip CSV: `python make_historian.py OUT`.

Four sites, 60 sensors each, March to November 2024, a reading per sensor and half hour: 3.3 million rows in one file
per site and month, `site=<name>/<month>.csv.gz`. As such exports are:

- semicolons and decimal commas, days before months;
- times are local wall clock (Europe/Berlin) without a zone: the hour that the clock skips in March is not there, the
  one that it repeats in October is there twice;
- rows are in time order, sensors interleaved;
- half a percent of the rows was delivered twice, and every file begins with the last day of the month before;
- where a value should be stands a state now and then.

The same numbers on every machine: nothing here depends on the clock.
"""

import gzip
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

ZONE = "Europe/Berlin"
TIME_FORMAT = "%d.%m.%Y %H:%M:%S"
SITES = ("berlin", "dresden", "hamburg", "leipzig")
SENSORS = 60
STEP = np.timedelta64(30, "m")
FIRST, END = np.datetime64("2024-03-01T00", "m"), np.datetime64("2024-12-01T00", "m")
DAY = np.timedelta64(24 * 60, "m")
# No reading, which is NULL, and a state that is worth keeping.
NO_DATA, CALIBRATING = "No Data", "Calibrating"
GZIP_LEVEL = 4


def sensor_name(sensor: int) -> str:
    return f"line-{sensor % 12:02d}/sensor-{sensor:04d}"


def readings(site: int, first: np.datetime64, end: np.datetime64) -> pa.Table:
    """Readings of one site in [first, end) UTC, in time order, with UTC times."""
    times = np.arange(first, end, STEP)
    at = np.repeat(times, SENSORS)
    sensor = np.tile(np.arange(SENSORS), len(times))
    number = at.astype("int64") // STEP.astype("int64")
    # Smooth in the hour of the day, with a repeatable jitter per sensor and time.
    jitter = ((number * 2_654_435_761 + sensor * 40_503 + site * 97) % 1_000) / 1_000 - 0.5
    value = np.round(20 + site + 5 * np.sin(number / 48 * 2 * np.pi) + sensor % 10 + jitter, 2)
    names = pa.array([sensor_name(s) for s in range(SENSORS)])
    state = np.where((number + sensor * 7) % 4_999 == 0, CALIBRATING, np.where((number * 3 + sensor) % 2_503 == 0, NO_DATA, ""))
    return pa.table({
        "timestamp": pa.array(at.astype("datetime64[us]"), pa.timestamp("us", "UTC")),
        "tag_name": names.take(pa.array(sensor)),
        "value": pa.array(value),
        "quality": pa.array(np.where((number + sensor) % 211 == 0, 64, 192).astype("int16")),
        "state": pa.array(state),
    })  # fmt: skip


def delivered(table: pa.Table, seed: int) -> pa.Table:
    """Half a percent of the rows a second time, right after the first, as a gateway does that lost an answer."""
    rng = np.random.default_rng(seed)
    again = rng.integers(0, table.num_rows, table.num_rows // 200)
    return table.take(pa.array(np.sort(np.concatenate([np.arange(table.num_rows), again]), kind="stable")))


def as_text(table: pa.Table) -> pa.Table:
    local = pc.local_timestamp(table["timestamp"].cast(pa.timestamp("us", ZONE))).cast(pa.timestamp("s"))
    number = pc.replace_substring(table["value"].cast(pa.string()), ".", ",")
    return pa.table({
        "timestamp": pc.strftime(local, TIME_FORMAT),
        "tag_name": table["tag_name"],
        "value": pc.if_else(pc.equal(table["state"], ""), number, table["state"]),
        "quality": table["quality"],
    })  # fmt: skip


def write_month(folder: Path, site: int, index: int, month: np.datetime64) -> int:
    first, end = month.astype("datetime64[m]"), (month + 1).astype("datetime64[m]")
    overlap = DAY if index else np.timedelta64(0, "m")
    table = as_text(delivered(readings(site, first - overlap, end), seed=site * 100 + index))
    options = pa.csv.WriteOptions(delimiter=";", quoting_style="none", quoting_header="none")
    with (folder / f"{month}.csv.gz").open("wb") as file, gzip.GzipFile("", "wb", GZIP_LEVEL, file, mtime=0) as out:
        pa.csv.write_csv(table, out, options)
    return table.num_rows


def main(out: Path) -> None:
    months = np.arange(FIRST.astype("datetime64[M]"), END.astype("datetime64[M]"))
    with ProcessPoolExecutor() as pool:
        written = []
        for site, name in enumerate(SITES):
            folder = out / f"site={name}"
            folder.mkdir(parents=True)
            written += [pool.submit(write_month, folder, site, index, month) for index, month in enumerate(months)]
        rows = sum(each.result() for each in written)
    print(f"{len(written)} files, {rows:,} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
