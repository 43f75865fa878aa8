"""The metrics in Prometheus' words, by the project's own library, prometheus-client. The extra `telemetry`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from callboard.actors.telemetry.conventions import metric_attributes
from callboard.actors.telemetry.metrics import METRICS, Histogram, Metric, MetricKind, Metrics

#: Units as they end a name (OpenTelemetry's page "Prometheus and OpenMetrics compatibility").
_UNITS: Final = {"s": "seconds", "By": "bytes", "USD": "usd"}


class MetricsCollector(Collector):
    """Gives a registry what a runtime has counted, at each scrape.

    prometheus_client.REGISTRY.register(runtime.prometheus_collector())
    """

    def __init__(self, read: Callable[[], Metrics]) -> None:
        self._read = read

    def describe(self) -> Iterable[Family]:
        """The names, so that a registry need not read the metrics to know them."""
        return [_family(metric) for metric in METRICS.values()]

    def collect(self) -> Iterator[Family]:
        """What there is now."""
        metrics = self._read()
        for metric in METRICS.values():
            family = _family(metric)
            if isinstance(family, HistogramMetricFamily):
                for labels, histogram in metrics.histograms(metric.name).items():
                    values = list(metric_attributes(metric, labels).values())
                    family.add_metric(values, _buckets(histogram), histogram.total)
            else:
                for labels, value in metrics.counts(metric.name).items():
                    family.add_metric(list(metric_attributes(metric, labels).values()), value)
            yield family


def exposition(collector: MetricsCollector) -> str:
    """As a scrape reads it (text format 0.0.4)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry).decode()


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    name = metric.name.replace(".", "_")
    unit = _UNITS.get(metric.unit, "")
    name = f"{name}_{unit}" if unit else name
    keys = metric_attributes(metric, ("",) * len(metric.labels))
    labels = [key.replace(".", "_") for key in keys]
    match metric.kind:
        case MetricKind.HISTOGRAM:
            return HistogramMetricFamily(name, metric.meaning, labels=labels)
        case MetricKind.GAUGE:
            return GaugeMetricFamily(name, metric.meaning, labels=labels)
        case MetricKind.COUNTER:
            return CounterMetricFamily(name, metric.meaning, labels=labels)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
