"""Lists of requests: pages, filters, look-ups by other names, and what is kept no longer."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from adapters.memory import MemoryLog
from adapters.memory_index import MemoryIndex
from producers import listing
from producers.core import ids
from producers.core.listing import PARAMETERS, cursor
from producers.ports import Index
from schemas.front import WAITING_TTL_MS, Acceptance, Listed, RequestName, Window
from schemas.records import End
from tests.support.door import Clock, Door, door, until

Scenario = Callable[[Door], Awaitable[None]]


def play(scenario: Scenario, index: Index | None = None) -> None:
    async def with_door() -> None:
        async with door(MemoryLog(Clock()), index=index) as opened:
            await scenario(opened)

    asyncio.run(with_door())


@pytest.fixture(params=["redis", "memory"])
def index(request: pytest.FixtureRequest) -> Index | None:
    """None is the index in Redis, as the door makes it."""
    return None if request.param == "redis" else MemoryIndex()


async def listed(opened: Door, query: str = "", tenant: str = "acme") -> dict[str, Any]:
    answer = await opened.http.get(f"/v1/requests{query}", headers=opened.bearer(tenant))
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def names(document: dict[str, Any]) -> list[str]:
    return [request["id"] for request in document["data"]]


async def pages(opened: Door, query: str) -> list[list[str]]:
    found = []
    document = await listed(opened, f"?{query}")
    while document["next_cursor"]:
        found.append(names(document))
        document = await listed(opened, f"?{query}&cursor={document['next_cursor']}")
    return [*found, names(document)]


def test_pages_are_newest_first_and_each_request_is_on_one_of_them(index: Index | None) -> None:
    async def scenario(opened: Door) -> None:
        begin_ms, random, sent = opened.clock.value_ms, Random(7), []
        for _ in range(47):
            opened.clock.value_ms += random.randrange(3)  # some within one millisecond
            answer = await opened.post(endpoint="free")
            sent.append((opened.clock.value_ms, answer.json()["id"]))
        assert (await opened.post("bolt", endpoint="free")).status_code == 202
        expected = [name for _, name in sorted(sent, reverse=True)]
        assert names(await listed(opened)) == expected[:20]
        for limit in (1, 7, 47, 100):
            found = await pages(opened, f"limit={limit}")
            assert [name for page in found for name in page] == expected
            assert all(len(page) == limit for page in found[:-1])
        since, until_ms = begin_ms + 10, begin_ms + 30
        within = [name for at, name in sorted(sent, reverse=True) if since <= at <= until_ms]
        assert 0 < len(within) < 47
        found = await pages(opened, f"limit=4&since_ms={since}&until_ms={until_ms}")
        assert [name for page in found for name in page] == within

    play(scenario, index)


def test_what_comes_meanwhile_moves_no_page(index: Index | None) -> None:
    async def scenario(opened: Door) -> None:
        sent = []
        for _ in range(6):
            opened.clock.value_ms += 1
            sent.append((await opened.post(endpoint="free")).json()["id"])
        first = await listed(opened, "?limit=3")
        opened.clock.value_ms += 1
        assert (await opened.post(endpoint="free")).status_code == 202
        second = await listed(opened, f"?limit=3&cursor={first['next_cursor']}")
        assert names(first) + names(second) == sent[::-1]
        assert second["next_cursor"] is None

    play(scenario, index)


def test_filters_take_what_they_name(index: Index | None) -> None:
    async def scenario(opened: Door) -> None:
        free = (await opened.post(endpoint="free")).json()["id"]
        late = (await opened.post(endpoint="chat", tier="batch")).json()["id"]
        opened.finish(free, end=End.FAILED, reason="engine_failed")
        assert (await opened.get(free, wait="30")).json()["state"] == "failed"
        for query, expected in (
            ("?state=failed", [free]),
            ("?state=waiting", [late]),
            ("?state=succeeded", []),
            ("?endpoint=free", [free]),
            ("?endpoint=nowhere", []),
            ("?tier=batch", [late]),
            ("?tier=gold&state=waiting", []),
        ):
            assert names(await listed(opened, query)) == expected, query
        ended = (await listed(opened, "?state=failed"))["data"][0]
        assert (ended["reason"], ended["retry"]) == ("engine_failed", "later")
        assert "output" not in ended
        assert names(await listed(opened, tenant="bolt")) == []

    play(scenario, index)


def test_a_filter_that_few_pass_has_short_pages_that_go_on(
    monkeypatch: pytest.MonkeyPatch, index: Index | None
) -> None:
    monkeypatch.setattr(listing, "LOOK_MAX", 4)
    monkeypatch.setattr(listing, "SCAN_MAX", 8)

    async def scenario(opened: Door) -> None:
        wanted = (await opened.post(endpoint="large")).json()["id"]
        for _ in range(20):
            opened.clock.value_ms += 1
            assert (await opened.post(endpoint="free")).status_code == 202
        found = await pages(opened, "endpoint=large&limit=5")
        assert [name for page in found for name in page] == [wanted]
        assert found[0] == []

    play(scenario, index)


def test_an_idempotency_key_is_looked_up_within_what_else_is_asked_for(
    index: Index | None,
) -> None:
    async def scenario(opened: Door) -> None:
        headers = opened.bearer("acme") | {"X-Request-Id": "trace-1", "Idempotency-Key": "k"}
        body = {"endpoint": "free", "input": 1}
        named = (await opened.http.post("/v1/requests", json=body, headers=headers)).json()["id"]
        other = (await opened.post(endpoint="free")).json()["id"]
        at_ms = opened.clock.value_ms
        for query, is_found in (
            (f"since_ms={at_ms}&until_ms={at_ms}", True),
            (f"since_ms={at_ms + 1}", False),
            (f"until_ms={at_ms - 1}", False),
            ("x_request_id=trace-1", True),
            ("x_request_id=trace-2", False),
            (f"x_request_id={named}", True),
            (f"x_request_id={other}", False),
            ("state=failed", False),
        ):
            found = names(await listed(opened, f"?idempotency_key=k&{query}"))
            assert found == ([named] if is_found else []), query

    play(scenario, index)


def test_an_idempotency_key_and_an_x_request_id_find_what_they_named(
    index: Index | None,
) -> None:
    async def scenario(opened: Door) -> None:
        keyed = (await opened.post(key="order/17 a".replace(" ", "-"))).json()["id"]
        assert names(await listed(opened, "?idempotency_key=order/17-a")) == [keyed]
        assert names(await listed(opened, "?idempotency_key=order/18")) == []
        assert names(await listed(opened, "?idempotency_key=order/17-a", "bolt")) == []

        headers = opened.bearer("acme") | {"X-Request-Id": "trace-1"}
        body = {"endpoint": "free", "input": 1}
        single = await opened.http.post("/v1/requests", json=body, headers=headers)
        assert single.headers["x-request-id"] == "trace-1"
        lines = b'{"endpoint": "free", "input": 2}\n' * 3
        bulk = await opened.http.post("/v1/requests:bulk", content=lines, headers=headers)
        assert bulk.headers["x-request-id"] == "trace-1"
        found = names(await listed(opened, "?x_request_id=trace-1&limit=3"))
        assert len(found) == 3
        assert len(names(await listed(opened, "?x_request_id=trace-1"))) == 4
        assert single.json()["id"] in names(await listed(opened, "?x_request_id=trace-1"))
        assert (await opened.get(single.json()["id"])).json()["x_request_id"] == "trace-1"
        assert names(await listed(opened, "?x_request_id=trace-1", "bolt")) == []

        # A name of the form that requests' ids have would be looked up as one: it is not taken.
        taken = "req_" + "a" * 26
        other = await opened.http.post(
            "/v1/requests", json=body, headers=headers | {"X-Request-Id": taken}
        )
        assert other.headers["x-request-id"] == other.json()["id"]

        # Without one, the answer's is the request's own id, and is found as well.
        plain = await opened.post()
        assert plain.headers["x-request-id"] == plain.json()["id"]
        assert names(await listed(opened, f"?x_request_id={plain.json()['id']}")) == [
            plain.json()["id"]
        ]
        unnamed = await opened.http.post(
            "/v1/requests:bulk", content=lines, headers=opened.bearer("acme")
        )
        call = unnamed.headers["x-request-id"]
        assert len(names(await listed(opened, f"?x_request_id={call}"))) == 3

    play(scenario, index)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=-1", "limit"),
        ("limit=1&limit=2", "limit"),
        ("limit=%D9%A3", "limit"),
        ("cursor=", "cursor"),
        ("cursor=abc", "cursor"),
        ("cursor=%FF", "cursor"),
        ("state=running", "state"),
        ("since_ms=2026-01-01", "since_ms"),
        ("until_ms=99999999999999999999", "until_ms"),
        ("endpoint=", "endpoint"),
        ("x_request_id=a%20b", "x_request_id"),
        ("idempotency_key=", "idempotency_key"),
        ("staet=failed", "staet"),
    ],
)
def test_a_query_that_is_wrong_is_told_where(query: str, field: str) -> None:
    async def scenario(opened: Door) -> None:
        answer = await opened.http.get(f"/v1/requests?{query}", headers=opened.bearer("acme"))
        assert answer.status_code == 400
        assert [fault["field"] for fault in answer.json()["faults"]] == [field]

    play(scenario)


def test_all_parameters_are_known_and_faults_are_told_together() -> None:
    async def scenario(opened: Door) -> None:
        wrong = "&".join(f"{name}=" for name in PARAMETERS)
        answer = await opened.http.get(f"/v1/requests?{wrong}", headers=opened.bearer("acme"))
        assert {fault["field"] for fault in answer.json()["faults"]} == set(PARAMETERS)

    play(scenario)


def test_what_was_listed_and_is_kept_no_longer_is_gone_for_its_tenant_alone() -> None:
    async def scenario(opened: Door) -> None:
        request_id = (await opened.post()).json()["id"]
        assert (await opened.get(request_id)).status_code == 200
        await until(lambda: opened.ingress._refill._done)  # or it is noted again, as it waits
        await opened.redis.delete(f"fairlane:{{acme}}:request:{request_id}")  # its time was over
        for answer in (await opened.get(request_id), await opened.cancel(request_id)):
            assert (answer.status_code, answer.json()["reason"]) == (410, "gone")
            assert answer.headers["x-should-retry"] == "false"
        other = await opened.get(request_id, "bolt")
        assert (other.status_code, other.json()["reason"]) == (404, "not_found")
        assert names(await listed(opened)) == []

    play(scenario)


def test_a_result_without_an_acceptance_is_listed_by_when_it_arrived() -> None:
    async def scenario(opened: Door) -> None:
        request_id = ids.request_id("acme", ids.ROUTE, "lost")
        opened.finish(request_id, arrived_ms=opened.clock.value_ms - 5)
        await until(lambda: opened.redis.exists(f"fairlane:{{acme}}:request:{request_id}"))
        now_ms = opened.clock.value_ms
        assert names(await listed(opened, f"?since_ms={now_ms - 5}")) == [request_id]
        assert names(await listed(opened, f"?since_ms={now_ms - 4}")) == []

    play(scenario)


def test_a_list_keeps_the_newest_and_a_cursor_before_its_end_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("adapters.redis.LISTED_MAX", 3)

    async def scenario(opened: Door) -> None:
        index, sent, now_ms = opened.ingress._index, [], opened.clock.value_ms
        for number in range(1, 8):
            at_ms = now_ms + number
            name = RequestName("acme", ids.request_id("acme", ids.ROUTE, str(at_ms)))
            await index.accept(name, Acceptance("chat", "gold", "t", 0, 0, at_ms))
            sent.append(name.id)
        assert names(await listed(opened)) == sent[:-4:-1]
        assert await index.listed(Window("acme", 9, Listed(now_ms + 2, sent[1]))) == []
        last = cursor(Listed(now_ms + 6, sent[5]))
        assert names(await listed(opened, f"?cursor={last}")) == [sent[4]]
        # What is kept no longer is not looked at: a day after the longest wait nothing is.
        opened.clock.value_ms += WAITING_TTL_MS + 7
        assert names(await listed(opened)) == [sent[6]]

    play(scenario)


def test_without_redis_a_list_is_unavailable() -> None:
    async def scenario(opened: Door) -> None:
        opened.ingress._keeper._breaker.failed(opened.clock.value_ms)
        answer = await opened.http.get("/v1/requests", headers=opened.bearer("acme"))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")

    play(scenario)


def test_an_affinity_key_goes_along_and_is_checked() -> None:
    async def scenario(opened: Door) -> None:
        answer = await opened.post(affinity_key="chat 7 é")
        assert answer.status_code == 202
        record = opened.records(opened.topics.requests("gold"))[0]
        assert ("affinity-key", "chat 7 é".encode()) in record.headers
        for wrong in ("", "x" * 129, 7):
            answer = await opened.post(affinity_key=wrong)
            assert answer.json()["faults"][0]["field"] == "affinity_key"

    play(scenario)
