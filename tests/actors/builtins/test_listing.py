"""list_dir and find_files: sorted, typed, without what git ignores, and saying what is left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.file_tools import built_in

from callboard.actors.builtins.listing import MAX_ENTRIES, DirListing, FoundFiles
from callboard.protocol.errors import ToolError


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    (root / "src" / "deep").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / "src" / "main.py").write_text("import os\n\n\ndef main():\n    pass\n")
    (root / "src" / "deep" / "empty.txt").touch()
    return root


def listed(workspace: Path, *arguments: object, **more: object) -> DirListing:
    found = built_in(workspace)["list_dir"](*arguments, **more)
    assert isinstance(found, DirListing)
    return found


def names(found: DirListing) -> list[str]:
    return [each.path for each in found.entries]


def found_in(workspace: Path, *arguments: object, **more: object) -> FoundFiles:
    found = built_in(workspace)["find_files"](*arguments, **more)
    assert isinstance(found, FoundFiles)
    return found


def test_a_listing_is_sorted_typed_and_without_git(workspace: Path) -> None:
    (workspace / "link").symlink_to("src")
    os.mkfifo(workspace / "pipe")
    os.utime(workspace / "src" / "main.py", (1_700_000_000, 1_700_000_000))
    found = listed(workspace)
    assert (found.path, found.left_out) == (str(workspace), "")
    assert [(each.path, each.kind, each.target) for each in found.entries] == [
        ("link", "link", "src"),
        ("pipe", "pipe", ""),
        ("src", "folder", ""),
    ]
    below = listed(workspace, "src", 2)
    assert names(below) == ["deep", "deep/empty.txt", "main.py"]
    assert (below.entries[2].bytes, below.entries[2].mtime) == (33, "2023-11-14T22:13:20+00:00")


def test_a_long_listing_says_that_it_was_cut(workspace: Path) -> None:
    for number in range(MAX_ENTRIES + 5):
        (workspace / "src" / "deep" / f"{number:05}").touch()
    found = listed(workspace, ".", 3)
    assert len(found.entries) == MAX_ENTRIES
    assert "more than 1,000 entries" in found.left_out
    assert listed(workspace, "src").left_out == ""


def test_names_that_are_no_utf_8_are_shown_with_escapes(workspace: Path) -> None:
    os.close(os.open(os.fsencode(workspace) + b"/src/M\xe4rz", os.O_CREAT | os.O_WRONLY))
    assert names(listed(workspace, "src"))[0] == "M\\xe4rz"
    assert found_in(workspace, "rz").files == ("src/M\\xe4rz",)


@pytest.mark.parametrize(("path", "words"), [("src/main.py", "is not a directory|Not a directory"), ("..", "outside")])
@pytest.mark.parametrize("tool", ["list_dir", "find_files"])
def test_what_cannot_be_listed_is_refused(workspace: Path, tool: str, path: str, words: str) -> None:
    with pytest.raises(ToolError, match=words) as refusal:
        built_in(workspace)[tool](**{"path": path, **({"name": "x"} if tool == "find_files" else {})})
    assert refusal.value.field == "path"


def test_a_missing_folder_is_an_answer(workspace: Path) -> None:
    assert listed(workspace, "nowhere") == DirListing(path=str(workspace / "nowhere"), exists=False)
    assert found_in(workspace, "x", "nowhere") == FoundFiles(path=str(workspace / "nowhere"), exists=False)


@pytest.fixture
def ignoring(workspace: Path) -> Path:
    (workspace / ".gitignore").write_text("*.log\n/out/\n")
    (workspace / "src" / ".gitignore").write_text("!keep.log\n")
    for place in ("out/built.py", "a.log", "src/keep.log", "src/b.log", "node_modules/x/main.py", "env/pyvenv.cfg"):
        (workspace / place).parent.mkdir(parents=True, exist_ok=True)
        (workspace / place).touch()
    (workspace / ".env").write_text("KEY=1")
    return workspace


def test_what_git_ignores_is_left_out_and_counted(ignoring: Path) -> None:
    found = listed(ignoring, ".", 2)
    assert names(found) == [".gitignore", "src", "src/.gitignore", "src/deep", "src/keep.log", "src/main.py"]
    assert found.left_out == "5 that git ignores; ignored=true shows them"
    every = listed(ignoring, ".", 2, ignored=True)
    assert {"a.log", "out/built.py", "src/b.log", "node_modules/x", "env/pyvenv.cfg"} < set(names(every))
    assert not {".env", ".git"} & set(names(every))


def test_an_ignored_folder_that_is_asked_for_is_shown(ignoring: Path) -> None:
    assert names(listed(ignoring, "out")) == ["built.py"]
    assert found_in(ignoring, "main", "node_modules").files == ("x/main.py",)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("MAIN", ["src/main.py"]),
        ("main.py", ["src/main.py"]),
        ("*.log", ["src/keep.log"]),
        ("*.PY", ["src/main.py"]),
        ("src/**/*.txt", ["src/deep/empty.txt"]),
        ("/src/*.py", ["src/main.py"]),
        ("deep/em", ["src/deep/empty.txt"]),
        ("deep", []),
        ("[mx]ain.p?", ["src/main.py"]),
        (".env", []),
        ("!*.py", ["src/main.py"]),
    ],
)
def test_files_are_found_by_a_part_of_their_name_or_a_glob(ignoring: Path, name: str, files: list[str]) -> None:
    assert list(found_in(ignoring, name).files) == files


def test_a_long_answer_is_cut_and_says_so(workspace: Path) -> None:
    for number in range(20):
        (workspace / "src" / f"{number:05}.c").touch()
    found = found_in(workspace, "*.c", limit=7)
    assert found.files == tuple(f"src/{number:05}.c" for number in range(7))
    assert "more than 7 files" in found.left_out
    assert found_in(workspace, "*.c", limit=20).left_out == ""


@pytest.mark.parametrize("name", ["", "  ", "a\0b", "a\nb"])
def test_a_name_that_no_file_can_have_is_refused(workspace: Path, name: str) -> None:
    with pytest.raises(ToolError, match="a part of a file name, or a glob") as refusal:
        found_in(workspace, name)
    assert refusal.value.field == "name"


def test_a_folder_that_may_not_be_read_is_said(workspace: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read every folder")
    (workspace / "src" / "deep").chmod(0)
    try:
        (deep, _) = listed(workspace, "src", 2).entries
        assert deep.unread == "Permission denied"
        assert found_in(workspace, "empty").left_out == "1 folders could not be read (no_permission)"
    finally:
        (workspace / "src" / "deep").chmod(0o755)


def test_links_are_not_followed(workspace: Path) -> None:
    (workspace / "src" / "deep" / "up").symlink_to(workspace)
    assert found_in(workspace, "main").files == ("src/main.py",)
    assert names(listed(workspace, ".", 5)).count("src/deep/up") == 1
