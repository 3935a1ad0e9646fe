"""Lanes that come and go between accountings, on a real Kafka: each batch is counted once."""

import asyncio
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faust.transport.consumer import Consumer as FaustConsumer

from accounting.app import Accounting, AccountingSettings, Ending
from accounting.driver import Consumer
from adapters.clock import SystemClock
from fairlane.publish import published_policy
from fairlane.run import NoMeter
from tests.support.accounting_world import LANES, World
from tests.support.processes import DEADLINE_S, FairlaneProcess, until

#: Records that wait to be counted when Faust throws them away.
LOST = 3
ROUNDS = 6


@pytest.fixture
def world(kafka_bootstrap: str, tmp_path: Path) -> Iterator[World]:
    made = World(kafka_bootstrap, tmp_path)
    yield made
    made.close()


class Notes:
    """Keeps the events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, **facts: object) -> None:
        self.events.append(event)

    warning = error = info


class Inside:
    """An accounting in this process, in a thread of its own."""

    def __init__(self, world: World, bootstrap: str) -> None:
        published = published_policy(world.log, world.topics)
        assert published is not None
        lanes = {pool.name: pool.lanes for pool in published.pools}
        world.log.ensure_topics([world.topics.usage_spec(*pool) for pool in lanes.items()])
        buckets = published.topology.buckets
        settings = AccountingSettings(
            kafka=bootstrap, topics=world.topics, lanes=lanes, buckets=buckets
        )
        self.notes, self.endings = Notes(), list[Ending]()
        self.accounting = Accounting(settings, world.log, SystemClock(), NoMeter(), self.notes)
        self._stop = threading.Event()
        arguments = self._stop, lambda: lanes, self.endings.append
        self._thread = threading.Thread(target=self.accounting.run, args=arguments)
        self._thread.start()

    def stop(self) -> list[Ending]:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        return self.endings


class Window:
    """Faust's window: lanes are sought and let go, and then all queues are emptied.

    Once armed, it stays open until records have come into it.
    """

    def __init__(self) -> None:
        self.inside: Inside | None = None
        self.is_open, self.lost = threading.Event(), 0

    async def perform_seek(self, consumer: Any) -> None:
        lanes = [tp for tp in consumer._active_partitions if ".workers." in tp.topic]
        if self.inside is None or not lanes:
            await FaustConsumer.perform_seek(consumer)
            return
        inside, self.inside = self.inside, None
        async with inside.accounting._lock:
            await FaustConsumer.perform_seek(consumer)
            queues = [channel.queue for channel in consumer.app.topics._tp_index[lanes[0]]]
            self.is_open.set()
            while self.lost < LOST:
                await asyncio.sleep(0.02)
                self.lost = sum(queue.qsize() for queue in queues)


def test_what_faust_throws_away_is_read_again(
    world: World, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without lanes that are held back until then, since those would come into no window."""
    window = Window()

    async def perform_seek(consumer: Any) -> None:
        await window.perform_seek(consumer)

    monkeypatch.setattr(Consumer, "perform_seek", perform_seek)
    for name in ("resume_partitions", "resume_flow"):
        monkeypatch.setattr(Consumer, name, getattr(FaustConsumer, name))
    first = Inside(world, kafka_bootstrap)
    try:
        world.finish(6)
        assert world.is_right()
        window.inside = first
        second = world.start("--instance", "b")
        until(window.is_open.is_set, "the first one's lanes are sought")
        world.finish(20)
        until(lambda: window.lost >= LOST, "records wait to be counted")
        world.finish(5)
        assert world.is_right()
        assert "reading again" in first.notes.events
        assert second.stop() == 0
    finally:
        assert first.stop() == [Ending.STOPPED]


def test_two_that_come_and_go_under_traffic_count_each_batch_once(world: World) -> None:
    chance = random.Random(11)
    running: dict[str, FairlaneProcess] = {}
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            world.finish(LANES * 4)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(ROUNDS):
            name = "ab"[number % 2]
            if name in running:
                running.pop(name).stop(chance.choice([signal.SIGKILL, signal.SIGTERM]))
            # A name that is known takes its lanes over; no name makes the group share out anew.
            known = ["--instance", name] if chance.random() < 0.5 else []
            running[name] = world.start(*known)
            running[name].wait_for("counting")
    finally:
        done.set()
        writer.join(DEADLINE_S)
    assert world.is_right()
    assert all(process.process.poll() is None for process in running.values())
