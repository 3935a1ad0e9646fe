"""`fairlane embed` where the extra is not installed: help is there, and a clear message."""

import subprocess
import sys
from pathlib import Path

BLOCKED = """
import sys
sys.modules["pyarrow"] = None
from fairlane.__main__ import run
sys.exit(run(sys.argv[1:]))
"""


def fairlane(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments], capture_output=True, text=True, check=False
    )


def test_help_needs_nothing() -> None:
    ended = fairlane("embed", "--help")
    assert ended.returncode == 0
    assert "--tenant-column" in ended.stdout


def test_without_the_library_the_way_out_is_told(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("text\n")
    engine = ["--engine", "simulated", "--dimensions", "8"]
    for source in (tmp_path / "c.txt", tmp_path / "c.parquet"):
        source.touch()
        ended = fairlane("embed", str(source), "--out", str(tmp_path / "out"), *engine)
        assert ended.returncode == 2
        assert "pip install 'fairlane[embed]'" in ended.stderr
        assert not (tmp_path / "out").exists()
