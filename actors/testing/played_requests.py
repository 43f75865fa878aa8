"""What comes of a question, as askers meet it: they wait for the answer, or read its stream to the end, slowly, or
leave it in any way; beside an account of each (request_accounts.py). Its followers are played by played_feeds.py, what
a journal has of it by played_records.py.

    python -m callboard.actors.testing plays requests --seeds 1000

`play(seed)` says what is not as promised, one sentence each; the same for the same seed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import aclosing
from contextvars import copy_context
from functools import cache, partial
from typing import Any, Final

import anyio

from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.output_checks import CheckThreads, OutputChecker
from callboard.actors.requests.outputs import OutputType, output_type
from callboard.actors.requests.replies import Answer, Reply, Stream, SyncStream, Unheld
from callboard.actors.testing import played_feeds, played_records
from callboard.actors.testing.request_accounts import (
    FAILURES,
    UNREAD_BYTES,
    Account,
    Looks,
    cancelled,
    parts_amiss,
    told,
)
from callboard.actors.testing.request_plans import NEVER, REQUEST, TAG, planned
from callboard.actors.testing.waiting_world import (
    OTHER_THREAD,
    READERS_THREAD,
    WaitsForEver,
    World,
    WorldLoop,
    waiting_in,
)
from callboard.protocol.commands import Finish, Outcome, RecordStep
from callboard.protocol.errors import UsageError

#: Sums of virtual times, in seconds.
EPSILON: Final = 1e-6
#: Long after all that a play does.
_LATER: Final = 20_000.0
_THREADS: Final = CheckThreads()


@cache
def _numbers() -> OutputType[Any]:
    """What some of them ask for."""
    found = output_type(dict[str, list[int]])
    assert found is not None
    return found


class _Session:
    """Of the request: it shows what is planned, and is told to end."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.subscriber: Any = None
        self.has_finished = self.is_told = False
        self.cancels: list[tuple[float, str, str]] = []
        self.has_no_finish: bool | None = None
        """As `session_ended` has said."""

    def begin(self, subscriber: Any) -> None:
        """From now on."""
        plan, world = self.stage.plan, self.stage.world
        self.subscriber = subscriber
        for at, seen in plan.shown:
            world.at(world.now + at, partial(self._show, seen))
        if plan.ends_at != NEVER:
            world.at(world.now + plan.ends_at, partial(self._finish, plan.finish))

    def _show(self, seen: Any) -> None:
        stage = self.stage
        if self.has_finished:
            return
        before = stage.loop.wake_ups if stage.loop else 0
        for each in seen:
            if isinstance(each, RecordStep):
                stage.conversation.record(each.messages, REQUEST)
            else:
                self.subscriber(each)
        if stage.loop and stage.loop.wake_ups > before + 1 and not stage.answer.future.done:
            stage.problems.append(f"what came at once has cost {stage.loop.wake_ups - before} wake-ups")

    def cancel(self, request_id: str, why: str) -> None:
        """As `Runtime.cancel`."""
        world, plan = self.stage.world, self.stage.plan
        self.cancels.append((world.now, request_id, why))
        if not self.is_told and plan.cancel_takes != NEVER and plan.refused_at == NEVER:
            world.at(world.now + plan.cancel_takes, partial(self._finish, cancelled(why)))
        self.is_told = True

    def _finish(self, finish: Finish | None) -> None:
        world, plan, stage = self.stage.world, self.stage.plan, self.stage
        if self.has_finished:
            return
        self.has_finished = True
        if finish is not None:
            if stage.answer.checker is not None and plan.is_checked and finish.outcome is Outcome.ANSWERED:
                stage.answer.checker.check((finish.text,), lambda _: None)
            self.subscriber(finish)
        if plan.down_after:
            world.at(world.now + plan.down_after, self._down)
        else:
            self._down()

    def _down(self) -> None:
        stage, plan = self.stage, self.stage.plan
        was_done = stage.answer.future.done
        self.has_no_finish = stage.answer.session_ended(plan.down, plan.why_tree_ended)
        if plan.is_interrupted and stage.loop and not was_done:
            stage.loop.interrupt()


class Stage:
    """One request, and who asks."""

    def __init__(self, seed: int) -> None:
        self.plan = planned(seed)
        self.world = World()
        self.began = self.world.now
        self.problems: list[str] = []
        self.loop: WorldLoop | None = None
        self.got: list[tuple[float, object]] = []
        self.end: object = None
        self.over_at = self.settled_at = NEVER
        self.is_left = False
        self.kept: object = None
        """By a reader whose loop has ended."""
        self.conversation = Conversation()
        self.session = _Session(self)

    def _asked(self) -> None:
        """In the world."""
        plan, world = self.plan, self.world
        checker = OutputChecker(_numbers(), _THREADS, copy_context()) if plan.has_output else None
        self.answer: Answer[Any] = Answer(self.conversation, TAG, plan.timeout, checker, self._post)
        self.answer.is_kept = plan.is_kept
        self.answer.future.on_done(self._settles)
        if plan.refused_at == NEVER:
            self.conversation.take(REQUEST, answer=self.answer)
        else:
            world.at(world.now + plan.refused_at, lambda: self.answer.refuse(ValueError("refused")))
        if plan.loop_ends_at != NEVER:
            world.at(world.now + plan.loop_ends_at, self._loop_ends)

    def _loop_ends(self) -> None:
        self.world.is_over = True

    def _post(self, run: Any) -> None:
        if self.plan.is_blocked and getattr(run, "__name__", "") == "_runs":
            return
        self.world.post(run)

    def _settles(self) -> None:
        self.settled_at = self.world.now
        if self.conversation.held_by is not None:
            self.problems.append("its answer is there, and its conversation is still taken")

    def _begin(self, stream: Any = None) -> None:
        if stream is not None:
            stream.has_begun = self.plan.refused_at == NEVER
        if self.plan.refused_at == NEVER:
            self.session.begin(self.answer if stream is None else Unheld(stream))

    # -- askers without a loop

    def _wait(self) -> None:
        self._begin()
        self.world.sleep(self.plan.reader.begins_at)
        try:
            self.end = self.answer.wait()
        except Exception as error:  # noqa: BLE001 - it is compared
            self.end = error
        self.over_at = self.world.now

    def _read_sync(self) -> None:
        reader, world = self.plan.reader, self.world
        stream = SyncStream(self.answer, self.session.cancel)
        self._begin(stream)
        world.sleep(reader.begins_at)
        if reader.kind == "dropped_sync":
            del stream
            self.over_at = world.now
            return
        items: Any = iter(stream.texts() if reader.only_texts else stream)
        try:
            self.end = self._read_items(items)
        except Exception as error:  # noqa: BLE001 - it is compared
            self.end = error
        world.thread = OTHER_THREAD if reader.is_collected else READERS_THREAD
        del items
        world.thread = READERS_THREAD
        self.over_at = world.now
        if self.got and not reader.only_texts:
            self._refused(lambda: next(iter(stream)))

    def _read_items(self, items: Iterator[Any]) -> str:
        reader, pauses = self.plan.reader, self.plan.reader.pauses
        if reader.leaves_after == 0:
            return "left"
        for item in items:
            self.got.append((self.world.now, item))
            if len(self.got) == reader.leaves_after:
                return "left"
            if pause := pauses[(len(self.got) - 1) % len(pauses)]:
                self.world.sleep(pause)
        return "read"

    def _refused(self, read: Any) -> None:
        """A second reading is."""
        at = self.world.now
        try:
            read()
        except UsageError:
            if self.world.now == at:
                return
        except StopIteration:
            self.problems.append("it can be read twice")
        self.problems.append("a second reading is not refused at once")

    # -- askers on a loop

    async def _on_loop(self) -> None:
        reader, world = self.plan.reader, self.world
        loop = asyncio.get_running_loop()
        stream = None if reader.kind == "ask_async" else Stream(self.answer, self.session.cancel)
        self._begin(stream)
        await asyncio.sleep(reader.begins_at)
        if reader.kind == "dropped":
            del stream
            self.over_at = world.now
            return
        reading = self._ask_async() if stream is None else self._read_async(stream)
        task = loop.create_task(reading)
        for at in (reader.cancelled_at, reader.cancelled_again_at):
            if at != NEVER and reader.kind != "scope":
                world.at(self.began + at, lambda: loop.call_soon_threadsafe(task.cancel))
        await asyncio.wait([task])
        self.over_at = world.now
        self.end = "cancelled" if task.cancelled() else task.exception() or task.result()
        if stream is not None and self.got and not reader.only_texts:
            with contextlib.suppress(StopAsyncIteration):
                await self._refused_async(stream)
        if reader.kind == "closed":
            self.kept = (stream, self.kept)

    async def _refused_async(self, stream: Stream[Any]) -> None:
        again = aiter(stream)
        try:
            await anext(again)
        except UsageError:
            return
        self.problems.append("a second reading is not refused")

    async def _ask_async(self) -> object:
        try:
            return await self.answer.wait_async()
        except asyncio.CancelledError:
            self.session.cancel(REQUEST, "no longer wanted")
            await self.answer.until_over()
            raise

    async def _read_async(self, stream: Stream[Any]) -> str:
        reader = self.plan.reader
        if reader.kind != "scope":
            return await self._read_items_async(stream)
        loop, found = asyncio.get_running_loop(), "cancelled"
        with anyio.CancelScope() as scope:
            if reader.cancelled_at != NEVER:
                self.world.at(self.began + reader.cancelled_at, lambda: loop.call_soon_threadsafe(scope.cancel))
            found = await self._read_items_async(stream)
        return found

    async def _read_items_async(self, stream: Stream[Any]) -> str:
        reader = self.plan.reader
        if reader.leaves_after == 0:
            return "left"
        items: Any = stream.texts() if reader.only_texts else aiter(stream)
        if reader.kind == "plain":
            async for item in stream.texts() if reader.only_texts else stream:  # as most write it
                if await self._has_read(item):
                    break
            else:
                return "read"
            return "left"
        if reader.kind == "closed":
            self.kept = items
            async for item in items:
                if await self._has_read(item):
                    return "left"
            return "read"
        async with aclosing(items):
            async for item in items:
                if await self._has_read(item):
                    return "left"
        return "read"

    async def _has_read(self, item: object) -> bool:
        """This one; True: it leaves now."""
        reader, pauses = self.plan.reader, self.plan.reader.pauses
        self.got.append((self.world.now, item))
        if len(self.got) == reader.leaves_after:
            return True
        if pause := pauses[(len(self.got) - 1) % len(pauses)]:
            await asyncio.sleep(pause)
        return False

    # -- the play

    def play(self) -> list[str]:
        """From the question until nothing is left to happen."""
        with waiting_in(self.world, MAX_UNREAD_BYTES=UNREAD_BYTES, MAX_FAILURES=FAILURES):
            try:
                self._play()
            except WaitsForEver as error:
                return [f"its asker, or what is to end it, waits for ever ({error})"]
        return [*self.problems, *self._compared()]

    def _play(self) -> None:
        self._asked()
        kind = self.plan.reader.kind
        if kind == "ask":
            self._wait()
        elif kind in ("stream_sync", "dropped_sync"):
            self._read_sync()
        else:
            self.loop = loop = WorldLoop(self.world)
            try:
                loop.run_until_complete(self._on_loop())
                if kind != "closed":
                    loop.run_until_complete(asyncio.sleep(_LATER))
            finally:
                loop.close()
            self.loop = None
        self.world.run()
        self.is_left = self.answer.is_left
        self.kept = None

    def _account(self) -> Account:
        plan, began = self.plan, self.began
        looks = Looks(began + plan.timeout, began + plan.loop_ends_at, plan.is_blocked)
        account = Account(plan, began, began, _numbers() if plan.has_output else None, looks)
        account.read()
        return account

    def _compared(self) -> Iterator[str]:
        due = self._account()
        kind = self.plan.reader.kind
        pairs: dict[str, tuple[object, object]] = {
            "what was asked of its session": (self.session.cancels, due.cancels),
            "what its reader had": (self.got, due.got),
            "what its reader met": (told(self.end), due.end),
            "the time at which that was over": (self.over_at, due.over_at),
            "its end": (self._result(), due.result),
            "the time of its end": (self.settled_at, NEVER if due.settled_at is None else due.settled_at),
            "whether its asker is gone": (self.is_left, due.is_left),
            "whether its session had no Finish": (
                self.session.has_no_finish, None if due.down_at != NEVER or not due.ended else due.finish is None
            ),
            "whether its last turn is open": (self.conversation.open_turn is not None, due.is_open),
        }  # fmt: skip
        for what, (found, wanted) in pairs.items():
            if not alike(found, wanted):
                yield f"{kind}: {what} is {found!r:.400}, due is {wanted!r:.400}"
        if isinstance(due.result, Reply):
            yield from parts_amiss(self.answer.future.result())

    def _result(self) -> object:
        if not self.answer.future.done:
            return None
        try:
            return self.answer.future.result()
        except Exception as error:  # noqa: BLE001 - it is compared
            return told(error)


def alike(found: Any, due: Any) -> bool:
    """The same, but for what sums of times lose."""
    if isinstance(found, float) and isinstance(due, float):
        return found == due or abs(found - due) < EPSILON
    if isinstance(found, (list, tuple)) and type(found) is type(due) and type(found) in (list, tuple):
        return len(found) == len(due) and all(map(alike, found, due))
    return type(found) is type(due) and bool(found == due)


def play(seed: int) -> list[str]:
    """What is not as promised, in a play of a request, and one of its followers or of its journal."""
    beside = played_records if seed % 2 else played_feeds
    return [*Stage(seed).play()[:3], *beside.play(seed // 2)]
