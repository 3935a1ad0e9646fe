"""The simulated engine: time and tokens follow from the request alone."""

import json
from collections.abc import Sequence

from schemas.records import End
from workers.engine import EngineBatch, EngineOutcome, EngineRequest
from workers.engines.simulated import SimulatedEngine, SimulatedSettings, Together


def request(key: int = 1, body: bytes = b"x" * 40, tokens: int = 110) -> EngineRequest:
    return EngineRequest(key, f"id-{key}", "acme", "chat", body, tokens)


def batch(*requests: EngineRequest) -> EngineBatch:
    return EngineBatch(1, requests)


def nobody(index: int) -> bool:
    return False


def test_a_run_waits_for_fixed_time_and_tokens() -> None:
    waited: list[float] = []
    engine = SimulatedEngine(SimulatedSettings(fixed_ms=20, per_token_us=1_000), waited.append)
    one = request(body=b'{"input": "hi", "output_tokens": 30}')
    (outcome,) = engine.run(batch(one), nobody)
    assert outcome.end is End.SUCCEEDED
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (9, 30)
    assert outcome.usage.service_ms == 20 + 39
    assert round(sum(waited), 6) == 0.059


def test_a_batch_takes_the_sum_or_the_longest() -> None:
    requests = [request(key, b'{"output_tokens": %d}' % key) for key in (100, 200)]
    times = {
        together: SimulatedEngine(
            SimulatedSettings(fixed_ms=0, per_token_us=1_000, together=together)
        ).service_ms(batch(*requests))
        for together in Together
    }
    assert times == {Together.SUM: 100 + 200 + 12, Together.MAX: 200 + 6}


def test_output_tokens_are_drawn_within_what_was_allowed_and_never_change() -> None:
    def draw(seed: int) -> list[int]:
        engine = SimulatedEngine(SimulatedSettings(seed=seed))
        return [engine.tokens(request(key))[1] for key in range(300)]

    drawn = draw(3)
    assert drawn == draw(3)
    assert drawn != draw(4)
    assert min(drawn) >= 1
    assert max(drawn) <= 100
    assert 40 < sum(drawn) / len(drawn) < 60


def test_a_request_that_may_write_nothing_writes_nothing() -> None:
    assert SimulatedEngine().tokens(request(tokens=0)) == (10, 0)


def test_bodies_of_any_kind_are_served() -> None:
    bodies = [b"", b"\xff\xfe", b"[]", b'{"output_tokens": "many"}', b'{"output_tokens": -1}']
    requests = [request(index, body, 0) for index, body in enumerate(bodies)]
    engine = SimulatedEngine(wait=lambda _: None)
    outcomes = engine.run(batch(*requests), nobody)
    assert [outcome.end for outcome in outcomes] == [End.SUCCEEDED] * len(bodies)
    assert json.loads(outcomes[0].output)["id"] == "id-0"


def test_a_run_that_nobody_wants_ends_early() -> None:
    waited: list[float] = []
    engine = SimulatedEngine(SimulatedSettings(fixed_ms=60_000), waited.append)
    outcomes: Sequence[EngineOutcome] = engine.run(
        batch(request(1), request(2)), lambda _: len(waited) > 1
    )
    assert [outcome.end for outcome in outcomes] == [End.CANCELLED] * 2
    assert sum(waited) < 1


def test_one_cancelled_request_leaves_the_others_running() -> None:
    engine = SimulatedEngine(wait=lambda _: None)
    outcomes = engine.run(batch(request(1), request(2)), lambda index: index == 0)
    assert [outcome.end for outcome in outcomes] == [End.CANCELLED, End.SUCCEEDED]
