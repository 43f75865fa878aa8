"""How large the dependencies are, who publishes them and what they pull in: measured from what is installed here.

    python benchmarks/dependency_sizes.py            # a row for each package: publisher, licence, version, sizes
    python benchmarks/dependency_sizes.py --write    # puts the size of each extra into docs/dependencies.md
    python benchmarks/dependency_sizes.py --fresh    # installs the wheel into new environments, and asks there

Only `--fresh` fetches anything, without pip's cache: all else is in the metadata and the files of the installed
packages. What is not installed is "not measured". Megabytes are 10^6 bytes, of files other than compiled Python. The
size of a wheel is that of the same files, packed again as a wheel is (zip, deflate).
"""

from __future__ import annotations

import argparse
import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "dependencies.md"
#: What the page calls `install_requires`.
CORE: Final = "core"
OURS: Final = "callboard"
#: What is pulled in is named from this size on.
HEAVY_BYTES: Final = 5_000_000
NOT_MEASURED: Final = "not measured"
HEADER: Final = (
    "| requirement | why | published at, licence | stage | seen | wheel, MB | installed, MB | pulls in |\n"
    "|---|---|---|---|---|---|---|---|\n"
)
SIZES_HEADER: Final = "| extra | brings | packages | MB | of these |\n|---|---|---|---|---|\n"
#: So many of an extra's packages are named, from HEAVY_BYTES on.
NAMED: Final = 3
#: By what a licence is known from its text.
_LICENCE_MARKS: Final = {
    "Permission is hereby granted, free of charge": "MIT",
    "Apache License": "Apache-2.0",
    "Redistribution and use in source and binary forms": "BSD",
}
_SOURCE_LABELS: Final = ("source", "repository", "sourcecode", "github", "code", "homepage", "home", "changelog")


def requirements() -> dict[str, list[Requirement]]:
    """Of setup.cfg, by extra; without those of callboard itself."""
    return {extra: [each for each in found if each.name != OURS] for extra, found in _all_requirements().items()}


def brought_extras() -> dict[str, list[str]]:
    """The other extras that an extra brings."""
    return {
        extra: sorted(name for each in found if each.name == OURS for name in each.extras)
        for extra, found in _all_requirements().items()
    }


def _all_requirements() -> dict[str, list[Requirement]]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    texts = {CORE: config["options"]["install_requires"], **config["options.extras_require"]}
    return {
        extra: [Requirement(line) for line in text.splitlines() if line.strip() and not line.startswith("#")]
        for extra, text in texts.items()
    }


def shown(requirement: Requirement) -> str:
    """The first column of a row; a condition on the platform is left out."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    bounds = sorted(map(str, requirement.specifier), key=lambda bound: not bound.startswith(">"))
    return f"`{requirement.name}{extras} {', '.join(bounds)}`"


@dataclass(frozen=True, slots=True)
class Installed:
    """One installed package."""

    name: str
    version: str
    place: str
    licence: str
    stage: str
    bytes: int


@cache
def installed(name: str) -> Installed | None:
    """None where it is not installed."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    size = sum(path.stat().st_size for path in _files(found))
    return Installed(canonicalize_name(name), found.version, _place(found), _licence(found), _stage(found), size)


@cache
def wheel_bytes(name: str) -> int:
    """The size of the wheel of an installed package, nearly: what its files are when they are packed."""
    return sum(map(_packed_bytes, _files(distribution(name))))


def _files(found: Distribution) -> Iterator[Path]:
    for each in found.files or ():
        path = Path(str(each.locate()))
        if path.suffix != ".pyc" and path.is_file():
            yield path


def _packed_bytes(path: Path) -> int:
    packer, packed = zlib.compressobj(wbits=-zlib.MAX_WBITS), 0
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            packed += len(packer.compress(block))
    return packed + len(packer.flush())


def _place(found: Distribution) -> str:
    """Its repository, as far as it says; else who wrote it."""
    links = {
        re.sub(r"\W", "", label).lower(): address.strip()
        for label, _, address in (each.partition(",") for each in found.metadata.get_all("Project-URL") or ())
    }
    addresses = [links[label] for label in _SOURCE_LABELS if label in links]
    addresses += [found.metadata.get("Home-page") or "", *links.values()]
    for address in addresses:
        if repository := re.match(r"https?://(?:www\.)?(git(?:hub|lab)\.com/[\w.-]+/[\w.-]+)", address):
            return repository[1].removesuffix(".git")
    named = next((each for each in addresses if each), "")
    author = found.metadata.get("Author") or found.metadata.get("Author-email") or NOT_MEASURED
    return named.partition("://")[2].rstrip("/") or author


def _licence(found: Distribution) -> str:
    """By its metadata, else by what the text of its licence begins with."""
    stated = found.metadata.get("License-Expression") or ""
    free_text = (found.metadata.get("License") or "").strip()
    short = free_text if free_text and len(free_text) < 30 else ""
    classifiers = [
        each.rpartition(" :: ")[2]
        for each in found.metadata.get_all("Classifier") or ()
        if each.startswith("License :: ") and not each.endswith("OSI Approved")
    ]
    texts = [path.read_text(errors="replace") for path in _files(found) if "LICEN" in path.name.upper()]
    by_text = [name for mark, name in _LICENCE_MARKS.items() if any(mark in text for text in (free_text, *texts))]
    return stated or short or ", ".join(classifiers) or ", ".join(by_text[:1]) or NOT_MEASURED


def _stage(found: Distribution) -> str:
    """What the publisher says of its maturity."""
    stages = [each for each in found.metadata.get_all("Classifier") or () if each.startswith("Development Status")]
    return stages[0].rpartition(" - ")[2].lower() if stages else "not said"


def pulled_in(requirement: Requirement) -> dict[str, Installed | None]:
    """All that comes with it here, by name: what it needs and what that needs."""
    found: dict[str, Installed | None] = {}
    own = canonicalize_name(requirement.name)
    todo = [(own, frozenset(requirement.extras))]
    seen = set(todo)
    while todo:
        name, extras = todo.pop()
        for each in _needs(name, extras):
            needed = canonicalize_name(each.name)
            if needed != own:
                found[needed] = installed(needed)
            if (step := (needed, frozenset(each.extras))) not in seen:
                seen.add(step)
                todo.append(step)
    return found


def _needs(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    try:
        texts = distribution(name).requires or []
    except PackageNotFoundError:
        return
    for each in map(Requirement, texts):
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield each


def measured_columns(requirement: Requirement) -> list[str]:
    """All columns of a row but the first two."""
    own = installed(requirement.name)
    if own is None:
        return [NOT_MEASURED] * 6
    return [
        f"{own.place}, {own.licence}", own.stage, own.version, _mb(wheel_bytes(requirement.name)), _mb(own.bytes),
        _pulled_text(pulled_in(requirement)),
    ]  # fmt: skip


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f}" if size >= 10_000_000 else f"{size / 1e6:.1f}" if size >= 100_000 else "<0.1"


def _pulled_text(found: dict[str, Installed | None]) -> str:
    if not found:
        return "nothing"
    present = sorted((each for each in found.values() if each is not None), key=lambda each: -each.bytes)
    heavy = ", ".join(f"{each.name} {_mb(each.bytes)}" for each in present if each.bytes >= HEAVY_BYTES)
    missing = f"; {len(found) - len(present)} {NOT_MEASURED}" if len(found) > len(present) else ""
    total = f"{len(found)}, {_mb(sum(each.bytes for each in present))} MB"
    return f"{total}{missing}{f' ({heavy})' if heavy else ''}"


def row(requirement: Requirement, why: str) -> str:
    """One line of a table."""
    return f"| {' | '.join([shown(requirement), why, *measured_columns(requirement)])} |"


def reasons(page: str) -> dict[tuple[str, str], str]:
    """Why each package is there, as the page says in its lists: by extra and name."""
    found: dict[tuple[str, str], str] = {}
    extra = ""
    for line in page.splitlines():
        if heading := re.match(r"#+ `([\w-]+)`", line):
            extra = heading[1]
        elif line.startswith("#"):
            extra = ""
        elif extra and (item := re.match(r"- ((?:`[^`]+`(?:, )?)+): (.*)", line)):
            found |= {(extra, name): item[2] for name in re.findall(r"`([^`]+)`", item[1])}
    return found


def name_of(requirement: Requirement) -> str:
    """As the page's lists write it."""
    return requirement.name + (f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else "")


def tables(page: str) -> Iterator[tuple[str, str]]:
    """Extra and table, with the reasons of the page."""
    known = reasons(page)
    for extra, found in requirements().items():
        rows = [row(each, known.get((extra, name_of(each)), "")) for each in found]
        yield extra, HEADER + "\n".join(rows) + "\n"


def packages_of(extra: str) -> dict[str, Installed | None]:
    """All that it installs, with what its packages need and the extras that it brings."""
    found: dict[str, Installed | None] = {}
    for each in requirements()[extra]:
        found[canonicalize_name(each.name)] = installed(each.name)
        found |= pulled_in(each)
    for brought in brought_extras()[extra]:
        found |= packages_of(brought)
    return found


def sizes() -> str:
    """The table of the page: what an extra adds to the core."""
    of_core = packages_of(CORE)
    rows = []
    for extra in requirements():
        found = {name: each for name, each in packages_of(extra).items() if extra == CORE or name not in of_core}
        present = sorted((each for each in found.values() if each is not None), key=lambda each: -each.bytes)
        brings = ", ".join(f"`{each}`" for each in brought_extras()[extra]) or "-"
        heavy = ", ".join(f"{each.name} {_mb(each.bytes)}" for each in present[:NAMED] if each.bytes >= HEAVY_BYTES)
        measured = f"{len(found)} | {_mb(sum(each.bytes for each in present))} | {heavy or '-'}"
        if len(present) < len(found):
            measured = f"{NOT_MEASURED} | {NOT_MEASURED} | -"
        rows.append(f"| `{extra}` | {brings} | {measured} |\n")
    return SIZES_HEADER + "".join(rows)


_SIZES = re.compile(r"(<!-- written: sizes -->\n).*?(<!-- end -->)", re.S)


FIRST_PROGRAM: Final = """
from callboard import Settings, ask_sync
print(ask_sync("Hello", settings=Settings(model="scripted/model")))
"""
#: What is installed into a new environment, and the first answer there, in a copy of this tree that has no index. None
#: asks a model over a network.
FRESH: Final = {
    "": ["python", "-c", FIRST_PROGRAM],
    "[cli]": ["callboard", "ask", "how is a worker that hangs killed at its deadline?"],
}


@dataclass(frozen=True, slots=True)
class Took:
    """What a command needed."""

    seconds: float
    """From the start of the process to its end."""
    cpu_seconds: float
    """Of it and of its children: what else the machine does has less of an effect."""
    output: str

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s ({self.cpu_seconds:.1f} of CPU)"


@dataclass(frozen=True, slots=True)
class Fresh:
    """A new environment with the wheel."""

    install: Took
    packages: int
    """Callboard is one of them, pip is not."""
    bytes: int
    answer: Took

    def __str__(self) -> str:
        size = f"{self.packages} packages, {_mb(self.bytes)} MB"
        return f"{size}, installed in {self.install}; first answer in {self.answer}"


def fresh(wheel: Path, extra: str, place: Path, tree: Path) -> Fresh:
    """Install the wheel into a new environment in `place`, and ask about `tree`."""
    venv.create(place, with_pip=True)
    python, environment = place / "bin" / "python", _own_home(place)
    bare = _site_bytes(place)
    pip = [str(python), "-m", "pip", "--no-cache-dir", "--disable-pip-version-check"]
    install = _timed([*pip, "install", "-q", f"{wheel}{extra}"], environment)
    listed = _timed([*pip, "list", "--format=json"], environment).output
    size = _site_bytes(place) - bare
    program, *arguments = FRESH[extra]
    answer = _timed([str(place / "bin" / program), *arguments], environment, tree)
    packages = {each["name"] for each in json.loads(listed)} - {"pip", "setuptools"}
    return Fresh(install, len(packages), size, answer)


def _own_home(place: Path) -> dict[str, str]:
    """Without this tree on the path, and with nothing indexed before."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "XDG_", "CALLBOARD_"))}
    return {**kept, "HOME": str(place)}


def _site_bytes(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file() and path.suffix != ".pyc")


def _timed(command: list[str], environment: dict[str, str], folder: Path | None = None) -> Took:
    begun, before = time.monotonic(), os.times()
    ran = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    after = os.times()
    cpu_seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return Took(time.monotonic() - begun, cpu_seconds, ran.stdout)


def print_fresh() -> None:
    """A line for the core, and one for the command line."""
    with tempfile.TemporaryDirectory(prefix="callboard-fresh-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "__pycache__", "build"))
        pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder, str(tree))
        subprocess.run(pip, check=True)
        (wheel,) = Path(folder).glob("callboard-*.whl")
        for extra in FRESH:
            print(f"callboard{extra}: {fresh(wheel, extra, Path(folder) / f'venv{extra}', tree)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the sizes into docs/dependencies.md")
    parser.add_argument("--fresh", action="store_true", help="install the wheel into new environments, and ask there")
    arguments = parser.parse_args()
    if arguments.fresh:
        print_fresh()
        return
    page = PAGE.read_text() if PAGE.exists() else ""
    if arguments.write:
        PAGE.write_text(_SIZES.sub(lambda found: found[1] + sizes() + found[2], page))
        return
    for extra, table in tables(page):
        sys.stdout.write(f"## `{extra}`\n\n{table}\n")


if __name__ == "__main__":
    main()
