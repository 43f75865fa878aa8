"""The one generator of scenarios. What it chooses from is given: a seed, or Hypothesis.

A seed is all that one must write down to see a scenario again, as long as the generator is the same: `VERSION` says
which one it is. Choices are ordered from the plain to the odd, so that Hypothesis shrinks towards the plain.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace

from callboard.protocol.compaction import READ_TOOL, Compacted, Compaction
from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Message,
    Replay,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    split_atoms,
)
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.masking import MARK
from callboard.protocol.model import FinishReason, Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.options import RequestOptions, ToolFallback, ToolOffer
from callboard.protocol.output import OUTPUT_TOOL, OutputMode, OutputSpec
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.testing.scenario import (
    ASKERS_TOOLS,
    STANDARD_TOOLS,
    ModelDoes,
    OutsideDoes,
    PersonDoes,
    PlannedCall,
    PlannedTurn,
    Scenario,
    Store,
    ToolDoes,
    offer,
)
from callboard.protocol.tools import Effect

#: Raise it whenever the same seed gives another scenario: an old seed is then refused instead of telling another story.
VERSION: Final = 8

MAX_TURNS: Final = 12
MAX_PARALLEL_CALLS: Final = 8
#: Few ids and arguments, so that they collide; "" and '{"x":' are what sloppy servers send.
CALL_IDS: Final = ("a", "b", "c", "d", "a_2", "")
#: With a mask in place of a key, written as it is and as an escape.
MASKED_ARGUMENTS: Final = (f'{{"x":"{MARK}**{MARK}"}}', '{"x":"a\\u2327"}')
GOOD_ARGUMENTS: Final = ('{"x":1}', "{}", '{ "x": 1 }', '{"x":2}', '{"x":3}', '{"x":4}')
BAD_ARGUMENTS: Final = ('{"x":', "[1]", "")
#: Right answers and wrong ones (outside.check_answer), and one that its check cannot bear.
ANSWER_TEXTS: Final = ('{"x":1}', '{"x":3}', '{"x":2}', '{"x":4}', "no JSON", '{"x":999}')
#: Ends of a text after which it may not be all of the answer.
SHORT_ENDS: Final = (FinishReason.LENGTH, FinishReason.REFUSAL, FinishReason.OTHER)
#: Most calls are of tools that simply run; "nowhere" is not on offer.
_TOOLS: Final = tuple(
    ToolName(name) for name in ("look", "look", "again", "write", "quick", "patient", "deploy", "never", "nowhere")
)
#: Those of the standard tools that search, where a scenario has such.
_SEARCH: Final = (ToolName("look"), ToolName("patient"))
SEARCH_ARGUMENTS: Final = (
    '{"queries":["a"]}',
    "{}",
    '{"queries":["a","b"]}',
    '{"queries":"a"}',
    '{"queries":[" ","a",3]}',
)
_ASKED_AGAIN: Final = (ModelDoes.CUT, ModelDoes.LOST, ModelDoes.REFUSE_TOOLS, ModelDoes.OVERFLOW)

_Item = TypeVar("_Item")


#: What a person puts in place of a call's arguments; no model of a scenario writes it.
CHANGED_ARGUMENTS: Final = '{"by":"a person"}'


class Choices(Protocol):
    """Where a generator's decisions come from."""

    def pick(self, options: Sequence[_Item]) -> _Item: ...
    def number(self, low: int, high: int) -> int: ...
    def text(self) -> str: ...


class SeededChoices:
    """Decisions from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, options: Sequence[_Item]) -> _Item:
        """One of them, all equally likely."""
        return self._random.choice(options)

    def number(self, low: int, high: int) -> int:
        """An integer between these two, both included."""
        return self._random.randint(low, high)

    def text(self) -> str:
        """A short text."""
        return self._random.choice(("hello", "what is this?", "", "ünïcödé ✓"))


def scenario(seed: int) -> Scenario:
    """The scenario of this seed."""
    return draw_scenario(SeededChoices(seed))


def draw_scenario(
    choices: Choices, *, max_turns: int = MAX_TURNS, max_calls: int = MAX_PARALLEL_CALLS, restarts: bool = True
) -> Scenario:
    """A whole request: its history, options and tools, what model, tools and people do, what is lost."""
    drawn = Scenario(
        turns=_draw_turns(choices, max_turns, max_calls),
        history=draw_history(choices, 2) if _chance(choices, 35) else (),
        options=draw_options(choices),
        tools=draw_tools(choices),
        cancel_at=_seconds(choices, 40) if _chance(choices, 15) else None,
        restart_at=_moments(choices, 25) if restarts else (),
        tools_lost_at=_burst(choices) if _chance(choices, 8) else _moments(choices, 25),
        foreign_at=_moments(choices, 20),
        strays=_draw_strays(choices) if _chance(choices, 40) else (),
        jumps=((_seconds(choices, 20), float(choices.pick((1, 30, 700, 3_600)))),) if _chance(choices, 6) else (),
        store=draw_store(choices) if restarts and _chance(choices, 15) else Store(),
        latency_seconds=choices.pick((0.0, 0.0, 0.0, 0.5)),
    )
    drawn = replace(drawn, options=draw_tool_options(choices, drawn.options))
    drawn = draw_compaction(choices, drawn) if _chance(choices, 15) else drawn
    drawn = _with_output(choices, drawn) if _chance(choices, 12) else drawn
    drawn = _wary(choices, drawn) if _chance(choices, 15) else drawn
    drawn = _with_changes(drawn) if _chance(choices, 8) else drawn
    drawn = replace(drawn, notices_at=_moments(choices, 6))
    drawn = _with_askers_tools(choices, drawn) if _chance(choices, 15) else drawn
    drawn = _going_on(choices, drawn) if drawn.options.compaction is None and _chance(choices, 5) else drawn
    return _expanding(choices, drawn) if _chance(choices, 15) else drawn


def _expanding(choices: Choices, drawn: Scenario) -> Scenario:
    """Some tools search, and the model is asked for further words before the first search."""
    names = choices.pick((_SEARCH, _SEARCH[:1], _SEARCH[1:]))
    by = {name: "queries" for name in names}
    tools = tuple(
        replace(each, contract=replace(each.contract, searches_by=by.get(each.definition.name, "")))
        for each in drawn.tools
    )
    turns = (
        replace(turn, calls=tuple(_searching(choices, call) for call in turn.calls)) if _chance(choices, 60) else turn
        for turn in drawn.turns
    )
    plain = PlannedTurn(choices.pick(("find\nseek\n\nhunt", "- one", "x" * 300)), seconds=_seconds(choices, 4))
    odd = draw_turn(choices, 2)
    does = choices.pick((ModelDoes.LOST, ModelDoes.BREAK))
    words = choices.pick((plain, plain, odd, replace(odd, does=does)))
    return replace(
        drawn, turns=tuple(turns), tools=tools, words=(words,), options=replace(drawn.options, expand_search=True)
    )


def _searching(choices: Choices, call: PlannedCall) -> PlannedCall:
    if call.tool not in _SEARCH or call.arguments in BAD_ARGUMENTS:
        return call
    return replace(call, arguments=choices.pick(SEARCH_ARGUMENTS))


def _going_on(choices: Choices, drawn: Scenario) -> Scenario:
    """No question: the model goes on from a turn whose calls the asker has answered."""
    calls = [
        ToolCall(CallId(f"o{number}"), choices.pick(ASKERS_TOOLS).definition.name, choices.pick(GOOD_ARGUMENTS))
        for number in range(choices.number(1, 3))
    ]
    results = [
        ToolMessage(call.call_id, call.name, choices.pick(("nothing", "x" * 1_500)), is_error=_chance(choices, 20))
        for call in calls
    ]
    notes = [SystemMessage("A note after the results.")] if _chance(choices, 20) else []
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
        return replace(drawn, tools_lost_at=(2.5, 5.0, 8.0))
    if befalls == "cancelled":
        return replace(drawn, cancel_at=choices.pick((2.5, 4.0, 6.0, 9.0)))
    if befalls == "late":
        return replace(drawn, options=replace(drawn.options, timeout_seconds=choices.pick((4.0, 6.0, 12.0))))
    return drawn


def ask_back(choices: Choices, turn: PlannedTurn) -> PlannedTurn:
    """Some of its calls are the asker's; the others take long, or never end, so that much can happen meanwhile."""
    tool, is_alone = choices.pick(ASKERS_TOOLS).definition.name, _chance(choices, 20)
    planned, calls = turn.calls, []
    does = choices.pick((None, None, None, ToolDoes.FAIL, ToolDoes.FAIL, ToolDoes.STOPPED, ToolDoes.VANISH))
    if len(planned) == 1 and not is_alone:
        planned = (*planned, replace(draw_call(choices), tool=choices.pick(_TOOLS[:7]), call_id="z"))
    for place, call in enumerate(planned):
        if call.tool != OUTPUT_TOOL and (is_alone or place == 0 or choices.pick((False, False, True))):
            calls.append(replace(call, tool=tool))
        else:
            person, took = choices.pick((call.person, PersonDoes.DENY)), choices.pick((call.seconds, 4.0))
            calls.append(replace(call, does=does or call.does, person=person, seconds=took))
    return replace(turn, calls=tuple(choices.pick((calls, calls[::-1]))))


def _wary(choices: Choices, drawn: Scenario) -> Scenario:
    """Text from outside counts: what does more than read is asked about behind it. Some tools are trusted, or all."""
    trusted = choices.pick(((), _TOOLS, _TOOLS[:1]))
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
    turns = [_answering(choices, turn) for turn in drawn.turns]
    last = PlannedTurn(choices.pick(ANSWER_TEXTS), finish_reason=choices.pick((None, None, *SHORT_ENDS)))
    return replace(drawn, turns=(*turns[: choices.number(1, 8)], last), options=replace(drawn.options, output=spec))


def _answering(choices: Choices, turn: PlannedTurn) -> PlannedTurn:
    if choices.pick((False, False, True)):
        return turn
    if choices.pick((False, True)):
        does = ModelDoes.REFUSE_SCHEMA if _chance(choices, 20) else turn.does
        return replace(turn, text=choices.pick(ANSWER_TEXTS), calls=(), does=does)
    calls = [replace(draw_call(choices), tool=OUTPUT_TOOL) for _ in range(choices.pick((1, 1, 2)))]
    if _chance(choices, 15):  # a person denies what the model asks for beside its answer
        calls.append(PlannedCall(ToolName("write"), call_id="w", person=PersonDoes.DENY))
    return replace(turn, calls=(*turn.calls[: choices.pick((0, 1, 2))], *calls))


def draw_tool_options(choices: Choices, options: RequestOptions) -> RequestOptions:
    """What the instructions say of tools, and whether the model is known to take none."""
    return replace(options, tool_prompt=choices.pick(("", "", "look first")), takes_tools=not _chance(choices, 5))


def draw_tools(choices: Choices) -> tuple[ToolOffer, ...]:
    """The standard tools, mostly; sometimes some are missing, or none is offered."""
    return choices.pick((STANDARD_TOOLS,) * 20 + (STANDARD_TOOLS[:4], ()))


def draw_compaction(choices: Choices, drawn: Scenario) -> Scenario:
    """The same with a longer history that is compacted, sometimes for the second time, and a tool that reads it."""
    history = draw_history(choices, 9)
    compaction = Compaction(
        clear_at=choices.pick((0.4, 0.4, 0.1, None)),
        keep_results=choices.pick((1, 0, 3)),
        summarise_at=choices.pick((0.5, 0.5, 0.3, 0.9, None)),
        keep=choices.pick((0.15, 0.1)),
        summary=choices.pick((0.05, 0.02)),
    )
    options = replace(drawn.options, context_tokens=choices.number(200, 2_000), compaction=compaction)
    return replace(
        drawn,
        summaries=tuple(_draw_summary(choices) for _ in range(choices.number(0, 3))),
        history=history,
        compacted=_draw_compacted(choices, history) if _chance(choices, 40) else Compacted(),
        options=options,
        tools=(*drawn.tools, _READ_TOOL) if drawn.tools and _chance(choices, 70) else drawn.tools,
    )


_READ_TOOL: Final = offer(READ_TOOL, effect=Effect.REPEAT)


def _draw_summary(choices: Choices) -> PlannedTurn:
    """Mostly one that can be used."""
    plain = PlannedTurn(choices.pick(("This was said before.", "so much " * 200, "kurz")), seconds=_seconds(choices, 4))
    odd = draw_turn(choices, 2)
    return choices.pick((plain, plain, odd, replace(odd, calls=()), PlannedTurn()))


def _draw_compacted(choices: Choices, history: tuple[Message, ...]) -> Compacted:
    leading = next((at for at, message in enumerate(history) if not isinstance(message, SystemMessage)), len(history))
    ends, end = [leading], leading
    for atom in split_atoms(history[leading:]):
        ends.append(end := end + len(atom))
    left_out = choices.pick(ends)
    summarised = choices.pick([end for end in ends if end <= left_out]) if _chance(choices, 70) else 0
    tried = choices.pick((0, 0, len(history)))
    return Compacted(left_out, "an older summary" if summarised else "", summarised, choices.pick(ends), tried)


def _draw_strays(choices: Choices) -> tuple[tuple[float, int], ...]:
    return tuple((_seconds(choices, 40), choices.number(0, 30)) for _ in range(choices.number(1, 8)))


def draw_store(choices: Choices) -> Store:
    """A slow journal, or one that is full for a while."""
    full_from = _seconds(choices, 15)
    return Store(choices.pick((0.0, 0.25, 2.0)), full_from, full_from + choices.pick((0.0, 3.0, 30.0)))


# Histories.


def draw_history(choices: Choices, max_exchanges: int) -> tuple[Message, ...]:
    """A legal conversation: sometimes begun by a system message, with old tool calls and notes."""
    messages: list[Message] = [SystemMessage("Answer in English.")] if _chance(choices, 40) else []
    for index in range(choices.number(0, max_exchanges)):
        messages += _exchange(choices, index)
    return tuple(messages)


def _exchange(choices: Choices, index: int) -> list[Message]:
    parts: list[AssistantPart] = [Text(choices.text() or "x")]
    if _chance(choices, 30):
        parts.insert(0, Thinking(choices.text(), _replay(choices)))
    calls = [
        ToolCall(CallId(f"h{index}{number}"), choices.pick(_TOOLS[:3]), choices.pick(GOOD_ARGUMENTS))
        for number in range(choices.number(0, 3))
    ]
    results = [
        ToolMessage(call.call_id, call.name, choices.pick((choices.text(), "x" * 1_500)), is_error=_chance(choices, 20))
        for call in calls
    ]
    notes = [SystemMessage("A note after the results.")] if results and _chance(choices, 20) else []
    answer = [AssistantMessage((Text("So it is."),))] if results else []
    return [UserMessage.of(choices.text()), AssistantMessage((*parts, *calls)), *results, *notes, *answer]


def _replay(choices: Choices) -> Replay | None:
    return Replay("sim", {"signature": choices.text()}) if _chance(choices, 60) else None


# What model, tools and people will do.


def _draw_turns(choices: Choices, max_turns: int, max_calls: int) -> tuple[PlannedTurn, ...]:
    """Turns with calls mostly, and sometimes a last one whose end is odd."""
    turns = [draw_turn(choices, max_calls) for _ in range(choices.number(min(4, max_turns), max_turns))]
    if _chance(choices, 15):
        turns = _draw_stubborn(choices, turns[:3], max_turns, max_calls)
    if _chance(choices, 35):
        text, reason = choices.pick(("so far", "")), choices.pick(list(FinishReason))
        turns.append(PlannedTurn(text, (), reason, thinking=choices.pick(("", "hm"))))
    return tuple(turns)


def _draw_stubborn(choices: Choices, first: list[PlannedTurn], max_turns: int, max_calls: int) -> list[PlannedTurn]:
    """A model that makes the same call, or a few in turn, again and again: in a loop, or polling."""
    steady, beside = not _chance(choices, 35), choices.pick((0, max_calls - 1))
    tools = choices.pick((*(_TOOLS[:1],) * 4, _TOOLS[6:8], _TOOLS[1:4]))
    cycle = [PlannedCall(tool, call_id="s", steady=steady, person_seconds=0.25) for tool in tools]
    # Plain ones after the first: what is odd about a turn shows in a few, and mostly ends the request.
    turns = (first + [PlannedTurn(calls=turn.calls) for turn in first] * max_turns)[:max_turns]
    # Beside them calls that bring no news after their first results.
    others = [tuple(replace(call, steady=steady) for call in turn.calls[:beside]) for turn in turns]
    return [replace(turn, calls=(cycle[number % len(cycle)], *others[number])) for number, turn in enumerate(turns)]


def draw_turn(choices: Choices, max_calls: int = MAX_PARALLEL_CALLS) -> PlannedTurn:
    """A turn of the model with its fate: mostly calls that run."""
    sizes = [size for size in (1, 2, 3, 4, 5, 6, max_calls) if size <= max_calls]
    return PlannedTurn(
        text=choices.pick(("", "let me look", "one moment")),
        calls=tuple(draw_call(choices) for _ in range(0 if _chance(choices, 4) else choices.pick(sizes))),
        finish_reason=choices.pick(list(FinishReason)) if _chance(choices, 4) else None,
        does=_model_does(choices),
        seconds=_seconds(choices, 4),
        output_tokens=choices.pick((8, 1, 40)),
        doubled=_chance(choices, 8),
        late=_chance(choices, 8),
        thinking=choices.pick(("", "", "", "hm")),
        restarts=_chance(choices, 5),
        counts_tokens=not _chance(choices, 8),
        charged=_chance(choices, 50),
        extra_cost=choices.pick((0.0, 0.0, 0.0, 0.02)),
        requests=choices.number(1, 4) if _chance(choices, 10) else 1,
    )


def _model_does(choices: Choices) -> ModelDoes:
    if not _chance(choices, 7):
        return ModelDoes.ANSWER
    return choices.pick((*_ASKED_AGAIN * 3, ModelDoes.STALL, ModelDoes.BREAK, ModelDoes.VANISH))


def draw_call(choices: Choices) -> PlannedCall:
    """A call with its fate; most of them complete, most questions are answered with yes."""
    return PlannedCall(
        tool=choices.pick(_TOOLS),
        arguments=choices.pick(BAD_ARGUMENTS) if _chance(choices, 6) else _arguments(choices),
        call_id=choices.pick(CALL_IDS),
        does=choices.pick((*ToolDoes, ToolDoes.DEFER, ToolDoes.DEFER)) if _chance(choices, 28) else ToolDoes.COMPLETE,
        seconds=_seconds(choices, 6),
        waits_seconds=choices.pick((0.125, 0.125, 0.125, 0.125, 1.5, 4.0)),
        person=choices.pick((PersonDoes.GRANT,) * 8 + tuple(PersonDoes)),
        person_seconds=_seconds(choices, 10),
        outside=choices.pick((OutsideDoes.COMPLETE,) * 4 + tuple(OutsideDoes)),
        outside_seconds=choices.pick((1.0, 0.25, 10.0, 7_200.0)),
        open_seconds=choices.pick((86_400.0, 60.0, 5.0)),
        doubled=_chance(choices, 12),
        late=_chance(choices, 12),
        claimed_complete=_chance(choices, 8),
        unfinished=_chance(choices, 3),
    )


def _arguments(choices: Choices) -> str:
    """Mostly different from call to call: the same ones in a row end a request as a loop."""
    if _chance(choices, 25):
        return choices.pick(GOOD_ARGUMENTS)
    number = choices.number(0, 999)
    return MASKED_ARGUMENTS[number % 2] if number >= 980 else f'{{"x":{number}}}'


# Options: mild mostly, so that requests live long; tight ones one at a time.


def draw_options(choices: Choices) -> RequestOptions:
    """Options of a request: mostly generous, sometimes any mixture of tight limits."""
    tight = _chance(choices, 30)
    options = RequestOptions(
        "sim/model",
        system_prompt=choices.pick(("", "be brief")),
        timeout_seconds=choices.pick((1_800.0, 120.0, 20.0, 6.0)) if tight else 1_800.0,
        approval_timeout_seconds=choices.pick((86_400.0, 600.0, 5.0)),
        max_steps=choices.pick((32, 32, 3, 1)) if tight else 32,
        token_budget=choices.number(10, 6_000) if tight and _chance(choices, 40) else None,
        cost_budget=choices.pick((1.0, 0.1, 0.05, 0.01)) if tight and _chance(choices, 50) else None,
        input_price=choices.pick((None, 1e-5)),
        output_price=choices.pick((None, 1e-4)),
        context_tokens=choices.number(50, 1_500) if _chance(choices, 25) else None,
        sampling=Sampling(temperature=0.5, max_output_tokens=choices.pick((None, 100)), stop=("END",)),
        tool_choice=_tool_choice(choices),
        parallel_tool_calls=choices.pick((None, None, True)),
        service_tier="flex",
        provider_options=(ExtraFields({"knob": 1}),),
        tool_fallback=choices.pick(list(ToolFallback)),
        repeated_call_limit=choices.pick((3, 3, 2, 1, 0)) if _chance(choices, 40) else 3,
        max_attempts=choices.pick((4, 3, 2, 2, 2, 1)),
    )
    if options.input_price is None:  # by what was drawn, or all seeds would tell other stories from here on
        options = replace(options, continue_cut_answers=2 if options.system_prompt else 1)
    # A cost budget without prices is refused.
    return options if options.cost_budget is None else replace(options, input_price=1e-5, output_price=1e-4)


def _tool_choice(choices: Choices) -> ToolChoice:
    others = (ToolChoice(ToolChoiceMode.REQUIRED), ToolChoice(ToolChoiceMode.NAMED, _TOOLS[0]))
    return choices.pick((*(ToolChoice(),) * 6, *others, ToolChoice(ToolChoiceMode.NONE)))


def _chance(choices: Choices, percent: int) -> bool:
    return choices.number(1, 100) > 100 - percent


def _seconds(choices: Choices, longest: int) -> float:
    """Virtual durations in quarters: equal times are likely, and so are both sides of a deadline."""
    return choices.number(1, longest * 4) / 4


def _burst(choices: Choices) -> tuple[float, ...]:
    """Several times in a row, nearer to each other than a call needs to begin."""
    first = _seconds(choices, 15)
    return tuple(first + number / 32 for number in range(choices.number(2, 4)))


def _moments(choices: Choices, percent: int) -> tuple[float, ...]:
    return tuple(_seconds(choices, 40) for _ in range(3) if _chance(choices, percent))
