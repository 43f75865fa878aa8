"""How many tokens a model takes, asked from a real HTTP server in another process, one of each kind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.model_servers import KINDS, ModelServers, model_servers

from callboard.providers import context_window
from callboard.providers.adapter import HttpAnswer, WireRequest
from callboard.providers.context_window import SOURCES, ask_window
from callboard.providers.copilot.copilot_api import Copilot, CopilotProvider
from callboard.providers.copilot.copilot_login import CopilotTokens, FileStore
from callboard.providers.json_values import dumps
from callboard.providers.local.offline import Offline
from callboard.providers.provider_registry import provider_for
from callboard.providers.transport import HttpProvider


@pytest.fixture(scope="module")
def servers() -> Iterator[ModelServers]:
    with model_servers() as running:
        yield running


def window(servers: ModelServers, kind: str, path: str, name: str, model: str = "m") -> int | None:
    async def ask() -> int | None:
        provider, asked = provider_for(f"{name}/{model}", base_url=f"{servers.url}/{kind}{path}", api_key="k")
        try:
            return await ask_window(provider, name, asked)
        finally:
            await provider.aclose()

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("kind", "path", "name", "model", "tokens"),
    [
        ("vllm", "/v1", "vllm", "m", 40_960),
        ("vllm", "/v1", "openai-compatible", "m", 40_960),
        ("groq", "/openai/v1", "groq", "m", 131_072),
        ("mistral", "/v1", "mistral", "m", 131_072),
        ("together", "/v1", "together", "org/m", 8_193),
        ("openrouter", "/api/v1", "openrouter", "org/m", 65_536),
        ("openrouter", "/api/v1", "openrouter", "org/m:free", 8_192),
        ("openrouter", "/api/v1", "openrouter", "org/m:nitro", 65_536),
        ("llamacpp", "/v1", "llamacpp", "m", 6_144),
        ("llamacpp", "/v1", "openai-compatible", "any/name:here", 6_144),
        ("lmstudio", "/v1", "lmstudio", "m", 7_168),
        ("lmstudio", "/v1", "openai-compatible", "m", 7_168),
        ("ollama", "/v1", "ollama", "m", 5_120),
        ("ollama", "/v1", "openai-compatible", "m", 5_120),
        ("anthropic", "", "anthropic", "m", 200_000),
        ("gemini", "", "gemini", "m", 1_048_576),
        ("gemini", "/v1beta", "gemini", "models/m", 1_048_576),
    ],
)
def test_each_kind_of_server_is_asked_where_it_tells(
    servers: ModelServers, kind: str, path: str, name: str, model: str, tokens: int
) -> None:
    assert window(servers, kind, path, name, model) == tokens


@pytest.mark.parametrize(
    ("kind", "name", "model"),
    [
        ("silent", "openai-compatible", "m"),
        ("vllm", "vllm", "not-served"),
        ("lmstudio", "lmstudio", "cold"),  # what it could take at most is not what it will be loaded with
        ("llamacpp", "openai", "m"),  # the length of training says nothing about the server
        ("no-such-server", "openai-compatible", "m"),
        ("nonsense", "openai-compatible", "m"),
    ],
)
def test_what_a_server_does_not_tell_is_not_guessed(servers: ModelServers, kind: str, name: str, model: str) -> None:
    assert window(servers, kind, "/v1", name, model) is None


def test_a_modelfile_tells_where_ollama_has_not_loaded_the_model(servers: ModelServers) -> None:
    """Once it is loaded /api/ps tells; the length of training in model_info is not what it will be loaded with."""

    class NotLoaded(Offline):
        async def inquire(self, path: str, body: bytes | None = None) -> HttpAnswer:
            shown = KINDS["ollama"]["POST /api/show"]
            return HttpAnswer(200, dumps({"{root}/api/ps": {"models": []}, "{root}/api/show": shown}[path]))

    assert asyncio.run(ask_window(NotLoaded(cwd="/"), "ollama", "m")) == 9_216


def test_copilot_is_asked_with_the_token_that_its_calls_carry(servers: ModelServers, tmp_path: Path) -> None:
    async def exchanged(wire: WireRequest) -> HttpAnswer:
        token = {"token": "t", "expires_at": 10**12, "endpoints": {"api": f"{servers.url}/copilot"}}
        return HttpAnswer(200, dumps(token))

    async def ask() -> int | None:
        store = FileStore(tmp_path / "login")
        store.save("gho_login")
        provider = CopilotProvider(CopilotTokens(store, exchanged), HttpProvider(Copilot()))
        try:
            return await ask_window(provider, "copilot", "m")
        finally:
            await provider.aclose()

    assert asyncio.run(ask()) == 64_000, "what a prompt may have is less than the window"


def test_nonsense_is_named_in_the_log(servers: ModelServers, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "callboard"):
        assert window(servers, "nonsense", "/v1", "vllm") is None
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        f"a server says that a model takes {said} tokens" for said in ("-5", "'many'", str(10**12), "True")
    ]


def test_a_server_that_hangs_is_waited_for_no_longer_than_the_limit(
    servers: ModelServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_window, "WINDOW_SECONDS", 0.2)
    assert window(servers, "hanging", "/v1", "openai-compatible") is None
    assert servers.asked("hanging") == ["GET /v1/models"]


def test_a_provider_without_a_server_is_not_asked() -> None:
    assert asyncio.run(ask_window(Offline(cwd="/"), "offline", "code-context")) is None


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["data", "models", "id", "name", "context_length", "parameters", "top_provider",
                         "default_generation_settings", "n_ctx", "max_input_tokens"]) | st.text(), inner),
)  # fmt: skip


@given(st.sampled_from([source for sources in SOURCES.values() for source in sources]), json, st.text())
def test_no_answer_of_a_server_is_an_exception(source: context_window.Source, document: object, model: str) -> None:
    list(source.find(document, model))  # type: ignore[arg-type]
