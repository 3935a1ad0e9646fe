"""`fairlane embed` on an embedded deployment: what ends in DEST, what fails, what is repeated."""

import asyncio
import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from struct import unpack
from typing import Any

import msgspec
import pytest

from fairlane.embed_doors import Here
from fairlane.embed_ledger import Ledger
from fairlane.embed_parts import StopRunError, Tally, Wishes
from fairlane.embed_run import FAILED_FILE, Run
from fairlane.embed_sink import Sink
from fairlane.embed_source import Row
from fairlane.embedded import Embedded, one_endpoint
from fairlane.errors import FairlaneError
from schemas.reasons import Reason
from tests.support.vectors import by_id
from workers.engine import EngineBatch, EngineOutcome, failed
from workers.engines.simulated import SimulatedEngine, SimulatedSettings
from workers.engines.simulated_vectors import Vectors

DIMENSIONS = 16
SETTINGS = SimulatedSettings(fixed_ms=1, per_token_us=0, dimensions=DIMENSIONS)
TENANTS = ["t0", "t1", "t2"]


class Engine:
    """The simulated model; refuses a request with a text that has `bad` in it."""

    def __init__(self, settings: SimulatedSettings = SETTINGS) -> None:
        self.model = SimulatedEngine(settings)
        self.texts: list[str] = []
        self.requests = 0
        self.change_after: int | None = None

    def run(self, batch: EngineBatch, cancelled: Callable[[int], bool]) -> Sequence[EngineOutcome]:
        outcomes = list(self.model.run(batch, cancelled))
        for index, request in enumerate(batch.requests):
            texts = json.loads(request.body)["input"]
            self.requests += 1
            if any("bad" in text for text in texts):
                outcomes[index] = failed(Reason.ENGINE_REFUSED, "a word that I don't take")
            else:
                self.texts += texts
            if self.requests == self.change_after:
                self.model = SimulatedEngine(SETTINGS._replace(seed=1))
        return outcomes


class Rows:
    """A source in memory; `read` is how far it was read."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self.read = 0

    def count(self) -> int:
        return len(self._rows)

    def rows(self) -> Iterator[Row]:
        for row in self._rows:
            self.read += 1
            yield row


class KilledError(BaseException):
    """The process ends here."""


class Show:
    """Keeps what is told; kills when so many rows are done."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.told: list[str] = []
        self.looks: list[int] = []
        self.look: Callable[[], int] = lambda: 0
        self._kill_at = kill_at

    def begin(self, total: int) -> None:
        self.total = total

    def rows(self, done: int, failed: int, embedded: int, waits_for: str) -> None:
        self.looks.append(self.look() - done)
        if self._kill_at is not None and done >= self._kill_at:
            raise KilledError

    def say(self, text: str) -> None:
        self.told.append(text)


def corpus(count: int, tenants: Sequence[str] = ("",), text: str = "text") -> list[Row]:
    return [Row(n, f"id{n}", f"{text} {n}", tenants[n % len(tenants)]) for n in range(1, count + 1)]


async def go(
    deployment: Embedded,
    folder: Path,
    rows: Sequence[Row],
    show: Show | None = None,
    **wishes: Any,
) -> Tally:
    source = Rows(rows)
    show = show or Show()
    has_tenant = any(row.tenant for row in rows)
    doors = Here(deployment, has_tenant=has_tenant)
    with closing(Ledger(folder)) as ledger:
        show.look = lambda: source.read
        sink = Sink(ledger, has_tenant=has_tenant, shard_rows=100)
        asked = Wishes(**{"endpoint": "embed", "outstanding": 8, "rows_per_request": 5, **wishes})
        run = Run(source, ledger, sink, doors, asked, show)
        try:
            await run.go(has_tenant=has_tenant)
        finally:
            await doors.aclose()
    return run.tally


def deployment(engine: Engine, tenants: Sequence[str] = ("default",)) -> Embedded:
    return Embedded(one_endpoint("embed", list(tenants)), {"embed": engine}, slots=2)


def embed(folder: Path, rows: Sequence[Row], engine: Engine | None = None, **wishes: Any) -> Tally:
    async def story() -> Tally:
        tenants = sorted({row.tenant for row in rows} - {""}) or ["default"]
        async with deployment(engine or Engine(), tenants) as opened:
            return await go(opened, folder, rows, **wishes)

    return asyncio.run(story())


def check(folder: Path, rows: Sequence[Row], settings: SimulatedSettings = SETTINGS) -> None:
    """DEST has exactly these rows, each with the vector of its text."""
    vectors = Vectors(DIMENSIONS, repr(settings))
    found = by_id(folder)
    assert found.keys() == {row.id for row in rows}
    for row in rows:
        stored = found[row.id]
        assert stored["vector"] == list(unpack(f"<{DIMENSIONS}f", vectors.vector(row.text)))
        assert stored["text_sha256"] == sha256(row.text.encode()).hexdigest()
        assert (stored["model"], stored["model_sha256"]) == ("simulated", vectors.model_sha256)
        assert stored.get("tenant", "") == row.tenant


def failures(folder: Path) -> dict[str, str]:
    lines = (folder / FAILED_FILE).read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert all(line["detail"] and line["row"] for line in found)
    return {line["id"]: line["reason"] for line in found}


def test_every_row_of_three_tenants_has_its_vector(tmp_path: Path) -> None:
    rows = corpus(333, TENANTS)
    tally = embed(tmp_path, rows)
    assert (tally.embedded, tally.unchanged, tally.failed) == (333, 0, 0)
    check(tmp_path, rows)
    assert not (tmp_path / FAILED_FILE).exists()


def test_only_the_bad_rows_of_a_refused_request_fail(tmp_path: Path) -> None:
    bad = {"id3", "id4", "id50", "id100"}
    rows = [row._replace(text=f"bad {row.text}") if row.id in bad else row for row in corpus(100)]
    tally = embed(tmp_path, rows, rows_per_request=32)
    assert (tally.embedded, tally.failed) == (96, 4)
    check(tmp_path, [row for row in rows if row.id not in bad])
    assert failures(tmp_path) == dict.fromkeys(bad, "engine_refused")


def test_rows_that_can_not_be_read_or_come_twice_fail_by_name(tmp_path: Path) -> None:
    rows = corpus(10)
    rows += [
        Row(11, "id3", "another text"),
        Row(12, "12", "", "", "unreadable", "no JSON object"),
        Row(13, "blank", "", "", "no_text", "the text is empty"),
    ]
    tally = embed(tmp_path, rows)
    assert (tally.embedded, tally.failed) == (10, 3)
    check(tmp_path, corpus(10))
    assert failures(tmp_path) == {
        "id3": "duplicate_id",
        "12": "unreadable",
        "blank": "no_text",
    }


def test_a_second_run_asks_for_what_changed_alone(tmp_path: Path) -> None:
    rows = corpus(250)
    embed(tmp_path, rows)
    engine = Engine()
    tally = embed(tmp_path, rows, engine)
    assert (tally.embedded, tally.unchanged) == (0, 250)
    assert engine.texts == ["fairlane"]
    rows[17] = rows[17]._replace(text="another")
    rows.append(Row(251, "more", "a new one"))
    tally = embed(tmp_path, rows, engine := Engine())
    assert (tally.embedded, tally.unchanged) == (2, 249)
    assert sorted(engine.texts) == ["a new one", "another", "fairlane"]
    check(tmp_path, rows)


def test_failed_rows_are_tried_again_by_the_next_run(tmp_path: Path) -> None:
    rows = [*corpus(20), Row(21, "id21", "bad luck")]
    assert embed(tmp_path, rows).failed == 1
    rows[20] = Row(21, "id21", "good luck")
    assert embed(tmp_path, rows).failed == 0
    check(tmp_path, rows)
    assert not (tmp_path / FAILED_FILE).exists()


def test_rows_that_left_the_source_stay_or_are_pruned(tmp_path: Path) -> None:
    rows = corpus(30)
    embed(tmp_path, rows)
    embed(tmp_path, rows[10:])
    check(tmp_path, rows)
    assert embed(tmp_path, rows[10:], prune=True).pruned == 10
    check(tmp_path, rows[10:])


def test_nothing_is_pruned_after_rows_without_a_name(tmp_path: Path) -> None:
    rows = corpus(30)
    embed(tmp_path, rows)
    broken = Row(11, "11", "", "", "unreadable", "no JSON object")
    assert embed(tmp_path, [*rows[:10], broken], prune=True).pruned == 0
    check(tmp_path, rows)


def test_a_new_model_embeds_everything_again(tmp_path: Path) -> None:
    rows = corpus(50)
    embed(tmp_path, rows)
    other = SETTINGS._replace(seed=7)
    assert embed(tmp_path, rows, Engine(other)).embedded == 50
    check(tmp_path, rows, other)


def test_a_model_that_changes_in_the_middle_stops_the_run(tmp_path: Path) -> None:
    rows = corpus(300)
    engine = Engine()
    engine.change_after = 20
    with pytest.raises(StopRunError, match="another model"):
        embed(tmp_path, rows, engine)
    assert {row["model_sha256"] for row in by_id(tmp_path).values()} == {
        Vectors(DIMENSIONS, repr(SETTINGS)).model_sha256
    }
    embed(tmp_path, rows, engine)
    check(tmp_path, rows, SETTINGS._replace(seed=1))


def test_rows_of_a_tenant_that_is_none_fail_by_name_and_others_go_on(tmp_path: Path) -> None:
    rows = corpus(30, TENANTS)

    async def story() -> Tally:
        async with deployment(Engine(), TENANTS[:2]) as opened:
            return await go(opened, tmp_path, rows)

    assert asyncio.run(story()).failed == 10
    check(tmp_path, [row for row in rows if row.tenant != "t2"])
    assert set(failures(tmp_path).values()) == {"no_tenant"}


def test_an_endpoint_without_vectors_is_told_before_the_first_row(tmp_path: Path) -> None:
    engine = Engine(SETTINGS._replace(dimensions=0))
    with pytest.raises(FairlaneError, match="gives no vectors"):
        embed(tmp_path, corpus(10), engine)
    with pytest.raises(FairlaneError, match="unknown_endpoint"):
        embed(tmp_path, corpus(10), endpoint="nowhere")


@pytest.mark.parametrize("kill_at", [1, 40, 123, 260])
def test_a_run_that_goes_on_computes_nothing_twice(tmp_path: Path, kill_at: int) -> None:
    """The deployment outlives the run: what was asked for is there when it is asked for again."""
    rows = corpus(301, TENANTS)
    rows[150] = rows[150]._replace(text="bad luck")
    engine = Engine()

    async def story() -> Tally:
        async with deployment(engine, TENANTS) as opened:
            with suppress(KilledError):
                try:
                    await go(opened, tmp_path, rows, Show(kill_at))
                except BaseExceptionGroup as error:
                    raise error.exceptions[0] from error
            return await go(opened, tmp_path, rows)

    tally = asyncio.run(story())
    assert (tally.embedded + tally.unchanged, tally.failed) == (300, 1)
    good = [row for row in rows if "bad" not in row.text]
    check(tmp_path, good)
    computed = sorted(text for text in engine.texts if text != "fairlane")
    assert computed == sorted(row.text for row in good)


def test_a_tenant_at_its_limit_holds_up_no_other(tmp_path: Path) -> None:
    """Its limit lets in four requests a minute; the others are done before the next four."""
    rows = corpus(600, TENANTS)
    policy = one_endpoint("embed", TENANTS)
    limited = msgspec.structs.replace(policy.tenants[0], requests_per_minute={"embed": 20})
    policy = msgspec.structs.replace(policy, tenants=(limited, *policy.tenants[1:]))
    engine = Engine()

    async def story() -> None:
        async with Embedded(policy, {"embed": engine}, slots=2) as opened:
            await killed(opened, tmp_path, rows, at=400)

    asyncio.run(story())
    of_others = {row.text for row in rows if row.tenant != "t0"}
    assert len(of_others & set(engine.texts)) >= 400 - 40
    assert len(set(engine.texts) - of_others) < 50


async def killed(
    opened: Embedded, folder: Path, rows: Sequence[Row], at: int = 100, **wishes: Any
) -> None:
    """A run that ends in the middle, with requests under way."""
    with suppress(KilledError):
        try:
            await go(opened, folder, rows, Show(at), **wishes)
        except BaseExceptionGroup as error:
            raise error.exceptions[0] from error


def test_another_model_after_a_kill_is_given_no_answers_of_the_old_one(tmp_path: Path) -> None:
    rows = corpus(300)
    engine = Engine()

    async def story() -> Tally:
        async with deployment(engine) as opened:
            await killed(opened, tmp_path, rows)
            engine.model = SimulatedEngine(SETTINGS._replace(seed=7))
            return await go(opened, tmp_path, rows)

    assert asyncio.run(story()).failed == 0
    check(tmp_path, rows, SETTINGS._replace(seed=7))


def test_a_model_that_was_changed_and_changed_back_embeds_all(tmp_path: Path) -> None:
    """Answers of the other model are stored under names of requests to this one."""
    rows = corpus(300)
    engine = Engine()
    engine.change_after = 20

    async def story() -> Tally:
        async with deployment(engine) as opened:
            with pytest.raises(StopRunError, match="another model"):
                await go(opened, tmp_path, rows)
            engine.model = SimulatedEngine(SETTINGS)
            return await go(opened, tmp_path, rows)

    assert asyncio.run(story()).failed == 0
    check(tmp_path, rows)


def test_another_priority_after_a_kill_is_no_other_request_of_the_same_name(tmp_path: Path) -> None:
    rows = corpus(300)

    async def story() -> Tally:
        async with deployment(Engine()) as opened:
            await killed(opened, tmp_path, rows, priority=100, rows_per_request=1)
            return await go(opened, tmp_path, rows, priority=900, rows_per_request=1)

    assert asyncio.run(story()).failed == 0
    check(tmp_path, rows)


def test_what_could_not_be_recorded_is_not_counted(tmp_path: Path) -> None:
    rows = corpus(250)

    async def story() -> Tally:
        tally: list[Tally] = []
        async with deployment(Engine()) as opened:
            with closing(Ledger(tmp_path)) as ledger:
                steps = 0

                def full(step: str) -> None:
                    nonlocal steps
                    steps += step == "record"
                    if steps > 1:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

                sink = Sink(ledger, has_tenant=False, shard_rows=100, step=full)
                doors = Here(opened, has_tenant=False)
                run = Run(Rows(rows), ledger, sink, doors, Wishes("embed", 8, 5), Show())
                with pytest.raises(StopRunError, match="No space left"):
                    await run.go(has_tenant=False)
                await doors.aclose()
                tally.append(run.tally)
        return tally[0]

    assert asyncio.run(story()).embedded == len(by_id(tmp_path)) == 100


def test_the_source_is_read_no_further_than_there_is_room(tmp_path: Path) -> None:
    show = Show()

    async def story() -> None:
        async with deployment(Engine()) as opened:
            await go(opened, tmp_path, corpus(3_000), show, outstanding=4, rows_per_request=20)

    asyncio.run(story())
    assert max(show.looks) <= 4 * 20 + 500 + 20  # under way, a chunk, an open group
    assert len(show.looks) > 100
