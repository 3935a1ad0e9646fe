"""What a shard reads: decoded in bulk as it is one by one, whatever the headers hold."""

import pytest

from scheduler.inputs import read_request, read_requests, runs
from schemas.codec import HEADER, encode
from schemas.log import Headers, Record
from schemas.reasons import Reason
from schemas.records import VERSION, Request

GOOD = encode(Request(VERSION, "a" * 32, "acme", "embed", 7, 1_000, 12))
LATER = encode(Request(VERSION + 1, "b" * 32, "acme", "embed"))
OWN = (HEADER, GOOD)
TRACE = ("traceparent", b"00-1-2-01")

HEADERS: list[tuple[Headers, str]] = [
    ([OWN], ""),
    ([OWN, TRACE], ""),
    ([OWN, TRACE, ("tracestate", b"")], ""),
    ([TRACE, OWN], ""),
    ([OWN, (HEADER, b"again")], ""),
    ([OWN, TRACE, OWN], ""),
    ([], Reason.UNREADABLE),
    ([TRACE], Reason.UNREADABLE),
    ([(HEADER, b""), OWN], Reason.UNREADABLE),
    ([(HEADER, GOOD[:-3])], Reason.UNREADABLE),
    ([(HEADER, b"\xff" * 9)], Reason.UNREADABLE),
    ([(HEADER, GOOD.replace(b"acme", b"\xff\xfe\xfd\xfc"))], Reason.UNREADABLE),
    ([(HEADER, b"\x91" * 100_000)], Reason.UNREADABLE),
    ([(HEADER, LATER), TRACE], Reason.UNKNOWN_VERSION),
]


def record(offset: int, headers: Headers, topic: str = "requests.gold", number: int = 0) -> Record:
    return Record(topic, number, offset, 1_000 + offset, b"acme", b"body", tuple(headers))


@pytest.mark.parametrize(("headers", "reason"), HEADERS)
def test_bulk_is_one_by_one(headers: Headers, reason: str) -> None:
    odd = record(5, headers)
    arrival, body = read_request(odd)
    assert read_requests([odd]) == ([arrival], [body])
    assert arrival.reason == reason
    assert (arrival.meta is None) == bool(reason)
    assert arrival.size == 4 + sum(len(name) + len(content) for name, content in headers)
    assert all(name != HEADER for name, _ in body.headers)


def test_an_unreadable_one_touches_no_neighbour() -> None:
    records = [record(offset, headers) for offset, (headers, _) in enumerate(HEADERS)]
    arrivals, bodies = read_requests(records)
    alone = [read_request(one) for one in records]
    assert list(zip(arrivals, bodies, strict=True)) == alone


def test_runs_are_cut_where_the_partition_changes() -> None:
    places = [("a", 0), ("a", 0), ("a", 1), ("b", 1), ("a", 0), ("a", 0)]
    records = [record(n, [OWN], topic, number) for n, (topic, number) in enumerate(places)]
    assert [(name, [one.offset for one in run]) for name, run in runs(records)] == [
        (("a", 0), [0, 1]),
        (("a", 1), [2]),
        (("b", 1), [3]),
        (("a", 0), [4, 5]),
    ]
    assert not list(runs([]))
