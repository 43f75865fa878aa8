"""Embeddings over the wire: POST {base}/embeddings, as OpenAI does it and most compatible servers do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

import orjson

from callboard.protocol.errors import ErrorKind, ProviderError, UsageError
from callboard.protocol.masking import for_log
from callboard.providers.adapter import Timeouts, WireRequest
from callboard.providers.http_errors import error_from_body, scrubbed, snippet, without_key
from callboard.providers.json_values import JsonObject, load_object
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.dialects import SERVERS
from callboard.providers.request_encoding import bearer
from callboard.providers.retry import RetryPolicy
from callboard.providers.transport import AnyTransport, HttpProvider, ProxyFor, Verify

#: Sixty-four short texts take a hosted model well under a second; a local one on a CPU may need some.
EMBEDDING_TIMEOUTS: Final = Timeouts(idle_seconds=30.0, total_seconds=30.0)
#: A server that is too busy is asked again, when it says that it may be, for as long as this: somebody may be waiting.
EMBEDDING_PATIENCE_SECONDS: Final = 20.0
#: Tries of one call.
_TRIES: Final = 5


class EmbeddingApi:
    """One embedding model at one address, "provider/model" as everywhere.

    `policy`: how a server that is too busy is asked again.

    Raises UsageError for a provider without a known address, where no `base_url` is given.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        proxy: str | ProxyFor = "",
        verify: Verify = True,
        transport: AnyTransport | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        provider, _, self.model = model.partition("/")
        dialect = SERVERS.get("openai-chat" if provider == "openai" else provider)
        if dialect is None or not self.model:
            known = ", ".join(sorted({"openai", *SERVERS} - {"openai-chat"}))
            raise UsageError(f"{model!r} is not an embedding model; write provider/model with one of: {known}.")
        self._name = dialect.name
        self._url = dialect.address(base_url) + "/embeddings"
        self._key = api_key
        self._policy = policy or RetryPolicy()
        self._headers = {"content-type": "application/json", **(headers or {}), **bearer(api_key)}
        adapter = OpenAIChat(base_url=base_url, api_key=api_key, dialect=dialect)
        self._http = HttpProvider(adapter, timeouts=EMBEDDING_TIMEOUTS, proxy=proxy, verify=verify, transport=transport)

    async def post(self, body: Mapping[str, object]) -> JsonObject:
        """The JSON answer to this JSON body, whose `model` is ours.

        Where the server is too busy it is asked again, after the wait that it names, for EMBEDDING_PATIENCE_SECONDS.
        Raises ProviderError, never with the key in it; its `retry_after_seconds` is a wait that was too long.
        """
        sent = orjson.dumps({**body, "model": self.model})
        tries = self._policy.tries(_TRIES, time.monotonic() + EMBEDDING_PATIENCE_SECONDS, time.monotonic)
        while True:
            tries.begin()
            answer = await self._http.fetch(WireRequest("POST", self._url, self._headers, sent))
            if answer.status < 400:
                break
            error = scrubbed(error_from_body(self._name, answer.status, answer.headers, answer.body), self._key)
            pause = tries.failed(error)
            if pause is None:
                raise ProviderError(
                    error.kind, error.message, status=error.status, retry_after_seconds=error.retry_after
                )
            await asyncio.sleep(pause)
        document = load_object(answer.body)
        if document is None:
            told = without_key(snippet(answer.body), self._key)
            raise ProviderError(ErrorKind.MALFORMED, f"{for_log(self._url)} did not answer with JSON: {told}")
        return document

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        await self._http.aclose()
