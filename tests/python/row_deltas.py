"""Row-level deletes as other engines write them, and an independent reading of a table that holds them.

PyIceberg writes no delete files and does not read equality deletes: here they are made with pyarrow and its manifest
writers, and `live_rows` applies them by the specification, file by file, without any index.
"""

import os
import uuid
from collections import defaultdict

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles, _OverwriteFiles
from pyiceberg.types import IntegerType, ListType, StructType

FILE_PATH, POS = 2147483546, 2147483545


def local_path(uri):
    return uri.removeprefix("file://")


class DeleteManifest(ManifestWriterV2):
    def content(self):
        return ManifestContent.DELETES

    @property
    def _meta(self):
        return {**super()._meta, "content": "deletes"}

    def _with_partition(self, format_version):
        # Field ids are ints; PyIceberg says long, which DuckDB does not read.
        entry = super()._with_partition(format_version)
        file = entry.find_field("data_file").field_type
        of = lambda f: f.model_copy(update={"field_type": ListType(136, IntegerType(), True)}) if f.field_id == 135 else f
        file = StructType(*[of(f) for f in file.fields])
        return Schema(*[f.model_copy(update={"field_type": file}) if f.name == "data_file" else f for f in entry.fields])


class RowDelta(_FastAppendFiles):
    """Adds data files and delete files in one snapshot, as an upserting writer does."""

    def _manifests(self):
        groups = defaultdict(list)
        for file in self._added_data_files:
            groups[(file.content == DataFileContent.DATA, file.spec_id)].append(file)
        made = []
        for (is_data, spec_id), files in groups.items():
            spec = self.spec(spec_id)
            if is_data:
                writer = self.new_manifest_writer(spec)
            else:
                writer = DeleteManifest(spec, self.schema(), self.new_manifest_output(), self.snapshot_id, self._compression)
            with writer:
                for file in files:
                    added = dict(status=ManifestEntryStatus.ADDED, snapshot_id=self.snapshot_id, sequence_number=None)
                    writer.add(ManifestEntry.from_args(**added, file_sequence_number=None, data_file=file))
            made.append(writer.to_manifest_file())
        return made + self._existing_manifests()


class WithoutDeletes(_OverwriteFiles):
    """Takes all delete files out of the table; the rows they hid are back."""

    def _existing_manifests(self):
        return [m for m in super()._existing_manifests() if m.content == ManifestContent.DATA]


def commit(table, producer, operation, add=(), remove=()):
    with table.transaction() as transaction:
        with producer(operation, transaction, table.io) as update:
            for file in remove:
                update.delete_data_file(file)
            for file in add:
                update.append_data_file(file)


def data_files(table, rows):
    files = list(_dataframe_to_data_files(table.metadata, rows, table.io, write_uuid=uuid.uuid4()))
    for file in files:
        file.spec_id = table.metadata.default_spec_id
    return files


def equality_files(table, rows, columns):
    """Data files cut to the columns, called deletes."""
    files, ids = data_files(table, rows), [table.schema().find_field(name).field_id for name in columns]
    for file in files:
        path = local_path(file.file_path)
        pq.write_table(pq.read_table(path, partitioning=None).select(columns), path)
        file._data[0], file._data[5], file._data[14] = DataFileContent.EQUALITY_DELETES, os.path.getsize(path), ids
        for i in (6, 7, 8, 9, 10, 11):
            file._data[i] = {field: value for field, value in file._data[i].items() if field in ids}
    return files


def live_files(table):
    """(sequence number, data file) of data files, position deletes and equality deletes."""
    found = {content: [] for content in DataFileContent}
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot else []:
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            found[entry.data_file.content].append((entry.sequence_number, entry.data_file))
    return found


def position_files(table, matches):
    """One file of position deletes for each data file with live rows that match."""
    files = []
    for _, data in live_files(table)[DataFileContent.DATA]:
        rows = pq.read_table(local_path(data.file_path), partitioning=None)
        positions = [i for i, row in enumerate(rows.to_pylist()) if matches(row)]
        if positions:
            files.append(position_file(table, data, positions))
    return files


def position_file(table, data, positions):
    path = f"{table.metadata.location}/data/deletes-{uuid.uuid4()}.parquet"
    field = lambda name, kind, id: pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(id)})
    schema = pa.schema([field("file_path", pa.string(), FILE_PATH), field("pos", pa.int64(), POS)])
    pq.write_table(pa.table([[data.file_path] * len(positions), positions], schema=schema), local_path(path))
    bound = {FILE_PATH: data.file_path.encode()}
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, file_path=path, file_format=FileFormat.PARQUET, partition=data.partition,
        record_count=len(positions), file_size_in_bytes=os.path.getsize(local_path(path)), column_sizes={}, value_counts={},
        null_value_counts={}, nan_value_counts={}, lower_bounds=bound, upper_bounds=bound, key_metadata=None, split_offsets=None,
        equality_ids=None, sort_order_id=None,
    )  # fmt: skip
    file.spec_id = data.spec_id
    return file


def live_rows(table):
    """All rows that no delete hides."""
    files, parts = live_files(table), []
    schema = table.schema().as_arrow()
    unpartitioned = lambda file: not table.specs()[file.spec_id].fields
    same_partition = lambda a, b: a.spec_id == b.spec_id and list(a.partition) == list(b.partition)
    for sequence, data in files[DataFileContent.DATA]:
        rows = pq.read_table(local_path(data.file_path), partitioning=None)
        keep = [True] * rows.num_rows
        for delete_sequence, delete in files[DataFileContent.POSITION_DELETES]:
            if delete_sequence >= sequence and same_partition(data, delete):
                for row in pq.read_table(local_path(delete.file_path), partitioning=None).to_pylist():
                    if row["file_path"] == data.file_path:
                        keep[row["pos"]] = False
        for delete_sequence, delete in files[DataFileContent.EQUALITY_DELETES]:
            if delete_sequence > sequence and (unpartitioned(delete) or same_partition(data, delete)):
                names = [table.schema().find_column_name(id) for id in delete.equality_ids]
                gone = {tuple(row.values()) for row in pq.read_table(local_path(delete.file_path), partitioning=None).select(names).to_pylist()}
                for i, row in enumerate(rows.select(names).to_pylist()):
                    keep[i] = keep[i] and tuple(row.values()) not in gone
        rows = rows.filter(pc.equal(pa.array(keep, pa.bool_()), True))
        columns = [rows[f.name].cast(f.type) if f.name in rows.column_names else pa.nulls(rows.num_rows, f.type) for f in schema]
        parts.append(pa.table(columns, schema=pa.schema([f.with_nullable(True) for f in schema])))
    return pa.concat_tables(parts) if parts else schema.empty_table()


def compact(table):
    """Rewrites all files into new ones without the rows that deletes hide; the delete files stay, and hide nothing more."""
    rows = live_rows(table).cast(table.schema().as_arrow())
    old = [file for _, file in live_files(table)[DataFileContent.DATA]]
    commit(table, _OverwriteFiles, Operation.OVERWRITE, data_files(table, rows), old)
    return rows.num_rows


def expire(table):
    """Expires every snapshot that no branch or tag points at, with the files that only those had."""
    before = reachable(table)
    heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
    old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in heads]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()
    gone = before - reachable(table.refresh())
    for path in gone:
        os.remove(local_path(path))
    return {"snapshots": len(old), "files": len(gone)}


def reachable(table):
    paths = set()
    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            paths.add(manifest.manifest_path)
            paths |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)}
    return paths
