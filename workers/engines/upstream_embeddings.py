"""Embeddings of several requests in one call, and the answer taken apart again.

Requests go together when all that they ask for but their texts is the same. What the server
counts is shared out by the texts' sizes; the shares add up to it exactly.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from schemas.records import Usage
from workers.engines.upstream_answers import AnswerError, answer_of
from workers.engines.upstream_wire import EMBEDDINGS, BodyError, Call, Members, members_of, raw

#: Texts in one call: what the interface's first server allows.
TEXTS_MAX = 2_048

_texts = msgspec.json.Decoder(str | list[str])


class Merged(NamedTuple):
    """One call for several requests: how many texts each brought, and of how many bytes."""

    call: Call
    counts: tuple[int, ...]
    sizes: tuple[int, ...]


def merged(calls: Sequence[Call]) -> Merged | None:
    """Put calls together; None when they are no embeddings of texts with the same options."""
    if any(call.route != EMBEDDINGS for call in calls):
        return None
    all_texts: list[str] = []
    counts: list[int] = []
    sizes: list[int] = []
    options: Members | None = None
    for call in calls:
        try:
            members = members_of(call.body)
            said = _texts.decode(members.pop("input", b""))
        except (BodyError, msgspec.DecodeError, RecursionError):
            return None
        if options is not None and _comparable(options) != _comparable(members):
            return None
        options = members
        texts = [said] if isinstance(said, str) else said
        if not texts:
            return None
        all_texts += texts
        counts.append(len(texts))
        sizes.append(sum(len(text.encode("utf-8", "replace")) for text in texts))
    if options is None or len(all_texts) > TEXTS_MAX:
        return None
    body = msgspec.json.encode({**options, "input": raw(all_texts)})
    return Merged(Call(EMBEDDINGS, body, requests=len(calls)), tuple(counts), tuple(sizes))


def taken_apart(together: Merged, output: bytes, usage: Usage) -> list[tuple[bytes, Usage]]:
    """One answer per request. Raises AnswerError when vectors are missing or out of place."""
    answer = answer_of(output, EMBEDDINGS)
    data: list[dict[str, Any]] = answer["data"]
    if len(data) != sum(together.counts):
        raise AnswerError(f"{len(data)} vectors for {sum(together.counts)} texts")
    places = [item.get("index") if isinstance(item, dict) else None for item in data]
    if places != list(range(len(data))):
        raise AnswerError("the vectors' indices are not those of the texts")
    usages = shared(usage, together.sizes)
    outputs = []
    start = 0
    for number, count in enumerate(together.counts):
        own = [{**item, "index": i} for i, item in enumerate(data[start : start + count])]
        read = usages[number].input_tokens
        tokens = {"prompt_tokens": read, "total_tokens": read}
        document = msgspec.json.encode({**answer, "data": own, "usage": tokens})
        outputs.append((document, usages[number]))
        start += count
    return outputs


def shared(usage: Usage, sizes: Sequence[int]) -> list[Usage]:
    """Share out what was counted; the time is everybody's, as they were served together."""
    inputs, cached = shares(usage.input_tokens, sizes), shares(usage.cached_tokens, sizes)
    outputs = shares(usage.output_tokens, sizes)
    return [
        replace(usage, input_tokens=read, output_tokens=written, cached_tokens=known)
        for read, written, known in zip(inputs, outputs, cached, strict=True)
    ]


def shares(total: int, sizes: Sequence[int]) -> list[int]:
    """Share a count out in proportion to sizes; the shares' sum is the count."""
    whole = sum(sizes)
    if not whole:
        sizes, whole = [1] * len(sizes), len(sizes)
    found, before, until = [], 0, 0
    for size in sizes:
        until += size
        upto = total * until // whole
        found.append(upto - before)
        before = upto
    return found


def _comparable(members: Members) -> dict[str, bytes]:
    return {name: bytes(value) for name, value in members.items()}
