"""Until the process workers come from their branch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from callboard.actors.workers.kinds import THREADS
from callboard.actors.workers.messages import KindOf
from callboard.protocol.limits import MAX_TOOL_PROCESSES, TOOL_MEMORY_BYTES


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """How a pool's children are made."""

    max_children: int = MAX_TOOL_PROCESSES
    warm: int = 1
    memory_bytes: int = TOOL_MEMORY_BYTES
    idle_seconds: float = 30.0
    environment: Mapping[str, str] = field(default_factory=dict)


def process_kind(options: ProcessOptions) -> KindOf:
    return lambda contract: THREADS
