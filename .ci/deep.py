"""The parts of the deep stage of .ci/run, and which of them are due: those whose files have changed since they passed.

    deep.py due            names them, one a line
    deep.py all            names all parts
    deep.py passed PART    writes down in .ci/deep.stamp, which is tracked, that this part has passed with these files

A part depends on all that its own tests and programs are, and on what of the product has broken it or plausibly would;
`DEEP=1 bash .ci/run` runs all parts, whatever has changed.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STAMP = ROOT / ".ci" / "deep.stamp"
#: What each depends on: patterns of files. `names: ` before one: on which files there are, not on what is in them.
PARTS = {
    # What is packed: which files there are, and what says how; that it can be used is seen through the front door.
    "wheel": (
        "setup.cfg", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", ".ci/check_wheel.py",
        ".ci/user_program.py", "actors/front/*", "actors/cli/__main__.py", "actors/cli/arguments.py",
        "names: actors/**/*", "names: protocol/**/*", "names: providers/**/*",
    ),
    # The image of a container: what it is made of. That the daemon serves is seen elsewhere.
    "image": ("Dockerfile", ".dockerignore", ".ci/check_image.py", "setup.py"),
    # The conformance suites of others, as clients and servers of ours.
    "mcp": ("setup.cfg", ".ci/mcp_conformance/*", "actors/mcp/*.py", "tests/support/mcp_conformance_client.py"),
    "compatcanary": ("setup.cfg", ".ci/compatcanary/*", "actors/daemon/*.py"),
    # The daemon's answers, read by the client libraries of others.
    "clients": (
        "setup.cfg", ".ci/clients/*", ".ci/compatcanary/*.py", "actors/daemon/*.py",
        "tests/support/answering_daemon.py", "tests/support/daemon_tools.py",
    ),
    # The documentation's pages, and what of the code they show.
    "site": (
        "setup.cfg", "README.md", "CHANGELOG.md", "docs/**/*", "tests/test_site.py", "actors/front/*.py",
        "actors/settings.py", "actors/cli/arguments.py", "names: actors/**/*.py", "names: protocol/**/*.py",
        "names: providers/**/*.py",
    ),
    # The board in Chromium, before a real daemon.
    "board": (
        "actors/daemon/**/*", "tests/actors/daemon/test_board*.py", "tests/support/board_*.py",
        "tests/support/running_daemon.py",
    ),
    # The pictures of the board and of the terminal, made again; those of the terminal are compared with what is kept.
    "pictures": (
        "actors/cli/ask.py", "actors/cli/approval_prompt.py", "actors/cli/screen.py", "actors/cli/terminal.py",
        "actors/daemon/board/*", "docs/pictures.py", "docs/images/terminal_*", "tests/test_pictures.py",
        "tests/support/board_page.py", "tests/support/own_terminal.py", "tests/support/running_daemon.py",
    ),
    # Made-up requests against the documents of the daemon.
    "requests": ("setup.cfg", "actors/daemon/*.py", "docs/openapi.json", "tests/actors/daemon/test_open*.py"),
    # Hosts: gunicorn, uvicorn, Django, Celery, notebooks.
    "hosts": (
        "setup.cfg", "examples/**/*.*", "tests/examples/*.py", "tests/support/host_programs.py", "actors/*.py",
        "actors/front/*.py", "actors/kernel/*.py", "actors/processes/*.py", "actors/requests/*.py",
    ),
    # PyInstaller finds modules by their imports: a new module may be missed, a change within one hardly is.
    "frozen": (
        "setup.cfg", "setup.py", "actors/front/*.py", "actors/processes/*.py", "actors/workers/*.py",
        "examples/embedding/*.py", "tests/examples/test_frozen_program.py",
        "names: actors/**/*.py", "names: protocol/**/*.py", "names: providers/**/*",
    ),
    # Each runs the benchmark in a small size; what they measure has tests of its own in every run.
    "benchmarks": (
        "benchmarks/**/*.py", "tests/test_benchmark_*.py", "actors/daemon/*.py", "actors/journal/*.py",
        "actors/requests/*.py", "actors/runtime.py", "actors/taking_up.py", "protocol/machine.py",
    ),
    # Other agent runtimes, in an environment of their own: their programs, and what plays them.
    "runtimes": (
        "setup.cfg", "actors/testing/runtimes/*.py", "actors/testing/wire_double/*.py", "benchmarks/five_tasks.py",
        "benchmarks/tasks/**/*.py", "docs/*.md", "examples/**/*.py", "tests/actors/testing/runtimes/*.py",
        "tests/test_coming_from.py", "tests/test_five_tasks.py", "tests/test_docs.py",
    ),
    # The kit: rules, faults that they must find, scenarios, simulated and real runs, chaos, other runtimes' harness. It
    # plays the session, the actors and the adapters; what else there is has no part in it.
    "kit": (
        "setup.cfg", "actors/*.py", "actors/builtins/*.py", "actors/calls/*.py", "actors/edits/*.py",
        "actors/journal/*.py", "actors/kernel/*.py", "actors/mcp/*.py", "actors/models/*.py", "actors/policy/*.py",
        "actors/processes/*.py", "actors/requests/*.py", "actors/telemetry/*.py", "actors/testing/**/*",
        "actors/tools/*.py", "actors/workers/*.py", "benchmarks/chaos.py", "docs/other_runtimes.md", "docs/protocol.md",
        "docs/supervision.md", "docs/testing_kit.md", "docs/wire_double.md", "protocol/**/*.py", "providers/**/*.py",
        "tests/conftest.py", "tests/support/*.py", "tests/actors/testing/**/*.py", "tests/protocol/testing/**/*.py",
    ),
    # The tests' own tools: what forks their programs, profiles of Hypothesis, what a mutant is. That they hang for no
    # longer than they may is seen in each run.
    "tools": (
        "setup.cfg", "benchmarks/mutants.py", "benchmarks/mutation/*.py", "tests/conftest.py",
        "tests/support/zygote.py", "tests/test_hypothesis_profiles.py", "tests/test_mutants.py", "tests/test_zygote.py",
    ),
    # The tables of commands that only read, against the programs themselves under strace.
    "tables": (
        "actors/policy/command_table.py", "actors/policy/reading_programs.py", "actors/policy/shell_*.py",
        "tests/actors/policy/test_tables_by_strace.py",
    ),
    # What differs between Pythons: loops, threads, forks, processes, files, types that are looked at.
    "pythons": (
        "setup.cfg", "actors/calls/*.py", "actors/host_process.py", "actors/kernel/*.py", "actors/processes/*.py",
        "actors/running.py", "actors/runtime.py", "actors/tools/*.py", "actors/workers/*.py", "protocol/codec.py",
        "providers/transport.py",
    ),
    # More examples of each property, all planted faults, all kills of the journal, more starts and stops, all of chaos
    # beside 49 other requests.
    "long": (
        "actors/*.py", "actors/calls/*.py", "actors/index/*.py", "actors/journal/*.py", "actors/kernel/*.py",
        "actors/mcp/*.py", "actors/models/*.py", "actors/processes/*.py", "actors/requests/*.py",
        "actors/testing/**/*.py", "actors/tools/*.py", "actors/workers/*.py", "protocol/**/*.py", "providers/**/*.py",
        "benchmarks/start_stop.py", "tests/actors/journal/*.py", "tests/actors/testing/**/*.py",
        "tests/actors/test_start_stop.py", "tests/protocol/**/*.py", "tests/providers/**/*.py",
    ),
}  # fmt: skip


def fingerprint(part: str) -> str:
    """Of the files that this part depends on."""
    found = hashlib.sha256()
    for line in sorted(set(_lines(part))):
        found.update(line.encode())
    return found.hexdigest()


def _lines(part: str) -> Iterator[str]:
    for pattern in PARTS[part]:
        by_name = pattern.startswith("names: ")
        paths = [
            path
            for path in ROOT.glob(pattern.removeprefix("names: "))
            if path.is_file() and "__pycache__" not in path.parts
        ]
        assert paths, f"{part} depends on {pattern}, and there is no such file"
        for path in paths:
            content = "" if by_name else hashlib.sha256(path.read_bytes()).hexdigest()
            yield f"{path.relative_to(ROOT)} {content}\n"


def stamped() -> dict[str, str]:
    """The fingerprints with which parts have passed."""
    if not STAMP.exists():
        return {}
    return dict((line.split()[0], line.split()[1]) for line in STAMP.read_text().splitlines())


def due() -> list[str]:
    """The parts that have not passed with these files."""
    return [part for part in PARTS if stamped().get(part) != fingerprint(part)]


def passed(part: str) -> None:
    """Write down that it has."""
    lines = {**stamped(), part: fingerprint(part)}
    STAMP.write_text("".join(f"{name} {lines[name]}\n" for name in PARTS if name in lines))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["due"]:
            sys.stdout.writelines(f"{part}\n" for part in due())
        case ["all"]:
            sys.stdout.writelines(f"{part}\n" for part in PARTS)
        case ["passed", part] if part in PARTS:
            passed(part)
        case _:
            sys.exit(__doc__)
