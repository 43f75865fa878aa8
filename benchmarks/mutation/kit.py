"""Plays what the testing kit has against a changed file of the product: exits 1 if a rule finds something.

    python kit.py MODULE FILE SECONDS     # the module that is changed, the file it must come from, and how much CPU

Any failure counts, an exception of the code under test too. Prints one line that says what was found.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import logging
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

#: The exit status of a run that says nothing: the mutant was not what ran.
NOT_THE_MUTANT: Final = 99

#: Plays a seed, and says what is wrong.
Play = Callable[[int], list[str]]


def session() -> Play:
    """A conversation with the bare session."""
    testing = importlib.import_module("callboard.protocol.testing")
    scenario = importlib.import_module("callboard.protocol.testing.generator").scenario
    return lambda seed: list(map(str, testing.violations(testing.drive(scenario(seed), seed))))


def actors() -> Play:
    """Requests side by side under the real actors, and what fails around them."""
    simulated = importlib.import_module("callboard.actors.testing.simulated_run")
    return lambda seed: simulated.attempt(simulated.token_of(seed))[1]


def room(name: str) -> Play:
    """What no request reaches, or seldom: the kernel's corners, calls, the index, the editor, the end of a process."""
    return importlib.import_module(f"callboard.actors.testing.played_{name}").play


PLAYS: Final[dict[str, Callable[[], Play]]] = {
    "session": session,
    "actors": actors,
    "kernel": lambda: room("kernel"),
    "models": lambda: room("models"),
    "index": lambda: room("index"),
    "edits": lambda: room("edits"),
    "recovery": lambda: room("recovery"),
    "requests": lambda: room("requests"),
    "calls": lambda: room("calls"),
    "workers": lambda: room("workers"),
}
#: What is played for a file, by how its path begins.
PLAYED: Final = (
    ("callboard.actors.index", ("index",)),
    ("callboard.actors.edits", ("edits",)),
    ("callboard.actors.models", ("models", "actors")),
    ("callboard.actors.calls", ("calls", "actors")),
    ("callboard.actors.workers", ("workers", "calls", "actors")),
    ("callboard.actors.kernel", ("kernel", "actors")),
    ("callboard.actors.journal", ("recovery", "actors")),
    ("callboard.actors.taking_up", ("recovery", "actors")),
    ("callboard.actors.requests.write_ahead", ("recovery", "actors")),
    ("callboard.actors.requests.request_session", ("actors",)),
    ("callboard.actors.requests", ("requests", "actors")),
    ("callboard.protocol", ("session", "actors")),
    ("callboard", ("actors",)),
)


def played(module: str) -> tuple[str, ...]:
    """The plays that run this module."""
    return next(plays for begins, plays in PLAYED if module.startswith(begins))


def found(plays: dict[str, Play], seconds: float) -> Iterator[str]:
    """What is wrong, as soon as something is; the plays share the CPU time evenly, from seed 0 on."""
    taken, seeds = dict.fromkeys(plays, 0.0), {name: itertools.count() for name in plays}
    while sum(taken.values()) < seconds:
        name = min(taken, key=lambda each: taken[each])
        seed, began = next(seeds[name]), time.process_time()
        try:
            problems = plays[name](seed)
        except Exception as error:  # noqa: BLE001 - whatever the code under test raises is the finding
            problems = [f"{type(error).__name__}: {error}"]
        taken[name] += time.process_time() - began
        yield from (f"{name} {seed} after {sum(taken.values()):.1f} s: {problem}" for problem in problems)


def main(module: str, file: str, seconds: float) -> int:
    """Play the seeds 0, 1, 2 ... until one breaks a rule, or the CPU time is over."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != Path(file):
        print(f"{module} is not the mutant but {spec and spec.origin}")
        return NOT_THE_MUTANT
    logging.disable(logging.CRITICAL)  # crashes are what is played
    endless = int(2 * seconds) + 20  # with what it takes to import all
    resource.setrlimit(resource.RLIMIT_CPU, (endless, endless))
    try:
        importlib.import_module(module)
        plays = {name: PLAYS[name]() for name in played(module)}
    except Exception as error:  # noqa: BLE001 - a mutant that cannot be imported is found by anything
        print(f"not imported: {type(error).__name__}: {error}")
        return 1
    for problem in found(plays, seconds):
        print(problem.replace("\n", " ")[:300])
        return 1
    print(f"nothing found in {seconds:g} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
