"""A program with a journal on a disk of its own of 2 MB, which is full or read-only; it says what happened, as JSON.

    unshare --map-root-user --mount python small_disk.py FOLDER full
    unshare --map-root-user --mount python small_disk.py FOLDER read_only
    python small_disk.py FOLDER limit         # not a disk: no file may become larger than it is

A disk with a file that is open for writing cannot be made read-only (EBUSY), so that one is so before the start.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from callboard import Runtime, Settings, tool
from callboard.actors.journal.sqlite_journal import SqliteReader
from callboard.protocol.content import ToolMessage
from callboard.protocol.errors import CallboardError
from callboard.protocol.ids import RequestId
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

SIZE = "2m"
PATIENCE_SECONDS = 30.0
effects: list[str] = []
has_begun, may_end = threading.Event(), threading.Event()


@tool(isolation="thread")
def note(text: str) -> str:
    """Has an effect, at most once."""
    effects.append(text)
    return "noted"


@tool(isolation="thread")
def wait(text: str) -> str:
    """Runs until the disk has no more room."""
    has_begun.set()
    may_end.wait(PATIENCE_SECONDS)
    return "waited"


def model(request: ModelRequest) -> ScriptedTurn:
    """Calls the tool that the question names, and answers."""
    if isinstance(request.messages[-1], ToolMessage):
        return ScriptedTurn("done")
    asked = request.messages[-1].text  # type: ignore[union-attr]
    return ScriptedTurn(calls=(ScriptedCall(asked.split()[0], {"text": asked}),))


def told(ask: Callable[[], object]) -> str:
    """The answer, or the error and its kind, and the kinds of its causes."""
    try:
        return str(ask())
    except CallboardError as error:
        text, cause = f"{type(error).__name__}: {error}", error.__cause__
        while cause is not None:
            text, cause = f"{text} <- {type(cause).__name__}", cause.__cause__
        return text


def runtime(journal: Path) -> Runtime:
    return Runtime(Settings(model="scripted/model", script=model, journal=journal), tools=[note, wait])


@contextmanager
def no_room(folder: Path) -> Iterator[None]:
    """All of the disk is taken."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    try:
        yield
    finally:
        filler.unlink()


@contextmanager
def no_larger_file(folder: Path) -> Iterator[None]:
    """No file of this process may grow: SQLite sees an error of writing that is not "disk full"."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fails_for_a_while(folder: Path, failing: Callable[[Path], object]) -> dict[str, object]:
    """Requests before, while nothing can be written, and after."""
    journal = folder / "journal.sqlite"
    found: dict[str, object] = {}
    with runtime(journal) as running, ThreadPoolExecutor(8) as threads:
        found["before"] = told(lambda: running.ask_sync("note before", request_id="before"))
        caught = threads.submit(told, lambda: running.ask_sync("wait for it", request_id="caught"))
        has_begun.wait(PATIENCE_SECONDS)
        with failing(folder):  # type: ignore[attr-defined]
            may_end.set()
            found["caught"] = caught.result(PATIENCE_SECONDS)
            several = [threads.submit(told, lambda: running.ask_sync("note meanwhile")) for _ in range(6)]
            found["meanwhile"] = [each.result(PATIENCE_SECONDS) for each in several]
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while (after := told(lambda: running.ask_sync("note after"))) != "done" and time.monotonic() < give_up_at:
            time.sleep(0.1)
        found["after"] = after
    found["effects"] = sorted(set(effects))
    return found | ends(journal)


def ends(journal: Path) -> dict[str, object]:
    """What the journal says of the two that were named, once no one writes it, and whether another start finds it
    sound."""
    with runtime(journal) as again:
        found: dict[str, object] = {"again": told(lambda: again.ask_sync("note again"))}
    with closing(SqliteReader(journal)) as reader:
        for name in ("before", "caught"):
            log = reader.request(RequestId(name))
            end = None if log is None else log.end
            found[f"end of {name}"] = None if end is None else end.failure or str(end.finish and end.finish.outcome)
            found[f"damage of {name}"] = None if log is None else log.damage
        found["open"] = list(reader.open_requests())
        found["set aside"] = [each.why for each in reader.set_aside()]
    return found


def read_only(folder: Path) -> dict[str, object]:
    """The disk cannot be written when the runtime starts, and later it can."""
    journal = folder / "journal.sqlite"
    with runtime(journal) as running:
        found: dict[str, object] = {"before": told(lambda: running.ask_sync("note before", request_id="before"))}
    subprocess.run(["mount", "-t", "tmpfs", "-o", "remount,ro", "none", str(folder)], check=True)
    found["meanwhile"] = told(lambda: runtime(journal).start())
    for each in threading.enumerate():  # an actor's own thread that was told to end may take a moment
        if each is not threading.main_thread():
            each.join(20)
    found["threads"] = sorted(each.name for each in threading.enumerate() if each is not threading.main_thread())
    subprocess.run(["mount", "-t", "tmpfs", "-o", "remount,rw", "none", str(folder)], check=True)
    with runtime(journal) as running:
        found["after"] = told(lambda: running.ask_sync("note after"))
    return found | ends(journal)


def main() -> None:
    folder, way = Path(sys.argv[1]), sys.argv[2]
    if way != "limit":
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)], check=True)
    ways: dict[str, Callable[[], dict[str, object]]] = {
        "full": lambda: fails_for_a_while(folder, no_room),
        "limit": lambda: fails_for_a_while(folder, no_larger_file),
        "read_only": lambda: read_only(folder),
    }
    sys.stdout.write(json.dumps(ways[way]()) + "\n")


if __name__ == "__main__":
    main()
