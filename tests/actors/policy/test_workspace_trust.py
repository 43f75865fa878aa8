"""Files inside a workspace count for nothing until the owner has agreed to their very content."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard import UsageError
from callboard.actors.policy.workspace_trust import (
    MAX_FILE_BYTES,
    MAX_TOOL_FILES,
    RULES,
    SERVERS,
    TOOLS,
    TRUST_FILE,
    FileState,
    WorkspaceTrust,
)


def write(workspace: Path, path: str, text: str = "x = 1\n") -> None:
    file = workspace / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def states(trust: WorkspaceTrust) -> dict[str, FileState]:
    return {file.path: file.state for file in trust.files()}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def trust(tmp_path: Path, workspace: Path) -> WorkspaceTrust:
    return WorkspaceTrust(tmp_path / "config", workspace)


def test_what_is_found_is_new_until_the_owner_agrees_and_then_in_every_process(
    tmp_path: Path, workspace: Path, trust: WorkspaceTrust
) -> None:
    assert trust.files() == ()
    for path in (RULES, SERVERS, f"{TOOLS}/b.py", f"{TOOLS}/a.py", f"{TOOLS}/no_tools.txt", "other.py"):
        write(workspace, path)
    assert states(trust) == dict.fromkeys((RULES, SERVERS, f"{TOOLS}/a.py", f"{TOOLS}/b.py"), FileState.NEW)
    trust.agree(trust.files())
    assert set(states(WorkspaceTrust(tmp_path / "config", workspace)).values()) == {FileState.AGREED}
    assert stat.S_IMODE((tmp_path / "config" / TRUST_FILE).stat().st_mode) == 0o600


def test_a_file_that_changes_or_comes_later_is_asked_about_and_the_others_are_not(
    workspace: Path, trust: WorkspaceTrust
) -> None:
    write(workspace, RULES)
    write(workspace, f"{TOOLS}/a.py")
    trust.agree(trust.files())
    write(workspace, f"{TOOLS}/a.py", "x = 2\n")
    write(workspace, f"{TOOLS}/b.py")
    assert states(trust) == {
        RULES: FileState.AGREED,
        f"{TOOLS}/a.py": FileState.CHANGED,
        f"{TOOLS}/b.py": FileState.NEW,
    }
    write(workspace, f"{TOOLS}/a.py")
    assert states(trust)[f"{TOOLS}/a.py"] is FileState.AGREED, "the content that was agreed to"


def test_agreement_is_to_what_was_read_and_not_to_what_is_there_by_then(workspace: Path, trust: WorkspaceTrust) -> None:
    write(workspace, RULES, "shown")
    seen = trust.files()
    write(workspace, RULES, "changed while a person was reading")
    trust.agree(seen)
    assert states(trust) == {RULES: FileState.CHANGED}


def test_the_same_files_in_another_workspace_are_new(tmp_path: Path, workspace: Path, trust: WorkspaceTrust) -> None:
    write(workspace, RULES)
    trust.agree(trust.files())
    other = tmp_path / "copy"
    write(other, RULES)
    assert states(WorkspaceTrust(tmp_path / "config", other)) == {RULES: FileState.NEW}
    link = tmp_path / "link"
    link.symlink_to(workspace)
    assert states(WorkspaceTrust(tmp_path / "config", link)) == {RULES: FileState.AGREED}


def test_agreements_can_be_taken_back(workspace: Path, trust: WorkspaceTrust) -> None:
    write(workspace, RULES)
    trust.agree(trust.files())
    trust.forget()
    assert states(trust) == {RULES: FileState.NEW}


def test_what_is_no_file_of_text_is_unusable_and_never_agreed_to(workspace: Path, trust: WorkspaceTrust) -> None:
    (workspace / ".callboard").mkdir()
    os.mkfifo(workspace / RULES)
    (workspace / SERVERS).symlink_to("nowhere")
    write(workspace, f"{TOOLS}/big.py", "#" * (MAX_FILE_BYTES + 1))
    (workspace / TOOLS / "folder.py").mkdir()
    assert set(states(trust).values()) == {FileState.UNUSABLE}
    assert all(file.fault for file in trust.files())
    trust.agree(trust.files())
    assert set(states(trust).values()) == {FileState.UNUSABLE}


def test_tool_files_beyond_the_bound_are_not_read_and_that_is_said(workspace: Path, trust: WorkspaceTrust) -> None:
    for number in range(MAX_TOOL_FILES + 3):
        write(workspace, f"{TOOLS}/t{number:03}.py")
    *read, last = trust.files()
    assert [file.path for file in read] == [f"{TOOLS}/t{number:03}.py" for number in range(MAX_TOOL_FILES)]
    assert (last.path, last.state) == (TOOLS, FileState.UNUSABLE)
    assert last.fault == "it holds 3 more than the 100 tool files that are read"


def test_an_agreement_inside_the_workspace_neither_counts_nor_is_written(tmp_path: Path, workspace: Path) -> None:
    write(workspace, RULES)
    elsewhere = WorkspaceTrust(workspace / ".callboard", tmp_path)
    inside = WorkspaceTrust(workspace / ".callboard", workspace)
    with pytest.raises(UsageError, match="inside the workspace"):
        inside.agree(inside.files())
    with pytest.raises(UsageError, match="inside the workspace"):
        elsewhere.agree(())
    forged = WorkspaceTrust(tmp_path / "config", workspace)
    forged.agree(forged.files())
    (tmp_path / "config" / TRUST_FILE).rename(workspace / ".callboard" / TRUST_FILE)
    assert states(inside) == {RULES: FileState.NEW}


def test_an_agreement_that_others_could_have_written_does_not_count(
    tmp_path: Path, workspace: Path, trust: WorkspaceTrust
) -> None:
    write(workspace, RULES)
    trust.agree(trust.files())
    (tmp_path / "config" / TRUST_FILE).chmod(0o622)
    with pytest.raises(UsageError, match="others can write it"):
        trust.files()


CONTENTS = st.sampled_from(["", "a", "b", "a\n"])


@settings(max_examples=30)
@given(steps=st.lists(st.tuples(st.sampled_from(["write", "agree", "forget"]), CONTENTS), max_size=12))
def test_a_file_counts_exactly_while_it_holds_the_content_that_was_last_agreed_to(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    base = tmp_path_factory.mktemp("trust")
    trust = WorkspaceTrust(base / "config", base)
    held, agreed = "", None
    write(base, RULES, held)
    outside = WorkspaceTrust(base.parent / f"{base.name}-config", base)
    for step, content in steps:
        if step == "write":
            held = content
            write(base, RULES, held)
        elif step == "agree":
            outside.agree(outside.files())
            agreed = held
        else:
            outside.forget()
            agreed = None
        assert outside.files()[0].counts is (agreed == held)
        assert not trust.files()[0].counts
