"""Tokens: one short word for a seeded scenario, and for the way in which it was made smaller.

3.17            seed 17 of version 3 of the generator
3.17/4.0*3.12   the same, after the simplifications 4, 0 three times, and 12 (see shrinking.py)
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Final

from msgspec import Struct

from callboard.protocol.errors import UsageError
from callboard.protocol.testing.generator import VERSION
from callboard.protocol.testing.generator import scenario as seeded_scenario
from callboard.protocol.testing.scenario import Scenario
from callboard.protocol.testing.shrinking import Path, follow

#: One simplification, and how often it was taken in a row. No path has 10,000.
_RUN: Final = re.compile(r"(\d+)(?:\*([1-9]\d{0,3}))?")
_TOKEN: Final = re.compile(rf"(\d+)\.(\d+)(?:/((?:{_RUN.pattern}\.)*{_RUN.pattern}))?")


class Token(Struct, frozen=True):
    """A scenario by its seed, and the simplifications since."""

    seed: int
    path: Path = ()

    @classmethod
    def parse(cls, text: str) -> Token:
        """Raises UsageError for a text that is no token, or one of another version."""
        match = _TOKEN.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"{text!r} is no replay token; one looks like {Token(17, (4, 0))}")
        version, seed, path = match.group(1, 2, 3)
        if int(version) != VERSION:
            raise UsageError(
                f"{text!r} is of version {version} of the scenario generator, this is version {VERSION}, where the "
                "same seed is another scenario; check out the commit that printed it, or look for it again"
            )
        runs = _RUN.findall(path or "")
        token = cls(int(seed), tuple(int(index) for index, times in runs for _ in range(int(times or 1))))
        _ = token.scenario
        return token

    @property
    def scenario(self) -> Scenario:
        """The scenario it stands for. Raises UsageError when its path does not fit."""
        return follow(seeded_scenario(self.seed), self.path)

    @property
    def line(self) -> str:
        """What to paste to see it again."""
        return f"play it again: python -m callboard.actors.testing replay {self}"

    def __str__(self) -> str:
        runs = [(index, len(tuple(alike))) for index, alike in groupby(self.path)]
        path = ".".join(f"{index}*{times}" if times > 1 else f"{index}" for index, times in runs)
        return f"{VERSION}.{self.seed}/{path}" if path else f"{VERSION}.{self.seed}"
