"""What every API does with a request in the same way, and says in the same words."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from callboard.protocol.content import (
    AssistantMessage,
    Audio,
    Document,
    Image,
    Message,
    Replay,
    ServerTool,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    Video,
)
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import AudioOut, ModelRequest, PromptCache, Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.server_tools import ImageGeneration, RemoteMcp, ServerToolOffer, WebFetch, WebSearch
from callboard.protocol.tools import ToolDefinition
from callboard.providers.adapter import Adapter, WireRequest
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.bedrock.converse_api import Bedrock
from callboard.providers.copilot.copilot_api import Copilot
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.provider_registry import PROVIDERS, adapter_for
from callboard.providers.request_encoding import stand_in

#: An adapter for each API, and a model of its.
APIS: Mapping[str, tuple[Adapter, str]] = {
    "chat": (adapter_for("openai-chat", api_key="k"), "gpt-5"),
    "chat, elsewhere": (adapter_for("cerebras", api_key="k"), "gpt-oss"),
    "responses": (OpenAIResponses(api_key="k"), "gpt-5"),
    "messages": (Anthropic(api_key="k"), "claude-sonnet-4-5"),
    "gemini": (Gemini(api_key="k"), "gemini-3-pro"),
    "vertex": (Gemini(api_key="k", project="p"), "gemini-3-pro"),
    "converse": (Bedrock(region="us-east-1", api_key="k"), "anthropic.claude-sonnet-4-5"),
}
HI = UserMessage.of("Hi")
PNG = "iVBORw0KGgo="
CALL = ToolCall(CallId("call_1"), ToolName("look"), "{}")
every_api = pytest.mark.parametrize("api", APIS)


def wired(api: str, *messages: Message, **fields: Any) -> WireRequest:
    adapter, model = APIS[api]
    return adapter.encode(ModelRequest(model, messages or (HI,), **fields))


def refusal(api: str, **fields: Any) -> str:
    """Why such a request cannot be sent; "" where it can."""
    try:
        wired(api, **fields)
    except UsageError as error:
        return str(error)
    return ""


@every_api
def test_the_bytes_of_a_data_url_are_bytes(api: str) -> None:
    by_url = UserMessage((Text("What?"), Image(url=f"data:image/png;base64,{PNG}")))
    by_bytes = UserMessage((Text("What?"), Image("image/png", PNG)))
    assert wired(api, by_url).body == wired(api, by_bytes).body


@every_api
def test_a_medium_by_two_sources_is_refused(api: str) -> None:
    twice = Image("image/png", PNG, url="https://example.org/a.png")
    shown = ToolMessage(CALL.call_id, CALL.name, "", media=(twice,))
    for history in ((UserMessage((twice,)),), (HI, AssistantMessage((CALL,)), shown)):
        with pytest.raises(UsageError, match=r"Image \(image/png\) has several sources"):
            wired(api, *history)


@every_api
def test_what_another_server_ran_is_left_out_with_a_note(api: str) -> None:
    searched = ServerTool("odd_search_call", Replay("elsewhere", {"type": "odd_search_call"}), "odd_search")
    wire = wired(api, HI, AssistantMessage((searched, Text("Found."))), HI)
    assert b"odd_search" not in wire.body
    [note] = wire.notes
    assert note.startswith("odd_search (a tool of its server) of an earlier answer: ")
    assert note.endswith("takes none back; left out")


@every_api
@pytest.mark.parametrize("with_text", [True, False])
def test_a_file_of_another_providers_answer_is_named_and_noted(api: str, with_text: bool) -> None:
    drawn = Document("application/x-odd", "aWcK", name="plan.odd", replay=Replay("elsewhere", {}))
    parts = (Text("Here it is."), drawn) if with_text else (drawn,)
    wire = wired(api, HI, AssistantMessage(parts), HI)
    assert stand_in(drawn) in json.dumps(json.loads(wire.body), ensure_ascii=False)
    [note] = wire.notes
    assert note.startswith("Document (application/x-odd) of an earlier answer: ")
    assert note.endswith("takes none there; a line of text says what is missing")


@every_api
@pytest.mark.parametrize("media", [Audio("audio/x-odd", "aWcK"), Video("video/x-odd", "aWcK")], ids=["sound", "film"])
def test_a_result_with_what_the_api_does_not_take_goes_out_with_a_line_and_a_note(
    api: str, media: Audio | Video
) -> None:
    shown = ToolMessage(CALL.call_id, CALL.name, "Seen.", media=(media,))
    wire = wired(api, HI, AssistantMessage((CALL,)), shown)
    assert stand_in(media) in json.dumps(json.loads(wire.body), ensure_ascii=False)
    [note] = [note for note in wire.notes if not note.startswith("no tools")]
    assert note.startswith(f"{type(media).__name__} ({media.media_type}) in the result of look: ")


@pytest.mark.parametrize(
    "media",
    [Image(url="https://example.org/a.png"), Image("image/tiff", "aWcK"), Document(file_id="f"), Document("text/odd")],
    ids=["address", "type", "file id", "no source"],
)
def test_a_tool_cannot_end_a_conversation_on_bedrock_by_what_it_shows(media: Image | Document) -> None:
    shown = ToolMessage(CALL.call_id, CALL.name, "Seen.", media=(media,))
    wire = wired("converse", HI, AssistantMessage((CALL,)), shown)
    blocks = json.loads(wire.body)["messages"][-1]["content"][0]["toolResult"]["content"]
    assert blocks == [{"text": "Seen."}, {"text": stand_in(media)}]


@every_api
@pytest.mark.parametrize("offer", [ImageGeneration(), WebFetch(), RemoteMcp("m", "https://example.org")])
def test_a_server_tool_that_is_not_there_is_refused_with_those_that_are(api: str, offer: ServerToolOffer) -> None:
    kind, refused = type(offer).__name__, refusal(api, server_tools=(offer,))
    if refused:
        assert f"{APIS[api][1]} has no {kind} of its own on this API; it has: " in refused
        assert kind not in refused.partition("it has: ")[2]
    else:
        assert api in ("responses", "messages", "gemini", "vertex")


@every_api
@pytest.mark.parametrize("name", ["allowed_domains", "blocked_domains"])
def test_a_search_never_runs_without_its_limits(api: str, name: str) -> None:
    search = {"server_tools": (WebSearch(**{name: ("only.example",)}),)}
    assert refusal(api, **search) or b"only.example" in wired(api, **search).body


@every_api
def test_an_answer_without_sound_is_refused_where_it_has_to_be(api: str) -> None:
    refused = refusal(api, audio_out=AudioOut())
    says = f"{APIS[api][1]} answers without sound on this API"
    assert says in refused if refused else b"audio" in wired(api, audio_out=AudioOut()).body.lower()


@every_api
def test_pictures_of_the_answer_are_made_or_noted(api: str) -> None:
    wire = wired(api, images_out=True)
    assert b"image" in wire.body.lower() or [note for note in wire.notes if note.startswith("images_out: ")]


@every_api
def test_documents_are_cited_or_a_note_says_that_they_are_not(api: str) -> None:
    wire = wired(api, UserMessage((Text("Which?"), Document(text="A page.", citations=True))))
    assert b'"citations":{"enabled":true}' in wire.body or wire.notes == (
        "citations of documents: the API has none; left out",
    )


@every_api
def test_a_longer_cache_is_asked_for_or_noted_once(api: str) -> None:
    wire = wired(api, prompt_cache=PromptCache.ONE_HOUR)
    assert b'"ttl":"1h"' in wire.body or len(wire.notes) == 1


def test_names_of_documents_do_not_collide_on_bedrock() -> None:
    """The third is called what the second would be called."""
    pages = [Document(text="x", name=name) for name in ("a", "a", "a (2)", "a")]
    sent = json.loads(wired("converse", UserMessage((Text("Which?"), *pages))).body)["messages"][0]["content"]
    names = [block["document"]["name"] for block in sent if "document" in block]
    assert len(set(names)) == len(names) == 4


@every_api
@pytest.mark.parametrize("spelled", ["image/jpg", "IMAGE/JPEG"])
def test_a_media_type_may_be_spelled_in_its_usual_ways(api: str, spelled: str) -> None:
    meant = wired(api, UserMessage((Text("What?"), Image("image/jpeg", PNG)))).body
    assert wired(api, UserMessage((Text("What?"), Image(spelled, PNG)))).body == meant


@pytest.mark.parametrize("name", [name for name in PROVIDERS if name not in ("offline", "scripted")])
def test_plain_text_by_its_bytes_is_read_everywhere(name: str) -> None:
    options = {"bedrock": {"region": "us-east-1"}, "openai-compatible": {"base_url": "http://localhost"}}
    azure = {"base_url": "https://r.openai.azure.com"} if name.startswith("azure") else {}
    adapter = adapter_for(name, api_key="k", **{**options.get(name, {}), **azure})
    page = Document("text/markdown", base64.b64encode(b"A page.").decode())
    wire = adapter.encode(ModelRequest("m", (UserMessage((Text("Read"), page)),)))
    assert b"A page." in wire.body or base64.b64encode(b"A page.") in wire.body


@every_api
@pytest.mark.parametrize("mode", [ToolChoiceMode.REQUIRED, ToolChoiceMode.NONE])
def test_a_choice_among_server_tools_alone_is_sent_or_noted(api: str, mode: ToolChoiceMode) -> None:
    search = {"server_tools": (WebSearch(),)}
    if not refusal(api, **search):
        wire = wired(api, **search, tool_choice=ToolChoice(mode))
        assert b'"tool_choice"' in wire.body or wire.notes[-1].startswith(f"tool_choice {mode.value}: ")


@every_api
def test_a_server_tool_offered_twice_is_refused(api: str) -> None:
    assert "server_tools has WebSearch twice" in refusal(api, server_tools=(WebSearch(), WebSearch(max_uses=1)))


@pytest.mark.parametrize(("media_type", "name"), [("text/csv", "document.csv"), ("application/pdf", "document.pdf")])
def test_a_file_without_a_name_gets_one_that_fits_its_type(media_type: str, name: str) -> None:
    for api in ("chat", "responses"):
        wire = wired(api, UserMessage((Text("Read"), Document(media_type, "YSxi"))))
        assert f'"filename":"{name}"' in wire.body.decode()


def test_alternatives_in_logprobs_that_a_server_has_not_are_noted() -> None:
    asked = ModelRequest("m", (HI,), sampling=Sampling(logprobs=3))
    assert "3 alternatives in logprobs: cohere has none" in adapter_for("cohere", api_key="k").encode(asked).notes[0]


def test_a_note_about_the_tool_choice_names_what_was_asked() -> None:
    """Z.ai has neither; with a single tool the one is tried for the other."""
    tool = ToolDefinition(ToolName("look"), "Looks.")
    asked = ModelRequest("m", (HI,), tools=(tool,), tool_choice=ToolChoice(ToolChoiceMode.REQUIRED))
    assert adapter_for("zai", api_key="k").encode(asked).notes[0].startswith("tool_choice required: ")


@every_api
def test_a_picture_of_a_kind_that_no_model_sees_is_refused(api: str) -> None:
    picture = Image("image/svg+xml", "aWcK")
    with pytest.raises(
        UsageError, match=rf"{APIS[api][1]} takes no Image \(image/svg\+xml\) here; it takes .*image/png"
    ):
        wired(api, UserMessage((picture,)))
    shown = ToolMessage(CALL.call_id, CALL.name, "Seen.", media=(picture,))
    wire = wired(api, HI, AssistantMessage((CALL,)), shown)
    assert stand_in(picture) in json.dumps(json.loads(wire.body), ensure_ascii=False)


@pytest.mark.parametrize("route", ["chat", "responses", "messages"])
def test_copilot_hears_of_a_picture_in_a_result(route: str) -> None:
    shown = ToolMessage(CALL.call_id, CALL.name, "Seen.", media=(Image("image/png", PNG),))
    history = (HI, AssistantMessage((CALL,)), shown)
    headers = Copilot(api_key="k", route=route).encode(ModelRequest("m", history)).headers
    assert headers["copilot-vision-request"] == "true"


def test_turns_of_the_models_that_follow_each_other_are_one_where_roles_take_turns() -> None:
    """A paused turn and the rest of it. Templates: "conversation roles must alternate user/assistant"."""
    history = (HI, AssistantMessage((Text("First."),)), AssistantMessage((Text("Then."), CALL)))
    result = ToolMessage(CALL.call_id, CALL.name, "Seen.")
    sent = json.loads(wired("chat, elsewhere", *history, result).body)["messages"]
    assert [each["role"] for each in sent] == ["user", "assistant", "tool"]
    assert sent[1]["content"] == "First.\n\nThen."
    assert len(sent[1]["tool_calls"]) == 1
    assert len(json.loads(wired("chat", *history, result).body)["messages"]) == 4
