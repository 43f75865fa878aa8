"""The rules about tool calls: who may run, once, with which deadline, and what the model reads of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
from msgspec import Struct

from callboard.protocol.commands import AskApproval, ReportFailure, RunTool
from callboard.protocol.content import ToolMessage, is_json_object
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    CancelRequested,
    DeadlinePassed,
    Event,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallDeferred,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
    ToolsLost,
)
from callboard.protocol.ids import Tag
from callboard.protocol.limits import ERROR_SNIPPET_CHARS, MAX_CALL_SENDS
from callboard.protocol.testing.expected import ExpectedCall, ExpectedTurn, decision_of, expected_turns
from callboard.protocol.testing.story import (
    CALL_ENDINGS,
    EPSILON,
    WAITING,
    CallRun,
    OpenWork,
    Reaction,
    Story,
    is_too_large,
    responses,
)
from callboard.protocol.tools import (
    HINTS_AFTER_EFFECT,
    RETRY_HINTS,
    Decision,
    Effect,
    FailureCode,
    Hold,
    Risk,
    ToolFailure,
)

_ENDS_OR_DEFERS: Final = frozenset({*CALL_ENDINGS, ToolCallDeferred})
_HANDED_OUT: Final = (RunTool, AskApproval)
_CODE_OF: Final[Mapping[type, FailureCode]] = {
    ToolCallTimedOut: FailureCode.TIMED_OUT,
    ToolCallCancelled: FailureCode.CANCELLED,
    ApprovalDenied: FailureCode.DENIED,
    CancelRequested: FailureCode.CANCELLED,
    DeadlinePassed: FailureCode.TIMED_OUT,
}


# I1.


def terminal_once(story: Story) -> Iterator[str]:
    """I1: every call has exactly one end and one result, which is what its end said; a failure is told of at once.

    A result that is a failure says what the model can do next; one of a tool that ran is marked as text from outside.
    """
    endings = Counter(event.tag for event in story.events(*CALL_ENDINGS))
    yield from (f"call {tag} was ended {count} times" for tag, count in endings.items() if count > 1)
    results = Counter(tag for tag, _ in story.results())
    yield from (f"call {tag} has {count} results" for tag, count in results.items() if count > 1)
    if story.finish() is not None:
        yield from (f"call {tag} has no result" for tag in story.calls if not results[tag])
    at_once = _ended_at_once(story)
    for tag, result in story.results():
        if result.is_error and not orjson.loads(result.content).get("retry_hint"):
            yield f"the failure of call {tag} does not say what to do next: {result.content!r}"
        call = story.calls.get(tag)
        is_ours = call is None or not call.runs or (call.offer is not None and call.offer.contract.is_trusted)
        if result.is_trusted is not is_ours:
            yield f"the result of call {tag} is marked as {'trusted' if result.is_trusted else 'text from outside'}"
        if call is not None:
            yield from _wrong_result(story, call, result)
        elif (one := at_once.get(tag)) is not None:
            yield from _wrong_at_once(story, tag, one, result)
    yield from _untold_failures(story)


def _wrong_words(story: Story, tag: Tag, one: _EndedAtOnce, result: ToolMessage) -> Iterator[str]:
    """What the model reads of a call that was never handed out: of which tool it was, why, and what was received."""
    wire, call, offer = orjson.loads(result.content), one.expected.call, one.expected.offer
    received, said, says = wire["received"] or "", wire["message"], ""
    if one.expected.code is FailureCode.UNKNOWN_TOOL:
        shown = [name for name, each in story.offers.items() if each.decision is not Decision.DENY and not one.in_words]
        shown = [] if one.expected.is_hidden else [name for name in shown if name not in one.hidden]
        if [name for name in shown if name not in (wire["expected"] or "")]:
            yield f"call {tag} is of no tool, and the model does not read of all that there are: {result.content!r}"
        says = call.name[:ERROR_SNIPPET_CHARS]
        is_received = received == ("" if one.expected.is_hidden else call.name[:ERROR_SNIPPET_CHARS])
    elif one.expected.code is FailureCode.INCOMPLETE_CALL:
        is_received = received == call.arguments[:ERROR_SNIPPET_CHARS]
    elif one.expected.code is FailureCode.REPEATED and story.start is not None:
        says, is_received = str(max(story.start.options.repeated_call_limit, 2)), not received
    else:
        says, is_received = offer.rule if one.expected.code is FailureCode.DENIED and offer is not None else "", True
    own_hint = one.expected.is_hidden or one.expected.code in (None, FailureCode.INVALID_ARGUMENTS)
    if one.expected.code is not None and not own_hint and wire["retry_hint"] != RETRY_HINTS[one.expected.code]:
        yield f"call {tag} is {one.expected.code}, the model reads the hint {wire['retry_hint']!r}"
    if not is_received:
        yield f"call {tag} was {call.name}({call.arguments}), the model reads that {received!r} was received"
    if wire["tool"] != call.name or says not in said:
        yield f"call {tag} is a failure of {call.name}, which should say {says!r}: {result.content!r}"


def _untold_failures(story: Story) -> Iterator[str]:
    """A failure that no event of its call says is reported, once, with the code that the model reads."""
    by_event = {event.tag for event in story.events(ToolCallFailed, ToolCallTimedOut, ToolCallCancelled)}
    reported: defaultdict[Tag, list[ToolFailure]] = defaultdict(list)
    for command in story.given(ReportFailure):
        reported[command.tag].append(command.failure)
    for tag, result in story.results():
        expected = [_code(result)] if result.is_error and tag not in by_event else []
        told = reported.pop(tag, [])
        if [failure.code for failure in told] != expected:
            yield f"call {tag} has the result {_code(result)}, and was reported as {told or 'nothing'}"
        elif told and _as_read(told[0]) != (read := _read(result)):
            yield f"call {tag} was reported as {_as_read(told[0])}, the model reads {read}"
        elif told and (told[0].traceback or told[0].frames):
            yield f"call {tag} was not ended by its tool, and is reported with where it raised"
    if story.finish() is not None:
        yield from (f"call {tag} was reported as {told}, and has no result" for tag, told in reported.items())


#: What a model reads of a failure, besides its code (docs/protocol.md).
_READ_OF_FAILURE: Final = ("tool", "field", "expected", "received", "message", "retry_hint")


def _as_read(failure: ToolFailure) -> list[str]:
    return [getattr(failure, name) for name in _READ_OF_FAILURE]


def _read(result: ToolMessage) -> list[str]:
    wire = orjson.loads(result.content)
    return [wire.get(name) or "" for name in _READ_OF_FAILURE]


class _EndedAtOnce(Struct, frozen=True):
    """A call that was never handed out."""

    expected: ExpectedCall
    in_words: bool
    """No tool is offered any more: calls are told in words."""
    hidden: Collection[str]
    """Tools that the model had not found."""


def _wrong_at_once(story: Story, tag: Tag, one: _EndedAtOnce, result: ToolMessage) -> Iterator[str]:
    code, content = one.expected.code, one.expected.result
    if _code(result) != code:
        yield f"call {tag} was never handed out, its result should say {code}: {result.content!r}"
    elif code is not None:
        yield from _wrong_words(story, tag, one, result)
    elif content not in (None, result.content):
        yield f"call {tag} was answered at once with the result {result.content!r}, not {content!r}"


def _ended_at_once(story: Story) -> dict[Tag, _EndedAtOnce]:
    """The calls that were never handed out, by the tags that their results have."""
    found: dict[Tag, _EndedAtOnce] = {}
    for turn in expected_turns(story):
        results = [message for message in turn.model.recorded if isinstance(message, ToolMessage)]
        # Of the calls that were handed out there are none.
        ended = [call for call in turn.calls if turn.model.open_turn is None or call not in turn.outside]
        if len(results) == len(ended):
            for result, expected in zip(results, ended, strict=True):
                if expected.code is not None or expected.result is not None:
                    tag = turn.model.command.tag.at_call(result.call_id)
                    found[tag] = _EndedAtOnce(expected, turn.told_in_words, turn.hidden)
    return found


def _wrong_result(story: Story, call: CallRun, result: ToolMessage) -> Iterator[str]:
    ending = call.ending
    if isinstance(ending, ToolCallCompleted) and is_too_large(ending):
        if _code(result) != FailureCode.RESULT_TOO_LARGE:
            yield f"call {call.tag} completed with more than a result may hold, it reads {result.content!r:.80}"
        return
    if isinstance(ending, ToolCallCompleted):
        if result.content != ending.content or result.is_error:
            yield f"call {call.tag} completed with {ending.content!r}, its result is {result.content!r}"
        return
    if isinstance(ending, ToolCallFailed):
        told = orjson.loads(result.content) if result.is_error else None
        if told != ending.failure.to_wire():
            yield f"call {call.tag} failed with {ending.failure.code}, its result is {result.content!r}"
        return
    expected = _CODE_OF.get(type(ending)) if ending is not None else _closed_with(call)
    if expected is None:
        yield f"call {call.tag} was not ended, its result is {result.content!r}"
        return
    if _code(result) != expected:
        yield f"call {call.tag} ended as {expected}, its result is {result.content!r}"
        return
    told = orjson.loads(result.content)
    if told["tool"] != call.name:
        yield f"the failure of call {call.tag} names another tool: {result.content!r}"
    if (why := _why(story, call)) not in told["message"]:
        yield f"call {call.tag} was ended because {why!r}, the model reads {told['message']!r}"
    if told["retry_hint"] != (hint := _hint(call, expected)):
        yield f"call {call.tag} ended as {expected}, the model should read {hint!r}: {result.content!r}"


def _why(story: Story, call: CallRun) -> str:
    """Of the reason: what a person or the asker said, or how long it might have taken; "" where there is none."""
    if isinstance(call.ending, ApprovalDenied):
        return call.ending.reason
    event = call.closed_by.event if call.closed_by is not None else None
    if isinstance(event, CancelRequested):
        return event.reason
    if isinstance(event, DeadlinePassed) and call.state == "denied" and story.start is not None:
        return f"{story.start.options.approval_timeout_seconds:g} s"
    end = story.finish()
    is_over = isinstance(event, DeadlinePassed) and not event.tag.step and end is not None
    return end[1].reason if is_over and end is not None else ""


def _hint(call: CallRun, code: FailureCode) -> str:
    """What the model can do next: of a call that had its time, and may have changed something, that it may have."""
    event = call.ending or (call.closed_by.event if call.closed_by is not None else None)
    had_its_time = isinstance(event, ToolCallTimedOut) or (isinstance(event, DeadlinePassed) and bool(event.tag.step))
    contract = call.offer.contract if call.offer is not None else None
    may_change = contract is not None and contract.risk is not Risk.READ and contract.effect is Effect.ONCE
    return (HINTS_AFTER_EFFECT if had_its_time and may_change and code in HINTS_AFTER_EFFECT else RETRY_HINTS)[code]


def _closed_with(call: CallRun) -> FailureCode | None:
    """What the model must read of a call that the session itself ended."""
    reaction = call.closed_by
    if reaction is None:
        return None
    if isinstance(reaction.event, ToolsLost):
        before, _, _ = call.states[-1]
        is_unknown = before == "running" and not call.is_transaction
        return FailureCode.OUTCOME_UNKNOWN if is_unknown else FailureCode.CRASHED
    if call.state == "denied":  # no one had approved it in its time
        return FailureCode.DENIED
    return _CODE_OF.get(type(reaction.event))


def _code(result: ToolMessage) -> Any:
    return orjson.loads(result.content).get("code") if result.is_error else None


# I10, I12, I13.


def blast_radius(story: Story) -> Iterator[str]:
    """I10: a tool that dies is exactly one failed result; its siblings keep theirs.

    The session itself says "crashed" only of a call that was sent as often as is allowed, and never begun, and of a
    transaction that was lost.
    """
    told = {tag for tag, result in story.results() if _code(result) == FailureCode.CRASHED}
    recorded = {record.tag.step for record in story.records}
    for call in story.calls.values():
        died = isinstance(call.ending, ToolCallFailed) and call.ending.failure.code is FailureCode.CRASHED
        if died and call.tag not in told and call.tag.step in recorded:
            yield f"call {call.tag} crashed, and its result does not say so"
        was_lost = len(call.runs) >= MAX_CALL_SENDS or call.is_transaction
        if not died and call.tag in told and not was_lost:
            yield f"call {call.tag} did not crash, its result says it did"


def no_half_calls(story: Story) -> Iterator[str]:
    """I12: a call whose arguments were cut off or are no JSON object is never run, nor asked about."""
    answers = responses(story)
    for command in (*story.given(RunTool), *story.given(AskApproval)):
        if not is_json_object(command.arguments):
            yield f"call {command.tag} was handed out with {command.arguments!r}"
            continue
        answer = answers.get(command.tag.step)
        whole = {(call.name, call.arguments) for call in answer.response.tool_calls if call.complete} if answer else ()
        call = story.calls.get(command.tag)
        if isinstance(command, RunTool) and call is not None and call.changed == command.arguments:
            continue  # a person wrote them
        if (command.name, command.arguments) not in whole:
            yield f"call {command.tag} was handed out, but the model did not ask for all of it"


def leave_to_run(story: Story) -> Iterator[str]:
    """I13: a call runs by the policy's leave or by a person's, for this very call; what is denied never runs."""
    wary = {turn.model.command.tag.step: turn.is_wary for turn in expected_turns(story)}
    for call in story.calls.values():
        is_wary = wary.get(call.tag.step, False)
        decision = decision_of(call.offer, is_wary=is_wary) if call.offer else None
        if call.runs and decision is not Decision.ALLOW and not (decision is Decision.ASK and call.granted):
            yield f"call {call.tag} of {call.name} was run without leave ({decision or 'not on offer'})"
        if call.questions and decision is not Decision.ASK:
            yield f"call {call.tag} of {call.name} was asked about, its policy is {decision}"
    yield from _wrong_orders(story)
    for reaction in story.reactions:
        if isinstance(reaction.event, ApprovalGranted):
            yield from _runs_after_grant(story, reaction, reaction.event)
        for question in reaction.given(AskApproval):
            offer = story.offers.get(question.name)
            if offer is not None and question.risk != offer.contract.risk:
                yield f"the question about {question.tag} says {question.risk}, its tool's is {offer.contract.risk}"
            if question.is_after_untrusted is not (is_wary := wary.get(question.tag.step, False)):
                yield f"the question about {question.tag} says {not is_wary} of text from outside, it is {is_wary}"
    for turn in expected_turns(story):
        yield from _wrong_beginnings(turn)


#: What is the same each time a call is handed out: all but its deadline.
_ALWAYS_SAME: Final[Mapping[type[Any], tuple[str, ...]]] = {
    RunTool: tuple(name for name in RunTool.__struct_fields__ if name != "deadline_at"),
    AskApproval: AskApproval.__struct_fields__,
}


def _wrong_orders(story: Story) -> Iterator[str]:
    """Each time a call is handed out, it is the very same; it says by which rule, and what it is held to."""
    rules = {call.tag: call.offer.rule for call in story.calls.values() if call.offer is not None}
    held: dict[Tag, Hold] = {}
    first: dict[tuple[type[Any], Tag], Any] = {}
    for reaction in story.reactions:
        event = reaction.event
        if isinstance(event, ApprovalGranted):
            held[event.tag] = event.hold
            rules[event.tag] = event.rule or rules.get(event.tag, "")
        for command in _handed_out(reaction):
            before = first.setdefault((type(command), command.tag), command)
            if before is not command:
                names = _ALWAYS_SAME[type(command)]
                changed = [name for name in names if getattr(command, name) != getattr(before, name)]
                if changed:
                    yield f"call {command.tag} was handed out once more with another {', '.join(changed)}"
            yield from _wrong_order(command, rules.get(command.tag, ""), held.get(command.tag, Hold.NONE))


def _wrong_order(command: RunTool | AskApproval, rule: str, hold: Hold) -> Iterator[str]:
    if isinstance(command, AskApproval):
        told = (command.rule, command.accesses, command.preview, command.confinement, command.mode)
        if told != ("", (), "", "", None):  # what puts the question to a person knows that, a session does not
            yield f"the question about {command.tag} says {told}"
        return
    if command.rule != rule:
        yield f"call {command.tag} may run by the rule {command.rule!r}, it was {rule!r}"
    if command.hold is not hold:
        yield f"call {command.tag} is held to {command.hold!r}, by what let it run to {hold!r}"
    if command.mode is not None:
        yield f"call {command.tag} has the mode {command.mode!r}, which a session does not know"


def _runs_after_grant(story: Story, reaction: Reaction, granted: ApprovalGranted) -> Iterator[str]:
    """A grant runs its own call, and no other."""
    run = [command.tag for command in reaction.given(RunTool)]
    if run != [granted.tag]:
        yield f"the grant of {granted.tag} ran {run}"
    for command in reaction.given(RunTool):
        if granted.arguments and command.arguments != granted.arguments:
            yield f"call {command.tag} ran with {command.arguments}, a person has changed that to {granted.arguments}"
    if granted.tag not in story.calls or not story.calls[granted.tag].questions:
        yield f"call {granted.tag} was granted and never asked about"


_BEGINS: Final[Mapping[type[Any], str]] = {RunTool: "run", AskApproval: "ask"}


def _handed_out(reaction: Reaction) -> Sequence[Any]:
    """The calls that it hands out, in their order."""
    if _BEGINS.keys().isdisjoint(reaction.by_kind):
        return ()
    return [command for command in reaction.commands if type(command) in _BEGINS]


def _wrong_beginnings(turn: ExpectedTurn) -> Iterator[str]:
    """Directly after the turn: exactly those calls are handed out that may be, in the turn's order, under their ids."""
    reaction = turn.model.calls_begin
    if reaction is None or turn.model.response is None:
        return
    commands = _handed_out(reaction)
    begun = [(_BEGINS[type(command)], command.name, command.arguments) for command in commands]
    expected = [(one.begins, one.call.name, one.call.arguments) for one in turn.begun]
    if begun != expected:
        yield f"step {turn.model.command.tag.step} began {begun}, the turn asks for {expected}"
        return
    tags = [command.tag for command in commands]
    asked = [call.call.call_id for call in turn.calls]
    for tag, call in zip(tags, turn.begun, strict=True):
        own = call.call.call_id
        if tag.step != turn.model.command.tag.step or (asked.count(own) == 1 and not tag.call_id.startswith(own)):
            yield f"call {own!r} of step {turn.model.command.tag.step} was handed out as {tag}"
    if len(set(tags)) < len(tags):
        yield f"two calls of step {turn.model.command.tag.step} were handed out under one tag"


# Deadlines, effect ids, and what happens when the holder of the calls is lost.


def call_deadlines(story: Story) -> Iterator[str]:
    """I14: each call has its own tool's deadline, also beside other tools' calls, and never one after the request's.

    A call that waits for someone outside is ended at the end of its wait, and not before.
    """
    for call in story.calls.values():
        for (at, run), request_deadline in zip(call.runs, call.request_deadlines, strict=True):
            if call.offer is None:
                continue
            expected = min(at + call.offer.contract.timeout_seconds, request_deadline)
            if abs(run.deadline_at - expected) > EPSILON:
                yield f"call {call.tag} may run until {run.deadline_at:g}, its tool's deadline is {expected:g}"
        if call.closed_by is not None and isinstance(call.closed_by.event, DeadlinePassed):
            yield from _ended_too_early(story, call, call.closed_by.event)
    yield from _ended_too_late(story)


def _ended_too_early(story: Story, call: CallRun, event: Event) -> Iterator[str]:
    if story.start is None or event.tag == story.start.tag:
        return
    before, _, _ = call.states[-1]
    if before in WAITING:
        if event.at < call.waits[-1].due - EPSILON:
            yield f"call {call.tag} was ended at {event.at:g}, and might wait until {call.waits[-1].due:g}"
        return
    if not call.runs:
        return
    if event.at < call.runs[-1][1].deadline_at + call.backstop_seconds - EPSILON:
        yield f"call {call.tag} was ended at {event.at:g}, before {call.runs[-1][1].deadline_at:g} and its grace"


def _ended_too_late(story: Story) -> Iterator[str]:
    """A call that is not ended by others is ended by the session, at its own deadline and the backstop behind it."""
    due: dict[Tag, float] = {}
    for reaction in story.reactions:
        if reaction.event is None or isinstance(reaction.event, ToolsLost):
            due.clear()
        late = [tag for tag, latest in due.items() if reaction.at > latest and reaction.at > story.latest(latest)]
        for tag in late:
            yield f"call {tag} was still open at {reaction.at:g}, {due.pop(tag):g} was the latest"
        if reaction.event is not None and type(reaction.event) in _ENDS_OR_DEFERS:
            due.pop(reaction.event.tag, None)
        for command in reaction.commands if due or RunTool in reaction.by_kind else ():
            if type(command) is RunTool:
                due[command.tag] = max(command.deadline_at + story.calls[command.tag].backstop_seconds, reaction.at)
            else:
                due.pop(command.tag, None)


def effect_ids(story: Story) -> Iterator[str]:
    """I15: an effect id stands for one call of one step: the same each time that call is run, and no other call's."""
    owners: dict[str, Tag] = {}
    ids: defaultdict[Tag, set[str]] = defaultdict(set)
    for run in story.given(RunTool):
        ids[run.tag].add(run.effect_id)
        if run.tag.request_id not in run.effect_id:  # another request has the same steps and call ids
            yield f"call {run.tag} has the effect id {run.effect_id!r}, which may be another request's too"
        if owners.setdefault(run.effect_id, run.tag) != run.tag:
            yield f"calls {owners[run.effect_id]} and {run.tag} share the effect id {run.effect_id!r}"
    yield from (f"call {tag} was run under {len(own)} effect ids" for tag, own in ids.items() if len(own) > 1)


def sent_again(story: Story) -> Iterator[str]:
    """I16: when the holder of the calls is lost, exactly those are handed out again that may be.

    A question is asked again; what was sent and not begun is sent again, up to a limit; what had begun is run again
    only if its tool's effect allows it, up to a limit. What waits for its result from outside is left alone.
    """
    run = [command.tag for command in story.given(RunTool)]
    if not next(story.events(ToolsLost), None) and len(set(run)) == len(run):
        return
    work = OpenWork()
    begun: set[Tag] = set()
    runs: Counter[Tag] = Counter()
    starts: Counter[Tag] = Counter()
    for reaction in story.reactions:
        event = reaction.event
        if isinstance(event, ToolsLost):
            for tag in sorted(work.calls):
                expected = [] if tag in work.deferred else [AskApproval] if tag in work.waiting else None
                yield from _wrong_again(story, reaction, tag, expected, (tag in begun, runs, starts))
            begun.clear()
        elif isinstance(event, ToolCallStarted):
            begun.add(event.tag)
            starts[event.tag] += 1
        for command in reaction.given(RunTool) if event is not None else ():
            if runs[command.tag] and not isinstance(event, ToolsLost):
                yield f"call {command.tag} was handed out again although its holder was not lost"
            runs[command.tag] += 1
        work = reaction.left


def _wrong_again(
    story: Story,
    reaction: Reaction,
    tag: Tag,
    expected: list[type[Any]] | None,
    facts: tuple[bool, Counter[Tag], Counter[Tag]],
) -> Iterator[str]:
    """`expected`: what is given of a call that waits for someone outside."""
    begun, runs, starts = facts
    call = story.calls[tag]
    assert story.start is not None
    may_repeat = call.offer is not None and call.offer.contract.effect is not Effect.ONCE
    may_run = not begun or (may_repeat and starts[tag] < story.start.options.max_attempts)
    if expected is None:
        expected = [RunTool] * (may_run and runs[tag] < MAX_CALL_SENDS)
    again = [type(command) for command in reaction.commands if command.tag == tag and type(command) in _HANDED_OUT]
    if again != expected:
        told = [kind.__name__ for kind in again] or "nothing"
        yield f"call {tag} was lost ({'begun' if begun else 'not begun'}, {runs[tag]} times sent), and got {told}"
