"""What telemetry costs: one session with nothing of it, as it is by default, and with all that a host can switch on.

    python benchmarks/telemetry.py [--sessions 1000] [--rounds 5]

A session is one question, a turn with four calls of a trivial async tool, and an answer. The model is scripted, so that
only callboard's own CPU counts. Each round runs every variant in a fresh process; the least of all rounds is shown, for
what else a machine does only adds to it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from callboard import RequestLogFilter, Runtime, Settings, tool
from callboard.actors import wiring
from callboard.actors.kernel import handles
from callboard.actors.telemetry.telemetry import Observed, Telemetry
from callboard.protocol.content import ToolMessage
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

CALLS = 4
CONCURRENCY = 50
TURN = ScriptedTurn(calls=tuple(ScriptedCall("lookup", {"city": f"city {n}", "days": n}) for n in range(CALLS)))


@tool(name="lookup", risk="read")
async def lookup(city: str, days: int = 1) -> str:
    """The weather of a city."""
    return f"rain in {city} for {days} days"


def answer(request: ModelRequest) -> ScriptedTurn:
    """The calls first, then the answer."""
    return ScriptedTurn("done") if isinstance(request.messages[-1], ToolMessage) else TURN


# -- variants: each prepares the process


class Deaf(Telemetry):
    """Takes what it is told, and does nothing."""

    @handles(Observed)
    def _observed(self, message: Observed) -> None:
        return


def nothing_of_it() -> None:
    """Telemetry that hears and does nothing: what is left is telling it."""
    wiring.Telemetry = Deaf  # type: ignore[misc]


def as_it_is() -> None:
    """No tracer provider, no meter provider, no logging."""


def with_logs() -> None:
    """Every record is made and formatted, with the ids, and thrown away."""
    handler = logging.StreamHandler(open("/dev/null", "w"))  # noqa: SIM115
    handler.addFilter(RequestLogFilter())
    handler.setFormatter(logging.Formatter("%(request_id)s %(step)s %(call_id)s %(message)s"))
    logging.getLogger("callboard").addHandler(handler)
    logging.getLogger("callboard").setLevel(logging.INFO)


def with_spans() -> None:
    """OpenTelemetry's SDK makes every span, and throws it away."""
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider  # noqa: PLC0415

    provider = TracerProvider()
    provider.add_span_processor(SpanProcessor())
    trace.set_tracer_provider(provider)


def with_metrics() -> None:
    """OpenTelemetry's SDK gets every number."""
    from opentelemetry import metrics  # noqa: PLC0415
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: PLC0415

    metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))


VARIANTS: dict[str, Callable[[], None]] = {
    "nothing of it": nothing_of_it,
    "as it is": as_it_is,
    "log records": with_logs,
    "spans": with_spans,
    "metrics": with_metrics,
}


async def measure(sessions: int) -> float:
    """Milliseconds of CPU a session."""
    async with Runtime(Settings(model="scripted/m", script=answer), tools=[lookup]) as runtime:

        async def worker(count: int) -> None:
            for _ in range(count):
                assert (await runtime.ask("What is the weather in four cities?")).text == "done"

        await worker(100)  # warm up
        cpu = time.process_time()
        await asyncio.gather(*(worker(sessions // CONCURRENCY) for _ in range(CONCURRENCY)))
        return (time.process_time() - cpu) / (sessions // CONCURRENCY * CONCURRENCY) * 1e3


def compare(sessions: int, rounds: int) -> None:
    best: dict[str, float] = {}
    for _ in range(rounds):
        for variant in VARIANTS:
            run = [sys.executable, str(Path(__file__)), "--run", variant, "--sessions", str(sessions)]
            took = float(subprocess.run(run, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout)
            best[variant] = min(took, best.get(variant, took))
    print(f"{'':>14} {'CPU ms':>8} {'more us':>8}")
    for variant, took in best.items():
        print(f"{variant:>14} {took:>8.3f} {(took - best['as it is']) * 1e3:>8.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--run", choices=list(VARIANTS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        VARIANTS[options.run]()
        print(asyncio.run(measure(options.sessions)))
    else:
        compare(options.sessions, options.rounds)


if __name__ == "__main__":
    main()
