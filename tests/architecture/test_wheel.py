"""What users install: the built wheel, elsewhere, whole."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
    "targets"
]["wheel"]["packages"]

IMPORT_ALL = """
import importlib, pathlib, pkgutil, sys
target, *packages = sys.argv[1:]
count = 0
for package in packages:
    found = importlib.import_module(package)
    names = [m.name for m in pkgutil.walk_packages(found.__path__, package + ".")]
    for name in [package, *names]:
        if name.endswith(".__main__"):
            continue
        module = importlib.import_module(name)
        assert pathlib.Path(module.__file__).is_relative_to(target), module.__file__
        count += 1
print(count)
"""


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the wheel's content as pip lays it out."""
    dist, target = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("target")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", dist, cwd=ROOT)
    (wheel,) = dist.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, "--disable-pip-version-check", "--target", target, wheel, cwd=dist)
    return target


def files(folder: Path, pattern: str) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob(pattern)}


@pytest.mark.parametrize("pattern", ["*.py", "*.lua", "py.typed"])
def test_the_wheel_holds_every_file_of_the_packages(installed: Path, pattern: str) -> None:
    here = {f"{package}/{file}" for package in PACKAGES for file in files(ROOT / package, pattern)}
    there = {
        f"{package}/{file}" for package in PACKAGES for file in files(installed / package, pattern)
    }
    assert there == here
    assert there


def test_the_wheel_holds_nothing_but_the_packages(installed: Path) -> None:
    extra = {path.name for path in installed.iterdir()} - set(PACKAGES) - {"bin"}
    assert all(name.endswith(".dist-info") for name in extra)
    assert len(extra) == 1


def test_every_module_imports_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(installed)}
    command = (sys.executable, "-c", IMPORT_ALL, installed, *PACKAGES)
    count = int(run(*command, cwd=tmp_path, env=env))
    assert count >= len(PACKAGES)


def test_the_command_line_starts_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(installed)}
    shown = run(sys.executable, "-m", "fairlane", "--help", cwd=tmp_path, env=env)
    assert "Usage" in shown
