"""Fencing: who called `init` last owns the id, whatever its predecessor still believes."""

import pytest

from schemas.log import Change, Commit, FencedError, TransactionalProducer
from tests.contract.harness import POLL_S, Harness, until


def _open(harness: Harness, transactional_id: str, topic: str) -> TransactionalProducer:
    """A holder with an open transaction whose one record is written."""
    everything = harness.reader(committed_only=False)
    written = everything.bounds((topic, 0)).end + 1
    holder = harness.transactional(transactional_id)
    holder.begin()
    holder.send(topic, 0, b"zombie")
    until(lambda: everything.bounds((topic, 0)).end == written, "the open record is written")
    return holder


def test_init_ends_the_open_transaction_of_the_predecessor(harness: Harness) -> None:
    topic, name = harness.topic(), harness.fresh("id")
    _open(harness, name, topic)
    heir = harness.transactional(name)
    assert harness.reader().bounds((topic, 0)) == (0, 2)
    heir.begin()
    heir.send(topic, 0, b"heir")
    heir.commit()
    assert harness.values((topic, 0)) == [b"heir"]


def test_init_lets_other_work_go_on_meanwhile(harness: Harness) -> None:
    """However much there is of it, and whatever it reads: the id is taken over all the same.

    It may be asked again after it had nothing to do.
    """
    topic, name = harness.topic(), harness.fresh("id")
    _open(harness, name, topic)
    reader = harness.reader()
    ends: list[int] = []

    def look() -> bool:
        ends.append(reader.bounds((topic, 0)).end)
        return len(ends) < 3

    heir = harness.log.transactional(name)
    heir.init(look)
    assert ends[0] == 0, "the predecessor's transaction is open at first"
    assert reader.bounds((topic, 0)) == (0, 2)
    heir.begin()
    heir.send(topic, 0, b"heir")
    heir.commit()
    heir.close()
    assert harness.values((topic, 0)) == [b"heir"]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_zombie_can_end_nothing(harness: Harness, end: str) -> None:
    topic, name = harness.topic(), harness.fresh("id")
    zombie = _open(harness, name, topic)
    heir = harness.transactional(name)
    heir.begin()
    heir.send(topic, 0, b"heir")
    with pytest.raises(FencedError, match=name):
        getattr(zombie, end)()
    heir.commit()
    assert harness.values((topic, 0)) == [b"heir"]


def test_a_zombie_that_begins_after_the_take_over_is_fenced(harness: Harness) -> None:
    topic, name, group = harness.topic(), harness.fresh("id"), harness.fresh("group")
    zombie = harness.transactional(name)
    heir = harness.transactional(name)
    with pytest.raises(FencedError, match=name):
        _whole_transaction(zombie, topic, group)
    heir.begin()
    heir.send(topic, 0, b"heir")
    heir.send_offsets(group, {(topic, 0): Commit(7, "heir")})
    heir.commit()
    assert harness.values((topic, 0)) == [b"heir"]
    assert harness.committed(group, (topic, 0)) == Commit(7, "heir")


@pytest.mark.parametrize("records", [1, 3])
def test_a_zombie_that_sends_records_alone_is_fenced(harness: Harness, records: int) -> None:
    topic, name = harness.topic(), harness.fresh("id")
    zombie = harness.transactional(name)
    harness.transactional(name)
    zombie.begin()
    for _ in range(records):
        zombie.send(topic, 0, b"zombie")
    with pytest.raises(FencedError, match=name):
        zombie.commit()
    assert harness.values((topic, 0)) == []


def _whole_transaction(holder: TransactionalProducer, topic: str, group: str) -> None:
    holder.begin()
    holder.send(topic, 0, b"zombie")
    holder.send_offsets(group, {(topic, 0): Commit(1, "zombie")})
    holder.commit()


def test_the_positions_of_a_zombie_are_gone(harness: Harness) -> None:
    topic, name, group = harness.topic(), harness.fresh("id"), harness.fresh("group")
    harness.reader().commit(group, {(topic, 0): Commit(4, "before")})
    zombie = harness.transactional(name)
    zombie.begin()
    zombie.send_offsets(group, {(topic, 0): Commit(5, "zombie")})
    harness.transactional(name)
    assert harness.committed(group, (topic, 0)) == Commit(4, "before")
    with pytest.raises(FencedError, match=name):
        zombie.commit()
    assert harness.committed(group, (topic, 0)) == Commit(4, "before")


def test_a_fenced_holder_may_come_back_with_init(harness: Harness) -> None:
    topic, name = harness.topic(), harness.fresh("id")
    first = _open(harness, name, topic)
    second = harness.transactional(name)
    with pytest.raises(FencedError):
        first.commit()
    first.init()
    first.begin()
    first.send(topic, 0, b"again")
    first.commit()
    with pytest.raises(FencedError):
        _whole_transaction(second, topic, harness.fresh("group"))
    assert harness.values((topic, 0)) == [b"again"]


def test_other_ids_are_not_touched(harness: Harness) -> None:
    topic = harness.topic()
    one = _open(harness, harness.fresh("id"), topic)
    harness.transactional(harness.fresh("id"))
    one.commit()
    assert harness.values((topic, 0)) == [b"zombie"]


def test_a_holder_that_lost_its_assignment_never_commits(harness: Harness) -> None:
    lanes, results, group = harness.topic(1), harness.topic(), harness.fresh("group")
    first = harness.membership(group, lanes, "lane-holder")
    until(lambda: first.poll(POLL_S) == Change((0,), ()), "the first holds the lane")
    name = f"{harness.name}.lane-0"
    loser = _open(harness, name, results)
    second = harness.membership(group, lanes, "lane-holder")
    until(lambda: second.poll(POLL_S) == Change((0,), ()), "the second holds the lane")
    heir = harness.transactional(name)
    with pytest.raises(FencedError, match=name):
        loser.commit()
    heir.begin()
    heir.send(results, 0, b"heir")
    heir.commit()
    assert harness.values((results, 0)) == [b"heir"]
