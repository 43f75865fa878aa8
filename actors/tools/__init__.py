"""Tools: functions that a model may call."""

from callboard.actors.tools.context import ToolContext
from callboard.actors.tools.decorator import Tool, tool
from callboard.actors.tools.files import workspace_tools

__all__ = ["Tool", "ToolContext", "tool", "workspace_tools"]
