"""The metrics elsewhere: in Prometheus, by a real scrape and the official parser, and in OpenTelemetry's own SDK."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics as api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families
from support.shared_double import shared_double

from callboard import Metrics, Runtime, Settings, UsageError, tool
from callboard.actors.kernel import ActorDeadError
from callboard.actors.telemetry import metrics as table
from callboard.actors.telemetry.metrics import METRICS, MetricKind
from callboard.actors.telemetry.opentelemetry_metrics import Exporter, Reading
from callboard.actors.telemetry.prometheus import MetricsCollector, exposition
from callboard.actors.testing.wire_double import Call, Tokens, Turn

CALL = Turn(calls=(Call("look", {}, "call_1"), Call("nowhere", {}, "call_2")), usage=Tokens(20, 5))


@tool(risk="read", isolation="thread")
def look() -> str:
    return "seen"


@pytest.fixture
def asked() -> Iterator[Runtime]:
    """A runtime that has answered a question: with a call of a tool, and one of a tool that there is not."""
    with shared_double([CALL, Turn("fine", usage=Tokens(9, 3))], by_turn=True) as server:
        settings = Settings(model="xai/large", base_url=server.base_url(), api_key="k")
        with Runtime(settings, tools=[look]) as runtime:
            assert runtime.ask_sync("go").text == "fine"
            yield runtime


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# -- Prometheus


def test_a_scrape_of_the_hosts_own_registry(asked: Runtime) -> None:
    registry = CollectorRegistry()
    registry.register(asked.prometheus_collector())
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as answer:
            found = parsed(answer.read().decode())
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    chat = (
        ("error_type", ""),
        ("gen_ai_operation_name", "chat"),
        ("gen_ai_provider_name", "x_ai"),
        ("gen_ai_request_model", "large"),
    )
    assert found["callboard_requests_total", (("outcome", "answered"),)] == 1
    assert found["callboard_tool_calls_total", (("outcome", "ok"), ("tool", "look"))] == 1
    assert found["callboard_tool_calls_total", (("outcome", "unknown_tool"), ("tool", "(unknown)"))] == 1
    assert found["gen_ai_client_operation_duration_seconds_count", chat] == 2
    assert found["gen_ai_client_operation_duration_seconds_bucket", (*chat, ("le", "+Inf"))] == 2
    tokens = tuple(sorted((*chat[1:], ("gen_ai_token_type", "input"))))
    assert found["gen_ai_client_token_usage_sum", tokens] == 29
    assert found["callboard_requests_open", ()] == 0
    assert found["callboard_workers", (("pool", "thread-short"),)] == 1
    assert found["callboard_tool_running", (("tool", "look"),)] == 0
    assert found["callboard_mailbox_depth", (("actor", "root/dispatcher"),)] == 0
    assert found["callboard_loop_lag_seconds", ()] >= 0
    assert found["callboard_actor_alive", ()] > 5


def test_the_text_for_a_route_of_the_hosts_own(asked: Runtime) -> None:
    found = parsed(asked.prometheus())
    assert found["callboard_requests_total", (("outcome", "answered"),)] == 1


def test_buckets_add_up_as_prometheus_wants_them() -> None:
    metrics = Metrics()
    for seconds in (0.00005, 0.003, 0.003, 9_999.0):
        metrics.record(table.TOOL_SECONDS, ("look", ""), seconds)
    found = parsed(exposition(MetricsCollector(lambda: metrics)))
    name, labels = "gen_ai_execute_tool_duration_seconds", (("error_type", ""), ("gen_ai_tool_name", "look"))
    bucket = {dict(key)["le"]: value for (found_name, key), value in found.items() if found_name == f"{name}_bucket"}
    assert (bucket["0.0001"], bucket["0.005"], bucket["500.0"], bucket["+Inf"]) == (1, 3, 3, 4)
    assert found[f"{name}_count", labels] == 4
    assert found[f"{name}_sum", labels] == pytest.approx(9_999.00605)


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_can_be_exposed_with_all_its_labels(name: str) -> None:
    metric, metrics = METRICS[name], Metrics()
    labels = tuple(f'a "{label}"\n\\' for label in metric.labels)
    if metric.kind is MetricKind.HISTOGRAM:
        metrics.record(metric, labels, 0.5)
    else:
        metrics.add(metric, labels, 0.5)
    found = parsed(exposition(MetricsCollector(lambda: metrics)))
    assert sum(found.values()) >= 0.5
    assert all(value in {text for _, key in found for _, text in key} for value in labels if name[0] == "c")


def test_a_runtime_that_has_stopped_exposes_nothing_and_breaks_no_scrape(asked: Runtime) -> None:
    registry = CollectorRegistry()
    registry.register(asked.prometheus_collector())
    asked.stop()
    assert [sample for family in registry.collect() for sample in family.samples] == []
    with pytest.raises(UsageError, match="not running"):
        asked.prometheus()


# -- OpenTelemetry


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data = reader.get_metrics_data()
    return {
        metric.name: list(metric.data.data_points)
        for resource in (data.resource_metrics if data is not None else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_the_hosts_meter_provider_gets_every_number() -> None:
    """It is set up after the runtime has started."""
    reader, before = InMemoryMetricReader(), api.NoOpMeterProvider()
    provider: api.MeterProvider = before
    with shared_double([CALL, Turn("fine", usage=Tokens(9, 3))] * 2, by_turn=True) as server:
        settings = Settings(model="xai/large", base_url=server.base_url(), api_key="k")
        runtime = Runtime(settings, tools=[look])
        runtime._wiring._find_export = Exporter(lambda: provider).find
        with runtime:
            runtime.ask_sync("go")
            runtime.metrics()
            provider = MeterProvider([reader])
            runtime.ask_sync("go")
            runtime.metrics()
            found = points(reader)
    chat = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "x_ai", "gen_ai.request.model": "large",
    }  # fmt: skip
    (duration,) = found["gen_ai.client.operation.duration"]
    assert (dict(duration.attributes), duration.count) == (chat, 2)
    assert duration.explicit_bounds[:3] == (0.01, 0.02, 0.04)
    assert duration.explicit_bounds[-1] == 81.92
    tokens = {point.attributes["gen_ai.token.type"]: point.sum for point in found["gen_ai.client.token.usage"]}
    assert tokens == {"input": 29, "output": 8}
    calls = {(point.attributes["tool"], point.attributes["outcome"]): point.value for point in found[
        "callboard.tool.calls"
    ]}  # fmt: skip
    assert calls == {("look", "ok"): 1, ("(unknown)", "unknown_tool"): 1}
    assert [point.value for point in found["callboard.requests"]] == [1]
    assert found["callboard.actor.alive"][0].value > 5


def test_two_runtimes_add_up_and_what_stops_leaves() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    first, second = (Runtime(Settings(model="scripted/m")) for _ in range(2))
    for each in (first, second):
        each._wiring._find_export = Exporter(lambda: provider).find
    with first, second:
        for each in (first, second):
            each.ask_sync("go")
            each.metrics()
        (requests,) = points(reader)["callboard.requests"]
        assert requests.value == 2
    assert points(reader)["callboard.requests"][0].value == 2
    assert "callboard.workers" not in points(reader)


def test_without_a_meter_provider_nothing_is_handed_on() -> None:
    assert Exporter().find() is None
    assert Exporter(api.NoOpMeterProvider).find() is None


def test_a_runtime_that_does_not_answer_is_left_out_of_a_reading() -> None:
    def read() -> Metrics:
        raise ActorDeadError("root/telemetry has ended")

    assert str(Reading(read).latest()) == ""


def test_a_reader_that_raises_costs_a_count_and_nothing_else() -> None:
    def export(*_: object) -> None:
        raise OSError("the collector is gone")

    runtime = Runtime(Settings(model="scripted/m"))
    runtime._wiring._find_export = lambda: export
    with runtime:
        assert runtime.ask_sync("go").text == "go"
        metrics = runtime.metrics()
        assert runtime.statistics().restarts == 0
    assert metrics.count("callboard.requests", outcome="answered") == 1
    assert metrics.count("callboard.telemetry.failed") > 0
