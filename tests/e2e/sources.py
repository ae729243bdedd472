"""Exports that scenarios load, and what must be in the table afterwards: computed here from the rows, not by timelake."""

import datetime
import io
import random

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

FIRST = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
SCHEMA = pa.schema(
    [
        pa.field("ts", pa.timestamp("us", "UTC"), nullable=False), pa.field("device_id", pa.string(), nullable=False),
        pa.field("value", pa.float64()), pa.field("quality", pa.int32()),
    ]
)  # fmt: skip


def rows(months=3, series=8, per_day=24, seed=1):
    """Readings of some months in time order, a few of them delivered twice."""
    dice, out = random.Random(seed), []
    days = (datetime.datetime(2024, 1 + months, 1, tzinfo=datetime.timezone.utc) - FIRST).days
    for step in range(days * per_day):
        ts = FIRST + datetime.timedelta(days=1) * step / per_day
        for device in range(series):
            row = (ts, f"d{device:03}", round(dice.gauss(20, 5), 3), dice.choice((0, 192)))
            out.append(row)
            if dice.random() < 0.005:
                out.append(row)
    return out


def many(months=3, series=60, per_day=300):
    """So many readings that they are loaded in several units: a table in time order, each key once."""
    days = (datetime.datetime(2024, 1 + months, 1, tzinfo=datetime.timezone.utc) - FIRST).days
    query = f"""
        SELECT TIMESTAMPTZ '2024-01-01 00:00:00+00' + to_microseconds(i // {series} * (86400000000 // {per_day})) AS ts,
               'd' || lpad((i % {series})::VARCHAR, 3, '0') AS device_id, (hash(i) % 100000)::DOUBLE / 1000 AS value,
               (hash(i) // 7 % 2 * 192)::INTEGER AS quality
        FROM range({days * per_day * series}) AS numbers(i) ORDER BY i"""
    return duckdb.connect().execute(query).fetch_arrow_table().cast(SCHEMA)


def table(readings):
    columns = list(zip(*readings)) or [(), (), (), ()]
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA)], schema=SCHEMA)


def parquet(readings, group=2000):
    out = io.BytesIO()
    pq.write_table(readings if isinstance(readings, pa.Table) else table(readings), out, row_group_size=group)
    return out.getvalue()


def csv(readings):
    lines = ["ts,device_id,value,quality"]
    lines += [f"{ts.isoformat()},{device},{value!r},{quality}" for ts, device, value, quality in readings]
    return ("\n".join(lines) + "\n").encode()


def expected(*loads):
    """Every row once; of the same device and time, the row of the earlier load stays."""
    keys = {}
    for load in loads:
        for ts, device, value, quality in load:
            keys.setdefault((ts, device), (value, quality))
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    micros = lambda ts: (ts - epoch) // datetime.timedelta(microseconds=1)
    return sorted((micros(ts), device, value, quality) for (ts, device), (value, quality) in keys.items())
