"""Gemini: citations and grounding, however and whenever they come."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.wire import answer, body, sse

from callboard.protocol.content import Citation, Replay, ServerTool, Text, ToolMessage, UserMessage
from callboard.protocol.ids import ToolName
from callboard.protocol.model import ModelResponse
from callboard.providers.gemini.gemini_api import Gemini

ADAPTER = Gemini()
ROME = {"web": {"uri": "https://a.example/rome", "title": "Rome", "domain": "a.example"}}
OSLO = {"web": {"uri": "https://b.example/oslo", "title": "Oslo"}}
BONN = {"web": {"uri": "https://c.example/bonn", "title": "Bonn"}}


def candidate(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": list(parts), "role": "model"}, "index": 0, **more}]}


def alone(**more: Any) -> dict[str, Any]:
    """A chunk without content."""
    return {"candidates": [more]}


def streamed(*chunks: dict[str, Any], version: str = "gemini-3-pro") -> ModelResponse:
    return answer(ADAPTER, sse([{"modelVersion": version}, *chunks, alone(finishReason="STOP")]))


def segment(text: str, of: str, **more: Any) -> dict[str, Any]:
    """The place of `text` in a part, in bytes; a start of 0 is left out, as protocol buffers do."""
    start = len(of[: of.index(text)].encode())
    place = {"startIndex": start, "endIndex": start + len(text.encode()), "text": text, **more}
    return {name: value for name, value in place.items() if value}


def support(place: dict[str, Any], *sources: int) -> dict[str, Any]:
    return {"segment": place, "groundingChunkIndices": list(sources), "confidenceScores": [0.9]}


def cited(turn: ModelResponse) -> list[tuple[str, str]]:
    """(the supported words, the source's title), over all text parts."""
    return [
        (part.text[each.start : each.end] if each.end is not None else "", each.title)
        for part in turn.parts
        if isinstance(part, Text)
        for each in part.citations
    ]


def tools(turn: ModelResponse) -> list[ServerTool]:
    return [part for part in turn.parts if isinstance(part, ServerTool)]


SAID = "Zürich 🎭 is big. Rome is old. Oslo is north."


def grounding(**more: Any) -> dict[str, Any]:
    places = [
        support(segment("Rome is old.", SAID), 0),
        support(segment("Zürich 🎭 is big.", SAID), 1, 0),
    ]
    queries = {"webSearchQueries": ["rome", "", "oslo", "rome"], "searchEntryPoint": {"renderedContent": "<b>"}}
    return {"groundingChunks": [ROME, OSLO], "groundingSupports": places, **queries, **more}


EXPECTED = [("Rome is old.", "Rome"), ("Zürich 🎭 is big.", "Oslo"), ("Zürich 🎭 is big.", "Rome")]


@pytest.mark.parametrize(
    "chunks",
    [
        [candidate({"text": SAID}, groundingMetadata=grounding())],
        [candidate({"text": SAID}), alone(groundingMetadata=grounding())],
        [alone(groundingMetadata=grounding()), candidate({"text": SAID[:9]}), candidate({"text": SAID[9:]})],
        [candidate({"text": letter}) for letter in SAID] + [candidate({"text": ""}, groundingMetadata=grounding())],
        # Told twice, and told as it grows.
        [candidate({"text": SAID}, groundingMetadata=grounding()), alone(groundingMetadata=grounding())],
        [
            candidate({"text": SAID}, groundingMetadata={"groundingChunks": [ROME]}),
            alone(groundingMetadata=grounding()),
            alone(groundingMetadata={}),
        ],
        # Each chunk with the sources that none before it brought; the places count all of them.
        [
            candidate({"text": SAID}, groundingMetadata={"groundingChunks": [ROME], "webSearchQueries": ["rome"]}),
            alone(groundingMetadata=grounding(groundingChunks=[OSLO])),
        ],
    ],
)
def test_citations_of_a_text_each_once(chunks: list[dict[str, Any]]) -> None:
    turn = streamed(*chunks)
    assert (turn.text, turn.error) == (SAID, None)
    assert cited(turn) == EXPECTED
    (block,) = tools(turn)
    assert (block.kind, block.name, block.text) == ("groundingMetadata", "web_search", "rome\noslo")
    raw = block.replay.data["groundingMetadata"]
    assert isinstance(raw, dict)
    assert raw["searchEntryPoint"] == {"renderedContent": "<b>"}
    assert raw["groundingChunks"] == [ROME, OSLO]


def test_a_citation_keeps_what_the_provider_wrote() -> None:
    place = support(segment("Rome is old.", SAID), 0)
    turn = streamed(
        candidate({"text": SAID}, groundingMetadata={"groundingChunks": [ROME], "groundingSupports": [place]})
    )
    raw = {"groundingChunk": ROME, "groundingSupport": place}
    start = SAID.index("Rome")
    expected = Citation("https://a.example/rome", "Rome", start=start, end=start + len("Rome is old."), raw=raw)
    assert turn.parts[0] == Text(SAID, None, (expected,))


def test_a_list_that_is_told_again_replaces_the_one_before() -> None:
    first = {"groundingChunks": [ROME, OSLO], "groundingSupports": [support(segment("Rome is old.", SAID), 0)]}
    last = {"groundingChunks": [BONN, OSLO], "groundingSupports": [support(segment("Oslo is north.", SAID), 1, 0)]}
    turn = streamed(candidate({"text": SAID}, groundingMetadata=first), alone(groundingMetadata=last))
    assert cited(turn) == [("Oslo is north.", "Oslo"), ("Oslo is north.", "Bonn")]


def test_places_count_from_their_part() -> None:
    thought, first, second = {"text": "Hm. ", "thought": True}, "Rome is öld. ", "Oslo is nörth."
    call = {"functionCall": {"name": "f", "args": {}}}
    told = {
        "groundingChunks": [ROME, OSLO],
        "groundingSupports": [
            support(segment("Rome is öld.", first, partIndex=1), 0),
            support(segment("nörth", second, partIndex=3), 1),
            # python-genai #961: the place of the part is left out.
            support(segment("Oslo", second), 1),
        ],
    }
    parts = [thought, {"text": first}, call, {"text": second}]
    expected = [("Rome is öld.", "Rome"), ("nörth", "Oslo"), ("Oslo", "Oslo")]
    whole = candidate(*parts, groundingMetadata=told, finishReason="STOP")
    assert cited(answer(ADAPTER, json.dumps(whole).encode(), streaming=False)) == expected
    assert cited(streamed(*(candidate(part) for part in parts), alone(groundingMetadata=told))) == expected


def test_parts_that_are_one_text_here_are_told_apart_by_their_places() -> None:
    """laravel/ai #1013: offsets are of the part that they name, which a whole answer may have several of in a row."""
    parts = [{"text": "Rome is old. "}, {"text": "It has hills."}]
    place = {"partIndex": 1, "endIndex": len("It has hills.")}
    told = {"groundingChunks": [ROME], "groundingSupports": [support(place, 0)]}
    whole = candidate(*parts, groundingMetadata=told, finishReason="STOP")
    turn = answer(ADAPTER, json.dumps(whole).encode(), streaming=False)
    assert cited(turn) == [("It has hills.", "Rome")]


@pytest.mark.parametrize(
    "place",
    [
        {"endIndex": 5_000},
        {"startIndex": 5, "endIndex": 5},
        {"startIndex": -3, "endIndex": 4},
        {"startIndex": 2, "endIndex": 5},
        segment("Rome", SAID) | {"text": "Paris"},
        {"partIndex": 77},
        {},
    ],
)
def test_a_place_that_cannot_be_is_left_out_of_the_citation(place: dict[str, Any]) -> None:
    told = {"groundingChunks": [ROME, OSLO], "groundingSupports": [support(place, 0, 9, -1)]}
    turn = streamed(candidate({"text": "Zürich"}), candidate({"text": SAID[6:]}, groundingMetadata=told))
    assert cited(turn) == [("", "Rome"), ("", "Oslo")]


def test_sources_of_all_kinds() -> None:
    chunks = [
        {"retrievedContext": {"uri": "gs://b/a", "title": "File", "text": "Words", "documentName": "d/1"}},
        {"maps": {"uri": "https://maps.example", "title": "Place", "text": "Nice", "placeId": "places/1"}},
        {"image": {"sourceUri": "https://i.example", "imageUri": "https://i.example/a.png", "title": "Image"}},
        {"next_year": {"uri": "x"}},
    ]
    turn = streamed(candidate({"text": "a"}, groundingMetadata={"groundingChunks": chunks, "retrievalQueries": ["q"]}))
    (text, block) = turn.parts
    assert isinstance(text, Text)
    assert [(c.url, c.title, c.cited_text, c.file_id) for c in text.citations] == [
        ("gs://b/a", "File", "Words", "d/1"),
        ("https://maps.example", "Place", "Nice", ""),
        ("https://i.example", "Image", "", ""),
        ("", "", "", ""),
    ]
    assert isinstance(block, ServerTool)
    assert (block.name, block.text) == ("file_search", "q")
    assert turn.usage is None


@pytest.mark.parametrize("name", ["citationSources", "citations"], ids=["gemini", "vertex"])
def test_quotations(name: str) -> None:
    start = len("Zürich 🎭 is big. ".encode())
    source = {"startIndex": start, "endIndex": start + 4, "uri": "https://a.example", "license": "MIT", "title": "T"}
    first = candidate({"text": SAID[:20]}, citationMetadata={name: [source]})
    turn = streamed(
        first, candidate({"text": SAID[20:]}, citationMetadata={name: [source, {"uri": "https://b.example"}]})
    )
    assert cited(turn) == [("Rome", "T"), ("", "")]
    assert isinstance(turn.parts[0], Text)
    assert turn.parts[0].citations[0].raw == source
    assert tools(turn) == []


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 7, (0, 6)),
        # Over the end of its part: the part's own words.
        (0, 22, (0, 17)),
        (0, 5_000, (None, None)),
        (5, 5, (None, None)),
        (9, 3, (None, None)),
        (-2, 3, (None, None)),
        # In the middle of a character.
        (0, 2, (None, None)),
        (len("Zürich 🎭 is big. ".encode()), len(SAID.encode()), (0, 27)),
    ],
)
def test_places_of_quotations(start: int, end: int, expected: tuple[int | None, int | None]) -> None:
    source = {"startIndex": start, "endIndex": end, "uri": "https://a.example"}
    parts = [{"text": SAID[:17]}, {"executableCode": {"code": "1"}}, {"text": SAID[17:]}]
    turn = streamed(*(candidate(part) for part in parts), alone(citationMetadata={"citationSources": [source]}))
    (citation,) = [each for part in turn.parts if isinstance(part, Text) for each in part.citations]
    assert (citation.start, citation.end) == expected


def test_pages_that_were_read() -> None:
    good = {"retrievedUrl": "https://a.example", "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_SUCCESS"}
    bad = {"retrievedUrl": "https://b.example", "urlRetrievalStatus": "URL_RETRIEVAL_STATUS_ERROR"}
    first = candidate({"text": "a"}, urlContextMetadata={"urlMetadata": [good]})
    turn = streamed(first, alone(urlContextMetadata={"urlMetadata": [good, bad, good]}))
    (block,) = tools(turn)
    assert (block.kind, block.name) == ("urlContextMetadata", "web_fetch")
    assert block.text == "https://a.example\nhttps://b.example (URL_RETRIEVAL_STATUS_ERROR)"
    assert block.replay == Replay("gemini", {"urlContextMetadata": {"urlMetadata": [good, bad]}})


def test_what_is_told_beside_the_parts_is_no_part_and_stays_here() -> None:
    turn = streamed(candidate({"text": SAID}, groundingMetadata=grounding()))
    sent = body(ADAPTER, UserMessage.of("Hi"), turn.message, UserMessage.of("And?"))
    assert sent["contents"][1]["parts"] == [{"text": SAID}]


def test_an_answer_without_text() -> None:
    call = {"functionCall": {"name": "f", "args": {}}}
    turn = streamed(candidate(call, groundingMetadata=grounding(), citationMetadata={"citations": [{"uri": "x"}]}))
    assert [block.kind for block in tools(turn)] == ["groundingMetadata"]
    result = ToolMessage(turn.tool_calls[0].call_id, ToolName("f"), "{}")
    assert body(ADAPTER, UserMessage.of("Hi"), turn.message, result)["contents"][1]["parts"][0]["functionCall"]


@pytest.mark.parametrize(
    ("version", "searches"), [("gemini-2.5-flash", 1), ("gemini-3-pro", 2), ("", 2), ("models-tuned", 2)]
)
def test_billed_searches(version: str, searches: int) -> None:
    """Gemini 3: "this counts as two billable uses", of 2.5 and older the prompt is billed; empty ones are not."""
    counts = {"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7}
    told = candidate({"text": SAID}, groundingMetadata=grounding(webSearchQueries=["a", "", "b", "a"]))
    turn = streamed(told, {"usageMetadata": counts}, version=version)
    assert turn.usage is not None
    assert turn.usage.web_searches == searches
    # Without queries nothing was searched for.
    turn = streamed(candidate({"text": "a"}, groundingMetadata={"webSearchQueries": [""]}), {"usageMetadata": counts})
    assert turn.usage is not None
    assert turn.usage.web_searches == 0


def test_searches_that_are_shown_as_parts_are_counted_once() -> None:
    counts = {"promptTokenCount": 5, "totalTokenCount": 5}
    call = {"toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "id": "t", "args": {"queries": ["a", "b"]}}}
    turn = streamed(candidate(call, {"text": "x"}), {"usageMetadata": counts})
    assert turn.usage is not None
    assert turn.usage.web_searches == 2
    told = alone(groundingMetadata={"webSearchQueries": ["a", "b"]})
    turn = streamed(candidate(call, {"text": "x"}), told, {"usageMetadata": counts})
    assert turn.usage is not None
    assert turn.usage.web_searches == 2


@pytest.mark.parametrize(
    "metadata",
    [
        {"groundingMetadata": 7},
        {"groundingMetadata": {"groundingChunks": "x"}},
        {"groundingMetadata": {"groundingChunks": [ROME], "groundingSupports": [{"segment": 7}]}},
        {"groundingMetadata": {"groundingChunks": [{"web": {"uri": 7}}]}},
        {"groundingMetadata": {"webSearchQueries": [7]}},
        {"citationMetadata": {"citations": [{"uri": 7}]}},
        {"urlContextMetadata": {"urlMetadata": 7}},
    ],
)
def test_an_answer_is_not_lost_over_its_sources(metadata: dict[str, Any]) -> None:
    turn = streamed(candidate({"text": "Hi"}, **metadata))
    assert (turn.text, turn.error) == ("Hi", None)
    assert "sources" in " ".join(turn.notes)


def test_sources_without_end_are_bounded() -> None:
    page = {"web": {"uri": "https://a.example", "title": "T"}}
    pages = [{"web": {**page["web"], "title": str(number)}} for number in range(3_000)]
    places = [support({"endIndex": 2, "text": "Hi"}, number) for number in range(3_000)]
    turn = streamed(
        candidate({"text": "Hi"}, groundingMetadata={"groundingChunks": pages, "groundingSupports": places})
    )
    assert isinstance(turn.parts[0], Text)
    assert len(turn.parts[0].citations) == 1_000


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(texts, min_size=1, max_size=4), st.data())
def test_any_place_in_bytes_is_the_place_in_characters(said: list[str], data: st.DataObject) -> None:
    """Also in long texts: 10,000 characters before."""
    said[0] = data.draw(st.sampled_from(["", "ä" * 10_000, "🎭a" * 5_000])) + said[0]
    index = data.draw(st.integers(0, len(said) - 1))
    start = data.draw(st.integers(0, len(said[index]) - 1))
    words = said[index][start : data.draw(st.integers(start + 1, len(said[index])))]
    begins = len(said[index][:start].encode())
    place = {"partIndex": 2 * index, "startIndex": begins, "endIndex": begins + len(words.encode())}
    told = {"groundingChunks": [ROME], "groundingSupports": [support(place, 0)]}
    parts = [part for text in said for part in ({"text": text}, {"executableCode": {"code": "1"}})]
    turn = streamed(*(candidate(part) for part in parts), alone(groundingMetadata=told))
    assert cited(turn) == [(words, "Rome")]
    assert turn.text == "".join(said)
