"""Vertex AI: addresses, the official clients' requests beside ours, and Google's credentials."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from google.auth import exceptions
from google.auth.credentials import Credentials
from support.caught import Reply, Request, caught
from support.sdk_types import Lazy
from support.wire import sse

from callboard.protocol.content import AssistantMessage, Replay, SystemMessage, Text, Thinking, UserMessage
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.model import ModelRequest, ModelResponse, PromptCache, Sampling
from callboard.protocol.server_tools import CodeExecution, WebSearch
from callboard.providers.provider_registry import adapter_for, provider_for
from callboard.providers.response_builder import ResponseBuilder
from callboard.providers.transport import HttpProvider
from callboard.providers.vertex.vertex_api import publisher_of, vertex_host

if TYPE_CHECKING:
    import anthropic
    from google import genai
    from google.genai import types
else:
    anthropic = Lazy("anthropic")
    genai = Lazy("google.genai")
    types = Lazy("google.genai.types")

HI = (SystemMessage("Be brief."), UserMessage.of("Hi"))
GEMINI, CLAUDE = "gemini-3.8-flash", "claude-sonnet-4-5@20250929"
GEMINI_DOCUMENT = {"candidates": [{"content": {"role": "model", "parts": [{"text": "ok"}]}, "finishReason": "STOP"}]}
CLAUDE_DOCUMENT = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "stop_reason": "end_turn",
    "content": [{"type": "text", "text": "ok"}],
    "usage": {"input_tokens": 3, "output_tokens": 1},
}
CLAUDE_EVENTS = [
    {"type": "message_start", "message": {**CLAUDE_DOCUMENT, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ok"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
    {"type": "message_stop"},
]
EVENT_STREAM = {"content-type": "text/event-stream"}


class Fake(Credentials):
    """Credentials whose tokens are numbered, and last for an hour."""

    def __init__(self, *, project: str = "", fails: Exception | None = None) -> None:
        super().__init__()
        self.asked = 0
        self.project_id = project
        self._fails = fails

    def refresh(self, request: Any) -> None:
        if self._fails is not None:
            raise self._fails
        self.asked += 1
        self.token = f"ya29.token-{self.asked}"
        self.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)


def ours(url: str, model: str, request: ModelRequest, times: int = 1, **how: Any) -> list[ModelResponse]:
    async def talk() -> list[ModelResponse]:
        provider, name = provider_for(f"vertex/{model}", base_url=url, **how)
        assert isinstance(provider, HttpProvider)
        found = []
        for _ in range(times):
            builder = ResponseBuilder()
            async for events in provider.stream(ModelRequest(**{**_fields(request), "model": name})):
                builder.feed(events)
            found.append(builder.response())
        await provider.aclose()
        return found

    return asyncio.run(talk())


def _fields(request: ModelRequest) -> dict[str, Any]:
    return {name: getattr(request, name) for name in ModelRequest.__struct_fields__}


@pytest.mark.parametrize(
    ("location", "host"),
    [
        ("global", "https://aiplatform.googleapis.com"),
        ("us", "https://aiplatform.us.rep.googleapis.com"),
        ("eu", "https://aiplatform.eu.rep.googleapis.com"),
        ("europe-west4", "https://europe-west4-aiplatform.googleapis.com"),
    ],
)
def test_hosts_are_those_of_both_official_clients(location: str, host: str) -> None:
    assert vertex_host(location) == host
    theirs = anthropic.AnthropicVertex(region=location, project_id="p", access_token="t")
    assert str(theirs.base_url) == f"{host}/v1/"
    google = genai.Client(vertexai=True, project="p", location=location, credentials=Fake())
    assert google._api_client._http_options.base_url == f"{host}/"


@pytest.mark.parametrize(
    ("name", "publisher", "model"),
    [
        ("gemini-3.8-flash", "google", "gemini-3.8-flash"),
        ("google/gemini-3.8-flash", "google", "gemini-3.8-flash"),
        ("publishers/google/models/gemini-3.8-flash", "google", "gemini-3.8-flash"),
        ("claude-sonnet-5-5", "anthropic", "claude-sonnet-5-5"),
        ("anthropic/claude-sonnet-5-5", "anthropic", "claude-sonnet-5-5"),
    ],
)
def test_whose_model_a_name_is(name: str, publisher: str, model: str) -> None:
    assert publisher_of(name) == (publisher, model)
    assert provider_for(f"vertex/{name}", token="t", project="p")[1] == model


def test_another_publisher_is_refused() -> None:
    with pytest.raises(UsageError, match="has the models of google and anthropic here, not of 'meta'"):
        provider_for("vertex/meta/llama-4", token="t", project="p")


def compared(mine: Request, official: Request, added: tuple[str, ...] = ()) -> None:
    assert (mine.method, mine.path) == (official.method, official.path)
    for header in ("authorization", "content-type"):
        assert mine.headers[header] == official.headers[header]
    my_body, their_body = json.loads(mine.body), json.loads(official.body)
    for name in added:
        assert my_body.pop(name) != their_body.pop(name)
    assert my_body == their_body


@pytest.mark.parametrize("streamed", [True, False])
def test_gemini_is_asked_as_the_official_client_asks(streamed: bool) -> None:
    reply = (
        Reply(sse([GEMINI_DOCUMENT]), headers=EVENT_STREAM) if streamed else Reply(json.dumps(GEMINI_DOCUMENT).encode())
    )
    request = ModelRequest(GEMINI, HI, sampling=Sampling(max_output_tokens=50, temperature=0.5), stream=streamed)
    with caught([reply]) as server:
        client = genai.Client(
            vertexai=True,
            project="my-project",
            location="europe-west4",
            credentials=Fake(),
            http_options=types.HttpOptions(base_url=server.url),
        )
        config = types.GenerateContentConfig(system_instruction="Be brief.", max_output_tokens=50, temperature=0.5)
        if streamed:
            list(client.models.generate_content_stream(model=GEMINI, contents="Hi", config=config))
        else:
            client.models.generate_content(model=GEMINI, contents="Hi", config=config)
        client.close()
        place = {"project": "my-project", "location": "europe-west4"}
        (response,) = ours(server.url, GEMINI, request, credentials=Fake(), **place)
        official, mine = server.requests
    assert response.text == "ok"
    assert mine.headers["authorization"] == "Bearer ya29.token-1"
    body = json.loads(official.body)  # it names the role of the instructions, which have one only
    body["systemInstruction"].pop("role", None)
    compared(mine, Request(official.method, official.path, official.headers, json.dumps(body).encode()))


@pytest.mark.parametrize("streamed", [True, False])
def test_claude_is_asked_as_the_official_client_asks(streamed: bool) -> None:
    reply = (
        Reply(sse(CLAUDE_EVENTS, named=True), headers=EVENT_STREAM)
        if streamed
        else Reply(json.dumps(CLAUDE_DOCUMENT).encode())
    )
    request = ModelRequest(
        CLAUDE, HI, sampling=Sampling(max_output_tokens=50), stream=streamed, prompt_cache=PromptCache.OFF
    )
    with caught([reply]) as server:
        asked: Any = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
        with anthropic.AnthropicVertex(
            region="us-east5",
            project_id="my-project",
            access_token="ya29.token-1",
            base_url=f"{server.url}/v1",
            max_retries=0,
        ) as client:
            found: Any = client.messages.create(
                model=CLAUDE, max_tokens=50, system="Be brief.", messages=asked, stream=streamed
            )
            if streamed:
                list(found)
        place = {"project": "my-project", "location": "us-east5"}
        (response,) = ours(server.url, CLAUDE, request, token="ya29.token-1", **place)
        official, mine = server.requests
    assert response.text == "ok"
    assert mine.path == (
        "/v1/projects/my-project/locations/us-east5/publishers/anthropic/models/claude-sonnet-4-5@20250929:"
        + ("streamRawPredict" if streamed else "rawPredict")
    )
    assert json.loads(mine.body)["anthropic_version"] == "vertex-2023-10-16"
    assert {"anthropic-version", "x-api-key"}.isdisjoint(mine.headers)
    body = json.loads(official.body)
    if not streamed:
        body.pop("stream", None)
    compared(
        mine,
        Request(official.method, official.path, official.headers, json.dumps(body).encode()),
        ("anthropic_version",),
    )


# Credentials.


def test_a_token_needs_a_project_and_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("google.auth.transport")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "google.auth.transport.requests", None)
    provider_for(f"vertex/{GEMINI}", token="t", project="p")
    provider_for(f"vertex/{GEMINI}", api_key="ya29.t", project="p")
    with pytest.raises(UsageError, match="vertex needs a project: set GOOGLE_CLOUD_PROJECT"):
        provider_for(f"vertex/{GEMINI}", token="t")
    with pytest.raises(UsageError, match=r"needs the extra 'vertex'.*pip install"):
        provider_for(f"vertex/{GEMINI}", project="p")


def test_the_project_may_come_with_the_credentials_and_one_token_serves_many_calls() -> None:
    credentials = Fake(project="of-the-key")
    with caught([Reply(json.dumps(GEMINI_DOCUMENT).encode())]) as server:
        ours(server.url, GEMINI, ModelRequest(GEMINI, HI, stream=False), times=3, credentials=credentials)
    assert {request.path for request in server.requests} == {
        f"/v1beta1/projects/of-the-key/locations/global/publishers/google/models/{GEMINI}:generateContent"
    }
    assert credentials.asked == 1


def test_a_refused_token_is_renewed_once() -> None:
    refused = Reply(
        b'{"error":{"code":401,"message":"Request had invalid credentials.","status":"UNAUTHENTICATED"}}', 401
    )
    for model, document in ((GEMINI, GEMINI_DOCUMENT), (CLAUDE, CLAUDE_DOCUMENT)):
        credentials = Fake(project="p")
        with caught([refused, Reply(json.dumps(document).encode())]) as server:
            first, second = ours(server.url, model, ModelRequest(model, HI, stream=False), 2, credentials=credentials)
        assert first.error is not None
        assert (first.error.kind, first.error.at_once) == (ErrorKind.AUTHENTICATION, True)
        assert second.text == "ok"
        tokens = [request.headers["authorization"] for request in server.requests]
        assert tokens == ["Bearer ya29.token-1", "Bearer ya29.token-2"]


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (exceptions.RefreshError("Reauthentication is needed"), False),
        (exceptions.TransportError("no route to the metadata server"), True),
        (exceptions.RefreshError("busy", retryable=True), True),
    ],
)
def test_credentials_that_cannot_be_renewed_say_what_to_do(error: Exception, retryable: bool) -> None:
    with caught() as server:
        (response,) = ours(server.url, GEMINI, ModelRequest(GEMINI, HI), credentials=Fake(project="p", fails=error))
        assert server.requests == []
    assert response.error is not None
    assert (response.error.kind, response.error.retryable) == (ErrorKind.AUTHENTICATION, retryable)
    assert "gcloud auth application-default login" in response.error.message


def test_credentials_without_a_project_say_so() -> None:
    with caught() as server:
        (response,) = ours(server.url, GEMINI, ModelRequest(GEMINI, HI), credentials=Fake())
        assert server.requests == []
    assert response.error is not None
    assert "name no project; set GOOGLE_CLOUD_PROJECT" in response.error.message


def test_the_key_file_of_a_service_account(tmp_path: Path) -> None:
    """Against a token endpoint of our own: the file says where it is."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    answers = [
        Reply(b'{"access_token":"ya29.of-the-file","expires_in":3600,"token_type":"Bearer"}'),
        Reply(json.dumps(GEMINI_DOCUMENT).encode()),
    ]
    file = tmp_path / "key.json"
    with caught(answers) as server:
        account = {"type": "service_account", "project_id": "of-the-file", "private_key": pem, "private_key_id": "1"}
        address = {"client_email": "a@of-the-file.iam.gserviceaccount.com", "token_uri": f"{server.url}/token"}
        file.write_text(json.dumps(account | address))
        (response,) = ours(server.url, GEMINI, ModelRequest(GEMINI, HI, stream=False), credentials_file=file)
    assert response.text == "ok"
    asked_for_a_token, asked = server.requests
    assert (asked_for_a_token.path, b"jwt-bearer" in asked_for_a_token.body) == ("/token", True)
    assert "/projects/of-the-file/" in asked.path
    assert asked.headers["authorization"] == "Bearer ya29.of-the-file"


def test_credentials_of_another_kind_are_refused() -> None:
    with pytest.raises(UsageError, match="takes credentials of google-auth, not a str"):
        provider_for(f"vertex/{GEMINI}", credentials="key.json")


def test_claude_has_its_web_search_there_and_no_other_tool() -> None:
    claude = adapter_for("vertex", project="p", publisher="anthropic")
    sent = json.loads(claude.encode(ModelRequest("claude-sonnet-5-5", HI, server_tools=(WebSearch(),))).body)
    assert [tool["name"] for tool in sent["tools"]] == ["web_search"]
    with pytest.raises(UsageError, match="CodeExecution"):
        claude.encode(ModelRequest("claude-sonnet-5-5", HI, server_tools=(CodeExecution(),)))


def test_signatures_of_claude_are_the_same_at_anthropic_and_there() -> None:
    """Anthropic, "Extended thinking": signatures are compatible across platforms."""
    turn = AssistantMessage((Thinking("Hm.", Replay("anthropic", {"signature": "c2ln"})), Text("Yes.")))
    claude = adapter_for("vertex", project="p", publisher="anthropic")
    body = json.loads(claude.encode(ModelRequest("claude-sonnet-5-5", (HI[1], turn, HI[1]))).body)
    assert {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"} in body["messages"][1]["content"]


def test_the_adapters_by_name() -> None:
    gemini = adapter_for("vertex", project="p")
    claude = adapter_for("vertex", project="p", publisher="anthropic")
    assert (gemini.name, claude.name) == ("vertex", "vertex")
    assert ":streamGenerateContent" in gemini.encode(ModelRequest("m", HI)).url
    assert ":streamRawPredict" in claude.encode(ModelRequest("m", HI)).url
