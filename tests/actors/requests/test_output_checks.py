"""Checks beside the control loop: bounded in number, in the asker's context, and waited for at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context

from pydantic import BaseModel, field_validator

from callboard.actors.requests.output_checks import CheckThreads, OutputChecker
from callboard.actors.requests.outputs import MAX_QUICK_CHARS, OutputType, output_type
from callboard.protocol.output import Checked

Until = Callable[[Callable[[], bool]], None]
ASKER: ContextVar[str] = ContextVar("ASKER", default="")
HELD = threading.Event()
SEEN: list[tuple[str, str]] = []


class Plain(BaseModel):
    name: str


class Held(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def wait(cls, name: str) -> str:
        SEEN.append((threading.current_thread().name, ASKER.get()))
        assert HELD.wait(30)
        return name


def type_of(kind: type[BaseModel]) -> OutputType[BaseModel]:
    found = output_type(kind)
    assert found is not None
    return found


def test_a_plain_type_is_checked_at_once_and_a_large_answer_on_a_thread(until: Until) -> None:
    threads: list[str] = []
    checker = OutputChecker(type_of(Plain), CheckThreads(), copy_context())

    def told(_: tuple[Checked, ...]) -> None:
        threads.append(threading.current_thread().name)

    checker.check(('{"name": "a"}',), told)
    assert threads == [threading.current_thread().name]
    large = '{"name": "%s"}' % ("x" * MAX_QUICK_CHARS)
    checker.check((large,), told)
    until(lambda: len(threads) == 2)
    assert threads[1] == "callboard-output"
    assert checker.taken(large) == Plain(name="x" * MAX_QUICK_CHARS)
    assert checker.taken('{"name": "a"}') is None  # of an earlier turn


def test_code_of_the_user_s_runs_on_a_few_threads_in_the_asker_s_context(until: Until) -> None:
    HELD.clear()
    SEEN.clear()
    threads, told = CheckThreads(limit=2), list[tuple[Checked, ...]]()
    ASKER.set("anna")
    context = copy_context()
    ASKER.set("")
    checkers = [OutputChecker(type_of(Held), threads, context) for _ in range(5)]
    for checker in checkers:
        checker.check(('{"name": "a"}', '{"name": 3}'), told.append)
    until(lambda: len(SEEN) == 2)
    assert not told
    HELD.set()
    until(lambda: len(told) == 5)
    assert SEEN == [("callboard-output", "anna")] * 5
    assert all(fits.fits and not misfit.fits for fits, misfit in told)
    assert [checker.taken('{"name": "a"}') for checker in checkers] == [Held.model_construct(name="a")] * 5


def test_what_waits_is_forgotten_at_the_end_and_what_runs_is_waited_for(until: Until) -> None:
    HELD.clear()
    SEEN.clear()
    threads, told = CheckThreads(limit=1), list[tuple[Checked, ...]]()
    for _ in range(2):
        OutputChecker(type_of(Held), threads, copy_context()).check(('{"name": "a"}',), told.append)
    until(lambda: len(SEEN) == 1)
    closing = threading.Thread(target=threads.close)
    closing.start()
    HELD.set()
    closing.join(30)
    assert not closing.is_alive()
    assert len(told) == 1


def test_where_no_thread_is_to_be_had_the_check_has_failed() -> None:
    class NoThreads(CheckThreads):
        def run(self, work: Callable[[], None]) -> None:
            raise RuntimeError("can't start new thread")

    told: list[tuple[Checked, ...]] = []
    OutputChecker(type_of(Held), NoThreads(), copy_context()).check(("{}",), told.append)
    ((checked,),) = told
    assert checked.is_broken
    assert "can't start new thread" in checked.misfit
