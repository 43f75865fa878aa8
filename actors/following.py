"""Following: the feed of any request of a runtime or its journal, for any number of followers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from callboard.actors import kernel
from callboard.actors.journal.journal_records import RequestLog
from callboard.actors.requests.backstop import Watch
from callboard.actors.requests.feed_positions import END, Position, comes_after
from callboard.actors.requests.outputs import OutputType
from callboard.actors.requests.recorded_feed import Item, recorded_items
from callboard.actors.requests.recorded_reply import recorded_reply
from callboard.actors.requests.replies import Answer
from callboard.actors.requests.request_feed import RECORDED_AGAIN, FeedReader, Followed, FollowerTooSlow, RequestFeed
from callboard.actors.requests.session_messages import ReadAlong, Subscriber
from callboard.protocol.errors import RuntimeFailure, UsageError
from callboard.protocol.ids import RequestId
from callboard.protocol.prompt_tokens import estimate_tokens
from callboard.providers.tokenizers import counter_for

if TYPE_CHECKING:
    from callboard.actors.running import StartedRequest, StartedRuntime

#: A session is added a feed within milliseconds; a wait this long means that something holds the loop.
READ_ALONG_SECONDS: Final = 5.0


class Following:
    """Follows requests of a runtime that runs."""

    def __init__(self, running: StartedRuntime, outputs: Mapping[str, OutputType[object]]) -> None:
        self._running = running
        self._outputs = outputs

    def feed(self, answer: Answer[object], beside: Subscriber) -> RequestFeed:
        """For one request."""
        running = self._running
        return RequestFeed(answer, running.process_name, has_journal=running.outbox is not None, beside=beside)

    async def follow(self, request_id: RequestId, after: Position) -> AsyncIterator[Followed]:
        """See Runtime.follow."""
        feed = await self._feed_of(request_id)
        if feed is None:
            async for each in self._recorded(request_id, after):
                yield each
            return
        reader = feed.reader(after)
        last = after
        history: tuple[Item, ...] = ()
        if reader is None:
            kept_from, reader = feed.reader_of_kept()
            try:
                history = await self._history(request_id, after, kept_from, begins=kept_from == feed.begins)
            except BaseException:
                reader.leave()
                raise
        watch = Watch(feed.answer.backstop, feed.answer.expire)
        try:
            if after.is_partial and (history or after.process != feed.process):
                yield _restarted(after, feed.process)
            for last, item in history:
                yield Followed(str(last), item)
            ended = False
            while not ended:
                ended = await reader.wait()
                if ended:
                    watch.cancel()
                while found := _taken(reader, last):
                    for last, item in found:
                        yield Followed(str(last), item)
            if last != END:
                yield Followed(str(END), feed.answer.future.result())
        finally:
            watch.cancel()
            reader.leave()

    async def _feed_of(self, request_id: RequestId) -> RequestFeed | None:
        running = self._running
        opened = running.requests.get(request_id)
        if opened is None:
            return running.ended_feeds.find(request_id, running.system.now())
        if opened.feed is not None:
            return opened.feed
        return await asyncio.to_thread(self._added, opened)

    def _added(self, opened: StartedRequest[object]) -> RequestFeed | None:
        """A feed to a request that runs without one. None: it has ended meanwhile."""
        with self._running.adding_feeds:
            if opened.feed is not None or opened.ref is None:
                return opened.feed
            feed = self.feed(opened.answer, opened.subscriber)
            with self._running.asking():
                try:
                    opened.ref.ask(ReadAlong(feed, feed.begins_at), READ_ALONG_SECONDS)
                except (kernel.ActorDeadError, kernel.Rejected):
                    return None
            opened.feed = feed
            return feed

    # -- from the journal

    async def _history(
        self, request_id: RequestId, after: Position, up_to: Position, *, begins: bool
    ) -> tuple[Item, ...]:
        """What comes behind `after`, up to where a feed is kept; `begins`: all of it is."""
        if self._running.records is None and begins and after == Position():
            return ()
        if up_to.is_partial or self._running.records is None:
            raise FollowerTooSlow("what comes behind this id is no longer kept in memory, and is not in a journal yet")
        log = await asyncio.to_thread(self._log, request_id)
        items = await asyncio.to_thread(self._items, log)
        return tuple(
            (position, item)
            for position, item in items
            if comes_after(position, after) and position.durable <= up_to.durable
        )

    async def _recorded(self, request_id: RequestId, after: Position) -> AsyncIterator[Followed]:
        """A request that does not run here."""
        log = await asyncio.to_thread(self._log, request_id)
        is_partial = after.is_partial
        is_from_start = after == Position()
        for position, item in await asyncio.to_thread(self._items, log) if log.records or is_from_start else ():
            if not comes_after(position, after):
                continue
            if is_partial:
                is_partial = False
                yield _restarted(after, self._running.process_name)
            yield Followed(str(position), item)
        if log.end is None:
            left = self._running.left_open.get(log.request_id)
            why = left.waits_for if left is not None else "another process has it"
            raise UsageError(f"the request {request_id!r} has not ended, and does not run here: {why}")
        if comes_after(END, after):
            yield Followed(str(END), recorded_reply(log, log.end, self._outputs))

    def _log(self, request_id: RequestId) -> RequestLog:
        records = self._running.records
        log = records.written_request(request_id) if records is not None else None
        if log is None:
            where = "its journal" if records is not None else "its memory (it has no journal)"
            raise UsageError(f"neither this runtime nor {where} has a request with the id {request_id!r}")
        if log.damage:
            raise RuntimeFailure(f"the record of the request is damaged: {log.damage}")
        return log

    def _items(self, log: RequestLog) -> list[Item]:
        count_tokens = counter_for(log.begins.model) if log.counter else estimate_tokens
        return list(recorded_items(log, count_tokens, self._running.system.now() - time.time()))


def _restarted(after: Position, process: str) -> Followed:
    """For a follower that has seen a part of a turn which it now reads from its beginning."""
    return Followed(str(replace(after.durable, process=process)), RECORDED_AGAIN)


def _taken(reader: FeedReader, last: Position) -> list[Item]:
    """What it reads next; [] where it has read all. Raises FollowerTooSlow."""
    found = reader.take()
    if found is None:
        raise FollowerTooSlow(
            f"this follower has left too much unread; the request goes on: follow it again with after={str(last)!r}"
        )
    return found
