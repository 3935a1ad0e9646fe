"""Pauses as an operator gives them, in a whole deployment: who waits, and until when."""

from msgspec.structs import replace

from fairlane.pause import pause, resume
from schemas.records import End
from simulation.world import Arrival, Workers, World
from tests.support.policies import embed_policy
from workers.engines.simulated import SimulatedSettings

MINUTE_MS = 60_000
FAMILY = embed_policy()
FAMILY = replace(FAMILY, tenants=(*FAMILY.tenants[:2], replace(FAMILY.tenants[2], parent="acme")))


def world() -> World:
    made = World(FAMILY, [Workers("embed", 1, 2, SimulatedSettings()), Workers("chat", 1, 4)])
    made.settle()
    return made


def submit(made: World, *places: str) -> None:
    """One request of each `tenant/endpoint`, under that name."""
    for place in places:
        tenant, endpoint = place.split("/")
        made.submit(Arrival(0, tenant, endpoint, "gold", b"body", id=place))


def served(made: World) -> set[str]:
    return {one.result.id for one in made.served if one.result.end is End.SUCCEEDED}


ALL = ("acme/embed", "acme/chat", "globex/embed", "globex/chat", "initech/embed", "initech/chat")


def after_pause(made: World, tenant: str, endpoint: str, until_ms: int = 0) -> set[str]:
    """Who is served of one request of everybody everywhere, in the half minute after it."""
    pause(made.log, made.topics, tenant, endpoint, until_ms)
    made.settle()
    submit(made, *ALL)
    made.settle()
    half_ms = made.clock.now_ms() + MINUTE_MS // 2
    while (next_ms := made.next_ms()) is not None and next_ms <= half_ms:
        made.step()
    return served(made)


def test_a_paused_tenant_waits_everywhere_with_its_children() -> None:
    made = world()
    assert after_pause(made, "acme", "") == {"globex/embed", "globex/chat"}
    resume(made.log, made.topics, "acme", "")
    made.run()
    assert served(made) == set(ALL)


def test_a_paused_endpoint_serves_nobody_and_the_others_all() -> None:
    made = world()
    assert after_pause(made, "", "chat") == {"acme/embed", "globex/embed", "initech/embed"}
    resume(made.log, made.topics, "", "chat")
    made.run()
    assert served(made) == set(ALL)


def test_a_child_paused_at_one_endpoint_stops_nobody_else() -> None:
    made = world()
    assert after_pause(made, "initech", "embed") == set(ALL) - {"initech/embed"}


def test_a_pause_with_an_end_ends_by_itself_and_not_before() -> None:
    made = world()
    until_ms = made.clock.now_ms() + MINUTE_MS
    assert after_pause(made, "globex", "", until_ms) == set(ALL) - {"globex/embed", "globex/chat"}
    made.run()
    late = [one for one in made.served if one.result.tenant == "globex"]
    assert {one.result.end for one in late} == {End.SUCCEEDED}
    assert all(until_ms <= one.result.picked_ms < until_ms + MINUTE_MS for one in late)


def test_a_resume_with_other_names_ends_no_pause() -> None:
    made = world()
    pause(made.log, made.topics, "globex", "")
    resume(made.log, made.topics, "globex", "embed")
    assert after_pause(made, "", "chat") == {"acme/embed", "initech/embed"}


def test_a_pause_outlives_the_scheduler() -> None:
    made = world()
    pause(made.log, made.topics, "acme", "chat")
    made.settle()
    made.crash_scheduler()
    made.settle()
    assert after_pause(made, "acme", "chat") == set(ALL) - {"acme/chat", "initech/chat"}
    made.run()
    expired = [one.result for one in made.served if one.result.end is End.EXPIRED]
    assert {one.id for one in expired} == {"acme/chat", "initech/chat"}
