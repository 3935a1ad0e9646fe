"""A stream of server-sent events, read to its end and put together as one answer.

The answer has the shape that the same call has without `stream`: `choices` with a whole
message each (role, content, reasoning_content, tool_calls merged by their index), the finish
reasons, and `usage`. A stream is complete when `[DONE]` came after at least one choice, or
when it ended after every choice that was asked for had its `finish_reason`; any other end is
a broken stream.

What belongs here: bytes in, an answer out. No connection, no clock.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from workers.engines.upstream_answers import AnswerError, error_text, object_of
from workers.engines.upstream_wire import CHAT

DONE = b"[DONE]"
#: Choices of an answer, and calls of tools of a choice; more is a server gone astray.
INDEX_MAX = 128

#: Members of a delta that grow by joining their pieces.
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class TooLargeError(Exception):
    """A stream brought more than is kept."""


class EventError(Exception):
    """The server said in its stream that it failed; `code` is its number, 0 for none."""

    def __init__(self, message: str, code: int) -> None:
        """Keep both."""
        super().__init__(message)
        self.code = code


class Events:
    """Splits bytes into the data of events; a line never grows above `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        """Nothing has come yet."""
        self._bytes_max = bytes_max
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes in; yields the data of each event that they complete.

        Raises TooLargeError.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) + sum(map(len, self._data)) > self._bytes_max:
            raise TooLargeError(f"an event of more than {self._bytes_max} bytes")
        for line in lines:
            text = line.removesuffix(b"\r")
            if text.startswith(b"data:"):
                self._data.append(text[5:].removeprefix(b" "))
            elif not text and self._data:
                yield b"\n".join(self._data)
                self._data.clear()


class Assembly:
    """Puts the events of one stream together; what it keeps stays below `bytes_max`."""

    def __init__(self, route: str, bytes_max: int, wanted: int = 1) -> None:
        """Nothing has come yet.

        `route` tells a chat's messages from plain text, `wanted` is how many choices were
        asked for.
        """
        self._wanted = wanted
        self._is_chat = route == CHAT
        self._bytes_max = bytes_max
        self._size = 0
        self._head: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}
        self._is_done = False
        self.pieces = 0

    @property
    def is_done(self) -> bool:
        """Whether the server said that nothing more comes."""
        return self._is_done

    @property
    def is_complete(self) -> bool:
        """Whether the answer would be whole if the stream ended here."""
        if not self._choices:
            return False
        finished = sum(bool(choice.finish) for choice in self._choices.values())
        return self._is_done or finished >= max(self._wanted, len(self._choices))

    def take(self, data: bytes) -> bool:
        """Take an event in; returns whether it brought something that the model wrote.

        Raises AnswerError, EventError, TooLargeError.
        """
        if data.strip() == DONE:
            self._is_done = True
            return False
        event = object_of(data)
        if event.get("error"):
            code = event["error"].get("code") if isinstance(event["error"], dict) else 0
            raise EventError(error_text(data), code if isinstance(code, int) else 0)
        for name, value in event.items():
            if name != "choices" and value is not None:
                self._head[name] = value
        choices = event.get("choices") or []
        if not isinstance(choices, list):
            raise AnswerError("an event's 'choices' is no array")
        grown = sum(self._choice(said) for said in choices)
        self._size += grown
        if self._size > self._bytes_max:
            raise TooLargeError(f"an answer of more than {self._bytes_max} bytes")
        self.pieces += grown > 0
        return grown > 0

    def _choice(self, said: object) -> int:
        if not isinstance(said, dict):
            raise AnswerError("an event's choice is no object")
        choice = self._choices.setdefault(_index(said), _Choice())
        return choice.take(said, "delta" if self._is_chat else "text")

    @property
    def head(self) -> dict[str, Any]:
        """All but the choices, as last said: id, model, usage and what else there is."""
        return self._head

    def answer(self) -> bytes:
        """Encode the answer, as a call without `stream` would have had it."""
        kind = "chat.completion" if self._is_chat else "text_completion"
        choices = [
            choice.whole(index, is_chat=self._is_chat)
            for index, choice in sorted(self._choices.items())
        ]
        return msgspec.json.encode({**self._head, "object": kind, "choices": choices})


class _Choice:
    """One choice on its way; `rest` are members of a delta that come whole."""

    def __init__(self) -> None:
        self.role = "assistant"
        self.texts: dict[str, list[str]] = {}
        self.tools: dict[int, dict[str, Any]] = {}
        self.function: dict[str, Any] = {}
        self.logprobs: dict[str, Any] = {}
        self.rest: dict[str, Any] = {}
        self.finish: Any = None

    def take(self, said: dict[str, Any], where: str) -> int:
        """Add what an event says; returns the bytes that the model wrote in it."""
        delta = said.get(where)
        size = 0
        if isinstance(delta, str):
            size = self._text(where, delta)
        elif isinstance(delta, dict):
            size = self._delta(delta)
        if isinstance(said.get("logprobs"), dict):
            size += self._logprobs(said["logprobs"])
        self.finish = said.get("finish_reason") or self.finish
        if said.get("stop_reason") is not None:
            self.rest["stop_reason"] = said["stop_reason"]
        return size

    def _delta(self, delta: dict[str, Any]) -> int:
        size = 0
        if isinstance(delta.get("role"), str):
            self.role = delta["role"]
        for name in _TEXTS:
            if isinstance(delta.get(name), str):
                size += self._text(name, delta[name])
        calls = delta.get("tool_calls") or []
        if not isinstance(calls, list):
            raise AnswerError("a delta's 'tool_calls' is no array")
        for call in calls:
            if not isinstance(call, dict):
                raise AnswerError("a delta's tool call is no object")
            size += merge(self.tools.setdefault(_index(call), {}), call)
        if isinstance(delta.get("function_call"), dict):
            size += merge(self.function, delta["function_call"])
        return size

    def _text(self, name: str, text: str) -> int:
        self.texts.setdefault(name, []).append(text)
        return len(text.encode("utf-8", "replace"))

    def _logprobs(self, said: dict[str, Any]) -> int:
        for name, values in said.items():
            if isinstance(values, list):
                self.logprobs.setdefault(name, []).extend(values)
        return len(msgspec.json.encode(said))

    def whole(self, index: int, *, is_chat: bool) -> dict[str, Any]:
        texts = {name: "".join(pieces) for name, pieces in self.texts.items()}
        said: dict[str, Any] = {"index": index}
        if is_chat:
            calls = self.tools or self.function
            content = texts.pop("content", "") or (None if calls else "")
            message: dict[str, Any] = {"role": self.role, "content": content, **texts}
            if self.tools:
                message["tool_calls"] = [tool for _, tool in sorted(self.tools.items())]
            if self.function:
                message["function_call"] = self.function
            said["message"] = message
        else:
            said["text"] = texts.get("text", "")
        said["logprobs"] = self.logprobs or None
        return {**said, "finish_reason": self.finish, **self.rest}


def merge(call: dict[str, Any], delta: dict[str, Any]) -> int:
    """Add a piece of a tool's call: names and ids come whole, arguments in pieces.

    Some servers repeat names and ids empty in later pieces: what is empty replaces nothing.
    Returns the bytes that came. Raises AnswerError.
    """
    size = 0
    for name, value in delta.items():
        before = call.get(name)
        if isinstance(value, dict):
            if not isinstance(before, dict | None):
                raise _other(name)
            size += merge(call.setdefault(name, {}), value)
        elif isinstance(before, dict) and value:
            raise _other(name)
        elif name == "arguments" and isinstance(value, str):
            if not isinstance(before, str | None):
                raise _other(name)
            call[name] = (before or "") + value
            size += len(value.encode("utf-8", "replace"))
        elif name != "index" and value is not None and (value != "" or name not in call):
            call[name] = value
            size += len(str(value))
    return size


def _other(name: str) -> AnswerError:
    return AnswerError(f"a tool call's {name!r} came in two shapes")


def _index(said: dict[str, Any]) -> int:
    """Which choice or tool call a piece belongs to. Raises AnswerError."""
    index = said.get("index", 0)
    if type(index) is not int or not 0 <= index < INDEX_MAX:
        raise AnswerError(f"a piece has the index {index!r}; 0..{INDEX_MAX - 1} are possible")
    return index
