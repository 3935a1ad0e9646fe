"""Whole histories under faults, fresh in each run; `python -m simulation --seed N` repeats one.

`FAIRLANE_SEEDS=17,204` or `FAIRLANE_SEEDS=1000..1199` plays these instead of fresh ones.
"""

import os

import pytest

from simulation.__main__ import command, main
from simulation.history import History
from simulation.many import play
from tests.support.strained import strained

CHUNK = 20
CHUNKS = 10
#: Each of these found something once.
KNOWN = (2, 4, 66, 211, 267, 387, 655, 934, 1132, 7022)


def chosen(given: str) -> list[int]:
    """Seeds as given, or fresh ones."""
    if ".." in given:
        least, most = given.split("..")
        return list(range(int(least), int(most) + 1))
    if given:
        return [int(seed) for seed in given.split(",")]
    first = int.from_bytes(os.urandom(3)) * CHUNK * CHUNKS
    return list(range(first, first + CHUNK * CHUNKS))


SEEDS = chosen(os.environ.get("FAIRLANE_SEEDS", ""))
CHUNKED = [SEEDS[at : at + CHUNK] for at in range(0, len(SEEDS), CHUNK)]


def broken(seeds: list[int]) -> str:
    """What is broken, with the command that repeats each; empty when every rule holds."""
    verdicts = [play(seed) for seed in seeds]
    return "\n".join(f"{v.fault}\n  to repeat it: {command(v.seed)}" for v in verdicts if v.fault)


@pytest.mark.parametrize("seeds", CHUNKED, ids=lambda seeds: f"{seeds[0]}..{seeds[-1]}")
def test_every_rule_holds_in_fresh_histories(
    seeds: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    if seeds is CHUNKED[0]:
        with capsys.disabled():
            print(f"\nfresh histories: FAIRLANE_SEEDS={SEEDS[0]}..{SEEDS[-1]}")
    assert broken(seeds) == ""


def test_every_rule_holds_where_it_did_not_once() -> None:
    assert broken(list(KNOWN)) == ""


@pytest.mark.parametrize("seed", [*range(8), 118, 161, 252])
def test_every_rule_holds_where_limits_are_always_near(seed: int) -> None:
    strained(seed).run()


def decisions(history: History) -> list[tuple[int, bytes]]:
    reader = history.fleet.log.reader()
    shards = history.fleet.policy.topology.shards
    reader.assign({(history.fleet.topics.decisions, shard): 0 for shard in range(shards)})
    return [(record.partition, record.value) for record in reader.poll(1_000_000, 0.0)]


@pytest.mark.parametrize("seed", [1, 4, 66])
def test_one_seed_is_one_history_to_the_bit(seed: int) -> None:
    histories = [History(seed) for _ in range(2)]
    for history in histories:
        history.run()
    first, second = histories
    assert first.fleet.events == second.fleet.events
    assert decisions(first) == decisions(second) != []


def test_histories_are_rich() -> None:
    """Every kind of fault, of end and of event is met within forty seeds."""
    faults, ends, events = set(), set(), ""
    for seed in range(40):
        history = History(seed)
        history.run()
        faults |= {strike.fault for strike in history.chaos.history}
        ends |= {result.reason or result.end for result in history.judge.results.values()}
        events += " ".join(what for _, what in history.fleet.events)
    from simulation.faults import Fault

    assert faults == set(Fault)
    assert ends >= {"succeeded", "cancelled", "deadline", "expired", "attempts", "unknown_tenant"}
    assert "waiting_limit" in ends
    for what in ("killed", "cut off", "joins", "stops", "hangs", "policy", "snapshot", "clock"):
        assert what in events
    assert "is paused for" in events
    assert "is resumed" in events


def test_the_command_tells_a_history(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "66", "--steps"]) == 0
    told = capsys.readouterr().out
    assert "seed 66: " in told
    assert "every rule holds" in told
    assert " ms  scheduler-0" in told


def test_the_command_names_what_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from simulation.many import Verdict

    monkeypatch.setattr("simulation.many.play", lambda s: Verdict(s, f"BROKEN {s}", 1, 0))
    assert main(["--seeds", "7..9"]) == 1
    told = capsys.readouterr().out
    assert "BROKEN 8\n  to repeat it: python -m simulation --seed 8" in told
    assert "broken seeds: 7 8 9" in told


def test_seeds_are_repeated_as_given() -> None:
    assert chosen("3,9") == [3, 9]
    assert chosen("5..7") == [5, 6, 7]
    assert len(chosen("")) == CHUNK * CHUNKS
