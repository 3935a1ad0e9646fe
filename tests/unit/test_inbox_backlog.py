"""What is read ahead of inboxes: a share for each, in turns, and no more than memory has."""

from producers.inbox_backlog import PROCESS_BYTES_MAX, Backlog
from schemas.log import Partition, Record


def parts(count: int) -> list[Partition]:
    return [(f"inbox.{number}", 0) for number in range(count)]


def put(backlog: Backlog, part: Partition, count: int, size: int = 100) -> None:
    for offset in range(count):
        backlog.put(Record(*part, offset, 0, None, bytes(size), ()))


def cycle(backlog: Backlog) -> list[Partition]:
    """Takes a cycle's shares; returns whose they were."""
    shares = backlog.shares(0)
    for part, records in shares:
        backlog.done(part, len(records))
    return [part for part, _ in shares]


def test_among_many_each_is_served_again_before_any_is_served_twice() -> None:
    inboxes = parts(200)
    backlog = Backlog(inboxes)
    for part in inboxes:
        put(backlog, part, 400)
    last: dict[Partition, int] = {}
    for number in range(60):
        served = cycle(backlog)
        assert all(number - last.get(part, number) in {0, 20} for part in served)
        last |= dict.fromkeys(served, number)
    assert last.keys() == set(inboxes)


def test_a_light_inbox_among_heavy_ones_is_served_once_a_round() -> None:
    inboxes = parts(100)
    backlog = Backlog(inboxes)
    waits = []
    for number in range(300):
        for part in inboxes[1:]:
            put(backlog, part, 20 if number == 0 else 0)
        if number % 15 == 0:
            put(backlog, inboxes[0], 1)
            came = number
        served = cycle(backlog)
        for part in served:
            if part != inboxes[0]:
                put(backlog, part, 20)
        if inboxes[0] in served:
            waits.append(number - came)
    assert len(waits) == 20
    assert max(waits) <= 10, "cycles of ten inboxes each"


def test_inboxes_are_read_ahead_to_their_part_of_the_process_s_memory() -> None:
    inboxes = parts(1_000)
    backlog = Backlog(inboxes)
    size = PROCESS_BYTES_MAX // 2_000
    for part in inboxes:
        put(backlog, part, 1, size)
    assert backlog.paused(0, backlog.crowd()) == set()
    for part in inboxes[:500]:
        put(backlog, part, 1, size)
    assert backlog.paused(0, backlog.crowd()) == set(inboxes[:500])
    assert backlog.paused(0, 1) == set(), "alone, the same is little"


def test_what_a_record_has_in_headers_is_read_ahead_as_well() -> None:
    [part] = parts(1)
    backlog = Backlog([part])
    headers = (("x", bytes(900_000)),)
    for offset in range(3):
        backlog.put(Record(*part, offset, 0, None, b"", headers))
    assert backlog.paused(0) == {part}
    backlog.done(part, 3)
    assert backlog.paused(0) == set()
    assert backlog.crowd() == 0
