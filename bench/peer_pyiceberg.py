"""PyIceberg: `python peer_pyiceberg.py SOURCE LAKE`: local time to UTC and one append to an Iceberg table partitioned
by month and four buckets. WITHOUT removing duplicates, without sorting, without looking at existing rows: it has no
way to do so, and is shown as the plain way to get the rows into a table."""

import datetime as dt
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, MonthTransform
from pyiceberg.types import DoubleType, IntegerType, NestedField, StringType, TimestamptzType

ZONE = "Europe/Berlin"


def instants(local):
    zoned = pc.assume_timezone(local, ZONE, ambiguous="latest", nonexistent="latest")
    skipped = pc.not_equal(pc.local_timestamp(zoned), local)
    if pc.any(skipped).as_py():
        later = pc.assume_timezone(pc.add(local, dt.timedelta(hours=1)), ZONE, ambiguous="latest", nonexistent="latest")
        zoned = pc.if_else(skipped, later, zoned)
    return zoned.cast(pa.timestamp("us", "UTC"))


def main(source, lake):
    lake.mkdir(parents=True)
    catalog = SqlCatalog("timelake", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}/warehouse")
    catalog.create_namespace("iot")
    schema = Schema(
        NestedField(1, "ts", TimestamptzType(), required=True), NestedField(2, "device_id", StringType(), required=True),
        NestedField(3, "value", DoubleType()), NestedField(4, "quality", IntegerType()),
    )  # fmt: skip
    spec = PartitionSpec(PartitionField(1, 1000, MonthTransform(), "ts_month"), PartitionField(2, 1001, BucketTransform(4), "device_bucket"))
    table = catalog.create_table("iot.sensor", schema, partition_spec=spec)
    rows = pq.read_table(source)
    rows = pa.table(
        [instants(rows["timestamp"]), rows["tag_name"], rows["value"], rows["quality"].cast(pa.int32())], names=schema.column_names
    )
    table.append(rows.cast(table.schema().as_arrow()))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).absolute())
