"""Membership: who holds which partition, and how it changes hands."""

import pytest

from schemas.log import FencedError, Membership
from tests.contract.harness import POLL_S, Harness, settle, until


def _until_held(
    members: dict[str, Membership], held: dict[str, set[int]], count: int, most: int
) -> None:
    """Poll the members until they hold all partitions among them, evenly, each one once."""

    def is_shared_out() -> bool:
        settle(members, held)
        taken = [number for name in members for number in held[name]]
        assert len(taken) == len(set(taken)), f"a partition is held twice: {held}"
        return len(taken) == count and max(len(held[name]) for name in members) <= most

    until(is_shared_out, f"{count} partitions held by {list(members)}, at most {most} each")


def test_two_members_share_and_take_over(harness: Harness) -> None:
    topic, group = harness.topic(5), harness.fresh("group")
    held: dict[str, set[int]] = {"one": set(), "two": set()}
    members = {"one": harness.membership(group, topic)}
    _until_held(members, held, 5, 5)
    members["two"] = harness.membership(group, topic)
    _until_held(members, held, 5, 3)
    kept = set(held["two"])
    members.pop("one").close()
    _until_held(members, held, 5, 5)
    assert kept <= held["two"]


def test_more_members_than_partitions_leave_one_waiting(harness: Harness) -> None:
    topic, group = harness.topic(1), harness.fresh("group")
    held: dict[str, set[int]] = {"one": set(), "two": set()}
    members = {"one": harness.membership(group, topic)}
    _until_held(members, held, 1, 1)
    members["two"] = harness.membership(group, topic)
    for _ in range(20):
        settle(members, held)
    assert held == {"one": {0}, "two": set()}
    members.pop("one").close()
    _until_held(members, held, 1, 1)


def test_a_static_instance_takes_over_at_once(harness: Harness) -> None:
    topic, group = harness.topic(3), harness.fresh("group")
    held: dict[str, set[int]] = {"old": set(), "new": set(), "other": set()}
    members = {
        "old": harness.membership(group, topic, "a"),
        "other": harness.membership(group, topic, "b"),
    }
    _until_held(members, held, 3, 2)
    before = dict(held)
    old = members.pop("old")
    members["new"] = harness.membership(group, topic, "a")
    _until_held(members, held, 3, 2)
    assert held["new"] == before["old"]
    assert held["other"] == before["other"]
    with pytest.raises(FencedError, match="a"):
        until(lambda: old.poll(POLL_S) is not None, "the old instance is told")


def test_a_static_instance_that_closed_comes_back_to_its_partitions(harness: Harness) -> None:
    topic, group = harness.topic(2), harness.fresh("group")
    held: dict[str, set[int]] = {"old": set(), "new": set(), "other": set()}
    members = {
        "old": harness.membership(group, topic, "a"),
        "other": harness.membership(group, topic, "b"),
    }
    _until_held(members, held, 2, 1)
    before = dict(held)
    members.pop("old").close()
    members["new"] = harness.membership(group, topic, "a")
    _until_held(members, held, 2, 1)
    assert held["new"] == before["old"]


def test_a_static_instance_that_leaves_hands_over(harness: Harness) -> None:
    """What it held is not kept for it; it may come again as another member."""
    topic, group = harness.topic(2), harness.fresh("group")
    held: dict[str, set[int]] = {"old": set(), "new": set(), "other": set()}
    members = {
        "old": harness.membership(group, topic, "a"),
        "other": harness.membership(group, topic, "b"),
    }
    _until_held(members, held, 2, 1)
    old = members.pop("old")
    old.leave()
    old.close()
    _until_held(members, held, 2, 2)
    assert held["other"] == {0, 1}
    held["old"] = set()
    members["new"] = harness.membership(group, topic, "a")
    _until_held(members, held, 2, 1)


def test_groups_do_not_see_each_other(harness: Harness) -> None:
    topic = harness.topic(2)
    held: dict[str, set[int]] = {"one": set(), "two": set()}
    for name in held:
        _until_held({name: harness.membership(harness.fresh("group"), topic)}, held, 2, 2)
    assert held == {"one": {0, 1}, "two": {0, 1}}
