"""Gemini: what we send, checked by google-genai's types; what we read, beside what google-genai reads."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter, ValidationError
from support.sdk_types import Lazy
from support.wire import answer, sse

from callboard.protocol.content import (
    AssistantMessage,
    Audio,
    Document,
    Image,
    Message,
    Replay,
    ServerTool,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    Video,
)
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import AudioOut, ModelRequest, Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.server_tools import CodeExecution, FileSearch, RemoteMcp, WebFetch, WebSearch
from callboard.protocol.tools import ToolDefinition
from callboard.providers.gemini.gemini_api import Gemini

genai, types = Lazy("google.genai"), Lazy("google.genai.types")
DATA = "AAECAw=="
GEMINI, VERTEX = Gemini(), Gemini(project="p")
LOOKUP = ToolDefinition(ToolName("lookup"), "Looks up.", {"type": "object", "properties": {"city": {"type": "string"}}})
ASKED = UserMessage(
    (
        Text("Look"),
        Image("image/png", DATA, name="a.png"),
        Image("image/png", url="https://example.org/a.png"),
        Document("application/pdf", DATA),
        Document("application/pdf", file_id="files/a", name="a.pdf"),
        Document(text="1,2", name="a.csv"),
        Audio("audio/wav", DATA),
        Video(url="https://www.youtube.com/watch?v=1", replay=Replay("gemini", {"videoMetadata": {"fps": 1.5}})),
    )
)


def own(kind: str, **told: Any) -> ServerTool:
    return ServerTool(kind, Replay("gemini", {kind: told, "thoughtSignature": "c2ln"}))


ANSWERED = AssistantMessage(
    (
        Text("a", Replay("gemini", {"thoughtSignature": "c2ln"})),
        own("executableCode", language="PYTHON", code="1", id="e"),
        own("codeExecutionResult", outcome="OUTCOME_OK", output="1", id="e"),
        own("toolCall", toolType="GOOGLE_SEARCH_WEB", id="t", args={"queries": ["x"]}),
        own("toolResponse", toolType="GOOGLE_SEARCH_WEB", id="t", response={"a": 1}),
        Image("image/png", DATA, replay=Replay("gemini", {"thoughtSignature": "c2ln"})),
        Audio("audio/L16;rate=24000", DATA),
        ToolCall(CallId("c"), ToolName("lookup"), "{}", replay=Replay("gemini", {"id": "c"})),
    )
)
RESULT = ToolMessage(
    CallId("c"),
    ToolName("lookup"),
    "{}",
    media=(Image("image/png", DATA), Document("application/pdf", url="gs://b/a.pdf"), Document(text="x")),
)
HISTORY: tuple[Message, ...] = (SystemMessage("Brief."), ASKED, ANSWERED, RESULT, UserMessage.of("And?"))
ALL_TOOLS = (
    WebSearch(),
    WebFetch(),
    CodeExecution(),
    FileSearch(("s",), 3),
    RemoteMcp("m", "https://example.org", "t"),
)
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


def official_types() -> dict[str, Any]:
    """Of each field: their models forbid fields that they do not know; there is none of the whole body."""
    return {
        "contents": list[types.Content],
        "systemInstruction": types.Content,
        "tools": list[types.Tool],
        "toolConfig": types.ToolConfig,
        "generationConfig": types.GenerationConfig,
        "serviceTier": types.ServiceTier,
    }


def checked(adapter: Gemini, messages: tuple[Message, ...], model: str, **fields: Any) -> dict[str, Any]:
    sent: dict[str, Any] = json.loads(adapter.encode(ModelRequest(model, messages, **fields)).body)
    assert set(sent) <= set(official_types())
    for name, value in sent.items():
        TypeAdapter(official_types()[name]).validate_json(json.dumps(value))
    return sent


@pytest.mark.parametrize(
    ("adapter", "model", "fields"),
    [
        (GEMINI, "gemini-3-pro", {"tools": (LOOKUP,), "server_tools": ALL_TOOLS, "response_schema": SCHEMA}),
        (GEMINI, "gemini-3-pro", {"tools": (LOOKUP,), "tool_choice": ToolChoice(ToolChoiceMode.REQUIRED)}),
        (GEMINI, "gemini-2.5-pro", {"server_tools": ALL_TOOLS, "response_schema": SCHEMA}),
        (GEMINI, "gemini-2.5-pro", {"tools": (LOOKUP,), "response_schema": SCHEMA, "service_tier": "flex"}),
        (GEMINI, "gemini-3-pro-image", {"images_out": True, "service_tier": "priority"}),
        (GEMINI, "gemini-2.5-flash-preview-tts", {"audio_out": AudioOut("Kore")}),
        (GEMINI, "gemini-3-pro", {"sampling": Sampling(0.5, 0.9, 99, ("END",), 7, "low", 5)}),
        (VERTEX, "gemini-3-pro", {"server_tools": (WebSearch(blocked_domains=("example.org",)), CodeExecution())}),
        (VERTEX, "gemini-3-pro", {"server_tools": (WebSearch(),), "tools": (LOOKUP,), "service_tier": "flex"}),
    ],
)
def test_every_feature_is_valid_by_the_official_types(adapter: Gemini, model: str, fields: dict[str, Any]) -> None:
    messages = HISTORY
    if adapter is VERTEX:
        messages = (UserMessage((Text("Hi"), Video("video/mp4", url="gs://b/a.mp4"))), *HISTORY[2:])
    checked(adapter, messages, model, **fields)


def test_the_official_types_do_refuse() -> None:
    sent = checked(GEMINI, HISTORY, "gemini-3-pro")
    (picture,) = [part for part in sent["contents"][0]["parts"] if part.get("inlineData", {}).get("displayName")]
    picture["inlineData"]["colour"] = "red"
    with pytest.raises(ValidationError):
        TypeAdapter(official_types()["contents"]).validate_json(json.dumps(sent["contents"]))


def official(body: bytes, media_type: str, stream: bool) -> list[types.GenerateContentResponse]:
    """What their client makes of these bytes."""
    headers = {"content-type": media_type}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, headers=headers, content=body))
    options = types.HttpOptions(httpx_client=httpx.Client(transport=transport))
    with genai.Client(api_key="k", http_options=options) as sdk:
        if stream:
            return list(sdk.models.generate_content_stream(model="m", contents="Hi"))
        return [sdk.models.generate_content(model="m", contents="Hi")]


SAID = "Rome is öld."
PARTS: list[dict[str, Any]] = [
    {"text": "Hm", "thought": True},
    {"text": SAID},
    {"executableCode": {"language": "PYTHON", "code": "1", "id": "e"}},
    {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1", "id": "e"}},
    {"toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "id": "t", "args": {"queries": ["rome"]}}},
    {"toolResponse": {"toolType": "GOOGLE_SEARCH_WEB", "id": "t", "response": {"a": 1}}},
    {"inlineData": {"mimeType": "image/png", "data": DATA}, "thoughtSignature": "c2ln"},
    {"inlineData": {"mimeType": "audio/L16;rate=24000", "data": DATA}},
    {"functionCall": {"id": "c", "name": "lookup", "args": {"city": "Rome"}}},
]
CANDIDATE: dict[str, Any] = {
    "content": {"parts": PARTS, "role": "model"},
    "finishReason": "STOP",
    "index": 0,
    "avgLogprobs": -0.5,
    "logprobsResult": {
        "chosenCandidates": [{"token": "Rome", "logProbability": -0.5, "tokenId": 3}],
        "topCandidates": [{"candidates": [{"token": "Rome", "logProbability": -0.5}]}],
    },
    "groundingMetadata": {
        "webSearchQueries": ["rome"],
        "groundingChunks": [{"web": {"uri": "https://a.example", "title": "A"}}],
        "groundingSupports": [
            {
                "segment": {"endIndex": len(SAID.encode()), "partIndex": 1, "text": SAID},
                "groundingChunkIndices": [0],
                "confidenceScores": [0.9],
            }
        ],
        "searchEntryPoint": {"renderedContent": "<b>"},
    },
    "citationMetadata": {"citationSources": [{"startIndex": 0, "endIndex": 4, "uri": "https://b.example"}]},
    "urlContextMetadata": {
        "urlMetadata": [{"retrievedUrl": "https://c.example", "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_SUCCESS"}]
    },
}
DOCUMENT: dict[str, Any] = {
    "candidates": [CANDIDATE],
    "usageMetadata": {
        "promptTokenCount": 7,
        "toolUsePromptTokenCount": 2,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 2,
        "totalTokenCount": 14,
        "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 2}],
    },
    "modelVersion": "gemini-3-pro",
    "responseId": "r1",
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_every_feature_of_an_answer_as_the_official_client_reads_it(stream: bool) -> None:
    body = sse([DOCUMENT], newline="\r\n") if stream else json.dumps(DOCUMENT).encode()
    (theirs,) = official(body, "text/event-stream" if stream else "application/json", stream)
    ours = answer(GEMINI, body, streaming=stream)
    assert theirs.candidates is not None
    candidate, usage = theirs.candidates[0], theirs.usage_metadata
    assert candidate.content is not None
    parts: Any = candidate.content.parts
    assert usage is not None

    # Text, thinking, calls.
    assert ours.text == "".join(part.text for part in parts if part.text and not part.thought)
    assert ours.thinking == "".join(part.text for part in parts if part.text and part.thought)
    calls = [part.function_call for part in parts if part.function_call]
    assert [(each.call_id, each.name, json.loads(each.arguments)) for each in ours.tool_calls] == [
        (each.id, each.name, each.args) for each in calls
    ]
    # Pictures, sound, and blocks of server tools.
    blobs = [part.inline_data for part in parts if part.inline_data]
    media = [part for part in ours.parts if isinstance(part, Image | Audio)]
    assert [(each.media_type, b64decode(each.data_base64)) for each in media] == [
        (each.mime_type, each.data) for each in blobs
    ]
    assert media[0].replay is not None
    (signature,) = [part.thought_signature for part in parts if part.inline_data and part.thought_signature]
    assert media[0].replay.data["thoughtSignature"] == b64encode(signature).decode()
    blocks = [part for part in ours.parts if isinstance(part, ServerTool)]
    code, result, call, response, searched, read = blocks
    assert (code.text, code.call_id) == (parts[2].executable_code.code, parts[2].executable_code.id)
    assert (result.text, result.call_id) == (parts[3].code_execution_result.output, "e")
    assert call.call_id == response.call_id == parts[4].tool_call.id
    # Sources.
    found = candidate.grounding_metadata
    assert found is not None
    assert searched.text == "\n".join(found.web_search_queries or [])
    pages = (candidate.url_context_metadata or types.UrlContextMetadata()).url_metadata or []
    assert read.text == "\n".join(page.retrieved_url or "" for page in pages)
    assert found.grounding_chunks is not None
    web = found.grounding_chunks[0].web
    assert web is not None
    quoted = (candidate.citation_metadata or types.CitationMetadata()).citations or []
    (text,) = [part for part in ours.parts if isinstance(part, Text)]
    grounded, quotation = text.citations
    assert (grounded.url, grounded.title) == (web.uri, web.title)
    supports = found.grounding_supports or []
    assert supports[0].segment is not None
    assert text.text[grounded.start : grounded.end] == supports[0].segment.text
    assert (quotation.url, quotation.start, quotation.end) == (
        quoted[0].uri,
        quoted[0].start_index or 0,
        quoted[0].end_index,
    )
    # What the answer is, and what it cost.
    logprobs = candidate.logprobs_result
    assert logprobs is not None
    assert [(each.token, each.logprob) for each in ours.logprobs] == [
        (each.token, each.log_probability) for each in logprobs.chosen_candidates or []
    ]
    assert candidate.finish_reason is not None
    assert (ours.raw_finish_reason, ours.model, ours.response_id) == (
        candidate.finish_reason.value,
        theirs.model_version,
        theirs.response_id,
    )
    assert ours.usage is not None
    assert ours.usage.total_tokens == usage.total_token_count
    assert ours.usage.reasoning_tokens == usage.thoughts_token_count
    assert (ours.usage.output_image_tokens, ours.usage.web_searches) == (2, 1)
