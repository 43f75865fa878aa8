"""docs/failures.md and docs/telemetry.md say what the code does: their tables are those of the code."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from callboard.actors.requests.asking import MAX_METADATA_CHARS, MAX_METADATA_ENTRIES
from callboard.actors.telemetry.message_json import MAX_CONTENT_CHARS, MAX_MESSAGES
from callboard.actors.telemetry.metrics import MAX_SERIES, METRICS, Metric
from callboard.actors.telemetry.notices import NOTICES
from callboard.actors.telemetry.telemetry import MAX_PRINTED_BYTES, MAX_PRINTED_LINES
from callboard.protocol.limits import MAX_TOOL_OUTPUT_BYTES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "failures.md").read_text()
TELEMETRY = (ROOT / "docs" / "telemetry.md").read_text()


def counted(metric: Metric, labels: tuple[str, ...]) -> str:
    pairs = ", ".join(f"{label}={value}" for label, value in zip(metric.labels, labels, strict=True))
    return f"{metric.name}{{{pairs}}}" if pairs else metric.name


def notices_table() -> str:
    """As the page has it."""
    lines = ["| message | log record and span event | level | counted as |", "|---|---|---|---|"]
    for kind, rule in NOTICES.items():
        level = logging.getLevelName(rule.level) if rule.level is not None else "-"
        if rule.info_kinds:
            level += f"; INFO for {', '.join(f'`{kind}`' for kind in sorted(rule.info_kinds))}"
        counters = ", ".join(f"`{counted(metric, labels)}`" for metric, labels in rule.counts)
        lines.append(f"| `{kind.__name__}` | `{rule.event}`: {rule.text} | {level} | {counters} |")
    return "\n".join(lines)


def test_the_table_of_notices_is_that_of_the_code() -> None:
    found = re.search(r"<!-- notices -->\n(.*?)\n?<!-- end -->", PAGE, re.S)
    assert found is not None
    assert found[1] == notices_table(), f"put this between the marks of docs/failures.md:\n{notices_table()}"


def metrics_table() -> str:
    """As the page has it."""
    lines = ["| metric | kind | labels | what |", "|---|---|---|---|"]
    for metric in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        kind = metric.kind if metric.unit.startswith("{") else f"{metric.kind}, {metric.unit}"
        lines.append(f"| `{metric.name}` | {kind} | {labels} | {metric.meaning} |")
    return "\n".join(lines)


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    found = re.search(r"<!-- metrics -->\n(.*?)\n?<!-- end -->", TELEMETRY, re.S)
    assert found is not None
    assert found[1] == metrics_table(), f"put this between the marks of docs/telemetry.md:\n{metrics_table()}"


def attributes_of_the_page() -> set[str]:
    """Of its table, and of the paragraph about content below it."""
    table, _, below = TELEMETRY.partition("| attribute |")[2].partition("\n\n")
    rows = re.findall(r"^\| (`[^|]*) \|", table, re.M)
    assert len(rows) > 8
    names = set(re.findall(r"`(gen_ai\.[a-z_.]+)`", below.partition("\n\n")[0]))
    for row in rows:
        first, *rest = re.findall(r"`([a-z_.A-Z]+)`", row)
        prefix = ".".join(first.split(".")[: 1 if first.startswith("callboard") else 2])
        names |= {first, *(f"{prefix}{name}" if name.startswith(".") else name for name in rest)}
    return names


def test_every_attribute_of_the_page_is_one_of_the_code() -> None:
    code = "".join(path.read_text() for path in (ROOT / "actors" / "telemetry").glob("*.py"))
    for name in attributes_of_the_page():
        assert name.removesuffix("KEY") in code or name in ("callboard.step", "callboard.call_id"), name


def test_every_attribute_of_a_span_is_on_the_page() -> None:
    telemetry = ROOT / "actors" / "telemetry"
    spans = (telemetry / "conventions.py").read_text().partition("# -- spans")[2]
    spans += (telemetry / "opentelemetry_spans.py").read_text()
    found = set(re.findall(r'"((?:callboard|gen_ai|http|server|error)\.[a-z_.]*[a-z])"', spans))
    assert len(found) > 30
    assert found <= attributes_of_the_page()


def test_the_bounds_are_those_of_the_code() -> None:
    assert f"at most {MAX_SERIES:,} label sets" in TELEMETRY
    assert f"at most {MAX_METADATA_ENTRIES}, each up to {MAX_METADATA_CHARS} characters" in TELEMETRY
    assert f"last {MAX_MESSAGES} messages, each text up to {MAX_CONTENT_CHARS:,} characters" in TELEMETRY


def test_the_loggers_are_those_of_the_code() -> None:
    named = set(re.findall(r"^\| `(callboard[a-z.]*)` \|", PAGE, re.M))
    used = {
        name
        for package in ("actors", "protocol", "providers")
        for path in (ROOT / package).rglob("*.py")
        if "testing" not in path.parts
        for name in re.findall(r'(?:getLogger|logger_of)\("(callboard[a-z.]*)"\)', path.read_text())
    }
    assert named == used


def test_the_numbers_are_those_of_the_code() -> None:
    assert f"The last {MAX_PRINTED_LINES} lines ({MAX_PRINTED_BYTES // 1024} kB)" in PAGE
    assert f"The end of it ({MAX_TOOL_OUTPUT_BYTES // 1024} kB)" in PAGE
