"""From typed options to Settings; what was not typed is left to the environment."""

from __future__ import annotations

import argparse

from callboard.actors.settings import Settings

_SETTINGS = ("workspace", "model", "base_url")


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings a command runs with. Raises UsageError."""
    typed = {name: getattr(options, name, None) for name in _SETTINGS}
    # Most questions call no tool that needs a process; the first that does can wait for it.
    return Settings(warm_workers=0, **{name: value for name, value in typed.items() if value is not None})
