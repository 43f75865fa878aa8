"""What needs the extra `telemetry`: loaded when it is used. Small, since child processes import this file too."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from callboard.protocol.errors import UsageError, missing_extra

if TYPE_CHECKING:
    from callboard.actors.telemetry.metrics import Export, Metrics
    from callboard.actors.telemetry.opentelemetry_spans import Tracing
    from callboard.actors.telemetry.prometheus import MetricsCollector


def tracing(log_content: bool) -> Tracing | None:
    """OpenTelemetry's spans; None where it is not installed."""
    try:
        from callboard.actors.telemetry.opentelemetry_spans import Tracing  # noqa: PLC0415
    except ImportError:
        return None
    return Tracing(log_content)


def find_export() -> Callable[[], Export | None]:
    """Finds what takes numbers for the host's OpenTelemetry metrics."""
    try:
        from callboard.actors.telemetry.opentelemetry_metrics import Exporter  # noqa: PLC0415
    except ImportError:
        return _nothing
    return Exporter().find


def collector(read: Callable[[], Metrics]) -> MetricsCollector:
    """For a registry of prometheus-client. UsageError where that is not installed."""
    try:
        from callboard.actors.telemetry.prometheus import MetricsCollector  # noqa: PLC0415
    except ImportError as missing:
        raise UsageError(missing_extra("Prometheus (prometheus-client)", "telemetry")) from missing
    return MetricsCollector(read)


def exposition(read: Callable[[], Metrics]) -> str:
    """The metrics as a scrape reads them. UsageError where prometheus-client is not installed."""
    made = collector(read)
    from callboard.actors.telemetry.prometheus import exposition  # noqa: PLC0415

    return exposition(made)


def observe(read: Callable[[], Metrics]) -> Callable[[], None]:
    """Let OpenTelemetry's readers see what is sampled; what is returned ends that."""
    try:
        from callboard.actors.telemetry.opentelemetry_metrics import RUNNING, Reading  # noqa: PLC0415
    except ImportError:
        return _nothing
    reading = Reading(read)
    RUNNING.add(reading)
    return partial(RUNNING.discard, reading)


def _nothing() -> None:
    """OpenTelemetry is not installed."""


def continue_trace(headers: Mapping[str, str]) -> None:
    """In a child process, where its tool has loaded OpenTelemetry: its spans in this context go below the call's."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import context, propagate  # noqa: PLC0415

        context.attach(propagate.extract(headers))
