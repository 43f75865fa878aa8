"""What a daemon is set up with: `[daemon]` and `[tenants.NAME]` of a configuration file, beside the runtime's settings.

[default]                      # Settings of every tenant's runtime
model = "openai/gpt-6.1-sol"

[daemon]
port = 8330

[tenants.ann]                  # differs from [default] in these
workspace = "/srv/ann"
tools = ["ann_tools.py"]
requests_per_minute = 60
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypeVar

from msgspec import Struct, field
from pydantic import BaseModel, Field, ValidationError, field_validator

from callboard.actors.config_file import CONFIG_FILE, Profile, Section, named_file, read_profile, similar
from callboard.actors.environment import check_variables
from callboard.actors.journal.places import checked_place
from callboard.actors.settings import Settings
from callboard.protocol.errors import UsageError
from callboard.providers.example_models import example

DEFAULT_TENANT: Final = "default"
DEFAULT_PORT: Final = 8_330
#: A tenant's name is in file names and log records.
_TENANT: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
M = TypeVar("M", bound=BaseModel)
#: In a configuration: no journal. Nothing outlives the process then.
NO_JOURNAL: Final = "off"


class DaemonLimits(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """What one client may take of the daemon."""

    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1_024)
    """Pictures and files come as base64 in the body; Anthropic takes 32 MB."""
    max_header_bytes: int = Field(default=64 * 1024, ge=1_024)
    head_seconds: float = Field(default=20.0, gt=0)
    """The head of a request must have come by then, from the connection or its first byte on."""
    body_seconds: float = Field(default=30.0, gt=0)
    """A body must have come by then."""
    unread_seconds: float = Field(default=30.0, gt=0, le=86_400)
    """In each such time a client must take 16 KiB of an answer that waits for it, or all that is left; it is cut."""
    requests_per_minute: int = Field(default=6_000, ge=1)
    """Of one token, over all endpoints; a burst of as many as come in 10 s is let through."""
    max_connections: int = Field(default=20_000, ge=1)
    """At once; more are answered with 503."""


class DaemonSettings(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """`[daemon]`. Bad values are a UsageError that names them."""

    host: str = "127.0.0.1"
    """The address to listen on. Another than this machine's own must be named by `allowed_hosts`, too."""
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65_535)
    """0: any that is free."""
    allowed_hosts: tuple[str, ...] = ()
    """Names by which clients may call it, besides those of this machine: "ai.example.org"."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call it (CORS): "https://app.example.org". None by default."""
    drain_seconds: float = Field(default=30.0, gt=0, le=86_400)
    """After SIGTERM, requests that run may end within this time; what is left then waits in the journal."""
    log_format: Literal["text", "json"] = "text"
    models: Mapping[str, str] = Field(default_factory=dict)
    """Names of models for clients: {"gpt-4o" = "openai/gpt-6.1-sol"}."""
    embedding_model: str = ""
    """Of /v1/embeddings, "provider/model"; "": the endpoint answers 404."""
    limits: DaemonLimits = Field(default_factory=DaemonLimits)

    @field_validator("host")
    @classmethod
    def _one_address(cls, value: str) -> str:
        if value in ("*", ""):
            raise ValueError("must be one address or name, such as 127.0.0.1 or 0.0.0.0")
        return value

    @field_validator("models", "embedding_model")
    @classmethod
    def _models_have_a_provider(cls, value: Mapping[str, str] | str) -> Mapping[str, str] | str:
        for model in value.values() if isinstance(value, Mapping) else filter(None, (value,)):
            provider, _, name = model.partition("/")
            if not provider or not name:
                raise ValueError(f'{model!r} must be "provider/model", such as "{example("openai")}"')
        return value

    @property
    def is_loopback(self) -> bool:
        """Only this machine reaches it."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class TenantSettings(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """What `[tenants.NAME]` says besides the settings of its runtime. None: no such limit."""

    tools: tuple[Path, ...] = ()
    """Python files with tools."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    tokens_per_day: int | None = Field(default=None, ge=1)
    """Input and output together, by the journal; a day of UTC."""
    dollars_per_month: float | None = Field(default=None, gt=0)
    """Likewise; a month of UTC."""


class TenantPlan(Struct, frozen=True):
    """One tenant as it is to be."""

    name: str
    settings: Settings
    own: TenantSettings = field(default_factory=TenantSettings)


class DaemonPlan(Struct, frozen=True):
    """All that a configuration says."""

    daemon: DaemonSettings
    tenants: tuple[TenantPlan, ...]
    state_dir: Path
    """Tokens and journals are here."""
    file: Path
    is_empty: bool
    """There is no such file, or nothing in it."""


def read_plan(
    path: Path | None = None,
    profile: str = "",
    *,
    given: Mapping[str, object] | None = None,
    daemon: Mapping[str, object] | None = None,
    tools: Sequence[Path] = (),
) -> DaemonPlan:
    """What the configuration file says; None: the user's own. What is `given` for the runtimes and the `daemon` wins.

    `tools`: further files of tools, of every tenant. Raises UsageError, naming file, section and field.
    """
    check_variables(Settings.model_fields)
    file = Settings().config_dir / CONFIG_FILE if path is None else named_file(path)
    found = read_profile(file, profile)
    typed = daemon or {}
    own = _checked(DaemonSettings, "daemon", {**found.of_daemon.daemon, **typed}, file, typed)
    names = found.of_daemon.tenants or {DEFAULT_TENANT: {}}
    tenants = tuple(_tenant(name, table, found, given or {}, tools) for name, table in names.items())
    _check_journals(tenants, file)
    return DaemonPlan(own, tenants, tenants[0].settings.state_dir / "daemon", file, found.is_empty)


def _check_journals(tenants: Sequence[TenantPlan], file: Path) -> None:
    """Raise UsageError for two tenants with one journal: each would see the requests of the other."""
    seen: dict[str, str] = {}
    for each in tenants:
        journal = each.settings.journal
        if not journal:
            continue
        first = seen.setdefault(str(journal), each.name)
        if first != each.name:
            raise UsageError(
                f"the tenants {first!r} and {each.name!r} of {file} have one journal; "
                f"give each its own in [tenants.NAME], or leave `journal` out: each has its own file then"
            )


def _tenant(
    name: str, table: Mapping[str, object], profile: Profile, given: Mapping[str, object], tools: Sequence[Path]
) -> TenantPlan:
    if not _TENANT.fullmatch(name):
        raise UsageError(f"[tenants.{name}] in {profile.path}: a tenant's name has a-z, 0-9, - and _, at most 64")
    own = {key: value for key, value in table.items() if key in TenantSettings.model_fields}
    mine = _checked(TenantSettings, f"tenants.{name}", own, profile.path)
    mine = mine.model_copy(update={"tools": (*tools, *(profile.path.parent / each for each in mine.tools))})
    rest = {key: value for key, value in table.items() if key not in own}
    sections = (*profile.sections, Section(f"tenants.{name}", rest))
    typed = {field: f"--{field.replace('_', '-')}" for field in given}
    settings = Settings.model_validate(dict(given), context=Profile(profile.path, sections, typed))
    return TenantPlan(name, _with_journal(settings, name), mine)


def _with_journal(settings: Settings, tenant: str) -> Settings:
    """The journal is on: where none is named, it is among the daemon's own files."""
    if settings.journal == checked_place(NO_JOURNAL):  # the settings have made a path of the word
        return settings.model_copy(update={"journal": None})
    if settings.journal is None:
        return settings.model_copy(update={"journal": settings.state_dir / "daemon" / f"{tenant}.db"})
    return settings


def _checked(
    kind: type[M], section: str, table: Mapping[str, object], file: Path, typed: Mapping[str, object] | None = None
) -> M:
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = "there is no such setting" + similar(field, kind.model_fields)
        if field in (typed or {}):
            raise UsageError(f"--{field.replace('_', '-')}: {message}") from None
        raise UsageError(f"{field!r} in [{section}] of {file}: {message}") from None
