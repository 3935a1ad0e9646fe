"""Topics cut off or made again under a scheduler: it stops, and says where and what to do.

Each damage is done to a deployment that has served a request and holds another. What must not
come is a shard that goes on and passes over what callers were told is accepted.
"""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from scheduler.recovery import RecoveryError
from scheduler.shard import FRONTIER_MS, Shard
from schemas import unended
from schemas.topics import Topics
from tests.support.lanes import ManualClock
from tests.support.processes import DEADLINE_S, Processes
from tests.support.schedulers import Deployment

WAY_OUT = "another FAIRLANE_PREFIX"
HALTED = 4


@pytest.fixture
def deployment(kafka_bootstrap: str) -> Iterator[Deployment]:
    """A request has ended, two wait, a snapshot stands between them; frontiers are committed."""
    found = Deployment(kafka_bootstrap, f"lost-{uuid4().hex[:8]}")
    clock = found.clock = ManualClock(found.clock.now_ms())
    shard = found.running()
    found.submit("ended", deadline_ms=1)
    found.submit("live")
    found.until(lambda: list(shard.state.ids) == ["live"], shard)
    clock.advance(FRONTIER_MS)
    shard.turn(0.0)
    shard.write_snapshot()
    found.submit("after the snapshot")
    found.quiet(shard)
    shard.close()
    yield found
    found.close()


def requests_cut_off(deployment: Deployment) -> str:
    topic, number = deployment.requests
    deployment.log.delete_records({(topic, number): 2})
    return rf"{re.escape(topic)}\[{number}\]: offsets 1\.\.2 are needed, the log holds 2\.\.3"


def requests_recreated(deployment: Deployment) -> str:
    topic = deployment.requests[0]
    recreate(deployment, topic)
    return rf"topic {re.escape(topic)} was deleted or recreated"


def decisions_cut_off_above_the_snapshot(deployment: Deployment) -> str:
    return cut_off(deployment, spared=2)  # the last decision, and the marker that follows it


def decisions_cut_off(deployment: Deployment) -> str:
    return cut_off(deployment, spared=0)


def cut_off(deployment: Deployment, spared: int) -> str:
    """Delete the decisions but for the last offsets."""
    decisions = (deployment.topics.decisions, 0)
    with closing(deployment.log.reader()) as reader:
        low = reader.bounds(decisions).end - spared
    deployment.log.delete_records({decisions: low})
    return rf"{re.escape(decisions[0])}\[0\] begins at offset {low} and holds no snapshot"


def decisions_recreated(deployment: Deployment) -> str:
    decisions, requests = deployment.topics.decisions, deployment.requests[0]
    recreate(deployment, decisions)
    return rf"{re.escape(decisions)}\[0\] is empty, yet {re.escape(requests)}\[0\] was scheduled"


def recreate(deployment: Deployment, topic: str) -> None:
    """Delete a topic and make an empty one of its name and shape."""
    deployment.log.delete_topic(topic)
    specs = Topics(deployment.topics.prefix).of(deployment.policy)
    deployment.log.ensure_topics([spec for spec in specs if spec.name == topic])


def test_a_damaged_log_stops_the_shard_with_its_place_and_the_way_out(
    deployment: Deployment,
) -> None:
    """One damage on top of the other; each is met before those that came earlier."""
    for damage in (
        requests_cut_off,
        decisions_cut_off_above_the_snapshot,
        decisions_cut_off,
        decisions_recreated,
    ):
        expected = damage(deployment)
        shard = deployment.shard()
        with pytest.raises(RecoveryError, match=expected) as stopped:
            shard.take_over()
        assert WAY_OUT in str(stopped.value)
        assert not shard.ready


def test_a_shard_stops_when_what_it_has_not_read_is_cut_off(deployment: Deployment) -> None:
    first = deployment.running()
    for offset in (1, 2):
        deployment.cancel(offset)
    deployment.until(lambda: not first.state.ids, first)
    first.write_snapshot()
    first.close()
    deployment.submit("never read")
    deployment.log.delete_records({deployment.requests: 4})
    shard = deployment.shard()
    shard.take_over()
    assert "position 3 is outside of the log, which holds 4..4" in stopped(deployment, shard)


def stopped(deployment: Deployment, shard: Shard) -> str:
    """Turn a shard until it stops; its message names the topic and the way out."""
    with pytest.raises(RecoveryError, match=WAY_OUT) as error:
        deployment.until(lambda: False, shard)
    assert f"{deployment.requests[0]}[0]" in str(error.value)
    return str(error.value)


def test_recreated_requests_stop_a_running_shard_and_end_a_process_as_halted(
    deployment: Deployment, tmp_path: Path
) -> None:
    shard = deployment.running()
    expected = requests_recreated(deployment)
    assert "position 3 is outside of the log, which holds 0..0" in stopped(deployment, shard)
    shard.close()
    processes = Processes(tmp_path, deployment.env)
    try:
        scheduler = processes.start("scheduler", "--instance", "one")
        assert scheduler.process.wait(DEADLINE_S) == HALTED, scheduler.text()
    finally:
        processes.close()
    note = scheduler.noted("halted")
    assert note is not None
    assert re.search(expected, note["detail"])
    assert WAY_OUT in note["detail"]


def test_a_shard_is_not_continued_while_a_transaction_in_its_decisions_has_no_end(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As brokers leave it that forget an end; ended by whatever means, the shard goes on."""
    monkeypatch.setattr(unended, "LOOK_S", 0.0)
    decisions = (deployment.topics.decisions, 0)
    with closing(deployment.log.reader()) as reader:
        start = reader.bounds(decisions).end
    lost = deployment.log.transactional("whose end is lost")
    lost.init()
    lost.begin()
    lost.send(*decisions, b"")
    deployment.until(lambda: deployment.open_end(decisions[0]) > start)
    shard = deployment.shard()
    with pytest.raises(RecoveryError, match="has no end") as stopped:
        shard.take_over()
    assert f"abort with --topic {decisions[0]} --partition 0 --start-offset {start}" in str(
        stopped.value
    )
    assert not shard.ready
    lost.abort()
    shard.take_over()
    assert shard.ready
