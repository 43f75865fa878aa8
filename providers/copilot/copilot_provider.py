"""Copilot as a Provider: each call with a valid token, on the route of its model, and once more after a 401."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Final

from callboard.protocol.errors import RETRYABLE_KINDS, ErrorKind, ProviderError, UsageError
from callboard.protocol.model import Error, ModelRequest, StreamEvent
from callboard.providers.copilot.copilot_api import Copilot, route_of
from callboard.providers.copilot.copilot_login import CopilotToken, CopilotTokens, token_store
from callboard.providers.transport import HttpProvider


class CopilotProvider:
    """Calls go over `http`, which the exchange of tokens may use too."""

    name: Final = "copilot"

    def __init__(self, tokens: CopilotTokens, http: HttpProvider) -> None:
        self._tokens = tokens
        self._http = http

    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[list[StreamEvent], None]:
        """See `Provider.stream`."""
        try:
            token = await self._tokens.current()
            for last_try in (False, True):
                async with aclosing(self._call(request, token)) as batches:
                    async for events in batches:
                        if _refused(events) and not last_try:
                            break
                        yield events
                    else:
                        return
                token = await self._tokens.renewed(token)
        except ProviderError as error:
            retryable = error.kind in RETRYABLE_KINDS
            yield [Error(error.kind, str(error), retryable, error.retry_after_seconds, status=error.status)]

    async def aclose(self) -> None:
        await self._http.aclose()

    def _call(self, request: ModelRequest, token: CopilotToken) -> AsyncGenerator[list[StreamEvent], None]:
        adapter = Copilot(base_url=token.base_url, api_key=token.token, route=route_of(request.model))
        return self._http.stream(request, adapter)


def _refused(events: list[StreamEvent]) -> bool:
    """A 401 is the whole answer: nothing was emitted before it."""
    first = events[0]
    return isinstance(first, Error) and first.kind is ErrorKind.AUTHENTICATION


def copilot_of(options: Mapping[str, object], http: HttpProvider) -> CopilotProvider:
    """The provider for `tokens`, or for the login kept in the keyring or `login_file`. UsageError without one."""
    if isinstance(tokens := options.get("tokens"), CopilotTokens):
        return CopilotProvider(tokens, http)
    store = token_store(Path(str(options["login_file"]))) if "login_file" in options else None
    if store is None or not store.load():
        raise UsageError("copilot needs a login: run `callboard login copilot`.")
    return CopilotProvider(CopilotTokens(store, http.fetch), http)
