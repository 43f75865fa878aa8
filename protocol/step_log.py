"""The reports of a request (reports.py), collected as its model calls and their tool calls end."""

from __future__ import annotations

from msgspec.structs import replace

from callboard.protocol import events
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import CallPurpose, Usage
from callboard.protocol.reports import CallReport, StepReport


class StepLog:
    """Collects the reports of a request, a model call at a time."""

    def __init__(self) -> None:
        self._reports: list[StepReport] = []
        self._step = 0
        self._asked_at: float | None = None
        """Of the model call that is open."""
        self._purpose = CallPurpose.TURN

    def asked(self, step: int, at: float, purpose: CallPurpose) -> None:
        """A model call begins."""
        self._step, self._asked_at, self._purpose = step, at, purpose

    def responded(self, event: events.ModelResponded, usage: Usage | None, cost: float | None) -> None:
        """A turn came; `usage` and `cost` as far as they can be true."""
        response, first_at = event.response, event.first_event_at
        asked_at, self._asked_at = self._asked_at or 0.0, None
        report = StepReport(
            self._step,
            event.at - asked_at,
            response.error is None,
            event.model,
            usage,
            cost,
            response.finish_reason,
            response.error.kind if response.error is not None else None,
            event.requests,
            (),
            None if first_at is None else first_at - asked_at,
            response.model,
            response.response_id,
            response.provider_request_id,
            response.service_tier,
            self._purpose,
        )
        self._reports.append(report)

    def failed(self, event: events.ModelFailed, usage: Usage | None, cost: float | None) -> None:
        """The model call failed; `usage` and `cost` as far as they can be true."""
        self._add(event.at, event.error.kind, event.model, event.requests, usage, cost)

    def lost(self, at: float) -> None:
        """What held the model call is gone."""
        self._add(at, ErrorKind.INTERNAL)

    def calls_ended(self, calls: tuple[CallReport, ...]) -> None:
        """All calls of the last turn have ended."""
        last = max(at for at, report in enumerate(self._reports) if report.is_turn)
        self._reports[last] = replace(self._reports[last], calls=calls)

    def reports(self, at: float) -> tuple[StepReport, ...]:
        """All of them, when the request ends at this time."""
        if self._asked_at is not None:
            self._add(at)
        return tuple(self._reports)

    def _add(
        self,
        at: float,
        error: ErrorKind | None = None,
        model: str = "",
        requests: int = 0,
        usage: Usage | None = None,
        cost: float | None = None,
    ) -> None:
        seconds = at - (self._asked_at or 0.0)
        self._asked_at = None
        report = StepReport(self._step, max(seconds, 0.0), False, model, usage, cost, error=error, requests=requests)
        self._reports.append(replace(report, purpose=self._purpose))
