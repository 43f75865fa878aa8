"""Any model at any question: how each is reached, with which key, headers, proxy and certificates; own providers."""

from __future__ import annotations

import asyncio
import base64
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.own_servers import Server, certificate_for, chat_server, proxy_server, told
from support.shared_double import shared_double

from callboard.actors.connection import Connection
from callboard.actors.models.routing import Router
from callboard.actors.requests.replies import ModelCallFailed, RequestEnded
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.wire_double import Api, Call, Turn
from callboard.protocol.commands import Outcome
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.model import Done, FinishReason, ModelRequest, StreamEvent, TextDelta, Usage
from callboard.protocol.provider_options import AnthropicOptions, OpenAIOptions
from callboard.providers.catalog import Catalog, ModelInfo, Prices
from callboard.providers.credentials import Token
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.dialects import ChatDialect
from callboard.providers.rate_limit import RateLimits

KEY = "sk-a-key-that-nobody-may-see"
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXY_VARIABLES, "CALLBOARD_API_KEY", "OPENAI_API_KEY", "GROQ_API_KEY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def server() -> Iterator[Server]:
    with chat_server() as running:
        yield running


def router(settings: Settings, **own: Any) -> Router:
    return Router(settings, RateLimits(lambda: 0.0, settings.rate_limits), own)


# -- any model at any question


def test_models_of_several_providers_in_one_runtime(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "key-of-groq")
    settings = Settings(
        model="openai-compatible/one",
        base_url=f"{server.url}/v1",
        api_key=KEY,
        headers={"x-team": "blue"},
        connections={
            "groq": Connection(base_url=f"{server.url}/openai/v1"),
            "mistral": Connection(base_url=f"{server.url}/v1", api_key="key-of-mistral", headers={"x-team": "red"}),
        },
    )
    with Runtime(settings) as runtime:
        replies = [
            runtime.ask_sync("?", **({"model": name} if name else {}))
            for name in ("", "openai-compatible/two", "groq/three", "mistral/four", "")
        ]
    assert [(reply.model, told(reply.text)) for reply in replies] == [
        ("openai-compatible/one", {"model": "one", "body": {}, "authorization": f"Bearer {KEY}", "x-team": "blue"}),
        ("openai-compatible/two", {"model": "two", "body": {}, "authorization": f"Bearer {KEY}", "x-team": "blue"}),
        ("groq/three", {"model": "three", "body": {}, "authorization": "Bearer key-of-groq"}),
        ("mistral/four", {"model": "four", "body": {}, "authorization": "Bearer key-of-mistral", "x-team": "red"}),
        ("openai-compatible/one", {"model": "one", "body": {}, "authorization": f"Bearer {KEY}", "x-team": "blue"}),
    ]


def test_connections_and_limits_are_shared_by_all_models_of_a_credential() -> None:
    routes = router(Settings(model="openai/a", api_key=KEY, connections={"groq": Connection(api_key="k")}))
    one, two, other = routes.route("openai/a"), routes.route("openai/b"), routes.route("groq/b")
    assert (one.provider is two.provider, one.limiter is two.limiter) == (True, True)
    assert (one.provider is other.provider, one.limiter is other.limiter) == (False, False)
    assert [route.model for route in (one, two, other)] == ["a", "b", "b"]


def test_publishers_at_vertex_have_a_connection_each() -> None:
    routes = router(Settings(model="vertex/gemini-3-pro", api_key=KEY, connections={}))
    with pytest.raises(UsageError, match="vertex needs a project"):
        routes.route("vertex/gemini-3-pro")


def test_extra_fields_and_headers_reach_the_server(server: Server) -> None:
    settings = Settings(model="openai-compatible/one", base_url=f"{server.url}/v1")
    with Runtime(settings) as runtime:
        reply = runtime.ask_sync("?", extra_body={"x_knob": {"a": 1}}, extra_headers={"X-Knob": "2"})
        assert told(reply.text) == {"model": "one", "body": {"x_knob": {"a": 1}}, "x-knob": "2"}
        assert told(runtime.ask_sync("?").text) == {"model": "one", "body": {}}


def test_what_is_said_to_one_provider_is_not_sent_to_the_fallback(server: Server) -> None:
    settings = Settings(
        model="openai-compatible/gone",
        base_url="http://127.0.0.1:9/v1",
        fallback_models=("vllm/there",),
        connections={"vllm": Connection(base_url=f"{server.url}/v1")},
        max_attempts=2,
    )
    with Runtime(settings) as runtime:
        reply = runtime.ask_sync("?", extra_body={"x_knob": 1}, extra_headers={"x-knob": "secret"})
    assert told(reply.text) == {"model": "there", "body": {}}
    assert "extra_body and extra_headers: they are for openai-compatible; left out" in reply.notes


def test_options_of_another_api_are_not_sent_to_the_fallback_and_its_own_are() -> None:
    with shared_double([Turn("Claude here.")]) as server:
        settings = Settings(
            model="openai-compatible/gone",
            base_url="http://127.0.0.1:9/v1",
            fallback_models=("anthropic/claude-opus-4-6",),
            connections={"anthropic": Connection(base_url=server.base_url(Api.ANTHROPIC), api_key="k")},
            max_attempts=2,
        )
        with Runtime(settings) as runtime:
            reply = runtime.ask_sync("?", provider_options=[OpenAIOptions(user="u"), AnthropicOptions(user_id="hash")])
        body = server.traffic().bodies[-1]
    assert (reply.text, reply.model) == ("Claude here.", "anthropic/claude-opus-4-6")
    assert (body["metadata"], "user" in body) == ({"user_id": "hash"}, False)
    assert "OpenAIOptions: they are of another API; left out" in reply.notes


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"connections": {"grok": Connection()}}, "connections: there is no provider 'grok'; did you mean 'groq'?"),
        ({"connections": {"groq": {"base_ur": "x"}}}, "groq: there is no 'base_ur' in it; did you mean 'base_url'?"),
        ({"connections": {"groq": {"api_key": "a b"}}}, "groq: api_key: a key is one word of ASCII"),
        ({"connections": {"groq": {"proxy": "socks5://h:1"}}}, "groq: proxy: must be the address of an HTTP proxy"),
        ({"connections": ["groq"]}, "must be a mapping of provider names"),
        ({"headers": {"Authorization": "x"}}, "'Authorization', which carries a credential"),
        ({"proxy": "nonsense"}, "must be the address of an HTTP proxy"),
        ({"verify": "/no/such/file.pem"}, "no certificates can be read from /no/such/file.pem: No such file"),
        ({"api_key": 3}, "must be a text, or in a program a function that gives one"),
    ],
    ids=str,
)
def test_wrong_settings_of_connections_are_told_without_values(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        Runtime(Settings(model="openai/gpt-5", **{"api_key": KEY, **settings}))
    assert says in str(caught.value)


# -- keys that expire


@pytest.mark.parametrize("kind", ["sync", "async", "token"])
def test_a_callback_gives_the_key_and_is_asked_again_after_a_refusal(kind: str) -> None:
    given: list[str] = []

    def sync() -> str:
        given.append("old" if not given else "new")
        return given[-1]

    async def not_sync() -> str:
        return sync()

    def token() -> Token:
        return Token(sync(), expires_at=4e9)

    callback: Any = {"sync": sync, "async": not_sync, "token": token}[kind]
    with chat_server(expired=("old",)) as server:
        settings = Settings(model="openai-compatible/one", base_url=f"{server.url}/v1", api_key=callback)
        with Runtime(settings) as runtime:
            replies = [runtime.ask_sync("?") for _ in range(2)]
    assert [told(reply.text)["authorization"] for reply in replies] == ["Bearer new"] * 2
    assert given[:2] == ["old", "new"]
    assert kind != "token" or len(given) == 2, "one whose end is known is kept"


def test_a_callback_that_fails_is_told_and_no_repr_shows_what_it_holds() -> None:
    def fails(secret: str) -> str:
        raise OSError("the vault is closed")

    settings = Settings(
        model="openai-compatible/one", base_url="http://127.0.0.1:9/v1", api_key=partial(fails, KEY), max_attempts=1
    )
    with Runtime(settings) as runtime:
        with pytest.raises(ModelCallFailed, match="the vault is closed") as failed:
            runtime.ask_sync("?")
        assert failed.value.kind is ErrorKind.AUTHENTICATION
        shown = f"{settings!r} {runtime!r} {vars(runtime)!r} {vars(runtime._wiring)!r}"
    assert KEY not in shown


def test_no_repr_of_a_connection_shows_key_headers_or_passwords() -> None:
    connection = Connection(
        "http://u:hunter2@h/v1", KEY, {"x-team": "blue-secret"}, "http://u:hunter2@proxy:1", verify=False
    )
    shown = f"{connection!r} {Settings(connections={'groq': connection}, headers={'x-a': 'blue-secret'})!r}"
    assert not any(secret in shown for secret in (KEY, "hunter2", "blue-secret"))


# -- proxies and certificates


#: The window of the models is not asked for.
KNOWN: dict[str, Any] = {
    "max_attempts": 1,
    "catalog": Catalog(
        {"openai-compatible/*": ModelInfo(context_tokens=8_192), "vllm/*": ModelInfo(context_tokens=8_192)}
    ),
}


def ask(settings: Settings) -> dict[str, Any]:
    with Runtime(settings) as runtime:
        return told(runtime.ask_sync("?").text)


def test_a_proxy_carries_what_is_asked(server: Server) -> None:
    with proxy_server() as proxy:
        settings = Settings(model="openai-compatible/one", base_url=f"{server.url}/v1", proxy=proxy.url, **KNOWN)
        assert ask(settings)["via"] == "1.1 the-proxy"
    assert proxy.lines == [f"POST {server.url.removeprefix('http://')}"]


def test_a_proxy_that_cannot_be_reached_is_named_without_its_password() -> None:
    settings = Settings(
        model="openai-compatible/one", base_url="http://model.test/v1", proxy="http://u:hunter2@127.0.0.1:9", **KNOWN
    )
    with Runtime(settings) as runtime, pytest.raises(ModelCallFailed) as failed:
        runtime.ask_sync("?")
    assert "model.test (through the proxy 127.0.0.1:9) refused the connection" in str(failed.value)
    assert "hunter2" not in str(failed.value)


def test_a_proxy_with_a_password_and_one_for_a_provider_alone(server: Server) -> None:
    password = base64.b64encode(b"u:hunter2").decode()
    with proxy_server(password=password) as proxy:
        through = proxy.url.replace("http://", "http://u:hunter2@")
        settings = Settings(
            model="openai-compatible/one",
            base_url=f"{server.url}/v1",
            connections={"vllm": Connection(base_url=f"{server.url}/v1", proxy=through)},
            **KNOWN,
        )
        with Runtime(settings) as runtime:
            assert "via" not in told(runtime.ask_sync("?").text)
            assert told(runtime.ask_sync("?", model="vllm/two").text)["via"] == "1.1 the-proxy"
    assert len(proxy.lines) == 1


@pytest.mark.parametrize("no_proxy", ["", "model.test"])
def test_proxies_of_the_environment_are_used_but_for_no_proxy(
    no_proxy: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name cannot be found here: only a proxy can be asked for it, which says that it cannot reach it either."""
    with proxy_server() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", no_proxy)
        settings = Settings(model="openai-compatible/one", base_url="http://model.test/v1", **KNOWN)
        with Runtime(settings) as runtime, pytest.raises(ModelCallFailed):
            runtime.ask_sync("?")
        here = Settings(model="openai-compatible/one", base_url=f"{server.url}/v1")
        assert "via" not in ask(here), "this machine is asked directly"
        without = Settings(model="openai-compatible/one", base_url="http://model.test/v1", **KNOWN, proxy="")
        with Runtime(without) as runtime, pytest.raises(ModelCallFailed):
            runtime.ask_sync("?")
    assert proxy.lines == ([] if no_proxy else ["POST model.test"])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
def test_a_server_with_a_certificate_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, certificate = certificate_for(tmp_path)
    trusting = ssl.create_default_context(cafile=str(authority))
    with chat_server(certificate=certificate) as server, proxy_server() as proxy:
        base = {"model": "openai-compatible/one", "base_url": f"{server.url}/v1", **KNOWN}
        with Runtime(Settings(**base)) as runtime, pytest.raises(ModelCallFailed, match=r"certificate .* is not valid"):
            runtime.ask_sync("?")
        for verify in (authority, str(authority), trusting, False):
            assert ask(Settings(**base, verify=verify))["model"] == "one"
        assert ask(Settings(**base, connections={"openai-compatible": Connection(verify=authority)}))["model"] == "one"
        assert ask(Settings(**base, verify=authority, proxy=proxy.url))["model"] == "one"
    assert proxy.lines == [f"CONNECT {server.url.removeprefix('https://')}"]


# -- own providers


@dataclass
class Echo:
    """A whole provider in a few lines."""

    name: str = "mine"
    asked: list[ModelRequest] = field(default_factory=list)
    closed: int = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[list[StreamEvent]]:
        self.asked.append(request)
        yield [TextDelta(f"{request.model} says {request.messages[-1].text}")]  # type: ignore[union-attr]
        yield [Done(FinishReason.STOP, usage=Usage(1_000, 100))]

    async def aclose(self) -> None:
        self.closed += 1


def test_an_own_provider_has_any_model_and_is_closed_with_the_runtime() -> None:
    mine = Echo()
    prices = Catalog({"mine/a": ModelInfo(8_192, Prices(1e-6, 1e-5))})
    with Runtime(Settings(model="mine/a", catalog=prices, cost_budget=1.0), providers={"mine": mine}) as runtime:
        reply = runtime.ask_sync("hello")
        assert (reply.text, reply.model, reply.cost) == ("a says hello", "mine/a", pytest.approx(0.002))
        with pytest.raises(UsageError, match="no price of mine/b is known"):
            runtime.ask_sync("hello", model="mine/b")
    assert mine.closed == 1


@pytest.mark.parametrize("raised", [OSError("gone"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_an_own_provider_that_fails_to_close_keeps_no_other_from_closing(raised: BaseException) -> None:
    @dataclass
    class Failing(Echo):
        async def aclose(self) -> None:
            raise raised

    other = Echo()
    with Runtime(Settings(model="mine/a"), providers={"mine": Failing(), "other": other}) as runtime:
        assert runtime.ask_sync("hello").text == "a says hello"
        assert runtime.ask_sync("hello", model="other/b").text == "b says hello"
    assert other.closed == 1


def test_an_own_provider_beside_the_known_ones(server: Server) -> None:
    settings = Settings(model="openai-compatible/gone", base_url="http://127.0.0.1:9/v1", max_attempts=2)
    mine = Echo()
    with Runtime(settings.model_copy(update={"fallback_models": ("mine/b",)}), providers={"mine": mine}) as runtime:
        assert runtime.ask_sync("hello").text == "b says hello"
        assert runtime.ask_sync("hello", model="mine/c").text == "c says hello"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"connections": {"mine": Connection(base_url="http://h")}}, "base_url"),
        ({"connections": {"mine": Connection(api_key="k")}}, "api_key"),
        ({"connections": {"mine": Connection(headers={"x-a": "b"})}}, "headers"),
        ({"connections": {"mine": Connection(reasoning="reasoning")}}, "reasoning"),
        ({"api_key": "k"}, "api_key"),
        ({"headers": {"x-a": "b"}}, "headers"),
    ],
)
@pytest.mark.parametrize("own", [Echo(), OpenAIChat(base_url="http://h/v1", api_key="k", dialect=ChatDialect())])
def test_what_would_not_reach_an_own_provider_is_refused(settings: dict[str, Any], field: str, own: Any) -> None:
    with pytest.raises(UsageError, match=f"{field} does nothing for mine"):
        Runtime(Settings(model="mine/x", **settings), providers={"mine": own})


def test_a_connection_says_where_an_unknown_model_wants_its_reasoning_back() -> None:
    """The second model call of the request has the turn of the first, which called without reasoning."""
    turns = [Turn(calls=(Call("now", {}, id="c1"),)), Turn("Noon.")]
    with shared_double(turns) as server:
        settings = Settings(
            model="openai-compatible/prod",
            base_url=server.base_url(Api.CHAT),
            connections={"openai-compatible": Connection(reasoning="reasoning_content")},
        )
        with Runtime(settings) as runtime:

            def now() -> str:
                return "12:00"

            assert runtime.ask_sync("What time is it?", tools=[now]).text == "Noon."
        (turn,) = [each for each in server.traffic().bodies[1]["messages"] if "tool_calls" in each]
    assert turn["reasoning_content"] == ""


@pytest.mark.parametrize("field", ["thinking", "", 5])
def test_a_field_for_reasoning_that_there_is_not_is_refused(field: Any) -> None:
    with pytest.raises(UsageError, match="reasoning: must be 'reasoning_content' or 'reasoning'"):
        Connection(reasoning=field)


def test_only_chat_completions_has_a_field_for_reasoning() -> None:
    settings = Settings(model="gemini/x", api_key="k", connections={"gemini": Connection(reasoning="reasoning")})
    with pytest.raises(UsageError, match=r"connections\.gemini\.reasoning: only a server that speaks Chat Completions"):
        router(settings).route("gemini/x")


def test_a_proxy_and_certificates_reach_an_adapter_of_ones_own_only() -> None:
    adapter = OpenAIChat(base_url="http://h/v1", api_key="k", dialect=ChatDialect())
    for given in (Connection(proxy="http://h:3128"), Connection(verify=False)):
        settings = Settings(connections={"mine": given})
        Runtime(settings, providers={"mine": adapter})
        with pytest.raises(UsageError, match="does nothing for mine, which is a provider of your own"):
            Runtime(settings, providers={"mine": Echo()})


@pytest.mark.parametrize("model", ["scripted/one", "offline/code-context"])
def test_a_model_without_a_server_takes_the_place_of_any_with_its_settings(model: str) -> None:
    settings = Settings(model=model, base_url="http://127.0.0.1:9", api_key=lambda: "k", headers={"x-team": "blue"})
    with Runtime(settings) as runtime:
        assert runtime.ask_sync("?").text


def test_an_own_adapter_gets_http_around_it(server: Server) -> None:
    adapter = OpenAIChat(base_url=f"{server.url}/v1", api_key="of-mine", dialect=ChatDialect())
    with Runtime(Settings(model="my-llm/large"), providers={"my-llm": adapter}) as runtime:
        assert told(runtime.ask_sync("?").text) == {"model": "large", "body": {}, "authorization": "Bearer of-mine"}


@pytest.mark.parametrize(
    ("providers", "says"),
    [
        ({"openai": Echo()}, "there is a provider 'openai' already"),
        ({"My LLM": Echo()}, "'My LLM' is no name of a provider"),
        ({"mine": Echo}, r"mine is a class; give an object of it: Echo\(...\)"),
        ({"mine": object()}, "mine is neither a provider nor an adapter"),
    ],
)
def test_what_is_no_provider_is_refused(providers: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Runtime(Settings(model="scripted/m"), providers=providers)


def test_an_own_adapter_that_cannot_write_a_request_is_told_before_anything_is_sent() -> None:
    class Broken(OpenAIChat):
        def encode(self, request: ModelRequest, /) -> Any:
            raise KeyError("no such field")

    broken = Broken(base_url="http://127.0.0.1:9/v1", dialect=ChatDialect())
    with (
        Runtime(Settings(model="mine/a"), providers={"mine": broken}) as runtime,
        pytest.raises(UsageError, match=r"mine/a cannot be asked this: its adapter failed: .*no such field"),
    ):
        runtime.ask_sync("?", service_tier="flex")


async def _raises(self: Echo, request: ModelRequest) -> AsyncIterator[list[StreamEvent]]:
    raise ValueError("broken inside")
    yield []


async def _nonsense(self: Echo, request: ModelRequest) -> AsyncIterator[list[StreamEvent]]:
    yield "nonsense"  # type: ignore[misc]


async def _hangs(self: Echo, request: ModelRequest) -> AsyncIterator[list[StreamEvent]]:
    await asyncio.Event().wait()
    yield []


@pytest.mark.parametrize(
    ("stream", "ends"),
    [(_raises, "the provider mine failed: .*broken inside"), (_nonsense, "it yielded a str"), (_hangs, "deadline")],
)
def test_an_own_provider_that_fails_ends_its_request(stream: Callable[..., Any], ends: str) -> None:
    broken = type("Broken", (Echo,), {"stream": stream})()
    settings = Settings(model="mine/a", max_attempts=1, request_timeout_seconds=0.5)
    with Runtime(settings, providers={"mine": broken}) as runtime:
        with pytest.raises((ModelCallFailed, RequestEnded), match=ends) as failed:
            runtime.ask_sync("?")
        assert failed.value.reply.outcome in (Outcome.FAILED, Outcome.TIMED_OUT)


def test_the_documented_example_runs() -> None:
    example = Path(__file__).parents[3] / "examples" / "own_provider.py"
    ran = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.returncode) == ("HELLO\n", 0), ran.stderr
