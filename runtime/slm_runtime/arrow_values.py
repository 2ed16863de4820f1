"""The values of an Arrow column as ids and texts; a value that is neither becomes a `BadValue`."""

from dataclasses import dataclass

import pyarrow as pa

from slm_runtime.records import TicketId


@dataclass(frozen=True)
class BadValue:
    """What is wrong with a value, to be read after "is", and the nearest text to it."""

    problem: str
    text: str = ""


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values, without dictionary encoding and extension."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    return plain_type(kind.value_type) if pa.types.is_dictionary(kind) else kind


def is_text(kind: pa.DataType) -> bool:
    """True for all kinds of strings, and for a column that holds nothing but null."""
    kind = plain_type(kind)
    return bool(_is_string(kind) or pa.types.is_null(kind))


def column_values(array: pa.Array) -> list[TicketId | BadValue]:
    """Strings, integers, floats, booleans and nulls as they are; binary, decimals and times as text.

    A value of a list, struct or map, and bytes that are not UTF-8, are a BadValue.
    """
    if pa.types.is_dictionary(array.type):
        return column_values(array.dictionary_decode())
    if isinstance(array.type, pa.BaseExtensionType):
        if array.type.extension_name == "arrow.uuid":
            return [None if value is None else str(value) for value in array.to_pylist()]
        return column_values(array.storage)
    if pa.types.is_nested(array.type):
        return [BadValue(f"a {array.type}") if valid else None for valid in array.is_valid().to_pylist()]
    if _is_string(array.type) or _is_binary(array.type):
        # As bytes, because one bad byte would make Arrow refuse the whole column.
        return [_decode(value) for value in array.cast(pa.binary()).to_pylist()]
    if pa.types.is_temporal(array.type) or pa.types.is_decimal(array.type):
        # Not through Python's own types, which have no nanoseconds and no year 10000.
        array = array.cast(pa.string())
    return array.to_pylist()


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_binary(kind: pa.DataType) -> bool:
    variable = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    return bool(variable or pa.types.is_fixed_size_binary(kind))


def _decode(value: bytes | None) -> str | BadValue | None:
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"not valid utf-8: 0x{value[error.start]:02X} at byte offset {error.start}"
        return BadValue(problem, value.decode("utf-8", "replace"))
