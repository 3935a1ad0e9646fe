"""Several inputs in one request: counted at the door, charged by their sum, served by shares."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from adapters.memory import MemoryLog
from fairlane.embed_groups import ROWS_MAX_DEFAULT
from fairlane.embedded import one_endpoint
from producers.core.inputs import Inputs, count
from scheduler.core import refill, snapshot
from scheduler.core.cycle import Inputs as Read
from scheduler.core.cycle import run_cycle
from schemas import codec
from schemas.decisions import Picked
from schemas.policy import CostModel, Endpoint, Policy, Pool, Tenant, Tier, encode_policy
from schemas.policy_check import INPUTS_MAX, check
from schemas.records import Request
from tests.support.core import Core
from tests.support.door import Clock, Door, door
from tests.support.plain_drr import PlainRing, PlainTenant

EMBED = Endpoint(
    name="embed", pool="embed", inputs_max=8, tokens_max=100, batch_tokens=500, weight=2,
    batch_requests=4, quantum=8, requests_per_minute=40,
)  # fmt: skip
POLICY = Policy(
    tiers=(Tier(name="gold"),),
    pools=(Pool(name="embed", lanes=1), Pool(name="chat", lanes=1)),
    endpoints=(EMBED, Endpoint(name="chat", pool="chat", requests_per_minute=40)),
    tenants=(Tenant(name="acme", tiers=("gold",)), Tenant(name="bolt", tiers=("gold",))),
)
PER_TOKEN = replace(EMBED, cost=CostModel.TOKEN)


def with_endpoint(**changes: Any) -> Policy:
    return replace(POLICY, endpoints=(replace(EMBED, **changes), POLICY.endpoints[1]))


def play(scenario: Callable[[Door], Awaitable[None]]) -> None:
    async def with_door() -> None:
        async with door(MemoryLog(Clock()), policy=POLICY) as opened:
            await scenario(opened)

    asyncio.run(with_door())


# --- counted


@pytest.mark.parametrize(
    ("data", "inputs"),
    [
        ('"a text of some length"', Inputs(1, 5)),
        ('["a", "b"]', Inputs(2, 2)),
        ('[ "aaaaaa" , "' + "b" * 4_000 + '" ]', Inputs(2, 102)),
        ('{"model": "m", "input" : ["a", {"text": "bb"}], "dimensions": [1, 2]}', Inputs(2, 4)),
        ('{"in\\u0070ut": ["a", "b"]}', Inputs(2, 2)),
        ('{"input": ["a"], "input": ["a", "b"]}', Inputs(2, 2)),
        ('{"input": "a"}', Inputs(1, 3)),
        ('{"texts": ["a", "b"]}', Inputs(1, 5)),
        ("[101, 102, 103]", Inputs(1, 3)),
        ('{"input": [101, 102]}', Inputs(1, 5)),
        ("[[101, 102], [103]]", Inputs(2, 3)),
        ('[101, "a", "b"]', Inputs(3, 3)),
        ("[1.5, 2]", Inputs(2, 2)),
        ("[]", Inputs(0, 0)),
        ("[null, [], {}]", Inputs(3, 3)),
        ("[" + "0.5," * 8 + "0.5]", Inputs(9, 0)),
        ("7", Inputs(1, 1)),
    ],
)
def test_inputs_are_the_elements_and_a_text_as_tokens_is_one(data: str, inputs: Inputs) -> None:
    assert count(data.encode(), EMBED) == inputs


def test_without_inputs_max_an_array_is_one_input_like_any_json() -> None:
    assert count(b'["a", "b", "c", "d"]', replace(EMBED, inputs_max=0)) == Inputs(1, 5)


# --- at the door


def test_a_request_is_charged_by_the_sum_of_its_inputs_and_says_so_to_the_scheduler() -> None:
    async def scenario(opened: Door) -> None:
        texts = ["x" * 78, "y" * 1_000, "z"]
        answer = await opened.post(endpoint="embed", input=texts)
        assert answer.status_code == 202
        (record,) = opened.records(opened.topics.requests("gold"))
        request = codec.decode_header(record, Request)
        assert (request.inputs, request.input_tokens) == (3, 20 + 100 + 1)
        assert json.loads(record.value) == texts
        # 2 x 3 of 40 are taken; 2 x 8 fit twice more, then there is room for one input alone.
        eight = [await opened.post(endpoint="embed", input={"input": ["a"] * 8}) for _ in range(3)]
        assert [answer.status_code for answer in eight] == [202, 202, 429]
        assert eight[-1].json()["used"] == 38
        assert eight[-1].json()["detail"].endswith("the request costs 16")
        assert (await opened.post(endpoint="embed", input=["a", "b"])).status_code == 429
        assert (await opened.post(endpoint="embed", input=["a"])).status_code == 202
        assert (await opened.post(endpoint="embed", input="a")).status_code == 429
        # Elsewhere an array costs what a request costs, however long.
        assert (await opened.post(endpoint="chat", input=["a"] * 100)).status_code == 202
        chat = codec.decode_header(opened.records(opened.topics.requests("gold"))[-1], Request)
        assert chat.inputs == 1

    play(scenario)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "has 0 inputs; 'embed' takes 1 to 8 in a request"),
        ({"input": []}, "has 0 inputs; 'embed' takes 1 to 8 in a request"),
        (["a"] * 9, "has 9 inputs; 'embed' takes up to 8 in a request: split it"),
        (
            ["a" * 1_000] * 6,
            "has 6 inputs of about 600 tokens in sum; a batch of 'embed' holds up to 500: split it",
        ),
    ],
)
def test_what_fits_in_no_batch_is_told_which_limit_and_the_way_out(
    given: Any, message: str
) -> None:
    async def scenario(opened: Door) -> None:
        answer = await opened.post(endpoint="embed", input=given)
        assert (answer.status_code, answer.json()["reason"]) == (400, "invalid_request")
        (fault,) = answer.json()["faults"]
        assert (fault["field"], fault["message"]) == ("input", message)
        assert opened.records(opened.topics.requests("gold")) == []
        assert [key async for key in opened.redis.scan_iter("fairlane:{*")] == []

    play(scenario)


def test_the_policy_bounds_the_inputs_of_a_request() -> None:
    assert check(with_endpoint(inputs_max=INPUTS_MAX)) == []
    (fault,) = check(with_endpoint(inputs_max=INPUTS_MAX + 1))
    assert fault == 'endpoints[0] "embed": inputs_max is 2049; allowed is 0..2048'
    assert len(check(with_endpoint(inputs_max=-1))) == 1


# --- in the scheduler


@pytest.mark.parametrize("cost", [CostModel.REQUEST, CostModel.TOKEN])
def test_equal_weights_get_equal_inputs_in_the_order_of_the_textbook(cost: CostModel) -> None:
    """One tenant sends 8 inputs a request, the other single ones, 10 tokens each."""
    unit = 10 if cost is CostModel.TOKEN else 1
    core = Core(with_endpoint(cost=cost, quantum=8 * unit))
    plain = PlainRing(8 * unit)
    eights, singles = PlainTenant("acme", 8 * unit), PlainTenant("bolt", 8 * unit)
    arrivals = []
    for _ in range(40):
        arrivals.append(core.request("acme", "gold", inputs=8, tokens=80))
        eights.queue.append(8 * unit)
    for _ in range(320):
        arrivals.append(core.request("bolt", "gold", inputs=1, tokens=10))
        singles.queue.append(unit)
    plain.enter(eights)
    plain.enter(singles)
    cycle = core.take(*arrivals)
    served: Counter[str] = Counter()
    while cycle.batches:
        costs = [step.cost for step in cycle.steps if isinstance(step, Picked)]
        picked = [live for batch in cycle.batches for live in batch.requests]
        for live, picked_cost in zip(picked, costs, strict=True):
            expected = plain.walk()
            assert (expected.name, expected.queue.pop(0)) == (live.tenant, picked_cost)
            expected.deficit -= picked_cost
            if not expected.queue:
                plain.leave(expected)
            served[live.tenant] += live.inputs
            assert abs(served["acme"] - served["bolt"]) <= 8
        cycle = core.finish(cycle)
    assert served == {"acme": 320, "bolt": 320}
    assert plain.next() is None


@pytest.mark.parametrize(
    ("endpoint", "inputs", "tokens", "charged"),
    [
        (EMBED, 5, 50, 5),
        (EMBED, 9, 50, 9),  # let in by another policy, which made it no cheaper
        (replace(EMBED, inputs_max=0), 9, 50, 9),
        (EMBED, 10**9, 50, INPUTS_MAX),
        (EMBED, -3, 50, 1),
        (PER_TOKEN, 5, 450, 450),
        (PER_TOKEN, 1, 450, 100),
        (PER_TOKEN, 3, 450, 300),
        (PER_TOKEN, 8, 10**9, 500),  # as much as a batch holds, so that it fits in one
    ],
)
def test_a_request_is_charged_as_it_was_let_in_and_never_more_than_a_batch_holds(
    endpoint: Endpoint, inputs: int, tokens: int, charged: int
) -> None:
    core = Core(replace(POLICY, endpoints=(endpoint, POLICY.endpoints[1])))
    cycle = core.take(core.request("acme", "gold", inputs=inputs, tokens=tokens), after_ms=10)
    cycle = cycle if cycle.batches else core.cycle(after_ms=10)
    (step,) = [step for step in cycle.steps if isinstance(step, Picked)]
    assert step.cost == charged


def test_a_request_by_inputs_stays_charged_what_it_was() -> None:
    core = Core(POLICY)
    core.take(core.request("acme", "gold", inputs=8), core.request("bolt", "gold", inputs=2))
    cycle = core.cycle(after_ms=10)
    accounts = {
        name: queue.account
        for name, queue in core.state.pools["embed"].rings["gold"].queues.items()
    }
    before = {name: (account.deficit, account.credit) for name, account in accounts.items()}
    core.finish(cycle, tokens=10_000)
    assert before == {name: (one.deficit, one.credit) for name, one in accounts.items()}


@pytest.mark.parametrize("inputs_max", [0, 4, 2_048])
@pytest.mark.parametrize(("endpoint", "cost"), [(EMBED, 8), (PER_TOKEN, 500)])
def test_a_new_inputs_max_reprices_nothing_that_waits(
    endpoint: Endpoint, cost: int, inputs_max: int
) -> None:
    chat = POLICY.endpoints[1]
    core = Core(replace(POLICY, endpoints=(endpoint, chat)), slots=0)
    core.take(*(core.request("acme", "gold", inputs=8, tokens=600) for _ in range(3)))
    waiting = list(core.state.lives())
    assert [live.cost for live in waiting] == [cost] * 3
    changed = replace(POLICY, version=2, endpoints=(replace(endpoint, inputs_max=inputs_max), chat))
    assert core.cycle(Read(policies=[encode_policy(changed)])).faults == []
    assert [live.cost for live in waiting] == [cost] * 3
    assert core.state.pools["embed"].inputs == 24


def test_a_batch_is_full_by_inputs_and_who_has_more_goes_alone() -> None:
    core = Core(with_endpoint(batch_requests=6, batch_wait_ms=1_000), slots=8)
    few = core.take(*(core.request("acme", "gold", inputs=n) for n in (1, 2, 2)))
    assert few.batches == []  # five inputs wait: none is due yet
    more = core.take(*(core.request("acme", "gold", inputs=n) for n in (1, 4, 3, 8, 1, 7)))
    batches = [[live.inputs for live in batch.requests] for batch in more.batches]
    assert batches == [[1, 2, 2, 1], [4], [3], [8], [1], [7]]
    assert core.state.pools["embed"].inputs == 0


def test_a_corpus_has_eight_requests_of_its_usual_size_in_a_batch() -> None:
    policy = one_endpoint("embed", ["acme"])
    core = Core(policy)
    requests = [core.request("acme", "standard", inputs=ROWS_MAX_DEFAULT) for _ in range(9)]
    batches = core.take(*requests).batches
    assert [len(batch.requests) for batch in batches] == [8, 1]


@pytest.mark.parametrize("batch_requests", [1, 4, 2_000])
def test_no_debt_is_above_what_the_batches_in_flight_can_cost(batch_requests: int) -> None:
    core = Core(
        replace(
            POLICY,
            endpoints=(replace(PER_TOKEN, batch_requests=batch_requests), POLICY.endpoints[1]),
        )
    )
    pool = core.state.pools["embed"]
    core.finish(core.take(core.request("acme", "gold", inputs=8, tokens=500)), tokens=10**9)
    account = pool.rings["gold"].queues["acme"].account
    in_flight = pool.lanes[0].slots + pool.prefetch
    assert pool.debt_max == in_flight * PER_TOKEN.batch_tokens
    assert account.deficit == -in_flight * PER_TOKEN.batch_tokens
    # Where requests have one input, decisions that were made already keep their floor.
    plain = replace(PER_TOKEN, inputs_max=0, batch_requests=batch_requests)
    core = Core(replace(POLICY, endpoints=(plain, POLICY.endpoints[1])))
    pool = core.state.pools["embed"]
    assert pool.debt_max == in_flight * batch_requests * plain.tokens_max


def test_a_restored_state_charges_what_the_one_before_the_crash_did() -> None:
    core = Core(POLICY)
    arrivals = [core.request("acme", "gold", inputs=many) for many in (8, 2, 5)]
    core.take(*arrivals)
    restored, (offsets,) = snapshot.load(snapshot.dump(core.state))
    refill.fill(restored, 0, [found for _, found in arrivals if found.offset in offsets])
    refill.finish_filling(restored)
    assert [live.cost for live in restored.lives()] == [8, 2, 5]
    assert snapshot.dump(restored) == snapshot.dump(core.state)
    now_ms = core.now_ms + 10
    assert run_cycle(restored, Read(), now_ms).steps == run_cycle(core.state, Read(), now_ms).steps
