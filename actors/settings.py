"""Everything that sets up a runtime from outside: arguments, and the environment variables for those not given.

They are read when a `Settings` is made, never at import, and checked like arguments. A key that is not given is looked
up in the provider's own variable, when it is needed. The configuration file is read by `Settings.from_file` only.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, NoReturn, Self, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import asdict
from pydantic import (
    BaseModel,
    Field,
    SecretStr,
    SkipValidation,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler

from callboard.actors import environment
from callboard.actors.calls.registry import FAILURE_BUDGET
from callboard.actors.config_file import CONFIG_FILE, Profile, Section, named_file, read_profile, similar
from callboard.actors.connection import (
    NOT_A_KEY,
    ApiKey,
    Connection,
    Verify,
    address_of,
    addresses_of,
    checked_address,
    checked_key,
    checked_proxy,
    checked_transport,
    checked_verify,
    connections_of,
    entries_of,
    fits_a_header,
    is_of_model,
    shown,
    without_secret,
)
from callboard.actors.journal.places import checked_place, file_patterns, shown_place
from callboard.actors.mcp.mcp_servers import McpServer, mcp_servers_of
from callboard.actors.policy.addresses import AllowedAddresses
from callboard.actors.processes.confinement import Confine
from callboard.actors.requests.extra_fields import checked_headers
from callboard.actors.secret_files import SecretRules
from callboard.protocol import limits
from callboard.protocol.compaction import Compaction, compaction_faults
from callboard.protocol.errors import UsageError, explained
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.model import PromptCache, ResponseStorage, Sampling, sampling_faults
from callboard.protocol.options import ToolFallback
from callboard.protocol.policy import Mode, Policy, Trust
from callboard.protocol.provider_options import ProviderOptions
from callboard.protocol.server_tools import ServerToolOffer
from callboard.providers.catalog import Catalog
from callboard.providers.example_models import example
from callboard.providers.local.scripted import Script
from callboard.providers.provider_registry import KEY_VARIABLES, PROVIDERS
from callboard.providers.provider_table import ROWS

if TYPE_CHECKING:
    from callboard.actors import wrong_calls
    from callboard.providers import meant_model
    from callboard.providers.transport import AnyTransport
else:
    AnyTransport = object  # loading HTTP takes 0.2 s
    meant_model = lazy_module("callboard.providers.meant_model")
    wrong_calls = lazy_module("callboard.actors.wrong_calls")

#: What the command line asks where no model is named: no key, no network.
OFFLINE_MODEL = "offline/code-context"
#: Of a model's provider: they do not go along to a model of another provider that is chosen above them.
_OF_THE_PROVIDER: Final = ("base_url", "api_key", "headers")
#: More than none.
_Positive = Annotated[float, Field(gt=0)]
#: What reads a field that says how providers are reached; of one provider, `Connection` does.
_CHECKS: Final[Mapping[str, Callable[[object], object]]] = {
    "api_key": checked_key,
    "connections": connections_of,
    "journal": checked_place,
    "mcp_servers": mcp_servers_of,
    "proxy": checked_proxy,
    "transport": checked_transport,
    "verify": checked_verify,
}


def _resolved(folder: Path) -> Path:
    """Raises ValueError where it is none, or could not be shown to a model."""
    found = folder.expanduser().resolve()
    if str(found) != str(found).encode(errors="ignore").decode():
        raise ValueError(f"the path {str(found)!r} is not valid UTF-8; rename the folder")
    if not found.is_dir():
        wrong = f"{found} is not a folder" if found.exists() else f"there is no folder {found}"
        raise ValueError(f"{wrong}; name one that exists")
    return found


class Settings(
    BaseModel, frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False, defer_build=True
):
    """How a runtime is set up. Bad values are a `UsageError` that names the field, or the variable it came from.

    Variables read where a field is not given: CALLBOARD_MODEL, CALLBOARD_BASE_URL, CALLBOARD_WORKSPACE,
    CALLBOARD_COPILOT_CLIENT_ID, CALLBOARD_CONFIG_DIR (else XDG_CONFIG_HOME/callboard, ~/.config/callboard),
    CALLBOARD_JOURNAL, and the provider's own key variable (OPENAI_API_KEY, ANTHROPIC_API_KEY, ...; CALLBOARD_API_KEY
    wins over that of `model`).
    """

    model: str = ""
    """"provider/model"; "": none, and each question names its own. "offline/code-context" answers from the code index
    alone."""
    fallback_models: tuple[str, ...] = ()
    """Asked in turn when `model` fails and retries did not help; `max_attempts` keeps one request for each."""
    base_url: str | None = None
    """Where the model's API is, if not at its usual place."""
    api_key: ApiKey | None = None
    """Kept as a SecretStr, which no repr and no log shows. For keys that expire, a function (async or not) that gives
    one, or a `Token` with the time of its end: called when needed, and again after a refusal. It is sent as a bearer
    token, also to Anthropic, Gemini and Azure, whose keys go into headers of their own."""
    headers: Mapping[str, str] = Field(default_factory=dict)
    """Sent with each request to the provider of `model`."""
    connections: Mapping[str, Connection] = Field(default_factory=dict)
    """Likewise of further providers, by their names: `{"groq": Connection(api_key=..., proxy=...)}`."""
    proxy: str | None = None
    """The address of an HTTP proxy, for all providers. None: those that HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY
    name; "": none."""
    verify: Annotated[Verify, SkipValidation()] = True
    """Whom to trust as a provider's server: True, the usual authorities; the path of a file (PEM) or folder of one's
    own; an ssl.SSLContext; False, anyone, which lets others read along."""
    transport: Annotated[AnyTransport | None, SkipValidation()] = Field(default=None, repr=False)
    """What carries the requests to all providers, an httpx.AsyncBaseTransport, in place of `proxy` and `verify`; closed
    with the runtime. None: `HttpTransport` of callboard.providers.transport."""
    workspace: Path | None = None
    """The folder that the code tools see, and nothing outside it; None offers no code tools."""
    more_workspaces: tuple[Path, ...] = ()
    """Further folders, which code is searched in together with the workspace, and which the reading tools read, by
    absolute paths. Nothing is written or run there."""
    index_dir: Path | None = None
    """Where the code index is kept; None is in the workspace: `.callboard/index`, and `.callboard/index-HASH` for one
    of several folders."""
    secret_files: tuple[str, ...] = ()
    """Files of the workspace that no model is shown, besides those of the list (actors/secret_files.py) and of
    `.callboardignore` files: patterns as in .gitignore. One with "!" allows what the list forbids, "!tests/*.pem"."""
    embedding_model: str = ""
    """"provider/model" of an OpenAI-compatible embedding API that finds code by meaning: it gets the words of all code
    of the workspace once, and each question. "" uses the local model of the extra `embeddings` where it is installed,
    else words alone."""
    embedding_base_url: str | None = None
    """Where the embedding API is, if not at its usual place."""
    expand_search: bool = False
    """Ask the model once a question, before its first search in the code, for further words to search by: a short call
    more, of some 300 tokens and a second, which counts in the budgets. It is not made where the model gives two queries
    or more itself, and not of the offline model."""

    instructions: str = ""
    """What the model reads before the conversation; "" is the default, which names the workspace and the code
    fence."""
    request_timeout_seconds: float = Field(
        default=limits.DEFAULT_REQUEST_TIMEOUT_SECONDS, gt=0, le=limits.MAX_REQUEST_SECONDS
    )
    """From the question to its answer, tools included; then the request ends with what there is. Times in which it only
    waits for approvals and for the results of deferred calls do not count."""
    approval_timeout_seconds: float = Field(default=limits.DEFAULT_WAIT_SECONDS, gt=0, le=limits.MAX_WAIT_SECONDS)
    """How long a call waits for its approval, a day unless it is given, a week at the most; then it is denied."""
    max_steps: int = Field(default=limits.DEFAULT_MAX_STEPS, ge=1)
    """Model calls for one question."""
    token_budget: int | None = Field(default=None, ge=1)
    """Tokens for one question, input and output of all its model calls; None is no limit."""
    tools_budget_tokens: int | None = Field(default=None, ge=0)
    """What definitions of tools may take of a prompt; the model searches for the rest. None: all, but deferred ones."""
    continue_cut_answers: int = Field(default=0, ge=0)
    """How often at most an answer that was cut at the limit of output tokens is gone on with."""
    cost_budget: float | None = Field(default=None, gt=0)
    """US dollars a request. Refused where it could not be kept: no price is known of `model` or of a fallback."""
    context_tokens: int | None = Field(default=None, ge=1, le=limits.MAX_CALL_TOKENS)
    """Of `model` alone. None is its context window by the catalog; where that does not know it, the server is asked."""
    history_share: float = Field(default=1.0, gt=0, le=1)
    """What earlier questions and answers may take of the room for a prompt; the rest is for the question itself."""
    result_share: float = Field(default=limits.MAX_RESULT_WINDOW_SHARE, gt=0, le=1)
    """What one tool result may take of the model's window; a longer one is shortened as soon as it comes."""
    compaction: Compaction | None = None
    """How a long conversation is kept within the window, besides cutting it: old results cleared, older messages
    summarised. None: it is only cut, and no model is asked for anything that was not a question."""
    sampling: Sampling = Sampling()
    """Temperature, length of an answer and the like; what is left out is the model's own default."""
    parallel_tool_calls: bool | None = None
    """May the model ask for several calls in one turn? None: as the provider has it."""
    server_tools: tuple[ServerToolOffer, ...] = ()
    """Tools that the provider runs itself (protocol/server_tools.py); refused where the API has none of them."""
    storage: ResponseStorage | None = None
    """What a Responses API keeps of its answers."""
    service_tier: str = ""
    """In which of its tiers the provider is to serve requests, in its own word; "": its default."""
    provider_options: tuple[ProviderOptions, ...] = ()
    """What only one API has (protocol/provider_options.py)."""
    prompt_cache: PromptCache = PromptCache.FIVE_MINUTES
    """How long the provider keeps the prompt's beginning for the next step, where it must be asked to ("off", "5m",
    "1h")."""
    tool_fallback: ToolFallback = ToolFallback.RETRY_WITHOUT_TOOLS
    """Where a model takes no tools: ask once more without them, with a note ("retry_without_tools"), or "fail"."""
    trust: Trust | None = None
    """How much runs unasked: "careful", "balanced" or "manual"; None: as `policy` has it (balanced)."""
    mode: Mode | None = None
    """What tools are for: "ask" (reading), "plan" (no changes, no programs) or "build"; None: as `policy` has it
    (build)."""
    policy: Policy = Field(default_factory=Policy, validate_default=True)
    """Which calls run unasked, which are asked about and which are denied; with `trust` and `mode` in it where they are
    given."""
    allowed_addresses: tuple[str, ...] = ()
    """Hosts and networks in private or local ranges that a model may name all the same: "localhost", "10.0.0.0/8",
    "*.example.internal"."""
    ask_after_untrusted: bool = False
    """Ask about each call that does more than read, once a request has read text from outside (of tools, servers and
    files, in this question or earlier in its conversation), unless a rule of yours allows it."""
    mcp_servers: Annotated[Mapping[str, McpServer], SkipValidation()] = Field(default_factory=dict)
    """MCP servers by name, whose tools are offered as NAME_TOOL: `{"files": McpServer(command=...)}` (extra `mcp`)."""
    catalog: Catalog = Field(default_factory=Catalog)
    """Context windows and prices; give one with `overrides` for models that the price list does not know."""
    rate_limits: Mapping[str, tuple[_Positive | None, _Positive | None]] = Field(default_factory=dict)
    """Requests and tokens a minute by provider name, shared by all requests; what providers report narrows them. In a
    file also `{requests = 60}` or `{tokens = 90000}`, where only one is limited."""

    stream_idle_timeout_seconds: float = Field(
        default=limits.STREAM_IDLE_TIMEOUT_SECONDS, gt=0, le=limits.MAX_REQUEST_SECONDS
    )
    """A model's answer of which nothing comes for so long has failed."""
    stream_total_timeout_seconds: float = Field(
        default=limits.STREAM_TOTAL_TIMEOUT_SECONDS, gt=0, le=limits.MAX_REQUEST_SECONDS
    )
    """One answer of a model, from the request to its end."""
    max_attempts: int = Field(default=limits.MAX_ATTEMPTS, ge=1, validate_default=True)
    """Requests that may be sent for one model call, over all models: the first one, retries, fallback models, the try
    without tools, and the same step asked again after a useless answer or a crash."""
    max_concurrent_requests: int = Field(default=10_000, ge=1)
    """More are refused as overloaded."""
    process_workers: int = Field(default=limits.MAX_TOOL_PROCESSES, ge=1)
    """Child processes at most for each tool class; they start when needed, and end when they are idle."""
    warm_workers: int = Field(default=1, ge=0)
    """Of them, how many are started with the runtime, for each class that has tools; 0: the first call waits 0.1 s."""
    worker_memory_bytes: int = Field(default=limits.TOOL_MEMORY_BYTES, ge=64 * 1024**2)
    """Memory that a tool in a process may use; a tool that wants more fails."""
    confine: Confine = Confine.AUTO
    """Whether tools in processes are held to their declared risk by the kernel ("auto": where it can, "off", or
    "required": else no runtime starts); docs/confinement.md says to what."""
    tool_environment: tuple[str, ...] = ()
    """Names of variables that tools in processes get beyond the harmless ones (PATH, HOME, LANG ...), such as the key
    of an API that a tool asks."""
    tool_failure_budget: int | None = Field(default=FAILURE_BUDGET, ge=0)
    """Crashes and timeouts of one tool that are allowed in 60 s; one more withdraws it for 30 s, if more than a tenth
    of its calls end so. None: never withdrawn."""
    copilot_client_id: str = ""
    """The GitHub OAuth app that `callboard login copilot` signs in with."""
    config_dir: Path = Field(default_factory=lambda: environment.config_dir())
    """Where what outlives a process and belongs to the user is kept: the Copilot login, if no keyring takes it."""
    script: Annotated[Script | None, SkipValidation()] = None
    """What the provider `scripted` says (see providers.local.scripted.Script): the shipped fake model, for tests."""
    auto_confirm_edits: bool = False
    """Apply edits as soon as a tool stages them, without asking; what the policy denies is denied all the same, and
    places that an editor, a shell or CI runs when it reads them are asked about."""
    state_dir: Path = Field(default_factory=lambda: environment.state_dir())
    """Where staged edits are kept, for each workspace apart, and how MCP servers describe their tools: by default
    XDG_STATE_HOME/callboard, else ~/.local/state/callboard."""
    journal: Annotated[str | Path | None, SkipValidation()] = None
    """Where requests and conversations are kept, so that they survive the end of the process (docs/durability.md): the
    path of a file of SQLite, or "postgresql://user@host/database" (extra `postgres`). "{pid}" in the name of the file
    is the id of the process, for hosts with several. None or "": nowhere."""
    durability: Literal["power", "process"] = "power"
    """What the journal survives: "power", also a power cut; "process", the end of the process however it comes, at less
    cost."""
    on_crash: Literal["resume", "fail"] = "resume"
    """What a start does with requests that were open when an earlier process ended: it goes on with them, or ends them
    with a reason."""
    journal_keep_days: float | None = Field(default=None, gt=0)
    """Conversations and requests that ended longer ago are deleted from the journal; None keeps them."""
    journal_max_bytes: int | None = Field(default=None, ge=1024**2)
    """From this size on the oldest ended requests are deleted from the journal; None: no limit."""
    log_content: bool = False
    """May log records and spans carry what people and models wrote?"""

    @model_validator(mode="wrap")
    @classmethod
    def _one_clear_error(cls, values: object, validate: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        # Not an __init__ of our own: it would hide the fields from type checkers.
        named: dict[str, str] = {}
        if isinstance(values, Mapping):
            profile = info.context if isinstance(info.context, Profile) else Profile()
            named = _places(values, profile)
            values = _merged([*(section.values for section in profile.sections), environment.given_fields(), values])
        try:
            return validate(values)
        except ValidationError as error:
            wrong = _explain(error, named)
        raise UsageError(wrong)  # out here: the ValidationError holds the values, and would go along as the context

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        # pydantic takes True for 1.
        if (
            isinstance(value, bool)
            and info.field_name
            and not _takes_bool(cls.model_fields[info.field_name].annotation)
        ):
            raise ValueError(f"must not be {value}")
        return value

    @field_validator("sampling", mode="plain")
    @classmethod
    def _sampling_that_can_be_sent(cls, value: object) -> Sampling:
        """A Sampling, or its fields by name, as from a file."""
        if isinstance(value, Mapping):
            stop = value.get("stop", ())
            value = Sampling(**{**value, "stop": tuple(stop) if isinstance(stop, list) else stop})
        if not isinstance(value, Sampling):
            raise ValueError("must be a Sampling")
        if faults := sampling_faults(value):
            raise ValueError(", ".join(faults))
        return value

    @classmethod
    def from_file(
        cls,
        name: str = "",
        path: Path | None = None,
        *,
        given: Mapping[str, object] | None = None,
        otherwise: Mapping[str, object] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Self:
        """Settings with the user's configuration file below arguments and environment, as the command line makes them.

        What counts, from the top: `given`, the environment, the section of the profile, the default section,
        `otherwise`, the defaults of Settings. The file is that of `path`, which must be there; None is config.toml in
        the configuration folder, if there is one. `name` is that of the profile, "" for the one that CALLBOARD_PROFILE
        names, if any. Messages call the given fields by `options`, where it has them. Raises UsageError, naming file,
        section and field.
        """
        chosen_by = "--profile"
        if not name:
            name, chosen_by = environment.profile(), "CALLBOARD_PROFILE"
        environment.check_variables(cls.model_fields)
        file = environment.config_dir() / CONFIG_FILE if path is None else named_file(path)
        found = read_profile(file, name, chosen_by=chosen_by)
        built_in = Section("", otherwise or {})
        profile = Profile(found.path, (built_in, *found.sections), options or {})
        return cls.model_validate(given or {}, context=profile)

    @field_validator("sampling", "policy", "catalog", "storage", "compaction", mode="wrap")
    @classmethod
    def _keys_that_exist(cls, value: object, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
        # pydantic leaves out what a dataclass has no field for, and so a misspelt one.
        _check_keys(cls.model_fields[info.field_name or ""].annotation, value)
        try:
            return validate(value)
        except UsageError as error:  # of an object in it: as a ValueError it comes with its place
            raise ValueError(str(error)) from None

    @field_validator("policy", mode="after")
    @classmethod
    def _with_trust_and_mode(cls, value: Policy, info: ValidationInfo) -> Policy:
        given = {name: info.data[name] for name in ("trust", "mode") if info.data.get(name) is not None}
        return replace(value, **given) if given else value

    @field_serializer("sampling")
    def _sampling_as_table(self, value: Sampling) -> dict[str, object]:
        return asdict(value)

    @field_serializer("journal")
    def _journal_without_password(self, value: str | Path | None) -> str | None:
        return None if value is None else shown_place(value)

    @field_serializer("mcp_servers")
    def _servers_without_secrets(self, value: Mapping[str, McpServer]) -> dict[str, dict[str, object]]:
        return {name: server.shown() for name, server in value.items()}

    @field_serializer("policy")
    def _policy_as_tables(self, value: Policy) -> dict[str, object]:
        return value.as_tables()

    @field_validator("allowed_addresses")
    @classmethod
    def _hosts_and_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            AllowedAddresses(value)
        except UsageError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("compaction", mode="after")
    @classmethod
    def _shares_that_fit(cls, value: Compaction | None) -> Compaction | None:
        if value is not None and (faults := compaction_faults(value)):
            raise ValueError(", ".join(faults))
        return value

    @field_validator("rate_limits", mode="before")
    @classmethod
    def _limits_by_name(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {provider: _two_limits(provider, limit) for provider, limit in value.items()}

    @field_validator(*_CHECKS, mode="plain")
    @classmethod
    def _of_a_connection(cls, value: object, info: ValidationInfo) -> object:
        return _CHECKS[info.field_name or ""](value)

    @field_validator("headers", mode="plain")
    @classmethod
    def _headers(cls, value: object) -> object:
        try:
            return checked_headers("headers", value)
        except UsageError as error:
            raise ValueError(str(error).removeprefix("headers: ")) from None

    if not TYPE_CHECKING:  # it would hide the fields from type checkers
        __init__ = explained(lambda *wrong: wrong_calls.of_settings(*wrong))(BaseModel.__init__)

    @field_validator("model", mode="before")
    @classmethod
    def _a_text(cls, value: object) -> object:
        if value is None:
            raise ValueError(f'must be "provider/model", such as "{example("openai")}", or left out')
        return value

    @field_validator("model")
    @classmethod
    def _provider_and_model(cls, value: str) -> str:
        provider, slash, model = value.partition("/")
        if not (provider and slash and model):
            found = meant_model.meant_model(value, PROVIDERS)
            said = f'; did you mean "{found}"?' if found else f', such as "{example("openai")}" or "{OFFLINE_MODEL}"'
            raise ValueError(f'must be "provider/model"{said}')
        return value

    @field_validator("base_url", "embedding_base_url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        return checked_address(value)

    @field_validator("index_dir", "config_dir", "state_dir")
    @classmethod
    def _at_home(cls, value: Path | None) -> Path | None:
        return value and value.expanduser()

    @field_validator("max_attempts")
    @classmethod
    def _one_for_each_model(cls, value: int, info: ValidationInfo) -> int:
        models = 1 + len(info.data.get("fallback_models", ()))
        if value < models:
            raise ValueError(f"{value} requests cannot ask {models} models; set it to {models} or more, or name fewer")
        return value

    @field_validator("workspace")
    @classmethod
    def _a_folder(cls, value: Path | None) -> Path | None:
        if value is None:
            return None
        return _resolved(value)

    @field_validator("more_workspaces")
    @classmethod
    def _apart(cls, value: tuple[Path, ...], info: ValidationInfo) -> tuple[Path, ...]:
        first: Path | None = info.data.get("workspace")
        if not value or "workspace" not in info.data:  # which has a fault of its own
            return ()
        if first is None:
            raise ValueError("they come besides a workspace; name the first folder as workspace")
        folders = [first, *map(_resolved, value)]
        for one, other in itertools.combinations(folders, 2):
            if one.is_relative_to(other) or other.is_relative_to(one):
                raise ValueError(f"{one} and {other} are one folder, or one is inside the other; leave one out")
        return tuple(folders[1:])

    @field_validator("secret_files")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return SecretRules(value).patterns
        except UsageError as error:
            raise ValueError(str(error)) from None

    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
        """The fields, as `repr` and `str` show them: an address may hold a password."""
        return shown(super().__repr_args__())

    def __reduce__(self) -> NoReturn:
        raise TypeError("Settings hold keys and are not pickled; give a tool the values that it needs")

    @property
    def workspaces(self) -> tuple[Path, ...]:
        """All folders that code is searched and read in, the one that is worked in first."""
        return () if self.workspace is None else (self.workspace, *self.more_workspaces)

    @property
    def secret_rules(self) -> SecretRules:
        """Which files no model is shown, besides those on the list: `secret_files`, and what callboard itself keeps."""
        own = [folder for folder in (self.config_dir, self.index_dir, self.state_dir) if folder is not None]
        of_journal = file_patterns(self.journal, self.workspace) if self.workspace is not None else ()
        folders = tuple(str(folder.expanduser().resolve()) for folder in own)
        return SecretRules((*self.secret_files, *of_journal), folders)

    @property
    def environment_for_tools(self) -> dict[str, str]:
        """The variables of `tool_environment` that are set, as they are now; and which model a tool asks that asks one,
        and where models are, without what is secret in it."""
        told = addresses_of(os.environ)
        if (row := ROWS.get(self.provider)) is not None and self.script is None:
            told[environment.VARIABLES["model"]] = self.model
            if not row.is_local and (address := self.address_for(self.provider)[0]):
                told[environment.VARIABLES["base_url"]] = without_secret(address)
        return told | {name: os.environ[name] for name in self.tool_environment if name in os.environ}

    @property
    def provider(self) -> str:
        """The part of `model` before the slash."""
        return self.model.partition("/")[0]

    def connection(self, provider: str) -> Connection:
        """How this provider is reached. What is set for `model` alone comes before its entry in `connections`; the
        variables of the provider's own clients (OPENAI_BASE_URL ...) come last. Raises UsageError for what is no
        address in one of them, and where prompts and key would go past the address that is given for that key."""
        if not self.model and provider not in self.connections:
            self._check_whose(provider)
        given = [each for _, each in entries_of(provider, self.connections)]
        headers = [each.headers for each in reversed(given)]
        if is_of_model(provider, self.provider, self.connections):
            headers.append(self.headers)
        transport = next((each.transport for each in given if each.transport is not None), None)
        ours = Connection() if transport is not None else self._way_out
        return Connection(
            base_url=self.address_for(provider)[0],
            api_key=self._key_of(provider)[0],
            headers={name: value for each in headers for name, value in each.items()},
            proxy=next((each.proxy for each in given if each.proxy is not None), ours.proxy),
            verify=next((each.verify for each in given if each.verify is not None), ours.verify),
            transport=ours.transport if transport is None else transport,
            reasoning=self.connections[provider].reasoning if provider in self.connections else None,
        )

    @property
    def _way_out(self) -> Connection:
        """As it is for providers whose entry says nothing of it. Raises UsageError for what would do nothing."""
        verify = None if self.transport is not None and self.verify is True else self.verify
        return Connection(proxy=self.proxy, verify=verify, transport=self.transport)

    @property
    def transports(self) -> tuple[AnyTransport, ...]:
        """Those that are given, here and in the connections."""
        given = (self.transport, *(each.transport for each in self.connections.values()))
        return tuple({id(each): each for each in given if each is not None}.values())

    def _key_of(self, provider: str) -> tuple[ApiKey | None, str]:
        """The key that is given for it here, and what gives it."""
        keys = {name: each.api_key for name, each in entries_of(provider, self.connections)}
        if provider != self.provider and keys.get(provider) is not None:
            return keys[provider], f"connections.{provider}.api_key"
        if self.api_key is not None and is_of_model(provider, self.provider, self.connections):
            return self.api_key, "api_key"
        found = ((key, f"connections.{name}.api_key") for name, key in keys.items() if key is not None)
        return next(found, (None, ""))

    def _check_whose(self, provider: str) -> None:
        """Raise UsageError for an address or a key that is set for a model, where none is named."""
        if not (row := ROWS.get(provider)) or row.is_local:
            return
        for name in ("base_url", "api_key"):
            if getattr(self, name) is not None:
                raise UsageError(
                    f"{name} is that of the model in the settings, which name none: give Settings(model=...) or "
                    f"CALLBOARD_MODEL too, or "
                    f'connections={{"{provider}": Connection({name}=...)}}'
                )

    def key_for(self, provider: str) -> str | None:
        """The key of a provider: given here or by CALLBOARD_API_KEY (both for `model` only), or by its own variable.
        None where there is none, or a callback gives it.

        Raises UsageError for a variable that cannot hold a key.
        """
        source = self.key_source(provider)
        if source.endswith("api_key"):
            given = self.connection(provider).api_key
            return given.get_secret_value() if isinstance(given, SecretStr) else None
        key = os.environ.get(source, "")
        if not fits_a_header(key):
            raise UsageError(f"{source}: {NOT_A_KEY}")
        return key or None

    def address_for(self, provider: str) -> tuple[str | None, str]:
        """Where a provider is (None: at its usual place), and what says so, as in `key_source`. Raises UsageError."""
        return address_of(provider, self.provider, self.base_url, self.connections, os.environ)

    def key_source(self, provider: str) -> str:
        """Where the key of a provider comes from: "api_key", that of its entry in `connections`, or the name of a
        variable that is set; "" for nowhere."""
        if source := self._key_of(provider)[1]:
            return source
        own = is_of_model(provider, self.provider, self.connections)
        variables = ("CALLBOARD_API_KEY" if own else "", KEY_VARIABLES.get(provider, ""))
        return next((name for name in variables if os.environ.get(name)), "")

    def options_for(self, provider: str) -> dict[str, str]:
        """What a provider's own clients read from the environment besides key and address, by the names of its options:
        the region of bedrock, the project of vertex. An empty variable counts as not set."""
        variables = ROWS[provider].variables if provider in ROWS else {}
        found = {option: next(filter(None, map(os.environ.get, names)), "") for option, names in variables.items()}
        return {option: value for option, value in found.items() if value and option != "base_url"}

    @property
    def copilot_token_file(self) -> Path:
        """Where the Copilot login is kept where there is no keyring; readable by its owner only."""
        return self.config_dir / "copilot-token"


def _takes_bool(annotation: object) -> bool:
    return annotation is bool or bool in get_args(annotation)


def _places(given: Mapping[object, object], profile: Profile) -> dict[str, str]:
    """Where a field's value comes from, for messages: not those that were given under the field's own name."""
    named = {name: profile.place(name) for section in profile.sections if section.name for name in section.values}
    named |= {field: environment.VARIABLES[field] for field in environment.given_fields()}
    return {field: place for field, place in named.items() if field not in given} | dict(profile.options)


def _merged(layers: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """The values of all layers, the last one first. An address and a key go with the model they were set for."""
    merged: dict[str, object] = {}
    for layer in layers:
        if "model" in merged and "model" in layer and _provider(merged["model"]) != _provider(layer["model"]):
            for name in _OF_THE_PROVIDER:
                merged.pop(name, None)
        merged |= layer
    return merged


def _provider(model: object) -> str:
    return str(model).partition("/")[0]


def _has_fields(kind: type) -> bool:
    return is_dataclass(kind) or issubclass(kind, Struct)


def _check_keys(kind: object, value: object) -> None:
    """Raises ValueError for a key of a table that its dataclass has no field for; tables in it are checked too."""
    inner = [kind, *get_args(kind)]
    dataclass = next((each for each in inner if isinstance(each, type) and _has_fields(each)), None)
    if not isinstance(value, Mapping) or dataclass is None:
        return
    if dataclass is not kind and get_origin(kind) is Mapping:  # names to objects
        for each in value.values():
            _check_keys(dataclass, each)
        return
    fields = get_type_hints(dataclass)
    for name, each in value.items():
        if name not in fields:
            raise ValueError(f"there is no {name!r} in it{similar(str(name), fields)}")
        _check_keys(fields[name], each)


def _two_limits(provider: object, limit: object) -> object:
    """`{requests = 60, tokens = 90000}`, either left out, as the pair it means; anything else as it is."""
    if not isinstance(limit, Mapping):
        return limit
    for name in limit.keys() - {"requests", "tokens"}:
        raise ValueError(f"{provider}: there is no limit {name!r}; write requests, tokens or both")
    return limit.get("requests"), limit.get("tokens")


def _explain(error: ValidationError, places: Mapping[str, str]) -> str:
    """One fault of each wrong field, without the values: one of them may be a key."""
    faults: dict[str, str] = {}
    for item in error.errors(include_url=False, include_input=False):
        field = str(item["loc"][0]) if item["loc"] else "?"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "tuple_type":
            message = "must be a list"
        if item["type"] == "extra_forbidden":
            message = "there is no such setting" + wrong_calls.meant(field, "Settings", Settings.model_fields)
        elif inner := [str(each) for each in item["loc"][1:] if "[" not in str(each)]:  # without pydantic's own names
            message = f"{'.'.join(inner)}: {message}"
        faults.setdefault(field, message)
    return "; ".join(f"{places.get(field, f'setting {field!r}')}: {message}" for field, message in faults.items())
