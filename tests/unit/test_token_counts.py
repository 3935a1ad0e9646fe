"""Tokens counted as the model counts them, where its tokenizer is at hand."""

import argparse
import asyncio
import json
from pathlib import Path

import pytest

from adapters.memory import MemoryLog
from fairlane.errors import FairlaneError
from fairlane.token_counts import Tokenizer, load, tokenizer
from producers.core.inputs import EXACT_BYTES_MAX, Inputs, count
from schemas import codec
from schemas.policy import Endpoint
from schemas.records import Request
from tests.support.door import Clock, door

ONE = Endpoint(name="chat", pool="chat", tokens_max=5_000)
MANY = Endpoint(name="embed", pool="embed", tokens_max=5_000, inputs_max=8)


def words(text: str) -> int:
    """A tokenizer whose tokens are words."""
    return len(text.split())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("one two three", 3),
        ({"input": "one two three four", "encoding_format": "float"}, 4),
        ([1, 2, 3, 4, 5], 5),
        ("", 1),
        ({"messages": ["a b"]}, 5),  # no text: by its bytes
        (7, 1),
    ],
)
def test_a_single_input_is_counted_exactly(given: object, expected: int) -> None:
    data = json.dumps(given).encode()
    assert count(data, ONE, words) == Inputs(1, expected)


def test_each_of_several_inputs_is_counted() -> None:
    data = json.dumps(["one two", "three", [5, 6, 7]]).encode()
    assert count(data, MANY, words) == Inputs(3, 6)
    assert count(json.dumps({"input": ["one two", "three"]}).encode(), MANY, words) == Inputs(2, 3)


def test_without_a_tokenizer_and_of_long_texts_bytes_tell() -> None:
    assert count(b'"one two three"', ONE) == Inputs(1, 3)
    long = json.dumps("a" * EXACT_BYTES_MAX).encode()
    assert count(long, ONE, words) == Inputs(1, len(long) // 4)


def test_a_count_is_clamped_as_an_estimate_is() -> None:
    small = Endpoint(name="chat", pool="chat", tokens_max=2)
    assert count(b'"one two three"', small, words) == Inputs(1, 2)


def test_the_door_publishes_the_count() -> None:
    async def scenario() -> None:
        counts = {"chat": words}
        async with door(MemoryLog(Clock()), token_counts=counts) as opened:
            assert (await opened.post(input="one two three")).status_code == 202
            assert (await opened.post(endpoint="large", input="x" * 400)).status_code == 202
            records = opened.records(opened.topics.requests("gold"))
            tokens = [codec.decode_header(record, Request).input_tokens for record in records]
            assert sorted(tokens) == [3, 100]

    asyncio.run(scenario())


def test_the_option_names_an_endpoint_and_a_folder() -> None:
    assert tokenizer("embed") == Tokenizer("embed", None)
    assert tokenizer("embed=/models/a=b") == Tokenizer("embed", Path("/models/a=b"))
    with pytest.raises(argparse.ArgumentTypeError, match="names no endpoint"):
        tokenizer("=/models")


def test_a_folder_without_the_models_tokenizer_is_told(tmp_path: Path) -> None:
    assert load([]) == {}
    with pytest.raises(FairlaneError, match=r"tokenizer\.json"):
        load([Tokenizer("embed", tmp_path)])
