"""How often a step may be asked: the requests that its model calls have taken, and how often one of them was lost."""

from __future__ import annotations

from typing import Final

from callboard.protocol import limits
from callboard.protocol.commands import NoteKind
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import ModelFailed, ModelLost, ModelNoted

#: Notes that say why there is no answer yet.
_TELLS_WHY: Final = frozenset({NoteKind.RETRY, NoteKind.FALLBACK, NoteKind.RATE_LIMIT})
#: Of a model that is known to take no tools, or no schema, its holder says so without asking it.
_SAID_UNASKED: Final = frozenset({ErrorKind.TOOLS_UNSUPPORTED, ErrorKind.SCHEMA_UNSUPPORTED})


class Attempts:
    """Of one step, from its first model call until a turn of it counts."""

    def __init__(self, most: int) -> None:
        self.most = most
        """Requests that may be sent for a step."""
        self.sent = 0
        """Requests that its model calls took which have ended."""
        self.losses = 0
        """Model calls of it that were lost, in a row."""
        self._sent_now = 0
        """Those that the current one is known to have taken: how many, counts when it is lost."""
        self._waits_until_at = 0.0
        """What the model call waits for is over then."""
        self._has_cut_harder = False
        self._failures: dict[str, str] = {}
        """What its tries have failed with so far, each once."""

    @property
    def left(self) -> int:
        """Requests that may still be sent."""
        return self.most - self.sent

    @property
    def may_ask_again(self) -> bool:
        """Whether any may."""
        return self.left > 0

    def begin(self, not_before_at: float) -> None:
        """A model call begins, at that time at the soonest."""
        self._sent_now, self._waits_until_at = 0, not_before_at

    def noted(self, event: ModelNoted) -> None:
        """It has sent so many requests by now, and may wait before the next."""
        self._sent_now = max(self._sent_now, event.requests)
        self._waits_until_at = event.until_at
        if event.kind in _TELLS_WHY:
            self._has_failed(event.text)

    def asked_again(self, reason: str) -> str:
        """What is told of a step that is asked again."""
        self._has_failed(reason)
        return f"Step asked again after {self.sent} of {self.most} requests: {reason}"

    def _has_failed(self, told: str) -> None:
        why = told.partition("; ")[0].rstrip(".")
        self._failures[why.partition(" after ")[0]] = why  # the latest of each model

    @property
    def failures(self) -> str:
        """For the reason of a request that ends before a try has succeeded; "" where none has failed."""
        return "".join(f"; {each}" for each in self._failures.values())

    def ended(self, requests: int, least: int = 1) -> None:
        """It took so many requests, at least those that it was known to have taken."""
        self.sent += max(least, requests, self._sent_now)
        self.losses = 0

    def failed(self, event: ModelFailed) -> None:
        """It failed; what its holder says unasked took no request."""
        self.ended(event.requests, 0 if event.error.kind in _SAID_UNASKED else 1)

    def lost(self, event: ModelLost) -> bool:
        """It was lost; whether it may be asked again.

        Nothing says whether another request was under way, so one more counts than is known of; none does where the
        whole process has ended.
        """
        losses = self.losses + 1
        self.ended(self._sent_now + (not event.with_process), least=0)
        self.losses = losses
        return self.may_ask_again and losses <= limits.MAX_MODEL_LOSSES

    def begins_again_at(self, at: float, losses: int) -> float:
        """After a pause that grows with each loss in a row: what was lost needs time to come back. A wait that was
        under way, such as for a rate limit, is not cut short."""
        pauses = limits.MODEL_LOST_PAUSES_SECONDS
        return max(at + pauses[min(losses, len(pauses)) - 1], self._waits_until_at)

    def may_cut_harder(self) -> bool:
        """Once a step: a second refusal of the same prompt says that our count cannot be relied on."""
        may, self._has_cut_harder = not self._has_cut_harder, True
        return may

    def end_step(self) -> None:
        """A turn counts: the next model call is another step's."""
        self.sent, self.losses, self._has_cut_harder = 0, 0, False
        self._failures.clear()
