"""The embeddings endpoint, against a real server in another process."""

from __future__ import annotations

import asyncio
import time

import pytest
from support.shared_double import shared_double

from callboard.actors.testing.wire_double import RawAnswer, WireDouble
from callboard.protocol.errors import ErrorKind, ProviderError, UsageError
from callboard.providers.openai import embeddings
from callboard.providers.openai.embeddings import EmbeddingApi
from callboard.providers.retry import RetryPolicy

VECTORS = {"data": [{"index": 0, "embedding": [1.0, 0.0]}]}


#: Its own pauses are short; those that a server asks for count.
QUICK = RetryPolicy(base_seconds=0.002, chance=lambda: 0.0)


def post(server: WireDouble, **body: object) -> object:
    async def ask() -> object:
        address = server.base_url()
        api = EmbeddingApi("openai-compatible/small", base_url=address, api_key="secret-key", policy=QUICK)
        try:
            return await api.post(body)
        finally:
            await api.aclose()

    return asyncio.run(ask())


def test_the_body_goes_out_and_the_document_comes_back() -> None:
    with shared_double([RawAnswer(VECTORS)]) as server:
        assert post(server, model="small", input=["a"]) == VECTORS
        traffic = server.traffic()
    assert traffic.bodies == [{"model": "small", "input": ["a"]}]
    assert traffic.requests[0].path.endswith("/embeddings")
    assert traffic.requests[0].headers["authorization"] == "Bearer secret-key"


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (RawAnswer({"error": {"message": "bad key secret-key"}}, 401), ErrorKind.AUTHENTICATION),
        (RawAnswer("<html>hello</html>"), ErrorKind.MALFORMED),
        (RawAnswer([1, 2]), ErrorKind.MALFORMED),
    ],
)
def test_what_is_no_answer_is_a_provider_error(told: RawAnswer, kind: ErrorKind) -> None:
    with shared_double([told]) as server, pytest.raises(ProviderError) as caught:
        post(server, input=["a"])
    assert caught.value.kind is kind
    assert "secret-key" not in str(caught.value)


@pytest.mark.parametrize("model", ["nowhere/small", "openai", "openai/"])
def test_an_unknown_model_is_refused_with_the_known_providers(model: str) -> None:
    with pytest.raises(UsageError, match="openai-compatible"):
        EmbeddingApi(model, api_key="k")


BUSY = {"error": {"message": "rate limit of secret-key reached", "type": "rate_limit_exceeded"}}


@pytest.mark.parametrize(
    ("told", "least_seconds"),
    [
        (RawAnswer(BUSY, 429, {"retry-after": "0.3"}), 0.3),
        (RawAnswer(BUSY, 429, {"Retry-After-Ms": "300"}), 0.3),
        (RawAnswer(BUSY, 429, {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "300ms"}), 0.3),
        (RawAnswer({"error": {"message": "overloaded"}}, 503, {"retry-after": "0.3"}), 0.3),
        (RawAnswer({"error": {"message": "overloaded"}}, 529, {"retry-after": "0.3"}), 0.3),
        (RawAnswer(BUSY, 429), 0.0),
        (RawAnswer("<html>bad gateway</html>", 502), 0.0),
    ],
)
def test_a_busy_server_is_asked_again_when_it_says(told: RawAnswer, least_seconds: float) -> None:
    with shared_double([told, told, RawAnswer(VECTORS)]) as server:
        begun = time.monotonic()
        assert post(server, input=["a"]) == VECTORS
        assert time.monotonic() - begun >= 2 * least_seconds
        assert len(server.traffic().requests) == 3


@pytest.mark.parametrize(
    ("told", "seconds", "tries"),
    [
        (RawAnswer(BUSY, 429, {"retry-after": "3600"}), 3600.0, 1),
        (RawAnswer(BUSY, 429, {"retry-after": "30"}), 30.0, 1),
        (RawAnswer(BUSY, 429), None, 5),
        (RawAnswer({"error": {"message": "no such model"}}, 404, {"retry-after": "0"}), 0.0, 1),
    ],
)
def test_a_wait_that_is_too_long_is_the_callers(told: RawAnswer, seconds: float | None, tries: int) -> None:
    with shared_double([told] * tries) as server, pytest.raises(ProviderError) as caught:
        post(server, input=["a"])
    assert caught.value.retry_after_seconds == seconds
    assert "secret-key" not in str(caught.value)


def test_a_call_that_is_cancelled_waits_no_longer() -> None:
    async def ask(server: WireDouble) -> None:
        api = EmbeddingApi("openai-compatible/small", base_url=server.base_url(), api_key="k")
        try:
            await asyncio.wait_for(api.post({"input": ["a"]}), 1.0)
        finally:
            await api.aclose()

    with shared_double([RawAnswer(BUSY, 429, {"retry-after": "15"})]) as server, pytest.raises(TimeoutError):
        asyncio.run(ask(server))
    assert embeddings.EMBEDDING_PATIENCE_SECONDS > 15
