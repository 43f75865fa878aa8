"""Build the source distribution and the wheel from it alone, install that into an empty environment and use it there.

    .venv-ci/bin/python .ci/check_wheel.py

Both are compared with the tree and read as PyPI reads them; some tests run where the source distribution is unpacked.
Runs `user_program.py` outside of the checkout, and the commands of the command line that need no extra; mypy --strict
reads the program. The exit status is that of the first command that fails; needs git's checkout, pip and its network,
and `build`, pytest and mypy in this environment.
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
#: In an environment of their own: twine brings 30 packages.
READERS = ("twine >=6.1, <8", "trove-classifiers")
#: Of the source distribution: which names there are, and the core by itself.
TESTS = ("tests/test_layers.py", "tests/test_public_face.py", "tests/protocol/test_machine.py")
UNKNOWN_CLASSIFIERS = """
import sys
from email import message_from_file
from trove_classifiers import classifiers, deprecated_classifiers
found = message_from_file(sys.stdin).get_all("Classifier")
sys.exit(", ".join(name for name in found if name not in classifiers or name in deprecated_classifiers) or None)
"""


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


def built(place: Path) -> tuple[Path, Path]:
    """The source distribution, made from nothing but what git tracks, and the wheel, made from nothing but that."""
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
    return source, next(place.glob("callboard-*.whl"))


def check_as_pypi_does(place: Path, source: Path, wheel: Path) -> None:
    """What is said of the package can be read and shown, and is in words that PyPI knows."""
    venv.create(place / "readers", with_pip=True)
    binaries = place / "readers" / "bin"
    run(place, binaries / "pip", "install", "-q", "--disable-pip-version-check", *READERS)
    run(place, binaries / "twine", "check", "--strict", source, wheel)
    with zipfile.ZipFile(wheel) as opened:
        (metadata,) = (opened.read(name) for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
    command = [str(binaries / "python"), "-c", UNKNOWN_CLASSIFIERS]
    read = subprocess.run(command, input=metadata, capture_output=True, timeout=DEADLINE_SECONDS)
    if read.returncode:
        sys.exit(f"PyPI does not know these classifiers: {read.stderr.decode()}")


def check_source(place: Path, source: Path) -> None:
    """Its tests run where it is unpacked, with nothing of the tree."""
    shutil.unpack_archive(source, place / "source")  # tarfile's own filter is of 3.11.4
    (unpacked,) = (place / "source").iterdir()
    links = unpacked / ".dev" / "callboard"
    links.mkdir(parents=True)
    for layer in ("actors", "protocol", "providers", "actors/front/__init__.py", "actors/front/py.typed"):
        (links / Path(layer).name).symlink_to(unpacked / layer)
    with_links = ("env", f"PYTHONPATH={unpacked / '.dev'}", f"MYPYPATH={unpacked / '.dev'}")
    run(unpacked, *with_links, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)


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
        source, wheel = built(place)
        check_as_pypi_does(place, source, wheel)
        check_source(place, source)
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
