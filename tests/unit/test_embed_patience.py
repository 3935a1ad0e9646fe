"""What a run of `fairlane embed` does about refusals that are nobody's text's fault."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from fairlane.client import AsyncClient
from fairlane.client_values import Accepted, Outcome, RefusedError, Submission
from fairlane.embed_ledger import Ledger
from fairlane.embed_model import ask_model
from fairlane.embed_parts import StopRunError, Tally, Wishes
from fairlane.embed_run import Run
from fairlane.embed_show import PlainShow
from fairlane.embed_sink import Sink
from fairlane.embed_source import Columns, open_source
from fairlane.errors import FairlaneError
from schemas.records import End
from tests.support import virtual_time
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

    def limited_s(self, endpoint: str) -> float:
        return 0.0

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


class Silent(Client):
    """Takes requests and answers none."""

    async def run_many(
        self, submissions: AsyncIterable[Submission], *, outstanding: int
    ) -> AsyncGenerator[tuple[Submission, Outcome | RefusedError], None]:
        async for submission in submissions:
            self.keys.append(submission.idempotency_key)
            await asyncio.Event().wait()
            yield submission, refused(500, "")


class Doors:
    where = "nowhere"

    def __init__(self, client: Client) -> None:
        self._client = cast("AsyncClient", client)

    def probe(self, tenants: Iterable[str]) -> AsyncClient:
        return self._client

    def client(self, tenant: str) -> AsyncClient | None:
        return self._client

    def why_not(self, tenant: str) -> tuple[str, str]:
        raise AssertionError

    async def failed(self) -> None:
        await asyncio.Event().wait()


class Broken(Doors):
    """Fails when the first request is there."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._keys = client.keys

    async def failed(self) -> None:
        while not self._keys:  # noqa: ASYNC110 - the fake has no event
            await asyncio.sleep(0)
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
        run(tmp_path, Silent([]), Broken)


class Silence(Client):
    """Does not even answer which model it is."""

    async def wait(self, request_id: str) -> Outcome:
        await asyncio.sleep(100)
        return answer(["fairlane"])


def ask(doors: Doors, said: list[str], folder: Path) -> None:
    (folder / "c.txt").write_text("text\n")
    source = open_source(folder / "c.txt", None, Columns())
    show = PlainShow(said.append)
    model = virtual_time.run(ask_model(doors, source, Wishes("embed", outstanding=2), show))
    assert model.name == "m"


def test_a_model_that_does_not_answer_is_waited_for_but_not_in_silence(tmp_path: Path) -> None:
    said: list[str] = []
    ask(Doors(Silence([])), said, tmp_path)
    assert len(said) == 2  # after 5 s and a minute later
    assert "waiting for the model at nowhere" in said[0]


def test_a_deployment_that_fails_before_the_model_answers_is_told(tmp_path: Path) -> None:
    client = Silence([])
    client.keys.append("begun")
    with pytest.raises(FairlaneError, match="is gone"):
        ask(Broken(client), [], tmp_path)
