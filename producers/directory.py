"""The policy and the API keys, followed live from their compacted topics.

Both topics are small and are read whole at the start, then followed: a new policy, a new
key or a revocation acts within one turn of the log, without asking anybody. A record that
can't be read or a policy with faults changes nothing; what was known before stays.
"""

import logging
from typing import NamedTuple

from schemas import keys
from schemas.codec import DecodeError, decode_value
from schemas.log import Log, Partition, PositionLostError, Reader, Record
from schemas.policy import POLICY_KEY, Policy, PolicyError, Tenant, decode_policy
from schemas.policy_check import check
from schemas.records import VERSION, ApiKey
from schemas.topics import Topics

#: Records taken at once; the rest comes in the next turn.
RECORDS_MAX = 1_000
_SCHEME = "bearer "
#: A key that no secret proves: digests have 32 bytes, and it is revoked.
_NOBODY = ApiKey(VERSION, "", "", bytes(32), 0, revoked_ms=1)

log = logging.getLogger(__name__)


class View(NamedTuple):
    """A policy with its tenants by name."""

    policy: Policy
    tenants: dict[str, Tenant]


class Directory:
    """What the two topics say now. `turn` may run in another thread than the readers of it."""

    def __init__(self, the_log: Log, topics: Topics) -> None:
        """Nothing is read before the first turn."""
        self._log, self._topics = the_log, topics
        self._reader: Reader | None = None
        self._ends: dict[Partition, int] = {}
        self._keys: dict[str, ApiKey] = {}
        self.view: View | None = None
        self.is_read = False

    def turn(self, timeout_s: float) -> int:
        """Take in what is new, waiting up to `timeout_s` for it; returns how many records."""
        reader = self._reader or self._open()
        if reader is None:
            return 0
        try:
            records = reader.poll(RECORDS_MAX, timeout_s)
        except PositionLostError as error:
            log.warning("read again from the start: %s", error)
            reader.close()
            self._reader = None
            return 0
        for record in records:
            self._take(record)
        if not self.is_read:
            self.is_read = all(reader.reached(part, end) for part, end in self._ends.items())
        return len(records)

    def authenticate(self, authorization: str) -> ApiKey | None:
        """The key that an Authorization header proves; None when it proves none."""
        if authorization[: len(_SCHEME)].lower() != _SCHEME:
            return None
        parts = keys.parse(authorization[len(_SCHEME) :].strip())
        if parts is None:
            return None
        key_id, secret = parts
        record = self._keys.get(key_id)
        # An id that nobody has takes as long: how long it takes tells nothing of which there are.
        is_proven = keys.proves(record or _NOBODY, secret)
        return record if record and is_proven else None

    def close(self) -> None:
        """Free the reader."""
        if self._reader:
            self._reader.close()

    def _open(self) -> Reader | None:
        parts = [(self._topics.policy, 0), (self._topics.keys, 0)]
        if not all(self._log.partitions(topic) for topic, _ in parts):
            return None  # `fairlane policy apply` and `fairlane keys create` make them
        reader = self._log.reader()
        bounds = {part: reader.bounds(part) for part in parts}
        self._ends = {part: bound.end for part, bound in bounds.items()}
        reader.assign({part: bound.low for part, bound in bounds.items()})
        self._reader = reader
        return reader

    def _take(self, record: Record) -> None:
        try:
            if record.topic == self._topics.keys:
                self._take_key(record)
            elif record.key == POLICY_KEY and record.value:
                self._take_policy(record)
        except (DecodeError, PolicyError) as error:
            log.error("%s: left out, the earlier one stays: %s", record.place, error)  # noqa: TRY400 - the place says it all

    def _take_key(self, record: Record) -> None:
        if not record.value:
            self._keys.pop((record.key or b"").decode(errors="replace"), None)
            return
        key: ApiKey = decode_value(record, ApiKey)
        self._keys[key.id] = key

    def _take_policy(self, record: Record) -> None:
        policy = decode_policy(record.value)
        faults = check(policy)
        if faults:
            raise PolicyError(faults)
        self.view = View(policy, {tenant.name: tenant for tenant in policy.tenants})
