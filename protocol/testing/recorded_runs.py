"""A recorded request as a regression test: replayed through this code, does it lead to what it led to then?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from callboard.protocol.errors import UsageError
from callboard.protocol.prompt_tokens import TokenCounter, estimate_tokens
from callboard.protocol.recorded import RecordedLog, read_recorded, replay_log

Source = RecordedLog | str | Path | Iterable[str]


def replay_recorded(source: Source, *, count_tokens: TokenCounter = estimate_tokens) -> list[str]:
    """Where a recorded request goes another way under this code: a sentence for each place; empty where it does not.

    `source`: the path of a file that `callboard journal replay REQUEST --save FILE` wrote, its lines, or a request as a
    journal gives it. `count_tokens`: the counter that the request had, where that was not the estimate
    (`callboard.providers.tokenizers.counter_for`). Raises UsageError for what is no recorded request or has no events,
    OSError for a file that cannot be read.
    """
    log = _read(source)
    if log.counter and count_tokens is estimate_tokens:
        raise UsageError(f"the tokens of request {log.request_id} were counted by {log.counter}: give count_tokens=")
    if not log.records:
        raise UsageError(f"request {log.request_id} has no events to replay; perhaps its log was compacted away")
    return [told for each in replay_log(log, count_tokens=count_tokens) for told in each.differences]


def assert_replays(source: Source, *, count_tokens: TokenCounter = estimate_tokens) -> None:
    """For tests. Raises AssertionError with a line for each of what `replay_recorded` finds."""
    if found := replay_recorded(source, count_tokens=count_tokens):
        raise AssertionError("\n".join(["the recorded request goes another way under this code:", *found]))


def _read(source: Source) -> RecordedLog:
    if isinstance(source, str | Path):
        return read_recorded(Path(source).read_text(encoding="utf-8").split("\n"))
    return read_recorded(source) if isinstance(source, Iterable) else source
