"""The plays of askers, followers and what a journal gives of a request: the real ones keep to the accounts, and planted
faults are found."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from callboard.actors.requests import read_earlier, recorded_feed, recorded_reply, replies, request_feed
from callboard.actors.requests.backstop import Backstop, Watch
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.ended_feeds import EndedFeeds
from callboard.actors.requests.joined_pieces import JoinedPieces
from callboard.actors.requests.replies import Answer, EventReader, Reply, Stream, StreamIterator, SyncStream
from callboard.actors.requests.request_feed import FeedReader, RequestFeed
from callboard.actors.testing.__main__ import main
from callboard.actors.testing.played_requests import Stage, play
from callboard.actors.testing.waiting_world import WaitsForEver, World

#: Crashes are what is played, and each is logged.
pytestmark = pytest.mark.usefixtures("quiet")

Patch = pytest.MonkeyPatch
SEEDS = 400
#: Seeds within which each planted fault is found.
MOST_SEEDS = 1_500


def test_askers_have_what_they_are_promised() -> None:
    assert [found for seed in range(SEEDS) for found in play(seed)] == []


def test_a_play_is_the_same_each_time() -> None:
    for seed in (3, 5, 8):
        one, other = Stage(seed), Stage(seed)
        assert one.play() == other.play() == []
        assert (one.got, one.over_at, one.settled_at) == (other.got, other.over_at, other.settled_at)


def test_the_command_plays_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plays", "requests", "--seeds", "4"]) == 0
    assert "requests: 4 plays, all as promised" in capsys.readouterr().out


def test_who_waits_for_nothing_is_told_so() -> None:
    world = World()
    lock = world.lock()
    assert lock.acquire()
    assert not lock.acquire(timeout=5.0)
    assert world.now == 1_005.0
    with pytest.raises(WaitsForEver):
        lock.acquire()
    world.at(world.now + 2.0, lock.release)
    assert lock.acquire()
    assert world.now == 1_007.0


def _without(owner: Any, name: str) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(owner, name, lambda *_, **__: None)


def _found_as(owner: Any, name: str, value: object) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(owner, name, value)


def _leaves_a_reply_half_open(patch: Patch) -> None:
    real = Answer.session_ended

    def ended(self: Any, down: Any, why: str = "") -> bool:
        turn = self._finish.open_turn if self._finish is not None else None
        self.conversation.leave_open(turn)
        return real(self, down, why)

    patch.setattr(Answer, "session_ended", ended)


def _a_second_reader_ends_it(patch: Patch) -> None:
    async def following(self: Any) -> Any:
        self._has_begun = True
        return await self._items.__anext__()

    real = Stream._items

    def items(self: Any) -> Any:
        async def read() -> Any:
            self._begin_reading()
            async for item in real(self):
                yield item

        return read()

    patch.setattr(StreamIterator, "__anext__", following)
    patch.setattr(Stream, "_items", items)


def _waits_without_end(patch: Patch) -> None:
    async def outlast(end: Any) -> None:
        await asyncio.wait({end})

    patch.setattr(replies, "outlast", outlast)


def _a_scope_cuts_the_waiting(patch: Patch) -> None:
    async def outlast(end: Any) -> None:
        await asyncio.wait({end}, timeout=replies.OVER_SECONDS)

    patch.setattr(replies, "outlast", outlast)


def _collected_on_any_thread(patch: Patch) -> None:
    real = Answer.wait_until_over
    patch.setattr(SyncStream, "__del__", lambda self: real(self.answer), raising=False)


def _all_progress(patch: Patch) -> None:
    patch.setattr(EventReader, "_forget_progress", lambda self, tag: self._unread and self._unread.pop())


def _last_failures_first(patch: Patch) -> None:
    real = Answer._reply
    patch.setattr(Answer, "_reply", lambda self, end: (self._failures.reverse(), real(self, end))[1])


def _looks_once(patch: Patch) -> None:
    def look(self: Any) -> None:
        if self._backstop.is_lost():
            self._lost()

    patch.setattr(Watch, "_look", look)


def _each_item_wakes(patch: Patch) -> None:
    real = Stream._notify

    def notify(self: Any) -> None:
        self._is_waking = False
        real(self)

    patch.setattr(Stream, "_notify", notify)


def _of_any_process(position: Any, given: Any) -> bool:
    return (position.durable, position.streamed) > (given.durable, given.streamed)


def _a_timer_ends_the_turn(patch: Patch) -> None:
    passed = request_feed.DeadlinePassed
    patch.setattr(request_feed, "_ENDS_TURN", (*request_feed._ENDS_TURN, passed))


def _each_message_is_searched(patch: Patch) -> None:
    patch.setattr(read_earlier, "_has", lambda message, words: True)


def _only_the_last_piece(patch: Patch) -> None:
    real = recorded_feed._streamed
    patch.setattr(recorded_feed, "_streamed", lambda _, event: real("", event))


PLANTED: dict[str, Callable[[Patch], None]] = {
    "a reply is late, and opens the turn of another": _leaves_a_reply_half_open,
    "a second reader ends the request": _a_second_reader_ends_it,
    "who leaves waits without end": _waits_without_end,
    "a scope cuts the waiting for the end": _a_scope_cuts_the_waiting,
    "the collector waits": _collected_on_any_thread,
    "any item is taken for progress": _all_progress,
    "failures are in another order": _last_failures_first,
    "who waits looks once": _looks_once,
    "each item wakes its reader": _each_item_wakes,
    "a dropped stream goes on": _without(EventReader, "drop"),
    "a conversation stays taken": _without(Conversation, "release"),
    "a deadline that moves is not heard of": _without(Backstop, "deadline_moved"),
    "an interrupted wake-up is the only one": _found_as(replies, "WAKE_UPS", 1),
    "a reply has no model": _found_as(Reply, "model", ""),
    "an id of another process counts": _found_as(request_feed, "comes_after", _of_any_process),
    "pieces are not joined": _without(RequestFeed, "_join"),
    "a joined piece weighs nothing": _found_as(JoinedPieces, "size_bytes", 0),
    "a follower that has left is waited for": _without(FeedReader, "leave"),
    "a timer that passes ends the turn": _a_timer_ends_the_turn,
    "ended feeds are kept for ever": _without(EndedFeeds, "_forget"),
    "every message has the words": _each_message_is_searched,
    "a recorded error is none": _found_as(recorded_reply, "error_of", lambda *_: None),
    "of what was cut the journal shows a part": _only_the_last_piece,
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of readers that wait for ever
@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(name: str, monkeypatch: Patch) -> None:
    PLANTED[name](monkeypatch)

    def goes_wrong(seed: int) -> bool:
        try:
            return bool(play(seed))
        except Exception:  # noqa: BLE001 - whatever it raises is found
            return True

    assert any(goes_wrong(seed) for seed in range(MOST_SEEDS))
    gc.collect()
