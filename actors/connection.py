"""How one provider is reached: its address, its credential, further headers, a proxy, and whom its certificate is
trusted from."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from pydantic import SecretStr

from callboard.actors.config_file import similar
from callboard.actors.journal.places import shown_place
from callboard.actors.requests.extra_fields import checked_headers
from callboard.protocol.errors import UsageError, explained
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.masking import for_log
from callboard.providers.credentials import TokenCallback
from callboard.providers.provider_table import ROWS, ProviderRow

if TYPE_CHECKING:
    from callboard.actors import wrong_calls
    from callboard.providers.transport import AnyTransport
else:
    AnyTransport = object  # loading HTTP takes 0.2 s
    wrong_calls = lazy_module("callboard.actors.wrong_calls")

REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
NOT_A_KEY: Final = "a key is one word of ASCII; set it again, without spaces, line breaks and other characters"
NOT_AN_ADDRESS: Final = "must be an address with http:// or https://, such as http://localhost:8000/v1"
_NOT_A_PROXY: Final = 'must be the address of an HTTP proxy, such as http://proxy.example:3128, or "" for none'

ApiKey = SecretStr | str | TokenCallback
"""A key, or what gives one (sync or async) and is called again when it has expired or was refused. A text that a
function gives goes where the API takes a key; in a cloud (Azure, Vertex, Bedrock) it is a bearer token."""
Verify = bool | str | Path | ssl.SSLContext
"""Whom a server's certificate is trusted from: True, the usual authorities; the file or folder of one's own; a context
that says it all; False, anyone, which lets others read along."""


def _explained(kind: type[Connection]) -> type[Connection]:
    """With a clear error for a misspelt field."""
    kind.__init__ = explained(lambda *wrong: wrong_calls.of_connection(*wrong))(kind.__init__)  # type: ignore[method-assign]
    return kind


@_explained
@dataclass(frozen=True, slots=True)
class Connection:
    """Of one provider, in `Settings(connections={"groq": Connection(...)})`. What is left out is as usual there.

    Raises UsageError for what cannot be sent, without the value.
    """

    base_url: str | None = None
    api_key: ApiKey | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with each request."""
    proxy: str | None = None
    """None: by the settings, else by HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY. "": none."""
    verify: Verify | None = None
    """None: by the settings."""
    reasoning: str | None = None
    """The field in which its models want their reasoning back, "reasoning_content" or "reasoning": of a server that
    speaks Chat Completions, where the names of its models do not say so."""
    transport: AnyTransport | None = None
    """What carries its requests, an httpx.AsyncBaseTransport: for tracing, for tests, for a socket of Unix. It says
    itself which proxy it uses and whom it trusts. None: by the settings."""

    def __post_init__(self) -> None:
        checks: dict[str, Callable[[object], object]] = {
            "base_url": checked_address,
            "api_key": checked_key,
            "proxy": checked_proxy,
            "reasoning": checked_reasoning,
            "transport": checked_transport,
        }
        if self.verify is not None:
            checks["verify"] = checked_verify
        for name, check in checks.items():
            try:
                object.__setattr__(self, name, check(getattr(self, name)))
            except ValueError as error:
                raise UsageError(f"{name}: {error}") from None
        check_transport_alone(self.transport, proxy=self.proxy, verify=self.verify)
        object.__setattr__(self, "headers", checked_headers("headers", self.headers))

    def __repr__(self) -> str:
        shown = (f"{name}={for_log(value)!r}" for name in ("base_url", "proxy") if (value := getattr(self, name)))
        return f"Connection({', '.join(shown)})"


def connections_of(value: object) -> Mapping[str, Connection]:
    """Connections by provider, or their fields by name, as from a file. Raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError('must be a mapping of provider names, such as {"groq": Connection(api_key=...)}')
    return {str(name): _connection(str(name), each) for name, each in value.items()}


def _connection(provider: str, value: object) -> Connection:
    if isinstance(value, Connection):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{provider}: must be a Connection")
    known = {each.name: each for each in fields(Connection)}
    for name in value:
        if name not in known:
            raise ValueError(f"{provider}: there is no {name!r} in it{similar(str(name), known)}")
    try:
        return Connection(**value)
    except UsageError as error:
        raise ValueError(f"{provider}: {error}") from None


# -- where a provider is


def is_same_server(provider: str, other: str) -> bool:
    """Are they one, or two APIs of one server (openai, openai-chat), so that address and key of one are the other's?"""
    if provider == other:
        return True
    rows = ROWS.get(provider), ROWS.get(other)
    places = [(row.key_variable, row.address) for row in rows if row is not None and row.key_variable]
    return len(places) == 2 and places[0] == places[1]


def is_of_model(provider: str, of_model: str, connections: Mapping[str, Connection]) -> bool:
    """Is it the provider `of_model`, or another API of its server that `connections` put nowhere else?"""
    own = connections.get(provider)
    return provider == of_model or (is_same_server(provider, of_model) and (own is None or not own.base_url))


def entries_of(provider: str, connections: Mapping[str, Connection]) -> list[tuple[str, Connection]]:
    """What `connections` say of a provider, by its own name first; then of other APIs of its server, unless it has an
    address of its own."""
    own = connections.get(provider)
    if own is not None and own.base_url:
        return [(provider, own)]
    found = [(name, each) for name, each in connections.items() if is_same_server(name, provider)]
    return sorted(found, key=lambda entry: entry[0] != provider)


def address_of(
    provider: str,
    of_model: str,
    base_url: str | None,
    connections: Mapping[str, Connection],
    environment: Mapping[str, str],
) -> tuple[str | None, str]:
    """Where a provider is, and what says so: "base_url" (of the provider `of_model`), its connection, or the variable
    of its own clients; (None, ""): at its usual place.

    Raises UsageError for a variable that holds no address, and where the provider's key has an address that is not that
    of its API: prompts and key would go past it.
    """
    if base_url and is_of_model(provider, of_model, connections):
        return base_url, "base_url"
    for name, given in entries_of(provider, connections):
        if given.base_url:
            return given.base_url, f"connections.{name}.base_url"
    if (row := ROWS.get(provider)) is None:
        return None, ""
    for name in row.variables.get("base_url", ()):
        if text := environment.get(name):
            return _address_in(row, name, text), name
    own = ROWS.get(of_model)
    if base_url and row.key_variable and own is not None and own.key_variable == row.key_variable:
        raise _said_elsewhere(row, f"base_url (of {of_model})")
    for name, given in connections.items():
        if given.base_url and row.key_variable and name in ROWS and ROWS[name].key_variable == row.key_variable:
            raise _said_elsewhere(row, f"connections.{name}.base_url")
    for name in row.stray_variables:
        if environment.get(name):
            raise _said_elsewhere(row, name)
    return None, ""


def addresses_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that say where providers are, as a tool in a child process may know them."""
    # Over what is set: the names that there may be are many, and each start of a runtime looks here.
    found = {name: environment[name] for name in environment if name in _address_names()}
    return {name: without_secret(address) for name, address in found.items() if address}


@cache
def _address_names() -> frozenset[str]:
    return frozenset(name for row in ROWS.values() for name in row.variables.get("base_url", ()))


def without_secret(address: str) -> str:
    """Who asks there without the password is refused; without the address, the request would go past it."""
    scheme, mark, rest = address.rpartition("://")
    host, slash, path = rest.partition("/")
    bare = re.split("[?#]", f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}")[0]
    return bare if for_log(bare) == bare else f"{scheme}{mark}{host.rpartition('@')[2]}"


def _address_in(row: ProviderRow, variable: str, text: str) -> str:
    try:
        return checked_address(row.address_in(text)) or ""
    except ValueError:
        raise UsageError(f"{variable} {NOT_AN_ADDRESS}") from None


def _said_elsewhere(row: ProviderRow, what: str) -> UsageError:
    return UsageError(
        f"{what} says where the key {row.key_variable} goes, but not where {row.name} is: give "
        f'Settings(connections={{"{row.name}": Connection(base_url=...)}})'
    )


# -- the fields: each takes what may be given, and raises ValueError without the value


def fits_a_header(key: str) -> bool:
    """Can it be sent as a key?"""
    return key.isascii() and key.isprintable() and " " not in key


def checked_key(value: object) -> SecretStr | Callable[[], object] | None:
    """The key as one that no repr shows; a callback as it is; None for "" too."""
    if value is None or callable(value):
        return value
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if not isinstance(text, str):
        raise ValueError("must be a text, or in a program a function that gives one")
    if not fits_a_header(text):
        raise ValueError(NOT_A_KEY)
    return SecretStr(text)


def checked_address(value: object) -> str | None:
    """An address with a host; None for "" too."""
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not _has_host(value):
        raise ValueError(NOT_AN_ADDRESS)
    return value


def checked_proxy(value: object) -> str | None:
    """An address of a proxy, "" for none, None for that of the environment."""
    if value is None or value == "":
        return value if isinstance(value, str) else None
    if not isinstance(value, str) or not _has_host(value):
        raise ValueError(_NOT_A_PROXY)
    return value


def checked_reasoning(value: object) -> str | None:
    """One of the two names that the field has."""
    if value is None or value in REASONING_FIELDS:
        return None if value is None else str(value)
    raise ValueError(f"must be {' or '.join(map(repr, REASONING_FIELDS))}")


def checked_transport(value: object) -> AnyTransport | None:
    """A transport of httpx's for async requests."""
    if value is None or (not isinstance(value, type) and hasattr(value, "handle_async_request")):
        return cast("AnyTransport | None", value)
    raise ValueError(f"must be an httpx.AsyncBaseTransport, such as httpx.MockTransport(...), not {value!r:.80}")


def check_transport_alone(transport: object, **given: object) -> None:
    """Raise UsageError for a proxy and certificates beside a transport of the user's own, which would do nothing."""
    for name, value in given.items():
        if transport is not None and value is not None:
            how = f"HttpTransport({name}=...) of callboard.providers.transport"
            raise UsageError(f"{name} does nothing beside a transport of your own; say it to that, such as {how}")


def checked_verify(value: object) -> Verify:
    """Whom to trust; a file or folder must be there, and hold a certificate."""
    if isinstance(value, bool | ssl.SSLContext):
        return value
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("must be True, False, the path of a file of certificates, or an ssl.SSLContext")
    path = Path(value).expanduser()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(capath=path) if path.is_dir() else context.load_verify_locations(path)
    except OSError as error:  # ssl.SSLError is one
        raise ValueError(f"no certificates can be read from {path}: {error.strerror or error}") from None
    return path


def _has_host(address: str) -> bool:
    try:
        parts = urlsplit(address)
        is_port = parts.port is None or parts.port > 0  # raises ValueError for one that there cannot be
        return parts.scheme in ("http", "https") and bool(parts.hostname) and is_port and not re.search(r"\s", address)
    except ValueError:  # or brackets that hold no IPv6 address
        return False


def shown(names_and_values: Iterable[tuple[str | None, object]]) -> Iterator[tuple[str | None, object]]:
    """As `repr` may show them: an address may hold a password, a callback (functools.partial) a secret."""
    for name, value in names_and_values:
        if name == "api_key" and callable(value):
            yield name, "a callback"
        elif name == "headers" and isinstance(value, Mapping):
            yield name, dict.fromkeys(value, "***")
        elif name == "journal" and isinstance(value, str):
            yield name, shown_place(value)
        else:
            yield name, for_log(value) if isinstance(value, str) else value
