"""Crashes in a simulated run, followed from outside: what has crashed, and nothing else, is started again in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from callboard.actors.kernel import DeadLetterReason
from callboard.actors.kernel.cell import Cell, State
from callboard.actors.kernel.supervisor import Supervisor
from callboard.actors.kernel.system import ActorSystem

#: Float sums of virtual times, in seconds.
EPSILON: Final = 1e-6
#: The pause before the second start in a row, where chance is a half as in each simulated run. It doubles with each.
FIRST_PAUSE_SECONDS: Final = 0.045
LONGEST_PAUSE_SECONDS: Final = 4.5
#: After a healthy time of this length the count begins again.
HEALTHY_SECONDS: Final = 30.0
#: Failures of its children that a supervisor bears, in so many seconds; with one more it ends.
BORNE: Final = {"root": (9, 10.0), "root/tools": (3, 5.0)}
#: Those that are started again, and nothing that a plan does not crash may be. The journal crashes by its own plan.
_PERMANENT: Final = ("root", "root/telemetry", "root/llm_manager", "root/tools", "root/dispatcher", "root/sessions")


class WatchedCrashes:
    """Of one process. `problems`: what was wrong, one sentence each."""

    def __init__(self, system: ActorSystem, problems: list[str], *, has_journal: bool) -> None:
        """`has_journal`: another actor may fail, by its own plan."""
        self._system = system
        self._has_journal = has_journal
        self.problems = problems
        self._starts: dict[str, list[float]] = {}
        """When each actor that has crashed is to be started again."""
        self._streaks: dict[str, tuple[int, float]] = {}
        """Crashes in a row, and when the last was."""
        self._planned: Counter[str] = Counter()
        """Crashes over a message."""
        self._failures: dict[str, list[float]] = {}
        """When children of each supervisor have failed."""
        self._unread: list[str] = []
        """Those that have crashed, and whose supervisor may not have read it yet."""
        self._has_ended = False
        """The root has given up."""
        self._said: set[str] = set()

    def crashes(self, name: str, *, over_message: bool) -> None:
        """An actor crashes now, over a message, or is killed."""
        cell = self._system._cells.get(name)
        if cell is None or cell.state in (State.WAITING, State.DEAD):
            return  # it is down already
        self._planned[name] += over_message
        if name in self._unread or name.rpartition("/")[0] in self._unread:
            self._are_read()  # the one before was: it runs again
        self._unread.append(name)

    def clock_jumps(self) -> None:
        """The loop is held up: a supervisor that has not read of a crash yet reads it behind, and counts from then."""
        self._are_read(behind=tuple(name for name in self._unread if self._is_unread(name)))

    def _are_read(self, behind: tuple[str, ...] = ()) -> None:
        read = [name for name in self._unread if name not in behind]
        self._unread = list(behind)
        for name in read:
            self._fails(name)

    def _is_unread(self, name: str) -> bool:
        cell = self._system._cells.get(name)
        supervisor = cell.parent.actor if cell is not None and cell.parent is not None else None
        if cell is None or cell.state is not State.WAITING or not isinstance(supervisor, Supervisor):
            return False
        child = supervisor._children.get(name.rpartition("/")[2])
        return child is not None and child.running is not None

    def crashes_unplanned(self, name: str) -> None:
        """It crashes now by no plan of the run; of sessions and workers nothing is known here."""
        if name.rpartition("/")[0] in BORNE:
            self.crashes(name, over_message=False)

    def _fails(self, name: str) -> None:
        now, parent = self._system.now(), name.rpartition("/")[0]
        most, period = BORNE[parent]
        if self._streaks.get(parent, (0, -1.0))[1] == now:
            return  # its supervisor ends
        failures = self._failures[parent] = [at for at in self._failures.get(parent, ()) if now - at < period] + [now]
        if len(failures) > most and parent != "root":
            self._failures[parent] = []
            self._fails(parent)
            return
        streak, last = self._streaks.get(name, (0, -HEALTHY_SECONDS))
        streak = 1 if now - last >= HEALTHY_SECONDS else streak + 1
        self._streaks[name] = streak, now
        pause = 0.0 if streak == 1 else min(FIRST_PAUSE_SECONDS * 2.0 ** (streak - 2), LONGEST_PAUSE_SECONDS)
        self._starts.setdefault(name, []).append(now + pause)
        for below in [other for other in self._starts if other.startswith(f"{name}/")]:
            del self._starts[below]  # what it had started is gone with it
            self._streaks.pop(below, None)

    def gives_up(self) -> None:
        """The root ends, and all with it: too many of its children have failed."""
        self._are_read()
        self._has_ended = True
        now, (most, period) = self._system.now(), BORNE["root"]
        failures = [at for at in self._failures.get("root", ()) if now - at < period]
        if len(failures) <= most and not self._has_journal:
            self.problems.append(f"restart: the root gives up at {now:g}, after failures at {failures}")

    def at_rest(self) -> None:
        """Nothing is left to do at this time: does each actor run that should?"""
        self._are_read()
        if self._has_ended:
            return
        cells = self._system._cells
        for name in (*_PERMANENT, *(name for name in self._starts if name.count("/") > 1)):
            cell = cells.get(name)
            if cell is None or name in self._said:
                continue
            if cell.restarts == 0 and cell.state is State.RUNNING and name not in self._starts:
                continue  # the rule of most moments, in short
            for told in self._wrong(name, cell):
                self._said.add(name)
                self.problems.append(f"restart: {name}, at {self._system.now():g}: {told}")

    def _wrong(self, name: str, cell: Cell) -> Iterator[str]:
        now, starts = self._system.now(), self._starts.get(name, [])
        due = sum(start <= now + EPSILON for start in starts)
        parent = name.rpartition("/")[0]
        beside = (each[-1] for other, each in self._starts.items() if other.rpartition("/")[0] == parent)
        # A supervisor may start nothing before the pause of another child is over.
        surely = 0 if max(beside, default=0.0) > now - EPSILON else sum(start <= now - EPSILON for start in starts)
        if not surely <= cell.restarts <= due:
            yield f"it was started again {cell.restarts} times, and it should be {due}: it was due at {starts}"
        elif surely == len(starts) and cell.state is not State.RUNNING:
            yield f"it is {cell.state.value}, and was to be started at {starts}"

    def at_end(self) -> Iterator[str]:
        """Each crash over a message is a dead letter, once."""
        letters = Counter(
            letter.recipient
            for letter in self._system.dead_letters.list()
            if letter.reason is DeadLetterReason.CRASHED and type(letter.message).__name__ == "PlannedCrash"
        )
        for name in sorted({*letters, *self._planned}):
            if letters[name] != self._planned[name]:
                yield f"crash: {name} has crashed {self._planned[name]} times, and left {letters[name]} dead letters"
