"""A host's thread that is interrupted at each of its bytecodes at which CPython can be, by a trace that raises, in one
call after the other.

    python tests/support/interrupted_host.py MEMBER

There an exception of a signal handler, of Ctrl-C or of PyThreadState_SetAsyncExc comes. After each one the
runtime has to answer another thread, and what was asked has to be over. Prints what was left; "{}" for nothing. Of the
members that begin with "stopped", the runtime is stopped there, as by the handler of SIGTERM.
"""

from __future__ import annotations

import asyncio
import dis
import gc
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from strikes import LOOKS

from callboard import Conversation, Runtime, Settings, ask_sync
from callboard.protocol.errors import CallboardError
from callboard.providers.local.scripted import ScriptedTurn

#: For another thread to be answered, and for what was interrupted to be over; it takes milliseconds.
BOUND_SECONDS = 20.0
ROOT = str(Path(__file__).resolve().parents[2])
#: The threads of the one runtime that answers meanwhile.
OUTER = ["callboard-loop", "callboard-watchdog"]
SETTINGS = Settings(model="scripted/x", script=lambda request: ScriptedTurn("hi"))


class Interrupted(BaseException):
    """As KeyboardInterrupt: nothing catches it by its base."""


def interrupt() -> None:
    raise Interrupted


class Walk:
    """Interrupts one thread at the n-th point from now on at which CPython looks whether it is to be."""

    def __init__(self, at: int, is_ours_alone: bool) -> None:
        self.at, self.seen, self.where = at, 0, ""
        self.act: Callable[[], None] = interrupt
        self._last: dict[FrameType, int] = {}
        """In each frame that runs: its last bytecode."""
        self._is_ours_alone = is_ours_alone

    def run(self, call: Callable[[], object]) -> bool:
        """False where it has ended before."""
        sys.settrace(self._called)
        try:
            call()
        except Interrupted:
            return True
        finally:
            sys.settrace(None)
        return bool(self.where)  # raised in a callback of the garbage collector, or caught by an event loop

    def _called(self, frame: FrameType, event: str, argument: object) -> Any:
        path = frame.f_code.co_filename
        if path == __file__ or path.startswith("<frozen") or (self._is_ours_alone and ".dev/callboard" not in path):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "return":
            self._last.pop(frame, None)
        elif event == "opcode":
            before, self._last[frame] = self._last.get(frame, -1), frame.f_lasti
            self.seen += before >= 0 and dis.opname[frame.f_code.co_code[before]] in LOOKS
            if 0 < self.at == self.seen and not self.where:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
                sys.settrace(None)
                self._last.clear()  # a frame that is kept keeps its runtime
                self.act()
        return self._stepped


def within(condition: Callable[[], object]) -> bool:
    pause, until = threading.Event(), time.monotonic() + BOUND_SECONDS
    while not condition():
        if time.monotonic() > until:
            return False
        pause.wait(0.001)
    return True


def is_answered(runtime: Runtime) -> bool:
    answered: list[str] = []
    asking = threading.Thread(target=lambda: answered.append(runtime.ask_sync("?", timeout=10).text), daemon=True)
    asking.start()
    asking.join(BOUND_SECONDS)
    return answered == ["hi"]


def of_running(runtime: Runtime, call: Callable[[Conversation], object]) -> Callable[[Walk], str]:
    """A call of a runtime that runs on; what is left of it."""

    def interrupted(walk: Walk) -> str:
        conversation = Conversation()
        if not walk.run(lambda: call(conversation)):
            return "over"
        if not is_answered(runtime):
            return "the runtime answers no more"
        if not within(lambda: not runtime._live().requests and not runtime._live().beginning):
            return "a request"
        try:
            runtime.ask_sync("again", conversation=conversation)
        except CallboardError as error:
            return str(error)
        return ""

    return interrupted


def left_stream(runtime: Runtime, conversation: Conversation) -> None:
    for _ in runtime.stream_sync("hi", conversation=conversation):
        break


def own_threads() -> list[str]:
    gc.collect()  # a Runtime that was dropped in the midst of its start is ended then
    return sorted(each.name for each in threading.enumerate() if each.name.startswith("callboard-"))


def of_life(call: Callable[[Runtime], object], *, is_started: bool) -> Callable[[Walk], str]:
    """A call that starts or stops a runtime; afterwards it can be stopped, started and asked, and nothing is left."""

    def interrupted(walk: Walk) -> str:
        runtime = Runtime(SETTINGS)
        if is_started:
            runtime.start()
        if not walk.run(lambda: call(runtime)):
            runtime.stop()
            return "over"
        runtime.stop()
        with runtime:
            if not is_answered(runtime):
                return "the runtime answers no more"
        return "" if within(lambda: own_threads() == OUTER) else str(own_threads())

    return interrupted


def stopped_in(call: Callable[[Runtime], object]) -> Callable[[Walk], str]:
    """A call in which a signal handler stops the runtime."""

    def interrupted(walk: Walk) -> str:
        runtime = Runtime(SETTINGS).start()
        walk.act = runtime.stop
        begun, is_over = time.monotonic(), False
        try:
            is_over = not walk.run(lambda: call(runtime))
        except CallboardError:
            assert walk.where
        seconds = time.monotonic() - begun
        runtime.stop()
        if is_over or seconds > BOUND_SECONDS:
            return "over" if is_over else f"it took {seconds:.0f} s"
        return "" if within(lambda: own_threads() == OUTER) else str(own_threads())

    return interrupted


def entered(runtime: Runtime) -> None:
    with runtime as entered:
        entered.ask_sync("hi")


def asked_alone(walk: Walk) -> str:
    if not walk.run(lambda: ask_sync("hi", settings=SETTINGS)):
        return "over"
    return "" if within(lambda: own_threads() == OUTER) else str(own_threads())


def awaited(call: Callable[[], Any]) -> None:
    async def main() -> None:
        await call()

    try:
        asyncio.run(main())
    except CallboardError:
        return


def members(runtime: Runtime) -> dict[str, Callable[[Walk], str]]:
    async def streamed(conversation: Conversation) -> None:
        async for _ in runtime.stream("hi", conversation=conversation):
            pass

    on = partial(of_running, runtime)
    return {
        "ask_sync": on(lambda conversation: runtime.ask_sync("hi", conversation=conversation)),
        "ask_sync_other_model": on(lambda _: runtime.ask_sync("hi", model=f"scripted/{time.monotonic()}")),
        "stream_sync": on(lambda conversation: list(runtime.stream_sync("hi", conversation=conversation))),
        "left_stream": on(lambda conversation: left_stream(runtime, conversation)),
        "start_request": on(lambda _: runtime.start_request_sync("hi")),
        "cancel": on(lambda _: runtime.cancel("unknown") or runtime.cancel(runtime.stream_sync("hi").request_id)),
        "operator": on(lambda _: (runtime.tree(), runtime.statistics(), runtime.metrics(), runtime.dead_letters())),
        "tools": on(lambda _: (runtime.tools(), runtime.offered(), runtime.open_requests())),
        "outside": on(lambda _: runtime.complete_call("none", 1, "call", "x")),
        "reload_sync": on(lambda _: runtime.reload_sync(SETTINGS)),
        "drain_sync": of_life(lambda own: own.drain_sync(0.1), is_started=True),
        "start": of_life(lambda own: own.start(), is_started=False),
        "stop": of_life(lambda own: own.stop(), is_started=True),
        "with": of_life(entered, is_started=False),
        "alone": asked_alone,
        "stopped_asking": stopped_in(lambda own: own.ask_sync("hi")),
        "stopped_streaming": stopped_in(lambda own: list(own.stream_sync("hi"))),
        "stopped_leaving": stopped_in(lambda own: left_stream(own, Conversation())),
        "stopped_beginning": stopped_in(lambda own: own.start_request_sync("hi")),
        "stopped_looking": stopped_in(lambda own: (own.tree(), own.metrics(), own.dead_letters(), own.tools())),
        "ask": on(lambda conversation: awaited(lambda: runtime.ask("hi", conversation=conversation))),
        "stream": on(lambda conversation: awaited(lambda: streamed(conversation))),
    }


#: On the host's own event loop, only our code is interrupted: what it does with its handles is no part of callboard.
OURS_ALONE = ("ask", "stream")


def main(member: str) -> None:
    left: Counter[str] = Counter()
    with Runtime(SETTINGS) as runtime:
        interrupted = members(runtime)[member]
        interrupted(Walk(0, member in OURS_ALONE))  # once undisturbed: all is loaded
        at = steps = 0
        while True:
            at += 1
            walk = Walk(at, member in OURS_ALONE)
            found = interrupted(walk)
            if found == "over":
                break
            steps += 1
            if found:
                left[f"{found}: after {walk.where}"] += 1
                if "answers no more" in found:
                    break
    sys.stdout.write(json.dumps({"left": left, "steps": steps, "points": at}))


if __name__ == "__main__":
    main(sys.argv[1])
