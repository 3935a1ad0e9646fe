"""Room shared out among tenants: a limit of one holds up no other, and memory stays bounded."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from fairlane import embed_aside
from fairlane.client import AsyncClient
from fairlane.embed_aside import Aside
from fairlane.embed_groups import Group, Work
from fairlane.embed_lanes import HELD_UP_S, Lane, Lanes
from tests.support import virtual_time


class Client:
    """Only tells of its limit."""

    def __init__(self) -> None:
        self.until_s = 0.0

    def limited_s(self, endpoint: str) -> float:
        return max(0.0, self.until_s - asyncio.get_running_loop().time())


class Room:
    """Lanes of tenants; a group is under way until the test ends it."""

    def __init__(self, folder: Path, tenants: str, *, has_tenant: bool = True) -> None:
        self.under_way: list[tuple[Lane, Group]] = []
        self.sent: list[int] = []
        self.lanes = Lanes("embed", 8, folder, self._start, has_tenant=has_tenant)
        self.clients = {tenant: Client() for tenant in tenants}
        self.of = {
            tenant: self.lanes.open(tenant, cast("AsyncClient", client))
            for tenant, client in self.clients.items()
        }

    def _start(self, lane: Lane, group: Group) -> None:
        self.under_way.append((lane, group))
        self.sent.append(group.rows[0].number)

    def end(self, *tenants: str) -> None:
        """End all groups of these that are under way now."""
        ended = [pair for pair in self.under_way if pair[0].tenant in tenants]
        for pair in ended:
            self.under_way.remove(pair)
            self.lanes.done(pair[0])

    def held(self) -> Counter[str]:
        return Counter(lane.tenant for lane, _ in self.under_way)


def group(tenant: str, number: int) -> Group:
    return Group(tenant, (Work(number, f"id{number}", f"text {number}", b"digest"),))


def interleaved(tenants: str, count: int) -> Iterator[Group]:
    return (group(tenants[n % len(tenants)], n) for n in range(count))


async def put_all(room: Room, groups: Iterator[Group]) -> None:
    for each in groups:
        await room.lanes.put(room.of[each.tenant], each)


async def end_until(room: Room, reading: asyncio.Task[None], tenants: str) -> None:
    while not reading.done() or any(lane.tenant in tenants for lane, _ in room.under_way):
        room.end(*tenants)
        await asyncio.sleep(0.1)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_others_go_on_while_one_is_at_its_limit_and_then_it_gets_its_turn(tmp_path: Path) -> None:
    async def story() -> None:
        room = Room(tmp_path, "abc")
        room.clients["a"].until_s = now() + 3_600
        reading = asyncio.create_task(put_all(room, interleaved("abc", 300)))
        await end_until(room, reading, "bc")
        assert now() < 1_600
        assert {n % 3 for n in room.sent[-150:]} == {1, 2}
        assert room.held() == {"a": 8}  # alone at last: the room is all its own
        assert "tenant a" in room.lanes.waits_for()
        room.clients["a"].until_s = 0.0
        draining = asyncio.create_task(room.lanes.drain())
        while not draining.done():
            room.end("a")
            await asyncio.sleep(0.1)
        assert [n for n in room.sent if n % 3 == 0] == list(range(0, 300, 3))  # in order
        assert sorted(room.sent) == list(range(300))
        assert room.lanes.waits_for() == ""
        room.lanes.close()

    virtual_time.run(story())


def test_a_limit_that_is_met_with_all_the_room_taken_leaves_room_for_others(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        room = Room(tmp_path, "ab")
        await put_all(room, (group("a", n) for n in range(8)))
        reading = asyncio.create_task(
            put_all(room, (group("a" if n < 50 else "b", n) for n in range(8, 100)))
        )
        await asyncio.sleep(5)
        assert room.sent == list(range(8))  # reading waits: nobody is held up
        room.clients["a"].until_s = now() + 3_600
        await asyncio.sleep(5)
        assert room.held() == {"a": 8, "b": 4}
        await end_until(room, reading, "b")
        assert [n for n in room.sent if n >= 50] == list(range(50, 100))
        room.lanes.close()

    virtual_time.run(story())


def test_nobody_has_more_than_its_share_while_held_up(tmp_path: Path) -> None:
    async def story() -> None:
        room = Room(tmp_path, "ab")
        room.clients["a"].until_s = now() + 1
        await put_all(room, interleaved("ab", 8))
        reading = asyncio.create_task(put_all(room, interleaved("ab", 100)))
        await asyncio.sleep(1)
        for _ in range(20):  # the limit is over, but it has been held up a moment ago
            assert room.held()["a"] <= 4
            room.end("a")
            await asyncio.sleep(HELD_UP_S / 100)
        reading.cancel()
        room.lanes.close()

    virtual_time.run(story())


def test_with_one_tenant_the_source_is_not_read_ahead(tmp_path: Path) -> None:
    async def story() -> None:
        room = Room(tmp_path, "a", has_tenant=False)
        room.clients["a"].until_s = now() + 60
        reading = asyncio.create_task(put_all(room, interleaved("a", 30)))
        await asyncio.sleep(30)
        assert not reading.done()
        assert room.held() == {"a": 8}
        assert not room.of["a"].aside
        reading.cancel()

    virtual_time.run(story())


def test_what_is_set_aside_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed_aside, "GROUPS_MAX", 10)

    async def story() -> None:
        room = Room(tmp_path, "ab")
        room.clients["a"].until_s = now() + 3_600
        reading = asyncio.create_task(put_all(room, interleaved("ab", 100)))
        for _ in range(100):
            room.end("b")
            await asyncio.sleep(0.1)
        assert not reading.done()
        assert len(room.of["a"].aside) == 10
        room.end("a")
        await asyncio.sleep(1)
        assert 0 < len(room.of["a"].aside) <= 10
        assert len([n for n in room.sent if n % 2 == 0]) > 8
        reading.cancel()
        room.lanes.close()

    virtual_time.run(story())


def test_what_is_set_aside_comes_back_as_it_was_and_leaves_no_file(tmp_path: Path) -> None:
    aside = Aside(tmp_path)
    groups = [group("a", n) for n in range(100)]
    numbers = [aside.put(each) for each in groups]
    assert list(tmp_path.iterdir()) == []
    assert [aside.take(number) for number in numbers] == groups
    aside.close()


def test_a_place_that_can_not_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.Error):
        Aside(tmp_path / "nowhere").put(group("a", 1))
