"""Streams: one request a visit, so that nobody is served twice running past an equal."""

from collections.abc import Iterator
from random import Random

import pytest

from schemas.policy import CostModel
from tests.support.oracle_history import NAMES, Arrive, History, Turn, one_pool
from tests.support.oracle_ledger import Ledger


@pytest.mark.parametrize("seed", range(10))
def test_streams_of_equal_weight_take_turns(seed: int) -> None:
    """No tenant twice running while another has eligible work: agents come again at once."""
    dice = Random(seed)
    policy = one_pool([1, 1, 1, 1], cost=CostModel.REQUEST, quantum=1, lanes=1 + seed % 2)
    history = History(policy)
    ledger = Ledger(history, follows_grants=False)

    def turns() -> Iterator[Turn]:
        for number in range(4):
            yield history.arrive(Arrive(number, 5, 5, copies=dice.choice([1, 2, 90])))
        for _ in range(300):
            if history.out and dice.random() < 0.6:
                batch = history.out.pop(0)
                yield history.finish(batch)
                if dice.random() < 0.6:  # the next request of the same conversation
                    yield history.arrive(Arrive(NAMES.index(batch.requests[0].tenant), 5, 5))
            elif dice.random() < 0.3:
                yield history.arrive(Arrive(dice.randrange(4), 5, 5))

    ledger.follow(turns())
    names = [pick.tenant for pick in ledger.picks]
    assert len(names) > 100
    for one, two in zip(ledger.picks, ledger.picks[1:], strict=False):
        between = ledger.moments[one.moment : two.moment]
        others = set(ledger.moments[one.moment]) - {one.tenant}
        could = [name for name in others if all(name in m and m[name].eligible for m in between)]
        assert one.tenant != two.tenant or not could, (one, two, could)
