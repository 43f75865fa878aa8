"""The harness on callboard's own Runtime, which keeps the rules, and on the bare loop, which breaks those it must."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator

import pytest
from support.one_fault import CONVERSATIONS
from support.sdk_types import Lazy

from callboard.actors.testing.runtimes.harness import AdapterFailed, Harness, adapter_type
from callboard.protocol.errors import UsageError
from callboard.protocol.testing.observation import What
from callboard.protocol.testing.observed import judge

IS_DEEP = bool(os.environ.get("CALLBOARD_DEEP"))
#: Fixed, so that a red test is the code's doing; the command plays as many as one likes.
SEEDS = range(4 if IS_DEEP else 1)
#: A play takes more than a second: every fourth fault in each run, all of them in the deep stage.
PLAYED = [*CONVERSATIONS][:: 1 if IS_DEEP else 4]
#: What callboard is known to break: a thread cannot be killed, and a decoder takes two calls with one id for one call
#: (docs/wire.md, quirk 5).
KNOWN = {
    "I5 bounded: an async tool that blocks ends at its deadline",
    "I1 terminal once: calls with the same id in a turn are answered",
}


def play(driver: Harness, runtime: str, fault: str) -> dict[str, list[str]]:
    return judge(driver.play_with(adapter_type(runtime), CONVERSATIONS[fault], f"{runtime}-{fault}"))


def kept(verdicts: Iterable[dict[str, list[str]]]) -> bool:
    """Does one of these plays keep all that is not known? A busy machine may be slow once."""
    broken = [{rule for rule, found in verdict.items() if found} - KNOWN for verdict in first_good(verdicts)]
    return broken[-1] == set()


def first_good(verdicts: Iterable[dict[str, list[str]]]) -> Iterator[dict[str, list[str]]]:
    for verdict in verdicts:
        yield verdict
        if not any(found for rule, found in verdict.items() if rule not in KNOWN):
            return


@pytest.mark.repeats
@pytest.mark.parametrize("fault", PLAYED)
def test_callboard_keeps_the_rules_whatever_the_fault(driver: Harness, fault: str) -> None:
    assert kept(play(driver, "callboard", fault) for _ in range(2))


@pytest.mark.repeats
@pytest.mark.parametrize("seed", SEEDS)
def test_callboard_keeps_the_rules_over_seeds(driver: Harness, seed: int) -> None:
    assert kept(judge(driver.play("callboard", seed)) for _ in range(2))


@pytest.mark.runtimes
@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        ("async-raises", {"I10 blast radius: an async tool that raises is one failed result"}),
        ("plain-raises", {"I10 blast radius: a plain tool that raises is one failed result"}),
        ("async-exits", {"I10 blast radius: the conversation beside a tool that exits"}),
        ("plain-exits", {"I10 blast radius: a plain tool that exits is one failed result"}),
        ("async-hangs", {"I5 bounded: an async tool that hangs ends at its deadline"}),
        ("plain-hangs", {"I5 bounded: a plain tool that hangs is one failed result"}),
        ("async-blocks", {"I10 blast radius: the conversation beside a tool that blocks"}),
        (
            "half",
            {
                "I12 no half calls: a half call of a plain tool is one failed result",
                "I2 valid history: arguments are JSON objects",
            },
        ),
        (
            "unknown",
            {
                "I1 terminal once: a call of an unknown tool is one failed result",
                "I2 valid history: the conversation can go on",
            },
        ),
        ("cancel-async", {"I7 cancel: the conversation can go on"}),
    ],
)
def test_the_bare_loop_breaks_what_it_must(driver: Harness, fault: str, broken: set[str]) -> None:
    verdict = play(driver, "bare-loop", fault)
    assert broken <= {rule for rule, found in verdict.items() if found}


@pytest.mark.runtimes
@pytest.mark.parametrize("fault", ["nothing", "denied", "steps", "cut"])
def test_the_bare_loop_keeps_the_rules_where_nothing_goes_wrong(driver: Harness, fault: str) -> None:
    assert kept(play(driver, "bare-loop", fault) for _ in range(2))


@pytest.mark.parametrize(
    ("adapter", "told"),
    [
        ("Broken", "could not be made: ZeroDivisionError: no such server"),
        ("Idle", "ran no tool, and answered: warm-up"),
        ("Raises", "ran no tool, and answered: AttributeError: no attribute 'run'"),
        ("NotClosed", "could not be closed: OSError: still in use"),
    ],
)
def test_an_adapter_that_fails_is_told_in_one_line_with_the_replay(driver: Harness, adapter: str, told: str) -> None:
    with pytest.raises(AdapterFailed) as caught:
        driver.play_with(getattr(Lazy("support.broken_adapters"), adapter), CONVERSATIONS["nothing"], "broken-7")
    replay = "python -m callboard.actors.testing.runtimes --runtime broken --seed 7"
    assert str(caught.value) == f"broken: the adapter {told}; replay: {replay}"


def test_a_process_that_dies_is_replaced(driver: Harness) -> None:
    died = driver.play_with(adapter_type("bare-loop"), CONVERSATIONS["async-exits"], "bare-loop-1")
    assert died.all(What.DIED)
    assert died.ended == "the process died"
    after = driver.play_with(adapter_type("bare-loop"), CONVERSATIONS["nothing"], "bare-loop-2")
    assert after.ended == "the run ended with done"


def test_a_runtime_that_is_not_there_is_told() -> None:
    with pytest.raises(UsageError, match=r"there is no adapter 'crewai'; choose one of callboard, bare-loop, "):
        adapter_type("crewai")


def test_a_missing_extra_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "agents", None)
    monkeypatch.delitem(sys.modules, "callboard.actors.testing.runtimes.openai_agents_runner", raising=False)
    with pytest.raises(UsageError, match=r"openai-agents is not installed \(.*\): it needs the extra 'runtimes'"):
        adapter_type("openai-agents")
