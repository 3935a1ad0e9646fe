"""A pool whose workers have all stopped: what comes then can still be cancelled, and expires."""

from schemas.codec import encode
from schemas.records import VERSION, Cancel, End
from simulation.world import Arrival, Workers, World
from tests.support.policies import embed_policy
from workers.engines.simulated import SimulatedSettings


def stopped() -> World:
    """A world whose workers have served one request and then stopped cleanly."""
    world = World(embed_policy(), [Workers("embed", 2, 2, SimulatedSettings())])
    world.submit(Arrival(0, "acme", "embed", "gold", b"first"))
    world.run()
    for worker in world.workers:
        worker.service.close()
    world.settle()
    return world


def test_a_deadline_ends_what_no_worker_can_take() -> None:
    world = stopped()
    late = world.submit(Arrival(0, "acme", "embed", "gold", b"late", deadline_ms=60_000))
    world.run()
    (result,) = [served.result for served in world.served if served.result.id == late]
    assert (result.end, result.picked_ms) == (End.EXPIRED, 0)


def test_a_cancel_ends_it_at_once() -> None:
    world = stopped()
    before_ms = world.clock.now_ms()
    unwanted = world.submit(Arrival(0, "acme", "embed", "gold", b"unwanted"))
    world.settle()
    topic = world.topics.requests("gold")
    partition = world.topics.request_partition("embed", "acme", world.policy)
    cancel = encode(Cancel(VERSION, topic, partition, 1))
    world.log.producer().send(world.topics.control, 0, cancel)
    world.settle()
    (result,) = [served.result for served in world.served if served.result.id == unwanted]
    assert (result.end, world.clock.now_ms()) == (End.CANCELLED, before_ms)


def test_a_worker_that_comes_back_serves_what_waited() -> None:
    world = stopped()
    waiting = world.submit(Arrival(0, "acme", "embed", "gold", b"waiting"))
    world.settle()
    assert len(world.served) == 1
    for number in range(len(world.workers)):
        world.crash_worker(number)
    world.run()
    assert world.served[-1].result.id == waiting
    assert world.served[-1].result.end is End.SUCCEEDED
