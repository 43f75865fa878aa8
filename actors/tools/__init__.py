"""Tools: functions that a model may call."""

from callboard.actors.tools.context import ToolContext
from callboard.actors.tools.decorator import Tool, tool

__all__ = ["Tool", "ToolContext", "tool"]
