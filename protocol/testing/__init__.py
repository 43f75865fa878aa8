"""The property-testing kit: what proves callboard, for your own tools, provider adapters, runtimes and sessions.

`check_tool`, `check_provider_adapter`, `strategies` and `machine` need the extra: `pip install 'callboard[testing]'`.
Everything else here is pure and needs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from callboard.protocol.testing.driver import drive
from callboard.protocol.testing.invariants import INVARIANTS, Violation, violations
from callboard.protocol.testing.runtimes import replay, simulate
from callboard.protocol.testing.scenario import (
    STANDARD_TOOLS,
    ModelDoes,
    PersonDoes,
    PlannedCall,
    PlannedTurn,
    Scenario,
    ToolDoes,
)
from callboard.protocol.testing.shrinking import shrink
from callboard.protocol.testing.trace import Entry, Trace, Verb

if TYPE_CHECKING:
    from callboard.protocol.testing.checks import check_provider_adapter, check_tool

__all__ = [
    "INVARIANTS",
    "STANDARD_TOOLS",
    "Entry",
    "ModelDoes",
    "PersonDoes",
    "PlannedCall",
    "PlannedTurn",
    "Scenario",
    "ToolDoes",
    "Trace",
    "Verb",
    "Violation",
    "check_provider_adapter",
    "check_tool",
    "drive",
    "replay",
    "shrink",
    "simulate",
    "violations",
]


def __getattr__(name: str) -> Any:
    """The two checks that need Hypothesis, an optional extra: imported when they are asked for."""
    if name not in ("check_provider_adapter", "check_tool"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module("callboard.protocol.testing.checks"), name)
    except ModuleNotFoundError as missing:
        raise ImportError(f"{name} needs Hypothesis ({missing}): pip install 'callboard[testing]'") from missing
