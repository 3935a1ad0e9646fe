"""Traces: read whole or not at all, and every row comes out as one result."""

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from fairlane.demo import Options, run
from fairlane.demo_play import play
from fairlane.demo_scene import recorded
from fairlane.errors import FairlaneError
from simulation import tenants
from simulation.tenants import Asker, text_body
from simulation.traces import ANONYMOUS, Row, TraceError, arrivals_of, body_of, read_trace
from workers.engine import EngineRequest
from workers.engines.simulated import SimulatedEngine

HEADER = "arrival_ms,tenant,endpoint,input_tokens,output_tokens\n"
ASKER = Asker("acme", "standard", "embed")


def trace(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def counted(body: bytes) -> tuple[int, int]:
    return SimulatedEngine().tokens(EngineRequest(1, "r", "acme", "embed", body))


@pytest.mark.parametrize(("given", "made"), [((136, 256), (136, 256)), ((7, 5), (7, 5))])
def test_the_engine_counts_what_the_row_says(given: tuple[int, int], made: tuple[int, int]) -> None:
    assert counted(body_of(Row(0, "t", "e", *given))) == made


def test_a_row_too_short_for_json_takes_what_json_takes() -> None:
    assert counted(body_of(Row(0, "t", "e", 2, 300))) == (6, 300)


def test_every_row_ends_once(tmp_path: Path) -> None:
    random = Random(11)
    rows = [
        f"{at_ms},t{random.randrange(3)},{random.choice('ab')},{random.randrange(20, 90)},9\n"
        for at_ms in range(0, 4_000, 40)
    ]
    scene = recorded(trace(tmp_path, HEADER + "".join(rows)))
    tally = play(scene)
    assert tally.ended_count == tally.asked_count == 100
    for name in ("t0", "t1", "t2"):
        asked = sum(f",{name}," in row for row in rows)
        assert len(tally.tenants[name].waits_ms) == asked


def test_rows_without_a_tenant_belong_to_one(tmp_path: Path) -> None:
    (row,) = read_trace(trace(tmp_path, HEADER + "0,,chat,10,20\n"))
    assert row.tenant == ANONYMOUS
    (arrival,) = arrivals_of([row], "standard")
    assert (arrival.tenant, arrival.endpoint, arrival.output_tokens_max) == (row.tenant, "chat", 32)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ":1: the header is ''"),
        ("time,who\n0,a\n", ":1: the header is 'time,who'"),
        (HEADER, "a header and no request below it"),
        (HEADER + "0,t0,chat,10,20\n5,t0,chat,ten,20\n", ":3: input_tokens is 'ten'"),
        (HEADER + "0,t0,chat,10\n", ":2: 4 fields; there are 5"),
        (HEADER + "0,T 0,chat,10,20\n", ":2: tenant 'T 0' is not valid"),
        (HEADER + "0,t0,,10,20\n", ":2: endpoint '' is not valid"),
        (HEADER + "0,t0,chat,10,-1\n", ":2: output_tokens is '-1'"),
        (HEADER + "9,t0,chat,10,20\n8,t0,chat,10,20\n", ":3: arrival_ms is 8, before"),
        (HEADER + "0,t0,chat,999999999,20\n", ":2: input_tokens is '999999999'; it must be"),
    ],
)
def test_a_broken_trace_is_refused_by_line(tmp_path: Path, text: str, said: str) -> None:
    path = trace(tmp_path, text)
    with pytest.raises(TraceError) as refused:
        read_trace(path)
    assert str(path) in str(refused.value)
    assert said in str(refused.value)


def test_all_broken_lines_are_named_at_once(tmp_path: Path) -> None:
    path = trace(tmp_path, HEADER + "x,t0,chat,1,1\n" * 30)
    with pytest.raises(TraceError) as refused:
        read_trace(path)
    lines = str(refused.value).splitlines()
    assert [line.split(": ")[0] for line in lines[:2]] == [f"{path}:2", f"{path}:3"]
    assert lines[-1] == "... and 20 more"


def test_the_command_says_it_too(tmp_path: Path) -> None:
    with pytest.raises(FairlaneError, match="can't be read"):
        run(Options(trace=tmp_path / "absent.csv"))


# --- generators


def test_bodies_have_the_tokens_asked_for() -> None:
    assert [counted(text_body(tokens))[0] for tokens in (1, 2, 40, 160)] == [1, 2, 40, 160]


def test_steady_is_even() -> None:
    times = [a.at_ms for a in tenants.steady(Random(1), ASKER, 0, 1_000, 50)]
    assert len(times) == 20
    assert {later - earlier for earlier, later in pairwise(times)} == {50}


def test_poisson_has_its_rate() -> None:
    times = [a.at_ms for a in tenants.poisson(Random(2), ASKER, 0, 100_000, 20)]
    assert 1_800 < len(times) < 2_200  # four standard deviations of 2,000
    assert times == sorted(times)


def test_on_off_is_silent_when_off() -> None:
    times = [a.at_ms for a in tenants.on_off(Random(3), ASKER, 0, 20_000, 1_000, 3_000, 50)]
    assert times
    assert all(at_ms % 4_000 < 1_000 for at_ms in times)


def test_bursts_come_together() -> None:
    times = [a.at_ms for a in tenants.bursty(Random(4), ASKER, 0, 100_000, 5_000, 10)]
    sizes = [times.count(at_ms) for at_ms in dict.fromkeys(times)]
    assert len(sizes) > 5
    assert min(sizes) >= 5


def test_a_smaller_burst_is_the_beginning_of_a_larger_one() -> None:
    small, large = (tenants.burst(Random(5), ASKER, 7, count) for count in (10, 100))
    assert large[:10] == small


def test_few_are_few_and_in_time() -> None:
    times = [a.at_ms for a in tenants.few(Random(6), ASKER, 100, 200, 5)]
    assert len(times) == 5
    assert times == sorted(times)
    assert all(100 <= at_ms < 200 for at_ms in times)
