"""Writes the rows of the CSV cases as Parquet, so that the same expectations test the Parquet road.

Run from this folder: `python make_parquet.py`. For every case folder `...-parquet`:

- each `x.csv` becomes `x.parquet` with the same column names and the same rows in the same order;
- a time column whose texts carry offsets becomes timestamp(us, UTC), one without offsets timestamp(us)
  without a zone; numbers become double, an empty field null; everything else stays text;
- `expected.json` names the Parquet files, and `line` (physical line, header = 1) becomes `row` (data row from 1).

Running it again changes nothing. The CSV files stay as the readable source.
"""

import csv
import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent


def as_times(texts):
    times = [dt.datetime.fromisoformat(t.replace("Z", "+00:00")) for t in texts]
    zoned = {t.tzinfo is not None for t in times}
    if len(zoned) != 1:
        raise ValueError("times with and without offsets in one column")
    return pa.array(times, pa.timestamp("us", "UTC" if zoned.pop() else None))


def column(texts):
    for convert in (as_times, lambda t: pa.array([float(v) if v else None for v in t], pa.float64())):
        try:
            return convert(texts)
        except ValueError:
            pass
    return pa.array(texts, pa.string())


def write(path):
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = list(csv.reader(file))
    table = pa.table({name: column([row[i] for row in rows]) for i, name in enumerate(header)})
    pq.write_table(table, path.with_suffix(".parquet"))


def adapted(value):
    if isinstance(value, dict):
        renamed = {"line": "row", "other_line": "other_row"}
        return {renamed.get(k, k): v - 1 if k in renamed else adapted(v) for k, v in value.items()}
    if isinstance(value, list):
        return [adapted(v) for v in value]
    return value.replace(".csv", ".parquet") if isinstance(value, str) else value


def main():
    for folder in sorted({path.parent for path in HERE.glob("*-parquet/*.csv")}):
        for path in sorted(folder.glob("*.csv")):
            write(path)
        expected = folder / "expected.json"
        text = expected.read_text(encoding="utf-8")
        case = adapted(json.loads(text))
        new = json.dumps(case, indent=1, ensure_ascii=False) + "\n"
        if ".csv" in text:
            expected.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
