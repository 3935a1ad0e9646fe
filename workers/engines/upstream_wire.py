"""From a request's body to the call of a server that speaks OpenAI's HTTP interface.

A body goes through as it came, value by value; only what is missing is added: the model's
name, `{"input": ...}` around bare texts, and the wish to be told the usage of a stream.
Nothing here knows a connection.
"""

from typing import NamedTuple

import msgspec

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
#: By which member of a body its route is known, in the order in which they are looked for.
ROUTES = {"messages": CHAT, "prompt": COMPLETIONS, "input": EMBEDDINGS}

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode

Members = dict[str, msgspec.Raw]


class Call(NamedTuple):
    """One call: where to, what with, whether the answer comes as a stream, and for how many."""

    route: str
    body: bytes
    is_stream: bool = False
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
    is_stream = bytes(members.get("stream", b"")) == b"true"
    if is_stream and route in {CHAT, COMPLETIONS} and "stream_options" not in members:
        members["stream_options"] = raw({"include_usage": True})
    return Call(route, _encode(members), is_stream)


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
