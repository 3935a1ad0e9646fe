"""The engine `upstream` before a real server: what it sends, what it makes of each answer."""

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from schemas.records import End
from tests.support.openai_server import OpenAiServer, vector
from tests.support.upstreams import PATIENCE_S, Upstream, chat, upstream
from workers.engine import EngineBatch, EngineOutcome, EngineRequest
from workers.engines.upstream_http import ANSWER_BYTES_MAX, Try
from workers.engines.upstream_wire import Call

STREAMED = [False, True]


@pytest.fixture
def up() -> Iterator[Upstream]:
    with upstream() as made:
        yield made


def content(outcome: EngineOutcome) -> Any:
    return json.loads(outcome.output)["choices"][0]["message"]["content"]


# --- what is sent


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (chat("hi"), "/v1/chat/completions"),
        ({"prompt": "hi"}, "/v1/completions"),
        ({"input": "hi"}, "/v1/embeddings"),
        ("hi", "/v1/embeddings"),
        (["hi", "you"], "/v1/embeddings"),
    ],
)
def test_the_route_follows_from_the_body(up: Upstream, body: object, path: str) -> None:
    assert up.run(body).end is End.SUCCEEDED
    assert [seen.path for seen in up.server.seen] == [path]


def test_a_fixed_route_takes_any_object(up: Upstream) -> None:
    with upstream(route="/v1/rerank") as fixed:
        fixed.run({"query": "q", "messages": [{"content": "hi"}]})
        assert fixed.server.seen[0].path == "/v1/rerank"


def test_a_body_goes_through_untouched_but_for_the_model_it_lacks(up: Upstream) -> None:
    body = b'{"messages": [{"content":  "a\\u00e9"}], "temperature": 0.10, "x": [1e3, null]}'
    up.run(body)
    assert up.server.seen[0].body == (
        b'{"messages":[{"content":  "a\\u00e9"}],"temperature":0.10,"x":[1e3, null],"model":"m"}'
    )
    up.run(chat("hi", model="its own"))
    assert up.server.seen[1].json["model"] == "its own"


def test_the_trace_the_id_and_the_key_travel_and_nothing_else_of_the_caller() -> None:
    with upstream(key="sesame") as up:
        up.run(chat("hi"))
        headers = up.server.seen[0].headers
    assert headers["x-request-id"] == "id-1"
    assert headers["authorization"] == "Bearer sesame"
    assert headers["traceparent"].startswith("00-0af7651916cd43dd")
    assert "x" not in headers


@pytest.mark.parametrize("path", ["messages", "prompt"])
@pytest.mark.parametrize(
    "options", [{}, {"stream_options": None}, {"stream_options": {"include_usage": False, "x": 1}}]
)
def test_no_caller_switches_the_usage_of_a_stream_off(
    up: Upstream, path: str, options: dict[str, Any]
) -> None:
    body = chat("hi") if path == "messages" else {"prompt": "hi"}
    outcome = up.run({**body, "stream": True, **options})
    own = options.get("stream_options") or {}
    assert up.server.seen[0].json["stream_options"] == {**own, "include_usage": True}
    assert outcome.usage.input_tokens == 1  # as the server counts
    assert json.loads(outcome.output)["usage"]["prompt_tokens"] == 1


def test_options_of_a_stream_are_left_where_there_is_none(up: Upstream) -> None:
    up.run(chat("hi", stream=False, stream_options=None))
    assert up.server.seen[0].json["stream_options"] is None


@pytest.mark.parametrize(
    "members", [{"stream": 1}, {"stream": "yes"}, {"stream": True, "stream_options": 5}]
)
def test_a_stream_that_servers_would_guess_at_is_refused(
    up: Upstream, members: dict[str, Any]
) -> None:
    outcome = up.run(chat("hi", **members))
    assert (outcome.reason, up.server.seen) == ("engine_refused", [])
    assert "stream" in outcome.detail


def test_connections_are_kept(up: Upstream) -> None:
    for _ in range(5):
        up.run(chat("hi", stream=True))
        up.run(chat("hi"))
    assert up.server.connections == 1


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"7", {"temperature": 1}])
def test_a_body_that_makes_no_call_is_refused_without_one(up: Upstream, body: object) -> None:
    outcome = up.run(body)
    assert (outcome.end, outcome.reason) == (End.FAILED, "engine_refused")
    assert "the body" in outcome.detail
    assert up.server.seen == []


DEEP = b"[" * 20_000 + b"]" * 20_000


@pytest.mark.parametrize("body", [DEEP, b'{"messages":' + DEEP + b"}", b'{"input":' + DEEP + b"}"])
def test_a_body_nested_too_deeply_is_refused_alone(up: Upstream, body: bytes) -> None:
    deep, other = up.run_all(body, chat("hi"))
    assert (deep.reason, "nested too deeply" in deep.detail) == ("engine_refused", True)
    assert other.end is End.SUCCEEDED


# --- what is answered


@pytest.mark.parametrize("stream", STREAMED)
def test_a_chat_is_answered_whole_and_charged_what_the_server_counts(
    up: Upstream, stream: bool
) -> None:
    outcome = up.run(chat("how are you", stream=stream, reasoning_effort="low"))
    answer = json.loads(outcome.output)
    assert outcome.end is End.SUCCEEDED
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["message"]["content"] == "You said: how are you"
    usage = outcome.usage
    assert (usage.input_tokens, usage.cached_tokens, usage.reasoning_tokens) == (3, 1, 2)
    assert usage.output_tokens == answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("stream", STREAMED)
def test_a_completion_is_answered_whole(up: Upstream, stream: bool) -> None:
    outcome = up.run({"prompt": "once upon", "stream": stream})
    answer = json.loads(outcome.output)
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == "You said: once upon"
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (2, 4)


def test_an_embedding_comes_back_as_the_server_wrote_it(up: Upstream) -> None:
    floats = json.loads(up.run("a text").output)
    packed = json.loads(up.run({"input": "a text", "encoding_format": "base64"}).output)
    assert floats["data"][0]["embedding"] == vector("a text")
    assert isinstance(packed["data"][0]["embedding"], str)


@pytest.mark.parametrize("stream", STREAMED)
def test_an_answer_without_usage_is_not_free(up: Upstream, stream: bool) -> None:
    usage = up.run(chat("script:nousage one two", stream=stream)).usage
    assert usage.input_tokens == -(-len(up.server.seen[0].body) // 4)
    assert usage.output_tokens > 0


def test_a_whole_answer_to_a_stream_is_taken(up: Upstream) -> None:
    assert content(up.run(chat("script:json hi", stream=True))) == "You said: script:json hi"


# --- what goes wrong


@pytest.mark.parametrize("status", [400, 402, 404, 413, 422])
def test_a_4xx_ends_the_request_with_the_servers_words(up: Upstream, status: int) -> None:
    outcome = up.run(chat(f"script:{status}"))
    assert (outcome.end, outcome.reason) == (End.FAILED, "engine_refused")
    assert outcome.detail == f"{status}: scripted {status}"
    assert outcome.usage.tokens == 0
    assert len(up.acts) == 1


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("500", "500: scripted 500"),
        ("503", "503: scripted 503"),
        ("408", "408: scripted 408"),
        ("425", "425: scripted 425"),
        ("close", "RemoteProtocolError"),
        ("garbage", "no JSON"),
        ("break", "RemoteProtocolError"),
    ],
)
def test_a_failed_try_is_tried_again_and_ends_by_name(up: Upstream, act: str, words: str) -> None:
    assert content(up.run(chat(f"script:{act},{act},ok"))).startswith("You said")
    assert up.acts == [act, act, "ok"]
    outcome = up.run(chat(f"script:{act}"))
    assert (outcome.end, outcome.reason) == (End.FAILED, "engine_failed")
    assert outcome.detail.startswith("after 3 tries: ")
    assert words in outcome.detail
    assert up.acts[3:] == [act] * 3


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("break=2", "RemoteProtocolError"),
        ("nodone=2", "the stream ended after 2 pieces"),
        ("error=2", "the server failed in its stream: scripted"),
        ("garbage", "no JSON"),
    ],
)
def test_a_broken_stream_is_tried_again_and_ends_by_name(
    up: Upstream, act: str, words: str
) -> None:
    assert content(up.run(chat(f"script:{act},ok and so on", stream=True))).endswith("so on")
    outcome = up.run(chat(f"script:{act} and so on", stream=True))
    assert (outcome.end, outcome.reason) == (End.FAILED, "engine_failed")
    assert outcome.detail.startswith("after 3 tries: ")
    assert words in outcome.detail


def test_a_stream_that_broke_on_its_last_try_is_charged_by_the_most_that_came(
    up: Upstream,
) -> None:
    outcome = up.run(chat("script:break=3,break=1 a b c d", stream=True))
    assert outcome.end is End.FAILED
    assert outcome.usage.output_tokens == 3
    assert outcome.usage.input_tokens == -(-len(up.server.seen[0].body) // 4)


def test_half_an_answer_is_charged_by_its_size(up: Upstream) -> None:
    usage = up.run(chat("script:break " + "word " * 100)).usage
    assert usage.output_tokens > 50


@pytest.mark.parametrize(
    ("act", "stream"), [("endless", False), ("endless", True), ("longline", True)]
)
def test_a_server_that_never_stops_is_left(up: Upstream, act: str, stream: bool) -> None:
    outcome = up.run(chat(f"script:{act}", stream=stream))
    assert (outcome.end, outcome.reason) == (End.FAILED, "engine_failed")
    assert "more than 1000000 bytes" in outcome.detail
    assert up.acts == [act]


@pytest.mark.parametrize("setting", ["between_s", "whole_s"])
def test_a_silent_server_is_given_up(setting: str) -> None:
    with upstream(key="", **{setting: 0.05}) as up:
        outcome = up.run(chat("script:hang"))
        assert outcome.reason == "engine_failed"
        assert outcome.detail.startswith("after 3 tries: ")
        assert up.acts == ["hang"] * 3


@pytest.fixture
def deaf() -> Iterator[str]:
    """A server that takes connections and never reads from one."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


#: More than the buffers of a connection take.
LONG = "x" * (16 << 20)


@pytest.mark.parametrize(
    ("setting", "words"),
    [("whole_s", "the call took longer than 0.3 s"), ("between_s", "WriteTimeout")],
)
def test_a_server_that_does_not_read_is_given_up(deaf: str, setting: str, words: str) -> None:
    with upstream(key="", url=deaf, tries=1, **{setting: 0.3}) as up:
        outcome = up.run(chat(LONG))
    assert outcome.reason == "engine_failed"
    assert words in outcome.detail


def test_a_cancel_is_heard_while_a_server_does_not_read(deaf: str) -> None:
    looks = iter(range(1_000_000))
    with upstream(url=deaf, tries=1, between_s=2 * PATIENCE_S) as up:
        outcome = up.run(chat(LONG), cancelled=lambda _: next(looks) > 40)
    assert outcome.end is End.CANCELLED
    assert next(looks) < 50


def test_a_long_body_comes_whole(up: Upstream) -> None:
    text = "long " * 1_000_000
    up.run(chat(text))
    assert up.server.seen[0].json["messages"][0]["content"] == text


def test_a_server_that_is_not_there_ends_by_name() -> None:
    with OpenAiServer() as gone:
        pass
    with upstream(url=gone.url) as up:
        outcome = up.run(chat("hi"))
    assert outcome.reason == "engine_failed"
    assert outcome.detail == "after 3 tries: connecting to the server: ConnectError"


def test_an_address_is_for_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A server that is gone is logged once until it answers again, not once a try."""
    with OpenAiServer() as gone:
        pass
    with upstream(url=gone.url) as up:
        details = [up.run(chat("hi")).detail for _ in range(3)]
    assert not any(str(gone.port) in detail or "127.0.0.1" in detail for detail in details)
    assert [gone.url in record.getMessage() for record in caplog.records] == [True]


def test_a_server_that_speaks_of_its_address_is_not_quoted(up: Upstream) -> None:
    outcome = up.run(chat("script:400", say=f" at {up.server.url}/v1, 127.0.0.1:{up.server.port}"))
    assert outcome.detail == "400: scripted 400 at [server]/v1, [server]"


def test_the_number_of_tries_is_a_setting() -> None:
    with upstream(tries=1) as up:
        assert up.run(chat("script:500,ok")).detail == "after 1 tries: 500: scripted 500"
        assert up.acts == ["500"]


def test_the_key_is_never_in_a_detail() -> None:
    with upstream(key="scripted") as up:
        assert up.run(chat("script:400")).detail == "400: [key] 400"


# --- several requests in a batch


def test_embeddings_of_a_batch_go_in_one_call(up: Upstream) -> None:
    outcomes = up.run_all("one two", ["three", "four five six"], {"input": "seven"})
    assert len(up.server.seen) == 1
    vectors = [[d["embedding"] for d in json.loads(o.output)["data"]] for o in outcomes]
    assert vectors == [
        [vector("one two")],
        [vector("three"), vector("four five six")],
        [vector("seven")],
    ]
    indices = [[d["index"] for d in json.loads(o.output)["data"]] for o in outcomes]
    assert indices == [[0], [0, 1], [0]]
    assert sum(outcome.usage.input_tokens for outcome in outcomes) == 7
    assert [json.loads(o.output)["usage"]["total_tokens"] for o in outcomes] == [
        outcome.usage.input_tokens for outcome in outcomes
    ]


def test_an_answer_for_several_may_be_larger_than_one_for_one(up: Upstream) -> None:
    """Each part still has to fit into a record; the whole need not."""
    texts = [{"input": [letter] * 1_000, "dimensions": 100} for letter in "xy"]
    alone = [len(up.run(text).output) for text in texts]
    assert max(alone) < ANSWER_BYTES_MAX < sum(alone)
    before = len(up.server.seen)
    assert [outcome.end for outcome in up.run_all(*texts)] == [End.SUCCEEDED] * 2
    assert len(up.server.seen) == before + 1


def test_embeddings_with_other_options_go_alone(up: Upstream) -> None:
    outcomes = up.run_all("one", {"input": "two", "encoding_format": "base64"})
    assert len(up.server.seen) == 2
    assert [outcome.end for outcome in outcomes] == [End.SUCCEEDED] * 2


@pytest.mark.parametrize("act", ["deep", "odd"])
def test_a_malformed_answer_ends_its_own_request_alone(up: Upstream, act: str) -> None:
    odd, other = up.run_all(chat(f"script:{act}", stream=True), chat("hi", stream=True))
    assert (odd.end, odd.reason) == (End.FAILED, "engine_failed")
    assert other.end is End.SUCCEEDED


def test_a_fault_of_the_engine_ends_its_own_request_alone(
    up: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(call: Call, request: EngineRequest, cancelled: Callable[[], bool]) -> Try:
        if request.id == "id-1":
            raise TypeError(up.server.url)
        return whole(call, request, cancelled)

    whole = up.engine._server.call
    monkeypatch.setattr(up.engine._server, "call", call)
    broken, other = up.run_all(chat("hi"), chat("you"))
    assert (broken.reason, broken.detail) == ("engine_failed", "the engine failed: TypeError")
    assert other.end is End.SUCCEEDED


@pytest.mark.parametrize("status", ["400", "500"])
def test_one_bad_text_harms_no_neighbour(up: Upstream, status: str) -> None:
    good, bad, other = up.run_all("one", f"script:{status}", ["two", "three"])
    assert (good.end, bad.end, other.end) == (End.SUCCEEDED, End.FAILED, End.SUCCEEDED)
    assert f"{status}: scripted" in bad.detail
    assert json.loads(good.output)["data"][0]["embedding"] == vector("one")


@pytest.mark.parametrize("act", ["close", "503"])
def test_a_server_that_is_down_is_not_called_again_for_each_text(up: Upstream, act: str) -> None:
    texts = [f"script:{act}", "two", "three", "four"]
    outcomes = up.run_all(*texts)
    assert up.acts == [act] * 3
    assert {outcome.reason for outcome in outcomes} == {"engine_failed"}
    assert {outcome.detail[:14] for outcome in outcomes} == {"after 3 tries:"}


def test_what_failed_together_has_one_more_try_alone(up: Upstream) -> None:
    """llama.cpp answers 500 to a text that is too long: the others are well, but not 12 calls."""
    outcomes = up.run_all("one", "script:500", "three", "four")
    assert up.acts.count("500") == 3 + 1
    assert up.acts.count("ok") == 3
    assert outcomes[1].detail == "after 4 tries: 500: scripted 500"


def test_the_time_of_a_call_together_is_carried_on(
    up: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(call: Call, request: EngineRequest, cancelled: Callable[[], bool]) -> Try:
        up.clock.waited_s += 2.0 * (call.requests > 1)
        return whole(call, request, cancelled)

    whole = up.engine._server.call
    monkeypatch.setattr(up.engine._server, "call", call)
    good, bad = up.run_all("one", "script:400")
    assert (good.end, bad.reason) == (End.SUCCEEDED, "engine_refused")
    assert [good.usage.service_ms, bad.usage.service_ms] == [2_000, 2_000]


def test_texts_that_nobody_wants_end_together(up: Upstream) -> None:
    requests = tuple(up.request(text) for text in ("script:hang", "two"))
    outcomes = up.engine.run(EngineBatch(1, requests), lambda _: bool(up.acts))
    assert [outcome.end for outcome in outcomes] == [End.CANCELLED] * 2
    assert up.acts == ["hang"]


def test_chats_of_a_batch_are_called_abreast(up: Upstream) -> None:
    outcomes = up.run_all(*[chat(f"script:slow=50 {n}", stream=True) for n in range(4)])
    assert [content(outcome)[-1] for outcome in outcomes] == ["0", "1", "2", "3"]
    assert up.server.in_flight_max > 1


def test_each_request_of_a_batch_ends_for_itself(up: Upstream) -> None:
    outcomes = up.run_all(chat("hi"), b"no json", chat("script:400"), chat("script:500,ok"))
    assert [outcome.reason for outcome in outcomes] == ["", "engine_refused", "engine_refused", ""]
