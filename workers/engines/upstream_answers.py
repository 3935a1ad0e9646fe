"""What a server that speaks OpenAI's interface answers: usage, errors, whole answers.

Usage is what the server says. Where it says nothing, tokens are estimated: a token for each
piece that a stream brought, otherwise one for `BYTES_PER_TOKEN` bytes. Too much or too little
by a third, but never free.
"""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from math import isnan
from typing import Any

import msgspec

from schemas.records import Usage
from workers.engines.upstream_wire import CHAT, COMPLETIONS, EMBEDDINGS

#: Bytes of text to a token, where nobody counted: English under the usual vocabularies.
BYTES_PER_TOKEN = 4
#: A server's own words in a detail: enough to act on; a result keeps 500 characters.
MESSAGE_CHARS_MAX = 300
#: Counts above this are no counts; every reader of the wire holds those below exactly.
COUNT_MAX = 1 << 53

#: The member that an answer of a route can't be without.
_NEEDED = {CHAT: "choices", COMPLETIONS: "choices", EMBEDDINGS: "data"}


class AnswerError(Exception):
    """An answer is not what the interface promises."""


def answer_of(output: bytes, route: str) -> dict[str, Any]:
    """Decode and check a whole answer. Raises AnswerError."""
    answer = object_of(output)
    if "error" in answer and isinstance(answer["error"], dict):
        raise AnswerError(f"the server answered 200 with an error: {error_text(output)}")
    needed = _NEEDED.get(route)
    if needed and not (isinstance(answer.get(needed), list) and answer[needed]):
        raise AnswerError(f"the answer has no {needed!r}: {shown(output)}")
    return answer


def object_of(data: bytes) -> dict[str, Any]:
    """Decode a JSON object. Raises AnswerError."""
    try:
        said = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise AnswerError(f"the answer is no JSON ({error}): {shown(data)}") from error
    except RecursionError as error:
        raise AnswerError(f"the answer is nested too deeply: {shown(data)}") from error
    if not isinstance(said, dict):
        raise AnswerError(f"the answer is no JSON object: {shown(data)}")
    return said


def usage_of(answer: Mapping[str, Any]) -> Usage | None:
    """Tokens as the server counted them; None when it says nothing usable."""
    said = answer.get("usage")
    if not isinstance(said, dict):
        return None
    prompt, completion = _count(said, "prompt_tokens"), _count(said, "completion_tokens")
    total = _count(said, "total_tokens")
    if prompt is None and total is not None:
        prompt = max(0, total - (completion or 0))
    if prompt is None:
        return None
    return Usage(
        input_tokens=prompt,
        output_tokens=completion or 0,
        cached_tokens=_detail(said, "prompt_tokens_details", "cached_tokens"),
        reasoning_tokens=_detail(said, "completion_tokens_details", "reasoning_tokens"),
    )


def estimated(body: bytes, output: bytes, route: str) -> Usage:
    """Tokens of an answer whose server counts none; vectors are no tokens."""
    written = 0 if route == EMBEDDINGS else tokens_in(len(output))
    return Usage(input_tokens=tokens_in(len(body)), output_tokens=written)


def tokens_in(size: int) -> int:
    """Tokens in so many bytes, rounded up."""
    return -(-size // BYTES_PER_TOKEN)


def error_text(data: bytes) -> str:
    """What a server says about an error, in one of the shapes in use; cut to length."""
    try:
        said = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return shown(data)
    for name in ("error", "message", "detail"):
        if isinstance(said, dict) and said.get(name):
            said = said[name]
    if isinstance(said, str):
        return said[:MESSAGE_CHARS_MAX]
    return shown(data)


def is_error(data: bytes) -> bool:
    """Tell an error of the interface from what any web server says: vLLM's two shapes of it."""
    try:
        said = object_of(data)
    except AnswerError:
        return False
    return bool(said.get("error")) or said.get("object") == "error"


def shown(data: bytes) -> str:
    """Begin to quote data that nobody understands."""
    text = data[: 4 * MESSAGE_CHARS_MAX].decode("utf-8", "replace")
    return text[:MESSAGE_CHARS_MAX] or "nothing"


def retry_after_s(value: str, now_s: float) -> float | None:
    """Seconds that a Retry-After asks for (a number, or a date); None when it says nothing."""
    try:
        seconds = float(value)
    except ValueError:
        pass
    else:
        return None if isnan(seconds) else max(0.0, seconds)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - now_s)
    except (ValueError, TypeError, OverflowError):
        return None


def _count(said: Mapping[str, Any], name: str) -> int | None:
    value = said.get(name)
    return value if type(value) is int and 0 <= value < COUNT_MAX else None


def _detail(said: Mapping[str, Any], group: str, name: str) -> int:
    details = said.get(group)
    return (_count(details, name) or 0) if isinstance(details, dict) else 0
