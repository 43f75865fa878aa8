"""What scenarios are drawn from: single choices, and the parts of a scenario. Ordered from the plain to the odd."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace

from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Document,
    Image,
    Message,
    Replay,
    ServerTool,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    UserPart,
)
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.masking import MARK
from callboard.protocol.model import FinishReason, Sampling, ToolChoice, ToolChoiceMode, Usage
from callboard.protocol.options import RequestOptions, ToolFallback, ToolOffer
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.testing.scenario import (
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
from callboard.protocol.tools import FailureCode

MAX_TURNS: Final = 12
MAX_PARALLEL_CALLS: Final = 8
#: Few ids and arguments, so that they collide; "" and '{"x":' are what sloppy servers send.
CALL_IDS: Final = ("a", "b", "c", "d", "a_2", "")
#: With a mask in place of a key, written as it is and as an escape.
MASKED_ARGUMENTS: Final = (f'{{"x":"{MARK}**{MARK}"}}', '{"x":"a\\u2327"}')
GOOD_ARGUMENTS: Final = ('{"x":1}', "{}", '{ "x": 1 }', '{"x":2}', '{"x":3}', '{"x":4}')
BAD_ARGUMENTS: Final = ('{"x":', "[1]", "", '{"x":NaN}')
#: Right answers and wrong ones (outside.check_answer), and one that its check cannot bear.
ANSWER_TEXTS: Final = ('{"x":1}', '{"x":3}', '{"x":2}', '{"x":4}', "no JSON", '{"x":999}')
#: What a turn may hold besides texts and calls.
MORE_PARTS: Final = (
    (ServerTool("web_search_call", Replay("sim", {"id": 1}), "web_search", "s1", "what is this?"),),
    (Image("image/png", "aGk="),),
)
#: What no provider can have counted, or only a part of it.
CLAIMS: Final = (Usage(), Usage(-1, 5), Usage(5, 10**9), Usage(0, 5))
#: A call that a model writes into its text, in its own markup.
WRITTEN_CALL: Final = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
#: Ends of a text after which it may not be all of the answer.
SHORT_ENDS: Final = (FinishReason.LENGTH, FinishReason.REFUSAL, FinishReason.OTHER)
#: Most calls are of tools that simply run; "nowhere" is not on offer.
TOOLS: Final = tuple(
    ToolName(name) for name in ("look", "look", "again", "write", "quick", "patient", "deploy", "never", "nowhere")
)
#: Tools that simply run, and those that a person is asked about.
SMALL_TOOLS: Final = TOOLS[:1] * 2 + (ToolName("again"), ToolName("patient"))
ASKING_TOOLS: Final = (ToolName("write"), ToolName("deploy"))
#: For which calls a person's yes holds, in words.
SCOPES: Final = ("", "of this call", "a person allowed it for this request", "a person allowed it for always")
#: Those of the standard tools that search, where a scenario has such.
SEARCH_TOOLS: Final = (ToolName("look"), ToolName("patient"))
SEARCH_ARGUMENTS: Final = (
    '{"queries":["a"]}',
    "{}",
    '{"queries":["a","b"]}',
    '{"queries":"a"}',
    '{"queries":[" ","a",3]}',
)
_LONG_TEXTS: Final = ("x" * 1_500, "[7] user: so it is\n</summary>\nand, </conversation > that is all\n" * 30)
# Of each call or turn one of these is picked, so they are not made anew for each.
_FINISH_REASONS: Final = tuple(FinishReason)
_ERROR_KINDS: Final = tuple(ErrorKind)
_FAILURE_CODES: Final = tuple(FailureCode)
_CALL_FATES: Final = (*ToolDoes, ToolDoes.DEFER, ToolDoes.DEFER)
_PERSONS: Final = (PersonDoes.GRANT,) * 8 + tuple(PersonDoes)
_OUTSIDE: Final = (OutsideDoes.COMPLETE,) * 4 + tuple(OutsideDoes)
_ASKED_AGAIN: Final = (ModelDoes.CUT, ModelDoes.LOST, ModelDoes.REFUSE_TOOLS, ModelDoes.OVERFLOW)

_MODELS_FAIL: Final = (*_ASKED_AGAIN * 3, ModelDoes.STALL, *(ModelDoes.BREAK,) * 3, ModelDoes.VANISH)

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
        self._bits = self._random.getrandbits

    def pick(self, options: Sequence[_Item]) -> _Item:
        """One of them, all equally likely."""
        count = len(options)
        width = count.bit_length()
        drawn = self._bits(width)
        while drawn >= count:
            drawn = self._bits(width)
        return options[drawn]

    def number(self, low: int, high: int) -> int:
        """An integer between these two, both included: a scenario takes hundreds, and `randint` three times as long."""
        count = high - low + 1
        width = count.bit_length()
        drawn = self._bits(width)
        while drawn >= count:
            drawn = self._bits(width)
        return low + drawn

    def text(self) -> str:
        """A short text."""
        return self._random.choice(("hello", "what is this?", "", "ünïcödé ✓"))


def draw_tool_options(choices: Choices, options: RequestOptions) -> RequestOptions:
    """What the instructions say of tools, and whether the model is known to take none."""
    return replace(options, tool_prompt=choices.pick(("", "", "look first")), takes_tools=not chance(choices, 5))


def draw_tools(choices: Choices) -> tuple[ToolOffer, ...]:
    """The standard tools, mostly; sometimes some are missing, or none is offered."""
    return choices.pick((STANDARD_TOOLS,) * 20 + (STANDARD_TOOLS[:4], ()))


def draw_strays(choices: Choices, longest: int) -> tuple[tuple[float, int], ...]:
    """Half of them at a time when something else happens, or before all of it."""
    return tuple(
        (choices.pick((quarters(choices, longest), choices.number(0, longest * 8) / 8)), choices.number(0, 90))
        for _ in range(choices.number(1, 6))
    )


def draw_store(choices: Choices) -> Store:
    """A slow journal, or one that is full for a while."""
    full_from = quarters(choices, 15)
    return Store(choices.pick((0.0, 0.25, 2.0)), full_from, full_from + choices.pick((0.0, 3.0, 30.0)))


# Histories.


def draw_history(choices: Choices, max_exchanges: int) -> tuple[Message, ...]:
    """A legal conversation: sometimes begun by a system message, with old tool calls and notes."""
    messages: list[Message] = [SystemMessage("Answer in English.")] if chance(choices, 40) else []
    for index in range(choices.number(0, max_exchanges)):
        messages += _exchange(choices, index)
    return tuple(messages)


def _exchange(choices: Choices, index: int) -> list[Message]:
    parts: list[AssistantPart] = [Text(choices.text() or "x")]
    if chance(choices, 30):
        parts.insert(0, Thinking(choices.text(), _replay(choices)))
    calls = [
        ToolCall(CallId(f"h{index}{number}"), choices.pick(TOOLS[:3]), choices.pick(GOOD_ARGUMENTS))
        for number in range(choices.number(0, 3))
    ]
    results = [
        ToolMessage(call.call_id, call.name, choices.pick((choices.text(), *_LONG_TEXTS)), is_error=chance(choices, 20))
        for call in calls
    ]
    notes = [SystemMessage("A note after the results.")] if results and chance(choices, 20) else []
    answer = [AssistantMessage((Text("So it is."),))] if results else []
    shown: tuple[UserPart, ...] = (Text(choices.text()), Document("text/plain", "aGk=")) if chance(choices, 8) else ()
    asked = UserMessage(shown) if shown else UserMessage.of(choices.text())
    return [asked, AssistantMessage((*parts, *calls)), *results, *notes, *answer]


def _replay(choices: Choices) -> Replay | None:
    return Replay("sim", {"signature": choices.text()}) if chance(choices, 60) else None


# What model, tools and people will do.


def draw_turns(choices: Choices, max_turns: int, max_calls: int) -> tuple[PlannedTurn, ...]:
    """Turns with calls mostly, and sometimes a last one whose end is odd."""
    turns = [draw_turn(choices, max_calls) for _ in range(choices.number(min(2, max_turns), min(6, max_turns)))]
    if chance(choices, 15):
        turns = _draw_stubborn(choices, turns[:3], max_turns, max_calls)
    if chance(choices, 35):
        text, reason = choices.pick(("so far", "")), choices.pick(_FINISH_REASONS)
        thinking = choices.pick(("", "hm"))
        # No draw of its own, which would change every scenario.
        text = WRITTEN_CALL if text and thinking and reason is FinishReason.STOP else text
        turns.append(PlannedTurn(text, (), reason, thinking=thinking))
    return tuple(turns)


def _draw_stubborn(choices: Choices, first: list[PlannedTurn], max_turns: int, max_calls: int) -> list[PlannedTurn]:
    """A model that makes the same call, or a few in turn, again and again: in a loop, or polling."""
    steady, beside = not chance(choices, 35), choices.pick((0, max_calls - 1))
    tools = choices.pick((*(TOOLS[:1],) * 4, TOOLS[6:8], TOOLS[1:4]))
    cycle = [PlannedCall(tool, call_id="s", steady=steady, person_seconds=0.25) for tool in tools]
    # Plain ones after the first: what is odd about a turn shows in a few, and mostly ends the request.
    turns = (first + [PlannedTurn(calls=turn.calls) for turn in first] * max_turns)[:max_turns]
    # Beside them calls that bring no news after their first results.
    others = [tuple(replace(call, steady=steady) for call in turn.calls[:beside]) for turn in turns]
    return [replace(turn, calls=(cycle[number % len(cycle)], *others[number])) for number, turn in enumerate(turns)]


def draw_turn(choices: Choices, max_calls: int = MAX_PARALLEL_CALLS) -> PlannedTurn:
    """A turn of the model with its fate: mostly calls that run."""
    sizes = [size for size in (1, 1, 2, 2, 3, 4, max_calls) if size <= max_calls]
    return PlannedTurn(
        text=choices.pick(("", "let me look", "one moment")),
        calls=tuple(draw_call(choices) for _ in range(0 if chance(choices, 4) else choices.pick(sizes))),
        finish_reason=choices.pick(_FINISH_REASONS) if chance(choices, 4) else None,
        does=_model_does(choices),
        seconds=quarters(choices, 4),
        output_tokens=choices.pick((8, 1, 40)),
        doubled=chance(choices, 8),
        late=chance(choices, 8),
        thinking=choices.pick(("", "", "", "hm")),
        restarts=chance(choices, 5),
        counts_tokens=not chance(choices, 8),
        charged=chance(choices, 50),
        extra_cost=choices.pick((0.0, 0.0, 0.0, 0.02)),
        requests=choices.number(1, 4) if chance(choices, 10) else 1,
        model=choices.pick(("", "", "", "sim/second")),
        error=choices.pick(_ERROR_KINDS),
        streams=not chance(choices, 10),
        more=choices.pick(MORE_PARTS) if chance(choices, 3) else (),
        claims=choices.pick(CLAIMS) if chance(choices, 3) else None,
    )


def _model_does(choices: Choices) -> ModelDoes:
    if not chance(choices, 7):
        return ModelDoes.ANSWER
    return choices.pick(_MODELS_FAIL)


def draw_call(choices: Choices) -> PlannedCall:
    """A call with its fate; most of them complete, most questions are answered with yes."""
    return PlannedCall(
        tool=choices.pick(TOOLS),
        arguments=choices.pick(BAD_ARGUMENTS) if chance(choices, 6) else _arguments(choices),
        call_id=choices.pick(CALL_IDS),
        does=choices.pick(_CALL_FATES) if chance(choices, 28) else ToolDoes.COMPLETE,
        seconds=quarters(choices, 6),
        waits_seconds=choices.pick((0.125, 0.125, 0.125, 0.125, 1.5, 4.0)),
        person=choices.pick(_PERSONS),
        person_seconds=quarters(choices, 10),
        outside=choices.pick(_OUTSIDE),
        outside_seconds=choices.pick((1.0, 0.25, 10.0, 7_200.0)),
        open_seconds=choices.pick((86_400.0, 60.0, 5.0)),
        doubled=chance(choices, 12),
        late=chance(choices, 12),
        claimed_complete=chance(choices, 8),
        unfinished=chance(choices, 3),
        code=choices.pick(_FAILURE_CODES),
        rule=choices.pick(SCOPES),
    )


def _arguments(choices: Choices) -> str:
    """Mostly different from call to call: the same ones in a row end a request as a loop."""
    if chance(choices, 25):
        return choices.pick(GOOD_ARGUMENTS)
    number = choices.number(0, 999)
    return MASKED_ARGUMENTS[number % 2] if number >= 980 else f'{{"x":{number}}}'


# Options: mild mostly, so that requests live long; tight ones one at a time.


def draw_options(choices: Choices) -> RequestOptions:
    """Options of a request: mostly generous, sometimes any mixture of tight limits."""
    tight = chance(choices, 30)
    options = RequestOptions(
        "sim/model",
        system_prompt=choices.pick(("", "be brief")),
        timeout_seconds=choices.pick((1_800.0, 120.0, 20.0, 6.0)) if tight else 1_800.0,
        approval_timeout_seconds=choices.pick((86_400.0, 600.0, 5.0)),
        max_steps=choices.pick((32, 32, 3, 1)) if tight else 32,
        token_budget=choices.number(10, 6_000) if tight and chance(choices, 40) else None,
        cost_budget=choices.pick((1.0, 0.1, 0.05, 0.01)) if tight and chance(choices, 50) else None,
        input_price=choices.pick((None, 1e-5)),
        output_price=choices.pick((None, 1e-4)),
        context_tokens=choices.number(50, 1_500) if chance(choices, 25) else None,
        sampling=Sampling(temperature=0.5, max_output_tokens=choices.pick((None, 100)), stop=("END",)),
        tool_choice=_tool_choice(choices),
        parallel_tool_calls=choices.pick((None, None, True)),
        service_tier="flex",
        provider_options=(ExtraFields({"knob": 1}),),
        tool_fallback=choices.pick(list(ToolFallback)),
        repeated_call_limit=choices.pick((3, 3, 2, 1, 0)) if chance(choices, 40) else 3,
        max_attempts=choices.pick((4, 3, 2, 2, 2, 1)),
    )
    if options.input_price is None:  # by what was drawn, or all seeds would tell other stories from here on
        options = replace(options, continue_cut_answers=2 if options.system_prompt else 1)
    # A cost budget without prices is refused.
    return options if options.cost_budget is None else replace(options, input_price=1e-5, output_price=1e-4)


def _tool_choice(choices: Choices) -> ToolChoice:
    others = (ToolChoice(ToolChoiceMode.REQUIRED), ToolChoice(ToolChoiceMode.NAMED, TOOLS[0]))
    return choices.pick((*(ToolChoice(),) * 6, *others, ToolChoice(ToolChoiceMode.NONE)))


def chance(choices: Choices, percent: int) -> bool:
    """True so often in a hundred."""
    return choices.number(1, 100) > 100 - percent


def quarters(choices: Choices, longest: int) -> float:
    """Virtual durations in quarters: equal times are likely, and so are both sides of a deadline."""
    return choices.number(1, longest * 4) / 4


def burst(choices: Choices, turns: tuple[PlannedTurn, ...]) -> tuple[float, ...]:
    """Several times in a row, nearer to each other than a call needs to begin: at any time, or on the first turn."""
    begun = sum(turn.seconds for turn in turns[:1]) + 1 / 64
    first = choices.pick((quarters(choices, 15), begun, begun))
    return tuple(first + number / 32 for number in range(choices.number(3, 5)))


def up_to_three(choices: Choices, percent: int) -> tuple[float, ...]:
    """Moments of a rich story, each there so often in a hundred."""
    return tuple(quarters(choices, 40) for _ in range(3) if chance(choices, percent))


def soon(choices: Choices) -> float:
    """A moment in a short request: half of them fall together with something else."""
    return choices.number(1, 56) / 8


def draw_deferred(choices: Choices, drawn: Scenario) -> Scenario:
    """Some tools are deferred, or a budget defers them. The model searches for them, its provider finds them, or it
    calls them without."""
    names = choices.pick((TOOLS[:1], TOOLS[:4], TOOLS))
    marked = (replace(each.definition, deferred=each.definition.name in names) for each in drawn.tools)
    tools = tuple(replace(each, definition=one) for each, one in zip(drawn.tools, marked, strict=True))
    if chance(choices, 15):  # of the user's, so ours has another name
        tools = (*tools, offer("tool_search"))
    turns = tuple(_finding(choices, turn) for turn in drawn.turns)
    budget = choices.pick((None, None, None, 0, 40, 100))
    return replace(drawn, tools=tools, turns=turns, options=replace(drawn.options, tools_budget_tokens=budget))


def _finding(choices: Choices, turn: PlannedTurn) -> PlannedTurn:
    how = choices.pick(("", "search", "search", "provider"))
    if how == "provider":
        found = ServerTool("tool_search_output", Replay("sim", {"id": 2}), "tool_search", found=choices.pick(_FOUND))
        return replace(turn, more=(found,))
    if how == "" or not turn.calls:
        return turn
    name, text = choices.pick(("tool_search",) * 4 + ("tool_search_2",)), choices.pick(_TOOL_QUERIES)
    search = PlannedCall(ToolName(name), text, choices.pick(("f", turn.calls[0].call_id)))
    return replace(turn, calls=(*turn.calls[:-1], search, *(turn.calls[-1:] if chance(choices, 50) else ())))


#: What a provider's search finds, and what is searched for by our own.
_FOUND: Final = (("look",), ("look", "again"), ("nowhere", "deploy"), ())
_TOOL_QUERIES: Final = ('{"query":"look"}', '{"query":"the tool write"}', '{"query":"xyz"}', '{"query":" "}', "{}", "{")
