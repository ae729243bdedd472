"""Polars: `python peer_polars.py a|b SOURCE OUT`; threads by POLARS_MAX_THREADS.

Same work as the backfill: local time to UTC, one row per (sensor, time), sorted by (sensor, time) within month and
one of four buckets, zstd Parquet. It does not add the files to a table, check them, or look at existing rows.
"""

import sys
from pathlib import Path

import polars as pl

ZONE = "Europe/Berlin"
workload, source, out = sys.argv[1], sys.argv[2], Path(sys.argv[3])


def instant(column: pl.Expr) -> pl.Expr:
    known = column.dt.replace_time_zone(ZONE, ambiguous="latest", non_existent="null")
    # The hour that the clock skips: forward by the gap.
    shifted = column.dt.offset_by("1h").dt.replace_time_zone(ZONE, ambiguous="latest", non_existent="null")
    return known.fill_null(shifted).dt.convert_time_zone("UTC")


def read() -> pl.LazyFrame:
    if workload == "a":
        return pl.scan_parquet(f"{source}/*.parquet")
    schema = {"timestamp": pl.String, "tag_name": pl.String, "value": pl.Float64, "quality": pl.Int16}
    texts = pl.scan_csv(f"{source}/*.csv.gz", separator=";", decimal_comma=True, schema=schema)
    return texts.with_columns(pl.col("timestamp").str.to_datetime("%Y-%m-%d %H:%M:%S%.6f", time_unit="us"))


rows = (
    read()
    .select(device_id="tag_name", ts=instant(pl.col("timestamp")), value="value", quality="quality")
    .unique(subset=["device_id", "ts"], keep="first", maintain_order=True)
    .with_columns(month=pl.col("ts").dt.strftime("%Y-%m"), bucket=pl.col("device_id").hash() % 4)
    .collect()
)
out.mkdir(parents=True)
for (month, bucket), part in rows.partition_by(["month", "bucket"], as_dict=True, include_key=False).items():
    part.sort("device_id", "ts").write_parquet(out / f"{month}-{bucket}.parquet", compression="zstd")
