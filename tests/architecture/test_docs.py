"""The pages are true: their links lead somewhere, their commands exist, their tables match."""

import ast
import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
import typer
from packaging.requirements import Requirement

from fairlane.cli import app

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
#: A command's words: lower case, so that placeholders, options and files end it.
COMMAND = re.compile(r"(?:^|[\s`/])(fairlane|make)((?: [a-z]+)*)", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def page(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def slug(heading: str) -> str:
    """The anchor of a heading as code hosts make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(path: Path) -> set[str]:
    return {slug(found) for found in re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)}


def code(text: str) -> str:
    """Fenced blocks and inline code of a page, a line each; a block's output isn't told apart."""
    fenced = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```[a-z]*\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return "\n".join([*fenced, *re.findall(r"`([^`\n]+)`", rest)])


def commands() -> set[str]:
    """Every command line that exists: `fairlane x`, `fairlane x y`, `make z`."""
    root = typer.main.get_command(app)
    assert isinstance(root, typer.core.TyperGroup)
    found = set()
    for name, command in root.commands.items():
        found.add(f"fairlane {name}")
        found |= {f"fairlane {name} {inner}" for inner in getattr(command, "commands", {})}
    verbs = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return found | {f"make {verb}" for verb in verbs}


def unknown(text: str, known: set[str]) -> list[str]:
    """Command lines of a page that exist neither in one word nor in two."""
    lines = re.findall(
        r"^(?:\$ )?(?:\S*/)?((?:fairlane|make)(?: [a-z]+)+)", code(text), re.MULTILINE
    )
    groups = {line.rpartition(" ")[0] for line in known if line.count(" ") == 2}
    wrong = []
    for line in lines:
        first, second = " ".join(line.split()[:2]), " ".join(line.split()[:3])
        if first not in known or (first in groups and second not in known and second != first):
            wrong.append(line)
    return wrong


def test_the_check_itself_sees_a_wrong_command() -> None:
    known = {"fairlane up", "fairlane policy", "fairlane policy check", "make test"}
    text = "`make test` `make tea`\n```\n$ fairlane policy check F\nfairlane policy brew F\n```\n"
    assert unknown(text, known) == ["fairlane policy brew", "make tea"]


@pytest.mark.parametrize("path", PAGES, ids=page)
def test_commands_exist(path: Path) -> None:
    assert unknown(path.read_text(), commands()) == []


@pytest.mark.parametrize("path", PAGES, ids=page)
def test_benchmarks_exist(path: Path) -> None:
    named = set(re.findall(r"python -m (benchmarks\.[a-z_]+)", path.read_text()))
    missing = {name for name in named if not (ROOT / f"{name.replace('.', '/')}.py").is_file()}
    assert missing == set()


@pytest.mark.parametrize("path", PAGES, ids=page)
def test_links_resolve(path: Path) -> None:
    broken = []
    for link in LINK.findall(path.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_decisions_are_numbered_once_and_say_what_was_rejected() -> None:
    records = sorted((ROOT / "docs" / "adr").glob("*.md"))
    numbers = [re.match(r"(\d{4})-[a-z0-9-]+\.md$", record.name) for record in records]
    assert all(numbers)
    assert len({found[1] for found in numbers if found}) == len(records)
    silent = [
        record.name
        for record in records
        if not {"context", "decision", "consequence", "rejected"}
        <= {word.rstrip("s") for word in " ".join(anchors(record)).replace("-", " ").split()}
    ]
    assert silent == []


def declared() -> dict[str, set[str]]:
    """Names of the dependencies by the section of pyproject.toml that lists them."""
    sections = {
        "run": PROJECT["project"]["dependencies"],
        "build": PROJECT["build-system"]["requires"],
        **PROJECT["project"]["optional-dependencies"],
    }
    return {
        section: {Requirement(line).name.lower() for line in lines} - {"fairlane"}
        for section, lines in sections.items()
    }


def imported() -> set[str]:
    """Distributions that the packages import, however late."""
    owners = importlib.metadata.packages_distributions()
    found: set[str] = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module:
                    names = [node.module]
                for name in names:
                    found.update(owners.get(name.partition(".")[0], []))
    return {name.lower().replace("_", "-") for name in found} - {"fairlane"}


def test_what_the_packages_import_is_declared() -> None:
    sections = declared()
    assert imported() - sections["run"] - sections["accounting"] - sections["embed"] == set()


def explained() -> dict[str, set[str]]:
    """Names in the tables of docs/dependencies.md by the heading above them."""
    text = (ROOT / "docs" / "dependencies.md").read_text()
    found: dict[str, set[str]] = {}
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, rows = part.partition("\n")
        found[title.strip().lower()] = set(re.findall(r"^\| `([^`\[]+)", rows, re.MULTILINE))
    return found


def test_each_dependency_is_explained_and_nothing_else() -> None:
    tables = explained()
    assert {section: tables.get(section) for section in declared()} == declared()


def test_each_dependency_has_a_reason() -> None:
    rows = re.findall(
        r"^\| `.*$", (ROOT / "docs" / "dependencies.md").read_text(), flags=re.MULTILINE
    )
    assert rows
    assert [row for row in rows if len(row.strip("| ").split("|")[2].split()) < 4] == []
