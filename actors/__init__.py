"""What runs: the runtime and its actors. The names of the front door, `callboard`, can be imported from here too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import callboard

if TYPE_CHECKING:
    from callboard import *  # noqa: F403 - exactly these names, for a type checker
else:
    __all__ = callboard.__all__

    def __getattr__(name: str) -> object:
        if name in __all__:
            return getattr(callboard, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
