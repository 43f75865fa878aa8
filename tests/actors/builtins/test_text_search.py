"""search_text: the right lines with exact spans, the same with ripgrep and without, and nothing secret by its hits."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.key_samples import PRIVATE_KEY

from callboard.actors.builtins import Workspace, text_search
from callboard.actors.builtins.ripgrep import find_ripgrep
from callboard.actors.builtins.search_pattern import pattern_of
from callboard.actors.builtins.text_search import (
    MAX_HITS,
    MAX_SEARCHED_BYTES,
    FindProgram,
    Search,
    SearchedText,
    search_files,
    search_text_tool,
)
from callboard.actors.processes.supply import ProcessOptions
from callboard.actors.testing.tool_stage import ToolStage
from callboard.protocol.code_fences import CodeFence, parse_fences
from callboard.protocol.errors import ToolError
from callboard.protocol.events import ToolCallTimedOut
from callboard.protocol.masking import mask


def without_ripgrep(_: Path) -> None:
    return None


@pytest.fixture(autouse=True)
def asks_ripgrep_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trees of these tests are small."""
    monkeypatch.setattr(text_search, "FIRST_FILES", 2)


HAS_RIPGREP = find_ripgrep(Path("/nowhere")) is not None
WAYS = [
    pytest.param(without_ripgrep, id="alone"),
    pytest.param(
        find_ripgrep,
        id="ripgrep",
        marks=pytest.mark.skipif(not HAS_RIPGREP, reason="ripgrep is not installed; our own search is tested anyway"),
    ),
]


def search(
    root: Path,
    query: str,
    find: FindProgram = without_ripgrep,
    *,
    path: str = ".",
    regex: bool = False,
    ignore_case: bool = False,
    context_lines: int = 0,
    limit: int = MAX_HITS,
) -> SearchedText:
    pattern = pattern_of(query, is_regex=regex, ignores_case=ignore_case)
    wanted = Search(pattern, context_lines=context_lines, limit=limit)
    return search_files(Workspace.at(root), path, wanted, time.monotonic() + 60, find)


def places(found: SearchedText) -> list[str]:
    return [f"{Path(hit.file).relative_to(found.path)}:{hit.lines}" for hit in found.hits]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    files = {
        "a.py": "import os\n\n\ndef main():\n    return os.Größe\n",
        "src/b.py": "# größe\ndef main(x):\n    pass\n\n\ndef maintain():\n    pass",
        "src/crlf.txt": "first main\r\nsecond\r\nmain\r\n",
        "out/built.py": "def main(): ...\n",
        "node_modules/x.js": "main()\n",
        "env/pyvenv.cfg": "main\n",
        ".env": "main=1\n",
        ".hidden/c.txt": "main\n",
        ".gitignore": "/out/\n*.log\n",
        "src/x.log": "main\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text.encode())
    (root / "wide.txt").write_bytes("erste\r\nmain größe\n".encode("utf-16"))
    (root / "latin.txt").write_bytes("# Größe, main, Übermaß\n".encode("latin-1"))
    (root / "binary").write_bytes(b"main\0main\n")
    (root / "key.txt").write_text(f"{PRIVATE_KEY}\nmain\n")
    (root / "link").symlink_to(root / "a.py")
    os.mkfifo(root / "pipe")
    return root


@pytest.mark.parametrize("find", WAYS)
@pytest.mark.parametrize(
    ("query", "options", "expected"),
    [
        ("main", {}, [".hidden/c.txt:1-1", "a.py:4-4", "latin.txt:1-1", "src/b.py:2-2", "src/b.py:6-6"]),
        ("MAIN(", {"ignore_case": True}, ["a.py:4-4", "src/b.py:2-2"]),
        ("MAIN(", {}, []),
        (r"^def \w+\(\w*\):$", {"regex": True}, ["a.py:4-4", "src/b.py:2-2", "src/b.py:6-6"]),
        ("GRÖSSE|größe", {"regex": True, "ignore_case": True}, ["a.py:5-5", "latin.txt:1-1", "src/b.py:1-1"]),
        (r"pass\s+def", {"regex": True}, []),
        (r"\Aimport|ss\Z", {"regex": True}, ["a.py:1-1", "src/b.py:3-3", "src/b.py:7-7"]),
        (r"main$", {"regex": True}, [".hidden/c.txt:1-1", "src/crlf.txt:1-1", "src/crlf.txt:3-3"]),
        (r"o[sS]", {"regex": True}, ["a.py:1-1", "a.py:5-5"]),
        ("nowhere at all", {}, []),
    ],
)
def test_the_lines_that_match(
    tree: Path, query: str, options: dict[str, bool], expected: list[str], find: FindProgram
) -> None:
    more = {"main": ["src/crlf.txt:1-1", "src/crlf.txt:3-3", "wide.txt:2-2"]}
    wide = {"GRÖSSE|größe": ["wide.txt:2-2"]}
    found = search(tree, query, find, **options)
    assert places(found) == expected + more.get(query, []) + wide.get(query, [])
    for hit in found.hits:
        data = Path(hit.file).read_bytes()
        encoding = "utf-16-le" if "wide" in hit.file else "latin-1" if "latin" in hit.file else "utf-8"
        (fence,) = parse_fences(hit.snippet)
        assert isinstance(fence, CodeFence)
        assert data[fence.start_byte : fence.end_byte].decode(encoding) == fence.code
        for start, end in hit.matches:
            flags = re.IGNORECASE if options.get("ignore_case") else 0
            wanted = query if options.get("regex") else re.escape(query)
            assert re.search(wanted, data[start:end].decode(encoding), flags)


def test_lines_around_are_shown_and_joined(tree: Path) -> None:
    found = search(tree, "def ", path="src/b.py", context_lines=1)
    assert [hit.lines for hit in found.hits] == ["1-3", "5-7"]
    joined = search(tree, "def ", path="src/b.py", context_lines=2)
    assert [(hit.lines, len(hit.matches)) for hit in joined.hits] == [("1-7", 2)]
    (fence,) = parse_fences(joined.hits[0].snippet)
    assert isinstance(fence, CodeFence)
    assert fence.code == (tree / "src/b.py").read_text()
    assert [hit.lines for hit in search(tree, "pass", path="src/b.py", context_lines=9).hits] == ["1-7"]


def test_one_file_can_be_searched_though_git_ignores_it_but_no_secret_one(tree: Path) -> None:
    assert len(search(tree, "main", path="src/x.log").hits) == 1
    assert places(search(tree, "main", path="out")) == ["built.py:1-1"]
    assert search(tree, "main", path="key.txt").hits == ()
    with pytest.raises(ToolError, match="not shown"):
        search(tree, "main", path=".env")
    with pytest.raises(ToolError, match="outside"):
        search(tree, "main", path="..")
    assert search(tree, "main", path="nowhere") == SearchedText(path=str(tree / "nowhere"), exists=False)


@pytest.mark.parametrize("find", WAYS)
def test_what_is_left_out_is_said(tree: Path, find: FindProgram) -> None:
    found = search(tree, "main", find, limit=2)
    assert places(found) == [".hidden/c.txt:1-1", "a.py:4-4"]
    assert found.left_out.startswith("more than 2 lines")
    assert search(tree, "main", find, limit=8).left_out == ""
    for number in range(300):
        (tree / f"long{number}.txt").write_text("x" * 590 + "needle\n")
    assert "more than 50,000 bytes" in search(tree, "needle", find).left_out


def test_of_a_long_line_the_part_around_the_match_is_shown(tree: Path) -> None:
    (tree / "min.js").write_text("é" * 5_000 + "needle" + "ü" * 5_000 + "needle\n")
    (hit,) = search(tree, "needle").hits
    (fence,) = parse_fences(hit.snippet)
    assert isinstance(fence, CodeFence)
    assert hit.matches == ((10_000, 10_006),)
    assert (tree / "min.js").read_bytes()[fence.start_byte : fence.end_byte].decode() == fence.code
    assert len(fence.code.encode()) < 1_000
    assert hit.lines == "1-1"


KEY = "sk-proj-" + "abcDEF1234" * 4


@pytest.mark.parametrize("find", WAYS)
@pytest.mark.parametrize(
    ("query", "regex"), [("sk-proj-a", False), ("DEF1234", False), (r'key = "(?=sk-proj)', True), (r"sk-\w+-ab", True)]
)
def test_a_key_is_not_found_out_by_its_hits(tmp_path: Path, query: str, regex: bool, find: FindProgram) -> None:
    (tmp_path / "conf.py").write_text(f'name = "x"\nkey = "{KEY}"\n')
    assert mask(f'key = "{KEY}"') != f'key = "{KEY}"'
    assert search(tmp_path, query, find, regex=regex).hits == ()
    (hit,) = search(tmp_path, "key =", find).hits
    assert "sk-proj" not in hit.snippet


def test_a_large_file_is_left_out_and_one_that_vanishes_too(tree: Path) -> None:
    with open(tree / "large.txt", "wb") as file:
        file.write(b"huge main\n")
        file.truncate(MAX_SEARCHED_BYTES + 1)
    (tree / "dangling").symlink_to(tree / "nothing")
    assert search(tree, "huge main").hits == ()


def test_when_the_time_is_over_what_was_found_is_shown(tree: Path) -> None:
    pattern = pattern_of("main", is_regex=False, ignores_case=False)
    found = search_files(Workspace.at(tree), ".", Search(pattern), time.monotonic() - 1, without_ripgrep)
    assert found.hits == ()
    assert "the time was over" in found.left_out


def test_a_folder_that_cannot_be_read_is_not_called_empty(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ToolError, match="src cannot be listed: Permission denied"):
        search(tree, "main", path="src")


def test_a_regex_that_does_not_end_is_one_timed_out_call(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 60 + "!\n")
    with ToolStage(ProcessOptions(workspace=tmp_path)) as stage:
        endless = '{"query": "(a|aa)+$b|(a+)+$", "regex": true}'
        call = stage.start(search_text_tool(Workspace.at(tmp_path)), endless, timeout_seconds=1.0)
        outcome = call.wait()
    assert isinstance(outcome, ToolCallTimedOut)


names = st.sampled_from(["a", "b.py", "c.txt", "D", "ä", ".e", "build", "x.log", "node_modules"])
texts = st.text(st.sampled_from("ab AB1\n\r\t.kKſsiİıäÄ\x1c\u2028"), max_size=30)
ignores = st.lists(st.sampled_from(["*.log", "build/", "/a", "!x.log", "D/*", "**/c.txt", "# no", "b.*"]), max_size=3)
queries = st.sampled_from(
    [("a", False), ("ab", False), ("k1", False), ("s", False), ("ä", False), ("  ", False), ("i.b", False)]
    + [(each, True) for each in (r"\w\d", "a.b", r"[^a]b", "ab|BA", r"a\s", "ki|Si", r"\bab", "i[a-c]", "b$", "^A")]
)


@pytest.mark.skipif(not HAS_RIPGREP, reason="ripgrep is not installed; our own search is tested anyway")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.dictionaries(st.lists(names, min_size=1, max_size=3).map("/".join), texts, max_size=8),
    ignored=st.dictionaries(st.sampled_from(["", "a/", "D/"]), ignores, max_size=2),
    query=queries,
    ignore_case=st.booleans(),
)
def test_the_same_is_found_with_ripgrep_and_without(
    tmp_path_factory: pytest.TempPathFactory,
    files: dict[str, str],
    ignored: dict[str, list[str]],
    query: tuple[str, bool],
    ignore_case: bool,
) -> None:
    root = tmp_path_factory.mktemp("tree")
    rules = {f"{folder}.gitignore": "\n".join(lines) for folder, lines in ignored.items()}
    for name, text in (files | rules).items():
        place = root / name
        if not any((root / each).is_file() for each in Path(name).parents) and not place.is_dir():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(text.encode())
    options = {"regex": query[1], "ignore_case": ignore_case}
    assert search(root, query[0], find_ripgrep, **options) == search(root, query[0], **options)
