"""Streams put together as one answer: pieces in, whole messages out."""

import json
from typing import Any

import pytest

from tests.support.openai_server import OpenAiServer
from tests.support.upstreams import chat, upstream
from workers.engines.upstream_answers import (
    AnswerError,
    error_text,
    retry_after_s,
    usage_of,
)
from workers.engines.upstream_embeddings import shares
from workers.engines.upstream_stream import Assembly, EventError, Events, TooLargeError
from workers.engines.upstream_wire import CHAT, call_for


def event(delta: dict[str, Any], index: int = 0, finish: str | None = None) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return json.dumps({"id": "a", "model": "m", "choices": [choice]}).encode()


def assembled(*events: bytes) -> Any:
    assembly = Assembly(CHAT, 10_000)
    for data in events:
        assembly.take(data)
    return json.loads(assembly.answer())


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_events_are_the_same_however_the_bytes_come(size: int, newline: bytes) -> None:
    lines = [
        b": comment",
        b"",
        b"event: x",
        b"data: one",
        b"",
        b"data:two",
        b"data: more",
        b"",
        b"",
    ]
    data = newline.join(lines)
    events = Events(1_000)
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert [e for piece in pieces for e in events.feed(piece)] == [b"one", b"two\nmore"]


def test_an_event_has_a_largest_size() -> None:
    events = Events(10)
    with pytest.raises(TooLargeError):
        list(events.feed(b"data: 01234567890"))


def test_texts_join_and_the_last_finish_reason_stands() -> None:
    answer = assembled(
        event({"role": "assistant", "content": ""}),
        event({"reasoning_content": "hm "}),
        event({"reasoning_content": "so"}),
        event({"content": "He"}),
        event({"content": "llo"}),
        event({}, finish="length"),
    )
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "reasoning_content": "hm so"},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]


def test_calls_of_tools_join_by_their_index() -> None:
    def piece(index: int, **rest: Any) -> bytes:
        return event({"tool_calls": [{"index": index, **rest}]})

    answer = assembled(
        piece(1, id="b", type="function", function={"name": "g", "arguments": ""}),
        piece(0, id="a", type="function", function={"name": "f", "arguments": "{"}),
        piece(1, function={"arguments": "[]"}),
        piece(0, function={"arguments": "}"}),
    )
    assert answer["choices"][0]["message"]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": "[]"}},
    ]
    assert answer["choices"][0]["message"]["content"] is None


def test_several_choices_stay_apart_and_all_must_finish() -> None:
    assembly = Assembly(CHAT, 10_000)
    for data in (event({"content": "b"}, 1), event({"content": "a"}, 0, "stop")):
        assembly.take(data)
    assert not assembly.is_complete
    assembly.take(event({}, 1, "stop"))
    assert assembly.is_complete
    choices = json.loads(assembly.answer())["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["a", "b"]


def test_a_choice_that_never_came_is_missed() -> None:
    assembly = Assembly(CHAT, 10_000, wanted=2)
    assembly.take(event({"content": "a"}, 0, "stop"))
    assert not assembly.is_complete
    assembly.take(event({"content": "b"}, 1, "stop"))
    assert assembly.is_complete


@pytest.mark.parametrize(
    ("body", "choices"),
    [
        ({"messages": [], "n": 3}, 3),
        ({"messages": []}, 1),
        ({"messages": [], "n": "many"}, 1),
        ({"prompt": "a", "n": 2}, 2),
        ({"prompt": ["a", "b"], "n": 2}, 4),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1], [2, 3]]}, 2),
    ],
)
def test_a_body_says_how_many_choices_it_wants(body: dict[str, Any], choices: int) -> None:
    assert call_for(json.dumps(body).encode()).choices == choices


def test_a_stream_that_ends_before_all_choices_is_broken() -> None:
    """The server knows one choice, two are wanted, and `[DONE]` never comes."""
    with upstream(tries=1) as up:
        outcome = up.run(chat("script:undone hi", stream=True, n=2))
        assert "before its end" in outcome.detail
        assert up.run(chat("script:undone hi", stream=True)).output


def test_what_is_empty_in_a_later_piece_of_a_call_replaces_nothing() -> None:
    def piece(**rest: Any) -> bytes:
        return event({"tool_calls": [{"index": 0, **rest}]})

    answer = assembled(
        piece(id="a", type="function", function={"name": "f", "arguments": "{"}),
        piece(id="", type="", function={"name": "", "arguments": "}"}),
        piece(id=None, function={"name": None}),
    )
    assert answer["choices"][0]["message"]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]


def test_a_function_call_of_the_old_kind_joins() -> None:
    answer = assembled(
        event({"role": "assistant", "content": None, "function_call": {"name": "f"}}),
        event({"function_call": {"name": "", "arguments": '{"a"'}}),
        event({"function_call": {"arguments": ": 1}"}}, finish="function_call"),
    )
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "f", "arguments": '{"a": 1}'},
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"function": "text"}, {"function": {"name": "f"}}),
        ({"function": {"name": "f"}}, {"function": "text"}),
        ({"function": {"arguments": 5}}, {"function": {"arguments": "x"}}),
        ({"function": {"arguments": {}}}, {"function": {"arguments": "x"}}),
    ],
)
def test_a_call_of_two_shapes_is_told(one: dict[str, Any], other: dict[str, Any]) -> None:
    with pytest.raises(AnswerError, match="two shapes"):
        assembled(*(event({"tool_calls": [{"index": 0, **part}]}) for part in (one, other)))


def test_log_probabilities_join() -> None:
    def piece(token: str) -> bytes:
        document = json.loads(event({"content": token}))
        document["choices"][0]["logprobs"] = {"content": [{"token": token, "logprob": -1}]}
        return json.dumps(document).encode()

    answer = assembled(piece("a"), piece("b"))
    tokens = [entry["token"] for entry in answer["choices"][0]["logprobs"]["content"]]
    assert tokens == ["a", "b"]


def test_done_without_any_choice_is_no_answer() -> None:
    assembly = Assembly(CHAT, 100)
    assembly.take(b"[DONE]")
    assert assembly.is_done
    assert not assembly.is_complete


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"{",
        b'{"choices": 7}',
        b'{"choices": [7]}',
        b'{"choices": [{"index": -1}]}',
        b'{"choices": [{"index": 1000000}]}',
        b'{"choices": [{"delta": {"tool_calls": [7]}}]}',
        b'{"choices": [{"delta": {"tool_calls": 5}}]}',
        b'{"choices": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    ],
)
def test_a_piece_out_of_shape_is_told(data: bytes) -> None:
    with pytest.raises(AnswerError):
        Assembly(CHAT, 100).take(data)


def test_an_error_in_a_stream_keeps_its_number() -> None:
    with pytest.raises(EventError, match="no such model") as caught:
        Assembly(CHAT, 100).take(b'{"error": {"message": "no such model", "code": 404}}')
    assert caught.value.code == 404


def test_an_answer_has_a_largest_size() -> None:
    assembly = Assembly(CHAT, 100)
    assembly.take(event({"content": "x" * 90}))
    with pytest.raises(TooLargeError):
        assembly.take(event({"content": "x" * 11}))


def test_what_a_stream_brings_is_what_a_whole_answer_says() -> None:
    """The same call both ways: message, reason and usage are equal."""
    body = chat("how are you today", tools=[])
    with upstream() as up:
        whole, streamed = (up.run({**body, "stream": stream}) for stream in (False, True))
    one, other = json.loads(whole.output), json.loads(streamed.output)
    assert one["choices"] == other["choices"]
    assert one["usage"] == other["usage"]
    assert {whole.usage.tokens} == {streamed.usage.tokens}


def test_a_tool_is_called_through_a_stream() -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    with upstream() as up:
        outcome = up.run(chat("hi", tools=tools, stream=True))
    (choice,) = json.loads(outcome.output)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Bern"}'}


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4}, (3, 4)),
        ({"prompt_tokens": 3, "total_tokens": 3}, (3, 0)),
        ({"total_tokens": 9}, (9, 0)),
        ({"prompt_tokens": -1}, None),
        ({"prompt_tokens": 1.5}, None),
        ({"prompt_tokens": 1 << 60}, None),
        ("many", None),
        (None, None),
    ],
)
def test_only_counts_are_believed(usage: object, tokens: tuple[int, int] | None) -> None:
    found = usage_of({"usage": usage})
    assert (found and (found.input_tokens, found.output_tokens)) == tokens


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"error": {"message": "no", "code": 400}}', "no"),
        (b'{"error": "no"}', "no"),
        (b'{"object": "error", "message": "no"}', "no"),
        (b'{"detail": "no"}', "no"),
        (b"<html>", "<html>"),
        (b"", "nothing"),
        (b"\xff" * 5_000, "\ufffd" * 300),
    ],
)
def test_a_servers_words_are_found_and_cut(data: bytes, text: str) -> None:
    assert error_text(data) == text


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3.0), ("0.5", 0.5), ("-1", 0.0), ("soon", None), ("", None), ("nan", None)],
)
def test_a_retry_after_is_read_or_left(value: str, seconds: float | None) -> None:
    assert retry_after_s(value, 0.0) == seconds


def test_a_retry_after_that_is_a_date_counts_from_now() -> None:
    assert retry_after_s("Fri, 01 Jan 2027 00:00:10 GMT", 1_798_761_600.0) == 10.0


@pytest.mark.parametrize("sizes", [[1], [0, 0, 0], [5, 0, 7, 100], [1, 1, 1]])
@pytest.mark.parametrize("total", [0, 1, 7, 1_000])
def test_shares_add_up(total: int, sizes: list[int]) -> None:
    found = shares(total, sizes)
    assert sum(found) == total
    assert min(found) >= 0


def test_the_test_server_counts_what_it_saw() -> None:
    with OpenAiServer() as server, upstream() as up:
        up.run(chat("hi"))
        assert up.server.acts == {"ok": 1}
        assert server.acts == {}
