"""Build the source distribution, the wheel from it alone, install that into an empty environment and use it there.

    .venv-ci/bin/python .ci/check_wheel.py

Both are compared with the tree. Runs `user_program.py` outside of the checkout, and the commands of the command line
that need no extra; mypy --strict reads the program. The exit status is that of the first command that fails; needs
git's checkout, pip and its network, and `build` and mypy in this environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
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


def tracked() -> list[str]:
    """What git tracks, without the links of .dev."""
    listed = subprocess.run(("git", "ls-files", "-z"), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and not name.startswith(".dev/")]


def built(place: Path) -> Path:
    """The wheel, made from nothing but the source distribution, which is made from nothing but what git tracks."""
    for name in tracked():
        (place / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / "tree" / name)
    run(place, sys.executable, "-m", "build", "--sdist", "--outdir", place, place / "tree")
    source = next(place.glob("callboard-*.tar.gz"))
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    if missing := set(tracked()) - held:
        sys.exit(f"the source distribution lacks {sorted(missing)}")
    run(place, sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", place, source)
    return next(place.glob("callboard-*.whl"))


def check_description(wheel: zipfile.ZipFile) -> None:
    """The README in the package leads nowhere: no link in it is to a file of the repository."""
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    text = wheel.read(metadata).decode()
    if links := re.findall(r"\]\((?![a-z]+:|#)[^)]*\)|<(?:img|source) [^>]*>", text):
        sys.exit(f"the description of the package has links that work in the repository only: {links}")
    assert "`docs/architecture.md`" in text, "the description of the package names no page of the documentation"


def expected() -> set[str]:
    """All files of the three layers that belong into the wheel, as they are called there."""
    kept = [name for name in tracked() if name.startswith(("actors/", "protocol/", "providers/"))]
    return {f"callboard/{path}".replace("callboard/actors/front/", "callboard/") for path in kept}


def main() -> None:
    """Check all of it, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="callboard-wheel-") as folder:
        place = Path(folder)
        wheel = built(place)
        with zipfile.ZipFile(wheel) as opened:
            found = {name for name in opened.namelist() if name.startswith("callboard/")}
            check_description(opened)
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
