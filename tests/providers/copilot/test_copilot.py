"""Copilot: headers, routes, the login, tokens at rest and their renewal."""

from __future__ import annotations

import asyncio
import json
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from support.wire import sse

from callboard.protocol.content import (
    AssistantMessage,
    Image,
    Message,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import ErrorKind, ProviderError, UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import ModelRequest, StreamEvent
from callboard.providers.adapter import HttpAnswer, WireRequest
from callboard.providers.copilot.copilot_api import Copilot, CopilotProvider, CopilotRoute, route_of
from callboard.providers.copilot.copilot_login import (
    CopilotTokens,
    FileStore,
    KeyringStore,
    exchange,
    request_device_code,
    token_store,
    wait_for_login,
)
from callboard.providers.response_builder import build_response
from callboard.providers.transport import HttpProvider

USER = UserMessage.of("Hi")
DEVICE = {
    "device_code": "d",
    "user_code": "AB-12",
    "verification_uri": "https://g/login",
    "interval": 5,
    "expires_in": 60,
}


def fake_http(*answers: tuple[int, Any]) -> tuple[Callable[[WireRequest], Any], list[WireRequest]]:
    """An http that gives these answers in turn, and the list of what it was asked."""
    asked: list[WireRequest] = []

    async def http(wire: WireRequest) -> HttpAnswer:
        status, document = answers[len(asked)]
        asked.append(wire)
        return HttpAnswer(status, document if isinstance(document, bytes) else json.dumps(document).encode())

    return http, asked


def granted(token: str, expires_at: float = 1_000, **fields: Any) -> tuple[int, dict[str, Any]]:
    return 200, {
        "token": token,
        "expires_at": expires_at,
        "endpoints": {"api": "https://api.business.example"},
        **fields,
    }


@pytest.mark.parametrize(
    ("model", "route", "path"),
    [
        ("gpt-4.1", CopilotRoute.CHAT, "/chat/completions"),
        ("gemini-2.5-pro", CopilotRoute.CHAT, "/chat/completions"),
        ("gpt-5-codex", CopilotRoute.RESPONSES, "/responses"),
        ("gpt-5.1-codex-max", CopilotRoute.RESPONSES, "/responses"),
        ("claude-sonnet-4.5", CopilotRoute.MESSAGES, "/v1/messages"),
    ],
)
def test_each_model_has_its_route(model: str, route: CopilotRoute, path: str) -> None:
    assert route_of(model) is route
    wire = Copilot(api_key="tid=1", route=route).encode(ModelRequest(model, (USER,)))
    assert wire.url == "https://api.githubcopilot.com" + path
    assert wire.headers["authorization"] == "Bearer tid=1"
    assert "x-api-key" not in wire.headers
    assert wire.headers["copilot-integration-id"] == "vscode-chat"


def test_headers_say_whether_there_are_pictures() -> None:
    copilot = Copilot(api_key="t")
    first = copilot.encode(ModelRequest("gpt-4.1", (USER,))).headers
    assert (first["x-initiator"], first.get("copilot-vision-request")) == ("user", None)
    seen = UserMessage((Image("image/png", "aGk="),))
    later = copilot.encode(ModelRequest("gpt-4.1", (seen, AssistantMessage((Text("a"),)), USER))).headers
    assert later["copilot-vision-request"] == "true"


CALL = ToolCall(CallId("a"), ToolName("look"), "{}")
RESULT = ToolMessage(CallId("a"), ToolName("look"), "seen")


@pytest.mark.parametrize("route", list(CopilotRoute))
@pytest.mark.parametrize(
    ("messages", "initiator"),
    [
        ((SystemMessage("Be kind."), USER), "user"),
        ((USER, AssistantMessage((Text("a"),)), USER), "user"),
        ((USER, AssistantMessage((CALL,)), RESULT), "agent"),
        ((USER, AssistantMessage((CALL,)), RESULT, SystemMessage("a note of ours")), "agent"),
        ((USER, AssistantMessage((CALL,)), RESULT, USER), "user"),
    ],
    ids=["first", "later", "result", "note", "interrupted"],
)
def test_quirk_78_who_asks_is_told_by_the_last_message(
    messages: tuple[Message, ...], initiator: str, route: CopilotRoute
) -> None:
    wire = Copilot(api_key="t", route=route).encode(ModelRequest("gpt-4.1", messages))
    assert wire.headers["x-initiator"] == initiator


def login(*answers: tuple[int, Any]) -> tuple[str, list[float]]:
    """The token that a login ends with, and the pauses between its polls."""
    http, _ = fake_http((200, DEVICE), *answers)
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def run() -> str:
        code = await request_device_code(http, "client")
        assert (code.user_code, code.verification_uri) == ("AB-12", "https://g/login")
        return await wait_for_login(http, sleep, "client", code)

    return asyncio.run(run()), pauses


def test_the_device_flow_waits_and_slows_down() -> None:
    pending, slower, yes = {"error": "authorization_pending"}, {"error": "slow_down"}, {"access_token": "gho_x"}
    assert login((200, pending), (200, slower), (200, yes)) == ("gho_x", [5.0, 5.0, 10.0])


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([(200, {"error": "access_denied", "error_description": "The user said no"})], "The user said no"),
        ([(200, {"error": "expired_token"})], "expired_token"),
        ([(200, {"error": "authorization_pending"})] * 12, "run out"),
        ([(500, b"<html>")], "GitHub refused"),
        ([(200, b"[]")], "not a JSON object"),
        ([(200, {})], "no reason"),
    ],
)
def test_a_login_that_fails_says_why(answers: list[tuple[int, Any]], says: str) -> None:
    with pytest.raises(ProviderError, match=says):
        login(*answers)


def test_a_login_needs_a_client_id_and_a_code() -> None:
    http, _ = fake_http((200, {"error": "unknown client"}))
    with pytest.raises(UsageError, match="client id"):
        asyncio.run(request_device_code(http, ""))
    with pytest.raises(ProviderError, match="unknown client"):
        asyncio.run(request_device_code(http, "x"))


@pytest.mark.parametrize("value", [0, -5, float("nan"), float("inf"), 1e12, "5", None, [], True])
def test_times_by_which_a_login_would_never_end_are_not_believed(value: Any) -> None:
    http, _ = fake_http((200, {**DEVICE, "interval": value, "expires_in": value}))
    code = asyncio.run(request_device_code(http, "client"))
    assert code.interval_seconds in (5.0, 1.0)
    assert code.expires_seconds in (900.0, 1.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "soon", None, []])
def test_a_token_without_an_end_is_refused(value: Any) -> None:
    http, _ = fake_http(granted("t", value))
    with pytest.raises(ProviderError, match="without a token"):
        asyncio.run(exchange(http, "secret", 0.0))


def test_the_exchange_names_the_address_and_the_time_to_renew() -> None:
    http, asked = fake_http(granted("tid=1", refresh_in=600), granted("tid=2"), (200, {"token": "t", "expires_at": 9}))
    first = asyncio.run(exchange(http, "gho_x", now=100))
    assert (first.token, first.renew_at, first.base_url) == ("tid=1", 700, "https://api.business.example")
    assert asked[0].headers["authorization"] == "token gho_x"
    assert asyncio.run(exchange(http, "gho_x", now=100)).renew_at == 880
    assert asyncio.run(exchange(http, "gho_x", now=100)).base_url == "https://api.githubcopilot.com"
    assert "tid=1" not in repr(first)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((401, {"message": "Bad credentials"}), ErrorKind.AUTHENTICATION),
        ((403, {"message": "no seat"}), ErrorKind.PERMISSION),
        ((200, {}), ErrorKind.MALFORMED),
    ],
)
def test_an_exchange_that_is_refused(answer: tuple[int, Any], kind: ErrorKind) -> None:
    http, _ = fake_http(answer)
    with pytest.raises(ProviderError) as caught:
        asyncio.run(exchange(http, "gho_x", now=0))
    assert caught.value.kind is kind


class Memory:
    def __init__(self, secret: str | None = "gho_x") -> None:
        self.secret = secret

    def load(self) -> str | None:
        return self.secret

    def save(self, secret: str) -> None:
        self.secret = secret


def test_tokens_are_renewed_before_they_end_and_once_for_many() -> None:
    http, asked = fake_http(
        granted("one", refresh_in=10), granted("two", refresh_in=10), granted("three", refresh_in=10)
    )
    now = 0.0
    tokens = CopilotTokens(Memory(), http, lambda: now)

    async def run() -> list[str]:
        nonlocal now
        got = [(await tokens.current()).token, (await tokens.current()).token]
        now = 10.0
        got += [token.token for token in await asyncio.gather(*(tokens.current() for _ in range(5)))]
        refused = await tokens.current()
        got += [token.token for token in await asyncio.gather(*(tokens.current(refused) for _ in range(5)))]
        return got

    assert asyncio.run(run()) == ["one"] * 2 + ["two"] * 5 + ["three"] * 5
    assert len(asked) == 3


def test_without_a_login_the_message_says_what_to_run() -> None:
    http, _ = fake_http()
    with pytest.raises(UsageError, match="callboard login copilot"):
        asyncio.run(CopilotTokens(Memory(None), http).current())


def test_the_file_is_its_owners_only(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "copilot"
    store = FileStore(place)
    assert store.load() is None
    store.save("gho_1")
    place.chmod(0o644)
    store.save("gho_2")
    assert store.load() == "gho_2"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert [entry.name for entry in place.parent.iterdir()] == ["copilot"]
    with pytest.raises(UsageError, match="cannot be read"):
        FileStore(tmp_path).load()


def fake_keyring(priority: float) -> ModuleType:
    module, kept = ModuleType("keyring"), dict[tuple[str, str], str]()
    backend = type("Backend", (), {"priority": priority})()
    module.__dict__.update(
        get_keyring=lambda: backend,
        get_password=lambda service, user: kept.get((service, user)),
        set_password=lambda service, user, secret: kept.update({(service, user): secret}),
    )
    return module


def test_the_keyring_is_used_where_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", fake_keyring(5))
    store = token_store(tmp_path / "t")
    assert isinstance(store, KeyringStore)
    store.save("gho_x")
    assert store.load() == "gho_x"
    monkeypatch.setitem(sys.modules, "keyring", fake_keyring(0))
    assert isinstance(token_store(tmp_path / "t"), FileStore)
    monkeypatch.setitem(sys.modules, "keyring", None)
    assert isinstance(token_store(tmp_path / "t"), FileStore)


def ask(server: Callable[[httpx.Request], httpx.Response], tokens: CopilotTokens) -> list[StreamEvent]:
    return ask_often(server, tokens, 1)[0]


def ask_often(
    server: Callable[[httpx.Request], httpx.Response], tokens: CopilotTokens, times: int
) -> list[list[StreamEvent]]:
    """One provider, asked again and again."""

    async def run() -> list[list[StreamEvent]]:
        provider = CopilotProvider(tokens, HttpProvider(Copilot(), transport=httpx.MockTransport(server)))
        asked = ModelRequest("gpt-4.1", (USER,))
        answers = [[event async for batch in provider.stream(asked) for event in batch] for _ in range(times)]
        await provider.aclose()
        return answers

    return asyncio.run(run())


def completion(headers: Mapping[str, str] | None = None) -> httpx.Response:
    chunk = {"choices": [{"index": 0, "delta": {"content": "Hello"}, "finish_reason": "stop"}]}
    return httpx.Response(200, content=sse([chunk], done=True), headers=headers)


def test_a_401_renews_the_token_for_the_next_try() -> None:
    """It sends no second request itself: whether there is another, the caller's budget says."""
    http, _ = fake_http(granted("stale", 1e12), granted("fresh", 1e12))
    seen: list[str] = []

    def server(request: httpx.Request) -> httpx.Response:
        seen.append(f"{request.url} {request.headers['authorization']}")
        return completion() if "fresh" in seen[-1] else httpx.Response(401, json={"error": {"message": "expired"}})

    refused, answered = ask_often(server, CopilotTokens(Memory(), http), 2)
    error = build_response(refused).error
    assert error is not None
    assert (error.kind, error.retryable, error.at_once) == (ErrorKind.AUTHENTICATION, True, True)
    assert build_response(answered).text == "Hello"
    address = "https://api.business.example/chat/completions"
    assert seen == [f"{address} Bearer stale", f"{address} Bearer fresh"]


def test_a_second_401_is_the_answer() -> None:
    http, asked = fake_http(granted("one", 1e12), granted("two", 1e12))
    refusal = httpx.Response(401, json={"error": {"message": "no"}})
    _, second = ask_often(lambda _: refusal, CopilotTokens(Memory(), http), 2)
    error = build_response(second).error
    assert error is not None
    assert (error.kind, error.retryable, len(asked)) == (ErrorKind.AUTHENTICATION, False, 2)


def test_a_token_that_was_renewed_and_served_is_renewed_again() -> None:
    http, asked = fake_http(granted("one", 1e12), granted("two", 1e12), granted("three", 1e12))
    answers = iter([401, 200, 401, 200])

    def server(_: httpx.Request) -> httpx.Response:
        return completion() if next(answers) == 200 else httpx.Response(401, json={"error": {"message": "expired"}})

    found = [build_response(events) for events in ask_often(server, CopilotTokens(Memory(), http), 4)]
    assert [response.text for response in found] == ["", "Hello", "", "Hello"]
    assert [response.error.at_once for response in found if response.error is not None] == [True, True]
    assert len(asked) == 3


def test_a_failed_exchange_is_an_error_event() -> None:
    http, _ = fake_http((503, b"busy"))
    error = build_response(ask(lambda _: completion(), CopilotTokens(Memory(), http))).error
    assert error is not None
    assert (error.kind, error.retryable) == (ErrorKind.OVERLOADED, True)
