"""From the loop thread to whoever asked: answers, streams, and consumers that are slow, leave or are gone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from sys import getsizeof
from typing import Any

import pytest
from msgspec.structs import replace

from callboard.actors.kernel import Down, ExitReason
from callboard.actors.requests import backstop
from callboard.actors.requests import replies as module
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import Answer, ModelCallFailed, Reply, RequestEnded, Stream
from callboard.protocol.code_fences import CodeFence, MalformedFence
from callboard.protocol.commands import Finish, Note, OpenTurn, Outcome, RunTool
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Citation,
    Image,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import ErrorKind, RuntimeFailure, UsageError
from callboard.protocol.events import ModelFailed, ModelStreamed, ToolCallCompleted, ToolCallStarted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import Error, TextDelta, Usage
from callboard.protocol.reports import StepReport

TAG = Tag(RequestId("r"), MessageId("m"))
STEPS = (StepReport(1, 0.25, is_whole=True, model="a/b"), StepReport(2, 0.5))


def finish(outcome: Outcome = Outcome.ANSWERED, reason: str = "") -> Finish:
    return Finish(TAG, outcome, "the text", Usage(1, 2), 0.5, STEPS, reason)


def end(seen: Answer | Stream, finish: Finish | None = None, error: BaseException | None = None) -> bool:
    """The end of a session: its Finish, if it came to that, and then its exit."""
    if finish is not None:
        seen(finish)
    nobody: Any = None
    answer = seen.answer if isinstance(seen, Stream) else seen
    return answer.session_ended(Down(nobody, ExitReason.CRASHED if error else ExitReason.NORMAL, error))


def delta(text: str) -> ModelStreamed:
    return ModelStreamed(TAG.at_step(1), 0.0, (TextDelta(text),))


@pytest.fixture
def answer() -> Answer:
    conversation = Conversation()
    conversation.take(TAG.request_id)
    return Answer(conversation, TAG, 60.0)


class Cancels:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def __call__(self, request_id: str, reason: str) -> bool:
        assert request_id == "r"
        self.reasons.append(reason)
        return True


# -- Conversation


def test_a_conversation_has_one_request_at_a_time() -> None:
    conversation = Conversation()
    conversation.take(TAG.request_id)
    with pytest.raises(UsageError, match="has a request running"):
        conversation.take(TAG.request_id)
    conversation.release()
    conversation.take(TAG.request_id)


def test_a_conversation_takes_whole_steps() -> None:
    said = UserMessage.of("hello")
    conversation = Conversation((said,))
    conversation.take(TAG.request_id)
    before = conversation.messages
    conversation.record((AssistantMessage((Text("hi"),)),), RequestId("r"))
    assert before == (said,)
    assert len(conversation.messages) == 2


# -- Answer


def test_an_answer_holds_what_was_recorded(answer: Answer) -> None:
    question, said = UserMessage.of("?"), AssistantMessage((Text("!"),))
    answer.conversation.record((question, said), TAG.request_id)
    end(answer, finish())
    reply = answer.future.get(timeout=0)
    assert reply == Reply(
        "the text", Usage(1, 2), RequestId("r"), Outcome.ANSWERED, STEPS, 0.5, (question, said), "the text"
    )
    assert answer.conversation.messages == (question, said)
    answer.conversation.take(TAG.request_id)


@pytest.mark.parametrize("outcome", [each for each in Outcome if each not in (Outcome.ANSWERED, Outcome.CALLS_OUTSIDE)])
def test_any_other_outcome_raises_with_its_reason_and_its_reply(answer: Answer, outcome: Outcome) -> None:
    end(answer, finish(outcome, "because of this"))
    with pytest.raises(RequestEnded, match="because of this") as caught:
        answer.future.get(timeout=0)
    assert caught.value.reply.outcome is outcome


def test_a_failed_model_raises_its_error(answer: Answer) -> None:
    answer(ModelFailed(TAG, 0.0, Error(ErrorKind.RATE_LIMITED, "slow down", True, 3.0, status=429)))
    end(answer, finish(Outcome.FAILED, "rate_limited: slow down"))
    with pytest.raises(ModelCallFailed, match="slow down") as caught:
        answer.future.get(timeout=0)
    assert (caught.value.status, caught.value.retry_after_seconds, caught.value.retryable) == (429, 3.0, True)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("boom"), "its session was lost: ValueError: boom"),
        (Unspeakable(), "its session was lost: Unspeakable: (its __str__ raised ValueError)"),
        (RuntimeFailure("the store is full"), "the request has no answer: the store is full"),
    ],
)
def test_a_lost_session_is_told_and_frees_the_conversation(answer: Answer, error: BaseException, words: str) -> None:
    assert end(answer, error=error)
    with pytest.raises(RuntimeFailure, match=re.escape(words)):
        answer.future.get(timeout=0)
    answer.conversation.take(TAG.request_id)


def test_a_session_that_was_stopped_before_it_began_is_a_cancelled_request(answer: Answer) -> None:
    """As all others that a stopping runtime ends."""
    assert end(answer)
    with pytest.raises(RequestEnded, match="the runtime is stopping") as caught:
        answer.future.get(timeout=0)
    assert caught.value.reply.outcome is Outcome.CANCELLED
    answer.conversation.take(TAG.request_id)


def test_a_session_that_was_killed_is_lost(answer: Answer) -> None:
    nobody: Any = None
    assert answer.session_ended(Down(nobody, ExitReason.KILLED, None))
    with pytest.raises(RuntimeFailure, match="its session was lost: killed"):
        answer.future.get(timeout=0)


def test_nobody_is_told_before_the_session_has_ended(answer: Answer) -> None:
    """Whoever asks again at once may use the same request id and conversation."""
    answer(finish())
    assert not answer.future.done
    with pytest.raises(UsageError):
        answer.conversation.take(TAG.request_id)
    assert not end(answer)
    assert answer.future.get(timeout=0).text == "the text"


def test_a_waiter_that_goes_away_does_not_settle_it(answer: Answer) -> None:
    async def main() -> None:
        waiting = asyncio.ensure_future(answer.wait_async())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})

    asyncio.run(main())
    end(answer, finish())
    assert answer.future.get(timeout=0).text == "the text"


# -- the backstop: it holds whatever the actors do


def test_a_blocked_asker_is_told_when_nothing_has_ended_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backstop, "ANSWER_GRACE_SECONDS", 0.01)
    conversation = Conversation()
    conversation.take(TAG.request_id)
    answer = Answer(conversation, TAG, 0.01)
    with pytest.raises(RuntimeFailure, match="long after its deadline"):
        answer.wait()
    conversation.take(RequestId("another"))
    conversation.record((UserMessage.of("late"),), TAG.request_id)
    conversation.record(Compacted(cleared=1), TAG.request_id)
    assert (conversation.messages, conversation.compacted) == ((), Compacted()), "it is another request's by now"
    assert not end(answer, finish()), "its end is heard of, and changes nothing"
    with pytest.raises(RuntimeFailure):
        answer.future.get(timeout=0)


async def test_a_waiting_task_and_a_reader_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backstop, "ANSWER_GRACE_SECONDS", 0.01)

    def taken() -> Conversation:
        conversation = Conversation()
        conversation.take(TAG.request_id)
        return conversation

    with pytest.raises(RuntimeFailure, match="long after its deadline"):
        await Answer(taken(), TAG, 0.01).wait_async()
    with pytest.raises(RuntimeFailure, match="long after its deadline"):
        [item async for item in Stream(Answer(taken(), TAG, 0.01), Cancels())]


def test_a_session_that_ends_after_its_asker_was_told_opens_no_turn() -> None:
    """Another request may have the conversation by then."""
    conversation = Conversation()
    conversation.take(TAG.request_id)
    answer: Answer = Answer(conversation, TAG, 60.0)
    answer.expire()
    turn = OpenTurn(AssistantMessage((ToolCall(CallId("c"), ToolName("t"), "{}"),)))
    end(answer, replace(finish(Outcome.CALLS_OUTSIDE), open_turn=turn))
    assert conversation.open_turn is None
    conversation.take(TAG.request_id)
    end(Answer(conversation, TAG, 60.0), replace(finish(Outcome.CALLS_OUTSIDE), open_turn=turn))
    assert conversation.open_turn == turn


# -- conversations that no provider would accept


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ((ToolMessage(CallId("c"), ToolName("t"), "1"),), "follows no turn that asked for it"),
        ((AssistantMessage(()),), "without any part"),
        ((AssistantMessage((ToolCall(CallId("c"), ToolName("t"), "{}"),)),), "has no result"),
        (("hello",), "message 0 of the conversation is a str, not a Message"),
    ],
)
def test_an_illegal_conversation_is_refused_when_it_is_taken(messages: Any, words: str) -> None:
    conversation = Conversation(messages)
    for _ in range(2):
        with pytest.raises(UsageError, match=words):
            conversation.take(TAG.request_id)


# -- Stream


async def test_a_stream_gives_what_happened_in_order_and_the_reply_last(answer: Answer) -> None:
    stream = Stream(answer, Cancels())
    call = ToolCallStarted(TAG.at_step(1)._replace(call_id=CallId("c")), 0.0)
    for seen in (delta("a"), delta("b"), call, Note(TAG, "note")):
        stream(seen)
    end(stream, finish())
    items = [item async for item in stream]
    assert items[:4] == [TextDelta("a"), TextDelta("b"), call, Note(TAG, "note")]
    assert isinstance(items[4], Reply)


async def test_a_stream_raises_what_an_ask_would_after_what_came_before(answer: Answer) -> None:
    stream = Stream(answer, Cancels())
    stream(delta("a"))
    end(stream, finish(Outcome.TIMED_OUT, "too late"))
    seen: list[Any] = []

    async def read() -> None:
        async for item in stream:
            seen.append(item)

    with pytest.raises(RequestEnded, match="too late"):
        await read()
    assert seen == [TextDelta("a")]


async def test_a_consumer_that_leaves_cancels_the_request_once(answer: Answer) -> None:
    cancels = Cancels()
    stream = Stream(answer, cancels)
    stream(delta("a"))
    iterator = aiter(stream)
    assert await anext(iterator) == TextDelta("a")
    await iterator.aclose()  # type: ignore[attr-defined]
    stream(delta("b"))
    assert cancels.reasons == ["its reader has left"]


async def test_a_second_reader_is_refused_and_the_first_reads_on(answer: Answer) -> None:
    cancels = Cancels()
    stream = Stream(answer, cancels)
    stream.has_begun = True
    stream(delta("a"))
    first = aiter(stream)
    assert await anext(first) == TextDelta("a")
    with pytest.raises(UsageError, match="was read before"):
        await anext(aiter(stream))
    stream(delta("b"))
    end(stream, finish())
    assert [type(item) async for item in first] == [TextDelta, Reply]
    assert not cancels.reasons


async def test_a_consumer_that_reads_to_the_end_cancels_nothing(answer: Answer) -> None:
    cancels = Cancels()
    stream = Stream(answer, cancels)
    end(stream, finish())
    assert len([item async for item in stream]) == 1
    assert not cancels.reasons


@pytest.mark.parametrize(
    ("item", "count"),
    [
        (delta("0123456789" * 100), 1_000),
        (delta(""), 6_000),
        (ToolCallCompleted(TAG, 0.0, "x" * 1_000_000, output="y" * 1_000), 30),
        (RunTool(TAG, ToolName("t"), "\N{EURO SIGN}" * 400_000, 0.0, "e"), 30),
    ],
)
async def test_a_consumer_that_reads_too_slowly_loses_the_request_not_the_memory(
    answer: Answer, monkeypatch: pytest.MonkeyPatch, item: Any, count: int
) -> None:
    monkeypatch.setattr(module, "MAX_UNREAD_BYTES", 1024 * 1024)
    cancels = Cancels()
    stream = Stream(answer, cancels)
    for _ in range(count):
        stream(item)
    assert cancels.reasons == ["its reader has left 1 MiB of its events unread"]
    assert sum(map(getsizeof, map(str, stream._unread))) < 5 * 1024 * 1024
    end(stream, finish(Outcome.CANCELLED, cancels.reasons[0]))

    async def read() -> None:
        async for _ in stream:
            pass

    with pytest.raises(RequestEnded, match="unread"):
        await read()


def test_a_consumer_whose_loop_is_closed_cancels_the_request_once(
    answer: Answer, until: Callable[[Callable[[], bool]], None]
) -> None:
    cancels = Cancels()

    async def open_stream() -> Stream:
        return Stream(answer, cancels)

    stream = asyncio.run(open_stream())
    stream(delta("a"))
    stream(delta("b"))
    assert cancels.reasons == ["the event loop of its reader is closed"]
    end(stream, finish(Outcome.CANCELLED, "gone"))
    assert answer.future.done


# -- Reply


def reply_of(*parts: AssistantPart) -> Reply:
    text = "".join(part.text for part in parts if isinstance(part, Text))
    messages = (UserMessage.of("?"), AssistantMessage(parts))
    return Reply(text, None, RequestId("r"), Outcome.ANSWERED, STEPS, None, messages, text)


def test_a_reply_shows_its_text_and_the_model_of_its_last_turn() -> None:
    assert (str(reply_of(Text("It rains."))), reply_of(Text("It rains.")).model) == ("It rains.", "a/b")


def test_the_citations_of_a_reply_are_places_in_its_text() -> None:
    cited = Citation(url="https://a.example", start=0, end=4)
    unplaced = Citation(url="https://b.example")
    reply = reply_of(Text("Oslo: "), Image(data_base64="AA=="), Text("rain", citations=(cited, unplaced)))
    assert reply.citations == (replace(cited, start=6, end=10), unplaced)
    assert [reply.text[c.start : c.end] for c in reply.citations if c.start is not None] == ["rain"]
    assert reply.media == (Image(data_base64="AA=="),)


def test_the_code_of_a_reply_is_in_its_fences() -> None:
    text = '<code="/a.py" #3:9>\nreturn\n</code>\nand <code="/b.py">\nx\n</code>'
    whole, broken = reply_of(Text(text)).fences
    assert whole == CodeFence("/a.py", 3, 9, "return", 0)
    assert isinstance(broken, MalformedFence)
    assert "#START:END" in broken.reason
    assert reply_of(Text("It rains.")).fences == ()


def test_a_reply_that_adds_nothing_to_the_conversation_has_no_citations() -> None:
    empty = Reply("", None, RequestId("r"), Outcome.FAILED, (), None, (), "")
    assert (empty.citations, empty.media, empty.model) == ((), (), "")
