"""Whatever a record holds and however much comes at once, the shard goes on."""

from typing import Any

import pytest

from scheduler.core.cycle import Inputs
from scheduler.publish import decision_of
from schemas.codec import HEADER, decode_header, encode, header
from schemas.log import RECORD_BYTES_MAX, Record
from schemas.policy import encode_policy
from schemas.records import VERSION, Dead, Request
from simulation.world import Arrival, Workers, World
from tests.support.core import NOW_MS, Core, ended
from tests.support.policies import embed_policy

DEEP = b"\x91" * 5_000 + b"\x01"


def world() -> World:
    made = World(embed_policy(), [Workers("embed", 1, 1), Workers("chat", 1, 1)])
    made.settle()
    return made


def read(made: World, topic: str) -> list[Record]:
    reader = made.log.reader()
    reader.assign({(topic, 0): 0})
    return reader.poll(10_000, 0.0)


def still_serves(made: World) -> None:
    wanted = made.submit(Arrival(0, "acme", "embed", "gold", b"x"))
    made.run()
    ends = {served.result.id: served.result.end for served in made.served}
    assert ends[wanted] == "succeeded"
    made.crash_scheduler()
    made.submit(Arrival(0, "acme", "embed", "gold", b"y"))
    made.run()
    assert made.served[-1].result.end == "succeeded"


def request_headers(made: World, **fields: Any) -> list[tuple[str, bytes]]:
    meta: dict[str, Any] = {"id": "poison", "tenant": "acme", "endpoint": "embed", **fields}
    return header(Request(v=VERSION, **meta))


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([], "unreadable"),
        ([(HEADER, b"\x00garbage")], "unreadable"),
        ([(HEADER, DEEP)], "unreadable"),
        ([(HEADER, encode(Request(v=99, id="a", tenant="acme", endpoint="embed")))],
         "unknown_version"),
    ],
)  # fmt: skip
def test_a_request_that_can_not_be_read_is_in_dead(
    headers: list[tuple[str, bytes]], reason: str
) -> None:
    made = world()
    made._producer.send(made.topics.requests("gold"), 0, b"body", headers=headers)
    still_serves(made)
    (record,) = read(made, made.topics.dead)
    dead = decode_header(record, Dead)
    assert (dead.topic, dead.offset, dead.reason) == (made.topics.requests("gold"), 0, reason)
    assert record.value == b"body"


def test_a_request_too_large_for_dead_is_named_there_without_its_body() -> None:
    made = world()
    headers = request_headers(made, endpoint="nowhere")
    room = RECORD_BYTES_MAX - sum(len(name) + len(value) for name, value in headers)
    made._producer.send(made.topics.requests("gold"), 0, b"x" * room, headers=headers)
    made.submitted += 1
    still_serves(made)
    (record,) = read(made, made.topics.dead)
    assert record.value == b""
    assert decode_header(record, Dead).reason == "unknown_endpoint"
    assert "unknown_endpoint" in {served.result.reason for served in made.served}


def test_metadata_counts_towards_the_size_of_a_request() -> None:
    made = world()
    headers = request_headers(made, id="i" * 600_000)
    made._producer.send(made.topics.requests("gold"), 0, b"x" * 300_000, headers=headers)
    made.submitted += 1
    still_serves(made)
    assert made.served[0].result.reason == "never_fits"


@pytest.mark.parametrize("topic", ["control", "workers", "policy"])
@pytest.mark.parametrize("value", [b"", b"\x00garbage", DEEP, b"x" * 999_000])
def test_garbage_in_an_input_by_value(topic: str, value: bytes) -> None:
    made = world()
    names = {
        "control": made.topics.control,
        "workers": made.topics.workers("embed"),
        "policy": made.topics.policy,
    }
    made._producer.send(names[topic], 0, value)
    still_serves(made)
    assert any(event in ("unreadable", "fault") for event, _ in made.silence.warnings)


def test_a_decision_never_outgrows_a_record() -> None:
    """40,000 requests that all can't meet their deadline any more, then a tenant removed."""
    core = Core(embed_policy(service_ms=10_000, batch_wait_ms=0), slots=0)
    late = [core.request("acme", deadline_ms=NOW_MS + 60_000) for _ in range(40_000)]
    core.take(*late)
    core.now_ms += 55_000
    finished = 0
    cycle = core.say("embed", 0)
    from schemas.records import Seen

    cycle = core.say("embed", 0, Seen(VERSION, 1))
    while cycle.steps:
        assert len(encode(decision_of(core.state, cycle))) < RECORD_BYTES_MAX
        finished += len(cycle.ended)
        cycle = core.cycle()
    assert finished == 40_000
    core.take(*[core.request("acme") for _ in range(4)])
    many = [core.request("globex", "gold") for _ in range(40_000)]
    core = Core(embed_policy(batch_wait_ms=60_000, batch_requests=2_000), slots=0)
    core.take(*many)
    without = embed_policy(tenants={"acme": 1}, version=2, batch_wait_ms=60_000)
    cycle = core.cycle(Inputs(policies=[encode_policy(without)]))
    finished = 0
    while cycle.steps:
        assert len(encode(decision_of(core.state, cycle))) < RECORD_BYTES_MAX
        finished += len(cycle.ended)
        cycle = core.cycle()
    assert finished == 40_000


def test_a_cancel_of_the_retry_that_is_read_before_it_ends_the_first() -> None:
    core = Core(embed_policy(batch_wait_ms=60_000))
    core.take(core.request("acme", id="same"))
    core.cancel("standard", 1)
    cycle = core.take(core.request("acme", id="same"))
    assert ended(cycle) == [("same", "cancelled")]
    assert not core.state.cancels["requests.standard", 0]


def test_indexes_do_not_grow_with_what_has_ended() -> None:
    """One request starves below an urgent stream: what is kept is of its size, not the stream's."""
    core = Core(embed_policy(batch_requests=4, batch_wait_ms=0))
    core.take(*[core.request("acme", "standard") for _ in range(40)])
    for _ in range(400):
        core.finish(core.take(*[core.request("globex", "gold") for _ in range(16)]))
    state = core.state
    live = len(state.ids)
    pool = state.pools["embed"]
    assert sum(len(bucket) for bucket in state.timers.values()) <= 257 + 2 * live
    for ring in pool.rings.values():
        for queue in ring.queues.values():
            assert len(queue.heap) <= 256 + 2 * live


def test_retention_that_takes_all_of_a_quiet_topic_is_no_loss() -> None:
    made = world()
    still_serves(made)
    made.scheduler.shards[0].write_snapshot()
    for topic in made.log.topics():
        if "workers" in topic or "requests" in topic:
            made.log.delete_records({(topic, 0): made.log.reader().bounds((topic, 0)).end})
    still_serves(made)


def test_an_idle_shard_writes_snapshots_too() -> None:
    made = world()
    still_serves(made)
    made.scheduler.shards[0].write_snapshot()
    before = made.log.reader().bounds((made.topics.decisions, 0)).end
    made.clock.move_to(made.clock.now_ms() + 3_600_001)
    made.settle()
    after = made.log.reader().bounds((made.topics.decisions, 0)).end
    assert after > before
    made.log.delete_records({(made.topics.decisions, 0): before})
    still_serves(made)
