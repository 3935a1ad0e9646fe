"""What an ingress let in, against a list that is searched anew each time."""

from hypothesis import given
from hypothesis import strategies as st

from producers.core.backlog_view import PoolView
from producers.core.let_in import Let
from schemas.backlog import RATE_MS, VERSION, PoolBacklog, QueueSlice, TierBacklog, level
from schemas.policy import CostModel
from tests.support.predictions import NOW_MS, POLICY, row

TENANTS = ("acme", "kid", "sis", "home")
TOPIC = "t.requests.gold"
#: What becomes of a request: it is refused later, it is acknowledged, or it is in doubt.
FATES = st.sampled_from(["refused", "stands", "doubt"])
STEPS = st.lists(
    st.tuples(st.sampled_from(TENANTS), st.integers(1, 9), FATES, st.integers(0, 9)), max_size=30
)


def head(at_ms: int, works: dict[str, int], read: int) -> tuple[PoolBacklog, QueueSlice]:
    """A head with these queues, after so many requests were read."""
    members: dict[str, int] = {}
    for tenant, work in works.items():
        members[POLICY.root(tenant)] = members.get(POLICY.root(tenant), 0) + work
    levels = tuple(sorted((level(work, 1), work, 1) for work in members.values()))
    total = sum(works.values())
    gold = TierBacklog("gold", total, total, 0, 0, levels if len(levels) < 2 else ())
    told = PoolBacklog(
        v=VERSION, pool="chat", at_ms=at_ms, unit=CostModel.REQUEST, rate=RATE_MS, residual_ms=0,
        service_ms=0, spread_ms=0, slots=1, lanes=1, room=0, running=1, us_per_token=0,
        tiers=(gold,), stamps=(at_ms,), read=((TOPIC, 0, read),),
    )  # fmt: skip
    return told, QueueSlice(VERSION, at_ms, tuple(row(name, work) for name, work in works.items()))


@given(steps=STEPS, works=st.dictionaries(st.sampled_from(TENANTS), st.integers(1, 20)))
def test_each_counts_from_being_let_in_until_it_is_read_or_refused(
    steps: list[tuple[str, int, str, int]], works: dict[str, int]
) -> None:
    view, now_ms, read = PoolView(), NOW_MS, 0
    first, queues = head(now_ms, works, read)
    view.take(first, {0: queues}, POLICY, now_ms)
    standing: list[tuple[int, str]] = []
    doubtful: list[str] = []
    for step, (tenant, work, fate, progress) in enumerate(steps):
        place = view.place(tenant, "gold", POLICY)
        assert place is not None
        number = view.let_in(Let(now_ms, place, work, work, step % 3), POLICY)
        if fate == "refused":
            view.withdraw(number, POLICY)
        elif fate == "stands":
            offset = max(read - 2, len(standing))  # it may have been read already
            view.stands(number, (TOPIC, 0), offset, POLICY)
            standing.append((offset, tenant))
        else:
            view.doubt(number)
            doubtful.append(tenant)
        if progress > 6:
            now_ms, read = now_ms + 700, read + progress - 6
            told, queues = head(now_ms, works, read)
            view.take(told, {0: queues}, POLICY, now_ms)
            doubtful.clear()
        left = [name for offset, name in standing if offset >= read] + doubtful
        for name in TENANTS:
            kin = [n for n in TENANTS if name in {n, POLICY.root(n)}]
            place = view.place(name, "gold", POLICY)
            assert place is not None
            expected = sum(works.get(each, 0) + left.count(each) for each in kin)
            assert view.waiting(place)[0] == expected
    now_ms += 700
    told, queues = head(now_ms, works, 1_000)
    view.take(told, {0: queues}, POLICY, now_ms)
    fresh = PoolView()
    fresh.take(told, {0: queues}, POLICY, now_ms)
    for name in TENANTS:
        place = view.place(name, "gold", POLICY)
        assert place is not None
        assert view.standing(place, 1, 0, POLICY)._replace(rings=()) == fresh.standing(
            place, 1, 0, POLICY
        )._replace(rings=())
        for ours, others in zip(
            view.standing(place, 1, 0, POLICY).rings,
            fresh.standing(place, 1, 0, POLICY).rings,
            strict=True,
        ):
            assert (ours.levels.works, ours.levels.weights) == (
                others.levels.works,
                others.levels.weights,
            )
