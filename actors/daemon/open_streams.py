"""Streams that clients read, by the token that each was begun with: a token that is removed ends its own."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Container, Iterator

from callboard.actors.daemon.access_tokens import AccessToken
from callboard.actors.daemon.server_events import EventStream


class OpenStreams:
    """Those of one daemon."""

    def __init__(self) -> None:
        self._by_token: defaultdict[AccessToken, set[EventStream]] = defaultdict(set)

    @contextlib.contextmanager
    def held(self, token: AccessToken, stream: EventStream) -> Iterator[None]:
        """While the stream is open."""
        self._by_token[token].add(stream)
        try:
            yield
        finally:
            self._by_token[token].discard(stream)
            if not self._by_token[token]:
                del self._by_token[token]

    def end_others(self, valid: Container[AccessToken]) -> None:
        """End those of tokens that are not among these: also of one that now has another scope or tenant."""
        for token, streams in self._by_token.items():
            if token not in valid:
                for each in streams:
                    each.end()

    def __len__(self) -> int:
        return sum(map(len, self._by_token.values()))
