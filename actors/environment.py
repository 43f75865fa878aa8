"""The variables of the environment that are callboard's own, read when they are asked for, never at import."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from callboard.actors.config_file import likest
from callboard.protocol.errors import UsageError

#: Fields and the variables that are read where the field is not given. An empty variable counts as not set.
VARIABLES: Final[Mapping[str, str]] = {
    "model": "CALLBOARD_MODEL",
    "base_url": "CALLBOARD_BASE_URL",
    "workspace": "CALLBOARD_WORKSPACE",
    "copilot_client_id": "CALLBOARD_COPILOT_CLIENT_ID",
    "config_dir": "CALLBOARD_CONFIG_DIR",
    "journal": "CALLBOARD_JOURNAL",
}
#: What is read besides: by the command line, for the provider of the model, by the daemon and its clients.
_FURTHER_VARIABLES: Final = ("CALLBOARD_PROFILE", "CALLBOARD_API_KEY", "CALLBOARD_TOKEN")
_OURS: Final = "CALLBOARD_"
#: From this on (difflib, 0 to 1) one name is probably another one misspelt: "MODLE" and "MODEL" have 0.8.
_LIKENESS: Final = 0.8


def given_fields() -> dict[str, object]:
    """The values of VARIABLES that are set, by their fields."""
    return {field: text for field, name in VARIABLES.items() if (text := os.environ.get(name))}


def check_variables(fields: Collection[str]) -> None:
    """Raise UsageError for a variable that callboard does not read, and that was probably meant for it; `fields` are
    those of Settings."""
    ours = {name.removeprefix(_OURS): None for name in (*VARIABLES.values(), *_FURTHER_VARIABLES)}
    for name in os.environ:
        word = name.removeprefix(_OURS)
        if word == name or word in ours:
            continue
        if word.lower() in fields:
            raise UsageError(f"{name} is not read; set {word.lower()!r} in the configuration file")
        if found := likest(word, ours, _LIKENESS):
            raise UsageError(f"{name} is not read; did you mean {_OURS}{found}?")


def profile() -> str:
    """CALLBOARD_PROFILE: which section of the configuration file counts, if nothing else is said."""
    return os.environ.get("CALLBOARD_PROFILE", "")


def token_of_environment() -> str:
    """CALLBOARD_TOKEN: a bearer token of the daemon, for the daemon itself and for what calls it."""
    return os.environ.get("CALLBOARD_TOKEN", "")


def notify_socket_of_environment() -> str:
    """NOTIFY_SOCKET: where systemd wants to hear that the daemon is ready (sd_notify(3))."""
    return os.environ.get("NOTIFY_SOCKET", "")


def config_dir() -> Path:
    """Where the configuration file is, if nothing else is said."""
    if given := os.environ.get("CALLBOARD_CONFIG_DIR"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path("~/.config").expanduser()) / "callboard"


def state_dir() -> Path:
    """Where staged edits are kept, if nothing else is said."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path("~/.local/state").expanduser()) / "callboard"
