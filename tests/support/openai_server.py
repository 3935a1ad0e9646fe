"""A server of OpenAI's HTTP interface as vLLM and llama.cpp speak it, with faults by script.

It listens on 127.0.0.1 at a free port, in a thread (`OpenAiServer`) or a process of its own
(`python -m tests.support.openai_server`, which prints its port). Chat and text completions,
whole or as a stream of server-sent events (with comments, and usage at the end where it is
asked for), embeddings as floats or base64.

A body that holds `script:A,B,C` anywhere has its first call answered by A, its second by B and
all later ones by C; calls are those of one x-request-id. GET /seen tells what was called.

    ok                 as it should be         nousage           ... without usage
    400 404 408 500..  that status             429=S 503=S       with Retry-After: S
    close              hangs up unanswered     hang              never answers
    break=K            hangs up after K events nodone=K          ends in order after K events
    error=K            an error event after K  slow=MS           so long before each event
    garbage            200, and no JSON        endless longline  never stops sending
    linger             the end of the stream's last piece never comes
    undone             no [DONE] after the finish reason
    json               a whole answer although a stream was asked for
    lost moved         404 as any web server says it, 302 to elsewhere
    deep               200, and JSON nested too deeply for anybody
    odd                a stream whose calls of tools are none
"""

import asyncio
import base64
import json
import re
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from email.utils import formatdate
from types import TracebackType
from typing import Any, NamedTuple, Self

SCRIPT = re.compile(rb"script:([a-z0-9=.,]+)")
DIMENSIONS = 4
PIECE = 65_536


class Seen(NamedTuple):
    """One call as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    act: str
    at_s: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class OpenAiServer:
    """Answers in a thread of its own; what it saw is read from outside while it runs."""

    def __init__(self, port: int = 0, *, keeps: bool = True) -> None:
        """Keep each call in `seen`, or only counts."""
        self.port = port
        self.seen: list[Seen] = []
        self.acts: Counter[str] = Counter()
        self.connections = 0
        self.gone = 0
        self.in_flight = 0
        self.in_flight_max = 0
        self._keeps = keeps
        self._calls: Counter[str] = Counter()
        self._is_up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._is_up.wait(10.0):
            raise RuntimeError("the test server does not come up")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10.0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _run(self) -> None:
        self._loop.run_until_complete(self.serve(self._is_up.set))
        self._loop.close()

    async def serve(self, tell: Callable[[], object]) -> None:
        """Serve until stopped; `tell` is called when the port is known."""
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        tell()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.ensure_future(self._connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.rstrip().split("\r\n")
                pairs = (line.split(": ", 1) for line in lines)
                headers = {name.lower(): value for name, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.in_flight += 1
                self.in_flight_max = max(self.in_flight_max, self.in_flight)
                try:
                    await self._answer(_Out(reader, writer), first.split(" ")[1], headers, body)
                finally:
                    self.in_flight -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            if not writer.is_closing():
                writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, out: "_Out", path: str, headers: dict[str, str], body: bytes) -> None:
        if path == "/seen":
            out.json({"acts": self.acts, "connections": self.connections})
            return
        act = self._act(headers.get("x-request-id", ""), body)
        self.acts[act] += 1
        if self._keeps:
            self.seen.append(Seen(path, headers, body, act, time.monotonic()))
        try:
            await _act(out, path, json.loads(body), act)
        except ConnectionError:
            self.gone += 1
            raise

    def _act(self, request_id: str, body: bytes) -> str:
        found = SCRIPT.search(body)
        acts = found[1].decode().split(",") if found else ["ok"]
        number = self._calls[request_id]
        self._calls[request_id] += 1
        return acts[min(number, len(acts) - 1)]


class _Out:
    """Writes one answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def json(self, document: Any, status: int = 200, *headers: str) -> None:
        self.whole(json.dumps(document).encode(), status, *headers)

    def whole(self, body: bytes, status: int = 200, *headers: str) -> None:
        lines = [f"HTTP/1.1 {status} Some", f"content-length: {len(body)}", *headers]
        lines.append("content-type: application/json")
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    def begin(self, kind: str = "text/event-stream; charset=utf-8") -> None:
        lines = ["HTTP/1.1 200 OK", f"content-type: {kind}", "transfer-encoding: chunked"]
        self._writer.write("\r\n".join([*lines, "", ""]).encode())

    async def piece(self, data: bytes) -> None:
        if self._writer.transport.is_closing():
            raise ConnectionResetError("the client has gone")
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._writer.drain()

    async def event(self, document: Any) -> None:
        await self.piece(b"data: " + json.dumps(document).encode() + b"\n\n")

    async def close(self, *, lingers: bool) -> None:
        if lingers:
            await self.silence()
        self._writer.write(b"0\r\n\r\n")

    def hang_up(self) -> None:
        self._writer.transport.abort()
        raise ConnectionResetError("as the script says")

    async def silence(self) -> None:
        await self._reader.read(1)
        raise ConnectionResetError("the client has gone")


async def _act(out: _Out, path: str, body: dict[str, Any], act: str) -> None:
    """Answer as one word of a script says."""
    name, _, value = act.partition("=")
    if name == "close":
        out.hang_up()
    elif name == "hang":
        await out.silence()
    elif name.isdecimal():
        after = formatdate(time.time() + 2, usegmt=True) if value == "date" else value
        headers = [f"retry-after: {after}"] if value else []
        message = f"scripted {name}{body.get('say', '')}"
        error = {"message": message, "type": "scripted", "param": None}
        out.json({"error": {**error, "code": int(name)}}, int(name), *headers)
    elif name == "lost":
        out.json({"detail": "Not Found"}, 404)
    elif name == "moved":
        out.whole(b"", 302, "location: https://elsewhere.example/v1")
    elif name == "deep":
        out.whole(b'{"choices":' + b"[" * 20_000 + b"]" * 20_000 + b"}")
    elif path == "/v1/embeddings":
        _embed(out, body, name)
    elif not body.get("stream") or name == "json":
        await _complete(out, path, body, name)
    else:
        await _stream(out, path, body, name, float(value or 0))


async def _complete(out: _Out, path: str, body: dict[str, Any], name: str) -> None:
    if name == "garbage":
        out.whole(b"<html>Bad gateway</html>")
        return
    if name == "endless":
        out.begin("application/json")
        await out.piece(b'{"text": "')
        while True:
            await out.piece(b"x" * PIECE)
    tokens = list(words(body))
    text = "".join(tokens)
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "logprobs": None}
    if path == "/v1/chat/completions":
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    answer = {
        "id": "a-1",
        "object": "chat.completion" if "chat" in path else "text_completion",
        "model": body.get("model", "none"),
        "choices": [choice],
    }
    if name != "nousage":
        answer["usage"] = usage(body, len(tokens))
    if name == "break":
        data = json.dumps(answer).encode()
        out.begin("application/json")
        await out.piece(data[: len(data) // 2])
        out.hang_up()
    out.json(answer)


async def _stray(out: _Out, path: str, base: dict[str, Any], name: str) -> None:
    """What comes before a stream, or instead of it."""
    if name == "longline":
        await out.piece(b"data: ")
    while name in {"endless", "longline"}:
        await out.piece(b"x" * PIECE if name == "longline" else _delta(base, path, "x" * PIECE))
    for function in ("text", {"name": "f"}) if name == "odd" else ():
        call = {"index": 0, "function": function}
        await out.event({**base, "choices": [_chunk(path, {"tool_calls": [call]})]})


async def _finish(out: _Out, path: str, base: dict[str, Any], body: dict[str, Any]) -> None:
    why = "tool_calls" if body.get("tools") else "stop"
    last = _chunk(path, {} if "chat" in path else {"text": ""})
    await out.event({**base, "choices": [{**last, "finish_reason": why}]})


async def _stream(out: _Out, path: str, body: dict[str, Any], name: str, value: float) -> None:
    out.begin()
    base = {"id": "a-1", "created": 1, "model": body.get("model", "none")}
    base["object"] = "chat.completion.chunk" if "chat" in path else "text_completion"
    await _stray(out, path, base, name)
    if "chat" in path:
        await out.event({**base, "choices": [_chunk(path, {"role": "assistant", "content": ""})]})
    await out.piece(b": keep-alive\n\n")
    count = 0
    for delta in deltas(path, body):
        if name in {"break", "nodone", "error"} and count >= value:
            break
        if name == "garbage":
            await out.piece(b"data: {not json\n\n")
        if name == "slow":
            await asyncio.sleep(value / 1000)
        await out.event({**base, "choices": [_chunk(path, delta)]})
        count += 1
    if name == "break":
        out.hang_up()
    if name == "error":
        await out.event({"error": {"message": "scripted", "type": "internal", "code": 500}})
    if name not in {"nodone", "error"}:
        await _finish(out, path, base, body)
        if name != "nousage" and (body.get("stream_options") or {}).get("include_usage"):
            await out.event({**base, "choices": [], "usage": usage(body, count)})
        if name != "undone":
            await out.piece(b"data: [DONE]\n\n")
    await out.close(lingers=name == "linger")


def _delta(base: dict[str, Any], path: str, text: str) -> bytes:
    delta = {"content": text} if "chat" in path else {"text": text}
    return b"data: " + json.dumps({**base, "choices": [_chunk(path, delta)]}).encode() + b"\n\n"


def _chunk(path: str, delta: dict[str, Any]) -> dict[str, Any]:
    choice = {"delta": delta} if "chat" in path else delta
    return {"index": 0, **choice, "logprobs": None, "finish_reason": None}


def deltas(path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a stream brings, piece by piece."""
    if "chat" not in path:
        yield from ({"text": word} for word in words(body))
        return
    for thought in ("Let me ", "think.") if body.get("reasoning_effort") else ():
        yield {"reasoning_content": thought}
    for index, tool in enumerate(body.get("tools", ())):
        call = {"id": f"call-{index}", "type": "function", "index": index}
        name = tool["function"]["name"]
        yield {"tool_calls": [{**call, "function": {"name": name, "arguments": ""}}]}
        for piece in ('{"city"', ': "Bern"}'):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
    if not body.get("tools"):
        yield from ({"content": word} for word in words(body))


def words(body: dict[str, Any]) -> Iterator[str]:
    """The answer's tokens: the last thing that was said, word by word, up to max_tokens."""
    said = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
    pieces = re.findall(r"\s*\S+", f"You said: {said}")
    yield from pieces[: body.get("max_tokens") or len(pieces)]


def usage(body: dict[str, Any], written: int) -> dict[str, Any]:
    """Tokens of a completion: a prompt's are its words, half of them from the cache."""
    said = " ".join(m["content"] for m in body.get("messages", ())) or body.get("prompt", "")
    read = len(said.split())
    thought = 2 if body.get("reasoning_effort") else 0
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": read // 2},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


def vector(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """A text's vector: made up, the same each time, exact in 32 bits."""
    return [float((sum(text.encode()) * (n + 1)) % 1024) for n in range(dimensions)]


def _embed(out: _Out, body: dict[str, Any], name: str) -> None:
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    dimensions = body.get("dimensions", DIMENSIONS)
    vectors: list[Any] = [vector(text, dimensions) for text in texts]
    if body.get("encoding_format") == "base64":
        packed = (struct.pack(f"<{dimensions}f", *values) for values in vectors)
        vectors = [base64.b64encode(data).decode() for data in packed]
    data = [
        {"object": "embedding", "index": index, "embedding": values}
        for index, values in enumerate(vectors)
    ]
    read = sum(len(text.split()) for text in texts)
    answer = {"object": "list", "model": body.get("model", "none"), "data": data}
    if name != "nousage":
        answer["usage"] = {"prompt_tokens": read, "total_tokens": read}
    out.json(answer)


async def main() -> None:
    """Serve until the process is ended; the port stands on the first line."""
    server = OpenAiServer(keeps=False)
    await server.serve(lambda: print(server.port, flush=True))


if __name__ == "__main__":
    asyncio.run(main())
