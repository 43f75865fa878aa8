"""Well-known servers that speak Chat Completions: one line each. Others need `openai-compatible` and a base_url."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from callboard.providers.chat_dialect import COMPATIBLE, OPENAI, ChatDialect
from callboard.providers.history import MISTRAL_IDS


@dataclass(frozen=True, slots=True)
class Server:
    """What is known of one server."""

    dialect: ChatDialect
    key_variable: str = ""
    """The environment variable in which its users keep the key; "" where it needs none."""


def _hosted(name: str, base_url: str, key_variable: str, **traits: object) -> Server:
    return Server(ChatDialect(name, name, base_url, **traits), key_variable)  # type: ignore[arg-type]


def _local(name: str, base_url: str, **traits: object) -> Server:
    return Server(ChatDialect(name, name, base_url, **traits))  # type: ignore[arg-type]


_ROWS: Final = (
    Server(OPENAI, "OPENAI_API_KEY"),
    Server(COMPATIBLE),
    _local("ollama", "http://localhost:11434/v1"),
    _local("vllm", "http://localhost:8000/v1"),
    _local("llamacpp", "http://localhost:8080/v1"),
    _local("lmstudio", "http://localhost:1234/v1"),
    _hosted("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    # Sends usage unasked and refuses fields it does not know.
    _hosted(
        "mistral",
        "https://api.mistral.ai/v1",
        "MISTRAL_API_KEY",
        stream_usage=False,
        seed_field="random_seed",
        call_ids=MISTRAL_IDS,
    ),
    _hosted("xai", "https://api.x.ai/v1", "XAI_API_KEY"),
    # These two want their reasoning back while they call tools, and ignore it afterwards.
    _hosted("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", reasoning_replay_field="reasoning_content"),
    _hosted("moonshot", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", reasoning_replay_field="reasoning_content"),
    _hosted("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    _hosted("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    _hosted("cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    _hosted("perplexity", "https://api.perplexity.ai", "PERPLEXITY_API_KEY"),
    _hosted("alibaba", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),
    _hosted("zai", "https://api.z.ai/api/paas/v4", "ZAI_API_KEY"),
    _hosted("huggingface", "https://router.huggingface.co/v1", "HF_TOKEN"),
)

SERVERS: Final = {row.dialect.name: row for row in _ROWS}
