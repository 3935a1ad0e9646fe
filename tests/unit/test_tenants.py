"""Traffic: heavy tails keep to their clamps, agents wait for their answers, seeds repeat."""

from statistics import median

import pytest

from simulation.tenants import Agent, Asker, burst, pareto, sized, stream

ASKER = Asker("acme", "gold", "chat", 10, 2_000)


def tokens(body: bytes) -> int:
    return -(-len(body) // 4)


@pytest.mark.parametrize("seed", range(3))
def test_log_normal_sizes_lie_around_their_median_with_a_heavy_tail(seed: int) -> None:
    arrivals = burst(stream(seed, "a"), ASKER, 0, 2_000)
    sizes = [tokens(a.body) for a in sized(stream(seed, "b"), arrivals, ASKER, 100)]
    assert 90 <= median(sizes) <= 110
    assert 20 <= sum(size > 800 for size in sizes) <= 80
    assert min(sizes) >= 10
    assert max(sizes) <= 2_000


@pytest.mark.parametrize("seed", range(3))
def test_pareto_sizes_begin_at_the_least_and_reach_the_most(seed: int) -> None:
    arrivals = burst(stream(seed, "a"), ASKER, 0, 2_000)
    sizes = [tokens(a.body) for a in pareto(stream(seed, "b"), arrivals, ASKER, 1.0)]
    assert min(sizes) == 10
    assert max(sizes) == 2_000
    assert 18 <= median(sizes) <= 22


def test_only_sizes_change() -> None:
    arrivals = burst(stream(1, "a"), ASKER, 7, 50)
    for changed in (sized(stream(1, "b"), arrivals, ASKER, 100),
                    pareto(stream(1, "b"), arrivals, ASKER, 1.5)):  # fmt: skip
        assert [a._replace(body=b"") for a in changed] == [a._replace(body=b"") for a in arrivals]


def test_an_agent_asks_again_after_its_answer_and_its_thought() -> None:
    agent = Agent(stream(1, "a"), ASKER, 100, 3, 50)
    assert agent.first.at_ms == 100
    second = agent.after(1_000)
    third = agent.after(5_000)
    assert second is not None
    assert third is not None
    assert second.at_ms >= 1_000
    assert third.at_ms >= 5_000
    assert agent.after(9_000) is None


def test_an_agent_that_does_not_think_asks_at_once() -> None:
    agent = Agent(stream(1, "a"), ASKER, 0, 2, 0)
    after = agent.after(77)
    assert after is not None
    assert after.at_ms == 77


def test_an_agent_of_one_turn_asks_once() -> None:
    assert Agent(stream(1, "a"), ASKER, 0, 1, 10).after(50) is None
