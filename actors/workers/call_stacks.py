"""Where the code of a running call is: its frames, by file, line and function.

No source text and no value of a variable is in them, so that they hold no secret.
"""

from __future__ import annotations

import sys
from asyncio import Task
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from types import FrameType
from typing import Final

from msgspec import Struct

from callboard.protocol.ids import Tag

#: Of one thread or task; a recursion without end has a thousand that say the same.
MAX_FRAMES_SHOWN: Final = 100


class NoStack(Exception):
    """There is none to be had, and why."""


class ReadStack(Struct, frozen=True):
    """Tell where the code of this call is. `answer` is settled once, from any thread; by NoStack where that cannot be
    told. Who asks waits for it with a deadline."""

    tag: Tag
    answer: Future[str]

    def tell(self, stack: str) -> None:
        """This is it."""
        if not self.answer.done():
            self.answer.set_result(stack)

    def refuse(self, why: str) -> None:
        """There is none."""
        try:
            self.answer.set_exception(NoStack(why))
        except InvalidStateError:
            return  # the one who asked has gone


def frames_of_thread(ident: int | None) -> str:
    """The frames of a thread, the innermost last; "" where it has ended."""
    frame = sys._current_frames().get(ident) if ident is not None else None
    return _shown(list(_outwards(frame))[:MAX_FRAMES_SHOWN][::-1])


def frames_of_task(task: Task[object]) -> str:
    """The frames of a task that waits, the innermost last, through all that it awaits."""
    found: list[FrameType] = []
    waiting: object = task.get_coro()
    while waiting is not None and len(found) < MAX_FRAMES_SHOWN:
        frame = next((each for name in _FRAMES if isinstance(each := getattr(waiting, name, None), FrameType)), None)
        if frame is not None:
            found.append(frame)
        waiting = next((each for name in _AWAITED if (each := getattr(waiting, name, None)) is not None), None)
    return _shown(found)


#: Attributes of coroutines, generators and asynchronous generators.
_FRAMES: Final = ("cr_frame", "gi_frame", "ag_frame")
_AWAITED: Final = ("cr_await", "gi_yieldfrom", "ag_await")


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _shown(frames: list[FrameType]) -> str:
    return "\n".join(
        f'File "{each.f_code.co_filename}", line {each.f_lineno}, in {each.f_code.co_name}' for each in frames
    )
