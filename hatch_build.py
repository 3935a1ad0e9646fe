"""The scheduling core, compiled: the same source, two to three times as fast.

mypyc makes extension modules of `scheduler/core` and some files beside it; Python prefers them
to the files. Nothing needs them: without a compiler the files are what runs, and both
decide the same to the bit (tests/simulation/test_compiled.py).

    make compile                        into this tree, for benchmarks; `make pure` undoes it
    FAIRLANE_COMPILE=1 pip install .    into a wheel of this platform (a hook of hatchling)
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
CORE = "scheduler/core"
#: What is compiled beside the core: the way of a request to it and from it.
BESIDE = (
    "scheduler/bodies.py",
    "scheduler/fold.py",
    "scheduler/inputs.py",
    "scheduler/publish.py",
    "scheduler/ranges.py",
)
#: Not compiled: an empty file, and records that are read by their annotations.
AS_IT_IS = {Path(CORE) / "__init__.py", Path(CORE) / "snapshot.py"}
#: The extension that holds all modules; what stands beside each is a stub that loads it.
GROUP = "fairlane_core"
#: Digest of the sources that were compiled, beside what came out.
SEAL = f"{CORE}/compiled.sha256"
#: What the compiler needs beside a C compiler and Python's headers.
TOOLS = ["mypy[mypyc]>=1.18", "setuptools>=77"]

_SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup
options = ["--strict", "--follow-imports=silent", "--explicit-package-bases"]
modules = mypycify([*options, *sys.argv[1:]], group_name="{group}", opt_level="3", debug_level="0")
setup(name="{group}", ext_modules=modules, script_args=["build_ext", "--inplace"])
"""


class CompileHook(BuildHookInterface[Any]):
    """With FAIRLANE_COMPILE=1 a wheel holds the compiled core as well."""

    def dependencies(self) -> list[str]:
        """What the build environment needs."""
        return TOOLS if _is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add what came out to the wheel."""
        del version
        if not _is_wanted() or self.target_name != "wheel":
            return
        root = Path(self.root)
        self._made = Path(tempfile.mkdtemp())
        compile_core(root, self._made)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update(
            {str(path): str(path.relative_to(self._made)) for path in built(self._made)}
        )

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Drop what the wheel holds by now."""
        del version, build_data, artifact_path
        made: Path | None = getattr(self, "_made", None)
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def _is_wanted() -> bool:
    return os.environ.get("FAIRLANE_COMPILE") == "1"


def sources(root: Path) -> list[Path]:
    """What is compiled, sorted."""
    found = [*(root / CORE).rglob("*.py"), *(root / name for name in BESIDE)]
    return sorted(path for path in found if path.relative_to(root) not in AS_IT_IS)


def built(root: Path) -> list[Path]:
    """What was compiled into a tree, sorted."""
    return sorted([*root.glob(f"{GROUP}*.so"), *(root / "scheduler").rglob("*.so")])


def digest(root: Path) -> str:
    """Digest of the sources."""
    sealed = hashlib.sha256()
    for path in sources(root):
        sealed.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return sealed.hexdigest()


def is_stale(root: Path = ROOT) -> bool:
    """Whether what is compiled in a tree was made from other sources than those beside it."""
    if not built(root):
        return False
    seal = root / SEAL
    return not seal.exists() or seal.read_text() != digest(root)


def compile_core(root: Path, target: Path) -> list[Path]:
    """Compile the core of a tree into another one, or into itself; takes about a minute.

    Returns the files that were made. Raises RuntimeError with the compiler's words.
    """
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        for package in ("scheduler", "schemas"):
            without = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(root / package, work / package, ignore=without)
        (work / "compile.py").write_text(_SETUP.format(group=GROUP))
        names = [str(path.relative_to(root)) for path in sources(root)]
        command = [sys.executable, "compile.py", *names]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)  # noqa: S603
        made = built(work)
        if done.returncode or not made:
            said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
            message = f"the core could not be compiled; it runs as it is, slower. It said:\n{said}"
            raise RuntimeError(message)
        for old in built(target):
            old.unlink()
        copied = []
        for path in made:
            copy = target / path.relative_to(work)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
            copied.append(copy)
        (target / SEAL).write_text(digest(root))
    return copied


if __name__ == "__main__":
    print(f"{len(compile_core(ROOT, ROOT))} files compiled")  # noqa: T201
