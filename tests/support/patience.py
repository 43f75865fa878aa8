"""Calls that must have begun to hang before their deadline comes, on a machine that may be busy with something else."""

from __future__ import annotations

from collections.abc import Callable

from callboard.actors.testing.tool_stage import StagedCall
from callboard.protocol.events import ToolCallTimedOut

#: Seconds that a call gets to begin hanging in. The first is enough on an idle machine.
PATIENCE_SECONDS = (0.4, 2.0, 10.0)


def timed_out_while_hanging(start: Callable[[float], StagedCall], hangs: Callable[[StagedCall], bool]) -> StagedCall:
    """A call that was hanging when its deadline came. Where the deadline came first, another call gets more time."""
    for seconds in PATIENCE_SECONDS:
        call = start(seconds)
        assert isinstance(call.wait(), ToolCallTimedOut)
        if hangs(call):
            return call
    raise AssertionError(f"no call had begun to hang within {PATIENCE_SECONDS[-1]} s")
