"""Workload C: wide rows in no order: a time, one of 10,000 series, 20 double columns, spread over a year at random.

`python workload_c.py ROWS SERIES OUT FILES`. Every row group holds all series and all months, so nothing can be left
unread and nothing is in order: the worst case for the memory of units. Doubles are random, so they hardly compress.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SEED = 11
COLUMNS = 20
START_US = int(np.datetime64("2024-01-01T00:00:00", "us").astype("int64"))
SPAN_US = 365 * 86_400 * 10**6
ROW_GROUP_ROWS = 1 << 18


def write(rows: int, series: int, out: Path, files: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(SEED)
    names = np.array([f"meter-{s:06d}" for s in range(series)])
    for file in range(files):
        count = rows // files
        columns = {
            "ts": pa.array(START_US + rng.integers(0, SPAN_US, count), pa.timestamp("us", tz="UTC")),
            "meter": pa.array(names[rng.integers(0, series, count)]),
        }
        for number in range(COLUMNS):
            columns[f"v{number:02d}"] = rng.random(count)
        pq.write_table(pa.table(columns), out / f"part-{file:04d}.parquet", compression="snappy", row_group_size=ROW_GROUP_ROWS)


if __name__ == "__main__":
    write(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
