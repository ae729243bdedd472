"""Independent reader, live writer and inspector of a lake, for the tests.

Takes one JSON request per line on stdin and answers with one JSON line on stdout: {"ok": ...} or
{"error": "..."}. One process serves a whole test process, because importing the libraries takes longer
than reading a table. Every request loads the table again: nothing is remembered between requests.
It shares no code with the project, so a table that only our own scan can read is found out.
"""

import json
import os
import sqlite3
import sys
import time
import traceback
import uuid
from pathlib import Path
from xml.etree import ElementTree

import botocore.config
import botocore.session
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg import expressions as ex
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddPartitionSpecUpdate
from pyiceberg.transforms import parse_transform
from pyiceberg.types import NestedField

import row_deltas
from row_deltas import local_path
from values import arrow_rows, instant_text, plain, python_value, rows_of, sql_literal

COMMIT_TRIES = 20


def duck_connection():
    extensions = Path(duckdb.__file__).parent.parent / "duckdb_ext" / "extensions"
    connection = duckdb.connect(config={"extension_directory": str(extensions), "autoinstall_known_extensions": "false", "threads": "2"})
    for name in ("icu", "avro", "iceberg", "parquet"):
        connection.execute(f"LOAD {name}")
    connection.execute("SET TimeZone = 'UTC'")
    # It fails with an internal error over files of which some have no rows left.
    connection.execute("SET preserve_insertion_order = false")
    return connection


DUCK = duck_connection()


def catalog(request):
    lake = Path(request["lake"]).absolute()
    lake.mkdir(parents=True, exist_ok=True)
    return SqlCatalog("timelake", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}/warehouse", **s3_properties(request))


def s3_properties(request):
    if "s3" not in request:
        return {}
    return {
        "s3.endpoint": request["s3"], "s3.region": "eu-central-1", "s3.access-key-id": "test", "s3.secret-access-key": "test",
    }  # fmt: skip


def s3(request):
    return botocore.session.get_session().create_client(
        "s3", endpoint_url=request["s3"], region_name="eu-central-1", aws_access_key_id="test", aws_secret_access_key="test",
        config=botocore.config.Config(s3={"addressing_style": "path"}),
    )  # fmt: skip


def s3_bucket(request):
    s3(request).create_bucket(Bucket=request["bucket"], CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})


def s3_put(request):
    body = Path(request["file"]).read_bytes() if "file" in request else request["text"].encode()
    return s3(request).put_object(Bucket=request["bucket"], Key=request["key"], Body=body)["ETag"].strip('"')


def s3_delete(request):
    s3(request).delete_object(Bucket=request["bucket"], Key=request["key"])


def s3_list(request):
    """Keys and sizes, and what is left of uploads that were never finished."""
    pages = s3(request).get_paginator("list_objects_v2").paginate(Bucket=request["bucket"], Prefix=request.get("prefix", ""))
    objects = {o["Key"]: o["Size"] for page in pages for o in page.get("Contents", [])}
    uploads = s3(request).list_multipart_uploads(Bucket=request["bucket"]).get("Uploads", [])
    return {"objects": objects, "uploads": [u["Key"] for u in uploads]}


def load(request):
    return catalog(request).load_table(request["table"])


def snapshot_of(table, request):
    """The snapshot id asked for by `ref` or `snapshot`, or None for the current one."""
    if request.get("ref"):
        reference = table.metadata.refs.get(request["ref"])
        if reference is None:
            raise LookupError(f"no ref {request['ref']}")
        return reference.snapshot_id
    return request.get("snapshot")


def row_filter(table, conditions):
    result = ex.AlwaysTrue()
    for c in conditions or []:
        name, op = c["column"], c["op"]
        kind = table.schema().find_type(name)
        value = python_value(c.get("value"), kind)
        if hasattr(value, "isoformat"):
            value = value.isoformat()
        if op == "eq" and value is None:
            term = ex.IsNull(name)
        elif op == "eq" and value != value:
            term = ex.IsNaN(name)
        else:
            term = {"eq": ex.EqualTo, "lt": ex.LessThan, "ge": ex.GreaterThanOrEqual, "starts_with": ex.StartsWith}[op](name, value)
        result = ex.And(result, term)
    return result


def sql_filter(table, conditions):
    terms = ["true"]
    for c in conditions or []:
        name = '"' + c["column"].replace('"', '""') + '"'
        kind = table.schema().find_type(c["column"])
        value = c.get("value")
        if value is None:
            terms.append(f"{name} IS NULL")
        elif c["op"] == "starts_with":
            terms.append(f"starts_with({name}, {sql_literal(value, kind)})")
        else:
            terms.append(f"{name} { {'eq': '=', 'lt': '<', 'ge': '>='}[c['op']] } {sql_literal(value, kind)}")
    return " AND ".join(terms)


def scan_sql(table, request):
    snapshot = snapshot_of(table, request)
    at = f", snapshot_from_id = {snapshot}" if snapshot is not None else ""
    return f"iceberg_scan('{table.metadata_location}'{at})"


def read_arrow(table, request):
    columns = request.get("columns")
    if request["engine"] == "pyarrow":
        return row_deltas.live_rows(table)
    if request["engine"] == "pyiceberg":
        scan = table.scan(
            row_filter=row_filter(table, request.get("filter")),
            selected_fields=tuple(columns) if columns else ("*",),
            snapshot_id=snapshot_of(table, request),
        )
        return scan.to_arrow()
    if table.metadata.current_snapshot_id is None and not request.get("ref"):
        return table.schema().as_arrow().empty_table()
    picked = ", ".join('"' + c.replace('"', '""') + '"' for c in columns) if columns else "*"
    query = f"SELECT {picked} FROM {scan_sql(table, request)} WHERE {sql_filter(table, request.get('filter'))}"
    result = DUCK.execute(query).arrow()
    return result if isinstance(result, pa.Table) else result.read_all()


def read(request):
    table = load(request)
    return rows_of(read_arrow(table, request), table.schema())


def probe(request):
    """Counts the rows that each filter of `filters` finds; a wrong bound hides rows here."""
    table, counts = load(request), []
    for conditions in request["filters"]:
        uuids = any(str(table.schema().find_type(c["column"])) == "uuid" for c in conditions)
        if uuids and request["engine"] == "pyiceberg":
            counts.append(uuid_rows(table, conditions))
        else:
            counts.append(read_arrow(table, {**request, "filter": conditions}).num_rows)
    return counts


def uuid_rows(table, conditions):
    """PyIceberg prunes files by UUID bounds but pyarrow cannot compare UUIDs: read what it did not prune."""
    found = 0
    for task in table.scan(row_filter=row_filter(table, conditions)).plan_files():
        rows = rows_of(pq.read_table(local_path(task.file.file_path), partitioning=None), table.schema())
        found += sum(all(row[c["column"]] == c.get("value") for c in conditions) for row in rows)
    return found


def column_type(name):
    return NestedField.model_validate({"id": 1, "name": "any", "type": name, "required": False}).field_type


def create_table(request):
    """A table as other tools make it, without timelake's properties unless given."""
    lake = catalog(request)
    fields = [
        NestedField.model_validate({"id": i + 1, "name": c["name"], "type": c["type"], "required": c.get("required", False)})
        for i, c in enumerate(request["columns"])
    ]
    schema = Schema(*fields)
    parts = [
        PartitionField(schema.find_field(p["source"]).field_id, 1000 + i, parse_transform(p["transform"]), p["name"])
        for i, p in enumerate(request.get("partition", []))
    ]
    spec = PartitionSpec(*parts) if parts else UNPARTITIONED_PARTITION_SPEC
    try:
        lake.create_namespace(request["table"].split(".")[0])
    except NamespaceAlreadyExistsError:
        pass
    properties = {"format-version": "2", **request.get("properties", {})}
    table = lake.create_table(request["table"], schema, partition_spec=spec, properties=properties)
    if request.get("format_version") == 3:
        # PyIceberg reads version 3 but does not write it; an empty table differs only in these two fields.
        path = Path(local_path(table.metadata_location))
        metadata = {**json.loads(path.read_text(encoding="utf-8")), "format-version": 3, "next-row-id": 0}
        path.write_text(json.dumps(metadata), encoding="utf-8")
    return table.metadata_location


def retried(request, change):
    """Live writers try again when another commit was first."""
    for attempt in range(COMMIT_TRIES):
        try:
            return change(load(request))
        except (CommitFailedException, ValueError) as error:
            # PyIceberg reports a commit on another branch in between as a ValueError about sequence numbers.
            lost_race = isinstance(error, CommitFailedException) or "older than last sequence number" in str(error)
            if not lost_race or attempt + 1 == COMMIT_TRIES:
                raise
            time.sleep(0.01 * attempt)


def append(request):
    def change(table):
        table.append(arrow_rows(request["rows"], table.schema(), table.schema().as_arrow()))
        return load(request).metadata.current_snapshot_id

    return retried(request, change)


def delete(request):
    """Copy-on-write delete of the rows that the filter finds."""

    def change(table):
        table.delete(row_filter(table, request["filter"]))
        return load(request).metadata.current_snapshot_id

    return retried(request, change)


def overwrite(request):
    """Replaces the rows that the filter finds, copy-on-write."""

    def change(table):
        rows = arrow_rows(request["rows"], table.schema(), table.schema().as_arrow())
        table.overwrite(rows, overwrite_filter=row_filter(table, request["filter"]))

    return retried(request, change)


def equality_delete(request):
    """Deletes rows by equality on the named columns, by files in the table's own spec, as upserting writers do; `then`
    are rows added in the same commit."""

    def change(table):
        arrow = lambda rows: arrow_rows(rows, table.schema(), table.schema().as_arrow())
        deletes = row_deltas.equality_files(table, arrow(request["rows"]), request["columns"])
        added = row_deltas.data_files(table, arrow(request["then"])) if request.get("then") else []
        row_deltas.commit(table, row_deltas.RowDelta, Operation.OVERWRITE if added else Operation.DELETE, deletes + added)
        return [file.file_path for file in deletes]

    return retried(request, change)


def position_delete(request):
    """Deletes the rows with these keys (time and device) by their positions."""
    keys = {(row["ts"], row["device_id"]) for row in request["rows"]}
    matches = lambda row: (plain(row["ts"]), row["device_id"]) in keys

    def change(table):
        files = row_deltas.position_files(table, matches)
        row_deltas.commit(table, row_deltas.RowDelta, Operation.DELETE, files)
        return len(files)

    return retried(request, change)


def remove_deletes(request):
    return retried(request, lambda table: row_deltas.commit(table, row_deltas.WithoutDeletes, Operation.OVERWRITE))


def compact_deletes(request):
    return retried(request, row_deltas.compact)


def expire(request):
    return retried(request, row_deltas.expire)


def compact(request):
    """Rewrites the files that hold rows of the filter (all without one) into new files with the same rows.

    `commits: 1` is one overwrite snapshot that removes and adds files, as compactors do; `2` is PyIceberg's own
    overwrite, which commits the removal and the addition as two snapshots of one transaction."""

    def change(table):
        conditions = row_filter(table, request.get("filter"))
        if request.get("commits", 1) == 2:
            rows = table.scan(row_filter=conditions).to_arrow()
            table.overwrite(rows.cast(table.schema().as_arrow()), overwrite_filter=conditions)
            return rows.num_rows
        tasks = list(table.scan(row_filter=conditions).plan_files())
        if any(task.delete_files for task in tasks):
            raise RuntimeError("compact_deletes applies delete files")
        rows = pa.concat_tables([pq.read_table(local_path(t.file.file_path), partitioning=None) for t in tasks], promote_options="default")
        rows = rows.select(table.schema().as_arrow().names).cast(table.schema().as_arrow())
        with table.transaction() as transaction:
            new_files = list(_dataframe_to_data_files(table.metadata, rows, table.io, write_uuid=uuid.uuid4()))
            with transaction.update_snapshot().overwrite() as overwrite:
                for task in tasks:
                    overwrite.delete_data_file(task.file)
                for file in new_files:
                    overwrite.append_data_file(file)
        return rows.num_rows

    return retried(request, change)


def evolve(request):
    """Changes the schema: `add {name, type, required}`, `rename {from, to}`, `drop`, `widen {name, type}`, `require`."""
    with load(request).update_schema(allow_incompatible_changes=True) as update:
        for column in request.get("add", []):
            update.add_column(column["name"], column_type(column["type"]), required=column.get("required", False))
        for column in request.get("rename", []):
            update.rename_column(column["from"], column["to"])
        for name in request.get("drop", []):
            update.delete_column(name)
        for column in request.get("widen", []):
            update.update_column(column["name"], field_type=column_type(column["type"]))
        for name in request.get("require", []):
            update.update_column(name, required=True)


def set_partition(request):
    """Another default partition spec: the time column by one transform."""
    table = load(request)
    with table.update_spec() as update:
        for field in table.spec().fields:
            update.remove_field(field.name)
        update.add_field(request["column"], parse_transform(request["transform"]), request["name"])


def set_sort_order(request):
    with load(request).update_sort_order() as update:
        update.asc(request["column"], parse_transform("identity"))


def drop_table(request):
    catalog(request).drop_table(request["table"])


def add_spec(request):
    """Another partition spec, not the default one, as another tool names and adds it."""
    table = load(request)
    fields = [
        PartitionField(table.schema().find_field(p["source"]).field_id, table.metadata.last_partition_id + 1 + i, parse_transform(p["transform"]), p["name"])
        for i, p in enumerate(request["partition"])
    ]  # fmt: skip
    spec = PartitionSpec(*fields, spec_id=max(table.specs()) + 1)
    table.catalog.commit_table(table, (), (AddPartitionSpecUpdate(spec=spec),))
    return spec.spec_id


def drop_specs(request):
    """Removes all partition specs but the default one, as a cleanup of unused ones does; PyIceberg cannot."""
    path = Path(local_path(load(request).metadata_location))
    metadata = json.loads(path.read_text(encoding="utf-8"))
    metadata["partition-specs"] = [s for s in metadata["partition-specs"] if s["spec-id"] == metadata["default-spec-id"]]
    path.write_text(json.dumps(metadata), encoding="utf-8")


def ledger_sql(request):
    """Runs a statement on the lake's ledger: to make it fail at a chosen place."""
    with sqlite3.connect(Path(request["lake"]) / "ledger.db", timeout=30) as ledger:
        ledger.executescript(request["sql"])


HELD = {}


def hold(request):
    """Locks one of the lake's databases, as another process would, until `let_go`."""
    HELD[request["database"]] = database = sqlite3.connect(Path(request["lake"]) / request["database"], isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")


def let_go(request):
    HELD.pop(request["database"]).close()


def set_property(request):
    with load(request).transaction() as transaction:
        transaction.set_properties(request["properties"])


def remove_property(request):
    with load(request).transaction() as transaction:
        transaction.remove_properties(*request["names"])


def create_branch(request):
    """A branch on the current snapshot of `main`."""
    table = load(request)
    with table.manage_snapshots() as manage:
        manage.create_branch(table.metadata.current_snapshot_id, request["name"])


def remove_branch(request):
    with load(request).manage_snapshots() as manage:
        manage.remove_branch(request["name"])


def set_main(request):
    """Sets `main` back to an older snapshot, as a rollback by hand does."""
    with load(request).manage_snapshots() as manage:
        manage.set_current_snapshot(snapshot_id=request["snapshot"])


def summary(request):
    """Order-independent facts of a big table: rows, distinct keys, sum of `value` (exact for small whole numbers)."""
    table = load(request)
    rows = read_arrow(table, {**request, "columns": ["ts", "device_id", "value"]})  # noqa: F841 (DuckDB reads it by name)
    count, keys, total = DUCK.execute("SELECT count(*), count(DISTINCT (ts, device_id)), coalesce(sum(value), 0) FROM rows").fetchone()
    return {"rows": count, "keys": keys, "value_sum": total}


def bounds_of(table, encoded):
    bounds = {}
    for field, value in (encoded or {}).items():
        if field == row_deltas.FILE_PATH:
            continue
        kind = table.schema().find_type(field)
        decoded = from_bytes(kind, value)
        zones = {"timestamptz": "Z", "timestamp": ""}
        bounds[table.schema().find_column_name(field)] = instant_text(decoded, zones[str(kind)]) if str(kind) in zones else plain(decoded)
    return bounds


def by_name(table, counts):
    return {table.schema().find_column_name(field): n for field, n in (counts or {}).items()}


def file_facts(table, entry, manifest):
    file = entry.data_file
    spec = table.specs()[manifest.partition_spec_id]
    partition = {
        f.name: None if (value := file.partition[i]) is None else f.transform.to_human_string(table.schema().find_type(f.source_id), value)
        for i, f in enumerate(spec.fields)
    }
    return {
        "path": file.file_path, "status": entry.status.name, "snapshot": entry.snapshot_id, "sequence": entry.sequence_number,
        "content": file.content.name, "spec": manifest.partition_spec_id, "partition": partition, "rows": file.record_count,
        "bytes": file.file_size_in_bytes, "sort_order": file.sort_order_id, "split_offsets": file.split_offsets,
        "lower": bounds_of(table, file.lower_bounds), "upper": bounds_of(table, file.upper_bounds),
        "value_counts": by_name(table, file.value_counts), "null_counts": by_name(table, file.null_value_counts),
        "nan_counts": by_name(table, file.nan_value_counts), "exists": os.path.exists(local_path(file.file_path)),
    }  # fmt: skip


def inspect(request):
    """The table's metadata, and the live files of one snapshot."""
    table = load(request)
    metadata = table.metadata
    wanted = snapshot_of(table, request)
    snapshot = table.snapshot_by_id(wanted) if wanted is not None else table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot else []
    files = []
    for manifest in manifests:
        files += [file_facts(table, entry, manifest) for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)]
    facts = lambda s: {"operation": s.summary.operation.value, **s.summary.additional_properties} if s.summary else {}
    return {
        "uuid": str(metadata.table_uuid), "location": metadata.location, "metadata_location": table.metadata_location,
        "format_version": metadata.format_version, "current_snapshot": metadata.current_snapshot_id,
        "last_sequence": metadata.last_sequence_number, "properties": metadata.properties,
        "schema": [{"id": f.field_id, "name": f.name, "type": str(f.field_type), "required": f.required} for f in table.schema().fields],
        "schema_id": metadata.current_schema_id,
        "partition": [{"name": f.name, "transform": str(f.transform)} for f in table.spec().fields],
        "specs": [
            {"id": s.spec_id, "fields": [{"id": f.field_id, "name": f.name, "transform": str(f.transform)} for f in s.fields]}
            for s in sorted(metadata.partition_specs, key=lambda s: s.spec_id)
        ],
        "sort": [
            {"column": table.schema().find_column_name(f.source_id), "direction": f.direction.value} for f in table.sort_order().fields
        ],
        "sort_order_id": metadata.default_sort_order_id,
        "refs": {
            name: {"snapshot": r.snapshot_id, "type": r.snapshot_ref_type.value, "max_ref_age_ms": r.max_ref_age_ms}
            for name, r in metadata.refs.items()
        },
        "snapshots": [
            {"id": s.snapshot_id, "parent": s.parent_snapshot_id, "sequence": s.sequence_number, "time_ms": s.timestamp_ms, "summary": facts(s)}
            for s in sorted(metadata.snapshots, key=lambda s: s.sequence_number)
        ],
        "history": [entry.snapshot_id for entry in metadata.snapshot_log],
        "times_ms": {
            "last_updated": metadata.last_updated_ms, "history": [entry.timestamp_ms for entry in metadata.snapshot_log],
            "metadata": [entry.timestamp_ms for entry in metadata.metadata_log],
        },
        "manifests": [
            {"path": m.manifest_path, "spec": m.partition_spec_id, "sequence": m.sequence_number, "snapshot": m.added_snapshot_id} for m in manifests
        ],
        "files": files,
    }  # fmt: skip


def parquet(request):
    """What a data file itself says: rows in file order, compression, statistics, sorting columns."""
    path = local_path(request["path"])
    file = pq.ParquetFile(path)
    metadata = file.metadata
    groups = []
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        columns = {}
        for c in range(group.num_columns):
            column = group.column(c)
            stats = column.statistics
            known = stats is not None and stats.has_min_max
            columns[column.path_in_schema] = {
                "compression": column.compression, "min": plain(stats.min) if known else None,
                "max": plain(stats.max) if known else None, "nulls": stats.null_count if stats and stats.has_null_count else None,
            }  # fmt: skip
        groups.append({"rows": group.num_rows, "columns": columns})
    table = pq.read_table(path, partitioning=None)
    rows = [{name: plain(v) for name, v in row.items()} for row in table.to_pylist()] if request.get("rows") else None
    return {"row_groups": groups, "created_by": metadata.created_by, "rows": rows}


def tables(request):
    lake = catalog(request)
    return [".".join(name) for namespace in lake.list_namespaces() for name in lake.list_tables(namespace)]


def page(request):
    """A report page, read by a parser that forgives nothing: its sections with their tables and texts."""
    text = Path(request["path"]).read_text(encoding="utf-8")
    body = ElementTree.fromstring(text[text.index("<body>") : text.index("</html>")])
    words = lambda element: " ".join("".join(element.itertext()).split())
    sections = {}
    for section in body.iter("section"):
        tables = [[[words(cell) for cell in row] for row in table.find("tbody")] for table in section.iter("table")]
        drawings = [drawing.get("aria-label") for drawing in section.iter("svg")]
        sections[section.get("id")] = {"tables": tables, "text": words(section), "drawings": drawings}
    return {
        "sections": sections,
        "title": words(body.find(".//h1")),
        "tags": sorted({element.tag for element in body.iter()}),
        "attributes": sorted({value for element in body.iter() for value in element.attrib.values()}),
    }


COMMANDS = {
    f.__name__: f
    for f in (read, probe, create_table, drop_table, append, overwrite, delete, equality_delete, position_delete, remove_deletes, compact, compact_deletes, expire, evolve, set_partition, set_sort_order, add_spec, drop_specs, ledger_sql, hold, let_go, set_property, remove_property, create_branch, remove_branch, set_main, summary, inspect, parquet, page, tables, s3_bucket, s3_put, s3_delete, s3_list)
}


def main():
    # Libraries may print: keep the answers on a channel of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        if not line.strip():
            continue
        try:
            request = json.loads(line)
            answer = {"ok": COMMANDS[request["command"]](request)}
        except Exception as error:  # the test decides what an error means
            answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        answers.write(json.dumps(answer, allow_nan=False) + "\n")
        answers.flush()
    # The tests are over: leave at once, without the libraries' long farewell.
    os._exit(0)


if __name__ == "__main__":
    main()
