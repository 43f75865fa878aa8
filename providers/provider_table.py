"""Every provider, one row each: how it is asked, where, with which credential.

Loads no adapter: those take 0.1 s, and a run that stays offline needs none of them. http_adapters.py has them by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.providers.anthropic.messages_dialects import MESSAGES_SERVERS
from callboard.providers.openai.dialects import SERVERS

_CHAT, _RESPONSES, _MESSAGES = "OpenAI Chat Completions", "OpenAI Responses", "Anthropic Messages"
_GENERATE, _CONVERSE, _NONE = "Gemini generateContent", "Bedrock Converse", "none"


class ProviderRow(Struct, frozen=True):
    """One provider."""

    name: str
    """The part before the slash of `provider/model`."""
    api: str
    """Its wire API."""
    what: str
    """What it is, in a few words."""
    address: str = ""
    """Its usual one; "": the user's own."""
    source: str = ""
    """Where that address is documented."""
    key_variable: str = ""
    """The environment variable in which its users keep the key; "": it needs none."""
    sign_in: str = ""
    """How one signs in where that is not by a key, or need not be."""
    extra: str = ""
    """The extra of callboard that signing in needs."""
    variables: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Options by the environment variables that its own clients read them from; the first that is set counts."""
    stray_variables: tuple[str, ...] = ()
    """Those that say where its key goes with another API: they do not say where this one is."""

    def address_in(self, text: str) -> str:
        """The address that one of its variables names, as its own clients read it: a host without http:// (Ollama), or
        without the path that they add."""
        text = text.strip().rstrip("/")
        is_bare = self.name == "ollama" and "://" not in text
        parts = urlsplit(f"http://{text}" if is_bare else text)  # raises ValueError
        if is_bare and parts.port is None:
            parts = parts._replace(netloc=f"{parts.netloc}:{_OLLAMA_PORT}")
        if self.name == "ollama" and (
            parts.hostname in _ANY_HOST or (is_bare and not parts.hostname)
        ):  # its server listens there
            parts = parts._replace(netloc=f"127.0.0.1:{parts.port or _OLLAMA_PORT}")
        if self.name in _ADD_PATH and not parts.path:
            parts = parts._replace(path=urlsplit(self.address).path)
        return parts.geturl()

    @property
    def is_local(self) -> bool:
        """It needs no HTTP."""
        return self.api == _NONE


_OLLAMA_PORT: Final = 11434
#: "Any address of this machine", which is no address to ask.
_ANY_HOST: Final = ("0.0.0.0", "::")
#: Clients of these add the path to an address without one (groq, cerebras_cloud_sdk, mistralai, cohere, ollama ...).
_ADD_PATH: Final = frozenset(("groq", "cerebras", "mistral", "cohere", "ollama", "vllm", "llamacpp", "lmstudio"))
#: Before _BASE_URL and _API_BASE, where that is not the name of the key without _API_KEY.
_PREFIXES: Final[Mapping[str, str]] = {
    "openai-compatible": "OPENAI", "huggingface": "HUGGINGFACE", "ollama": "OLLAMA", "vllm": "VLLM",
    "llamacpp": "LLAMACPP", "llamacpp-anthropic": "LLAMACPP", "lmstudio": "LM_STUDIO",
    "lmstudio-anthropic": "LM_STUDIO",
}  # fmt: skip
#: Variables that come before those, by the clients of the providers themselves.
_OWN_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "gemini": ("GOOGLE_GEMINI_BASE_URL",),
    "vertex": ("GOOGLE_VERTEX_BASE_URL", "ANTHROPIC_VERTEX_BASE_URL"),
    "bedrock": ("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "AWS_ENDPOINT_URL", "ANTHROPIC_BEDROCK_BASE_URL"),
    "ollama": ("OLLAMA_HOST",),
    "cohere": ("CO_API_URL",),
}
#: Their key is that of a Chat Completions row, and so are the variables of its address, which is another one.
_STRAYS: Final = ("deepseek-anthropic", "moonshot-anthropic", "zai-anthropic")


def _with_variables(row: ProviderRow) -> ProviderRow:
    """With the variables that say where it is, for those that have not named theirs."""
    if "base_url" in row.variables or row.is_local:
        return row
    prefix = _PREFIXES.get(row.name) or row.key_variable.partition("_API_KEY")[0]
    derived = (f"{prefix}_BASE_URL", f"{prefix}_API_BASE") if prefix and row.name != "bedrock" else ()
    names = (*_OWN_VARIABLES.get(row.name, ()), *derived)
    if not names:
        return row
    if row.name in _STRAYS:
        return replace(row, stray_variables=names)
    return replace(row, variables={"base_url": names, **row.variables})


#: Of each Chat Completions server: what it is, and the page that names its address.
_CHAT_SERVERS: Final[Mapping[str, tuple[str, str]]] = {
    "openai-chat": ("OpenAI's models by the older API", "platform.openai.com/docs/api-reference/chat"),
    "openai-compatible": ("any other server that speaks this API", ""),
    "ollama": ("models on this machine", "docs.ollama.com/api/openai-compatibility"),
    "vllm": ("models on this machine", "docs.vllm.ai/en/latest/serving/openai_compatible_server.html"),
    "llamacpp": ("models on this machine", "github.com/ggml-org/llama.cpp/tree/master/tools/server"),
    "lmstudio": ("models on this machine", "lmstudio.ai/docs/developer/openai-compat"),
    "groq": ("open models, fast", "console.groq.com/docs/openai"),
    "mistral": ("Mistral's models", "docs.mistral.ai/api"),
    "xai": ("Grok", "docs.x.ai/docs/api-reference"),
    "deepseek": ("DeepSeek's models", "api-docs.deepseek.com"),
    "moonshot": ("Kimi", "platform.moonshot.ai/docs/api/chat"),
    "together": ("open models", "docs.together.ai/docs/openai-api-compatibility"),
    "fireworks": ("open models", "docs.fireworks.ai/tools-sdks/openai-compatibility"),
    "cerebras": ("open models, fast", "inference-docs.cerebras.ai/resources/openai"),
    "perplexity": ("Sonar, which searches the web", "docs.perplexity.ai/guides/chat-completions-guide"),
    "alibaba": ("Qwen", "alibabacloud.com/help/en/model-studio/compatibility-of-openai-with-dashscope"),
    "zai": ("GLM", "docs.z.ai/api-reference/introduction"),
    "huggingface": ("open models of many hosts", "huggingface.co/docs/inference-providers"),
    "cohere": ("Cohere's models", "docs.cohere.com/docs/compatibility-api"),
    "nvidia": ("open models, by NVIDIA", "docs.api.nvidia.com/nim/reference/llm-apis"),
}
#: Likewise of each server of other models that speaks Anthropic Messages.
_MESSAGES_SERVERS: Final[Mapping[str, tuple[str, str]]] = {
    "deepseek-anthropic": ("DeepSeek's models", "api-docs.deepseek.com/guides/anthropic_api"),
    "moonshot-anthropic": ("Kimi", "platform.moonshot.ai/docs/guide/agent-support"),
    "zai-anthropic": ("GLM", "docs.z.ai/scenario-example/develop-tools/claude"),
    "minimax-anthropic": ("MiniMax's models", "platform.minimax.io/docs/api-reference/text-anthropic-api"),
    "openrouter-anthropic": ("models of many providers", "openrouter.ai/docs/guides/claude-code-integration"),
    "llamacpp-anthropic": ("models on this machine", "github.com/ggml-org/llama.cpp/tree/master/tools/server"),
    "lmstudio-anthropic": ("models on this machine", "lmstudio.ai/docs/developer/anthropic-compat"),
}
_AZURE: Final[Mapping[str, tuple[str, ...]]] = {
    "base_url": ("AZURE_OPENAI_ENDPOINT",),
    "api_version": ("OPENAI_API_VERSION",),
    "token": ("AZURE_OPENAI_AD_TOKEN",),
}


def _rows() -> Iterator[ProviderRow]:
    openai, key = "https://api.openai.com/v1", "OPENAI_API_KEY"
    source = "platform.openai.com/docs/api-reference/responses"
    yield ProviderRow("openai", _RESPONSES, "OpenAI's models", openai, source, key)
    yield ProviderRow("openai-responses", _RESPONSES, "the same as `openai`", openai, source, key)
    yield ProviderRow(
        "anthropic",
        _MESSAGES,
        "Claude",
        "https://api.anthropic.com",
        "platform.claude.com/docs/en/api/messages",
        "ANTHROPIC_API_KEY",
    )
    yield ProviderRow(
        "gemini",
        _GENERATE,
        "Gemini by Google AI Studio",
        "https://generativelanguage.googleapis.com",
        "ai.google.dev/api/generate-content",
        "GEMINI_API_KEY",
    )
    source = "learn.microsoft.com/en-us/azure/foundry/openai/api-version-lifecycle"
    entra = "an Entra token (`token=`)"
    for name, api, what in (
        ("azure", _CHAT, "OpenAI's and others' models at a resource of one's own"),
        ("azure-responses", _RESPONSES, "the same by the newer API"),
    ):
        yield ProviderRow(name, api, what, "", source, "AZURE_OPENAI_API_KEY", entra, variables=_AZURE)
    yield ProviderRow(
        "vertex",
        f"{_GENERATE}, {_MESSAGES}",
        "Gemini and Claude at Google Cloud",
        "https://{location}-aiplatform.googleapis.com",
        "cloud.google.com/vertex-ai/generative-ai/docs/learn/locations",
        sign_in="Google's application default credentials (`gcloud auth application-default login`)",
        extra="vertex",
        variables={
            "project": ("GOOGLE_CLOUD_PROJECT", "ANTHROPIC_VERTEX_PROJECT_ID"),
            "location": ("GOOGLE_CLOUD_LOCATION", "CLOUD_ML_REGION"),
        },
    )
    yield ProviderRow(
        "bedrock",
        _CONVERSE,
        "Claude, Nova and others at AWS",
        "https://bedrock-runtime.{region}.amazonaws.com",
        "docs.aws.amazon.com/general/latest/gr/bedrock.html",
        "AWS_BEARER_TOKEN_BEDROCK",
        "AWS's credentials (`aws sso login`, AWS_PROFILE ...)",
        "bedrock",
        {"region": ("AWS_REGION", "AWS_DEFAULT_REGION"), "profile": ("AWS_PROFILE",)},
    )
    yield ProviderRow(
        "openrouter",
        _CHAT,
        "models of many providers",
        "https://openrouter.ai/api/v1",
        "openrouter.ai/docs/api-reference/overview",
        "OPENROUTER_API_KEY",
    )
    yield ProviderRow(
        "copilot",
        f"{_CHAT}, {_RESPONSES}, {_MESSAGES}",
        "models of many makers, by a GitHub account",
        "https://api.githubcopilot.com",
        "docs.github.com/en/copilot",
        sign_in="the login (`callboard login copilot`)",
    )
    for name, (what, source) in _MESSAGES_SERVERS.items():
        messages = MESSAGES_SERVERS[name]
        yield ProviderRow(name, _MESSAGES, what, messages.base_url, source, messages.key_variable)
    for name, dialect in SERVERS.items():
        what, source = _CHAT_SERVERS[name]
        yield ProviderRow(name, _CHAT, what, dialect.base_url, source, dialect.key_variable)
    yield ProviderRow("offline", _NONE, "no model: answers from the code index")
    yield ProviderRow("scripted", _NONE, "the fake, for tests and simulations")


ROWS: Final[Mapping[str, ProviderRow]] = {row.name: _with_variables(row) for row in _rows()}
