"""How the processes below it have ended: what their parents see and what they tell may be far apart in time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from callboard.actors.processes.control import UNKNOWN_STATUS

#: A runtime, its init process, and a fork server whose moments are known: it does what `play` says.
PROGRAM = """
import json, os, signal, socket, sys, time
from callboard.actors.processes import init
from callboard.actors.processes.control import Kind, Message, hear, pair, pipe, send
from callboard.actors.processes.fork_server import CONTROL, Limits, take_place
from callboard.actors.processes.linux import inherit_orphans, kill_all

class FakeServer:
    def __init__(self, registry, limits):
        self.registry = socket.socket(fileno=registry)

    def run(self):
        play(self)

    def fork(self, number, does, kind=Kind.FORK):
        pid = os.fork()
        if pid == 0:
            does()
            os._exit(0)
        self.forked(number, pid, kind)
        return pid

    def forked(self, number, pid, kind=Kind.FORK):
        send(self.registry, Message(kind, number, pid, str(os.getpid())))

    def exited(self, number, status):
        send(self.registry, Message(Kind.EXITED, number, status))

    def meanwhile(self):
        "The init process reaps something else, and reads what it was told."
        reads, writes = os.pipe()
        between = os.fork()
        if between == 0:
            orphan = os.fork()
            if orphan:
                os.write(writes, str(orphan).encode())
            os._exit(0)
        os.waitpid(between, 0)
        orphan = int(os.read(reads, 20))
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                os.kill(orphan, 0)
            except ProcessLookupError:
                return
            time.sleep(0.001)
        os._exit(99)

PLAY

init.ForkServer = FakeServer
ours, theirs = pair()
if os.fork() == 0:
    ours.close()
    take_place(theirs.detach(), CONTROL)
    inherit_orphans()
    signal.signal(signal.SIGCHLD, lambda *_: None)
    stacks, writes = pipe()
    limits = Limits(1 << 40, False, "", stacks, writes)
    init.Init(socket.socket(fileno=CONTROL), limits, stacks, None, 1024).run("")
    kill_all()
    os._exit(0)
theirs.close()
ours.settimeout(20)
send(ours, Message(Kind.START, 1), (1,))
told = {}
while len(told) < EXPECTED:
    said = hear(ours)
    if said.kind is Kind.EXITED:
        told[said.number] = said.value
send(ours, Message(Kind.END, 0))
print(json.dumps(told))
"""

#: What the fork server does, and the wait status of each number that the runtime is told of.
PLAYS = {
    "a child exits, is reaped, and is told of later": (
        "status = os.waitpid(server.fork(2, lambda: os._exit(7)), 0)[1]\n"
        "server.meanwhile()\nserver.exited(2, status)\nsignal.pause()",
        {2: 7 << 8},
    ),
    "one is killed": (
        "status = os.waitpid(server.fork(2, lambda: os.kill(os.getpid(), 9)), 0)[1]\n"
        "server.meanwhile()\nserver.exited(2, status)\nsignal.pause()",
        {2: signal.SIGKILL},
    ),
    "one makes a forbidden system call": (
        "status = os.waitpid(server.fork(2, lambda: os.kill(os.getpid(), signal.SIGSYS)), 0)[1] & 0x7F\n"
        "server.meanwhile()\nserver.exited(2, status)\nsignal.pause()",
        {2: signal.SIGSYS},
    ),
    "two are reaped, and told of in another order": (
        "pids = [server.fork(number, lambda: os._exit(number)) for number in (2, 3)]\n"
        "found = [os.waitpid(pid, 0)[1] for pid in pids]\nserver.meanwhile()\n"
        "server.exited(3, found[1])\nserver.meanwhile()\nserver.exited(2, found[0])\nsignal.pause()",
        {2: 2 << 8, 3: 3 << 8},
    ),
    "one is reaped before its birth is told": (
        "pid = os.fork()\nif pid == 0: os._exit(9)\nstatus = os.waitpid(pid, 0)[1]\nserver.meanwhile()\n"
        "server.forked(2, pid)\nserver.meanwhile()\nserver.exited(2, status)\nsignal.pause()",
        {2: 9 << 8},
    ),
    "the fork server ends, and its child goes on and exits": (
        "parent = os.getpid()\ndef outlive():\n    while os.getppid() == parent: time.sleep(0.001)\n    os._exit(5)\n"
        "server.fork(2, outlive)",
        {1: 0, 2: 5 << 8},
    ),
    "the fork server ends with a child that it has not reaped": (
        "pid = server.fork(2, lambda: os._exit(4))\nos.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)",
        {1: 0, 2: 4 << 8},
    ),
    "the fork server ends between reaping and telling": (
        "os.waitpid(server.fork(2, lambda: os._exit(4)), 0)",
        {1: 0, 2: UNKNOWN_STATUS},
    ),
    "a template ends between reaping and telling": (
        "def be_template():\n    os.waitpid(server.fork(3, lambda: os._exit(4)), 0)\n    os._exit(6)\n"
        "status = os.waitpid(server.fork(2, be_template, Kind.TEMPLATE), 0)[1]\n"
        "server.exited(2, status)\nsignal.pause()",
        {2: 6 << 8, 3: UNKNOWN_STATUS},
    ),
    "a template and the fork server end between reaping and telling": (
        "def be_template():\n    os.waitpid(server.fork(3, lambda: os._exit(4)), 0)\n    os._exit(6)\n"
        "os.waitpid(server.fork(2, be_template, Kind.TEMPLATE), 0)",
        {1: 0, 2: UNKNOWN_STATUS, 3: UNKNOWN_STATUS},
    ),
}


@pytest.mark.parametrize("what", list(PLAYS))
def test_each_end_is_told_once_with_its_status_where_anyone_knows_it(what: str) -> None:
    lines, expected = PLAYS[what]
    play = "def play(server):\n" + "".join(f"    {line}\n" for line in lines.splitlines())
    program = PROGRAM.replace("PLAY", play).replace("EXPECTED", str(len(expected)))
    said = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=50)
    assert json.loads(said) == {str(number): status for number, status in expected.items()}
