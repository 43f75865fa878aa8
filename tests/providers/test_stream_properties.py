"""Any legal turn of any wire API: the same however it is cut and framed, streamed or whole; cut off anywhere or changed
at random, it ends once, runs no half call, and its usage is true or unknown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.mutations import changed
from support.turns import Manner, Turn, Wire, heard, manners, turns
from support.wire import answer, events, sse, usage_is_true
from support.wires import WIRES

from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import Done, Error, ModelResponse
from callboard.providers.response_builder import REPEATED_ID, build_response

EXAMPLES = examples(200)
pytestmark = pytest.mark.hypothesis  # each has its examples within, which Hypothesis does not see
every_wire = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
PLAIN = Manner()


def for_all(*strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], None]:
    """Run the function below at once, with examples of these."""

    def run(check: Callable[..., None]) -> None:
        settings(max_examples=EXAMPLES, deadline=None)(given(*strategies)(check))()

    return run


def pieces_at(data: bytes, places: list[int]) -> list[int]:
    """The sizes of the pieces that these cuts make."""
    marks = sorted({place % (len(data) + 1) for place in places})
    return [b - a for a, b in zip([0, *marks], [*marks, len(data)], strict=True) if b > a]


def awkward_places(data: bytes) -> list[int]:
    """Inside each character of several bytes, and between each CR and LF."""
    continued = [at for at in range(1, len(data)) if data[at] & 0xC0 == 0x80]
    return continued + [at + 1 for at in range(len(data)) if data[at : at + 2] == b"\r\n"]


@every_wire
def test_any_chunks_and_any_framing_tell_the_same_turn(wire: Wire) -> None:
    @for_all(turns(wire), manners, st.lists(st.integers(0, 4_000), max_size=8))
    def check(turn: Turn, manner: Manner, places: list[int]) -> None:
        body = wire.body(turn, manner)
        whole = answer(wire.adapter, body)
        assert answer(wire.adapter, body, [1]) == whole
        assert answer(wire.adapter, body, pieces_at(body, places) or [1]) == whole
        assert answer(wire.adapter, body, pieces_at(body, awkward_places(body)) or [1]) == whole
        plain = Manner(told=manner.told, rotate=manner.rotate, indexed=manner.indexed)
        assert answer(wire.adapter, wire.body(turn, plain)) == whole


@every_wire
def test_the_turn_is_what_was_told(wire: Wire) -> None:
    @for_all(turns(wire), manners)
    def check(turn: Turn, manner: Manner) -> None:
        found = answer(wire.adapter, wire.body(turn, manner))
        assert found.error is None
        assert heard(found) == wire.told(turn)
        assert found.finish_reason is turn.finish
        assert found.usage == turn.usage
        assert bool(found.raw_usage) == (turn.usage is not None)
        assert found.logprobs == turn.tokens
        assert bool(found.model) == bool(found.response_id) == wire.names_answers


@every_wire
def test_a_stream_and_its_whole_answer_are_the_same_turn(wire: Wire) -> None:
    """Of Responses the whole answer is also what the stream's last event repeats."""

    @for_all(turns(wire), manners)
    def check(turn: Turn, manner: Manner) -> None:
        whole = answer(wire.adapter, json.dumps(wire.whole(turn)).encode(), streaming=False)
        assert answer(wire.adapter, wire.body(turn, manner)) == whole


#: What servers make of the ids and places of a streamed call, but for its first piece: the fields that stay there.
CALL_PIECES: dict[str, Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]] = {
    "as it is": lambda call, first: call,
    "index 0": lambda call, first: {**call, "index": 0},
    "no index": lambda call, first: _without_index(call),
    "its id in each": lambda call, first: {**call, "id": first["id"]},
    "index 0, its id in each": lambda call, first: {**call, "id": first["id"], "index": 0},
    "no index, its id in each": lambda call, first: {**_without_index(call), "id": first["id"]},
    "id and name in each, index 0": lambda call, first: {**first, "index": 0, "function": _named(call, first)},
}


#: Those in which each call has another index.
OF_THEIR_OWN_INDEX = CALL_PIECES["as it is"], CALL_PIECES["its id in each"]


def _without_index(call: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in call.items() if key != "index"}


def _named(call: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    return {**call["function"], "name": first["function"]["name"]}


def _with_one_id(documents: list[dict[str, Any]]) -> Any:
    """The same documents, in which all calls of ours have the id of the first."""
    return json.loads(re.sub(r'"((?:call|toolu|g|tooluse)_)\d+"', r'"\1same"', json.dumps(documents)))


def _assert_all_run(found: ModelResponse, turn: Turn, wire: Wire) -> None:
    assert heard(found) == wire.told(turn)
    ids = [call.call_id for call in found.tool_calls]
    assert len(set(ids)) == len(ids)
    assert (REPEATED_ID in found.notes) is (len(ids) > 1)


@every_wire
def test_calls_that_share_an_id_are_calls_of_their_own(wire: Wire) -> None:
    @for_all(turns(wire), manners, st.lists(st.integers(0, 4_000), max_size=8))
    def check(turn: Turn, manner: Manner, places: list[int]) -> None:
        body = wire.framed(_with_one_id(wire.stream(turn, manner)), manner)
        _assert_all_run(answer(wire.adapter, body, pieces_at(body, places) or [1]), turn, wire)
        whole = json.dumps(_with_one_id([wire.whole(turn)])[0]).encode()
        _assert_all_run(answer(wire.adapter, whole, streaming=False), turn, wire)


@pytest.mark.parametrize("sent", CALL_PIECES.values(), ids=CALL_PIECES)
def test_calls_of_chat_completions_that_share_an_id(
    sent: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]],
) -> None:
    wire = WIRES["chat"]

    @for_all(turns(wire))
    def check(turn: Turn) -> None:
        # Without an index of its own, the same call once more is one that is told again (quirk 7).
        calls = [repr(said) for said in wire.told(turn) if said[0] == "call"]
        assume(len(set(calls)) == len(calls) or sent in OF_THEIR_OWN_INDEX)
        documents = _with_one_id(wire.stream(turn, PLAIN))
        first: dict[str, Any] = {}
        for document in documents:
            for delta in (choice["delta"] for choice in document["choices"]):
                if "tool_calls" in delta:
                    [call] = delta["tool_calls"]
                    first = call if "id" in call else first
                    delta["tool_calls"] = [sent(call, first)]
        _assert_all_run(answer(wire.adapter, wire.framed(documents, PLAIN)), turn, wire)


@every_wire
def test_a_stream_cut_behind_any_event(wire: Wire) -> None:
    @for_all(turns(wire), manners)
    def check(turn: Turn, manner: Manner) -> None:
        documents = wire.stream(turn, manner)
        whole = answer(wire.adapter, wire.body(turn, manner))
        for count in range(len(documents)):
            cut = answer(wire.adapter, wire.framed(documents[:count], Manner(done=False)))
            assert_part_of(cut, whole)


def assert_part_of(cut: ModelResponse, whole: ModelResponse) -> None:
    """Nothing is in it that the whole turn has not, and no call is complete that is not there."""
    complete = {(call.call_id, call.name, call.arguments) for call in whole.tool_calls if call.complete}
    assert {(call.call_id, call.name, call.arguments) for call in cut.tool_calls if call.complete} <= complete
    assert whole.text.startswith(cut.text)
    assert whole.thinking.startswith(cut.thinking)
    assert cut.usage in (None, whole.usage)
    if cut.error is None:
        assert cut.finish_reason is whole.finish_reason
    else:
        assert cut.error.kind is ErrorKind.TRUNCATED


@every_wire
def test_a_stream_cut_off_at_any_byte(wire: Wire) -> None:
    @for_all(turns(wire), manners, st.integers(0, 10_000))
    def check(turn: Turn, manner: Manner, place: int) -> None:
        body = wire.body(turn, manner)
        last = events(wire.adapter, body[: place % len(body)])[-1]
        if isinstance(last, Done):
            # Nothing is missing but what follows the finish reason's own event.
            assert last.finish_reason is turn.finish
        else:
            assert isinstance(last, Error)
            assert last.kind in (ErrorKind.TRUNCATED, ErrorKind.MALFORMED)


@every_wire
@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "whole"])
def test_an_answer_changed_at_random(wire: Wire, streaming: bool) -> None:
    """Fields dropped, doubled, of another type or null, unknown ones, events swapped, dropped and doubled."""

    @for_all(turns(wire), manners, st.randoms(use_true_random=False))
    def check(turn: Turn, manner: Manner, dice: Random) -> None:
        documents = wire.stream(turn, manner) if streaming else [wire.whole(turn)]
        for _ in range(dice.randrange(1, 4)):
            documents = changed(dice, documents)
        body = wire.framed(documents, PLAIN) if streaming else json.dumps(documents[:1]).encode()[1:-1]
        found = build_response(events(wire.adapter, body, streaming=streaming))
        assert all(isinstance(json.loads(call.arguments), dict) for call in found.tool_calls if call.complete)
        assert usage_is_true(found.usage)


WORDS = "a\u2028b\u2029c\x85d\x0be\x0cf \U0001f3ad"


@pytest.mark.parametrize(
    ("wire", "documents"),
    [
        ("chat", [{"choices": [{"index": 0, "delta": {"content": WORDS}}]}]),
        (
            "messages",
            [{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": WORDS}}],
        ),
        ("responses", [{"type": "response.output_text.delta", "output_index": 0, "delta": WORDS}]),
        ("gemini", [{"candidates": [{"content": {"parts": [{"text": WORDS}]}}]}]),
    ],
)
def test_quirk_29_and_30_only_newlines_end_lines_and_characters_may_be_split(wire: str, documents: list[Any]) -> None:
    for size in (1, 2, 3, 1000):
        assert answer(WIRES[wire].adapter, sse(documents), [size]).text == WORDS
