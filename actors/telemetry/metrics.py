"""Counters and latency histograms, as plain values."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

#: Upper bounds in seconds: 1-2-5 steps from 0.1 ms (a warm call takes 0.15 ms) to 10 min (the longest deadline).
BUCKETS_SECONDS = tuple(
    round(digit * 10.0**power, 6) for power in range(-4, 3) for digit in (1, 2, 5) if digit * 10.0**power <= 600
)


@dataclass(slots=True)
class Histogram:
    """How long something took."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_SECONDS) + 1))
    total_seconds: float = 0.0
    max_seconds: float = 0.0

    def record(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.total_seconds += seconds
        self.max_seconds = max(self.max_seconds, seconds)

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """The upper bound of the bucket in which this share of the records is reached, in seconds; 0 when empty."""
        rank, seen = share * self.count, 0
        for bound, count in zip((*BUCKETS_SECONDS, self.max_seconds), self.counts, strict=True):
            seen += count
            if count and seen >= rank:
                return min(bound, self.max_seconds)
        return 0.0

    def copy(self) -> Histogram:
        return Histogram(list(self.counts), self.total_seconds, self.max_seconds)


@dataclass(slots=True)
class Metrics:
    """What a runtime has counted since it started.

    `counters` by name: request.<outcome>, model.<model>.<ok or the error kind>, tool.<tool>.<ok or the failure code>,
    tools.withdrawn, tools.restored, tokens.input, tokens.output, telemetry.failed (what could not be logged or traced).
    `seconds` by name: request, model.<model>, tool.<tool>.
    """

    counters: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, Histogram] = field(default_factory=dict)
    cost: float = 0.0
    """US dollars, where prices are known."""

    def observe(self, name: str, seconds: float) -> None:
        self.seconds.setdefault(name, Histogram()).record(seconds)

    def copy(self) -> Metrics:
        """A snapshot that goes on unchanged."""
        return Metrics(Counter(self.counters), {name: h.copy() for name, h in self.seconds.items()}, self.cost)
