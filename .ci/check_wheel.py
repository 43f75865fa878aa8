"""Build the wheel, compare it with the tree, install it into an empty environment and use it outside of the checkout.

    .venv-ci/bin/python .ci/check_wheel.py

Runs `user_program.py` there, and the commands of the command line that need no extra; mypy --strict reads the program.
The exit status is that of the first command that fails; needs pip, its network, and mypy in this environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEADLINE_SECONDS = 300.0


def run(place: Path, *command: str | Path) -> str:
    """Run a command in `place`; return its output, shown too. Ends this script where the command's status is not 0."""
    print("$", *command, flush=True)
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    ran = subprocess.run(command, cwd=place, env=clean, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_SECONDS)
    print(ran.stdout, end="", flush=True)
    if ran.returncode:
        sys.exit(ran.returncode)
    return ran.stdout


def built(into: Path) -> Path:
    """The wheel of the tree. What an earlier build has left behind would get into it."""
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)
    run(into, sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", into, ROOT)
    return next(into.glob("callboard-*.whl"))


def expected() -> set[str]:
    """All files of the three layers that belong into the wheel, as they are called there."""
    files = [path for layer in ("actors", "protocol", "providers") for path in (ROOT / layer).rglob("*")]
    kept = [path.relative_to(ROOT) for path in files if path.is_file() and "__pycache__" not in path.parts]
    return {f"callboard/{path}".replace("callboard/actors/front/", "callboard/") for path in kept}


def main() -> None:
    """Check all of it, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="callboard-wheel-") as folder:
        place = Path(folder)
        wheel = built(place)
        found = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("callboard/")}
        if found != expected():
            sys.exit(f"the wheel lacks {sorted(expected() - found)}, and has {sorted(found - expected())} too many")
        venv.create(place / "venv", with_pip=True)
        binaries = place / "venv" / "bin"
        run(place, binaries / "pip", "install", "-q", "--disable-pip-version-check", wheel)
        program = shutil.copy(ROOT / ".ci" / "user_program.py", place / "program.py")
        # A clone beside the program: a folder that is called like the package must not be taken for it.
        (place / "callboard" / "actors").mkdir(parents=True)
        printed = run(place, binaries / "python", program)
        for words in ("You are welcome.", "no workspace", "provider/model"):
            assert words in printed, f"{words!r} was not printed"
        assert run(place, binaries / "callboard", "--version").startswith("callboard 0.")
        assert "ok   offline/code-context" in run(place, binaries / "callboard", "doctor")
        shutil.rmtree(place / "callboard")  # mypy would take it for the package: it looks here first
        run(place, sys.executable, "-m", "mypy", "--strict", "--python-executable", binaries / "python", program)


if __name__ == "__main__":
    main()
