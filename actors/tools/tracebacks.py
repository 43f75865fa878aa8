"""Where an exception was raised, as two texts: all that Python says of it, and the part that holds no content.

Both are bounded, values in them that look like keys are masked, and neither begins with our own frames or the import
machinery's. They are made in the process where the tool ran, since a traceback cannot be sent.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from callboard.protocol.masking import mask_bytes

#: Of one traceback: some 100 frames with their source lines. The first and the last of it are kept.
MAX_TRACEBACK_BYTES: Final = 16_384
#: Of the frames alone.
MAX_FRAMES_BYTES: Final = 4_096
#: Exceptions that are followed through causes and groups: a group may hold any number of them.
MAX_EXCEPTIONS: Final = 16
_ACTORS: Final = Path(__file__).parents[1]
#: Where these come first, they are not the tool's own frames: what calls a tool, loads it, or runs it in a worker.
_OURS: Final = (
    "<frozen importlib",
    *(str(_ACTORS / "tools" / name) for name in ("invoke.py", "shipping.py")),
    *(f"{_ACTORS / name}{os.sep}" for name in ("processes", "workers")),
)

#: How faulthandler begins (Modules/faulthandler.c), and one of its frames: innermost first, without source lines.
_FATAL: Final = "Fatal Python error: "
_DUMPED_FRAME: Final = re.compile(r'  File "([^"\n]+)", line \d+ in [\w.<>]+')
#: The one line of Python that each of our processes begins with (processes/spawning.py).
_BEGINNING: Final = "<string>"


class Told(NamedTuple):
    """What is known of an exception."""

    traceback: str
    """As Python writes it: frames, source lines, messages, causes and groups."""
    frames: str
    """Types and frames only. The text of messages and of source lines is content, and not here."""


#: Of a failure that no exception made.
NOT_TOLD: Final = Told("", "")


def told_of(error: BaseException) -> Told:
    """Never raises: exceptions, their texts and their types are code of the tool's author."""
    try:
        own = _own(error.__traceback__)
        full = "".join(traceback.TracebackException(type(error), error, own).format())
        return Told(bounded(full, MAX_TRACEBACK_BYTES), bounded("\n".join(_frames(error, own)), MAX_FRAMES_BYTES))
    except BaseException:  # noqa: BLE001 - as above
        name = type(error).__name__
        return Told(f"{name}, whose traceback cannot be written", name)


def told_of_crash(printed: str) -> Told:
    """The same of a process that died, as far as Python's faulthandler had time to write it to stderr; else empty."""
    begin = printed.rfind(_FATAL)
    if begin < 0:
        return NOT_TOLD
    dump = printed[begin:]
    frames = filter(None, map(_DUMPED_FRAME.fullmatch, dump.splitlines()))
    own = "\n".join(frame[0] for frame in frames if not frame[1].startswith((*_OURS, _BEGINNING)))
    return Told(bounded(dump, MAX_TRACEBACK_BYTES), bounded(own, MAX_FRAMES_BYTES))


def bounded(text: str, limit_bytes: int) -> str:
    """At most so many bytes of UTF-8, masked: the first and the last of it, and between them how many were left out."""
    data = text.encode(errors="backslashreplace")
    if len(data) <= limit_bytes:
        return mask_bytes(data).decode()
    left_out = f"\n... ({len(data):,} bytes in all; these in the middle were left out) ...\n"
    half = (limit_bytes - len(left_out)) // 2
    # Masked before they are decoded, each with what is beside it: a cut may go through a key.
    first, last = mask_bytes(data, 0, half), mask_bytes(data, len(data) - half)
    return f"{first.decode(errors='ignore')}{left_out}{last.decode(errors='ignore')}"


def _own(first: TracebackType | None) -> TracebackType | None:
    """Without the frames that lead to the tool's code."""
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_OURS):
        first = first.tb_next
    return first


def _frames(error: BaseException, first: TracebackType | None) -> Iterator[str]:
    """The exception, then what it was raised of and what it holds, each with its frames."""
    seen: set[int] = set()
    left: list[tuple[str, BaseException, TracebackType | None]] = [("", error, first)]
    while left and len(seen) < MAX_EXCEPTIONS:
        how, each, begin = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield how + _type_name(type(each))
        places = ((frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_tb(begin))
        own = (place for place in places if not place[0].startswith(_OURS))  # not the handler of a signal either
        bare = [traceback.FrameSummary(*place, lookup_line=False, line="") for place in own]
        yield from (text.rstrip("\n") for text in traceback.StackSummary.from_list(bare).format())
        cause = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
        held = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        if cause is not None:
            left.append(("caused by ", cause, cause.__traceback__))
        left += [("in it ", inner, inner.__traceback__) for inner in reversed(held[:MAX_EXCEPTIONS])]


def _type_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
