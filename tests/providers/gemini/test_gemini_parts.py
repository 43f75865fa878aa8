"""Gemini: pictures, sound, films and files, asked, answered and in results; blocks of server tools."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from support.validators import gemini as violations
from support.wire import answer, body, sse

from callboard.protocol.content import (
    AssistantMessage,
    Audio,
    Document,
    Image,
    Media,
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
from callboard.protocol.model import AudioOut, ModelRequest, PromptCache, ResponseStorage, Sampling
from callboard.providers.gemini.gemini_api import FOREIGN_SIGNATURE, Gemini

ADAPTER = Gemini()
VERTEX = Gemini(project="p")
#: The four bytes 0, 1, 2, 3.
BYTES = "AAECAw=="
PNG = Image("image/png", BYTES)
FILES = "https://generativelanguage.googleapis.com/v1beta/files/"


def said(*parts: Any, adapter: Gemini = ADAPTER, **fields: Any) -> list[dict[str, Any]]:
    sent = body(adapter, UserMessage(parts), **fields)
    assert violations(sent) == []
    found: list[dict[str, Any]] = sent["contents"][0]["parts"]
    return found


@pytest.mark.parametrize(
    ("media", "expected"),
    [
        (PNG, {"inlineData": {"mimeType": "image/png", "data": BYTES}}),
        (
            Document("application/pdf", BYTES, name="a.pdf"),
            {"inlineData": {"mimeType": "application/pdf", "data": BYTES, "displayName": "a.pdf"}},
        ),
        (Document("text/markdown", BYTES), {"inlineData": {"mimeType": "text/markdown", "data": BYTES}}),
        (Audio("audio/wav", BYTES), {"inlineData": {"mimeType": "audio/wav", "data": BYTES}}),
        (Audio("audio/L16;rate=24000", BYTES), {"inlineData": {"mimeType": "audio/L16;rate=24000", "data": BYTES}}),
        (Video("video/mp4", BYTES), {"inlineData": {"mimeType": "video/mp4", "data": BYTES}}),
        (
            Video(url="https://www.youtube.com/watch?v=1"),
            {"fileData": {"fileUri": "https://www.youtube.com/watch?v=1"}},
        ),
        (
            Video("video/mp4", url="gs://b/a.mp4", replay=Replay("gemini", {"videoMetadata": {"fps": 2}})),
            {"fileData": {"mimeType": "video/mp4", "fileUri": "gs://b/a.mp4"}, "videoMetadata": {"fps": 2}},
        ),
        (
            Document("application/pdf", file_id="files/abc"),
            {"fileData": {"mimeType": "application/pdf", "fileUri": f"{FILES}abc"}},
        ),
        (Document(file_id="abc"), {"fileData": {"fileUri": f"{FILES}abc"}}),
        (Document(file_id=f"{FILES}abc"), {"fileData": {"fileUri": f"{FILES}abc"}}),
        (Document(text="1,2", name="a.csv"), {"text": '<document name="a.csv">\n1,2\n</document>'}),
        (
            Image("image/png", BYTES, replay=Replay("gemini", {"thoughtSignature": "of an answer"})),
            {"inlineData": {"mimeType": "image/png", "data": BYTES}},
        ),
        (
            Image("image/png", BYTES, replay=Replay("anthropic", {"x": 1})),
            {"inlineData": {"mimeType": "image/png", "data": BYTES}},
        ),
    ],
)
def test_each_medium_by_each_source(media: Any, expected: dict[str, Any]) -> None:
    assert said(Text("Look"), media, Text("well")) == [{"text": "Look"}, expected, {"text": "well"}]


@pytest.mark.parametrize(
    ("media", "words"),
    [
        (Image("image/gif", BYTES), ["Image (image/gif)", "gemini-x", "image/png"]),
        (Audio("audio/midi", BYTES), ["Audio (audio/midi)", "audio/wav"]),
        (Video("video/x-matroska", url="gs://b/a"), ["Video (video/x-matroska)", "video/mp4"]),
        (Document("application/zip", BYTES), ["Document (application/zip)", "application/pdf", "text/*"]),
        (Image("application/pdf", BYTES), ["Image (application/pdf)"]),
        (Image(data_base64=BYTES), ["media_type"]),
        (Audio(), ["Audio", "data_base64"]),
        (Image("image/png", BYTES, url="https://example.org/a.png"), ["several sources"]),
        (Document("text/plain", file_id="files/a", text="a"), ["several sources"]),
    ],
)
def test_a_medium_that_the_api_does_not_take_is_refused_by_name(media: Media, words: list[str]) -> None:
    with pytest.raises(UsageError) as refused:
        said(media, model="gemini-x")
    assert all(word in str(refused.value) for word in words), refused.value


def test_vertex_keeps_no_files() -> None:
    with pytest.raises(UsageError, match=r"Vertex AI keeps no files.*gs://"):
        said(Document(file_id="abc"), adapter=VERTEX)
    assert said(Document(file_id="gs://b/a.pdf"), adapter=VERTEX) == [{"fileData": {"fileUri": "gs://b/a.pdf"}}]


def test_citations_of_documents_are_noted() -> None:
    request = ModelRequest("m", (UserMessage((Document(text="a", citations=True),)),))
    assert any("citations" in note for note in ADAPTER.encode(request).notes)


# In results.

CALL = ToolCall(CallId("c"), ToolName("look"), "{}")


def result_of(*media: Media, model: str, content: str = "{}", is_error: bool = False) -> tuple[dict[str, Any], str]:
    """The functionResponse, and the notes."""
    message = ToolMessage(CallId("c"), ToolName("look"), content, is_error, media)
    request = ModelRequest(model, (UserMessage.of("Hi"), AssistantMessage((CALL,)), message))
    sent = ADAPTER.encode(request)
    decoded = json.loads(sent.body)
    assert violations(decoded) == []
    found: dict[str, Any] = decoded["contents"][-1]["parts"][0]["functionResponse"]
    return found, " ".join(sent.notes)


def test_media_in_a_result() -> None:
    pdf = Document("application/pdf", url="gs://b/a.pdf", name="a.pdf")
    found, notes = result_of(PNG, pdf, model="gemini-3-pro", content='{"ok": 1}')
    assert found["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": BYTES}},
        {"fileData": {"mimeType": "application/pdf", "fileUri": "gs://b/a.pdf"}},
    ]
    assert (found["response"], notes) == ({"ok": 1}, "")


@pytest.mark.parametrize(
    ("media", "model"),
    [(PNG, "gemini-2.5-pro"), (Audio("audio/wav", BYTES), "gemini-3-pro"), (PNG, "models/gemini-1.5")],
)
@pytest.mark.parametrize(
    ("content", "is_error", "expected"),
    [("done", False, {"result": "done"}), ('{"a": 1}', False, {"result": {"a": 1}}), ("no", True, {"error": "no"})],
)
def test_media_that_a_result_cannot_hold_is_named_in_it(
    media: Media, model: str, content: str, is_error: bool, expected: dict[str, Any]
) -> None:
    found, notes = result_of(media, model=model, content=content, is_error=is_error)
    (line,) = found["response"].pop("attachments")
    assert found["response"] == expected
    assert "parts" not in found
    assert media.media_type in line
    assert media.media_type in notes


def test_the_text_of_a_document_is_in_any_models_result() -> None:
    for name in ("gemini-2.5-pro", "gemini-3-pro"):
        found, notes = result_of(Document(text="1,2"), model=name)
        assert found["response"]["attachments"] == ["<document>\n1,2\n</document>"]
        assert notes == ""


# In the answer.

#: Of a part that came from Gemini, without anything beside its data.
OWN = Replay("gemini", {})


def chunk(*parts: dict[str, Any], **candidate: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": list(parts), "role": "model"}, "index": 0, **candidate}]}


def blob(data: bytes | str, media_type: str = "image/png", **more: Any) -> dict[str, Any]:
    text = data if isinstance(data, str) else b64encode(data).decode()
    return {"inlineData": {"mimeType": media_type, "data": text}, **more}


def sent_back(turn: AssistantMessage, adapter: Gemini = ADAPTER, **fields: Any) -> list[dict[str, Any]]:
    sent = body(adapter, UserMessage.of("Hi"), turn, UserMessage.of("And?"), **fields)
    assert violations(sent) == []
    found: list[dict[str, Any]] = sent["contents"][1]["parts"]
    return found


def test_pictures_are_parts_and_go_back_with_their_signatures() -> None:
    parts = [{"text": "See:"}, blob(b"one", thoughtSignature="s1"), blob(b"two"), {"text": "Done."}]
    turn = answer(ADAPTER, sse([chunk(parts[0]), chunk(*parts[1:], finishReason="STOP")]))
    assert turn.parts == (
        Text("See:"),
        Image("image/png", b64encode(b"one").decode(), replay=Replay("gemini", {"thoughtSignature": "s1"})),
        Image("image/png", b64encode(b"two").decode(), replay=OWN),
        Text("Done."),
    )
    assert sent_back(turn.message) == parts


def test_sound_in_pieces_is_one_part() -> None:
    kind = "audio/L16;codec=pcm;rate=24000"
    pieces = [chunk(blob(data, kind)) for data in (b"a", b"bc", b"defg")]
    streamed = answer(ADAPTER, sse([*pieces, chunk({"text": ""}, finishReason="STOP")]))
    whole = answer(ADAPTER, json.dumps(chunk(blob(b"abcdefg", kind), finishReason="STOP")).encode(), streaming=False)
    assert streamed == whole
    assert streamed.parts == (Audio(kind, b64encode(b"abcdefg").decode(), replay=OWN),)
    assert sent_back(streamed.message) == [blob(b"abcdefg", kind)]
    # Text, another media type or a signature begins another part.
    for other in ({"text": "."}, blob(b"x", "audio/ogg"), blob(b"x", kind, thoughtSignature="s")):
        turn = answer(ADAPTER, sse([pieces[0], chunk(other), pieces[1], chunk({"text": ""}, finishReason="STOP")]))
        assert len(turn.parts) == 3
        assert sent_back(turn.message) == [blob(b"a", kind), other, blob(b"bc", kind)]


def test_files_and_media_by_their_address() -> None:
    parts = [
        blob(b"%PDF", "application/pdf"),
        {"fileData": {"mimeType": "image/png", "fileUri": "gs://b/a.png"}},
        {"inlineData": {"mimeType": "video/mp4", "data": BYTES, "displayName": "film"}},
    ]
    turn = answer(ADAPTER, sse([chunk(*parts, finishReason="STOP")]))
    assert turn.parts == (
        Document("application/pdf", b64encode(b"%PDF").decode(), replay=OWN),
        Image("image/png", url="gs://b/a.png", replay=OWN),
        Document("video/mp4", BYTES, name="film", replay=OWN),
    )
    assert sent_back(turn.message) == parts


def test_a_draft_picture_of_the_thinking_is_no_picture_of_the_answer() -> None:
    draft, final = blob(b"draft", thought=True), blob(b"final", thoughtSignature="s")
    turn = answer(ADAPTER, sse([chunk(draft), chunk(final, finishReason="STOP")]))
    assert turn.parts[0] == ServerTool("inlineData", Replay("gemini", draft), "draft", text="image/png")
    assert isinstance(turn.parts[1], Image)
    assert sent_back(turn.message) == [draft, final]


def test_another_models_picture() -> None:
    turn = AssistantMessage((Text("See:"), Image("image/png", BYTES, replay=Replay("openai-responses", {"id": "ig"}))))
    picture = {"inlineData": {"mimeType": "image/png", "data": BYTES}}
    assert sent_back(turn, model="gemini-3-pro") == [{"text": "See:"}, picture]
    # Models of pictures check signatures: "Image part is missing a thought_signature".
    marked = {"thoughtSignature": FOREIGN_SIGNATURE}
    assert sent_back(turn, model="gemini-3-pro-image") == [{"text": "See:", **marked}, {**picture, **marked}]
    assert sent_back(turn, model="gemini-2.5-flash-image") == [{"text": "See:"}, picture]


@pytest.mark.parametrize(
    "media", [Audio(file_id="audio_1"), Image(url="https://example.org/a.png"), Image("image/gif", BYTES)]
)
def test_what_cannot_go_back_is_named_in_its_place(media: Any) -> None:
    if media.media_type == "":
        media = type(media)("application/zip", url=media.url, file_id=media.file_id)
    request = ModelRequest("m", (UserMessage.of("Hi"), AssistantMessage((Text("a"), media)), UserMessage.of("b")))
    sent = ADAPTER.encode(request)
    (_, instead) = json.loads(sent.body)["contents"][1]["parts"]
    assert media.media_type in instead["text"]
    assert any(media.media_type in note for note in sent.notes)


# Blocks of server tools.

SIGNED = {"thoughtSignature": "s"}
SERVER_PARTS: list[tuple[dict[str, Any], ServerTool]] = [
    (part, ServerTool(next(iter(part)), Replay("gemini", part), *told))
    for part, told in [
        ({"executableCode": {"language": "PYTHON", "code": "1", "id": "e"}}, ("code_execution", "e", "1")),
        ({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}, ("code_execution", "", "1")),
        (
            {"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "no"}, "thoughtSignature": "s"},
            ("code_execution", "", "OUTCOME_FAILED: no"),
        ),
        (
            {"toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "id": "t", "args": {"queries": ["x"]}}, **SIGNED},
            ("web_search", "t", '{"queries":["x"]}'),
        ),
        (
            {"toolResponse": {"toolType": "URL_CONTEXT", "id": "t", "response": {"a": 1}}},
            ("web_fetch", "t", '{"a":1}'),
        ),
        ({"toolCall": {"toolType": "NEXT_YEARS_TOOL"}}, ("next_years_tool", "", "")),
        ({"aPartOfNextYear": {"x": 1}, "thoughtSignature": "s"}, ("", "", "")),
        ({"aPartOfNextYear": 7}, ("", "", "")),
    ]
]  # fmt: skip


@pytest.mark.parametrize(("part", "expected"), SERVER_PARTS)
def test_a_block_of_a_server_tool_is_shown_and_goes_back_as_it_came(part: dict[str, Any], expected: ServerTool) -> None:
    turn = answer(ADAPTER, sse([chunk({"text": "a"}, part), chunk({"text": "b"}, finishReason="STOP")]))
    assert turn.parts == (Text("a"), expected, Text("b"))
    sent = body(ADAPTER, UserMessage.of("Hi"), turn.message, UserMessage.of("And?"))
    assert sent["contents"][1]["parts"] == [{"text": "a"}, part, {"text": "b"}]


def test_what_a_server_tool_found_is_shown_in_short() -> None:
    part = {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "x" * 10_000}}
    turn = answer(ADAPTER, sse([chunk(part, finishReason="STOP")]))
    (block,) = turn.parts
    assert isinstance(block, ServerTool)
    assert len(block.text) == 2_000
    assert sent_back(turn.message) == [part]


def test_a_block_that_cannot_go_back_is_noted() -> None:
    own = ServerTool("toolCall", Replay("gemini", {"toolCall": {"toolType": "URL_CONTEXT"}}))
    foreign = ServerTool("web_search_call", Replay("openai-responses", {"type": "web_search_call"}))
    messages = (UserMessage.of("Hi"), AssistantMessage((Text("a"), own, foreign)), UserMessage.of("b"))
    sent = VERTEX.encode(ModelRequest("gemini-3-pro", messages))
    assert json.loads(sent.body)["contents"][1]["parts"] == [{"text": "a"}]
    assert ["toolCall" in note or "web_search_call" in note for note in sent.notes] == [True, True]
    sent = ADAPTER.encode(ModelRequest("gemini-3-pro", messages))
    assert json.loads(sent.body)["contents"][1]["parts"] == [{"text": "a"}, {"toolCall": {"toolType": "URL_CONTEXT"}}]


# What the answer may be, and other knobs.


def config(**fields: Any) -> Any:
    return body(ADAPTER, **fields).get("generationConfig", {})


def test_pictures_and_speech_are_asked_for() -> None:
    assert config(images_out=True) == {"responseModalities": ["TEXT", "IMAGE"]}
    voice = {"voiceConfig": {"prebuiltVoiceConfig": {"voiceName": "Kore"}}}
    assert config(audio_out=AudioOut("Kore", "pcm")) == {"responseModalities": ["AUDIO"], "speechConfig": voice}
    request = ModelRequest("m", (UserMessage.of("Hi"),), audio_out=AudioOut())
    sent = ADAPTER.encode(request)
    assert json.loads(sent.body)["generationConfig"] == {"responseModalities": ["AUDIO"]}
    assert [note.split(":")[0] for note in sent.notes] == ["audio_out.voice", "audio_out.format"]


def test_log_probabilities_are_asked_for() -> None:
    assert config(sampling=Sampling(logprobs=3)) == {"responseLogprobs": True, "logprobs": 3}
    assert config(sampling=Sampling(logprobs=0)) == {"responseLogprobs": True}


def test_the_service_tier_and_what_the_api_has_not() -> None:
    assert body(ADAPTER, service_tier="flex")["serviceTier"] == "flex"

    def notes(**fields: Any) -> list[str]:
        found = ADAPTER.encode(ModelRequest("m", (UserMessage.of("Hi"),), **fields)).notes
        return [note.split(":")[0] for note in found]

    assert notes() == []
    assert notes(prompt_cache=PromptCache.OFF) == []
    assert notes(prompt_cache=PromptCache.ONE_HOUR) == ["prompt_cache"]
    assert notes(storage=ResponseStorage(store=True)) == ["storage"]
    with pytest.raises(UsageError, match="previous_response_id"):
        notes(storage=ResponseStorage(previous_response_id="r"))
