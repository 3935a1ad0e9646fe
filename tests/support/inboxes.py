"""Inboxes on the log in memory: tenants who write, processes that die, and who serves.

Everything runs in one thread on one clock; a process is killed at a step of its log.
"""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from adapters.memory import MemoryLog
from producers.inbox import Inboxes, InboxParts
from producers.limiting import WhenDown
from producers.ports import Offload
from schemas import codec
from schemas.front import (
    Acceptance,
    Admission,
    Charge,
    Ending,
    Entry,
    LimitState,
    Listed,
    RequestName,
    Settlement,
    StoreDownError,
    Verdict,
    Window,
)
from schemas.log import Headers, Record
from schemas.policy import (
    POLICY_KEY,
    Endpoint,
    Inbox,
    Policy,
    Pool,
    Tenant,
    Tier,
    Topology,
    encode_policy,
)
from schemas.reasons import Reason
from schemas.records import VERSION, End, Request, Result
from schemas.topics import Topics, bucket
from simulation.process_log import Killed, ProcessLog
from tests.support.oracle_inbox import answers, records

T = TypeVar("T")

POLICY = Policy(
    topology=Topology(shards=2, spread=2, buckets=2),
    tiers=(Tier(name="gold"), Tier(name="batch")),
    pools=(Pool(name="chat"), Pool(name="embed"), Pool(name="tight")),
    endpoints=(
        Endpoint(name="chat", pool="chat"),
        Endpoint(name="embed", pool="embed", body_bytes_max=2_000),
        Endpoint(name="tight", pool="tight", requests_per_minute=5),
    ),
    tenants=(
        Tenant(name="acme", tiers=("gold", "batch"), inbox=Inbox.REFUSE),
        Tenant(name="bolt", tiers=("batch",), inbox=Inbox.HOLD),
        Tenant(name="calm", tiers=("gold",), inbox=Inbox.REFUSE),
        Tenant(name="none", tiers=("gold",)),
    ),
)
START_MS = 1_800_000_000_000
#: Turns that any history is over by; a condition that needs more never comes.
TURNS_MAX = 2_000


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.value_ms = START_MS

    def now_ms(self) -> int:
        return self.value_ms


class MinuteLimits:
    """Whole minutes of the clock, counted in a dictionary; a charge's id counts once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.charged: dict[tuple[str, str, int], dict[str, int]] = defaultdict(dict)
        self.asked = Counter[str]()
        #: Endpoints whose limits can't be asked for now.
        self.down: set[str] = set()

    async def charge(self, charge: Charge) -> Verdict:
        if charge.endpoint in self.down:
            raise StoreDownError("down")
        self.asked[charge.tenant] += 1
        now_ms = self._clock.now_ms()
        taken = self.charged[charge.tenant, charge.endpoint, now_ms // 60_000]
        used, limit = sum(taken.values()), charge.allowance.requests_per_minute or 0
        admission, wait_ms = Admission.CHARGED, 0
        if charge.id in taken:
            admission = Admission.REPEATED
        elif charge.requests > limit:
            admission = Admission.NEVER
        elif used + charge.requests > limit:
            admission, wait_ms = Admission.REFUSED, 60_000 - now_ms % 60_000
        else:
            taken[charge.id] = charge.requests
        name = "" if admission > 0 else "requests/minute"
        state = LimitState("requests/minute", limit, used, limit - used, 60, 60)
        return Verdict(admission, (state,), wait_ms, name, charge.tenant if name else "")

    async def refund(self, charge: Charge) -> bool:
        minute = self._clock.now_ms() // 60_000
        taken = self.charged[charge.tenant, charge.endpoint, minute]
        return taken.pop(charge.id, None) is not None

    async def settle(self, settlements: Sequence[Settlement]) -> int:
        raise AssertionError(settlements)

    async def announce(self, name: str) -> int:
        return 1


class DictIndex:
    """An index in a dictionary."""

    def __init__(self) -> None:
        self.accepted: dict[RequestName, Acceptance] = {}

    async def generation(self) -> str:
        return "one"

    async def accept(self, name: RequestName, acceptance: Acceptance) -> None:
        self.accepted.setdefault(name, acceptance)

    async def finish(self, endings: Sequence[Ending]) -> None:
        raise AssertionError(endings)

    async def lookup(self, name: RequestName) -> Entry | None:
        found = self.accepted.get(name)
        return Entry(found, None, None) if found else None

    async def lookup_all(self, names: Sequence[RequestName]) -> list[Entry | None]:
        return [await self.lookup(name) for name in names]

    async def heads(self, names: Sequence[RequestName]) -> list[Entry | None]:
        raise AssertionError(names)

    async def listed(self, window: Window) -> list[Listed]:
        raise AssertionError(window)

    async def was_listed(self, name: RequestName) -> bool:
        raise AssertionError(name)


class Meter:
    """What was counted last."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        self.counts["/".join([name, *labels.values()])] += amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.counts["/".join([name, *labels.values()])] = int(value)


async def in_place(call: Callable[[], T]) -> T:
    """Call at once, in this thread."""
    return call()


class Post:
    """A deployment's log with tenants' inboxes, and whoever takes them in."""

    def __init__(self, policy: Policy = POLICY) -> None:
        self.clock, self.topics = Clock(), Topics("post")
        self.log = MemoryLog(self.clock)
        self.log.ensure_topics(self.topics.of(policy))
        self.limits, self.index, self.meter = MinuteLimits(self.clock), DictIndex(), Meter()
        self._writer = self.log.producer()
        self._served = Counter[tuple[str, int]]()
        self._known = set[str]()
        self.publish(policy)

    def publish(self, policy: Policy) -> None:
        self.policy = policy
        self.log.ensure_topics(self.topics.of(policy))
        self._writer.send(self.topics.policy, 0, encode_policy(policy), key=POLICY_KEY)

    def put(self, tenant: str, value: Any, headers: Headers = ()) -> None:
        """Write into a tenant's inbox: bytes as they are, anything else as JSON."""
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self._writer.send(self.topics.inbox(tenant), 0, data, headers=headers)

    def process(
        self,
        log: Any = None,
        instance: str | None = "inbox-1",
        when_down: WhenDown = WhenDown.DEGRADED,
        offload: Offload | None = None,
    ) -> Inboxes:
        """A process that takes inboxes in; by default on the log itself."""
        return Inboxes(
            InboxParts(
                log=log or self.log,
                topics=self.topics,
                limits=self.limits,
                index=self.index,
                clock=self.clock,
                elapsed_ms=self.clock.now_ms,
                meter=self.meter,
                random_bytes=bytes,
                offload=offload or in_place,
                instance=instance,
                when_down=when_down,
            )
        )

    async def run(self, process: Inboxes, turns: int, step_ms: int = 50) -> None:
        """Turns of a process, while the clock moves on and requests are served."""
        for _ in range(turns):
            self.clock.value_ms += step_ms
            process.directory.turn(0)
            await process.turn(0)
            self.serve()

    def play(self, turns: int = 40, step_ms: int = 50) -> None:
        """A life without trouble, from start to a clean stop."""

        async def life() -> None:
            process = self.process()
            await self.run(process, turns, step_ms)
            await process.stop()

        asyncio.run(life())

    def serve(self) -> None:
        """End every request that is in the log: a second one of its id is a duplicate."""
        producer = self.log.transactional("post.lane")
        producer.init()
        producer.begin()
        for topic in self.log.topics():
            if not topic.startswith(self.topics.requests("")):
                continue
            for number in range(self.log.partitions(topic)):
                for record in self.records(topic, number, self._served[topic, number]):
                    self._served[topic, number] = record.offset + 1
                    self._end(producer, record)
        producer.commit()
        producer.close()

    def _end(self, producer: Any, record: Record) -> None:
        request: Request = codec.decode_header(record, Request)
        is_copy = request.id in self._known
        self._known.add(request.id)
        result = Result(
            v=VERSION,
            id=request.id,
            tenant=request.tenant,
            endpoint=request.endpoint,
            end=End.FAILED if is_copy else End.SUCCEEDED,
            reason=Reason.DUPLICATE.value if is_copy else "",
        )
        headers = codec.header(result, codec.passed_through(record.headers))
        number = bucket(request.tenant, self.policy.topology.buckets)
        value = b"" if is_copy else b'{"echo": %s}' % record.value
        producer.send(self.topics.results, number, value, headers=headers)

    def records(self, topic: str, number: int = 0, start: int = 0) -> list[Record]:
        """Committed records of a partition."""
        return records(self.log, topic, number, start)

    def answers(self, tenant: str) -> list[dict[str, Any]]:
        """What a tenant reads."""
        return answers(self, tenant)


def live_until_killed(post: Post, log: ProcessLog, turns: int, instance: str | None) -> bool:
    """A process's life on its own log; True when it was killed."""

    async def life() -> None:
        process = post.process(log, instance)
        for _ in range(turns):
            try:
                await post.run(process, 1)
            except Exception:  # noqa: BLE001 - as whoever calls turns for ever: told, waited out
                post.clock.value_ms += 500
        await process.stop()

    try:
        asyncio.run(life())
    except Killed:
        log.fall_silent()
        return True
    return False
