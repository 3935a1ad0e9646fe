"""What a run of `fairlane embed` does about refusals that are nobody's text's fault."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from fairlane.client import AsyncClient
from fairlane.client_values import Accepted, Outcome, RefusedError, Submission
from fairlane.embed_ledger import Ledger
from fairlane.embed_run import Run, StopRunError, Tally, Wishes
from fairlane.embed_show import PlainShow
from fairlane.embed_sink import Sink
from fairlane.embed_source import Columns, open_source
from fairlane.errors import FairlaneError
from schemas.records import End
from tests.support.vectors import by_id


def answer(texts: list[str]) -> Outcome:
    data = [{"index": n, "embedding": [float(len(text)), 1.0]} for n, text in enumerate(texts)]
    return Outcome("id", End.SUCCEEDED, msgspec.json.encode({"model": "m", "data": data}))


def refused(status: int, reason: str) -> RefusedError:
    return RefusedError("not now", status=status, reason=reason)


class Client:
    """A client whose first answers are refusals."""

    def __init__(self, refusals: list[RefusedError]) -> None:
        self.refusals = refusals
        self.keys: list[str | None] = []

    async def submit(self, submission: Submission) -> Accepted:
        return Accepted("probe", "waiting", "key")

    async def wait(self, request_id: str) -> Outcome:
        return answer(["fairlane"])

    async def run_many(
        self, submissions: AsyncIterable[Submission], *, outstanding: int
    ) -> AsyncGenerator[tuple[Submission, Outcome | RefusedError], None]:
        async for submission in submissions:
            self.keys.append(submission.idempotency_key)
            if self.refusals:
                yield submission, self.refusals.pop(0)
            else:
                yield submission, answer(submission.input["input"])


class Doors:
    def __init__(self, client: Client) -> None:
        self._client = cast("AsyncClient", client)

    def probe(self) -> AsyncClient:
        return self._client

    def client(self, tenant: str) -> AsyncClient | None:
        return self._client

    async def failed(self) -> None:
        await asyncio.Event().wait()


class Broken(Doors):
    async def failed(self) -> None:
        raise FairlaneError("the deployment is gone")


def run(folder: Path, client: Client, doors: type[Doors] = Doors) -> Tally:
    (folder / "c.txt").write_text("".join(f"text {n}\n" for n in range(10)))
    said: list[str] = []

    async def story(ledger: Ledger) -> Tally:
        made = Run(
            open_source(folder / "c.txt", None, Columns()),
            ledger,
            Sink(ledger, has_tenant=False),
            doors(client),
            Wishes("embed", outstanding=2, rows_per_request=5),
            PlainShow(said.append),
        )
        await made.go(has_tenant=False)
        return made.tally

    with closing(Ledger(folder / "out")) as ledger:
        return asyncio.run(story(ledger))


def test_a_limit_is_waited_out_however_long_it_takes(tmp_path: Path) -> None:
    client = Client([refused(429, "rate_limit")] * 5)
    tally = run(tmp_path, client)
    assert (tally.embedded, tally.failed) == (10, 0)
    assert len(client.keys) == 7
    assert len(set(client.keys)) == 2
    assert len(by_id(tmp_path / "out")) == 10


@pytest.mark.parametrize(
    "refusal", [refused(503, "unavailable"), refused(401, "unauthenticated"), refused(502, "")]
)
def test_a_service_that_can_not_stops_the_run_and_not_its_rows(
    tmp_path: Path, refusal: RefusedError
) -> None:
    with pytest.raises(StopRunError, match="not now"):
        run(tmp_path, Client([refusal]))
    assert run(tmp_path, Client([])).failed == 0
    assert len(by_id(tmp_path / "out")) == 10


def test_a_refusal_of_nothing_known_is_the_rows_own(tmp_path: Path) -> None:
    refusals: list[Any] = [refused(422, "something_new")]
    tally = run(tmp_path, Client(refusals))
    assert (tally.embedded, tally.failed) == (5, 5)


def test_a_deployment_that_fails_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(StopRunError, match="is gone"):
        run(tmp_path, Client([]), Broken)
