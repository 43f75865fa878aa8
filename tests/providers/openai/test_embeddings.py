"""The embeddings endpoint, against a real server in another process."""

from __future__ import annotations

import asyncio

import pytest
from support.shared_double import shared_double

from callboard.actors.testing.wire_double import RawAnswer, WireDouble
from callboard.protocol.errors import ErrorKind, ProviderError, UsageError
from callboard.providers.openai.embeddings import EmbeddingApi

VECTORS = {"data": [{"index": 0, "embedding": [1.0, 0.0]}]}


def post(server: WireDouble, **body: object) -> object:
    async def ask() -> object:
        api = EmbeddingApi("openai-compatible/small", base_url=server.base_url(), api_key="secret-key")
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
