"""The board in a real Chromium, before a real daemon, for tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request, sync_playwright
from support.running_daemon import RunningDaemon, running_daemon

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
PROGRAM = (sys.executable, str(Path(__file__).with_name("board_daemon.py")))
#: A busy machine takes seconds.
DEADLINE_MS = 20_000
#: Approvals that can be answered: those that have gone keep their place for a while.
WAITING = "li.approval:not(.gone)"
#: Chromium's sandbox cannot be had by root, who runs the tests in containers.
ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")


@dataclass
class Opened:
    """A page, and what it has done that it should not."""

    page: Page
    daemon: RunningDaemon
    errors: list[str] = field(default_factory=list)
    """Errors on its console, and those that nothing caught."""
    foreign: list[str] = field(default_factory=list)
    """Requests to anywhere but the daemon."""

    def ask(self, prompt: str, count: int = 1, **metadata: str) -> None:
        ask(self.daemon, prompt, count, **metadata)


def ask(daemon: RunningDaemon, prompt: str, count: int = 1, **metadata: str) -> None:
    """So often; `{n}` in it is the number of each."""
    body = {"prompt": prompt, "count": count, "metadata": metadata}
    assert daemon.post("/test/start", body).status_code == 202


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Raises where there is none and CI is set; the tests say what is skipped."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM or None, args=list(ARGUMENTS))
        try:
            yield started
        finally:
            started.close()


@contextlib.contextmanager
def board_daemon(folder: Path, port: int = 0) -> Iterator[RunningDaemon]:
    """A daemon whose model is a script."""
    with running_daemon(folder, program=PROGRAM, port=port) as daemon:
        try:
            yield daemon
        finally:
            with contextlib.suppress(Exception):  # a test may have ended it
                daemon.post("/test/end", {})


@contextlib.contextmanager
def blank_page(chromium: Browser, script: str = "") -> Iterator[Page]:
    """A page, which is a process of Chromium: one after the other, many boards are opened in it.

    `script`: runs in each document before anything else.
    """
    context = chromium.new_context(viewport={"width": 1280, "height": 860})
    context.set_default_timeout(DEADLINE_MS)
    context.add_init_script(script)
    try:
        yield context.new_page()
    finally:
        context.close()


@contextlib.contextmanager
def opened_board(
    page: Page, daemon: RunningDaemon, *, scheme: Literal["light", "dark"] = "light", token: str | None = None
) -> Iterator[Opened]:
    """By the login link. What it keeps in the browser is gone at the end."""
    opened = Opened(page, daemon)

    def hear(message: ConsoleMessage) -> None:
        if message.type == "error":
            opened.errors.append(message.text)

    def catch(error: Error) -> None:
        opened.errors.append(str(error))

    def note(request: Request) -> None:
        if not request.url.startswith(daemon.url + "/"):
            opened.foreign.append(request.url)

    page.emulate_media(color_scheme=scheme)
    page.on("console", hear)
    page.on("pageerror", catch)
    page.on("request", note)
    try:
        page.goto(f"{daemon.url}/#token={daemon.token if token is None else token}")
        yield opened
    finally:
        page.remove_listener("console", hear)
        page.remove_listener("pageerror", catch)
        page.remove_listener("request", note)
        _leave(page, f"{daemon.url}/left")


def _leave(page: Page, url: str) -> None:
    """An empty page in place of the board, and nothing kept. Of the same origin: another one has another process, and
    does not see what the board has kept. The daemon is not asked for it, as it may have ended."""
    page.route(url, lambda route: route.fulfill(content_type="text/html", body=""))
    page.goto(url)
    page.unroute(url)
    page.evaluate("sessionStorage.clear(); localStorage.clear()")
    page.context.clear_cookies()


def is_needed() -> bool:
    """In CI there is a browser; elsewhere its tests are skipped where there is none."""
    return bool(CHROMIUM or os.environ.get("CI"))
