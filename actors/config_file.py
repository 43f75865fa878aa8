"""The user's configuration file: settings in TOML, by profile.

    [default]               # counts for every profile
    model = "openai/gpt-6.1-sol"

    [profiles.local]        # chosen by --profile local or CALLBOARD_PROFILE=local
    model = "openai-compatible/qwen3"
    base_url = "http://localhost:8000/v1"

The keys are the fields of Settings. This reads the file and says where each value is; settings.py checks the values.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from callboard.protocol.errors import UsageError
from callboard.protocol.lazy_loading import lazy_module

if TYPE_CHECKING:
    import tomllib
else:
    tomllib = lazy_module("tomllib")

CONFIG_FILE: Final = "config.toml"
"""Its name in the configuration folder."""
#: A file of settings has some kB; this bounds one that is something else.
MAX_CONFIG_BYTES: Final = 1024 * 1024
#: Fields that hold paths: relative ones are meant from the file's own folder.
_PATHS: Final = ("cwd", "workspace", "more_workspaces", "index_dir", "config_dir", "verify")
#: Fields that others may not read.
_SECRETS: Final = ("api_key", "env", "headers", "oauth")
#: Tables of names, with such fields in each.
_TABLES: Final = ("connections", "mcp_servers")
#: Fields that are objects of a program, which no file can hold.
_NOT_IN_A_FILE: Final = ("script", "server_tools", "provider_options")


class Section(Struct, frozen=True):
    """The values of one table of the file, and its name as it is written there."""

    name: str
    values: Mapping[str, object]


class DaemonTables(Struct, frozen=True):
    """What a configuration file says of a daemon, unchecked: `[daemon]`, and each `[tenants.NAME]` by its name."""

    daemon: Mapping[str, object] = field(default_factory=dict)
    tenants: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


class Profile(Struct, frozen=True):
    """What a configuration file says for one profile: its sections, the one that counts most last."""

    path: Path = field(default_factory=Path)
    sections: tuple[Section, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    """What fields that were given are called where they were typed."""
    of_daemon: DaemonTables = field(default_factory=DaemonTables)
    is_empty: bool = True
    """There is no file, or nothing in it."""

    def place(self, name: str) -> str:
        """Where the value of a field is, for a message."""
        section = next(each for each in reversed(self.sections) if name in each.values)
        return f"{name!r} in [{section.name}] of {self.path}"


def named_file(path: Path) -> Path:
    """The path of a file that somebody has named, and so means to be there. Raises UsageError where it is not."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"there is no configuration file {path}; --config names one that is there") from None
    except OSError as error:
        raise UsageError(f"the configuration file {path} cannot be read: {error.strerror or error}") from None
    return path


def read_profile(path: Path, name: str = "", *, chosen_by: str = "--profile") -> Profile:
    """The profile called `name`, above the default section; "" is the default section alone. No file is no values.

    `chosen_by` names the option or variable in messages. Raises UsageError for a file that cannot be read or is not
    TOML, for a section that is none, for an unknown profile, and for a key in a file that others can read.
    """
    document = _document(path)
    _check_sections(document, path)
    profiles = _table(document, "profiles", path)
    if name and name not in profiles:
        there = f"; it has: {', '.join(profiles)}" if profiles else "; it has none" if document else ""
        raise UsageError(f"there is no profile {name!r} ({chosen_by}); write [profiles.{name}] in {path}{there}")
    found = [Section("default", _table(document, "default", path))]
    if name:
        found.append(Section(f"profiles.{name}", _table(profiles, name, path, "profiles.")))
    sections = tuple(Section(each.name, dict(_values(each, path))) for each in found)
    everywhere = [document.get("default"), *profiles.values()]  # also in a profile that is not chosen
    if any(map(_has_secret, everywhere)):
        _check_private(path)
    return Profile(path, sections, of_daemon=_daemon_tables(document, path), is_empty=not document)


def _document(path: Path) -> Mapping[str, object]:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
            raise UsageError(f"the configuration file {path} is not a regular file; remove it or make it one")
        with open(path, "rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"the configuration file {path} cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise UsageError(f"the configuration file {path} is larger than {MAX_CONFIG_BYTES:,} bytes; make it smaller")
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"the configuration file {path} is not UTF-8 (line {line}); save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"the configuration file {path} is not valid TOML: {error}; correct it") from None


def _daemon_tables(document: Mapping[str, object], path: Path) -> DaemonTables:
    tenants = _table(document, "tenants", path)
    sections = [Section(f"tenants.{name}", _table(tenants, name, path, "tenants.")) for name in tenants]
    if any(map(_has_secret, tenants.values())):
        _check_private(path)
    found = {name: dict(_values(each, path)) for name, each in zip(tenants, sections, strict=True)}
    return DaemonTables(_table(document, "daemon", path), found)


def _check_sections(document: Mapping[str, object], path: Path) -> None:
    for name in document.keys() - {"default", "profiles", "daemon", "tenants"}:
        raise UsageError(
            f"{path} has {name!r} at its top level; put settings below [default] or [profiles.NAME], such as "
            "[profiles.work]"
        )


def _table(parent: Mapping[str, object], name: str, path: Path, prefix: str = "") -> Mapping[str, object]:
    table = parent.get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"{prefix}{name} in {path} must be a table: write [{prefix}{name}] and settings below it")
    return table


def _values(section: Section, path: Path) -> Iterator[tuple[str, object]]:
    for name, value in section.values.items():
        if name in _NOT_IN_A_FILE:
            raise UsageError(f"{name!r} in [{section.name}] of {path} cannot be set in a file; give it in a program")
        yield name, _tables_from(value, path) if name in _TABLES else _from(name, value, path)


def _from(name: str, value: object, path: Path) -> object:
    if name in _PATHS and isinstance(value, list):
        return [_from(name, each, path) for each in value]
    is_path = name in _PATHS and isinstance(value, str)
    return path.parent / Path(str(value)).expanduser() if is_path else value


def _tables_from(value: object, path: Path) -> object:
    if not isinstance(value, dict):
        return value
    return {
        provider: {name: _from(name, each, path) for name, each in table.items()} if isinstance(table, dict) else table
        for provider, table in value.items()
    }


def _has_secret(table: object) -> bool:
    """Is there one in this section, or in what it says of a provider's connection or of an MCP server?"""
    if not isinstance(table, dict):
        return False
    inner = [table[name] for name in _TABLES if isinstance(table.get(name), dict)]
    tables = [table, *(each for tables in inner for each in tables.values())]
    return any(secret in each for each in tables if isinstance(each, dict) for secret in _SECRETS)


def _check_private(path: Path) -> None:
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o077:
        raise UsageError(f"{path} holds a key and others can read it (mode {mode:03o}); type: chmod 600 {path}")


def similar(name: str, known: Mapping[str, object]) -> str:
    """The end of a message about an unknown name: the one that was probably meant."""
    found = likest(name, known)
    return f"; did you mean {found!r}?" if found else ""


def likest(name: str, known: Collection[str], cutoff: float = 0.6) -> str:
    """The one of `known` that is most like it, "" where none is; `cutoff` as difflib has it, from 0 to 1."""
    swapped = [each for each in known if sorted(each) == sorted(name)]  # "modle" is "model" rather than "mode"
    return next(iter(swapped or get_close_matches(name, list(known), 1, cutoff)), "")
