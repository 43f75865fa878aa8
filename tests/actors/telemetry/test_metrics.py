"""The numbers: counters and histograms by label, bounded, and snapshots of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.offenders import no_offenders

from callboard import Metrics, UsageError
from callboard.actors.telemetry import metrics as table
from callboard.actors.telemetry.metrics import (
    BUCKETS_SECONDS,
    BUCKETS_TOKENS,
    MAX_SERIES,
    METRICS,
    OTHER,
    Histogram,
    Metric,
    MetricKind,
    Sample,
)


def test_the_buckets_are_1_2_5_steps() -> None:
    assert BUCKETS_SECONDS[:4] == (0.0001, 0.0002, 0.0005, 0.001)
    assert BUCKETS_SECONDS[-1] == 500.0
    assert list(BUCKETS_SECONDS) == sorted(set(BUCKETS_SECONDS))


def test_the_buckets_of_tokens_are_those_of_the_conventions() -> None:
    assert BUCKETS_TOKENS[:3] == (1, 4, 16)
    assert BUCKETS_TOKENS[-1] == 67_108_864


def test_an_empty_histogram() -> None:
    assert (Histogram().count, Histogram().quantile(0.5)) == (0, 0.0)


@given(st.lists(st.floats(0, 2_000), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_bounds_its_share_and_is_never_above_the_maximum(seconds: list[float], share: float) -> None:
    histogram = Histogram()
    for each in seconds:
        histogram.record(each)
    bound = histogram.quantile(share)
    assert sum(each <= bound for each in seconds) >= share * len(seconds) - 1e-9
    assert bound <= max(seconds) == histogram.max
    assert histogram.count == len(seconds)
    assert histogram.total == pytest.approx(sum(seconds))


def test_label_sets_are_summed_by_the_labels_that_are_asked_for() -> None:
    metrics = Metrics()
    for tool, outcome in (("a", "ok"), ("a", "crashed"), ("b", "ok"), ("a", "ok")):
        metrics.add(table.TOOL_CALLS, (tool, outcome))
    assert metrics.count("callboard.tool.calls") == 4
    assert metrics.count("callboard.tool.calls", tool="a") == 3
    assert metrics.count("callboard.tool.calls", outcome="ok") == 3
    assert metrics.count("callboard.tool.calls", outcome="ok", tool="a") == 2
    assert metrics.count("callboard.tool.calls", tool="c") == 0
    assert metrics.counts("callboard.tool.calls") == {("a", "ok"): 2, ("a", "crashed"): 1, ("b", "ok"): 1}


def test_histograms_are_merged_by_the_labels_that_are_asked_for() -> None:
    metrics = Metrics()
    for tool, error, seconds in (("a", "", 1.0), ("a", "crashed", 4.0), ("b", "", 2.0)):
        metrics.record(table.TOOL_SECONDS, (tool, error), seconds)
    assert metrics.histogram("gen_ai.execute_tool.duration", tool="a").total == 5.0
    assert metrics.histogram("gen_ai.execute_tool.duration", error="").quantile(1.0) == 2.0
    assert metrics.count("gen_ai.execute_tool.duration") == 3
    assert set(metrics.histograms("gen_ai.execute_tool.duration")) == {("a", ""), ("a", "crashed"), ("b", "")}


def test_it_reads_as_a_list() -> None:
    metrics = Metrics()
    metrics.add(table.REQUESTS, ("answered",), 2)
    metrics.add(table.COST, ("p/m",), 0.25)
    metrics.record(table.TOOL_SECONDS, ("look", ""), 0.5)
    metrics.record(table.TOOL_SECONDS, ("look", ""), 1.5)
    assert str(metrics).splitlines() == [
        "callboard.cost{model=p/m} 0.25",
        "callboard.requests{outcome=answered} 2",
        "gen_ai.execute_tool.duration{tool=look, error=} 2 of 1 s",
    ]


def test_a_wrong_name_or_label_is_said_in_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"there is no metric 'tool.look.ok'; docs/telemetry.md lists them"):
        Metrics().count("tool.look.ok")
    with pytest.raises(UsageError, match=r"callboard.tool.calls has no label 'model'; it has: tool, outcome"):
        Metrics().count("callboard.tool.calls", model="p/m")
    with pytest.raises(UsageError, match=r"callboard.requests is a counter, not a histogram; read it with count"):
        Metrics().histogram("callboard.requests")


def test_names_without_end_do_not_fill_the_memory() -> None:
    metrics = Metrics()
    for number in range(MAX_SERIES + 500):
        metrics.add(table.TOOL_CALLS, (f"tool_{number}", "ok"))
        metrics.record(table.TOOL_SECONDS, (f"tool_{number}", ""), 1.0)
    metrics.add(table.TOOL_CALLS, ("tool_0", "ok"))
    counts = metrics.counts("callboard.tool.calls")
    assert len(counts) == len(metrics.histograms("gen_ai.execute_tool.duration")) == MAX_SERIES + 1
    assert (counts["tool_0", "ok"], counts[OTHER, OTHER]) == (2, 500)
    assert metrics.count("gen_ai.execute_tool.duration") == MAX_SERIES + 500


def test_the_cost_is_unknown_once_that_of_one_request_is() -> None:
    metrics = Metrics()
    metrics.add(table.COST, ("p/m",), 0.25)
    metrics.add(table.COST, ("p/n",), 0.5)
    assert metrics.cost == 0.75
    metrics.add(table.COST_UNKNOWN)
    assert metrics.cost is None


def test_a_snapshot_goes_on_unchanged_and_has_what_is_sampled() -> None:
    metrics = Metrics()
    metrics.record(table.REQUEST_SECONDS, ("",), 1.0)
    metrics.add(table.REQUESTS, ("answered",))
    snapshot = metrics.copy([Sample(table.ACTORS, (), 7)])
    metrics.record(table.REQUEST_SECONDS, ("",), 2.0)
    metrics.add(table.REQUESTS, ("answered",))
    metrics.add(table.COST, ("p/m",), 1.0)
    assert snapshot.histogram("gen_ai.invoke_agent.duration").total == 1.0
    assert (snapshot.count("callboard.requests", outcome="answered"), snapshot.cost) == (1, 0.0)
    assert (snapshot.count("callboard.actor.alive"), metrics.count("callboard.actor.alive")) == (7, 0)


def test_each_metric_is_whole() -> None:
    no_offenders(f"{name}: {metric}" for name, metric in METRICS.items() if not is_whole(name, metric))


def is_whole(name: str, metric: Metric) -> bool:
    return (
        name.startswith(("callboard.", "gen_ai."))
        and metric.meaning.endswith(".")
        and bool(metric.buckets) is (metric.kind is MetricKind.HISTOGRAM)
        and (metric.unit in ("s", "By", "USD") or metric.unit.startswith("{"))
    )
