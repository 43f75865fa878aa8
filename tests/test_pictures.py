"""docs/pictures.py makes the pictures of the board and the terminal from real runs, and each picture is of some use."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image
from support.board_page import is_needed
from support.offenders import no_offenders

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import pictures  # noqa: E402 - docs/ is on the path from here on

IMAGES = ROOT / "docs" / "images"
DEADLINE_SECONDS = 800.0
#: Of what the model writes.
ANSWER = "so the parts of a cent added up"


def text_of(svg: str) -> str:
    """Its words, without blanks: a terminal breaks lines anywhere."""
    drawn = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return "".join("".join("".join(each.itertext()) for each in drawn).split())


def words_of(written: str) -> str:
    """What a terminal shows of it, without blanks: neither colours nor the bar of progress, which is erased again."""
    kept = re.sub(r"\x1b\[\?25l.*?\x1b\[\?25h(\s*\x1b\[1A\x1b\[2K)?", "", written, flags=re.DOTALL)
    return "".join(re.sub(r"\x1b\[[0-9;]*m", "", kept).split())


def test_each_picture_is_on_a_page_or_made_by_the_script() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    used = set(re.findall(r"images/([\w.-]+)", pages)) | set(pictures.FILES_MADE)
    drawn = [path.name for path in IMAGES.iterdir() if path.suffix != ".json"]
    no_offenders(f"docs/images/{name} is used nowhere" for name in drawn if name not in used)
    no_offenders(
        f"docs/images/{name} is not there: python docs/pictures.py" for name in used if not (IMAGES / name).exists()
    )
    assert sum((IMAGES / name).stat().st_size for name in drawn) < 3_000_000


def test_what_a_terminal_shows_is_in_its_picture_as_text_with_its_colours() -> None:
    svg = pictures.svg_of("\x1b[2m> look {}\x1b[0m\nMay it?\x1b[3D\x1b[31m-\x1b[0m old <b>\n", "dark")
    assert text_of(svg).startswith(words_of(f"$ {pictures.SHOWN_COMMAND}") + ">look{}May-old<b>")
    assert "#ff8578" in svg  # red of that scheme
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "").replace("https://www.textualize.io", "")


@pytest.mark.parametrize("name", ["nothing", "board_7"])
def test_a_name_that_is_none_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pictures.py", name])
    with pytest.raises(SystemExit, match="2"):
        pictures.main()
    assert "board_500_dark_phone.png" in capsys.readouterr().err


@pytest.mark.deep
@pytest.mark.timeout(DEADLINE_SECONDS)
@pytest.mark.skipif(not is_needed(), reason="there is no Chromium: apt-get install chromium")
def test_all_of_them_are_made_from_real_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "docs" / "pictures.py"), "--into", str(tmp_path)]
    subprocess.run(command, check=True, timeout=DEADLINE_SECONDS)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(pictures.FILES_MADE)
    for name in pictures.FILES_MADE:
        if name.endswith(".png"):
            with Image.open(tmp_path / name) as made, Image.open(IMAGES / name) as kept:
                assert made.width == kept.width, name
    for scheme in pictures.SCHEMES:
        made, kept = ((folder / f"terminal_{scheme}.svg").read_text() for folder in (tmp_path, IMAGES))
        assert words_of(ANSWER) in text_of(made)
        assert text_of(made) == text_of(kept), "the terminal shows something else now: python docs/pictures.py terminal"


@pytest.mark.deep
def test_the_picture_holds_all_that_the_run_has_printed() -> None:
    written = pictures.run_at_terminal()
    assert "off came to 6.36" in " ".join(written.split())
    assert text_of(pictures.svg_of(written, "light")) == words_of(f"$ {pictures.SHOWN_COMMAND}\n{written}")
