"""A copy of the working tree in a temporary folder, in which one file at a time is a mutant and something runs.

The working tree is never written to. Linux only: what a mutant's tests leave behind (processes of tools) becomes a
child of this process, and is ended after each run.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LAYERS: Final = ("protocol", "providers", "actors")
#: Heap of one process of a mutant that allocates without end; the tests' own need less.
MAX_DATA_BYTES: Final = 6 * 1024**3
_PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass(frozen=True, slots=True)
class Ran:
    """How a process ended: None, it was killed at the time limit."""

    status: int | None
    output: str


class Tree:
    """A copy of `root`, as it is now; files that git ignores are left out."""

    def __init__(self, root: Path) -> None:
        self.adopt_orphans()
        self.folder = Path(tempfile.mkdtemp(prefix="mutants-")).resolve()
        listed = subprocess.run(
            ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"),
            cwd=root, check=True, capture_output=True, text=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.split("\0")):
            if (root / name).is_file():  # else deleted, not yet committed
                target = self.folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, target, follow_symlinks=False)
        package = self.folder / ".dev" / "callboard"
        package.mkdir(parents=True, exist_ok=True)
        for layer in LAYERS:
            if not (package / layer).exists():
                (package / layer).symlink_to(self.folder / layer)

    @staticmethod
    def adopt_orphans() -> None:
        """What loses its parent below this process becomes a child of it."""
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def changed(self, path: str, text: str) -> Iterator[Path]:
        """The file at `path` has this text; its compiled form is removed before and after, whatever its time stamp."""
        file = self.folder / path
        original = file.read_bytes()
        try:
            file.write_text(text)
            _forget_compiled(file)
            yield file
        finally:
            file.write_bytes(original)
            _forget_compiled(file)

    def run(self, arguments: Sequence[str], seconds: float, environment: Mapping[str, str]) -> Ran:
        """Run Python with these arguments in the tree; it and all that it started are ended at the limit."""
        path = os.pathsep.join((str(self.folder / ".dev"), str(Path(__file__).resolve().parents[1])))
        process = subprocess.Popen(
            ("nice", "-n", "10", sys.executable, *arguments),
            cwd=self.folder, env={**os.environ, **environment, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True, preexec_fn=_limit_memory,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=seconds)
            return Ran(process.returncode, output)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return Ran(None, "")
        finally:
            process.kill()
            process.wait()
            _end_children()


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_DATA_BYTES, MAX_DATA_BYTES))


def _forget_compiled(file: Path) -> None:
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def _end_children() -> None:
    """End and reap every child of this process, and theirs as they become ours."""
    while children := [int(text) for text in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
