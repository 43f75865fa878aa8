"""A host that forks while our threads run: the child neither hangs nor breaks, and the parent does not notice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, threading
from callboard.actors.kernel import Actor, ActorDeadError, ActorSystem, LoopScheduler
from callboard.actors.kernel.reply import Reply

class Echo(Actor):
    def on_receive(self, message):
        return message

scheduler = LoopScheduler("host").start()
system = ActorSystem(scheduler)
echo = system.spawn(Echo, "echo")
slow = system.spawn(Echo, "slow", runs_on="thread")
stop = threading.Event()

def hold():  # at each fork every lock is held by a thread that the child does not have
    with system.lock, system.dead_letters._lock:
        held.set()
        forked.wait()

def busy():
    while not stop.is_set():
        echo.tell("word")
        slow.ask("word", 5)
        system.statistics()
        system.dead_letters.counts()

threads = [threading.Thread(target=busy) for _ in range(3)]
for thread in threads:
    thread.start()

def child():
    for ref in (echo, slow):
        ref.tell("lost")
        try:
            ref.ask("hello", 5)
        except ActorDeadError:
            pass
        else:
            return 3
        if ref.is_alive():
            return 4
    if system.statistics().actors or system.tree():
        return 5
    if scheduler.block_until(Reply(), None):  # returns, although nothing will ever answer
        return 10
    system.shutdown(5)
    if not scheduler.stop(5):
        return 6
    fresh = LoopScheduler("child").start()
    own = ActorSystem(fresh)
    if own.spawn(Echo, "own").ask("new", 5) != "new":
        return 7
    own.shutdown(5)
    return 0 if fresh.stop(5) else 8

for _ in range(20):
    held, forked = threading.Event(), threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    pid = os.fork()
    if pid:
        forked.set()
        holder.join()
    else:
        try:
            os._exit(child())
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(9)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        os._exit(code)
stop.set()
for thread in threads:
    thread.join()
assert echo.ask("still here?", 5) == "still here?"
assert slow.ask("still here?", 5) == "still here?"
assert system.shutdown(5)
assert scheduler.stop(5)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_finds_all_actors_dead_and_can_start_its_own() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors.decode()
