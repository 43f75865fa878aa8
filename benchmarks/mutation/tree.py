"""A copy of the working tree in a temporary folder, in which one file at a time is a mutant and something runs.

The working tree is never written to. Linux only: what runs there is ended with all that it has started, and can reach
no process but its own: see init.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LAYERS: Final = ("protocol", "providers", "actors")
_INIT: Final = Path(__file__).with_name("init.py")
#: Of util-linux. A namespace for processes needs no privileges within a namespace for users.
_NAMESPACE: Final = (
    *("nice", "-n", "10", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child"),
    *(() if os.geteuid() == 0 else ("--user", "--map-current-user")),
)


@dataclass(frozen=True, slots=True)
class Ran:
    """How a process ended: None, it was killed at the time limit."""

    status: int | None
    output: str


class Tree:
    """A copy of `root`, as it is now; files that git ignores are left out."""

    def __init__(self, root: Path) -> None:
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
        (package / "__init__.py").touch()  # without one, an installed callboard would be found first
        for layer in LAYERS:
            if not (package / layer).exists():
                (package / layer).symlink_to(self.folder / layer)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def changed(self, path: str, text: str) -> Iterator[Path]:
        """The file at `path` has this text; its compiled form is removed before and after."""
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
            (*_NAMESPACE, sys.executable, str(_INIT), sys.executable, *arguments),
            cwd=self.folder, env={**os.environ, **environment, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=seconds)
            return Ran(process.returncode, output)
        except subprocess.TimeoutExpired:
            return Ran(None, "")
        finally:
            process.kill()
            process.communicate()


def _forget_compiled(file: Path) -> None:
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()
