"""A model call beside the conversation: its answer is no turn, is not streamed, and is never asked for by the user."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from callboard.protocol.model import CallPurpose, ModelRequest

#: Of the time that the request has left, what such a call may take: the question itself has the rest.
ASIDE_TIME_SHARE: Final = 0.25


class Aside(Struct, frozen=True):
    """One of them."""

    purpose: CallPurpose
    request: ModelRequest
    tokens: int
    """Of the request, by our own count."""
    timeout_seconds: float
    max_attempts: int | None = None
    """Requests that may be sent for it; None: as many as for a step."""

    def deadline_at(self, at: float, request_deadline_at: float) -> float:
        """When it is given up, where it is asked for at `at`."""
        share = max(request_deadline_at - at, 0.0) * ASIDE_TIME_SHARE
        return min(at + min(self.timeout_seconds, share), request_deadline_at)
