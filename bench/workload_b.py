"""Workload B: the rows of workload A as text: `python workload_b.py ROWS SENSORS OUT FILES`.

Gzip CSV with semicolons and decimal commas, the local time as `YYYY-MM-DD HH:MM:SS.ffffff`, in the order of workload A
and one file for each of its files. The same arguments give the same data.
"""

import gzip
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

import workload_a

GZIP_LEVEL = 6


def texts(table: pa.Table) -> pa.Table:
    value = pc.replace_substring(table["value"].cast(pa.string()), ".", ",")
    return table.set_column(0, "timestamp", table["timestamp"].cast(pa.string())).set_column(2, "value", value)


def write_file(table: pa.Table, path: Path) -> None:
    options = pa.csv.WriteOptions(delimiter=";", quoting_style="none", quoting_header="none")
    # Without name and time of the file, which gzip would keep.
    with path.open("wb") as file, gzip.GzipFile("", "wb", GZIP_LEVEL, file, mtime=0) as out:
        pa.csv.write_csv(texts(table), out, options)


def write(rows: int, sensors: int, out: Path, files: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        made = workload_a.tables(rows, sensors, files)
        written = [pool.submit(write_file, table, out / f"part-{file:04d}.csv.gz") for file, table in enumerate(made)]
        for each in written:
            each.result()


if __name__ == "__main__":
    write(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
