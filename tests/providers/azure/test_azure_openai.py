"""Azure OpenAI: its addresses and credentials, the official client's requests beside ours, its own kinds of answers."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from support.caught import Reply, Request, caught
from support.sdk_types import Lazy
from support.wire import answer, events, sse

from callboard.protocol.content import UserMessage
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.model import Error, FinishReason, ModelRequest, ModelResponse, ResponseStorage, Sampling, Usage
from callboard.providers.azure.azure_openai import AzureAddress, AzureChat, AzureResponses
from callboard.providers.credentials import Token, token_authorizer
from callboard.providers.openai.background import ResponsesProvider
from callboard.providers.provider_registry import provider_for
from callboard.providers.response_builder import ResponseBuilder
from callboard.providers.transport import HttpProvider

if TYPE_CHECKING:
    import openai
else:
    openai = Lazy("openai")

RESOURCE = "https://res.openai.azure.com"
DATED = "2024-10-21"


PREVIEW = "2025-04-01-preview"
V1_CHAT, V1_RESPONSES = "v1/chat/completions", "v1/responses"
NAMED = "openai/deployments/other"


@pytest.mark.parametrize(
    ("base_url", "version", "chat", "responses", "query"),
    [
        ("", DATED, "deployments/my%20dep/chat/completions", "responses", DATED),
        ("/", PREVIEW, "deployments/my%20dep/chat/completions", "responses", PREVIEW),
        ("/openai", DATED, "deployments/my%20dep/chat/completions", "responses", DATED),
        (f"/{NAMED}", DATED, "deployments/other/chat/completions", "responses", DATED),
        (
            f"/{NAMED}/chat/completions?api-version={DATED}",
            "",
            "deployments/other/chat/completions",
            "responses",
            DATED,
        ),
        ("", "", V1_CHAT, V1_RESPONSES, ""),
        ("/openai/v1/", "", V1_CHAT, V1_RESPONSES, ""),
        ("/openai/v1", "preview", V1_CHAT, V1_RESPONSES, "preview"),
        ("/openai/v1/responses", DATED, V1_CHAT, V1_RESPONSES, ""),
    ],
)
def test_both_kinds_of_addresses(base_url: str, version: str, chat: str, responses: str, query: str) -> None:
    request = ModelRequest("my dep", (UserMessage.of("Hi"),))
    for kind, path in ((AzureChat, chat), (AzureResponses, responses)):
        asked = kind(base_url=RESOURCE + base_url, api_version=version, api_key="k").encode(request)
        assert asked.url == f"{RESOURCE}/openai/{path}{'?api-version=' if query else ''}{query}"
        assert asked.headers["api-key"] == "k"
        assert "authorization" not in asked.headers


@pytest.mark.parametrize(
    ("base_url", "version", "words"),
    [
        (None, DATED, "azure has no address of its own; set AZURE_OPENAI_ENDPOINT"),
        (f"{RESOURCE}/openai/deployments/other", "", "needs the date of an API version: set OPENAI_API_VERSION"),
        ("res.openai.azure.com", DATED, "must start with http"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_at_once(base_url: str | None, version: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        AzureAddress.of(base_url, version)
    for provider in ("azure", "azure-responses"):
        with pytest.raises(UsageError, match=words):
            provider_for(f"{provider}/dep", base_url=base_url, api_key="k", api_version=version)


def test_a_key_is_needed_or_a_token() -> None:
    with pytest.raises(UsageError, match=r"AZURE_OPENAI_API_KEY.*or use an Entra token \(`token=`\)"):
        provider_for("azure/dep", base_url=RESOURCE)
    provider_for("azure/dep", base_url=RESOURCE, token="eyJ")


# The official client's request beside ours.

CHAT_ANSWER = Reply(
    sse([{"choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}]}], done=True),
    headers={"content-type": "text/event-stream"},
)
RESPONSES_ANSWER = Reply(
    b'{"id":"r","object":"response","created_at":0,"model":"m","output":[],"parallel_tool_calls":true,"tool_choice":"auto",'
    b'"tools":[],"status":"completed"}'
)


def ours(url: str, provider: str, request: ModelRequest, **how: Any) -> ModelResponse:
    async def talk() -> ModelResponse:
        found, name = provider_for(f"{provider}/{request.model}", base_url=url, **how)
        assert isinstance(found, HttpProvider)
        builder = ResponseBuilder()
        async for batch in found.stream(
            ModelRequest(name, request.messages, sampling=request.sampling, stream=request.stream)
        ):
            builder.feed(batch)
        await found.aclose()
        return builder.response()

    return asyncio.run(talk())


def compared(mine: Request, official: Request, header: str, fields: set[str]) -> None:
    assert (mine.method, mine.path) == (official.method, official.path)
    assert mine.headers[header] == official.headers[header]
    assert mine.headers["content-type"] == official.headers["content-type"]
    theirs = json.loads(official.body)
    assert {name: value for name, value in json.loads(mine.body).items() if name in fields} == theirs


@pytest.mark.parametrize("entra", [False, True], ids=["key", "entra"])
def test_chat_is_asked_as_the_official_client_asks(entra: bool) -> None:
    given: list[str] = []

    def token() -> str:
        given.append("eyJ.entra.token")
        return given[-1]

    credential = {"azure_ad_token_provider": token} if entra else {"api_key": "azure-key"}
    with caught([CHAT_ANSWER]) as server:
        client = openai.AzureOpenAI(azure_endpoint=server.url, api_version=DATED, max_retries=0, **credential)  # type: ignore[call-overload]
        with client, client.chat.completions.create(
            model="gpt dep", messages=[{"role": "user", "content": "Hi"}], stream=True,
            stream_options={"include_usage": True}, max_completion_tokens=50,
        ) as chunks:  # fmt: skip
            list(chunks)
        how: dict[str, Any] = {"token": token} if entra else {"api_key": "azure-key"}
        request = ModelRequest("gpt dep", (UserMessage.of("Hi"),), sampling=Sampling(max_output_tokens=50))
        response = ours(server.url, "azure", request, api_version=DATED, **how)
        official, mine = server.requests
    assert {"api-key", "authorization"} & mine.headers.keys() == {"api-key", "authorization"} & official.headers.keys()
    assert response.text == "ok"
    compared(mine, official, "authorization" if entra else "api-key", set(json.loads(official.body)))
    assert len(given) == (2 if entra else 0)


@pytest.mark.parametrize("version", [DATED, ""], ids=["dated", "v1"])
def test_responses_are_asked_as_the_official_clients_ask(version: str) -> None:
    with caught([RESPONSES_ANSWER]) as server:
        if version:
            client: openai.OpenAI = openai.AzureOpenAI(
                azure_endpoint=server.url, api_version=version, api_key="azure-key", max_retries=0
            )
        else:  # Microsoft Learn, "API version lifecycle": the plain client, whose key is a bearer token there
            client = openai.OpenAI(base_url=f"{server.url}/openai/v1/", api_key="azure-key", max_retries=0)
        with client:
            asked: Any = [{"type": "message", "role": "user", "content": "Hi"}]
            client.responses.create(model="dep", input=asked, store=False)
        request = ModelRequest("dep", (UserMessage.of("Hi"),), stream=False)
        ours(server.url, "azure-responses", request, api_version=version, api_key="azure-key")
        official, mine = server.requests
    assert mine.headers["api-key"] == "azure-key"
    if version:
        compared(mine, official, "api-key", {"model", "input", "store"})
    else:
        compared(mine, official, "content-type", {"model", "input", "store"})


# Its answers (docs/wire.md quirks 17, 26, 53, 66).

CHAT = AzureChat(base_url=RESOURCE, api_key="azure-key-1234567890")
FILTER = {"hate": {"filtered": False, "severity": "safe"}}


def test_quirk_17_and_53_filter_annotations_before_and_after_the_answer() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    chunks = [
        {"choices": [], "id": "", "model": "", "prompt_filter_results": [{"content_filter_results": FILTER}]},
        {"id": "c1", "model": "gpt", "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]},
        {"id": "c1", "model": "gpt", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"id": "", "model": "", "choices": [{"index": 0, "finish_reason": None, "content_filter_results": FILTER,
                                             "content_filter_offsets": {"start_offset": 0, "end_offset": 2}}]},
        {"id": "c1", "model": "gpt", "choices": [], "usage": usage},
    ]  # fmt: skip
    found = answer(CHAT, sse(chunks, done=True))
    assert (found.text, found.finish_reason, found.usage, found.model) == ("Hi", FinishReason.STOP, Usage(3, 1), "gpt")


def test_quirk_66_a_filtered_answer_without_a_message() -> None:
    document = {"choices": [{"finish_reason": "content_filter", "index": 0, "content_filter_results": FILTER}],
                "usage": {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}}  # fmt: skip
    found = answer(CHAT, json.dumps(document).encode(), streaming=False)
    assert (found.error, found.finish_reason, found.usage) == (None, FinishReason.CONTENT_FILTER, Usage(3, 0))


INNER = {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {"jailbreak": {"filtered": True}}}
FILTERED = {"message": "The response was filtered", "param": "prompt", "code": "content_filter", "status": 400}


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, {**FILTERED, "innererror": INNER}, ErrorKind.CONTENT_FILTER),
        (200, {**FILTERED, "innererror": INNER}, ErrorKind.CONTENT_FILTER),
        (404, {"code": "DeploymentNotFound", "message": "The API deployment does not exist."}, ErrorKind.NOT_FOUND),
        (404, {"code": "404", "message": "Resource not found"}, ErrorKind.NOT_FOUND),
        (401, {"code": "401", "message": "Access denied due to invalid key"}, ErrorKind.AUTHENTICATION),
        (401, {"code": "PermissionDenied", "message": "The principal lacks the data action"}, ErrorKind.PERMISSION),
        (400, {"code": "OperationNotSupported", "message": "does not work with it"}, ErrorKind.UNSUPPORTED),
        (429, {"code": "429", "message": "Requests have exceeded call rate limit."}, ErrorKind.RATE_LIMITED),
        (429, {"code": "RateLimitReached", "message": "Exceeded token rate limit"}, ErrorKind.RATE_LIMITED),
        (400, {"code": "context_length_exceeded", "message": "too long"}, ErrorKind.CONTEXT_LENGTH),
        (503, {"code": "ServiceUnavailable", "message": "busy"}, ErrorKind.OVERLOADED),
    ],
)
def test_its_errors(status: int, error: dict[str, Any], kind: ErrorKind) -> None:
    wait = {"retry-after": "7"} if status == 429 else {}
    headers = {"apim-request-id": "11-22", **wait}
    (found,) = events(CHAT, json.dumps({"error": error}).encode(), status=status, headers=headers)
    assert isinstance(found, Error)
    assert (found.kind, found.provider_request_id) == (kind, "11-22")
    assert found.retryable is (status in (429, 503))
    assert found.retry_after == (7.0 if wait else None)


def test_a_gateways_own_words_for_a_missing_token() -> None:
    body = b'{"statusCode":401,"message":"Unauthorized. Access token is missing, invalid or expired."}'
    (found,) = events(CHAT, body, status=401)
    assert isinstance(found, Error)
    assert (found.kind, "token is missing" in found.message) == (ErrorKind.AUTHENTICATION, True)


def test_an_entra_token_that_has_expired_is_renewed_once() -> None:
    expired = Reply(b'{"error":{"code":"401","message":"Access token has expired"}}', 401)
    tokens = iter(["eyJ.old", "eyJ.new", "eyJ.none"])
    with caught([expired, CHAT_ANSWER]) as server:

        async def talk() -> list[ModelResponse]:
            provider, name = provider_for(
                "azure/dep", base_url=server.url, token=lambda: Token(next(tokens), 10**12), api_version=DATED
            )
            assert isinstance(provider, HttpProvider)
            responses = []
            for _ in range(2):
                builder = ResponseBuilder()
                async for batch in provider.stream(ModelRequest(name, (UserMessage.of("Hi"),))):
                    builder.feed(batch)
                responses.append(builder.response())
            await provider.aclose()
            return responses

        refused, answered = asyncio.run(talk())
        seen = [request.headers["authorization"] for request in server.requests]
    assert refused.error is not None
    assert refused.error.at_once
    assert answered.text == "ok"
    assert seen == ["Bearer eyJ.old", "Bearer eyJ.new"]


def test_questions_about_a_background_answer_carry_version_and_token_too() -> None:
    document = {"id": "resp_1", "object": "response", "model": "m", "output": []}
    text = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "ok", "annotations": []}],
    }
    replies = [
        Reply(json.dumps({**document, "status": "queued"}).encode()),
        Reply(json.dumps({**document, "status": "completed", "output": [text]}).encode()),
    ]
    request = ModelRequest("dep", (UserMessage.of("Hi"),), stream=False, storage=ResponseStorage(background=True))

    async def talk(url: str) -> ModelResponse:
        adapter = AzureResponses(base_url=url, api_version="2025-04-01-preview")
        provider = ResponsesProvider(adapter, authorizer=token_authorizer("eyJ"))
        provider.poll_seconds = (0.0,)
        builder = ResponseBuilder()
        async for batch in provider.stream(request):
            builder.feed(batch)
        await provider.aclose()
        return builder.response()

    with caught(replies) as server:
        assert asyncio.run(talk(server.url)).text == "ok"
        first, second = server.requests
    assert first.path == "/openai/responses?api-version=2025-04-01-preview"
    assert second.path.startswith("/openai/responses/resp_1?")
    assert second.path.endswith("api-version=2025-04-01-preview")
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer eyJ"}
