"""Where servers that speak Chat Completions differ: one value each, so that one encoder and one decoder serve all."""

from __future__ import annotations

from dataclasses import dataclass, field

from callboard.protocol.errors import UsageError
from callboard.providers.history import OPENAI_IDS, CallIdRule
from callboard.providers.turns import checked_url


@dataclass(frozen=True, slots=True)
class ChatDialect:
    """One server's Chat Completions. The defaults suit a server of which nothing is known."""

    name: str = "openai-compatible"
    family: str = "openai-compatible"
    """The first column of the error table."""
    base_url: str = ""
    """Where the API lives, without `/chat/completions`; "" must be given by the user."""
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
    extra_headers: dict[str, str] = field(default_factory=dict)

    def address(self, base_url: str | None) -> str:
        """Where to ask: the user's address, or the server's usual one. Raises UsageError where there is neither."""
        if not (base_url or self.base_url):
            raise UsageError(f"{self.name} has no address of its own: give base_url, e.g. http://localhost:8000/v1.")
        return checked_url(base_url, self.base_url)


OPENAI = ChatDialect(
    name="openai-chat",
    family="openai",
    base_url="https://api.openai.com/v1",
    # The reasoning models refuse max_tokens (docs/wire.md 1.1), the others take both.
    max_tokens_field="max_completion_tokens",
)
COMPATIBLE = ChatDialect()
