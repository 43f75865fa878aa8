"""How an MCP server is reached: a command to start, or an address; read from settings and from the configuration file.

`${NAME}` in a value stands for an environment variable, `${NAME:-text}` for a text where it is not set.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Final

from callboard.actors.config_file import similar
from callboard.actors.connection import checked_address
from callboard.protocol.errors import UsageError
from callboard.protocol.limits import DEFAULT_TOOL_TIMEOUT_SECONDS, MAX_TOOL_TIMEOUT_SECONDS
from callboard.protocol.tools import Risk

#: In front of the names of its tools, which have 64 characters at most.
SERVER_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,24}")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
#: A server that `npx` or `uvx` has to download first takes some 20 s.
START_SECONDS: Final = 30.0
#: What a server that is started gets besides `McpServer.env`. The SDK passes the first six on.
INHERITED: Final = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
REVISIONS: Final = ("auto", "2025-11-25", "2026-07-28")


@dataclass(frozen=True, slots=True)
class OAuth:
    """How to sign in to a server that asks for it: `OAuth()` in a browser, as the server itself says where.

    With `client_id` and `client_secret` no client is registered; with `machine=True` they are all that is sent, and no
    person is asked (the grant `client_credentials`).
    """

    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    """What is asked for, words with spaces between them; "": what the server says."""
    client_metadata_url: str = ""
    """Where a document about the client is (https), for servers that read that in place of registering clients."""
    issuer: str = ""
    """Of the credentials, with `machine`: they are sent to no other; "": to the one that the server names."""
    machine: bool = False
    redirect_port: int = 0
    """Of the loopback address to which the browser comes back; 0: any that is free."""

    def __post_init__(self) -> None:
        for name in ("client_id", "client_secret", "scope", "client_metadata_url", "issuer"):
            object.__setattr__(self, name, expanded(f"oauth.{name}", getattr(self, name)))
        if self.machine and not (self.client_id and self.client_secret):
            raise UsageError("oauth: machine = true needs a client_id and a client_secret")
        if not isinstance(self.redirect_port, int) or not 0 <= self.redirect_port <= 65_535:
            raise UsageError("oauth: redirect_port must be a port, 0 to 65535")


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server, in `Settings(mcp_servers={"files": McpServer(command="npx", args=("-y", "some-server"))})`.

    Its tools are offered as `files_TOOL`. Either `command` (started as a child process, spoken to over its pipes) or
    `url` (streamable HTTP). Raises UsageError for what contradicts itself and for `${NAME}` of variables that are not
    set, without the values.
    """

    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables it gets besides the harmless ones (PATH, HOME, LANG ...)."""
    cwd: Path | None = None
    """Its working folder; None: that of this process."""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with each request, such as {"Authorization": "Bearer ${TOKEN}"}."""
    oauth: OAuth | None = None
    tools: Mapping[str, Risk] = field(default_factory=dict)
    """What its tools can do, by their names at the server, as far as the owner knows: {"search": "read"}; "*" for all
    others. What the server itself says of it is not believed: without an entry the risk is undeclared, and a policy
    asks."""
    deferred: bool = False
    """A model is not shown its tools from the beginning, and finds them by searching."""
    timeout: float = DEFAULT_TOOL_TIMEOUT_SECONDS
    """Seconds for one call."""
    start_timeout: float = START_SECONDS
    """Seconds until it has answered and told its tools; then it counts as failed, and is started again."""
    revision: str = "auto"
    """Of the protocol: "2025-11-25", "2026-07-28", or "auto", by asking."""

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise UsageError("give either a command or a url")
        idle = ("headers", "oauth") if self.command else ("args", "env", "cwd")
        for name in idle:
            if getattr(self, name):
                raise UsageError(f"{name} is of no use with a {'command' if self.command else 'url'}; leave it out")
        for name, expand in _EXPANDED.items():
            object.__setattr__(self, name, expand(name, getattr(self, name)))
        object.__setattr__(self, "tools", _risks(self.tools))
        for name in ("timeout", "start_timeout"):
            object.__setattr__(self, name, _seconds(name, getattr(self, name)))
        if not isinstance(self.deferred, bool):
            raise UsageError("deferred must be true or false")
        if self.revision not in REVISIONS:
            raise UsageError(f"revision must be one of {', '.join(REVISIONS)}")

    def shown(self) -> dict[str, object]:
        """Its fields as JSON has them, with stars in place of what may be a secret."""
        found: dict[str, object] = {each.name: getattr(self, each.name) for each in fields(self)}
        found |= {name: dict.fromkeys(getattr(self, name), "***") for name in ("env", "headers")}
        found |= {"cwd": None if self.cwd is None else str(self.cwd), "tools": dict(self.tools)}
        if self.oauth is not None:
            hidden = {"client_secret": "***"} if self.oauth.client_secret else {}
            found["oauth"] = asdict(self.oauth) | hidden
        return found

    def risk_of(self, tool: str) -> Risk:
        """What the owner has said of a tool of this name."""
        return self.tools.get(tool, self.tools.get("*", Risk.UNDECLARED))


def inherited_environment() -> dict[str, str]:
    """The harmless variables, as they are now."""
    return {name: os.environ[name] for name in INHERITED if name in os.environ}


def mcp_servers_of(value: object) -> Mapping[str, McpServer]:
    """Servers by name, or their fields by name, as from a file. Raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError('must be a mapping of names to servers, such as {"files": McpServer(command=...)}')
    for name in value:
        if not isinstance(name, str) or not SERVER_NAME.fullmatch(name):
            raise ValueError(f"{name!r:.80} is not 1 to 24 letters, digits, _ or -: its tools are named by it")
    return {name: _server(name, each) for name, each in value.items()}


def _server(name: str, value: object) -> McpServer:
    if isinstance(value, McpServer):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: must be a McpServer")
    try:
        _check_names(value, _names_of(McpServer))
        return McpServer(**value)
    except UsageError as error:
        raise ValueError(f"{name}: {error}") from None


def _check_names(given: Mapping[object, object], known: Mapping[str, object]) -> None:
    for name in given:
        if name not in known:
            raise UsageError(f"there is no {name!r} in it{similar(str(name), known)}")


def _names_of(kind: type[McpServer | OAuth]) -> dict[str, object]:
    return {each.name: each for each in fields(kind)}


# -- the fields: each takes what may be given, and raises UsageError without the value


def expanded(where: str, text: object) -> str:
    """The text with its `${NAME}`s replaced. Raises UsageError for a variable that is not set."""
    if not isinstance(text, str) or "\0" in text:
        raise UsageError(f"{where} must be a text without NUL")

    def value_of(found: re.Match[str]) -> str:
        name, otherwise = found[1], found[2]
        value = os.environ.get(name)
        if value is None and otherwise is None:
            raise UsageError(f"{where} names the variable {name}, which is not set; set it, or write ${{{name}:-text}}")
        return value if value is not None else str(otherwise)

    return _VARIABLE.sub(value_of, text)


def _expanded_list(where: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, list | tuple):
        raise UsageError(f"{where} must be a list of texts")
    return tuple(expanded(where, each) for each in given)


def _expanded_map(where: str, given: object) -> Mapping[str, str]:
    if not isinstance(given, Mapping):
        raise UsageError(f"{where} must be a mapping of names to texts")
    return {str(name): expanded(f"{where}.{name}", each) for name, each in given.items()}


def _address(where: str, given: object) -> str:
    address = expanded(where, given)
    try:
        return checked_address(address) or ""
    except ValueError as error:
        raise UsageError(f"{where} {error}") from None


def _headers(where: str, given: object) -> Mapping[str, str]:
    headers = _expanded_map(where, given)
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise UsageError(f"{where}: {name!r:.80} cannot be sent; write name and value in ASCII, on one line")
    return headers


def _folder(where: str, given: object) -> Path | None:
    if given is None:
        return None
    folder = Path(expanded(where, str(given))).expanduser()
    if not folder.is_dir():
        raise UsageError(f"{where}: there is no folder {folder}")
    return folder


def _oauth(where: str, given: object) -> OAuth | None:
    if given is None or isinstance(given, OAuth):
        return given
    if isinstance(given, bool):
        return OAuth() if given else None
    if not isinstance(given, Mapping):
        raise UsageError(f"{where} must be true, or a table of {', '.join(_names_of(OAuth))}")
    _check_names(given, _names_of(OAuth))
    return OAuth(**given)


_EXPANDED: Final = {
    "command": expanded,
    "args": _expanded_list,
    "env": _expanded_map,
    "cwd": _folder,
    "oauth": _oauth,
    "url": _address,
    "headers": _headers,
}


def _risks(given: object) -> Mapping[str, Risk]:
    if not isinstance(given, Mapping):
        raise UsageError('tools must say what tools can do by their names, such as {"search": "read"}')
    try:
        return {str(name): Risk(risk) for name, risk in given.items()}
    except ValueError as error:
        raise UsageError(f"tools: {error}; the risks are {', '.join(Risk)}") from None


def _seconds(name: str, given: object) -> float:
    is_number = isinstance(given, int | float) and not isinstance(given, bool) and math.isfinite(given)
    if not is_number or not 0 < float(str(given)) <= MAX_TOOL_TIMEOUT_SECONDS:
        raise UsageError(f"{name} must be above 0 and at most {MAX_TOOL_TIMEOUT_SECONDS:g} seconds")
    return float(str(given))
