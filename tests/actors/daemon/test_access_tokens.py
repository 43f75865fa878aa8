"""The file of a daemon's tokens: each change of it is seen; and the streams of tokens that are no longer there end."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec.structs import replace

from callboard.actors.daemon.access_tokens import AccessTokens, Scope
from callboard.actors.daemon.open_streams import OpenStreams
from callboard.actors.daemon.server_events import EventStream


def test_a_removal_is_seen_though_the_file_has_the_same_time(tmp_path: Path) -> None:
    here, there = (AccessTokens(tmp_path / "tokens.json") for _ in range(2))
    (kept, _), (removed, secret) = (here.make(Scope.USE, "default") for _ in range(2))
    assert there.find(secret) == removed
    before = os.stat(here.path)
    here.remove(removed.id)
    os.utime(here.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert there.find(secret) is None
    assert there.tokens == (kept,)


def test_a_file_that_others_could_read_counts_as_soon_as_they_cannot(tmp_path: Path) -> None:
    tokens = AccessTokens(tmp_path / "tokens.json")
    made, secret = tokens.make(Scope.USE, "default")
    tokens.path.write_text('{"tokens": []}')
    tokens.path.chmod(0o644)
    assert tokens.find(secret) == made  # those that were there before still count
    tokens.path.chmod(0o600)
    assert tokens.find(secret) is None


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
