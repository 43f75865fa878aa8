"""Process workers with real processes and real signals: whatever a tool does, one outcome, and nothing left of it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import json
import logging
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec.structs import replace
from pydantic import AfterValidator
from support.conditions import wait_until
from support.patience import timed_out_while_hanging

from callboard.actors.processes.control import UNKNOWN_STATUS, how_it_ended
from callboard.actors.processes.handle import ChildEnds
from callboard.actors.processes.source import ProcessSource
from callboard.actors.processes.supply import After, ProcessOptions, Release
from callboard.actors.testing.tool_stage import StagedCall, ToolStage
from callboard.actors.tools import Tool, ToolContext, tool
from callboard.actors.workers.kinds import kinds
from callboard.protocol.errors import ToolError
from callboard.protocol.events import (
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag
from callboard.protocol.limits import MAX_TOOL_OUTPUT_BYTES
from callboard.protocol.tools import FailureCode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process isolation is made of Linux's system calls")

Until = Callable[[Callable[[], bool]], None]


def options(**changes: object) -> ProcessOptions:
    """Without namespaces: a process id means the same here and in a tool. (test_namespaces.py is for the others.)"""
    return replace(ProcessOptions(namespaces=False), **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def stage() -> Iterator[ToolStage]:
    with ToolStage(options(memory_bytes=1 << 30)) as stage:
        yield stage


@tool
def add(a: int, b: int) -> int:
    return a + b


@tool
def whoami() -> int:
    return os.getpid()


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


@tool
def whoami_and_stay() -> None:
    select.select([], [], [])


@tool
def settle(log: str) -> None:
    """Put a process into a session of its own, tell both ids, and stay."""
    daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path(log).write_text(f"{os.getpid()} {daemon.pid}\n")
    select.select([], [], [])


@tool(reuse=True)
def nap() -> int:
    time.sleep(0.3)
    return os.getpid()


def is_gone(pid: int) -> bool:
    """Has the process ended and been waited for?"""
    return not os.path.exists(f"/proc/{pid}")


def ends(pid: int, within_seconds: float = 2.0) -> bool:
    """Does it end in time? For orphans, which somebody else waits for."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            return bool(select.select([descriptor], [], [], within_seconds)[0])
        finally:
            os.close(descriptor)
    return True


def pids_in(output: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"pid (\d+)", output)]


def failure_of(event: ToolCallEnd) -> tuple[FailureCode, str]:
    assert isinstance(event, ToolCallFailed), event
    return event.failure.code, event.failure.message


def test_a_result_comes_after_its_start(stage: ToolStage) -> None:
    call = stage.start(add, '{"a": 1, "b": 2}', timeout_seconds=50)  # mostly the first, for which processes are started
    event = call.wait()
    assert isinstance(event, ToolCallCompleted)
    assert event.content == "3"
    assert [type(event) for event in call.events] == [ToolCallStarted, ToolCallCompleted]


def test_a_result_that_its_socket_still_holds_when_the_child_has_ended_is_its_result(
    stage: ToolStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one is read in pieces; the child ends when it has written the last of them."""

    @tool
    def say_much() -> str:
        return "x" * 150_000

    monkeypatch.setattr(ChildEnds, "when_it_speaks", lambda *_: None)
    event = stage.call(say_much)
    assert isinstance(event, ToolCallCompleted), event
    assert len(event.content) == 150_000


def test_a_warm_child_serves_again(stage: ToolStage) -> None:
    @tool(reuse=True)
    def whoami_again() -> int:
        return os.getpid()

    first, second = stage.call(whoami_again), stage.call(whoami_again)
    assert isinstance(first, ToolCallCompleted)
    assert isinstance(second, ToolCallCompleted)
    assert first.content == second.content != str(os.getpid())


def test_each_call_has_a_child_of_its_own(stage: ToolStage) -> None:
    pids = [stage.call(whoami).content for _ in range(5)]  # type: ignore[union-attr]
    assert len(set(pids)) == 5


def test_calls_run_side_by_side_each_in_its_own_child(stage: ToolStage, tmp_path: Path) -> None:
    @tool
    def meet(mine: str, theirs: str) -> int:
        Path(mine).touch()
        while not Path(theirs).exists():
            time.sleep(0.002)
        return os.getpid()

    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    calls = [stage.start(meet, json.dumps({"mine": x, "theirs": y})) for x, y in ((a, b), (b, a))]
    pids = {call.wait().content for call in calls}  # type: ignore[union-attr]
    assert len(pids) == 2


class Unfit(Exception):
    def __str__(self) -> str:
        raise ValueError("not even that")


def fail(error: BaseException) -> None:
    raise error


def recurse(depth: int) -> int:
    return recurse(depth + 1) + 1


def write_to_our_socket() -> None:
    os.write(3, b"\xff" * 64)
    select.select([], [], [])


def close_our_socket() -> None:
    os.close(3)
    select.select([], [], [])


#: How a tool may die, and the failure that must come of it.
DEATHS: dict[str, tuple[Callable[[], object], FailureCode, str]] = {
    "ToolError": (lambda: fail(ToolError("no such city")), FailureCode.TOOL_ERROR, "^no such city$"),
    "an exception": (lambda: fail(ValueError("wrong \ud800")), FailureCode.TOOL_ERROR, r"^ValueError: wrong \\ud800$"),
    "one without a text": (lambda: fail(Unfit()), FailureCode.TOOL_ERROR, "^Unfit: <Unfit, whose text raises Value"),
    "KeyboardInterrupt": (lambda: fail(KeyboardInterrupt()), FailureCode.TOOL_ERROR, "^KeyboardInterrupt$"),
    "CancelledError": (lambda: fail(asyncio.CancelledError()), FailureCode.TOOL_ERROR, "^CancelledError$"),
    "GeneratorExit": (lambda: fail(GeneratorExit()), FailureCode.TOOL_ERROR, "^GeneratorExit$"),
    "endless recursion": (lambda: recurse(0), FailureCode.TOOL_ERROR, "^RecursionError"),
    "sys.exit": (lambda: sys.exit(3), FailureCode.CRASHED, r"sys\.exit\(3\)"),
    "out of memory": (lambda: len(bytearray(1 << 40)), FailureCode.CRASHED, "out of memory"),
    "os._exit": (lambda: os._exit(3), FailureCode.CRASHED, "exited with status 3"),
    "SIGSEGV": (lambda: signal.raise_signal(signal.SIGSEGV), FailureCode.CRASHED, "killed by SIGSEGV"),
    "SIGKILL": (lambda: os.kill(os.getpid(), signal.SIGKILL), FailureCode.CRASHED, "killed by SIGKILL"),
    "100 MB": (lambda: "x" * 100_000_000, FailureCode.RESULT_TOO_LARGE, "more than 1,000,000 bytes"),
    "unwritable result": (lambda: object(), FailureCode.INVALID_RESULT, "object"),
    "closed socket": (close_our_socket, FailureCode.CRASHED, "SIGKILL"),
    "foreign bytes": (write_to_our_socket, FailureCode.CRASHED, "SIGKILL"),
}


@tool
def die(how: str) -> object:
    say(f"dying by {how}")
    return DEATHS[how][0]()


@pytest.mark.parametrize("how", DEATHS)
def test_each_way_to_die_is_one_failure_and_the_next_call_works(stage: ToolStage, how: str) -> None:
    _, code, message = DEATHS[how]
    event = stage.call(die, how=how)
    assert failure_of(event)[0] is code
    assert re.search(message, failure_of(event)[1])
    assert f"dying by {how}" in event.output
    after = stage.call(add, a=1, b=2)
    assert isinstance(after, ToolCallCompleted)
    assert after.output == ""


def test_neighbours_of_the_dying_go_on_undisturbed() -> None:
    """I10, at the pool: every way to die and to hang at once, and the same calls beside them with the same results."""
    with ToolStage(options(max_children=48, memory_bytes=1 << 30)) as stage:
        for seconds in (1.5, 6.0):  # some of them spin until then; the first is enough on an idle machine
            hanging = [stage.start(hang, json.dumps({"how": how}), timeout_seconds=seconds) for how in HANGS]
            dying = [stage.start(die, json.dumps({"how": how}), timeout_seconds=40) for how in DEATHS]
            well = [stage.start(add, json.dumps({"a": n, "b": 1}), timeout_seconds=40) for n in range(40)]
            assert [call.wait().content for call in well] == [str(n + 1) for n in range(40)]  # type: ignore[union-attr]
            assert [failure_of(call.wait())[0] for call in dying] == [code for _, code, _ in DEATHS.values()]
            assert all(isinstance(call.wait(), ToolCallTimedOut) for call in hanging)
            assert all(len(call.events) == 2 for call in (*dying, *well))
            if all(len(call.events) == 2 for call in hanging):
                return
        raise AssertionError(f"not all had begun to hang within {seconds:g} s")


def test_wrong_arguments_are_told_with_field_and_remedy(stage: ToolStage) -> None:
    event = stage.call(add, a=1, b="two")
    assert isinstance(event, ToolCallFailed)
    failure = event.failure
    assert (failure.code, failure.field, failure.received) == (FailureCode.INVALID_ARGUMENTS, "b", "'two'")
    assert failure.retry_hint


# -- calls that hang ------------------------------------------------------------------------------------------------


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def shell(new_session: bool) -> None:
    subprocess.Popen(["sh", "-c", "echo pid $$; sleep 1000 & echo pid $!; wait"], start_new_session=new_session).wait()


def daemon() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            say(f"pid {os.getpid()}")
            ignore_sigterm()
            select.select([], [], [])
        os._exit(0)
    os.wait()


def catch_everything() -> None:
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(1000)


def spin() -> None:
    while True:
        pass


def be_traced() -> None:
    """Of the template, which then is told of each stop (PTRACE_TRACEME)."""
    assert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0


def stop_traced() -> None:
    be_traced()
    os.kill(os.getpid(), signal.SIGSTOP)


def signal_traced() -> None:
    be_traced()
    os.kill(os.getpid(), signal.SIGUSR1)


def stop_child() -> None:
    if os.fork() == 0:
        say(f"pid {os.getpid()}")
        stop_traced()
        os._exit(0)


def stop_by_child() -> None:
    above = os.getpid()
    if os.fork() == 0:
        say(f"pid {os.getpid()}")
        assert ctypes.CDLL(None).ptrace(16, above, 0, 0) == 0  # PTRACE_ATTACH


#: How a tool may hang, and how many processes are hanging then. Whoever comes back sleeps.
HANGS: dict[str, tuple[Callable[[], object], int]] = {
    "spins": (spin, 1),
    "sleeps in C": (lambda: time.sleep(1000), 1),
    "holds the GIL in C": (lambda: sum(range(10**15)), 1),
    "ignores SIGTERM": (ignore_sigterm, 1),
    "blocks all signals": (lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()), 1),
    "catches everything": (catch_everything, 1),
    "stops itself": (lambda: os.kill(os.getpid(), signal.SIGSTOP), 1),
    "is traced and stops": (stop_traced, 1),
    "is traced and gets a signal": (signal_traced, 1),
    "a child of it is traced and stops": (stop_child, 2),
    "a child of it stops it": (stop_by_child, 2),
    "child of a child": (lambda: shell(new_session=False), 3),
    "child in a session of its own": (lambda: shell(new_session=True), 3),
    "daemon": (daemon, 2),
}


@tool
def hang(how: str) -> None:
    say(f"pid {os.getpid()}")
    HANGS[how][0]()
    while True:
        time.sleep(1000)


@pytest.mark.parametrize("how", HANGS)
def test_a_hung_call_ends_at_its_deadline_with_all_it_started(stage: ToolStage, how: str) -> None:
    call = timed_out_while_hanging(
        lambda seconds: stage.start(hang, json.dumps({"how": how}), seconds),
        lambda call: len(pids_in(call.wait().output)) == HANGS[how][1],
    )
    pids = pids_in(call.wait().output)
    assert all(is_gone(pid) for pid in pids), "gone when the outcome is told, not later"


@tool
def wait_for(path: str) -> str:
    while not os.path.exists(path):
        time.sleep(0.01)
    return "undisturbed"


@pytest.mark.parametrize("how", [each for each in HANGS if "stop" in each or "traced" in each])
def test_a_stop_is_no_end_and_nothing_to_the_calls_of_others(stage: ToolStage, tmp_path: Path, how: str) -> None:
    beside = [stage.start(wait_for, json.dumps({"path": str(tmp_path / "go")}), 60) for _ in range(3)]
    timed_out_while_hanging(
        lambda seconds: stage.start(hang, json.dumps({"how": how}), seconds),
        lambda call: len(pids_in(call.wait().output)) == HANGS[how][1],
    )
    (tmp_path / "go").touch()
    assert [getattr(call.wait(), "content", None) for call in beside] == ["undisturbed"] * 3


def test_a_template_that_is_traced_and_stops_is_one_tool_that_does_not_load(
    stage: ToolStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stops_when_loaded.py").write_text(
        "import ctypes, os, sys\n"
        "def stops(): return 1\n"
        "if not hasattr(sys, 'is_host'):\n"
        "    ctypes.CDLL(None).ptrace(0, 0, 0, 0)\n"
        "    os.kill(os.getpid(), 19)\n"
    )
    monkeypatch.setattr(sys, "is_host", True, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    beside = stage.start(wait_for, json.dumps({"path": str(tmp_path / "go")}), 60)
    with ToolStage(options()) as other:  # its processes import from the path that is set now
        calm = other.start(wait_for, json.dumps({"path": str(tmp_path / "go")}), 60)
        stopped = other.start(tool(importlib.import_module("stops_when_loaded").stops), "{}", 2.0)
        assert isinstance(stopped.wait(), ToolCallTimedOut)
        (tmp_path / "go").touch()
        assert isinstance(calm.wait(), ToolCallCompleted)
    assert isinstance(beside.wait(), ToolCallCompleted)


def test_an_argument_validator_that_hangs_is_ended_too(stage: ToolStage) -> None:
    def spin(value: int) -> int:
        while True:
            pass

    @tool
    def validated(value: Annotated[int, AfterValidator(spin)]) -> int:
        return value

    event = stage.start(validated, '{"value": 1}', timeout_seconds=0.1).wait()
    assert isinstance(event, ToolCallTimedOut)


def test_a_finally_has_the_grace_period(stage: ToolStage, tmp_path: Path) -> None:
    begun, closed = tmp_path / "begun", tmp_path / "closed"

    @tool
    def careful() -> None:
        try:
            begun.touch()
            time.sleep(1000)
        finally:
            closed.touch()

    timed_out_while_hanging(lambda seconds: stage.start(careful, "{}", seconds), lambda _: begun.exists())
    assert closed.exists()


def test_cancelling_reaches_a_running_call(stage: ToolStage) -> None:
    call = stage.start(hang, '{"how": "ignores SIGTERM"}', timeout_seconds=30)
    stage.stop(call)
    event = call.wait()
    assert isinstance(event, ToolCallCancelled)
    assert all(is_gone(pid) for pid in pids_in(event.output))
    assert len([event for event in call.events if not isinstance(event, ToolCallStarted)]) == 1


def test_stopping_an_unknown_call_does_nothing(stage: ToolStage) -> None:
    stage.stop(StagedCall(Tag(RequestId("x"), MessageId("y"), 1, CallId("z")), 0.0))
    assert isinstance(stage.call(add, a=1, b=2), ToolCallCompleted)


def test_fifty_processes_left_after_a_normal_return_are_gone(stage: ToolStage) -> None:
    @tool
    def litter() -> str:
        for _ in range(50):
            sleeper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            say(f"pid {sleeper.pid}")
        return "done"

    event = stage.call(litter)
    assert isinstance(event, ToolCallCompleted)
    assert event.content == "done"
    pids = pids_in(event.output)
    assert len(pids) == 50
    assert all(is_gone(pid) for pid in pids)


# -- what a child is ------------------------------------------------------------------------------------------------


def test_a_child_inherits_nothing(stage: ToolStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")

    @tool
    def inspect_self() -> dict[str, object]:
        return {
            "environment": sorted(os.environ),
            "descriptors": sorted(os.listdir("/proc/self/fd"), key=int),
            "stdin": sys.stdin.read(),
            "leads its session": os.getsid(0) == os.getpgid(0) == os.getpid(),
            "threads": threading.active_count(),
            "memory": resource.getrlimit(resource.RLIMIT_DATA)[0],
            "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
            "SIGINT": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        }

    # A pool of its own: the environment is that of the moment in which the fork server starts.
    with ToolStage(options(memory_bytes=1 << 30, environment={"EXTRA": "1"})) as own:
        event = own.call(inspect_self)
    assert isinstance(event, ToolCallCompleted), event
    found = json.loads(event.content)
    environment = set(found.pop("environment"))
    assert "OPENAI_API_KEY" not in environment
    assert {"PATH", "EXTRA"} <= environment
    descriptors = found.pop("descriptors")
    assert descriptors[:4] == ["0", "1", "2", "3"]
    assert len(descriptors) == 6, "one more to list them, and the pipe for where its code is"
    assert found == {
        "stdin": "",
        "leads its session": True,
        "threads": 1,
        "memory": 1 << 30,
        "core": 0,
        "SIGINT": True,
    }


def test_the_context_arrives(stage: ToolStage) -> None:
    @tool
    def ask_context(context: ToolContext) -> list[object]:
        return [context.user_text, context.effect_id, 8 < context.remaining_seconds < 10]

    event = stage.call(ask_context)
    assert isinstance(event, ToolCallCompleted), event
    words, effect_id, in_time = json.loads(event.content)
    assert words == "the user's words"
    assert effect_id.startswith("effect-")
    assert in_time


def test_a_tool_whose_module_does_not_load_is_one_failure(stage: ToolStage, tmp_path: Path) -> None:
    (tmp_path / "shy_module.py").write_text(
        "import os\n"
        f"if os.getpid() != {os.getpid()}:\n    raise ImportError('not in a child')\n"
        "from callboard.actors.tools import tool\n"
        "@tool\ndef shy() -> int:\n    return 1\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        from shy_module import shy  # type: ignore[import-not-found]  # noqa: PLC0415 - it has just been written

        code, message = failure_of(stage.call(shy))
    finally:
        sys.path.remove(str(tmp_path))
    assert code is FailureCode.CRASHED
    assert "could not be loaded" in message


def test_a_tool_is_loaded_once_before_the_children_of_its_calls_are_forked(stage: ToolStage, tmp_path: Path) -> None:
    log = tmp_path / "loads"
    (tmp_path / "heavy_module.py").write_text(
        f"import os\nwith open({str(log)!r}, 'a') as log:\n    log.write(f'{{os.getpid()}}\\n')\n"
        "from callboard.actors.tools import tool\n"
        "@tool\ndef heavy() -> int:\n    return os.getpid()\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        from heavy_module import heavy  # type: ignore[import-not-found]  # noqa: PLC0415 - it has just been written

        with ToolStage(options(max_children=1)) as own:
            first = own.call(heavy)
            own.call(die, how="os._exit")
            second = own.call(heavy)
    finally:
        sys.path.remove(str(tmp_path))
    assert isinstance(first, ToolCallCompleted)
    assert isinstance(second, ToolCallCompleted)
    assert first.content != second.content
    host, *loaders = log.read_text().split()
    assert host == str(os.getpid())
    assert len(loaders) == 1
    assert loaders[0] not in (first.content, second.content)


def test_orders_larger_than_the_socket_takes_arrive_whole_and_in_order() -> None:
    ballast = os.urandom(3_000_000)

    @tool
    def weigh(text: str) -> list[int]:
        return [len(ballast), len(text)]

    with ToolStage(options(max_children=1)) as own:
        for _ in range(3):  # the replacement is sent the tool in advance, and the call right behind it
            call = own.start(weigh, json.dumps({"text": "x" * 2_000_000}), timeout_seconds=30)
            event = call.wait()
            assert isinstance(event, ToolCallCompleted), event
            assert event.content == "[3000000,2000000]"
            crash = own.start(die, '{"how": "os._exit"}')
            behind = own.start(weigh, '{"text": "y"}', timeout_seconds=30)
            assert failure_of(crash.wait())[0] is FailureCode.CRASHED
            assert isinstance(behind.wait(), ToolCallCompleted)


# -- output ---------------------------------------------------------------------------------------------------------


def test_a_flood_of_output_ends_and_its_tail_is_kept(stage: ToolStage) -> None:
    @tool
    def flood() -> str:
        for _ in range(400):
            os.write(1, b"x" * 9_999 + b"\n")
        os.write(2, b"the end")
        return "done"

    event = stage.call(flood)
    assert isinstance(event, ToolCallCompleted)
    assert event.output.endswith("the end")
    assert event.output.startswith("(3,934,471 bytes before this were left out)")
    assert len(event.output) < MAX_TOOL_OUTPUT_BYTES + 100


# -- the pool -------------------------------------------------------------------------------------------------------


def test_a_call_that_waits_in_vain_times_out_without_a_start() -> None:
    with ToolStage(options(max_children=1)) as stage:
        busy = stage.start(hang, '{"how": "spins"}', timeout_seconds=0.4)
        waiting = stage.start(add, '{"a": 1, "b": 2}', timeout_seconds=0.1)
        cancelled = stage.start(add, '{"a": 1, "b": 2}', timeout_seconds=30)
        stage.stop(cancelled)
        assert isinstance(waiting.wait(), ToolCallTimedOut)
        assert isinstance(cancelled.wait(), ToolCallCancelled)
        assert len(waiting.events) == len(cancelled.events) == 1
        next_in_turn = stage.start(add, '{"a": 1, "b": 2}', timeout_seconds=30)
        assert isinstance(busy.wait(), ToolCallTimedOut)
        assert isinstance(next_in_turn.wait(), ToolCallCompleted)


def test_a_worker_that_the_dispatcher_gave_up_leaves_its_place_to_another(until: Until) -> None:
    before = set(keepers())
    with ToolStage(options(max_children=1)) as own:
        assert isinstance(own.call(add, a=1, b=2), ToolCallCompleted)
        hanging = own.start(hang, '{"how": "ignores SIGTERM"}', timeout_seconds=0.4)
        until(lambda: bool(hanging.events))
        (keeper,) = set(keepers()) - before
        (init,) = children_of(keeper)
        os.kill(init, signal.SIGSTOP)  # so that nothing is killed in time
        assert isinstance(hanging.wait(), ToolCallTimedOut)
        os.kill(init, signal.SIGCONT)
        assert isinstance(own.call(add, a=1, b=2), ToolCallCompleted)


def test_a_fault_of_ours_ends_one_call_and_its_child_reaches_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    serve, faults = ProcessSource._serve, [MemoryError("planted")]

    def faulty(*arguments: Any) -> None:
        if faults:
            raise faults.pop()
        serve(*arguments)

    monkeypatch.setattr(ProcessSource, "_serve", faulty)
    with ToolStage(options(max_children=1)) as own:
        assert failure_of(own.call(whoami))[0] is FailureCode.INTERNAL_ERROR
        calls = [own.call(add, a=number, b=1) for number in range(3)]
    assert [call.content for call in calls] == ["1", "2", "3"]  # type: ignore[union-attr]


def keepers() -> list[int]:
    """Our direct children that are keepers, without asking the pools."""
    return [pid for pid in children_of(os.getpid()) if b" = enter(" in read_if_there(Path(f"/proc/{pid}/cmdline"))]


def children_of(pid: int) -> list[int]:
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in read_if_there(task / "children").split()
    ]


def fork_server_of(keeper: int) -> int:
    """The first fork server: it was started before any child."""
    (init,) = children_of(keeper)
    return min(children_of(init))


def read_if_there(path: Path) -> bytes:
    """Of /proc: a thread or a process may end between being listed and being looked at."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_children_that_are_not_needed_any_more_are_ended(until: Until) -> None:
    with ToolStage(options(idle_seconds=0.05)) as stage:
        calls = [stage.start(nap, "{}") for _ in range(6)]
        pids = {int(call.wait().content) for call in calls}  # type: ignore[union-attr]
        assert len(pids) > 1
        until(lambda: all(is_gone(pid) for pid in pids))
        assert isinstance(stage.call(add, a=1, b=2), ToolCallCompleted)


def test_elsewhere_than_on_linux_a_call_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.actors.processes.spawning.IS_LINUX", False)
    with ToolStage(options()) as stage:
        code, message = failure_of(stage.call(add, a=1, b=2))
    assert code is FailureCode.CRASHED
    assert "needs Linux" in message
    assert "isolation='thread'" in message


def test_a_call_that_comes_after_its_deadline_is_not_begun(stage: ToolStage) -> None:
    call = stage.start(add, '{"a": 1, "b": 2}', timeout_seconds=-1)
    assert isinstance(call.wait(), ToolCallTimedOut)
    assert len(call.events) == 1


def settled(log: Path) -> list[int]:
    """What `settle` has written, once it has."""
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
    return [int(pid) for pid in log.read_text().split()]


def test_a_crash_of_the_source_ends_its_processes_and_costs_its_calls_alone(tmp_path: Path) -> None:
    before = set(keepers())
    with ToolStage(options()) as stage:
        running = stage.start(settle, json.dumps({"log": str(tmp_path / "log")}), timeout_seconds=30)
        pids = settled(tmp_path / "log")
        (keeper,) = set(keepers()) - before
        poison = Release(None, After.KILL)  # type: ignore[arg-type]
        stage.system.ref("tools/process-short/source").tell_control(poison)
        assert failure_of(running.wait())[0] is FailureCode.INTERNAL_ERROR
        assert all(ends(pid) for pid in [keeper, *pids])
        assert isinstance(stage.call(add, a=1, b=2), ToolCallCompleted)


# -- fork servers and the init process ------------------------------------------------------------------------------


@tool
def stay_until(path: str) -> str:
    Path(f"{path}.begun").touch()
    while not Path(path).exists():
        time.sleep(0.005)
    return "went on"


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("what", ["first", "template"])
def test_losing_a_fork_server_costs_no_call_that_runs(
    tmp_path: Path, until: Until, what: str, harm: signal.Signals
) -> None:
    """Killed or stopped, the first fork server or the tool's template: its children go on, new calls wait a while."""
    before = set(keepers())
    go = tmp_path / "go"
    with ToolStage(options()) as stage:
        running = stage.start(stay_until, json.dumps({"path": str(go)}), timeout_seconds=60)
        leaving = stage.start(settle, json.dumps({"log": str(tmp_path / "log")}), timeout_seconds=60)
        pids = settled(tmp_path / "log")
        until((tmp_path / "go.begun").exists)
        (keeper,) = set(keepers()) - before
        first = fork_server_of(keeper)
        harmed = [first] if what == "first" else children_of(first)
        for pid in harmed:
            os.kill(pid, harm)
        after = stage.start(add, '{"a": 1, "b": 2}', timeout_seconds=60)
        assert isinstance(after.wait(), ToolCallCompleted)
        stage.stop(leaving)
        assert isinstance(leaving.wait(), ToolCallCancelled)
        assert all(is_gone(pid) for pid in pids[:1])
        assert all(ends(pid) for pid in pids), "a process in its own session too"
        go.touch()
        event = running.wait()
        assert isinstance(event, ToolCallCompleted), event
        again = stage.start(stay_until, json.dumps({"path": str(go)}), timeout_seconds=60)
        assert isinstance(again.wait(), ToolCallCompleted)


@pytest.mark.parametrize("harm", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_init_process_costs_the_calls_that_run_and_is_replaced(tmp_path: Path, harm: signal.Signals) -> None:
    before = set(keepers())
    with ToolStage(options()) as stage:
        running = stage.start(settle, json.dumps({"log": str(tmp_path / "log")}), timeout_seconds=60)
        pids = settled(tmp_path / "log")
        (keeper,) = set(keepers()) - before
        for pid in children_of(keeper):
            os.kill(pid, harm)
        if harm is signal.SIGSTOP:  # it shows when something is asked of it
            stage.stop(running)
        event = running.wait()
        assert isinstance(event, ToolCallCancelled) or failure_of(event)[0] is FailureCode.CRASHED
        assert all(ends(pid, 5.0) for pid in pids), "a process in its own session too"
        after = stage.start(add, '{"a": 1, "b": 2}', timeout_seconds=60)
        assert isinstance(after.wait(), ToolCallCompleted)


def test_a_copy_of_a_child_that_returns_from_the_tool_ends_there(stage: ToolStage, tmp_path: Path) -> None:
    log = tmp_path / "returned"

    def twice() -> int:
        os.fork()
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        while len(log.read_text().split()) < 2:
            time.sleep(0.001)
        return os.getpid()

    for made in (tool(name="once")(twice), tool(name="again", reuse=True)(twice)):
        log.write_text("")
        call = stage.start(made, "{}")
        event = call.wait()
        assert isinstance(event, ToolCallCompleted), event
        assert len(call.events) == 2
        copies = set(log.read_text().split()) - {event.content}
        assert len(copies) == 1
        assert all(ends(int(pid)) for pid in copies)
        assert isinstance(stage.call(made), ToolCallCompleted)


def module_tool(folder: Path, name: str, code: str, result: str = "None") -> Tool:
    """A tool in a module of its own, with this code at its top when it is loaded in another process."""
    (folder / f"{name}.py").write_text(
        f"import os, socket, threading\nfrom callboard.actors.tools import tool\n"
        f"if os.getpid() != {os.getpid()}:\n    {code}\n    loaded_by = os.getpid()\n"
        f"@tool(name={name!r})\ndef made() -> object:\n    return {result}\n"
    )
    made: Tool = importlib.import_module(name).made
    return made


@pytest.mark.parametrize(
    "code",
    ["threading.Thread(target=threading.Event().wait, daemon=True).start()", "kept = socket.socketpair()"],
    ids=["thread", "socket"],
)
def test_a_template_with_threads_or_sockets_is_not_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    unfit = module_tool(tmp_path, f"unfit_{len(code)}", code, "loaded_by == os.getpid()")
    logger = logging.getLogger("callboard.tools")
    caplog.set_level(logging.WARNING, logger.name)
    monkeypatch.setattr(logger, "handlers", [caplog.handler])  # whatever other tests have left between it and the root
    monkeypatch.setattr(logger, "propagate", False)
    with ToolStage(options()) as stage:
        for _ in range(3):
            event = stage.call(unfit)
            assert isinstance(event, ToolCallCompleted)
            assert event.content == "true"
    assert sum("cannot be forked" in record.getMessage() for record in caplog.records) == 1


def test_a_tool_that_hangs_or_dies_while_it_loads_costs_its_own_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    hangs = module_tool(tmp_path, "hangs_when_loaded", "threading.Event().wait()")
    dies = module_tool(tmp_path, "dies_when_loaded", "os._exit(7)")
    with ToolStage(options()) as stage:
        hung = stage.start(hangs, "{}", timeout_seconds=0.5)
        assert "exited with status 7" in failure_of(stage.call(dies))[1]
        assert isinstance(stage.call(add, a=1, b=2), ToolCallCompleted)
        assert isinstance(hung.wait(), ToolCallTimedOut)


CAP_KILL = 5
PR_CAPBSET_DROP = 24


@pytest.mark.fresh_interpreter  # what is said where nothing has set up logging
@pytest.mark.skipif(os.geteuid() != 0, reason="needs a process that may become another user")
def test_a_process_of_another_user_is_reported_and_left() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__, "foreign"]
    host = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert host.stdout.splitlines()[1:] == ["3", "ToolCallTimedOut", "3"], host.stderr
    left = int(host.stdout.splitlines()[0])
    assert not is_gone(left)
    os.kill(left, signal.SIGKILL)
    assert "runs as another user" in host.stderr


def be_a_host_that_may_not_signal_others() -> None:
    """A root without CAP_KILL, as in many containers; its tool becomes another user and hangs."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_KILL, 0, 0, 0)
    out, into = os.pipe()
    path = f"/proc/{os.getpid()}/fd/{into}"

    @tool
    def become_nobody() -> None:
        with open(path, "w") as file:
            file.write(f"{os.getpid()}\n")
        os.setuid(65534)
        select.select([], [], [])

    with ToolStage(options()) as stage:
        results = [stage.call(add, a=1, b=2), stage.start(become_nobody, "{}", timeout_seconds=2.0).wait()]
        sys.stdout.write(os.read(out, 100).decode())
        results.append(stage.call(add, a=1, b=2))
    for event in results:
        sys.stdout.write(f"{event.content if isinstance(event, ToolCallCompleted) else type(event).__name__}\n")


def test_stopping_leaves_no_process_no_thread_no_descriptor(stage: ToolStage, until: Until) -> None:
    stage.call(add, a=1, b=2)
    servers = keepers()

    def start_and_stop() -> tuple[int, int]:
        """What there is of threads and descriptors afterwards."""
        with ToolStage(options()) as own:
            running = own.start(hang, '{"how": "ignores SIGTERM"}', timeout_seconds=30)
            (pid,) = [int(own.call(whoami).content)]  # type: ignore[union-attr]
        assert isinstance(running.wait(), ToolCallCancelled)
        assert is_gone(pid)
        assert keepers() == servers
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    # By the end of the first one the other stage has its next child.
    threads, descriptors = start_and_stop()
    start_and_stop()
    # A thread that has been told to end, and its descriptors with it, may take a moment.
    until(lambda: threading.active_count() <= threads and len(os.listdir("/proc/self/fd")) <= descriptors)


def test_kill_9_of_the_host_leaves_no_orphan() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    host = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert host.stdout is not None
        pids = [int(host.stdout.readline()) for _ in range(3)]
        assert not any(is_gone(pid) for pid in pids)
    finally:
        host.kill()
        host.communicate(timeout=10)
    assert all(ends(pid) for pid in pids)


def test_thirty_hung_calls_in_a_row_leave_everything_flat(stage: ToolStage, until: Until) -> None:
    """The small form of benchmarks/hung_tools.py."""
    for how in HANGS:
        stage.start(hang, json.dumps({"how": how}), timeout_seconds=0.01).wait()
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        for how in HANGS:
            call = stage.start(hang, json.dumps({"how": how}), timeout_seconds=0.02)
            assert isinstance(call.wait(), ToolCallTimedOut)
    # One more warm child: its socket and its pipe.
    until(lambda: threading.active_count() <= threads and len(os.listdir("/proc/self/fd")) <= descriptors + 4)


def be_a_host() -> None:
    """For the test of kill -9: a process with a child, a grandchild in its own session, and nothing to end them."""
    with ToolStage(options()) as stage:
        out, into = os.pipe()

        stage.start(settle, json.dumps({"log": f"/proc/{os.getpid()}/fd/{into}"}), timeout_seconds=60)
        pids = [*map(int, os.read(out, 100).split()), *keepers()]
        sys.stdout.write("".join(f"{pid}\n" for pid in pids))
        sys.stdout.flush()
        select.select([], [], [])


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "exited with status 0 (os._exit?)"), (UNKNOWN_STATUS, "ended, it is not known how"),
     (3 << 8, "exited with status 3 (os._exit?)"),
     (signal.SIGSEGV, "was killed by SIGSEGV"), (35, "was killed by signal 35")],
)  # fmt: skip
def test_how_a_process_ended_in_words(status: int, words: str) -> None:
    assert how_it_ended(status) == words


if __name__ == "__main__":
    if sys.argv[1:2] == ["foreign"]:
        be_a_host_that_may_not_signal_others()
    else:
        be_a_host()


@pytest.mark.parametrize("ready", [0, 1])
def test_processes_are_started_ahead_only_where_children_are_kept_ready(ready: int) -> None:
    assert kinds(options(warm=ready))(add.contract).starts_ahead is (ready > 0)


# -- what a tool that fails leaves ----------------------------------------------------------------------------------


@tool
def raise_deep() -> None:
    def deeper() -> None:
        raise LookupError("the word kumquat")

    deeper()


def test_a_traceback_comes_back_from_the_child(stage: ToolStage) -> None:
    event = stage.call(raise_deep)
    assert isinstance(event, ToolCallFailed)
    assert event.failure.traceback.endswith("LookupError: the word kumquat\n")
    assert 'raise LookupError("the word kumquat")' in event.failure.traceback
    lines = event.failure.frames.splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["LookupError", "raise_deep", "deeper"]
    assert all(f'File "{__file__}"' in line for line in lines[1:])
    assert "kumquat" not in event.failure.frames


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("ToolError", "callboard.protocol.errors.ToolError"),
        ("sys.exit", "SystemExit"),
        ("out of memory", "MemoryError"),
        ("endless recursion", "RecursionError"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("one without a text", f"{__name__}.Unfit"),
        ("unwritable result", "pydantic_core._pydantic_core.PydanticSerializationError"),
    ],
)
def test_whatever_is_raised_its_type_and_frames_come_back(stage: ToolStage, how: str, kind: str) -> None:
    event = stage.call(die, how=how)
    assert isinstance(event, ToolCallFailed)
    assert event.failure.frames.splitlines()[0] == kind
    assert kind.rpartition(".")[2] in event.failure.traceback
    if "Serialization" not in kind:  # that is raised when the tool has returned
        assert f'File "{__file__}"' in event.failure.frames


def test_a_process_that_dies_of_a_signal_leaves_the_frames_that_it_was_in(stage: ToolStage) -> None:
    event = stage.call(die, how="SIGSEGV")
    assert isinstance(event, ToolCallFailed)
    assert event.failure.frames.startswith("the tool's process was killed by SIGSEGV\n  File ")
    assert f'File "{__file__}"' in event.failure.frames
    assert "in die" in event.failure.frames
    assert event.failure.traceback.startswith("Fatal Python error: Segmentation fault")


def test_a_process_that_dies_without_a_word_leaves_how(stage: ToolStage) -> None:
    event = stage.call(die, how="SIGKILL")
    assert isinstance(event, ToolCallFailed)
    assert event.failure.frames == event.failure.traceback == "the tool's process was killed by SIGKILL"


def test_a_module_that_does_not_load_leaves_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken_module.py").write_text(
        "import os\n"
        "def check() -> None:\n"
        f"    if os.getpid() != {os.getpid()}:\n        raise ImportError('the word kumquat')\n"
        "check()\n"
        "from callboard.actors.tools import tool\n"
        "@tool\ndef broken() -> int:\n    return 1\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        broken = importlib.import_module("broken_module").broken
        with ToolStage(options()) as stage:  # its processes begin with the path as it is now
            event = stage.call(broken)
    finally:
        sys.path.remove(str(tmp_path))
    assert isinstance(event, ToolCallFailed)
    assert event.failure.frames.splitlines()[0] == "ImportError"
    assert f'File "{tmp_path}/broken_module.py", line 4, in check' in event.failure.frames
    assert "kumquat" in event.failure.traceback
    assert "kumquat" not in event.failure.frames


def test_a_module_that_prints_a_lot_while_it_is_loaded_is_not_held_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loud_module.py").write_text(
        "import os\n"
        f"if os.getpid() != {os.getpid()}:\n"
        "    for _ in range(1_000):\n        os.write(1, b'x' * 1_000), os.write(2, b'x' * 1_000)\n"
        "from callboard.actors.tools import tool\n"
        "@tool\ndef loud() -> int:\n    return 1\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        with ToolStage(options()) as stage:
            event = stage.call(importlib.import_module("loud_module").loud)
    finally:
        sys.path.remove(str(tmp_path))
    assert isinstance(event, ToolCallCompleted), event
    assert capfd.readouterr() == ("", "")


def test_a_tool_that_dies_is_one_log_record_without_our_frames(
    stage: ToolStage, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "callboard"):
        event = stage.call(die, how="os._exit")
    assert isinstance(event, ToolCallFailed)
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.exc_info is None
    assert "exited with status 3" in record.getMessage()
    ids = (record.request_id, record.step, record.call_id, record.tool)  # type: ignore[attr-defined]
    assert ids == (event.tag.request_id, event.tag.step, event.tag.call_id, "die")
