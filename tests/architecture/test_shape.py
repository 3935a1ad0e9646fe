"""The shape of the code: names, sizes, and nothing left over.

The sizes are tripwires for a second look, not limits of taste: what is longer for a reason
stands in EXCEPTIONS with that reason, and leaves it when it has become short again.
"""

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]

FILE_LINES_MAX = 400
#: The scenarios of one door stand together.
TEST_FILE_LINES_MAX = 650
FUNCTION_LINES_MAX = 60
#: "path" or "path::function": why it may be longer.
EXCEPTIONS: dict[str, str] = {}

#: Spelt so that this file doesn't find itself.
MARKS = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")
#: The one place that may skip: it says why there is no service, and fails under CI.
MAY_SKIP = "tests/support/services.py"


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


ALL = sources(*PACKAGES, "tests", "benchmarks", "examples")


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def too_long() -> dict[str, int]:
    found = {}
    for path in ALL:
        text = path.read_text()
        lines = len(text.splitlines())
        is_test = path.is_relative_to(ROOT / "tests")
        if lines > (TEST_FILE_LINES_MAX if is_test else FILE_LINES_MAX):
            found[name(path)] = lines
        for function in functions(ast.parse(text)):
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                found[f"{name(path)}::{function.name}"] = lines
    return found


def test_what_is_long_is_listed_with_its_reason() -> None:
    assert {place: lines for place, lines in too_long().items() if place not in EXCEPTIONS} == {}


def test_what_is_listed_as_long_is_long() -> None:
    assert set(EXCEPTIONS) - set(too_long()) == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_no_name_of_somebody_elses(package: str) -> None:
    assert package not in sys.stdlib_module_names
    owners = importlib.metadata.packages_distributions().get(package, [])
    assert set(owners) <= {PROJECT["project"]["name"]}


def test_every_package_is_built_typed_and_layered() -> None:
    packages = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
    packages.remove("tests")
    assert packages == sorted(PACKAGES)
    assert packages == sorted(PROJECT["tool"]["importlinter"]["root_packages"])
    assert [package for package in packages if not (ROOT / package / "py.typed").is_file()] == []


def test_every_module_opens_by_saying_what_it_is() -> None:
    silent = [
        name(path)
        for path in ALL
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def places(pattern: str, paths: list[Path]) -> list[str]:
    return [
        f"{name(path)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]


def test_no_marks_are_left_over() -> None:
    assert places(rf"\b({'|'.join(MARKS)})\b|\bNot" + r"ImplementedError\b", ALL) == []


def sleeps_outside_loops(tree: ast.AST) -> list[int]:
    """Lines that sleep other than between two looks at a condition."""
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.While | ast.For)]
    inside = {id(node) for loop in loops for node in ast.walk(loop)}
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "time.sleep"
        and id(node) not in inside
    ]


def test_the_check_itself_tells_a_pause_from_a_wait() -> None:
    text = "import time\nwhile not done():\n    time.sleep(0.1)\ntime.sleep(5)\n"
    assert sleeps_outside_loops(ast.parse(text)) == [4]


def test_no_test_is_skipped_or_sleeps() -> None:
    tests = [path for path in sources("tests") if name(path) != MAY_SKIP]
    skips = "pytest" + r"\.(mark\.)?(skip|skipif|importorskip|xfail)\b"
    assert places(skips, tests) == []
    sleeping = {name(path): sleeps_outside_loops(ast.parse(path.read_text())) for path in tests}
    assert {path: lines for path, lines in sleeping.items() if lines} == {}


def test_no_core_computes_with_fractions() -> None:
    """Decisions repeat bit for bit on any machine: integers only."""
    cores = [path for path in sources(*PACKAGES) if "core" in path.relative_to(ROOT).parts]
    assert cores
    found = [
        f"{name(path)}:{node.lineno}"
        for path in cores
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Constant) and isinstance(node.value, float))
        or (isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div))
    ]
    assert found == []
