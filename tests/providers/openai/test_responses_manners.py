"""A Responses stream is its own final response, in each way in which a server numbers and repeats events (quirk 63)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.told_responses import SEEN, Manner, manners, responses, told
from support.wire import answer, events, sse

from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import Error, ModelResponse, Restarted
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.response_builder import build_response

pytestmark = pytest.mark.hypothesis  # each has its examples within, which Hypothesis does not see
ADAPTER = OpenAIResponses()
EXAMPLES = examples(300)


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


def test_quirk_93_what_a_message_is_stays_its_own_where_items_are_told_apart_at_the_end_only() -> None:
    """Found by drawing: the second message's `phase` stayed with the first, and a break came before the second."""
    refusals = [{"type": "message", "id": f"msg_{n}", "role": "assistant", "status": "completed"} for n in (0, 1)]
    output = [{**each, "content": [{"type": "refusal", "refusal": "0"}]} for each in refusals]
    output[1]["phase"] = "commentary"
    response = {"id": "resp_1", "object": "response", "model": "gpt", "status": "completed", "output": output}

    @settings(max_examples=EXAMPLES // 10, deadline=None)
    @given(st.sampled_from(["late", "none", "right"]), st.booleans(), st.data())
    def check(output_index: str, announced: bool, data: st.DataObject) -> None:
        manner = Manner(output_index=output_index, announced=announced, item_done="in place", deltas=False)
        assert answer(ADAPTER, sse(told(data.draw, response, manner))).text == whole(response).text == "00"

    check()


def test_quirk_63_the_finished_items_win_where_the_last_event_repeats_none() -> None:
    @settings(max_examples=EXAMPLES // 2, deadline=None)
    @given(responses(), st.sampled_from(["stable", "rotating"]), st.data())
    def check(response: dict[str, Any], item_id: str, data: st.DataObject) -> None:
        manner = Manner(item_id=item_id, final_output=False)
        stream = sse(told(data.draw, response, manner, contradicts=True))
        assert answer(ADAPTER, stream) == whole(response)

    check()


@pytest.mark.parametrize("manner", [Manner(), Manner(item_id="rotating"), Manner(output_index="none")])
def test_items_whose_events_are_mixed_are_told_apart(manner: Manner) -> None:
    @settings(max_examples=EXAMPLES // 3, deadline=None)
    @given(responses(), st.data())
    def check(response: dict[str, Any], data: st.DataObject) -> None:
        created, *events_of_items, end = told(data.draw, response, manner)
        items: dict[str, list[dict[str, Any]]] = {}
        for event in events_of_items:
            items.setdefault(str(event.get("output_index", event.get("item_id") or event["item"]["id"])), []).append(
                event
            )
        mixed = []
        while waiting := [queue for queue in items.values() if queue]:
            mixed.append(data.draw(st.sampled_from(waiting)).pop(0))
        assert answer(ADAPTER, sse([created, *mixed, end])) == whole(response)

    check()


def test_a_stream_in_any_manner_that_ends_before_its_last_event_is_cut() -> None:
    @settings(max_examples=EXAMPLES // 3, deadline=None)
    @given(responses(), manners, st.data())
    def check(response: dict[str, Any], manner: Manner, data: st.DataObject) -> None:
        stream = told(data.draw, response, manner)
        for end in range(1, len(stream)):
            error = events(ADAPTER, sse(stream[:end]))[-1]
            assert isinstance(error, Error)
            assert error.kind is ErrorKind.TRUNCATED

    check()


#: What is sent in place of a field.
_wrong = st.sampled_from([None, 0, -1, 2**70, 1.5, True, "", "x", [], [None], {}, {"type": 7}, "response.done"])


def test_a_stream_with_a_wrong_field_ends_once_and_raises_nothing() -> None:
    @settings(max_examples=EXAMPLES * 2, deadline=None)
    @given(responses(), manners, st.data())
    def check(response: dict[str, Any], manner: Manner, data: st.DataObject) -> None:
        stream = json.loads(json.dumps(told(data.draw, response, manner)))
        holder, key = data.draw(st.sampled_from(list(_places(stream))))
        holder[key] = data.draw(_wrong)
        found = events(ADAPTER, sse(stream))
        assert build_response(found) == answer(ADAPTER, sse(stream), [7])

    check()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(pairs):
        yield value, key
        yield from _places(child)


CITY, DAY = '{"city": "Rome"}', '{"day": 1}'


@pytest.mark.parametrize(
    "arguments",
    [
        ("{}", CITY),
        (CITY, "{}"),
        ("{}", "{}", CITY),
        ("{}", CITY, DAY),
        (CITY, "{}", DAY),
        (CITY, DAY),
        (CITY, CITY),
        ("{}", "{}"),
        ("{}", CITY, "{}", DAY),
    ],
)
def test_calls_whose_names_come_when_they_are_done_are_each_their_own(arguments: tuple[str, ...]) -> None:
    """All arguments came under their indexes before the first name: that of one call is no doubt about another."""
    items = [
        {"type": "function_call", "id": f"fc_{at}", "call_id": f"call_{at}", "name": "lookup", "arguments": text}
        for at, text in enumerate(arguments)
    ]
    delta = "response.function_call_arguments.delta"
    response = {"id": "resp_1", "object": "response", "model": "gpt", "status": "completed", "output": items}
    told = [
        {"type": "response.created", "response": response | {"status": "in_progress", "output": []}},
        *({"type": delta, "output_index": at, "item_id": f"fc_{at}", "delta": t} for at, t in enumerate(arguments)),
        *({"type": "response.output_item.done", "output_index": at, "item": item} for at, item in enumerate(items)),
        {"type": "response.completed", "response": response},
    ]
    found = answer(ADAPTER, sse(told))
    assert [(call.call_id, call.arguments, call.complete) for call in found.tool_calls] == [
        (f"call_{at}", text, True) for at, text in enumerate(arguments)
    ]
