"""A token that names one simulated run: short enough to paste, and refused when it is of another version."""

from __future__ import annotations

import re
from typing import Final, Self

from msgspec import Struct

from callboard.actors.testing.schedules import pct, replay
from callboard.actors.testing.simulation import Schedule, fifo, uniform
from callboard.protocol.errors import UsageError

#: To be raised when a seed comes to mean another run: by a change of the generators or of the simulation.
VERSION: Final = 3
#: Priority changes of the runs that PCT schedules, plus one: most ordering faults need two or three orderings.
PCT_DEPTH: Final = 3
_TOKEN: Final = re.compile(r"v(\d+):(\d+):(\d+|none):(fifo|uniform|pct|\d+\.\d+(?:,\d+\.\d+)*)")

Chosen = tuple[tuple[int, int], ...]
"""Deviations from FIFO: the step, and the index of what ran."""


class RunToken(Struct, frozen=True):
    """What a run is made of. As text: `v3:SEED:FAULT_SEED:SCHEDULE`, for example `v3:12:12:57.1,63.2`."""

    seed: int
    fault_seed: int | None
    """None: no faults."""
    schedule: str | Chosen
    """"fifo", "uniform" or "pct", both seeded by `seed`; or the deviations from FIFO."""

    def __str__(self) -> str:
        faults = "none" if self.fault_seed is None else self.fault_seed
        schedule = self.schedule if isinstance(self.schedule, str) else ",".join(f"{s}.{i}" for s, i in self.schedule)
        return f"v{VERSION}:{self.seed}:{faults}:{schedule or 'fifo'}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a token. Raises UsageError, in one sentence, for one of another version or of none."""
        version = re.match(r"v(\d+):", text)
        if version is not None and int(version[1]) != VERSION:
            raise UsageError(
                f"the token {text!r} is of version {version[1]} and this callboard plays version {VERSION}: "
                "play it with the callboard that printed it"
            )
        match = _TOKEN.fullmatch(text)
        if match is None:
            examples = f"v{VERSION}:12:12:pct or v{VERSION}:12:12:57.1,63.2"
            raise UsageError(f"{text!r} is not a token; one looks like {examples}")
        _, seed, faults, schedule = match.groups()
        chosen: str | Chosen = schedule
        if "." in schedule:
            pairs = (pair.split(".") for pair in schedule.split(","))
            chosen = tuple((int(step), int(index)) for step, index in pairs)
        return cls(int(seed), None if faults == "none" else int(faults), chosen)

    def make_schedule(self) -> Schedule:
        """The schedule of one run; it has state, so each run needs its own."""
        if not isinstance(self.schedule, str):
            return replay(self.schedule)
        if self.schedule == "pct":
            return pct(self.seed, PCT_DEPTH)
        return uniform(self.seed) if self.schedule == "uniform" else fifo
