"""DuckDB: `python peer_duckdb.py a|b SOURCE OUT THREADS on|off` (workload; preserve_insertion_order).

Same work as the backfill: local time to UTC, one row per (sensor, time), sorted by (sensor, time) within month and
one of four buckets, zstd Parquet. It does not add the files to a table, check them, or look at existing rows.
"""

import sys

import duckdb

READ = {
    # Deliveries that meet lie in one file, so the row number in the file says which came first.
    "a": "SELECT *, file_row_number AS place FROM read_parquet('{source}/*.parquet', file_row_number = true)",
    # read_csv numbers no rows; the rows of a scan are numbered in source order.
    "b": """
      SELECT *, row_number() OVER () AS place FROM read_csv('{source}/*.csv.gz', delim = ';', decimal_separator = ',', header = true,
        auto_detect = false, columns = {{'timestamp': 'TIMESTAMP', 'tag_name': 'VARCHAR', 'value': 'DOUBLE', 'quality': 'SMALLINT'}})
    """,
}

workload, source, out, threads, order = sys.argv[1:6]
connection = duckdb.connect()
connection.execute("LOAD icu")
connection.execute(f"SET threads = {int(threads)}; SET preserve_insertion_order = {'true' if order == 'on' else 'false'}; SET TimeZone = 'UTC'")
# timezone() shifts times that do not exist and takes the later of two.
connection.execute(f"""
COPY (
  SELECT tag_name AS device_id, timezone('Europe/Berlin', "timestamp") AS ts, value, quality,
         strftime(timezone('Europe/Berlin', "timestamp"), '%Y-%m') AS month, hash(tag_name) % 4 AS bucket
  FROM ({READ[workload].format(source=source)})
  QUALIFY row_number() OVER (PARTITION BY tag_name, timezone('Europe/Berlin', "timestamp") ORDER BY place) = 1
  ORDER BY month, bucket, device_id, ts
) TO '{out}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (month, bucket), ROW_GROUP_SIZE 1048576)
""")
