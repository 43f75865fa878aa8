"""AWS credentials and signatures: AWS's own test vectors, botocore's own requests beside ours, and what goes wrong."""

from __future__ import annotations

import asyncio
import datetime
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import botocore.auth
import botocore.session
import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.config import Config
from support.caught import Reply, Request, caught
from support.event_frames import stream
from support.sigv4 import signature_faults

from callboard.protocol.content import (
    AssistantMessage,
    Document,
    Image,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import ModelRequest, ModelResponse, PromptCache, Sampling
from callboard.protocol.tools import ToolDefinition
from callboard.providers.adapter import WireRequest
from callboard.providers.bedrock import aws_credentials
from callboard.providers.bedrock.aws_credentials import AwsCredential, signed
from callboard.providers.provider_registry import provider_for
from callboard.providers.response_builder import ResponseBuilder
from callboard.providers.transport import HttpProvider

# The keys of AWS's test suite for Signature Version 4 (aws-sig-v4-test-suite).
ACCESS_KEY, SECRET_KEY = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
SESSION_TOKEN = (
    "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwth"
    "AYCVQWYt93mNbtOnd3FqJvzRVYoUU3JPRnQAmNKhZSbVyCZtQ+ZvGjxNhWxhuUwTrjoXeZMVGdUaEIkZcQPZFXyZTPTTDYgFDsBSvGTMcAtkhBwS2"
    "qYCSCMQoAvQZpTBQGSbLEBXTEOYZTfwnfZNJwCzXkWmUwEXAMPLE=="
)
MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
ANSWER = Reply(
    stream(
        [
            ("messageStart", {"role": "assistant"}),
            ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "ok"}}),
            ("messageStop", {"stopReason": "end_turn"}),
        ]
    ),
    headers={"content-type": "application/vnd.amazon.eventstream"},
)
EXPIRED = Reply(
    b'{"message":"The security token included in the request is expired"}',
    403,
    {"content-type": "application/json", "x-amzn-errortype": "ExpiredTokenException"},
)


@pytest.mark.parametrize(
    ("method", "signature"),
    [
        ("GET", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),  # get-vanilla
        ("POST", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),  # post-vanilla
    ],
)
def test_the_published_vectors(monkeypatch: pytest.MonkeyPatch, method: str, signature: str) -> None:
    moment = datetime.datetime(2015, 8, 30, 12, 36, 0)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: moment)
    monkeypatch.setattr(aws_credentials, "SIGNING_NAME", "service")
    wire = WireRequest(method, "https://example.amazonaws.com/", {}, b"")
    found = signed(wire, AwsCredential(ACCESS_KEY, SECRET_KEY), "us-east-1")
    assert found.headers["x-amz-date"] == "20150830T123600Z"
    assert found.headers["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        f"SignedHeaders=host;x-amz-date, Signature={signature}"
    )


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing of the machine's own: no variables, no files, no metadata server."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION",
                 "AWS_DEFAULT_REGION", "AWS_BEARER_TOKEN_BEDROCK"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


def keys_in_environment(monkeypatch: pytest.MonkeyPatch, token: str = "") -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)


def asked(url: str, request: ModelRequest, times: int = 1, **options: Any) -> list[ModelResponse]:
    async def talk() -> list[ModelResponse]:
        provider, _ = provider_for(f"bedrock/{request.model}", base_url=url, **options)
        assert isinstance(provider, HttpProvider)
        responses = []
        for _ in range(times):
            builder = ResponseBuilder()
            async for events in provider.stream(request):
                builder.feed(events)
            responses.append(builder.response())
        await provider.aclose()
        return responses

    return asyncio.run(talk())


HI = ModelRequest(MODEL, (UserMessage.of("Hi"),))


@pytest.mark.parametrize("token", ["", SESSION_TOKEN], ids=["lasting", "session"])
@pytest.mark.parametrize("model", [MODEL, "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.amazon.nova-2"])
def test_a_request_arrives_as_it_was_signed(monkeypatch: pytest.MonkeyPatch, token: str, model: str) -> None:
    keys_in_environment(monkeypatch, token)
    with caught([ANSWER]) as server:
        (response,) = asked(server.url, ModelRequest(model, HI.messages), region="eu-central-1")
    (arrived,) = server.requests
    assert signature_faults(arrived, SECRET_KEY, scope="eu-central-1/bedrock") == []
    assert signature_faults(arrived, "another key", scope="eu-central-1/bedrock") != []
    assert arrived.headers.get("x-amz-security-token", "") == token
    assert "x-amz-security-token" in arrived.headers["authorization"] or not token
    assert response.text == "ok"


def theirs(operation: str, credential: str, **request: Any) -> Request:
    """botocore's own request: caught on loopback, but with a bearer token just before it is sent, since botocore sends
    one over TLS only."""
    session = botocore.session.Session()
    config = Config(retries={"total_max_attempts": 1})
    with caught([ANSWER if operation == "converse_stream" else Reply()]) as server:
        url = server.url.replace("http:", "https:") if credential == "bearer" else server.url
        client = session.create_client("bedrock-runtime", "us-east-1", endpoint_url=url, config=config)
        if credential == "bearer":
            client.meta.events.register("before-send", lambda request, **_: _kept(server.requests, request))
        answer = getattr(client, operation)(**request)
        if "stream" in answer:
            list(answer["stream"])
        client.close()
    return server.requests[0]


def _kept(requests: list[Request], prepared: Any) -> AWSResponse:
    """Keeps a request in place of sending it."""
    parts = urlsplit(prepared.url)
    headers = {name.lower(): _text(value) for name, value in prepared.headers.items()}
    requests.append(Request(prepared.method, parts.path, headers, prepared.body))
    body = ANSWER.body if parts.path.endswith("-stream") else b"{}"
    raw = SimpleNamespace(stream=lambda **_: iter([body]), close=lambda: None)
    return AWSResponse(prepared.url, 200, HTTPHeaders(), raw)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


TOOL = {"type": "object", "properties": {"city": {"type": "string"}}}
#: The same question, in our words and in botocore's.
OURS = ModelRequest(
    MODEL,
    (
        SystemMessage("Be brief."),
        UserMessage((Text("Look"), Image("image/png", "aWcK"), Document("application/pdf", "cGRm", name="a"))),
        AssistantMessage((Text("Looking."), ToolCall(CallId("call_1"), ToolName("lookup"), '{"city": "Rome"}'))),
        ToolMessage(CallId("call_1"), ToolName("lookup"), "sunny"),
    ),
    tools=(ToolDefinition(ToolName("lookup"), "Looks up.", TOOL),),
    prompt_cache=PromptCache.OFF,
    sampling=Sampling(max_output_tokens=20_000, reasoning_effort="none", stop=("END",)),
)
THEIRS: dict[str, Any] = {
    "modelId": MODEL,
    "system": [{"text": "Be brief."}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"text": "Look"},
                {"image": {"format": "png", "source": {"bytes": b"ig\n"}}},
                {"document": {"format": "pdf", "name": "a", "source": {"bytes": b"pdf"}}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"text": "Looking."},
                {"toolUse": {"toolUseId": "call_1", "name": "lookup", "input": {"city": "Rome"}}},
            ],
        },
        {"role": "user", "content": [{"toolResult": {"toolUseId": "call_1", "content": [{"text": "sunny"}]}}]},
    ],
    "toolConfig": {
        "tools": [{"toolSpec": {"name": "lookup", "description": "Looks up.", "inputSchema": {"json": TOOL}}}]
    },
    "inferenceConfig": {"maxTokens": 20_000, "stopSequences": ["END"]},
}


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("credential", ["keys", "session", "bearer"])
def test_the_request_of_the_official_client(monkeypatch: pytest.MonkeyPatch, streamed: bool, credential: str) -> None:
    if credential == "bearer":
        monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "bedrock-api-key-abc")
    else:
        keys_in_environment(monkeypatch, SESSION_TOKEN if credential == "session" else "")
    request = ModelRequest(**{**{name: getattr(OURS, name) for name in OURS.__struct_fields__}, "stream": streamed})
    with caught([ANSWER if streamed else Reply()]) as server:
        key = "bedrock-api-key-abc" if credential == "bearer" else None
        asked(server.url, request, region="us-east-1", api_key=key)
    (ours,) = server.requests
    official = theirs("converse_stream" if streamed else "converse", credential, **THEIRS)
    assert (ours.method, ours.path) == (official.method, official.path)
    assert json.loads(ours.body) == json.loads(official.body)
    assert ours.headers["content-type"] == official.headers["content-type"]
    if credential == "bearer":
        assert ours.headers["authorization"] == official.headers["authorization"] == "Bearer bedrock-api-key-abc"
        return
    assert ours.headers.get("x-amz-security-token") == official.headers.get("x-amz-security-token")
    for each in (ours, official):  # theirs too: the check is AWS's, and not ours
        assert signature_faults(each, SECRET_KEY, scope="us-east-1/bedrock") == []


# Where the credentials come from, and what goes wrong.


def test_keys_and_region_of_a_profile(no_credentials: Path) -> None:
    (no_credentials / "config").write_text("[profile work]\nregion = ap-south-1\n")
    (no_credentials / "credentials").write_text(
        f"[work]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    with caught([ANSWER]) as server:
        (response,) = asked(server.url, HI, profile="work")
    assert response.text == "ok"
    assert signature_faults(server.requests[0], SECRET_KEY, scope="ap-south-1/bedrock") == []


def test_keys_that_were_renewed_in_their_file_are_read_again_after_a_refusal(no_credentials: Path) -> None:
    """As `aws sso login` and other tools write them, while we run."""
    file = no_credentials / "credentials"
    keys = "[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n"
    file.write_text(keys.format("AKIDOLD", "old"))

    async def talk(url: str) -> list[ModelResponse]:
        provider, _ = provider_for(f"bedrock/{MODEL}", base_url=url, region="us-east-1")
        assert isinstance(provider, HttpProvider)
        responses = []
        for round_ in range(3):
            builder = ResponseBuilder()
            async for events in provider.stream(HI):
                builder.feed(events)
            responses.append(builder.response())
            if round_ == 0:
                file.write_text(keys.format(ACCESS_KEY, SECRET_KEY))
        await provider.aclose()
        return responses

    with caught([EXPIRED, EXPIRED, ANSWER]) as server:
        same, renewed, answered = asyncio.run(talk(server.url))
    assert same.error is not None
    assert renewed.error is not None
    assert (same.error.kind, same.error.retryable) == (ErrorKind.AUTHENTICATION, False), "they were still the same"
    assert (renewed.error.retryable, renewed.error.at_once) == (True, True)
    assert answered.text == "ok"
    users = [request.headers["authorization"].partition("=")[2].partition("/")[0] for request in server.requests]
    assert users == ["AKIDOLD", "AKIDOLD", ACCESS_KEY]


def test_without_credentials_the_error_says_what_to_do() -> None:
    with caught([ANSWER]) as server:
        (response,) = asked(server.url, HI, region="us-east-1")
        assert server.requests == []
    assert response.error is not None
    assert (response.error.kind, response.error.retryable) == (ErrorKind.AUTHENTICATION, False)
    assert response.error.message.startswith(
        "bedrock was not asked: there are no AWS credentials here; sign in (`aws sso"
    )


def test_a_signature_that_is_refused_is_shown_without_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS repeats what it has read, the session token too."""
    keys_in_environment(monkeypatch, SESSION_TOKEN)
    message = f"The Canonical String should have been 'x-amz-security-token:{SESSION_TOKEN}'"
    headers = {"x-amzn-errortype": "InvalidSignatureException"}
    with caught([Reply(json.dumps({"message": message}).encode(), 403, headers)]) as server:
        (response,) = asked(server.url, HI, region="us-east-1")
    assert response.error is not None
    assert response.error.kind is ErrorKind.AUTHENTICATION
    assert "should have been" in response.error.message
    assert "AQoDYXdz" not in repr(response.error)


def test_what_is_missing_is_said_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="bedrock needs a region: set AWS_REGION"):
        provider_for(f"bedrock/{MODEL}")
    with pytest.raises(UsageError, match="bedrock needs a region"):
        provider_for(f"bedrock/{MODEL}", api_key="k")
    with pytest.raises(UsageError, match=r"configuration cannot be used: ProfileNotFound.*nobody"):
        provider_for(f"bedrock/{MODEL}", profile="nobody")
    monkeypatch.setitem(__import__("sys").modules, "botocore.session", None)
    with pytest.raises(UsageError, match=r"needs the extra 'bedrock'.*pip install"):
        provider_for(f"bedrock/{MODEL}", region="us-east-1")
    for name in [name for name in __import__("sys").modules if name.partition(".")[0] == "botocore"]:
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(UsageError, match=r"needs the extra 'bedrock'.*pip install"):
        provider_for(f"bedrock/{MODEL}")  # the region would be asked for there too
    provider_for(f"bedrock/{MODEL}", region="us-east-1", api_key="k")  # needs no extra
