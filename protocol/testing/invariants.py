"""I1 to I12, each a pure function over a story that yields what is wrong, one sentence each.

They hold for any trace, whoever wrote it: the pure driver, or real actors with their session's events and commands
recorded. `violations` runs them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    CancelTool,
    Finish,
    Outcome,
    RecordStep,
    RunTool,
    StopModel,
    WithdrawApproval,
)
from callboard.protocol.content import AssistantMessage, Message, ToolMessage
from callboard.protocol.events import (
    ApprovalDenied,
    CancelRequested,
    ModelResponded,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallTimedOut,
    ToolsLost,
)
from callboard.protocol.history import is_json_object
from callboard.protocol.ids import Tag
from callboard.protocol.limits import CALL_BACKSTOP_SECONDS, MAX_CALL_SENDS
from callboard.protocol.model import Usage
from callboard.protocol.testing.outside import input_tokens
from callboard.protocol.testing.replaying import replay_faults
from callboard.protocol.testing.story import CALL_ENDINGS, OpenWork, Story, responses
from callboard.protocol.testing.trace import Trace, Verb
from callboard.protocol.tools import FailureCode

#: Float sums of virtual times.
_EPSILON = 0.01
_ENDED_BY_SESSION = frozenset(
    {
        FailureCode.UNKNOWN_TOOL,
        FailureCode.INCOMPLETE_CALL,
        FailureCode.DENIED,
        FailureCode.REPEATED,
        FailureCode.TIMED_OUT,
        FailureCode.CANCELLED,
        FailureCode.OUTCOME_UNKNOWN,
        FailureCode.CRASHED,
    }
)
_CODE_OF = {
    ToolCallTimedOut: FailureCode.TIMED_OUT,
    ToolCallCancelled: FailureCode.CANCELLED,
    ApprovalDenied: FailureCode.DENIED,
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule in one trace."""

    invariant: str
    message: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.message}"


def terminal_once(story: Story) -> Iterator[str]:
    """I1: every call has exactly one end and one result, and that result is what its end said."""
    endings = Counter(event.tag for event in story.events(*CALL_ENDINGS))
    yield from (f"call {tag} was ended {count} times" for tag, count in endings.items() if count > 1)
    results = Counter(tag for tag, _ in story.results())
    yield from (f"call {tag} has {count} results" for tag, count in results.items() if count > 1)
    handed_out = {command.tag for kind in (RunTool, AskApproval) for command in story.given(kind)}
    finished = story.finish() is not None
    yield from (f"call {tag} has no result" for tag in handed_out if finished and not results[tag])
    ended_by = {event.tag: event for event in story.events(*CALL_ENDINGS)}
    for tag, result in story.results():
        yield from _wrong_result(tag, result, ended_by.get(tag))
    if len(story.given(Finish)) > 1:
        yield "the request finished more than once"
    asked = Counter(command.tag for command in story.given(CallModel))
    yield from (f"model call {tag.step} was asked {count} times" for tag, count in asked.items() if count > 1)


def _wrong_result(tag: Any, result: ToolMessage, ending: Any) -> Iterator[str]:
    if isinstance(ending, ToolCallCompleted):
        if result.content != ending.content or result.is_error:
            yield f"call {tag} completed with {ending.content!r}, its result is {result.content!r}"
        return
    code = orjson.loads(result.content).get("code") if result.is_error else None
    if ending is None and code not in _ENDED_BY_SESSION:
        yield f"nobody ended call {tag}, its result is {result.content!r}"
    elif isinstance(ending, ToolCallFailed) and code != ending.failure.code:
        yield f"call {tag} failed with {ending.failure.code}, its result says {code}"
    elif ending is not None and code != _CODE_OF.get(type(ending), code):
        yield f"call {tag} was ended by {type(ending).__name__}, its result says {code}"


def valid_history(story: Story) -> Iterator[str]:
    """I2: each call has its result directly after the turn that asked, and there is no result without its call."""
    for where, messages in story.shown_and_kept():
        for turn, block in _turns(messages):
            asked = Counter(call.call_id for call in turn.tool_calls) if turn else Counter()
            answered = Counter(result.call_id for result in block)
            if asked != answered:
                yield f"{where}: calls {dict(asked)}, results {dict(answered)}"
            if turn is not None and not turn.parts:
                yield f"{where}: an empty turn"
            if any(not is_json_object(call.arguments) for call in turn.tool_calls if turn):
                yield f"{where}: arguments that are no JSON object"


def in_order(story: Story) -> Iterator[str]:
    """I3: results stand in the order in which the model asked."""
    for where, messages in story.shown_and_kept():
        for turn, block in _turns(messages):
            asked = [call.call_id for call in turn.tool_calls] if turn else []
            answered = [result.call_id for result in block]
            if asked != answered and Counter(asked) == Counter(answered):
                yield f"{where}: asked {asked}, answered {answered}"
    for record in story.given(RecordStep):
        answer = responses(story).get(record.tag.step)
        names = [message.name for message in record.messages if isinstance(message, ToolMessage)]
        if answer is not None and names and names != [call.name for call in answer.response.tool_calls]:
            yield f"step {record.tag.step}: results of {names} in another order than the model asked"


def _turns(messages: Sequence[Message]) -> Iterator[tuple[AssistantMessage, list[ToolMessage]]]:
    """Each assistant turn with the results directly after it; results that follow no turn come with an empty turn."""
    turn = AssistantMessage(())
    block: list[ToolMessage] = []
    begun = False
    for message in messages:
        if isinstance(message, ToolMessage):
            block.append(message)
            continue
        if begun or block:
            yield turn, block
        begun, block = isinstance(message, AssistantMessage), []
        turn = message if isinstance(message, AssistantMessage) else AssistantMessage(())
    if begun or block:
        yield turn, block


def no_early_step(story: Story) -> Iterator[str]:
    """I4: the model is not called while a call, or another model call, is open."""
    work = OpenWork()
    for reaction in story.reactions:
        if reaction.event is None:
            work = OpenWork()
            continue
        work.hear(reaction.event)
        for command in reaction.commands:
            if isinstance(command, CallModel) and work.calls:
                yield f"model call {command.tag.step} while {len(work.calls)} calls are open"
            if isinstance(command, CallModel) and work.model is not None:
                yield f"model call {command.tag.step} while {work.model.step} is open"
            work.see(command)


def bounded(story: Story) -> Iterator[str]:
    """I5: the request ends by its deadline, and gives nobody below it more time than that."""
    if story.start is None:
        return
    deadline = story.start.at + story.start.options.timeout_seconds
    end = story.finish()
    # A slow consumer hears of the deadline late; a process that was down at the deadline, once it is back.
    slack = story.trace.scenario.latency_seconds + _EPSILON
    back = [reaction.at for reaction in story.reactions if reaction.event is None and end and reaction.at <= end[0]]
    latest = max([deadline, *back]) + slack
    if end is None and story.trace.ended_at >= deadline:
        yield f"not finished at {story.trace.ended_at:g}, the deadline was {deadline:g}"
    elif end is None and not story.trace.queued:
        yield "it waits for nothing, and has not finished"
    elif end is not None and end[0] > latest:
        yield f"finished at {end[0]:g}, the deadline was {deadline:g}"
    for command in (*story.given(RunTool), *story.given(CallModel)):
        if command.deadline_at > deadline + _EPSILON:
            yield f"{type(command).__name__} {command.tag} may take until {command.deadline_at:g}"
    yield from _late_calls(story, slack)


def _late_calls(story: Story, slack: float) -> Iterator[str]:
    """A call that nobody ends is ended by the session, at its own deadline and the backstop behind it."""
    assert story.start is not None
    timeouts = {offer.definition.name: offer.contract.timeout_seconds for offer in story.start.tools}
    due: dict[Tag, float] = {}
    for reaction in story.reactions:
        for tag in [tag for tag, latest in due.items() if reaction.at > latest + slack]:
            yield f"call {tag} was still open at {reaction.at:g}, {due.pop(tag):g} was the latest"
        if reaction.event is None or isinstance(reaction.event, ToolsLost):
            due.clear()
        if isinstance(reaction.event, CALL_ENDINGS):
            due.pop(reaction.event.tag, None)
        for command in reaction.given(CancelTool):
            due.pop(command.tag, None)
        for command in reaction.given(RunTool):
            due[command.tag] = command.deadline_at + CALL_BACKSTOP_SECONDS
            if command.deadline_at > reaction.at + timeouts.get(command.name, 0.0) + _EPSILON:
                yield f"call {command.tag} was given more than its tool's {timeouts.get(command.name)} s"


def budgets_hold(story: Story) -> Iterator[str]:
    """I6: no step is begun that the limits on steps, tokens or cost do not cover."""
    if story.start is None:
        return
    options = story.start.options
    used, cost, steps, tries = Usage(), 0.0, 0, 0
    for reaction in story.reactions:
        if isinstance(reaction.event, ModelResponded):
            used, cost = used + reaction.event.response.usage, cost + reaction.event.cost
        for command in reaction.commands if reaction.event is not None else ():
            if isinstance(command, RecordStep):
                steps, tries = steps + 1, 0
            elif isinstance(command, CallModel):
                tries += 1
                if steps >= options.max_steps:
                    yield f"model call {command.tag.step} after {steps} of {options.max_steps} steps"
                if tries > options.max_step_retries + 2:
                    yield f"one step was asked {tries} times"
                yield from _over_budget(command, options, used, cost)
    if options.token_budget is not None and used.total_tokens > options.token_budget:
        yield f"{used.total_tokens} tokens used, the budget was {options.token_budget}"


def _over_budget(command: CallModel, options: Any, used: Usage, cost: float) -> Iterator[str]:
    output = command.request.sampling.max_output_tokens
    needed = used.total_tokens + input_tokens(command.request) + (output or 0)
    if options.token_budget is not None and (output is None or needed > options.token_budget):
        yield f"model call {command.tag.step} may need {needed} tokens in all, of {options.token_budget}"
    if options.cost_budget is not None:
        price = (options.input_price or 0.0) * input_tokens(command.request)
        if cost + price > options.cost_budget + 1e-9 or cost >= options.cost_budget:
            yield f"model call {command.tag.step} begins with {cost:g} of {options.cost_budget:g} dollars spent"
    if options.context_tokens is not None and input_tokens(command.request) > options.context_tokens:
        yield f"model call {command.tag.step} has {input_tokens(command.request)} tokens of context"


def cancel_ends(story: Story) -> Iterator[str]:
    """I7: a cancel ends the request at once, and stops its model stream, its tools and its questions."""
    work = OpenWork()
    for reaction in story.reactions:
        work.hear(reaction.event)
        ends = isinstance(reaction.event, CancelRequested) or any(reaction.given(Finish))
        if ends and reaction.event is not None:
            yield from _left_behind(work, reaction.commands)
        if isinstance(reaction.event, CancelRequested):
            if [command.outcome for command in reaction.given(Finish)] != [Outcome.CANCELLED]:
                yield "a cancelled request did not finish as cancelled"
            if reaction.given(CallModel) or reaction.given(RunTool):
                yield "a cancelled request began new work"
        for command in reaction.commands:
            work.see(command)


def _left_behind(work: OpenWork, commands: Sequence[Any]) -> Iterator[str]:
    told = {type(command): set[Any]() for command in commands}
    for command in commands:
        told[type(command)].add(command.tag)
    if work.model is not None and work.model not in told.get(StopModel, ()):
        yield f"model call {work.model.step} was left running"
    yield from (f"call {tag} was left running" for tag in work.running - told.get(CancelTool, set()))
    yield from (f"the question about {tag} was left open" for tag in work.waiting - told.get(WithdrawApproval, set()))


def conserved(story: Story) -> Iterator[str]:
    """I9: every message sent was handled, is a dead letter with a reason, or is still queued."""
    handled = sum(entry.verb is Verb.APPLIED for entry in story.trace.entries)
    dead = [entry for entry in story.trace.entries if entry.verb is Verb.REFUSED]
    if story.trace.sent != handled + len(dead) + story.trace.queued:
        yield f"{story.trace.sent} sent, {handled} handled, {len(dead)} dead, {story.trace.queued} queued"
    yield from (f"a dead {type(entry.value).__name__} without a reason" for entry in dead if not entry.note)


def blast_radius(story: Story) -> Iterator[str]:
    """I10: a tool that dies is exactly one failed result; its siblings keep theirs.

    The session itself says "crashed" only of a call that was sent as often as is allowed, and never begun.
    """
    died = Counter(event.tag for event in story.events(ToolCallFailed) if event.failure.code is FailureCode.CRASHED)
    told = Counter(
        tag for tag, result in story.results() if result.is_error and _code(result) == FailureCode.CRASHED.value
    )
    sent = Counter(command.tag for command in story.given(RunTool))
    yield from (f"call {tag} crashed, and {told[tag]} results say so" for tag in died if told[tag] != died[tag])
    yield from (
        f"call {tag} did not crash, its result says it did"
        for tag in told
        if tag not in died and sent[tag] < MAX_CALL_SENDS
    )


def _code(result: ToolMessage) -> Any:
    return orjson.loads(result.content).get("code")


def isolated(story: Story) -> Iterator[str]:
    """I11: nothing of another request goes in or comes out."""
    if story.start is None:
        return
    own = story.start.tag.request
    for reaction in story.reactions:
        for value in (reaction.event, *reaction.commands):
            if value is not None and value.tag.request != own:
                yield f"{type(value).__name__} is of request {value.tag.request_id!r}, not {own.request_id!r}"


def no_half_calls(story: Story) -> Iterator[str]:
    """I12: a call whose arguments were cut off or are no JSON object is never run, nor asked about."""
    answers = responses(story)
    for command in (*story.given(RunTool), *story.given(AskApproval)):
        if not is_json_object(command.arguments):
            yield f"call {command.tag} was handed out with {command.arguments!r}"
            continue
        answer = answers.get(command.tag.step)
        whole = {(call.name, call.arguments) for call in answer.response.tool_calls if call.complete} if answer else ()
        if (command.name, command.arguments) not in whole:
            yield f"call {command.tag} was handed out, but the model did not ask for all of it"


INVARIANTS: Mapping[str, Callable[[Story], Iterator[str]]] = MappingProxyType(
    {
        "I1 terminal once": terminal_once,
        "I2 valid history": valid_history,
        "I3 order": in_order,
        "I4 no early step": no_early_step,
        "I5 bounded": bounded,
        "I6 budgets hold": budgets_hold,
        "I7 cancel": cancel_ends,
        "I8 replay": replay_faults,
        "I9 conservation": conserved,
        "I10 blast radius": blast_radius,
        "I11 isolation": isolated,
        "I12 no half calls": no_half_calls,
    }
)


def violations(trace: Trace) -> list[Violation]:
    """Every broken rule of this trace; empty when all twelve hold."""
    if trace.broken:
        return [Violation("table", trace.broken)]
    story = Story.of(trace)
    return [Violation(name, message) for name, check in INVARIANTS.items() for message in check(story)]
