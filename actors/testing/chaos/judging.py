"""What a case was found to do, and the report of a run."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from functools import cache

import orjson
from msgspec import Struct, field

from callboard.actors.requests.replies import ModelCallFailed
from callboard.actors.testing.chaos.beside import Ended, Seen
from callboard.actors.testing.ways.case import OK, Blast, Case
from callboard.actors.testing.ways.escape import SKIP


class Status(StrEnum):
    """What became of a case."""

    HELD = "held"
    FELL_SHORT = "fell short"
    SKIPPED = "skipped"


class Result(Struct, frozen=True):
    """One case, run once."""

    case: Case
    status: Status
    faults: tuple[str, ...] = ()
    """What was wrong, or why it was skipped; one sentence each."""
    seconds: float = 0.0


class Report(Struct, frozen=True):
    """All results of a run."""

    results: tuple[Result, ...]
    seconds: float = 0.0
    counts: Counter[Status] = field(default_factory=Counter)

    @classmethod
    def of(cls, results: Iterable[Result], seconds: float) -> Report:
        """In the order of the tables."""
        found = tuple(results)
        return cls(found, seconds, Counter(result.status for result in found))

    @property
    def fell_short(self) -> tuple[Result, ...]:
        """Those whose expectation was not met."""
        return tuple(result for result in self.results if result.status is Status.FELL_SHORT)

    def text(self, verbose: bool = False) -> str:
        """For people: a line a group, then what fell short and what was skipped."""
        rows = [f"{'group':<16}{'cases':>6}{'held':>6}{'short':>7}{'skipped':>9}{'seconds':>9}"]
        groups = dict.fromkeys(result.case.group for result in self.results)
        for group in groups:
            own = [result for result in self.results if result.case.group is group]
            counts = Counter(result.status for result in own)
            seconds = sum(result.seconds for result in own)
            rows.append(
                f"{group:<16}{len(own):>6}{counts[Status.HELD]:>6}{counts[Status.FELL_SHORT]:>7}"
                f"{counts[Status.SKIPPED]:>9}{seconds:>9.1f}"
            )
        for result in self.results:
            if verbose or result.status is not Status.HELD:
                rows.append(
                    f"{result.status.upper():<11} {result.case.name}: {'; '.join(result.faults) or 'as expected'}"
                )
        total = ", ".join(f"{self.counts[status]} {status}" for status in Status if self.counts[status])
        return "\n".join([*rows, f"{len(self.results)} cases in {self.seconds:.0f} s: {total}"])

    def to_json(self) -> str:
        """For programs."""
        rows = [
            {"case": r.case.name, "status": r.status, "faults": r.faults, "seconds": round(r.seconds, 3)}
            for r in self.results
        ]
        return json.dumps({"seconds": round(self.seconds, 1), "results": rows}, indent=1)


def skipped(case: Case, why: str) -> Result:
    """Not run, and why."""
    return Result(case, Status.SKIPPED, (why,))


def judged(case: Case, faults: Iterable[str], seconds: float) -> Result:
    """Held, where there are no faults."""
    found = tuple(faults)
    return Result(case, Status.FELL_SHORT if found else Status.HELD, found, seconds)


# -- what one request ended with


def code_of(content: str) -> str:
    """The FailureCode in a tool message, or OK."""
    try:
        told = orjson.loads(content)
    except orjson.JSONDecodeError:
        return OK
    return str(told["code"]) if isinstance(told, dict) and told.get("ok") is False else OK


def failed_requests(ended: Ended) -> list[str]:
    """The request of a tool must be answered, whatever the tool does."""
    if ended.error is None:
        return []
    return [f"its request ended with {kind_of(ended.error)}: {str(ended.error)[:200]}"]


def kind_of(error: BaseException) -> str:
    """The ErrorKind of a failed model call, else the name of the exception."""
    return str(error.kind) if isinstance(error, ModelCallFailed) else type(error).__name__


def result_faults(case: Case, contents: list[str], mentions: str = "") -> list[str]:
    """What is wrong with the results of the case's own call."""
    if len(contents) != 1:
        return [f"its call has {len(contents)} results"]
    code = code_of(contents[0])
    if code not in case.expected:
        return [f"the model was told {code!r} and not {' or '.join(case.expected)}: {contents[0][:200]}"]
    if mentions.lower() not in contents[0].lower():
        return [f"the model was not told of {mentions!r}: {contents[0][:300]}"]
    return []


def neighbour_faults(case: Case, seen: Seen, changed: list[int]) -> list[str]:
    """What it has cost others."""
    failed = [number for number, each in enumerate(seen.neighbours) if each.error is not None]
    if failed:
        first = seen.neighbours[failed[0]].error
        return [f"{len(failed)} other requests failed, the first with {type(first).__name__}: {str(first)[:200]}"]
    if changed and case.blast is Blast.NOTHING:
        return [f"{len(changed)} other requests ended in another way than alone: {_strange(seen, changed)}"]
    return []


def _strange(seen: Seen, changed: list[int]) -> str:
    reply = seen.neighbours[changed[0]].reply
    return "" if reply is None else reply.text[:300]


def why_skipped(contents: list[str]) -> str:
    """A tool says so itself where it would harm what is not ours."""
    for content in contents:
        if content.startswith(SKIP):
            return content.removeprefix(SKIP)
    return ""


@cache
def namespaces_are_possible() -> bool:
    """May this user make a PID namespace here?"""
    program = shutil.which("unshare")
    if program is None:
        return False
    command = [program, "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "true"]
    return subprocess.run(command, capture_output=True, timeout=10).returncode == 0
