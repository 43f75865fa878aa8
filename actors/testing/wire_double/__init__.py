"""A server that answers like a model API, from a script: six wire APIs over real HTTP, with faults.

Start it with `python -m callboard.actors.testing.wire_double`, or from Python with `WireDouble`; docs/wire_double.md
has the format of its scripts.
"""

from callboard.actors.testing.wire_double.client import WireDouble
from callboard.actors.testing.wire_double.script import (
    Answer,
    Api,
    Call,
    Chance,
    Fault,
    FaultKind,
    RawAnswer,
    Script,
    Tokens,
    Turn,
)
from callboard.actors.testing.wire_double.traffic import Asked, Traffic

__all__ = [
    "Answer",
    "Api",
    "Asked",
    "Call",
    "Chance",
    "Fault",
    "FaultKind",
    "RawAnswer",
    "Script",
    "Tokens",
    "Traffic",
    "Turn",
    "WireDouble",
]
