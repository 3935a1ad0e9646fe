"""An engine of one's own, by its name: `module:Name`, as `fairlane worker --engine` takes it.

`module` is found like any module, and in the working directory first. `Name` is an engine
(it has `run`), or what makes one when called without arguments: a class or a function.
What one's own code raises passes through, traceback and all.
"""

import sys
from importlib import import_module
from inspect import isclass, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fairlane.errors import FairlaneError

if TYPE_CHECKING:
    from workers.ports import Engine


def engine_of(name: str) -> "Engine":
    """Import and, if need be, make an engine; `name` is `module:Name`.

    Raises FairlaneError when there is no such module or name, when it can't be called
    without arguments, or when what it makes has no `run`.
    """
    module, _, attribute = name.partition(":")
    found = _attribute(_module(module, name), attribute, name)
    made = found if _is_engine(found) else _called(found, name)
    if not _is_engine(made):
        raise FairlaneError(
            f"--engine {name}: it makes a {type(made).__name__} without a method "
            "run(batch, cancelled); see docs/how-to/write-an-engine.md"
        )
    return cast("Engine", made)


def _module(module: str, name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it imports is not
        raise FairlaneError(
            f"--engine {name}: no module {error.name!r} in {here}, nor installed"
        ) from error


def _attribute(module: Any, attribute: str, name: str) -> Any:
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise FairlaneError(
            f"--engine {name}: {module.__file__ or module.__name__} has no {attribute!r}"
        ) from error


def _is_engine(found: Any) -> bool:
    return not isclass(found) and callable(getattr(found, "run", None))


def _called(found: Any, name: str) -> Any:
    if not callable(found):
        raise FairlaneError(
            f"--engine {name}: a {type(found).__name__} is no engine and makes none; name an "
            "object with run(batch, cancelled), or a class or function that makes one"
        )
    try:
        signature(found).bind()
    except ValueError:  # written in C, and says nothing about its arguments
        pass
    except TypeError as error:
        raise FairlaneError(
            f"--engine {name}: it can't be called without arguments ({error}); name a function "
            "that needs none and makes it"
        ) from error
    return found()
