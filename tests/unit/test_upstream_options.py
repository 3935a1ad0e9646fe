"""`fairlane worker --engine upstream`: options, the key of the environment, what is refused."""

import json
from collections.abc import Sequence

import pytest

from fairlane import engines
from fairlane.cli_services import parser
from fairlane.errors import FairlaneError
from schemas.records import End
from tests.support.openai_server import OpenAiServer
from tests.support.upstreams import chat
from workers.engine import EngineBatch, EngineRequest
from workers.engines.upstream import UpstreamEngine


def made(*options: str) -> UpstreamEngine:
    given = parser().parse_args(["worker", "--pool", "chat", "--engine", "upstream", *options])
    engine = engines.make(given)
    assert isinstance(engine, UpstreamEngine)
    return engine


def run(engine: UpstreamEngine, body: object) -> End:
    request = EngineRequest(1, "id-1", "acme", "chat", json.dumps(body).encode())
    (outcome,) = engine.run(EngineBatch(1, (request,)), lambda _: False)
    engine.close()
    return outcome.end


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_the_address_may_end_in_v1(path: str) -> None:
    with OpenAiServer() as server:
        assert (
            run(made("--upstream-url", server.url + path), chat("hi", model="x")) is End.SUCCEEDED
        )
        assert server.seen[0].path == "/v1/chat/completions"


def test_model_and_route_are_options() -> None:
    options = ("--upstream-model", "mini", "--upstream-route", "completions")
    with OpenAiServer() as server:
        assert run(made("--upstream-url", server.url, *options), {"prompt": "hi"}) is End.SUCCEEDED
        assert server.seen[0].json["model"] == "mini"
        assert server.seen[0].path == "/v1/completions"


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLANE_UPSTREAM_KEY", "sesame")
    with OpenAiServer() as server:
        engine = made("--upstream-url", server.url)
        assert "sesame" not in repr(engine)
        run(engine, chat("hi"))
        assert server.seen[0].headers["authorization"] == "Bearer sesame"


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--upstream-url", "localhost:8000"),
        ("--upstream-url", "ftp://host"),
        ("--upstream-url", "http://me:secret@host"),
        ("--upstream-url", "http://host/v1?key=secret"),
    ],
)
def test_an_address_that_is_none_is_refused(options: Sequence[str]) -> None:
    with pytest.raises(FairlaneError, match="--upstream-url") as caught:
        made(*options)
    assert "secret" not in str(caught.value)


def test_a_key_that_no_header_may_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLANE_UPSTREAM_KEY", "two\nlines")
    with pytest.raises(FairlaneError, match="FAIRLANE_UPSTREAM_KEY") as caught:
        made("--upstream-url", "http://host")
    assert "lines" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        ("--upstream-route", "chatty"),
        ("--upstream-route", "/a b"),
        ("--upstream-tries", "0"),
        ("--upstream-between-s", "0"),
        ("--upstream-whole-s", "nan"),
        ("--upstream-connect-s", "soon"),
    ],
)
def test_an_option_out_of_range_is_refused(
    options: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        made("--upstream-url", "http://host", *options)
    assert options[0] in capsys.readouterr().err
