"""Everything that sets up a runtime from outside: arguments, and the environment variables for those not given.

They are read when a `Settings` is made, never at import. A key that is not given is looked up in the provider's own
variable, when it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, NoReturn, Self

from pydantic import BaseModel, Field, SecretStr, SkipValidation, ValidationError, field_validator, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler

from callboard.actors.calls.registry import FAILURE_BUDGET
from callboard.actors.tools.secret_files import SecretRules
from callboard.protocol import limits
from callboard.protocol.errors import UsageError
from callboard.protocol.masking import mask
from callboard.protocol.model import Sampling
from callboard.protocol.options import ToolFallback
from callboard.protocol.tools import Policy
from callboard.providers.catalog import Catalog
from callboard.providers.local.scripted import Script
from callboard.providers.provider_registry import KEY_VARIABLES

#: The embedded default: no key, no network.
OFFLINE_MODEL = "offline/code-context"


class Settings(BaseModel, frozen=True, extra="forbid", arbitrary_types_allowed=True):
    """How a runtime is set up. Bad values are a `UsageError` that names the field.

    Variables read where a field is not given: CALLBOARD_MODEL, CALLBOARD_BASE_URL, CALLBOARD_WORKSPACE,
    CALLBOARD_COPILOT_CLIENT_ID, CALLBOARD_CONFIG_DIR (else XDG_CONFIG_HOME/callboard, ~/.config/callboard), and the
    provider's own key variable (OPENAI_API_KEY, ANTHROPIC_API_KEY, ...; CALLBOARD_API_KEY wins over that of `model`).
    """

    model: str = Field(default_factory=lambda: os.environ.get("CALLBOARD_MODEL", OFFLINE_MODEL))
    """"provider/model"; the default answers from the code index alone."""
    fallback_models: tuple[str, ...] = ()
    """Asked in turn when `model` fails and retries did not help."""
    base_url: str | None = Field(default_factory=lambda: os.environ.get("CALLBOARD_BASE_URL") or None)
    api_key: SecretStr | str | None = None
    """Kept as a SecretStr, which no repr and no log shows."""
    workspace: Path | None = Field(
        default_factory=lambda: Path(where) if (where := os.environ.get("CALLBOARD_WORKSPACE")) else None
    )
    """The folder that the code tools see, and nothing outside it; None offers no code tools."""
    index_dir: Path | None = None
    """Where the code index is kept; None is `.callboard/index` in the workspace."""
    secret_files: tuple[str, ...] = ()
    """Files of the workspace that no model is shown, besides those of the list (actors/tools/secret_files.py) and of
    `.callboardignore` files: patterns as in .gitignore. One with "!" allows what the list forbids, "!tests/*.pem"."""
    embedding_model: str = ""
    """"provider/model" of an OpenAI-compatible embedding API that orders the best hits by meaning; "" uses the local
    model of the extra `embeddings` where it is installed, else words alone."""
    embedding_base_url: str | None = None

    system_prompt: str = ""
    """"" is the default prompt, which names the workspace and the code fence."""
    request_timeout_seconds: float = Field(default=limits.DEFAULT_REQUEST_TIMEOUT_SECONDS, gt=0)
    max_steps: int = Field(default=limits.DEFAULT_MAX_STEPS, ge=1)
    token_budget: int | None = Field(default=None, ge=1)
    cost_budget: float | None = Field(default=None, gt=0)
    """US dollars a request."""
    context_tokens: int | None = Field(default=None, ge=1)
    """None asks the catalog for the model's context window."""
    sampling: Sampling = Sampling()
    tool_fallback: ToolFallback = ToolFallback.RETRY_WITHOUT_TOOLS
    policy: Policy = Field(default_factory=Policy)
    catalog: Catalog = Field(default_factory=Catalog)
    """Context windows and prices; give one with `overrides` for models it does not know."""
    rate_limits: Mapping[str, tuple[float | None, float | None]] = Field(default_factory=dict)
    """Requests and tokens a minute by provider name, shared by all requests; what providers report narrows them."""

    stream_idle_timeout_seconds: float = Field(default=limits.STREAM_IDLE_TIMEOUT_SECONDS, gt=0)
    stream_total_timeout_seconds: float = Field(default=limits.STREAM_TOTAL_TIMEOUT_SECONDS, gt=0)
    max_attempts: int = Field(default=4, ge=1)
    """Tries of one model call, the first one included."""
    max_concurrent_requests: int = Field(default=10_000, ge=1)
    """More are refused as overloaded."""
    process_workers: int = Field(default=limits.MAX_TOOL_PROCESSES, ge=1)
    """Child processes at most for each tool class; they start when needed, and end when they are idle."""
    warm_workers: int = Field(default=1, ge=0)
    """Of them, how many are started with the runtime, for each class that has tools; 0: the first call waits 0.1 s."""
    worker_memory_bytes: int = Field(default=limits.TOOL_MEMORY_BYTES, ge=64 * 1024**2)
    tool_environment: tuple[str, ...] = ()
    """Names of variables that tools in processes get beyond the harmless ones (PATH, HOME, LANG ...), such as the key
    of an API that a tool asks."""
    tool_failure_budget: int | None = Field(default=FAILURE_BUDGET, ge=0)
    """Crashes and timeouts of one tool that are allowed in 60 s; one more withdraws it for 30 s, if more than a tenth
    of its calls end so. None: never withdrawn."""
    copilot_client_id: str = Field(default_factory=lambda: os.environ.get("CALLBOARD_COPILOT_CLIENT_ID", ""))
    """The GitHub OAuth app that `callboard login copilot` signs in with."""
    config_dir: Path = Field(default_factory=lambda: _config_dir())
    """Where what outlives a process and belongs to the user is kept: the Copilot login, if no keyring takes it."""
    script: Annotated[Script | None, SkipValidation()] = None
    """What the provider `scripted` says (see providers.local.scripted.Script): the shipped fake model, for tests."""
    log_content: bool = False
    """May log records and spans carry what people and models wrote?"""

    @model_validator(mode="wrap")
    @classmethod
    def _one_clear_error(cls, values: object, validate: ModelWrapValidatorHandler[Self]) -> Self:
        # Not an __init__ of our own: it would hide the fields from type checkers.
        try:
            return validate(values)
        except ValidationError as error:
            wrong = _explain(error)
        raise UsageError(wrong)  # out here: the ValidationError holds the values, and would go along as the context

    @field_validator("api_key")
    @classmethod
    def _secret(cls, value: SecretStr | str | None) -> SecretStr | None:
        return SecretStr(value) if isinstance(value, str) else value

    @field_validator("model")
    @classmethod
    def _provider_and_model(cls, value: str) -> str:
        provider, slash, model = value.partition("/")
        if not (provider and slash and model):
            raise ValueError('must be "provider/model", such as "openai/gpt-5" or "offline/code-context"')
        return value

    @field_validator("workspace")
    @classmethod
    def _a_folder(cls, value: Path | None) -> Path | None:
        if value is None:
            return None
        folder = value.expanduser().resolve()
        if not folder.is_dir():
            raise ValueError(f"there is no folder {folder}; name one that exists")
        if str(folder) != str(folder).encode(errors="ignore").decode():
            raise ValueError("its path is not valid UTF-8; rename the folder")
        return folder

    @field_validator("secret_files")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return SecretRules(value).patterns
        except UsageError as error:
            raise ValueError(str(error)) from None

    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
        """The fields, as `repr` and `str` show them: an address may hold a password."""
        for name, value in super().__repr_args__():
            yield name, mask(value) if isinstance(value, str) else value

    def __reduce__(self) -> NoReturn:
        raise TypeError("Settings hold keys and are not pickled; give a tool the values that it needs")

    @property
    def secret_rules(self) -> SecretRules:
        """Which files no model is shown, besides those on the list: `secret_files`, and what callboard itself keeps."""
        own = [folder for folder in (self.config_dir, self.index_dir) if folder is not None]
        return SecretRules(self.secret_files, tuple(str(folder.expanduser().resolve()) for folder in own))

    @property
    def environment_for_tools(self) -> dict[str, str]:
        """The variables of `tool_environment` that are set, as they are now."""
        return {name: os.environ[name] for name in self.tool_environment if name in os.environ}

    @property
    def provider(self) -> str:
        """The part of `model` before the slash."""
        return self.model.partition("/")[0]

    def key_for(self, provider: str) -> str | None:
        """The key of a provider: given here or by CALLBOARD_API_KEY (both for `model` only), or by its own variable."""
        source = self.key_source(provider)
        if source == "api_key" and isinstance(self.api_key, SecretStr):
            return self.api_key.get_secret_value()
        return os.environ.get(source) or None

    def key_source(self, provider: str) -> str:
        """Where the key of a provider comes from: "api_key" or the name of a variable that is set; "" for nowhere."""
        own = provider == self.provider
        if own and self.api_key is not None:
            return "api_key"
        variables = ("CALLBOARD_API_KEY" if own else "", KEY_VARIABLES.get(provider, ""))
        return next((name for name in variables if os.environ.get(name)), "")

    @property
    def copilot_token_file(self) -> Path:
        """Where the Copilot login is kept where there is no keyring; readable by its owner only."""
        return self.config_dir / "copilot-token"


def _config_dir() -> Path:
    if given := os.environ.get("CALLBOARD_CONFIG_DIR"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path("~/.config").expanduser()) / "callboard"


def _explain(error: ValidationError) -> str:
    """One fault of each wrong field, without the values: one of them may be a key."""
    faults: dict[str, str] = {}
    for item in error.errors(include_url=False, include_input=False):
        field = str(item["loc"][0]) if item["loc"] else "?"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            similar = get_close_matches(field, Settings.model_fields, n=1)
            message = "there is no such setting" + (f"; did you mean {similar[0]!r}?" if similar else "")
        faults.setdefault(field, message)
    return "; ".join(f"setting {field!r}: {message}" for field, message in faults.items())
