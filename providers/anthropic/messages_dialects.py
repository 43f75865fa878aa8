"""Where servers that speak Anthropic's Messages differ: one value each, for one encoder and one decoder."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol.content import Document, Image, Media
from callboard.protocol.server_tools import CodeExecution, RemoteMcp, WebFetch, WebSearch

#: Thinking that Claude signed is checked wherever Claude runs: Anthropic, Copilot, Vertex AI, Bedrock.
CLAUDE_ORIGIN: Final = "anthropic"


class MessagesDialect(Struct, frozen=True):
    """One server's Messages API. The defaults are Anthropic's own."""

    name: str = "anthropic"
    base_url: str = "https://api.anthropic.com"
    """Without `/v1/messages`."""
    key_variable: str = "ANTHROPIC_API_KEY"
    """The environment variable in which its users keep the key; "" where it needs none."""
    bearer: bool = False
    """The key goes as `Authorization: Bearer`, not as `x-api-key`."""
    origin: str = CLAUDE_ORIGIN
    """Of its replay data: signatures that one server wrote are refused by another."""
    unsigned_thinking: bool | None = False
    """Thinking goes back without a signature too (docs/wire.md quirk 73). None: unless the model is a Claude."""
    media: tuple[type[Media], ...] = (Image, Document)
    files: bool = True
    """Media and programs may name files that the server keeps."""
    server_tools: tuple[type, ...] = (WebSearch, WebFetch, CodeExecution, RemoteMcp)
    schemas: bool = True
    """Tools may be strict, and answers follow a schema."""
    searches_tools: bool = False
    """It searches for tools that are deferred, where the model does."""

    def takes_unsigned(self, model: str) -> bool:
        """Does this model get its thinking back although it has no signature?"""
        return "claude" not in model.lower() if self.unsigned_thinking is None else self.unsigned_thinking


ANTHROPIC_MESSAGES: Final = MessagesDialect(searches_tools=True)
#: Claude behind GitHub Copilot: no files, and web search only with a key of one's own for Anthropic
#: (microsoft/vscode-copilot-chat PR 1783).
COPILOT_MESSAGES: Final = replace(
    ANTHROPIC_MESSAGES,
    name="copilot",
    key_variable="",
    bearer=True,
    files=False,
    server_tools=(),
    searches_tools=False,
)
#: Claude at Google Cloud (platform.claude.com, "Features overview": of the server tools only web search, and no files).
VERTEX_MESSAGES: Final = replace(
    ANTHROPIC_MESSAGES,
    name="vertex",
    key_variable="",
    bearer=True,
    files=False,
    server_tools=(WebSearch,),
    searches_tools=False,
)


def _row(
    name: str, base_url: str, key_variable: str = "", *media: type[Media], bearer: bool = False
) -> MessagesDialect:
    """A server of other models behind the same API: it signs nothing that another server would check."""
    return MessagesDialect(
        name,
        base_url,
        key_variable,
        bearer,
        origin=name,
        unsigned_thinking=True,
        media=media,
        files=False,
        server_tools=(),
        schemas=False,
    )


_ROWS: Final = (
    ANTHROPIC_MESSAGES,
    # api-docs.deepseek.com, "Anthropic API": image, document and server tool blocks "Not Supported", of output_config
    # only the effort, cache_control is ignored (it caches by itself). "The `content[].thinking` in the thinking mode
    # must be passed back to the API." (NousResearch/hermes-agent #17992)
    _row("deepseek-anthropic", "https://api.deepseek.com/anthropic", "DEEPSEEK_API_KEY"),
    # "thinking is enabled but reasoning_content is missing" (farion1231/cc-switch PR 3377), with an empty signature
    # (anomalyco/opencode PR 44713).
    _row("moonshot-anthropic", "https://api.moonshot.ai/anthropic", "MOONSHOT_API_KEY", Image),
    # docs.z.ai, "Claude Code".
    _row("zai-anthropic", "https://api.z.ai/api/anthropic", "ZAI_API_KEY", Image),
    # platform.minimax.io, "Compatible Anthropic API": "Append the full response.content list to the message history".
    _row("minimax-anthropic", "https://api.minimax.io/anthropic", "MINIMAX_API_KEY", Image),
    # openrouter.ai/docs, "Claude Code": models of all kinds, Claude among them.
    replace(
        ANTHROPIC_MESSAGES,
        name="openrouter-anthropic",
        base_url="https://openrouter.ai/api",
        key_variable="OPENROUTER_API_KEY",
        bearer=True,
        origin="openrouter-anthropic",
        unsigned_thinking=None,
        files=False,
        server_tools=(WebSearch,),
        searches_tools=False,
    ),
    # ggml-org/llama.cpp PR 17425: text, images, tools and thinking.
    _row("llamacpp-anthropic", "http://localhost:8080", "", Image),
    # lmstudio.ai/docs, "Anthropic-compatible endpoints".
    _row("lmstudio-anthropic", "http://localhost:1234", "", Image),
)

MESSAGES_SERVERS: Final = {row.name: row for row in _ROWS}
#: Behind an address of the user's own: a proxy of Claude's, or a server of other models.
_GATEWAY: Final = replace(ANTHROPIC_MESSAGES, name="", unsigned_thinking=None, searches_tools=False)


def dialect_at(base_url: str | None) -> MessagesDialect:
    """The dialect of the server at an address, by its host."""
    if not base_url:
        return ANTHROPIC_MESSAGES
    host = urlsplit(base_url).hostname or ""
    remote = (row for row in _ROWS if row.key_variable)
    return next((row for row in remote if urlsplit(row.base_url).hostname == host), _GATEWAY)
