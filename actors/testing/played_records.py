"""What a journal gives of a request, beside what its followers and its asker had: the feed, the reply, and what a model
reads again of its conversation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from msgspec.structs import replace

from callboard.actors.journal.journal_records import Beginning, Needs, Recorded, RequestEnd, RequestLog
from callboard.actors.requests import read_earlier
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.feed_positions import Position
from callboard.actors.requests.json_schema import raw_output
from callboard.actors.requests.outputs import OutputType, output_type
from callboard.actors.requests.recorded_feed import recorded_items
from callboard.actors.requests.recorded_reply import recorded_reply
from callboard.actors.requests.replies import Shown
from callboard.actors.testing.feed_account import FeedAccount, Item, turn_pieces
from callboard.actors.testing.request_accounts import Account, Looks, Told, told
from callboard.actors.testing.request_plans import REQUEST, TAG, Made, planned
from callboard.actors.testing.waiting_world import replaced
from callboard.actors.tools import ToolContext
from callboard.protocol.commands import CallModel, Command, Finish, Outcome, RunTool
from callboard.protocol.compaction import READ_TOOL, message_text, shortened
from callboard.protocol.content import AssistantMessage, Message, ToolCall, UserMessage
from callboard.protocol.direct_call import DirectCall
from callboard.protocol.errors import RuntimeFailure, ToolError, UsageError
from callboard.protocol.events import (
    Event,
    ModelFailed,
    ModelLost,
    ModelResponded,
    ModelStreamed,
    RequestStarted,
    ToolCallCompleted,
    ToolCallStarted,
    shifted,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, ToolName
from callboard.protocol.machine import Session
from callboard.protocol.model import Restarted, TextDelta
from callboard.protocol.options import RequestOptions
from callboard.protocol.output import OutputSpec
from callboard.protocol.prompt_tokens import estimate_tokens
from callboard.protocol.testing import drive
from callboard.protocol.testing.generator import scenario

#: Of the seeds, one in so many plays a whole conversation, and one the odd ones.
_WHOLE: Final = 4
#: In these plays, of what a model reads again.
_PAGE, _FOUND, _MOST_FOUND = 60, 20, 2
_ENDS: Final = (ModelResponded, ModelFailed, ModelLost)
_NO_NEEDS: Final = Needs()
_SCHEMA: Final = {"type": "object", "properties": {"n": {"type": "array"}}}


def _log(events: Sequence[Event], needs: Needs = _NO_NEEDS, messages: Sequence[Message] = ()) -> RequestLog:
    records = tuple(Recorded(number, event) for number, event in enumerate(events, 1))
    named = tuple((MessageId(f"asked/{number}"), message) for number, message in enumerate(messages))
    return RequestLog(REQUEST, Beginning("c", None, 0.0, "sim/a", needs), records, messages=named)


def _near(found: Any, due: Any) -> bool:
    """The same, but for what a shifted clock loses."""
    if isinstance(found, float) and isinstance(due, (int, float)):
        return abs(found - due) < 1e-6
    if found == due:
        return type(found) is type(due)
    if isinstance(found, tuple) and isinstance(due, tuple):
        return len(found) == len(due) and all(map(_near, found, due))
    names = getattr(due, "__struct_fields__", ())
    return bool(names) and type(found) is type(due) and all(_near(getattr(found, n), getattr(due, n)) for n in names)


def play_feed(seed: int) -> list[str]:
    """A conversation, as its followers were shown it and as the journal has it."""
    if seed % _WHOLE:
        return []
    applied = drive(scenario(seed), seed).applied
    session, account = Session(), FeedAccount(has_journal=False)
    written: list[Event] = []
    due: list[Item] = []
    streamed = ""
    for event in applied:
        written += session.to_journal(event)
        given = session.apply(event)
        if isinstance(event, ModelStreamed):
            streamed = "" if account.is_aside else _streamed(streamed, event)
            continue
        ends = isinstance(event, _ENDS) or any(isinstance(each, Finish) for each in given)
        cut, streamed, place = (streamed, "", len(account.came)) if ends else ("", streamed, len(account.came))
        for seen in (event, *given):
            if isinstance(seen, (Shown, Event, CallModel)):
                account.takes(seen, [])
        came = account.came[place:]
        if cut and not isinstance(event, (ModelResponded, ModelLost)):
            due.append((replace(account.last, phase=0, index=1), TextDelta(cut)))
        due += came
    if streamed and isinstance(written[-1], ModelStreamed):  # its answer is too long
        due.append((Position(account.last.number + 1, 0, 1), TextDelta(streamed)))
    ahead = random.Random(seed).choice((0.0, 1_000.0, -77.25))
    log = _log([shifted(event, -ahead) for event in written])
    found = list(recorded_items(log, estimate_tokens, ahead))
    for one, other in zip(found, due, strict=False):
        if not _near(one, other):
            return [f"the journal has {one!r:.300}, its followers were shown {other!r:.300}"]
    return [] if len(found) == len(due) else [f"the journal has {len(found)} items, shown were {len(due)}"]


def _streamed(before: str, event: ModelStreamed) -> str:
    for piece in event.events:
        if isinstance(piece, Restarted):
            before = ""
        elif isinstance(piece, TextDelta):
            before += piece.text
    return before


def play_odd_feeds(seed: int) -> list[str]:
    """One whose events are no longer kept, one that this code makes something else of, one that has no model, and one
    whose process has ended in the middle of a turn."""
    if seed % _WHOLE != 1:
        return []
    rng = random.Random(f"odd {seed}")
    made = Made(rng)
    messages: list[Message] = []
    while len(messages) < 3:
        messages += made.recorded().messages
    due: list[Item] = []
    account = FeedAccount(has_journal=False)
    for number, message in enumerate(messages, 1):
        if isinstance(message, AssistantMessage):
            pieces = enumerate(turn_pieces(message.parts, None), 1)
            due += [(replace(account.last, number=number, index=index), piece) for index, piece in pieces]
    yield_of = list(recorded_items(_log((), messages=messages), estimate_tokens, 0.0))
    if yield_of != due:
        return [f"of messages alone is shown {yield_of!r:.300}, due is {due!r:.300}"]
    started = RequestStarted(TAG, 1.0, (), UserMessage.of("Go."), RequestOptions("sim/a"))
    try:
        list(recorded_items(_log((started, started)), estimate_tokens, 0.0))
        return ["a request that began twice is shown"]
    except RuntimeFailure as failure:
        if "event 2 of the request" not in str(failure) or failure.__cause__ is None:
            return [f"a request that began twice: {failure}"]
    cut = [ModelStreamed(TAG.at_step(1), 2.0, (Restarted("journal"), TextDelta("so "))) for _ in range(2)]
    cut.append(ModelStreamed(TAG.at_step(1), 2.0, (TextDelta("far"),)))
    last = list(recorded_items(_log((started, *cut)), estimate_tokens, 0.0))[-1:]
    if [(str(position), item) for position, item in last] != [("00000002.0.000001", TextDelta("so far"))]:
        return [f"of a turn that its process has not ended is shown {last}"]
    return _direct(started)


def _direct(started: RequestStarted) -> list[str]:
    call = ToolCall(CallId("a"), ToolName("look"), "{}")
    tag = TAG.at_step(1)._replace(call_id=call.call_id)
    session, account = DirectCall(call), FeedAccount(has_journal=False)
    events: list[Event] = [started]
    for event in (started, ToolCallStarted(tag, 2.0), ToolCallCompleted(tag, 3.0, "found")):
        try:
            given: tuple[Command, ...] = session.apply(event)
        except UsageError:
            break  # there is no such tool
        events = [*events, event] if event is not started else events
        for seen in (event, *given):
            if isinstance(seen, (Shown, Event)):
                account.takes(seen, [])
    found = list(recorded_items(_log(events, Needs(direct=call)), estimate_tokens, 0.0))
    return [] if found == account.came else [f"of a call without a model is shown {found}, due is {account.came}"]


@cache
def _form() -> OutputType[Any]:
    found = output_type(dict[str, list[int]])
    assert found is not None
    return found


@cache
def _others_form() -> OutputType[Any]:
    found = output_type(dict[str, str])
    assert found is not None
    return found


def play_reply(seed: int) -> list[str]:
    """The reply of a request that has ended, from the journal, beside what its asker had."""
    rng = random.Random(f"recorded {seed}")
    plan = planned(seed)
    made = Made(rng)
    finish = plan.finish
    messages = list(made.recorded().messages)
    notes, failures = tuple(made.word() for _ in range(rng.choice((0, 2)))), (made.failure(),) * rng.choice((0, 2))
    error = rng.choice((None, made.error()))
    spec = OutputSpec(_SCHEMA, "Numbers", is_raw=rng.random() < 0.3) if plan.has_output else None
    started = RequestStarted(TAG, 1.0, (), UserMessage.of("Go."), RequestOptions("sim/a", output=spec))
    events = (started,) if rng.random() < 0.8 else ()
    log = _log(events, Needs(output="Numbers" if spec is not None else ""), messages)
    known: dict[str, OutputType[Any]] = rng.choice(({}, {"Numbers": _form()}, {"Numbers": _others_form()}))
    end = RequestEnd(5.0, finish, notes, failures, error, "told to")
    due = _due(seed, finish, end, messages, known, raw=spec if events and spec and spec.is_raw else None)
    found: object
    try:
        found = recorded_reply(log, end, known)
    except UsageError as wrong:
        found = type(wrong), "Numbers" in str(wrong), "has changed" in str(wrong)
    except Exception as ended:  # noqa: BLE001 - it is compared
        found = told(ended)
    return (
        []
        if found == due and type(found) is type(due)
        else [f"a recorded reply is {found!r:.400}, due is {due!r:.400}"]
    )


def _due(
    seed: int, finish: Finish | None, end: RequestEnd, messages: list[Message], known: dict[str, OutputType[Any]],
    raw: OutputSpec | None,
) -> object:  # fmt: skip
    if finish is None:
        return Told("RuntimeFailure", "the request has no answer: told to")
    plan = replace(planned(seed), is_checked=True)
    has_output = plan.has_output
    if has_output and finish.outcome is Outcome.ANSWERED:
        form = raw_output(raw) if raw is not None else known.get("Numbers")
        if form is None:
            return UsageError, True, False
        if form is _others_form():
            return UsageError, True, True
    account = Account(plan, 0.0, 0.0, _form() if has_output else None, Looks(None))
    account.messages, account.notes = messages, list(end.notes)
    account.failures, account.error = list(end.failures), end.error
    return told(account.answered(finish))


# -- what a model reads again


def play_read(seed: int) -> list[str]:
    """A page of a conversation, beside the conversation."""
    rng = random.Random(f"read {seed}")
    made = Made(rng)
    messages: list[Message] = []
    for _ in range(rng.choice((1, 3, 6))):
        messages += made.recorded().messages
        messages.append(UserMessage.of(rng.choice(("Alpha beta", "beta ALPHA gamma " * 9, "gamma"))))
    first, last = rng.choice((0, 0, 1, 2, 3, len(messages), len(messages) + 1, -1)), rng.choice((0, 0, 1, 2, 9, 99))
    words, offset = rng.choice(("", " ", "alpha", "BETA alpha", "gamma", "none")), rng.choice((0, 0, 50, 700, -5))
    with replaced(read_earlier, MAX_RESULT_CHARS=_PAGE, FOUND_CHARS=_FOUND, MAX_FOUND=_MOST_FOUND):
        try:
            given = {"first": first, "last": last, "words": words, "offset": offset}
            found = _called(messages, {name: value for name, value in given.items() if value})
        except ToolError as error:
            found = f"refused: {error}"
    due = _read(messages, first, last, words, offset)
    if isinstance(due, str) and found == due:
        return []
    if not isinstance(due, str) and found.startswith("refused: ") and all(each in found for each in due):
        return []
    return [f"{first} to {last} with {words!r} from {offset}: {found!r}, due is {due!r}"]


def _called(messages: list[Message], given: dict[str, Any]) -> str:
    """By the model's tool, of a request that has this conversation. Raises ToolError."""
    tool = read_earlier.read_tool({REQUEST: Conversation(messages)}.get)
    other = ToolContext(RunTool(TAG._replace(request_id=RequestId("other")), READ_TOOL, "{}", 0.0, "e"))
    found = []
    for context in (other, ToolContext(RunTool(TAG, READ_TOOL, "{}", 0.0, "e"))):
        call: Any = tool.function(context, **given)
        try:
            call.send(None)
        except StopIteration as end:
            found.append(end.value)
        except ToolError:
            if context is not other:
                raise
    return str(found[0]) if len(found) == 1 else "one without a conversation reads another's"


def _read(messages: list[Message], first: int, last: int, words: str, offset: int) -> str | tuple[str, ...]:
    """Or what is said of what names no message."""
    having: dict[int, str] = {}
    for number, message in enumerate(messages, 1):
        said = list(message_text(message))
        text = "\n".join(each for _, each in said).lower()
        if all(word in text for word in words.lower().split()):
            having[number] = "\n".join(f"[{number}] {who}: {each}" for who, each in said)
    if first == 0 and not words.strip():
        return "from 1 to", str(len(messages)), "words"
    if first == 0:
        numbers = sorted(having, reverse=True)
        if not numbers:
            return "No message has all of these words; try fewer, or others."
        shown = [shortened(having[number], _FOUND) for number in numbers[:_MOST_FOUND]]
        if len(numbers) > _MOST_FOUND:
            shown.append(f"[{len(numbers) - _MOST_FOUND} older messages have them too.]")
        return "\n\n".join(shown)
    end = last if last else first
    if first < 1 or end < first:
        return str(first), str(end)
    if first > len(messages):
        return str(first), str(len(messages))
    chosen = [text for number, text in having.items() if first <= number <= end and text]
    if not chosen:
        return f"There is nothing to read in these messages{' that has these words.' if words else '.'}"
    text, begin = "\n\n".join(chosen), max(0, offset)
    if begin >= len(text):
        return "There is nothing behind this offset."
    left = len(text) - begin - _PAGE
    more = f"\n[{left:,} more characters: go on with offset={begin + _PAGE}, or fewer messages.]"
    return text[begin : begin + _PAGE] + (more if left > 0 else "")


def play(seed: int) -> list[str]:
    """What is not as promised, in one play of each."""
    return [*play_feed(seed), *play_odd_feeds(seed), *play_reply(seed), *play_read(seed)]
