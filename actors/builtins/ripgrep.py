"""ripgrep, where it is installed: it says which files are worth looking into, many times as fast as we could."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from callboard.actors.builtins.search_pattern import SearchPattern
from callboard.actors.index.walk import SKIPPED_FOLDERS

#: It must leave out nothing that we would show, so what only some of its users have set up does not count; and it need
#: not leave out all that we do, since each file that it finds is judged again.
_OPTIONS: Final = (
    *("--no-config", "--no-messages", "--color=never", "--files-with-matches", "--null", "--text", "--hidden"),
    *("--no-require-git", "--no-ignore-parent", "--no-ignore-global", "--no-ignore-exclude", "--no-ignore-dot"),
    *(f"--glob=!{name}/" for name in sorted(SKIPPED_FOLDERS)),
)
#: Letters that Python takes for an `i` of other case; ripgrep knows those of all other letters.
_FORMS_OF_I: Final = "[iI\u0130\u0131]"

#: ripgrep takes a backslash before no other characters.
_OPERATORS: Final = frozenset(r"\.+*?()|[]{}^$")
#: A file with other characters is always worth looking into where the whole regular expression is given to ripgrep.
_NOT_ASCII: Final = r"[\x80-\xFF]"


def find_ripgrep(workspace: Path) -> str | None:
    """The program, if there is one that is not itself a file of the workspace."""
    program = shutil.which("rg")
    if program is None or Path(os.path.realpath(program)).is_relative_to(workspace):
        return None
    return os.path.realpath(program)


def files_with(
    program: str, folder: str, pattern: SearchPattern, max_bytes: int, timeout_seconds: float
) -> list[str] | None:
    """The files below a folder that may have a match; None if that could not be found out.

    Raises TimeoutExpired; ripgrep has ended then.
    """
    if pattern.needles:
        how = [f"--regexp={_in_rust(needle)}" for needle in pattern.needles]
    elif pattern.shared:
        how = ["--no-unicode", f"--regexp={pattern.shared}", f"--regexp={_NOT_ASCII}"]
    else:
        return None
    if pattern.ignores_case:
        how.append("--ignore-case")
    command = [program, *_OPTIONS, f"--max-filesize={max_bytes}", *how, "--", folder]
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=timeout_seconds
        )
    except OSError:  # it may not be run here
        return None
    if ran.returncode not in (0, 1) and ran.stderr.strip():
        return None
    return [os.fsdecode(path) for path in ran.stdout.split(b"\0") if path]


def _in_rust(needle: str) -> str:
    """The needle as a regular expression of ripgrep's."""
    return "".join(_FORMS_OF_I if each == "i" else f"\\{each}" if each in _OPERATORS else each for each in needle)
