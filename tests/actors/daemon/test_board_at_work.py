"""The board in Chromium with nothing, with a little and with much to show: what is seen first, and what keys do."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, Route, expect
from support.board_page import (
    DEADLINE_MS,
    WAITING,
    Opened,
    ask,
    blank_page,
    board_daemon,
    browser,
    is_needed,
    opened_board,
)
from support.conditions import wait_until
from support.running_daemon import RunningDaemon

from callboard.actors.daemon.access_tokens import AccessTokens, Scope

pytestmark = [
    pytest.mark.deep,
    pytest.mark.timeout(180),  # with 500 requests and axe four times: 10 s, beside other load 40
    pytest.mark.skipif(not is_needed(), reason="there is no Chromium: apt-get install chromium"),
]
expect.set_options(timeout=DEADLINE_MS)
WIDE, PHONE = (1400, 900), (390, 844)
MOST_PX = 4_000
#: Prompts of a board that has 500 requests, 21 approvals among them.
MANY = (
    ("several things for the report {n}", 8),
    ("refused by the provider {n}", 4),
    ("hello, what is the capital of country {n}?", 96),
    ("think about the weather of the last {n} days", 360),
    ("publish: the shop is closed on day {n}", 12),
    ("Please edit plans/plan{n}.txt, so that it has two lines", 9),
    ("limited by the provider {n}", 5),
    ("slow work {n}", 6),
)
FEW = ("hello", "several things", "slow work", "publish: hello all", "edit plan.txt", "limited by the provider")
EMPTY = {
    "approvals": "Nothing waits for you.",
    "stuck": "Nothing is stuck.",
    "failing": "Nothing has failed.",
    "requests": "No requests yet.",
}
#: What says what waits, what is stuck and what fails: a title and a row of each.
FIRST = [f"#{section} {part}" for section in ("approvals", "stuck", "failing") for part in ("h2", "li[tabindex]")]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def page(chromium: Browser) -> Iterator[Page]:
    with blank_page(chromium) as made:
        yield made


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with board_daemon(tmp_path_factory.mktemp("daemon")) as started:
        yield started


@pytest.fixture
def board(page: Page, daemon: RunningDaemon) -> Iterator[Opened]:
    with opened_board(page, daemon) as opened:
        expect(page.locator("#requests .empty")).not_to_have_text("Loading…")
        yield opened
        assert not opened.errors
    daemon.post("/test/end", {})
    wait_until(lambda: not daemon.get("/api/board").json()["sections"]["approvals"])


def sections(daemon: RunningDaemon) -> dict[str, list[dict[str, object]]]:
    return daemon.get("/api/board").json()["sections"]


@contextlib.contextmanager
def size(page: Page, width: int, height: int) -> Iterator[None]:
    before = page.viewport_size
    page.set_viewport_size({"width": width, "height": height})
    try:
        yield
    finally:
        assert before is not None
        page.set_viewport_size(before)


@contextlib.contextmanager
def held(page: Page, path: str) -> Iterator[list[Route]]:
    """What the page asks for there does not go on by itself."""
    routes: list[Route] = []

    def hold(route: Route) -> None:
        routes.append(route)

    page.route(path, hold)
    try:
        yield routes
    finally:
        page.unroute(path)


def wait_for_one(page: Page, routes: list[Route]) -> Route:
    wait_until(lambda: page.evaluate("1") == 1 and bool(routes))
    return routes[0]


def axe(page: Page) -> None:
    found = Axe().run(page)
    assert not found.response["violations"], found.generate_report()


# -- with nothing, a little and much


def test_with_nothing_to_show_each_section_is_a_line_or_absent(page: Page, tmp_path: Path) -> None:
    with board_daemon(tmp_path) as daemon:
        for scheme in ("light", "dark"):
            with opened_board(page, daemon, scheme="dark" if scheme == "dark" else "light"), size(page, *WIDE):
                for section, words in EMPTY.items():
                    place = page.locator(f"#{section}")
                    expect(place.locator(".empty")).to_have_text(words)
                    assert _height(place) < 50, section
                for section in ("stack", "usage", "dead-letters"):
                    expect(page.locator(f"#{section}")).to_be_hidden()
                assert _page_height(page) <= WIDE[1]
                axe(page)


def test_with_six_requests(page: Page, tmp_path: Path) -> None:
    with board_daemon(tmp_path) as daemon:
        for each in FEW:
            ask(daemon, each, user="ada")
        wait_until(lambda: len(sections(daemon)["approvals"]) == 2 and _failed(daemon) == 2)
        _looked_at(page, daemon)


def test_with_five_hundred_requests_and_21_approvals(page: Page, tmp_path: Path) -> None:
    with board_daemon(tmp_path) as daemon:
        for prompt, count in MANY:
            ask(daemon, prompt, count)
        wait_until(lambda: len(sections(daemon)["approvals"]) == 21 and _failed(daemon) == 20, seconds=60)
        assert len(sections(daemon)["requests"]) == 500
        _looked_at(page, daemon)
        with opened_board(page, daemon), size(page, *WIDE):
            _unfolds(page)
        with opened_board(page, daemon), size(page, *PHONE):
            page.locator("#show-tree").click()  # a table that is wider than the page
            expect(page.locator("#actor-rows tr")).not_to_have_count(0)
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


def _failed(daemon: RunningDaemon) -> int:
    """Tools that broke or hung, and requests."""
    rows = sections(daemon)["requests"]
    marks = [mark for row in rows for mark in row["marks"]]  # type: ignore[attr-defined]
    failed = [mark for mark in marks if mark["ending"] in ("tool_error", "timed_out")]
    return len(failed) + len([row for row in rows if row["outcome"] == "failed"])


def _looked_at(page: Page, daemon: RunningDaemon) -> None:
    for scheme in ("light", "dark"):
        with opened_board(page, daemon, scheme="dark" if scheme == "dark" else "light") as opened:
            for width, height in (WIDE, PHONE):
                with size(page, width, height):
                    for each in FIRST:
                        expect(page.locator(each).first).to_be_visible()
                        assert _bottom(page.locator(each).first) <= height, (each, width)
                    expect(page.locator("#summary b")).to_have_text([re.compile(r"\d+")] * 4)
                    expect(page.locator("#usage-rows tr")).not_to_have_count(0)
                    assert _page_height(page) <= MOST_PX
                    assert page.evaluate("document.documentElement.scrollWidth") <= width
                    axe(page)
            assert not opened.errors


def _unfolds(page: Page) -> None:
    expect(page.locator(WAITING)).to_have_count(10)
    page.locator("#more-approvals").click()
    expect(page.locator(WAITING)).to_have_count(21)
    expect(page.locator("#more-approvals")).to_be_hidden()
    expect(page.locator("#request-rows > li")).to_have_count(8)
    page.locator("#more-requests").click()
    expect(page.locator("#request-rows > li")).to_have_count(58)
    group = page.locator(".stuck-group").filter(has_text="5 retry")
    group.get_by_role("button", name="5 retry: scripted/model").click()
    expect(group.locator(".stuck")).to_have_count(5)


def _height(place: Locator) -> float:
    box = place.bounding_box()
    assert box is not None
    return box["height"]


def _bottom(place: Locator) -> float:
    box = place.bounding_box()
    assert box is not None
    return box["y"] + box["height"]


def _page_height(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollHeight"))


# -- who asked, and for what


def test_a_request_says_who_asked_and_for_what_and_its_id_is_copied_whole(board: Opened) -> None:
    page = board.page
    board.ask("Count the words of <b>all</b> files", user="ada", key="sk-proj-0123456789abcdefghijklmnopqrstuv")
    row = page.locator("#request-rows > li").filter(has_text="Count the words")
    expect(row.locator(".asked")).to_have_text("Count the words of <b>all</b> files")
    expect(row.locator(".about")).to_contain_text("CALLBOARD_TOKEN · user: ada")
    assert "0123456789abcdefghij" not in page.content()
    whole = next(str(each["key"]) for each in sections(board.daemon)["requests"] if "Count" in str(each["asked"]))
    own = row.locator(".id")
    expect(own).to_have_text(whole[:8])
    expect(own).to_have_attribute("title", whole)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    own.click()
    expect(own).to_have_text("copied")
    assert page.evaluate("navigator.clipboard.readText()") == whole
    page.keyboard.press("/")
    page.keyboard.type(whole[:8])
    expect(page.locator("#request-rows > li")).to_have_count(1)


def test_it_says_that_it_loads_before_data_is_there(page: Page, daemon: RunningDaemon) -> None:
    with held(page, "**/api/board/events") as routes, opened_board(page, daemon):
        first = wait_for_one(page, routes)
        for each in page.locator("#board section:visible .empty").all():
            expect(each).to_have_text("Loading…")
        assert page.locator("#board section:visible .empty").count() == 4
        axe(page)
        first.continue_()
        expect(page.locator("#approvals .empty")).to_have_text("Nothing waits for you.")


# -- approvals by keys


def test_keys_work_from_anywhere_on_the_page_but_not_in_a_field(board: Opened) -> None:
    page = board.page
    board.ask("publish: one")
    board.ask("publish: two")
    expect(page.locator(WAITING)).to_have_count(2)
    page.locator("#requests h2").click()  # somewhere
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(dialog).to_be_visible()
    page.keyboard.press("a")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.keyboard.press("/")
    page.keyboard.type("adjk?/")
    expect(page.locator("#filter")).to_have_value("adjk?/")
    page.locator("#filter").fill("")
    page.keyboard.press("Escape")
    expect(page.locator(WAITING)).to_have_count(2)  # nothing was decided on the way
    page.locator("h1").click()
    page.keyboard.press("j")
    first, second = page.locator(WAITING).all()
    expect(first).to_be_focused()
    assert first.evaluate("row => getComputedStyle(row).outlineStyle") == "solid"
    page.keyboard.press("j")
    expect(second).to_be_focused()
    page.keyboard.press("k")
    expect(first).to_be_focused()


def test_a_key_decides_on_the_selected_approval_and_selects_first_where_none_is(board: Opened) -> None:
    page = board.page
    board.ask("publish: one")
    expect(page.locator(WAITING)).to_have_count(1)
    board.ask("publish: two")
    expect(page.locator(WAITING)).to_have_count(2)
    row = page.locator(WAITING).first
    words = row.locator(".line").inner_text()
    expect(row.locator(".approve")).to_have_text("Approve")
    page.keyboard.press("d")  # selects
    expect(row).to_be_focused()
    assert len(sections(board.daemon)["approvals"]) == 2
    page.keyboard.press("d")
    expect(page.locator("li.approval.gone .since")).to_have_text("Denied")
    (left,) = wait_for_approvals(board.daemon, 1)
    assert left["line"] != words
    page.keyboard.press("d")  # on one that has gone: nothing
    page.keyboard.press("j")
    expect(page.locator(WAITING)).to_be_focused()
    page.keyboard.press("a")
    wait_for_approvals(board.daemon, 0)


def test_a_row_that_does_not_show_all_is_unfolded_before_it_is_approved(board: Opened) -> None:
    page = board.page
    text = "word " * 2_000 + "the end"
    board.ask(f"publish: {text}")
    row = page.locator(WAITING)
    expect(row.locator(".approve")).to_have_text("Review")
    page.keyboard.press("a")
    page.keyboard.press("a")
    expect(row.locator(".approve:text('Approve')")).to_be_enabled()
    expect(row.locator(".arguments")).to_contain_text("the end")  # more than the feed of the board has
    assert len(sections(board.daemon)["approvals"]) == 1
    page.keyboard.press("a")
    wait_for_approvals(board.daemon, 0)


def test_an_approval_that_was_answered_elsewhere_keeps_its_place_and_does_nothing(board: Opened) -> None:
    page = board.page
    for word in ("one", "two"):
        board.ask(f"publish: {word}")
    expect(page.locator(WAITING)).to_have_count(2)
    page.keyboard.press("j")
    expect(page.locator(WAITING).first).to_be_focused()
    first, second = sections(board.daemon)["approvals"]
    assert board.daemon.post(f"/api/approvals/{first['key']}", {"answer": "deny"}).status_code == 200
    gone = page.locator("li.approval.gone")
    expect(gone.locator(".since")).to_have_text("No longer asked")
    expect(gone.locator(".approve")).to_be_disabled()
    expect(gone).to_be_focused()
    page.keyboard.press("a")
    page.keyboard.press("d")
    assert [each["key"] for each in sections(board.daemon)["approvals"]] == [second["key"]]
    page.keyboard.press("j")
    expect(page.locator(WAITING)).to_be_focused()
    expect(gone).to_have_count(0)
    expect(page.locator(WAITING)).to_be_focused()
    page.keyboard.press("a")
    wait_for_approvals(board.daemon, 0)


def test_a_row_says_what_this_page_has_answered_only_where_it_was_taken(board: Opened) -> None:
    """Two people decide at once: the one who came second is told so."""
    page = board.page
    board.ask("publish: one")
    expect(page.locator(WAITING)).to_have_count(1)
    with held(page, "**/api/approvals/**") as routes:
        page.keyboard.press("a")
        page.keyboard.press("a")
        sent = wait_for_one(page, routes)
        (row,) = sections(board.daemon)["approvals"]
        assert board.daemon.post(f"/api/approvals/{row['key']}", {"answer": "deny"}).status_code == 200
        gone = page.locator("li.approval.gone")
        expect(gone.locator(".since")).to_have_text("No longer asked")
        sent.continue_()
    expect(gone.locator(".problem")).to_contain_text("no such call waits for approval")
    expect(gone.locator(".since")).to_have_text("No longer asked")
    board.errors.clear()  # Chromium tells of the 404


def test_a_reason_that_is_being_written_keeps_the_focus_while_all_of_a_call_comes(board: Opened) -> None:
    page = board.page
    board.ask("publish: " + "word " * 2_000 + "the end")
    row = page.locator(WAITING)
    reason = row.get_by_role("textbox")
    with held(page, "**/api/board/approvals/**") as routes:
        row.locator(".toggle").click()
        reason.press_sequentially("a bad")
        wait_for_one(page, routes).continue_()
    expect(row.locator(".arguments")).to_contain_text("the end")
    expect(reason).to_be_focused()
    page.keyboard.type(" add")
    expect(reason).to_have_value("a bad add")
    assert len(sections(board.daemon)["approvals"]) == 1


def test_all_of_a_tool_are_approved_only_where_all_are_seen(board: Opened) -> None:
    page = board.page
    board.ask("publish: number {n}", 3)
    board.ask("edit plans/{n}.txt", 2)
    expect(page.locator(WAITING)).to_have_count(5)
    group = page.get_by_role("group", name="publish: approvals")
    edits = page.get_by_role("group", name="create_file: approvals")
    expect(edits.get_by_role("button", name="Deny all")).to_be_visible()
    expect(edits.get_by_role("button", name="Approve all")).to_be_hidden()  # their diffs are folded
    group.get_by_role("button", name="Approve all").click()
    board.ask("publish: one more")
    expect(group.locator(WAITING)).to_have_count(4)
    expect(group.get_by_role("button", name=re.compile("^Sure"))).to_have_count(0)  # they are others now
    twice(group.get_by_role("button", name="Approve all"))
    left = wait_for_approvals(board.daemon, 2)
    assert {each["tool"] for each in left} == {"create_file"}
    twice(edits.get_by_role("button", name="Deny all"))
    wait_for_approvals(board.daemon, 0)


def twice(button: Locator) -> None:
    """Without a pause, as the second press counts for some seconds only."""
    expect(button).to_be_visible()
    button.evaluate("button => { button.click(); button.click(); }")


def wait_for_approvals(daemon: RunningDaemon, count: int) -> list[dict[str, object]]:
    wait_until(lambda: len(sections(daemon)["approvals"]) == count)
    return sections(daemon)["approvals"]


def test_a_token_that_may_not_decide_sees_that_something_waits(page: Page, daemon: RunningDaemon) -> None:
    ask(daemon, "publish: hello")
    wait_for_approvals(daemon, 1)
    tokens = AccessTokens(daemon.folder / "state/callboard/daemon/tokens.json")
    _, secret = tokens.make(Scope.USE, "default", note="a reader")
    with opened_board(page, daemon, token=secret):
        row = page.locator("#stuck .stuck").filter(has_text="approval")
        expect(row).to_contain_text("It waits for a person: publish makes changes; you are asked each time.")
        expect(page.locator("#sum-waiting")).to_have_text("1")
        for section in ("approvals", "actors", "dead-letters"):
            expect(page.locator(f"#{section}")).to_be_hidden()
        page.keyboard.press("a")
        axe(page)
    daemon.post("/test/end", {})
    wait_for_approvals(daemon, 0)


def test_running_tools_are_all_counted_and_their_stacks_are_for_administrators(
    page: Page, daemon: RunningDaemon
) -> None:
    mark = {
        "kind": "tool",
        "name": "slow",
        "step": 1,
        "from": 0.0,
        "to": None,
        "ending": "",
        "deadline": None,
        "text": "",
    }
    marks = [{**mark, "number": n, "call_id": f"c{n}"} for n in range(60)]
    asked = {"key": "r", "asked": "much", "by": "", "about": "", "model": "", "state": "runs tools", "outcome": ""}
    row = {**asked, "begun_at": 0.0, "ended_at": None, "reason": "", "dropped": 0, "marks": marks}
    told = {"number": 1, "at": 60.0, "tenant": "default", "sections": {"requests": [row]}}
    for scope, stacks in (("use", 0), ("admin", 3)):
        with held(page, "**/api/board/events") as routes, opened_board(page, daemon), size(page, *WIDE):
            body = f"event: board\ndata: {json.dumps({**told, 'scope': scope})}\n\n"
            wait_for_one(page, routes).fulfill(body=body)
            expect(page.locator("#stack .count")).to_have_text("60")
            expect(page.locator("#tool-rows > li")).to_have_count(3)
            expect(page.locator("#tool-rows").get_by_role("button", name=re.compile("^Stack of"))).to_have_count(stacks)


# -- the connection


def test_a_lost_connection_is_told_and_nothing_is_decided_meanwhile(page: Page, tmp_path: Path) -> None:
    with board_daemon(tmp_path) as daemon, opened_board(page, daemon):
        ask(daemon, "publish: hello")
        expect(page.locator(WAITING)).to_have_count(1)
        page.keyboard.press("a")
        daemon.process.kill()
        daemon.process.wait(timeout=20)
        expect(page.locator("#lost")).to_contain_text("nothing can be decided until it is back")
        page.keyboard.press("a")
        expect(page.locator(f"{WAITING} > .problem")).to_contain_text("The connection is lost")
        axe(page)
        with board_daemon(tmp_path, port=int(daemon.url.rpartition(":")[2])):
            expect(page.locator("#lost")).to_be_hidden()


def test_a_connection_that_has_gone_silent_counts_as_lost(chromium: Browser, daemon: RunningDaemon) -> None:
    with blank_page(chromium) as page, opened_board(page, daemon):
        expect(page.locator("#connection")).to_have_text("connected")
        page.clock.install()
        page.reload()
        expect(page.locator("#connection")).to_have_text("connected")
        page.clock.fast_forward(60_000)
        expect(page.locator("#connection")).to_have_text("connection lost, trying again")
        page.clock.resume()
        expect(page.locator("#connection")).to_have_text("connected")
