"""Edits while something exchanges their folders and files with links, files and other folders: nothing outside of the
workspace is read, written or removed, and nothing temporary is left.

CALLBOARD_EXCHANGED_EDITS=100000 does so many of each kind, CALLBOARD_DEEP=1 a dozen times what each run does.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.edit_desk import Desk
from support.exchanging import Exchanging, exchange
from support.mounted_disk import mounted_disk, needs_mount

from callboard.actors.edits.applying import Applier
from callboard.actors.edits.planning import ApplyPatch, CreateFile, DeleteFile, RenameFile
from callboard.actors.edits.proposals import ProposalState
from callboard.protocol.errors import ToolError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="renameat2 exchanges two names in one step")

#: A staged and decided edit takes 5 ms, 20 ms beside load.
EDITS = int(os.environ.get("CALLBOARD_EXCHANGED_EDITS", "400" if "CALLBOARD_DEEP" in os.environ else "24"))
VICTIM, INSIDE = "victim\n", "inside\n"


def tree(folder: Path) -> dict[str, str]:
    """Each file in a folder, with its content and mode."""
    found = {}
    for where, _, names in os.walk(folder):
        for name in names:
            place = Path(where, name)
            mode = oct(place.lstat().st_mode)
            found[str(place.relative_to(folder))] = f"{mode} {place.read_text() if place.is_file() else ''}"
    return found


def temporary_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob(".callboard-*"))


class Ground:
    """A workspace whose folder `swap/deep` has files, and a folder outside with files of the same names."""

    def __init__(self, top: Path) -> None:
        self.root, self.outside = top / "work", top / "outside"
        self.names = [f"v{number}.md" for number in range(EDITS)]
        for folder, text in ((self.root / "swap/deep", INSIDE), (self.outside / "deep", VICTIM)):
            folder.mkdir(parents=True)
            for name in self.names:
                (folder.parent / name).write_text(text)
                (folder / name).write_text(text)
        self.desk = Desk(self.root, top / "state")
        self.before = tree(self.outside)

    def check(self) -> None:
        """Nothing outside has changed, and nothing of it has come in."""
        self.desk.close()
        assert tree(self.outside) == self.before
        assert not temporary_files(self.root)
        diffs = "".join(each.diff for each in self.desk.heard)
        assert "victim" not in diffs


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def linked(ground: Ground, to: Path | str, at: str = "swap", beside: str = "other") -> tuple[Path, Path]:
    (ground.root / beside).symlink_to(to)
    return ground.root / at, ground.root / beside


def of_a_folder_and_a_link(ground: Ground) -> list[tuple[Path, Path]]:
    return [linked(ground, ground.outside)]


def of_a_folder_and_a_relative_link(ground: Ground) -> list[tuple[Path, Path]]:
    return [linked(ground, "../outside")]


def of_a_folder_and_a_link_to_a_link(ground: Ground) -> list[tuple[Path, Path]]:
    (ground.root / "between").symlink_to(ground.outside)
    return [linked(ground, "between")]


def of_a_folder_and_a_link_through_proc(ground: Ground) -> list[tuple[Path, Path]]:
    return [linked(ground, f"/proc/{os.getpid()}/root{ground.outside}")]


def of_a_folder_and_a_link_up(ground: Ground) -> list[tuple[Path, Path]]:
    (ground.root / "up").symlink_to("..")
    return [linked(ground, "up/outside")]


def of_a_folder_and_a_file(ground: Ground) -> list[tuple[Path, Path]]:
    (ground.root / "other").write_text("a file")
    return [(ground.root / "swap", ground.root / "other")]


def of_the_inner_folder_and_a_link(ground: Ground) -> list[tuple[Path, Path]]:
    return [linked(ground, ground.outside / "deep", "swap/deep")]


def of_a_folder_and_a_link_to_nothing(ground: Ground) -> list[tuple[Path, Path]]:
    return [linked(ground, ground.outside / "absent")]


def of_files_and_links(ground: Ground) -> list[tuple[Path, Path]]:
    return [
        linked(ground, ground.outside / name, f"swap/{name}", f"link-{name}") for name in ground.names[: EDITS // 4]
    ]


def of_two_folders(ground: Ground) -> list[tuple[Path, Path]]:
    """Both of the workspace: whichever it is, it is whole."""
    (ground.root / "other/deep").mkdir(parents=True)
    return [(ground.root / "swap", ground.root / "other")]


KINDS: list[Callable[[Ground], list[tuple[Path, Path]]]] = [
    of_a_folder_and_a_link,
    of_a_folder_and_a_relative_link,
    of_a_folder_and_a_link_to_a_link,
    of_a_folder_and_a_link_through_proc,
    of_a_folder_and_a_link_up,
    of_a_folder_and_a_file,
    of_the_inner_folder_and_a_link,
    of_a_folder_and_a_link_to_nothing,
    of_files_and_links,
    of_two_folders,
]


def requests(name: str, number: int) -> Iterator[object]:
    """One of each kind, of a file in the outer folder or the inner one."""
    folder = ("swap", "swap/deep")[number % 2]
    path = f"{folder}/{name}"
    kind = number // 2 % 5
    if kind == 0:
        yield CreateFile(f"{folder}/new-{name}", "written\n")
    elif kind == 1:
        yield DeleteFile(path)
    elif kind == 2:
        yield RenameFile(path, f"{folder}/moved-{name}")
    elif kind == 3:
        yield ApplyPatch(f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-inside\n+changed\n")
    else:
        yield CreateFile(f"{folder}/made-{number}/{name}", "written\n")


def done(desk: Desk, request: object) -> str:
    """How it ended."""
    try:
        staged = desk.stage(request)
    except ToolError:
        return "refused"
    if staged.proposal is None:
        return "nothing to do"
    (proposal,) = desk.decide(staged.proposal.id)
    return str(proposal.state)


@pytest.mark.repeats
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_nothing_outside_is_touched_and_nothing_is_left(ground: Ground, kind: Callable[..., object]) -> None:
    pairs = kind(ground)
    assert isinstance(pairs, list)
    with Exchanging(*pairs) as swaps:
        ends = Counter(
            done(ground.desk, request) for number, name in enumerate(ground.names) for request in requests(name, number)
        )
    ground.check()
    assert swaps.count > EDITS, swaps.count
    assert ends.total() == EDITS
    sys.stderr.write(f"{kind.__name__}: {swaps.count:,} swaps; {dict(ends)}\n")


def test_a_thread_of_this_very_process_may_exchange_them_too(ground: Ground) -> None:
    pair, ended = of_a_folder_and_a_link(ground)[0], threading.Event()

    def run() -> None:
        while not ended.is_set():
            exchange(*pair)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for number, name in enumerate(ground.names):
            for request in requests(name, number):
                done(ground.desk, request)
    finally:
        ended.set()
        thread.join()
    ground.check()


# -- one exchange, at a moment that is known


class Died(BaseException):
    """The process ends here."""


def staged_and_left(ground: Ground, monkeypatch: pytest.MonkeyPatch, step: str, request: object) -> str:
    """Applied up to this step of the applier, where the process has died."""

    def die(*_: object) -> None:
        raise Died

    known = ground.desk.staged(request)
    with monkeypatch.context() as patch:
        patch.setattr(Applier, step, die)
        with pytest.raises(Died):
            ground.desk.decide(known)
    return known


@pytest.mark.parametrize("request_", [CreateFile("swap/new.md", "w"), DeleteFile("swap/v0.md")], ids=["new", "deleted"])
def test_what_a_dead_process_has_left_is_not_completed_through_a_link(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, request_: object
) -> None:
    known = staged_and_left(ground, monkeypatch, "_complete", request_)
    exchange(*of_a_folder_and_a_link(ground)[0])
    ground.desk.restart()
    assert ground.desk.states() == {known: ProposalState.STALE}
    ground.desk.close()
    assert tree(ground.outside) == ground.before


def test_what_a_dead_process_has_prepared_is_not_removed_through_a_link_and_is_once_the_folder_is_back(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = staged_and_left(ground, monkeypatch, "_sync", CreateFile("swap/new.md", "written\n"))
    (left,) = temporary_files(ground.root)
    (ground.outside / left.name).write_text("of another program")
    before = tree(ground.outside)
    pair = of_a_folder_and_a_link(ground)[0]
    exchange(*pair)
    ground.desk.restart()
    assert tree(ground.outside) == before
    exchange(*pair)
    assert ground.desk.states() == {known: ProposalState.PENDING}
    assert not temporary_files(ground.root)
    (proposal,) = ground.desk.decide(known)
    assert proposal.state is ProposalState.APPLIED
    assert (ground.root / "swap/new.md").read_text() == "written\n"


def test_an_edit_that_cannot_be_completed_is_taken_back_where_it_can_be_reached(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ground.root / "a.md").write_text("one\n")
    inner = "--- a/swap/v0.md\n+++ b/swap/v0.md\n@@ -1 +1 @@\n-inside\n+in\n"
    patch = f"--- a/a.md\n+++ b/a.md\n@@ -1 +1 @@\n-one\n+1\n{inner}"
    known = staged_and_left(ground, monkeypatch, "_move_others", ApplyPatch(patch))
    assert (ground.root / "a.md").read_text() == "1\n"
    (ground.outside / "v0.md").write_text("in\n")  # what the edit makes of it
    before = tree(ground.outside)
    exchange(*of_a_folder_and_a_link(ground)[0])
    ground.desk.restart()
    assert ground.desk.states() == {known: ProposalState.STALE}
    assert (ground.root / "a.md").read_text() == "one\n"
    assert tree(ground.outside) == before


def test_a_file_that_an_ignore_file_names_is_not_edited_while_its_folder_is_a_link(ground: Ground) -> None:
    (ground.root / "swap/.callboardignore").write_text("v*.md\n")
    with Exchanging(*of_a_folder_and_a_link(ground)):
        ends = Counter(done(ground.desk, DeleteFile(f"swap/{name}")) for name in ground.names)
    ground.check()
    assert not ends["applied"], ends


def test_links_inside_the_workspace_are_followed_as_ever(ground: Ground) -> None:
    (ground.root / "docs").symlink_to("swap/deep")
    (ground.root / "one.md").symlink_to("swap/v1.md")
    assert done(ground.desk, CreateFile("docs/new.md", "written\n")) == "applied"
    assert done(ground.desk, ApplyPatch("--- a/one.md\n+++ b/one.md\n@@ -1 +1 @@\n-inside\n+changed\n")) == "applied"
    assert (ground.root / "swap/deep/new.md").read_text() == "written\n"
    assert (ground.root / "swap/v1.md").read_text() == "changed\n"
    assert (ground.root / "one.md").is_symlink()
    ground.check()


@needs_mount
def test_a_folder_that_is_mounted_in_the_workspace_is_one_like_another(ground: Ground) -> None:
    with mounted_disk(ground.root / "disk"):
        assert done(ground.desk, CreateFile("disk/made/new.md", "written\n")) == "applied"
        with pytest.raises(ToolError, match="outside"):
            ground.desk.stage(CreateFile("disk/../../outside/new.md", "written\n"))
        ground.check()


def test_the_workspace_itself_is_not_followed_once_it_is_a_link(ground: Ground) -> None:
    known = ground.desk.staged(CreateFile("swap/new.md", "written\n"))
    ground.root.rename(ground.root.with_name("away"))
    ground.root.symlink_to(ground.outside.parent / "outside")
    (ground.outside / "swap").mkdir()
    (proposal,) = ground.desk.decide(known)
    assert proposal.state is ProposalState.STALE
    assert not (ground.outside / "swap/new.md").exists()


# -- other names of a file


def test_an_edit_of_a_hard_link_leaves_the_other_name_as_it_is(ground: Ground) -> None:
    os.link(ground.outside / "v0.md", ground.root / "linked.md")
    assert done(ground.desk, ApplyPatch("--- a/linked.md\n+++ b/linked.md\n@@ -1 +1 @@\n-victim\n+new\n")) == "applied"
    assert (ground.root / "linked.md").read_text() == "new\n"
    assert tree(ground.outside) == ground.before
