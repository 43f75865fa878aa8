"""How long a model call may take. Apart from transport.py, so that settings can be read without loading HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from callboard.protocol.limits import STREAM_IDLE_TIMEOUT_SECONDS, STREAM_TOTAL_TIMEOUT_SECONDS

#: TCP and TLS handshakes take well under a second each; more is an address where nobody is.
CONNECT_TIMEOUT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Timeouts:
    """All in seconds."""

    connect_seconds: float = CONNECT_TIMEOUT_SECONDS
    idle_seconds: float = STREAM_IDLE_TIMEOUT_SECONDS
    """Between two socket reads; a stalled stream is an error, not a wait."""
    total_seconds: float = STREAM_TOTAL_TIMEOUT_SECONDS
    """From the call to its last byte."""


DEFAULT_TIMEOUTS: Final = Timeouts()
