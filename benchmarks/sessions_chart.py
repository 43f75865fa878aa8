"""The charts and the table of sessions.py, from the figures that it has saved beside them.

    python benchmarks/sessions_chart.py       # writes the tables into docs/benchmarks.md, as sessions.py --save does

SVG by hand: bars and lines are little, and a library for them would be the largest thing in the environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

SAVED = Path(__file__).resolve().parents[1] / "docs" / "images"
PAGE = SAVED.parent / "benchmarks.md"
WIDTH = 760
ROW = 22
LEFT = 190
OURS, THEIRS, GRID, INK = "#1f6f8b", "#b8b8b8", "#dddddd", "#333333"

Row = dict[str, Any]


def svg(height: int, title: str, parts: Iterable[str]) -> str:
    """The whole picture; its background is white, also where the page is dark."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        ' font-family="sans-serif" font-size="12">'
        f'<title>{escape(title)}</title><rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, text(10, 20, title, weight="bold"), *parts, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
    style = f'fill="{INK}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {style}>{escape(words)}</text>'


def bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" fill="{colour}"/>'


def colour_of(name: str) -> str:
    return OURS if name.startswith("callboard") else THEIRS


def draw_cpu(rows: Sequence[Row], file: Path) -> None:
    """A bar for each contender at the highest concurrency: CPU a session."""
    most = max(row["concurrency"] for row in rows)
    shown = [row for row in rows if row["concurrency"] == most]
    scale = (WIDTH - LEFT - 110) / max(row["cpu_ms"] for row in shown)
    parts = []
    for number, row in enumerate(shown):
        y = 40 + number * ROW
        length = row["cpu_ms"] * scale
        parts += [
            text(LEFT - 8, y + 14, row["name"], "end"),
            bar(LEFT, y, length, ROW - 6, colour_of(row["name"])),
            text(LEFT + length + 6, y + 14, f"{row['cpu_ms']:.1f} ms, {row['x_bare']:.1f}x"),
        ]
    title = f"CPU a session at {most:,} at once, and as a multiple of the bare loop"
    file.write_text(svg(40 + len(shown) * ROW + 10, title, parts))


def draw_retries(rows: Sequence[Row], file: Path) -> None:
    """Below each other: the requests sent again in each 100 ms, of all contenders on one scale."""
    height, gap = 46, 14
    longest = max(len(row["bins"]) for row in rows)
    step = (WIDTH - LEFT - 20) / max(longest, 1)
    most = max([1, *(count for row in rows for count in row["bins"])])
    parts = []
    for number, row in enumerate(rows):
        base = 40 + (number + 1) * (height + gap) - gap
        parts += [
            text(LEFT - 8, base - height / 2, row["name"], "end"),
            text(LEFT - 8, base - height / 2 + 14, f"{sum(row['bins'])}, at most {max(row['bins'], default=0)}", "end"),
            bar(LEFT, base, WIDTH - LEFT - 20, 0.5, GRID),
        ]
        for place, count in enumerate(row["bins"]):
            if count:
                tall = count / most * height
                parts.append(bar(LEFT + place * step, base - tall, max(step - 0.2, 0.4), tall, colour_of(row["name"])))
    seconds = longest / 10
    parts.append(text(LEFT, 40 + len(rows) * (height + gap) + 8, "0 s"))
    parts.append(text(WIDTH - 20, 40 + len(rows) * (height + gap) + 8, f"{seconds:.0f} s", "end"))
    title = "Requests sent again in each 100 ms, with 5% 429, 2% 500, 1% stalls, 1% cuts"
    file.write_text(svg(40 + len(rows) * (height + gap) + 20, title, parts))


def cpu_table(rows: Sequence[Row]) -> str:
    """In Markdown."""
    lines = ["| | at once | CPU ms a session | x the bare loop | sessions/s | RSS MB |", "|---|---|---|---|---|---|"]
    for row in rows:
        figures = f"{row['cpu_ms']:.2f} | {row['x_bare']:.2f} | {row['per_second']:.0f} | {row['rss_mb']:.0f}"
        lines.append(f"| {row['name']} | {row['concurrency']:,} | {figures} |")
    return "\n".join(lines) + "\n"


def ends_table(rows: Sequence[Row]) -> str:
    """In Markdown."""
    kinds = ("right", "error", "wrong", "hung")
    lines = ["| | sessions | right | a clear error | wrong | hung | the longest, s |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        counts = " | ".join(str(row["ends"].get(kind, 0)) for kind in kinds)
        lines.append(f"| {row['name']} | {row['sessions']:,} | {counts} | {row['longest_s']:.1f} |")
    return "\n".join(lines) + "\n"


TABLES = {"sessions.json": cpu_table, "sessions_faults.json": ends_table}
MARKED = re.compile(r"(?<=<!-- table: )(?P<name>[\w.]+) -->\n.*?(?=<!-- end of the table -->)", re.S)


def with_tables(page: str) -> str:
    """A page whose marked tables are those of the saved figures; where none are saved yet, as it was."""

    def table(found: re.Match[str]) -> str:
        if not (SAVED / found["name"]).exists():
            return found[0]
        rows = json.loads((SAVED / found["name"]).read_text())
        return f"{found['name']} -->\n{TABLES[found['name']](rows)}"

    return MARKED.sub(table, page)


def write_tables() -> None:
    """Into docs/benchmarks.md."""
    PAGE.write_text(with_tables(PAGE.read_text()))


if __name__ == "__main__":
    write_tables()
