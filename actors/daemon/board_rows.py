"""The rows of the board: what a tenant's runtime says of itself, as JSON values with a key each.

A row changes only when something has happened: times are given as points in time, and who shows them counts on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import Final

from msgspec.structs import asdict

from callboard.actors.daemon.access_tokens import Scope
from callboard.actors.daemon.approval_desk import OpenApproval
from callboard.actors.daemon.tenants import Tenant
from callboard.actors.journal.saved_conversations import shown_id, title_of
from callboard.actors.kernel import ActorInfo
from callboard.actors.telemetry.timelines import Mark, MarkKind, RequestTimeline
from callboard.protocol.commands import AskApproval
from callboard.protocol.masking import for_log
from callboard.protocol.readers import (
    arguments_for_decision,
    for_decision,
    json_for_decision,
    name_for_decision,
    one_line_for_decision,
)

Row = Mapping[str, object]
Rows = Mapping[str, Row]
"""By their keys, in the order in which they are shown."""

#: What a token must have to see a section.
SECTION_SCOPES: Final[Mapping[str, Scope]] = {
    "stuck": Scope.USE,
    "approvals": Scope.APPROVE,
    "requests": Scope.USE,
    "actors": Scope.ADMIN,
    "usage": Scope.USE,
    "dead_letters": Scope.ADMIN,
}
#: Rows of a section, and of each source of what is stuck. The oldest of what waits come first.
MAX_STUCK: Final = 50
MAX_APPROVALS: Final = 50
MAX_SESSIONS: Final = 20
#: Of a request's metadata.
MAX_ABOUT_CHARS: Final = 160
#: Of the arguments of a call in one line.
MAX_LINE_CHARS: Final = 300
#: Of a diff or of arguments; /api/approvals has all of it.
MAX_SHOWN_CHARS: Final = 4_000
#: A call that has used this part of its time is shown as stuck.
LATE_FRACTION: Final = 0.5
#: A call is not stuck before this time, whatever its deadline.
LATE_SECONDS: Final = 5.0
#: An actor whose handler takes this long, or that has so many messages before it, is stuck.
HANDLING_SECONDS: Final = 2.0
MAILBOX_DEPTH: Final = 1_000


def requests(tenant: Tenant, rows: dict[str, tuple[int, Row]]) -> Rows:
    """Those that run, the oldest first, and the last that have ended. `rows`: made before, with their versions."""
    found = (*tenant.timelines.running(), *tenant.timelines.ended())
    made = {each.request_id: _made(each, rows.get(each.request_id)) for each in found}
    rows.clear()
    rows.update(made)
    return {key: row for key, (_, row) in made.items()}


def _made(line: RequestTimeline, before: tuple[int, Row] | None) -> tuple[int, Row]:
    """Who asked and for what is masked once."""
    if before is not None and before[0] == line.version:
        return before
    asked = {name: before[1][name] for name in _ASKED} if before is not None else _asked(line)
    return line.version, {**_request(line), **asked}


#: What does not change while a request runs.
_ASKED: Final = ("asked", "by", "about")


def _asked(line: RequestTimeline) -> Row:
    about = for_log(", ".join(f"{name}: {value}" for name, value in line.metadata.items()))
    return {"asked": title_of(line.asked), "by": for_log(line.asked_by), "about": cut(about, MAX_ABOUT_CHARS)}


def cut(text: str, most: int | None) -> str:
    """At most so many characters; what is cut ends so that it is seen."""
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"


def _request(line: RequestTimeline) -> Row:
    at = line.open_marks
    return {
        "key": line.request_id,
        "model": line.model,
        "begun_at": round(line.begun_at, 3),
        "ended_at": line.ended_at and round(line.ended_at, 3),
        "outcome": line.outcome,
        "reason": for_log(line.reason),
        "state": _state(line.outcome, at),
        "marks": [_mark(each) for each in line.marks],
        "dropped": line.dropped,
    }


#: What a request is at, by its open marks: the first that there is.
_STATES: Final = (
    (MarkKind.APPROVAL, "waits for approval"),
    (MarkKind.TOOL, "runs tools"),
    (MarkKind.DEFERRED, "waits for a result"),
    (MarkKind.MODEL, "calls the model"),
)


def _state(outcome: str, at: Iterable[Mark]) -> str:
    kinds = {each.kind for each in at}
    return outcome or next((words for kind, words in _STATES if kind in kinds), "starts")


def _mark(mark: Mark) -> Row:
    return {
        "number": mark.number,
        "kind": mark.kind.value,
        "name": mark.name,
        "step": mark.step,
        "call_id": mark.call_id,
        "from": round(mark.begun_at, 3),
        "to": mark.ended_at and round(mark.ended_at, 3),
        "ending": mark.ending,
        "deadline": mark.deadline_at and round(mark.deadline_at, 3),
        "text": for_log(mark.text),
    }


def approvals(tenant: Tenant, rows: dict[str, tuple[OpenApproval, Row]]) -> Rows:
    """What waits for a person, with what it would do. `rows`: made before, each once, as arguments may be large."""
    made: dict[str, tuple[OpenApproval, Row]] = {}
    for each in tenant.desk.open[:MAX_APPROVALS]:
        before = rows.get(key := _key(each))
        made[key] = before if before is not None and before[0] is each else (each, approval(each))
    rows.clear()
    rows.update(made)
    return {key: row for key, (_, row) in made.items()}


def _key(opened: OpenApproval) -> str:
    return "/".join(map(str, opened.key))


def approval(opened: OpenApproval, most: int | None = MAX_SHOWN_CHARS) -> Row:
    """What a person decides on. `most`: characters of the arguments and of the diff; None: all."""
    (request_id, step, call_id), asked = opened.key, opened.question
    line, touches = _arguments_line(asked.arguments), [f"{each.kind} {each.value}" for each in asked.accesses]
    arguments, diff = arguments_for_decision(asked.arguments), for_decision(asked.preview)
    says_all = len(line) <= MAX_LINE_CHARS and not asked.preview and not asked.is_after_untrusted
    return {
        "key": _key(opened),
        "request_id": request_id,
        "step": step,
        "call_id": call_id,
        "tool": one_line_for_decision(asked.name),
        "risk": asked.risk.value,
        "why": _why(asked),
        "line": cut(line, MAX_LINE_CHARS),
        "says_all": says_all and all(each.value in line for each in asked.accesses),
        "touches": [one_line_for_decision(each) for each in touches],
        "confinement": one_line_for_decision(asked.confinement),
        "after_untrusted": asked.is_after_untrusted,
        "arguments": cut(arguments, most),
        "diff": cut(diff, most),
        "is_cut": most is not None and max(len(arguments), len(diff)) > most,
        "since": round(opened.since, 3),
    }


def _why(asked: AskApproval) -> str:
    """A sentence."""
    why = one_line_for_decision(asked.rule) or f"{one_line_for_decision(asked.name)} has the risk {asked.risk.value}"
    return f"{why}." if why[-1] not in ".!?" else why


def _arguments_line(text: str) -> str:
    """The arguments in one line, all or more than MAX_LINE_CHARS of them: the value of a single one that is a text,
    else names with JSON."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return one_line_for_decision(text)
    if not isinstance(given, dict):
        return one_line_for_decision(text)
    values = list(given.values())
    if len(values) == 1 and isinstance(values[0], str):
        return one_line_for_decision(values[0][: MAX_LINE_CHARS + 1])  # an escape is not shorter than its character
    # Line feeds of the values themselves are escapes: those that are left only indent.
    shown = (f"{name_for_decision(name)}: {json_for_decision(value)}" for name, value in given.items())
    return " ".join(line.strip() for line in ", ".join(shown).split("\n"))


def stuck(tenant: Tenant, withdrawn: Iterable[str], tree: Iterable[ActorInfo]) -> Rows:
    """What waits or takes long, and why: approvals first, then calls against their deadlines, what waits for rate
    limits, tools that are withdrawn, what this process cannot go on with, and actors; each the oldest first."""
    sources: tuple[Iterator[Row], ...] = (
        _approvals_waiting(tenant),
        *_late(tenant, time.time()),
        _withdrawn(withdrawn),
        _left(tenant),
        _journal(tenant),
        _servers(tenant),
        _vectors(tenant),
        _busy(tree),
    )
    found = (row for source in sources for row in islice(source, MAX_STUCK))
    return {str(row["key"]): row for row in found}


def _approvals_waiting(tenant: Tenant) -> Iterator[Row]:
    for each in tenant.desk.open:
        request_id, step, call_id = each.key
        yield {
            "key": f"approval/{_key(each)}",
            "kind": "approval",
            "what": each.question.name,
            "why": f"It waits for a person: {_why(each.question)}",
            "since": round(each.since, 3),
            "request_id": request_id,
            "step": step,
            "call_id": call_id,
        }


def _late(tenant: Tenant, now: float) -> list[Iterator[Row]]:
    """Calls against their deadlines, deferred calls and model calls that wait: each kind is a source."""
    found: dict[str, list[tuple[float, Row]]] = {kind: [] for kind, _ in _LATE.values()}
    for line in tenant.timelines.running():
        for mark in line.open_marks:
            wait = mark.wait
            if wait is not None and wait.until > now:
                row = _of_mark(line, mark, wait.kind.value, wait.why, wait.since)
                found.setdefault(wait.kind.value, []).append((wait.since, {**row, "until": round(wait.until, 3)}))
            elif mark.kind in _LATE and is_late(mark, now):
                kind, why = _LATE[mark.kind]
                found[kind].append((mark.begun_at, _of_mark(line, mark, kind, why, mark.begun_at)))
    return [(row for _, row in sorted(rows, key=itemgetter(0))) for rows in found.values()]


#: What a call that is late is shown as, and the words.
_LATE: Final[Mapping[MarkKind, tuple[str, str]]] = {
    MarkKind.TOOL: ("deadline", "a call against its deadline"),
    MarkKind.MODEL: ("deadline", "a model call against its deadline"),
    MarkKind.DEFERRED: ("deferred", "waits for its result from outside"),
}


def is_late(mark: Mark, now: float) -> bool:
    """Is it against its deadline?"""
    took = now - mark.begun_at
    if mark.deadline_at is None:
        return took > LATE_SECONDS
    return took > max(LATE_SECONDS, LATE_FRACTION * (mark.deadline_at - mark.begun_at))


def _of_mark(line: RequestTimeline, mark: Mark, kind: str, why: str, since: float) -> Row:
    return {
        "key": f"{kind}/{line.request_id}/{mark.number}",
        "kind": kind,
        "what": mark.name,
        "why": for_log(why),
        "since": round(since, 3),
        "deadline": mark.deadline_at and round(mark.deadline_at, 3),
        "request_id": line.request_id,
        "step": mark.step,
        "call_id": mark.call_id,
    }


def _withdrawn(names: Iterable[str]) -> Iterator[Row]:
    for name in names:
        why = "it broke down too often; not offered for a while"
        yield {"key": f"withdrawn/{name}", "kind": "withdrawn", "what": name, "why": why}


def _left(tenant: Tenant) -> Iterator[Row]:
    for each in tenant.runtime.left_open():
        yield {
            "key": f"left/{each.request_id}",
            "kind": "left_open",
            "what": shown_id(each.request_id),
            "why": for_log(each.waits_for),
            "since": round(each.begun_at, 3),
            "request_id": each.request_id,
        }


def _journal(tenant: Tenant) -> Iterator[Row]:
    if damage := tenant.runtime.journal_damage():
        yield {"key": "journal", "kind": "journal", "what": "damage of the journal", "why": for_log(damage)}


def _servers(tenant: Tenant) -> Iterator[Row]:
    for each in tenant.runtime.mcp_servers():
        if each.reason and each.state.value != "ready":
            why = f"the MCP server is {each.state.value}: {each.reason}"
            yield {"key": f"server/{each.name}", "kind": "server", "what": each.name, "why": for_log(why)}


def _vectors(tenant: Tenant) -> Iterator[Row]:
    state = tenant.runtime.vectors()
    if state is not None and state.missing:
        yield {"key": "vectors", "kind": "index", "what": "code search by meaning", "why": for_log(str(state))}


def _busy(tree: Iterable[ActorInfo]) -> Iterator[Row]:
    for each in _all_actors(tree):
        if each.mailbox_depth > MAILBOX_DEPTH:
            why = f"more than {MAILBOX_DEPTH:,} messages wait in its mailbox"
            yield {"key": f"mailbox/{each.name}", "kind": "mailbox", "what": each.name, "why": why}
        if each.handling_seconds > HANDLING_SECONDS:
            why = f"it has been at one {each.handling} for more than {HANDLING_SECONDS:g} s"
            yield {"key": f"busy/{each.name}", "kind": "busy", "what": each.name, "why": why}


def _all_actors(tree: Iterable[ActorInfo]) -> Iterator[ActorInfo]:
    for each in tree:
        yield each
        yield from _all_actors(each.children)


def actors(tree: Iterable[ActorInfo]) -> Rows:
    """Every actor, each before those that it supervises; of the sessions of requests the first few."""
    return {str(row["key"]): row for row in _actors(tree, 0)}


def _actors(tree: Iterable[ActorInfo], depth: int) -> Iterator[Row]:
    for each in tree:
        is_sessions = each.name == "root/sessions"
        shown = each.children[:MAX_SESSIONS] if is_sessions else each.children
        yield {
            "key": each.name,
            "name": each.name.rpartition("/")[2],
            "depth": depth,
            "state": each.state,
            "mailbox": each.mailbox_depth,
            "restarts": each.restarts,
            "children": len(each.children),
            "hidden": len(each.children) - len(shown),
            "is_request": each.name.startswith("root/sessions/"),
        }
        yield from _actors(shown, depth + 1)


def usage(tenant: Tenant) -> Rows:
    """By minute and model."""
    return {f"{each.minute_at:.0f}/{each.model}": _used(asdict(each)) for each in tenant.timelines.usage()}


def _used(fields: dict[str, object]) -> Row:
    return {"key": f"{fields['minute_at']:.0f}/{fields['model']}", **fields}


def dead_letters(tenant: Tenant, offset: float) -> Rows:
    """The latest first. `offset`: what makes a wall-clock time of the runtime's."""
    return {
        str(each.serial): {
            "key": str(each.serial),
            "at": round(each.at_seconds + offset, 1),
            "reason": each.reason.value,
            "recipient": each.recipient,
            "message": type(each.message).__name__,
            "note": for_log(each.note),
        }
        for each in reversed(tenant.runtime.dead_letters())
    }
