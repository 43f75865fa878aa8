"""GitHub Copilot: one account, three wire APIs by model, and headers that say who is calling (docs/wire.md 1.6).

`Copilot` is the adapter of one of these APIs, `CopilotProvider` calls with a valid token, and renews it after a 401.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from callboard.protocol.content import Image, SystemMessage, UserMessage
from callboard.protocol.errors import RETRYABLE_KINDS, ErrorKind, ProviderError, UsageError
from callboard.protocol.model import Error, ModelRequest, StreamEvent
from callboard.providers.adapter import Decoder, HttpAnswer, WireRequest
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.anthropic.messages_dialects import COPILOT_MESSAGES
from callboard.providers.copilot.copilot_login import (
    CLIENT_HEADERS,
    DEFAULT_BASE_URL,
    CopilotToken,
    CopilotTokens,
    token_store,
)
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.dialects import SEES, ChatDialect
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.own_options import OptionTable
from callboard.providers.request_encoding import shown_parts

if TYPE_CHECKING:
    from callboard.providers.transport import HttpProvider

# Claude's answers come as several choices, and may end without a finish reason (copilot-sdk #1081). max_tokens is
# refused (pydantic-ai, providers/github_copilot.py). Gemini loops unless its reasoning goes back
# (anomalyco/opencode#8900).
DIALECT: Final = ChatDialect(
    "copilot",
    DEFAULT_BASE_URL,
    max_tokens_field="max_completion_tokens",
    service_tiers=False,
    parts=SEES,
    reasoning_replay_field="reasoning_text",
    merge_choices=True,
    finish_optional=True,
)


class CopilotRoute(StrEnum):
    """Copilot's wire APIs."""

    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"


def route_of(model: str) -> CopilotRoute:
    """The API that serves a model: Codex models only answer on /responses, Claude is whole only on /v1/messages."""
    if model.startswith("gpt-5") and "codex" in model:
        return CopilotRoute.RESPONSES
    return CopilotRoute.MESSAGES if model.startswith("claude") else CopilotRoute.CHAT


_ROUTES: Final[Mapping[CopilotRoute, Callable[[str, str | None], OpenAIChat | OpenAIResponses | Anthropic]]] = {
    CopilotRoute.CHAT: lambda url, key: OpenAIChat(base_url=url, api_key=key, dialect=DIALECT),
    CopilotRoute.RESPONSES: lambda url, key: OpenAIResponses(base_url=url, api_key=key, name="copilot"),
    CopilotRoute.MESSAGES: lambda url, key: Anthropic(base_url=url, api_key=key, dialect=COPILOT_MESSAGES),
}


class Copilot:
    """The adapter of one route. `api_key` is the short-lived Copilot token (copilot_login.py gets it)."""

    name: Final = "copilot"

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        route: CopilotRoute | str = CopilotRoute.CHAT,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._inner = _ROUTES[CopilotRoute(route)](base_url or DEFAULT_BASE_URL, api_key)
        self.own_options = self._inner.own_options
        self._headers = {**CLIENT_HEADERS, **(headers or {})}

    def encode(self, request: ModelRequest, /) -> WireRequest:
        wire = self._inner.encode(request)
        # A message of a person's is billed, what an agent adds to it is not. Our notes are neither.
        said = (message for message in reversed(request.messages) if not isinstance(message, SystemMessage))
        asked = isinstance(next(said, None), UserMessage)
        headers = {**wire.headers, **self._headers, "x-initiator": "user" if asked else "agent"}
        if any(isinstance(shown, Image) for message in request.messages for shown in shown_parts(message)):
            headers["copilot-vision-request"] = "true"
        return replace(wire, headers=headers)

    def question(self, path: str, body: bytes | None = None) -> WireRequest:
        """See `AsksServer.question`."""
        wire = self._inner.question(path, body)
        return replace(wire, headers={**wire.headers, **self._headers})

    def decoder(self, status: int = 200, headers: Mapping[str, str] | None = None, streaming: bool = True) -> Decoder:
        return self._inner.decoder(status, headers, streaming)


class CopilotProvider:
    """Calls go over `http`, which the exchange of tokens may use too."""

    name: Final = "copilot"

    def __init__(self, tokens: CopilotTokens, http: HttpProvider) -> None:
        self._tokens = tokens
        self._http = http
        self._unproven: CopilotToken | None = None
        """The token that a 401 was answered with: another 401 is final."""

    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[list[StreamEvent], None]:
        """See `Provider.stream`."""
        try:
            token = await self._tokens.current()
            adapter = Copilot(base_url=token.base_url, api_key=token.token, route=route_of(request.model))
            async with aclosing(self._http.stream(request, adapter)) as batches:
                async for events in batches:
                    first = events[0]  # a 401 is the whole answer: nothing was emitted before it
                    if isinstance(first, Error) and first.kind is ErrorKind.AUTHENTICATION:
                        yield [await self._renewed(token, first)]
                    else:
                        self._unproven = None if self._unproven == token else self._unproven
                        yield events
        except ProviderError as error:
            retryable = error.kind in RETRYABLE_KINDS
            yield [Error(error.kind, str(error), retryable, error.retry_after_seconds, status=error.status)]

    def own_options(self, model: str) -> OptionTable:
        """See `ChecksRequests.own_options`."""
        return Copilot(route=route_of(model)).own_options

    def check(self, request: ModelRequest, /) -> None:
        """See `ChecksRequests.check`."""
        self._http.check(request, Copilot(route=route_of(request.model)))

    async def _renewed(self, refused: CopilotToken, error: Error) -> Error:
        """The error, which the next try cures with a new token; but where this one was new, none will be better."""
        if refused == self._unproven:
            return error
        self._unproven = await self._tokens.current(refused=refused)
        return replace(error, retryable=True, at_once=True)

    async def inquire(self, path: str, body: bytes | None = None) -> HttpAnswer:
        """See `Inquirable.inquire`."""
        token = await self._tokens.current()
        return await self._http.fetch(Copilot(base_url=token.base_url, api_key=token.token).question(path, body))

    async def aclose(self) -> None:
        await self._http.aclose()


def copilot_of(options: Mapping[str, object], http: HttpProvider) -> CopilotProvider:
    """The provider for `tokens`, or for the login kept in the keyring or `login_file`. UsageError without one."""
    if isinstance(tokens := options.get("tokens"), CopilotTokens):
        return CopilotProvider(tokens, http)
    store = token_store(Path(str(options["login_file"]))) if "login_file" in options else None
    if store is None or not store.load():
        raise UsageError("copilot needs a login: run `callboard login copilot`.")
    return CopilotProvider(CopilotTokens(store, http.fetch), http)
