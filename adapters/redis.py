"""Redis: the client, and the index of requests; the limits are in `adapters.redis_limits`.

What belongs here: keys, commands, time-outs, and gathering concurrent calls into one round
trip. What does not: what to do while Redis is down; every failure of the client surfaces as
`StoreDownError`.

Keys, all but the last with the tenant as the hash tag and a TTL:
    <prefix>:{<tenant>}:request:<id>             hash: `accepted`, `ended` (JSON), `body` (bytes)
    <prefix>:{<tenant>}:requests                 sorted set: ids by the time of acceptance
    <prefix>:{<tenant>}:call:<x-request-id>      the same, of the calls with this x-request-id

    <prefix>:index:generation                    string without TTL: goes with a lost index

The two halves of an index entry are separate fields, each written once: whichever of the
acceptance and the result comes first, neither can overwrite the other (lua/finish.lua).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from secrets import token_hex
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from adapters.redis_script import PackedConnection, Script
from schemas.front import (
    INDEX_TTL_MS,
    LISTED_MAX,
    LISTED_PER_CALL_MAX,
    WAITING_TTL_MS,
    Acceptance,
    Ending,
    Entry,
    Listed,
    RequestName,
    StoreDownError,
    Terminal,
    Window,
)

#: A call that takes longer counts as Redis being down: a caller waits no longer than this.
TIMEOUT_S = 0.1
#: Turns of the event loop in which an answer that is there already is read and handed on.
LATE_TURNS = 8
#: The indexer has nobody waiting on it and writes large bodies: it may take longer.
WRITE_TIMEOUT_S = 2.0
#: Entries read in one pipeline; bodies are at most 64 kB each.
LOOKUPS_MAX = 64
#: Entries written in one pipeline.
ENDINGS_MAX = 128
#: Random bytes of a generation's name: no two lost indexes of a deployment share one.
GENERATION_BYTES = 8
#: Address of the Redis that lives in this process, for the embedded mode and for tests.
EMBEDDED = "embedded://"

A = TypeVar("A")
R = TypeVar("R")


def connect(url: str) -> "Redis":
    """Make a client for `redis://host:port/db`, or for `embedded://` one in this process.

    Nothing is sent before the first call. The embedded one is a look-alike for one process.
    """
    if url == EMBEDDED:
        from fakeredis import FakeAsyncRedis  # noqa: PLC0415 - a real deployment never loads it

        return cast("Redis", FakeAsyncRedis())
    return Redis.from_url(
        url,
        connection_class=PackedConnection,  # of addresses that name no other one
        socket_timeout=None,  # every call has its own time (`_answered`): one watch is enough
        socket_connect_timeout=TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )


async def _answered(call: Awaitable[R], timeout_s: float) -> R:
    """Await a call to Redis; raises StoreDownError when it fails or takes too long.

    An event loop that is busy for longer than that finds the time over and the answer there,
    both at once: then the answer counts.
    """
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait((task,), timeout=timeout_s)
        for _ in range(LATE_TURNS):
            if task.done():
                break
            await asyncio.sleep(0)
    finally:
        if not task.done():
            task.cancel()
    try:
        return await task
    except (RedisError, OSError, TimeoutError) as error:
        raise StoreDownError(f"Redis: {error or type(error).__name__}") from error
    except asyncio.CancelledError as error:
        if not task.cancelled():
            raise  # the caller is to end, not the call
        raise StoreDownError(f"Redis: no answer within {timeout_s:g} s") from error


class _Waiting(NamedTuple, Generic[A, R]):
    """A call that waits for its turn: since when, and after how many that had begun."""

    item: A
    future: "asyncio.Future[R]"
    since_s: float
    begun: int


def _fail(calls: "Sequence[_Waiting[A, R]]", error: Exception) -> None:
    for waiting in calls:
        if not waiting.future.done():
            waiting.future.set_exception(error)


class Gather(Generic[A, R]):
    """Calls that come while one is under way go out together as the next one.

    When it fails, those that wait behind it fail with it: no queue of time-outs. Nor one of slow
    answers: who waits for its turn longer than `wait_s` fails as well.
    """

    def __init__(
        self,
        run: Callable[[list[A]], Awaitable[list[R]]],
        size_max: int,
        wait_s: float = TIMEOUT_S,
    ) -> None:
        """Hand in what runs up to `size_max` calls at once, answering in their order."""
        self._run, self._size_max, self._wait_s = run, size_max, wait_s
        self._waiting: list[_Waiting[A, R]] = []
        self._begun = 0
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, item: A) -> R:
        """Run one call with whatever others there are; raises what the common call raised."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._waiting.append(_Waiting(item, future, loop.time(), self._begun))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        while self._waiting:
            self._give_up()
            now, self._waiting = (
                self._waiting[: self._size_max],
                self._waiting[self._size_max :],
            )
            await self._answer(now)

    def _give_up(self) -> None:
        """Fail those whose turn comes too late; one call under way is not Redis's slowness."""
        since_s = asyncio.get_running_loop().time() - self._wait_s
        late = 0
        for waiting in self._waiting:  # the oldest first
            if waiting.since_s >= since_s or self._begun - waiting.begun <= 1:
                break
            late += 1
        if late:
            _fail(self._waiting[:late], StoreDownError(f"Redis: no turn within {self._wait_s:g} s"))
            del self._waiting[:late]

    async def _answer(self, calls: "list[_Waiting[A, R]]") -> None:
        if not calls:
            return
        self._begun += 1
        try:
            answers = await self._run([waiting.item for waiting in calls])
        except Exception as error:  # noqa: BLE001 - it belongs to the callers, all of them
            behind, self._waiting = self._waiting, []
            _fail(calls + behind, error)
            return
        for waiting, answer in zip(calls, answers, strict=True):
            if not waiting.future.done():
                waiting.future.set_result(answer)


def _source(name: str) -> str:
    """A script; registered, it loads itself again when the server has forgotten it."""
    return files("adapters").joinpath(f"lua/{name}.lua").read_text(encoding="utf-8")


class RedisIndex:
    """What became of each request, by tenant and id; safe to call concurrently."""

    def __init__(self, client: "Redis", prefix: str, timeout_s: float = TIMEOUT_S) -> None:
        """Entries stand under `prefix`, one for each deployment."""
        self._client, self._prefix, self._timeout_s = client, prefix, timeout_s
        self._accept = Script(client, _source("accept"))
        self._finish = Script(client, _source("finish"))
        self._listed = client.register_script(_source("listed"))
        self._lookups = Gather(self._lookup_all, LOOKUPS_MAX, wait_s=timeout_s)
        self._acceptances = Gather(self._accept_all, ENDINGS_MAX, wait_s=timeout_s)

    def _key(self, name: RequestName) -> str:
        return f"{self._prefix}:{{{name.tenant}}}:request:{name.id}"

    def _list(self, tenant: str, call: str = "") -> str:
        own = f"{self._prefix}:{{{tenant}}}"
        return f"{own}:call:{call}" if call else f"{own}:requests"

    async def generation(self) -> str:
        """Name of what Redis holds: another one once it was flushed. Raises StoreDownError."""
        key = f"{self._prefix}:index:generation"
        pipe = self._client.pipeline(transaction=False)
        pipe.set(key, token_hex(GENERATION_BYTES), nx=True)
        pipe.get(key)
        _, name = await _answered(pipe.execute(), WRITE_TIMEOUT_S)
        return (name or b"").decode()

    async def accept(self, name: RequestName, acceptance: Acceptance) -> None:
        """Note where an accepted request stands; the first place stays. Raises StoreDownError."""
        await self._acceptances((name, acceptance))

    async def _accept_all(self, items: list[tuple[RequestName, Acceptance]]) -> list[None]:
        keys: list[str] = []
        arguments: list[str | int] = [WAITING_TTL_MS, LISTED_MAX, LISTED_PER_CALL_MAX]
        for name, acceptance in items:
            listed = self._list(name.tenant)
            call = self._list(name.tenant, acceptance.call) if acceptance.call else listed
            keys += [self._key(name), listed, call]
            arguments += [_text(acceptance), name.id, acceptance.accepted_ms]
        await _answered(self._accept(keys=keys, args=arguments), self._timeout_s)
        return [None] * len(items)

    async def finish(self, endings: Sequence[Ending]) -> None:
        """Write terminal outcomes; the first one of a request stays. Raises StoreDownError."""
        for start in range(0, len(endings), ENDINGS_MAX):
            keys: list[str] = []
            arguments: list[str | int | bytes] = [INDEX_TTL_MS, WAITING_TTL_MS, LISTED_MAX]
            for name, terminal, body in endings[start : start + ENDINGS_MAX]:
                keys += [self._key(name), self._list(name.tenant)]
                arguments += [_text(terminal), int(body is not None), body or b""]
                arguments.append(terminal.arrived_ms)
            await _answered(self._finish(keys=keys, args=arguments), WRITE_TIMEOUT_S)

    async def lookup(self, name: RequestName) -> Entry | None:
        """What is known of a request, None when nothing is; raises StoreDownError."""
        return await self._lookups(name)

    async def lookup_all(self, names: Sequence[RequestName]) -> list[Entry | None]:
        """Look many up, answers in their order; raises StoreDownError."""
        entries: list[Entry | None] = []
        for start in range(0, len(names), LOOKUPS_MAX):
            entries += await self._lookup_all(list(names[start : start + LOOKUPS_MAX]))
        return entries

    async def _lookup_all(self, names: list[RequestName]) -> list[Entry | None]:
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            pipe.hmget(self._key(name), ["accepted", "ended", "body"])
        answers: list[Any] = await _answered(pipe.execute(), self._timeout_s)
        return [_entry(*answer) for answer in answers]

    async def heads(self, names: Sequence[RequestName]) -> list[Entry | None]:
        """The same without outputs; raises StoreDownError."""
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            pipe.hmget(self._key(name), ["accepted", "ended"])
        answers: list[Any] = await _answered(pipe.execute(), self._timeout_s)
        return [_entry(accepted, ended, None) for accepted, ended in answers]

    async def listed(self, window: Window) -> list[Listed]:
        """A piece of a tenant's list, newest first; raises StoreDownError."""
        after_ms, after_id = window.after or ("", "")
        arguments = [window.since_ms, window.until_ms, window.size, after_ms, after_id]
        key = self._list(window.tenant, window.call)
        found: list[bytes] = await _answered(
            self._listed(keys=[key], args=arguments), self._timeout_s
        )
        places = zip(found[::2], found[1::2], strict=True)
        return [Listed(int(float(score)), member.decode()) for member, score in places]

    async def was_listed(self, name: RequestName) -> bool:
        """Whether a request that has no entry any more had one; raises StoreDownError."""
        scoring = self._client.zscore(self._list(name.tenant), name.id)
        return await _answered(scoring, self._timeout_s) is not None

    async def is_up(self) -> bool:
        """Tell whether Redis answers in time."""
        try:
            await _answered(self._client.ping(), self._timeout_s)
        except StoreDownError:
            return False
        return True

    async def close(self) -> None:
        """Close the client's connections."""
        await self._client.aclose()


def _text(half: Acceptance | Terminal) -> str:
    return msgspec.json.encode(half).decode()


def _entry(accepted: bytes | None, ended: bytes | None, body: bytes | None) -> Entry | None:
    if accepted is None and ended is None:
        return None
    return Entry(
        msgspec.json.decode(accepted, type=Acceptance) if accepted else None,
        msgspec.json.decode(ended, type=Terminal) if ended else None,
        body,
    )
