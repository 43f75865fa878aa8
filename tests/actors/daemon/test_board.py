"""The board in Chromium: what it shows, what can be done on it, and what other pages cannot do."""

from __future__ import annotations

import contextlib
import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from support.board_page import DEADLINE_MS, WAITING, Opened, blank_page, board_daemon, browser, is_needed, opened_board
from support.conditions import wait_until
from support.running_daemon import RunningDaemon

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not is_needed(), reason="there is no Chromium: apt-get install chromium"),
]
expect.set_options(timeout=DEADLINE_MS)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as chromium, blank_page(chromium) as made:
        yield made


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with board_daemon(tmp_path_factory.mktemp("daemon")) as started:
        yield started


@pytest.fixture
def board(page: Page, daemon: RunningDaemon) -> Iterator[Opened]:
    with opened_board(page, daemon) as opened:
        yield opened
        assert not opened.errors
        assert not opened.foreign
    daemon.post("/test/end", {})
    wait_until(lambda: not daemon.get("/api/board").json()["sections"]["approvals"])


def test_an_approval_by_click_with_the_diff_seen(board: Opened) -> None:
    page = board.page
    expect(page.locator("#stuck .empty")).to_have_text("Nothing is stuck.")
    board.ask("edit plan.txt")
    expect(page.locator(".group h3")).to_have_text("create_file1")
    expect(page.locator(".group .why").first).to_contain_text("create_file makes changes; you are asked each time.")
    row = page.locator(WAITING)
    expect(row.locator(".line")).to_contain_text('path: "plan.txt"')
    expect(page.locator("#announcer")).to_have_text("create_file needs an approval")
    expect(row.locator(".approve")).to_have_text("Review")  # it has no room for the diff
    row.locator(".approve").click()
    expect(row.locator(".diff .added").first).to_have_text("+first line\n")
    row.locator(".approve:text('Approve')").click()
    expect(row).to_have_count(0)
    written = board.daemon.folder / "workspace/plan.txt"
    wait_until(written.exists)
    assert written.read_text() == "first line\nsecond line\n"


def test_a_wait_for_a_rate_limit_says_when_it_goes_on(board: Opened) -> None:
    board.ask("limited")
    row = board.page.locator("#stuck-rows > *").filter(has_text="it is asked again in")
    expect(row).to_contain_text("scripted/model")
    expect(row).to_contain_text(re.compile(r"goes on in 5\d"))


def test_a_denial_reaches_the_model_with_its_reason_and_the_lane_shows_the_wait(board: Opened) -> None:
    page = board.page
    board.ask("publish")
    card = page.locator(WAITING)
    expect(card.locator(".line")).to_have_text("to all")
    card.locator(".toggle").click()
    expect(card.locator("pre")).to_contain_text('"text": "to all"')
    row = page.locator("#request-rows > li").first
    expect(row.locator(".state")).to_have_text("waits for approval")
    expect(row.locator("rect.approval")).to_have_count(1)
    card.get_by_label("Why publish is denied").fill("not today")
    card.locator(".deny").click()
    expect(card).to_have_count(0)
    expect(row.locator(".state")).to_have_text("answered")
    row.locator(".asked").click()
    expect(row.locator(".marks")).to_contain_text("denied")


def test_lanes_say_why_each_call_ended(board: Opened) -> None:
    page = board.page
    board.ask("several")
    row = page.locator("#request-rows > li").first
    expect(row.locator(".state")).to_have_text("answered")
    expect(row.locator(".why")).to_have_text("breaks: tool_error · hangs: timed_out")
    assert row.locator("rect.failed").count() == 2
    failed = page.locator("#failing-rows > li")
    expect(failed.filter(has_text="breaks")).to_contain_text("tool error")
    expect(failed.filter(has_text="hangs")).to_contain_text("timed out")
    assert re.search("tracks-[45]", row.locator("svg").get_attribute("class") or "")  # they ran beside each other


def test_a_killed_worker_is_seen_to_restart(board: Opened) -> None:
    board.page.get_by_role("button", name="Show all").click()
    row = board.page.locator("[data-actor='root/rag']")
    restarts = row.locator("td").nth(2)
    expect(restarts).to_have_text("0")
    row.get_by_role("button", name="Kill root/rag").click()
    row.get_by_role("button", name="Sure? Kill root/rag").click()
    expect(restarts).to_have_text("1")
    expect(row.locator("td").nth(0)).to_have_text("running")


def test_the_stack_of_a_running_tool_and_its_end(board: Opened) -> None:
    page = board.page
    board.ask("slow")
    page.get_by_role("button", name=re.compile("^Stack of slow")).click()
    expect(page.locator("#stack-shown pre")).to_contain_text("in slow")
    row = page.locator("#request-rows > li").first
    row.get_by_role("button", name=re.compile("^Cancel request")).click()
    row.get_by_role("button", name=re.compile("^Sure")).click()
    expect(row.locator(".state")).to_have_text("cancelled")
    expect(row.locator(".why")).to_contain_text("cancelled on the board")
    expect(page.locator("#tool-rows > li")).to_have_count(0)


def test_a_reload_of_the_page_loses_nothing(board: Opened) -> None:
    page = board.page
    board.ask("publish")
    expect(page.locator(WAITING)).to_have_count(1)
    ids = page.locator("#request-rows .id").all_inner_texts()
    assert "token" not in page.url
    page.reload()
    expect(page.locator(WAITING)).to_have_count(1)
    expect(page.locator("#request-rows .id")).to_have_text(ids)
    page.locator(".deny").click()
    expect(page.locator(WAITING)).to_have_count(0)


def test_a_reload_of_the_configuration_loses_nothing(board: Opened) -> None:
    page = board.page
    board.ask("publish")
    expect(page.locator(WAITING)).to_have_count(1)
    ids = page.locator("#request-rows .id").all_inner_texts()
    assert board.daemon.post("/reload", {}).status_code == 200
    board.ask("after the reload")
    expect(page.locator("#request-rows .asked:text('after the reload')")).to_have_count(1)
    page.locator(".approve:text('Approve')").click()
    expect(page.locator(WAITING)).to_have_count(0)
    row = page.locator("#request-rows > li").filter(has_text=ids[0])
    expect(row.locator(".state")).to_have_text("answered")


def test_by_keyboard_only(board: Opened) -> None:
    page = board.page
    board.ask("publish")
    expect(page.locator(WAITING)).to_have_count(1)
    page.keyboard.press("1")
    expect(page.locator("#approvals")).to_be_focused()
    page.keyboard.press("j")
    expect(page.locator(WAITING)).to_be_focused()
    page.keyboard.press("Tab")  # the arguments
    for _ in range(8):
        if page.evaluate("document.activeElement.textContent") == "Approve":
            break
        page.keyboard.press("Tab")
    expect(page.locator(".approve")).to_be_focused()
    page.keyboard.press("a")
    expect(page.locator(WAITING)).to_have_count(0)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_hidden()
    page.keyboard.press("/")
    expect(page.locator("#filter")).to_be_focused()
    page.keyboard.type("no such request")
    expect(page.locator("#requests .empty")).to_have_text("No request has these words.")


def test_each_row_has_its_curl_line(board: Opened) -> None:
    page = board.page
    page.get_by_role("button", name="Show all").click()
    row = page.locator("[data-actor='root/rag']")
    row.get_by_role("button", name="curl line of killing root/rag").click()
    expect(row.locator("code")).to_contain_text("/api/actors/kill")
    assert board.daemon.token not in page.content()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page: Page, daemon: RunningDaemon, scheme: str) -> None:
    with opened_board(page, daemon, scheme="dark" if scheme == "dark" else "light") as opened:
        opened.ask("publish")
        expect(opened.page.locator(WAITING)).to_have_count(1)
        opened.page.locator("#request-rows .asked").first.click()
        opened.page.locator(f"{WAITING} .toggle").click()
        opened.page.get_by_role("button", name="Show all").click()
        found = Axe().run(opened.page)
        assert not found.response["violations"], found.generate_report()
    daemon.post("/test/end", {})


def test_without_a_token_it_asks_for_one(page: Page, daemon: RunningDaemon) -> None:
    with opened_board(page, daemon, token=""):
        page.get_by_label("Token", exact=True).fill("wrong-token-wrong-token")
        page.get_by_role("button", name="Open the board").click()
        expect(page.locator("#login-error")).to_have_text("the token is not known here")
        assert not Axe().run(page).response["violations"]
        page.get_by_label("Token", exact=True).fill(daemon.token)
        page.keyboard.press("Enter")
        expect(page.locator("#connection")).to_have_text("connected")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token", exact=True)).to_be_focused()
        assert page.evaluate("sessionStorage.getItem('callboard.token')") is None


def test_a_daemon_that_starts_again_is_found_again(page: Page, tmp_path: Path) -> None:
    with board_daemon(tmp_path) as first, opened_board(page, first):
        expect(page.locator("#connection")).to_have_text("connected")
        first.process.kill()
        first.process.wait(timeout=20)
        expect(page.locator("#connection")).to_have_text("connection lost, trying again")
        with board_daemon(tmp_path, port=int(first.url.rpartition(":")[2])):
            expect(page.locator("#connection")).to_have_text("connected")


@contextlib.contextmanager
def other_site(html: str) -> Iterator[str]:
    """A page of another origin."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join(timeout=20)


ATTACK = """async ([url, token, paths]) => {
  const found = [];
  for (const path of paths) for (const mode of ["cors", "no-cors"]) for (const key of [token, ""]) {
    const headers = key && mode === "cors" ? { Authorization: `Bearer ${key}` } : {};
    const body = JSON.stringify({ prompt: "publish", answer: "once" });
    const answer = await fetch(url + path, { method: "POST", mode, headers, body }).catch(() => null);
    found.push(answer === null ? "refused" : answer.type);
  }
  return found;
}"""


def test_a_page_of_another_origin_can_start_and_approve_nothing(page: Page, daemon: RunningDaemon) -> None:
    with opened_board(page, daemon) as opened:
        opened.ask("publish")
        expect(opened.page.locator(WAITING)).to_have_count(1)
        sections = daemon.get("/api/board").json()["sections"]
        (waiting,), before = sections["approvals"], len(sections["requests"])
        paths = ["/api/requests", "/test/start", f"/api/approvals/{waiting['key']}"]
        frame = f'<iframe src="{daemon.url}/"></iframe>'
        with other_site(f"<title>other</title>{frame}") as url, page.context.new_page() as other:
            other.goto(url)
            answers = other.evaluate(ATTACK, [daemon.url, daemon.token, paths])
            assert set(answers) <= {"refused", "opaque"}, answers  # opaque: sent without a token, and not to be read
            assert not any("callboard" in (each.title() or "") for each in other.frames[1:])
        after = daemon.get("/api/board").json()["sections"]
        assert [each["key"] for each in after["approvals"]] == [waiting["key"]]
        assert len(after["requests"]) == before
    daemon.post("/test/end", {})
