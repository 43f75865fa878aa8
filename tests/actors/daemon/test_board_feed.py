"""What the board is told: a client that keeps a copy by the changes has what a new one is given whole."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx
import orjson
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.conditions import wait_until
from support.running_daemon import RunningDaemon, running_daemon
from support.scripted_daemon import PLANTED_KEY, scripted_daemon
from support.telling import CALL, LOOK

from callboard.actors.daemon.access_tokens import AccessTokens, Scope
from callboard.actors.daemon.approval_desk import ApprovalDesk
from callboard.actors.daemon.board_feed import Snapshot, changes_of
from callboard.actors.daemon.board_rows import (
    MAX_ABOUT_CHARS,
    MAX_SHOWN_CHARS,
    MAX_STUCK,
    SECTION_SCOPES,
    Row,
    Rows,
    approvals,
    is_late,
    stuck,
)
from callboard.actors.daemon.tenants import Tenant
from callboard.actors.journal.saved_conversations import TITLE_CHARS
from callboard.actors.telemetry.timelines import Mark, MarkKind, ModelWait, RequestTimeline
from callboard.protocol.commands import AskApproval, NoteKind
from callboard.protocol.tools import Risk

PROGRAM = Path(__file__).parents[2] / "support/board_daemon.py"
ROWS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2)).flatmap(
    lambda found: st.permutations(list(found.items()))
)


def as_rows(pairs: list[tuple[str, int]]) -> dict[str, Row]:
    return {key: {"key": key, "value": value} for key, value in pairs}


def followed(seen: Mapping[str, Row], change: Mapping[str, object]) -> dict[str, Row]:
    """What the page's `heard` does."""
    rows = dict(seen)
    for key in orjson.loads(orjson.dumps(change.get("gone", []))):
        del rows[key]
    for row in orjson.loads(orjson.dumps(change.get("set", []))):
        rows[row["key"]] = row
    if "order" in change:
        rows = {key: rows[key] for key in orjson.loads(orjson.dumps(change["order"]))}
    return rows


@given(st.lists(ROWS, min_size=1, max_size=6))
def test_changes_lead_from_each_snapshot_to_the_next(moments: list[list[tuple[str, int]]]) -> None:
    before: dict[str, Rows] = {}
    copy: dict[str, Row] = {}
    for pairs in moments:
        after = {"requests": as_rows(pairs)}
        changes = changes_of(before, after)
        copy = followed(copy, changes.get("requests", {}))
        assert list(copy.items()) == list(after["requests"].items())
        before = dict(after)
        assert changes_of(before, after) == {}


def test_a_scope_sees_its_sections_only() -> None:
    sections: dict[str, Rows] = {name: {"a": {"key": "a"}} for name in SECTION_SCOPES}
    found = Snapshot(1, 1.0, sections, changes_of({}, sections))
    for scope in Scope:
        seen = {name for name, needed in SECTION_SCOPES.items() if scope >= needed}
        shown = found.whole(scope)["sections"]
        assert isinstance(shown, dict)
        assert set(shown) == seen
        data = found.changed(scope).split(b"data: ")[1]
        assert set(orjson.loads(data)["changes"]) == seen


def events(daemon: RunningDaemon, answer: httpx.Response) -> Iterator[tuple[str, dict[str, object]]]:
    name = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, orjson.loads(line[6:])


def test_a_follower_hears_the_whole_and_then_what_changes(tmp_path: Path) -> None:
    import_path = (sys.executable, str(PROGRAM))
    with running_daemon(tmp_path, program=import_path) as daemon:
        assert httpx.get(f"{daemon.url}/api/board/events").status_code == 401
        with httpx.stream("GET", f"{daemon.url}/api/board/events", headers=daemon.headers, timeout=30) as answer:
            heard = events(daemon, answer)
            name, first = next(heard)
            assert (name, first["scope"]) == ("board", "admin")
            daemon.post("/test/start", {"prompt": "hello", "count": 100})
            numbers = [first["number"]]
            done: set[object] = set()
            for name, each in heard:
                assert name == "changes"
                numbers.append(each["number"])
                changes = each["changes"]
                assert isinstance(changes, dict)
                done |= {row["key"] for row in changes.get("requests", {}).get("set", []) if row["ended_at"]}
                if len(done) == 100:
                    break
            assert numbers == list(range(int(str(numbers[0])), int(str(numbers[0])) + len(numbers)))
            assert len(numbers) < 60  # not one for each of some thousand events
        used = daemon.get("/api/board").json()["sections"]["usage"]
        assert sum(row["requests"] for row in used) == 100
        assert sum(row["input_tokens"] for row in used) == 100 * 1_200


def test_what_is_stuck_says_why(tmp_path: Path) -> None:
    with running_daemon(tmp_path, program=(sys.executable, str(PROGRAM))) as daemon:
        daemon.post("/test/start", {"prompt": "publish"})
        wait_until(lambda: daemon.get("/api/board").json()["sections"]["approvals"])
        (row,) = daemon.get("/api/board").json()["sections"]["stuck"]
        assert (row["kind"], row["what"]) == ("approval", "publish")
        assert "waits for a person" in row["why"]
        daemon.post("/test/start", {"prompt": "limited"})
        wait_until(lambda: len(daemon.get("/api/board").json()["sections"]["stuck"]) == 2)
        row = daemon.get("/api/board").json()["sections"]["stuck"][1]
        assert (row["kind"], row["what"]) == ("retry", "scripted/model")
        assert "it is asked again in 5" in row["why"]
        assert 49 < row["until"] - row["since"] < 61
        daemon.post("/test/end", {})
        wait_until(lambda: not daemon.get("/api/board").json()["sections"]["stuck"])


def test_a_row_says_who_asked_and_for_what_masked_bounded_and_to_its_tenant_only(tmp_path: Path) -> None:
    state = tmp_path / "state/callboard/daemon"
    state.mkdir(parents=True, mode=0o700)
    tokens = AccessTokens(state / "tokens.json")
    (_, ann), (_, bob) = (tokens.make(Scope.USE, name, note=f"robot of {name}") for name in ("ann", "bob"))
    with scripted_daemon(tmp_path) as daemon:
        as_ann, as_bob = ({"Authorization": f"Bearer {each}"} for each in (ann, bob))
        metadata = {"user": "ada", "token": PLANTED_KEY, **{f"more{n}": "x" * 400 for n in range(10)}}
        body = {"prompt": f"call put_off, please: {PLANTED_KEY} " + "word " * 5_000, "metadata": metadata}
        assert daemon.post("/api/requests", body, as_ann).status_code == 202
        chat = {"model": "scripted/model", "messages": [{"role": "user", "content": f"hello {PLANTED_KEY}"}]}
        assert daemon.post("/v1/chat/completions", chat, as_ann).status_code == 200

        def rows(headers: Mapping[str, str]) -> list[dict[str, object]]:
            return daemon.get("/api/board", headers).json()["sections"]["requests"]

        wait_until(lambda: len(rows(as_ann)) == 2)
        found = {str(each["asked"]).split()[0]: each for each in rows(as_ann)}
        assert str(found["hello"]["asked"]).startswith("hello ⌧***")
        assert {each["by"] for each in found.values()} == {"robot of ann"}
        started = found["call"]
        assert started["asked"] == "call put_off, please:…"
        assert len(str(found["hello"]["asked"])) <= TITLE_CHARS
        assert str(started["about"]).startswith("user: ada, token: ")
        assert len(str(started["about"])) <= MAX_ABOUT_CHARS
        assert PLANTED_KEY[8:20] not in orjson.dumps(found).decode()
        assert rows(as_bob) == []
        assert "robot of ann" not in daemon.get("/api/board", as_bob).text


def test_an_approval_is_one_line_and_whole_where_it_is_asked_for(tmp_path: Path) -> None:
    with running_daemon(tmp_path, program=(sys.executable, str(PROGRAM))) as daemon:
        short, long = "publish: to all", "publish: " + "word " * 2_000 + "the end"
        for prompt in (short, long, "edit plan.txt"):
            daemon.post("/test/start", {"prompt": prompt})
        wait_until(lambda: len(daemon.get("/api/board").json()["sections"]["approvals"]) == 3)
        found = daemon.get("/api/board").json()["sections"]["approvals"]
        by_line = {str(each["line"])[:6]: each for each in found}
        assert (by_line["to all"]["line"], by_line["to all"]["says_all"]) == ("to all", True)
        edit = by_line["path: "]
        assert edit["line"] == 'path: "plan.txt", content: "first line\\nsecond line\\n"'
        assert not edit["says_all"]  # its diff is not in the line
        assert edit["why"] == "create_file makes changes; you are asked each time."
        cut = by_line["word w"]
        assert cut["is_cut"]
        assert len(cut["arguments"]) == MAX_SHOWN_CHARS
        whole = daemon.get(f"/api/board/approvals/{cut['key']}").json()
        assert not whole["is_cut"]
        assert "the end" in whole["arguments"]
        assert daemon.get(f"/api/board/approvals/{cut['key']}x").status_code == 404


def test_many_that_wait_for_a_person_leave_room_for_what_else_is_stuck(tmp_path: Path) -> None:
    with running_daemon(tmp_path, program=(sys.executable, str(PROGRAM))) as daemon:
        daemon.post("/test/start", {"prompt": "publish: {n}", "count": MAX_STUCK + 5})
        daemon.post("/test/start", {"prompt": "limited"})
        wait_until(lambda: _kinds(daemon) == {"approval": MAX_STUCK, "retry": 1})


def _kinds(daemon: RunningDaemon) -> Counter[str]:
    return Counter(row["kind"] for row in daemon.get("/api/board").json()["sections"]["stuck"])


def test_each_kind_of_what_is_stuck_has_room() -> None:
    """Calls that are late leave room for deferred calls, and both for model calls that wait."""
    at = time.time()
    late = [Mark(n, MarkKind.TOOL, "slow", 1, f"c{n}", begun_at=at - 60) for n in range(1, MAX_STUCK + 6)]
    wait = ModelWait(NoteKind.RETRY, "it was cut", since=at - 1, until=at + 60)
    others = [
        Mark(100, MarkKind.DEFERRED, "slow", 1, "d", begun_at=at - 50),
        Mark(101, MarkKind.MODEL, "a/model", 1, "", begun_at=at - 60, wait=wait),
        Mark(102, MarkKind.MODEL, "a/model", 1, "", begun_at=at - 60, wait=replace(wait, until=at - 30)),
    ]
    line = RequestTimeline("r", "a/model", at - 60, 1, marks=(*others, *late))
    runtime = SimpleNamespace(left_open=tuple, journal_damage=str, mcp_servers=tuple, vectors=lambda: None)
    desk, timelines = SimpleNamespace(open=()), SimpleNamespace(running=lambda: (line,))
    tenant = cast(Tenant, SimpleNamespace(runtime=runtime, desk=desk, timelines=timelines))
    rows = stuck(tenant, (), ()).values()
    assert Counter(row["kind"] for row in rows) == {"deadline": MAX_STUCK, "deferred": 1, "retry": 1}
    assert ["until" in row for row in rows if row["kind"] != "deferred"] == [False] * MAX_STUCK + [True]


async def test_the_row_of_an_approval_is_made_once() -> None:
    """Arguments may be large, and someone looks four times a second."""
    desk = ApprovalDesk()
    tenant, rows = cast(Tenant, SimpleNamespace(desk=desk)), {}
    first = asyncio.ensure_future(desk.approve(AskApproval(CALL, LOOK, '{"x":"one"}', Risk.WRITE)))
    await asyncio.sleep(0)
    (before,) = approvals(tenant, rows).values()
    assert next(iter(approvals(tenant, rows).values())) is before
    first.cancel()
    await asyncio.wait([first])
    assert not approvals(tenant, rows)
    assert not rows
    again = asyncio.ensure_future(desk.approve(AskApproval(CALL, LOOK, '{"x":"two"}', Risk.WRITE)))
    await asyncio.sleep(0)
    assert [row["line"] for row in approvals(tenant, rows).values()] == ["two"]
    again.cancel()
    await asyncio.wait([again])


def test_a_call_is_late_when_half_of_its_time_is_over() -> None:
    call = Mark(1, MarkKind.TOOL, "slow", 1, "c", begun_at=100.0, deadline_at=160.0)
    assert not is_late(call, 129.0)
    assert is_late(call, 131.0)
    short = Mark(1, MarkKind.TOOL, "quick", 1, "c", begun_at=100.0, deadline_at=101.0)
    assert not is_late(short, 102.0)


def test_the_page_is_served_without_a_token_and_allows_nothing_from_elsewhere(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        for path in ("/", "/board/board.css", "/board/board.js", "/board/dom.js", "/board/icon.svg"):
            found = httpx.get(daemon.url + path)
            assert found.status_code == 200
            policy = found.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy
        page = httpx.get(daemon.url + "/").text
        assert "style=" not in page
        assert "onclick" not in page
