"""Mutation testing: change a file in one place, and see whether the tests notice.

    python -m tests.mutation scheduler/core/pick/drr.py
    python -m tests.mutation scheduler/core/pick/drr.py --lines 120 134

The tests of the file (`SUITES`) are collected once. Each mutant is a fork of that process,
into whose loaded modules the changed code is put, so it costs what its tests take up to the
first that fails; the fastest run first. A mutant is killed by a failure, by the limit of
its CPU time or by that of its memory. Examples are few, and the same in each run.

Ends with 1 when fewer than `KILLED_MIN` percent are killed.
"""

import argparse
import ast
import os
import resource
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutation.graft import graft
from tests.mutation.mutants import Mutant, mutants_of

_CORE = "scheduler/core"
_PICKERS = f"{_CORE}/pick"
_PICK = "tests/property/test_pick_"
_EDGES = "tests/unit/test_pick_edges.py"
_EVERY = (f"{_PICK}selectors.py", _EDGES)
_APPLY = (
    "tests/unit/test_core_apply.py",
    "tests/unit/test_scheduler_core.py",
    "tests/unit/test_cases_fairness.py",
)
#: What is run for a file: all of it takes less than two seconds of CPU.
SUITES = {
    f"{_PICKERS}/drr.py": ("tests/property/test_drr.py", f"{_PICK}two_levels.py", *_EVERY),
    f"{_PICKERS}/vtc.py": (f"{_PICK}vtc.py", *_EVERY),
    f"{_PICKERS}/fifo.py": _EVERY,
    f"{_PICKERS}/turns.py": ("tests/property/test_drr.py", *_EVERY),
    f"{_PICKERS}/tier.py": (f"{_PICK}tier.py", _EDGES),
    f"{_PICKERS}/order.py": (f"{_PICK}order.py", _EDGES),
    f"{_CORE}/apply.py": _APPLY,
    f"{_CORE}/heard.py": _APPLY,
    f"{_CORE}/arrivals.py": _APPLY,
}
#: Examples of each property: a mutant that many examples alone would find counts as alive.
EXAMPLES = 30
#: CPU seconds: several times what all tests of a file take.
CPU_S = 15
MEMORY_BYTES = 3 << 30
#: Percent; what lives beside it is explained in docs/mutation.md.
KILLED_MIN = 90


class Mutation:
    """In the place of pytest's loop: the tests once, then once for each mutant."""

    def __init__(self, path: Path, lines: list[int]) -> None:
        self.path = path
        self.lines = lines
        self.total = 0
        self.alive: list[Mutant] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Few examples for each property, always the same, nothing made smaller."""
        import hypothesis  # pytest warns about plugins that were imported before it

        for item in items:
            function = getattr(item, "obj", None)
            kept = getattr(function, "_hypothesis_internal_use_settings", None)
            if kept is not None:
                vars(function)["_hypothesis_internal_use_settings"] = hypothesis.settings(
                    kept,
                    max_examples=EXAMPLES,
                    derandomize=True,
                    database=None,
                    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
                )

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Order the tests by what they take, then run them for each mutant."""
        took: dict[pytest.Item, float] = {}
        for item in session.items:
            begun = time.process_time()
            _run(session, item)
            took[item] = time.process_time() - begun
        if session.testsfailed:
            raise pytest.UsageError("tests fail without any mutant: mend them first")
        session.items.sort(key=took.__getitem__)
        print(f"\n{len(took)} tests, {sum(took.values()):.2f} s")
        tree = ast.parse(self.path.read_text())
        module = sys.modules[".".join(self.path.with_suffix("").parts)]
        for mutant in mutants_of(tree):
            if self.lines and mutant.line not in self.lines:
                continue
            mutant.make()
            killed = _is_killed(session, module, tree)
            mutant.undo()
            self.total += 1
            if not killed:
                self.alive.append(mutant)
                print(f"{self.path}:{mutant.line}: {mutant.text}", flush=True)
        print(f"{self.path}: {self.total - len(self.alive)} of {self.total} killed")
        return True


def _run(session: pytest.Session, item: pytest.Item) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)


def _is_killed(session: pytest.Session, module: ModuleType, tree: ast.Module) -> bool:
    child = os.fork()
    if not child:
        _be_mutant(session, module, tree)
    _, status = os.waitpid(child, 0)
    return status != 0


def _be_mutant(session: pytest.Session, module: ModuleType, tree: ast.Module) -> None:
    """Run the tests up to the first that fails, and end: 0 if none does."""
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        graft(module, compile(tree, str(module.__file__), "exec"))
        for item in session.items:
            _run(session, item)
            if session.testsfailed:
                os._exit(1)
        os._exit(0)
    finally:
        os._exit(2)


def main() -> int:
    """Mutate one file, print who lives, and judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("path", choices=sorted(SUITES))
    parser.add_argument("--lines", type=int, nargs="*", default=[], help="mutants of these")
    given = parser.parse_args()
    mutation = Mutation(Path(given.path), given.lines)
    options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:randomly", "--timeout=0"]
    ended = pytest.main([*options, *SUITES[given.path]], plugins=[mutation])
    killed = mutation.total - len(mutation.alive)
    return int(ended != pytest.ExitCode.OK or killed * 100 < KILLED_MIN * mutation.total)


if __name__ == "__main__":
    sys.exit(main())
