"""From a request's body to the call of a server that speaks OpenAI's HTTP interface.

A body goes through as it came, value by value; only what is missing is added: the model's
name and `{"input": ...}` around bare texts. One thing is not the caller's to choose: a stream
always tells its usage, or a tenant could switch its own metering off.
Nothing here knows a connection.
"""

from typing import Any, NamedTuple

import msgspec

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
#: By which member of a body its route is known, in the order in which they are looked for.
ROUTES = {"messages": CHAT, "prompt": COMPLETIONS, "input": EMBEDDINGS}

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_options = msgspec.json.Decoder(dict[str, msgspec.Raw] | None).decode
_encode = msgspec.json.Encoder().encode

Members = dict[str, msgspec.Raw]


class Call(NamedTuple):
    """One call: where to, what with, how many choices were asked for, and for how many requests."""

    route: str
    body: bytes
    choices: int = 1
    requests: int = 1


class BodyError(Exception):
    """No call can be made of a body; says what is wrong with it."""


def call_for(body: bytes, route: str = "", model: str = "") -> Call:
    """Make the call of a body; `route` fixes where to, `model` fills in what it leaves out.

    Raises BodyError.
    """
    members = members_of(body)
    route = route or route_of(members)
    if model and "model" not in members:
        members["model"] = raw(model)
    if route not in {CHAT, COMPLETIONS}:
        return Call(route, _encode(members))
    if _is_stream(members):
        members["stream_options"] = _metered(members)
    return Call(route, _encode(members), _choices(members))


def _is_stream(members: Members) -> bool:
    """Whether a stream is asked for; servers take 1 and "yes" for true, nobody here guesses."""
    said = bytes(members.get("stream", b"null"))
    if said not in {b"true", b"false", b"null"}:
        raise BodyError("the body's 'stream' is neither true nor false")
    return said == b"true"


def _metered(members: Members) -> msgspec.Raw:
    """The caller's options of a stream, with its usage."""
    try:
        options = _options(members.get("stream_options", b"null")) or {}
    except msgspec.DecodeError as error:
        raise BodyError(f"the body's 'stream_options' is no object: {error}") from error
    return raw({**options, "include_usage": msgspec.Raw(b"true")})


def _choices(members: Members) -> int:
    """How many choices a body asks for: `n` for each prompt; the server judges what is none."""
    each = _value(members.get("n", b"1"))
    prompts = _value(members.get("prompt", b'""'))
    several = isinstance(prompts, list) and prompts and isinstance(prompts[0], str | list)
    count = len(prompts) if several else 1
    return count * each if type(each) is int and each > 0 else count


def _value(member: msgspec.Raw | bytes) -> Any:
    try:
        return msgspec.json.decode(member)
    except (msgspec.DecodeError, RecursionError):
        return None


def members_of(body: bytes) -> Members:
    """Members of a body, undecoded; bare texts are an embedding's input. Raises BodyError."""
    first = body.lstrip()[:1]
    try:
        if first in {b'"', b"["}:
            msgspec.json.decode(body)
            return {"input": msgspec.Raw(body.strip())}
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BodyError(f"the body is no JSON object, string or array: {error}") from error
    except RecursionError as error:
        raise BodyError("the body is nested too deeply") from error


def route_of(members: Members) -> str:
    """Route that the members of a body ask for. Raises BodyError."""
    for name, route in ROUTES.items():
        if name in members:
            return route
    raise BodyError(
        "the body has neither 'messages' (chat) nor 'prompt' (completion) nor 'input' (embedding)"
    )


def raw(value: object) -> msgspec.Raw:
    """Encode a value as a member."""
    return msgspec.Raw(_encode(value))
