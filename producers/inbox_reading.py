"""From an inbox record to a request that may be taken in, checked as the API checks it."""

import logging
from typing import NamedTuple

from producers.core import ids
from producers.core.answers import Problem, of_faults, own_error, unavailable
from producers.core.inbox import POSITION, Position, envelope, own_id
from producers.core.inbox_answers import Answer, failed, refused
from producers.core.submission import Faults, outline, read
from producers.directory import View
from producers.inbox_takeover import Source, Stand
from producers.ingress import ROUTE
from producers.intake import Asked
from schemas.front import RequestName
from schemas.log import Headers, Record
from schemas.policy import Tenant
from schemas.reasons import Reason

log = logging.getLogger(__name__)


class Refused(NamedTuple):
    """A record that is no request; `endpoint` as far as it is known."""

    problem: Problem
    endpoint: str


class Mail(NamedTuple):
    """A record of an inbox as it was read.

    `id` is that of its request, `headers` travel with it: its position and what it named.
    `stand` is where the request is in the log already.
    """

    record: Record
    position: Position
    tenant: str
    id: str
    headers: Headers
    asked: Asked | Refused | Exception
    stand: Stand | None = None

    def refusal(self, problem: Problem) -> Answer:
        """The answer that it is not let in."""
        return refused(self.tenant, self.id, self.position, self.headers, problem)

    def failure(self, error: Exception) -> Answer:
        """The answer that we failed at it: what stands behind it goes on."""
        log.error("%s: failed, and is refused", self.record.place, exc_info=error)
        return failed(self.tenant, self.id, self.position, self.headers, own_error(error))


def overtaken() -> Refused:
    """Of a record that was turned down, or whose publish failed, while a later one got in."""
    detail = (
        "before the inbox was read back it was turned down, or the log did not take it, and a "
        "later one of it was let in: it would stand behind that one; send it again"
    )
    return Refused(unavailable(detail), "")


def read_mail(record: Record, source: Source, tenant: Tenant, view: View, now_ms: int) -> Mail:
    """Read a record; whatever is wrong with it is said in `asked`."""
    position = Position(source.topic_id, record.partition, record.offset)
    name = own_id(tenant.name, position)
    place = ((POSITION, str(position).encode()),)
    try:
        found = envelope(record)
        if isinstance(found, Faults):
            return Mail(record, position, tenant.name, name, place, _refused(found))
        headers = (*place, *found.travelling)
        if found.key is not None:
            name = ids.request_id(tenant.name, ROUTE, found.key)
        asked = _asked(record, RequestName(tenant.name, name), tenant, view, now_ms)
        if isinstance(asked, Asked):
            asked = asked._replace(
                key=found.key or str(position),
                is_named=found.key is not None,
                trace=found.trace,
                call=found.call,
                headers=place,
            )
    except Exception as error:  # noqa: BLE001 - told in the answer, and by who answers
        return Mail(record, position, tenant.name, name, place, error)
    return Mail(record, position, tenant.name, name, headers, asked)


def _asked(
    record: Record, name: RequestName, tenant: Tenant, view: View, now_ms: int
) -> Asked | Refused:
    fields = outline(record.value)
    if isinstance(fields, Faults):
        return _refused(fields)
    arrived_ms = min(record.timestamp_ms, now_ms)
    read_as = read(fields, view.policy, tenant, name.id, arrived_ms)
    if isinstance(read_as, Faults):
        return _refused(read_as)
    deadline_ms = read_as.request.deadline_ms
    if deadline_ms and deadline_ms <= now_ms:
        late_ms = now_ms - deadline_ms
        detail = f"deadline_ms: was over {late_ms} ms before the record was taken in"
        return Refused(Problem(Reason.DEADLINE, detail), read_as.endpoint.name)
    digest = ids.digest(fields)
    return Asked(read_as, view.policy, name, "", digest, None, is_named=False)


def _refused(faults: Faults) -> Refused:
    return Refused(of_faults(faults.faults, faults.reason), faults.endpoint)
