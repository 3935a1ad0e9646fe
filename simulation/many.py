"""Many histories, on several cores.

What belongs here: playing seeds and saying what became of each. What does not: what a person
is told (simulation.__main__).
"""

import traceback
from collections.abc import Iterator
from multiprocessing import get_context
from typing import NamedTuple

from simulation.history import History
from simulation.rules import InvariantError

#: Seeds a worker process takes at a time.
CHUNK = 20


class Verdict(NamedTuple):
    """What became of one seed; `fault` is empty when nothing is broken."""

    seed: int
    fault: str
    requests: int
    faults: int


def play(seed: int) -> Verdict:
    """Play one history to its end, or to the first broken rule."""
    history = None
    fault = ""
    try:
        history = History(seed)
        history.run()
    except InvariantError as error:
        fault = str(error)
    except Exception:  # noqa: BLE001 - a defect of whatever kind is a finding of this seed
        fault = traceback.format_exc()
    requests = len(history.judge.ids) if history else 0
    faults = len(history.chaos.history) + len(history.fleet.events) if history else 0
    return Verdict(seed, fault, requests, faults)


def verdicts(seeds: range, processes: int) -> Iterator[Verdict]:
    """Play many, on several cores; in any order."""
    if processes == 1:
        yield from map(play, seeds)
        return
    with get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(play, seeds, CHUNK)
