"""docs/failures.md says what the code does: its tables are those of the code."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from callboard.actors.telemetry.metrics import Metric
from callboard.actors.telemetry.notices import NOTICES
from callboard.actors.telemetry.telemetry import MAX_PRINTED_BYTES, MAX_PRINTED_LINES
from callboard.protocol.limits import MAX_TOOL_OUTPUT_BYTES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "failures.md").read_text()


def counted(metric: Metric, labels: tuple[str, ...]) -> str:
    pairs = ", ".join(f"{label}={value}" for label, value in zip(metric.labels, labels, strict=True))
    return f"{metric.name}{{{pairs}}}" if pairs else metric.name


def notices_table() -> str:
    """As the page has it."""
    lines = ["| message | log record and span event | level | counted as |", "|---|---|---|---|"]
    for kind, rule in NOTICES.items():
        level = logging.getLevelName(rule.level) if rule.level is not None else "logged where it happens"
        if rule.info_kinds:
            level += f"; INFO for {', '.join(f'`{kind}`' for kind in sorted(rule.info_kinds))}"
        counters = ", ".join(f"`{counted(metric, labels)}`" for metric, labels in rule.counts)
        lines.append(f"| `{kind.__name__}` | `{rule.event}`: {rule.text} | {level} | {counters} |")
    return "\n".join(lines)


def test_the_table_of_notices_is_that_of_the_code() -> None:
    found = re.search(r"<!-- notices -->\n(.*?)\n?<!-- end -->", PAGE, re.S)
    assert found is not None
    assert found[1] == notices_table(), f"put this between the marks of docs/failures.md:\n{notices_table()}"


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
