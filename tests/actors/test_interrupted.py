"""A host's thread is interrupted where CPython looks for that, in each member that it calls: the runtime answers
others, what was asked is over, and a start or a stop can be called again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callboard import Runtime, Settings
from callboard.actors.kernel import Actor, ActorSystem, LoopScheduler
from callboard.actors.kernel.reply import Ask, Reply
from callboard.protocol.errors import CallboardError
from callboard.providers.local.scripted import ScriptedTurn

PROGRAM = Path(__file__).resolve().parents[1] / "support" / "interrupted_host.py"
MEMBERS = """
    ask_sync ask_sync_other_model stream_sync left_stream start_request cancel operator tools outside reload_sync
    drain_sync start stop with alone ask stream
    stopped_asking stopped_streaming stopped_leaving stopped_beginning stopped_looking
""".split()  # noqa: SIM905 - to be read as a list


@pytest.mark.timeout(120)
@pytest.mark.parametrize("member", MEMBERS)
def test_whatever_instruction_is_interrupted_the_runtime_lives_and_nothing_is_left(member: str) -> None:
    ran = subprocess.run([sys.executable, PROGRAM, member], capture_output=True, text=True, timeout=110, check=False)
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen["left"] == {}
    assert seen["steps"] >= 2


class Limit(BaseException):
    """As KeyboardInterrupt."""


def settings() -> Settings:
    return Settings(model="scripted/x", script=lambda request: ScriptedTurn("hi"))


def raised_by(call: Callable[[], object], handler: Callable[..., None]) -> BaseException | None:
    """What a call raises during which a signal comes."""
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - the result
        return error
    finally:
        signal.signal(signal.SIGUSR1, before)
    return None


def signalling(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The signal comes when callboard's own thread is in this method of Runtime."""
    method, signals = getattr(Runtime, name), [signal.SIGUSR1]

    def called(runtime: Runtime, *given: object) -> None:
        if signals:
            os.kill(os.getpid(), signals.pop())
        method(runtime, *given)

    monkeypatch.setattr(Runtime, name, called)


def test_a_signal_handler_stops_a_runtime_that_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(settings())
    signalling(monkeypatch, "_start")
    error = raised_by(runtime.start, lambda *_: runtime.stop())
    assert isinstance(error, CallboardError)
    assert str(error) == "this runtime was stopped while it started"
    with runtime:
        assert runtime.ask_sync("?").text == "hi"


def test_a_stop_that_overtakes_the_start_it_was_asked_for_behind_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, start = Runtime(settings()), Runtime._start

    def overtaken(*given: Any) -> None:
        runtime.stop()
        start(*given)

    with monkeypatch.context() as patched:
        patched.setattr(Runtime, "_start", overtaken)
        with pytest.raises(CallboardError, match="stopped while it started"):
            runtime.start()
    with runtime:
        assert runtime.ask_sync("?").text == "hi"


def test_a_signal_handler_stops_a_runtime_that_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(settings()).start()
    signalling(monkeypatch, "_stop")
    assert raised_by(runtime.stop, lambda *_: runtime.stop()) is None
    with runtime:
        assert runtime.ask_sync("?").text == "hi"


@pytest.mark.parametrize("name", ["_start", "_stop"])
def test_what_interrupts_a_start_or_a_stop_leaves_a_runtime_that_can_start(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    runtime = Runtime(settings())
    if name == "_stop":
        runtime.start()

    def interrupted(*_: object) -> None:
        raise Limit

    signalling(monkeypatch, name)
    assert isinstance(raised_by(getattr(runtime, name[1:]), interrupted), Limit)
    with runtime:
        assert runtime.ask_sync("?").text == "hi"


def test_a_signal_handler_stops_a_runtime_that_is_asked() -> None:
    handled: list[int] = []

    def send() -> None:
        """Again, until it is handled: one that comes just before the thread begins to wait does not end the waiting."""
        pause = threading.Event()
        while not handled:
            os.kill(os.getpid(), signal.SIGUSR1)
            pause.wait(0.05)

    sender = threading.Thread(target=send)

    def script(request: object) -> ScriptedTurn:
        sender.start()
        return ScriptedTurn("hi", first_delay_seconds=60)

    def stop(number: int, _: object) -> None:
        handled.append(number)
        runtime.stop()

    def ask() -> None:
        try:
            runtime.ask_sync("?")
        finally:
            sender.join()  # before the handler goes

    runtime = Runtime(Settings(model="scripted/x", script=script)).start()
    assert str(raised_by(ask, stop)) == "the runtime is stopping"


class Echo(Actor):
    def on_receive(self, message: object) -> object:
        return message


def test_a_message_that_was_put_and_not_followed_by_a_wake_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = LoopScheduler("interrupted").start()
    system = ActorSystem(scheduler)
    echo = system.spawn(Echo, "echo")
    assert echo.ask(1, 5) == 1
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), scheduler.loop).result(5)  # the turn of that answer is over

    def interrupted(*_: object, **__: object) -> None:
        raise Limit

    reply: Reply[object] = Reply()
    with monkeypatch.context() as patched:
        patched.setattr(scheduler, "_wake", interrupted)
        with pytest.raises(Limit):
            echo.tell(Ask(2, reply))
    assert reply.get(timeout=5) == 2  # by the watchdog
    assert echo.ask(3, 5) == 3
    system.shutdown(5)
    scheduler.stop(5)
