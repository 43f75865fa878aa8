"""The tools that callboard ships: each is made for one workspace."""

from callboard.actors.builtins.tool_set import builtin_tools
from callboard.actors.builtins.workspace import Workspace

__all__ = ["Workspace", "builtin_tools"]
