"""A whole deployment inside of this process: the real services on the log in memory.

    async with Embedded(policy, {"embed": engine}) as deployment:
        async with deployment.client("acme") as client:
            ...

Nothing else is needed, and nothing outlives the process. The services take their turns in the
running event loop, engines run in threads of their own. What has ended is let go: the log is
trimmed (fairlane.embedded_trim) and the index forgets the oldest, so that memory stays the
same however many requests pass through.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from adapters.clock import SystemClock
from adapters.memory import MemoryLog
from adapters.memory_backlog import MemoryBoard
from adapters.memory_index import BYTES_MAX, MemoryIndex
from fairlane.client import AsyncClient
from fairlane.embedded_http import InProcess
from fairlane.embedded_trim import Trimmer
from fairlane.errors import FairlaneError
from fairlane.publish import publish_key, publish_policy
from fairlane.run import NoMeter
from producers.app import build_app
from producers.core.local import LocalLimits
from producers.ingress import Ingress
from producers.parts import Parts
from producers.ports import Clock
from scheduler.service import Scheduler
from schemas.front import Charge, Settlement, Verdict
from schemas.keys import key_record, new_key
from schemas.policy import CostModel, Endpoint, Policy, Pool, Tenant, Tier
from schemas.policy_check import INPUTS_MAX, WAIT_MS_MAX, check
from schemas.topics import Topics
from workers.ports import Engine
from workers.service import WorkerService, WorkerSettings
from workers.slots import ThreadSlots

#: Pause of the services after a turn that found nothing, doubled up to the last.
IDLE_S, IDLE_S_MAX = 0.001, 0.016
#: ... and after one that did something: the next one has more to do at once.
BUSY_S = 0.001
#: How often the log is trimmed.
TRIM_S = 0.5
#: What engines still run at the end is not waited for longer than this.
STOP_S_MAX = 5.0
#: Everything is in this process: with requests not taken by then they never are.
READY_S_MAX = 30.0
_READY_POLL_S = 0.005
_URL = "http://embedded"
_INSTANCE = "embedded"

log = logging.getLogger(__name__)

C = TypeVar("C")

#: Inputs of a batch: eight requests of as many texts as a corpus is sent with.
BATCH_INPUTS = 256


def one_endpoint(
    name: str, tenants: list[str], *, batch_requests: int = BATCH_INPUTS, lanes: int = 1
) -> Policy:
    """A policy with one endpoint in a pool of its name, and tenants of equal weight.

    `batch_requests` counts each input of a request of several.

    Raises FairlaneError for names that are none.
    """
    policy = Policy(
        tiers=(Tier(name="standard"),),
        pools=(Pool(name=name, lanes=lanes),),
        endpoints=(
            Endpoint(
                name=name,
                pool=name,
                cost=CostModel.TOKEN,
                quantum=4_096,
                batch_requests=batch_requests,
                batch_wait_ms=0,
                body_bytes_max=500_000,
                wait_ms_max=WAIT_MS_MAX,
                inputs_max=INPUTS_MAX,
            ),
        ),
        tenants=tuple(Tenant(name=tenant, tiers=("standard",)) for tenant in tenants),
    )
    faults = check(policy)
    if faults:
        raise FairlaneError("\n".join(faults))
    return policy


class Embedded:
    """One deployment; enter it in the event loop that is to serve it."""

    def __init__(
        self,
        policy: Policy,
        engines: Mapping[str, Engine],
        *,
        slots: int = 1,
        index_bytes: int = BYTES_MAX,
    ) -> None:
        """Nothing runs yet.

        Args:
            policy: tenants, endpoints and pools.
            engines: what runs the batches of each pool.
            slots: batches that run at once in each lane.
            index_bytes: what results that ended may take until they are asked for.

        Raises FairlaneError: a pool has no engine, its requests would wait for ever.
        """
        _check_engines(policy, engines)
        clock, self.topics = SystemClock(), Topics("embedded")
        self.log = MemoryLog(clock)
        self._policy, self._clock = policy, clock
        board = MemoryBoard()
        self.ingress = _ingress(self.log, self.topics, clock, index_bytes, board)
        self.scheduler = Scheduler(
            self.log,
            self.topics,
            clock=clock,
            meter=NoMeter(),
            notes=_Notes(),
            instance=_INSTANCE,
            idle_wait_s=0.0,
            board=board,
        )
        self.workers = [
            WorkerService(
                self.log,
                self.topics,
                WorkerSettings(pool, _INSTANCE),
                lambda _, engine=engine: ThreadSlots(engine, slots, clock),  # type: ignore[misc]
                clock,
                NoMeter(),
                _Notes(),
            )
            for pool, engine in engines.items()
        ]
        self._trimmer = Trimmer(
            self.log, self.topics, [(pool.name, pool.lanes) for pool in policy.pools]
        )
        self.keys: dict[str, str] = {}
        self._transport = InProcess(build_app(self.ingress))
        self._stopping = False
        self._services: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Publish policy and keys, start, and wait until requests are taken.

        Raises FairlaneError when the services can't go on before.
        """
        publish_policy(self.log, self.topics, self._policy)
        for tenant in self._policy.tenants:
            key = self.keys[tenant.name] = new_key(secrets.token_bytes)
            publish_key(self.log, self.topics, key_record(key, tenant.name, self._clock.now_ms()))
        self.ingress.start()
        self._services = asyncio.create_task(self._serve())
        try:
            await self._ready()
        except BaseException:
            await self._stop()
            raise
        return self

    async def _ready(self) -> None:
        until_s = asyncio.get_running_loop().time() + READY_S_MAX
        assert self._services is not None
        while why := self.ingress.why_not_ready():
            if self._services.done():
                await self.failed()
            if asyncio.get_running_loop().time() > until_s:
                raise FairlaneError(f"the embedded deployment does not begin: {why}")
            await asyncio.sleep(_READY_POLL_S)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop()

    async def _stop(self) -> None:
        await self.ingress.stop()
        self._stopping = True
        if self._services is not None:
            with suppress(Exception):  # told by `failed`
                await asyncio.wait_for(self._services, STOP_S_MAX)
        for worker in self.workers:
            worker.close()
        self.scheduler.close()

    def client(self, tenant: str) -> AsyncClient:
        """A client of a tenant of the policy. Raises KeyError for another."""
        return AsyncClient(_URL, self.keys[tenant], transport=self._transport)

    async def failed(self) -> None:
        """Return when the services were stopped; raises FairlaneError when they can't go on."""
        assert self._services is not None, "the deployment is entered first"
        try:
            await asyncio.shield(self._services)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise FairlaneError(f"the embedded deployment failed: {error!r}") from error

    async def _serve(self) -> None:
        """Let the services take turns until the end."""
        loop = asyncio.get_running_loop()
        pause_s, trim_at_s = IDLE_S, loop.time() + TRIM_S
        while not self._stopping:
            is_busy = self.scheduler.turn()
            for worker in self.workers:
                is_busy |= worker.turn()
            if loop.time() >= trim_at_s:
                self._trimmer.trim(self.scheduler)
                trim_at_s = loop.time() + TRIM_S
            pause_s = BUSY_S if is_busy else min(2 * pause_s, IDLE_S_MAX)
            await asyncio.sleep(pause_s)


def _check_engines(policy: Policy, engines: Mapping[str, Engine]) -> None:
    if idle := sorted({pool.name for pool in policy.pools} - engines.keys()):
        raise FairlaneError(f"no engine for {', '.join(idle)}: each pool of the policy has one")


def _ingress(
    memory: MemoryLog, topics: Topics, clock: Clock, index_bytes: int, board: MemoryBoard
) -> Ingress:
    return Ingress(
        Parts(
            log=memory,
            topics=topics,
            limits=_LocalCharges(clock),
            index=MemoryIndex(index_bytes),
            clock=clock,
            random_bytes=secrets.token_bytes,
            offload=_in_place,
            backlog=board,
        )
    )


async def _in_place(call: Callable[[], C]) -> C:
    """Run a call of the log here and now: the one in memory never blocks."""
    return call()


class _LocalCharges:
    """Limits counted in this process."""

    def __init__(self, clock: Clock) -> None:
        self._limits, self._clock = LocalLimits(), clock

    async def charge(self, charge: Charge) -> Verdict:
        """Take the charge or nothing."""
        return self._limits.charge(charge, self._clock.now_ms())

    async def refund(self, charge: Charge) -> bool:
        """Give a charge back, once."""
        return self._limits.refund(charge, self._clock.now_ms())

    async def settle(self, settlements: Sequence[Settlement]) -> int:
        """Put true tokens in the place of estimates, each once."""
        now_ms = self._clock.now_ms()
        return sum(self._limits.settle(one, now_ms) for one in settlements)

    async def announce(self, _: str) -> int:
        """There is one ingress."""
        return 1


class _Notes:
    """What the services note: warnings to `logging`, the rest to its debug level."""

    def info(self, event: str, **facts: object) -> None:
        """Note what is usual."""
        log.debug("%s %s", event, facts)

    def warning(self, event: str, **facts: object) -> None:
        """Note what somebody should look at."""
        log.warning("%s %s", event, facts)
