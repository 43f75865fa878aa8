"""`codebase_overview` of one file: what it defines, in every language of the index, or why nothing is said of that."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from callboard.actors.index import languages
from callboard.protocol.tools import ToolFailure
from tests.actors.builtins.test_code_tools import answers
from tests.actors.index.test_languages import CASES

OTHERS = {
    "notes.md": ("# Top\n\ntext\n\n## Sub\n\nmore\n", ["section Top 1-7", "section Top > Sub 5-7"]),
    "notes.rst": ("Top\n===\n\ntext\n", ["section Top 1-4"]),
}
#: Files of which nothing can be named, and what their note says of it.
WITHOUT = {
    "setup.toml": ("[a]\nb = 1\n", "does not know the syntax"),
    "run.bat": ("echo hi\n", "does not know the syntax"),
    "page.css": ("p { color: red }\n", "does not know the syntax"),
    "data.json": ('{"a": 1}\n', "does not know the syntax"),
    "comment.py": ("# nothing but this\n", "nothing is defined"),
    "empty.py": ("", "not in the code index"),
    "small.js": ("function a(){};" * 1_000, "minified"),
    "picture.png": ("\0\1\2\3" * 9, "not in the code index"),
    "built/gen.py": ("def f(): ...\n", "not in the code index"),
}


@pytest.fixture(scope="module")
def overviews(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of each file, by its name."""
    work = tmp_path_factory.mktemp("files")
    (work / ".gitignore").write_text("built/\n")
    files = {name: text for name, (text, _) in (*OTHERS.items(), *WITHOUT.items())}
    files |= {name_of(language): code for language, (code, *_) in CASES.items()}
    for name, text in files.items():
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text(text)
    os.mkfifo(work / "pipe")
    (work / "link.py").symlink_to(work / name_of("python"))
    (work / ".env").write_text("KEY=1\n")
    names = [*files, "pipe", "link.py", ".env", "../outside.py", "/etc/passwd", "missing.py"]
    found = answers(work, *(("codebase_overview", {"path": name}) for name in names))
    return dict(zip(names, found, strict=True))


def name_of(language: str) -> str:
    return f"in_{language}{languages.by_name(language).extensions.split()[0]}"


@pytest.mark.parametrize("language", sorted(CASES))
def test_it_names_what_a_file_of_each_language_defines(overviews: dict[str, Any], language: str) -> None:
    page = overviews[name_of(language)]
    assert (page["exists"], page["files"]) == (True, 1)
    (module,) = page["modules"]
    for path in CASES[language][1]:
        name = path.replace("::", ".").rpartition(".")[2]
        assert any(f"{name} " in item for item in module["items"]), (name, module["items"])


@pytest.mark.parametrize("name", OTHERS)
def test_it_names_the_headings_of_prose(overviews: dict[str, Any], name: str) -> None:
    assert overviews[name]["modules"][0]["items"] == OTHERS[name][1]


@pytest.mark.parametrize("name", WITHOUT)
def test_it_says_why_it_names_nothing(overviews: dict[str, Any], name: str) -> None:
    page = overviews[name]
    assert page["exists"]
    assert "modules" not in page
    assert WITHOUT[name][1] in page["note"]


def test_what_is_secret_outside_or_missing_is_told_as_other_tools_tell_it(overviews: dict[str, Any]) -> None:
    for name in (".env", "../outside.py", "/etc/passwd"):
        assert isinstance(overviews[name], ToolFailure)
        assert overviews[name].field == "path"
    assert overviews["missing.py"]["exists"] is False
    assert (overviews["pipe"]["exists"], overviews["pipe"]["files"]) == (True, 0)
    assert overviews["link.py"] == overviews[name_of("python")]


def test_methods_stand_behind_their_class_and_the_outer_things_are_left_out_last(tmp_path: Path) -> None:
    code = "".join(f"class C{n}:\n    def m{n}(self): ...\n" for n in range(1_100))
    (tmp_path / "long.py").write_text(code)
    (tmp_path / "few.py").write_text("def one(): ...\n\n\nclass Two:\n    def three(self):\n        def four(): ...\n")
    calls = [("codebase_overview", {"path": "long.py", "token_budget": budget}) for budget in (300, 2_000)]
    small, large, few = answers(tmp_path, *calls, ("codebase_overview", {"path": "few.py"}))
    for page, most in ((small, 300), (large, 2_000)):
        items = page["modules"][0]["items"]
        assert all(item.startswith("class") for item in items)
        assert page["left_out"] == {"items": 2_000 - len(items)}
        assert len(json.dumps(page)) < 8 * most
    assert "more than 2,000" in large["note"]
    assert few["modules"][0]["items"] == [
        "function one 1-1", "class Two 4-6", "method Two.three 5-6", "function Two.three.four 6-6",
    ]  # fmt: skip
