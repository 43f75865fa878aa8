"""Proposals are applied whole or not at all, keep what a file is, and compose or conflict."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from support.edit_desk import Desk

from callboard.actors.edits import proposal_store
from callboard.actors.edits.planning import ApplyPatch, CodeEdit, CreateFile, DeleteFile, EditCode, RenameFile
from callboard.actors.edits.proposals import ProposalState
from callboard.actors.opened_folders import OpenedFolders
from callboard.protocol.errors import ToolError, UsageError

PENDING, APPLIED, DENIED, STALE = (
    ProposalState.PENDING,
    ProposalState.APPLIED,
    ProposalState.DENIED,
    ProposalState.STALE,
)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    (tmp_path / "work").mkdir()
    return Desk(tmp_path / "work", tmp_path / "state")


def test_staging_touches_nothing_and_an_approval_applies(desk: Desk) -> None:
    (desk.root / "a.py").write_text("one\ntwo\nthree\n")
    known = desk.replace("a.py", "two", "TWO")
    assert (desk.root / "a.py").read_text() == "one\ntwo\nthree\n"
    (done,) = desk.decide(known)
    assert (done.state, done.by) == (APPLIED, "owner")
    assert (desk.root / "a.py").read_text() == "one\nTWO\nthree\n"
    assert desk.changed == 1
    assert [each.id for each in desk.heard] == [known]
    assert "-two\n+TWO\n" in done.diff
    assert not desk.leftovers()


def test_one_that_is_decided_after_many_later_ones_is_answered(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposal_store, "MAX_SETTLED", 3)
    (desk.root / "a.py").write_text("one\n")
    oldest, old = desk.staged(CreateFile("old.txt", "old\n")), desk.replace("a.py", "one", "1")
    for number in range(6):
        desk.decide(desk.staged(CreateFile(f"{number}.txt", "new\n")))
    (done,) = desk.decide(oldest)
    assert done.state is APPLIED
    assert desk.stage(DeleteFile("a.py")).stale == (old,)
    assert [each.id for each in desk.heard][-1] == old
    assert len(desk.states()) <= 3 + 3


def test_one_that_another_makes_stale_as_it_is_applied_is_told(desk: Desk) -> None:
    (desk.root / "a.py").write_text("one\ntwo\n")
    older = desk.replace("a.py", "one", "1")
    (desk.root / "a.py").write_text("one\ntwo\nthree\n")
    newer = desk.replace("a.py", "two", "2")
    desk.decide(newer)
    assert [(each.id, each.state) for each in desk.heard] == [(newer, APPLIED), (older, STALE)]


def test_a_denied_proposal_keeps_its_reason_and_changes_nothing(desk: Desk) -> None:
    (desk.root / "a.py").write_text("one\n")
    known = desk.replace("a.py", "one", "1")
    (done,) = desk.decide(known, approve=False, reason="not on a Friday")
    assert (done.state, done.reason) == (DENIED, "not on a Friday")
    assert desk.decide(known)[0].state is DENIED
    assert (desk.root / "a.py").read_text() == "one\n"


def test_all_that_are_pending_are_decided_together(desk: Desk) -> None:
    (desk.root / "a.py").write_text("one\ntwo\nthree\n")
    first, second = desk.replace("a.py", "one", "1\n1"), desk.replace("a.py", "three", "3")
    new = desk.staged(CreateFile("b/c.txt", "new\n"))
    assert [each.state for each in desk.decide()] == [APPLIED] * 3
    assert (desk.root / "a.py").read_text() == "1\n1\ntwo\n3\n"
    assert (desk.root / "b/c.txt").read_text() == "new\n"
    assert desk.states() == {first: APPLIED, second: APPLIED, new: APPLIED}


def test_proposals_survive_a_restart(desk: Desk) -> None:
    (desk.root / "a.py").write_text("one\n")
    known = desk.replace("a.py", "one", "1")
    desk.restart()
    assert desk.states() == {known: PENDING}
    desk.decide(known)
    assert (desk.root / "a.py").read_text() == "1\n"


def test_edits_of_one_file_compose_in_any_order_and_their_spans_shift(desk: Desk) -> None:
    (desk.root / "a.py").write_text("one\ntwo\nthree\n")
    first, second = desk.replace("a.py", "one", "a much longer line"), desk.replace("a.py", "three", "3")
    desk.decide(first)
    desk.restart()
    desk.decide(second)
    assert (desk.root / "a.py").read_text() == "a much longer line\ntwo\n3\n"


def test_the_older_of_two_overlapping_edits_becomes_stale(desk: Desk) -> None:
    (desk.root / "a.py").write_text("one\ntwo\nthree\n")
    older = desk.replace("a.py", "two\nthree", "2\n3")
    staged = desk.stage(EditCode((CodeEdit("ONE\nTWO", file="a.py", old_text="one\ntwo"),), {}))
    assert staged.stale == (older,)
    assert desk.states()[older] is STALE
    assert "both change the same lines" in desk.heard[-1].reason
    desk.decide()
    assert (desk.root / "a.py").read_text() == "ONE\nTWO\nthree\n"


def test_a_file_that_was_changed_meanwhile_is_left_alone(desk: Desk) -> None:
    (desk.root / "a.py").write_text("one\ntwo\nthree\n")
    known = desk.replace("a.py", "three", "3")
    (desk.root / "a.py").write_text("one\n2\nthree\n")
    (done,) = desk.decide(known)
    assert done.state is STALE
    assert "it was changed at lines 2-2" in done.reason
    assert (desk.root / "a.py").read_text() == "one\n2\nthree\n"


def test_a_file_that_is_gone_makes_a_proposal_stale(desk: Desk) -> None:
    (desk.root / "a.py").write_text("one\n")
    known = desk.replace("a.py", "one", "1")
    (desk.root / "a.py").unlink()
    (done,) = desk.decide(known)
    assert (done.state, (desk.root / "a.py").exists()) == (STALE, False)
    assert "no longer there" in done.reason


def test_one_changed_file_keeps_all_files_of_its_proposal_as_they_are(desk: Desk) -> None:
    for name in ("a", "b", "c"):
        (desk.root / name).write_text("one\n")
    edits = tuple(CodeEdit("1", file=name, old_text="one") for name in ("a", "b", "c"))
    known = desk.staged(EditCode(edits, {}))
    (desk.root / "c").write_text("changed\n")
    assert desk.decide(known)[0].state is STALE
    assert [(desk.root / name).read_text() for name in ("a", "b", "c")] == ["one\n", "one\n", "changed\n"]
    assert not desk.leftovers()


def test_an_edit_follows_a_rename_that_was_applied_before_it(desk: Desk) -> None:
    (desk.root / "a.py").write_text("one\ntwo\n")
    edit = desk.replace("a.py", "two", "2")
    desk.decide(desk.staged(RenameFile("a.py", "b.py")))
    desk.decide(edit)
    assert not (desk.root / "a.py").exists()
    assert (desk.root / "b.py").read_text() == "one\n2\n"


def test_a_deletion_makes_an_older_edit_stale(desk: Desk) -> None:
    (desk.root / "a.py").write_text("one\n")
    edit = desk.replace("a.py", "one", "1")
    staged = desk.stage(DeleteFile("a.py"))
    assert staged.stale == (edit,)
    desk.decide()
    assert not (desk.root / "a.py").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"one\r\ntwo\r\nthree\r\n", b"one\r\nA\r\nB\r\nthree\r\n"),
        (b"\xef\xbb\xbfone\ntwo\nthree", b"\xef\xbb\xbfone\nA\nB\nthree"),
        ("one\ntwo\nthréé\n".encode("utf-16"), "one\nA\nB\nthréé\n".encode("utf-16")),
        ("eins\ntwo\nzwölf Männer\n".encode("cp1252"), "eins\nA\nB\nzwölf Männer\n".encode("cp1252")),
    ],
    ids=["crlf", "mark", "utf-16", "cp1252"],
)
def test_line_ends_byte_order_mark_and_encoding_are_kept(desk: Desk, before: bytes, after: bytes) -> None:
    (desk.root / "a.txt").write_bytes(before)
    desk.decide(desk.replace("a.txt", "two\n", "A\nB\n"))
    assert (desk.root / "a.txt").read_bytes() == after


def test_the_mode_is_kept_and_a_link_is_followed_to_its_file(desk: Desk) -> None:
    (desk.root / "tool.sh").write_text("echo one\n")
    (desk.root / "tool.sh").chmod(0o750)
    (desk.root / "link.sh").symlink_to("tool.sh")
    desk.decide(desk.replace("link.sh", "one", "two"))
    assert (desk.root / "link.sh").is_symlink()
    assert (desk.root / "tool.sh").read_text() == "echo two\n"
    assert stat.S_IMODE((desk.root / "tool.sh").stat().st_mode) == 0o750


def test_a_link_put_into_the_path_meanwhile_leads_nowhere(desk: Desk, tmp_path: Path) -> None:
    (desk.root / "sub").mkdir()
    (tmp_path / "outside").mkdir()
    known = desk.staged(CreateFile("sub/new.txt", "x"))
    (desk.root / "sub").rmdir()
    (desk.root / "sub").symlink_to(tmp_path / "outside")
    assert desk.decide(known)[0].state is STALE
    assert not list((tmp_path / "outside").iterdir())


def test_the_owner_may_change_what_is_applied(desk: Desk) -> None:
    (desk.root / "a.py").write_text("one\n")
    known = desk.replace("a.py", "one", "1")
    (done,) = desk.decide(known, a__py="by hand\n")
    assert done.is_changed_by_owner
    assert "+by hand" in done.diff
    assert (desk.root / "a.py").read_text() == "by hand\n"
    other = desk.replace("a.py", "by hand", "2")
    with pytest.raises(UsageError, match=r"leaves no file .*b\.py; it has: a\.py"):
        desk.decide(other, b__py="x")
    assert desk.states()[other] is PENDING


def test_files_of_one_patch_change_places(desk: Desk) -> None:
    (desk.root / "a").write_text("A\n")
    (desk.root / "b").write_text("B\n")
    patch = "".join(
        f"diff --git a/{old} b/{new}\nsimilarity index 100%\nrename from {old}\nrename to {new}\n"
        for old, new in (("a", "b"), ("b", "a"))
    )
    desk.decide(desk.staged(ApplyPatch(patch)))
    assert ((desk.root / "a").read_text(), (desk.root / "b").read_text()) == ("B\n", "A\n")


def test_a_folder_in_the_way_is_said_and_the_proposal_stays(desk: Desk) -> None:
    known = desk.staged(CreateFile("new", "x"))
    (desk.root / "new").mkdir()
    (done,) = desk.decide(known)
    assert done.state is PENDING
    assert done.reason == f"approved, but it could not be applied: {desk.root / 'new'} is a folder"
    (desk.root / "new").rmdir()
    assert desk.decide(known)[0].state is APPLIED


def test_two_processes_work_on_one_workspace(desk: Desk, tmp_path: Path) -> None:
    (desk.root / "a.py").write_text("one\ntwo\n")
    other = Desk(desk.root, tmp_path / "state")
    first, second = desk.replace("a.py", "one", "1\n1"), other.replace("a.py", "two", "2")
    assert other.decide(first)[0].state is APPLIED
    assert desk.decide(second)[0].state is APPLIED
    assert desk.decide(first)[0].state is APPLIED
    assert (desk.root / "a.py").read_text() == "1\n1\n2\n"


def test_so_many_proposals_wait_and_no_more(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.actors.edits.proposal_store.MAX_PENDING", 2)
    desk.staged(CreateFile("a", "x"))
    desk.staged(CreateFile("b", "x"))
    with pytest.raises(UsageError, match="2 proposals wait for their owner"):
        desk.stage(CreateFile("c", "x"))


def test_an_unknown_id_is_said_and_changes_nothing(desk: Desk) -> None:
    known = desk.staged(CreateFile("a", "x"))
    with pytest.raises(UsageError, match="there is no proposal 'none'"):
        desk.decide(known, "none")
    assert desk.states() == {known: PENDING}


def test_secret_and_protected_files_are_not_edited(desk: Desk) -> None:
    for path in (".env", "sub/.callboardignore", "id_rsa", ".git/config", "../outside", "/etc/passwd"):
        with pytest.raises(ToolError) as caught:
            desk.stage(CreateFile(path, "x"))
        assert caught.value.field == "path"


def test_permissions_that_could_not_be_kept_on_the_disk_are_taken_back_too(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = desk.root / "a.sh"
    script.write_text("one\n")
    script.chmod(0o600)
    known = desk.staged(ApplyPatch("diff --git a/a.sh b/a.sh\nold mode 100644\nnew mode 100755\n"))
    rename, sync = OpenedFolders.rename, OpenedFolders.sync
    renamed = []

    def renames(self: OpenedFolders, path: str, to: str) -> None:
        renamed.append(to)
        rename(self, path, to)

    def fails_once_renamed(self: OpenedFolders, path: str) -> None:
        if len(renamed) == 1:
            renamed.append("failed")
            raise OSError(28, "No space left on device")
        sync(self, path)

    monkeypatch.setattr(OpenedFolders, "rename", renames)
    monkeypatch.setattr(OpenedFolders, "sync", fails_once_renamed)
    (left,) = desk.decide(known)
    assert (left.state, stat.S_IMODE(script.stat().st_mode)) == (PENDING, 0o600)
