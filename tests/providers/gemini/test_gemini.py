"""Gemini: what is sent."""

from __future__ import annotations

from typing import Any

import pytest
from support.validators import gemini as violations
from support.wire import body, header

from callboard.protocol.content import (
    AssistantMessage,
    Image,
    Replay,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import ModelRequest, Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.tools import ToolDefinition
from callboard.providers.gemini.gemini_api import FOREIGN_SIGNATURE, Gemini

ADAPTER = Gemini(api_key="secret-key")
LOOKUP = ToolDefinition(ToolName("lookup"), "Looks up.", {"type": "object", "properties": {"city": {"type": "string"}}})
NOW = ToolDefinition(ToolName("now"), "The time.")


def call(call_id: str, name: str = "lookup", arguments: str = "{}", **more: Any) -> ToolCall:
    return ToolCall(CallId(call_id), ToolName(name), arguments, **more)


def result(call_id: str, content: str = "{}", *, is_error: bool = False) -> ToolMessage:
    return ToolMessage(CallId(call_id), ToolName("lookup"), content, is_error)


@pytest.mark.parametrize(
    ("adapter", "stream", "url"),
    [
        (ADAPTER, True, "https://generativelanguage.googleapis.com/v1beta/models/m:streamGenerateContent?alt=sse"),
        (ADAPTER, False, "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent"),
        (
            Gemini(api_key="t", project="p", location="europe-west4"),
            True,
            "https://europe-west4-aiplatform.googleapis.com/v1beta1/projects/p/locations/europe-west4/publishers/google"
            "/models/m:streamGenerateContent?alt=sse",
        ),
        (
            Gemini(api_key="t", project="p", location="global"),
            False,
            "https://aiplatform.googleapis.com/v1beta1/projects/p/locations/global/publishers/google"
            "/models/m:generateContent",
        ),
    ],
)
def test_the_address(adapter: Gemini, stream: bool, url: str) -> None:
    assert adapter.encode(ModelRequest("m", (UserMessage.of("Hi"),), stream=stream)).url == url


def test_the_credential() -> None:
    request = ModelRequest("m", (UserMessage.of("Hi"),))
    assert header(ADAPTER.encode(request).headers, "x-goog-api-key") == "secret-key"
    assert header(Gemini(api_key="t", project="p").encode(request).headers, "authorization") == "Bearer t"


def test_a_whole_tool_turn() -> None:
    sent = body(
        ADAPTER,
        SystemMessage("Be brief."),
        UserMessage((Text("Look"), Image("image/png", "aWcK"), Image("image/png", url="gs://b/a.png"))),
        AssistantMessage(
            (
                Thinking("Hmm", Replay("gemini", {"thoughtSignature": "s1"})),
                Text("Looking."),
                call(
                    "g1", arguments='{"city": "Rome"}', replay=Replay("gemini", {"id": "g1", "thoughtSignature": "s2"})
                ),
                call("invented"),
            )
        ),
        # In another order than the calls: the API pairs them by place.
        result("invented", "42"),
        result("g1", '{"ok": true}'),
        SystemMessage("Careful now."),
        tools=(LOOKUP, NOW),
    )
    assert violations(sent) == []
    assert sent["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert sent["contents"] == [
        {
            "role": "user",
            "parts": [
                {"text": "Look"},
                {"inlineData": {"mimeType": "image/png", "data": "aWcK"}},
                {"fileData": {"mimeType": "image/png", "fileUri": "gs://b/a.png"}},
            ],
        },
        {
            "role": "model",
            "parts": [
                {"text": "Hmm", "thought": True, "thoughtSignature": "s1"},
                {"text": "Looking."},
                {"functionCall": {"name": "lookup", "args": {"city": "Rome"}, "id": "g1"}, "thoughtSignature": "s2"},
                {"functionCall": {"name": "lookup", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "lookup", "response": {"ok": True}, "id": "g1"}},
                {"functionResponse": {"name": "lookup", "response": {"result": "42"}}},
                {"text": "<system>\nCareful now.\n</system>"},
            ],
        },
    ]
    assert "parametersJsonSchema" in sent["tools"][0]["functionDeclarations"][0]
    assert "parametersJsonSchema" not in sent["tools"][0]["functionDeclarations"][1]


def test_a_tool_that_takes_any_names_says_so() -> None:
    parameters = {"type": "object", "additionalProperties": {"type": "integer"}}
    tools = (ToolDefinition(ToolName("count"), "Count.", parameters),)
    [declared] = body(Gemini(api_key="k"), tools=tools)["tools"][0]["functionDeclarations"]
    assert declared["parametersJsonSchema"] == parameters


def test_failures_say_error() -> None:
    turn = AssistantMessage((call("a"), call("b")))
    results = (result("a", '{"ok": false}', is_error=True), result("b", "no", is_error=True))
    sent = body(ADAPTER, UserMessage.of("Hi"), turn, *results)
    answers = [part["functionResponse"]["response"] for part in sent["contents"][-1]["parts"]]
    assert answers == [{"error": {"ok": False}}, {"error": "no"}]


def test_a_foreign_call_is_marked_once_a_step() -> None:
    foreign = call("c1", replay=Replay("openai-responses", {"phase": "x"}))
    step = (AssistantMessage((foreign, call("c2"))), result("c1"), result("c2"))
    sent = body(ADAPTER, UserMessage.of("Hi"), *step, *step)
    for content in (sent["contents"][1], sent["contents"][3]):
        signatures = [part.get("thoughtSignature") for part in content["parts"]]
        assert signatures == [FOREIGN_SIGNATURE, None]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (ToolChoice(), {"mode": "AUTO"}),
        (ToolChoice(ToolChoiceMode.NONE), {"mode": "NONE"}),
        (ToolChoice(ToolChoiceMode.REQUIRED), {"mode": "ANY"}),
        (ToolChoice(ToolChoiceMode.NAMED, ToolName("lookup")), {"mode": "ANY", "allowedFunctionNames": ["lookup"]}),
    ],
)
def test_tool_choice(choice: ToolChoice, expected: dict[str, Any]) -> None:
    assert body(ADAPTER, tools=(LOOKUP,), tool_choice=choice)["toolConfig"]["functionCallingConfig"] == expected


def test_what_the_api_cannot_be_told_is_noted() -> None:
    tool = ToolDefinition(
        ToolName("f"), "", {"type": "object", "properties": {"n": {"type": "string", "pattern": "a+"}}}, strict=True
    )
    request = ModelRequest("gemini-3-pro", (UserMessage.of("Hi"),), tools=(tool,), parallel_tool_calls=False)
    notes = " | ".join(ADAPTER.encode(request).notes)
    for word in ("parallel_tool_calls", "pattern", "strict"):
        assert word in notes


def test_sampling_and_the_answer_schema() -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, max_output_tokens=99, stop=("END",), seed=7, reasoning_effort="low")
    schema = {"type": "object", "title": "T", "properties": {"n": {"const": "x"}}}
    config = body(ADAPTER, model="gemini-2.5-pro", sampling=sampling, response_schema=schema)["generationConfig"]
    assert config == {
        "temperature": 0.5,
        "topP": 0.9,
        "maxOutputTokens": 99,
        "stopSequences": ["END"],
        "seed": 7,
        "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 1024},
        "responseMimeType": "application/json",
        "responseJsonSchema": {"type": "object", "properties": {"n": {"enum": ["x"]}}},
    }
    level = body(ADAPTER, model="gemini-3-pro", sampling=Sampling(reasoning_effort="high"))["generationConfig"]
    assert level["thinkingConfig"] == {"includeThoughts": True, "thinkingLevel": "high"}


def test_an_image_without_data_is_refused() -> None:
    with pytest.raises(UsageError, match="image"):
        body(ADAPTER, UserMessage((Image(),)))
