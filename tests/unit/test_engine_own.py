"""An engine of one's own: the page's example through a real lane, and `--engine module:Name`."""

import ast
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlane.cli_services import parser
from fairlane.engine_import import engine_of
from fairlane.engines import make
from fairlane.errors import FairlaneError
from schemas.codec import header
from schemas.records import End
from tests.support.lanes import LaneWorld
from workers.lane import Lane
from workers.ports import Engine
from workers.slots import ThreadSlots

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "write-an-engine.md").read_text()
GIVE_UP_S = 20


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


EXAMPLE, TEST = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def chosen(arguments: list[str]) -> Engine:
    return make(parser().parse_args(["worker", "--pool", "p", *arguments]))


def page_engine(here: Path) -> Engine:
    """Do what the page says: write the file, take the option from the command line there."""
    named = re.search(r"--engine ((\w+):\w+)", PAGE)
    assert named
    (here / f"{named[2]}.py").write_text(EXAMPLE)
    return chosen(["--engine", named[1]])


def test_the_example_imports_the_interface_alone() -> None:
    froms = [node for node in ast.walk(ast.parse(EXAMPLE)) if isinstance(node, ast.ImportFrom)]
    ours = {node.module for node in froms} - set(sys.stdlib_module_names) - {"collections.abc"}
    assert ours == {"fairlane.engine"}
    assert len(EXAMPLE.splitlines()) < 45


def test_the_example_works_in_a_lane(here: Path) -> None:
    world = LaneWorld()
    slots = ThreadSlots(page_engine(here), 2, world.clock)
    lane = Lane(
        world.log, world.names(), slots, world.log.producer(), world.clock, world.meter, world.notes
    )
    while lane.turn():
        pass
    batch, _ = world.batch("a", "b")
    bodies = [b'"three short words"', b"{}"]
    items = tuple(
        replace(item, size=len(body)) for item, body in zip(batch.items, bodies, strict=True)
    )
    world.send(b"".join(bodies), header(replace(batch, items=items)))
    until = time.monotonic() + GIVE_UP_S
    while len(world.results()) < 2:
        assert time.monotonic() < until
        lane.turn()
        time.sleep(0.001)
    found = {result.id: (result, output) for result, output in world.results()}
    assert found["a"][1] == b'{"words": 3}'
    assert found["a"][0].usage.input_tokens == 3
    assert (found["b"][0].end, found["b"][0].reason) == (End.FAILED, "engine_refused")
    slots.close()
    lane.drop()


def test_the_page_tests_its_example_rightly(here: Path) -> None:
    engine = page_engine(here)
    assert "assert" in TEST
    exec(TEST, {"WordCounter": type(engine)})


ENGINES = """
class Able:
    def __init__(self, size=1):
        self.size = size
    def run(self, batch, cancelled):
        return []

class Needy:
    def __init__(self, size):
        pass

class Idle:
    pass

made = Able(2)
number = 5
def build():
    return Able(3)
def broken():
    raise RuntimeError("no GPU")
"""


@pytest.mark.parametrize(("name", "size"), [("Able", 1), ("made", 2), ("build", 3)])
def test_a_class_an_object_and_a_function_are_taken(here: Path, name: str, size: int) -> None:
    (here / "mine.py").write_text(ENGINES)
    engine = engine_of(f"mine:{name}")
    assert vars(engine) == {"size": size}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:Able", "no module 'nowhere' in"),
        ("mine.deeper:Able", "no module 'mine.deeper'"),
        ("mine:Missing", "mine.py has no 'Missing'"),
        ("mine:Needy", r"can't be called without arguments \(missing a required argument: 'size'"),
        ("mine:Idle", r"makes a Idle without a method run\(batch, cancelled\)"),
        ("mine:number", "a int is no engine and makes none"),
    ],
)
def test_what_is_no_engine_is_told_by_name(here: Path, name: str, message: str) -> None:
    (here / "mine.py").write_text(ENGINES)
    with pytest.raises(FairlaneError, match=rf"^--engine {re.escape(name)}: .*{message}"):
        engine_of(name)


def test_faults_of_ones_own_code_keep_their_traceback(here: Path) -> None:
    (here / "mine.py").write_text(ENGINES)
    (here / "lacking.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(RuntimeError, match="no GPU"):
        engine_of("mine:broken")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        engine_of("lacking:Able")


@pytest.mark.parametrize("text", ["real", "mine:", ":Able", "mine:a b", "mine able:A", ""])
def test_what_is_no_name_is_refused_at_once(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["worker", "--pool", "p", "--engine", text])
    assert "simulated, embed, upstream, nor a module:Name" in capsys.readouterr().err
