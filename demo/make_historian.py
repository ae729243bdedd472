"""Makes the export of a plant historian as Parquet: `python make_historian.py OUT`.

Four sites, 250 sensors each, the first half of 2024, a reading per sensor and hour: 4.4 million rows in one file
per site and month, `site=<name>/<month>.parquet`. As such exports are:

- times are local wall clock (Europe/Berlin) without a zone; the hour that the clock skips in March is not there;
- rows are in time order, sensors interleaved;
- half a percent of the rows was delivered twice, and every file begins with the last day of the month before.

The same numbers on every machine: nothing here depends on the clock.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ZONE = "Europe/Berlin"
SITES = ("berlin", "dresden", "hamburg", "leipzig")
SENSORS = 250
FIRST, END = np.datetime64("2024-01-01T00", "h"), np.datetime64("2024-07-01T00", "h")
DAY = np.timedelta64(24, "h")
ROW_GROUP_ROWS = 1 << 16


def readings(site: int, first: np.datetime64, end: np.datetime64) -> pa.Table:
    """Readings of one site in [first, end) UTC hours, in time order, with UTC times."""
    hours = np.arange(first, end)
    at = np.repeat(hours, SENSORS)
    sensor = np.tile(np.arange(SENSORS), len(hours))
    number = at.astype("int64")
    # Smooth in the hour of the day, with a repeatable jitter per sensor and hour.
    jitter = ((number * 2_654_435_761 + sensor * 40_503 + site * 97) % 1_000) / 1_000 - 0.5
    value = np.round(20 + site + 5 * np.sin(number / 24 * 2 * np.pi) + sensor % 10 + jitter, 2)
    names = pa.array([f"line-{s % 12:02d}/sensor-{s:04d}" for s in range(SENSORS)])
    return pa.table({
        "timestamp": pa.array(at.astype("datetime64[us]"), pa.timestamp("us", "UTC")),
        "tag_name": names.take(pa.array(sensor)),
        "value": pa.array(value),
        "quality": pa.array(np.where((number + sensor) % 211 == 0, 64, 192).astype("int16")),
    })  # fmt: skip


def delivered(table: pa.Table, seed: int) -> pa.Table:
    """Half a percent of the rows a second time, right after the first, as a gateway does that lost an answer."""
    rng = np.random.default_rng(seed)
    again = rng.integers(0, table.num_rows, table.num_rows // 200)
    return table.take(pa.array(np.sort(np.concatenate([np.arange(table.num_rows), again]), kind="stable")))


def local(table: pa.Table) -> pa.Table:
    return table.set_column(0, "timestamp", pc.local_timestamp(table["timestamp"].cast(pa.timestamp("us", ZONE))))


def main(out: Path) -> None:
    rows = files = 0
    for number, site in enumerate(SITES):
        folder = out / f"site={site}"
        folder.mkdir(parents=True)
        months = np.arange(FIRST.astype("datetime64[M]"), END.astype("datetime64[M]"))
        for i, month in enumerate(months):
            first, end = month.astype("datetime64[h]"), (month + 1).astype("datetime64[h]")
            overlap = DAY if i else np.timedelta64(0, "h")
            table = local(delivered(readings(number, first - overlap, end), seed=number * 100 + i))
            pq.write_table(table, folder / f"{month}.parquet", compression="snappy", row_group_size=ROW_GROUP_ROWS)
            rows, files = rows + table.num_rows, files + 1
    print(f"{files} files, {rows:,} rows")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
