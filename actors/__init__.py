"""What runs: the runtime and its actors. The names of the front door, `callboard`, can be imported from here too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import callboard
from callboard.protocol.lazy_loading import lazy_names

if TYPE_CHECKING:
    from callboard import *  # noqa: F403 - exactly these names, for a type checker
else:
    __all__ = callboard.__all__
    __getattr__ = lazy_names(__name__, {"callboard": __all__})
