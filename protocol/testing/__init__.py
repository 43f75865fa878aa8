"""The property-testing kit: what proves callboard, for your own tools, provider adapters, runtimes and sessions.

`check_tool`, `check_provider_adapter`, `strategies` and `state_machine` need the extra `testing`.
Everything else here is pure and needs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callboard.protocol.lazy_loading import lazy_names
from callboard.protocol.testing.driver import Driver, drive
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
from callboard.protocol.testing.world import Crashed, ToolsDied, World

if TYPE_CHECKING:
    from callboard.protocol.testing.adapter_check import check_provider_adapter
    from callboard.protocol.testing.tool_check import check_tool

__all__ = [
    "INVARIANTS",
    "STANDARD_TOOLS",
    "Crashed",
    "Driver",
    "Entry",
    "ModelDoes",
    "PersonDoes",
    "PlannedCall",
    "PlannedTurn",
    "Scenario",
    "ToolDoes",
    "ToolsDied",
    "Trace",
    "Verb",
    "Violation",
    "World",
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
    __getattr__ = lazy_names(
        __name__,
        {
            "callboard.protocol.testing.adapter_check": ("check_provider_adapter",),
            "callboard.protocol.testing.tool_check": ("check_tool",),
        },
        extra="testing",
    )
