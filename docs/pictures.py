"""The pictures of docs/images that show the board and the terminal, each from a real run.

    python docs/pictures.py                    # all of them, some three minutes
    python docs/pictures.py terminal board_6   # those whose names begin so
    python docs/pictures.py --into /tmp/shown  # elsewhere

The board: `callboard serve` in a process of its own, its clients by HTTP, Chromium as they see it. The terminal:
`callboard ask` at a pseudo-terminal whose cells are drawn. The model of both is the wire double, a server that answers
as OpenAI's API does, from the scripts below: no key and no network is needed. Ids are the same in each run, times are
as they were. Needs a clone with the extra `dev`, and Chromium (`apt-get install chromium`).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import termios
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / ".dev"), str(ROOT / "tests")]

import httpx  # noqa: E402 - these two folders are on the path from here on
import pyte  # noqa: E402
import rich.console  # noqa: E402
import rich.text  # noqa: E402
from PIL import Image  # noqa: E402
from playwright.sync_api import Browser, FloatRect, Page  # noqa: E402
from rich._export_format import CONSOLE_SVG_FORMAT  # noqa: E402
from rich.style import Style  # noqa: E402
from rich.terminal_theme import TerminalTheme  # noqa: E402
from support.board_page import browser  # noqa: E402
from support.conditions import wait_until  # noqa: E402
from support.own_terminal import OwnTerminal  # noqa: E402
from support.running_daemon import NO_AUTHORITIES, RunningDaemon, running_daemon  # noqa: E402

from callboard.actors.daemon.access_tokens import AccessTokens, Scope  # noqa: E402
from callboard.actors.testing.wire_double import (  # noqa: E402
    Answer,
    Api,
    Call,
    Fault,
    FaultKind,
    Tokens,
    Turn,
    WireDouble,
)

IMAGES: Final = Path(__file__).with_name("images")
Scheme = Literal["light", "dark"]
SCHEMES: Final[tuple[Scheme, ...]] = ("light", "dark")
MODEL: Final = "openai/gpt-6.1-sol"

# ---------------------------------------------------------------- the board

#: Tools of a shop, as a file of `callboard serve`.
SHOP_TOOLS: Final = '''
"""What a model may do in a shop."""
import asyncio
import os
import time

from callboard import tool


@tool(risk="read", isolation="task")
async def find_order(order: int) -> dict[str, object]:
    """An order with its state."""
    await asyncio.sleep(1.5)
    return {"order": order, "state": "delivered", "euros": 89.0}


@tool(risk="read", isolation="task")
async def search_mail(words: str) -> list[str]:
    """Mail of customers."""
    await asyncio.sleep(2.5)
    return ["The lamp came broken.", "Where is my parcel?"]


@tool(risk="write")
def refund(order: int, euros: float) -> str:
    """Pay money back to a customer."""
    return "paid back"


@tool(risk="write")
def send_mail(to: str, text: str) -> str:
    """Send mail to a customer."""
    return "sent"


@tool(risk="write")
def set_price(article: str, euros: float) -> str:
    """Change a price in the shop."""
    return "changed"


@tool(risk="read", timeout=80)
def check_backup(night: str) -> str:
    """Read a backup and compare it with its checksums."""
    time.sleep(600)
    return "whole"


@tool(risk="read")
def make_thumbnails(folder: str) -> str:
    """Small pictures of the photos in a folder."""
    time.sleep(3)
    os.abort()


@tool(risk="read", timeout=4)
def stock_of_supplier(article: str) -> int:
    """How many a supplier has."""
    time.sleep(600)
    return 0
'''
CONFIG: Final = f'[default]\nmodel = "{MODEL}"\n\n[tenants.shop]\ntools = ["shop_tools.py"]\n'


@dataclass(frozen=True)
class Asked:
    """A request of one of the shop's programs, and what the model answers to it."""

    who: str
    """What its token is for, by which the board names it."""
    prompt: str
    turns: Sequence[Answer]
    state: str
    """The next one is asked when it has come so far: a state of the native API, or `ended`."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    model: str = MODEL
    timeout: float = 600.0
    """Seconds, for the whole of it."""


def calls(name: str, then: str = "Done.", **arguments: Any) -> list[Answer]:
    """The model calls a tool, then it answers."""
    return [_turn(calls=(Call(name, arguments),)), _turn(then)]


def talks(text: str) -> list[Answer]:
    """It answers at once."""
    return [_turn(text)]


def _turn(text: str = "", calls: tuple[Call, ...] = (), seconds: float = 0.0) -> Turn:
    """It takes about so long, for the bars of the board."""
    return Turn(text, calls, usage=Tokens(1_840, 260), fragment=8, pause=seconds / 10)


#: It writes for as long as a picture takes.
WRITES: Final[list[Answer]] = [Turn("The week in short. " * 400, fragment=20, pause=2.0)]
BUSY: Final[list[Answer]] = [
    Turn(fault=Fault(FaultKind.STATUS, status=429, retry_after=55.0, message="too many requests"))
]
CLAUDE: Final = "anthropic/claude-sonnet-5-5"
#: README's board: two wait for a person, one is stuck, one has failed, of one a tool has crashed, and one writes.
SIX: Final = (
    Asked(
        "nightly jobs",
        "Is the backup of last night whole?",
        calls("check_backup", night="2026-11-28"),
        "running_tools",
        {"job": "backup-check"},
    ),
    Asked("manuals", "Translate the manual of the lamp to Norwegian", WRITES, "ended", model=CLAUDE, timeout=3.0),
    Asked(
        "photo import",
        "Make thumbnails of the new photos",
        calls("make_thumbnails", "The photos could not be read.", folder="photos/november"),
        "ended",
    ),
    Asked(
        "support chat",
        "Order 4711: the lamp came broken, the customer wants the money back",
        [
            _turn("", (Call("find_order", {"order": 4711}), Call("search_mail", {"words": "lamp broken"})), 2.0),
            _turn("", (Call("refund", {"order": 4711, "euros": 89.0}),), 2.0),
            _turn("The money is on its way."),
        ],
        "waiting",
        {"user": "ann", "ticket": "20117"},
    ),
    Asked(
        "accounts",
        "Remind whoever has not paid in October",
        [
            _turn("", (Call("search_mail", {"words": "invoice October"}),), 3.0),
            _turn("", (Call("send_mail", {"to": "berg@example.org", "text": "Invoice 2291 is open."}),), 2.0),
            _turn("One reminder is sent."),
        ],
        "waiting",
        {"user": "cleo"},
    ),
    Asked("support chat", "What did customers write this week?", WRITES, "calling_model", {"user": "ben"}, CLAUDE),
)


def five_hundred() -> list[Asked]:
    """A busy day: 21 wait for a person, some are stuck or failed, many run."""
    asked = [*SIX[1:3], *_a_busy_day()]
    for number in range(500 - len(asked)):
        who, doing = WRITING[number % len(WRITING)]
        asked.append(Asked(who, f"{doing} {20_000 + number}", WRITES, "calling_model", {"user": "cleo"}))
    return asked


WRITING: Final = (("support chat", "Answer ticket"), ("accounts", "Read invoice"), ("stock", "Count article"))


def _a_busy_day() -> Iterator[Asked]:
    for night in ("2026-11-26", "2026-11-27"):
        turns = calls("check_backup", night=night)
        yield Asked("nightly jobs", f"Is the backup of {night} whole?", turns, "running_tools", {"job": "backup-check"})
    for number in range(60):
        yield Asked("support chat", f"Where is order {4_100 + number}?", talks("On its way."), "ended", {"user": "ann"})
    for article in ("lamp", "desk", "shelf"):
        turns = calls("stock_of_supplier", "The supplier does not answer.", article=article)
        yield Asked("stock", f"How many of {article} has the supplier?", turns, "ended")
    for number in range(3):
        yield Asked("manuals", f"Translate page {number + 1} of the manual", BUSY, "calling_model", {}, CLAUDE)
    for number in range(9):
        order, euros = 4_720 + number * 3, 19.0 + number * 10
        turns = calls("refund", order=order, euros=euros)
        yield Asked("support chat", f"Order {order} came broken: money back", turns, "waiting", {"user": "ann"})
    for name in ("berg", "dahl", "eide", "foss", "haug", "lie", "moe"):
        turns = calls("send_mail", to=f"{name}@example.org", text="Your parcel left today.")
        yield Asked("support chat", f"Tell {name.title()} where the parcel is", turns, "waiting", {"user": "ben"})
    for article, euros in (("lamp", 79.0), ("desk", 249.0), ("shelf", 49.0), ("chair", 119.0), ("rug", 89.0)):
        turns = calls("set_price", article=article, euros=euros)
        yield Asked("prices", f"{article.title()}: the price of last winter, please", turns, "waiting")


@dataclass
class Shop:
    """A daemon that serves the shop's programs, a token each, and the double that is its model."""

    daemon: RunningDaemon
    double: WireDouble
    clients: dict[str, httpx.Client] = field(default_factory=dict)
    asked: int = 0

    def ask(self, asked: Asked) -> None:
        """Returns when the request has come to its state."""
        self.double.play(asked.turns, by_turn=True)
        client = self._client(asked.who)
        request_id = uuid.uuid5(uuid.NAMESPACE_URL, f"{self.asked} {asked.prompt}").hex
        self.asked += 1
        body = {"prompt": asked.prompt, "model": asked.model, "metadata": asked.metadata, "timeout": asked.timeout}
        client.post("/api/requests", json={"request_id": request_id, **body}).raise_for_status()

        def is_there() -> bool:
            return client.get(f"/api/requests/{request_id}").json()["request"]["state"] == asked.state

        wait_until(is_there)

    def waits_long(self, name: str) -> None:
        """Until this tool's call counts as stuck."""

        def stuck() -> bool:
            rows = self.daemon.get("/api/board").json()["sections"]["stuck"]
            return any(each["what"] == name for each in rows)

        wait_until(stuck, 60.0, every=0.2)

    def _client(self, who: str) -> httpx.Client:
        if who not in self.clients:
            tokens = AccessTokens(self.daemon.folder / "state/callboard/daemon/tokens.json")
            _, secret = tokens.make(Scope.USE, "shop", who)
            headers = {"Authorization": f"Bearer {secret}"}
            self.clients[who] = httpx.Client(
                base_url=self.daemon.url, headers=headers, timeout=30, verify=NO_AUTHORITIES
            )
        return self.clients[who]


@contextlib.contextmanager
def open_shop() -> Iterator[Shop]:
    """Until it closes."""
    with tempfile.TemporaryDirectory(prefix="callboard-pictures-") as folder, WireDouble() as double:
        (Path(folder) / "config").mkdir()
        (Path(folder) / "config/shop_tools.py").write_text(SHOP_TOOLS)
        (Path(folder) / "workspace").mkdir()
        environment = {
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": double.base_url(Api.RESPONSES),
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_BASE_URL": double.base_url(Api.ANTHROPIC),
        }
        with running_daemon(Path(folder), config=CONFIG, environment=environment) as daemon:
            shop = Shop(daemon, double)
            try:
                yield shop
            finally:
                for client in shop.clients.values():
                    client.close()


@dataclass(frozen=True)
class View:
    """A window of a browser."""

    name: str
    scheme: Scheme
    width: int = 1400
    height: int = 900
    scale: float = 1.0
    is_phone: bool = False
    ends_with_row: bool = False
    """No request is cut in two at the bottom."""


END_OF_LAST_WHOLE_ROW: Final = """height => Math.max(0, ...[...document.querySelectorAll("#request-rows > li")]
  .map(each => Math.floor(each.getBoundingClientRect().bottom)).filter(bottom => bottom <= height)) || height"""


def views(name: str) -> list[View]:
    """The first screen of a desk and of a phone."""
    return [
        *(View(f"{name}_{scheme}", scheme) for scheme in SCHEMES),
        *(View(f"{name}_{scheme}_phone", scheme, 390, 844, 2.0, is_phone=True) for scheme in SCHEMES),
    ]


#: README's is narrower, so that it can be read at the width of its column.
README_VIEWS: Final = [View(f"board_{scheme}", scheme, 1080, 880, 2.0, ends_with_row=True) for scheme in SCHEMES]


def board_pictures(into: Path, requests: Iterable[Asked], wanted: Sequence[View], stuck: str = "") -> None:
    """What the board shows of these requests. `stuck`: the tool that is waited for until it is."""
    with open_shop() as shop, browser() as chromium:
        for asked in requests:
            shop.ask(asked)
        pages = [opened_page(chromium, view, shop) for view in wanted]
        if stuck:
            shop.waits_long(stuck)
            pages[0].wait_for_timeout(1_000)  # four times a second the board tells what has changed
        for view, page in zip(wanted, pages, strict=True):
            height = page.evaluate(END_OF_LAST_WHOLE_ROW, view.height) if view.ends_with_row else view.height
            shown: FloatRect = {"x": 0, "y": 0, "width": view.width, "height": height}
            save_png(into / f"{view.name}.png", page.screenshot(clip=shown))


def opened_page(chromium: Browser, view: View, shop: Shop) -> Page:
    """The board as it is seen there, with its rows."""
    context = chromium.new_context(
        viewport={"width": view.width, "height": view.height},
        device_scale_factor=view.scale,
        color_scheme=view.scheme,
        is_mobile=view.is_phone,
        has_touch=view.is_phone,
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(f"{shop.daemon.url}/#token={shop.daemon.token}")
    page.wait_for_selector("#request-rows > li" if shop.asked else "#requests .empty:visible")
    return page


def save_png(path: Path, screenshot: bytes) -> None:
    """In 256 colours, a third of the size: no pixel of a board is off by more than 4 of 255."""
    picture = Image.open(io.BytesIO(screenshot)).convert("RGB")
    picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)


# ---------------------------------------------------------------- the terminal

COLUMNS: Final = 80
ROWS: Final = 200
#: The folder that is asked about.
FILES: Final = {
    "orders.py": '''\
"""Orders of the shop."""


def total(prices, percent_off=0):
    """What an order costs, in euros."""
    rate = 1 - percent_off / 100
    return sum(round(price * rate, 2) for price in prices)
''',
    "test_orders.py": """\
from orders import total


def test_a_discount():
    assert total([2.49, 2.49, 2.49], percent_off=15) == 6.35
""",
}
QUESTION: Final = "why is an order with a discount a cent off? fix it"
EDIT: Final = {
    "file": "orders.py",
    "old_text": "sum(round(price * rate, 2) for price in prices)",
    "new_text": "round(sum(prices) * rate, 2)",
}
CONVERSATION: Final = (
    _turn(calls=(Call("search_text", {"query": "percent_off"}),)),
    _turn(calls=(Call("read_file", {"path": "orders.py"}),)),
    _turn(calls=(Call("apply_code_edit", {"edits": [EDIT]}),)),
    _turn(
        "Each price was rounded by itself, so the parts of a cent added up: three articles at 2.49 with 15 % off "
        "came to 6.36. Now total() adds first and rounds once: 6.35 (orders.py:7)."
    ),
)
SHOWN_COMMAND: Final = f'callboard ask "{QUESTION}"'


class Command:
    """`callboard` at a terminal of this size."""

    def __init__(self, folder: Path, double: WireDouble) -> None:
        self._folder = folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT / ".dev"),
            "HOME": str(folder / "home"),
            "TERM": "xterm-256color",
            "CALLBOARD_MODEL": MODEL,
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": double.base_url(Api.RESPONSES),
        }

    def start(self, *arguments: str, **how: Any) -> subprocess.Popen[bytes]:
        if (terminal := how.get("stdin")) is not None:
            termios.tcsetwinsize(terminal, (ROWS, COLUMNS))
        command = [sys.executable, "-m", "callboard.actors.cli", *arguments]
        return subprocess.Popen(command, cwd=self._folder / "shop", env=self.environment, start_new_session=True, **how)


def run_at_terminal() -> str:
    """What the run has written to its terminal, which echoes what is typed. Its folder is called /home/ann/shop."""
    with tempfile.TemporaryDirectory(prefix="callboard-pictures-") as folder, WireDouble() as double:
        for name in ("home", "shop"):
            (Path(folder) / name).mkdir()
        for name, text in FILES.items():
            (Path(folder) / "shop" / name).write_text(text)
        command = Command(Path(folder), double)
        command.start("index", stderr=subprocess.DEVNULL).wait(60)
        double.play(CONVERSATION, by_turn=True)
        terminal = OwnTerminal(command, "ask", QUESTION)
        try:
            terminal.next_prompt()
            terminal.type("y")
            status = terminal.finish()
        finally:
            terminal.process.kill()
            terminal.process.wait(30)
    if status:
        sys.exit(f"`{SHOWN_COMMAND}` ended with {status}: {terminal.shown}")
    return terminal.shown.replace(folder, "/home/ann")


Cell = pyte.screens.Char


def cells_of(written: str) -> list[list[Cell]]:
    """The lines of the terminal's screen, without the empty ones at the end."""
    screen = pyte.Screen(COLUMNS, ROWS)
    # pyte has no faint text, which is what callboard writes beside the answer: it is kept as text that blinks.
    pyte.graphics.TEXT.setdefault(2, "+blink")
    pyte.Stream(screen).feed(written.replace("\n", "\r\n"))
    lines = [[screen.buffer[row][column] for column in range(COLUMNS)] for row in range(ROWS)]
    last = max(row for row, text in enumerate(screen.display) if text.strip())
    return lines[: last + 1]


def as_rich(lines: Iterable[Sequence[Cell]]) -> rich.text.Text:
    """The same text with the same colours."""
    shown = rich.text.Text(no_wrap=True)
    for line in lines:
        for style, run in groupby(line, style_of):
            shown.append("".join(cell.data for cell in run), style)
        shown.rstrip()
        shown.append("\n")
    shown.rstrip()
    return shown


def style_of(cell: Cell) -> Style:
    """Its colours and what else is seen of it."""
    return Style(
        color=colour_of(cell.fg),
        bgcolor=colour_of(cell.bg),
        bold=cell.bold,
        dim=cell.blink,
        italic=cell.italics,
        underline=cell.underscore,
        reverse=cell.reverse,
    )


def colour_of(name: str) -> str:
    """As rich calls it."""
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    return {"brown": "yellow", "brightbrown": "bright_yellow"}.get(name, name.replace("bright", "bright_"))


def _theme(background: str, ink: str, *colours: str) -> TerminalTheme:
    def rgb(colour: str) -> tuple[int, int, int]:
        red, green, blue = bytes.fromhex(colour)
        return red, green, blue

    return TerminalTheme(rgb(background), rgb(ink), [rgb(each) for each in colours])


#: Black, red, green, yellow, blue, magenta, cyan, white: each can be read on its background.
THEMES: Final[Mapping[Scheme, TerminalTheme]] = {
    "light": _theme("f6f8fa", "1f2328", "1f2328", "b3261e", "116329", "7d4e00", "0550ae", "6f3fb0", "0b6a75", "57606a"),
    "dark": _theme("15181c", "e6e8ea", "40464d", "ff8578", "7bd88f", "e3b341", "79b8ff", "c9a2ff", "66d9e8", "d0d5da"),
}
#: Of the font that rich would fetch: a picture in a page may fetch nothing.
FETCHED_FONTS: Final = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)


def svg_of(written: str, scheme: Scheme) -> str:
    """The terminal as a picture, its text as text."""
    console = rich.console.Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(rich.text.Text(f"$ {SHOWN_COMMAND}", "bold"))
    console.print(as_rich(cells_of(written)))
    svg = console.export_svg(
        title="", theme=THEMES[scheme], code_format=FETCHED_FONTS.sub("", CONSOLE_SVG_FORMAT), unique_id="terminal"
    )
    return svg.rstrip() + "\n"


def terminal_pictures(into: Path, names: Sequence[str]) -> None:
    """One run, in the colours of each name's scheme."""
    written = run_at_terminal()
    for name in names:
        scheme = next(each for each in SCHEMES if each in name)
        (into / f"{name}.svg").write_text(svg_of(written, scheme))


# ---------------------------------------------------------------- which, and where


@dataclass(frozen=True)
class Run:
    """One real run, and the pictures that are made of it."""

    files: Mapping[str, object]
    """By name; a view of the board, or nothing."""
    make: Callable[[Path, Sequence[Any]], None]


def _board(views: Sequence[View], requests: Callable[[], Iterable[Asked]], stuck: str = "") -> Run:
    def make(into: Path, wanted: Sequence[View]) -> None:
        board_pictures(into, requests(), wanted, stuck)

    return Run({f"{each.name}.png": each for each in views}, make)


RUNS: Final = (
    Run({f"terminal_{scheme}.svg": f"terminal_{scheme}" for scheme in SCHEMES}, terminal_pictures),
    _board([*README_VIEWS, *views("board_6")], lambda: SIX, "check_backup"),
    _board(views("board_0"), lambda: ()),
    _board(views("board_500"), five_hundred, "check_backup"),
)
FILES_MADE: Final = [name for run in RUNS for name in run.files]


def main() -> None:
    """Make what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="how the names of the pictures begin (all)")
    parser.add_argument("--into", type=Path, default=IMAGES, metavar="FOLDER", help="(docs/images)")
    given = parser.parse_args()
    for name in given.names:
        if not any(each.startswith(name) for each in FILES_MADE):
            parser.error(f"no picture is called {name}...; there are: {', '.join(FILES_MADE)}")
    given.into.mkdir(parents=True, exist_ok=True)
    for run in RUNS:
        wanted = [name for name in run.files if name.startswith(tuple(given.names) or "")]
        if wanted:
            run.make(given.into, [run.files[name] for name in wanted])
        for name in wanted:
            sys.stdout.write(f"{given.into / name}: {(given.into / name).stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main()
