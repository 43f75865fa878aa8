"""Where servers that speak Chat Completions differ: one value each, so that one encoder and one decoder serve all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from callboard.protocol.errors import UsageError
from callboard.providers.request_encoding import MISTRAL_IDS, OPENAI_IDS, CallIdRule, checked_url


@dataclass(frozen=True, slots=True)
class ChatDialect:
    """One server's Chat Completions. The defaults suit a server of which nothing is known."""

    name: str = "openai-compatible"
    """Also the first column of the error table."""
    base_url: str = ""
    """Where the API lives, without `/chat/completions`; "" must be given by the user."""
    key_variable: str = ""
    """The environment variable in which its users keep the key; "" where it needs none."""
    max_tokens_field: str = "max_tokens"
    seed_field: str = "seed"
    stream_usage: bool = True
    """Send `stream_options.include_usage`; without it most servers send no usage in a stream."""
    reasoning_replay_field: str = ""
    """The field of an assistant message in which the server wants its own reasoning back; "" = not at all."""
    call_ids: CallIdRule = OPENAI_IDS
    merge_choices: bool = False
    """The parts of one answer come as several choices (Copilot with Claude); else all but choice 0 are ignored."""
    finish_optional: bool = False
    """The server is known to end a whole turn without finish_reason and [DONE] (docs/wire.md quirk 23)."""
    think_tags: bool = False
    """`<think>...</think>` at the start of the text is reasoning. Off: the text stays as the model wrote it."""

    def address(self, base_url: str | None) -> str:
        """Where to ask: the user's address, or the server's usual one. Raises UsageError where there is neither."""
        if not (base_url or self.base_url):
            raise UsageError(
                f"{self.name} has no address of its own; give its base_url (--base-url), such as http://localhost:8000/v1."
            )
        return checked_url(base_url, self.base_url)


# The reasoning models refuse max_tokens (docs/wire.md 1.1), the others take both.
OPENAI: Final = ChatDialect(
    "openai-chat", "https://api.openai.com/v1", "OPENAI_API_KEY", max_tokens_field="max_completion_tokens"
)
_REASONING: Final = "reasoning_content"

_ROWS: Final = (
    OPENAI,
    ChatDialect(),
    ChatDialect("ollama", "http://localhost:11434/v1"),
    ChatDialect("vllm", "http://localhost:8000/v1"),
    ChatDialect("llamacpp", "http://localhost:8080/v1"),
    ChatDialect("lmstudio", "http://localhost:1234/v1"),
    ChatDialect("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    # Sends usage unasked and refuses fields it does not know.
    ChatDialect(
        "mistral",
        "https://api.mistral.ai/v1",
        "MISTRAL_API_KEY",
        stream_usage=False,
        seed_field="random_seed",
        call_ids=MISTRAL_IDS,
    ),
    ChatDialect("xai", "https://api.x.ai/v1", "XAI_API_KEY"),
    # These two want their reasoning back while they call tools, and ignore it afterwards.
    ChatDialect("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", reasoning_replay_field=_REASONING),
    ChatDialect("moonshot", "https://api.moonshot.ai/v1", "MOONSHOT_API_KEY", reasoning_replay_field=_REASONING),
    ChatDialect("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    ChatDialect("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    ChatDialect("cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    ChatDialect("perplexity", "https://api.perplexity.ai", "PERPLEXITY_API_KEY"),
    ChatDialect("alibaba", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),
    ChatDialect("zai", "https://api.z.ai/api/paas/v4", "ZAI_API_KEY"),
    ChatDialect("huggingface", "https://router.huggingface.co/v1", "HF_TOKEN"),
)

SERVERS: Final = {row.name: row for row in _ROWS}
