"""The time that a request has. It stands still while the request only waits for someone outside (I5).

That is the case while each open call of its step waits for an approval or is deferred; each of these waits has a limit
of its own. While a model call is open, or one call of the step is not such a wait, the time runs.
"""

from __future__ import annotations

from msgspec import Struct


class RequestClock(Struct):
    """When the request must end. The times are those of the events: there is no clock in here."""

    _deadline_at: float
    _halted_at: float | None = None

    @property
    def is_halted(self) -> bool:
        """The request only waits."""
        return self._halted_at is not None

    def is_to_halt(self, at: float, *, only_waits: bool) -> bool:
        """Does the time stand still from now on? Not once it is over: then the request ends."""
        return only_waits and (self.is_halted or at < self._deadline_at)

    def deadline_at(self, at: float) -> float:
        """When the request must end if its time runs from now on; a wait that lasts until now is added."""
        if self._halted_at is None:
            return self._deadline_at
        return self._deadline_at + max(0.0, at - self._halted_at)

    def turn(self, at: float) -> float | None:
        """From now on the request only waits (None), or its time runs again: then the deadline from now on."""
        if not self.is_halted:
            self._halted_at = at
            return None
        self._deadline_at, self._halted_at = self.deadline_at(at), None
        return self._deadline_at
