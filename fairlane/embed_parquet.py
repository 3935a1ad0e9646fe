"""Parquet, in and out: the only file that knows the library.

In: columns of text (string, large_string, binary that holds UTF-8, each in a dictionary too);
the id may be an integer. A value that is no UTF-8 makes its row unreadable, and no other.

Out: shards with the columns `id`, `tenant` (where the source has one), `vector` (a list of
float32 of fixed size), `model`, `model_sha256` and `text_sha256`.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairlane.embed_groups import Embedding
from fairlane.embed_source import Columns, Row, row_of
from fairlane.errors import FairlaneError

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise FairlaneError(
        "Parquet needs a library that is not installed: pip install 'fairlane[embed]'"
    ) from error

#: Rows of a source decoded at once ...
BATCH_ROWS = 1_000
#: ... fewer, where the rows of a row group have more bytes than this together on the average.
BATCH_BYTES = 8 << 20
#: A row group's columns are read in pieces of this size, not whole.
READ_BYTES = 1 << 20
#: Rows of a shard's row groups: a reader may skip groups ...
GROUP_ROWS = 2_000
#: ... fewer, when their vectors have as many bytes: encoding and decoding hold several copies.
GROUP_BYTES = 4 << 20
FLOAT_BYTES = 4
#: Columns whose values repeat.
_REPEATED = ["tenant", "model", "model_sha256"]
_FAULTS = (pa.ArrowException, OSError)


class ParquetSource:
    """Rows of a Parquet file."""

    def __init__(self, path: Path, columns: Columns) -> None:
        """Read its schema. Raises FairlaneError when it is no Parquet or has not the columns."""
        self.path = path
        self._columns = columns
        try:
            with self._open() as file:
                schema = file.schema_arrow
                self._rows = file.metadata.num_rows
        except _FAULTS as error:
            raise FairlaneError(f"{path}: can't be read as Parquet: {error}") from error
        self._id = columns.id or ("id" if "id" in schema.names else None)
        self._check(schema, columns.text, "--text-column", is_integer_too=False)
        if columns.tenant is not None:
            self._check(schema, columns.tenant, "--tenant-column", is_integer_too=False)
        if self._id is not None:
            self._check(schema, self._id, "--id-column", is_integer_too=True)

    def _open(self) -> Any:
        return pq.ParquetFile(self.path, buffer_size=READ_BYTES, pre_buffer=False)

    def _check(self, schema: Any, name: str, option: str, *, is_integer_too: bool) -> None:
        count = schema.names.count(name)
        if count != 1:
            has = ", ".join(map(repr, schema.names))
            how = f"{count} columns" if count else "no column"
            raise FairlaneError(f"{self.path}: {how} {name!r}; it has {has}: give {option}")
        kind = schema.field(name).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if not _is_text(kind) and not (is_integer_too and pa.types.is_integer(kind)):
            raise FairlaneError(f"{self.path}: column {name!r} is {kind}, no text: give {option}")

    def count(self) -> int:
        """How many rows the file says it has."""
        return int(self._rows)

    def rows(self) -> Iterator[Row]:
        """Every row, a piece of a row group after the other."""
        number = 0
        try:
            with self._open() as file:
                for batch in self._batches(file):
                    for values in self._values(batch, number):
                        number += 1
                        yield _row(number, values)
        except _FAULTS as error:
            message = f"{self.path}: can't be read beyond row {number}: {error}"
            raise FairlaneError(message) from error

    def _batches(self, file: Any) -> Iterator[Any]:
        names = [self._columns.text, self._columns.tenant, self._id]
        wanted = list(dict.fromkeys(name for name in names if name is not None))
        for group in range(file.num_row_groups):
            facts = file.metadata.row_group(group)
            columns = [facts.column(at) for at in range(facts.num_columns)]
            size = sum(c.total_uncompressed_size for c in columns if c.path_in_schema in wanted)
            rows = BATCH_BYTES * facts.num_rows // max(size, 1)
            rows = max(1, min(rows, BATCH_ROWS))
            yield from file.iter_batches(rows, row_groups=[group], columns=wanted)

    def _values(self, batch: Any, number: int) -> Iterator[tuple[Any, Any, Any]]:
        count = batch.num_rows
        texts = _decoded(batch.column(self._columns.text))
        tenants: list[Any] = [""] * count
        if self._columns.tenant is not None:
            tenants = _decoded(batch.column(self._columns.tenant))
        ids: Any = range(number + 1, number + 1 + count)
        if self._id is not None:
            ids = _decoded(batch.column(self._id))
        return zip(ids, texts, tenants, strict=True)


def _is_text(kind: Any) -> bool:
    types = pa.types
    tests = [types.is_string, types.is_large_string, types.is_string_view]
    return any(test(kind) for test in [*tests, types.is_binary, types.is_large_binary])


def _decoded(column: Any) -> list[Any]:
    """Values of a column; in place of one that is no UTF-8 the error."""
    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        values = [_value(scalar) for scalar in column]
    return [_text(value) if isinstance(value, bytes) else value for value in values]


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return error


def _text(value: bytes) -> str | UnicodeDecodeError:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        return error


def _row(number: int, values: tuple[Any, Any, Any]) -> Row:
    for value in values:
        if isinstance(value, UnicodeDecodeError):
            detail = f"no UTF-8: {value.reason} at byte {value.start}"
            return Row(number, str(number), "", reason="unreadable", detail=detail)
    return row_of(number, *values)


def write_shard(path: Path, rows: Sequence[Embedding], *, has_tenant: bool) -> int:
    """Write a shard and sync it; returns its size in bytes. `rows` has at least one."""
    schema = _schema(len(rows[0].vector) // FLOAT_BYTES, has_tenant=has_tenant)
    repeated = [name for name in _REPEATED if name in schema.names]
    step = _rows_at_once(schema)
    with path.open("wb") as file:
        with pq.ParquetWriter(
            file, schema, use_dictionary=repeated, write_statistics=["id"]
        ) as writer:
            for at in range(0, len(rows), step):
                writer.write_batch(_batch(rows[at : at + step], schema))
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    sync_folder(path.parent)
    return size


def _rows_at_once(schema: Any) -> int:
    size = FLOAT_BYTES * schema.field("vector").type.list_size
    return int(max(1, min(GROUP_ROWS, GROUP_BYTES // size)))


def _schema(dimensions: int, *, has_tenant: bool) -> Any:
    text = pa.string()
    vector = pa.list_(pa.float32(), dimensions)
    columns = [("id", text), ("tenant", text), ("vector", vector), ("model", text)]
    columns += [("model_sha256", text), ("text_sha256", text)]
    return pa.schema([column for column in columns if has_tenant or column[0] != "tenant"])


def _batch(rows: Sequence[Embedding], schema: Any) -> Any:
    kind = schema.field("vector").type
    floats = pa.py_buffer(b"".join([row.vector for row in rows]))
    flat = pa.Array.from_buffers(pa.float32(), len(rows) * kind.list_size, [None, floats])
    columns = {
        "id": [row.id for row in rows],
        "tenant": [row.tenant for row in rows],
        "vector": pa.FixedSizeListArray.from_arrays(flat, type=kind),
        "model": [row.model for row in rows],
        "model_sha256": [row.model_sha256 for row in rows],
        "text_sha256": [row.text_sha256.hex() for row in rows],
    }
    arrays = [
        columns[name] if name == "vector" else pa.array(columns[name], pa.string())
        for name in schema.names
    ]
    return pa.record_batch(arrays, schema=schema)


def read_shard(path: Path) -> Iterator[Embedding]:
    """Every row of a shard. Raises FairlaneError when it can't be read."""
    try:
        with pq.ParquetFile(path, buffer_size=READ_BYTES, pre_buffer=False) as file:
            for batch in file.iter_batches(_rows_at_once(file.schema_arrow)):
                yield from _embeddings(batch)
    except (*_FAULTS, KeyError, AttributeError) as error:
        raise FairlaneError(f"{path}: can't be read: {error}") from error


def _embeddings(batch: Any) -> Iterator[Embedding]:
    vectors = batch["vector"]
    size = vectors.type.list_size * FLOAT_BYTES
    tenants = batch["tenant"].to_pylist() if "tenant" in batch.schema.names else []
    models, shas = batch["model"].to_pylist(), batch["model_sha256"].to_pylist()
    digests, ids = batch["text_sha256"].to_pylist(), batch["id"].to_pylist()
    flat = vectors.flatten()
    data = memoryview(flat.buffers()[1])[flat.offset * FLOAT_BYTES :]
    for at, row_id in enumerate(ids):
        yield Embedding(
            row_id,
            tenants[at] if tenants else "",
            bytes(data[at * size : (at + 1) * size]),
            models[at],
            shas[at],
            bytes.fromhex(digests[at]),
        )


def sync_folder(folder: Path) -> None:
    """Let renamed files stay so through a power cut, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
