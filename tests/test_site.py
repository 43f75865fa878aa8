"""docs/ as a site: it builds without a warning, all of its pages are in the navigation and all public names in the
reference. And what would be wrong with it is noticed: the same configuration, with a fault in a page."""

from __future__ import annotations

import functools
import html
import http.server
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Page, expect
from sphinx.util.inventory import InventoryFile
from support.board_page import DEADLINE_MS, blank_page, browser, is_needed
from support.offenders import no_offenders

from callboard.protocol.tools import RETRY_HINTS

DOCS = Path(__file__).resolve().parents[1] / "docs"
DEADLINE_SECONDS = 120.0
pytestmark = [pytest.mark.deep, pytest.mark.timeout(300)]  # a build takes 30 s of CPU
#: Packages whose names are for users.
PUBLIC = (
    "callboard",
    "callboard.actors.index",
    "callboard.actors.kernel",
    "callboard.actors.testing.wire_double",
    "callboard.actors.tools",
    "callboard.protocol.testing",
    "callboard.providers",
)


def built(source: Path, into: Path) -> subprocess.CompletedProcess[str]:
    """As .ci/run and the README do it."""
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", source, into]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("site")
    ran = built(DOCS, into)
    assert (ran.returncode, ran.stderr) == (0, "")
    return into


def test_every_page_is_there(site: Path) -> None:
    pages = [path.relative_to(DOCS) for path in DOCS.rglob("*") if path.suffix in (".md", ".rst")]
    no_offenders(str(page) for page in pages if not (site / page.with_suffix(".html")).exists())


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda _, place: place)
    known = {name for kind, names in inventory.items() if kind.startswith("py:") for name in names}
    faces = [(package, name) for package in PUBLIC for name in import_module(package).__all__ if name != "__version__"]
    no_offenders(f"{package}.{name}" for package, name in faces if not known & names_of(package, name))


def names_of(package: str, name: str) -> set[str]:
    """What an object may be called in the reference: by its package, and by the front door or the module it is from."""
    home = getattr(getattr(import_module(package), name), "__module__", package)
    return {f"{package}.{name}", f"callboard.{name}", f"{home}.{name}"}


def test_settings_are_listed_with_their_meaning(site: Path) -> None:
    page = (site / "reference" / "settings.html").read_text()
    fields = import_module("callboard").Settings.model_fields
    assert len(fields) > 30
    assert [name for name in fields if f">{name}<" not in page] == []
    assert "$0" not in page
    assert "<p></p>" not in page


def test_what_the_protocol_has_in_tables_is_shown(site: Path) -> None:
    assert all(
        html.escape(hint, quote=False) in (site / "reference" / "errors.html").read_text()
        for hint in RETRY_HINTS.values()
    )
    assert "<p>Nothing ends the request.</p>" in (site / "reference" / "events.html").read_text()


def test_the_help_of_every_command_is_shown(site: Path) -> None:
    page = (site / "reference" / "command_line.html").read_text()
    for command in ("ask", "index", "doctor", "login", "tools", "models", "completion"):
        assert f"usage: callboard {command} " in page


LINK = re.compile(r'(?:href|src)="([^"]*)"')


def broken_links(site: Path) -> Iterator[str]:
    """Those that lead to no file of the site, or to no place in it."""
    pages = {path: path.read_text() for path in sorted(site.rglob("*.html")) if "_static" not in path.parts}
    for page, text in pages.items():
        for link in sorted(set(LINK.findall(text))):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            place = unquote(parts.fragment)
            if not target.is_file() or (place and target in pages and f'id="{place}"' not in pages[target]):
                yield f"{page.relative_to(site)}: {link}"


def test_every_link_leads_somewhere(site: Path) -> None:
    no_offenders(broken_links(site))


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here"> <a href="b.html#there"> <a href="c.html"> <img src="d.png">'
    )
    (tmp_path / "b.html").write_text('<p id="here"> <a href="https://elsewhere.example/x"> <a href="#nowhere">')
    assert list(broken_links(tmp_path)) == [
        "a.html: b.html#there",
        "a.html: c.html",
        "a.html: d.png",
        "b.html: #nowhere",
    ]


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as chromium, blank_page(chromium) as made:
        yield made


@pytest.mark.skipif(not is_needed(), reason="there is no Chromium: apt-get install chromium")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("glossary", "glossary.html"),
        ("dead letter", "glossary.html"),
        ("nginx", "operating.html"),
        ("isolation", "tools.html"),
        ("fallback", "cookbook/fallback_models.html"),
        ("max_steps", "reference/settings.html"),
    ],
)
def test_searching_finds(page: Page, served: str, words: str, found: str) -> None:
    page.goto(f"{served}/search.html?q={words}")
    results = page.locator("#search-results li a")
    expect(results.first).to_be_visible(timeout=DEADLINE_MS)
    expect(page.locator(f'#search-results li a[href*="{found}"]').first).to_be_visible(timeout=DEADLINE_MS)


FAULTS = {
    "a page that does not exist": ("[there](nothing.md)", "nothing"),
    "a heading that does not exist": ("[there](other.md#no-such-heading)", "no-such-heading"),
    "a heading of its own that does not exist": ("[there](#no-such-heading)", "no-such-heading"),
    "a picture that does not exist": ("![a chart](images/nothing.svg)", "nothing.svg"),
    "a name that does not exist": ("```{eval-rst}\n:py:class:`callboard.Nothing`\n```", "callboard.Nothing"),
}


def test_a_site_without_a_fault_is_built(tmp_path: Path) -> None:
    ran = built(small_site(tmp_path, {"page": "[there](other.md#a-heading)"}), tmp_path / "site")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_each_fault_is_noticed(tmp_path: Path) -> None:
    source = small_site(tmp_path, {f"page_{number}": text for number, (text, _) in enumerate(FAULTS.values())})
    (source / "lost.md").write_text("# Lost\n\nNo link of the first page leads here.\n")
    ran = built(source, tmp_path / "site")
    assert ran.returncode != 0
    named = {"lost.md": "lost.md", **{f"page_{number}.md": named for number, (_, named) in enumerate(FAULTS.values())}}
    no_offenders(
        f"{page} has a fault that is not told: {name}"
        for page, name in named.items()
        if not any(page in line and name in line for line in ran.stderr.splitlines())
    )
    assert len([line for line in ran.stderr.splitlines() if "WARNING" in line]) == len(named), ran.stderr


def small_site(place: Path, pages: dict[str, str]) -> Path:
    """Pages under the real configuration, and one more that they can lead to."""
    source = place / "docs"
    source.mkdir()
    shutil.copy(DOCS / "conf.py", source)
    links = "".join(f"- [{page}]({page}.md)\n" for page in (*pages, "other"))
    (source / "index.md").write_text(f"# First\n\n## Guides\n\n{links}")
    for page, text in pages.items():
        (source / f"{page}.md").write_text(f"# A page\n\n{text}\n")
    (source / "other.md").write_text("# Another\n\n## A heading\n")
    return source
