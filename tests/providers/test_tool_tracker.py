"""The tool call tracker: whole and broken ways of sending calls, all to Start, Delta and Complete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.content import Replay
from callboard.protocol.limits import MAX_ANSWER_BYTES, MAX_ARGUMENT_BYTES, MAX_CALLS_PER_STEP
from callboard.protocol.model import Done, FinishReason, StreamEvent, ToolCallComplete, ToolCallDelta, ToolCallStart
from callboard.providers.response_builder import (
    UNCLEAR_CALLS,
    ToolCallTracker,
    TooManyCallsError,
    build_response,
    final_arguments,
)


def feed_all(tracker: ToolCallTracker, out: list[StreamEvent], deltas: Iterable[dict[str, Any]]) -> None:
    for delta in deltas:
        tracker.delta(out, **delta)


def calls(*deltas: dict[str, Any], seed: str = "") -> list[tuple[str, str, str]]:
    """(id, name, arguments) of the calls that these deltas make."""
    tracker, out = ToolCallTracker(seed), list[StreamEvent]()
    feed_all(tracker, out, deltas)
    tracker.complete_all(out)
    response = build_response([*out, Done(FinishReason.TOOL_CALLS)])
    assert all(call.complete for call in response.tool_calls)
    return [(call.call_id, call.name, call.arguments) for call in response.tool_calls]


def test_a_call_in_fragments() -> None:
    assert calls(
        {"index": 0, "id": "a", "name": "f", "arguments": ""},
        {"index": 0, "arguments": '{"x"'},
        {"index": 0, "arguments": ":1}"},
    ) == [("a", "f", '{"x":1}')]


def test_interleaved_calls_keep_apart() -> None:
    assert calls(
        {"index": 0, "id": "a", "name": "f"},
        {"index": 1, "id": "b", "name": "g"},
        {"index": 1, "arguments": '{"y":'},
        {"index": 0, "arguments": '{"x":'},
        {"index": 1, "arguments": "2}"},
        {"index": 0, "arguments": "1}"},
    ) == [("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')]


def test_arguments_wait_for_a_name() -> None:
    tracker, out = ToolCallTracker(), list[StreamEvent]()
    tracker.delta(out, index=0, arguments='{"x":')
    assert out == []
    tracker.delta(out, index=0, id="a", name="f", arguments="1}")
    assert out == [ToolCallStart("a", "f"), ToolCallDelta("a", '{"x":1}')]  # type: ignore[arg-type]


def test_a_call_without_a_name_is_shown_at_the_end() -> None:
    [(call_id, name, arguments)] = calls({"index": 0, "arguments": "{}"})
    assert call_id.startswith("call_")
    assert (name, arguments) == ("", "{}")


def test_invented_ids_differ_from_turn_to_turn_and_not_from_run_to_run() -> None:
    first = calls({"index": 0, "name": "f"}, seed="chatcmpl-1")
    assert calls({"index": 0, "name": "f"}, seed="chatcmpl-1") == first
    assert calls({"index": 0, "name": "f"}, seed="chatcmpl-2") != first


def test_whole_calls_are_calls_of_their_own() -> None:
    tracker, out = ToolCallTracker(), list[StreamEvent]()
    tracker.whole(out, id="a", name="f", arguments={})
    tracker.whole(out, id="a", name="f", arguments={})
    response = build_response([*out, Done(FinishReason.TOOL_CALLS)])
    ids = [call.call_id for call in response.tool_calls]
    assert ids[0] == "a"
    assert len(set(ids)) == 2


def test_a_cut_turn_completes_all_but_the_call_that_was_being_written() -> None:
    tracker, out = ToolCallTracker(), list[StreamEvent]()
    tracker.delta(out, index=0, id="a", name="f", arguments="{}")
    tracker.delta(out, index=1, id="b", name="f", arguments="{}")
    tracker.complete_all(out, cut=True)
    assert [event.id for event in out if isinstance(event, ToolCallComplete)] == ["a"]


def test_a_finished_call_takes_nothing_more() -> None:
    tracker, out = ToolCallTracker(), list[StreamEvent]()
    tracker.delta(out, index=0, id="a", name="f", arguments="{}")
    tracker.complete(out, index=0)
    before = list(out)
    tracker.delta(out, index=0, arguments="junk")
    tracker.complete(out, index=0)
    tracker.complete(out, index=7)
    assert out == before


def test_a_call_that_ends_without_arguments_waits_for_what_comes_next() -> None:
    tracker, out = ToolCallTracker(), list[StreamEvent]()
    tracker.delta(out, index=0, id="a", name="f", arguments="")
    tracker.complete(out, index=0)
    assert ToolCallComplete("a") not in out  # type: ignore[arg-type]
    tracker.delta(out, index=1, id="b", name="g", arguments="")
    assert out[-2:] == [ToolCallComplete("a"), ToolCallStart("b", "g")]  # type: ignore[arg-type]
    tracker.complete(out, index=1)
    tracker.complete_all(out, cut=True)
    assert ToolCallComplete("b") not in out  # type: ignore[arg-type]
    tracker.complete_all(out)
    assert out[-1] == ToolCallComplete("b")  # type: ignore[arg-type]


ONE, TWO = '{"x":1}', '{"y":2}'
F, G = {"id": "a", "name": "f"}, {"id": "a", "name": "g"}


@pytest.mark.parametrize(
    ("deltas", "second"),
    [
        ([{**F, "index": 0, "arguments": ONE}, {**F, "index": 1, "arguments": TWO}], "f"),
        ([{**F, "index": 0, "arguments": ONE}, {**F, "index": 0, "arguments": TWO}], "f"),
        ([{**F, "arguments": ONE}, {**F, "arguments": TWO}], "f"),
        ([{**F, "arguments": ONE}, {"id": "a", "arguments": TWO}], "f"),
        ([{**F, "index": 0, "arguments": ONE}, {**G, "index": 0, "arguments": TWO}], "g"),
        ([{**F, "arguments": {"x": 1}}, {**F, "arguments": {"y": 2}}], "f"),
        # The first pieces of both, then what they write.
        ([{**F, "index": 0}, {**G, "index": 1}, {"index": 0, "arguments": ONE}, {"index": 1, "arguments": TWO}], "g"),
        ([{**F, "index": 0}, {**F, "index": 1}, {"index": 1, "arguments": TWO}, {"index": 0, "arguments": ONE}], "f"),
        # The id in each piece, and two calls by turns.
        (
            [{**F, "index": n % 2, "arguments": text} for n, text in enumerate(['{"x"', '{"y"', ":1}", ":2}"])],
            "f",
        ),
        # One index for all calls, and first pieces without arguments.
        ([{**F, "index": 0}, {"index": 0, "arguments": ONE}, {**F, "index": 0}, {"index": 0, "arguments": TWO}], "f"),
        ([{**F, "index": 0}, {"index": 0, "arguments": ONE}, {**G, "index": 0}, {"index": 0, "arguments": TWO}], "g"),
        ([{**F}, {"arguments": ONE}, {**F}, {"arguments": TWO[:2]}, {"arguments": TWO[2:]}], "f"),
    ],
)
def test_two_calls_of_one_id_are_two(deltas: list[dict[str, Any]], second: str) -> None:
    (first_id, *first), (second_id, *rest) = calls(*deltas)
    assert (first_id, first, rest) == ("a", ["f", ONE], [second, TWO])
    assert second_id.startswith("call_")
    assert calls(*deltas)[1][0] == second_id


@pytest.mark.parametrize(
    "deltas",
    [
        # The whole head again (docs/wire.md quirks 5 and 7), also without its index or its name, and more than once.
        [{**F, "index": 0, "arguments": ONE}] * 2,
        [{**F, "index": 0, "arguments": ONE}] * 4,
        [{**F, "arguments": ONE}] * 2,
        [{**F, "arguments": {"x": 1}}] * 2,
        [{**F, "index": 0, "arguments": ONE}, {"id": "a", "arguments": ONE}],
        [{**F, "index": 0, "arguments": ONE}, {"id": "a", "index": 1, "arguments": ONE}],
        # In pieces: the head, its arguments, and both again.
        [{**F, "index": 0}, {"index": 0, "arguments": ONE}] * 2,
        [*({**F, "index": 0, "arguments": text} for text in ('{"x"', ":1}")), {**F, "index": 0, "arguments": ONE}],
        [{**F, "index": 0, "arguments": ONE}, {"index": 0, "arguments": ONE}],
        [{**F, "index": 0, "arguments": f"{ONE}{ONE}"}],
        [{**F, "index": 0, "arguments": f"{ONE}\n {ONE}\n"}],
    ],
)
def test_whole_arguments_that_are_told_again_are_one_call(deltas: list[dict[str, Any]]) -> None:
    assert calls(*deltas) == [("a", "f", ONE)]


@pytest.mark.parametrize(
    "deltas",
    [
        [{**F, "index": 0, "arguments": ONE}, {"id": "b", "name": "f", "index": 1, "arguments": ONE}],
        [{**F, "index": 0, "arguments": ONE}, {"id": "b", "name": "f", "index": 0, "arguments": ONE}],
        [{**F, "arguments": ONE}, {"id": "b", "name": "f", "arguments": ONE}],
        [{"name": "f", "arguments": ONE}] * 2,
        [{"index": n, "name": "f", "arguments": ONE} for n in range(2)],
        [{**F, "index": n, "arguments": ONE} for n in range(2)],
    ],
)
def test_equal_calls_of_two_ids_or_places_are_two(deltas: list[dict[str, Any]]) -> None:
    assert [call[1:] for call in calls(*deltas)] == [("f", ONE)] * 2


def test_arguments_that_differ_are_not_taken_for_a_repeat() -> None:
    for text in (f"{ONE}{TWO}", f"{ONE}{ONE}{TWO}", f"{ONE}{ONE[:-1]}", f"{ONE},{ONE}", f"{ONE}}}"):
        tracker, out = ToolCallTracker(), list[StreamEvent]()
        tracker.delta(out, **F, index=0, arguments=text)
        tracker.complete_all(out)
        (call,) = build_response([*out, Done(FinishReason.TOOL_CALLS)]).tool_calls
        assert (call.complete, call.arguments) == (False, text)


@pytest.mark.parametrize("empty", ["{}", "{ }", {}])
def test_a_call_with_an_empty_object_stands_beside_one_whose_arguments_came_under_another_index(empty: object) -> None:
    head = {"index": 1, "id": "b", "name": "g", "arguments": ""}
    for pieces in ([TWO], [TWO[:3], TWO[3:]]):
        deltas = [{**F, "index": 0, "arguments": empty}, head, *({"index": 2, "arguments": text} for text in pieces)]
        (_, name, arguments), second = calls(*deltas)
        assert (name, arguments.replace(" ", "")) == ("f", "{}")
        assert second == ("b", "g", TWO)


@pytest.mark.parametrize(
    "deltas",
    [
        [{**F, "index": 0, "arguments": piece} for piece in ("", '{"x"', ":1}", "", " ")],
        [{**F, "index": n, "arguments": piece} for n, piece in enumerate(('{"x"', ":", "1}"))],
        [{**F, "index": 0}, {"id": "a", "index": 1, "arguments": ONE}],
        [{**F, "index": 0, "arguments": ONE}, {**F, "index": 0}, {"index": 0, "arguments": ""}],
        [{**F, "arguments": ONE}, {"id": "a", "index": 3, "arguments": ""}],
    ],
)
def test_pieces_of_one_call_are_one(deltas: list[dict[str, Any]]) -> None:
    tracker, out = ToolCallTracker(), list[StreamEvent]()
    feed_all(tracker, out, deltas)
    assert tracker.count == 1
    assert calls(*deltas) == [("a", "f", "".join(delta.get("arguments", "") for delta in deltas).strip())]
    assert tracker.notes == ()


SHARED_HEAD = {"index": 0, "id": "a", "name": "f", "arguments": ""}


@pytest.mark.parametrize(
    ("deltas", "made"),
    [
        # A gateway that counts the choices of Anthropic's blocks: the arguments one index behind (agno issue 8880).
        (
            [{**F, "index": 0, "arguments": ONE}, {"index": 0, "id": "b", "name": "g"}, {"index": 1, "arguments": TWO}],
            2,
        ),
        # The same in pieces.
        (
            [{**F, "index": 0, "arguments": ONE}, {"index": 0, "id": "b", "name": "g", "arguments": ""}]
            + [{"index": 1, "arguments": piece} for piece in ('{"y"', ":2}")],
            2,
        ),
        # The index counts on with each piece (dirac issue 215).
        ([SHARED_HEAD, *({"index": n, "arguments": piece} for n, piece in enumerate(('{"x"', ":1}"), 1))], 1),
        ([SHARED_HEAD, *({"index": n, "arguments": piece} for n, piece in enumerate('{"x":1}', 1))], 1),
        # So it does for two calls, with the id or the name in each piece, or with a new id in each.
        (
            [
                SHARED_HEAD,
                {"index": 1, "arguments": ONE},
                {"index": 2, "id": "b", "name": "g", "arguments": ""},
                {"index": 3, "arguments": TWO},
            ],
            2,
        ),
        ([{**F, "index": n, "arguments": piece} for n, piece in enumerate(("", '{"x"', ":1}"))], 1),
        ([{"index": n, "name": "f", "arguments": piece} for n, piece in enumerate(("", '{"x"', ":1}"))], 1),
        (
            [
                SHARED_HEAD,
                *({"index": 0, "id": f"b{n}", "arguments": piece} for n, piece in enumerate(('{"x"', ":1}"))),
            ],
            1,
        ),
        # Its first pieces under the right index, the rest under another; and none of it, a blank or null besides.
        ([{**F, "index": 0, "arguments": '{"x"'}, {"index": 1, "arguments": ":1}"}], 1),
        ([{**F, "index": 0, "arguments": ONE}, {"index": 1}, {"index": 2, "arguments": "null"}], 1),
        ([{**F, "index": 0, "arguments": ONE}, {"index": 1, "arguments": ONE}], 1),
        # Arguments of no call, and one call without any.
        ([{"index": 0, "arguments": ONE}, {"index": 1, "id": "a", "name": "f"}], 1),
        # Encoded twice.
        ([SHARED_HEAD, {"index": 1, "arguments": orjson.dumps(ONE).decode()}], 1),
    ],
)
def test_arguments_under_an_index_of_no_call_belong_to_the_call_that_was_being_written(
    deltas: list[dict[str, Any]], made: int
) -> None:
    found = calls(*deltas)
    assert [(name, arguments) for _, name, arguments in found] == [("f", ONE), ("g", TWO)][:made]
    assert found[0][0].startswith("call_") or found[0][0] == "a"


@pytest.mark.parametrize(
    "deltas",
    [
        # Which of two heads they belong to is not said.
        [SHARED_HEAD, {"index": 1, "id": "b", "name": "g"}, {"index": 2, "arguments": ONE}],
        [SHARED_HEAD, {"index": 1, "id": "b", "name": "g"}, *({"index": n, "arguments": ONE} for n in (2, 3))],
        [{"index": 0, "arguments": ONE}, *({"index": n, "id": f"a{n}", "name": "f"} for n in (1, 2))],
        # They do not make its arguments whole.
        [SHARED_HEAD, {"index": 1, "arguments": ONE}, {"index": 2, "arguments": TWO}],
        [SHARED_HEAD, {"index": 1, "arguments": ONE[:-1]}],
        [SHARED_HEAD, {"index": 1, "arguments": ":1}"}],
        [{**F, "index": 0, "arguments": '{"x":'}, {"index": 1, "arguments": TWO}],
        # An empty object, and others of no call.
        [{**F, "index": 0, "arguments": "{}"}, {"index": 1, "arguments": ONE}],
    ],
)
def test_no_call_is_run_where_it_is_not_clear_whose_some_arguments_are(deltas: list[dict[str, Any]]) -> None:
    tracker, out = ToolCallTracker(), list[StreamEvent]()
    feed_all(tracker, out, deltas)
    tracker.complete_all(out)
    response = build_response([*out, Done(FinishReason.TOOL_CALLS)])
    assert [call.name for call in response.tool_calls if call.complete and call.name] == []
    assert any(call.name for call in response.tool_calls)


def test_a_whole_call_is_run_beside_arguments_of_no_call() -> None:
    """No text can go on behind a whole object: they are of a call whose beginning was lost, and told as it is."""
    first, lost = calls({**F, "index": 0, "arguments": ONE}, {"index": 1, "arguments": TWO})
    assert first == ("a", "f", ONE)
    assert lost[1:] == ("", TWO)


def test_a_cut_turn_leaves_the_call_incomplete_that_takes_its_last_arguments() -> None:
    tracker, out = ToolCallTracker(), list[StreamEvent]()
    feed_all(tracker, out, [{"index": 1, "id": "b", "name": "g", "arguments": TWO}, SHARED_HEAD])
    tracker.delta(out, index=5, arguments=ONE)
    tracker.complete_all(out, cut=True)
    assert [event.id for event in out if isinstance(event, ToolCallComplete)] == ["b"]


def test_pieces_under_counted_indexes_are_no_calls_too_many() -> None:
    text = orjson.dumps({"words": [{"word": "a"}] * 2_000}).decode()
    pieces = [{"index": n, "arguments": text[n : n + 3]} for n in range(0, len(text), 3)]
    assert calls(SHARED_HEAD, *({**piece, "index": n} for n, piece in enumerate(pieces, 1))) == [("a", "f", text)]


def test_braces_within_a_text_begin_no_call() -> None:
    text = orjson.dumps({"code": '{"}{"}' * 40}).decode()
    pieces = [{**F, "index": 0, "arguments": character} for character in text]
    assert calls(*pieces, {**F, "index": 0, "arguments": TWO})[0] == ("a", "f", text)


def test_replay_data_rides_on_the_start() -> None:
    tracker, out, replay = ToolCallTracker(), list[StreamEvent](), Replay("here", {"signature": "s"})
    tracker.delta(out, index=0, id="a", name="f", replay=replay)
    assert out == [ToolCallStart("a", "f", replay)]  # type: ignore[arg-type]


def test_restart_forgets_everything() -> None:
    tracker, out = ToolCallTracker(), list[StreamEvent]()
    tracker.delta(out, index=0, id="a", name="f")
    tracker.restart()
    tracker.complete_all(out)
    assert tracker.count == 0
    assert out == [ToolCallStart("a", "f")]  # type: ignore[arg-type]


def test_more_calls_than_a_model_makes_on_purpose() -> None:
    tracker, out = ToolCallTracker(), list[StreamEvent]()
    with pytest.raises(TooManyCallsError, match=str(MAX_CALLS_PER_STEP)):
        feed_all(tracker, out, [{"index": n, "id": f"c{n}", "name": "f"} for n in range(10_000)])
    assert len(out) == MAX_CALLS_PER_STEP


def test_longer_arguments_than_a_model_writes_on_purpose() -> None:
    tracker, out = ToolCallTracker(), list[StreamEvent]()
    piece = {"index": 0, "name": "f", "arguments": "x" * 100_000}
    with pytest.raises(TooManyCallsError, match="longer"):
        feed_all(tracker, out, [piece] * (MAX_ARGUMENT_BYTES // 100_000 + 1))


def test_arguments_that_wait_for_names_are_bounded_together() -> None:
    """No event tells of them: who counts what an answer says does not see them."""
    tracker, out = ToolCallTracker(), list[StreamEvent]()
    piece = orjson.dumps({"x": "x" * (MAX_ANSWER_BYTES // 100 - 8)}).decode()
    for number in range(200):  # those that get their names no longer count here
        tracker.delta(out, index=number % 20, arguments=piece)
        tracker.delta(out, index=number % 20, name="f")
    tracker.delta(out, index="whole", name="g", arguments="{}")  # no further piece can go on with it
    feed_all(tracker, out, [{"index": number, "arguments": piece} for number in range(20, 119)])
    with pytest.raises(TooManyCallsError, match="without a name are longer"):
        feed_all(tracker, out, [{"index": 119, "arguments": piece}, {"index": 120, "arguments": piece}])


fragments = st.fixed_dictionaries(
    {},
    optional={
        "index": st.sampled_from([None, 0, 1, 2, "a"]),
        "id": st.sampled_from([None, "", "x", "y"]),
        "name": st.sampled_from([None, "", "f", "g"]),
        "arguments": st.sampled_from([None, "", "{}", '{"a"', {"a": 1}, [1], 5]),
    },
)


@given(st.lists(fragments, max_size=12))
def test_whatever_comes_each_call_starts_once_and_completes_once_if_it_is_whole(deltas: list[dict[str, Any]]) -> None:
    tracker, out = ToolCallTracker(), list[StreamEvent]()
    for delta in deltas:
        tracker.delta(out, **delta)
    tracker.complete_all(out)
    started = [event.id for event in out if isinstance(event, ToolCallStart)]
    completed = [event.id for event in out if isinstance(event, ToolCallComplete)]
    assert len(set(started)) == len(started) == tracker.count
    # A call whose arguments are no whole object is not complete, whatever the server says (quirk 21).
    told: dict[str, str] = dict.fromkeys(started, "")
    for event in out:
        if isinstance(event, ToolCallDelta):
            told[event.id] += event.args_delta
    whole = {call for call, text in told.items() if final_arguments(text)[1]}
    assert len(set(completed)) == len(completed)
    assert set(completed) == whole if UNCLEAR_CALLS not in tracker.notes else set(completed) < whole
    # Never a call run without arguments beside arguments of no call.
    names = {event.id: event.name for event in out if isinstance(event, ToolCallStart)}
    if any(not name and told[call].strip() not in ("", "{}") for call, name in names.items()):
        assert not any(names[call] and told[call].strip() in ("", "{}") for call in completed)
    for event in out:
        assert isinstance(event, ToolCallStart | ToolCallDelta | ToolCallComplete)
        assert event.id in started


@pytest.mark.parametrize(
    "pieces",
    [
        # (index, id, name, arguments): those of the second call under the index of the first, in one piece or several,
        # behind the heads or between them; or all under an index of no head, or under that of the last.
        [(0, "a", "f", ""), (0, "", "", '{"a":1}'), (1, "b", "g", ""), (0, "", "", '{"b":2}')],
        [(0, "a", "f", '{"a":'), (0, "", "", "1}"), (1, "b", "g", ""), (0, "", "", '{"b":'), (0, "", "", "2}")],
        [(0, "a", "f", ""), (1, "b", "g", ""), (0, "", "", '{"a":1}'), (0, "", "", '{"b":2}')],
        [(0, "a", "f", ""), (1, "b", "g", ""), (1, "", "", '{"a":1}'), (1, "", "", '\n{"b":2}')],
        [(0, "a", "f", ""), (9, "", "", '{"a":1}'), (1, "b", "g", ""), (9, "", "", '{"b":2}')],
        [(0, "a", "f", '{"a":1}{"b":2}'), (1, "b", "g", "")],
    ],
    ids=str,
)
def test_a_call_whose_arguments_came_under_the_index_of_another_does_not_run_without_them(
    pieces: list[tuple[int, str, str, str]],
) -> None:
    tracker, out = ToolCallTracker(), list[StreamEvent]()
    feed_all(tracker, out, [dict(zip(("index", "id", "name", "arguments"), each, strict=True)) for each in pieces])
    tracker.complete_all(out)
    assert [event for event in out if isinstance(event, ToolCallComplete)] == []
    assert UNCLEAR_CALLS in tracker.notes


def test_a_call_that_takes_nothing_runs_beside_one_whose_arguments_are_broken() -> None:
    tracker, out = ToolCallTracker(), list[StreamEvent]()
    for index, (name, text) in enumerate((("f", '{"a":1}}'), ("g", ""), ("h", '{"a":"}{"}'))):
        tracker.delta(out, index=index, id=name, name=name, arguments=text)
    tracker.complete_all(out)
    assert [event.id for event in out if isinstance(event, ToolCallComplete)] == ["g", "h"]
    assert tracker.notes == ()
