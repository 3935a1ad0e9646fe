"""Inboxes under crashes at every step, doubts and aborts: each record in once, answered once."""

import asyncio
import threading
from random import Random
from typing import Any

import pytest

from adapters.memory import CommitFault
from schemas.log import Headers, InDoubtError, OnDelivery, UnavailableError
from simulation.process_log import Call, Killed, ProcessLog, ProcessProducer
from tests.support.door import until
from tests.support.inboxes import Post, live_until_killed
from tests.support.oracle_inbox import faults, requests

TENANTS = ("acme", "bolt", "calm")
TURNS = 12


def record(random: Random, number: int) -> tuple[Any, Headers]:
    """What a tenant may write: mostly requests, some nonsense, some keys twice."""
    endpoint = random.choice(("chat", "embed", "tight"))
    body: Any = {"endpoint": endpoint, "input": number}
    headers: list[tuple[str, bytes]] = []
    match random.randrange(10):
        case 0:
            body = random.choice((b"", b"{", b"[]", b"\xff", {"endpoint": "no", "input": 1}, {}))
        case 1:
            headers = [("idempotency-key", b"key-%d" % random.randrange(3))]
            body["input"] = "same"
        case 2:
            headers = [("x-request-id", b"mine-%d" % number), ("other", b"x")]
        case _:
            pass
    return body, headers


def write(post: Post, random: Random, count: int) -> None:
    for number in range(count):
        post.put(random.choice(TENANTS), *record(random, number))


class FaultyLog(ProcessLog):
    """A process's log that kills it at one step, and may leave publishes and commits in doubt."""

    def __init__(self, post: Post, random: Random, kill_at: int, trouble: float) -> None:
        self._random, self._left, self._trouble = random, kill_at, trouble
        super().__init__(post.log, self._step)

    def _step(self, call: Call) -> CommitFault | None:
        self._left -= 1
        if self._left <= 0:  # nothing of it goes on
            raise Killed
        if call is Call.COMMIT and self._random.random() < self._trouble:
            return self._random.choice(list(CommitFault))
        return None

    def producer(self, *, linger_ms: int = 0) -> ProcessProducer:
        return _DoubtfulProducer(self, self.inner.producer(), self._random, self._trouble)


class _DoubtfulProducer(ProcessProducer):
    def __init__(self, log: FaultyLog, inner: Any, random: Random, trouble: float) -> None:
        super().__init__(log, inner)
        self._random, self._trouble = random, trouble

    def send(
        self,
        topic: str,
        partition: int,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        if on_delivery is None or self._random.random() >= self._trouble:
            super().send(topic, partition, value, key=key, headers=headers, on_delivery=on_delivery)
        elif self._random.random() < 0.3:
            raise UnavailableError("no room")
        else:
            if self._random.random() < 0.5:
                super().send(topic, partition, value, key=key, headers=headers)
            on_delivery(None, InDoubtError("nobody knows"))


def settle(post: Post) -> None:
    """A life without trouble, long enough for limits to have room for all that was held."""
    post.play(turns=20)
    post.play(turns=40, step_ms=30_000)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_dies_when_each_record_is_taken_in_once(seed: int) -> None:
    random = Random(seed)
    post = Post()
    killed = 0
    for _ in range(random.randint(2, 6)):
        write(post, random, random.randint(5, 40))
        log = FaultyLog(post, random, random.randint(1, 150), 0)
        instance = random.choice(("inbox-1", None))
        killed += live_until_killed(post, log, TURNS, instance)
        post.clock.value_ms += random.choice((0, 100, 7_000, 61_000))
        post.serve()
    settle(post)
    assert faults(post, TENANTS) == [], f"seed {seed}"
    assert any(requests(post).values())


def test_every_single_step_of_a_life_may_be_its_last() -> None:
    steps = 0
    while True:
        steps += 1
        random = Random(7)
        post = Post()
        write(post, random, 12)
        log = FaultyLog(post, random, steps, 0)
        is_killed = live_until_killed(post, log, 6, "inbox-1")
        settle(post)
        assert faults(post, TENANTS) == [], f"killed at step {steps}"
        if not is_killed:
            break
    assert steps > 60, "a life has that many steps"


@pytest.mark.parametrize("seed", range(40))
def test_doubts_and_aborts_are_read_back(seed: int) -> None:
    random = Random(1_000 + seed)
    post = Post()
    for _ in range(3):
        write(post, random, 25)
        log = FaultyLog(post, random, random.randint(50, 400), 0.1)
        live_until_killed(post, log, TURNS, "inbox-1")
    settle(post)
    assert faults(post, TENANTS) == [], f"seed {seed}"


@pytest.mark.parametrize("call", [Call.PUBLISH, Call.BEGIN, Call.SEND_OFFSETS, Call.COMMIT])
@pytest.mark.parametrize("seed", range(5))
def test_one_that_was_thought_dead_answers_nothing_twice(seed: int, call: Call) -> None:
    """It wakes up in the midst of a cycle that somebody else has done meanwhile.

    What it publishes late stands twice, under one id: the scheduler drops the second.
    """
    random = Random(seed)
    post = Post()
    write(post, random, 30)
    left = random.randint(2, 12)

    def step(now: Call) -> None:
        nonlocal left
        left -= now is call
        if now is call and left == 0:
            log.is_deaf = True
            log.fall_silent()
            post.clock.value_ms += 10_000  # no clock tells the sleeper before it goes on
            other = threading.Thread(target=post.play, args=(30,))
            other.start()
            other.join()

    log = ProcessLog(post.log, step)
    live_until_killed(post, log, TURNS, "inbox-2")
    settle(post)
    assert faults(post, TENANTS, may_repeat=True) == [], f"seed {seed}"
    for published in requests(post).values():
        by_record: dict[int, set[str]] = {}
        for _, offset, request_id in published:
            by_record.setdefault(offset, set()).add(request_id)
        assert all(len(names) == 1 for names in by_record.values())


def test_the_judge_sees_what_is_wrong() -> None:
    """A record that was let in twice, one that was forgotten, one answered and let in."""
    post = Post()
    for number in range(3):
        post.put("calm", {"endpoint": "chat", "input": number})
    post.play()
    assert faults(post, TENANTS) == []
    post.put("calm", {"endpoint": "chat", "input": 3})
    assert faults(post, TENANTS) == ["calm@3: 0 requests, 0 refusals"]
    place = next(place for place, _, _ in requests(post)["calm"])
    first = post.records(*place)[0]
    post.log.producer().send(*place, first.value, headers=first.headers)
    assert "calm@0: 2 requests, 0 refusals" in faults(post, TENANTS)


def test_a_life_of_one_loop() -> None:
    """Started as a process starts it, on the same log."""
    post = Post()
    post.put("acme", {"endpoint": "chat", "input": 1})

    async def life() -> None:
        process = post.process()
        process.start()
        await until(lambda: any(requests(post).values()))
        assert process.ended() == ""
        await process.stop()

    asyncio.run(life())
    post.play()
    assert faults(post, TENANTS) == []
