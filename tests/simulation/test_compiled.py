"""The compiled core is the same core: it decides the same, to the bit."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hatch_build

pytestmark = pytest.mark.simulation

SEEDS = range(7_000, 7_040)

#: Run where the core is what the working directory holds: plays histories, prints what stands
#: in their logs.
PLAY = """
import hashlib
import sys
from scheduler.core import cycle
from simulation.history import History
print(cycle.__file__)
for seed in map(int, sys.argv[1:]):
    history = History(seed)
    history.run()
    fleet, digest = history.fleet, hashlib.sha256()
    shards = range(fleet.log.partitions(fleet.topics.decisions))
    reader = fleet.log.reader()
    reader.assign({(fleet.topics.decisions, shard): 0 for shard in shards})
    records = reader.poll(1_000_000, 0)
    for record in records:
        digest.update(record.value)
    print(seed, len(records), digest.hexdigest())
"""


def said(tree: Path) -> list[str]:
    command = [sys.executable, "-c", PLAY, *map(str, SEEDS)]
    apart = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, cwd=tree, env=apart, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.timeout(600)
def test_the_compiled_core_decides_what_the_files_decide(tmp_path: Path) -> None:
    plain, compiled = tmp_path / "plain", tmp_path / "compiled"
    for tree in (plain, compiled):
        for package in ("adapters", "scheduler", "schemas", "simulation", "workers"):
            shutil.copytree(
                hatch_build.ROOT / package,
                tree / package,
                ignore=shutil.ignore_patterns("__pycache__", "*.so"),
            )
    hatch_build.compile_core(plain, compiled)
    as_files, as_extensions = said(plain), said(compiled)
    assert Path(as_files[0]).suffix == ".py"
    assert Path(as_extensions[0]).suffix == ".so"
    assert len(as_files) == len(SEEDS) + 1
    assert as_extensions[1:] == as_files[1:]
    assert all(int(line.split()[1]) > 1 for line in as_files[1:])
    assert not hatch_build.is_stale(compiled)
    (compiled / "scheduler" / "core" / "window.py").write_text("changed")
    assert hatch_build.is_stale(compiled)
