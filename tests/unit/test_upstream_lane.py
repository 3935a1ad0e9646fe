"""The engine `upstream` in a lane: batches come from the log, results go to the log."""

import json
from collections.abc import Iterator, Sequence

import pytest

from schemas.codec import header, join
from schemas.records import VERSION, Batch, End, Finished, Item
from tests.support.lanes import POOL, LaneWorld
from tests.support.upstreams import Upstream, chat, until, upstream
from workers.lane import Lane
from workers.slots import ThreadSlots


@pytest.fixture
def up() -> Iterator[Upstream]:
    with upstream() as made:
        yield made


class World(LaneWorld):
    """A lane whose slots call the server; time is that of the engine's pauses."""

    def __init__(self, up: Upstream, slots: int) -> None:
        super().__init__()
        self.slots = ThreadSlots(up.engine, slots, self.clock)
        self.lane = Lane(
            self.log, self.names(), self.slots, self._advice, self.clock, self.meter, self.notes
        )
        self._lanes.append(self.lane)
        self.turn()

    def turn(self) -> bool:
        while self.lane.turn():
            pass
        return True

    def send_bodies(self, bodies: Sequence[object], deadline_ms: int = 0) -> Batch:
        self.numbers += 1
        data = [json.dumps(body).encode() for body in bodies]
        items = tuple(
            Item(
                self.numbers * 100 + index,
                f"r-{self.numbers}-{index}",
                "acme",
                "chat",
                0,
                len(body),
                self.clock.now_ms(),
                deadline_ms,
                10,
            )
            for index, body in enumerate(data)
        )
        batch = Batch(VERSION, 0, self.numbers, POOL, self.clock.now_ms(), items)
        self.send(join(data), header(batch))
        return batch

    def wait_for(self, results: int) -> dict[str, tuple[str, str, str]]:
        """Turn until so many have ended: end, reason and detail by id."""

        def has_all() -> bool:
            self.turn()
            return len(self.results()) >= results

        until(has_all)
        self.ends()  # nothing ended twice
        return {r.id: (r.end.value, r.reason, r.detail) for r, _ in self.results()}


def test_each_request_has_one_result_with_its_name_and_usage(up: Upstream) -> None:
    world = World(up, slots=4)
    for script in ("ok", "500,ok", "500", "400"):
        world.send_bodies([chat(f"script:{script}", stream=True)])
    ended = world.wait_for(4)
    assert ended == {
        "r-1-0": ("succeeded", "", ""),
        "r-2-0": ("succeeded", "", ""),
        "r-3-0": ("failed", "engine_failed", "after 3 tries: 500: scripted 500"),
        "r-4-0": ("failed", "engine_refused", "400: scripted 400"),
    }
    charged = {result.id: result.usage.tokens > 0 for result, _ in world.results()}
    assert charged == {"r-1-0": True, "r-2-0": True, "r-3-0": False, "r-4-0": False}
    assert sum(isinstance(said, Finished) for said in world.said()) == 4
    world.close()


def test_a_lane_at_a_closed_gate_has_no_free_slot(up: Upstream) -> None:
    """While the server's 429 holds, slots stay taken: the scheduler has no room to send to."""
    world = World(up, slots=2)
    is_open: list[bool] = []
    up.clock.on_wait = lambda: until(lambda: bool(is_open))
    for _ in range(2):
        world.send_bodies([chat("script:429=1,ok")])
    until(lambda: world.turn() and len(up.acts) >= 1)
    assert world.slots.free == 0
    assert world.results() == []
    is_open.append(True)
    assert set(world.wait_for(2).values()) == {("succeeded", "", "")}
    until(lambda: world.turn() and world.slots.free == 2)
    world.close()


def test_a_cancel_through_the_log_hangs_up(up: Upstream) -> None:
    world = World(up, slots=1)
    batch = world.send_bodies([chat("script:hang")])
    until(lambda: world.turn() and up.acts == ["hang"])
    world.cancel(batch, 0)
    assert world.wait_for(1) == {"r-1-0": ("cancelled", "cancelled", "")}
    until(lambda: up.server.gone == 1)
    world.close()


def test_a_batch_of_texts_is_one_call_and_one_result_each(up: Upstream) -> None:
    world = World(up, slots=1)
    world.send_bodies(["one", ["two", "three"], "script:400"])
    ended = world.wait_for(3)
    assert [end for end, _, _ in ended.values()].count("succeeded") == 2
    assert ended["r-1-2"] == ("failed", "engine_refused", "400: scripted 400")
    world.close()


def test_a_wait_without_a_call_is_no_service(up: Upstream) -> None:
    """One request's 429 holds the other at the gate until its deadline: nothing was served."""
    world = World(up, slots=2)
    up.clock.on_wait = lambda: world.clock.advance(100)
    late = up.run(chat("script:429=50"), deadline_ms=up.clock.now_ms() + 1_000)
    assert late.end is End.EXPIRED
    world.send_bodies([chat("hi")], deadline_ms=up.clock.now_ms() + 5_000)
    assert world.wait_for(1) == {"r-1-0": ("expired", "deadline", "")}
    assert len(up.acts) == 1
    (result,) = [result for result, _ in world.results()]
    assert result.usage.service_ms == 0
    world.close()
