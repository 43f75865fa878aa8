"""A host's own transport, by the settings: it carries model calls, embeddings, and questions about models."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from support.own_servers import chat_server, told

from callboard.actors.connection import Connection
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.protocol.errors import UsageError
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.dialects import ChatDialect
from callboard.providers.transport import HttpTransport

ADDRESS = "https://model.test/v1"


class Host(httpx.AsyncBaseTransport):
    """Counts what goes through it, and how often it is closed."""

    def __init__(self, inner: httpx.AsyncBaseTransport | None = None) -> None:
        self.inner = inner or httpx.MockTransport(answer)
        self.paths: list[str] = []
        self.closed = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path)
        return await self.inner.handle_async_request(request)

    async def aclose(self) -> None:
        self.closed += 1
        await self.inner.aclose()


def answer(request: httpx.Request) -> httpx.Response:
    if request.url.path.endswith("/embeddings"):
        return httpx.Response(200, json={"data": [{"index": 0, "embedding": [0.5, 0.25]}]})
    if request.method == "GET":
        return httpx.Response(404)
    said = json.loads(request.content)
    choice = {"index": 0, "delta": {"content": f"{said['model']} says hello"}, "finish_reason": "stop"}
    return httpx.Response(200, content=f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n".encode())


def test_it_carries_what_every_provider_asks_and_is_closed_with_the_runtime() -> None:
    host, other = Host(), Host()
    settings = Settings(
        model="openai-compatible/one",
        base_url=ADDRESS,
        transport=host,
        connections={"vllm": Connection(base_url=ADDRESS, transport=other), "groq": Connection(api_key="k")},
    )
    adapter = OpenAIChat(base_url=ADDRESS, api_key="k", dialect=ChatDialect())
    with Runtime(settings, providers={"mine": adapter}) as runtime:
        for model in ("openai-compatible/one", "groq/two", "mine/three", "vllm/four"):
            assert runtime.ask_sync("?", model=model).text == f"{model.partition('/')[2]} says hello"
        assert other.paths[-1] == "/v1/chat/completions"
        assert [path for path in host.paths if path.endswith("/chat/completions")] == [
            "/v1/chat/completions", "/openai/v1/chat/completions", "/v1/chat/completions"
        ]  # fmt: skip
        assert (host.closed, other.closed) == (0, 0)
    assert (host.closed, other.closed) == (1, 1)


def test_around_ours_it_reaches_a_real_server() -> None:
    host = Host(HttpTransport())
    with chat_server() as server:
        settings = Settings(model="openai-compatible/one", base_url=f"{server.url}/v1", transport=host)
        with Runtime(settings) as runtime:
            assert told(runtime.ask_sync("?").text)["model"] == "one"
    assert "/v1/chat/completions" in host.paths


def test_it_is_replaced_with_the_settings_and_the_earlier_one_is_closed() -> None:
    first, second = Host(), Host()
    settings = Settings(model="openai-compatible/one", base_url=ADDRESS, transport=first)
    with Runtime(settings) as runtime:
        assert runtime.ask_sync("?").text == "one says hello"
        asked = len(first.paths)
        runtime.reload_sync(settings.model_copy(update={"transport": second}))
        assert runtime.ask_sync("?").text == "one says hello"
        assert (len(first.paths), bool(second.paths)) == (asked, True)
    assert (first.closed, second.closed) == (1, 1)


PROXY = "http://proxy.example:3128"
BESIDE = r"does nothing beside a transport of your own; say it to that, such as HttpTransport\({}=\.\.\.\)"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Connection(transport=Host(), proxy=PROXY), BESIDE.format("proxy")),
        (lambda: Connection(transport=Host(), verify=False), BESIDE.format("verify")),
        (lambda: Settings(model="groq/a", api_key="k", transport=Host(), proxy=PROXY), BESIDE.format("proxy")),
        (lambda: Settings(model="groq/a", api_key="k", transport=Host(), verify=False), BESIDE.format("verify")),
        (
            lambda: Settings(
                model="groq/a", api_key="k", transport=Host(), connections={"groq": Connection(proxy=PROXY)}
            ),
            BESIDE.format("proxy"),
        ),
        (lambda: Connection(**{"transport": Host}), "must be an httpx.AsyncBaseTransport"),
        (lambda: Settings(**{"transport": httpx.HTTPTransport()}), "must be an httpx.AsyncBaseTransport"),
        (lambda: Settings(**{"transport": "http://h"}), "must be an httpx.AsyncBaseTransport"),
        (lambda: Settings(**{"transport": httpx.AsyncClient()}), "must be an httpx.AsyncBaseTransport"),
    ],
)
def test_what_would_do_nothing_is_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Runtime(make())


def test_a_connections_own_transport_takes_the_place_of_the_settings_proxy() -> None:
    own = Host()
    settings = Settings(
        model="vllm/one", proxy=PROXY, verify=False, connections={"vllm": Connection(base_url=ADDRESS, transport=own)}
    )
    with Runtime(settings) as runtime:
        assert runtime.ask_sync("?").text == "one says hello"
    assert settings.connection("groq").proxy == PROXY
    assert "Host" not in repr(settings)
