"""What `fairlane embed` reads: rows of an id, a text and a tenant, one after the other.

Three formats, by the file's name or by word: JSON lines, text (a line is a row) and Parquet
(fairlane.embed_parquet); lines may be in gzip. Nothing is held but the row at hand and, for
Parquet, a piece of a row group. A row that can't be read is a row with a reason, never the end
of the file. A source is read more than once, so it is a file and no pipe.

Rows are numbered from 1 on; in the two formats of lines that is the line's number, and blank
lines are left out.
"""

import gzip
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import msgspec

from fairlane.errors import FairlaneError
from fairlane.submit_append import whole_lines
from producers.core.submission import INPUT_BYTES_MAX
from schemas.reasons import Reason

FORMATS = ("jsonl", "text", "parquet")
_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_GZIP = ".gz"
#: Longest line that is read whole: no endpoint takes a text as long as this.
LINE_BYTES_MAX = 1_000_000
#: Longest text, in UTF-8: a request is a record of the log, and none holds an input above this.
TEXT_BYTES_MAX = INPUT_BYTES_MAX
#: Longest id or tenant: they stand in the ledger and in every message about their row.
ID_CHARS_MAX = 1_000
#: Reasons of rows that have a tenant and an id all the same.
NAMED = frozenset({"no_text", str(Reason.BODY_TOO_LARGE)})
#: Rows taken from a source at once ...
CHUNK_ROWS = 500
#: ... fewer, when their texts have as many characters as this.
CHUNK_CHARS = 4_000_000
#: Lines at the beginning that are looked at for the columns.
SAMPLE_LINES = 100
_COUNT_BYTES = 1 << 20
#: What reading raises: the system, and gzip that is none, breaks off or is damaged.
_FAULTS = (OSError, EOFError, zlib.error)
#: Control characters of an id would tear the lines of the file of failed rows apart.
_ID = re.compile(r"[^\x00-\x1f\x7f]+")


class Columns(NamedTuple):
    """Names of the columns; `id` None: "id" where there is one, else the row's number.

    `tenant` None: all rows are of one tenant, whose name is "".
    """

    id: str | None = None
    text: str = "text"
    tenant: str | None = None


class Row(NamedTuple):
    """One row; with a `reason` it can't be embedded, and `detail` says why."""

    number: int
    id: str
    text: str
    tenant: str = ""
    reason: str = ""
    detail: str = ""


class Source(Protocol):
    """A file of rows."""

    def count(self) -> int:
        """How many rows there are; blank lines may be counted in."""

    def rows(self) -> Iterator[Row]:
        """Read it from the beginning. Raises FairlaneError when the file can't be read on."""


def open_source(path: Path, format_: str | None, columns: Columns) -> Source:
    """Open a source. Raises FairlaneError: no file, an unknown format, a missing column."""
    _check_file(path)
    is_packed = path.suffix.lower() == _GZIP
    name = path.with_suffix("") if is_packed else path
    kind = format_ or _SUFFIXES.get(name.suffix.lower())
    if kind is None:
        known = ", ".join(_SUFFIXES)
        raise FairlaneError(f"{path}: format unknown by its name ({known}); give --format")
    if kind == "parquet":
        if is_packed:
            raise FairlaneError(f"{path}: Parquet is read without gzip around it: gunzip it")
        from fairlane.embed_parquet import ParquetSource

        return ParquetSource(path, columns)
    if kind == "jsonl":
        return JsonSource(path, columns)
    if columns != Columns():
        raise FairlaneError(f"{path}: text has no columns: the line is the text, its number the id")
    return TextSource(path)


def _check_file(path: Path) -> None:
    try:
        is_file = S_ISREG(path.stat().st_mode)  # looked at first: a pipe without a writer hangs
        if is_file:
            with path.open("rb"):
                pass
    except OSError as error:
        raise FairlaneError(f"{path}: {error.strerror}") from error
    if not is_file:
        raise FairlaneError(
            f"{path}: is no file, and it is read more than once: write what a pipe brings into "
            f"a file first (a .jsonl{_GZIP} or .txt{_GZIP} is read as it is), and name the files "
            "of a folder one by one"
        )


def chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Rows by some hundred, fewer of long ones, so that the memory they take is bounded."""
    chunk: list[Row] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row.text)
        if len(chunk) >= CHUNK_ROWS or size >= CHUNK_CHARS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def tenants_of(source: Source, tenants_max: int) -> list[str]:
    """Names of the tenants in a source, in their order; reads it whole.

    Raises FairlaneError when there are more than `tenants_max`.
    """
    found: dict[str, None] = {}
    for row in source.rows():
        if not row.reason:
            found[row.tenant] = None
            if len(found) > tenants_max:
                raise FairlaneError(
                    f"more than {tenants_max} tenants in the source: is --tenant-column right?"
                )
    return list(found)


class _Lines(ABC):
    """A file of lines."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def count(self) -> int:
        """How many lines there are."""
        lines, last = 0, b"\n"
        try:
            with self._opened() as file:
                while piece := file.read(_COUNT_BYTES):
                    lines += piece.count(b"\n")
                    last = piece[-1:]
        except _FAULTS as error:
            raise FairlaneError(f"{self.path}: can't be read: {error}") from error
        return lines + (last != b"\n")

    def rows(self) -> Iterator[Row]:
        """Every line that is not blank."""
        for number, line in self._lines():
            if line is None:
                detail = f"longer than {LINE_BYTES_MAX} bytes"
                yield Row(number, str(number), "", reason="unreadable", detail=detail)
            elif line.strip():
                yield self._row(number, line)

    def _lines(self) -> Iterator[tuple[int, bytes | None]]:
        number = 0
        try:
            with self._opened() as file:
                for number, line in whole_lines(file, LINE_BYTES_MAX):
                    yield number, line
        except _FAULTS as error:
            raise FairlaneError(
                f"{self.path}: can't be read beyond line {number}: {error}"
            ) from error

    def _opened(self) -> BinaryIO:
        if self.path.suffix.lower() == _GZIP:
            return cast("BinaryIO", gzip.open(self.path, "rb"))
        return self.path.open("rb")

    @abstractmethod
    def _row(self, number: int, line: bytes) -> Row:
        """What a line says."""


class TextSource(_Lines):
    """A line is a text, its number the id."""

    def _row(self, number: int, line: bytes) -> Row:
        try:
            return row_of(number, number, line.decode().rstrip("\r\n"), "")
        except UnicodeDecodeError as error:
            return Row(number, str(number), "", reason="unreadable", detail=f"no UTF-8: {error}")


class JsonSource(_Lines):
    """A line is a JSON object; fields other than the columns are passed over."""

    def __init__(self, path: Path, columns: Columns) -> None:
        """Look at the first lines. Raises FairlaneError when none has the columns."""
        super().__init__(path)
        self._is_numbered = columns.id is None
        names = {"id": columns.id or "id", "text": columns.text, "tenant": columns.tenant}
        self._names = {field: name for field, name in names.items() if name is not None}
        fields: list[Any] = [(field, Any, msgspec.UNSET) for field in self._names]
        kind = msgspec.defstruct("JsonRow", fields, rename=self._names)
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        self._check()

    def _check(self) -> None:
        wanted = {name for field, name in self._names.items() if field != "id"}
        seen: dict[str, None] = {}
        for row in self._sample():
            if wanted <= row.keys():
                return
            seen |= dict.fromkeys(row)
        if seen:
            missing = ", ".join(repr(name) for name in sorted(wanted - seen.keys()))
            raise FairlaneError(
                f"{self.path}: no column {missing or 'for all in one line'} in the first lines, "
                f"which have {', '.join(map(repr, seen))}: name them with --text-column, "
                "--tenant-column"
            )

    def _sample(self) -> Iterator[dict[str, msgspec.Raw]]:
        for number, line in self._lines():
            if number > SAMPLE_LINES:
                return
            try:
                yield msgspec.json.decode(line or b"", type=dict[str, msgspec.Raw])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue

    def _row(self, number: int, line: bytes) -> Row:
        try:
            found = self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            detail = f"no JSON object: {error or type(error).__name__}"
            return Row(number, str(number), "", reason="unreadable", detail=detail)
        row_id = found.id
        if row_id is msgspec.UNSET:
            row_id = number if self._is_numbered else None
        return row_of(number, row_id, found.text, found.tenant if "tenant" in self._names else "")


def row_of(number: int, row_id: Any, text: Any, tenant: Any) -> Row:
    """Row of these values, or one with the reason why it is none."""
    if type(row_id) is int:
        row_id = str(row_id)
    rule = f"1..{ID_CHARS_MAX} characters without control characters"
    if not isinstance(row_id, str) or not _is_id(row_id):
        detail = f"the id must be an integer, or {rule}"
        return Row(number, str(number), "", reason="no_id", detail=detail)
    if not isinstance(tenant, str) or (tenant and not _is_id(tenant)):
        detail = f"the tenant must be there and have {rule}"
        return Row(number, row_id, "", reason="no_tenant", detail=detail)
    fault = _fault(text)
    if fault:
        return Row(number, row_id, "", tenant, *fault)
    return Row(number, row_id, text, tenant)


def _fault(text: Any) -> tuple[str, str] | None:
    if not isinstance(text, str):
        return "no_text", "the text is missing" if text is msgspec.UNSET else "the text is no text"
    if not text.strip():
        return "no_text", "the text is empty"
    size = len(text.encode())
    if size > TEXT_BYTES_MAX:
        detail = f"the text has {size} bytes; no request takes more than {TEXT_BYTES_MAX}: split it"
        return Reason.BODY_TOO_LARGE, detail
    return None


def _is_id(text: str) -> bool:
    return len(text) <= ID_CHARS_MAX and _ID.fullmatch(text) is not None
