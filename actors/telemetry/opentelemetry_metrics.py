"""The numbers of metrics.py for OpenTelemetry, where the host has set up a meter provider. The extra `telemetry`.

Counters and histograms are recorded as things happen, on the runtime's loop; what is sampled is read when the host's
reader asks. Instruments belong to the process, so that several runtimes add up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from weakref import WeakSet

from opentelemetry import metrics as api

from callboard.actors.kernel import KernelError
from callboard.actors.telemetry.conventions import metric_attributes
from callboard.actors.telemetry.metrics import METRICS, Labels, Metric, MetricKind, Metrics
from callboard.protocol.errors import RuntimeFailure

#: A reader asks for each metric in turn: one reading serves all that it asks for in this time.
READING_SECONDS = 1.0
#: Of the conventions, for the durations of gen_ai.*; our own buckets are finer, for a warm call takes 0.15 ms.
_BOUNDS_SECONDS = tuple(round(0.01 * 2.0**power, 2) for power in range(14))


class Exporter:
    """Hands numbers to the host's meter provider, as soon as there is one: it may be set up at any time."""

    def __init__(self, provider: Callable[[], api.MeterProvider] = api.get_meter_provider) -> None:
        self._get_provider = provider
        self._provider: api.MeterProvider | None = None
        self._instruments: dict[str, api.Counter | api.Histogram] = {}

    def find(self) -> Callable[[Metric, Labels, float], None] | None:
        """What takes numbers now; None without a provider."""
        provider = self._get_provider()
        if provider is not self._provider:
            self._provider, self._instruments = provider, _made(provider)
        return self._take if self._instruments else None

    def _take(self, metric: Metric, labels: Labels, value: float) -> None:
        instrument = self._instruments.get(metric.name)
        if isinstance(instrument, api.Histogram):
            instrument.record(value, _attributes(metric, labels))
        elif instrument is not None:
            instrument.add(value, _attributes(metric, labels))


def _made(provider: api.MeterProvider) -> dict[str, api.Counter | api.Histogram]:
    # OpenTelemetry's own stand-ins do nothing, and cost a call each; there is no public name for all of them.
    if type(provider).__module__.startswith("opentelemetry.metrics"):
        return {}
    meter = provider.get_meter("callboard")
    made: dict[str, api.Counter | api.Histogram] = {}
    for metric in METRICS.values():
        options = {"unit": metric.unit, "description": metric.meaning}
        if metric.sampled:
            callbacks = [partial(_observe, metric)]
            if metric.kind is MetricKind.GAUGE:
                meter.create_observable_gauge(metric.name, callbacks, **options)
            else:  # a runtime that stops takes its counts along, so that their sum can go down
                meter.create_observable_up_down_counter(metric.name, callbacks, **options)
        elif metric.kind is MetricKind.HISTOGRAM:
            bounds = _BOUNDS_SECONDS if metric.unit == "s" else metric.buckets
            made[metric.name] = meter.create_histogram(
                metric.name, **options, explicit_bucket_boundaries_advisory=bounds
            )
        else:
            made[metric.name] = meter.create_counter(metric.name, **options)
    return made


@lru_cache(maxsize=4_096)
def _attributes(metric: Metric, labels: Labels) -> dict[str, str]:
    return {name: value for name, value in metric_attributes(metric, labels).items() if value}


class Reading:
    """The metrics of one running runtime, for OpenTelemetry's readers, which run on threads of their own."""

    def __init__(self, read: Callable[[], Metrics]) -> None:
        self._read = read
        self._latest = Metrics()
        self._until = 0.0

    def latest(self) -> Metrics:
        """Of now, or of less than READING_SECONDS ago."""
        now = time.monotonic()
        if now >= self._until:
            try:
                self._latest = self._read()
            except (KernelError, RuntimeFailure):  # it has ended, or its loop is held: then nothing of it is known
                self._latest = Metrics()
            self._until = now + READING_SECONDS
        return self._latest


#: OpenTelemetry can forget no callback, so there is one for all runtimes of the process that run now.
RUNNING: WeakSet[Reading] = WeakSet()


def _observe(metric: Metric, _: api.CallbackOptions) -> Iterable[api.Observation]:
    sums: dict[Labels, float] = {}
    for reading in tuple(RUNNING):
        for labels, value in reading.latest().counts(metric.name).items():
            sums[labels] = sums.get(labels, 0.0) + value
    return [api.Observation(value, _attributes(metric, labels)) for labels, value in sums.items()]
