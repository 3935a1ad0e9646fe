"""Several inputs in one request: how many there are, and the tokens of each.

At an endpoint with `inputs_max` above 0 an array counts by its elements, whether it is the
input itself or stands under `input` of an object, as clients of embeddings send it. Any
element is one input: a string, an object, or an array of numbers (a text as tokens). An
array of nothing but whole numbers is a single text as tokens, so it is one input.

Tokens are counted exactly where the model's tokenizer is at hand and the text is short, or where
the text comes as tokens; else they are estimated by its bytes.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from schemas.policy import Endpoint

#: Usual English text; the scheduler settles with what the engine counted.
BYTES_PER_TOKEN = 4

#: Taking a text apart takes 50 us a kB, and everybody else waits: longer inputs are estimated.
EXACT_BYTES_MAX = 16_384

#: Counts the tokens of a text as the model does; pure, safe to be called in place.
TokenCount = Callable[[str], int]

_FIRST_IS_NUMBER = re.compile(rb"\[[ \t\n\r]*[-0-9]")


class Inputs(NamedTuple):
    """So many inputs, and the sum of their estimates, each clamped by the endpoint.

    Of more than the endpoint takes there is no estimate: `tokens` is 0.
    """

    number: int
    tokens: int


class _Envelope(msgspec.Struct):
    """An object as the input: of its fields only one is looked at."""

    input: msgspec.Raw = msgspec.Raw(b"null")


def count(data: bytes, endpoint: Endpoint, exact: TokenCount | None = None) -> Inputs:
    """Count the inputs in the raw JSON of `input`, which was read once already: it is valid.

    `exact` counts as the endpoint's model does; None: its tokenizer is not at hand. Raises
    RecursionError when it is nested too deeply to be read again.
    """
    if len(data) > EXACT_BYTES_MAX:
        exact = None
    elements = _elements(data) if endpoint.inputs_max else None
    if elements is None:
        return Inputs(1, _tokens(_text(data) if exact else data, endpoint, exact))
    if len(elements) > endpoint.inputs_max:
        return Inputs(len(elements), 0)
    tokens = sum(_tokens(bytes(element), endpoint, exact) for element in elements)
    return Inputs(len(elements), tokens)


def _tokens(data: bytes, endpoint: Endpoint, exact: TokenCount | None) -> int:
    tokens = len(data) // BYTES_PER_TOKEN
    if exact and data.startswith(b'"'):
        tokens = exact(msgspec.json.decode(data, type=str))
    elif exact and _is_text_as_tokens(data):
        tokens = len(msgspec.json.decode(data, type=list[int]))
    return min(max(1, tokens), endpoint.tokens_max)


def _text(data: bytes) -> bytes:
    """The text of a single input: what stands under `input` of an object, if it is one."""
    if not data.startswith(b"{"):
        return data
    inner = bytes(msgspec.json.decode(data, type=_Envelope).input)
    return data if inner == b"null" else inner


def _elements(data: bytes) -> list[msgspec.Raw] | None:
    """Elements of the array of inputs; None when there is no such array."""
    if data.startswith(b"{"):
        data = bytes(msgspec.json.decode(data, type=_Envelope).input)
    if not data.startswith(b"["):
        return None
    if _is_text_as_tokens(data):
        return None
    return msgspec.json.decode(data, type=list[msgspec.Raw])


def _is_text_as_tokens(data: bytes) -> bool:
    """Asked first: such a text has the most elements, and as numbers they are read fastest."""
    if not _FIRST_IS_NUMBER.match(data):
        return False
    try:
        msgspec.json.decode(data, type=list[int])
    except msgspec.DecodeError:
        return False
    return True
