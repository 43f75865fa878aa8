"""The way of one tool call: which files it enters, and in how many shapes it is carried.

    python benchmarks/walk.py [--isolation process|task|thread] [--functions] [--counts]

One request runs on a real Runtime against the wire double: the model asks for one call, and its result goes back. The
walk begins with the bytes of the answer that ask for the call and ends when the bytes of the request that carries its
result are made. In between, `sys.setprofile` sees every function of the three packages, on all threads and in the
child process. A call of the same tool has gone before, so that what is made once (a loop, a child) is there.

A *file* is entered when one of its functions has the call in hand: its id, arguments, result or Tag is among the
function's arguments, locals or return value, or in an object, list or dict there, at most three levels down. A rate
limiter that happens to run meanwhile does not count, nor does what only measures the call: a file whose functions, with
the call in hand, gave back numbers and nothing else (how many tokens a text has) hands nothing on.

A *shape* is a class of which an instance was seen that names the call in a field of its own: by its id, its Tag or its
arguments. The Tag itself is none, nor is what holds raw bytes of a stream. A class whose fields hold such an instance
is a *wrapper*.

What becomes of a call is reported once it has ended (protocol/reports.py, collected by step_log.py): that goes into the
Reply, and no later step reads it, so neither is on the way. These, wrappers, what only measures, the kernel and the
test gear are printed apart.

When the work on the middle of the engine began, this counted 37 files and 14 shapes for a process tool (51 files with
the kernel and with those that ran without the call in hand).

`--counts` prints the product's lines and how often it says `Any`: all .py of the three packages but `testing/`.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import callboard.actors
import callboard.protocol
import callboard.providers
from callboard.actors import tool

#: In the arguments, in the result, and the call's id: nothing else in a run has these texts in it.
ARGUMENT: Final = "walk-of-one-call"
RESULT: Final = "result-of-the-walk"
CALL_ID: Final = "call_walk"
#: How deep the call may be in an object that a function holds.
DEPTH: Final = 3
#: Arguments as JSON are shorter than this; an event of a stream, or a body, is longer.
LONGEST_ARGUMENTS: Final = 60
#: What says afterwards how a call ended.
REPORTS: Final = ("protocol/reports.py", "protocol/step_log.py")
#: The variables by which a child finds the log, and knows that it is no host.
LOG: Final = "CALLBOARD_WALK_LOG"
HOST: Final = "CALLBOARD_WALK_HOST"

PACKAGES: Final = {
    str(Path(package.__file__ or "").resolve().parent): package.__name__.rpartition(".")[2]
    for package in (callboard.actors, callboard.protocol, callboard.providers)
}


@tool
def in_process(word: str) -> str:
    return RESULT


@tool
async def in_task(word: str) -> str:
    return RESULT


@tool(isolation="thread")
def in_thread(word: str) -> str:
    return RESULT


TOOLS: Final = {"process": in_process, "task": in_task, "thread": in_thread}


# -- what a function has in hand


def names_the_call(value: object) -> bool:
    """Is it a text, bytes or a Tag of the call?"""
    if isinstance(value, str):
        return any(text in value for text in (CALL_ID, ARGUMENT, RESULT))
    if isinstance(value, bytes | bytearray):
        return any(text.encode() in value for text in (CALL_ID, ARGUMENT, RESULT))
    return type(value).__name__ == "Tag" and getattr(value, "call_id", None) == CALL_ID


def is_ours(value: object) -> bool:
    return (type(value).__module__ or "").startswith("callboard.") and not isinstance(value, type)


def fields_of(value: object) -> list[object]:
    """The values of its fields: of a NamedTuple, of slots, of a `__dict__`. No property is asked."""
    if isinstance(value, tuple):
        return list(value)
    names: dict[str, None] = {}
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        names.update(dict.fromkeys([slots] if isinstance(slots, str) else slots))
    found = []
    for name in (*names, *getattr(value, "__dict__", {})):
        try:
            found.append(object.__getattribute__(value, name))
        except AttributeError:  # a slot that was never set
            continue
    return found


def in_hand(value: object, depth: int) -> bool:
    """Is the call here, at most `depth` levels down?"""
    if names_the_call(value):
        return True
    if depth == 0:
        return False
    if isinstance(value, dict):
        return any(in_hand(each, depth - 1) for each in list(value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(in_hand(each, depth - 1) for each in list(value))
    return is_ours(value) and any(in_hand(each, depth - 1) for each in fields_of(value))


def is_shape(value: object) -> bool:
    """Does it name the call in a field of its own?"""
    for each in fields_of(value):
        if type(each).__name__ == "Tag" and names_the_call(each):
            return True
        if isinstance(each, str) and (each == CALL_ID or (ARGUMENT in each and len(each) < LONGEST_ARGUMENTS)):
            return True
    return False


_files: dict[str, str] = {}


def file_of(code: CodeType) -> str:
    """Such as "actors/runtime.py"; "" outside the three packages."""
    path = code.co_filename
    if path not in _files:
        real = os.path.realpath(path)
        _files[path] = next((n + real[len(root) :] for root, n in PACKAGES.items() if real.startswith(f"{root}/")), "")
    return _files[path]


@dataclass
class Seen:
    """By name, with the first function that showed it."""

    ran: dict[str, str] = field(default_factory=dict)
    entered: dict[str, str] = field(default_factory=dict)
    gave_more: dict[str, str] = field(default_factory=dict)
    """Files entered, by a function that gave back more than a number."""
    shapes: dict[str, str] = field(default_factory=dict)
    wrappers: dict[str, str] = field(default_factory=dict)

    def see(self, frame: FrameType, event: str, result: object = None) -> None:
        """One function, at its start or its end."""
        name = file_of(frame.f_code)
        if not name:
            return
        function = f"{name} {frame.f_code.co_qualname}"
        values = [*frame.f_locals.values(), result]
        self.ran.setdefault(name, function)
        if any(in_hand(value, DEPTH) for value in values):
            self.entered.setdefault(name, function)
            if event == "return" and type(result) not in (int, float):
                self.gave_more.setdefault(name, function)
        for value in values:
            for each in (value, *value) if type(value) in (list, tuple) else (value,):
                self._look_at(each, function)

    def _look_at(self, value: object, function: str) -> None:
        kind = type(value)
        if not is_ours(value) or kind.__name__ == "Tag":
            return
        if is_shape(value):
            self.shapes.setdefault(f"{kind.__module__}.{kind.__qualname__}", function)
        elif any(is_ours(each) and is_shape(each) for each in fields_of(value)):
            self.wrappers.setdefault(f"{kind.__module__}.{kind.__qualname__}", function)

    def add(self, parts: Iterable[dict[str, str]]) -> None:
        """What was seen elsewhere."""
        for own, other in zip(self._parts(), parts, strict=True):
            for name, function in other.items():
                own.setdefault(name, function)

    def to_json(self) -> str:
        return json.dumps([time.monotonic(), *self._parts()])

    def _parts(self) -> tuple[dict[str, str], ...]:
        return self.ran, self.entered, self.gave_more, self.shapes, self.wrappers


# -- in the child: it imports this module to find its tool


def _child_profile(frame: FrameType, event: str, result: object) -> None:
    if event in ("call", "return") and file_of(frame.f_code):
        seen = Seen()
        seen.see(frame, event, result)
        log = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(log, f"{seen.to_json()}\n".encode())
        os.close(log)


if LOG in os.environ and os.environ.get(HOST) != str(os.getpid()):
    sys.setprofile(_child_profile)
    # A child that takes several calls puts this back after each of them.
    sys.setprofile = lambda _profile: None


# -- in the host


class Walk:
    """A profile function that is deaf until it is armed, and then sees one walk."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.is_armed = self.is_on = False
        self.began = self.ended = 0.0

    def __call__(self, frame: FrameType, event: str, result: object) -> None:
        if not self.is_armed or event not in ("call", "return"):
            return
        if self.is_on:
            self.seen.see(frame, event, result if event == "return" else None)
            body = getattr(result, "body", None) if event == "return" else None
            if isinstance(body, bytes) and RESULT.encode() in body and file_of(frame.f_code):
                self.is_armed = self.is_on = False
                self.ended = time.monotonic()
        elif event == "call" and file_of(frame.f_code).startswith("providers/"):
            arrived = [value for value in frame.f_locals.values() if isinstance(value, bytes | bytearray)]
            if any(ARGUMENT.encode() in value for value in arrived):
                self.is_on = True
                self.began = time.monotonic()
                outer: FrameType | None = frame
                while outer is not None:  # those who are reading just now
                    self.seen.see(outer, "call")
                    outer = outer.f_back

    def add_child(self, log: Path) -> None:
        """What the child wrote in the time of the walk."""
        for line in log.read_text().splitlines() if log.exists() else ():
            at, *parts = json.loads(line)
            if self.began <= at <= self.ended:
                self.seen.add(parts)


async def walk_of(isolation: str) -> Seen:
    """Run it."""
    from callboard.actors import Runtime, Settings  # noqa: PLC0415 - the child imports this module too
    from callboard.actors.testing.wire_double import Call, Turn, WireDouble  # noqa: PLC0415

    # By its module's name, not as __main__: so the child imports it.
    walked = importlib.import_module("walk").TOOLS[isolation]
    turns = [
        Turn(calls=(Call(walked.name, {"word": "before"}, "call_before"),)),
        Turn("There it is."),
        Turn(calls=(Call(walked.name, {"word": ARGUMENT}, CALL_ID),), fragment=LONGEST_ARGUMENTS),
        Turn("Done."),
    ]
    walk = Walk()
    with tempfile.TemporaryDirectory() as folder, WireDouble(turns) as double:
        log = Path(folder) / "log"
        os.environ.update({LOG: str(log), HOST: str(os.getpid())})
        settings = Settings(
            model="openai-compatible/m", base_url=double.base_url(), api_key="k", tool_environment=(LOG, HOST)
        )
        threading.setprofile(walk)
        sys.setprofile(walk)
        try:
            async with Runtime(settings, tools=[walked]) as runtime:
                await runtime.ask("once")
                await asyncio.sleep(0.3)  # for what is done after a call: another child is made ready
                walk.is_armed = True
                await runtime.ask("and again")
        finally:
            threading.setprofile(None)
            sys.setprofile(None)
        walk.add_child(log)
    if walk.is_armed:
        sys.exit("the walk has no end: the call did not come, or its result did not go back")
    return walk.seen


def is_kernel(name: str) -> bool:
    return name.startswith("actors/kernel/") or "/testing/" in name


def is_report(shape: str) -> bool:
    module = shape.rpartition(".")[0].removeprefix("callboard.")
    return f"{module.replace('.', '/')}.py" in REPORTS


def show(title: str, found: dict[str, str], functions: bool) -> None:
    print(f"\n{len(found)} {title}")
    for name, function in found.items():
        print(f"  {name:<56}{function if functions else ''}".rstrip())


def show_walk(isolation: str, seen: Seen, functions: bool) -> None:
    entered = {name: first for name, first in seen.entered.items() if not is_kernel(name)}
    files = {name: first for name, first in entered.items() if name in seen.gave_more and name not in REPORTS}
    measuring = {name: first for name, first in entered.items() if name not in seen.gave_more}
    only_ran = {name: first for name, first in seen.ran.items() if name not in entered}
    shapes = {name: first for name, first in seen.shapes.items() if not is_report(name)}
    reports = {name: first for name, first in entered.items() if name in REPORTS}
    reports |= {name: first for name, first in seen.shapes.items() if is_report(name)}
    print(f"{isolation}: {len(files)} files besides the kernel, {len(shapes)} shapes")
    show("files with the call in hand", files, functions)
    show("files that only measure it, not counted", measuring, functions)
    show("shapes", shapes, functions)
    show("files and shapes of reports, not counted", reports, functions)
    show("wrappers, not counted", seen.wrappers, functions)
    show("files of the kernel, and such that ran without the call in hand, not counted", only_ran, functions)


def show_counts() -> None:
    texts = [
        path.read_text(encoding="utf-8")
        for root in PACKAGES
        for path in sorted(Path(root).rglob("*.py"))
        if "testing" not in path.relative_to(root).parts
    ]
    lines, names = sum(text.count("\n") for text in texts), sum(len(re.findall(r"\bAny\b", text)) for text in texts)
    print(f"product: {len(texts)} files, {lines} lines, {names} times Any")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--isolation", choices=TOOLS, default="process")
    parser.add_argument("--functions", action="store_true", help="beside each name, the first function that showed it")
    parser.add_argument("--counts", action="store_true", help="count the product's lines instead")
    asked = parser.parse_args()
    if asked.counts:
        show_counts()
    else:
        show_walk(asked.isolation, asyncio.run(walk_of(asked.isolation)), asked.functions)
