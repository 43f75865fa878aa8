"""The rules that can be seen from outside: they hold for any runtime, whatever it is made of.

They are those of `invariants` over what `observation` holds, some of them in several cases; `NOT_OBSERVED` says why the
others cannot be seen. `judge` runs them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

import orjson
from msgspec import Struct

from callboard.protocol.content import is_json_object
from callboard.protocol.testing.observation import (
    BESIDE,
    CALL_SECONDS,
    SLACK_SECONDS,
    Does,
    HistoryTurn,
    Ids,
    Played,
    Seen,
    Stream,
    What,
    number_in,
    text_of,
    turns_of,
)

HELD: Final = ""
"""What a check yields when it had something to look at and the rule held; anything else is a breach, in a sentence."""

Check = Callable[[Played], Iterator[str]]


def _where(seen: Seen) -> str:
    return f"question {seen.number}, request {seen.step + 1}"


# The rules.


def one_result(played: Played) -> Iterator[str]:
    """Each call of a turn has exactly one result in the next request, and no call ran twice."""
    for seen in played.all(What.ASKED, 1):
        for turn in turns_of(seen.messages):
            asked, answered = Counter(turn.asked), Counter(turn.answered)
            if not asked or turn.repeats_ids:
                continue
            wrong = [call for call in asked if asked[call] != answered[call]]
            yield f"{_where(seen)}: calls {dict(asked)}, results {dict(answered)}" if wrong else HELD
    runs = Counter(seen.number for seen in played.all(What.STARTED))
    for call, count in runs.items():
        yield f"call {call} was run {count} times" if count > 1 and call in played.calls else HELD


def valid_history(played: Played, question: int = 1) -> Iterator[str]:
    """Every request is legal for every provider: each call has its result directly after it, no result is orphaned."""
    for seen in played.all(What.ASKED, question):
        wrong = [
            f"{_where(seen)}: calls {turn.asked}, results {turn.answered}{', an empty turn' * turn.empty}"
            for turn in turns_of(seen.messages)
            if turn.empty or (Counter(turn.asked) != Counter(turn.answered) and not turn.repeats_ids)
        ]
        yield wrong[0] if wrong else HELD


def valid_arguments(played: Played) -> Iterator[str]:
    """Arguments in a history are JSON objects: some servers and most other providers refuse what is not."""
    half = {call.arguments for call in played.calls.values() if call.does is Does.HALF}
    for seen in played.all(What.ASKED):
        calls = [call["function"]["arguments"] for turn in turns_of(seen.messages) for call in turn.calls]
        wrong = [arguments for arguments in calls if not is_json_object(arguments or "")]
        if wrong or (half and seen.step):
            yield f"{_where(seen)}: the arguments {wrong[0]!r} are no JSON object" if wrong else HELD


def in_order(played: Played) -> Iterator[str]:
    """Results come in the order of the calls, and each is that of its own call."""
    for seen in played.all(What.ASKED):
        for turn in turns_of(seen.messages):
            if len(turn.calls) < 2 or turn.repeats_ids or Counter(turn.asked) != Counter(turn.answered):
                continue
            if turn.asked != turn.answered:
                yield f"{_where(seen)}: asked {turn.asked}, answered {turn.answered}"
                continue
            yield _of_another_call(_where(seen), turn)


def _of_another_call(where: str, turn: HistoryTurn) -> str:
    """Is a result, by its text, that of another call of the turn?"""
    numbers = [number_in(call) for call in turn.calls]
    told = [text_of(result).strip('"') for result in turn.results]
    texts = {f"did {number}" for number in numbers}
    swapped = [(n, text) for n, text in zip(numbers, told, strict=True) if text in texts - {f"did {n}"}]
    return f"{where}: the result of call {swapped[0][0]} is {swapped[0][1]!r}" if swapped else HELD


def no_early_step(played: Played) -> Iterator[str]:
    """The model is not asked while a call runs that has not passed its deadline."""
    ends = {seen.number: seen.at for seen in played.all(What.STOPPED)}
    starts = [seen for seen in played.all(What.STARTED) if seen.number in played.calls]
    for asked in played.all(What.ASKED, 1):
        before = [start for start in starts if start.at < asked.at]
        running = [
            start.number for start in before if asked.at < min(ends.get(start.number, asked.at + 1), _due(start))
        ]
        if before:
            yield f"{_where(asked)} was sent while call {running[0]} ran" if running else HELD


def _due(start: Seen) -> float:
    return start.at + CALL_SECONDS


def run_bounded(played: Played) -> Iterator[str]:
    """A run ends by its deadline, with an answer or an exception."""
    question, reply = played.first(What.QUESTION, 1), played.first(What.REPLY, 1)
    if question is None or played.first(What.CANCEL) or played.first(What.DIED):
        return
    if reply is None or played.first(What.OVERDUE):
        yield f"it did not end by itself; its deadline was {played.conversation.run_seconds:g} s"
    elif reply.at > question.at + played.conversation.run_seconds + SLACK_SECONDS:
        yield f"it took {reply.at - question.at:.1f} s; its deadline was {played.conversation.run_seconds:g} s"
    else:
        yield HELD


def goes_on(played: Played, tool: str = "", does: Does = Does.RETURNS, ids: Ids = Ids.UNIQUE) -> Iterator[str]:
    """A call with this fault (or without one) has one result, and the model is asked again.

    Only turns that hold no other fault are looked at, so that nothing else is to blame.
    """
    wanted = set() if does is Does.RETURNS else {(tool, does)}
    for step, turn in enumerate(played.conversation.turns):
        served = next((seen for seen in played.all(What.SERVED, 1) if seen.step == step), None)
        if turn.faults != wanted or turn.ids is not ids:
            continue
        if not turn.calls or served is None or _ended_otherwise(played, step, served):
            continue
        following = played.request(step + 1)
        calls = [call.number for call in turn.calls if call.does is does]
        if following is None:
            yield f"call {calls[0]} has no result: {played.ended}"
        elif does in (Does.HANGS, Does.BLOCKS) and following.at > served.at + CALL_SECONDS + SLACK_SECONDS:
            late = following.at - served.at - CALL_SECONDS
            yield f"call {calls[0]} has its result {late:.1f} s after its deadline"
        elif does is Does.RETURNS and not all(played.all(What.STARTED, number) for number in calls):
            yield f"of the calls {calls} not all were run"
        else:
            answered = [turn for turn in turns_of(following.messages) if turn.calls][-1:]
            once = any(Counter(turn.asked) == Counter(turn.answered) for turn in answered)
            others = f"calls {[turn.asked for turn in answered]}, results {[turn.answered for turn in answered]}"
            if not once:
                yield others
            else:
                yield _of_another_call(_where(following), answered[0]) if ids is Ids.TWICE else HELD


def _ended_otherwise(played: Played, step: int, served: Seen) -> bool:
    """Was there no time, or no step, left to go on?"""
    cancel, question = played.first(What.CANCEL), played.first(What.QUESTION, 1)
    needed_until = served.at + CALL_SECONDS + SLACK_SECONDS
    if question is None or needed_until > question.at + played.conversation.run_seconds:
        return True
    return step + 1 >= played.conversation.max_steps or (cancel is not None and cancel.at < needed_until)


def work_ends(played: Played, tool: str, does: Does) -> Iterator[str]:
    """A call that hangs is ended at its deadline: it has no effect after it."""
    for start in played.all(What.STARTED):
        call = played.calls.get(start.number)
        if call is None or (call.tool, call.does) != (tool, does):
            continue
        late = [seen.at for seen in played.all(What.EFFECT, start.number) if seen.at > _due(start) + SLACK_SECONDS]
        yield f"call {call.number} had its effect {late[0] - _due(start):.1f} s after its deadline" if late else HELD


def steps_bounded(played: Played) -> Iterator[str]:
    """No more steps are begun than allowed; a step that is asked again counts once."""
    steps = {seen.step for seen in played.all(What.ASKED, 1)}
    if len(played.conversation.turns) >= played.conversation.max_steps and steps:
        allowed = played.conversation.max_steps
        yield f"{len(steps)} steps, allowed were {allowed}" if len(steps) > allowed else HELD


def cancel_ends(played: Played) -> Iterator[str]:
    """A cancel ends the run and its model stream at once, and begins nothing."""
    cancel = played.first(What.CANCEL)
    if cancel is None or played.first(What.DIED):
        return
    limit = cancel.at + SLACK_SECONDS
    reply, left = played.first(What.REPLY, 1), played.first(What.LEFT)
    begun = [seen for seen in (*played.all(What.ASKED, 1), *played.all(What.STARTED)) if seen.at > limit]
    stalled = [seen for seen in played.all(What.ASKED, 1) if seen.detail == Stream.STALLS]
    if reply is None or reply.at > limit:
        yield "the run went on"
    elif begun:
        yield f"{begun[0].what} {begun[0].number} came {begun[0].at - cancel.at:.1f} s after the cancel"
    elif stalled and (left is None or left.at > limit):
        yield "the model's stream was left open"
    else:
        yield HELD


def cancel_ends_work(played: Played, tool: str) -> Iterator[str]:
    """A tool that runs at the cancel has no effect after it."""
    cancel = played.first(What.CANCEL)
    if cancel is None:
        return
    stops = {seen.number: seen.at for seen in played.all(What.STOPPED)}
    for start in played.all(What.STARTED):
        call = played.calls.get(start.number)
        running = start.at < cancel.at < stops.get(start.number, cancel.at + 1)
        if call is None or call.tool != tool or call.does is not Does.HANGS or not running:
            continue
        late = [seen.at for seen in played.all(What.EFFECT, start.number) if seen.at > cancel.at + SLACK_SECONDS]
        yield f"call {call.number} had its effect {late[0] - cancel.at:.1f} s after the cancel" if late else HELD


def second_question(played: Played, after_cancel: bool) -> Iterator[str]:
    """The conversation goes on: a second question is asked with a legal history, and answered."""
    second, reply = played.first(What.QUESTION, 2), played.first(What.REPLY, 2)
    if second is None or (played.first(What.CANCEL) is not None) is not after_cancel:
        return
    broken = [message for message in valid_history(played, 2) if message != HELD]
    if broken:
        yield broken[0]
    elif reply is None or reply.detail != "done":
        yield f"the second question ended with {reply.detail if reply else 'no answer'}"
    else:
        yield HELD


def beside(played: Played, cause: Does) -> Iterator[str]:
    """The conversation beside it, in the same process, is answered as if nothing was; RETURNS is any other cause."""
    ran = {played.calls[seen.number].does for seen in played.all(What.STARTED) if seen.number in played.calls}
    if cause is not next((does for does in (Does.EXITS, Does.BLOCKS) if does in ran), Does.RETURNS):
        return
    for ping in played.all(What.PING):
        pong = played.first(What.PONG, ping.number)
        limit = ping.at + CALL_SECONDS + SLACK_SECONDS
        if pong is None and not played.first(What.DIED) and played.seen[-1].at < limit:
            continue
        if pong is None:
            yield f"its question {ping.number} was not answered: {played.ended}"
        elif pong.detail != "done":
            yield f"its question {ping.number} was answered {pong.detail}"
        else:
            yield f"its question {ping.number} took {pong.at - ping.at:.1f} s" if pong.at > limit else HELD
    if played.first(What.DIED):
        yield "it could ask no more: the process died"


def no_half_calls(played: Played) -> Iterator[str]:
    """A call whose arguments were cut off or are no JSON object is never run."""
    half = played.served(Does.HALF)
    whole = {_canonical(call.arguments) for call in played.calls.values() if call.does is not Does.HALF}
    for start in played.all(What.STARTED):
        if start.number == BESIDE or (start.number in played.calls and start.number not in half):
            continue
        if _canonical(start.detail) not in whole:
            yield f"a tool ran with {start.detail}, which the model did not ask for"
    if half:
        yield HELD


def _canonical(arguments: str) -> str:
    return orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()


def denied(played: Played) -> Iterator[str]:
    """A call that the person denied is never run."""
    refused = played.served(Does.DENIED)
    ran = {seen.number for seen in played.all(What.STARTED)}
    if refused:
        yield f"call {min(refused & ran)} was denied, and run" if refused & ran else HELD


class ObservedRule(Struct, frozen=True):
    """One rule, or one case of it."""

    invariant: str
    """Its name among `INVARIANTS`."""
    case: str
    check: Check

    @property
    def name(self) -> str:
        return f"{self.invariant}: {self.case}"


def _one_failed_result(invariant: str, what: str, tool: str, does: Does) -> ObservedRule:
    return ObservedRule(invariant, f"{what} is one failed result", partial(goes_on, tool=tool, does=does))


def _ends(what: str, tool: str, does: Does) -> ObservedRule:
    return ObservedRule("I5 bounded", f"{what} ends at its deadline", partial(work_ends, tool=tool, does=does))


OBSERVED: Final = (
    ObservedRule("I1 terminal once", "one result a call, run once", one_result),
    ObservedRule("I1 terminal once", "calls that return are answered", goes_on),
    ObservedRule("I1 terminal once", "calls with the same id in a turn are answered", partial(goes_on, ids=Ids.TWICE)),
    ObservedRule("I1 terminal once", "calls that repeat an earlier id are answered", partial(goes_on, ids=Ids.EARLIER)),
    _one_failed_result("I1 terminal once", "a call of an unknown tool", "nowhere", Does.UNKNOWN),
    ObservedRule("I2 valid history", "calls and results", valid_history),
    ObservedRule("I2 valid history", "the conversation can go on", partial(second_question, after_cancel=False)),
    ObservedRule("I2 valid history", "arguments are JSON objects", valid_arguments),
    ObservedRule("I3 order", "results in the order of the calls", in_order),
    ObservedRule("I4 no early step", "the model waits for the tools", no_early_step),
    ObservedRule("I5 bounded", "a run ends by its deadline", run_bounded),
    _one_failed_result("I5 bounded", "an async tool that hangs", "look", Does.HANGS),
    _ends("an async tool that hangs", "look", Does.HANGS),
    _one_failed_result("I5 bounded", "a plain tool that hangs", "again", Does.HANGS),
    _ends("a plain tool that hangs", "again", Does.HANGS),
    _one_failed_result("I5 bounded", "an async tool that blocks", "look", Does.BLOCKS),
    _ends("an async tool that blocks", "look", Does.BLOCKS),
    ObservedRule("I6 budgets hold", "no step beyond the limit", steps_bounded),
    ObservedRule("I7 cancel", "ends the run and its stream", cancel_ends),
    ObservedRule("I7 cancel", "ends async tools", partial(cancel_ends_work, tool="look")),
    ObservedRule("I7 cancel", "ends plain tools", partial(cancel_ends_work, tool="again")),
    ObservedRule("I7 cancel", "the conversation can go on", partial(second_question, after_cancel=True)),
    _one_failed_result("I10 blast radius", "an async tool that raises", "look", Does.RAISES),
    _one_failed_result("I10 blast radius", "a plain tool that raises", "again", Does.RAISES),
    _one_failed_result("I10 blast radius", "an async tool that exits", "look", Does.EXITS),
    _one_failed_result("I10 blast radius", "a plain tool that exits", "again", Does.EXITS),
    ObservedRule("I10 blast radius", "the conversation beside a tool that exits", partial(beside, cause=Does.EXITS)),
    ObservedRule("I10 blast radius", "the conversation beside a tool that blocks", partial(beside, cause=Does.BLOCKS)),
    ObservedRule("I10 blast radius", "the conversation beside any other", partial(beside, cause=Does.RETURNS)),
    ObservedRule("I12 no half calls", "a half call is not run", no_half_calls),
    _one_failed_result("I12 no half calls", "a half call of an async tool", "look", Does.HALF),
    _one_failed_result("I12 no half calls", "a half call of a plain tool", "again", Does.HALF),
    ObservedRule("I13 leave to run", "a denied call is not run", denied),
    _one_failed_result("I13 leave to run", "a denied call", "write", Does.DENIED),
)

_JOURNAL: Final = "a journal, where there is one, is the runtime's own: it cannot be cut and resumed from outside"
_INSIDE: Final = "events, commands and timers are inside; what they lead to is seen by the other rules"
_KEPT: Final = "what is kept is the runtime's own; what is shown of it to the model is seen by I1 to I3"
NOT_OBSERVED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "I8 replay": _JOURNAL,
        "I9 conservation": _INSIDE,
        "I11 isolation": "seen only where it changes the conversation beside (I10)",
        "I14 call deadlines": "all tools have the same deadline here; that it ends a call is seen by I5",
        "I15 effect ids": _JOURNAL,
        "I16 sent again": _JOURNAL,
        "I17 recorded truly": _KEPT,
        "I18 shown as recorded": _KEPT,
        "I19 recorded in place": _KEPT,
        "I20 turns decide": "what becomes of a turn that was cut off is each runtime's own decision",
        "I21 true finish": "each runtime reports usage and cost in a way of its own",
        "I22 timers": _INSIDE,
        "I23 model calls": "which timeouts a model call has is each runtime's own; the run's is seen by I5",
        "I24 goes on": _INSIDE,
        "I25 taken or refused": _INSIDE,
        "I26 resume": _JOURNAL,
        "I27 carried out": _INSIDE,
        "I28 compaction": "each runtime has its own way to leave out what does not fit",
        "I29 notices": "other runtimes take none",
        "I30 answers fit": "the conversations ask for text: each runtime has its own way to ask for another form",
        "I31 handed out": "the conversations offer no tools of the asker's, which each runtime takes in its own way",
        "I32 search words": "other runtimes ask for none",
        "I33 true reports": "each runtime reports in a way of its own",
        "I34 notes": "likewise",
        "I35 in time": "when each begins something is its own; that nothing is left is seen by I5",
    }
)


def judge(played: Played) -> dict[str, list[str]]:
    """Each rule that this conversation had something to show of, with its breaches; none means that it held."""
    found = {rule.name: list(rule.check(played)) for rule in OBSERVED}
    return {name: [message for message in messages if message != HELD] for name, messages in found.items() if messages}
