"""Whatever is charged, refunded and settled, script and twin say what a plain list would.

The lists hold several tenants of a family and a stranger, two endpoints, few ids, times around
the end of a month, clocks that go back, limits that change with each call.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.front import Charge, Settlement, Verdict
from schemas.policy import LIMITS, UNLIMITED, Allowance
from tests.support.limits import Counter, with_local, with_script
from tests.support.oracle_limits import Oracle, Said

#: 42 s before February begins, and before March does in a leap year.
STARTS = (1_801_439_958_321, 1_835_394_958_321)
#: Children with their parent, and a tenant of its own.
PARENTS = {"alpha": "root", "beta": "root", "root": "", "lone": ""}


class Call(NamedTuple):
    """One call of the limiter, `pause_ms` after the one before."""

    pause_ms: int
    kind: str
    charge: Charge
    tokens: int | None


LIMIT = st.sampled_from([None, None, 0, 6, 12, 30])
ALLOWANCES = st.builds(
    Allowance, LIMIT, LIMIT, LIMIT, LIMIT, st.lists(st.sampled_from(LIMITS), max_size=1).map(tuple)
)
PAUSES = st.sampled_from(
    [0, 0, 0, 1, 700, 4_999, 5_000, 20_000, 42_000, 59_999, 65_000, 70_000, 3_000_000_000, -30_000]
)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    tenant = draw(st.sampled_from(sorted(PARENTS)))
    parent = PARENTS[tenant]
    weight = draw(st.sampled_from([1, 1, 3]))
    charge = Charge(
        tenant,
        draw(st.sampled_from(["chat", "chat", "embed"])),
        draw(st.sampled_from("abcdefgh")),
        weight * draw(st.integers(1, 4)),
        weight * draw(st.integers(0, 9)),
        draw(ALLOWANCES),
        parent,
        draw(ALLOWANCES) if parent else UNLIMITED,
        weight,
    )
    kind = draw(st.sampled_from(["charge", "charge", "charge", "refund", "settle"]))
    return Call(draw(PAUSES), kind, charge, draw(st.none() | st.integers(0, 12)))


CALLS = st.lists(calls(), max_size=30)


def said(verdict: Verdict) -> Said:
    used = tuple((state.name, state.used) for state in verdict.states)
    return Said(verdict.admission, used, verdict.retry_ms, verdict.refused_by, verdict.refused_of)


def settlement(call: Call) -> Settlement:
    charge = call.charge
    return Settlement(charge.tenant, charge.endpoint, charge.id, call.tokens, charge.parent)


def playing(start_ms: int, played: list[Call]) -> Callable[[Counter], Awaitable[list[Said | bool]]]:
    async def scenario(counter: Counter) -> list[Said | bool]:
        now_ms, answers = start_ms, list[Said | bool]()
        latest_ms = now_ms
        for call in played:
            now_ms += call.pause_ms
            latest_ms = max(latest_ms, now_ms)
            back_ms = latest_ms - now_ms
            if call.kind == "charge":
                verdict = await counter.limiter.charge(call.charge, now_ms)
                _check(call.charge, verdict, back_ms)
                answers.append(said(verdict))
            elif call.kind == "refund":
                answers.append(await counter.limiter.refund(call.charge, now_ms))
            else:
                answers.append(await counter.limiter.settle(settlement(call), now_ms))
        return answers

    return scenario


def _check(charge: Charge, verdict: Verdict, back_ms: int) -> None:
    """What holds of any verdict, on a clock that went back so far."""
    names = [state.name for state in verdict.states]
    assert len(names) == len(set(names))
    for state in verdict.states:
        assert state.remaining == max(0, state.limit - state.used)
        assert 0 <= state.reset_s <= back_ms / 1_000 + (65 if state.window_s == 60 else 31 * 86_400)
    assert bool(verdict.refused_by) != verdict.is_admitted
    assert (verdict.retry_ms > 0) == (verdict.admission == 0)
    if verdict.refused_by:
        assert verdict.decisive.name == verdict.refused_by
        assert verdict.refused_of in {charge.tenant, charge.parent}


def expected(start_ms: int, played: list[Call]) -> list[Said | bool]:
    oracle, now_ms, answers = Oracle(), start_ms, list[Said | bool]()
    for call in played:
        now_ms += call.pause_ms
        if call.kind == "charge":
            answers.append(oracle.charge(call.charge, now_ms))
        elif call.kind == "refund":
            answers.append(oracle.refund(call.charge, now_ms))
        else:
            answers.append(oracle.settle(settlement(call), now_ms))
    return answers


@settings(max_examples=60)
@given(st.sampled_from(STARTS), CALLS)
def test_script_and_twin_do_what_the_list_does(start_ms: int, played: list[Call]) -> None:
    answers = expected(start_ms, played)
    assert with_local(playing(start_ms, played)) == answers
    assert with_script(playing(start_ms, played)) == answers
