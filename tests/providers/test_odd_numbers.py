"""Places and probabilities that cannot be true, in answers of every API: neither answer nor journal is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.event_frames import stream
from support.wire import answer, sse

from callboard.protocol.codec import decode_event, encode_event
from callboard.protocol.content import Citation, Text
from callboard.protocol.events import ModelResponded
from callboard.protocol.ids import MessageId, RequestId, Tag
from callboard.protocol.limits import MAX_ANSWER_BYTES
from callboard.protocol.model import NEVER_LIKELY, ModelResponse, TokenLogprob
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.bedrock.converse_api import Bedrock
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.responses_api import OpenAIResponses

CHAT, RESPONSES = OpenAIChat(), OpenAIResponses()
#: Half of a surrogate pair: the standard library's parser reads such a document, with integers of any size and NaN.
HALF = "\ud800"
TAG = Tag(RequestId("r"), MessageId("m"), 1)


def chat(**choice: Any) -> ModelResponse:
    delta = {"content": "Zürich", **choice.pop("delta", {})}
    document = {"choices": [{"index": 0, "delta": delta, "finish_reason": "stop", **choice}]}
    return answer(CHAT, json.dumps(document).join(("data: ", "\n\n")).encode())


def responses(**part: Any) -> ModelResponse:
    message = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Zürich", **part}]}
    document = {"id": "r", "status": "completed", "output": [message]}
    return answer(RESPONSES, json.dumps(document).encode(), streaming=False)


def messages(citation: dict[str, Any]) -> ModelResponse:
    block = {"type": "text", "text": "Zürich", "citations": [{"type": "char_location", **citation}]}
    document = {"type": "message", "content": [block], "stop_reason": "end_turn"}
    return answer(Anthropic(), json.dumps(document).encode(), streaming=False)


def converse(citation: dict[str, Any]) -> ModelResponse:
    told = [
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "Zürich"}}),
        ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"citation": citation}}),
        ("contentBlockStop", {"contentBlockIndex": 0}),
        ("messageStop", {"stopReason": "end_turn"}),
    ]
    return answer(Bedrock(api_key="k"), stream(told))


def of_chat(start: Any, end: Any, **more: Any) -> ModelResponse:
    annotation = {"type": "url_citation", "url_citation": {"url": "u", "start_index": start, "end_index": end}, **more}
    return chat(delta={"annotations": [annotation]})


def of_responses(start: Any, end: Any, **more: Any) -> ModelResponse:
    return responses(annotations=[{"type": "url_citation", "url": "u", "start_index": start, "end_index": end, **more}])


def cited(turn: ModelResponse) -> Citation:
    """The answer's citation, which the journal keeps."""
    assert turn.error is None
    assert turn.text == "Zürich"
    event = ModelResponded(TAG, 1.0, turn)
    assert decode_event(encode_event(event)) == event
    [part] = turn.parts
    assert isinstance(part, Text)
    [citation] = part.citations
    return citation


@pytest.mark.parametrize("told", [of_chat, of_responses])
@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 6, (0, 6)),
        (1, MAX_ANSWER_BYTES, (1, MAX_ANSWER_BYTES)),
        (0, MAX_ANSWER_BYTES + 1, (None, None)),
        (0, 2**63, (None, None)),
        (10**30, 10**30 + 1, (None, None)),
        (6, 0, (None, None)),
        (3, 3, (None, None)),
        (-1, 3, (None, None)),
        (True, 5, (None, None)),
        (0, 2.5, (None, None)),
        ("0", "3", (None, None)),
        (None, 3, (None, None)),
    ],
)
def test_a_place_is_in_the_text_or_not_known(
    told: Callable[..., ModelResponse], start: Any, end: Any, expected: tuple[int | None, int | None]
) -> None:
    for more in ({}, {"title": HALF}):
        citation = cited(told(start, end, **more))
        assert (citation.start, citation.end) == expected


@pytest.mark.parametrize("place", [10**30, 2**64 - 1, -1, True, "1", None])
def test_a_document_has_a_place_or_none(place: Any) -> None:
    assert cited(messages({"document_index": place})).document is None
    assert cited(converse({"location": {"documentChar": {"documentIndex": place}}})).document is None
    assert cited(responses(annotations=[{"type": "file_citation", "index": place}])).document is None


@pytest.mark.parametrize(
    "turn",
    [
        lambda: of_chat(0, 6, score=float("nan")),
        lambda: of_responses(0, 6, score=float("nan")),
        lambda: of_responses(0, 6, size=10**400, title=HALF),
        lambda: messages({"url": "u", "score": float("nan")}),
        lambda: converse({"source": "u", "score": float("nan")}),
    ],
    ids=["chat", "responses", "integer", "messages", "converse"],
)
def test_an_answer_is_not_lost_over_a_source_that_cannot_be_kept(turn: Callable[[], ModelResponse]) -> None:
    found = turn()
    assert (cited(found).url, cited(found).raw) == ("u", {})
    assert [note for note in found.notes if note.startswith("citations: ")]


def test_sources_of_a_search_may_have_odd_scores_too() -> None:
    said = {"choices": [{"index": 0, "delta": {"content": "Zürich"}, "finish_reason": "stop"}]}
    turn = answer(CHAT, sse([{**said, "search_results": [{"url": "u", "score": float("nan")}]}], done=True))
    assert cited(turn).url == "u"


def tokens_of_chat(told: list[dict[str, Any]]) -> ModelResponse:
    return chat(logprobs={"content": told})


def tokens_of_responses(told: list[dict[str, Any]]) -> ModelResponse:
    return responses(logprobs=told)


@pytest.mark.parametrize("tokens", [tokens_of_chat, tokens_of_responses])
def test_a_probability_is_a_number_that_json_has(tokens: Callable[[list[dict[str, Any]]], ModelResponse]) -> None:
    likely = [("a", -0.5), ("never", -float("inf")), ("nan", float("nan")), ("more", float("inf")), ("yes", True)]
    told = [{"token": token, "logprob": logprob} for token, logprob in likely]
    turn = tokens([{**told[0], "top_logprobs": told}, *told[1:]])
    top = (("a", -0.5), ("never", NEVER_LIKELY))
    assert turn.logprobs == (TokenLogprob("a", -0.5, top), TokenLogprob("never", NEVER_LIKELY))
    event = ModelResponded(TAG, 1.0, turn)
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (-float("inf"), (TokenLogprob("a", NEVER_LIKELY),)),
        (None, (TokenLogprob("a", 0.0),)),
        (float("nan"), ()),
        ("x", ()),
    ],
)
def test_a_probability_of_gemini_too(told: Any, expected: tuple[TokenLogprob, ...]) -> None:
    result = {"chosenCandidates": [{"token": "a", "logProbability": told}]}
    candidate = {"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP", "logprobsResult": result}
    turn = answer(Gemini(), sse([{"candidates": [candidate]}]))
    assert (turn.text, turn.logprobs, bool(turn.notes)) == ("a", expected, expected == ())
