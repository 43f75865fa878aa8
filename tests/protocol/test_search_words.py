"""What is asked for words to search by, which search is given them, and what is read of the answer."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.content import SystemMessage, Text, ToolCall, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import Error, FinishReason, ModelResponse
from callboard.protocol.options import ToolOffer
from callboard.protocol.search_words import MAX_QUERIES, MAX_QUERY_CHARS, FirstSearch, words_in, words_request
from callboard.protocol.tools import Decision, Risk, ToolContract, ToolDefinition


def offer(name: str, decision: Decision = Decision.ALLOW, **contract: Any) -> ToolOffer:
    return ToolOffer(ToolDefinition(ToolName(name), ""), ToolContract(**contract), decision)


OFFERS = {
    each.definition.name: each
    for each in (
        offer("seek", risk=Risk.READ, searches_by="queries"),
        offer("look", risk=Risk.READ),
        offer("write", risk=Risk.WRITE, searches_by="queries"),
        offer("asked", Decision.ASK, risk=Risk.READ, searches_by="queries"),
        offer("mine", risk=Risk.READ, searches_by="queries", is_outside=True),
    )
}


def call(name: str, queries: object = None, *, complete: bool = True) -> ToolCall:
    arguments = orjson.dumps({} if queries is None else {"queries": queries}).decode()
    return ToolCall(CallId("c"), ToolName(name), arguments, complete)


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ([call("seek")], (0, ())),
        ([call("look"), call("seek", ["a"])], (1, ("a",))),
        ([call("seek", ["a", " ", 3])], (0, ("a",))),
        ([call("seek", "a")], (0, ())),
        ([call("seek", ["a", "b"])], None),
        ([call("seek", ["a"]), call("seek", ["b"])], None),
        ([call("seek"), call("seek")], None),
        ([call("look"), call("write"), call("asked"), call("mine"), call("nowhere")], None),
        ([call("seek", complete=False)], None),
        ([], None),
    ],
)
def test_which_search_is_given_words(calls: list[ToolCall], found: tuple[int, tuple[str, ...]] | None) -> None:
    search = FirstSearch().in_turn(calls, OFFERS)
    assert (search and (search.place, search.queries)) == found


@pytest.mark.parametrize("first", [["a"], ["a", "b"]])
def test_only_the_first_turn_that_searches_counts(first: list[str]) -> None:
    searches = FirstSearch()
    assert searches.in_turn([call("look")], OFFERS) is None
    searches.in_turn([call("seek", first)], OFFERS)
    assert searches.in_turn([call("seek", ["c"])], OFFERS) is None


def test_what_is_asked_is_short_and_offers_nothing() -> None:
    request = words_request("p/m", "why? " * 10_000, ["a", "b"])
    told, asked = request.messages
    assert isinstance(told, SystemMessage)
    assert isinstance(asked, UserMessage)
    assert len(asked.text) < 5_000
    assert asked.text.endswith("It is searched for:\na / b")
    assert not request.tools
    assert "searched for" not in words_request("p/m", "why?", ()).messages[1].text  # type: ignore[union-attr]


def said(text: str, reason: FinishReason = FinishReason.STOP) -> ModelResponse:
    return ModelResponse((Text(text),), reason)


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (said("retry budget\nbackoff"), ("retry budget", "backoff")),
        (
            said('1. `retry_budget`\n2) "backoff"\n- * sleep\n\n• jitter'),
            ("retry_budget", "backoff", "* sleep", "jitter"),
        ),
        (said("a\nb\na\nc\nd\ne"), ("a", "b", "c", "d")),
        (said("a\nthe second one was cu", FinishReason.LENGTH), ("a",)),
        (said("x" * (MAX_QUERY_CHARS + 1) + "\nb"), ("b",)),
        (said("1.5 seconds\n-v option"), ("1.5 seconds", "-v option")),
    ],
)
def test_the_words_of_an_answer(response: ModelResponse, words: tuple[str, ...]) -> None:
    assert words_in(response) == (words, "")


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (said(""), "the model wrote none"),
        (said(" \n- \n``"), "the model wrote none"),
        (said("a", FinishReason.LENGTH), "the model wrote none"),
        (said("No.", FinishReason.REFUSAL), "the model did not write them (refusal)"),
        (ModelResponse(error=Error(ErrorKind.BILLING, "no")), "the model call failed (billing)"),
    ],
)
def test_an_answer_without_words_says_why(response: ModelResponse, why: str) -> None:
    assert words_in(response) == ((), why)


@given(st.text(max_size=2_000), st.sampled_from(list(FinishReason)))
def test_any_answer_gives_a_few_short_queries_or_a_reason(text: str, reason: FinishReason) -> None:
    words, why = words_in(said(text, reason))
    assert bool(words) is not bool(why)
    assert len(words) <= MAX_QUERIES
    assert len(set(words)) == len(words)
    assert all(0 < len(each) <= MAX_QUERY_CHARS and each == each.strip() and each in text for each in words)
