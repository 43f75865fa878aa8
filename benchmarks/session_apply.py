"""What `Session.apply` costs an event, and that it does not grow with the number of finished steps.

    python benchmarks/session_apply.py

One request of 400 steps with 8 parallel calls each, text streamed before every turn. Two yardsticks in the same run:
building the events themselves, and a bare dict look-up with a method call (what any table-driven machine pays).
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict

from msgspec.structs import replace

from callboard.protocol.content import Text, ToolCall, UserMessage
from callboard.protocol.events import (
    Event,
    ModelResponded,
    ModelStreamed,
    RequestStarted,
    ToolCallCompleted,
    ToolCallStarted,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag
from callboard.protocol.machine import Session
from callboard.protocol.model import FinishReason, ModelResponse, TextDelta, Usage
from callboard.protocol.options import RequestOptions
from callboard.protocol.testing.scenario import offer

STEPS = 400
CALLS = 8
READS = 20


def step_events(step: Tag) -> list[Event]:
    """One step: the stream, a turn with parallel calls, each begun and completed."""
    names = [CallId(f"call_{index}") for index in range(CALLS)]
    calls = tuple(ToolCall(name, offer("look").definition.name, f'{{"n":{step.step},"of":"{name}"}}') for name in names)
    response = ModelResponse((Text("Let me look. " * 8), *calls), FinishReason.TOOL_CALLS, usage=Usage(100, 50))
    delta = (TextDelta("Let me look. "),)
    return [
        *(ModelStreamed(step, 0.0, delta) for _ in range(READS)),
        ModelResponded(step, 0.0, response),
        *(ToolCallStarted(step._replace(call_id=name), 0.0) for name in names),
        *(ToolCallCompleted(step._replace(call_id=name), 0.0, '{"ok":true,"rows":[1,2,3]}') for name in names),
    ]


def main() -> None:
    """Time every single apply, by kind of event and by part of the run."""
    tag = Tag(RequestId("bench"), MessageId("m"))
    options = replace(RequestOptions("sim/model"), max_steps=STEPS + 1, timeout_seconds=1e9)
    session = Session()
    session.apply(RequestStarted(tag, 0.0, (), UserMessage.of("go"), options, (offer("look"),)))
    spent: dict[str, list[float]] = defaultdict(list)
    by_step: list[float] = []
    every: list[float] = []
    clock = time.perf_counter
    for number in range(1, STEPS + 1):
        total = 0.0
        for event in step_events(tag.at_step(number)):
            began = clock()
            session.apply(event)
            took = clock() - began
            total += took
            every.append(took)
            spent[type(event).__name__].append(took)
        by_step.append(total)
    print(f"{'event':20} {'count':>8} {'median us':>10} {'p99 us':>8}")
    for name, times in [*spent.items(), ("all", every)]:
        ordered = sorted(times)
        print(
            f"{name:20} {len(times):8} {statistics.median(times) * 1e6:10.2f} {ordered[-len(times) // 100] * 1e6:8.2f}"
        )
    tenth = STEPS // 10
    first, last = statistics.median(by_step[:tenth]), statistics.median(by_step[-tenth:])
    print(f"a whole step of {READS + 1 + 2 * CALLS} events: {first * 1e6:.0f} us at the first {tenth} steps, ", end="")
    print(f"{last * 1e6:.0f} us at the last {tenth} ({last / first:.2f} x)")
    print(f"yardsticks: build one event {_build(tag) * 1e6:.2f} us, a look-up and a call {_lookup() * 1e6:.2f} us")


def _build(tag: Tag) -> float:
    began = time.perf_counter()
    for _ in range(10_000):
        ToolCallStarted(tag, 0.0)
    return (time.perf_counter() - began) / 10_000


def _lookup() -> float:
    table = {"state": {int: str}}
    began = time.perf_counter()
    for number in range(10_000):
        table["state"][type(number)](number)
    return (time.perf_counter() - began) / 10_000


if __name__ == "__main__":
    main()
