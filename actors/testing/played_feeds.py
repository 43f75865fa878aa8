"""The feed of a request and its followers, beside a list of what has come (feed_account.py); the feeds of requests that
have ended; and the looks of those who wait."""

from __future__ import annotations

import asyncio
import random
from asyncio.events import _set_running_loop
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.kernel import Down, ExitReason
from callboard.actors.requests import ended_feeds, request_feed
from callboard.actors.requests.backstop import Backstop
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.ended_feeds import EndedFeeds, process_name
from callboard.actors.requests.feed_positions import END, Position
from callboard.actors.requests.replies import Answer
from callboard.actors.requests.request_feed import FeedReader, RequestFeed
from callboard.actors.requests.session_messages import FeedStart
from callboard.actors.testing.feed_account import (
    JOINED,
    KEPT_BYTES,
    PROCESS,
    TAKEN,
    UNREAD_BYTES,
    FeedAccount,
    is_behind,
)
from callboard.actors.testing.request_accounts import Looks
from callboard.actors.testing.request_plans import NEVER, NO_ACTOR, TAG, Made
from callboard.actors.testing.waiting_world import World, WorldLoop, replaced, waiting_in
from callboard.protocol.commands import Finish, Outcome
from callboard.protocol.errors import UsageError
from callboard.protocol.model import CallPurpose, Usage

_LIMITS: Final = {
    "KEPT_BYTES": KEPT_BYTES, "MAX_UNREAD_BYTES": UNREAD_BYTES, "TAKEN_ITEMS": TAKEN, "JOINED_PIECES": JOINED,
}  # fmt: skip
_OTHER: Final = "ba9876543210"
_NO_IDS: Final = ("0", "00000001.0.00000", "00000001.3.000000", "00000001.1.000000-", "00000001.1.000000q", " ", 7)


class _Follower(Struct, eq=False):
    """One who follows, and how far it is."""

    reader: FeedReader
    at: int
    is_woken: bool = True
    is_waking: bool = False
    """Its loop was told to, and has not run since."""
    is_closed: bool = False
    """Its loop is."""
    is_gone: bool = False


class FeedPlay:
    """One feed."""

    def __init__(self, seed: int, loop: WorldLoop) -> None:
        self.rng = rng = random.Random(f"feed {seed}")
        self.loop = loop
        self.made = Made(rng)
        self.account = FeedAccount(rng.random() < 0.5)
        self.answer: Answer[Any] = Answer(Conversation(), TAG, 600.0)
        self.heard: list[object] = []
        self.told: list[object] = []
        self.feed = RequestFeed(self.answer, PROCESS, has_journal=self.account.has_journal, beside=self.heard.append)
        self.followers: list[_Follower] = []
        self.problems: list[str] = []
        self.ended = False
        self.closed = WorldLoop(loop.world)
        self.closed.close()
        if rng.random() < 0.4:
            number, asks_for = rng.choice((0, 7)), rng.choice((None, *CallPurpose))
            self.feed.begins_at(FeedStart(number, asks_for))
            self.account.begins_at(number, asks_for)
            self.same("where it begins", self.feed.begins, self.account.kept_from)

    def same(self, what: str, found: object, due: object) -> None:
        """Note what differs."""
        if found != due:
            self.problems.append(f"a feed: {what} is {found!r:.300}, due is {due!r:.300}")

    # -- deeds

    def show(self) -> None:
        """Some things."""
        for _ in range(self.rng.choice((1, 3))):
            seen = self.made.seen(0.0)
            self.told.append(seen)
            before = self.loop.wake_ups
            self.feed(seen)
            read = [each.at for each in self.followers if not each.is_gone]
            wakes = 0
            if self.account.takes(seen, read):
                wakes = self.wake()
            self.same("the number of wake-ups", self.loop.wake_ups - before, wakes)

    def wake(self) -> int:
        """All who wait; how many that costs a call."""
        there = [each for each in self.followers if not each.is_gone]
        count = sum(not (each.is_waking or each.is_closed) for each in there)
        for each in there:
            each.is_gone = each.is_closed  # the first try says so
            each.is_waking = each.is_woken = True
        return count

    def follow(self) -> None:
        """One more."""
        rng, account = self.rng, self.account
        known = [position for position, _ in account.came]
        after = rng.choice((Position(), END, *known[-9:], *known))
        after = replace(after, process=rng.choice((after.process, after.process and _OTHER)))
        self.same("an id that was read", Position.read(str(after)), after)
        is_closed = rng.random() < 0.1
        _set_running_loop(self.closed if is_closed else self.loop)
        try:
            reader = self.feed.reader(after)
        finally:
            _set_running_loop(self.loop)
        at = account.place_behind(after)
        self.same(f"whether all behind {after} is kept", reader is not None, at is not None)
        if reader is None:
            kept_from, reader = self.feed.reader_of_kept()
            self.same("from where it is kept", kept_from, account.kept_from)
            at, is_closed = account.first, False
        if at is not None:
            self.followers.append(_Follower(reader, at, is_closed=is_closed))

    def take(self) -> None:
        """One reads."""
        for each in self.rng.sample(self.followers, min(len(self.followers), 2)):
            due = self.account.taken(each.at)
            found = each.reader.take()
            self.same("what a follower reads", found, due)
            each.at += len(due or ())

    def leave(self) -> None:
        """One reads no more."""
        if self.followers and self.rng.random() < 0.4:
            each = self.followers.pop(self.rng.randrange(len(self.followers)))
            each.reader.leave()

    def end(self) -> None:
        """The request has ended."""
        if self.ended or self.rng.random() < 0.8:
            return
        self.ended = True
        before = self.loop.wake_ups
        self.answer(Finish(TAG, Outcome.ANSWERED, "", Usage(), 0.0, ()))
        self.answer.session_ended(Down(NO_ACTOR, ExitReason.NORMAL))
        self.same("the number of wake-ups at the end", self.loop.wake_ups - before, self.wake())

    async def wait(self) -> None:
        """Some look whether there is something to read."""
        await asyncio.sleep(0)
        for each in self.followers:
            each.is_waking = False
        for each in self.rng.sample(self.followers, min(len(self.followers), 2)):
            if each.is_closed:
                continue
            waiting = asyncio.ensure_future(each.reader.wait())
            for _ in range(4):
                await asyncio.sleep(0)
            self.same("whether a follower was woken", waiting.done(), each.is_woken)
            if waiting.done():
                self.same("whether it has ended", waiting.result(), self.ended)
            else:
                waiting.cancel()
            each.is_woken = False

    def compare(self) -> None:
        """What is kept."""
        feed, account = self.feed, self.account
        self.same("its size", feed.size_bytes, account.size_bytes)
        self.same("from where it is kept", feed.kept_from, account.kept_from)
        self.same("what others heard", (len(self.heard), self.heard[-3:]), (len(self.told), self.told[-3:]))

    async def play(self) -> list[str]:
        """Some deeds."""
        rng = self.rng
        deeds: tuple[Callable[[], None], ...] = (
            *(self.show,) * 6, self.follow, self.follow, self.take, self.take, self.leave, self.end,
        )  # fmt: skip
        for _ in range(rng.choice((10, 30))):
            rng.choice(deeds)()
            self.compare()
            if self.loop.wake_ups and rng.random() < 0.5:
                await self.wait()
            if self.problems:
                break
        came = self.account.came
        ids = [str(position) for position, _ in came]
        self.same("the order of ids as texts", sorted(ids), ids)
        self.same("the number of ids", len(set(ids)), len(ids))
        return self.problems


def play_feed(seed: int) -> list[str]:
    """A feed and its followers."""
    world = World()
    loop = WorldLoop(world)
    try:
        with waiting_in(world), replaced(request_feed, **_LIMITS):
            return loop.run_until_complete(FeedPlay(seed, loop).play())
    finally:
        loop.close()


def play_ids(seed: int) -> list[str]:
    """What is no id is refused."""
    rng = random.Random(f"id {seed}")
    text: Any = rng.choice(_NO_IDS)
    try:
        return [f"{text!r} is taken for the id {Position.read(text)}"]
    except UsageError:
        pass
    first = process_name()
    if len(first) != 12 or set(first) - set("0123456789abcdef") or process_name() < first:
        return [f"{first} is no name of a process, or the next one is before it"]
    return (
        [] if is_behind(END, Position(99_999_998, 2)) and Position.read("") == Position() else ["END is not behind all"]
    )


class _Ended(Struct):
    """A feed: what it keeps."""

    size_bytes: int


def play_ended(seed: int) -> list[str]:
    """The feeds of requests that have ended, beside a list of them."""
    rng = random.Random(f"ended {seed}")
    now, feeds = 50.0, EndedFeeds()
    kept: list[tuple[float, str, _Ended]] = []
    problems: list[str] = []
    with replaced(ended_feeds, KEPT_FEEDS=4, KEPT_FEEDS_BYTES=1_000, KEPT_FEED_SECONDS=100.0):
        for _ in range(20):
            now += rng.choice((0.0, 1.0, 50.0))
            name: Any = rng.choice("abcdef")
            is_added = rng.random() < 0.6
            if is_added:
                added: Any = _Ended(rng.choice((10, 300, 1_000, 1_001)) if rng.random() < 0.7 else 10)
                feeds.add(name, added, now)
                kept.append((now, name, added))
            while kept and (
                len(kept) > 4 or sum(each.size_bytes for _, _, each in kept) > 1_000 or kept[0][0] < now - 100.0
            ):
                kept.pop(0)
            if feeds._size_bytes != sum(each.size_bytes for _, _, each in kept) and is_added:
                problems.append(f"it keeps {feeds._size_bytes} bytes, due is {kept}")
            for each in "abcdef" if not is_added else name:
                last = [feed for _, known, feed in kept if known == each]
                found: Any = feeds.find(each, now)  # type: ignore[arg-type]
                if found is not (last[-1] if last else None):
                    problems.append(f"the feed of {each} is {found}, kept are {kept}")
    return problems[:1]


def play_looks(seed: int) -> list[str]:
    """Looks whether a request is lost, of one who comes at times, beside what is promised of them."""
    rng, world = random.Random(f"looks {seed}"), World()
    looks = Looks(world.now + 10.0, NEVER, rng.random() < 0.4)
    runs: list[Callable[[], object]] = []

    def post(run: Callable[[], object]) -> None:
        if looks.is_blocked and not world.is_over:
            runs.append(run)
        else:
            world.post(run)

    found: list[str] = []
    has_post = rng.random() < 0.8
    with waiting_in(world):
        backstop = Backstop(10.0, post if has_post else None)
        for _ in range(15):
            wait, due = backstop.look_seconds, looks.seconds(world.now)
            if abs(wait - due) > 1e-6:
                found.append(f"the next look is in {wait:g} s, due is {due:g}")
            deed = rng.choice(("look", "look", "look", "late", "early", "moves", "ends", "answers"))
            if deed == "moves":
                at = rng.choice((None, None, world.now + rng.choice((-7.0, 3.0, 30.0))))
                backstop.deadline_moved(at)
                looks.moved(at)
            elif deed == "ends" and rng.random() < 0.1 and has_post:
                world.is_over, looks.loop_ends_at = True, world.now
            elif deed == "answers" and runs:
                runs.pop()()
                looks.unanswered = 0
            elif deed in ("look", "late", "early"):
                world.sleep(due + {"look": 0.1, "late": 9.0, "early": -min(due, 0.2)}[deed])
                found += _looked(backstop, looks, world, has_post=has_post)
                if world.is_over and looks.deadline is None:
                    break  # it was lost
    return [f"one who waits: {each}" for each in found[:1]]


def _looked(backstop: Backstop, looks: Looks, world: World, *, has_post: bool) -> Iterator[str]:
    lost = backstop.is_lost()
    due = looks.is_lost(world.now) if has_post or looks.deadline is not None else False
    if lost != due:
        yield f"a look at {world.now:g} s finds the request lost: {lost}, and due is {due} ({looks})"
    world.sleep(0.0)


def play(seed: int) -> list[str]:
    """What is not as promised, in one play of each."""
    return [*play_feed(seed), *play_ids(seed), *play_ended(seed), *play_looks(seed)]
