"""Streams that clients read, by the token that each was begun with: a token that is removed ends its own."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Container, Iterator

from callboard.actors.daemon.server_events import EventStream


class OpenStreams:
    """Those of one daemon."""

    def __init__(self) -> None:
        self._by_token: defaultdict[str, set[EventStream]] = defaultdict(set)

    @contextlib.contextmanager
    def held(self, token_id: str, stream: EventStream) -> Iterator[None]:
        """While the stream is open."""
        self._by_token[token_id].add(stream)
        try:
            yield
        finally:
            self._by_token[token_id].discard(stream)
            if not self._by_token[token_id]:
                del self._by_token[token_id]

    def end_others(self, valid: Container[str]) -> None:
        """End those of tokens that are not among these."""
        for token_id, streams in self._by_token.items():
            if token_id not in valid:
                for each in streams:
                    each.end()

    def __len__(self) -> int:
        return sum(map(len, self._by_token.values()))
