"""The chaos suite on a real runtime: a fast selection. benchmarks/chaos.py runs every case."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from callboard.actors.testing import chaos
from callboard.actors.testing.chaos import Case, Group, Level
from callboard.protocol.errors import UsageError

pytestmark = [
    pytest.mark.fresh_interpreter,
    pytest.mark.skipif(sys.platform != "linux", reason="process isolation is made of Linux's system calls"),
]

IS_DEEP = bool(os.environ.get("CALLBOARD_DEEP"))
#: Other requests that must not notice; benchmarks/chaos.py has 49 as well.
NEIGHBOURS = 49 if IS_DEEP else 9
#: Cases that reach for what they share with others run alone, a second each: some of them stand for all.
ALONE = {
    "escape/kill-parent/process",
    "escape/stop-parent/process",
    "escape/kill-all/process",
    "hang/blocking/task",
    "hang/cancel-all/task",
    "hang/cancel-others/task",
}
#: Each of these takes a process of its own, or several seconds.
HOSTS = {
    "host/ignores-sigchld",
    "host/log-handler",
    "host/fork-after-start",
    "host/no-threads",
    "host/no-descriptors",
    "host/contexts",
    "host/illegal-history",
    "host/policy-raises",
}
HARMS = {"infrastructure/server-killed", "infrastructure/children-killed"}
#: Of those that run here, the ones of each run; the deep stage has all.
DAILY_HOSTS = {"host/log-handler", "host/fork-after-start"}
EVERY = 1 if IS_DEEP else 12


def selected(group: Group) -> list[Case]:
    """What runs here of a group."""
    own = [case for case in chaos.all_cases() if case.group is group]
    if group in (Group.HOST, Group.INFRASTRUCTURE):
        return [case for case in own if case.name in (HOSTS if IS_DEEP else DAILY_HOSTS) | HARMS]
    if group is Group.WIRE:  # those that fall silent wait for the idle timeout, twice
        own = [case for case in own if not any(word in case.name for word in ("stall", "deaf", "endless"))]
    elif group is Group.PROVIDER:
        own = [case for case in own if "never" not in case.name and "endless-nothing" not in case.name]
    else:
        own = [case for case in own if not case.alone or case.name in ALONE]
    return own[::EVERY]


@pytest.mark.repeats
@pytest.mark.parametrize("group", [group for group in Group if group is not Group.ACTOR])
def test_each_case_is_contained_beside_other_requests(group: Group) -> None:
    report = chaos.run(selected(group), neighbours=NEIGHBOURS)
    assert report.results
    assert not report.fell_short, report.text()


def test_nothing_is_left_out_that_is_no_case() -> None:
    names = {case.name for case in chaos.all_cases()}
    assert names >= ALONE | HOSTS | HARMS


def test_the_suite_needs_a_thread_without_a_loop() -> None:
    async def runs() -> None:
        chaos.run("die/exception/task")

    with pytest.raises(UsageError, match="runs an event loop of its own"):
        asyncio.run(runs())


#: Each message once: the actor crashes on it, or twice or three times in a row.
SIMULATED = [case for case in chaos.all_cases() if case.name.endswith("/simulated")]
if not IS_DEEP:
    SIMULATED = [case for place, case in enumerate(SIMULATED) if place // 3 % 3 == place % 3]
#: Of those below, messages for which a mailbox must be full, or a model call overdue: no conversation here comes to it.
RARE = {"actor/LlmManager/TellAgain/3/real", "actor/LlmManager/CallsOverdue/3/real"}
REAL = chaos.chosen(
    ["actor/LlmManager/*/3/real", "actor/ToolDispatcher/D*/3/real"]
    if IS_DEEP
    else [
        "actor/LlmManager/AttemptEnded/3/real",
        "actor/ToolDispatcher/DispatchCall/3/real",
    ]
)


@pytest.mark.repeats
def test_every_actor_crashes_on_every_message_one_to_three_times_in_a_row_and_no_rule_is_broken() -> None:
    report = chaos.run(SIMULATED, neighbours=19)
    assert not report.fell_short, report.text()
    assert report.counts[chaos.Status.HELD] >= len(SIMULATED) / 3  # the others are of workers, which are simulated too


@pytest.mark.repeats
def test_the_llm_manager_and_the_dispatcher_crash_for_real_three_times_in_a_row() -> None:
    report = chaos.run(REAL, neighbours=NEIGHBOURS)
    assert not report.fell_short, report.text()
    assert {each.case.name for each in report.results if each.status is chaos.Status.SKIPPED} <= RARE


@pytest.mark.repeats
def test_the_editor_crashes_for_real_three_times_in_a_row() -> None:
    report = chaos.run("actor/Editor/*/3/real" if IS_DEEP else "actor/Editor/Stage/3/real", neighbours=9)
    assert not report.fell_short, report.text()
    assert report.counts[chaos.Status.HELD] == len(report.results)


def test_the_levels_are_all_there() -> None:
    levels = {case.level for group in Group for case in selected(group)}
    assert levels >= {Level.PROCESS, Level.TASK, Level.THREAD, Level.PROVIDER, Level.HOST}
    assert sum(len(selected(group)) for group in Group if group is not Group.ACTOR) >= 150 // EVERY
