"""What can be typed, and the settings that it makes."""

from __future__ import annotations

import argparse
from pathlib import Path

import callboard


def parser() -> argparse.ArgumentParser:
    """The commands. `command` of the result names the chosen one."""
    root = argparse.ArgumentParser(prog="callboard", description="A supervised actor runtime for LLM tool calls.")
    root.add_argument("--version", action="version", version=f"callboard {callboard.__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    asking = commands.add_parser("ask", help="ask about the code in a workspace")
    asking.add_argument("question", metavar="QUESTION")
    asking.add_argument("--workspace", type=Path, default=Path(), metavar="DIR", help="the folder to ask about (here)")
    _add_model(asking, "the model to ask (CALLBOARD_MODEL, else offline/code-context)")
    asking.add_argument("--json", action="store_true", help="print the reply as one JSON object")

    indexing = commands.add_parser("index", help="index a workspace, so that questions start at once")
    indexing.add_argument("workspace", type=Path, nargs="?", default=Path(), metavar="DIR")

    doctoring = commands.add_parser("doctor", help="check each configured provider's key and address by a small call")
    _add_model(doctoring, "the model to check (CALLBOARD_MODEL)")

    signing = commands.add_parser("login", help="sign in where a key is not enough")
    signing.add_argument("provider", choices=["copilot"])

    listing = commands.add_parser("tools", help="list the tools that a model is offered")
    listing.add_argument("--workspace", type=Path, default=Path(), metavar="DIR", help="the folder they work in (here)")
    listing.add_argument("--json", action="store_true", help="print them as JSON, with their schemas")
    return root


def _add_model(command: argparse.ArgumentParser, help_text: str) -> None:
    command.add_argument("--model", metavar="PROVIDER/MODEL", help=help_text)
    command.add_argument("--base-url", metavar="URL", help="where the model's API is, if not at its usual place")


def settings_of(options: argparse.Namespace) -> callboard.Settings:
    """The settings a command runs with; what was not typed is left to the environment. Raises UsageError."""
    typed = {name: getattr(options, name, None) for name in ("workspace", "model", "base_url")}
    # Most questions call no tool that needs a process; the first that does can wait for it.
    given = {"warm_workers": 0, **{name: value for name, value in typed.items() if value is not None}}
    return callboard.Settings.model_validate(given)
