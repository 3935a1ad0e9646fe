"""Put the code of a changed module into the loaded one, whoever has imported it."""

import sys
from types import CodeType, FunctionType, ModuleType
from typing import Any


def graft(module: ModuleType, code: CodeType) -> None:
    """Make `module`, and the functions that others hold of it, run this code.

    Functions and methods keep their identity and get the new body and defaults; constants
    are replaced wherever they were imported by their name.
    """
    changed: dict[str, Any] = {"__name__": module.__name__}
    exec(code, changed)
    for name, new in changed.items():
        old = vars(module).get(name)
        if isinstance(new, FunctionType) and new.__module__ == module.__name__:
            _function(old, new)
        elif isinstance(new, type) and new.__module__ == module.__name__:
            for member, method in vars(new).items():
                if isinstance(method, FunctionType):
                    _function(vars(old)[member], method)
        elif isinstance(new, int) and new != old:
            for holder in list(sys.modules.values()):
                if vars(holder).get(name, None) is old:
                    setattr(holder, name, new)


def _function(old: Any, new: FunctionType) -> None:
    old.__code__ = new.__code__
    old.__defaults__ = new.__defaults__
    old.__kwdefaults__ = new.__kwdefaults__
