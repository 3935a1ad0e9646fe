"""Histories in which limits are always near: small ones, families, and a pause of the first."""

from random import Random

from msgspec.structs import replace

from schemas.policy import Policy
from simulation.draw import Halt, draw
from simulation.history import History

#: How long the pause of the first tenant is, from the middle of the arrivals on.
PAUSE_MS = 700


def strained(seed: int) -> History:
    """The history of a seed under such a policy, which stays."""
    chosen = draw(seed)
    policy = _strained(Random(seed), chosen.policy)
    halt = Halt(chosen.stop_ms // 2, policy.tenants[0].name, "", PAUSE_MS, None)
    events = [(at_ms, event) for at_ms, event in chosen.events if event != "policy"]
    halts = (*chosen.halts, halt)
    return History(seed, chosen=chosen._replace(policy=policy, events=events, halts=halts))


def _strained(random: Random, policy: Policy) -> Policy:
    first = policy.tenants[0].name
    has_family = random.random() < 0.5
    tenants = []
    for tenant in policy.tenants:
        is_child = has_family and tenant.name != first and random.random() < 0.8
        own = {e.name: random.choice((1, 2, 3)) for e in policy.endpoints}
        limits = own if random.random() < 0.6 else {}
        tenants.append(replace(tenant, parent=first if is_child else "", in_flight=limits))
    endpoints = []
    for endpoint in policy.endpoints:
        strained = replace(
            endpoint,
            in_flight=random.choice((0, 1, 2, 4)),
            burst=random.choice((0, 2, 5)),
            waiting=random.choice((None, 4, 8)),
            batch_requests=random.choice((2, 4, 16)),
            batch_tokens=random.choice((500, 2_000)),
            overtake_max=8,
        )
        tokens_max = min(strained.tokens_max, strained.batch_tokens)
        endpoints.append(replace(strained, tokens_max=tokens_max))
    return replace(policy, tenants=tuple(tenants), endpoints=tuple(endpoints))
