"""Records that nobody can use, on the real log: set aside by name, while the rest goes on."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from schemas.codec import HEADER, encode, header
from schemas.log import RECORD_BYTES_MAX
from schemas.policy import POLICY_KEY
from schemas.reasons import Reason
from schemas.records import VERSION, Cancel, End, Request, Seen
from tests.support.schedulers import POOL, TENANT, Deployment

GARBAGE = b"\xc1 no record"


@pytest.fixture
def deployment(kafka_bootstrap: str) -> Iterator[Deployment]:
    found = Deployment(kafka_bootstrap, f"bad-{uuid4().hex[:8]}")
    yield found
    found.close()


def test_what_cannot_be_used_is_set_aside_and_the_rest_goes_on(deployment: Deployment) -> None:
    holder = deployment.serving()
    scheduler = deployment.scheduler()
    requests, topics = deployment.requests, deployment.topics
    workers, control = (topics.workers(POOL), 0), (topics.control, 0)
    endpoint = deployment.policy.endpoint(POOL)
    assert endpoint is not None
    later = VERSION + 1
    new = Request(later, "new", TENANT, POOL)
    expected = {
        (*requests, deployment.produce(requests, GARBAGE)): Reason.UNREADABLE,
        (*requests, deployment.produce(requests, b"", [(HEADER, GARBAGE)])): Reason.UNREADABLE,
        (*requests, deployment.produce(requests, b"b", header(new))): Reason.UNKNOWN_VERSION,
        (*requests, deployment.submit("nobody", tenant="nobody")): Reason.UNKNOWN_TENANT,
        (*requests, deployment.submit("nothing", endpoint="no")): Reason.UNKNOWN_ENDPOINT,
        (*requests, deployment.submit("big", body=bytes(endpoint.batch_bytes + 1))): (
            Reason.NEVER_FITS
        ),
        (*workers, deployment.produce(workers, GARBAGE)): Reason.UNREADABLE,
        (*workers, deployment.produce(workers, encode(Seen(later, 1)))): Reason.UNKNOWN_VERSION,
        (*control, deployment.produce(control, GARBAGE)): Reason.UNREADABLE,
        (*control, deployment.produce(control, encode(Cancel(later, "t", 0, 0)))): (
            Reason.UNKNOWN_VERSION
        ),
        (topics.policy, 0, deployment.produce((topics.policy, 0), b"{", key=POLICY_KEY)): (
            Reason.UNREADABLE
        ),
    }
    deployment.submit("good")
    deployment.serve_all(["nobody", "nothing", "big", "good"], scheduler, holder)
    deployment.until(lambda: len(deployment.dead()) >= len(expected), scheduler)
    found = {(d.topic, d.partition, d.offset): d.reason for d, _ in deployment.dead()}
    assert found == expected
    assert len(deployment.dead()) == len(expected)
    ends = {result.id: (result.end, result.reason) for result in deployment.results()}
    assert ends.pop("good")[0] is End.SUCCEEDED
    assert ends == {
        "nobody": (End.FAILED, Reason.UNKNOWN_TENANT),
        "nothing": (End.FAILED, Reason.UNKNOWN_ENDPOINT),
        "big": (End.FAILED, Reason.NEVER_FITS),
    }
    deployment.until(lambda: not scheduler.shards[0].state.ids, scheduler)
    assert deployment.recovers_as(scheduler.shards[0])
    assert "log in doubt: rebuilding the shard" not in deployment.notes.names()


def test_the_largest_record_that_the_log_takes_does_not_stop_the_shard(
    deployment: Deployment,
) -> None:
    """What is told about a record adds to it, and must not pass the limit that it kept itself."""
    holder = deployment.serving()
    scheduler = deployment.scheduler()
    deployment.submit("large", body=bytes(RECORD_BYTES_MAX - 50))
    deployment.produce(deployment.requests, bytes(RECORD_BYTES_MAX))
    deployment.submit("good")
    deployment.serve_all(["large", "good"], scheduler, holder)
    deployment.until(lambda: len(deployment.dead()) == 2, scheduler)
    assert "log in doubt: rebuilding the shard" not in deployment.notes.names()
