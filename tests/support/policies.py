"""Small policies for tests, built in code."""

from typing import Any

from schemas.policy import CostModel, Endpoint, Fairness, Policy, Pool, Tenant, Tier


def embed_policy(
    *,
    tenants: dict[str, int] | None = None,
    tiers: tuple[str, ...] = ("gold", "standard"),
    fairness: Fairness = Fairness.DRR,
    version: int = 1,
    **endpoint: int,
) -> Policy:
    """One token-cost endpoint `embed` (batches) and one request-cost endpoint `chat`."""
    weights = tenants or {"acme": 1, "globex": 2, "initech": 1}
    settings: dict[str, Any] = {
        "quantum": 2_000,
        "batch_requests": 8,
        "batch_tokens": 4_000,
        "batch_wait_ms": 10,
        "tokens_max": 4_000,
    }
    settings.update(endpoint)
    return Policy(
        version=version,
        tiers=tuple(Tier(name=tier) for tier in tiers),
        pools=(
            Pool(name="embed", lanes=2, fairness=fairness),
            Pool(name="chat", lanes=2, fairness=fairness),
        ),
        endpoints=(
            Endpoint(name="embed", pool="embed", cost=CostModel.TOKEN, **settings),
            Endpoint(name="chat", pool="chat", quantum=1, batch_requests=1, batch_wait_ms=0),
        ),
        tenants=tuple(
            Tenant(name=name, tiers=tiers, weight=weight) for name, weight in weights.items()
        ),
    )
