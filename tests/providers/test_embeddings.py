"""The embeddings endpoint, against a real server in another process."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from callboard.protocol.errors import ErrorKind, ProviderError, UsageError
from callboard.providers.embeddings import EmbeddingApi

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.model_server import Answer, ModelServer, error

VECTORS = {"data": [{"index": 0, "embedding": [1.0, 0.0]}]}


def answer(document: object) -> Answer:
    return Answer((("send", json.dumps(document)),), headers={"content-type": "application/json"})


def post(server: ModelServer, **body: object) -> object:
    async def ask() -> object:
        api = EmbeddingApi("openai-compatible/small", base_url=server.base_url, api_key="secret-key")
        try:
            return await api.post(body)
        finally:
            await api.aclose()

    return asyncio.run(ask())


def test_the_body_goes_out_and_the_document_comes_back() -> None:
    with ModelServer([answer(VECTORS)]) as server:
        assert post(server, model="small", input=["a"]) == VECTORS
        stats = server.stats()
    assert stats.bodies == [{"model": "small", "input": ["a"]}]
    assert stats.paths[0].endswith("/embeddings")
    assert stats.headers[0]["authorization"] == "Bearer secret-key"


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        (error(401, {"error": {"message": "bad key secret-key"}}), ErrorKind.AUTHENTICATION),
        (error(200, "<html>hello</html>"), ErrorKind.MALFORMED),
        (answer([1, 2]), ErrorKind.MALFORMED),
    ],
)
def test_what_is_no_answer_is_a_provider_error(told: Answer, kind: ErrorKind) -> None:
    with ModelServer([told]) as server, pytest.raises(ProviderError) as caught:
        post(server, input=["a"])
    assert caught.value.kind is kind
    assert "secret-key" not in str(caught.value)


@pytest.mark.parametrize("model", ["nowhere/small", "openai", "openai/"])
def test_an_unknown_model_is_refused_with_the_known_providers(model: str) -> None:
    with pytest.raises(UsageError, match="openai-compatible"):
        EmbeddingApi(model, api_key="k")
