"""The file of a daemon's tokens: each change of it is seen; and the streams of tokens that are no longer there end."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.owners import NOBODY, needs_root, run_as

from callboard.actors.daemon import access_tokens
from callboard.actors.daemon.access_tokens import AccessTokens, Scope, given_token
from callboard.actors.daemon.open_streams import OpenStreams
from callboard.actors.daemon.server_events import EventStream
from callboard.protocol.errors import UsageError


def test_a_removal_is_seen_though_the_file_has_the_same_time(tmp_path: Path) -> None:
    here, there = (AccessTokens(tmp_path / "tokens.json") for _ in range(2))
    (kept, _), (removed, secret) = (here.make(Scope.USE, "default") for _ in range(2))
    assert there.find(secret) == removed
    before = os.stat(here.path)
    here.remove(removed.id)
    os.utime(here.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert there.find(secret) is None
    assert there.tokens == (kept,)


def test_removed_tokens_are_known_by_name_but_not_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_tokens, "MAX_REMOVED", 2)
    tokens = AccessTokens(tmp_path / "tokens.json")
    made = [tokens.make(Scope.USE, "default") for _ in range(4)]
    for token, _ in made:
        tokens.remove(token.id)
        tokens.look()
    assert [tokens.removed(secret) for _, secret in made] == [None, None, made[2][0], made[3][0]]


def others_may_read(path: Path) -> None:
    path.chmod(0o644)


def no_json(path: Path) -> None:
    path.write_text('{"tokens": [')


def no_tokens(path: Path) -> None:
    path.write_text('{"tokens": {"a": 1}}')


def another_scope(path: Path) -> None:
    path.write_text(path.read_text().replace('"use"', '"all"'))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_loop_of_links(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    "spoil",
    [others_may_read, no_json, no_tokens, another_scope, a_folder, a_loop_of_links],
    ids=lambda each: each.__name__,
)
def test_of_a_file_that_cannot_be_read_no_token_counts_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], object]
) -> None:
    given = given_token("x" * 40, "default")
    tokens = AccessTokens(tmp_path / "tokens.json", [given])
    made, secret = tokens.make(Scope.USE, "default")
    kept = tokens.path.read_text()
    spoil(tokens.path)
    for _ in range(3):
        assert tokens.find(secret) is None
        assert tokens.find("x" * 40) == given  # it is not of the file
    assert tokens.fault
    assert [(each.levelname, "no token of the file counts" in each.message) for each in caplog.records] == [
        ("ERROR", True)
    ]
    with pytest.raises(UsageError):
        tokens.reload()
    with pytest.raises(UsageError):
        AccessTokens(tokens.path)
    if tokens.path.is_dir():
        tokens.path.rmdir()
    tokens.path.unlink(missing_ok=True)
    tokens.path.write_text(kept)
    tokens.path.chmod(0o600)
    assert tokens.find(secret) == made
    assert not tokens.fault


@needs_root
def test_tokens_that_root_makes_and_removes_are_those_of_the_daemons_user(tmp_path: Path) -> None:
    folder = tmp_path / "daemon"
    folder.mkdir(mode=0o700)
    os.chown(folder, NOBODY, NOBODY)
    by_root = AccessTokens(folder / "tokens.json")
    (kept, first), (removed, second) = (by_root.make(Scope.USE, "default") for _ in range(2))
    by_root.remove(removed.id)

    def as_daemon() -> None:
        tokens = AccessTokens(by_root.path)
        assert tokens.find(first) == kept
        assert tokens.find(second) is None
        made, third = tokens.make(Scope.ADMIN, "default")
        assert tokens.find(third) == made

    run_as(NOBODY, as_daemon, folder)
    by_root.remove(kept.id)
    found = by_root.path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (NOBODY, NOBODY, 0o600)
    assert {each.stat().st_uid for each in folder.iterdir()} == {NOBODY}


@needs_root
def test_a_file_of_tokens_that_the_daemon_may_not_read_has_none_for_it(tmp_path: Path) -> None:
    folder = tmp_path / "daemon"
    folder.mkdir(mode=0o755)
    tokens = AccessTokens(folder / "tokens.json")
    _, secret = tokens.make(Scope.USE, "default")
    tokens.path.chmod(0o644)

    def as_daemon() -> None:
        tokens.look()
        assert tokens.find(secret) is None
        assert "Permission denied" in tokens.fault

    tokens.path.chmod(0o600)
    tokens.look()
    os.utime(tokens.path)
    run_as(NOBODY, as_daemon, folder)


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "tokens.json").symlink_to("kept/tokens.json")
    tokens = AccessTokens(tmp_path / "tokens.json")
    made, secret = tokens.make(Scope.USE, "default")
    assert tokens.find(secret) == made
    assert tokens.path.is_symlink()
    assert (tmp_path / "kept/tokens.json").is_file()


async def nothing() -> AsyncIterator[bytes]:
    """A source of a stream."""
    yield b""


class Stream(EventStream):
    """Notes that it was ended."""

    is_ended = False

    def end(self) -> None:
        self.is_ended = True


def test_streams_end_with_their_token_or_its_scope(tmp_path: Path) -> None:
    tokens, streams = AccessTokens(tmp_path / "tokens.json"), OpenStreams()
    kept, narrowed = (tokens.make(Scope.ADMIN, "default")[0] for _ in range(2))
    first, second = Stream(nothing()), Stream(nothing())
    with streams.held(kept, first), streams.held(narrowed, second):
        assert len(streams) == 2
        streams.end_others({kept, narrowed})
        assert not first.is_ended
        assert not second.is_ended
        streams.end_others({kept, replace(narrowed, scope=Scope.USE)})
        assert not first.is_ended
        assert second.is_ended
    assert len(streams) == 0
