"""OpenAI Responses: parts, server tools, citations, stored answers; each request valid by the official SDK's types."""

from __future__ import annotations

import base64
import json
from typing import Any, cast

import pytest
from pydantic import ValidationError
from support.sdk_types import adapter_of, check_typed, exhaust
from support.validators import responses as violations
from support.wire import answer, body, events, sse

from callboard.protocol.content import (
    AssistantMessage,
    Audio,
    Citation,
    Document,
    Image,
    Media,
    Message,
    Replay,
    ServerTool,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    Video,
)
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import (
    AudioOut,
    CitationDelta,
    Error,
    FinishReason,
    MediaDelta,
    ModelRequest,
    ModelResponse,
    ResponseStorage,
    Sampling,
    TokenLogprob,
    ToolChoice,
    ToolChoiceMode,
    Usage,
)
from callboard.protocol.server_tools import CodeExecution, FileSearch, ImageGeneration, RemoteMcp, WebFetch, WebSearch
from callboard.protocol.tools import ToolDefinition
from callboard.providers.openai.responses_api import OpenAIResponses

ADAPTER = OpenAIResponses(api_key="secret-key")
ORIGIN = "openai-responses"
HI = UserMessage.of("Hi")
PDF = "JVBERi0xLjQK"
BODY = "openai.types.responses.response_create_params.ResponseCreateParamsStreaming"
ITEM = "openai.types.responses.ResponseInputItemParam"


def sent(*messages: Message, adapter: OpenAIResponses = ADAPTER, **fields: Any) -> dict[str, Any]:
    """The body, which the SDK's types allow."""
    found = body(adapter, *messages, **{"model": "gpt-5", **fields})
    check_typed(found, BODY)
    for item in found["input"]:
        exhaust(adapter_of(ITEM).validate_python(item))
    if "previous_response_id" not in found and "tools" not in found:
        assert [fault for fault in violations(found) if "unknown item" not in fault] == []
    return found


def notes(*messages: Message, **fields: Any) -> tuple[str, ...]:
    return ADAPTER.encode(ModelRequest(fields.pop("model", "gpt-5"), messages, **fields)).notes


def done(*output: dict[str, Any], **more: Any) -> dict[str, Any]:
    response = {"id": "resp_1", "model": "gpt-5", "status": "completed", "output": list(output), **more}
    return {"type": "response.completed", "response": response}


def both(*output: dict[str, Any], **more: Any) -> ModelResponse:
    """What a stream of these items tells, which is what the whole answer tells."""
    ends = [
        {"type": "response.output_item.done", "output_index": number, "item": item}
        for number, item in enumerate(output)
    ]
    end = done(*output, **more)
    turn = answer(ADAPTER, sse([*ends, end]))
    assert answer(ADAPTER, json.dumps(end["response"]).encode(), streaming=False) == turn
    return turn


def message(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": text, **more}]}


def again(turn: ModelResponse, **fields: Any) -> list[dict[str, Any]]:
    """The items that a later request carries of this turn."""
    found: list[dict[str, Any]] = sent(HI, turn.message, UserMessage.of("More"), **fields)["input"][1:-1]
    return found


# Parts.

PARTS: list[tuple[Any, dict[str, Any]]] = [
    (Image("image/png", "aWcK"), {"type": "input_image", "image_url": "data:image/png;base64,aWcK", "detail": "auto"}),
    (Image(url="https://x.org/a"), {"type": "input_image", "image_url": "https://x.org/a", "detail": "auto"}),
    (Image(file_id="file-1"), {"type": "input_image", "file_id": "file-1", "detail": "auto"}),
    (
        Document("application/pdf", PDF, name="a.pdf"),
        {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
    ),
    (
        Document("application/pdf", PDF),
        {"type": "input_file", "filename": "document.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
    ),
    (Document(url="https://x.org/a.pdf"), {"type": "input_file", "file_url": "https://x.org/a.pdf"}),
    (Document(file_id="file-2", name="b"), {"type": "input_file", "file_id": "file-2"}),
]


@pytest.mark.parametrize(("part", "written"), PARTS, ids=lambda value: type(value).__name__)
def test_parts_of_a_user_and_of_a_result(part: Media, written: dict[str, Any]) -> None:
    call = AssistantMessage((ToolCall(CallId("c"), ToolName("look"), "{}"),))
    shown = ToolMessage(CallId("c"), ToolName("look"), "seen", media=(part,))
    found = sent(UserMessage((Text("Look"), cast("Image", part))), call, shown)["input"]
    assert found[0]["content"] == [{"type": "input_text", "text": "Look"}, written]
    assert found[-1]["output"] == [{"type": "input_text", "text": "seen"}, written]


def test_a_plain_text_goes_as_a_text_file() -> None:
    (part,) = sent(UserMessage((Document(text="naïve", name="a.md"),)))["input"][0]["content"]
    kind, _, data = part["file_data"].partition(";base64,")
    assert (part["filename"], kind, base64.b64decode(data).decode()) == ("a.md", "data:text/plain", "naïve")


@pytest.mark.parametrize("part", [Audio("audio/wav", "UklG"), Video(url="https://x.org/a.mp4")], ids=["audio", "video"])
def test_a_part_that_the_api_has_not_is_refused_by_name(part: Audio | Video) -> None:
    with pytest.raises(
        UsageError, match=rf"gpt-5.*takes no {type(part).__name__}.*text, Image \(image/png, .*\), Document"
    ):
        body(ADAPTER, UserMessage((part,)), model="gpt-5")


def test_a_medium_that_a_result_cannot_show_is_named_in_a_text_and_a_note() -> None:
    call = AssistantMessage((ToolCall(CallId("c"), ToolName("say"), "{}"),))
    history = (HI, call, ToolMessage(CallId("c"), ToolName("say"), "", media=(Audio("audio/wav", "UklG", name="hi"),)))
    (part,) = sent(*history)["input"][-1]["output"]
    assert part["type"] == "input_text"
    assert "Audio (audio/wav) hi" in part["text"]
    assert any("Audio" in note for note in notes(*history))


def test_sound_cannot_be_asked_for() -> None:
    with pytest.raises(UsageError, match="without sound"):
        body(ADAPTER, HI, audio_out=AudioOut())


# Server tools that are offered.

OFFERS: list[tuple[Any, dict[str, Any]]] = [
    (WebSearch(), {"type": "web_search"}),
    (
        WebSearch(allowed_domains=("x.org",), country="FR", city="Paris", timezone="Europe/Paris"),
        {
            "type": "web_search",
            "filters": {"allowed_domains": ["x.org"]},
            "user_location": {"type": "approximate", "country": "FR", "city": "Paris", "timezone": "Europe/Paris"},
        },
    ),
    (CodeExecution(), {"type": "code_interpreter", "container": {"type": "auto"}}),
    (CodeExecution(("f",)), {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["f"]}}),
    (FileSearch(("vs_1",), 3), {"type": "file_search", "vector_store_ids": ["vs_1"], "max_num_results": 3}),
    (
        RemoteMcp("crm", "https://x.org/mcp", "tok", ("find",), {"x-team": "a"}),
        {
            "type": "mcp",
            "server_label": "crm",
            "server_url": "https://x.org/mcp",
            "require_approval": "never",
            "authorization": "tok",
            "headers": {"x-team": "a"},
            "allowed_tools": ["find"],
        },
    ),
    (ImageGeneration("1024x1024", "low"), {"type": "image_generation", "size": "1024x1024", "quality": "low"}),
]


@pytest.mark.parametrize(("offer", "written"), OFFERS, ids=lambda value: type(value).__name__)
def test_server_tools_are_offered_beside_ours(offer: Any, written: dict[str, Any]) -> None:
    look = ToolDefinition(ToolName("look"), "Looks.")
    found = sent(HI, tools=(look,), server_tools=(offer,))
    assert [tool["type"] for tool in found["tools"]] == ["function", written["type"]]
    assert found["tools"][1] == written
    assert sent(HI, server_tools=(offer,))["tools"] == [written]


def test_a_servers_tool_can_be_demanded() -> None:
    found = sent(HI, server_tools=(WebSearch(),), tool_choice=ToolChoice(ToolChoiceMode.REQUIRED))
    assert found["tool_choice"] == "required"
    assert "tool_choice" not in sent(HI, server_tools=(WebSearch(),))


def test_what_a_tool_found_is_asked_for_with_it() -> None:
    found = sent(HI, server_tools=(CodeExecution(), FileSearch(("v",))), model="gpt-4o")
    assert found["include"] == ["code_interpreter_call.outputs", "file_search_call.results"]


def test_knobs_that_the_api_has_not_are_noted_and_tools_that_it_has_not_are_refused() -> None:
    assert notes(HI, server_tools=(WebSearch(max_uses=3),)) == ("WebSearch.max_uses: the API has none; left out",)
    with pytest.raises(UsageError, match=r"WebSearch\.blocked_domains"):
        body(ADAPTER, HI, server_tools=(WebSearch(blocked_domains=("y.org",)),))
    with pytest.raises(UsageError, match="no WebFetch of its own on this API; it has: WebSearch, CodeExecution"):
        body(ADAPTER, HI, server_tools=(WebFetch(),))


def test_pictures_are_made_by_a_tool() -> None:
    assert sent(HI, images_out=True)["tools"] == [{"type": "image_generation"}]
    assert len(sent(HI, images_out=True, server_tools=(ImageGeneration("1024x1024"),))["tools"]) == 1


# Items of server tools that came.

ITEMS: dict[str, tuple[dict[str, Any], str, str]] = {
    "search": (
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "rain", "queries": ["rain", "rain in Rome"]},
        },
        "web_search",
        "rain\nrain in Rome",
    ),
    "page": (
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "open_page", "url": "u"}},
        "web_search",
        "u",
    ),
    "files": (
        {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["a", "b"], "results": None},
        "file_search",
        "a\nb",
    ),
    "code": (
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "status": "completed",
            "code": "print(1)",
            "container_id": "cntr_1",
            "outputs": [{"type": "logs", "logs": "1\n"}],
        },
        "code_execution",
        "print(1)\n1\n",
    ),
    "mcp": (
        {
            "type": "mcp_call",
            "id": "mcp_1",
            "server_label": "crm",
            "name": "find",
            "arguments": '{"q":1}',
            "output": "Ada",
            "error": None,
        },
        "find",
        'crm\n{"q":1}\nAda',
    ),
    "mcp tools": (
        {
            "type": "mcp_list_tools",
            "id": "mcpl_1",
            "server_label": "crm",
            "tools": [{"name": "find", "input_schema": {"type": "object"}}],
        },
        "mcp_list_tools",
        "crm\nfind",
    ),
    "compaction": ({"type": "compaction", "id": "cmp_1", "encrypted_content": "ZW5j"}, "compaction", ""),
}


@pytest.mark.parametrize("name", ITEMS)
def test_quirk_73_an_item_of_a_servers_tool_is_shown_and_goes_back(name: str) -> None:
    item, tool, says = ITEMS[name]
    turn = both(item, message("Done."))
    assert turn.parts == (ServerTool(item["type"], Replay(ORIGIN, item), tool, "", says), Text("Done."))
    assert again(turn)[0] == item
    assert notes(HI, turn.message, HI) == ()
    # Another provider cannot read it.
    assert len(again(turn, adapter=OpenAIResponses(name="other"))) == 1


def test_fields_that_a_request_must_have_are_filled_in_and_those_that_it_may_not_are_left_out() -> None:
    code = {"type": "code_interpreter_call", "id": "ci", "container_id": "c"}
    compaction = {"type": "compaction", "id": "cmp", "encrypted_content": "E", "created_by": "api"}
    first, second = again(both(code, compaction, message("Done.")))[:2]
    assert first == {**code, "status": "completed", "code": None, "outputs": None}
    assert second == {"type": "compaction", "id": "cmp", "encrypted_content": "E"}


LEFT_OUT = {
    "a search without its action": ({"type": "web_search_call", "id": "ws"}, "without its action"),
    "a custom call": (
        {"type": "custom_tool_call", "call_id": "c", "name": "sql", "input": "select 1"},
        "without its custom_tool_call_output",
    ),
    "an approval": (
        {"type": "mcp_approval_request", "id": "m", "name": "f", "arguments": "{}", "server_label": "s"},
        "without its mcp_approval_response",
    ),
    "a click": ({"type": "computer_call", "id": "cu", "call_id": "c"}, "without its computer_call_output"),
    "a later kind": ({"type": "telepathy_call", "id": "t", "query": "q"}, "not known here"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_quirk_73_an_item_that_cannot_go_back_is_shown_and_noted(name: str) -> None:
    item, why = LEFT_OUT[name]
    turn = both(item, message("Done."))
    assert turn.finish_reason is FinishReason.STOP
    assert isinstance(turn.parts[0], ServerTool)
    assert [each["type"] for each in again(turn)] == ["message"]
    (note,) = notes(HI, turn.message, HI)
    assert item["type"] in note
    assert why in note


def test_a_servers_call_goes_back_together_with_its_output() -> None:
    call = {"type": "shell_call", "call_id": "s1", "action": {"commands": ["ls"]}, "status": "completed"}
    output = {
        "type": "shell_call_output",
        "call_id": "s1",
        "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    }
    turn = both(call, output, message("Done."))
    assert [(part.name, part.call_id, part.text) for part in turn.parts if isinstance(part, ServerTool)] == [
        ("shell", "s1", "ls"),
        ("shell", "s1", "a"),
    ]
    assert again(turn)[:2] == [call, output]


def test_searches_are_counted_and_pages_that_were_opened_are_not() -> None:
    usage = {"input_tokens": 9, "output_tokens": 2}
    found = both(ITEMS["search"][0], ITEMS["page"][0], {**ITEMS["search"][0], "id": "ws_2"}, usage=usage).usage
    assert found == Usage(9, 2, web_searches=2)


def test_an_item_whose_reasoning_cannot_go_back_stays_away_with_it() -> None:
    """ "Item 'ws_..' of type 'web_search_call' was provided without its required 'reasoning' item"."""
    turn = both({"type": "reasoning", "id": "rs", "summary": []}, ITEMS["search"][0], message("Done."))
    assert [each["type"] for each in again(turn)] == ["message"]
    assert [note.split(":")[0] for note in notes(HI, turn.message, HI)] == ["reasoning", "web_search_call"]


# Calls of ours.


def test_a_calls_namespace_and_caller_go_back_with_it_and_its_output() -> None:
    caller = {"type": "program", "caller_id": "prog_1"}
    call = {"type": "function_call", "id": "fc", "call_id": "c", "name": "look", "arguments": "{}"}
    turn = both({**call, "namespace": "crm", "caller": caller})
    result = ToolMessage(CallId("c"), ToolName("look"), "ok")
    found = sent(HI, turn.message, result)["input"]
    assert (found[1]["namespace"], found[1]["caller"]) == ("crm", caller)
    assert found[2] == {"type": "function_call_output", "call_id": "c", "output": "ok", "caller": caller}
    stored = ResponseStorage(previous_response_id="resp_1")
    assert sent(HI, turn.message, result, storage=stored)["input"] == [found[2]]
    assert both(call).tool_calls[0].replay is None


# Reasoning.


@pytest.mark.parametrize(
    ("model", "base_url", "goes_back"),
    [
        ("my-deployment", "https://x.openai.azure.com/openai/v1", True),
        ("gpt-4-prod", "https://x.openai.azure.com/openai/v1", True),
        ("grok-4", "https://api.x.ai/v1", True),
        ("openai.gpt-oss-120b", "https://bedrock-mantle.us-east-1.api.aws/v1", True),
        ("gpt-4o", None, False),
    ],
)
def test_quirk_72_what_came_encrypted_goes_back_and_is_asked_for_again(
    model: str, base_url: str | None, goes_back: bool
) -> None:
    item = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "ENC"}
    compaction = {"type": "compaction", "id": "cmp", "encrypted_content": "C"}
    turn = both(item, compaction, message("Yes"))
    adapter = OpenAIResponses(base_url=base_url)
    found = sent(HI, turn.message, HI, model=model, adapter=adapter)
    assert (item in found["input"]) is goes_back
    assert ("include" in found) is goes_back
    assert compaction in found["input"]


def test_quirk_72_who_asks_for_an_effort_gets_the_reasoning_encrypted() -> None:
    effort = Sampling(reasoning_effort="low")
    assert sent(HI, model="my-deployment", sampling=effort)["include"] == ["reasoning.encrypted_content"]
    assert "include" not in sent(HI, model="my-deployment")


def test_plain_reasoning_goes_back_too_and_bare_reasoning_is_noted() -> None:
    """llama.cpp, vLLM and LM Studio give gpt-oss's own words."""
    plain = {
        "type": "reasoning",
        "id": "rs",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm"}],
        "encrypted_content": "",
    }
    turn = both(plain, message("Yes"))
    assert turn.thinking == "Hm"
    assert again(turn)[0] == plain
    bare = both({"type": "reasoning", "id": "rs", "summary": []}, message("Yes"))
    assert any("reasoning" in note for note in notes(HI, bare.message, HI))


# Citations, pictures, log probabilities.

ANNOTATIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"type": "url_citation", "url": "https://x.org", "title": "X", "start_index": 0, "end_index": 5},
        {"url": "https://x.org", "title": "X", "start": 0, "end": 5},
    ),
    (
        {"type": "file_citation", "file_id": "f", "filename": "a.pdf", "index": 2},
        {"file_id": "f", "title": "a.pdf", "document": 2},
    ),
    (
        {
            "type": "container_file_citation",
            "container_id": "c",
            "file_id": "f",
            "filename": "a.png",
            "start_index": 1,
            "end_index": 4,
        },
        {"file_id": "f", "title": "a.png", "start": 1, "end": 4},
    ),
    ({"type": "file_path", "file_id": "f", "index": 0}, {"file_id": "f", "document": 0}),
]


def test_citations_are_on_the_text_whichever_way_they_come() -> None:
    raw = [annotation for annotation, _ in ANNOTATIONS]
    cited = tuple(Citation(**fields, raw=annotation) for annotation, fields in ANNOTATIONS)
    item = message("Hello", annotations=raw)
    assert both(item).parts == (Text("Hello", None, cited),)
    place = {"output_index": 0, "content_index": 0, "item_id": "msg_1"}
    added = [
        {"type": "response.output_text.annotation.added", **place, "annotation": each, "annotation_index": number}
        for number, each in enumerate(raw[:3])
    ]
    stream = [
        {"type": "response.output_text.delta", **place, "delta": "Hello"},
        *added,
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        done(item),
    ]
    found = events(ADAPTER, sse(stream))
    assert [len(event.citations) for event in found if isinstance(event, CitationDelta)] == [1, 1, 1, 1]
    assert answer(ADAPTER, sse(stream)).parts == (Text("Hello", None, cited),)
    # What was said goes back; a text of the model's has no place for its sources.
    assert again(both(item)) == [{"type": "message", "role": "assistant", "content": "Hello"}]


def test_pictures_come_as_parts_and_go_back_whole() -> None:
    item = {
        "type": "image_generation_call",
        "id": "ig_1",
        "status": "completed",
        "result": "aWcK",
        "output_format": "webp",
        "revised_prompt": "a cat",
    }
    stream = [
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "result": None}},
        {"type": "response.image_generation_call.partial_image", "output_index": 0, "partial_image_b64": "eHg="},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        done(item),
    ]
    (picture,) = [event.media for event in events(ADAPTER, sse(stream)) if isinstance(event, MediaDelta)]
    assert (picture.media_type, picture.data_base64) == ("image/webp", "aWcK")
    turn = both(item)
    assert turn.parts == (picture,)
    assert again(turn) == [item]
    failed = both({**item, "result": None, "error": {"message": "refused"}, "status": "failed"}, message("No."))
    assert isinstance(failed.parts[0], ServerTool)
    assert "refused" in failed.parts[0].text


def test_a_picture_of_another_model_is_named_in_a_text_and_a_note() -> None:
    turn = AssistantMessage((Text("Here: "), Image("image/png", "aWcK", replay=Replay("gemini", {"x": 1}))))
    (item,) = sent(HI, turn, HI)["input"][1:-1]
    assert item["content"].startswith("Here: [Image (image/png)")
    assert any("Image" in note for note in notes(HI, turn, HI))


def test_log_probabilities_are_asked_for_and_read() -> None:
    found = sent(HI, model="gpt-4.1", sampling=Sampling(logprobs=2))
    assert found["top_logprobs"] == 2
    assert "message.output_text.logprobs" in found["include"]
    raw = [
        {
            "token": "Hi",
            "logprob": -0.5,
            "bytes": [72, 105],
            "top_logprobs": [{"token": "Ho", "logprob": -2, "bytes": []}],
        },
        {"token": "!", "logprob": -1, "bytes": [33], "top_logprobs": []},
    ]
    expected = (TokenLogprob("Hi", -0.5, (("Ho", -2.0),)), TokenLogprob("!", -1.0))
    assert both(message("Hi!", logprobs=raw)).logprobs == expected
    # Servers that tell them in deltas only.
    deltas = [
        {"type": "response.output_text.delta", "output_index": 0, "delta": each["token"], "logprobs": [each]}
        for each in raw
    ]
    assert answer(ADAPTER, sse([*deltas, done(message("Hi!"))])).logprobs == expected
    assert both(message("Hi!", logprobs=[7, {"token": 1}, None])).logprobs == ()


def test_the_ids_the_tier_and_the_model_that_answered() -> None:
    assert sent(HI, service_tier="flex")["service_tier"] == "flex"
    stream = sse([done(message("Hi"), service_tier="default", model="gpt-5-2026-01-01")])
    turn = answer(ADAPTER, stream, headers={"X-Request-Id": "req_1"})
    assert (turn.response_id, turn.service_tier, turn.model) == ("resp_1", "default", "gpt-5-2026-01-01")
    assert turn.provider_request_id == "req_1"


# Stored answers.


def test_what_the_server_keeps_is_not_sent_again() -> None:
    turn = AssistantMessage((Text("Yes"), ToolCall(CallId("c"), ToolName("look"), "{}")))
    result = ToolMessage(CallId("c"), ToolName("look"), "ok")
    history = (SystemMessage("Be brief."), HI, turn, result, UserMessage.of("And?"))
    found = sent(*history, storage=ResponseStorage(store=True, previous_response_id="resp_1"))
    assert (found["instructions"], found["previous_response_id"], found["store"]) == ("Be brief.", "resp_1", True)
    assert found["input"] == [
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
        {"type": "message", "role": "user", "content": "And?"},
    ]
    assert len(sent(*history, storage=ResponseStorage(store=True))["input"]) == 5
    only_new = sent(UserMessage.of("And?"), storage=ResponseStorage(previous_response_id="resp_1"))
    assert (len(only_new["input"]), only_new["store"]) == (1, False)
    background = sent(HI, storage=ResponseStorage(background=True))
    assert (background["background"], background["store"]) == (True, True)
    assert "background" not in sent(HI)
    with pytest.raises(UsageError, match="at least one message"):
        body(ADAPTER, HI, turn.__class__((Text("Yes"),)), storage=ResponseStorage(previous_response_id="resp_1"))


def test_the_call_ids_of_a_stored_turn_stay_as_the_server_knows_them() -> None:
    turn = AssistantMessage((ToolCall(CallId("c:0"), ToolName("look"), "{}"),))
    result = ToolMessage(CallId("c:0"), ToolName("look"), "ok")
    stored = ResponseStorage(previous_response_id="resp_2")
    (item,) = sent(HI, turn, result, turn, result, storage=stored)["input"]
    assert item["call_id"] == "c:0"


# Ends.


@pytest.mark.parametrize("kind", ["completed", "incomplete"])
def test_an_error_in_a_response_that_calls_itself_whole_is_an_error(kind: str) -> None:
    error = {"code": "server_error", "message": "Oops"}
    end = {**done(message("Hi"), error=error, status=kind), "type": f"response.{kind}"}
    for data, how in ((sse([end]), True), (json.dumps(end["response"]).encode(), False)):
        found = events(ADAPTER, data, streaming=how)[-1]
        assert isinstance(found, Error)
        assert (found.kind, found.message) == (ErrorKind.SERVER, "Oops")


def test_quirk_69_a_status_that_is_not_known_makes_no_half_call_whole() -> None:
    call = {"type": "function_call", "id": "fc", "call_id": "c", "name": "look", "arguments": "", "status": "completed"}
    turn = both(call, status="interrupted")
    assert (turn.finish_reason, turn.raw_finish_reason) == (FinishReason.OTHER, "interrupted")
    assert [each.complete for each in turn.tool_calls] == [False]


def test_a_last_event_that_says_otherwise_than_its_status() -> None:
    cut = {**done(message("Hi"), status="incomplete", incomplete_details={"reason": "max_output_tokens"})}
    assert answer(ADAPTER, sse([cut])).finish_reason is FinishReason.LENGTH
    failed = answer(ADAPTER, sse([done(status="failed")])).error
    assert failed is not None
    assert failed.kind is ErrorKind.SERVER
    lazy = done(message("Hi"), status="in_progress")
    assert answer(ADAPTER, sse([lazy])).finish_reason is FinishReason.STOP


def test_unknown_events_tell_nothing_and_unknown_items_are_shown() -> None:
    stream = [
        {"type": "response.telepathy.delta", "delta": "?"},
        {"type": "keepalive", "sequence_number": 4},
        done({"type": "telepathy_call", "id": "t", "query": "q"}),
    ]
    turn = answer(ADAPTER, sse(stream))
    assert [(part.name, part.text) for part in turn.parts if isinstance(part, ServerTool)] == [("telepathy", "q")]
    error = answer(ADAPTER, sse([{"type": "server_fault", "error": {"message": "Oops"}}])).error
    assert error is not None


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({}, None),
        (
            {"input_tokens": 5, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 9}},
            Usage(14, 2, cached_tokens=9),
        ),
        (
            {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7, "input_tokens_details": {"cached_tokens": 9}},
            Usage(14, 2, cached_tokens=9),
        ),
        (
            {"input_tokens": 5, "output_tokens": 2, "output_tokens_details": {"reasoning_tokens": 8}},
            Usage(5, 10, reasoning_tokens=8),
        ),
        (
            {"input_tokens": 5, "output_tokens": 2, "total_tokens": 16, "input_tokens_details": {"cached_tokens": 9}},
            Usage(14, 2, cached_tokens=9),
        ),
        (
            {
                "input_tokens": 5,
                "output_tokens": 2,
                "total_tokens": 15,
                "output_tokens_details": {"reasoning_tokens": 8},
            },
            Usage(5, 10, reasoning_tokens=8),
        ),
    ],
    ids=[
        "none",
        "more cached than asked",
        "by its total too",
        "more reasoned than answered",
        "the cached beside",
        "the reasoning beside",
    ],
)
def test_quirk_80_usage_is_right_or_not_known(usage: dict[str, Any], expected: Usage | None) -> None:
    assert both(message("Hi"), usage=usage).usage == expected


def test_the_sdks_types_do_refuse() -> None:
    with pytest.raises(ValidationError):
        adapter_of(ITEM).validate_python({"type": "web_search_call", "status": "completed"})
    thinking = Thinking("", Replay(ORIGIN, {"type": "reasoning", "summary": [], "encrypted_content": "E"}))
    with pytest.raises(ValidationError):  # an id that the server left out is not invented
        sent(HI, AssistantMessage((thinking, Text("Yes"))))


def test_quirk_10_arguments_that_are_an_object() -> None:
    call = {"type": "function_call", "id": "f", "call_id": "c", "name": "look", "arguments": {"n": 1}}
    turn = both(call)
    assert [(each.arguments, each.complete) for each in turn.tool_calls] == [('{"n":1}', True)]
    ended = {"type": "response.function_call_arguments.done", "output_index": 0, "arguments": {"n": 1}}
    added = {"type": "response.output_item.added", "output_index": 0, "item": {**call, "arguments": ""}}
    assert answer(ADAPTER, sse([added, ended, done(call)])).tool_calls == turn.tool_calls
