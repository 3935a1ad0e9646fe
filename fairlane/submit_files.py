"""The files of `fairlane submit`: the lines to send, the journal, results and failed lines.

Every file is appended to, one whole line at a write, so that a process killed at any moment
leaves at most one torn line at the end, which the next run cuts off, once all that stands in
the file has proved to be of this submission; else nothing is changed. What is finished is
read from the files themselves; memory holds bitmaps of line numbers, never lines.

    data.jsonl           read: one POST body a line, optionally with an "id"
    data.journal         written: the file's digest and the service, then "<line> <id>" of
                         every line that was accepted
    data.failed.jsonl    written: lines that can't be sent or were refused for good
    RESULTS.jsonl        written with --out: the final state of every accepted line
"""

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from pyroaring import BitMap

from fairlane.errors import FairlaneError
from fairlane.submit_append import Appended, whole_lines

#: Longest line that is read whole; the ingress takes bodies up to 508,192 bytes.
LINE_BYTES_MAX = 600_000
#: Longest "id" of a line: it becomes the Idempotency-Key.
ID_CHARS_MAX = 200
_CHUNK_BYTES = 1 << 20
#: How each of our lines begins.
_LINE_HEAD = b'{"line":'
_WAY_OUT = "nothing was changed: name another file, or move that one away"


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


def read_lines(path: Path, digest: str) -> Generator[Line, None, None]:
    """The lines of the file in order; blank ones are left out, broken ones carry their error.

    Close the generator: it holds the file open until its end.
    """
    with path.open("rb") as file:
        for number, text in whole_lines(file, LINE_BYTES_MAX):
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
        journal, failed = (path.with_name(base + end) for end in (".journal", ".failed.jsonl"))
        if out:
            _check_out(out, (path, journal, failed))
        self._files = ExitStack()
        self._journal, self._failed = self._open(journal), self._open(failed)
        self._results = self._open(out) if out else None
        #: Lines accepted by the service.
        self.sent = BitMap()
        #: Lines that need nothing more.
        self.ended = BitMap()
        self.failures = 0
        try:
            head = msgspec.json.encode(_Head(1, digest.hex, url))
            is_new = self._check_head(path, digest, url, head)
            self._read()
            for file in filter(None, (self._journal, self._failed, self._results)):
                file.cut()
            if is_new:
                self._journal.append(head)
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

    def _check_head(self, path: Path, digest: Digest, url: str, head: bytes) -> bool:
        """Whether the journal is yet to be begun; raises FairlaneError when it is another's."""
        journal = self._journal.path
        if self._journal.is_empty():
            if not head.startswith(self._journal.torn(len(head) + 1)):
                raise FairlaneError(f"{journal}: no journal of a submission; {_WAY_OUT}")
            if not self._failed.is_empty():
                raise FairlaneError(
                    f"{self.failed_path}: holds lines of something else, an earlier submission "
                    f"perhaps; {_WAY_OUT}"
                )
            return True
        try:
            known = msgspec.json.decode(next(self._journal.lines(), b""), type=_Head)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
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
        return False

    def _read(self) -> None:
        for sent in self._sent_lines():
            self.sent.add(sent.number)
        for written in _written(self._failed):
            self._end(written)
        if self._results:
            self._read_results(self._results)
        if self._results is None:
            self.ended |= self.sent

    def _read_results(self, results: Appended) -> None:
        for written in _written(results):
            if written.line not in self.sent:
                raise FairlaneError(
                    f"{results.path}: holds results of another submission (line {written.line} "
                    f"was not accepted); {_WAY_OUT}"
                )
            self._end(written)

    def _end(self, written: _Written) -> None:
        if written.line not in self.ended:
            self.failures += written.state != "succeeded"
        self.ended.add(written.line)

    def _sent_lines(self) -> Iterator[Sent]:
        for text in self._journal.lines():
            number, _, request_id = text.decode(errors="replace").strip().partition(" ")
            if number.isdecimal():
                yield Sent(int(number), request_id)

    def unfetched(self) -> Generator[Sent, None, None]:
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


def _check_out(out: Path, others: tuple[Path, ...]) -> None:
    """Refuse to write results into a file that is used otherwise; raises FairlaneError."""
    for other in others:
        is_same = out.exists() and other.exists() and out.samefile(other)
        if is_same or out.resolve() == other.resolve():
            raise FairlaneError(f"--out {out}: that is {other}, which is not for results")


def _written(file: Appended) -> Iterator[_Written]:
    """The lines of results or failures; raises FairlaneError when any is not ours."""
    torn = file.torn(len(_LINE_HEAD))
    if file.is_empty() and not _LINE_HEAD.startswith(torn):
        raise FairlaneError(f"{file.path}: holds lines of something else; {_WAY_OUT}")
    for text in file.lines():
        try:
            yield msgspec.json.decode(text, type=_Written)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            message = f"{file.path}: holds lines of something else: {error}; {_WAY_OUT}"
            raise FairlaneError(message) from error
