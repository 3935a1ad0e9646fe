"""Play histories: `python -m simulation --seed 7`, or `--seeds 0..10000 --processes 2`.

`--week` plays the calendar of simulation.week, idle weekends, retention and a holiday.
"""

import argparse
import sys
import time

from simulation.history import History
from simulation.many import Verdict, verdicts
from simulation.rules import InvariantError
from simulation.week import Weeks

#: How often the progress line changes, seconds.
PROGRESS_S = 1.0


def command(seed: int) -> str:
    """The one command that repeats a history."""
    return f"python -m simulation --seed {seed}"


def tell(seed: int, *, is_told: bool) -> int:
    """Play one seed and tell it; 1 when a rule is broken."""
    history = History(seed)
    fault = ""
    try:
        history.run(print if is_told else None)
    except InvariantError as error:
        fault = str(error)
    print(history.story())
    if fault:
        print(f"{fault}\n  to repeat it: {command(seed)} --steps")
        return 1
    print(f"  every rule holds; recovery was compared {history.compared} times")
    return 0


def tell_weeks() -> int:
    """Play the calendar, with clean stops and with power cuts; 1 when a rule is broken."""
    for is_cut in (False, True):
        weeks = Weeks(is_cut=is_cut)
        try:
            weeks.run(print)
        except InvariantError as error:
            print(error)
            return 1
        print(weeks.story())
    return 0


def play_all(seeds: range, processes: int) -> int:
    """Play many with a line of progress; 1 when any of them breaks a rule."""
    started_s = told_s = time.monotonic()
    failed: list[Verdict] = []
    requests = faults = 0
    for count, verdict in enumerate(verdicts(seeds, processes), 1):
        requests += verdict.requests
        faults += verdict.faults
        if verdict.fault:
            failed.append(verdict)
            print(f"\n{verdict.fault}\n  to repeat it: {command(verdict.seed)}")
        if time.monotonic() - told_s > PROGRESS_S or count == len(seeds):
            told_s = time.monotonic()
            took_s = told_s - started_s
            line = f"{count}/{len(seeds)} histories, {len(failed)} broken, {took_s:.0f} s"
            print(f"\r{line}", end="", flush=True)
    print(f"\n{requests} requests, {faults} faults and other events")
    if failed:
        print("broken seeds: " + " ".join(str(v.seed) for v in sorted(failed)))
    return bool(failed)


def _range(text: str) -> range:
    first, dots, last = text.partition("..")
    if not dots or not first.isdecimal() or not last.isdecimal() or int(last) < int(first):
        raise argparse.ArgumentTypeError(f"{text!r} is no range; write FIRST..LAST, as in 0..9999")
    return range(int(first), int(last) + 1)


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m simulation",
        description="Whole deployments under faults, one for each seed, judged at every step.",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="play one history and tell it")
    which.add_argument("--week", action="store_true", help="play weeks with idle weekends")
    which.add_argument("--seeds", type=_range, metavar="A..B", help="play all of these")
    parser.add_argument("--steps", action="store_true", help="with --seed: tell every event")
    parser.add_argument("--processes", type=int, default=1, help="with --seeds: cores to use")
    given = parser.parse_args(arguments)
    if given.week:
        return tell_weeks()
    if given.seed is not None:
        return tell(given.seed, is_told=given.steps)
    return play_all(given.seeds, given.processes)


if __name__ == "__main__":
    sys.exit(main())
