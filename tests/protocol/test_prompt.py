"""What the next model call is given and whether there is one; cutting a transcript; token estimates."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from callboard.protocol.budgets import MIN_OUTPUT_TOKENS, Spending, Stop, answer_room
from callboard.protocol.commands import CallModel, Command, RunTool
from callboard.protocol.compaction import Compacted, Compaction
from callboard.protocol.content import (
    AssistantMessage,
    Image,
    Message,
    Replay,
    ServerTool,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    history_faults,
)
from callboard.protocol.errors import UsageError
from callboard.protocol.events import Event, ModelResponded, RequestStarted, ToolCallCompleted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.machine import Session
from callboard.protocol.model import ModelRequest, ModelResponse, Sampling, ToolChoice, ToolChoiceMode, Usage
from callboard.protocol.options import RequestOptions
from callboard.protocol.output import OutputMode, OutputSpec
from callboard.protocol.prompt import SHORTENED_RESULT_CHARS, PromptBuilder, shorten_result, shorten_text
from callboard.protocol.prompt_tokens import IMAGE_TOKENS, estimate_tokens, message_tokens, tools_tokens
from callboard.protocol.start_check import check_start
from callboard.protocol.testing.scenario import STANDARD_TOOLS
from callboard.protocol.testing.strategies import histories
from callboard.protocol.tools import Decision

QUESTION = UserMessage.of("What is this?")
LOOK = ToolName("look")
TAG = Tag(RequestId("r"), MessageId("m"))


def turn(*ids: str, arguments: str = "{}") -> AssistantMessage:
    return AssistantMessage(tuple(ToolCall(CallId(name), LOOK, arguments) for name in ids))


def result(name: str, content: str = "1", tool: str = "look") -> ToolMessage:
    return ToolMessage(CallId(name), ToolName(tool), content)


def length(text: str) -> int:
    return len(text)


@pytest.mark.parametrize(("missing", "kind"), [(0, ModelRequest), (1, Stop)])
def test_tools_that_are_no_longer_offered_take_no_room(missing: int, kind: type) -> None:
    room = message_tokens(QUESTION, length) + MIN_OUTPUT_TOKENS - missing
    options = replace(RequestOptions("m"), context_tokens=room)
    asking = PromptBuilder(RequestStarted(TAG, 0.0, (), QUESTION, options, STANDARD_TOOLS), Spending(), length)
    assert isinstance(asking.next_request(again=False), Stop)
    asking.give_up_tools("m")
    assert isinstance(asking.next_request(again=False), kind)


def test_tools_that_are_offered_take_room() -> None:
    shown = [offer.definition for offer in STANDARD_TOOLS if offer.decision is not Decision.DENY]
    room = message_tokens(QUESTION, length) + tools_tokens(shown, length) + MIN_OUTPUT_TOKENS
    for context_tokens, kind in ((room, ModelRequest), (room - 1, Stop)):
        options = replace(RequestOptions("m"), context_tokens=context_tokens)
        asking = PromptBuilder(RequestStarted(TAG, 0.0, (), QUESTION, options, STANDARD_TOOLS), Spending(), length)
        assert isinstance(asking.next_request(again=False), kind)


@pytest.mark.parametrize("mode", [ToolChoiceMode.AUTO, ToolChoiceMode.REQUIRED])
def test_tools_that_may_be_called_hold_for_the_whole_request(mode: ToolChoiceMode) -> None:
    shown = [offer.definition.name for offer in STANDARD_TOOLS if offer.decision is not Decision.DENY]
    denied = [offer.definition.name for offer in STANDARD_TOOLS if offer.decision is Decision.DENY]
    assert denied
    choice = ToolChoice(mode, allowed=(*denied, shown[1]))
    form = OutputSpec({"type": "object", "properties": {}}, modes=(OutputMode.TOOL,))
    for output, more in ((None, ()), (form, (form.tool_name,))):
        options = RequestOptions("m", tool_choice=choice, output=output)
        asking = PromptBuilder(RequestStarted(TAG, 0.0, (), QUESTION, options, STANDARD_TOOLS), Spending(), length)
        first = asking.next_request(again=False)
        assert isinstance(first, ModelRequest)
        assert first.tool_choice == ToolChoice(mode, allowed=(shown[1], *more))
        assert {tool.name for tool in first.tools} == {*shown, *more}
        asking.add_step((turn("a"), result("a")))
        second = asking.next_request(again=False)
        assert isinstance(second, ModelRequest)
        assert second.tool_choice == ToolChoice(allowed=(shown[1], *more))


def test_where_none_of_the_allowed_tools_is_shown_none_may_be_called() -> None:
    denied = tuple(offer.definition.name for offer in STANDARD_TOOLS if offer.decision is Decision.DENY)
    options = RequestOptions("m", tool_choice=ToolChoice(allowed=denied))
    asking = PromptBuilder(RequestStarted(TAG, 0.0, (), QUESTION, options, STANDARD_TOOLS), Spending(), length)
    asked = asking.next_request(again=False)
    assert isinstance(asked, ModelRequest)
    assert asked.tool_choice == ToolChoice(ToolChoiceMode.NONE)
    asking.give_up_tools("m")
    asked = asking.next_request(again=False)
    assert isinstance(asked, ModelRequest)
    assert asked.tool_choice == ToolChoice()


@pytest.mark.parametrize("counted", [0.5, 0.8, 1.5])
@pytest.mark.parametrize(
    "compacted",
    [
        Compacted(),
        Compacted(left_out=2),
        Compacted(left_out=6),
        Compacted(2, "they greeted each other", 2),
        Compacted(4, "they greeted each other, twice", 4),
        Compacted(6, "they greeted each other", 2),
    ],
    ids=["nothing left out", "two", "all", "two in a summary", "four in a summary", "six, two of them in a summary"],
)
def test_what_a_provider_has_counted_and_is_shown_as_it_was_stays_counted(compacted: Compacted, counted: float) -> None:
    """A model that takes no tools is shown no call otherwise than before, where there was none; seen in seed 23678."""
    history = (UserMessage.of("Hello there."), AssistantMessage((Text("Good day to you."),))) * 3
    options = RequestOptions("m", token_ratio=1.25, compaction=Compaction())
    started = RequestStarted(TAG, 0.0, history, QUESTION, options, compacted=compacted)
    asking = PromptBuilder(started, Spending(), length)
    shown = asking.messages()
    asking.charge(Usage(int(asking.size.own_count * counted), 1), None, turn())
    before = asking.tokens
    asking.give_up_tools("m")
    assert (asking.messages(), asking.tokens) == (shown, before)


def transcript(history: tuple[Message, ...], limit: int | None) -> PromptBuilder:
    options = RequestOptions("m", system_prompt="sys", context_tokens=limit)
    return PromptBuilder(RequestStarted(TAG, 0.0, history, UserMessage.of("go"), options), Spending(), estimate_tokens)


@settings(deadline=None)
@given(histories(), st.lists(st.integers(0, 3), max_size=4), st.integers(30, 800))
def test_a_cut_transcript_is_legal_and_within_its_limit(
    history: tuple[Message, ...], steps: list[int], limit: int
) -> None:
    shown = transcript(history, limit)
    for calls in steps:
        names = [f"s{index}" for index in range(calls)]
        shown.add_step(
            (turn(*names), *(result(name, "x" * 700) for name in names))
            if calls
            else (AssistantMessage((Text("hm"),)),)
        )
        fits = shown.fit()
        messages = shown.messages()
        assert history_faults(messages) == []
        assert sum(message_tokens(message, estimate_tokens) for message in messages) == shown.tokens
        assert fits == (shown.tokens + MIN_OUTPUT_TOKENS <= limit)
        assert UserMessage.of("go") in messages
        assert messages[0] == SystemMessage("sys")


def test_the_cheapest_loss_comes_first() -> None:
    old = (
        UserMessage.of("old"),
        turn("a"),
        result("a", "word " * 800),
        UserMessage.of("newer"),
        AssistantMessage((Text("yes"),)),
    )
    shown = transcript(old, 900)
    assert shown.fit()
    kept = shown.messages()
    assert [type(message) for message in kept[1:]] == [type(message) for message in (*old, UserMessage.of(""))]
    assert "of 4,000 characters are left out here" in kept[3].content  # type: ignore[union-attr]
    shown = transcript(old, 100)
    assert shown.fit()
    assert shown.messages()[1] == UserMessage.of("newer"), "never an answer whose question is gone"


def test_the_last_step_and_the_question_stay() -> None:
    shown = transcript((), 150)
    shown.add_step((turn("a"), result("a", "x" * 3_000)))
    shown.add_step((turn("b"), result("b", "y" * 3_000)))
    assert not shown.fit(), "what must stay, and a shortened result, take more"
    assert [type(message).__name__ for message in shown.messages()] == [
        "SystemMessage", "UserMessage", "AssistantMessage", "ToolMessage",
    ]  # fmt: skip


# Room for the answer.


@pytest.mark.parametrize(
    ("window", "asked", "room"),
    [(8_000, None, 2_000), (200_000, None, 16_384), (8_000, 500, 500), (8_000, 100_000, 4_000), (None, 500, 0)],
)
def test_the_room_for_an_answer(window: int | None, asked: int | None, room: int) -> None:
    options = RequestOptions("m", context_tokens=window, sampling=Sampling(max_output_tokens=asked))
    assert answer_room(options) == room


@given(st.integers(1, 60), st.integers(600, 4_000), st.none() | st.integers(16, 3_000))
def test_a_full_history_leaves_room_for_the_answer(exchanges: int, window: int, asked: int | None) -> None:
    history = (UserMessage.of("Tell me more."), AssistantMessage((Text("It is like this. " * 5),))) * exchanges
    options = RequestOptions("m", context_tokens=window, sampling=Sampling(max_output_tokens=asked))
    shown = PromptBuilder(RequestStarted(TAG, 0.0, history, QUESTION, options), Spending(), estimate_tokens)
    request = shown.next_request(again=False)
    assert isinstance(request, ModelRequest)
    assert shown.tokens + answer_room(options) <= window
    told = request.sampling.max_output_tokens
    assert told is None or shown.tokens + told <= window
    assert (told is None) == (asked is None)


def test_the_room_shrinks_before_a_request_is_refused_and_the_model_is_told_how_much_is_left() -> None:
    question = UserMessage.of("x" * 3_600)
    needed = message_tokens(question, length)
    for window, left in ((needed + 16, 16), (needed + 400, 400), (needed + 15, None)):
        options = RequestOptions("m", context_tokens=window)
        shown = PromptBuilder(RequestStarted(TAG, 0.0, (), question, options), Spending(), length)
        request = shown.next_request(again=False)
        if left is None:
            assert isinstance(request, Stop)
            assert request.reason == f"What must be sent needs about {needed} tokens; the window has {window}."
        else:
            assert isinstance(request, ModelRequest)
            assert request.sampling.max_output_tokens == left


# What providers counted.


def test_a_provider_that_counts_less_leaves_more_of_the_history() -> None:
    history = tuple(
        message for _ in range(20) for message in (UserMessage.of("x" * 100), AssistantMessage((Text("y" * 100),)))
    )
    options = RequestOptions("m", context_tokens=6_000)
    shown = PromptBuilder(RequestStarted(TAG, 0.0, history, QUESTION, options), Spending(), length)
    counted = shown.tokens
    assert shown.charge(Usage(counted // 2, 10), 0.0, turn("a")) == ""
    shown.add_step((turn("a"), result("a")))
    added = message_tokens(turn("a"), length) + message_tokens(result("a"), length)
    assert shown.tokens == counted // 2 + added
    assert shown.size.own_count == counted + added


def test_what_was_learned_of_the_tokenizer_holds_from_the_start() -> None:
    plain, learned = (
        PromptBuilder(
            RequestStarted(TAG, 0.0, (), QUESTION, RequestOptions("m", token_ratio=ratio)), Spending(), length
        )
        for ratio in (1.0, 2.0)
    )
    assert learned.tokens == 2 * plain.tokens
    for wrong in (0.5, 3.5, float("nan")):
        with pytest.raises(UsageError, match="token_ratio must be from 1 to 3"):
            check_start((), RequestOptions("m", token_ratio=wrong))


# Long results.


def test_a_result_far_too_large_for_the_window_is_cut_when_it_comes() -> None:
    lines = "\n".join(f"line {number} of the log" for number in range(5_000))
    shown = transcript((), 4_000)
    shown.add_step((turn("a", "b"), result("a", lines), result("b", "short")))
    assert isinstance(shown.next_request(again=False), ModelRequest)
    kept, beside = shown.messages()[-2:]
    assert isinstance(kept, ToolMessage)
    assert message_tokens(kept, estimate_tokens) <= 2_000
    assert len(kept.content) > 2_000, "not as little as in an old step"
    first, told, last = kept.content.partition("\n[... ")[0], kept.content, kept.content.rpartition(" ...]\n")[2]
    assert lines.startswith(first)
    assert lines.endswith(last)
    assert first.endswith("\n")
    assert last.startswith("line ")
    assert f"{len(lines) - len(first) - len(last):,} of {len(lines):,} characters (about" in told
    assert "call the tool for less at a time" in told
    assert beside == result("b", "short")


@given(st.text(st.characters(), min_size=50, max_size=3_000), st.integers(10, 400))
def test_a_shortened_text_has_its_beginning_and_its_end_and_says_how_much_is_missing(text: str, chars: int) -> None:
    cut = shorten_text(text, min(chars, len(text) - 1))
    first, _, rest = cut.partition("\n[... ")
    told, _, last = rest.rpartition(" ...]\n")
    if "\n[... " not in text and " ...]\n" not in text:
        assert text.startswith(first)
        assert text.endswith(last)
        assert len(first) + len(last) <= chars
        assert told.startswith(f"{len(text) - len(first) - len(last):,} of {len(text):,} characters")


def test_a_result_that_is_shortened_twice_still_tells_of_the_whole() -> None:
    """At first to half of the window, then, in an older step, to little."""
    whole = "word " * 4_000
    shown = transcript((), 3_000)
    for name in ("a", "b", "c"):
        shown.add_step((turn(name), result(name, whole)))
        assert shown.fit()
    told = [message.content for message in shown.messages() if isinstance(message, ToolMessage)]
    assert len(told) > 1
    assert all("of 20,000 characters are left out" in content for content in told)
    assert len(told[0]) < 1_000 < len(told[-1])


def test_short_results_and_other_messages_are_not_shortened() -> None:
    for message in (result("a", "x" * 2 * SHORTENED_RESULT_CHARS), UserMessage.of("x" * 4_000)):
        assert shorten_result(message) is message


def test_tokens_of_messages() -> None:
    assert message_tokens(UserMessage((Image(url="http://localhost/x"),)), estimate_tokens) > IMAGE_TOKENS
    searched = AssistantMessage((ServerTool("search", Replay("anthropic", {"found": "x" * 400})),))
    assert message_tokens(searched, estimate_tokens) > 100
    assert message_tokens(SystemMessage("abc"), len) == 9


@given(st.lists(st.tuples(st.floats(0.0, 6.0), st.integers(0, 4_000)), min_size=1, max_size=6), st.floats(1.0, 3.0))
def test_a_replay_goes_by_what_providers_counted_as_the_live_session_did(
    steps: list[tuple[float, int]], ratio: float
) -> None:
    options = RequestOptions("m", context_tokens=3_000, token_ratio=ratio, max_steps=50)
    history = (UserMessage.of("Tell me. " * 100), AssistantMessage((Text("It is so. " * 100),)))
    live = Session()
    journal: list[Event] = []

    def happened(event: Event) -> tuple[Command, ...]:
        journal.append(event)
        return live.apply(event)

    given_out = happened(RequestStarted(TAG, 0.0, history, QUESTION, options, STANDARD_TOOLS))
    for factor, size in steps:
        asked = [command for command in given_out if isinstance(command, CallModel)]
        if not asked:
            break
        call = ToolCall(CallId("c"), STANDARD_TOOLS[0].definition.name, f'{{"x":{size},"n":{len(journal)}}}')
        usage = Usage(int(asked[0].prompt_tokens * factor), 5)
        given_out = happened(ModelResponded(asked[0].tag, 1.0, ModelResponse((call,), usage=usage)))
        for run in [command for command in given_out if isinstance(command, RunTool)]:
            given_out = happened(ToolCallCompleted(run.tag, 2.0, "word " * size))
        assert Session.replay(journal).resume_commands() == live.resume_commands()
    replayed = Session()
    last: tuple[Command, ...] = ()
    for event in journal:
        last = replayed.apply(event)
    assert last == given_out
