"""What is counted and measured: one table of all metrics, and the numbers themselves.

`METRICS` names each with its unit, its labels and its meaning; docs/telemetry.md shows it. The names that begin with
`gen_ai.` are those of the OpenTelemetry GenAI conventions (conventions.py), the others are callboard's own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct, field

from callboard.protocol.errors import UsageError

#: Label sets of one metric. More come only from names that a program makes up at run time; they share OTHER.
MAX_SERIES: Final = 1_000
OTHER: Final = "(other)"
#: A model can write any name where a tool's belongs; that is content, and as a label it has no bound.
UNKNOWN: Final = "(unknown)"
#: In place of the names of the askers' own tools, of which there may be any number.
ASKERS_TOOL: Final = "(asker's)"
#: The label `outcome` of a model call or tool call that went well.
OK: Final = "ok"

#: Upper bounds in seconds: 1-2-5 steps from 0.1 ms (a warm call takes 0.15 ms) to 10 min (the longest deadline).
BUCKETS_SECONDS: Final = tuple(
    round(digit * 10.0**power, 6) for power in range(-4, 3) for digit in (1, 2, 5) if digit * 10.0**power <= 600
)
#: Upper bounds in tokens, those of the conventions for gen_ai.client.token.usage: powers of four, up to 67 million.
BUCKETS_TOKENS: Final = tuple(4.0**power for power in range(14))
#: Upper bounds of how many there were of something: powers of two, up to what one commit takes.
BUCKETS_COUNT: Final = tuple(2.0**power for power in range(10))


class MetricKind(StrEnum):
    """How the numbers of a metric go on."""

    COUNTER = "counter"
    """Only up."""
    GAUGE = "gauge"
    """Up and down: it is what it is now."""
    HISTOGRAM = "histogram"
    """How many there were of each size."""


class Metric(Struct, frozen=True, eq=False):
    """One thing that is counted or measured."""

    name: str
    kind: MetricKind
    unit: str
    """In the notation of UCUM, as OpenTelemetry has it: s, By, {token}."""
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()
    """Of a histogram: upper bounds."""
    sampled: bool = False
    """It is looked up when the metrics are read, and not counted as things happen."""


def _counter(name: str, unit: str, labels: str, meaning: str, *, sampled: bool = False) -> Metric:
    return Metric(name, MetricKind.COUNTER, unit, tuple(labels.split()), meaning, sampled=sampled)


def _gauge(name: str, unit: str, labels: str, meaning: str) -> Metric:
    return Metric(name, MetricKind.GAUGE, unit, tuple(labels.split()), meaning, sampled=True)


def _seconds(name: str, labels: str, meaning: str) -> Metric:
    return Metric(name, MetricKind.HISTOGRAM, "s", tuple(labels.split()), meaning, BUCKETS_SECONDS)


# -- the table

REQUESTS = _counter(
    "callboard.requests",
    "{request}",
    "outcome",
    "Requests that have ended, by `Reply.outcome`; `lost`: its session crashed; `suspended`: left to the next "
    "start, by a journal.",
)
REQUESTS_OPEN = _gauge("callboard.requests.open", "{request}", "", "Requests that are running.")
REQUEST_SECONDS = _seconds(
    "gen_ai.invoke_agent.duration",
    "error",
    "From the question to the reply, by the outcome where that is neither `answered` nor `calls_outside`.",
)
PEERS_LOST = _counter(
    "callboard.requests.peer_lost", "{loss}", "", "Times that an actor which worked for a request was lost."
)
TOKENS_UNKNOWN = _counter(
    "callboard.requests.tokens_unknown", "{request}", "", "Requests of which the providers did not say what they used."
)
COST_UNKNOWN = _counter("callboard.requests.cost_unknown", "{request}", "", "Requests of which no cost is known.")
COST = _counter("callboard.cost", "USD", "model", "US dollars, as far as they are known.")
MODEL_CALLS = _counter(
    "callboard.model.calls",
    "{call}",
    "model outcome",
    "Model calls that have ended: `ok`, the kind of error, `lost` or `cancelled`. Retries are in `callboard.notes`.",
)
MODEL_SECONDS = _seconds(
    "gen_ai.client.operation.duration", "model error", "Model calls, with their retries and waits."
)
FIRST_CHUNK_SECONDS = _seconds(
    "gen_ai.client.operation.time_to_first_chunk", "model", "From the model call to the first piece of its answer."
)
TOKENS = Metric(
    "gen_ai.client.token.usage",
    MetricKind.HISTOGRAM,
    "{token}",
    ("model", "token"),
    "Tokens of a model call, `input` or `output`.",
    BUCKETS_TOKENS,
)
NOTES = _counter(
    "callboard.notes",
    "{note}",
    "kind",
    "What a reply's notes tell of: retry, fallback, rate_limit, cut and the other kinds of `NoteKind`.",
)
TOOL_CALLS = _counter(
    "callboard.tool.calls",
    "{call}",
    "tool outcome",
    "Tool calls that have ended: `ok` or the failure code; also those that were never run. `handed_out`: "
    "a call of the asker's own tool; these share the name `(asker's)`.",
)
TOOL_SECONDS = _seconds(
    "gen_ai.execute_tool.duration",
    "tool error",
    "Tool calls that were run, with their wait for a worker; a deferred one up to its result.",
)
TOOL_DEFERRED = _counter("callboard.tool.deferred", "{call}", "tool", "Calls whose results come from outside.")
TOOL_STOPPED = _counter("callboard.tool.stopped", "{call}", "tool", "Calls that were stopped and said where they were.")
TOOL_HEALTH = _counter(
    "callboard.tool.health",
    "{change}",
    "tool change",
    "Times that a tool was `withdrawn` for its failures, or `restored`.",
)
PRINTED = _counter("callboard.tool.printed", "By", "tool", "What `process` tools have printed.")
CALLS_WAITING = _gauge("callboard.tool.waiting", "{call}", "tool", "Calls that wait for a worker.")
CALLS_RUNNING = _gauge("callboard.tool.running", "{call}", "tool", "Calls that a worker has.")
APPROVALS = _counter(
    "callboard.approvals", "{approval}", "tool decision", "Approvals that were `asked` for, `granted` and `denied`."
)
APPROVAL_SECONDS = _seconds(
    "callboard.approval.duration", "tool", "From the question to the answer, where there was one."
)
EMBEDDER_FAILED = _counter(
    "callboard.search.embedder_failed", "{search}", "", "Searches that were ranked by words alone."
)
SEARCH_TILES = _gauge(
    "callboard.search.tiles",
    "{tile}",
    "vector",
    "Tiles of the code index: `made` have a vector, `missing` get one, of these `first` before it is ready, `left` "
    "stay without, since there are too many.",
)
JOURNAL_WRITES = _counter("callboard.journal.writes", "{write}", "", "Writes of requests that are durable.")
JOURNAL_BATCH = Metric(
    "callboard.journal.batch",
    MetricKind.HISTOGRAM,
    "{write}",
    (),
    "Writes that were made durable together.",
    BUCKETS_COUNT,
)
JOURNAL_SECONDS = _seconds("callboard.journal.commit.duration", "", "From the beginning of a commit to its end.")
JOURNAL_FAILED = _counter(
    "callboard.journal.failed", "{failure}", "", "Times that the journal could not be written; its requests have ended."
)
JOURNAL_DAMAGED = _counter(
    "callboard.journal.damaged", "{start}", "", "Times that a journal was damaged when it was opened, and set aside."
)
WORKERS = _gauge("callboard.workers", "{worker}", "pool", "Workers that are alive.")
ACTORS = _gauge("callboard.actor.alive", "{actor}", "", "Actors that are alive.")
MAILBOX = _gauge("callboard.mailbox.depth", "{message}", "actor", "Messages that wait for a permanent actor.")
RESTARTS = _counter(
    "callboard.actor.restarts", "{restart}", "", "Actors that failed and were started again.", sampled=True
)
DEAD_LETTERS = _counter(
    "callboard.dead_letters", "{message}", "reason", "Messages that no actor handled.", sampled=True
)
LOOP_HELD = _counter(
    "callboard.loop.held", "{handler}", "", "Handlers that held callboard's loop for more than 0.1 s.", sampled=True
)
LOOP_LAG = _gauge("callboard.loop.lag", "s", "", "How long the reading of these metrics waited for callboard's loop.")
TELEMETRY_FAILED = _counter(
    "callboard.telemetry.failed",
    "{failure}",
    "",
    "Log handlers, span processors and metric readers of the host that raised.",
)

METRICS: Final[Mapping[str, Metric]] = MappingProxyType(
    {each.name: each for each in tuple(globals().values()) if isinstance(each, Metric)}
)

_Value = TypeVar("_Value")
Labels = tuple[str, ...]
"""The values, in the order of `Metric.labels`."""
Export = Callable[[Metric, Labels, float], None]
"""Takes one number, counted or measured, for the host's own metrics."""


# -- the numbers


class Histogram(Struct):
    """How many there were of each size."""

    bounds: tuple[float, ...] = BUCKETS_SECONDS
    """Upper bounds of the buckets; a last bucket takes what is larger."""
    counts: list[int] = field(default_factory=list)
    total: float = 0.0
    max: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def record(self, value: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        self.max = max(self.max, value)

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """The upper bound of the bucket in which this share of the records is reached; 0 when empty."""
        rank, seen = share * self.count, 0
        for bound, count in zip((*self.bounds, self.max), self.counts, strict=True):
            seen += count
            if count and seen >= rank:
                return min(bound, self.max)
        return 0.0

    def add(self, other: Histogram) -> None:
        """Count what another one of the same bounds has counted."""
        self.counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
        self.max = max(self.max, other.max)

    def copy(self) -> Histogram:
        """One that goes on unchanged."""
        return Histogram(self.bounds, list(self.counts), self.total, self.max)


class Sample(NamedTuple):
    """One number of a metric that is sampled."""

    metric: Metric
    labels: Labels
    value: float


class Metrics:
    """What a runtime has counted since it started.

        metrics = runtime.metrics()
        metrics.count("callboard.tool.calls", tool="weather", outcome="ok")
        metrics.histogram("gen_ai.execute_tool.duration", tool="weather").quantile(0.95)
        metrics.cost

    docs/telemetry.md has the table of all names, with their labels. `print(metrics)` shows what there is.
    """

    __slots__ = ("_histograms", "_values")

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Histogram]] = {}

    # -- to read

    def count(self, name: str, **labels: str) -> float:
        """The sum over all label sets with these labels; of a histogram, how many were recorded.

        Raises UsageError for a metric or a label that there is not.
        """
        if _metric(name, labels).kind is MetricKind.HISTOGRAM:
            return self.histogram(name, **labels).count
        return sum(value for _, value in self._matching(self._values, name, labels))

    def histogram(self, name: str, **labels: str) -> Histogram:
        """All label sets with these labels together. Raises UsageError, also where it is no histogram."""
        metric = _metric(name, labels)
        if metric.kind is not MetricKind.HISTOGRAM:
            raise UsageError(f"{name} is a {metric.kind}, not a histogram; read it with count()")
        merged = Histogram(metric.buckets)
        for _, each in self._matching(self._histograms, name, labels):
            merged.add(each)
        return merged

    def counts(self, name: str) -> Mapping[Labels, float]:
        """Every label set of a counter or gauge, in the order of its labels in the table. Raises UsageError."""
        _metric(name, {})
        return dict(self._values.get(name, {}))

    def histograms(self, name: str) -> Mapping[Labels, Histogram]:
        """Every label set of a histogram. Raises UsageError."""
        _metric(name, {})
        return {labels: each.copy() for labels, each in self._histograms.get(name, {}).items()}

    @property
    def cost(self) -> float | None:
        """US dollars of all requests; None once that of one was not known."""
        return None if self.count(COST_UNKNOWN.name) else self.count(COST.name)

    def __str__(self) -> str:
        return "\n".join(sorted(self._lines()))

    def _lines(self) -> Iterator[str]:
        for name, series in self._values.items():
            for labels, value in series.items():
                yield f"{_shown(name, labels)} {value:g}"
        for name, histograms in self._histograms.items():
            for labels, each in histograms.items():
                yield f"{_shown(name, labels)} {each.count} of {each.total / each.count:.4g} {METRICS[name].unit}"

    @staticmethod
    def _matching(
        kept: Mapping[str, Mapping[Labels, _Value]], name: str, wanted: Mapping[str, str]
    ) -> Iterator[tuple[Labels, _Value]]:
        places = [(METRICS[name].labels.index(label), value) for label, value in wanted.items()]
        for labels, each in kept.get(name, {}).items():
            if all(labels[place] == value for place, value in places):
                yield labels, each

    # -- to count

    def add(self, metric: Metric, labels: Labels = (), amount: float = 1) -> None:
        """Count up, or set what is sampled."""
        series = self._values.get(metric.name)
        if series is None:
            series = self._values[metric.name] = {}
        if labels in series:
            series[labels] += amount
            return
        labels = labels if len(series) < MAX_SERIES else (OTHER,) * len(labels)
        series[labels] = series.get(labels, 0) + amount

    def record(self, metric: Metric, labels: Labels, value: float) -> None:
        """One value for a histogram."""
        series = self._histograms.get(metric.name)
        if series is None:
            series = self._histograms[metric.name] = {}
        histogram = series.get(labels)
        if histogram is None:
            labels = labels if len(series) < MAX_SERIES else (OTHER,) * len(labels)
            histogram = series.setdefault(labels, Histogram(metric.buckets))
        histogram.record(value)

    def copy(self, samples: Iterable[Sample] = ()) -> Metrics:
        """A snapshot that goes on unchanged, with what is sampled now."""
        snapshot = Metrics()
        snapshot._values = {name: dict(series) for name, series in self._values.items()}
        snapshot._histograms = {
            name: {labels: each.copy() for labels, each in series.items()} for name, series in self._histograms.items()
        }
        for sample in samples:
            snapshot.add(*sample)
        return snapshot


def _metric(name: str, labels: Mapping[str, str]) -> Metric:
    metric = METRICS.get(name)
    if metric is None:
        raise UsageError(f"there is no metric {name!r}; docs/telemetry.md lists them")
    for label in labels:
        if label not in metric.labels:
            known = ", ".join(metric.labels) or "none"
            raise UsageError(f"{name} has no label {label!r}; it has: {known}")
    return metric


def _shown(name: str, labels: Labels) -> str:
    pairs = ", ".join(f"{label}={value}" for label, value in zip(METRICS[name].labels, labels, strict=True))
    return f"{name}{{{pairs}}}" if pairs else name
