"""What is wrong with an edit is told with field, expectation and what to do, and nothing is staged or changed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.edit_desk import Desk

from callboard.actors.edits.changes import tracking_hash
from callboard.actors.edits.planning import (
    CodeEdit,
    CreateFile,
    DeleteFile,
    EditCode,
    EditRequest,
    LocatedItem,
    RenameFile,
)
from callboard.actors.edits.proposals import ProposalState
from callboard.protocol.errors import ToolError

TEXT = "one\ntwo\ntwo\nthree\n"
HASH = tracking_hash(TEXT.encode())


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    root = tmp_path / "work"
    (root / "folder").mkdir(parents=True)
    (root / "a.txt").write_text(TEXT)
    (root / "b.txt").write_text("b\n")
    (root / "data.bin").write_bytes(b"\0\1\2")
    (root / "latin.txt").write_bytes("Zwölf Männer hören öfter schöne Märchen\n".encode("latin-1"))
    (root / "link.txt").symlink_to("a.txt")
    return Desk(root, tmp_path / "state")


def edits(*given: CodeEdit) -> EditCode:
    return EditCode(given, {})


BAD: dict[str, tuple[EditRequest, str, str]] = {
    "no-edits": (edits(), "edits", "0 edits"),
    "no-place": (edits(CodeEdit("x")), "edits.0", "names no place"),
    "no-span": (edits(CodeEdit("x", file="a.txt")), "edits.0", "does not say what"),
    "missing": (edits(CodeEdit("x", file="no.txt", old_text="x")), "edits.0.file", "there is no 'no.txt'"),
    "nul": (edits(CodeEdit("x", file="a\0b", old_text="x")), "edits.0.file", "NUL"),
    "outside": (edits(CodeEdit("x", file="../x", old_text="x")), "edits.0.file", "outside the workspace"),
    "folder": (edits(CodeEdit("x", file="folder", old_text="x")), "edits.0.file", "is a folder"),
    "binary": (edits(CodeEdit("x", file="data.bin", old_text="x")), "edits.0.file", "binary"),
    "absent": (edits(CodeEdit("x", file="a.txt", old_text="four")), "edits.0.old_text", "not in the file"),
    "twice": (edits(CodeEdit("x", file="a.txt", old_text="two")), "edits.0.old_text", "at lines 2, 3"),
    "out-of-file": (
        edits(CodeEdit("x", file="a.txt", start_byte=5, end_byte=500, hash=HASH)),
        "edits.0.end_byte",
        "18 bytes",
    ),
    "backwards": (edits(CodeEdit("x", file="a.txt", start_byte=5, end_byte=2, hash=HASH)), "edits.0.end_byte", "bytes"),
    "unsaid-hash": (edits(CodeEdit("x", file="a.txt", start_byte=0, end_byte=3)), "edits.0.hash", "needs the hash"),
    "changed": (
        edits(CodeEdit("x", file="a.txt", start_byte=0, end_byte=3, hash="0" * 32)),
        "edits.0.hash",
        "has changed",
    ),
    "other-text": (
        edits(CodeEdit("x", file="a.txt", start_byte=0, end_byte=3, old_text="two")),
        "edits.0.old_text",
        "does not hold old_text",
    ),
    "overlap": (
        edits(CodeEdit("x", file="a.txt", old_text="one\ntwo"), CodeEdit("y", file="./a.txt", old_text="one")),
        "edits.1",
        "two edits of this call",
    ),
    "encoding": (edits(CodeEdit("日", file="latin.txt", old_text="Männer")), "edits.0.new_text", "has no '日'"),
    "indexed-before": (
        EditCode((CodeEdit("x", canonical_path="a"),), {0: LocatedItem("a.txt", 0, 3, "0" * 32)}),
        "edits.0.canonical_path",
        "has changed",
    ),
    "exists": (CreateFile("a.txt", "x"), "path", "exists"),
    "create-folder": (CreateFile("folder", "x"), "path", "is a folder"),
    "create-below-file": (CreateFile("a.txt/x", "x"), "path", "cannot be followed"),
    "no-parent": (CreateFile("no/x", "x", create_parents=False), "create_parents", "there is no folder"),
    "surrogate": (CreateFile("new", "\ud800"), "content", "half a character"),
    "huge": (CreateFile("new", "x" * 9_000_000), "content", "9,000,000 bytes"),
    "empty-path": (CreateFile("", "x"), "path", "no path"),
    "delete-folder": (DeleteFile("folder"), "path", "is a folder"),
    "delete-link": (DeleteFile("link.txt"), "path", "symbolic link"),
    "rename-missing": (RenameFile("no.txt", "x"), "path", "there is no"),
    "rename-onto": (RenameFile("a.txt", "b.txt"), "new_path", "exists"),
    "rename-onto-itself": (RenameFile("a.txt", "a.txt"), "new_path", "exists"),
    "rename-out": (RenameFile("a.txt", "../b.txt"), "new_path", "outside the workspace"),
    "rename-secret": (RenameFile("a.txt", ".env"), "new_path", "not shown"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_edit_names_its_field_and_stages_nothing(desk: Desk, name: str) -> None:
    request, field, told = BAD[name]
    with pytest.raises(ToolError) as caught:
        desk.stage(request)
    assert caught.value.field == field
    assert told in str(caught.value)
    assert desk.states() == {}


def test_the_nearest_lines_are_shown_where_a_text_is_not_found(desk: Desk) -> None:
    with pytest.raises(ToolError) as caught:
        desk.stage(edits(CodeEdit("x", file="a.txt", old_text="  two\n  thre")))
    assert "2: two" in caught.value.expected


@pytest.mark.parametrize(
    ("request_", "note"),
    [
        (DeleteFile("no.txt"), "there is no 'no.txt'; nothing is to be deleted"),
        (CreateFile("b.txt", "x", on_exists="keep"), "exists and is kept as it is"),
        (CreateFile("b.txt", "b\n", on_exists="overwrite"), "holds that already"),
    ],
    ids=["delete", "keep", "same"],
)
def test_what_is_so_already_is_an_answer(desk: Desk, request_: EditRequest, note: str) -> None:
    staged = desk.stage(request_)
    assert staged.proposal is None
    assert staged.notes[0].endswith(note)


def test_a_file_is_overwritten_where_that_is_asked_for(desk: Desk) -> None:
    (desk.root / "b.txt").write_bytes(b"\xef\xbb\xbfb\r\n")
    desk.decide(desk.staged(CreateFile("b.txt", "new\nlines\n", on_exists="overwrite")))
    assert (desk.root / "b.txt").read_bytes() == b"\xef\xbb\xbfnew\r\nlines\r\n"


PROGRAM = """
import os, sys
from pathlib import Path
from support.edit_desk import Desk
from callboard.actors.edits.planning import CodeEdit, EditCode

what, folder = sys.argv[1], Path(sys.argv[2])
if os.getuid() == 0:  # for whom nothing is read-only
    for each in (folder, *folder.rglob("*")):
        os.chown(each, 65534, 65534)
    os.seteuid(65534)
desk = Desk(folder / "work", folder / "state")
edits = CodeEdit("A", file="a.txt", old_text="a"), CodeEdit("B", file="sub/b.txt", old_text="b")
known = desk.staged(EditCode(edits, {}))
if what == "folder":
    (folder / "work" / "sub").chmod(0o555)
else:
    (folder / "work" / "sub" / "b.txt").chmod(0o444)
done = desk.decide(known)[0]
assert not desk.leftovers()
sys.stdout.write(f"{done.state}: {done.reason}")
"""


@pytest.mark.parametrize(
    ("what", "told"),
    [("folder", "Permission denied"), ("file", "b.txt is read-only")],
    ids=["read-only-folder", "read-only-file"],
)
def test_what_cannot_be_written_leaves_all_files_as_they_were(what: str, told: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "work" / "sub").mkdir(parents=True)
        (folder / "work" / "a.txt").write_text("a\n")
        (folder / "work" / "sub" / "b.txt").write_text("b\n")
        path = os.pathsep.join((os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[2])))
        environment = {**os.environ, "PYTHONPATH": path}
        command = [sys.executable, "-c", PROGRAM, what, name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
        assert done.stdout.startswith("pending: approved, but it could not be applied: "), done
        assert told in done.stdout
        assert (folder / "work" / "a.txt").read_text() == "a\n"
        assert (folder / "work" / "sub" / "b.txt").read_text() == "b\n"


def test_a_full_disk_leaves_all_files_as_they_were(tmp_path: Path) -> None:
    disk = tmp_path / "work"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        (disk / "a.txt").write_text("a\n")
        (disk / "b.txt").write_text("b\n")
        desk = Desk(disk, tmp_path / "state")
        new = "x" * 400_000
        files = tuple(CodeEdit(new, file=name, old_text=old) for name, old in (("a.txt", "a"), ("b.txt", "b")))
        known = desk.staged(EditCode(files, {}))
        (disk / "filler").write_bytes(bytes(500_000))
        done = desk.decide(known)[0]
        assert done.state is ProposalState.PENDING
        assert "No space left on device" in done.reason
        assert [(disk / name).read_text() for name in ("a.txt", "b.txt")] == ["a\n", "b\n"]
        assert not desk.leftovers()
        (disk / "filler").unlink()
        assert desk.decide(known)[0].state is ProposalState.APPLIED
        assert [(disk / name).stat().st_size for name in ("a.txt", "b.txt")] == [400_001] * 2
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
