"""What questions to the code index wait for, and for how long, on an index that is slow, not whole yet, or fails.

`CodeSearch` and the actors `Rag` and `Indexer` are the real ones, on threads in virtual time; so is the index, but that
another process seems to build it, that reading files takes long, and that it fails when it is told to.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors.index.code_index import Around, CodeIndex
from callboard.actors.index.database import BrokenIndexError
from callboard.actors.index.disk import IndexWriteError
from callboard.actors.index.rag import CodeSearch, Indexer, Rag
from callboard.actors.index.refresh import ProgressCallback, RefreshSummary
from callboard.actors.index.searching import NO_FILTERS, Filters
from callboard.actors.kernel import ActorSystem, AskTimeout, Backoff, ChildSpec, Supervisor
from callboard.actors.kernel.reply import Reply
from callboard.actors.testing.index_files import new_folder
from callboard.actors.testing.simulated_loop import SimulatedLoop
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.protocol.code_fences import AssembledContext
from callboard.protocol.errors import RuntimeFailure, UsageError

#: How exact an answer's time is: a few looks, each of which takes some hundredths of a second here.
NEARLY: Final = 0.6
LOOK_SECONDS: Final = 0.02
#: What is in which file of the workspace, and of the part that is indexed first.
FILES: Final = {"a.py": "zorble", "b.py": "quimby", "c.py": "frabjo"}
PART: Final = ("a.py",)
#: For a question, as it is written down: a share of its time for waiting, and a moment for one that is whole.
WAITING_SHARE: Final = 0.9
PATIENCE_SECONDS: Final = 5.0
FRESH_SECONDS: Final = 2.0


class Course(Struct):
    """What becomes of the index, in virtual seconds."""

    now: Callable[[], float]
    wait: Callable[[float], object]
    whole_at: float = 0.0
    """Until then another process builds it."""
    read_seconds: float = 0.0
    """How long a look at all files takes."""
    failures: list[Exception] = field(default_factory=list)
    """What the next looks at all files raise."""
    broken: int = 0
    """So many of the next questions find it damaged."""
    looks: int = 0
    """How often all files were looked at."""


class SlowIndex(CodeIndex):
    """A real one, but for its course."""

    course: Course

    def refresh(
        self,
        progress: ProgressCallback | None = None,
        paths: Sequence[str] | None = None,
        wait_seconds: float | None = None,
    ) -> RefreshSummary:
        """As the real one, or as while another process has the index."""
        course = self.course
        if paths is None:
            course.looks += 1
            if course.failures:
                raise course.failures.pop(0)
            course.wait(course.read_seconds)
        if course.now() < course.whole_at:
            course.wait(min(wait_seconds or 0.0, course.whole_at - course.now()))
            if course.now() < course.whole_at:
                return RefreshSummary(note="another process builds it", is_complete=False)
        return super().refresh(progress, paths, 0.0)

    def search_around(self, questions: Sequence[str], k: int, centres: int, filters: Filters = NO_FILTERS) -> Around:
        """As the real one, or it is damaged."""
        self.course.wait(LOOK_SECONDS)
        if self.course.broken:
            self.course.broken -= 1
            raise BrokenIndexError("a page is damaged")
        return super().search_around(questions, k, centres, filters)


class Waits:
    """A workspace of three files, its actors, and who asks them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"index waits {seed}")
        self.folder = new_folder()
        self.root = self.folder / "work"
        self.root.mkdir()
        for name, word in FILES.items():
            (self.root / name).write_text(f"def {word}(value):\n    return value + 1\n")
        self.problems: list[str] = []
        self.simulation = simulation = SimulatedScheduler(seed)
        self.system = ActorSystem(simulation)
        self.loop = SimulatedLoop(simulation)
        self.course = Course(simulation.now, lambda seconds: simulation.block_until(Reply(None), seconds))
        self.store = self.folder / "store"
        specs: tuple[ChildSpec[Any], ...] = (
            ChildSpec("rag", lambda: Rag(lambda: self.open(rebuilds=False), [self.root]), runs_on="thread"),
            ChildSpec("indexer", lambda: Indexer(self.open), runs_on="thread"),
        )
        specs = tuple(replace(each, backoff=Backoff(0, 0), intensity=1_000_000) for each in specs)
        self.system.spawn(lambda: Supervisor(specs), "root")
        self.pass_time(0.3)
        self.search = CodeSearch(self.system)
        self.told: list[str] = []

    def open(self, *, rebuilds: bool = True) -> CodeIndex:
        """For an actor."""
        index = SlowIndex.open(self.root, self.store, embedder=None, rebuilds=rebuilds)
        index.course = self.course
        return index

    def wrong(self, what: str) -> None:
        """Something is not as promised."""
        if len(self.problems) < 3:
            self.problems.append("; ".join([*self.told, what]).replace(f"{self.root}/", ""))

    def say(self, what: str) -> None:
        """For the story of a problem."""
        self.told.append(f"at {self.simulation.now():.1f} s {what}")

    async def timed(self, coroutine: Awaitable[Any]) -> tuple[float, Any]:
        """When it ended, and what it came to."""
        try:
            found = await coroutine
        except Exception as error:  # noqa: BLE001  judged by who asks
            found = error
        return self.simulation.now(), found

    def ask(self, coroutine: Coroutine[Any, Any, Any]) -> tuple[float, Any]:
        """One at a time."""
        found = self.loop.outcome(self.timed(coroutine))
        return (self.simulation.now(), found) if isinstance(found, Exception) else found

    def pass_time(self, seconds: float) -> None:
        """Nobody asks."""
        self.simulation.run_until_idle(until_seconds=self.simulation.now() + seconds)

    # -- an index that is not whole yet

    def unfinished(self) -> None:
        """Another process builds the index, of which a part can be searched, or nothing yet."""
        rng, course = self.rng, self.course
        has_part = rng.random() < 0.7
        if has_part:
            with CodeIndex.open(self.root, self.store, embedder=None) as index:
                index.refresh(paths=[str(self.root / name) for name in PART])
        course.whole_at = rng.choice((0.5, 3.0, 7.0, 12.0, 40.0))
        self.say(f"another process builds the index until {course.whole_at}, with a part: {has_part}")
        asked = [self._asked(has_part) for _ in range(rng.choice((1, 2, 3)))]
        # All wait for one another in the mailbox of one actor.
        tasks = [self.loop.create_task(each) for each in asked]
        while not all(task.done() for task in tasks):
            if not self.simulation.step():
                self.wrong("a question waits for what never comes")
                return
        for task in tasks:
            task.result()

    async def _asked(self, has_part: bool) -> None:
        rng, course = self.rng, self.course
        began = self.simulation.now()
        seconds, word = rng.choice((2.0, 10.0, 30.0)), rng.choice(list(FILES.values()))
        is_in_part = has_part and word == FILES[PART[0]]
        until = began + seconds * WAITING_SHARE
        if rng.random() < 0.5:
            what = f"search for {word} within {seconds}"
            ended, found = await self.timed(self.search.search(word, 2_000, seconds))
            is_found = isinstance(found, AssembledContext) and f"def {word}" in str(found.context)
            is_said = isinstance(found, AssembledContext) and "is being built" in found.note
            may_end = course.whole_at if course.whole_at < until else until
        else:
            what = f"look up {word} within {seconds}"
            ended, found = await self.timed(self.search.lookup(word, "function", timeout_seconds=seconds))
            is_found = not isinstance(found, Exception) and [each.name for each in found] == [word]
            is_said = is_in_part  # an item is what it is
            may_end = course.whole_at if course.whole_at < until else until
            if is_in_part:
                may_end = min(may_end, began + min(PATIENCE_SECONDS, seconds * WAITING_SHARE))
        told = f"{what} came at {ended:.1f} s to {found!r}"[:600]
        if abs(course.whole_at - until) < NEARLY:
            return
        if course.whole_at < until or is_in_part:
            if not is_found:
                self.wrong(f"{told}: it is not found")
            elif course.whole_at > until and not is_said:
                self.wrong(f"{told}: it is not said that the index is being built")
            elif course.whole_at < until and isinstance(found, AssembledContext) and found.note:
                self.wrong(f"{told}: an answer from a whole index has a note")
        elif not isinstance(found, UsageError) or "so far" not in str(found):
            self.wrong(f"{told}: it is not said that nothing was found so far")
        if ended > may_end + NEARLY:
            self.wrong(f"{told}: it was to come at {may_end:.1f} s")
        if ended < min(course.whole_at, until) - NEARLY and not is_in_part:
            self.wrong(f"{told}: it did not wait for the index")

    # -- an index that is whole

    def whole(self) -> None:
        """It is built; files change, looks at them are slow or fail, and questions come one by one or at once."""
        self.say("the index is built")
        _, found = self.ask(self.search.prepared(timeout_seconds=30.0))
        if not isinstance(found, RefreshSummary) or (found.indexed, found.is_complete) != (len(FILES), True):
            self.wrong(f"the first look came to {found!r}")
            return
        for _ in range(self.rng.choice((1, 3))):
            deeds = (self.many_at_once, self.slow_look, self.failing_look, self.damaged, self.changed, self.soon)
            self.rng.choice(deeds)()
            if self.problems:
                return
            self.pass_time(self.rng.choice((0.0, 3.0)))

    def _check_found(self, word: str, found: Any, note: str = "") -> None:
        if not isinstance(found, AssembledContext) or f"def {word}" not in str(found.context):
            self.wrong(f"a search for {word} came to {found!r}"[:600])
        elif (note not in found.note) if note else found.note:
            self.wrong(f"a search for {word} tells {found.note!r}, and is to tell {note!r}")

    def many_at_once(self) -> None:
        """One look at the files serves them all, as it does the next two seconds."""
        self.pass_time(2 * FRESH_SECONDS)
        self.say("several ask at once")
        looks, words = self.course.looks, [self.rng.choice(list(FILES.values())) for _ in range(4)]
        tasks = [self.loop.create_task(self.timed(self.search.search(word, 2_000))) for word in words]
        while not all(task.done() for task in tasks) and self.simulation.step():
            continue
        for word, task in zip(words, tasks, strict=True):
            self._check_found(word, task.result()[1])
        if self.course.looks != looks + 1:
            self.wrong(f"{self.course.looks - looks} times all files were looked at, for questions at one time")
        self.pass_time(FRESH_SECONDS + 1.0)
        self.ask(self.search.search("zorble", 2_000))
        if self.course.looks != looks + 2:
            self.wrong("a question three seconds later was answered without a look at the files")

    def slow_look(self) -> None:
        """A question waits for a look at the files no longer than a moment, and what is there answers it."""
        self.pass_time(2 * FRESH_SECONDS)
        rng = self.rng
        self.course.read_seconds, seconds = rng.choice((1.0, 4.0, 9.0)), rng.choice((3.0, 30.0))
        began = self.simulation.now()
        self.say(f"a look at all files takes {self.course.read_seconds} s, and a question has {seconds} s")
        patience = min(PATIENCE_SECONDS, seconds * WAITING_SHARE)
        if rng.random() < 0.3:
            ended, found = self.ask(self.search.refresh(timeout_seconds=seconds))
            is_late = self.course.read_seconds > seconds
            if isinstance(found, AskTimeout) != is_late or isinstance(found, RefreshSummary) == is_late:
                self.wrong(f"a look at the files, within {seconds} s, came to {found!r}")
        else:
            word = rng.choice(list(FILES.values()))
            ended, found = self.ask(self.search.search(word, 2_000, seconds))
            self._check_found(word, found)
            if abs(ended - began - min(patience, self.course.read_seconds)) > NEARLY:
                self.wrong(f"a question was answered after {ended - began:.1f} s")
        self.course.read_seconds = 0.0
        self.pass_time(30.0)

    def failing_look(self) -> None:
        """What hinders a look at the files is told; what is indexed can be asked for all the same, and later all."""
        self.pass_time(2 * FRESH_SECONDS)
        error = self.rng.choice((IndexWriteError("no room"), UsageError("no folder"), ZeroDivisionError("oh")))
        self.course.failures.append(error)
        self.say(f"a look at the files raises {error!r}")
        if self.rng.random() < 0.3:
            _, found = self.ask(self.search.refresh(timeout_seconds=5.0))
            due: type[Exception] = type(error) if isinstance(error, UsageError) else RuntimeFailure
            if type(found) is not due or str(error) not in str(found):
                self.wrong(f"the look came to {found!r}")
        elif isinstance(error, IndexWriteError):
            _, found = self.ask(self.search.search("quimby", 2_000))
            self._check_found("quimby", found, "no room")
        else:
            _, found = self.ask(self.search.search("quimby", 2_000))
            if not isinstance(found, UsageError | RuntimeFailure) or str(error) not in str(found):
                self.wrong(f"a question came to {found!r}")
        self._check_found("quimby", self.ask(self.search.search("quimby", 2_000))[1])

    def damaged(self) -> None:
        """Some questions find the index damaged: it is looked at again, and they are answered."""
        self.course.broken = self.rng.choice((1, 2))
        self.say(f"{self.course.broken} questions find the index damaged")
        self._check_found("frabjo", self.ask(self.search.search("frabjo", 2_000))[1])

    def changed(self) -> None:
        """What `changed` was told of is in the index; what else has changed, a question sees that comes later."""
        for name in ("a.py", "b.py"):
            word = f"helper{self.rng.randrange(10**6)}"
            (self.root / name).write_text(f"def {FILES[name]}(value):\n    return {word}(value)\n\n\n{word} = 1\n")
        self.say("files are changed, and the index is told of one of them")
        _, found = self.ask(self.search.changed([self.root / "a.py"]))
        if not isinstance(found, RefreshSummary) or (found.indexed, found.unchanged) != (1, 0):
            self.wrong(f"one changed file is told of, and it comes to {found!r}")
        self.pass_time(FRESH_SECONDS + 0.1)
        _, found = self.ask(self.search.refresh(timeout_seconds=5.0, max_age_seconds=FRESH_SECONDS))
        if not isinstance(found, RefreshSummary) or found.indexed != 1:
            self.wrong(f"the other changed file is looked for, and it comes to {found!r}")

    def soon(self) -> None:
        """Nobody waits for it, and it is done; a look-up in vain has looked at the files as they are, too."""
        name, word = f"new{self.rng.randrange(10**6)}.py", f"fresh{self.rng.randrange(10**6)}"
        (self.root / name).write_text(f"def {word}():\n    return 1\n")
        self.say(f"{name} is new")
        if self.rng.random() < 0.5:
            self.search.refresh_soon()
            self.pass_time(0.1)
            found = self.ask(self.search.ask_index(lambda index: index.search(word, 1)))[1]
        else:
            found = self.ask(self.search.lookup(word))[1]
        if isinstance(found, Exception) or [each.name for each in found] != [word]:
            self.wrong(f"it is looked for, and it comes to {found!r}")
        (self.root / name).unlink()
        found = self.ask(self.search.lookup(word))[1]
        if found:
            self.wrong(f"it is gone, and is found: {found!r}")

    def end(self) -> None:
        """Leave nothing."""
        self.course.whole_at = 0.0
        self.loop.end(self.system)
        shutil.rmtree(self.folder)


def play(seed: int) -> list[str]:
    """What is not as promised, in one play of it."""
    waits = Waits(seed)
    try:
        waits.rng.choice((waits.unfinished, waits.whole))()
    finally:
        waits.end()
    return waits.problems
