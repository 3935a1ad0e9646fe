"""Rows into requests, and answers into vectors.

Several rows go into one request, all of one tenant, in the order of the source: until there
are `rows_max`, or their texts have `bytes_max` bytes. The request's name (Idempotency-Key) is
a digest of the run, the ids and the texts. So that a run that was stopped asks for the same
requests again, rows that this run has written already still take their places in them; only
when a request is complete are they taken out, and if nothing is left it isn't made.
"""

from base64 import b64decode
from collections.abc import Sequence
from hashlib import sha256
from struct import pack
from typing import NamedTuple

import msgspec

from fairlane.client_values import Outcome
from fairlane.embed_ledger import Model

#: Most rows of a request: beyond it nothing is gained.
ROWS_MAX_DEFAULT = 32
ROWS_MAX = 2_048
#: Bytes of text in a request, about 8,000 tokens: a longer text goes alone.
BYTES_MAX = 32_000
#: Answers up to this stand in the service's index; larger ones it reads from the log.
ANSWER_BYTES_MAX = 60_000
#: An answer's bytes beside the vectors: some for each, some for all.
_AROUND_EACH, _AROUND_ALL = 64, 512
_FLOAT_BYTES = 4


class AnswerError(Exception):
    """What came back are not the vectors that were asked for; the message says why."""


class Work(NamedTuple):
    """A row to be embedded, and the digest of its text."""

    number: int
    id: str
    text: str
    digest: bytes


class Embedding(NamedTuple):
    """A row with its vector, little-endian float32: what a shard holds."""

    id: str
    tenant: str
    vector: bytes
    model: str
    model_sha256: str
    text_sha256: bytes


class Group(NamedTuple):
    """Rows of one tenant that go into one request."""

    tenant: str
    rows: tuple[Work, ...]

    def halves(self) -> tuple["Group", "Group"]:
        """Two groups instead of one, to find out which row is refused."""
        middle = len(self.rows) // 2
        return Group(self.tenant, self.rows[:middle]), Group(self.tenant, self.rows[middle:])

    def key(self, run: str) -> str:
        """Name of the request within a run."""
        hashed = sha256(f"{run}\n{self.tenant}\n".encode())
        for row in self.rows:
            hashed.update(f"{row.id}\n".encode() + row.digest)
        return f"embed-{hashed.hexdigest()}"

    def input(self) -> dict[str, object]:
        """What the endpoint is called with."""
        return {"input": [row.text for row in self.rows], "encoding_format": "base64"}


def rows_per_request(dimensions: int) -> int:
    """As many rows as have an answer that stands in the index."""
    each = -(-dimensions * _FLOAT_BYTES * 4 // 3) + _AROUND_EACH
    return max(1, min(ROWS_MAX_DEFAULT, (ANSWER_BYTES_MAX - _AROUND_ALL) // each))


class _Open:
    """A group that is being filled; `left` are the rows that are not written yet."""

    __slots__ = ("bytes", "count", "left")

    def __init__(self) -> None:
        self.count = self.bytes = 0
        self.left: list[Work] = []


class Grouper:
    """Fills one group for each tenant at a time."""

    def __init__(self, rows_max: int, bytes_max: int = BYTES_MAX) -> None:
        """Nothing is open."""
        self._rows_max, self._bytes_max = rows_max, bytes_max
        self._open: dict[str, _Open] = {}

    def add(self, tenant: str, row: Work, *, is_written: bool) -> list[Group]:
        """Take a row in; returns the groups that are complete by that."""
        size = len(row.text.encode())
        group = self._open.get(tenant)
        full: list[Group] = []
        if group and group.bytes + size > self._bytes_max:
            full, group = self._closed(tenant), None
        if group is None:
            group = self._open[tenant] = _Open()
        group.count += 1
        group.bytes += size
        if not is_written:
            group.left.append(row)
        return full + self._closed(tenant) if group.count >= self._rows_max else full

    def _closed(self, tenant: str) -> list[Group]:
        left = self._open.pop(tenant).left
        return [Group(tenant, tuple(left))] if left else []

    def rest(self) -> list[Group]:
        """What is left at the end."""
        return [group for tenant in list(self._open) for group in self._closed(tenant)]


class _Item(msgspec.Struct):
    embedding: str | list[float]
    index: int = 0


class _Answer(msgspec.Struct):
    data: list[_Item]
    model: str = ""
    model_sha256: str = ""
    truncated: object = 0


class Answer(NamedTuple):
    """Vectors in the order of the texts; `cut` texts were longer than the model reads."""

    model: Model
    vectors: list[bytes]
    cut: int


_decoder = msgspec.json.Decoder(_Answer)


def read_answer(outcome: Outcome, rows: int) -> Answer:
    """The model and a vector for each row, little-endian float32. Raises AnswerError."""
    if outcome.output_lost:
        raise AnswerError(outcome.output_lost)
    try:
        answer = _decoder.decode(outcome.output_bytes)
        items = sorted(answer.data, key=lambda item: item.index)
        vectors = [_vector(item.embedding) for item in items]
    except (ValueError, OverflowError) as error:
        raise AnswerError(f"the answer is no list of embeddings: {error}") from error
    if len(vectors) != rows:
        raise AnswerError(f"the answer has {len(vectors)} vectors for {rows} texts")
    sizes = {len(vector) for vector in vectors}
    if len(sizes) != 1 or 0 in sizes or sizes.pop() % _FLOAT_BYTES:
        raise AnswerError("the vectors of the answer are not all of one length")
    model = Model(answer.model, answer.model_sha256, len(vectors[0]) // _FLOAT_BYTES)
    cut = answer.truncated if type(answer.truncated) is int else 0  # ours say it, others need not
    return Answer(model, vectors, cut)


def _vector(embedding: str | Sequence[float]) -> bytes:
    if isinstance(embedding, str):
        return b64decode(embedding, validate=True)
    return pack(f"<{len(embedding)}f", *embedding)
