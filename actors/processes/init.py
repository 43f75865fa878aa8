"""The init process of the tools: the parent of the fork servers, and the reaper and killer of everything below it.

    runtime -> keeper -> init process -> fork server -> template of a tool -> children, in which calls run

It only reaps, reports, and kills: on order, and what has taken too much shared memory or too many processes. So it is
never busy: a fork server may hang, be stopped or die without costing a call that runs. Where the kernel allows, it is
PID 1 of a namespace: all that tools have started, mounted or shared ends with it. Elsewhere it is a subreaper, which
what a tool leaves behind falls to.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final, NoReturn

from callboard.actors.processes import seccomp
from callboard.actors.processes.child import STACK_SIGNAL, rehearse
from callboard.actors.processes.control import (
    UNKNOWN_STATUS,
    Kind,
    Message,
    hear,
    pair,
    pipe,
    receive,
    send_if_heard,
)
from callboard.actors.processes.fork_server import CONTROL, ForkServer, Limits, take_place
from callboard.actors.processes.linux import (
    Process,
    catches,
    children,
    children_of,
    kill_all,
    kill_each,
    kills_for_memory,
    look_at,
    look_at_thread,
    make_expendable,
    processes,
    reaped,
)

#: Orphans that do not die of SIGKILL at once (they are in an uninterruptible system call) are looked for this often.
SWEEP_SECONDS: Final = 0.005
#: How often processes are looked at, while there are children: one can fill 0.2 GB of shared memory in that time, or
#: start some hundred processes.
LOOK_SECONDS: Final = 0.1
#: Of one call. A build with a process for each of 64 processors has a few hundred.
MAX_CALL_PROCESSES: Final = 1_024
#: What has more is killed at once, for as long as this; the rest when its child has ended.
KILL_SECONDS: Final = 2.0
#: Of the way to be the first that is killed where memory runs out: children have all of it. A template serves many
#: calls; with half of all memory on its account it goes before the host, and after its children.
EXPENDABLE_TEMPLATE: Final = 0.5
#: What is killed so long after the kernel has killed something for want of memory is taken for that: the end of a
#: process with gigabytes takes a while.
OUT_OF_MEMORY_SECONDS: Final = 5.0
OUT_OF_MEMORY: Final = (
    "was killed by the kernel, which had run out of memory (of the machine, or of its container's limit): have it take "
    "less at a time, run fewer at once (concurrency), or give it more"
)
#: Of a stack: with the rest, one message (control.py) takes it. The outermost of a hundred frames may be missing.
STACK_BYTES: Final = 8_000


class Init:
    """One runs per process pool."""

    def __init__(
        self,
        runtime: socket.socket,
        limits: Limits,
        stacks: int,
        proc: int | None,
        most: int,
        questions: int = -1,
    ) -> None:
        """`stacks`: the reading end of the pipe into which children write down where their code is; `proc`: an open
        /proc of its own namespace, where it has one; `most`: processes that a call may have; `questions`: where tools
        ask whether they may change another process (seccomp.py)."""
        self._runtime = runtime
        self._limits = limits
        self._stacks = stacks
        self._proc = proc
        self._most = most
        self._questions = questions
        self._stack = b""
        """What has come of the one that was asked for last."""
        self._registry, self._theirs = pair()
        self._woken, self._waker = pair()
        self._pids: dict[int, int] = {}
        """Process id by number, of those alive."""
        self._numbers: dict[int, int] = {}
        self._forked_by: dict[int, int] = {}
        """The process id of its parent, ours or that of a fork server, by number."""
        self._children: set[int] = set()
        """The numbers of those that are not fork servers."""
        self._look_at = 0.0
        self._exited: dict[int, int] = {}
        """Wait status by number, of those that are not reported yet: what they have left is not all gone."""
        self._kills_for_memory = kills_for_memory()
        self._out_of_memory_at = -OUT_OF_MEMORY_SECONDS
        self._reasons: dict[int, str] = {}
        """By number, why we have killed it."""
        self._foreign: set[int] = set()
        """Orphans of other users, which we may not end."""

    def run(self, namespaces: str) -> None:
        """Serve until the runtime or the keeper has ended."""
        keeper = os.getppid()
        poll = select.poll()
        for end in (self._runtime, self._registry, self._woken):
            end.setblocking(False)
            poll.register(end, select.POLLIN)
        if self._questions >= 0:
            poll.register(self._questions, select.POLLIN)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        send_if_heard(self._runtime, Message(Kind.CONTAINED, 0, 0, namespaces))
        running = True
        while running and os.getppid() == keeper:
            pause = SWEEP_SECONDS if self._exited else LOOK_SECONDS if self._children else None
            ready = {descriptor for descriptor, _ in poll.poll(pause and pause * 1e3)}
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
            self._read_registry()
            if self._questions in ready and (question := seccomp.asked(self._questions)) is not None:
                seccomp.answer(self._questions, question, may=self._may_change(question))
            self._reap()
            self._sweep()
            if self._runtime.fileno() in ready:
                running = self._obey()
            if self._children and time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + LOOK_SECONDS
                self._look()

    def _obey(self) -> bool:
        order = receive(self._runtime)
        if order is None or order[0].kind is Kind.END:
            return False
        message, descriptors = order
        if message.kind is Kind.START:
            self._start(message.number, descriptors[0])
        elif message.kind is Kind.STACK:
            self._tell_stack(message.number, begins=message.value == 1)
        elif message.number in self._pids:
            self._signal(message)
        else:  # it has ended, or was never forked: in either case this is its end
            self._exited.setdefault(message.number, UNKNOWN_STATUS)
            self._sweep()
        return True

    def _start(self, number: int, control: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            send_if_heard(self._runtime, Message(Kind.NOT_FORKED, number, error.errno or 0))
        else:
            if pid == 0:
                self._become_fork_server(control)
            self._register(number, pid, os.getpid())
        os.close(control)

    def _become_fork_server(self, control: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            for end in (self._runtime, self._registry, self._woken, self._waker):
                os.close(end.detach())
            os.close(self._stacks)
            for descriptor in (self._proc, self._questions):
                if descriptor is not None and descriptor >= 0:
                    os.close(descriptor)
            take_place(control, CONTROL)
            os.setsid()
            ForkServer(self._theirs.detach(), self._limits).run()
        finally:
            os._exit(0)

    def _signal(self, message: Message) -> None:
        # The pid cannot have passed to another process: its parent tells us of its end when it reaps it, or is us.
        pid = self._pids[message.number]
        try:
            if message.kind is Kind.TERMINATE:
                os.kill(pid, signal.SIGTERM)
            else:
                os.kill(pid, signal.SIGKILL)
                os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        except PermissionError:
            send_if_heard(self._runtime, Message(Kind.NOT_SIGNALLED, message.number))

    def _may_change(self, question: seccomp.ChangeAsked) -> bool:
        """Limits, processors, priority or memory: of its own call's processes, and of none else."""
        asks = look_at_thread(question.thread, self._proc)
        changed = look_at_thread(question.process, self._proc) if question.process else asks
        if asks is None or asks.depth:  # in a namespace of its own making it sees its own alone, by other numbers
            return True
        if changed is None:  # the kernel says that there is no such process; of a group others may be there
            return not question.is_group
        if asks.process == changed.process:
            return True
        call = self._call_of(asks.process)
        return call is not None and call == self._call_of(changed.process)

    def _call_of(self, pid: int) -> int | None:
        """The number of that of ours which it is or is below."""
        for _ in range(self._most):
            if pid in self._numbers or (found := look_at_thread(pid, self._proc)) is None:
                break
            pid = found.parent
        return self._numbers.get(pid)

    def _tell_stack(self, number: int, *, begins: bool) -> None:
        """A process whose tool has taken the handler for the signal away would die of it: it is spared."""
        pid, why = self._pids.get(number), ""
        if pid is None:
            why = "the tool's process has ended"
        elif begins and not catches(pid, STACK_SIGNAL, self._proc):
            why = "the tool's process does not write down where it is: its code has removed the handler for that"
        elif begins:
            self._stack_written()
            self._stack = b""
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, STACK_SIGNAL)
        else:
            self._stack = (self._stack + self._stack_written())[:STACK_BYTES]
        text = why or self._stack.decode(errors="replace")
        send_if_heard(self._runtime, Message(Kind.STACK, number, -1 if why else 0, text))

    def _stack_written(self) -> bytes:
        """What is in the pipe; b"" where nothing is."""
        try:
            return os.read(self._stacks, STACK_BYTES)
        except BlockingIOError:
            return b""

    def _has_run_out_of_memory(self) -> bool:
        """A short while ago."""
        kills, now = kills_for_memory(), time.monotonic()
        if kills > self._kills_for_memory:
            self._kills_for_memory, self._out_of_memory_at = kills, now
        return now - self._out_of_memory_at < OUT_OF_MEMORY_SECONDS

    def _look(self) -> None:
        self._has_run_out_of_memory()
        seen = self._below()
        self._limit_shared_memory(seen)
        callers = self._callers(seen)
        for caller, count in Counter(callers[pid] for pid in seen).items():
            if count > self._most:
                self._stop_call(caller)

    def _below(self) -> dict[int, Process]:
        """All that is below this process, by its id."""
        pids = processes(self._proc) if self._proc is not None else children_of(children())
        found = {pid: look_at(pid, self._proc) for pid in pids if pid != os.getpid()}
        return {pid: process for pid, process in found.items() if process is not None}

    def _limit_shared_memory(self, seen: Mapping[int, Process]) -> None:
        """Of each process. No limit that the kernel has for a process counts it, and /dev/shm is not all of it."""
        limit = self._limits.memory_bytes
        for pid, process in seen.items():
            if process.shared_memory_bytes > limit:
                kill_each([pid])
                if (number := self._numbers.get(pid)) is not None:
                    self._reasons[number] = f"was killed: it took more than {limit:,} bytes of shared memory"

    def _callers(self, seen: Mapping[int, Process]) -> dict[int, int]:
        """By process, that of ours which it is or is below: of what a call has started, the call's child. This one of
        what has left its call. Each is looked at once, however long the chains are."""
        found = {pid: pid for pid in self._numbers}
        for start in seen:
            pid, way = start, list[int]()
            while pid not in found and pid in seen and len(way) < len(seen):  # ids may be given out again meanwhile
                way.append(pid)
                pid = seen[pid].parent
            caller = found.get(pid, os.getpid())
            for each in reversed(way):
                if caller == os.getpid() and seen[each].session in self._numbers:
                    caller = seen[each].session
                found[each] = caller
        return found

    def _stop_call(self, caller: int) -> None:
        """It has too many processes. It is stopped first and killed last: as long as it is there, what its processes
        leave comes to it, and none is lost sight of."""
        number = self._numbers.get(caller)
        if number is not None:
            self._reasons[number] = f"was killed: it had more than {self._most:,} processes"
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(caller, signal.SIGSTOP)
        self._kill_below(caller)
        if number is not None:
            kill_each([caller])

    def _kill_below(self, caller: int) -> None:
        """All that is below it, by whole groups, which none escapes by a fork; but for it and its own group."""
        until = time.monotonic() + KILL_SECONDS
        while time.monotonic() < until:
            seen = self._below()
            self._read_registry()  # as in _kill_orphans
            callers = self._callers(seen)
            found = {pid for pid in seen if pid not in self._numbers and callers[pid] == caller}
            # A group whose leader is outside of the namespace has the number 0 here: it is not the call's.
            for group in {seen[pid].group for pid in found} - self._numbers.keys() - {0, os.getpid(), os.getpgrp()}:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
            if kill_each(found) == found:  # none, or those of other users
                break

    def _register(self, number: int, pid: int, parent: int) -> None:
        self._pids[number] = pid
        self._numbers[pid] = number
        self._forked_by[number] = parent

    def _read_registry(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while (message := hear(self._registry)) is not None:
                if message.kind is Kind.EXITED:
                    self._ended(message.number, message.value)
                else:
                    self._register(message.number, message.value, int(message.text))
                    is_child = message.kind is Kind.FORK
                    make_expendable(message.value, 1.0 if is_child else EXPENDABLE_TEMPLATE, self._proc)
                    if is_child:
                        self._children.add(message.number)

    def _ended(self, number: int, status: int) -> None:
        """All that it has sent has been read: it was sent before its end was told, or before it could be reaped."""
        pid = self._pids.pop(number, None)
        if pid is None:
            return
        self._exited[number] = status
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and self._has_run_out_of_memory():
            self._reasons.setdefault(number, OUT_OF_MEMORY)
        del self._numbers[pid], self._forked_by[number]
        if number in self._children:
            self._children.remove(number)
            return
        # A fork server may have ended between reaping a child and telling us of it. One that lives will tell us.
        for each in [each for each, parent in self._forked_by.items() if parent == pid]:
            if each in self._pids and not _exists(self._pids[each]):
                self._ended(each, UNKNOWN_STATUS)

    def _reap(self) -> None:
        for pid, status in reaped():
            self._read_registry()  # a fork server reports a child before the child can become ours
            if (number := self._numbers.get(pid)) is not None:
                self._ended(number, status)

    def _sweep(self) -> None:
        """Kill what the dead have left us. Orphans of the living are with them: each child is a subreaper itself."""
        if not self._exited:
            return
        if self._kill_orphans():
            # Their own children come to us in turn; SIGCHLD or the next round finds them.
            self._reap()
            if self._kill_orphans():
                self._kill_below(os.getpid())
                return
        for number, status in self._exited.items():
            send_if_heard(self._runtime, Message(Kind.EXITED, number, status, self._reasons.pop(number, "")))
        self._exited.clear()

    def _kill_orphans(self) -> bool:
        found = children()
        self._read_registry()  # a fork server reports a child before the child can become ours
        orphans = found - self._numbers.keys() - self._foreign
        self._foreign |= kill_each(orphans)
        return not orphans <= self._foreign


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _fence() -> int:
    if not seccomp.is_supported():
        return -1
    try:
        return seccomp.fence_others()
    except OSError as error:
        sys.stderr.write(f"tools are not kept from changing limits and priorities of each other: {error}\n")
        return -1


def main(runtime: int, namespaces: str, proc: int | None, memory_bytes: int, scratch: str, most: int) -> None:
    """Run as the init process: in the interpreter that launch.py starts, after keeper.py has made the namespaces."""
    rehearse()
    # What is loaded now is shared with every process below until one of them writes to it; the collector would.
    gc.collect()
    gc.freeze()
    # No other descriptor of ours may be where those of the fork servers will be.
    if proc == CONTROL:
        proc = os.dup(proc)
    take_place(runtime, CONTROL)
    with socket.socket(fileno=CONTROL) as end:
        places = os.memfd_create("secret places")
        stacks, writes = pipe()
        for descriptor in (stacks, writes):
            os.set_blocking(descriptor, False)  # a dump that finds it full is cut, and never waits
        limits = Limits(memory_bytes, bool(namespaces), scratch, places, writes)
        Init(end, limits, stacks, proc, most, _fence()).run(namespaces)
        signal.set_wakeup_fd(-1)
    if not namespaces:
        kill_all()
