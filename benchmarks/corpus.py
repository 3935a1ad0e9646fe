"""Five thousand real texts that every machine with Python has, for three tenants.

`docs`: documentation strings of the standard library's modules, classes and functions, read
from its sources without importing them. `topics`: paragraphs of the language reference that
`help()` shows (pydoc_data). `licences`: paragraphs of the licences of installed packages.
Each text stands once; the order is fixed by module and place, so that two runs on one
machine embed the same.
"""

import ast
import importlib.metadata
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

#: A text of fewer characters says nothing.
CHARS_MIN = 40
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Text(NamedTuple):
    """One row of the corpus."""

    id: str
    tenant: str
    text: str


def texts(count: int = 5_000) -> list[Text]:
    """The corpus: half docstrings, three tenths topics, the rest licences."""
    sources = {
        "docs": (_docstrings(), count // 2),
        "topics": (_topics(), count * 3 // 10),
        "licences": (_licences(), count - count // 2 - count * 3 // 10),
    }
    seen: set[str] = set()
    found: list[Text] = []
    for tenant, (source, wanted) in sources.items():
        own: list[str] = []
        for text in source:
            if len(text) >= CHARS_MIN and text not in seen and len(own) < wanted:
                seen.add(text)
                own.append(text)
        if len(own) < wanted:
            raise RuntimeError(f"{tenant}: {len(own)} texts here, {wanted} are needed")
        found += [Text(f"{tenant}-{number}", tenant, text) for number, text in enumerate(own)]
    return found


def _docstrings() -> Iterator[str]:
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if {"site-packages", "test", "tests", "idlelib"} & set(path.relative_to(library).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
                yield text


def _topics() -> Iterator[str]:
    for name in sorted(topics):
        yield from _paragraphs(topics[name])


def _licences() -> Iterator[str]:
    for distribution in sorted(importlib.metadata.distributions(), key=lambda d: d.name.lower()):
        for file in distribution.files or ():
            if "licen" in file.name.lower() or "notice" in file.name.lower():
                try:
                    yield from _paragraphs(file.read_text(encoding="utf-8"))
                except (OSError, UnicodeDecodeError):
                    continue


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        yield " ".join(paragraph.split())
