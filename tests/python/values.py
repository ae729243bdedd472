"""The one JSON form of a value that both readers and the tests speak.

Instants are `2024-05-01T00:00:00.000000Z`, zoneless timestamps the same without Z, dates and times ISO
(times with six digits), decimals text, binaries lower-case hex, UUIDs text, doubles that JSON cannot hold
"NaN", "Infinity", "-Infinity" and "-0.0". Nothing else may appear: an unknown type is an error, not a guess.
"""

import datetime as dt
import decimal
import math
import uuid

import pyarrow as pa
from pyiceberg import types as ice

EPOCH = dt.datetime(1970, 1, 1)


def instant_text(micros: int, zone: str) -> str:
    return (EPOCH + dt.timedelta(microseconds=micros)).strftime("%Y-%m-%dT%H:%M:%S.%f").rjust(26, "0") + zone


def micros_of(text: str) -> int:
    """Microseconds since 1970 of an ISO text; one without an offset counts as UTC."""
    moment = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is not None:
        moment = moment.astimezone(dt.timezone.utc).replace(tzinfo=None)
    return (moment - EPOCH) // dt.timedelta(microseconds=1)


def plain(value, instant: bool = True):
    """One Python value in the JSON form."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        return "-0.0" if value == 0 and math.copysign(1, value) < 0 else value
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).hex()
    if isinstance(value, dt.datetime):
        return instant_text(micros_of(value.isoformat()), "Z" if value.tzinfo or instant else "")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, dt.time):
        return value.strftime("%H:%M:%S.%f")
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    raise TypeError(f"no JSON form for {type(value).__name__}")


def column_values(column: pa.ChunkedArray, ice_type) -> list:
    """A column as read by either engine in the JSON form, told by the table's type."""
    if isinstance(ice_type, (ice.TimestamptzType, ice.TimestampType)):
        zoned = pa.types.is_timestamp(column.type) and column.type.tz is not None
        if zoned != isinstance(ice_type, ice.TimestamptzType):
            raise TypeError(f"read {column.type} from a {ice_type} column")
        ticks = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        return [None if v is None else instant_text(v, "Z" if zoned else "") for v in ticks.to_pylist()]
    if isinstance(ice_type, ice.UUIDType):
        values = column.to_pylist()
        as_uuid = lambda v: uuid.UUID(bytes=bytes(v)) if isinstance(v, (bytes, bytearray)) else uuid.UUID(str(v))
        return [None if v is None else str(as_uuid(v)) for v in values]
    return [plain(v) for v in column.to_pylist()]


def rows_of(table: pa.Table, schema) -> list[dict]:
    columns = {name: column_values(table[name], schema.find_type(name)) for name in table.column_names}
    names = list(columns)
    return [dict(zip(names, row)) for row in zip(*columns.values())]


def python_value(value, ice_type):
    """A JSON-form value as the Python object that pyarrow and PyIceberg take for this column type."""
    if value is None:
        return None
    if isinstance(ice_type, (ice.DoubleType, ice.FloatType)):
        return float(value)
    if isinstance(ice_type, ice.DecimalType):
        return decimal.Decimal(value)
    if isinstance(ice_type, (ice.BinaryType, ice.FixedType)):
        return bytes.fromhex(value)
    if isinstance(ice_type, ice.UUIDType):
        return uuid.UUID(value)
    if isinstance(ice_type, ice.DateType):
        return dt.date.fromisoformat(value)
    if isinstance(ice_type, ice.TimeType):
        return dt.time.fromisoformat(value)
    if isinstance(ice_type, ice.TimestamptzType):
        return dt.datetime.fromisoformat(value.replace("Z", "+00:00"))
    if isinstance(ice_type, ice.TimestampType):
        return dt.datetime.fromisoformat(value)
    return value


def arrow_rows(rows: list[dict], schema, arrow_schema: pa.Schema) -> pa.Table:
    columns = []
    for field in arrow_schema:
        ice_type = schema.find_type(field.name)
        values = [python_value(row.get(field.name), ice_type) for row in rows]
        if isinstance(ice_type, ice.UUIDType):
            values = [None if v is None else v.bytes for v in values]
            storage = pa.array(values, pa.binary(16))
            columns.append(storage if field.type == pa.binary(16) else pa.ExtensionArray.from_storage(field.type, storage))
        else:
            columns.append(pa.array(values, field.type))
    return pa.table(columns, schema=arrow_schema)


def sql_literal(value, ice_type) -> str:
    """A JSON-form value as a typed DuckDB literal."""
    quoted = "'" + str(value).replace("'", "''") + "'"
    if isinstance(ice_type, (ice.BinaryType, ice.FixedType)):
        return f"from_hex({quoted})"
    if isinstance(ice_type, ice.BooleanType):
        return "true" if value else "false"
    names = {
        ice.DoubleType: "DOUBLE", ice.FloatType: "FLOAT", ice.IntegerType: "INTEGER", ice.LongType: "BIGINT",
        ice.DateType: "DATE", ice.TimeType: "TIME", ice.TimestamptzType: "TIMESTAMPTZ", ice.TimestampType: "TIMESTAMP",
        ice.UUIDType: "UUID", ice.StringType: "VARCHAR",
    }
    if isinstance(ice_type, ice.DecimalType):
        return f"CAST({quoted} AS DECIMAL({ice_type.precision},{ice_type.scale}))"
    return f"CAST({quoted} AS {names[type(ice_type)]})"
