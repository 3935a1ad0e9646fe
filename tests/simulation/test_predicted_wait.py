"""The published backlog and the predictor around the real core, in virtual time.

The margins are wide: how good the figures are is what the benchmark tells.
"""

from benchmarks.ingress_predicted import Class, is_good, refused_part, run

WARM_US = 60_000_000
CROWD = (Class("gold", 3, 0.3, 2_000), Class("bulk", 2, 1.2, 10_000))


def test_overload_is_refused_at_the_door_and_who_is_let_in_is_in_time() -> None:
    history, gate = run(CROWD, 90)
    let_in = [j for j in history.jobs if j.arrived_us >= WARM_US and j.end != "would_wait"]
    assert len(let_in) > 1_000
    assert sum(map(is_good, let_in)) >= 0.9 * len(let_in)
    assert refused_part(history, "gold") == 0
    assert 0.3 <= refused_part(history, "bulk") <= 0.6
    assert gate.errors, "nobody was looked at again"


def test_without_overload_nobody_is_refused() -> None:
    history, _ = run((Class("gold", 3, 0.3, 2_000), Class("bulk", 2, 0.3, 10_000)), 75)
    assert [j for j in history.jobs if j.end == "would_wait"] == []


def test_the_control_lets_all_in_and_most_are_late() -> None:
    history, _ = run(CROWD, 75, is_open=True)
    bulk = [j for j in history.jobs if j.ask.tier == "bulk" and j.arrived_us >= WARM_US]
    assert all(j.end == "succeeded" for j in bulk)
    assert sum(j.end_us - j.arrived_us > 10_000_000 for j in bulk) > 0.9 * len(bulk)
