"""What is allowed in a policy, but hardly meant: shown beside a plan, never in its way.

Pure. A fault (`schemas.policy_check`) is what can't work; a hint is what works otherwise than
its author may think.
"""

from collections.abc import Iterator

from schemas.policy import CostModel, Endpoint, Policy
from schemas.policy_check import UNITS, label


def hints(policy: Policy) -> list[str]:
    """Every hint about a policy without faults, each with its place."""
    found: list[str] = []
    for index, endpoint in enumerate(policy.endpoints):
        place = label(f"endpoints[{index}]", endpoint.name)
        texts = (*_quantum(endpoint), *_burst(policy, endpoint), *_shadow(policy, endpoint))
        found += [f"{place}: {text}" for text in texts]
    for index, tenant in enumerate(policy.tenants):
        place = label(f"tenants[{index}]", tenant.name)
        for name, burst in tenant.burst.items():
            endpoint_or_not = policy.endpoint(name)
            if burst and endpoint_or_not and policy.in_flight(tenant, endpoint_or_not) is None:
                found.append(f"{place}: burst.{name} is {burst}, but {_NO_LIMIT}")
    return found


_NO_LIMIT = "without in_flight there is no limit that it could be above: give in_flight too"


def _quantum(endpoint: Endpoint) -> Iterator[str]:
    """A quantum in another unit than the cost is charged in."""
    batch = {
        CostModel.REQUEST: endpoint.batch_requests,
        CostModel.TOKEN: endpoint.batch_tokens,
        CostModel.ADAPTIVE: endpoint.service_ms_max,
    }[endpoint.cost]
    if endpoint.quantum > batch:
        longest = "the longest request" if endpoint.cost is CostModel.ADAPTIVE else "a batch"
        unit = UNITS[endpoint.cost]
        yield (
            f"quantum is {endpoint.quantum} {unit}, {longest} has {batch}: a tenant is served so "
            f'much before the next one; cost "{endpoint.cost}" counts {unit}'
        )


def _burst(policy: Policy, endpoint: Endpoint) -> Iterator[str]:
    """A burst above nothing, for every tenant."""
    if endpoint.burst and all(policy.in_flight(t, endpoint) is None for t in policy.tenants):
        yield f"burst is {endpoint.burst}, but {_NO_LIMIT}"


def _shadow(policy: Policy, endpoint: Endpoint) -> Iterator[str]:
    """A limit that is tried out where nobody has it."""
    for name in endpoint.shadow:
        if all(getattr(policy.allowance(t, endpoint), name) is None for t in policy.tenants):
            yield f'shadow names "{name}", but there is no such limit to try out: give one'
