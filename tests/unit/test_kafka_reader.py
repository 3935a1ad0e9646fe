"""What the client of Kafka can't make sense of, as the reader passes it on."""

from typing import Any, cast

import pytest
from confluent_kafka import Message

from adapters.kafka_client import Settings
from adapters.kafka_reader import KafkaReader
from schemas.log import UNREADABLE_HEADER


class Fetched:
    """A message as the client returns it; at some headers it fails as the client does."""

    def __init__(self, offset: int, headers: Any) -> None:
        self._offset, self._headers = offset, headers

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return "inbox"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 2, 1_000

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes:
        return b"%d" % self._offset

    def headers(self) -> Any:
        if isinstance(self._headers, Exception):
            raise self._headers
        return self._headers


@pytest.mark.parametrize(
    "error",
    [SystemError("a result with an exception set"), UnicodeDecodeError("utf-8", b"", 0, 1, "")],
)
def test_header_names_that_are_no_text_take_nothing_else_with_them(error: Exception) -> None:
    settings = Settings("nowhere:1", 6_000, 1_000, {})
    reader = KafkaReader(settings, cast("Any", None), committed_only=True, ahead=False)
    reader._positions = {("inbox", 0): 0}
    messages = [Fetched(0, [("a", b"1")]), Fetched(1, error), Fetched(2, None)]
    records = reader._taken(cast("list[Message]", messages))
    assert [record.value for record in records] == [b"0", b"1", b"2"]
    assert [record.headers for record in records] == [
        (("a", b"1"),),
        ((UNREADABLE_HEADER, b""),),
        (),
    ]
    assert reader.reached(("inbox", 0), 3)
