"""The judge of inboxes: it knows what stands in the topics, and none of the code that wrote it.

Each record of an inbox has one request in the log or one refusal (or word that it repeats
another), never both, never two; requests of an inbox stand in each request partition in the
inbox's order; each request of the tenant has one outcome in its results topic.
"""

import json
from collections import Counter, defaultdict

from schemas import codec
from schemas.records import Request, Result
from tests.support.inboxes import Post

Place = tuple[str, int]


def requests(post: Post) -> dict[str, list[tuple[Place, int, str]]]:
    """Requests that came by inbox, by tenant: where each stands, its offset there, its id."""
    found: dict[str, list[tuple[Place, int, str]]] = defaultdict(list)
    for topic in post.log.topics():
        if not topic.startswith(post.topics.requests("")):
            continue
        for number in range(post.log.partitions(topic)):
            for record in post.records(topic, number):
                request: Request = codec.decode_header(record, Request)
                text = dict(record.headers).get("fairlane-inbox", b"").decode()
                if text:
                    offset = int(text.rsplit("/", 1)[1])
                    found[request.tenant].append(((topic, number), offset, request.id))
    return found


def faults(post: Post, tenants: tuple[str, ...], *, may_repeat: bool = False) -> list[str]:
    """All that is wrong; `may_repeat`: a request may stand twice, by the same id.

    Then its record may also be told that it repeats one: itself.
    """
    found: list[str] = []
    taken = requests(post)
    for tenant in tenants:
        published = taken[tenant]
        answers = post.answers(tenant)
        refused = Counter(a["inbox"]["offset"] for a in answers if a["kind"] != "ended")
        accepted = Counter(offset for _, offset, _ in published)
        for record in post.records(post.topics.inbox(tenant)):
            at = record.offset
            n_accepted, n_refused = accepted.pop(at, 0), refused.pop(at, 0)
            if may_repeat:
                n_accepted = min(n_accepted, 1)
                n_refused -= sum(
                    n_accepted
                    for a in answers
                    if a["kind"] == "repeated"
                    and a["inbox"]["offset"] == at
                    and any(a["id"] == name for _, offset, name in published if offset == at)
                )
            if n_accepted + n_refused != 1:
                found.append(f"{tenant}@{at}: {n_accepted} requests, {n_refused} refusals")
        found += [f"{tenant}@{at}: of no record" for at in (*accepted, *refused)]
        found += _order(tenant, published, may_repeat=may_repeat)
        found += _outcomes(post, tenant, answers)
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


def _outcomes(post: Post, tenant: str, answers: list[dict[str, object]]) -> list[str]:
    expected = Counter[str]()
    for number in range(post.log.partitions(post.topics.results)):
        for record in post.records(post.topics.results, number):
            result: Result = codec.decode_header(record, Result)
            if result.tenant == tenant and result.reason != "duplicate":
                expected[result.id] += 1
    got = Counter(str(answer["id"]) for answer in answers if answer["kind"] == "ended")
    if got != expected:
        return [f"{tenant}: outcomes {json.dumps(got - expected)}, missing {expected - got}"]
    return []
