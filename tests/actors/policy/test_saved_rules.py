"""Answers that count always: exact, the user's own, and never from inside a workspace."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from callboard import UsageError
from callboard.actors.policy.saved_rules import MAX_RULES, RULES_FILE, SavedRules
from callboard.protocol.commands import AskApproval
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.policy import Access, AccessKind
from callboard.protocol.tools import Decision, Risk

TAG = Tag(RequestId("r"), MessageId("m"), 1, CallId("c"))
WRITE = ToolName("write")


def write_to(path: str, kind: AccessKind = AccessKind.WRITE) -> Access:
    return Access(kind, path, "path")


def question(accesses: Iterable[Access] = (), arguments: str = "{}", name: str = "write") -> AskApproval:
    return AskApproval(TAG, ToolName(name), arguments, Risk.WRITE, accesses=tuple(accesses))


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    config, workspace = tmp_path / "config", tmp_path / "work"
    workspace.mkdir()
    return config, workspace


@pytest.fixture
def saved(places: tuple[Path, Path]) -> SavedRules:
    return SavedRules(*places)


def decided(saved: SavedRules, *accesses: Access, arguments: str = "{}", tool: str = "write") -> Decision | None:
    judgement = saved.judge(ToolName(tool), arguments, accesses)
    return judgement.decision if judgement is not None else None


def test_an_answer_counts_in_every_later_runtime_of_that_workspace(
    places: tuple[Path, Path], saved: SavedRules
) -> None:
    saved.remember(question([write_to("a.txt")]), True)
    saved.remember(question([write_to("b.txt")]), False)
    again = SavedRules(*places)
    assert decided(again, write_to("a.txt")) is Decision.ALLOW
    assert decided(again, write_to("b.txt")) is Decision.DENY
    judgement = again.judge(WRITE, "{}", [write_to("a.txt")])
    assert judgement is not None
    assert judgement.rule == "an answer that counts always allows write (write)", "no path: a log and a span hold it"
    (places[1] / "inner").mkdir()
    assert decided(SavedRules(places[0], places[1] / "inner"), write_to("a.txt")) is None
    assert decided(SavedRules(places[0], None), write_to("a.txt")) is None


@pytest.mark.parametrize(
    ("accesses", "tool"),
    [
        ([write_to("b.txt")], "write"),
        ([write_to("a.txt"), write_to("b.txt")], "write"),
        ([write_to("a.txt", AccessKind.DELETE)], "write"),
        ([write_to("a.txt")], "erase"),
        ([], "write"),
        ([write_to("*")], "write"),
        ([write_to("a?txt")], "write"),
        ([write_to("A.txt")], "write"),
    ],
)
def test_nothing_else_is_covered(saved: SavedRules, accesses: list[Access], tool: str) -> None:
    saved.remember(question([write_to("a.txt")]), True)
    assert decided(saved, *accesses, tool=tool) is None


@pytest.mark.parametrize("pattern", ["*", "a*", "a[12].txt", "**/x", "?"])
def test_what_looks_like_a_pattern_covers_itself_alone(saved: SavedRules, pattern: str) -> None:
    saved.remember(question([write_to(pattern)]), True)
    assert decided(saved, write_to(pattern)) is Decision.ALLOW
    assert decided(saved, write_to("a1.txt")) is None
    saved.remember(question([Access(AccessKind.COMMAND, f"ls {pattern}")], name="run"), True)
    assert decided(saved, Access(AccessKind.COMMAND, f"ls {pattern}"), tool="run") is Decision.ALLOW
    assert decided(saved, Access(AccessKind.COMMAND, "ls a1.txt"), tool="run") is None


@pytest.mark.parametrize("spelt", ["./a.txt", "x/../a.txt", "ABSOLUTE"])
def test_another_spelling_of_the_same_path_is_the_same_path(
    places: tuple[Path, Path], saved: SavedRules, spelt: str
) -> None:
    saved.remember(question([write_to("a.txt")]), True)
    assert decided(saved, write_to(str(places[1] / "a.txt") if spelt == "ABSOLUTE" else spelt)) is Decision.ALLOW


def test_a_path_that_leads_elsewhere_by_now_is_not_covered(places: tuple[Path, Path], saved: SavedRules) -> None:
    _, workspace = places
    (workspace / "a.txt").write_text("x")
    saved.remember(question([write_to("a.txt")]), True)
    (workspace / "a.txt").unlink()
    (workspace / "a.txt").symlink_to("/etc/passwd")
    assert decided(saved, write_to("a.txt")) is None


def test_a_tool_that_does_not_say_what_it_touches_gets_a_rule_for_its_arguments(saved: SavedRules) -> None:
    saved.remember(question(arguments='{"b": 1, "a": 2}'), True)
    assert decided(saved, arguments='{"a":2,"b":1}') is Decision.ALLOW
    assert decided(saved, arguments='{"a":2,"b":2}') is None
    assert decided(saved, arguments='{"a":2}') is None


def test_a_later_answer_takes_the_place_of_an_earlier_one(saved: SavedRules) -> None:
    saved.remember(question([write_to("a.txt")]), True)
    saved.remember(question([write_to("a.txt")]), False)
    assert decided(saved, write_to("a.txt")) is Decision.DENY
    assert len(saved.rules()) == 1


def test_a_denial_in_the_file_comes_before_an_approval(places: tuple[Path, Path], saved: SavedRules) -> None:
    saved.remember(question([write_to("a.txt")]), True)
    text = saved.path.read_text()
    one = text[text.index("{\n        ") : text.rindex("]")].rstrip()
    saved.path.write_text(text.replace(one, f"{one},\n{one.replace('allow', 'deny')}"))
    again = SavedRules(*places)
    assert [rule.decision for rule in again.rules()] == [Decision.ALLOW, Decision.DENY]
    assert decided(again, write_to("a.txt")) is Decision.DENY


def test_rules_are_listed_and_removed_by_their_numbers(saved: SavedRules) -> None:
    for name in "abc":
        saved.remember(question([write_to(name)]), True)
    assert saved.remove(2).touches[0].value.endswith("/b")
    assert [rule.touches[0].value[-1] for rule in saved.rules()] == ["a", "c"]
    for number in (0, 3, -1):
        with pytest.raises(UsageError, match="there is no saved rule"):
            saved.remove(number)
    saved.remove(1)
    saved.remove(1)
    assert saved.rules() == ()


def test_only_its_owner_can_read_or_write_the_file(places: tuple[Path, Path], saved: SavedRules) -> None:
    old = os.umask(0)
    try:
        saved.remember(question([write_to("a.txt")]), True)
    finally:
        os.umask(old)
    assert stat.S_IMODE(saved.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(places[0].stat().st_mode) == 0o700
    assert [each.name for each in places[0].iterdir() if not each.name.endswith(".lock")] == [RULES_FILE]


def state_of(path: Path) -> tuple[int, ...]:
    found = path.lstat()
    return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.chmod(0o666),
        lambda path: path.write_text("{"),
        lambda path: path.write_text('{"version": 2, "workspaces": {}}'),
        lambda path: path.write_text('{"version": 1, "workspaces": {"": [{"tool": "x", "decision": "ask"}]}}'),
        lambda path: path.write_bytes(b" " * (4 * 1024 * 1024 + 1)),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), path.symlink_to("/dev/null")),
        lambda path: (path.unlink(), os.mkfifo(path)),
    ],
    ids=["writable", "cut", "version", "ask", "huge", "folder", "link", "pipe"],
)
def test_a_file_that_cannot_be_trusted_or_read_counts_for_nothing_and_is_left_as_it_is(
    places: tuple[Path, Path], saved: SavedRules, spoil: object
) -> None:
    saved.remember(question([write_to("a.txt")]), True)
    assert callable(spoil)
    spoil(saved.path)
    before = state_of(saved.path)
    again = SavedRules(*places)
    with pytest.raises(UsageError, match="do not count"):
        decided(again, write_to("a.txt"))
    with pytest.raises(UsageError, match="do not count"):
        again.remember(question([write_to("b.txt")]), True)
    assert state_of(saved.path) == before


def test_rules_inside_the_workspace_neither_count_nor_are_written(tmp_path: Path) -> None:
    outside = SavedRules(tmp_path / "work" / ".callboard", tmp_path / "else")
    outside.remember(question([write_to("a.txt")]), True)
    inside = SavedRules(tmp_path / "work" / ".callboard", tmp_path / "work")
    assert decided(inside, write_to("a.txt")) is None
    with pytest.raises(UsageError, match="inside the workspace"):
        inside.remember(question([write_to("a.txt")]), True)
    link = tmp_path / "config"
    link.symlink_to(tmp_path / "work" / ".callboard")
    assert decided(SavedRules(link, tmp_path / "work"), write_to("a.txt")) is None


def test_a_way_through_the_workspace_by_a_link_counts_as_inside(tmp_path: Path) -> None:
    workspace, config = tmp_path / "work", tmp_path / "config"
    for folder in (workspace, config):
        folder.mkdir()
    SavedRules(config, workspace).remember(question([write_to("a.txt")]), True)
    (workspace / "link").symlink_to(config)  # a tool may turn it elsewhere
    through = SavedRules(workspace / "link", workspace)
    assert decided(through, write_to("a.txt")) is None
    with pytest.raises(UsageError, match="inside the workspace"):
        through.remember(question([write_to("b.txt")]), True)


def test_a_link_in_the_path_of_the_rules_that_is_turned_elsewhere_leads_nowhere(tmp_path: Path) -> None:
    workspace, kept, other, link = (tmp_path / name for name in ("work", "kept", "other", "link"))
    for folder in (workspace, kept, other):
        folder.mkdir()
    SavedRules(other, workspace).remember(question([write_to("a.txt")]), True)
    before = (other / RULES_FILE).read_text()
    link.symlink_to(kept)
    saved = SavedRules(link, workspace)
    saved.remember(question([write_to("a.txt")]), False)
    link.unlink()
    link.symlink_to(other)
    assert decided(saved, write_to("a.txt")) is Decision.DENY
    saved.remember(question([write_to("b.txt")]), False)
    assert (other / RULES_FILE).read_text() == before
    assert decided(SavedRules(kept, workspace), write_to("b.txt")) is Decision.DENY
    kept.rename(tmp_path / "away")
    kept.symlink_to(other)
    with pytest.raises(UsageError, match="do not count"):
        saved.rules()
    with pytest.raises(UsageError, match="do not count"):
        saved.remember(question([write_to("c.txt")]), True)
    assert (other / RULES_FILE).read_text() == before


def test_the_mode_that_the_file_was_given_is_kept_and_nothing_is_left_beside_it(
    places: tuple[Path, Path], saved: SavedRules
) -> None:
    saved.remember(question([write_to("a.txt")]), True)
    saved.path.chmod(0o640)
    saved.remember(question([write_to("b.txt")]), True)
    assert stat.S_IMODE(saved.path.stat().st_mode) == 0o640
    assert sorted(each.name for each in places[0].iterdir()) == [RULES_FILE, f"{RULES_FILE}.lock"]


def test_a_path_that_is_none_is_not_saved(saved: SavedRules) -> None:
    with pytest.raises(UsageError, match="is no path"):
        saved.remember(question([write_to("a\0b")]), True)


def test_there_is_a_limit(saved: SavedRules, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callboard.actors.policy.saved_rules.MAX_RULES", 3)
    assert MAX_RULES > 3
    for number in range(3):
        saved.remember(question([write_to(str(number))]), True)
    with pytest.raises(UsageError, match="remove some"):
        saved.remember(question([write_to("x")]), True)
    saved.remember(question([write_to("1")]), False)


def test_answers_that_are_saved_at_the_same_time_are_all_kept(places: tuple[Path, Path]) -> None:
    def remember(name: str) -> None:
        SavedRules(*places).remember(question([write_to(name)]), True)

    threads = [threading.Thread(target=remember, args=(str(number),)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(SavedRules(*places).rules()) == 12


def test_which_tools_a_saved_rule_may_deny_is_known_without_a_look_and_in_doubt_it_is_all(
    places: tuple[Path, Path], saved: SavedRules
) -> None:
    saved.remember(question(name="keeps"), True)
    saved.remember(question(name="drops"), False)
    for each in (saved, SavedRules(*places)):
        assert [each.may_deny(ToolName(name)) for name in ("keeps", "drops")] == [False, True]
    saved.remove(2)
    saved.rules()
    assert not saved.may_deny(ToolName("drops"))
    saved.path.write_text("{")
    assert SavedRules(*places).may_deny(ToolName("any")), "a file that cannot be read allows nothing"
    assert not SavedRules(places[1], places[1]).may_deny(ToolName("any")), "a file in the workspace does not count"
