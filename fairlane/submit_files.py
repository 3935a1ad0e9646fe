"""The files of `fairlane submit`: the lines to send, the journal, results and failed lines.

Every file is appended to, one whole line at a write, so that a process killed at any moment
leaves at most one torn line at the end, which the next run cuts off. What is finished is
read from the files themselves; memory holds bitmaps of line numbers, never lines.

    data.jsonl           read: one POST body a line, optionally with an "id"
    data.journal         written: the file's digest and the service, then "<line> <id>" of
                         every line that was accepted
    data.failed.jsonl    written: lines that can't be sent or were refused for good
    RESULTS.jsonl        written with --out: the final state of every accepted line
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
from pyroaring import BitMap

from fairlane.errors import FairlaneError

#: Longest line that is read whole; the ingress takes bodies up to 508,192 bytes.
LINE_BYTES_MAX = 600_000
#: Longest line of results that is read again; an output has at most 1 MB, base64 a third more.
RESULT_BYTES_MAX = 2_000_000
#: Longest "id" of a line: it becomes the Idempotency-Key.
ID_CHARS_MAX = 200
_CHUNK_BYTES = 1 << 20


class Line(NamedTuple):
    """A line to be sent; with `error` it can't be."""

    number: int
    key: str
    body: bytes
    error: str = ""


class Sent(NamedTuple):
    """A line that an earlier run had accepted, whose result is still to be fetched."""

    number: int
    id: str


class Digest(NamedTuple):
    """Identity of a file of lines, and how many of them are not blank."""

    hex: str
    lines: int


def read_digest(path: Path) -> Digest:
    """Read the whole file once. Raises FairlaneError when it can't be read."""
    hashed, lines, has_text = blake2b(digest_size=16), 0, False
    try:
        with path.open("rb") as file:
            while piece := file.readline(_CHUNK_BYTES):
                hashed.update(piece)
                has_text = has_text or bool(piece.strip())
                if piece.endswith(b"\n"):
                    lines, has_text = lines + has_text, False
    except OSError as error:
        raise FairlaneError(f"{path}: {error.strerror}") from error
    return Digest(hashed.hexdigest(), lines + has_text)


def read_lines(path: Path, digest: str) -> Iterator[Line]:
    """The lines of the file in order; blank ones are left out, broken ones carry their error."""
    with path.open("rb") as file:
        for number, text in _whole_lines(file, LINE_BYTES_MAX):
            if text is None:
                yield Line(number, "", b"", f"longer than {LINE_BYTES_MAX} bytes")
            elif text.strip():
                yield _line(number, text, digest)


def _line(number: int, text: bytes, digest: str) -> Line:
    try:
        text.decode()
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Line(number, "", b"", f"no JSON object: {error}")
    except RecursionError:
        return Line(number, "", b"", "nested too deeply")
    raw = fields.pop("id", None)
    key = f"{digest}:{number}"
    if raw is not None:
        named: Any = msgspec.json.decode(raw)
        if not isinstance(named, str) or not _is_key(named):
            message = f'"id" must be a string of 1..{ID_CHARS_MAX} visible ASCII characters'
            return Line(number, "", b"", message)
        key = named
    return Line(number, key, msgspec.json.encode(fields))


def _is_key(text: str) -> bool:
    return 0 < len(text) <= ID_CHARS_MAX and all("!" <= character <= "~" for character in text)


def _whole_lines(file: BinaryIO, bytes_max: int) -> Iterator[tuple[int, bytes | None]]:
    """Number and text of each line from 1 on; None for the text of one that is too long."""
    number = 0
    while piece := file.readline(bytes_max + 1):
        number += 1
        is_long = len(piece) > bytes_max and not piece.endswith(b"\n")
        while is_long and piece and not piece.endswith(b"\n"):
            piece = file.readline(bytes_max + 1)
        yield number, None if is_long else piece


class Appended:
    """A file of whole lines that survives a kill: opening it cuts a torn last line off."""

    def __init__(self, path: Path) -> None:
        """Open or create it for this process alone; raises FairlaneError."""
        self.path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise FairlaneError(f"{path}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            message = f"{path}: another run is at work on it; wait for its end or stop it"
            raise FairlaneError(message) from error
        self._cut()

    def _cut(self) -> None:
        end = os.fstat(self._file).st_size
        while end > 0:
            start = max(0, end - _CHUNK_BYTES)
            found = os.pread(self._file, end - start, start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        os.truncate(self._file, end)

    def lines(self) -> Iterator[bytes]:
        """The lines that stand there now."""
        with self.path.open("rb") as file:
            for _, text in _whole_lines(file, RESULT_BYTES_MAX):
                if text is not None:
                    yield text

    def append(self, line: bytes) -> None:
        """Write one line, whole."""
        data = line + b"\n"
        while data:
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        """Close it; another run may open it."""
        os.close(self._file)


class _Written(msgspec.Struct):
    line: int
    state: str = "failed"


class _Head(msgspec.Struct):
    v: int
    file: str
    url: str


class Ledger:
    """What of a file is done, over all runs."""

    def __init__(self, path: Path, digest: Digest, url: str, out: Path | None) -> None:
        """Open the files beside `path`; raises FairlaneError when they are of another job."""
        base = path.name.removesuffix(".jsonl")
        self._files = ExitStack()
        self._journal = self._open(path.with_name(base + ".journal"))
        self._failed = self._open(path.with_name(base + ".failed.jsonl"))
        self._results = self._open(out) if out else None
        #: Lines accepted by the service.
        self.sent = BitMap()
        #: Lines that need nothing more.
        self.ended = BitMap()
        self.failures = 0
        try:
            self._check_head(path, digest, url)
            self._read()
        except FairlaneError:
            self.close()
            raise

    @property
    def failed_path(self) -> Path:
        """Where failed lines are told."""
        return self._failed.path

    def _open(self, path: Path) -> Appended:
        try:
            file = Appended(path)
        except FairlaneError:
            self.close()
            raise
        self._files.callback(file.close)
        return file

    def _check_head(self, path: Path, digest: Digest, url: str) -> None:
        head = next(self._journal.lines(), None)
        if head is None:
            self._journal.append(msgspec.json.encode(_Head(1, digest.hex, url)))
            return
        journal = self._journal.path
        try:
            known = msgspec.json.decode(head, type=_Head)
        except msgspec.DecodeError as error:
            raise FairlaneError(f"{journal}: no journal of a submission: {error}") from error
        if known.file != digest.hex:
            raise FairlaneError(
                f"{path} has changed since its journal was begun: put the old content back to "
                f"go on, or remove {journal} to begin anew"
            )
        if known.url != url:
            raise FairlaneError(
                f"{journal} belongs to a submission to {known.url}: go on there, or remove it "
                "to begin anew"
            )

    def _read(self) -> None:
        for sent in self._sent_lines():
            self.sent.add(sent.number)
        for file in filter(None, (self._failed, self._results)):
            for text in file.lines():
                try:
                    written = msgspec.json.decode(text, type=_Written)
                except msgspec.DecodeError as error:
                    message = f"{file.path}: holds lines of something else: {error}"
                    raise FairlaneError(message) from error
                if written.line not in self.ended:
                    self.failures += written.state != "succeeded"
                self.ended.add(written.line)
        if self._results is None:
            self.ended |= self.sent

    def _sent_lines(self) -> Iterator[Sent]:
        for text in self._journal.lines():
            number, _, request_id = text.decode(errors="replace").strip().partition(" ")
            if number.isdecimal():
                yield Sent(int(number), request_id)

    def unfetched(self) -> Iterator[Sent]:
        """Lines of earlier runs that were accepted and whose results are not written."""
        for sent in self._sent_lines():
            if sent.number not in self.ended:
                yield sent

    def accept(self, number: int, request_id: str) -> None:
        """The service has taken a line."""
        self._journal.append(f"{number} {request_id}".encode())
        if self._results is None:
            self.ended.add(number)

    def fail(self, number: int, facts: dict[str, Any]) -> None:
        """A line is given up for good."""
        self._failed.append(msgspec.json.encode({"line": number} | facts))
        self.ended.add(number)
        self.failures += 1

    def result(self, number: int, document: dict[str, msgspec.Raw], state: str) -> None:
        """The final state of a line, as the service told it."""
        assert self._results is not None
        self._results.append(msgspec.json.encode({"line": number} | document))
        self.ended.add(number)
        self.failures += state != "succeeded"

    def close(self) -> None:
        """Close all files."""
        self._files.close()
