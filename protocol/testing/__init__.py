"""The property-testing kit: what proves callboard, for your own tools, provider adapters, runtimes and sessions.

`check_tool`, `check_provider_adapter`, `strategies` and `machine` need the extra `testing`.
Everything else here is pure and needs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callboard.protocol.errors import missing_extra
from callboard.protocol.testing.driver import drive
from callboard.protocol.testing.invariants import INVARIANTS, Violation, violations
from callboard.protocol.testing.recorded_runs import assert_replays, replay_recorded
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
    from callboard.protocol.testing.adapter_check import check_provider_adapter
    from callboard.protocol.testing.tool_check import check_tool

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
    "assert_replays",
    "check_provider_adapter",
    "check_tool",
    "drive",
    "replay",
    "replay_recorded",
    "shrink",
    "simulate",
    "violations",
]

if not TYPE_CHECKING:  # a type checker that saw this function would accept every name

    def __getattr__(name: str) -> object:
        """The two checks that need Hypothesis, an optional extra: imported when they are first used."""
        if name not in ("check_provider_adapter", "check_tool"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from callboard.protocol.testing import adapter_check, tool_check  # noqa: PLC0415 - the extra `testing`
        except ModuleNotFoundError as missing:
            raise ImportError(missing_extra(f"{name} ({missing})", "testing")) from missing
        return vars(tool_check if name == "check_tool" else adapter_check)[name]
