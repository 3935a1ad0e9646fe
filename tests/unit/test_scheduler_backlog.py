"""What the scheduler publishes of its backlog, read from the board as an ingress would."""

from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from adapters.memory_backlog import MemoryBoard
from scheduler.backlog import EVERY_MS, IDLE_MS, QUEUES_MAX, Backlog
from scheduler.core.cycle import Inputs
from scheduler.core.decided import BatchOut, Cycle
from scheduler.core.snapshot import dump
from scheduler.pace import FIRST_MS, OLD_MS, SILENT_MS
from schemas.backlog import RATE_MS, PoolBacklog, QueueRow, QueueSlice, head_of, slice_name
from schemas.codec import decode_bytes
from schemas.policy import CostModel, Endpoint, Policy, Pool, Tenant, Tier
from schemas.records import VERSION, Finished, Seen
from tests.support.core import Core


def policy(*names: str, lanes: int = 1, parent: str = "", **endpoint: Any) -> Policy:
    settings: dict[str, Any] = {"cost": CostModel.TOKEN, "batch_wait_ms": 0} | endpoint
    tenants = [Tenant(name=name, tiers=("gold", "batch"), parent=parent) for name in names]
    if parent:
        tenants.append(Tenant(name=parent, tiers=("gold",), weight=7))
    return Policy(
        tiers=(Tier(name="gold"), Tier(name="batch", floor=10)),
        pools=(Pool(name="embed", lanes=lanes, prefetch=0),),
        endpoints=(Endpoint(name="embed", pool="embed", **settings),),
        tenants=tuple(tenants),
    )


class Shown:
    """A core with the reader beside it, as a shard has it."""

    def __init__(self, the_policy: Policy) -> None:
        self.core, self.board = Core(the_policy), MemoryBoard()
        self.backlog = Backlog(self.board)
        self.turn()

    def turn(self, cycle: Cycle | None = None, said: Any = (), after_ms: int = EVERY_MS) -> None:
        """Time passes, then the look that a shard has after a cycle."""
        self.core.now_ms += after_ms
        batches = cycle.batches if cycle else ()
        self.backlog.turn(self.core.state, said, batches, self.core.now_ms)

    def finish(self, cycle: Cycle, after_ms: int) -> Cycle:
        """All batches of a cycle end after so long; what is sent then is told."""
        self.core.now_ms += after_ms
        next_cycle = self.core.finish(cycle)
        said = [(b.pool, b.lane, Finished(VERSION, b.number, ())) for b in cycle.batches]
        self.turn(next_cycle, said, after_ms=0)
        return next_cycle

    @property
    def head(self) -> PoolBacklog:
        return decode_bytes(self.board.values["embed"], PoolBacklog, "head")

    def rows(self) -> dict[tuple[int, str], QueueRow]:
        found = {}
        for index in range(len(self.head.stamps)):
            data = self.board.values[slice_name("embed", index)]
            for row in decode_bytes(data, QueueSlice, "slice").queues:
                found[row.tier, row.tenant] = row
        return found


def test_what_waits_of_each_tenant_in_each_tier_is_told() -> None:
    shown = Shown(policy("acme", "bolt"))
    core = shown.core
    core.take(core.request("bolt", "gold"))  # it is picked at once
    core.take(core.request("acme", "gold", tokens=70, priority=3))
    core.take(core.request("acme", "gold", tokens=30), core.request("bolt", "batch", tokens=500))
    shown.turn()
    rows, (gold, batch) = shown.rows(), shown.head.tiers
    assert set(rows) == {(0, "acme"), (1, "bolt")}
    acme = rows[0, "acme"]
    assert (acme.count, acme.tokens, acme.work, acme.weight) == (2, 100, 100, 1)
    assert acme.head == head_of(3, 0)
    assert (gold.count, gold.work, batch.count, batch.work) == (2, 100, 1, 500)
    assert [(work, weight) for _, work, weight in gold.levels] == [(100, 1)]
    assert (gold.floor, batch.floor) == (0, 10)


def test_a_family_is_one_member_of_its_ring() -> None:
    shown = Shown(policy("kid", "sis", parent="home"))
    core = shown.core
    core.take(core.request("kid", "gold"), core.request("kid", "gold", tokens=40))
    core.take(core.request("sis", "gold", tokens=60))
    shown.turn()
    assert [(work, weight) for _, work, weight in shown.head.tiers[0].levels] == [(100, 7)]
    assert {row.tenant for row in shown.rows().values()} == {"kid", "sis"}


def test_a_paused_tenant_is_told_but_nobody_waits_for_it() -> None:
    shown = Shown(policy("acme", "bolt"))
    core = shown.core
    core.take(core.request("bolt", "gold"))
    core.take(core.request("acme", "gold"))
    core.state.pools["embed"].uses["acme"].is_paused = True
    shown.turn()
    assert (0, "acme") in shown.rows()
    assert shown.head.tiers[0].work == 0


def test_the_rate_is_that_of_all_slots_however_few_are_busy() -> None:
    shown = Shown(policy("acme", lanes=4))
    core = shown.core
    for _ in range(30):
        cycle = core.take(core.request("acme", "gold", tokens=100))
        shown.turn(cycle, after_ms=0)
        shown.finish(cycle, after_ms=500)
    assert shown.head.rate == 4 * 200 * RATE_MS // 1_000  # 100 tokens in 500 ms, four times
    assert shown.head.service_ms == 500
    assert shown.head.spread_ms < 20


def test_a_batch_that_waits_in_its_lane_does_not_count_as_slow_work() -> None:
    the_policy = policy("acme")
    pools = (Pool(name="embed", lanes=1, prefetch=2),)
    shown = Shown(Policy(**{**_fields(the_policy), "pools": pools}))
    core = shown.core
    cycle = core.take(*(core.request("acme", "gold") for _ in range(3)))
    assert len(cycle.batches) == 3
    shown.turn(cycle, after_ms=0)
    for batch in cycle.batches:
        shown.finish(Cycle(batches=[batch]), after_ms=400)
    shown.turn()
    assert shown.head.rate == 250 * RATE_MS // 1_000


def _fields(the_policy: Policy) -> dict[str, Any]:
    return {name: getattr(the_policy, name) for name in the_policy.__struct_fields__}


def test_the_residual_is_what_is_left_of_the_batch_that_ends_first() -> None:
    shown = Shown(policy("acme"))
    core = shown.core
    cycle = core.take(core.request("acme", "gold"))
    shown.turn(cycle, after_ms=0)
    cycle = core.take(core.request("acme", "gold"))
    cycle = shown.finish(core.cycle() if cycle.batches else _first(core), after_ms=1_000)
    assert len(cycle.batches) == 1
    shown.turn(after_ms=300)
    assert (shown.head.room, shown.head.residual_ms, shown.head.running) == (0, 700, 1)
    shown.turn(after_ms=900)
    assert shown.head.residual_ms == 0


def _first(core: Core) -> Cycle:
    """The cycle that sent what runs: its batch as it stands in the state."""
    pool = core.state.pools["embed"]
    found = Cycle()
    for number, flight in pool.lanes[0].flights.items():
        found.batches.append(BatchOut("embed", 0, number, list(flight.lives)))
    return found


def test_what_was_taken_of_a_tier_lately_is_told_as_a_rate() -> None:
    shown = Shown(policy("acme", lanes=4))
    core = shown.core
    for _ in range(400):
        cycle = core.take(core.request("acme", "gold", tokens=100))
        shown.turn(cycle, after_ms=0)
        shown.finish(cycle, after_ms=EVERY_MS)
    per_s = shown.head.tiers[0].taken * 1_000 // RATE_MS
    assert 450 <= per_s <= 500  # 100 tokens five times a second
    assert shown.head.tiers[1].taken == 0


def test_a_lane_whose_worker_left_or_says_nothing_has_no_worker() -> None:
    shown = Shown(policy("acme", lanes=2))
    core = shown.core
    assert shown.head.lanes == 2
    core.say("embed", 1, Seen(VERSION, 0))
    shown.turn(None, [("embed", 1, Seen(VERSION, 0))])
    assert (shown.head.lanes, shown.head.slots) == (1, 1)
    cycle = core.take(core.request("acme", "gold"), core.request("acme", "gold"))
    shown.turn(cycle, after_ms=0)
    shown.finish(cycle, after_ms=100)
    shown.turn(after_ms=SILENT_MS - 1)
    assert shown.head.lanes == 1
    shown.turn(after_ms=EVERY_MS)
    assert (shown.head.lanes, shown.head.rate) == (0, 0)
    core.say("embed", 0, Seen(VERSION, 1))
    shown.turn(None, [("embed", 0, Seen(VERSION, 1))])
    assert shown.head.lanes == 1


def test_a_first_batch_that_takes_long_is_no_missing_worker() -> None:
    shown = Shown(policy("acme"))
    core = shown.core
    shown.turn(core.take(core.request("acme", "gold")), after_ms=0)
    shown.turn(after_ms=2 * SILENT_MS)
    assert (shown.head.lanes, shown.head.running) == (1, 1)
    shown.turn(after_ms=FIRST_MS)
    assert shown.head.lanes == 0


def test_what_was_measured_long_ago_is_forgotten_with_the_first_new_batch() -> None:
    shown = Shown(policy("acme"))
    core = shown.core
    for took_ms in (20_000, 20_000, 600):
        cycle = core.take(core.request("acme", "gold", tokens=600))
        shown.turn(cycle, after_ms=0)
        shown.finish(cycle, after_ms=took_ms)
        shown.turn(after_ms=OLD_MS + 1)
    assert shown.head.service_ms == 600
    assert shown.head.rate == RATE_MS


def test_batches_that_take_longer_than_what_is_old_are_averaged() -> None:
    shown = Shown(policy("acme"))
    core = shown.core
    for took_ms in (2 * OLD_MS, 4 * OLD_MS):
        cycle = core.take(core.request("acme", "gold"))
        shown.turn(cycle, after_ms=0)
        shown.finish(cycle, after_ms=took_ms)
    assert 2 * OLD_MS < shown.head.service_ms < 3 * OLD_MS


def test_batches_that_a_predecessor_sent_are_known_but_not_measured() -> None:
    shown = Shown(policy("acme"))
    core = shown.core
    cycle = core.take(core.request("acme", "gold"))
    shown.turn(after_ms=5_000)
    assert shown.head.running == 1
    shown.finish(cycle, after_ms=5_000)
    assert (shown.head.running, shown.head.rate) == (0, 0)


def test_looks_come_a_few_times_a_second_and_more_rarely_when_idle() -> None:
    shown = Shown(policy("acme"))
    seen = set()
    for _ in range(400):
        shown.turn(after_ms=10)
        seen.add(shown.head.at_ms)
    assert len(seen) <= 4_000 // IDLE_MS + 1
    shown.core.take(shown.core.request("acme", "gold"), shown.core.request("acme", "gold"))
    seen.clear()
    for _ in range(400):
        shown.turn(after_ms=10)
        seen.add(shown.head.at_ms)
    assert 4_000 // EVERY_MS - 2 <= len(seen) <= 4_000 // EVERY_MS + 1


def test_a_clock_that_is_set_back_does_not_stop_the_looks() -> None:
    shown = Shown(policy("acme"))
    shown.core.take(shown.core.request("acme", "gold"))
    shown.turn(after_ms=-3_600_000)
    assert shown.head.at_ms == shown.core.now_ms


@pytest.mark.parametrize("count", [QUEUES_MAX + 1, 3 * QUEUES_MAX])
def test_more_queues_than_one_look_takes_are_told_in_turn(count: int) -> None:
    names = [f"t{number}" for number in range(count)]
    shown = Shown(policy(*names))
    core = shown.core
    core.take(core.request("t0", "gold"), *(core.request(name, "gold") for name in names))
    sizes = []
    for _ in range(8):
        shown.turn(after_ms=2_000)
        sizes.append(len(shown.rows()))
    assert max(sizes) == count
    head = shown.head
    assert len(head.stamps) == -(-count // QUEUES_MAX)
    assert head.tiers[0].work == 100 * count
    assert sum(weight for _, _, weight in head.tiers[0].levels) == count


def test_many_pools_are_looked_at_in_turn_and_say_how_far_apart() -> None:
    pools, tenants = [f"p{number}" for number in range(6)], [f"t{n}" for n in range(QUEUES_MAX)]
    shown = Shown(
        replace(
            policy(*tenants),
            pools=tuple(Pool(name=name, prefetch=0) for name in pools),
            endpoints=tuple(Endpoint(name=name, pool=name) for name in pools),
        )
    )
    core = shown.core
    core.take(*(core.request(t, "gold", endpoint=name) for name in pools for t in tenants))
    told: dict[str, list[int]] = {name: [] for name in pools}
    end_ms = core.now_ms + 12_000
    while core.now_ms < end_ms:
        before = dict(shown.board.values)
        shown.turn(after_ms=20)
        new = [name for name in pools if shown.board.values.get(name) != before.get(name)]
        assert len(new) <= 1  # a cycle is held up by one of them at most
        for name in new:
            told[name].append(core.now_ms)
    head = decode_bytes(shown.board.values["p3"], PoolBacklog, "head")
    for moments in told.values():
        apart = [later - earlier for earlier, later in pairwise(moments[2:])]
        assert apart
        assert max(apart) <= head.every_ms * 3 // 2
    assert head.every_ms <= 2_000


def test_how_far_requests_were_read_is_told() -> None:
    shown = Shown(policy("acme"))
    core = shown.core
    core.take(core.request("acme", "gold"), core.request("acme", "gold"))
    shown.turn()
    read = {topic: position for topic, _, position in shown.head.read}
    assert list(read.values()) == [2]
    assert shown.head.every_ms == EVERY_MS


def test_a_round_goes_on_with_the_state_of_a_recovery() -> None:
    names = [f"t{number}" for number in range(2 * QUEUES_MAX)]
    shown, recovered = Shown(policy(*names)), Core(policy(*names))
    shown.core.take(*(shown.core.request(name, "gold") for name in names))
    shown.turn()  # a half of them
    recovered.now_ms = shown.core.now_ms
    recovered.take(recovered.request("t0", "gold"), recovered.request("t7", "gold"))
    shown.core = recovered
    for _ in range(2):
        shown.turn(after_ms=2_000)
    assert set(shown.rows()) == {(0, "t7")}
    assert shown.head.tiers[0].work == 100


def test_without_a_board_nothing_is_looked_at() -> None:
    core = Core(policy("acme"))
    Backlog().turn(core.state, [("nowhere", 9, Seen(VERSION, 1))], [], core.now_ms)


def test_records_of_a_pool_that_is_gone_are_passed_over() -> None:
    shown = Shown(policy("acme"))
    shown.turn(None, [("nowhere", 9, Seen(VERSION, 1)), ("embed", 9, Seen(VERSION, 1))])
    assert shown.head.lanes == 1


def test_looking_changes_nothing() -> None:
    looked, plain = Shown(policy("acme", "bolt")), Core(policy("acme", "bolt"))
    for core in (looked.core, plain):
        core.now_ms = 2_000_000
        core.take(*(core.request(name, "gold", tokens=50) for name in ("acme", "bolt") * 20))
    for _ in range(5):
        looked.turn(looked.core.cycle(Inputs()))
    looked.core.state.seq = plain.state.seq
    assert dump(looked.core.state) == dump(plain.state)
