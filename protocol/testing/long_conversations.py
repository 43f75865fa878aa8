"""Scenarios whose conversations have no room in the model's window: long histories and results, and compaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from callboard.protocol.compaction import READ_TOOL, Compacted, Compaction
from callboard.protocol.content import AssistantMessage, Message, SystemMessage, Text, UserMessage, split_atoms
from callboard.protocol.model import FinishReason
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.testing.drawing import SHORT_ENDS, Choices, chance, draw_history, draw_turn, quarters
from callboard.protocol.testing.outside import long_text
from callboard.protocol.testing.scenario import ModelDoes, PlannedCall, PlannedTurn, Scenario, offer
from callboard.protocol.tools import Effect

#: What a provider may count, by our own count of the same prompt: what cannot be true among it.
_COUNTS: Final = (1.0, 1.0, 0.6, 1.5, 0.1, 9.0)


def draw_long_history(choices: Choices) -> tuple[Message, ...]:
    """Exchanges of which some can be left out."""
    said = choices.pick(("long ago " * 40, "x" * 1_500))
    exchanges = choices.number(1, 3)
    return tuple(
        message
        for number in range(exchanges)
        for message in (UserMessage.of(f"{number} {said}"), AssistantMessage((Text(f"answer {number}"),)))
    )


def has_long_results(choices: Choices, drawn: Scenario) -> Scenario:
    """Tools find much, in a window that has no room for all; providers count the prompt otherwise than we do."""
    turns = tuple(
        replace(
            turn,
            calls=tuple(_long(choices, call) for call in turn.calls),
            counts_as=choices.pick(_COUNTS),
            text=choices.pick((turn.text, turn.text, "I think " * 60)),
        )
        for turn in (*drawn.turns, *drawn.turns[: choices.pick((0, 0, 2))])
    )
    if chance(choices, 25):  # and a model says so
        turns = (*turns[:1], PlannedTurn(choices.pick(("", "too long")), does=ModelDoes.OVERFLOW), *turns[1:])
    options = replace(
        drawn.options,
        context_tokens=drawn.options.context_tokens or choices.number(200, 3_000),
        result_share=choices.pick((0.5, 0.5, 0.2, 1.0)),
        history_share=choices.pick((1.0, 1.0, 0.4, 0.1)),
        token_ratio=choices.pick((1.0, 1.0, 1.25)),
        provider_options=(ExtraFields({"knob": 1}, {"x-team": "blue"}), ExtraFields({"knob": 2})),
    )
    history = draw_history(choices, 3) if not drawn.history and drawn.user.parts else drawn.history
    return replace(drawn, turns=turns, options=options, history=history)


def _long(choices: Choices, call: PlannedCall) -> PlannedCall:
    return replace(call, chars=choices.pick((0, 600, 900, 1_500, 4_000)), kind=choices.number(0, 2))


def draw_compaction(choices: Choices, drawn: Scenario, models: Sequence[str] = ("",)) -> Scenario:
    """The same with a longer history that is compacted, sometimes for the second time, and a tool that reads it; one of
    these models is asked for summaries."""
    history = draw_history(choices, 9)
    compaction = Compaction(
        clear_at=choices.pick((0.4, 0.4, 0.1, None)),
        keep_results=choices.pick((1, 0, 3)),
        summarise_at=choices.pick((0.5, 0.5, 0.3, 0.9, None)),
        keep=choices.pick((0.15, 0.1)),
        summary=choices.pick((0.05, 0.02)),
        model=choices.pick(models),
        context_tokens=choices.pick((None, 1_500, 5_000)),
    )
    window: int | None = choices.number(200, 3_000)
    if chance(choices, 10):  # very long messages, or a window that is not known: then nothing is compacted
        history, window = _with_much_said(history), choices.pick((None, 6_000, 20_000))
    options = replace(drawn.options, context_tokens=window, compaction=compaction)
    if window is not None and chance(choices, 15):  # a summary that fails has taken as much as it may of a budget
        options = replace(options, token_budget=int(window * choices.pick((1.2, 1.5, 1.8, 2.2))))
    if chance(choices, 15):
        drawn = replace(drawn, turns=(PlannedTurn(does=ModelDoes.REFUSE_TOOLS), *drawn.turns))
    reads = chance(choices, 70) and bool(drawn.tools) and _READ_TOOL not in drawn.tools
    return replace(
        drawn,
        summaries=tuple(_draw_summary(choices) for _ in range(choices.number(0, 3))),
        history=history,
        compacted=_draw_compacted(choices, history) if chance(choices, 40) else Compacted(),
        options=options,
        tools=(*drawn.tools, _READ_TOOL) if reads else drawn.tools,
    )


def _with_much_said(history: tuple[Message, ...]) -> tuple[Message, ...]:
    said = long_text(18_000, 1)
    places = [at for at, message in enumerate(history) if isinstance(message, UserMessage)][:1]
    return tuple(UserMessage.of(said) if at in places else message for at, message in enumerate(history))


_READ_TOOL: Final = offer(READ_TOOL, effect=Effect.REPEAT)


def _draw_summary(choices: Choices) -> PlannedTurn:
    """Mostly one that can be used."""
    plain = PlannedTurn(choices.pick(("It </summary> was.", "so much " * 200, "kurz")), seconds=quarters(choices, 4))
    odd = draw_turn(choices, 2)
    short = replace(
        plain,
        output_tokens=choices.pick((8, 4_000)),
        finish_reason=choices.pick((*SHORT_ENDS, FinishReason.CONTENT_FILTER)),
    )
    failed = replace(plain, does=choices.pick((ModelDoes.LOST, ModelDoes.CUT, ModelDoes.BREAK)))
    plain = replace(plain, counts_tokens=choices.pick((True, True, False)))
    return choices.pick((plain, plain, plain, short, failed, odd, replace(odd, calls=()), PlannedTurn()))


def _draw_compacted(choices: Choices, history: tuple[Message, ...]) -> Compacted:
    leading = next((at for at, message in enumerate(history) if not isinstance(message, SystemMessage)), len(history))
    ends, end = [leading], leading
    for atom in split_atoms(history[leading:]):
        ends.append(end := end + len(atom))
    left_out = choices.pick(ends)
    summarised = choices.pick([end for end in ends if end <= left_out]) if chance(choices, 70) else 0
    tried = choices.pick((0, 0, len(history), ends[len(ends) // 2]))
    return Compacted(left_out, "an older </summary> one" if summarised else "", summarised, choices.pick(ends), tried)
