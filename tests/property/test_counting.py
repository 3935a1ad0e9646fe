"""Whatever is read again, split up or stored by halves: each batch is counted once."""

import itertools
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from accounting.counting import Counting
from accounting.shelf import Shelf
from schemas.codec import decode_bytes, encode
from schemas.records import Finished
from schemas.usage import UsageSum, Window
from tests.support.accounting import BEFORE_MIDNIGHT_MS, expected, finished, record, tokens

WHOSE = st.lists(
    st.tuples(st.sampled_from(["acme", "globex", "initech"]), st.sampled_from(["chat", "embed"])),
    min_size=1,
    max_size=6,
)
#: Within the two days that minutes are kept, over a change of month, in no order.
MOMENTS = st.integers(-3_600_000, 3_600_000).map(lambda ms: BEFORE_MIDNIGHT_MS + ms)
BATCHES = st.lists(
    st.tuples(st.integers(0, 2), MOMENTS, WHOSE, st.integers(0, 1_000)), min_size=1, max_size=25
)
SEEDS = st.integers(0, 2**32 - 1)
NOW_MS = BEFORE_MIDNIGHT_MS + 3_600_000


class Run:
    """Lanes as written; a process that counts them, dies at any moment, and begins again."""

    def __init__(self, batches: list[tuple[int, int, list[tuple[str, str]], int]]) -> None:
        self.lanes: dict[int, list[tuple[int, Finished]]] = {}
        self.batches = []
        for number, (lane, ended_ms, whose, used) in enumerate(batches):
            batch = finished(number, ended_ms, whose, used)
            self.batches.append(batch)
            # A marker follows each transaction: offsets have gaps.
            self.lanes.setdefault(lane, []).append((2 * number, batch))
        self.stored = Shelf()
        self.committed = dict.fromkeys(self.lanes, 0)

    def life(self, chance: Random, *, is_last: bool) -> None:
        """Read from what is committed, in slices; die while one is stored unless `is_last`."""
        counting = Counting({"gpu": self.stored})
        left = {lane: said[self.committed[lane] :] for lane, said in self.lanes.items()}
        position = dict(self.committed)
        while any(left.values()):
            for _ in range(chance.randint(1, 5)):
                lane = chance.choice([lane for lane, said in left.items() if said] or [0])
                if not left.get(lane):
                    break
                offset, batch = left[lane].pop(0)
                counting.take("gpu", record(offset, encode(batch), lane), NOW_MS)
                position[lane] += 1
            if chance.random() < 0.2:  # the lanes go and come back: read again, nothing stored
                left = {lane: said[self.committed[lane] :] for lane, said in self.lanes.items()}
                position = dict(self.committed)
                continue
            changed = list(counting.slice().sums.get("gpu", {}).items())
            chance.shuffle(changed)
            stops = not is_last and chance.random() < 0.5
            for key, total in changed[: chance.randint(0, len(changed))] if stops else changed:
                self.stored[key] = encode(total)
            if stops:
                return
            if is_last or chance.random() < 0.7:  # an offset is committed some time after
                self.committed = dict(position)

    def sums(self) -> list[UsageSum]:
        return [decode_bytes(value, UsageSum, "stored") for value in self.stored.values()]


@given(BATCHES, st.integers(0, 4), SEEDS)
def test_each_batch_is_counted_once_through_any_deaths(
    batches: list[tuple[int, int, list[tuple[str, str]], int]], deaths: int, seed: int
) -> None:
    run, chance = Run(batches), Random(seed)
    for _ in range(deaths):
        run.life(chance, is_last=False)
    run.life(chance, is_last=True)
    assert tokens(run.sums()) == +expected(run.batches, Window)
    for total in run.sums():
        assert total.used.requests == total.used.succeeded
    whole = sum(len(batch.outcomes) for batch in run.batches)
    assert sum(t.used.requests for t in run.sums() if t.window is Window.ALL) == whole


@given(BATCHES, SEEDS)
def test_a_process_that_woke_up_late_changes_nothing(
    batches: list[tuple[int, int, list[tuple[str, str]], int]], seed: int
) -> None:
    """Two processes count the same lane; of what they store the greater `upto` stands."""
    first, second, chance = Run(batches), Run(batches), Random(seed)
    first.life(chance, is_last=False)
    second.life(chance, is_last=True)
    merged: dict[bytes, UsageSum] = {}
    for total, key in itertools.chain(
        ((t, k) for k, t in zip(second.stored, second.sums(), strict=True)),
        ((t, k) for k, t in zip(first.stored, first.sums(), strict=True)),
    ):
        if key not in merged or merged[key].upto <= total.upto:
            merged[key] = total
    assert tokens(merged.values()) == +expected(second.batches, Window)
