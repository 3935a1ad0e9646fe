"""What workers say about finished batches, written by hand; and what must be counted of it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from schemas.codec import encode
from schemas.log import Log, LogError, Record, TransactionalProducer
from schemas.policy import Endpoint, Policy, Pool, Tenant, Tier
from schemas.records import VERSION, End, Finished, Outcome, Usage
from schemas.topics import Topics
from schemas.usage import UsageSum, Window
from tests.support.processes import until

#: 2026-03-31T23:59:30Z, half a minute before a new minute, hour, day and month.
BEFORE_MIDNIGHT_MS = 1_775_001_570_000

Whose = tuple[str, str]


def policy(**lanes: int) -> Policy:
    """A policy with these pools, an endpoint of the same name each, and two tenants."""
    return Policy(
        tiers=(Tier(name="standard"),),
        pools=tuple(Pool(name=pool, lanes=count) for pool, count in lanes.items()),
        endpoints=tuple(Endpoint(name=pool, pool=pool) for pool in lanes),
        tenants=tuple(Tenant(name=name, tiers=("standard",)) for name in ("acme", "globex")),
    )


def finished(number: int, ended_ms: int, whose: Sequence[Whose], tokens: int = 10) -> Finished:
    """A batch with one request for each of `whose`; each used `tokens` and one of output."""
    return Finished(
        VERSION,
        number,
        tuple(Outcome(key, End.SUCCEEDED, Usage(tokens, 1, 0, 0, 5)) for key in range(len(whose))),
        tuple(tenant for tenant, _ in whose),
        tuple(endpoint for _, endpoint in whose),
        ended_ms,
    )


def record(offset: int, value: bytes, lane: int = 0, timestamp_ms: int = 0) -> Record:
    """A record of a lane of the pool `gpu`, as a reader gives it."""
    return Record("t.workers.gpu", lane, offset, timestamp_ms, None, value, ())


def window_start_ms(window: Window, time_ms: int) -> int:
    """Start of a window by the standard library's calendar: the oracle."""
    if window is Window.ALL:
        return 0
    moment = datetime.fromtimestamp(time_ms // 1000, UTC).replace(second=0)
    if window is not Window.MINUTE:
        moment = moment.replace(minute=0)
    if window in {Window.DAY, Window.MONTH}:
        moment = moment.replace(hour=0)
    if window is Window.MONTH:
        moment = moment.replace(day=1)
    return int(moment.timestamp()) * 1000


def expected(batches: Iterable[Finished], windows: Iterable[Window]) -> Counter[tuple[object, ...]]:
    """Tokens by (tenant, endpoint, window, start): every batch once, by the plain way."""
    found: Counter[tuple[object, ...]] = Counter()
    for batch in batches:
        for outcome, tenant, endpoint in zip(
            batch.outcomes, batch.tenants, batch.endpoints, strict=True
        ):
            for window in windows:
                start_ms = window_start_ms(window, batch.ended_ms)
                found[tenant, endpoint, window, start_ms] += outcome.usage.tokens
    return found


def tokens(sums: Iterable[UsageSum]) -> Counter[tuple[object, ...]]:
    """Tokens by (tenant, endpoint, window, start) as they were counted."""
    found: Counter[tuple[object, ...]] = Counter()
    for total in sums:
        key = total.tenant, total.endpoint, total.window, total.start_ms
        found[key] += total.used.input_tokens + total.used.output_tokens
    return found


class Lane:
    """Writes what the holder of a lane says, each record in a transaction of its own."""

    def __init__(self, log: Log, topics: Topics, pool: str, lane: int) -> None:
        self.topic, self.lane = topics.workers(pool), lane
        self._producer: TransactionalProducer = log.transactional(f"{topics.prefix}.{pool}.{lane}")
        self._producer.init()
        self._everything = log.reader(committed_only=False)

    def say(self, *values: bytes, is_committed: bool = True) -> None:
        """Write records in one transaction, and commit it; or abort it when they are written."""
        before = self._end()
        self._producer.begin()
        for value in values:
            self._producer.send(self.topic, self.lane, value)
        if is_committed:
            self._producer.commit()
            return
        # What is not sent yet when a transaction is aborted never comes to the log.
        until(lambda: self._end() >= before + len(values), "what will be aborted is in the log")
        try:
            self._producer.abort()
        except LogError:  # the log's time-out came first
            self._producer.init()

    def _end(self) -> int:
        return self._everything.bounds((self.topic, self.lane)).end

    def finish(self, *batches: Finished, is_committed: bool = True) -> None:
        """Write finished batches, each in a transaction of its own."""
        for batch in batches:
            self.say(encode(batch), is_committed=is_committed)

    def close(self) -> None:
        self._everything.close()
        self._producer.close()
