"""What is loaded when it is first used: a program pays for what it needs, and not for the rest.

A type checker follows the imports under `if TYPE_CHECKING:` beside each call; tests/protocol/test_lazy_loading.py holds
that both say the same.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, AnyStr

from callboard.protocol.errors import missing_extra


def lazy_names(package: str, homes: Mapping[str, Iterable[str]], extra: str = "") -> Callable[[str], object]:
    """The `__getattr__` of a package (PEP 562): its names by the modules that they are in.

    `extra` is what has to be installed for them, if anything: where that is missing, an ImportError says so.
    """
    home = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> object:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            found: object = getattr(_loaded(home[name]), name)
        except ModuleNotFoundError as missing:
            if not extra:
                raise
            raise ImportError(missing_extra(f"{name} ({missing})", extra)) from missing
        setattr(sys.modules[package], name, found)
        return found

    return load


def lazy_module(name: str) -> Any:
    """Stands for a module, which is loaded when one of its names is first used."""
    return _Lazy(partial(_loaded, name))


def load_now(*modules: object) -> None:
    """Load now what `lazy_module` stands for: before an event loop needs it."""
    for module in modules:
        if isinstance(module, _Lazy):
            module._load()


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Stands for a regular expression, which is compiled when one of its methods is first used."""
    lazy: Any = _Lazy(partial(re.compile, pattern, flags))
    found: re.Pattern[AnyStr] = lazy
    return found


class _Lazy:
    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make
        self._made: object = None

    def _load(self) -> object:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __getattr__(self, name: str) -> object:
        return getattr(self._load(), name)


def _loaded(module: str) -> ModuleType:
    """The module, imported. Raises ImportError, never AttributeError: Python would take that for "no such name"."""
    try:
        return import_module(module)
    except AttributeError as error:
        raise ImportError(f"{module} cannot be imported: AttributeError: {error}", name=module) from error
