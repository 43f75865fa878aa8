"""A check for whole runtimes, which play a scenario and write down what their session took, gave and carried out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from msgspec.structs import replace

from callboard.protocol.commands import Finish
from callboard.protocol.errors import UsageError
from callboard.protocol.events import CancelRequested, ModelResponded, RequestStarted
from callboard.protocol.testing.driver import drive
from callboard.protocol.testing.generator import scenario as seeded_scenario
from callboard.protocol.testing.invariants import Violation, violations
from callboard.protocol.testing.played import PLAYED, Tally, differences
from callboard.protocol.testing.replay import Token
from callboard.protocol.testing.scenario import Scenario
from callboard.protocol.testing.shrinking import follow, shrink_path
from callboard.protocol.testing.trace import Trace, Verb

Runtime = Callable[[Scenario, int], Trace]
"""Plays a scenario with a seed, whatever it is made of, and writes down what its session took and gave."""

#: Played again, to see that the same seed gives the same trace: one conversation in so many.
_PLAYED_AGAIN_EVERY = 10


def simulate(
    runtime: Runtime = drive, *, conversations: int = 200, first_seed: int = 0, without: Collection[str] = ()
) -> None:
    """Play many scenarios on a runtime; the first broken rule is shrunk and told as a story with a line to replay it.

    Also holds it to determinism (the same scenario and seed give the same trace, byte for byte), and to playing each
    scenario as it is: what came must be what the scenario's model, tools, people and timers said, and what was given
    must be carried out. What many of the scenarios hold and no trace shows was never played, and is told: name in
    `without` what your runtime cannot play, by the names in `played.PLAYED`.

    Raises AssertionError; UsageError for another name in `without`.
    """
    if unknown := set(without) - set(PLAYED):
        raise UsageError(f"without={sorted(unknown)}: give names from {', '.join(map(repr, PLAYED))}")
    tally = Tally()
    for seed in range(first_seed, first_seed + conversations):
        token = Token(seed)
        scenario = seeded_scenario(seed)
        trace, found = _played(runtime, scenario, seed)
        if found or trace is None:
            raise AssertionError(_story(runtime, scenario, token, found))
        tally.add(trace)
        again = seed % _PLAYED_AGAIN_EVERY == first_seed % _PLAYED_AGAIN_EVERY
        if again and runtime(scenario, seed).to_bytes() != trace.to_bytes():
            raise AssertionError(f"seed {seed} gave another trace when played again\n{token.line}")
    if never := [told for name, told in tally.never() if name not in without]:
        raise AssertionError(f"never played: {'; '.join(never)}")


def _played(runtime: Runtime, scenario: Scenario, seed: int) -> tuple[Trace | None, list[Violation]]:
    """The trace and what is wrong with it; whatever the runtime raises is a finding too."""
    try:
        trace = runtime(scenario, seed)
    except Exception as error:  # noqa: BLE001 - whatever the code under test raises is the finding
        return None, [Violation("no exception", f"the runtime raised {type(error).__name__}: {error}")]
    return trace, [*_unseen(trace, scenario), *violations(trace)]


def _unseen(trace: Trace, scenario: Scenario) -> list[Violation]:
    """What makes a trace worthless: it is of another scenario, or empty."""
    if trace.broken:
        return []
    starts = [entry.value for entry in trace.entries if isinstance(entry.value, RequestStarted)]
    applied = [entry for entry in trace.entries if entry.verb is Verb.APPLIED]
    if not starts:
        return [Violation("played", "the trace has no RequestStarted: the scenario was not played")]
    start = starts[0]
    played = (start.history, start.compacted, start.user, replace(start.options, model=""))
    if played != (scenario.history, scenario.compacted, scenario.user, replace(scenario.options, model="")):
        return [Violation("played", "the request was started with another history, user message or options")]
    if {offer.definition.name for offer in start.tools} != {offer.definition.name for offer in scenario.offers}:
        return [Violation("played", "the request was started with other tools")]
    lost = any(entry.verb is Verb.LOST for entry in trace.entries)
    if not applied and not lost:
        return [Violation("played", "the session took no event: nothing was played")]
    return [Violation("played", told) for told in (*_left_out(trace, scenario), *differences(trace))]


def _left_out(trace: Trace, scenario: Scenario) -> Iterator[str]:
    """What the scenario holds and the trace does not show."""
    values = [entry.value for entry in trace.entries]
    finish = next((entry for entry in trace.entries if isinstance(entry.value, Finish)), None)
    left = any(isinstance(value, CancelRequested) for value in values)
    if scenario.cancel_at is not None and not left and (finish is None or finish.at > scenario.cancel_at):
        yield f"the user left at {scenario.cancel_at:g}, and the trace has no CancelRequested"
    planned = {
        (call.tool, call.arguments)
        for turn in (*scenario.turns, *scenario.summaries, *scenario.words)
        for call in turn.calls
    }
    for value in values:
        calls = value.response.tool_calls if isinstance(value, ModelResponded) else ()
        yield from (
            f"the model asked for {call.name}({call.arguments}), which the scenario does not hold"
            for call in calls
            if (call.name, call.arguments) not in planned
        )


def _story(runtime: Runtime, scenario: Scenario, token: Token, found: list[Violation]) -> str:
    rules = {violation.invariant for violation in found}

    def shows(simpler: Scenario) -> bool:
        return bool(rules & {violation.invariant for violation in _played(runtime, simpler, token.seed)[1]})

    path = shrink_path(scenario, shows)
    trace, still = _played(runtime, follow(scenario, path), token.seed)
    told = "\n".join(map(str, still))
    story = trace.story() if trace is not None else f"no trace; the scenario is {follow(scenario, path)!r}"
    return f"{told}\n{story}\n{Token(token.seed, path).line}"


def replay(token: str, runtime: Runtime = drive) -> Trace:
    """Play again what a failure named: `replay("9.17/4.0")`.

    Raises UsageError for a token of another version of the generator, or one that is no token.
    """
    parsed = Token.parse(token)
    return runtime(parsed.scenario, parsed.seed)
