"""Tools that use up what there is. Each is bounded by construction, so that no machine is harmed by a run."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import socket
import sys
import tempfile
import threading
import time
from multiprocessing import shared_memory
from pathlib import Path
from typing import Final

from callboard.actors.testing.ways.case import Way, at, everywhere, in_process
from callboard.actors.tools import ToolContext

#: More than twice what the suite's processes may have (`beside.MEMORY_BYTES`).
TOO_MUCH_BYTES: Final = 512 * 1024**2
DISK_BYTES: Final = 32 * 1024**2
FLOOD_BYTES: Final = 4 * 1024**2
PROGRESS_REPORTS: Final = 50_000
SHARED_MEMORY: Final = "callboard_chaos_memory"


def memory_at_once() -> int:
    """In one piece."""
    return len(bytearray(TOO_MUCH_BYTES))


def memory_by_and_by() -> int:
    """In pieces, each written to."""
    held = [b"\1" * 16 * 1024**2 for _ in range(TOO_MUCH_BYTES // (16 * 1024**2))]
    return len(held)


def memory_swallowed() -> int:
    """Out of memory, and goes on."""
    try:
        return memory_at_once()
    except MemoryError:
        return 1


def shared_mapping() -> int:
    """Anonymous memory that is shared, not on the heap. It is looked at ten times a second."""
    with mmap.mmap(-1, TOO_MUCH_BYTES) as memory:
        for offset in range(0, TOO_MUCH_BYTES, mmap.PAGESIZE):
            memory[offset] = 1
        time.sleep(0.5)
        return len(memory)


def descriptors() -> int:
    """Until there are no more, at most 100,000."""
    return len([os.dup(0) for _ in range(100_000)])


def leave_descriptors() -> int:
    """A hundred of them, not closed."""
    return len([os.dup(0) for _ in range(100)])


def sockets() -> int:
    """Five hundred, not closed."""
    return len([socket.socket() for _ in range(500)])


def threads() -> int:
    """Two thousand at most, each for a moment."""
    end = threading.Event()
    begun = []
    with contextlib.suppress(RuntimeError, MemoryError):
        for _ in range(2_000):
            thread = threading.Thread(target=end.wait, args=(10,), daemon=True)
            thread.start()
            begun.append(thread)
    end.set()
    for thread in begun:
        thread.join()
    return 1


def disk() -> int:
    """In the folder for temporary files, and taken away again."""
    with tempfile.TemporaryFile() as file:
        for _ in range(DISK_BYTES // 1024**2):
            file.write(b"\0" * 1024**2)
        return file.tell()


def fork_bomb() -> int:
    """Six generations, each of two: 63 processes that sleep."""
    for _ in range(6):
        os.fork()
    if os.getppid() and os.getpid() != _FIRST.get("pid", os.getpid()):
        time.sleep(30)
        os._exit(0)
    return 1


_FIRST: dict[str, int] = {}


def fork_bomb_from_here() -> int:
    """Remembers who was first."""
    _FIRST["pid"] = os.getpid()
    return fork_bomb()


def zombies() -> int:
    """Two hundred processes that nobody waits for."""
    for _ in range(200):
        if os.fork() == 0:
            os._exit(0)
    return 1


def flood_stdout() -> int:
    """In lines."""
    line = "x" * 1023 + "\n"
    for _ in range(FLOOD_BYTES // len(line)):
        sys.stdout.write(line)
    return 1


def flood_stderr() -> int:
    """Without a line feed, past Python."""
    piece = b"y" * 65_536
    for _ in range(FLOOD_BYTES // len(piece)):
        os.write(2, piece)
    return 1


def flood_progress(context: ToolContext) -> int:
    """A report for each of 50,000 steps, of 2 kB each."""
    for step in range(PROGRESS_REPORTS):
        context.progress("p" * 2_000, step / PROGRESS_REPORTS)
    return 1


def leave_shared_memory() -> int:
    """By its name, and not taken away."""
    memory = shared_memory.SharedMemory(SHARED_MEMORY, create=True, size=1024**2)
    return memory.size


def shared_memory_is_left() -> bool:
    """As the host sees it; what is found is taken away."""
    try:
        Path("/dev/shm", SHARED_MEMORY).unlink()
    except FileNotFoundError:
        return False
    return True


def burn() -> int:
    """The CPU, for a while."""
    until = time.process_time() + 0.3
    while time.process_time() < until:
        continue
    return 1


def large_result() -> str:
    """As much as may be."""
    return "x" * 900_000


def deep_recursion() -> int:
    """As deep as one may ask for in Python."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200_000)

    def down(left: int) -> int:
        return down(left - 1) if left else 1

    try:
        return down(100_000)
    finally:
        sys.setrecursionlimit(limit)


async def queue_of_tasks() -> int:
    """A hundred thousand callbacks."""
    loop = asyncio.get_running_loop()
    for _ in range(100_000):
        loop.call_soon(int)
    await asyncio.sleep(0)
    return 1


EXHAUST: Final = (
    Way("memory", "takes 512 MB at once", memory_at_once, in_process("crashed tool_error")),
    Way("memory-pieces", "takes 512 MB in pieces", memory_by_and_by, in_process("crashed tool_error")),
    Way("memory-swallowed", "takes 512 MB, and goes on after MemoryError", memory_swallowed, in_process("ok")),
    Way("shared-mapping", "takes 512 MB of shared memory", shared_mapping, in_process("crashed tool_error")),
    Way("descriptors", "opens descriptors until there are no more", descriptors, in_process("tool_error crashed")),
    Way("descriptors-left", "leaves 100 descriptors open", leave_descriptors, in_process("ok")),
    Way("sockets-left", "leaves 500 sockets open", sockets, in_process("ok tool_error")),
    Way("threads", "starts 2,000 threads", threads, in_process("ok crashed tool_error timed_out")),
    Way("disk", "fills 32 MB of the temporary folder", disk, everywhere("ok")),
    Way("fork-bomb", "forks in six generations", fork_bomb_from_here, in_process("ok")),
    Way("zombies", "leaves 200 processes that have ended", zombies, in_process("ok")),
    Way("stdout", "prints 4 MB", flood_stdout, in_process("ok")),
    Way("stderr", "writes 4 MB to stderr without a line feed", flood_stderr, in_process("ok")),
    Way("progress", "reports its progress 50,000 times", flood_progress, everywhere("ok"), is_read_along=True),
    Way("shared-memory", "leaves named shared memory", leave_shared_memory, in_process("ok")),
    Way("cpu", "burns 0.3 s of CPU", burn, everywhere("ok")),
    Way("large-result", "returns 900 kB", large_result, everywhere("ok result_too_large")),
    Way("recursion", "recurses 100,000 deep", deep_recursion, in_process("ok crashed tool_error")),
    Way("callbacks", "queues 100,000 callbacks", queue_of_tasks, at(task="ok"), queue_of_tasks),
)
