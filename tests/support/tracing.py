"""OpenTelemetry's own SDK with its exporter in memory: for tests that look at spans."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from callboard import Runtime
from callboard.actors.telemetry.opentelemetry_spans import Tracing


class SpansInMemory:
    """A tracer provider of a test's own: the global one can be set only once in a process."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def tracing(self, log_content: bool = False) -> Tracing:
        """What makes callboard's spans with this provider."""
        return Tracing(log_content, lambda: self.provider)

    def trace(self, runtime: Runtime) -> None:
        """Trace the requests of this runtime; before it is started."""
        runtime._wiring.begin_spans = self.tracing(runtime.settings.log_content).begin

    def finished(self) -> tuple[ReadableSpan, ...]:
        """In the order in which they ended."""
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        """The only one of this name."""
        (span,) = [each for each in self.finished() if each.name == name]
        return span

    def tree(self) -> dict[str, Any]:
        """The name of each span's parent, by the span's name; None for one without."""
        names = {span.context.span_id: span.name for span in self.finished() if span.context is not None}
        return {
            span.name: None if span.parent is None else names.get(span.parent.span_id, "?") for span in self.finished()
        }

    def exported(self) -> str:
        """All of them as text."""
        return "".join(span.to_json() for span in self.finished())
