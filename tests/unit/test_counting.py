"""What is counted of what workers say, and what is not."""

import pytest

from accounting.core.sums import GRACE_MS, KEPT_MS
from accounting.core.windows import DAY_MS, MINUTE_MS
from accounting.counting import Counting
from schemas.codec import DecodeError, decode_bytes, encode
from schemas.records import VERSION, End, Finished, HandedBack, Outcome, Seen, Started, Usage
from schemas.usage import UsageSum, Used, Window
from tests.support.accounting import BEFORE_MIDNIGHT_MS, finished, record

NOW_MS = BEFORE_MIDNIGHT_MS + 100 * DAY_MS
ACME = [("acme", "embed")]


class Book:
    """Counts one lane, storing after each record."""

    def __init__(self) -> None:
        self.stored: dict[bytes, bytes] = {}
        self.counting = Counting({"gpu": self.stored})
        self.costs: list[tuple[str, int]] = []
        self._offset = 0

    def say(self, value: bytes, timestamp_ms: int = 0, now_ms: int = NOW_MS) -> bool:
        self._offset += 2
        taken = self.counting.take("gpu", record(self._offset, value, 0, timestamp_ms), now_ms)
        changed = self.counting.slice()
        for key, total in changed.sums.get("gpu", {}).items():
            self.stored[key] = encode(total)
        self.costs += [(cost.tenant, cost.us_per_token) for cost in changed.costs]
        return taken

    def finish(self, ended_ms: int, now_ms: int = NOW_MS) -> None:
        self.say(encode(finished(1, ended_ms, ACME)), now_ms=now_ms)

    def sums(self, window: Window) -> dict[int, UsageSum]:
        found = [decode_bytes(value, UsageSum, "stored") for value in self.stored.values()]
        return {total.start_ms: total for total in found if total.window is window}

    def total(self) -> UsageSum:
        return self.sums(Window.ALL)[0]


def test_requests_are_told_apart_by_tenant_endpoint_and_end() -> None:
    book = Book()
    ends = (End.SUCCEEDED, End.FAILED, End.CANCELLED, End.EXPIRED, End.SUCCEEDED)
    outcomes = tuple(Outcome(key, end, Usage(100, 20, 30, 4, 50)) for key, end in enumerate(ends))
    tenants = ("acme", "acme", "acme", "acme", "globex")
    book.say(encode(Finished(VERSION, 1, outcomes, tenants, ("embed",) * 5, BEFORE_MIDNIGHT_MS)))
    total = decode_bytes(book.stored[b"acme/embed/all/0/gpu/0"], UsageSum, "stored")
    other = decode_bytes(book.stored[b"globex/embed/all/0/gpu/0"], UsageSum, "stored")
    assert total.used == Used(1, 1, 1, 1, 400, 80, 120, 16, 200)
    assert other.used == Used(1, 0, 0, 0, 100, 20, 30, 4, 50)
    assert (total.batches, other.batches, total.upto) == (1, 1, 3)


def test_only_finished_batches_count() -> None:
    book = Book()
    for said in (Seen(VERSION, 4), Started(VERSION, 1), HandedBack(VERSION, 1)):
        assert book.say(encode(said)) is False
    assert book.stored == {}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xc1\x02",
        encode(Finished(VERSION + 1, 1, ())),
        encode(Finished(VERSION, 1, (Outcome(1, End.SUCCEEDED),), (), ())),
    ],
    ids=["empty", "garbage", "later version", "outcomes of nobody"],
)
def test_what_cannot_be_read_is_named_and_counts_nothing(value: bytes) -> None:
    book = Book()
    with pytest.raises(DecodeError, match=r"t\.workers\.gpu\[0\]@2"):
        book.say(value)
    assert book.stored == {}


def test_a_batch_counts_in_the_windows_of_its_end() -> None:
    book = Book()
    book.finish(BEFORE_MIDNIGHT_MS)
    book.finish(BEFORE_MIDNIGHT_MS + MINUTE_MS)
    for window in (Window.MINUTE, Window.HOUR, Window.DAY, Window.MONTH):
        assert [t.batches for t in book.sums(window).values()] == [1, 1], window
    assert (book.total().first_ms, book.total().last_ms) == (
        BEFORE_MIDNIGHT_MS,
        BEFORE_MIDNIGHT_MS + MINUTE_MS,
    )


def test_a_record_without_its_end_counts_by_its_own_time() -> None:
    book = Book()
    book.say(encode(finished(1, 0, ACME)), timestamp_ms=BEFORE_MIDNIGHT_MS)
    assert book.total().last_ms == BEFORE_MIDNIGHT_MS


def test_what_another_process_stored_meanwhile_is_gone_on_from() -> None:
    """A lane that went away and came back: the sums stored there since hold more than ours."""
    book, other = Book(), Book()
    value = encode(finished(1, BEFORE_MIDNIGHT_MS, ACME))
    book.counting.take("gpu", record(0, value), NOW_MS)
    for offset in (0, 2, 4):
        other.counting.take("gpu", record(offset, value), NOW_MS)
    for key, total in other.counting.slice().sums["gpu"].items():
        book.stored[key] = encode(total)
    assert book.counting.slice().sums == {}
    book.counting.take("gpu", record(0, value), NOW_MS)
    book.counting.take("gpu", record(6, value), NOW_MS)
    book.stored |= {k: encode(t) for k, t in book.counting.slice().sums["gpu"].items()}
    assert (book.total().batches, book.total().upto) == (4, 7)


def test_a_sum_in_the_making_gives_way_to_a_stored_one_that_holds_more() -> None:
    book, other = Book(), Book()
    value = encode(finished(1, BEFORE_MIDNIGHT_MS, ACME))
    book.counting.take("gpu", record(0, value), NOW_MS)
    for offset in (0, 2):
        other.counting.take("gpu", record(offset, value), NOW_MS)
    for key, total in other.counting.slice().sums["gpu"].items():
        book.stored[key] = encode(total)
    book.counting.take("gpu", record(4, value), NOW_MS)
    book.stored |= {k: encode(t) for k, t in book.counting.slice().sums["gpu"].items()}
    assert book.total().batches == 3


def test_late_is_what_comes_when_its_window_is_long_over() -> None:
    book = Book()
    minute_ms = BEFORE_MIDNIGHT_MS // MINUTE_MS * MINUTE_MS
    book.finish(minute_ms)
    book.finish(minute_ms + MINUTE_MS + GRACE_MS - 1)
    book.finish(minute_ms)
    assert book.sums(Window.MINUTE)[minute_ms].late == 0
    book.finish(minute_ms + MINUTE_MS + GRACE_MS)
    book.finish(minute_ms)
    found = book.sums(Window.MINUTE)[minute_ms]
    assert (found.late, found.batches) == (1, 3)
    assert book.total().late == 0


def test_old_windows_are_dropped_and_stay_so() -> None:
    book = Book()
    book.finish(BEFORE_MIDNIGHT_MS)
    assert list(book.counting.outdated(NOW_MS)) == []
    book.finish(BEFORE_MIDNIGHT_MS + KEPT_MS[Window.MINUTE])
    outdated = list(book.counting.outdated(NOW_MS))
    assert len(outdated) == 1
    assert b"/minute/" in outdated[0][1]
    for _, key in outdated:
        del book.stored[key]
    book.finish(BEFORE_MIDNIGHT_MS)
    assert len(book.sums(Window.MINUTE)) == 1
    assert sum(t.batches for t in book.sums(Window.DAY).values()) == 3


def test_a_worker_whose_clock_runs_ahead_ends_no_window() -> None:
    book = Book()
    book.finish(BEFORE_MIDNIGHT_MS, BEFORE_MIDNIGHT_MS)
    book.finish(BEFORE_MIDNIGHT_MS + 1_000 * DAY_MS, BEFORE_MIDNIGHT_MS)
    book.finish(BEFORE_MIDNIGHT_MS, BEFORE_MIDNIGHT_MS)
    assert list(book.counting.outdated(BEFORE_MIDNIGHT_MS)) == []
    assert max(t.batches for t in book.sums(Window.MINUTE).values()) == 2


def test_a_token_costs_its_part_of_the_whole_batch() -> None:
    """Each request is told the whole batch's time: 3 x 40 ms here are 40 ms."""
    book = Book()
    outcomes = tuple(Outcome(key, End.SUCCEEDED, Usage(15, 5, 0, 0, 40)) for key in range(4))
    batch = Finished(VERSION, 1, outcomes, ("acme",) * 4, ("embed",) * 4, BEFORE_MIDNIGHT_MS)
    book.say(encode(batch))
    assert book.costs == [("acme", 500)]


def test_a_cost_follows_what_is_measured() -> None:
    book = Book()
    for service_ms in [10] * 3 + [20] * 60:
        outcome = Outcome(1, End.SUCCEEDED, Usage(10, 0, 0, 0, service_ms))
        batch = Finished(VERSION, 1, (outcome,), ("acme",), ("embed",), BEFORE_MIDNIGHT_MS)
        book.say(encode(batch))
    costs = [cost for _, cost in book.costs]
    assert costs[:3] == [1_000] * 3
    assert costs[3] == 1_063
    assert costs == sorted(costs)
    assert 1_950 <= costs[-1] <= 2_000
