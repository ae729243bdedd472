"""Workload A: a historian's export in time order, 1,000 sensors interleaved, local wall clock of Europe/Berlin.

`python workload_a.py ROWS SENSORS OUT FILES` writes FILES Snappy files with ROWS rows over the year 2024 and half
a percent of them delivered again. The same arguments give the same data. Local times are drawn evenly, so some do
not exist (the hour skipped in March), some are ambiguous (October), and a few keys meet with different payloads:
every contestant shifts the first, takes the later of the second and keeps the first delivery of the third.
"""

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SEED = 7
START_US = int(np.datetime64("2024-01-01T00:00:00", "us").astype("int64"))
SPAN_US = 365 * 86_400 * 10**6
DAY_US = 8.64e10
ROW_GROUP_ROWS = 1 << 20


def file_table(rng, file: int, files: int, rows: int, names: np.ndarray) -> pa.Table:
    first, end = START_US + SPAN_US * file // files, START_US + SPAN_US * (file + 1) // files
    at = np.sort(rng.integers(first, end, rows) // 1000 * 1000)
    sensor = rng.integers(0, len(names), rows)
    value = np.round(20 + 5 * np.sin(at / DAY_US * 2 * np.pi) + rng.normal(0, 0.5, rows), 2)
    quality = (rng.random(rows) < 0.01).astype("int16")
    again = rng.integers(0, rows, rows // 200)
    order = np.concatenate([np.arange(rows), again])
    order.sort(kind="stable")
    return pa.table({
        "timestamp": pa.array(at[order], pa.timestamp("us")), "tag_name": pa.array(names[sensor[order]]),
        "value": value[order], "quality": quality[order],
    })  # fmt: skip


def tables(rows: int, sensors: int, files: int):
    """The content of the files, in order."""
    rng = np.random.default_rng(SEED)
    names = np.array([f"plant{s % 7}/line{s % 31}/sensor-{s:05d}" for s in range(sensors)])
    for file in range(files):
        yield file_table(rng, file, files, rows // files, names)


def write(rows: int, sensors: int, out: Path, files: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for file, table in enumerate(tables(rows, sensors, files)):
        pq.write_table(table, out / f"part-{file:04d}.parquet", compression="snappy", row_group_size=ROW_GROUP_ROWS)


if __name__ == "__main__":
    write(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
