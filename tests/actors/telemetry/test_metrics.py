"""Histograms and snapshots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.telemetry.telemetry import BUCKETS_SECONDS, Histogram, Metrics


def test_the_buckets_are_1_2_5_steps() -> None:
    assert BUCKETS_SECONDS[:4] == (0.0001, 0.0002, 0.0005, 0.001)
    assert BUCKETS_SECONDS[-1] == 500.0
    assert list(BUCKETS_SECONDS) == sorted(set(BUCKETS_SECONDS))


def test_an_empty_histogram() -> None:
    assert (Histogram().count, Histogram().quantile(0.5)) == (0, 0.0)


@given(st.lists(st.floats(0, 2_000), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_bounds_its_share_and_is_never_above_the_maximum(seconds: list[float], share: float) -> None:
    histogram = Histogram()
    for each in seconds:
        histogram.record(each)
    bound = histogram.quantile(share)
    assert sum(each <= bound for each in seconds) >= share * len(seconds) - 1e-9
    assert bound <= max(seconds) == histogram.max_seconds
    assert histogram.count == len(seconds)
    assert histogram.total_seconds == pytest.approx(sum(seconds))


def test_a_snapshot_goes_on_unchanged() -> None:
    metrics = Metrics()
    metrics.observe("request", 1.0)
    metrics.counters["request.answered"] += 1
    snapshot = metrics.copy()
    metrics.observe("request", 2.0)
    metrics.counters["request.answered"] += 1
    metrics.known_cost += 1.0
    assert (snapshot.seconds["request"].count, snapshot.counters["request.answered"], snapshot.cost) == (1, 1, 0.0)
