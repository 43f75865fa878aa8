"""Files in folders that are opened once: by openat2, and folder by folder where there is no such call."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.exchanging import Exchanging
from support.file_tools import built_in
from support.owners import NOBODY, needs_root, run_as

from callboard.actors import opened_folders
from callboard.actors.builtins.search_pattern import pattern_of
from callboard.actors.builtins.text_search import Search, search_files
from callboard.actors.builtins.workspace import Workspace
from callboard.actors.index import parsing
from callboard.actors.opened_folders import MAX_HELD, OpenedFolders, is_link, open_plain
from callboard.protocol.errors import ToolError


@pytest.fixture(params=["openat2", "one by one"])
def root(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace beside a folder outside, with links of many kinds between them."""
    if request.param == "one by one":
        monkeypatch.setattr(opened_folders, "IS_LINUX", False)
    root, outside = tmp_path / "work", tmp_path / "outside"
    for folder in (root / "a/b", outside / "b"):
        folder.mkdir(parents=True)
    (root / "a/b/in.txt").write_text("inside")
    (outside / "b/in.txt").write_text("outside")
    (root / "file").write_text("a file")
    for name, target in LINKS.items():
        (root / name).symlink_to(str(target).format(outside=outside, root=root))
    return root


LINKS = {
    "out": "{outside}",
    "relative": "../outside",
    "up": "..",
    "chain": "relative",
    "loop": "loop",
    "nothing": "absent",
    "inner": "a",
    "itself": ".",
    "magic": "/proc/self/cwd",
    "a/deep": "../../outside",
    "a/b/named": "{outside}/b/in.txt",
}
THROUGH = [
    *(f"{each}/b/in.txt" for each in ("out", "relative", "chain", "loop", "nothing", "inner", "magic", "a/deep")),
    *("up/outside/b/in.txt", "itself/a/b/in.txt", "a/b/named", "out/in.txt", "inner/absent"),
]
OUT_OF = ["..", "../outside/b/in.txt", "a/../../outside/b/in.txt", "a/b/../b/in.txt", "/etc/passwd", "a/.."]
ACTS: dict[str, Callable[[OpenedFolders, str], object]] = {
    "open": lambda folders, path: os.close(folders.open(path)),
    "read": lambda folders, path: folders.read(path, 100),
    "make": lambda folders, path: folders.make(path, b"written"),
    "replace": lambda folders, path: folders.replace(path, b"written", 0o600),
    "remove": lambda folders, path: folders.remove(path),
    "make_folder": lambda folders, path: folders.make_folder(path),
    "remove_folder": lambda folders, path: folders.remove_folder(path),
    "rename": lambda folders, path: folders.rename(path, "a/b/moved"),
    "rename to": lambda folders, path: folders.rename("a/b/in.txt", path),
    "sync": lambda folders, path: folders.sync(os.path.dirname(path) or path),
    "status": lambda folders, path: folders.status(path),
    "may": lambda folders, path: folders.may(path, os.R_OK),
}


def whole(top: Path) -> dict[str, str]:
    found = {}
    for where, folders, files in os.walk(top):
        for name in folders + files:
            place = Path(where, name)
            text = place.read_text() if place.is_file() and not place.is_symlink() else ""
            found[str(place)] = f"{stat.filemode(place.lstat().st_mode)} {text}"
    return found


def refused(folders: OpenedFolders, act: str, path: str) -> int | None:
    """The number of the error."""
    with pytest.raises(OSError, match="Errno") as caught:
        ACTS[act](folders, path)
    return caught.value.errno


@pytest.mark.parametrize("path", [path for path in THROUGH if path != "a/b/named"])
def test_nothing_is_done_through_a_link(root: Path, path: str) -> None:
    before = whole(root.parent)
    with OpenedFolders(root) as folders:
        assert {act: refused(folders, act, path) for act in ACTS} == dict.fromkeys(ACTS, errno.ELOOP)
    assert whole(root.parent) == before


@pytest.mark.parametrize("path", OUT_OF)
def test_nothing_is_done_by_a_path_that_leads_out(root: Path, path: str) -> None:
    before = whole(root.parent)
    with OpenedFolders(root) as folders:
        assert {act: refused(folders, act, f"{path}/x") for act in ACTS} == dict.fromkeys(ACTS, errno.EXDEV)
        assert refused(folders, "open", path) == errno.EXDEV
    assert whole(root.parent) == before


def test_the_last_name_is_not_followed_either(root: Path) -> None:
    with OpenedFolders(root) as folders:
        for act in ("open", "read"):
            with pytest.raises(OSError, match="levels") as caught:
                ACTS[act](folders, "a/b/named")
            assert is_link(caught.value)
        with pytest.raises(FileExistsError):
            folders.make("a/b/named", b"written")
        found = folders.status("a/b/named")
        assert found is not None
        assert stat.S_ISLNK(found.st_mode)
        folders.replace("a/b/named", b"in its place", 0o600)
    assert (root / "a/b/named").read_text() == "in its place"
    assert (root.parent / "outside/b/in.txt").read_text() == "outside"


@pytest.mark.parametrize("path", ["{}/out/b/in.txt", "{}/a/b/named", "{}/itself/file", "/proc/self/cwd", "{}/loop"])
def test_a_file_is_not_opened_by_an_absolute_path_with_a_link(root: Path, path: str) -> None:
    with pytest.raises(OSError, match="levels") as caught:
        open_plain(path.format(root))
    assert is_link(caught.value)


def test_files_are_read_made_and_removed(root: Path) -> None:
    with OpenedFolders(root) as folders:
        assert folders.read("a/b/in.txt", 100) == folders.read(f"{root}/a/b/in.txt", 100) == b"inside"
        assert folders.read("a/b/in.txt", 5) is None
        assert folders.read("a/b", 100) is None
        folders.make_folder("a/new")
        folders.make("a/new/x", b"x")
        with pytest.raises(FileExistsError):
            folders.make("a/new/x", b"y")
        folders.rename("a/new/x", "y")
        folders.replace("y", b"yy", 0o600)
        folders.sync("")
        folders.sync("a")
        folders.remove_folder("a/new")
        assert folders.status("a/new") is None
        assert not folders.is_folder("a/new")
        assert folders.is_folder("a")
        assert folders.is_folder("")
        assert folders.may("", os.W_OK)
        with pytest.raises(ValueError, match="null"):
            folders.open("a/b/in.txt\0x")
        with pytest.raises(ValueError, match="null"):
            folders.open("a\0x/in.txt")
    assert (root / "y").read_text() == "yy"
    os.close(open_plain(root / "y"))


def test_a_pipe_is_not_waited_for(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with OpenedFolders(root) as folders:
        assert folders.read("pipe", 100) is None


def test_all_is_done_in_the_folder_that_was_opened_first(root: Path) -> None:
    with OpenedFolders(root) as folders:
        assert folders.is_folder("a/b")
        (root / "a").rename(root / "moved")
        (root / "a").symlink_to("out")
        folders.make("a/b/new", b"new")
        folders.make_folder("a/b/folder")
        folders.make("a/b/folder/new", b"new")
    assert (root / "moved/b/new").read_text() == (root / "moved/b/folder/new").read_text() == "new"
    assert not (root.parent / "outside/b/new").exists()


def test_another_folder_in_its_place_is_not_taken_for_it_once_it_was_let_go_of(root: Path) -> None:
    for number in range(MAX_HELD + 1):
        (root / f"folder{number}").mkdir()
    with OpenedFolders(root) as folders:
        assert all(folders.is_folder(f"folder{number}") for number in range(MAX_HELD + 1))
        assert folders.is_folder("folder1")  # was let go of, as folder2 is for it, and is the same
        for number in range(MAX_HELD + 1):
            (root / f"folder{number}").rename(root / f"old{number}")
            (root / f"folder{number}").mkdir()
        with pytest.raises(OSError, match="another folder") as caught:
            folders.make("folder2/x", b"")
        assert caught.value.errno == errno.ESTALE
    assert not [each for each in whole(root) if each.startswith(f"{root}/folder") and each.endswith("x")]


def test_no_folder_stays_open(root: Path) -> None:
    before = os.listdir("/dev/fd")
    with OpenedFolders(root) as folders:
        for act in ACTS.values():
            for path in ("a/b/in.txt", *THROUGH, *OUT_OF):
                try:
                    act(folders, path)
                except OSError:
                    continue
    assert os.listdir("/dev/fd") == before


def test_mode_and_owner_are_kept(root: Path) -> None:
    for mode in (0o640, 0o400, 0o755, 0o606):
        (root / "file").chmod(mode)
        with OpenedFolders(root) as folders:
            folders.replace("file", b"new", 0o600)
        assert stat.S_IMODE((root / "file").stat().st_mode) == mode
    with OpenedFolders(root) as folders:
        folders.replace("new", b"new", 0o600)
    assert stat.S_IMODE((root / "new").stat().st_mode) == 0o600


@needs_root
def test_root_keeps_the_owner_and_a_new_file_is_of_the_owner_of_its_folder(root: Path) -> None:
    for place in (root, root / "file"):
        os.chown(place, NOBODY, NOBODY)
    with OpenedFolders(root) as folders:
        folders.replace("file", b"new", 0o600)
        folders.replace("new", b"new", 0o600)
        os.close(folders.open_or_make("lock", 0o600))
        folders.make("plain", b"an edit's")
    owners = {name: (root / name).stat().st_uid for name in ("file", "new", "lock", "plain")}
    assert owners == {"file": NOBODY, "new": NOBODY, "lock": NOBODY, "plain": 0}


@needs_root
def test_who_may_not_give_files_away_keeps_the_mode_without_the_rights_of_another_owner(root: Path) -> None:
    root.chmod(0o777)
    (root / "file").chmod(0o6755)

    def replace() -> None:
        with OpenedFolders(root) as folders:
            folders.replace("file", b"new", 0o600)

    run_as(NOBODY, replace, root)
    found = (root / "file").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (NOBODY, 0o755)


@needs_root
def test_a_folder_that_may_be_entered_and_not_listed_will_do(root: Path) -> None:
    (root / "a").chmod(0o711)
    (root / "a/b").chmod(0o733)

    def make() -> None:
        with OpenedFolders(root) as folders:
            folders.make("a/b/new", b"new")

    run_as(NOBODY, make, root)
    assert (root / "a/b/new").read_text() == "new"


def test_what_the_reading_tools_and_the_index_read_is_of_the_workspace_while_its_folders_are_exchanged(
    tmp_path: Path,
) -> None:
    root, outside = tmp_path / "work", tmp_path / "outside"
    for folder, word in ((root / "swap/deep", "inside"), (outside / "deep", "victim")):
        folder.mkdir(parents=True)
        (folder / "a.py").write_text(f"{word} = 1\n")
    (root / "other").symlink_to(outside)
    tools, place = built_in(root), root / "swap/deep/a.py"
    reads: dict[str, Callable[[], object]] = {
        "read_file": lambda: tools["read_file"]("swap/deep/a.py"),
        "read_files": lambda: tools["read_files"](["swap/deep/a.py"]),
        "search_text": lambda: search_files(Workspace.at(root), ".", search, time.monotonic() + 20),
        "the index": lambda: parsing._read(str(place))[0],
    }
    search = Search(pattern_of("inside|victim", is_regex=True, ignores_case=False), lambda _: True, 0, 50)
    seen = dict.fromkeys(reads, 0)
    with Exchanging((root / "swap", root / "other")):
        for name in list(reads) * 50:
            try:
                shown = str(reads[name]())
            except (ToolError, OSError):
                continue
            assert "victim = 1" not in shown
            seen[name] += "inside = 1" in shown
    assert all(seen.values()), seen
