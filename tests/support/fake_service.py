"""The HTTP of an ingress without what is behind it: requests end when the test's worker says.

An ASGI application; counts what clients ask of it and how many requests are unfinished.
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import httpx

Message = MutableMapping[str, Any]
Answer = tuple[int, dict[str, Any] | bytes, dict[str, str]]
#: Headers of an answer to a bulk call.
NDJSON = {"Content-Type": "application/x-ndjson"}


@dataclass(eq=False)
class Taken:
    """A request that was accepted."""

    id: str
    key: str
    fields: dict[str, Any]
    state: str = "waiting"
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Call:
    """One HTTP call; `lines` of a bulk call."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str]
    query: str = ""

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.body.splitlines()]


class FakeService:
    """Takes every request unless told otherwise; `work` is started for each new one.

    `answer_first` may answer a call by itself, before anything is done; `judge` may refuse a
    line or a single request: it gets the fields and returns the problem's document.
    """

    def __init__(self, work: Callable[[Taken], Awaitable[None]] | None = None) -> None:
        self.taken: dict[str, Taken] = {}
        self.by_id: dict[str, Taken] = {}
        self.calls: list[Call] = []
        self.posts = Counter[str]()
        self.unfinished = self.unfinished_max = 0
        self.answer_first: Callable[[Call], Answer | None] = lambda _: None
        self.judge: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda _: None
        self._work = work or self._end_soon
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def gets(self) -> list[Call]:
        return [call for call in self.calls if call.method == "GET"]

    def end(self, taken: Taken, state: str = "succeeded") -> None:
        """End a request."""
        taken.state = state
        self.unfinished -= 1
        taken.ended.set()

    async def _end_soon(self, taken: Taken) -> None:
        await asyncio.sleep(0.05)
        self.end(taken)

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        assert scope["type"] == "http"
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        call = Call(scope["method"], scope["path"], body, headers, scope["query_string"].decode())
        status, content, more = await self.answer(call)
        fields = [(name.lower().encode(), value.encode()) for name, value in more.items()]
        fields.append((b"content-length", str(len(content)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": content})

    async def answer(self, call: Call) -> tuple[int, bytes, dict[str, str]]:
        """Answer a call, however it came."""
        self.calls.append(call)
        status, document, headers = self.answer_first(call) or await self._answer(call)
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        return status, content, headers

    async def _answer(self, call: Call) -> Answer:
        if call.path == "/v1/requests:bulk":
            lines = [json.dumps(self._line(n, line)) for n, line in enumerate(call.lines, 1)]
            return 200, "\n".join(lines).encode(), NDJSON
        if call.path == "/v1/requests":
            fields = json.loads(call.body)
            verdict = self._take(fields, call.headers.get("idempotency-key", ""))
            return verdict["status"], verdict, {}
        request_id = call.path.split("/")[3]
        taken = self.by_id.get(request_id)
        if taken is None:
            return 404, {"reason": "not_found", "detail": "no such", "retry": "never"}, {}
        if call.path.endswith("/cancel"):
            return 202, {"id": taken.id, "state": taken.state}, {}
        wait_s = float(parse_qs(call.query).get("wait", ["0"])[0])
        if wait_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await taken.ended.wait()
        document: dict[str, Any] = {"id": taken.id, "state": taken.state}
        if taken.state != "waiting":
            document |= {"output": taken.fields["input"], "usage": {"input_tokens": 3}}
        return 200, document, {}

    def _line(self, number: int, fields: dict[str, Any]) -> dict[str, Any]:
        return {"line": number} | self._take(fields, fields.pop("idempotency_key", ""))

    def _take(self, fields: dict[str, Any], key: str) -> dict[str, Any]:
        self.posts[key] += 1
        if problem := self.judge(fields):
            return problem
        taken = self.taken.get(key)
        if taken is None:
            taken = self.taken[key] = Taken(f"req_{len(self.taken)}", key, fields)
            self.by_id[taken.id] = taken
            self.unfinished += 1
            self.unfinished_max = max(self.unfinished_max, self.unfinished)
            task = asyncio.ensure_future(self._work(taken))
            self.tasks.add(task)
        return {"status": 202, "id": taken.id, "state": taken.state, "idempotency_key": key}


class Direct(httpx.AsyncBaseTransport):
    """To a service without anything in between."""

    def __init__(self, service: FakeService) -> None:
        self.service = service

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        call = Call(
            request.method,
            url.path,
            await request.aread(),
            dict(request.headers),
            url.query.decode(),
        )
        status, content, headers = await self.service.answer(call)
        return httpx.Response(status, content=content, headers=headers, request=request)
