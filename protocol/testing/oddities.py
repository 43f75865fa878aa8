"""What may be odd about a scenario: each function takes one, and gives it with one thing more, or another one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from msgspec.structs import replace

from callboard.protocol.content import (
    AssistantMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import RETRYABLE_KINDS, ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.limits import MAX_ANSWER_BYTES, MAX_CALLS_PER_STEP
from callboard.protocol.model import FinishReason, PromptCache, ResponseStorage
from callboard.protocol.options import ToolFallback
from callboard.protocol.output import OUTPUT_TOOL, OutputMode, OutputSpec
from callboard.protocol.testing.drawing import (
    ANSWER_TEXTS,
    ASKING_TOOLS,
    BAD_ARGUMENTS,
    CHANGED_ARGUMENTS,
    CLAIMS,
    GOOD_ARGUMENTS,
    MASKED_ARGUMENTS,
    MORE_PARTS,
    SCOPES,
    SEARCH_ARGUMENTS,
    SEARCH_TOOLS,
    SHORT_ENDS,
    SMALL_TOOLS,
    TOOLS,
    Choices,
    chance,
    draw_call,
    draw_deferred,
    draw_history,
    draw_options,
    draw_strays,
    draw_tool_options,
    draw_tools,
    draw_turn,
    quarters,
    soon,
)
from callboard.protocol.testing.long_conversations import draw_compaction, draw_long_history, has_long_results
from callboard.protocol.testing.outside import FOREIGN_KINDS
from callboard.protocol.testing.scenario import (
    ASKERS_TOOLS,
    ModelDoes,
    OutsideDoes,
    PersonDoes,
    PlannedCall,
    PlannedTurn,
    Scenario,
    Store,
    ToolDoes,
)
from callboard.protocol.tools import Effect, FailureCode

# Oddities: each is a scenario with one thing more, or another one.


def _odd_call(choices: Choices, drawn: Scenario, change: Callable[[PlannedCall], PlannedCall]) -> Scenario:
    """The same with one of its calls changed."""
    places = [(turn, call) for turn, each in enumerate(drawn.turns) for call in range(len(each.calls))]
    if not places:
        return drawn
    turn, place = choices.pick(places)
    calls = list(drawn.turns[turn].calls)
    calls[place] = change(calls[place])
    return _with_turn(drawn, turn, replace(drawn.turns[turn], calls=tuple(calls)))


def _odd_turn(choices: Choices, drawn: Scenario, change: Callable[[PlannedTurn], PlannedTurn]) -> Scenario:
    """The same with one of its turns changed."""
    if not drawn.turns:
        return drawn
    place = choices.number(0, len(drawn.turns) - 1)
    return _with_turn(drawn, place, change(drawn.turns[place]))


def _with_turn(drawn: Scenario, place: int, turn: PlannedTurn) -> Scenario:
    return replace(drawn, turns=(*drawn.turns[:place], turn, *drawn.turns[place + 1 :]))


def _with_options(drawn: Scenario, **changes: Any) -> Scenario:
    return replace(drawn, options=replace(drawn.options, **changes))


def _happens(drawn: Scenario, what: str, when: float) -> Scenario:
    """One more thing is done to the request at that time, or its time is over then; "": nothing."""
    if what == "timeout":
        return _with_options(drawn, timeout_seconds=when)
    if what:
        return replace(drawn, **{what: when if what == "cancel_at" else (when,)})
    return drawn


def _call_ends_oddly(choices: Choices, drawn: Scenario) -> Scenario:
    does = choices.pick((*ToolDoes, ToolDoes.FAIL, ToolDoes.FAIL))
    code = choices.pick(list(FailureCode))
    seconds, waits = choices.pick((1.0, 0.25, 4.0, 8.0)), choices.pick((0.125, 1.5))
    return _odd_call(
        choices, drawn, lambda call: replace(call, does=does, code=code, seconds=seconds, waits_seconds=waits)
    )


def _person_is_asked(choices: Choices, drawn: Scenario) -> Scenario:
    """Yes for this call, for the request or for always, with other arguments; no; or nothing."""
    asked = PlannedCall(
        choices.pick(ASKING_TOOLS),
        person=choices.pick((PersonDoes.GRANT, *PersonDoes)),
        person_seconds=choices.pick((0.25, 1.0, 5.0, 10.0)),
        changed=choices.pick(("", "", CHANGED_ARGUMENTS)),
        rule=choices.pick(SCOPES),
    )
    names = ("tool", "person", "person_seconds", "changed", "rule")
    changes: dict[str, Any] = {name: getattr(asked, name) for name in names}
    drawn = _with_options(drawn, approval_timeout_seconds=choices.pick((86_400.0, 600.0, 5.0)))
    return _odd_call(choices, drawn, lambda call: replace(call, **changes))


def _equal_questions(choices: Choices, drawn: Scenario) -> Scenario:
    """A person is asked about the same call two or three times in one turn, and does not always say the same.

    Sometimes the request's time is over meanwhile.
    """
    tool, arguments = choices.pick(ASKING_TOOLS), choices.pick(GOOD_ARGUMENTS)
    calls = tuple(
        PlannedCall(
            tool,
            arguments,
            f"q{number}",
            person=choices.pick((PersonDoes.GRANT, PersonDoes.GRANT, *PersonDoes)),
            person_seconds=choices.pick((0.25, 1.0, 3.0)),
            rule=choices.pick(SCOPES),
        )
        for number in range(choices.pick((2, 2, 3)))
    )
    drawn = _with_options(drawn, approval_timeout_seconds=choices.pick((86_400.0, 5.0)))
    drawn = _happens(drawn, choices.pick(("", "timeout")), soon(choices))
    return _odd_turn(choices, drawn, lambda turn: replace(turn, calls=calls))


def _call_is_deferred(choices: Choices, drawn: Scenario) -> Scenario:
    """And what comes of it from outside; meanwhile process or holder of the calls may die, or the user leave."""
    plan = PlannedCall(
        choices.pick(SMALL_TOOLS),
        does=ToolDoes.DEFER,
        outside=choices.pick((OutsideDoes.COMPLETE, *OutsideDoes)),
        outside_seconds=choices.pick((0.25, 1.0, 4.0, 30.0)),
        open_seconds=choices.pick((60.0, 2.0, 5.0)),
        doubled=chance(choices, 15),
    )
    names = ("does", "outside", "outside_seconds", "open_seconds", "doubled")
    drawn = _odd_call(choices, drawn, lambda call: replace(call, **{name: getattr(plan, name) for name in names}))
    befalls = choices.pick(("", "restart_at", "tools_lost_at", "cancel_at", "cancel_at"))
    return _happens(drawn, befalls, soon(choices))


def _arguments_are_odd(choices: Choices, drawn: Scenario) -> Scenario:
    arguments = choices.pick((*BAD_ARGUMENTS, *MASKED_ARGUMENTS, *MASKED_ARGUMENTS, "{}"))
    claimed, unfinished = choices.pick(((False, False), (False, False), (True, False), (False, True)))
    return _odd_call(
        choices,
        drawn,
        lambda call: replace(call, arguments=arguments, claimed_complete=claimed, unfinished=unfinished),
    )


def _ids_collide(choices: Choices, drawn: Scenario) -> Scenario:
    """Calls have the same id, in one turn and in the next ones, or none."""
    call_id = choices.pick(("a", "a", "a_2", ""))
    turns = (replace(turn, calls=tuple(replace(call, call_id=call_id) for call in turn.calls)) for turn in drawn.turns)
    return replace(drawn, turns=tuple(turns))


def _equal_calls(choices: Choices, drawn: Scenario) -> Scenario:
    """One turn makes the same call twice, one of them perhaps with another fate."""
    does = choices.pick((ToolDoes.COMPLETE, *ToolDoes))

    def twice(turn: PlannedTurn) -> PlannedTurn:
        calls = turn.calls or (PlannedCall(TOOLS[0]),)
        return replace(turn, calls=(*calls, replace(calls[0], call_id="z", does=does)))

    return _odd_turn(choices, drawn, twice)


def _comes_again(choices: Choices, drawn: Scenario) -> Scenario:
    """What ends a call or a turn comes twice, or once more long after."""
    doubled, late = choices.pick(((True, False), (False, True), (True, True)))
    if choices.pick((False, True)):
        return _odd_turn(choices, drawn, lambda turn: replace(turn, doubled=doubled, late=late))
    return _odd_call(choices, drawn, lambda call: replace(call, doubled=doubled, late=late))


def _other_tool(choices: Choices, drawn: Scenario) -> Scenario:
    """One that is not offered, is denied, has little time or much."""
    tool, seconds = choices.pick(TOOLS[2:]), choices.pick((1.0, 3.0, 20.0))
    return _odd_call(choices, drawn, lambda call: replace(call, tool=tool, seconds=seconds))


def _model_does_oddly(choices: Choices, drawn: Scenario) -> Scenario:
    does = choices.pick(list(ModelDoes)[1:])
    changes: dict[str, Any] = {
        "does": does,
        "text": choices.pick(("", "let me look")),
        "charged": choices.pick((False, True)),
        "error": choices.pick(list(ErrorKind)),
        "streams": choices.pick((True, True, False)),
    }
    drawn = _with_options(drawn, max_attempts=choices.pick((4, 2, 1)))
    return _odd_turn(choices, drawn, lambda turn: replace(turn, **changes))


def _model_fails(choices: Choices, drawn: Scenario) -> Scenario:
    """For good, of any kind, having streamed some text or not, and said what that has cost or not."""
    error, charged, text = choices.pick(list(ErrorKind)), choices.pick((False, True)), choices.pick(("", "let me look"))
    return _odd_turn(
        choices,
        drawn,
        lambda turn: replace(
            turn, does=ModelDoes.BREAK, error=error, charged=charged, text=text, requests=1 + bool(text)
        ),
    )


def _turn_ends_oddly(choices: Choices, drawn: Scenario) -> Scenario:
    """With any reason, with or without text, calls and thinking."""
    reason, text, thinking = choices.pick(list(FinishReason)), choices.pick(("", "so far")), choices.pick(("", "hm"))
    without, more = choices.pick((False, True)), choices.pick(((), (), *MORE_PARTS))
    drawn = _with_options(drawn, continue_cut_answers=choices.pick((0, 1, 2)), max_attempts=choices.pick((4, 1)))
    return _odd_turn(
        choices,
        drawn,
        lambda turn: replace(
            turn, finish_reason=reason, text=text, thinking=thinking, more=more, calls=() if without else turn.calls
        ),
    )


def _is_cut(choices: Choices, drawn: Scenario) -> Scenario:
    """Answers are cut and gone on with, by text or by calls; sometimes until the user leaves."""
    cut, calls = PlannedTurn("so far", finish_reason=FinishReason.LENGTH), choices.pick(((), drawn.turns[0].calls))
    turns = (cut, replace(cut, calls=calls, text=choices.pick((" and", ""))), PlannedTurn("the rest"))
    drawn = replace(drawn, turns=turns, cancel_at=choices.pick((None, None, 1.4, 2.4)))
    return _with_options(drawn, continue_cut_answers=2)


def _begins_again(choices: Choices, drawn: Scenario) -> Scenario:
    """A stream begins again, and is cut then, or stopped: what came before is void."""
    does = choices.pick((ModelDoes.CUT, ModelDoes.BREAK, ModelDoes.STALL, ModelDoes.LOST, ModelDoes.ANSWER))
    text, moment = choices.pick(("let me look", "let me look", "")), choices.pick((0.3125, 0.625, 0.1875))
    befalls = choices.pick(("", "", "cancel_at", "restart_at", "timeout"))
    drawn = _with_options(drawn, max_attempts=choices.pick((1, 1, 2)))
    turn = replace(drawn.turns[0], text=text, restarts=True, does=does)
    drawn = _with_turn(drawn, 0, turn)
    return _happens(drawn, befalls, moment)


def _counts_wrongly(choices: Choices, drawn: Scenario) -> Scenario:
    """A provider reports what cannot be true: less than no tokens or dollars, or no prompt."""
    wrong: dict[str, Any] = choices.pick(({"output_tokens": -8}, {"extra_cost": -1.0}, {"counts_as": 0.0}))
    drawn = _with_options(drawn, token_budget=choices.pick((None, 3_000)))
    return _odd_turn(choices, drawn, lambda turn: replace(turn, **wrong))


def _requests_fail(choices: Choices, drawn: Scenario) -> Scenario:
    """A model call takes several requests, the last of another model; it may fail all the same, or be lost."""
    does = choices.pick((ModelDoes.ANSWER, ModelDoes.ANSWER, ModelDoes.BREAK, ModelDoes.CUT, ModelDoes.LOST))
    requests, model = choices.number(2, 4), choices.pick(("", "sim/second"))
    error = choices.pick(sorted(RETRYABLE_KINDS))
    text, charged, notices = choices.pick(("", "let me look")), choices.pick((False, True)), choices.pick((False, True))
    drawn = _with_options(drawn, max_attempts=choices.pick((4, 3, 2)))
    drawn = replace(drawn, notices_at=(choices.number(1, 48) / 8,)) if notices else drawn
    drawn = replace(drawn, restart_at=(choices.number(1, 12) / 32,)) if chance(choices, 30) else drawn
    return _odd_turn(
        choices,
        drawn,
        lambda turn: replace(turn, does=does, requests=requests, model=model, error=error, text=text, charged=charged),
    )


def _pauses(choices: Choices, drawn: Scenario) -> Scenario:
    """A model call is lost, once or twice in a row; in the pause a notice comes, or what ends the request."""
    lost = replace(drawn.turns[0], does=ModelDoes.LOST, requests=choices.pick((1, 1, 2)))
    drawn = replace(drawn, turns=(lost, *(lost,) * choices.pick((0, 0, 1, 2)), *drawn.turns))
    when = 1.0 + choices.pick((0.03125, 0.0625, 0.25, 0.5, 1.0, 3.0))
    befalls = choices.pick(("notices_at", "notices_at", "restart_at", "cancel_at"))
    drawn = _happens(drawn, befalls, when)
    return replace(drawn, cancel_at=when) if chance(choices, 10) else drawn


def _costs(choices: Choices, drawn: Scenario) -> Scenario:
    """Budgets, and turns that do not say what they took, or cost more than their tokens."""
    counts, extra = choices.pick((False, False, True)), choices.pick((0.0, 0.02, -1.0, 20_000.0))
    claims = choices.pick((None, None, *CLAIMS))
    by_tokens = choices.pick((False, True))
    drawn = _with_options(
        drawn,
        token_budget=choices.number(100, 2_000) if by_tokens else None,
        cost_budget=None if by_tokens else choices.pick((0.005, 0.01, 0.02, 0.05)),
        input_price=1e-5,
        output_price=1e-4,
    )
    drawn = _odd_turn(choices, drawn, lambda turn: replace(turn, counts_tokens=counts, extra_cost=extra, claims=claims))
    return _odd_turn(choices, drawn, lambda turn: replace(turn, output_tokens=choices.pick((8, 40, 1))))


def _overflows(choices: Choices, drawn: Scenario) -> Scenario:
    """The prompt is too long in one step of the request or in two; sometimes the model names its window."""
    drawn = replace(drawn, history=(*drawn.history, *draw_long_history(choices)))
    too_long = PlannedTurn(choices.pick(("", "too long")), does=ModelDoes.OVERFLOW, charged=choices.pick((False, True)))
    turns: list[PlannedTurn] = []
    for turn in drawn.turns:
        turns += [too_long, turn] if len(turns) < 4 else [turn]
    return replace(drawn, turns=tuple(turns))


def _is_huge(choices: Choices, drawn: Scenario) -> Scenario:
    """A result is larger than any may be, or a turn: it has too many calls or, seldom since it takes long, texts."""
    if chance(choices, 20):
        many = tuple(PlannedCall(SMALL_TOOLS[0], call_id=f"n{number}") for number in range(MAX_CALLS_PER_STEP + 1))
        drawn = _with_options(drawn, max_attempts=choices.pick((1, 4)))
        return _odd_turn(choices, drawn, lambda turn: replace(turn, calls=many))
    if chance(choices, 20):
        streams = choices.pick((True, True, False))
        return _with_turn(drawn, 0, replace(drawn.turns[0], text=huge_answer(), streams=streams))
    defer, seconds = choices.pick((False, True)), choices.pick((1.0, 0.0, 0.0))
    drawn = replace(drawn, latency_seconds=2.0) if not seconds else drawn
    return _odd_call(
        choices,
        drawn,
        lambda call: replace(call, is_huge=True, seconds=seconds, does=ToolDoes.DEFER if defer else ToolDoes.COMPLETE),
    )


@cache
def huge_answer() -> str:
    """More than one turn of a model may hold."""
    return "x" * (MAX_ANSWER_BYTES + 2)


def _cancels(choices: Choices, drawn: Scenario) -> Scenario:
    return replace(drawn, cancel_at=soon(choices))


def _restarts(choices: Choices, drawn: Scenario) -> Scenario:
    times = tuple(soon(choices) for _ in range(choices.pick((1, 1, 2))))
    return replace(drawn, restart_at=times)


def _loses_tools(choices: Choices, drawn: Scenario) -> Scenario:
    """Sometimes as often as a call may be sent, before it has begun."""
    number = choices.pick((1, 1, 2, 5, 5))
    first = drawn.turns[0].seconds + 1 / 64 if number == 5 else soon(choices)
    drawn = _with_options(drawn, max_attempts=choices.pick((4, 2, 1)))
    return replace(drawn, tools_lost_at=tuple(first + place / 32 for place in range(number)))


def _strangers_speak(choices: Choices, drawn: Scenario) -> Scenario:
    numbers = tuple(choices.number(0, 2 * FOREIGN_KINDS) for _ in range(choices.number(1, 4)))
    return replace(drawn, foreign=tuple((soon(choices), number) for number in numbers))


def _is_not_due(choices: Choices, drawn: Scenario) -> Scenario:
    return replace(drawn, strays=draw_strays(choices, 6))


def _clock_jumps(choices: Choices, drawn: Scenario) -> Scenario:
    return replace(drawn, jumps=((soon(choices), float(choices.pick((1, 30, 700, 3_600)))),))


def _store_is_slow(choices: Choices, drawn: Scenario) -> Scenario:
    """Sometimes the process dies before all is written."""
    full_from = soon(choices)
    store = Store(choices.pick((0.0, 0.25, 2.0)), full_from, full_from + choices.pick((0.0, 3.0, 30.0)))
    return replace(drawn, store=store, restart_at=(soon(choices),) if chance(choices, 60) else drawn.restart_at)


def _session_is_slow(choices: Choices, drawn: Scenario) -> Scenario:
    return replace(drawn, latency_seconds=choices.pick((0.5, 2.0)))


def _notices_come(choices: Choices, drawn: Scenario) -> Scenario:
    """Sometimes the process dies directly after one."""
    times = tuple(soon(choices) for _ in range(choices.pick((1, 2, 3))))
    return _happens(replace(drawn, notices_at=times), choices.pick(("", "", "restart_at")), times[0] + 1 / 64)


def _limits_are_tight(choices: Choices, drawn: Scenario) -> Scenario:
    tight: dict[str, Sequence[Any]] = {
        "timeout_seconds": (0.5, 1.125, 2.0, 4.0, 6.0),
        "max_steps": (1, 2, 3),
        "context_tokens": (60, 150, 400, 1_000),
        "repeated_call_limit": (0, 1, 2),
        "max_attempts": (1, 2, 3),
        "approval_timeout_seconds": (0.5, 2.0, 5.0),
        "tool_fallback": (ToolFallback.FAIL,),
    }
    name = choices.pick(sorted(tight))
    return _with_options(drawn, **{name: choices.pick(tight[name])})


def _has_other_options(choices: Choices, drawn: Scenario) -> Scenario:
    """Those that only change what is sent."""
    other = draw_tool_options(choices, draw_options(choices))
    names = ("system_prompt", "tool_prompt", "takes_tools", "sampling", "tool_choice", "parallel_tool_calls")
    changes = {name: getattr(other, name) for name in (*names, "service_tier", "provider_options", "tool_fallback")}
    changes["prompt_cache"], changes["images_out"] = choices.pick(list(PromptCache)), choices.pick((False, True))
    changes["storage"] = choices.pick((None, ResponseStorage(store=True), ResponseStorage(True, "before")))
    return _with_options(replace(drawn, tools=draw_tools(choices)), **changes)


def _has_a_history(choices: Choices, drawn: Scenario) -> Scenario:
    if drawn.history:  # what a compaction has done is said of this one
        return drawn
    drawn = replace(drawn, history=draw_history(choices, 2))
    return _with_options(drawn, context_tokens=choices.number(100, 1_500)) if chance(choices, 40) else drawn


def _repeats_itself(choices: Choices, drawn: Scenario) -> Scenario:
    """The model makes the same call in each turn, with the same result or another one."""
    call = PlannedCall(choices.pick((*SMALL_TOOLS, *ASKING_TOOLS)), call_id="s", steady=not chance(choices, 25))
    beside = [turn.calls[:1] if chance(choices, 30) else () for turn in drawn.turns]
    turns = [PlannedTurn(calls=(call, *(beside[number] if number < len(beside) else ()))) for number in range(5)]
    limit = choices.pick((3, 2, 1))
    return _with_options(replace(drawn, turns=tuple(turns[: limit + 2])), repeated_call_limit=limit)


def _compacts(choices: Choices, drawn: Scenario) -> Scenario:
    """A summary is asked for; sometimes the process dies meanwhile, the request is cancelled, or each try is lost."""
    drawn = draw_compaction(choices, drawn, ("", "", "sim/summaries"))
    if chance(choices, 10):
        lost = PlannedTurn(does=ModelDoes.LOST, requests=choices.pick((1, 2)))
        return _with_options(replace(drawn, summaries=(lost,) * 4), max_attempts=choices.pick((2, 4)))
    lasts = drawn.summaries[0].seconds if drawn.summaries else 1.0
    befalls, when = choices.pick(("", "restart_at", "restart_at", "cancel_at")), lasts * choices.pick((0.25, 0.5, 1.5))
    return _happens(drawn, befalls, when)


def _searches(choices: Choices, drawn: Scenario) -> Scenario:
    """Words to search by are asked for; sometimes something happens meanwhile."""
    name = choices.pick(SEARCH_TOOLS)
    search = PlannedCall(name, choices.pick(SEARCH_ARGUMENTS[:2] * 2 + SEARCH_ARGUMENTS), "w")
    others = tuple(call for call in drawn.turns[0].calls if call.tool != name)
    drawn = _with_turn(drawn, 0, replace(drawn.turns[0], calls=(search, *others)))
    drawn = _searching_by(drawn, (name,), _draw_words(choices))
    seconds = drawn.words[0].seconds
    when = drawn.turns[0].seconds + choices.pick((seconds / 8, seconds / 2, seconds * 0.75, seconds + 0.25))
    befalls = choices.pick(("", "", "restart_at", "cancel_at", "notices_at", "tools_lost_at", "timeout"))
    return _happens(drawn, befalls, when)


def _commits(choices: Choices, drawn: Scenario) -> Scenario:
    """Calls have their effect in a transaction; the process dies in the middle of one, or the holder of the calls."""
    tools = (
        replace(each, contract=replace(each.contract, effect=Effect.TRANSACTION))
        if each.definition.name in SMALL_TOOLS
        else each
        for each in drawn.tools
    )
    befalls = choices.pick(("", "tools_lost_at", "tools_lost_at", "restart_at"))
    while_it_runs = drawn.turns[0].seconds + choices.pick((0.25, 0.375, 0.75))
    drawn = _with_options(replace(drawn, tools=tuple(tools)), max_attempts=choices.pick((1, 1, 2, 4)))
    return _happens(drawn, befalls, choices.pick((while_it_runs, soon(choices))))


def _comes_too_early(choices: Choices, drawn: Scenario) -> Scenario:
    """At the very beginning, before or after the request begins."""
    numbers = [choices.number(0, 90) for _ in range(3)]
    strays = tuple((0.0, number) for number in numbers)
    return replace(drawn, strays=strays, foreign=tuple((0.0, number) for number in numbers))


def _asks_back(choices: Choices, drawn: Scenario) -> Scenario:
    return _with_askers_tools(choices, drawn)


def _has_output(choices: Choices, drawn: Scenario) -> Scenario:
    drawn = _with_output(choices, drawn)
    refuses = replace(drawn.turns[0], does=ModelDoes.REFUSE_SCHEMA)
    return _with_turn(drawn, 0, refuses) if chance(choices, 15) else drawn


def _goes_on(choices: Choices, drawn: Scenario) -> Scenario:
    return _going_on(choices, drawn) if drawn.options.compaction is None else drawn


def _is_changed(choices: Choices, drawn: Scenario) -> Scenario:
    return _with_changes(drawn)


def _expanding(choices: Choices, drawn: Scenario) -> Scenario:
    """Some tools search, and the model is asked for further words before the first search."""
    names = choices.pick((SEARCH_TOOLS, SEARCH_TOOLS[:1], SEARCH_TOOLS[1:]))
    turns = (
        replace(turn, calls=tuple(_searching(choices, call) for call in turn.calls)) if chance(choices, 60) else turn
        for turn in drawn.turns
    )
    return _searching_by(replace(drawn, turns=tuple(turns)), names, _draw_words(choices))


def _searching_by(drawn: Scenario, names: Sequence[ToolName], words: PlannedTurn) -> Scenario:
    """These tools search."""
    by = {name: "queries" for name in names}
    tools = tuple(
        replace(each, contract=replace(each.contract, searches_by=by.get(each.definition.name, "")))
        for each in drawn.tools
    )
    return _with_options(replace(drawn, tools=tools, words=(words,)), expand_search=True)


def _draw_words(choices: Choices) -> PlannedTurn:
    """Mostly some that can be used."""
    plain = PlannedTurn(choices.pick(("find\nseek\n\nhunt", "- one", "x" * 300)), seconds=quarters(choices, 4))
    odd = draw_turn(choices, 2)
    does = choices.pick((ModelDoes.LOST, ModelDoes.BREAK, ModelDoes.STALL))
    short = replace(plain, finish_reason=choices.pick((*SHORT_ENDS, FinishReason.CONTENT_FILTER)))
    plain = replace(plain, counts_tokens=choices.pick((True, False)))
    return choices.pick((plain, plain, plain, short, odd, replace(odd, does=does)))


def _searching(choices: Choices, call: PlannedCall) -> PlannedCall:
    if call.tool not in SEARCH_TOOLS or call.arguments in BAD_ARGUMENTS:
        return call
    return replace(call, arguments=choices.pick(SEARCH_ARGUMENTS))


def _going_on(choices: Choices, drawn: Scenario) -> Scenario:
    """No question: the model goes on from a turn whose calls the asker has answered."""
    calls = [
        ToolCall(CallId(f"o{number}"), choices.pick(ASKERS_TOOLS).definition.name, choices.pick(GOOD_ARGUMENTS))
        for number in range(choices.number(1, 3))
    ]
    results = [
        ToolMessage(call.call_id, call.name, choices.pick(("nothing", "x" * 1_500)), is_error=chance(choices, 20))
        for call in calls
    ]
    notes = [SystemMessage("A note after the results.")] if chance(choices, 20) else []
    asked = UserMessage.of("what is in my calendar?")
    history = (*drawn.history, asked, AssistantMessage(tuple(calls)), *results, *notes)
    return replace(drawn, history=history, user=UserMessage(()))


def _with_askers_tools(choices: Choices, drawn: Scenario) -> Scenario:
    """Calls of tools that the asker runs, alone or beside others. They end a request: some turns come before them."""
    befalls = choices.pick(("", "answered", "lost", "cancelled", "cancelled", "late"))
    first = choices.number(0, min(1 if befalls else 3, len(drawn.turns) - 1))
    asking = (ask_back(choices, turn) for turn in drawn.turns[first:])
    drawn = replace(drawn, turns=(*drawn.turns[:first], *asking), askers_tools=ASKERS_TOOLS)
    if befalls == "answered":  # too early: the first strays are results of the asker's calls
        return replace(drawn, strays=tuple((at / 2, choices.pick((0, 0, 1, 2))) for at in range(3, 17)))
    if befalls == "lost":
        return replace(drawn, tools_lost_at=(1.5, 2.5, 5.0, 8.0))
    if befalls == "cancelled":
        return replace(drawn, cancel_at=choices.pick((1.5, 2.5, 4.0, 6.0, 9.0)))
    if befalls == "late":
        return _with_options(drawn, timeout_seconds=choices.pick((1.5, 4.0, 6.0, 12.0)))
    return drawn


def ask_back(choices: Choices, turn: PlannedTurn) -> PlannedTurn:
    """Some of its calls are the asker's; the others take long, or never end, so that much can happen meanwhile."""
    tool, is_alone = choices.pick(ASKERS_TOOLS).definition.name, chance(choices, 20)
    planned, calls = turn.calls, []
    does = choices.pick((None, None, None, ToolDoes.FAIL, ToolDoes.FAIL, ToolDoes.STOPPED, ToolDoes.VANISH))
    if len(planned) == 1 and not is_alone:
        planned = (*planned, replace(draw_call(choices), tool=choices.pick(TOOLS[:7]), call_id="z"))
    for place, call in enumerate(planned):
        if call.tool != OUTPUT_TOOL and (is_alone or place == 0 or choices.pick((False, False, True))):
            calls.append(replace(call, tool=tool))
        else:
            person, took = choices.pick((call.person, PersonDoes.DENY)), choices.pick((call.seconds, 4.0))
            calls.append(replace(call, does=does or call.does, person=person, seconds=took))
    return replace(turn, calls=tuple(choices.pick((calls, calls[::-1]))))


def _wary(choices: Choices, drawn: Scenario) -> Scenario:
    """Text from outside counts: what does more than read is asked about behind it. Some tools are trusted, or all."""
    trusted = choices.pick(((), TOOLS, TOOLS[:1]))
    tools = tuple(
        replace(each, contract=replace(each.contract, is_trusted=each.definition.name in trusted))
        for each in drawn.tools
    )
    return replace(drawn, tools=tools, options=replace(drawn.options, ask_after_untrusted=True))


def _with_changes(drawn: Scenario) -> Scenario:
    """The person lets calls run with other arguments than the model's."""
    turns = (
        replace(turn, calls=tuple(replace(call, changed=CHANGED_ARGUMENTS) for call in turn.calls))
        for turn in drawn.turns
    )
    return replace(drawn, turns=tuple(turns))


def _with_output(choices: Choices, drawn: Scenario) -> Scenario:
    """The answer must have a form: some calls are of the output tool, and texts are answers, right or wrong."""
    ways = ((), tuple(OutputMode), tuple(OutputMode), (OutputMode.TOOL, OutputMode.PROMPT), (OutputMode.TOOL,))
    spec = OutputSpec(
        {"type": "object", "properties": {"x": {"type": "integer"}}},
        "Odd",
        modes=choices.pick(ways) or (choices.pick(list(OutputMode)),),
        is_native_alone=choices.pick((False, True)),
        max_tries=choices.pick((3, 3, 2, 1)),
    )
    spec = replace(spec, description="An odd number." if spec.max_tries < 3 else "")
    turns = [_answering(choices, turn) for turn in drawn.turns]
    last = PlannedTurn(choices.pick(ANSWER_TEXTS), finish_reason=choices.pick((None, None, *SHORT_ENDS)))
    return replace(drawn, turns=(*turns[: choices.number(1, 8)], last), options=replace(drawn.options, output=spec))


def _answering(choices: Choices, turn: PlannedTurn) -> PlannedTurn:
    if choices.pick((False, False, True)):
        return turn
    if choices.pick((False, True)):
        does = ModelDoes.REFUSE_SCHEMA if chance(choices, 20) else turn.does
        return replace(turn, text=choices.pick(ANSWER_TEXTS), calls=(), does=does)
    calls = [replace(draw_call(choices), tool=OUTPUT_TOOL) for _ in range(choices.pick((1, 1, 2)))]
    if chance(choices, 15):  # a person denies what the model asks for beside its answer
        calls.append(PlannedCall(ToolName("write"), call_id="w", person=PersonDoes.DENY))
    return replace(turn, calls=(*turn.calls[: choices.pick((0, 1, 2))], *calls))


_Oddity = Callable[[Choices, Scenario], Scenario]
#: What a small story may have one or two of.
SMALL_ODDITIES: Final[tuple[_Oddity, ...]] = (
    *(_call_ends_oddly, _call_ends_oddly, _person_is_asked, _equal_questions, _call_is_deferred, _arguments_are_odd),
    *(_ids_collide, _equal_calls, _comes_again, _other_tool, _model_does_oddly, _model_fails, _model_fails),
    *(_model_fails, _turn_ends_oddly, _begins_again, _requests_fail, _pauses, _costs, _overflows, _is_huge, _cancels),
    *(_counts_wrongly, _is_cut),
    *(
        _restarts,
        _loses_tools,
        _loses_tools,
        _strangers_speak,
        _is_not_due,
        _comes_too_early,
        _clock_jumps,
        _store_is_slow,
    ),
    *(_session_is_slow, _notices_come, _limits_are_tight, _has_other_options, _has_a_history, _repeats_itself),
    *(
        has_long_results,
        has_long_results,
        _compacts,
        _compacts,
        _searches,
        _searches,
        _commits,
        _asks_back,
        _asks_back,
        _has_output,
        _goes_on,
        _is_changed,
        _wary,
        draw_deferred,
        draw_deferred,
    ),
)
#: What a rich one may have besides, and how often, in percent.
RICH_ODDITIES: Final[tuple[tuple[int, _Oddity], ...]] = (
    (15, draw_compaction),
    (12, has_long_results),
    (12, _has_output),
    (15, _wary),
    (8, _is_changed),
    (5, _equal_questions),
    (4, _pauses),
    (3, _overflows),
    (3, _costs),
    (4, _counts_wrongly),
    (15, _asks_back),
    (5, _goes_on),
    (15, _expanding),
    (12, draw_deferred),
)
