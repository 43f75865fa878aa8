"""A Responses stream is its own final response, in whatever way a server numbers and repeats its events (quirk 63)."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.told_responses import SEEN, Manner, manners, responses, told
from support.wire import answer, events, sse

from callboard.protocol.model import ModelResponse, Restarted
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.response_builder import build_response

ADAPTER = OpenAIResponses()
EXAMPLES = int(os.environ.get("CALLBOARD_DEEP_EXAMPLES", "150"))


def whole(response: dict[str, Any]) -> ModelResponse:
    return answer(ADAPTER, json.dumps(response).encode(), streaming=False)


@pytest.mark.parametrize("manner", SEEN.values(), ids=SEEN)
def test_quirk_63_in_every_manner_seen_the_stream_is_the_final_response_and_nothing_is_told_again(
    manner: Manner,
) -> None:
    # Without an announcement a new part cannot be told from the last one by a content_index.
    parts = 1 if manner.content_index == "rolling" or not manner.announced else 3

    @settings(max_examples=EXAMPLES // 3, deadline=None)
    @given(responses(parts, spoken=manner.item_done != "in place"), st.data())
    def check(response: dict[str, Any], data: st.DataObject) -> None:
        found = events(ADAPTER, sse(told(data.draw, response, manner)))
        assert build_response(found) == whole(response)
        assert not any(isinstance(event, Restarted) for event in found)

    check()


def test_quirk_63_in_any_manner_the_stream_is_the_final_response() -> None:
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(responses(), manners, st.data())
    def check(response: dict[str, Any], manner: Manner, data: st.DataObject) -> None:
        assert answer(ADAPTER, sse(told(data.draw, response, manner))) == whole(response)

    check()


def test_quirk_63_where_deltas_and_the_finished_item_contradict_each_other_the_item_wins() -> None:
    @settings(max_examples=EXAMPLES, deadline=None)
    @given(responses(), manners, st.data())
    def check(response: dict[str, Any], manner: Manner, data: st.DataObject) -> None:
        stream = sse(told(data.draw, response, manner, contradicts=True))
        found = events(ADAPTER, stream)
        assert build_response(found) == whole(response)
        assert sum(isinstance(event, Restarted) for event in found) <= 1
        assert answer(ADAPTER, stream, [1]) == whole(response)

    check()
