"""The feeds of requests that have ended, kept for a while for followers whose connection was cut."""

from __future__ import annotations

import time
from collections import deque
from threading import Lock
from typing import Final

from callboard.actors.requests.request_feed import RequestFeed
from callboard.protocol.ids import RequestId

#: What feeds of ended requests may keep together, so that a follower whose connection was cut at the end reads on.
KEPT_FEEDS: Final = 1_000
KEPT_FEEDS_BYTES: Final = 64 * 1024 * 1024
KEPT_FEED_SECONDS: Final = 600.0


class EndedFeeds:
    """The feeds of requests that have ended, for a while: bounded in time, number and bytes."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._feeds: dict[RequestId, RequestFeed] = {}
        self._order: deque[tuple[float, RequestId, RequestFeed]] = deque()
        self._size_bytes = 0

    def add(self, request_id: RequestId, feed: RequestFeed, now: float) -> None:
        """Its request has ended."""
        with self._lock:
            self._feeds[request_id] = feed
            self._order.append((now, request_id, feed))
            self._size_bytes += feed.size_bytes
            self._forget(now)

    def find(self, request_id: RequestId, now: float) -> RequestFeed | None:
        """Of this request."""
        with self._lock:
            self._forget(now)
            return self._feeds.get(request_id)

    def _forget(self, now: float) -> None:
        order = self._order
        while order and (
            len(order) > KEPT_FEEDS or self._size_bytes > KEPT_FEEDS_BYTES or order[0][0] < now - KEPT_FEED_SECONDS
        ):
            _, request_id, feed = order.popleft()
            self._size_bytes -= feed.size_bytes
            if self._feeds.get(request_id) is feed:
                del self._feeds[request_id]


def process_name() -> str:
    """Of the process that streams, for the ids of what it streams: later ones have names that are ordered behind."""
    return f"{time.time_ns() // 1_000_000:012x}"[-12:]
