"""Rows of arrow and parquet files, as the library datasets writes and caches them. Read by pyarrow alone, which is imported here only.

Called by `sources`. Only the columns that may hold texts are decoded, and no more bytes than a file's share.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from handlers.texts.readers import BadRow, FileRefused, Row, Share

if TYPE_CHECKING:
    import pyarrow

ROWS = 32
"""Rows that are turned into Python objects at a time."""
LARGEST_GROUP = 1 << 30
"""Bytes of a parquet file's row group, uncompressed: a larger one is left out."""
DENSE, FEW = 200, 32 << 20
"""A column of a row group that is packed to less than one in DENSE bytes is no text that a person wrote, and is left out from FEW bytes on:
a page is unpacked as a whole, so that a file of a kilobyte could take all memory."""
_ARROW_FILE = b"ARROW1"


def arrow(stream: BinaryIO, size: int, share: Share) -> Iterator[Row | BadRow]:
    """Yield the rows of an IPC stream (what `save_to_disk` writes) or of an IPC file (feather). FileRefused where it is neither."""
    import pyarrow
    import pyarrow.ipc

    with _refusing("Arrow"):
        beginning = stream.read(len(_ARROW_FILE))
        stream.seek(0)
        source = pyarrow.PythonFile(stream, mode="r")
        if beginning == _ARROW_FILE:
            file = pyarrow.ipc.open_file(source)
            batches: Any = (file.get_batch(number) for number in range(file.num_record_batches))
        else:
            batches = iter(pyarrow.ipc.open_stream(source))
    yield from share.some(_batches(stream, batches, share))


def _batches(stream: BinaryIO, batches: Any, share: Share) -> Iterator[Row | BadRow]:
    names: dict[str, str] = {}
    number = 0
    while True:
        if stream.tell() > share.bytes:
            share.cut = True
            return
        with _refusing("Arrow"):
            batch = next(batches, None)
            if batch is None:
                return
            batch.validate(full=True)
            if not names:
                names = _class_names(batch.schema)
        for row in _rows(batch, number, names):
            yield row
            number += 1


def parquet(stream: BinaryIO, size: int, share: Share) -> Iterator[Row | BadRow]:
    """Yield the rows of a parquet file; of a large one those of row groups at even distances. FileRefused where it is none."""
    import pyarrow
    import pyarrow.parquet

    with _refusing("Parquet"):
        file = pyarrow.parquet.ParquetFile(pyarrow.PythonFile(stream, mode="r"), pre_buffer=False)
        schema = file.schema_arrow
        columns = [field.name for field in schema if _may_hold_texts(field.type)]
        groups = [_bytes_of(file.metadata.row_group(number)) for number in range(file.metadata.num_row_groups)]
    if not columns:
        raise FileRefused("it has no column with texts")
    names = _class_names(schema)
    chosen = _spread(groups, share.bytes)
    if groups and not chosen:
        raise FileRefused(f"each of its row groups has more than {LARGEST_GROUP >> 20} MiB, or is packed as no text is")
    spent = number = 0
    for place, group in enumerate(chosen, 1):
        with _refusing("Parquet"):
            batches = file.iter_batches(batch_size=ROWS, row_groups=[group], columns=columns)
        while True:
            if spent > share.bytes or number >= share.rows * place // len(chosen):  # of each group as many as of the others
                break
            with _refusing("Parquet"):
                batch = next(batches, None)
                if batch is None:
                    break
                batch.validate(full=True)
                spent += batch.nbytes
            for row in _rows(batch, number, names):
                yield row
                number += 1
    share.cut = number < file.metadata.num_rows


def _bytes_of(group: Any) -> int:
    """Uncompressed bytes of a parquet file's row group; more than LARGEST_GROUP where it is not to be unpacked."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.total_uncompressed_size > max(FEW, DENSE * column.total_compressed_size):
            return LARGEST_GROUP + 1
    return int(group.total_byte_size)


def _spread(groups: list[int], budget: int) -> list[int]:
    """Numbers of the row groups to read: all where they fit, else some at even distances."""
    fitting = [number for number, size in enumerate(groups) if 0 <= size <= LARGEST_GROUP]
    if not fitting or sum(groups[number] for number in fitting) <= budget:
        return fitting
    mean = max(1, sum(groups[number] for number in fitting) // len(fitting))
    count = min(len(fitting), max(1, budget // mean))
    return [fitting[number * len(fitting) // count] for number in range(count)]


def _may_hold_texts(kind: pyarrow.DataType) -> bool:
    """Return whether a column is one of texts, labels or messages: no vectors of numbers, as trainers' token ids are, and no pictures."""
    from pyarrow import types

    if types.is_list(kind) or types.is_large_list(kind):
        return _may_hold_texts(kind.value_type) and not types.is_integer(kind.value_type)
    if types.is_struct(kind):
        return any(_may_hold_texts(field.type) for field in kind)
    if types.is_dictionary(kind):
        return _may_hold_texts(kind.value_type)
    view = getattr(types, "is_string_view", lambda _: False)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind) or types.is_boolean(kind) or view(kind))


def _rows(batch: pyarrow.RecordBatch, before: int, names: dict[str, Any]) -> Iterator[Row | BadRow]:
    with _refusing("Arrow"):
        columns = [number for number, field in enumerate(batch.schema) if _may_hold_texts(field.type)]
        chosen = batch.select(columns)
    if not columns:
        raise FileRefused("it has no column with texts")
    for start in range(0, chosen.num_rows, ROWS):
        with _refusing("Arrow"):
            rows = chosen.slice(start, ROWS).to_pylist()
        for number, row in enumerate(rows, before + start + 1):
            for column, classes in names.items():
                value = row.get(column)
                if isinstance(value, int) and 0 <= value < len(classes):
                    row[column] = classes[value]
            yield Row(f"row {number}", row)


def _class_names(schema: pyarrow.Schema) -> dict[str, Any]:
    """Column → the names of its classes by number, where datasets' own description has them."""
    import json

    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        columns = {name: kind["names"] for name, kind in features.items() if isinstance(kind, dict) and kind.get("_type") == "ClassLabel"}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}
    return {
        name: classes for name, classes in columns.items() if isinstance(classes, list) and all(isinstance(label, str) for label in classes)
    }


@contextmanager
def _refusing(kind: str) -> Iterator[None]:
    """Turn what pyarrow raises about a file's content into FileRefused."""
    import pyarrow

    try:
        yield
    except FileRefused:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, LookupError, OverflowError, MemoryError) as error:
        lines = str(error).strip().splitlines()
        text = lines[0][:160].rstrip(".") if lines else type(error).__name__
        raise FileRefused(f"it can't be read as {kind}: {text}") from None
