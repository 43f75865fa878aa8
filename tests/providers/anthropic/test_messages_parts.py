"""Anthropic Messages: pictures, documents, results that show media, citations; and what the API does not take."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from support.wire import answer, body, events, header, sse

from callboard.protocol.content import (
    AssistantMessage,
    Audio,
    Citation,
    Document,
    Image,
    Media,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    Video,
)
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import (
    CitationDelta,
    ModelRequest,
    PromptCache,
    ResponseStorage,
    Sampling,
)
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.request_encoding import stand_in

ADAPTER = Anthropic(api_key="k", headers={"Anthropic-Beta": "mine-2026-01-01"})
PDF = b64encode(b"%PDF-1.7").decode()


def block_of(media: Media, adapter: Anthropic = ADAPTER) -> dict[str, Any]:
    message = UserMessage((media,))  # type: ignore[arg-type]
    (block,) = body(adapter, message, prompt_cache=PromptCache.OFF)["messages"][0]["content"]
    return block  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("media", "block"),
    [
        (
            Image("image/jpg", "aWcK"),
            {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "aWcK"}},
        ),
        (
            Image(url="data:image/png;base64,aWcK"),
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aWcK"}},
        ),
        (Image(file_id="file_1"), {"type": "image", "source": {"type": "file", "file_id": "file_1"}}),
        (
            Document("application/pdf", PDF, name="Report"),
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
                "title": "Report",
            },
        ),
        (
            Document(url="https://example.org/a.pdf", citations=True),
            {
                "type": "document",
                "source": {"type": "url", "url": "https://example.org/a.pdf"},
                "citations": {"enabled": True},
            },
        ),
        (
            Document(text="Grüße"),
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Grüße"}},
        ),
        (
            Document("text/markdown", b64encode("# Grüße".encode()).decode()),
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "# Grüße"}},
        ),
        (Document(file_id="file_2"), {"type": "document", "source": {"type": "file", "file_id": "file_2"}}),
    ],
    ids=["jpg", "data url", "file", "pdf", "pdf by url", "plain text", "markdown", "document file"],
)
def test_what_a_user_shows(media: Media, block: dict[str, Any]) -> None:
    assert block_of(media) == block


def test_files_are_asked_for_beside_the_callers_own_betas() -> None:
    request = ModelRequest("c", (UserMessage((Image(file_id="file_1"),)),))
    assert header(ADAPTER.encode(request).headers, "anthropic-beta") == "mine-2026-01-01,files-api-2025-04-14"
    plain = ModelRequest("c", (UserMessage.of("Hi"),))
    assert header(ADAPTER.encode(plain).headers, "anthropic-beta") == "mine-2026-01-01"
    assert header(Anthropic(api_key="k").encode(plain).headers, "anthropic-beta") is None


@pytest.mark.parametrize(
    ("media", "says"),
    [
        (Audio("audio/wav", "aWcK"), r"claude-x takes no Audio \(audio/wav\)"),
        (Video("video/mp4", url="https://example.org/a.mp4"), r"no Video \(video/mp4\)"),
        (Image("image/tiff", "aWcK"), r"no Image \(image/tiff\).*takes text, Image \(image/jpeg, image/png"),
        (Document("application/msword", "aWcK"), r"no Document \(application/msword\).*application/pdf, text/plain"),
        (Document("text/html", url="https://example.org/a.html"), r"no Document \(text/html\)"),
        (Document("text/plain", b64encode(b"\xff\xfe").decode()), "UTF-8"),
        (Image("image/png"), "data_base64"),
    ],
    ids=["audio", "video", "tiff", "word", "page", "no text", "nothing"],
)
def test_what_claude_does_not_take_is_refused_by_its_name(media: Media, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        body(ADAPTER, UserMessage((media,)), model="claude-x")  # type: ignore[arg-type]


def result(*media: Media, content: str = "Here", is_error: bool = False) -> tuple[Any, ...]:
    turn = AssistantMessage((ToolCall(CallId("t"), ToolName("f"), "{}"),))
    return (UserMessage.of("Hi"), turn, ToolMessage(CallId("t"), ToolName("f"), content, is_error, media))


def test_a_result_shows_its_media_behind_its_text() -> None:
    sent = body(ADAPTER, *result(Image("image/png", "aWcK"), Document(text="A page")), prompt_cache=PromptCache.OFF)
    (shown,) = sent["messages"][2]["content"]
    assert [block["type"] for block in shown["content"]] == ["text", "image", "document"]
    sent = body(ADAPTER, *result(Image("image/png", "aWcK"), content="", is_error=True))
    (shown,) = sent["messages"][2]["content"]
    assert ([block["type"] for block in shown["content"]], shown["is_error"]) == (["image"], True)


def test_what_a_result_cannot_show_is_named_and_noted() -> None:
    wire = ADAPTER.encode(ModelRequest("claude-x", result(Audio("audio/wav", "aWcK", name="song.wav"))))
    (shown,) = json.loads(wire.body)["messages"][2]["content"]
    assert [block["type"] for block in shown["content"]] == ["text", "text"]
    assert "song.wav" in shown["content"][1]["text"]
    assert [note for note in wire.notes if "Audio" in note]


def test_a_picture_of_an_earlier_answer_is_named_and_noted() -> None:
    turn = AssistantMessage((Text("Look:"), Image("image/png", "aWcK")))
    wire = ADAPTER.encode(ModelRequest("claude-x", (UserMessage.of("Draw"), turn, UserMessage.of("More"))))
    said = json.loads(wire.body)["messages"][1]["content"]
    assert [block["text"] for block in said] == ["Look:", stand_in(turn.parts[1])]  # type: ignore[arg-type]
    assert [note for note in wire.notes if "Image" in note]


# Knobs.


def test_the_service_tier_is_asked_for_and_told() -> None:
    assert body(ADAPTER, service_tier="standard_only")["service_tier"] == "standard_only"
    wire = ADAPTER.encode(ModelRequest("c", (UserMessage.of("Hi"),), service_tier="flex"))
    assert "service_tier" not in json.loads(wire.body)
    assert [note for note in wire.notes if "flex" in note]


def test_knobs_that_the_api_lacks_are_noted() -> None:
    request = ModelRequest(
        "c", (UserMessage.of("Hi"),), sampling=Sampling(logprobs=2, seed=1), storage=ResponseStorage(store=True)
    )
    assert [note.split(":")[0] for note in ADAPTER.encode(request).notes] == ["storage", "seed", "logprobs"]


def test_pictures_that_claude_cannot_make_are_noted() -> None:
    wire = ADAPTER.encode(ModelRequest("c", (UserMessage.of("Hi"),), images_out=True))
    assert wire.notes == ("images_out: the API has none; left out",)


def test_newer_models_are_asked_to_show_their_thinking() -> None:
    """They answer with an empty text beside the signature otherwise."""
    effort = Sampling(reasoning_effort="high")
    assert body(ADAPTER, model="claude-opus-4-8", sampling=effort)["thinking"] == {
        "type": "adaptive",
        "display": "summarized",
    }


# What the answer says of itself.


def test_the_ids_and_the_tier_of_an_answer() -> None:
    whole = {
        "type": "message",
        "id": "msg_1",
        "model": "claude-x",
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 1, "service_tier": "priority"},
    }
    turn = answer(ADAPTER, json.dumps(whole).encode(), streaming=False, headers={"Request-Id": "req_1"})
    assert (turn.response_id, turn.provider_request_id, turn.service_tier) == ("msg_1", "req_1", "priority")
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}
    start = {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}
    streamed = answer(ADAPTER, sse([start, end, {"type": "message_stop"}]), headers={"request-id": "req_1"})
    assert (streamed.response_id, streamed.provider_request_id, streamed.service_tier) == (
        "msg_1",
        "req_1",
        "priority",
    )


def test_a_refusal_says_why() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "Not this."}
    end = {"type": "message_delta", "delta": {"stop_reason": "refusal", "stop_details": details}, "usage": {}}
    turn = answer(ADAPTER, sse([{"type": "message_start", "message": {}}, end, {"type": "message_stop"}]))
    assert (turn.raw_finish_reason, turn.notes) == ("refusal", ("refusal: cyber: Not this.",))


def test_citations_and_a_schema_exclude_each_other() -> None:
    asked = UserMessage((Document(text="A page", citations=True),))
    with pytest.raises(UsageError, match="drop response_schema or citations"):
        body(ADAPTER, asked, response_schema={"type": "object", "properties": {}})


# Citations.

OF_DOCUMENT = {
    "type": "char_location",
    "cited_text": "The grass is green.",
    "document_index": 1,
    "document_title": "Facts",
    "start_char_index": 0,
    "end_char_index": 20,
    "file_id": None,
}
OF_PAGE = {
    "type": "web_search_result_location",
    "cited_text": "It is green.",
    "url": "https://example.org",
    "title": "Green",
    "encrypted_index": "ENC",
}
OF_SEARCH = {
    "type": "search_result_location",
    "cited_text": "Green.",
    "source": "https://example.org/s",
    "title": None,
    "search_result_index": 0,
    "start_block_index": 0,
    "end_block_index": 1,
}
CITED = (
    Citation("", "Facts", "The grass is green.", document=1, raw=OF_DOCUMENT),
    Citation("https://example.org", "Green", "It is green.", raw=OF_PAGE),
    Citation("https://example.org/s", "", "Green.", raw=OF_SEARCH),
)


def cited_stream() -> bytes:
    start: dict[str, Any] = {"type": "message_start", "message": {"id": "m", "model": "claude-x"}}
    documents = [start]

    def say(kind: str, index: int, **more: Any) -> None:
        documents.append({"type": f"content_block_{kind}", "index": index, **more})

    say("start", 0, content_block={"type": "text", "text": "", "citations": None})
    say("delta", 0, delta={"type": "text_delta", "text": "I read: "})
    say("stop", 0)
    say("start", 1, content_block={"type": "text", "text": "", "citations": []})
    say("delta", 1, delta={"type": "citations_delta", "citation": OF_DOCUMENT})
    for piece in ("the grass", " is green"):
        say("delta", 1, delta={"type": "text_delta", "text": piece})
    for citation in (OF_PAGE, OF_SEARCH):
        say("delta", 1, delta={"type": "citations_delta", "citation": citation})
    say("stop", 1)
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}}
    return sse([*documents, end, {"type": "message_stop"}], named=True)


def test_citations_belong_to_their_block_and_go_back_with_it() -> None:
    turn = answer(ADAPTER, cited_stream(), [1])
    assert turn.parts == (Text("I read: "), Text("the grass is green", None, CITED))
    sent = body(ADAPTER, UserMessage.of("Hi"), turn.message, UserMessage.of("More"))
    assert sent["messages"][1]["content"] == [
        {"type": "text", "text": "I read: "},
        {"type": "text", "text": "the grass is green", "citations": [OF_DOCUMENT, OF_PAGE, OF_SEARCH]},
    ]


def test_a_whole_answer_has_the_same_citations() -> None:
    content = [
        {"type": "text", "text": "I read: "},
        {"type": "text", "text": "the grass is green", "citations": [OF_DOCUMENT, OF_PAGE, OF_SEARCH]},
    ]
    whole = {"type": "message", "content": content, "stop_reason": "end_turn"}
    turn = answer(ADAPTER, json.dumps(whole).encode(), streaming=False)
    assert turn.parts == answer(ADAPTER, cited_stream()).parts
    found = events(ADAPTER, json.dumps(whole).encode(), streaming=False)
    assert [event.citations for event in found if isinstance(event, CitationDelta)] == [CITED]


def test_another_providers_citations_stay_here_and_senseless_ones_cost_nothing() -> None:
    foreign = Text("So.", None, (Citation("https://example.org", raw={"type": "url_citation"}),))
    sent = body(ADAPTER, UserMessage.of("Hi"), AssistantMessage((foreign,)), UserMessage.of("More"))
    assert sent["messages"][1]["content"] == [{"type": "text", "text": "So."}]
    for wrong in (None, [], "text", 7, {"type": 3, "url": 4, "document_index": "x"}):
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": wrong}}
        start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hi"}}
        end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
        turn = answer(ADAPTER, sse([start, delta, end, {"type": "message_stop"}]))
        assert (turn.text, turn.error) == ("Hi", None), wrong
