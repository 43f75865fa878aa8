"""Folders that are the home of a program."""

from __future__ import annotations

from pathlib import Path

MODELS = Path(".cache/callboard/models")


def with_models(home: Path) -> Path:
    """This home, with the models that were converted in the user's: one takes some seconds of CPU."""
    kept = Path.home() / MODELS
    if home != Path.home() and not (home / MODELS).is_symlink():
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / MODELS).parent.mkdir(parents=True, exist_ok=True)
        (home / MODELS).symlink_to(kept)
    return home
