"""Scenarios from a seed alone, without Hypothesis: a hundred thousand of them cost nothing to draw, and a seed is all
that one must write down to see one again.
"""

from __future__ import annotations

import random
from typing import Final, TypeVar

from callboard.protocol.ids import ToolName
from callboard.protocol.model import FinishReason
from callboard.protocol.options import RequestOptions, ToolFallback
from callboard.protocol.testing.scenario import (
    STANDARD_TOOLS,
    ModelDoes,
    PersonDoes,
    PlannedCall,
    PlannedTurn,
    Scenario,
    ToolDoes,
)

MAX_TURNS: Final = 6
MAX_PARALLEL_CALLS: Final = 8
_TOOLS: Final = (*(offer.definition.name for offer in STANDARD_TOOLS), ToolName("look"), ToolName("nowhere"))
_Item = TypeVar("_Item")


def scenario(seed: int) -> Scenario:
    """The scenario of this seed: up to 6 turns of up to 8 parallel calls, every kind of fault."""
    rng = random.Random(seed)
    return Scenario(
        turns=tuple(_turn(rng) for _ in range(rng.randint(1, MAX_TURNS))),
        options=_options(rng),
        tools=STANDARD_TOOLS,
        cancel_at=_seconds(rng, 40) if rng.random() < 0.15 else None,
        restart_at=_moments(rng, 0.3),
        tools_lost_at=_moments(rng, 0.3),
        foreign_at=_moments(rng, 0.3),
        latency_seconds=rng.choice((0.0, 0.0, 0.5)),
    )


def _turn(rng: random.Random) -> PlannedTurn:
    calls = tuple(_call(rng) for _ in range(rng.choice((1, 1, 2, 3, 5, MAX_PARALLEL_CALLS))))
    return PlannedTurn(
        text=rng.choice(("", "let me look")),
        calls=calls,
        finish_reason=_rarely(rng, 0.05, rng.choice(list(FinishReason))),
        does=rng.choice(list(ModelDoes)) if rng.random() < 0.08 else ModelDoes.ANSWER,
        seconds=_seconds(rng, 6),
        output_tokens=rng.choice((1, 8, 40)),
        doubled=rng.random() < 0.1,
        late=rng.random() < 0.1,
    )


def _call(rng: random.Random) -> PlannedCall:
    arguments = f'{{"x":{rng.randrange(100)}}}' if rng.random() < 0.8 else rng.choice(("{}", '{"x":', "[1]", ""))
    return PlannedCall(
        tool=rng.choice(_TOOLS),
        arguments=arguments,
        call_id=rng.choice(("a", "b", "c", "d", "e", "")),
        does=rng.choice(list(ToolDoes)) if rng.random() < 0.4 else ToolDoes.COMPLETE,
        seconds=_seconds(rng, 7),
        person=rng.choice((PersonDoes.GRANT,) * 6 + tuple(PersonDoes)),
        person_seconds=_seconds(rng, 20),
        doubled=rng.random() < 0.2,
        late=rng.random() < 0.2,
        claimed_complete=rng.random() < 0.1,
    )


def _options(rng: random.Random) -> RequestOptions:
    return RequestOptions(
        "sim/model",
        system_prompt=rng.choice(("", "be brief")),
        timeout_seconds=rng.choice((1_800.0, 1_800.0, 120.0, 20.0)),
        max_steps=rng.choice((32, 32, 32, 3, 1)),
        token_budget=_rarely(rng, 0.2, rng.randint(10, 6_000)),
        cost_budget=_rarely(rng, 0.2, rng.choice((0.01, 0.1, 1.0))),
        input_price=_rarely(rng, 0.5, 1e-5),
        output_price=_rarely(rng, 0.5, 1e-4),
        context_tokens=_rarely(rng, 0.3, rng.randint(50, 1_500)),
        tool_fallback=rng.choice(list(ToolFallback)),
        repeated_call_limit=rng.choice((3, 2)),
        max_step_retries=rng.choice((2, 1, 0)),
    )


def _rarely(rng: random.Random, chance: float, value: _Item) -> _Item | None:
    return value if rng.random() < chance else None


def _seconds(rng: random.Random, longest: int) -> float:
    return rng.randint(1, longest * 4) / 4


def _moments(rng: random.Random, chance: float) -> tuple[float, ...]:
    return tuple(_seconds(rng, 30) for _ in range(2) if rng.random() < chance)
