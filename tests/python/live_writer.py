"""A live writer: appends one row every 200 ms to a table until its stdin closes, as an ingest service does.

    live_writer.py LAKE TABLE FIRST_DAY DAYS

It keeps the table it loaded and reloads it only when a commit is refused, as long-lived writers do. Prints a JSON line per
commit and, at the end, one with the totals. PyIceberg reports a snapshot that was staged on a branch since the table was
loaded as a ValueError about sequence numbers; these are counted apart from plain conflicts.
"""

import datetime as dt
import json
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

EVERY_SECONDS = 0.2
TRIES = 50

lake, name, first_day, days = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
catalog = SqlCatalog("timelake", uri=f"sqlite:///{Path(lake).absolute()}/catalog.db", warehouse=f"file://{Path(lake).absolute()}/warehouse")
table = catalog.load_table(name)
stopped = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
totals = {"commits": 0, "conflicts": 0, "staged_snapshot_errors": 0}

number = 0
while not stopped.is_set():
    start = time.time()
    # Inside the job's window, at second 30, where no reading of the source is.
    at = dt.datetime(2024, 5, first_day, tzinfo=dt.timezone.utc) + dt.timedelta(minutes=number * 7919 % (days * 1440), seconds=30)
    rows = {"ts": [at], "device_id": [f"live-{number:05}"], "value": [float(number)], "quality": [1]}
    schema = table.schema().as_arrow()
    batch = pa.table({field.name: pa.array(rows[field.name], field.type) for field in schema}, schema=schema)
    for tries in range(TRIES):
        try:
            table.append(batch)
            break
        except (CommitFailedException, ValueError) as error:
            if isinstance(error, CommitFailedException):
                totals["conflicts"] += 1
            elif "older than last sequence number" in str(error):
                totals["staged_snapshot_errors"] += 1
            else:
                raise
            if tries + 1 == TRIES:
                raise
            table = catalog.load_table(name)
    totals["commits"] += 1
    print(json.dumps({"commit": number, "at": time.time()}), flush=True)
    number += 1
    stopped.wait(max(0.0, EVERY_SECONDS - (time.time() - start)))
print(json.dumps({"totals": totals}), flush=True)
