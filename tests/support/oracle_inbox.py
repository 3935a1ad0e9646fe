"""The judge of inboxes: it knows what stands in the topics, and none of the code that wrote it.

Each record of an inbox has one request in the log or one refusal (or word that it repeats
another), never both, never two; requests of an inbox stand in each request partition in the
inbox's order; each request of the tenant has one outcome in its results topic.
"""

import json
from collections import Counter, defaultdict
from typing import Any, Protocol

from schemas import codec
from schemas.log import Log, Record
from schemas.records import Request, Result
from schemas.topics import Topics

Place = tuple[str, int]


class Deployment(Protocol):
    """A log in memory or a real one, and the names in it."""

    @property
    def log(self) -> Log: ...

    @property
    def topics(self) -> Topics: ...


def records(log: Log, topic: str, number: int = 0, start: int = 0) -> list[Record]:
    """Committed records of a partition, from an offset on."""
    reader = log.reader()
    end = reader.bounds((topic, number)).end
    reader.assign({(topic, number): start})
    found: list[Record] = []
    while not reader.reached((topic, number), end):
        found += reader.poll(1_000, 0.1)
    reader.close()
    return found


def answers(of: Deployment, tenant: str) -> list[dict[str, Any]]:
    """What a tenant reads."""
    topic = of.topics.results_of(tenant)
    return [json.loads(record.value) for record in records(of.log, topic)]


def requests(of: Deployment) -> dict[str, list[tuple[Place, int, str]]]:
    """Requests that came by inbox, by tenant: where each stands, its offset there, its id."""
    found: dict[str, list[tuple[Place, int, str]]] = defaultdict(list)
    for topic in of.log.topics():
        if not topic.startswith(of.topics.requests("")):
            continue
        for number in range(of.log.partitions(topic)):
            for record in records(of.log, topic, number):
                request: Request = codec.decode_header(record, Request)
                text = dict(record.headers).get("fairlane-inbox", b"").decode()
                if text:
                    offset = int(text.rsplit("/", 1)[1])
                    found[request.tenant].append(((topic, number), offset, request.id))
    return found


def faults(of: Deployment, tenants: tuple[str, ...], *, may_repeat: bool = False) -> list[str]:
    """All that is wrong; `may_repeat`: a request may stand twice, by the same id.

    Then its record may also be told that it repeats one: itself.
    """
    found: list[str] = []
    taken = requests(of)
    for tenant in tenants:
        published = taken[tenant]
        told = answers(of, tenant)
        refused = Counter(a["inbox"]["offset"] for a in told if a["kind"] != "ended")
        accepted = Counter(offset for _, offset, _ in published)
        for record in records(of.log, of.topics.inbox(tenant)):
            at = record.offset
            n_accepted, n_refused = accepted.pop(at, 0), refused.pop(at, 0)
            if may_repeat:
                n_accepted = min(n_accepted, 1)
                n_refused -= sum(
                    n_accepted
                    for a in told
                    if a["kind"] == "repeated"
                    and a["inbox"]["offset"] == at
                    and any(a["id"] == name for _, offset, name in published if offset == at)
                )
            if n_accepted + n_refused != 1:
                found.append(f"{tenant}@{at}: {n_accepted} requests, {n_refused} refusals")
        found += [f"{tenant}@{at}: of no record" for at in (*accepted, *refused)]
        found += _order(tenant, published, may_repeat=may_repeat)
        found += _outcomes(of, tenant, told)
    return found


def _order(tenant: str, published: list[tuple[Place, int, str]], *, may_repeat: bool) -> list[str]:
    last: dict[Place, int] = {}
    found = []
    seen = set[tuple[Place, int]]()
    for place, offset, _ in published:
        if (place, offset) in seen and may_repeat:
            continue
        seen.add((place, offset))
        if offset <= last.get(place, -1):
            found.append(f"{tenant}@{offset}: behind {last[place]} in {place}")
        last[place] = offset
    return found


def _outcomes(of: Deployment, tenant: str, told: list[dict[str, Any]]) -> list[str]:
    expected = Counter[str]()
    for number in range(of.log.partitions(of.topics.results)):
        for record in records(of.log, of.topics.results, number):
            result: Result = codec.decode_header(record, Result)
            if result.tenant == tenant and result.reason != "duplicate":
                expected[result.id] += 1
    got = Counter(str(answer["id"]) for answer in told if answer["kind"] == "ended")
    if got != expected:
        return [f"{tenant}: outcomes {json.dumps(got - expected)}, missing {expected - got}"]
    return []
