"""What a call of a tool would touch, and what is decided about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from callboard.protocol.tools import Decision


class AccessKind(StrEnum):
    """What a call does to the thing that it names."""

    READ = "read"
    """A file or folder is read or listed."""
    WRITE = "write"
    """A file or folder is made or changed."""
    DELETE = "delete"
    """A file or folder is removed, or moved away."""
    COMMAND = "command"
    """A line is run by a shell."""
    ADDRESS = "address"
    """A URL or a host is connected to."""


@dataclass(frozen=True, slots=True)
class Access:
    """One thing that a call would touch."""

    kind: AccessKind
    value: str
    """As the model wrote it: a path (relative to the workspace, or absolute), a command line, a URL or a host."""
    argument: str = ""
    """Where it stands in the call's arguments, as a path ("path", "edits.0.file")."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A decision with the rule that it follows from, in words: for a person, a log and the model."""

    decision: Decision
    rule: str
