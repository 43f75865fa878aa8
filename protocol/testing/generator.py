"""The one generator of scenarios. What it chooses from is given: a seed, or Hypothesis.

A seed is all that one must write down to see a scenario again, as long as the generator is the same: `VERSION` says
which one it is. Choices are ordered from the plain to the odd, so that Hypothesis shrinks towards the plain.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from callboard.protocol.options import RequestOptions
from callboard.protocol.testing.drawing import (
    MAX_PARALLEL_CALLS,
    MAX_TURNS,
    SMALL_TOOLS,
    Choices,
    SeededChoices,
    burst,
    chance,
    draw_history,
    draw_options,
    draw_store,
    draw_strays,
    draw_tool_options,
    draw_tools,
    draw_turns,
    quarters,
    up_to_three,
)
from callboard.protocol.testing.oddities import RICH_ODDITIES, SMALL_ODDITIES
from callboard.protocol.testing.outside import FOREIGN_KINDS
from callboard.protocol.testing.scenario import (
    STANDARD_TOOLS,
    PlannedCall,
    PlannedTurn,
    Scenario,
    Store,
)

#: Raise it whenever the same seed gives another scenario: an old seed is then refused instead of telling another story.
VERSION: Final = 9


def scenario(seed: int) -> Scenario:
    """The scenario of this seed. Those of even seeds are small, with one or two oddities; the others hold much."""
    choices = SeededChoices(seed)
    return draw_scenario(choices) if seed % 2 else draw_small_scenario(choices)


def draw_scenario(
    choices: Choices, *, max_turns: int = MAX_TURNS, max_calls: int = MAX_PARALLEL_CALLS, restarts: bool = True
) -> Scenario:
    """A whole request: its history, options and tools, what model, tools and people do, what is lost."""
    turns = draw_turns(choices, max_turns, max_calls)
    drawn = Scenario(
        turns=turns,
        history=draw_history(choices, 2) if chance(choices, 35) else (),
        options=draw_options(choices),
        tools=draw_tools(choices),
        cancel_at=quarters(choices, 40) if chance(choices, 15) else None,
        restart_at=up_to_three(choices, 25) if restarts else (),
        tools_lost_at=burst(choices, turns) if chance(choices, 8) else up_to_three(choices, 25),
        foreign=tuple((at, choices.number(0, 2 * FOREIGN_KINDS)) for at in up_to_three(choices, 20)),
        strays=draw_strays(choices, 40) if chance(choices, 40) else (),
        jumps=((quarters(choices, 20), float(choices.pick((1, 30, 700, 3_600)))),) if chance(choices, 6) else (),
        store=draw_store(choices) if restarts and chance(choices, 15) else Store(),
        latency_seconds=choices.pick((0.0, 0.0, 0.0, 0.5)),
        notices_at=up_to_three(choices, 6),
    )
    drawn = replace(drawn, options=draw_tool_options(choices, drawn.options))
    for percent, change in RICH_ODDITIES:
        drawn = change(choices, drawn) if chance(choices, percent) else drawn
    return drawn if restarts else replace(drawn, restart_at=(), store=Store())


def draw_small_scenario(choices: Choices) -> Scenario:
    """A short request in which one or two things are odd: most faults show in such a one, and it is played quickly."""
    price = choices.pick((None, 1e-5))
    drawn = Scenario(
        turns=tuple(_plain_turn(choices, number) for number in range(choices.pick((1, 2, 2, 3)))),
        options=RequestOptions("sim/model", input_price=price, output_price=price and 1e-4),
        tools=STANDARD_TOOLS,
    )
    for _ in range(choices.pick((1, 2, 2))):
        drawn = choices.pick(SMALL_ODDITIES)(choices, drawn)
    return drawn


def _plain_turn(choices: Choices, number: int) -> PlannedTurn:
    return PlannedTurn(
        choices.pick(("", "let me look")),
        tuple(_plain_call(choices, f"c{number}{place}") for place in range(choices.pick((1, 1, 2)))),
    )


def _plain_call(choices: Choices, call_id: str) -> PlannedCall:
    tool = choices.pick(SMALL_TOOLS)
    return PlannedCall(tool, f'{{"x":{choices.number(0, 99)}}}', call_id, seconds=choices.pick((1.0, 0.25, 2.0)))
