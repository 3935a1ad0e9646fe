"""What is counted of what workers say, and what is not."""

import pytest

from accounting.core.sums import GRACE_MS, KEPT_MS
from accounting.core.windows import DAY_MS, MINUTE_MS
from accounting.counting import Counting
from accounting.shelf import Shelf
from schemas.codec import DecodeError, decode_bytes, encode
from schemas.records import VERSION, End, Finished, HandedBack, Outcome, Seen, Started, Usage
from schemas.usage import UsageSum, Used, Window
from tests.support.accounting import BEFORE_MIDNIGHT_MS, finished, record

NOW_MS = BEFORE_MIDNIGHT_MS + 100 * DAY_MS
ACME = [("acme", "embed")]


class Book:
    """Counts one lane, storing after each record."""

    def __init__(self) -> None:
        self.stored = Shelf()
        self.counting = Counting({"gpu": self.stored})
        self.costs: list[tuple[str, int]] = []
        self._offset = 0

    def say(self, value: bytes, timestamp_ms: int = 0, now_ms: int = NOW_MS) -> bool:
        self._offset += 2
        taken = self.counting.take("gpu", record(self._offset, value, 0, timestamp_ms), now_ms)
        changed = self.counting.slice()
        for key, total in changed.sums.get("gpu", {}).items():
            self.stored[key] = encode(total)
        self.costs += [(cost.tenant, cost.ns_per_token) for cost in changed.costs]
        return taken

    def finish(self, ended_ms: int, now_ms: int = NOW_MS, written_ms: int = 0) -> None:
        self.say(encode(finished(1, ended_ms, ACME)), written_ms, now_ms)

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
    assert not book.stored


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
    assert not book.stored


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
    book.stored.update({k: encode(t) for k, t in book.counting.slice().sums["gpu"].items()})
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
    book.stored.update({k: encode(t) for k, t in book.counting.slice().sums["gpu"].items()})
    assert book.total().batches == 3


def test_late_is_what_is_told_when_its_window_is_long_over() -> None:
    book = Book()
    minute_ms = BEFORE_MIDNIGHT_MS // MINUTE_MS * MINUTE_MS
    over_ms = minute_ms + MINUTE_MS
    book.finish(minute_ms, written_ms=minute_ms)
    book.finish(minute_ms, written_ms=over_ms + GRACE_MS - 1)
    assert book.sums(Window.MINUTE)[minute_ms].late == 0
    book.finish(minute_ms, written_ms=over_ms + GRACE_MS)
    found = book.sums(Window.MINUTE)[minute_ms]
    assert (found.late, found.batches) == (1, 3)
    assert book.total().late == 0


def test_what_is_late_is_the_same_for_whoever_counts_it() -> None:
    """Half of a slice is stored by one that dies; it holds later batches of another tenant."""
    ended = [BEFORE_MIDNIGHT_MS, BEFORE_MIDNIGHT_MS + 10 * MINUTE_MS]
    said = [
        record(offset, encode(finished(1, ms, [(tenant, "embed")])), timestamp_ms=ms)
        for offset, (ms, tenant) in enumerate(zip(ended, ("acme", "globex"), strict=True))
    ]
    book = Book()
    dying = Counting({"gpu": Shelf()})
    for each in said:
        dying.take("gpu", each, NOW_MS)
    for key, total in dying.slice().sums["gpu"].items():
        if total.tenant == "globex":
            book.stored[key] = encode(total)
    for each in said:
        book.counting.take("gpu", each, NOW_MS)
    assert all(total.late == 0 for total in book.counting.slice().sums["gpu"].values())


def test_what_is_read_again_is_told_from_what_is_new() -> None:
    book = Book()
    value = encode(finished(1, BEFORE_MIDNIGHT_MS, ACME))
    assert book.counting.take("gpu", record(0, value), NOW_MS)
    assert not book.counting.take("gpu", record(0, value), NOW_MS)
    assert book.counting.take("gpu", record(1, value), NOW_MS)


class Undecodable(Shelf):
    """Sums that nobody may look into."""

    def __getitem__(self, key: bytes) -> bytes:
        assert b"/minute/" not in key, "a sum is decoded"
        assert b"/hour/" not in key, "a sum is decoded"
        return super().__getitem__(key)


def test_what_is_outdated_is_found_without_decoding_a_sum() -> None:
    book, again = Book(), Undecodable()
    for minutes in range(3):
        book.finish(BEFORE_MIDNIGHT_MS + minutes * MINUTE_MS)
    book.finish(BEFORE_MIDNIGHT_MS + KEPT_MS[Window.MINUTE] + MINUTE_MS)
    for key in book.stored:
        again[key] = book.stored[key]
    counting = Counting({"gpu": again})
    outdated = list(counting.outdated(NOW_MS))
    assert len(outdated) == 2
    for _, key in outdated:
        del again[key]
    assert list(counting.outdated(NOW_MS)) == []


def test_a_lane_that_comes_back_has_come_as_far_as_its_sums_say() -> None:
    book, other = Book(), Book()
    book.finish(BEFORE_MIDNIGHT_MS)
    other.finish(BEFORE_MIDNIGHT_MS)
    other.finish(BEFORE_MIDNIGHT_MS + KEPT_MS[Window.MINUTE])
    for key, value in other.stored.items():
        book.stored[key] = value
    book.counting.reassigned()
    assert len(list(book.counting.outdated(NOW_MS))) == 1


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
    assert book.costs == [("acme", 500_000)]


def test_a_cost_follows_what_is_measured() -> None:
    book = Book()
    for service_ms in [10] * 3 + [20] * 60:
        outcome = Outcome(1, End.SUCCEEDED, Usage(10, 0, 0, 0, service_ms))
        batch = Finished(VERSION, 1, (outcome,), ("acme",), ("embed",), BEFORE_MIDNIGHT_MS)
        book.say(encode(batch))
    costs = [cost for _, cost in book.costs]
    assert costs[:3] == [1_000_000] * 3
    assert costs[3] == 1_062_500
    assert costs == sorted(costs)
    assert 1_950_000 <= costs[-1] <= 2_000_000


def test_a_cost_is_learned_however_little_a_token_takes() -> None:
    """From 20 to 12 us, and to 0.5 us: two million tokens a second."""
    book = Book()
    for service_ms, tokens in ((20, 1_000), *[(12, 1_000)] * 200, *[(1, 2_000)] * 400):
        outcome = Outcome(1, End.SUCCEEDED, Usage(tokens, 0, 0, 0, service_ms))
        book.say(encode(Finished(VERSION, 1, (outcome,), ("acme",), ("embed",), NOW_MS)))
    costs = [cost for _, cost in book.costs]
    assert costs[0] == 20_000
    assert abs(costs[200] - 12_000) < 10
    assert abs(costs[-1] - 500) < 10
