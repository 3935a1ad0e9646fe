"""A file of whole lines that survives a kill, and never cuts what is not its own."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fairlane.errors import FairlaneError

#: Longest line that is read again: results have at most 1 MB of output, base64 a third more.
RESULT_BYTES_MAX = 2_000_000
_CHUNK_BYTES = 1 << 20


def whole_lines(file: BinaryIO, bytes_max: int) -> Iterator[tuple[int, bytes | None]]:
    """Number and text of each line from 1 on; None for the text of one that is too long."""
    number = 0
    while piece := file.readline(bytes_max + 1):
        number += 1
        is_long = len(piece) > bytes_max and not piece.endswith(b"\n")
        while is_long and piece and not piece.endswith(b"\n"):
            piece = file.readline(bytes_max + 1)
        yield number, None if is_long else piece


class Appended:
    """Opened for this process alone. A kill may leave a torn last line: see `torn` and `cut`."""

    def __init__(self, path: Path) -> None:
        """Open or create it and change nothing; raises FairlaneError."""
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

    def cut(self) -> None:
        """Cut a torn last line off; for a file that is known to be ours."""
        os.truncate(self._file, self._whole_bytes())

    def torn(self, bytes_max: int) -> bytes:
        """The beginning of a torn last line; empty when there is none."""
        return os.pread(self._file, bytes_max, self._whole_bytes())

    def is_empty(self) -> bool:
        """Whether no whole line stands there."""
        return not self._whole_bytes()

    def _whole_bytes(self) -> int:
        """Bytes up to the end of the last whole line."""
        end = os.fstat(self._file).st_size
        while end > 0:
            start = max(0, end - _CHUNK_BYTES)
            found = os.pread(self._file, end - start, start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
        return 0

    def lines(self) -> Iterator[bytes]:
        """The whole lines that stand there now."""
        with self.path.open("rb") as file:
            for _, text in whole_lines(file, RESULT_BYTES_MAX):
                if text is not None and text.endswith(b"\n"):
                    yield text

    def append(self, line: bytes) -> None:
        """Write one line, whole."""
        data = line + b"\n"
        while data:
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        """Close it; another run may open it."""
        os.close(self._file)
