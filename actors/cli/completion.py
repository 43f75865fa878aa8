"""`callboard completion SHELL`: a script with which a shell completes commands, options and folders.

It is made from the parser, so it knows what the parser knows, and runs nothing of callboard.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import shtab

from callboard.actors.cli.arguments import parser, with_all_below
from callboard.actors.cli.terminal import print_line


def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """Print the script."""
    root = parser()
    _mark_paths(root)
    print_line(shtab.complete(root, options.shell))


def _mark_paths(command: argparse.ArgumentParser) -> None:
    """Every argument that is a path is a folder, or a file where its help says so."""
    for action in (action for each in with_all_below(command) for action in each._actions):
        if action.type is Path:
            vars(action)["complete"] = shtab.FILE if action.metavar == "FILE" else shtab.DIRECTORY
