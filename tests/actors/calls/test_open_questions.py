"""Equal questions of one request: one is put at a time, and what counts for the request is not asked twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callboard.actors.calls.approvals import OpenQuestions, QuestionStep, SeekApproval, Verdict
from callboard.protocol.commands import AskApproval
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.tools import Risk


class Session:
    """Stands for its address."""


ONE: Any = Session()
OTHER: Any = Session()


def tag(call_id: str) -> Tag:
    return Tag(RequestId("r"), MessageId("m"), 1, CallId(call_id))


def seek(call_id: str, arguments: str = '{"x":1}', asker: Any = ONE, name: str = "write") -> SeekApproval:
    return SeekApproval(AskApproval(tag(call_id), ToolName(name), arguments, Risk.WRITE), asker)


def verdict(call_id: str, granted: bool, *, is_for_request: bool = False) -> Verdict:
    return Verdict(tag(call_id), granted, "me", is_for_request=is_for_request)


def asked(questions: OpenQuestions, *seeks: SeekApproval) -> list[str]:
    return [step.ask.question.tag.call_id for each in seeks if (step := questions.add(each)).ask is not None]


def test_of_ten_equal_questions_one_is_put_and_its_answer_for_the_request_counts_for_all() -> None:
    questions = OpenQuestions()
    ten = [seek(str(number), '{"x": 1}' if number % 2 else '{"x":1}') for number in range(10)]
    assert asked(questions, *ten) == ["0"]
    step = questions.settle(verdict("0", True, is_for_request=True))
    assert step.ask is None
    assert [(asker, each.tag.call_id, each.granted) for asker, each in step.answers] == [
        (ONE, str(number), True) for number in range(10)
    ]
    later = questions.add(seek("later"))
    assert later.ask is None
    assert [each.tag.call_id for _, each in later.answers] == ["later"]


def test_once_allows_one_call_and_the_next_of_its_kind_is_asked_about() -> None:
    questions = OpenQuestions()
    assert asked(questions, seek("a"), seek("b"), seek("c")) == ["a"]
    step = questions.settle(verdict("a", True))
    assert [each.tag.call_id for _, each in step.answers] == ["a"]
    assert step.ask is not None
    assert step.ask.question.tag == tag("b")


def test_a_denial_counts_for_those_that_wait_with_it_and_not_for_later_ones() -> None:
    questions = OpenQuestions()
    asked(questions, seek("a"), seek("b"))
    step = questions.settle(verdict("a", False))
    assert [(each.tag.call_id, each.granted) for _, each in step.answers] == [("a", False), ("b", False)]
    assert asked(questions, seek("c")) == ["c"]


@pytest.mark.parametrize("other", [seek("b", '{"x":2}'), seek("b", name="erase"), seek("b", asker=OTHER)])
def test_what_differs_in_arguments_tool_or_request_is_a_question_of_its_own(other: SeekApproval) -> None:
    questions = OpenQuestions()
    assert asked(questions, seek("a"), other) == ["a", "b"]
    assert len(questions.settle(verdict("a", True, is_for_request=True)).answers) == 1
    assert questions.add(replace(other, question=replace(other.question, tag=tag("c")))).answers == ()


def test_when_the_question_that_was_put_is_withdrawn_the_next_is_put() -> None:
    questions = OpenQuestions()
    asked(questions, seek("a"), seek("b"), seek("c"))
    assert questions.withdraw(tag("b")).ask is None
    following = questions.withdraw(tag("a")).ask
    assert following is not None
    assert following.question.tag == tag("c")
    assert questions.withdraw(tag("a")) == QuestionStep(moot=(tag("a"),)), "it may have been put before a crash"
    assert questions.settle(verdict("a", True)).answers == ()


def test_what_was_answered_for_a_request_ends_with_it() -> None:
    questions = OpenQuestions()
    asked(questions, seek("a"))
    questions.settle(verdict("a", True, is_for_request=True))
    questions.forget(ONE)
    assert asked(questions, seek("b")) == ["b"]


STEPS = st.tuples(
    st.sampled_from(["ask", "once", "request", "deny", "always_deny", "withdraw"]), st.integers(0, 5), st.integers(0, 1)
)


@given(st.lists(STEPS, max_size=40))
def test_each_question_is_answered_once_or_withdrawn_and_of_equal_ones_at_most_one_is_put(
    steps: list[tuple[str, int, int]],
) -> None:
    questions = OpenQuestions()
    put: dict[str, int] = {}
    is_open: dict[str, int] = {}
    ended: list[str] = []

    def learn(step: Any) -> None:
        for _, each in step.answers:
            ended.append(each.tag.call_id)
            is_open.pop(each.tag.call_id)
            put.pop(each.tag.call_id, None)
        if step.ask is not None:
            put[step.ask.question.tag.call_id] = is_open[step.ask.question.tag.call_id]

    for number, (does, which, kind) in enumerate(steps):
        if does == "ask":
            is_open[str(number)] = kind
            learn(questions.add(seek(str(number), f'{{"x":{kind}}}')))
        elif does == "withdraw" and is_open:
            chosen = sorted(is_open)[which % len(is_open)]
            step = questions.withdraw(tag(chosen))
            assert step.moot == (tag(chosen),)
            assert chosen in put or step.ask is None
            following = step.ask
            del is_open[chosen]
            put.pop(chosen, None)
            if following is not None:
                put[following.question.tag.call_id] = is_open[following.question.tag.call_id]
        elif does != "withdraw" and put:
            chosen = sorted(put)[which % len(put)]
            is_for_request = does in ("request", "always_deny")
            learn(questions.settle(verdict(chosen, does in ("once", "request"), is_for_request=is_for_request)))
        assert sorted(put.values()) == sorted(set(is_open.values())), "one of each kind that is open"
    assert len(ended) == len(set(ended))
