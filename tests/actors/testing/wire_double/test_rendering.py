"""Every scripted turn, written by the double and cut into any chunks, is read back as the same turn by our adapters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wire import answer as decoded

from callboard.actors.testing.wire_double import Api, Call, Fault, FaultKind, RawAnswer, Tokens, Turn
from callboard.actors.testing.wire_double.answers import End, WireAnswer, wire_answer
from callboard.actors.testing.wire_double.apis import APIS
from callboard.actors.testing.wire_double.wire_api import Question
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import FinishReason, ModelResponse, Usage
from callboard.providers.adapter import Adapter
from callboard.providers.provider_registry import adapter_for

ADAPTERS: Mapping[Api, Adapter] = {api: adapter_for(api.value) for api in Api}
STREAMED = Question("some-model", 3)
AS_ARRAY = Question("some-model", 3, as_array=True)
WHOLE = Question("some-model", 3, streamed=False)
#: Gemini's answers may be arrays too.
HOW = [(api, how) for api in Api for how in (STREAMED, WHOLE)] + [(Api.GEMINI, AS_ARRAY)]

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
names = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
arguments = st.dictionaries(words, st.one_of(st.integers(-(2**31), 2**31), words, st.booleans(), st.none()), max_size=4)
chunk_sizes = st.lists(st.integers(1, 200), min_size=1, max_size=6)


@st.composite
def tokens(draw: st.DrawFn) -> Tokens:
    cached, written, asked, reasoned, said = (draw(st.integers(0, 999)) for _ in range(5))
    return Tokens(cached + written + asked, reasoned + said, cached, written, reasoned)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    called = draw(st.lists(st.tuples(names, arguments), max_size=3))
    calls = tuple(Call(name, given, f"id_{place}") for place, (name, given) in enumerate(called))
    finish = None if calls else draw(st.sampled_from([None, FinishReason.LENGTH, FinishReason.CONTENT_FILTER]))
    text, thinking, fragment = draw(words), draw(words), draw(st.integers(1, 12))
    return Turn(text, calls, thinking, finish, draw(st.none() | tokens()), fragment)


def written(api: Api, turn: Turn | RawAnswer, question: Question = STREAMED) -> WireAnswer:
    return wire_answer(APIS[api], turn, question)


def read(api: Api, answer: WireAnswer, sizes: list[int], question: Question = STREAMED) -> ModelResponse:
    how = {"status": answer.status, "headers": answer.headers, "streaming": question.streamed}
    return decoded(ADAPTERS[api], b"".join(answer.pieces), sizes, **how)


def expected_finish(api: Api, turn: Turn) -> FinishReason:
    if turn.finish_reason is FinishReason.CONTENT_FILTER and api is Api.ANTHROPIC:
        return FinishReason.REFUSAL  # the only word that this API has for it
    return turn.finish_reason


def expected_usage(api: Api, told: Tokens | None) -> Usage | None:
    if told is None:
        return None
    written = 0 if api is Api.GEMINI else told.cache_write
    return Usage(told.input, told.output, told.cached, written, told.reasoning)


@pytest.mark.parametrize(("api", "question"), HOW)
def test_a_turn_is_read_back_as_it_was_scripted(api: Api, question: Question) -> None:
    @given(turns(), chunk_sizes)
    def check(turn: Turn, sizes: list[int]) -> None:
        found = read(api, written(api, turn, question), sizes, question)
        assert found.error is None
        assert found.text == turn.text
        assert found.thinking == turn.thinking
        assert [(c.call_id, c.name, orjson.loads(c.arguments), c.complete) for c in found.tool_calls] == [
            (call.id, call.name, call.arguments, True) for call in turn.calls
        ]
        assert found.finish_reason is expected_finish(api, turn)
        assert found.usage == expected_usage(api, turn.usage)

    check()


@pytest.mark.parametrize(("api", "question"), HOW)
def test_a_half_call_is_incomplete_and_the_turn_was_cut_off(api: Api, question: Question) -> None:
    calls = (Call("first", {"a": 1}), Call("last", {"city": "Oslo"}))
    turn = Turn("Well", calls, fault=Fault(FaultKind.HALF_CALL))
    found = read(api, written(api, turn, question), [7], question)
    assert [(call.name, call.complete) for call in found.tool_calls] == [("first", True), ("last", False)]
    assert (found.text, found.finish_reason, found.error) == ("Well", FinishReason.LENGTH, None)


@pytest.mark.parametrize(("api", "question"), HOW)
def test_an_id_that_is_left_out_differs_from_turn_to_turn(api: Api, question: Question) -> None:
    turn = Turn(calls=(Call("look"), Call("look")))
    later = Question(question.model, question.number + 1, question.streamed, as_array=question.as_array)
    ids = {
        call.call_id for how in (question, later) for call in read(api, written(api, turn, how), [99], how).tool_calls
    }
    assert len(ids) == 4


@pytest.mark.parametrize("api", Api)
def test_arguments_that_are_no_json_are_never_a_complete_call(api: Api) -> None:
    found = read(api, written(api, Turn(calls=(Call("look", '{"city": '),))), [5])
    assert all(not call.complete for call in found.tool_calls)
    if api is Api.GEMINI:  # it cannot carry such a call, and says so
        assert found.error is not None
        assert found.error.kind is ErrorKind.MALFORMED_TOOL_CALL
    else:
        assert len(found.tool_calls) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, ErrorKind.INVALID_REQUEST),
        (401, ErrorKind.AUTHENTICATION),
        (404, ErrorKind.NOT_FOUND),
        (429, ErrorKind.RATE_LIMITED),
        (500, ErrorKind.SERVER),
    ],
)
@pytest.mark.parametrize("api", Api)
def test_a_status_is_an_error_in_the_words_of_the_api(api: Api, status: int, kind: ErrorKind) -> None:
    fault = Fault(FaultKind.STATUS, status=status, message="Not today.", retry_after=7)
    answer = written(api, Turn(fault=fault))
    assert (answer.status, answer.headers["retry-after"], answer.end) == (status, "7", End.WELL)
    error = read(api, answer, [11]).error
    assert error is not None
    assert (error.kind, error.status, error.retry_after) == (kind, status, 7.0)
    assert "Not today." in error.message


@pytest.mark.parametrize("api", Api)
def test_an_overload_has_a_status_of_its_own_at_anthropic(api: Api) -> None:
    status = 529 if api is Api.ANTHROPIC else 503
    error = read(api, written(api, Turn(fault=Fault(FaultKind.STATUS, status=status))), [11]).error
    assert error is not None
    assert error.kind is ErrorKind.OVERLOADED


@pytest.mark.parametrize(("api", "question"), HOW)
def test_an_error_in_the_middle_of_an_answer(api: Api, question: Question) -> None:
    turn = Turn("abcdefgh", fragment=2, fault=Fault(FaultKind.STREAM_ERROR, after=2, message="Not today."))
    found = read(api, written(api, turn, question), [3], question)
    assert found.error is not None
    assert "Not today." in found.error.message
    # Without a stream the answer fails as a whole, with a status.
    assert found.text == ("abcd" if question.streamed else "")


@pytest.mark.parametrize("after", [0, 1, 3, None])
@pytest.mark.parametrize("api", Api)
def test_a_broken_answer_has_so_many_pieces_and_no_end(api: Api, after: int | None) -> None:
    turn = Turn("abcdefgh", fragment=2, fault=Fault(FaultKind.CUT, after=after))
    answer = written(api, turn)
    found = read(api, answer, [5])
    assert answer.end is End.CUT
    assert found.text == "abcdefgh"[: 8 if after is None else 2 * after]
    if api is not Api.COPILOT or not found.text:  # Copilot is known to leave the end of a good answer out
        assert found.error is not None
        assert found.error.kind is ErrorKind.TRUNCATED


@pytest.mark.parametrize(("api", "question"), HOW)
def test_garbage_is_no_answer(api: Api, question: Question) -> None:
    answer = written(api, Turn("ab", fault=Fault(FaultKind.GARBAGE)), question)
    error = read(api, answer, [4], question).error
    assert error is not None
    assert error.kind in (ErrorKind.MALFORMED, ErrorKind.TRUNCATED)
    with pytest.raises(UnicodeDecodeError):
        b"".join(answer.pieces).decode()


@pytest.mark.parametrize(("api", "question"), HOW)
def test_an_endless_answer_has_no_end(api: Api, question: Question) -> None:
    answer = written(api, Turn("abcd", fragment=1, fault=Fault(FaultKind.ENDLESS)), question)
    first = b"".join(itertools.islice(answer.pieces, 500))
    found = decoded(ADAPTERS[api], first, streaming=question.streamed)
    assert found.text == ("abcd" * 125)[: len(found.text)]
    assert len(found.text) > 400 or not question.streamed
    assert found.error is not None or api is Api.COPILOT


@pytest.mark.parametrize("kind", [FaultKind.RESET, FaultKind.CLOSE, FaultKind.DEAF])
def test_a_silent_fault_has_no_bytes(kind: FaultKind) -> None:
    for answer in (Turn("text", fault=Fault(kind)), RawAnswer("text", fault=Fault(kind))):
        assert tuple(written(Api.CHAT, answer).pieces) == ()
        assert written(Api.CHAT, answer).end.value == kind.value


def test_a_raw_answer_is_what_it_says() -> None:
    page, document = RawAnswer("<p>Hi", 502), RawAnswer({"a": [1]}, headers={"X-Any": "1"})
    assert written(Api.CHAT, page) == WireAnswer((b"<p>Hi",), {"content-type": "text/html; charset=utf-8"}, 502)
    assert written(Api.CHAT, document) == WireAnswer(
        (b'{"a":[1]}',), {"content-type": "application/json", "x-any": "1"}
    )


def test_copilot_puts_the_calls_of_claude_into_a_second_choice() -> None:
    turn = Turn("Well", (Call("look", {"a": 1}, "id_0"),))
    for streamed in (True, False):
        question = Question("claude-sonnet", 0, streamed)
        answer = written(Api.COPILOT, turn, question)
        assert b'"index":1,' in b"".join(answer.pieces)
        found = read(Api.COPILOT, answer, [9], question)
        assert (found.text, [call.name for call in found.tool_calls]) == ("Well", ["look"])


def test_openrouter_comments_and_says_its_finish_reason_twice() -> None:
    body = b"".join(written(Api.OPENROUTER, Turn("Well")).pieces)
    assert body.startswith(b": OPENROUTER PROCESSING\n\n")
    assert body.count(b'"finish_reason":"stop"') == 2
    assert body.count(b'"usage":') == 1
