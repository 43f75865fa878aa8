"""Credentials that expire: when they are renewed, how often, for whom, and what a refusal does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from support.caught import Reply, caught

from callboard.protocol.content import UserMessage
from callboard.protocol.errors import ErrorKind, ProviderError, UsageError
from callboard.protocol.model import Error, ModelRequest, ModelResponse
from callboard.providers.adapter import CREDENTIAL_HEADERS, Authorizer, Timeouts, WireRequest
from callboard.providers.credentials import (
    RENEW_BEFORE_SECONDS,
    CredentialError,
    InThread,
    Key,
    RenewedCredential,
    Token,
    bearer_of,
    token_authorizer,
    with_bearer,
)
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.provider_registry import provider_for
from callboard.providers.response_builder import ResponseBuilder
from callboard.providers.transport import HttpProvider

WIRE = WireRequest("POST", "https://example.org/", {"x-api-key": "old", "content-type": "application/json"}, b"{}")
ASKED = ModelRequest("m", (UserMessage.of("Hi"),), stream=False)
ANSWER = Reply(b'{"choices":[{"index":0,"message":{"content":"ok"},"finish_reason":"stop"}]}')
REFUSED = Reply(b'{"error":{"message":"The token eyJ-token-1-eyJ has expired"}}', 401)


class Clock:
    """Unix time, as a test sets it."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def sent_token(wire: WireRequest) -> str:
    return wire.headers["authorization"].removeprefix("Bearer ")


def numbered(clock: Clock, lifetime: float | None = 3600.0) -> tuple[Callable[[], Token], list[Token]]:
    """A callback whose tokens are numbered, and those it gave."""
    given: list[Token] = []

    def callback() -> Token:
        given.append(Token(f"token-{len(given) + 1}", None if lifetime is None else clock() + lifetime))
        return given[-1]

    return callback, given


def test_a_token_is_kept_until_shortly_before_it_ends() -> None:
    async def tokens() -> list[str]:
        clock = Clock()
        callback, _ = numbered(clock)
        authorizer = bearer_of(callback, clock=clock)
        found = []
        for seconds in (0, 100, 3600 - RENEW_BEFORE_SECONDS - 101, 1, 1):
            clock.now += seconds
            found.append(sent_token(await authorizer.authorize(WIRE)))
        return found

    assert asyncio.run(tokens()) == ["token-1", "token-1", "token-1", "token-2", "token-2"]


def test_a_token_of_unknown_life_is_asked_for_again_each_time() -> None:
    async def tokens() -> list[str]:
        callback, _ = numbered(Clock(), None)
        authorizer = bearer_of(callback)
        return [sent_token(await authorizer.authorize(WIRE)) for _ in range(3)]

    assert asyncio.run(tokens()) == ["token-1", "token-2", "token-3"]


def test_the_token_takes_the_place_of_any_other_credential() -> None:
    wire = asyncio.run(token_authorizer("given").authorize(WIRE))
    assert wire.headers == {"content-type": "application/json", "authorization": "Bearer given"}
    assert "given" not in repr(wire)
    assert "given" not in repr(wire.credential)


class Gate:
    """A source whose renewals wait until they are let through."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.asked = 0

    async def __call__(self, was_refused: bool) -> Token:
        self.asked += 1
        await self.opened.wait()
        return Token(f"token-{self.asked}", time.time() + 3600)


def test_many_callers_share_one_renewal_and_a_cancelled_one_does_not_end_it() -> None:
    async def talk() -> tuple[list[str], int]:
        gate = Gate()
        authorizer = RenewedCredential(gate, with_bearer, todo="do it")
        callers = [asyncio.create_task(authorizer.authorize(WIRE)) for _ in range(20)]
        await asyncio.sleep(0)
        callers[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await callers[0]
        gate.opened.set()
        return [sent_token(await caller) for caller in callers[1:]], gate.asked

    assert asyncio.run(talk()) == (["token-1"] * 19, 1)


def test_a_refused_token_is_not_had_again_from_a_renewal_that_was_under_way() -> None:
    told: list[bool] = []

    async def talk() -> tuple[str, bool]:
        opened = asyncio.Event()

        async def cached(was_refused: bool) -> Token:
            told.append(was_refused)
            await opened.wait()
            return Token("new" if was_refused else "old")

        authorizer = RenewedCredential(cached, with_bearer, todo="do it")
        other = asyncio.create_task(authorizer.authorize(WIRE))
        await asyncio.sleep(0)
        refused = asyncio.create_task(authorizer.is_renewed(replace(WIRE, credential=Token("old"))))
        await asyncio.sleep(0)
        opened.set()
        return sent_token(await other), await refused

    assert asyncio.run(talk()) == ("old", True)
    assert told == [False, True]


def test_a_renewal_goes_on_where_all_its_callers_are_gone() -> None:
    async def talk() -> tuple[str, int]:
        gate = Gate()
        authorizer = RenewedCredential(gate, with_bearer, todo="do it")
        caller = asyncio.create_task(authorizer.authorize(WIRE))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        gate.opened.set()
        return sent_token(await authorizer.authorize(WIRE)), gate.asked

    assert asyncio.run(talk()) == ("token-1", 1)


def test_one_authorizer_serves_several_loops_one_after_the_other() -> None:
    authorizer = token_authorizer("given")
    assert [sent_token(asyncio.run(authorizer.authorize(WIRE))) for _ in range(2)] == ["given"] * 2


def test_a_renewal_has_a_deadline_and_hanging_threads_do_not_pile_up() -> None:
    let_go, started = threading.Event(), []

    def hanging() -> str:
        started.append(threading.current_thread())
        let_go.wait(30)
        return "late"

    async def talk() -> list[CredentialError]:
        authorizer = bearer_of(hanging, seconds=0.05)
        errors = []
        for _ in range(3):
            with pytest.raises(CredentialError) as error:
                await authorizer.authorize(WIRE)
            errors.append(error.value)
        return errors

    errors = asyncio.run(talk())
    let_go.set()
    assert len(started) == 1
    assert started[0].daemon, "a program can end while it hangs"
    assert {str(error) for error in errors} == {
        "no credential came within 0.05 s; look at the callback that was given as token"
    }
    assert all(error.retryable for error in errors)


def test_a_function_that_blocks_runs_off_the_loop() -> None:
    async def talk() -> tuple[int, int]:
        ask = InThread(threading.get_ident)
        return await ask(), threading.get_ident()

    theirs, ours = asyncio.run(talk())
    assert theirs != ours


def test_a_function_that_gets_no_thread_fails_and_is_called_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ask, start = InThread(lambda: "given"), threading.Thread.start

    def refuse(_thread: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        raise RuntimeError("can't start new thread")

    async def talk() -> str:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            await ask()
        return await asyncio.wait_for(ask(), 5)

    assert asyncio.run(talk()) == "given"


async def _given() -> str:
    return "given"


class _AsyncObject:
    async def __call__(self) -> str:
        return "given"


class _Object:
    def __call__(self) -> str:
        return "given"


@pytest.mark.parametrize(
    "callback",
    [lambda: "given", lambda: _given(), _given, partial(_given), _AsyncObject(), _Object(), lambda: Token("given")],
    ids=["function", "lambda of a coroutine", "async", "partial", "async object", "object", "token"],
)
def test_any_kind_of_callback(callback: Callable[[], str | Token | Awaitable[str | Token]]) -> None:
    assert sent_token(asyncio.run(bearer_of(callback).authorize(WIRE))) == "given"


def _fails(error: Exception) -> Callable[[], str]:
    def callback() -> str:
        raise error

    return callback


@pytest.mark.parametrize(
    ("callback", "words", "retryable"),
    [
        (_fails(ValueError("no such tenant")), "the token callback failed: ValueError: no such tenant; look at", False),
        (_fails(ConnectionError("unreachable")), "ConnectionError: unreachable", True),
        (_fails(ValueError("api_key = 'sk-proj-abcdefghijklmnopqrstuvwxyz0123456789'")), "ValueError: api_key", False),
        (lambda: 7, "gave a int, not a str", False),
        (lambda: "two words", "not one word of ASCII", False),
        (lambda: "", "not one word of ASCII", False),
        (lambda: "line\n", "not one word of ASCII", False),
    ],
)
def test_a_callback_that_fails_is_one_sentence(callback: Any, words: str, retryable: bool) -> None:
    with pytest.raises(CredentialError) as caught_error:
        asyncio.run(bearer_of(callback).authorize(WIRE))
    error = caught_error.value
    assert words in str(error)
    assert (error.kind, error.retryable) == (ErrorKind.AUTHENTICATION, retryable)
    assert "abcdefghijklmnop" not in str(error)


# What a refusal does, over HTTP.


async def ask(provider: HttpProvider) -> ModelResponse:
    builder = ResponseBuilder()
    async for events in provider.stream(ASKED):
        builder.feed(events)
    return builder.response()


def asked_twice(authorizer: Authorizer, replies: list[Reply]) -> tuple[list[Error | None], list[str]]:
    """The errors of two calls one after the other, and the tokens that the server saw."""

    async def talk(url: str) -> list[Error | None]:
        provider = HttpProvider(OpenAIChat(base_url=url), authorizer=authorizer)
        try:
            return [(await ask(provider)).error for _ in range(2)]
        finally:
            await provider.aclose()

    with caught(replies) as server:
        errors = asyncio.run(talk(server.url))
        return errors, [request.headers["authorization"].removeprefix("Bearer ") for request in server.requests]


def test_a_refused_token_is_renewed_once_and_the_next_try_needs_no_pause() -> None:
    callback, given = numbered(Clock())
    (refused, answered), seen = asked_twice(bearer_of(callback, clock=Clock()), [REFUSED, ANSWER])
    assert refused is not None
    assert (refused.kind, refused.retryable, refused.at_once) == (ErrorKind.AUTHENTICATION, True, True)
    assert answered is None
    assert seen == ["token-1", "token-2"]
    assert len(given) == 2


def test_a_new_token_that_is_refused_too_is_final() -> None:
    callback, given = numbered(Clock())
    errors, seen = asked_twice(bearer_of(callback, clock=Clock()), [REFUSED])
    assert [error.retryable for error in errors if error is not None] == [True, False]
    assert seen == ["token-1", "token-2"]
    assert len(given) == 2


def test_a_new_token_of_unknown_life_that_is_refused_too_is_final() -> None:
    callback, _ = numbered(Clock(), None)
    errors, _ = asked_twice(bearer_of(callback, clock=Clock()), [REFUSED])
    assert [error.retryable for error in errors if error is not None] == [True, False]


def test_a_renewal_after_a_refusal_takes_no_longer_than_the_call() -> None:
    class Renewing:
        async def authorize(self, wire: WireRequest, /) -> WireRequest:
            return wire

        async def is_renewed(self, refused: WireRequest, /) -> bool:
            await asyncio.Event().wait()
            return True

    async def talk(url: str) -> Error | None:
        timeouts = Timeouts(total_seconds=2.0)
        provider = HttpProvider(OpenAIChat(base_url=url), timeouts=timeouts, authorizer=Renewing())
        try:
            return (await ask(provider)).error
        finally:
            await provider.aclose()

    with caught([REFUSED]) as server:
        error = asyncio.run(talk(server.url))
    assert error is not None
    assert (error.kind, error.retryable) == (ErrorKind.AUTHENTICATION, False)


def test_the_same_token_again_cures_nothing() -> None:
    errors, seen = asked_twice(bearer_of(lambda: "always"), [REFUSED])
    assert [error.retryable for error in errors if error is not None] == [False, False]
    assert seen == ["always", "always"]


def test_a_server_that_repeats_the_token_does_not_show_it() -> None:
    errors, _ = asked_twice(token_authorizer("eyJ-token-1-eyJ"), [REFUSED])
    assert errors[0] is not None
    assert "eyJ-token" not in repr(errors[0])
    assert "has expired" in errors[0].message


def test_without_a_credential_nothing_is_sent_and_the_error_says_what_to_do() -> None:
    errors, seen = asked_twice(bearer_of(_fails(OSError("no route"))), [ANSWER])
    assert seen == []
    assert errors[0] is not None
    assert (errors[0].kind, errors[0].retryable) == (ErrorKind.AUTHENTICATION, True)
    assert errors[0].message.startswith("openai-chat was not asked: the token callback failed: OSError: no route; look")


def test_the_deadline_of_the_call_holds_for_its_credential_too() -> None:
    async def talk() -> Error | None:
        timeouts = Timeouts(total_seconds=0.05)
        authorizer = RenewedCredential(Gate(), with_bearer, todo="do it")
        provider = HttpProvider(OpenAIChat(base_url="http://127.0.0.1:1"), timeouts=timeouts, authorizer=authorizer)
        return (await ask(provider)).error

    error = asyncio.run(talk())
    assert error is not None
    assert (error.kind, error.retryable) == (ErrorKind.AUTHENTICATION, True)
    assert "no credential came in the time of the call" in error.message


def test_cancelling_a_call_that_waits_for_its_credential_is_no_error() -> None:
    async def talk() -> None:
        authorizer = RenewedCredential(Gate(), with_bearer, todo="do it")
        provider = HttpProvider(OpenAIChat(base_url="http://127.0.0.1:1"), authorizer=authorizer)
        task = asyncio.create_task(ask(provider))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(talk())


def test_an_authorizer_of_ones_own() -> None:
    class Mine:
        async def authorize(self, wire: WireRequest, /) -> WireRequest:
            raise ProviderError(ErrorKind.AUTHENTICATION, "log in first")

        async def is_renewed(self, refused: WireRequest, /) -> bool:
            return False

    errors, seen = asked_twice(Mine(), [ANSWER])
    assert (errors[0] and errors[0].message, seen) == ("openai-chat was not asked: log in first.", [])


def test_a_token_for_any_provider() -> None:
    async def talk(url: str) -> ModelResponse:
        provider, name = provider_for("groq/m", base_url=url, token=_given)
        assert isinstance(provider, HttpProvider)
        assert name == "m"
        try:
            return await ask(provider)
        finally:
            await provider.aclose()

    with caught([ANSWER]) as server:
        assert asyncio.run(talk(server.url)).text == "ok"
        assert server.requests[0].headers["authorization"] == "Bearer given"
    with pytest.raises(UsageError, match="a key and a token; leave one of them out"):
        provider_for("groq/m", api_key="k", token="t")


@pytest.mark.parametrize(
    ("model", "given", "header", "value"),
    [
        ("anthropic/m", "sk-vault", "x-api-key", "sk-vault"),
        ("anthropic/m", Token("oauth"), "authorization", "Bearer oauth"),
        ("gemini/m", "sk-vault", "x-goog-api-key", "sk-vault"),
        ("gemini/m", Token("oauth"), "authorization", "Bearer oauth"),
        ("groq/m", "sk-vault", "authorization", "Bearer sk-vault"),
        ("openai/m", Key("sk-vault", 4e9), "authorization", "Bearer sk-vault"),
        ("zai-anthropic/m", "sk-vault", "x-api-key", "sk-vault"),
        ("azure/m", "entra", "authorization", "Bearer entra"),
        ("azure/m", Key("sk-vault"), "api-key", "sk-vault"),
    ],
)
def test_what_a_callback_gives_goes_where_the_api_takes_it(
    model: str, given: str | Token, header: str, value: str
) -> None:
    async def talk(url: str) -> None:
        provider, name = provider_for(model, base_url=url, token=lambda: given)
        try:
            async for _ in provider.stream(replace(ASKED, model=name)):
                pass
        finally:
            await provider.aclose()

    with caught([ANSWER]) as server:
        asyncio.run(talk(server.url))
    headers = server.requests[0].headers
    of_credentials = {name: headers[name] for name in CREDENTIAL_HEADERS if name in headers}
    assert of_credentials == {header: value}
