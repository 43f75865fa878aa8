"""The built-in tools of a folder, by name."""

from __future__ import annotations

from pathlib import Path

from callboard.actors.builtins import Workspace, builtin_tools
from callboard.actors.builtins.listing import DirListing
from callboard.actors.secret_files import NO_RULES, SecretRules
from callboard.actors.tools import Tool


def built_in(folder: Path | str, rules: SecretRules = NO_RULES) -> dict[str, Tool]:
    return {str(tool.name): tool for tool in builtin_tools(Workspace.at(folder, rules))}


def file_tools(folder: Path | str, rules: SecretRules = NO_RULES) -> tuple[Tool, Tool]:
    """read_file and list_dir."""
    tools = built_in(folder, rules)
    return tools["read_file"], tools["list_dir"]


def shown_in(listing: object) -> list[str]:
    """The paths of an answer of list_dir."""
    assert isinstance(listing, DirListing)
    return [each.path for each in listing.entries]
