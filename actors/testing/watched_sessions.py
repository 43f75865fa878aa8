"""Sessions in a simulated run, followed from outside: who works for them is who they have asked, and nobody else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct, field

from callboard.actors.kernel import Ref
from callboard.actors.testing.watched_calls import WatchedCalls
from callboard.actors.testing.watched_models import WatchedModels
from callboard.actors.testing.watched_questions import WatchedQuestions
from callboard.protocol.commands import Command
from callboard.protocol.events import Event
from callboard.protocol.ids import RequestId, Tag
from callboard.protocol.testing.story import OpenWork


def _never() -> bool:
    return False


class _Session(Struct, eq=False):
    ref: Ref
    waits: Callable[[], bool]
    """Has what it did last to be written first?"""
    work: OpenWork = field(default_factory=OpenWork)


class WatchedSessions:
    """Of one process. `problems`: what was wrong, one sentence each, with the request's id in front."""

    def __init__(
        self,
        now: Callable[[], float],
        calls: WatchedCalls,
        questions: WatchedQuestions,
        models: WatchedModels,
        problems: list[str],
    ) -> None:
        self._now, self.problems = now, problems
        self._calls, self._questions, self._models = calls, questions, models
        self._open: dict[RequestId, _Session] = {}

    def begins(self, request_id: RequestId, ref: Ref, waits: Callable[[], bool] | None) -> None:
        """Its session begins, or goes on with what a process before this one has left."""
        self._open[request_id] = _Session(ref, waits or _never)

    def applies(self, event: Event, given: Iterable[Command]) -> None:
        """A session has taken this event, and gives these commands."""
        session = self._open.get(event.tag.request_id)
        if session is not None:
            for told in (event, *given):
                session.work = session.work.after(told)

    def at_rest(self) -> None:
        """Nothing is left to do at this time: who should work for a session, and does not, or the other way round?"""
        for request_id, session in tuple(self._open.items()):
            if not session.ref.is_alive():
                del self._open[request_id]
            elif not session.waits():
                for told in self._wrong(request_id, session.work):
                    self.problems.append(f"{request_id} carried out: {told}, at {self._now():g}")

    def has_done_all(self, request_id: RequestId) -> bool:
        """Does it live, and wait for nothing to be written?"""
        session = self._open.get(request_id)
        return session is not None and session.ref.is_alive() and not session.waits()

    def _wrong(self, request_id: RequestId, work: OpenWork) -> Iterator[str]:
        for who, due, open_now in (
            ("the dispatcher has the call", work.running, self._calls.opened(request_id, work.running)),
            ("the dispatcher has the question about call", work.waiting, self._questions.opened(request_id)),
            (
                "the LLM manager has the model call",
                {work.model} if work.model else set(),
                self._models.opened(request_id),
            ),
        ):
            if open_now is None or due == open_now:
                continue
            for tag in sorted(due - open_now):
                yield f"its session waits for {_place(tag)}, and it is not so that {who}"
            for tag in sorted(open_now - due):
                yield f"{who} {_place(tag)}, and its session does not wait for it"


def _place(tag: Tag) -> str:
    return f"{tag.step}/{tag.call_id}"
