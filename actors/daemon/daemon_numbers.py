"""What a daemon counts of itself, beside the metrics of its tenants' runtimes: answers, connections, followers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sized
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

_LABELS: Final = ("method", "path", "status")


class DaemonNumbers(Collector):
    """Of one daemon, for all of its tenants."""

    def __init__(self) -> None:
        self.connections: Sized = ()
        """Those that are open now: the server's own set."""
        self.streams: Sized = ()
        """Likewise, answers of server-sent events."""
        self._answers: Counter[tuple[str, str, str]] = Counter()

    def answered(self, method: str, path: str, status: int) -> None:
        """An answer has begun; `path` is of the endpoint: so many labels, and no more."""
        self._answers[method, path, str(status)] += 1

    def collect(self) -> Iterator[Family]:
        """What there is now."""
        answers = CounterMetricFamily(
            "callboard_daemon_answers", "Answers by endpoint and HTTP status.", labels=_LABELS
        )
        for labels, number in sorted(self._answers.items()):
            answers.add_metric(labels, number)
        yield answers
        yield GaugeMetricFamily("callboard_daemon_connections", "Open connections.", len(self.connections))
        yield GaugeMetricFamily("callboard_daemon_followers", "Answers of server-sent events.", len(self.streams))
        yield GaugeMetricFamily(
            "callboard_daemon_threads", "Threads of Python in the process.", threading.active_count()
        )


def exposition_with(tenant: Collector, daemon: DaemonNumbers) -> str:
    """A scrape: of a tenant's runtime, of the daemon, and of its process (memory, CPU time, descriptors)."""
    registry = CollectorRegistry(auto_describe=False)
    for each in (tenant, daemon):
        registry.register(each)
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()
