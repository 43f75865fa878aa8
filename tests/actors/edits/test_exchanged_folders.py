"""Edits while something exchanges their folders and files with links, files and other folders: nothing outside of the
workspace is read, written or removed, and nothing temporary is left.

CALLBOARD_EXCHANGED_EDITS=100000 does so many of each kind, CALLBOARD_DEEP=1 more than each run does.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support import exchanging
from support.edit_desk import Desk
from support.exchanging import Exchanging, exchange
from support.mounted_disk import mounted_disk, needs_mount

from callboard import Runtime, Settings
from callboard.actors.edits.applying import Applier
from callboard.actors.edits.planning import ApplyPatch, CreateFile, DeleteFile, RenameFile
from callboard.actors.edits.proposals import ProposalState
from callboard.protocol.errors import ToolError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="renameat2 exchanges two names in one step")

#: A staged and decided edit takes 5 ms, 20 ms beside load.
EDITS = int(os.environ.get("CALLBOARD_EXCHANGED_EDITS", "400" if "CALLBOARD_DEEP" in os.environ else "24"))
#: An edit in a runtime takes up to 0.2 s beside load.
LIMIT_SECONDS = 200 + EDITS // 4
#: Files that there are.
ROUND = 400
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
        self.names = [f"v{number}.md" for number in range(min(EDITS, ROUND))]
        for folder, text in ((self.root / "swap/deep", INSIDE), (self.outside / "deep", VICTIM)):
            folder.mkdir(parents=True)
            for name in self.names:
                (folder.parent / name).write_text(text)
                (folder / name).write_text(text)
        self.desk = Desk(self.root, top / "state")
        self.before = tree(self.outside)
        self._folders = [os.open(self.root / each, os.O_RDONLY | os.O_DIRECTORY) for each in ("swap", "swap/deep")]

    def edits(self) -> Iterator[object]:
        """So many, of all kinds, each of a file that was there when all of this began: they are put back now and then,
        whatever their folders are called by then."""
        for number in range(EDITS):
            place = number % len(self.names)
            if number and not place:
                for folder in self._folders:
                    self._put_back(folder)
            yield request_of(self.names[place], number)

    def _put_back(self, folder: int) -> None:
        for name in os.listdir(folder):
            if name.startswith("made-"):
                shutil.rmtree(name, dir_fd=folder)
            elif name.startswith(("new-", "moved-")):
                os.unlink(name, dir_fd=folder)
        for name in self.names:
            with suppress(OSError):  # it is the link just now
                handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, dir_fd=folder)
                os.write(handle, INSIDE.encode())
                os.close(handle)

    def check(self) -> None:
        """Nothing outside has changed, and nothing of it has come in."""
        self.desk.close()
        for folder in self._folders:
            os.close(folder)
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


def request_of(name: str, number: int) -> object:
    """Of a file in the outer folder or the inner one."""
    folder = ("swap", "swap/deep")[number % 2]
    path = f"{folder}/{name}"
    patch = f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-inside\n+changed\n"
    kinds = (
        CreateFile(f"{folder}/new-{name}", "written\n"),
        DeleteFile(path),
        RenameFile(path, f"{folder}/moved-{name}"),
        ApplyPatch(patch),
        CreateFile(f"{folder}/made-{number}/{name}", "written\n"),
    )
    return kinds[number // 2 % len(kinds)]


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
@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_nothing_outside_is_touched_and_nothing_is_left(ground: Ground, kind: Callable[..., object]) -> None:
    pairs = kind(ground)
    assert isinstance(pairs, list)
    with Exchanging(*pairs) as swaps:
        ends = Counter(done(ground.desk, request) for request in ground.edits())
    ground.check()
    assert swaps.count > EDITS, swaps.count
    assert ends.total() == EDITS
    sys.stderr.write(f"{kind.__name__}: {swaps.count:,} swaps; {dict(ends)}\n")


@contextmanager
def exchanged_by_a_thread(pair: tuple[Path, Path]) -> Iterator[list[int]]:
    """How often, in the end."""
    ended, counts = threading.Event(), []

    def run() -> None:
        count = 0
        while not ended.is_set():
            count += exchange(*pair)
        counts.append(count)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield counts
    finally:
        ended.set()
        thread.join()


def in_a_runtime(request: object) -> tuple[str, dict[str, object]]:
    """The call of a tool that is this request."""
    match request:
        case CreateFile():
            return "create_file", {"path": request.path, "content": request.content}
        case DeleteFile():
            return "delete_file", {"path": request.path}
        case RenameFile():
            return "rename_file", {"path": request.path, "new_path": request.new_path}
    assert isinstance(request, ApplyPatch)
    return "apply_patch", {"patch": request.patch}


@pytest.mark.repeats
@pytest.mark.timeout(LIMIT_SECONDS)
async def test_a_confined_job_and_a_thread_may_exchange_them_too(ground: Ground, tmp_path: Path) -> None:
    one, other = of_a_folder_and_a_link(ground)[0]
    shutil.copy(exchanging.__file__, ground.root / "exchanging.py")
    # It ends with its standard input.
    line = f"while [ ! -e stop ]; do sleep 0.1; done | {sys.executable} exchanging.py {one.name} {other.name}"
    settings = Settings(workspace=ground.root, state_dir=tmp_path / "state", auto_confirm_edits=True)
    async with Runtime(settings, approve=lambda question: True) as runtime:
        started = await runtime.call_tool("start_job", {"command": line, "max_seconds": 3_600})
        assert started.ok, started.failure
        job = str(started.data["id"])
        look, seen = {"action": "wait", "id": job, "seconds": 0.2}, ""
        while "begun" not in seen:
            (found,) = (await runtime.call_tool("jobs", look)).data["jobs"]
            assert found["state"] in ("waiting", "running"), found
            seen = found["output"]
        ends: Counter[str] = Counter()
        with exchanged_by_a_thread((one, other)) as counts:
            for request in ground.edits():
                called = await runtime.call_tool(*in_a_runtime(request))
                ends[str(called.data.get("state")) if called.ok else str(called.failure.code)] += 1
        (ground.root / "stop").touch()
        waited = await runtime.call_tool("jobs", {"action": "wait", "id": job})
    ground.check()
    assert ends.total() == EDITS
    # Denied: it was judged while the path led outside.
    assert set(ends) <= {"applied", "stale", "pending", "", "invalid_arguments", "tool_error", "denied"}, ends
    by_job = waited.data["jobs"][0]["output"].split()[1]
    sys.stderr.write(f"{counts[0]:,} swaps by a thread, {by_job} by a job; {dict(ends)}\n")


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
