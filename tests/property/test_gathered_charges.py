"""Charges gathered into one call of the script decide as if they came one after the other."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.redis import EMBEDDED, connect
from adapters.redis_limits import RedisLimits
from schemas.front import Charge
from schemas.policy import Allowance
from tests.support.limits import START_MS

#: Few tenants, endpoints and ids, so that charges meet: repeated ones, cheap ones behind dear.
CHARGES = st.builds(
    Charge,
    st.sampled_from(["acme", "bolt"]),
    st.sampled_from(["chat", "embed"]),
    st.sampled_from([f"req_{n}" for n in range(12)]),
    st.integers(1, 8),
    st.integers(0, 40),
    st.builds(
        Allowance, st.sampled_from([0, 5, 12]), st.sampled_from([None, 60]), st.none(), st.none()
    ),
    st.just("root"),
    st.builds(Allowance, st.sampled_from([None, 15]), st.none(), st.none(), st.none()),
    st.just(1),
)
WAVES = st.lists(
    st.tuples(st.sampled_from([0, 1, 5_000, 61_000]), st.lists(CHARGES, max_size=150)), max_size=4
)


@settings(max_examples=40)
@given(WAVES)
def test_gathered_charges_are_charges_one_after_the_other(
    waves: list[tuple[int, list[Charge]]],
) -> None:
    async def run() -> None:
        redis = connect(EMBEDDED)
        gathered = RedisLimits(redis, "gathered", timeout_s=60.0)
        single = RedisLimits(redis, "single", timeout_s=60.0)
        now_ms = START_MS
        for pause_ms, charges in waves:
            now_ms += pause_ms
            gathered.now_override_ms = single.now_override_ms = str(now_ms)
            at_once = await asyncio.gather(*map(gathered.charge, charges))
            assert at_once == [await single.charge(charge) for charge in charges]
        await redis.aclose()

    asyncio.run(run())
