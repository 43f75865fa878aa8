"""The start of a process in the play of recovery: what it must make of each request that is open in the journal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.builtins.asking_user import UserQuestion
from callboard.actors.journal.journal import run_on_store
from callboard.actors.journal.journal_records import RequestEnd
from callboard.actors.journal.recovery import MAX_TAKINGS_UP
from callboard.actors.kernel import NameTaken
from callboard.actors.requests.open_requests import OpenRequest, OpenState
from callboard.actors.running import StartedRequest
from callboard.actors.taking_up import TakingUp
from callboard.actors.testing.played_commits import (
    Commits,
)
from callboard.actors.testing.played_runtime import PlayedRuntime
from callboard.actors.testing.simulated_store import (
    SimulatedReader,
)
from callboard.actors.testing.simulated_world import simulated_tool
from callboard.actors.testing.written_ahead import rebuilt_wrongly
from callboard.actors.testing.written_request import Talk, without_streamed
from callboard.actors.wiring import Asked, KnownModel
from callboard.protocol.commands import Finish
from callboard.protocol.direct_call import DirectCall
from callboard.protocol.errors import UsageError
from callboard.protocol.events import RequestStarted, shifted
from callboard.protocol.ids import RequestId, Tag, ToolName
from callboard.protocol.machine import Session
from callboard.protocol.prompt_tokens import estimate_tokens
from callboard.protocol.states import CallState
from callboard.protocol.tools import Origin

#: The tool that asks people, where there is one, and what it is asked with.
ASKS: Final = ToolName("look")
QUESTION: Final = '{"question":"Which?","choices":["a","b"]}'


#: What a model may be shown of a tool in another way.
_OTHERWISE: Final[tuple[dict[str, Any], ...]] = (
    {"description": "Another."}, {"parameters": {"type": "object", "properties": {"other": {}}}}, {"strict": True}
)  # fmt: skip


class Died(BaseException):
    """The process ends here."""


class Questions(Struct):
    """As UserQuestions: those that are put again."""

    tool: Any
    put: Callable[[UserQuestion], object]


class Start:
    """One process, which begins with what the journal has."""

    def __init__(self, world: Commits, *, may_die: bool) -> None:
        self.world, self.rng = world, world.rng
        rng = self.rng
        reader = SimulatedReader(world.disk)
        by_id = {talk.request_id: talk for talk in world.talks}
        self.open = [by_id[each] for each in reader.open_requests()]
        """The oldest first."""
        names = [offer.definition.name for talk in self.open for offer in talk.started.tools]
        self.missing = set(rng.sample(names, min(len(names), rng.choice((0, 0, 0, 1)))))
        self.changed = set(rng.sample(names, min(len(names), rng.choice((0, 0, 0, 1))))) - self.missing
        self.has_approver = rng.random() < 0.8
        self.knows_forms = rng.random() < 0.8
        self.on_crash = "fail" if rng.random() < 0.1 else "resume"
        self.without_key = {talk.request_id for talk in self.open if rng.random() < 0.15}
        self.taken_names = {talk.request_id for talk in self.open if rng.random() < 0.05}
        dies = may_die and self.open and rng.random() < 0.3
        self.deadly = rng.choice(self.open).request_id if dies else ""
        self.is_later = not self.deadly and rng.random() < 0.2
        """Others share the journal: those of one that has ended while this one runs."""
        self.ends_meanwhile = rng.choice(self.open) if self.is_later and self.open and rng.random() < 0.3 else None
        self.models: dict[RequestId, KnownModel] = {}
        self.put: list[UserQuestion] = []
        self.begun: list[StartedRequest[object]] = []
        self.runtime = PlayedRuntime(world.system, world.outbox, self._begin, has_approver=self.has_approver)
        self.runtime.sessions = world.here

    def wrong(self, talk: Talk, what: str) -> None:
        """Say it."""
        talk.wrong(f"taken up: {what}")

    def run(self) -> bool:
        """False: the process has died meanwhile."""
        due = sorted(self.open, key=lambda talk: talk.begins.begun_at if talk.begins is not None else 0.0)
        if [talk.request_id for talk in due] != [talk.request_id for talk in self.open]:
            self.world.wrong(f"open are {[talk.request_id for talk in self.open]}")
        for talk in self.open:
            talk.due.takings_up += 1
        if self.open and max(self.open[0].due.takings_up, self.open[-1].due.takings_up) % 2 == 0:
            due.reverse()
        due = [talk for talk in due if talk is not self.ends_meanwhile]
        try:
            self._take_up()
        except Died:
            until = next(place for place, talk in enumerate(due) if talk.request_id == self.deadly)
            self._ended([talk for talk in due[:until] if self._verdict(talk)], in_part=True)
            if [each.question.tag.request_id for each in self.begun] != [
                talk.request_id for talk in due[:until] if not (self._verdict(talk) or self._left(talk))
            ]:
                self.world.wrong("they are not taken up in turn")
            return False
        for talk in due:
            if talk.request_id == self.deadly and not (self._verdict(talk) or self._left(talk)):
                self.wrong(talk, "it does not go on")
        self.world.scheduler.run_until_idle(self.world.now())
        self._ended([talk for talk in due if self._verdict(talk)], in_part=False)
        self._left_open([talk for talk in due if not self._verdict(talk) and self._left(talk)])
        self._went_on([talk for talk in due if not self._verdict(talk) and not self._left(talk)])
        return True

    def _take_up(self) -> None:
        tools = []
        for offer in {offer.definition.name: offer for talk in self.open for offer in talk.started.tools}.values():
            definition, contract = offer.definition, offer.contract
            if definition.name in self.changed and self.rng.random() < 0.6:
                definition = replace(definition, **self.rng.choice(_OTHERWISE))
            elif definition.name in self.changed:
                contract = replace(contract, is_trusted=not contract.is_trusted)
            else:  # that may change
                contract = replace(contract, concurrency=7)
            if definition.name not in self.missing:
                tools.append(simulated_tool(replace(offer, definition=definition, contract=contract)))
        forms = [talk.started.options.output for talk in self.open] if self.knows_forms else []
        asks = cast(Any, Questions(cast(Any, _Named(ASKS)), self.put.append)) if self.world.asks_people else None
        taking = self.runtime.taking_up(
            tools, self._asked, [each for each in forms if each is not None], questions=asks, on_crash=self.on_crash
        )
        if not self.is_later:
            taking.at_start()
        else:
            self._later(taking)
        if self.world.outbox.taken_up is None:
            self.world.wrong("what others leave later will not be taken up")
        here = {*self.runtime.sessions, *self.runtime.left_open}
        if self.world.outbox.here() != here:
            self.world.wrong(f"in hand are {set(self.world.outbox.here())}, not {here}")

    def _later(self, taking: TakingUp) -> None:
        disk = self.world.disk
        kept = [disk.requests[talk.request_id] for talk in self.open]
        for each in kept:
            each.owner = disk.writer
        taking.at_start()
        if self.begun or self.runtime.left_open:
            self.world.wrong("what is of another process is taken up")
        for each in kept:
            each.owner = 0
        found = run_on_store(self.world.system.ref("root/journal"), lambda writer: writer.take_up())
        assert self.world.outbox.taken_up is not None
        if (talk := self.ends_meanwhile) is not None:
            end = RequestEnd(self.world.wall(), None, failure="ended by another process")
            talk.due.end = disk.requests[talk.request_id].end = end
            talk.is_over = True
        self.world.outbox.taken_up(found)
        for thread in threading.enumerate():
            if thread.name == "callboard-taking-up":
                thread.join()

    def _asked(self, started: RequestStarted, counter: str, is_direct: bool) -> Asked:
        request_id = started.tag.request_id
        if request_id in self.without_key:
            raise UsageError(f"no key for {request_id}")
        model = self.models[request_id] = KnownModel((), started.options, estimate_tokens, counter)
        talk = next(talk for talk in self.open if talk.request_id == request_id)
        if (counter, is_direct) != (talk.needs.counter, talk.needs.direct is not None):
            self.wrong(talk, f"its model is looked up with {counter!r}, {is_direct}")
        return Asked(started.user, started.at, model, started.options, cast(Any, (request_id,)))

    def _begin(self, opened: StartedRequest[object]) -> None:
        request_id = opened.question.tag.request_id
        if request_id == self.deadly:
            raise Died
        if request_id in self.taken_names:
            raise NameTaken(request_id)
        if self.is_later and not {talk.request_id for talk in self.open} <= self.world.outbox.here():
            self.world.wrong("what is about to be taken up is not in hand")
        self.begun.append(opened)
        self.runtime.sessions[request_id] = self.world.here[request_id] = opened

    # -- what is to become of them

    def _verdict(self, talk: Talk) -> str:
        """Why it ends; "" where it does not."""
        kept, started, needs = self.world.disk.requests[talk.request_id], talk.started, talk.needs
        if kept.damage:
            return f"its record in the journal is damaged: {kept.damage}"
        if talk.due.takings_up > MAX_TAKINGS_UP:
            return f"it was taken up {MAX_TAKINGS_UP} times and nothing came of it"
        if self.on_crash == "fail":
            return "this runtime ends such requests"
        for offer in started.tools:
            name = offer.definition.name
            if offer.is_shown and offer.contract.origin is Origin.OWNER and name in self.missing:
                whose = ", which only its question had," if name in needs.own_tools else ""
                return f"it needs the tool {str(name)!r}{whose} and this runtime has none"
            if offer.is_shown and offer.contract.origin is Origin.OWNER and name in self.changed:
                return f"the tool {str(name)!r} has changed since the request began: "
        if needs.has_approver and not self.has_approver:
            return "no approver"
        if needs.headers:
            return ", ".join(needs.headers)
        form = started.options.output
        if form is not None and not form.is_raw and not self.knows_forms:
            return f"its answer is to be a {form.title}"
        return _FINISHED if self._has_finished(talk) and not self._left(talk) else ""

    def _has_finished(self, talk: Talk) -> bool:
        return talk.place == len(talk.script)

    def _left(self, talk: Talk) -> str:
        """Why it is left open; "" where it is not."""
        if talk.request_id in self.without_key:
            return f"no key for {talk.request_id}"
        if talk.request_id in self.taken_names and not self._has_finished(talk):
            return "a new request of this process has the same id, and must end first"
        return ""

    def _ended(self, talks: Sequence[Talk], *, in_part: bool) -> None:
        """Why is in the journal. `in_part`: the process has died before all of it was."""
        reader = SimulatedReader(self.world.disk)
        for talk in talks:
            why, log = self._verdict(talk), reader.request(talk.request_id)
            end = log.end if log is not None else None
            if end is None:
                if not in_part:
                    self.wrong(talk, f"it does not end: {why}")
                continue
            if why == _FINISHED:
                told = [each for each in talk.told if isinstance(each, Finish)]
                if end.finish is None or (end.finish.outcome, end.finish.text) != (told[-1].outcome, told[-1].text):
                    self.wrong(talk, f"it had ended with {told[-1]!r:.100}, and has {end!r:.200}")
            elif why not in end.failure or end.finish is not None:
                self.wrong(talk, f"it is to end with {why!r}, and has {end!r:.200}")
            if end.ended_at != self.world.wall():
                self.wrong(talk, f"it ended at {end.ended_at:g}")
            talk.due.end, talk.is_over = end, True
            rows = [row for row in self.world.apart if why in str(row) or talk.request_id in row]
            damage = self.world.disk.requests[talk.request_id].damage
            if bool(damage) != any(damage in str(row) for row in rows if damage):
                self.wrong(talk, "its damage is not reported")

    def _left_open(self, talks: Sequence[Talk]) -> None:
        due = {}
        for talk in talks:
            assert talk.begins is not None
            due[talk.request_id] = OpenRequest(
                talk.request_id, talk.begins.conversation_id, talk.begins.model, talk.begins.begun_at,
                OpenState.LEFT_OPEN, waits_for=self._left(talk), was_taken_up=True,
            )  # fmt: skip
            talk.due.takings_up, talk.is_over = 0, True
        if self.runtime.left_open != due:
            self.world.wrong(f"left open are {self.runtime.left_open}, not {due}")

    def _went_on(self, talks: Sequence[Talk]) -> None:
        begun = [each.question.tag.request_id for each in self.begun]
        if begun != [talk.request_id for talk in talks]:
            self.world.wrong(f"{begun} go on, not {[talk.request_id for talk in talks]}")
            return
        put: list[Tag] = []
        for talk, opened in zip(talks, self.begun, strict=True):
            ahead = self.world.now() - max(self.world.wall(), *(each.at for each in talk.due.events))
            for told in self._opened_wrongly(talk, opened, ahead):
                self.wrong(talk, told)
            talk.taken_up(opened, ahead)
            self.world.conversations.append(talk.conversation)
            for tag, state in talk.session.calls.items() if self.world.asks_people else ():
                if state is CallState.DEFERRED and talk.session.call_of(tag).name == ASKS:
                    put.append(tag)
            is_lost = talk.session.loss_event(self.world.now()) is not None
            if is_lost and self.rng.random() < 0.5 and self.world.has_room:
                self.world.queue.append(talk.goes_on())
        due = [UserQuestion(tag, "Which?", ("a", "b")) for tag in put]
        if self.put != due:
            self.world.wrong(f"the questions {self.put} are put again, not {due}")

    def _opened_wrongly(self, talk: Talk, opened: StartedRequest[object], ahead: float) -> Iterator[str]:
        world, found, question = self.world, opened.rebuilt, opened.question
        log = SimulatedReader(world.disk).request(talk.request_id)
        assert found is not None
        assert log is not None
        assert opened.feed is not None
        assert talk.begins is not None
        yield from rebuilt_wrongly(world.disk, log, found)
        events = [shifted(each, ahead) for each in talk.due.events]
        session: Any = Session() if talk.needs.direct is None else DirectCall(talk.needs.direct)
        for event in events:
            session.apply(event)
        started, again, answer = events[0], found.taken_up.session, opened.answer
        assert isinstance(started, RequestStarted)
        form = started.options.output
        same = {
            "its first event": (found.taken_up.started, started),
            "what was committed": (found.taken_up.outcomes, tuple(shifted(each, ahead) for each in talk.due.outcomes)),
            "what its session begins with": (again.resume_commands(), session.resume_commands()),
            "what it has recorded": ((again.has_recorded, again.recorded), (session.has_recorded, session.recorded)),
            "its loss": (again.loss_event(1.0), session.loss_event(1.0)),
            "its question": (
                (question.tag, question.history, question.user, question.options, question.asked_at),
                (started.tag, started.history, started.user, started.options, started.at),
            ),
            "its summaries": (question.compacted, started.compacted),
            "its routes": (question.routes, (talk.request_id,)),
            "its metadata": (question.metadata, talk.metadata),
            "it has a form": (question.checker is not None, form is not None),
            "its answer": ((answer.tag, answer.checker), (started.tag, question.checker)),
            "its conversation": (answer.conversation is found.conversation, True),
            "it holds its conversation": (found.conversation.held_by is answer, True),
            "its beginning": ((opened.begun_at, opened.needs), (talk.begins.begun_at, talk.needs)),
            "its model": (opened.model, self.models[talk.request_id]),
            "its feed": (opened.feed.begins.number, without_streamed(events)),
            "who hears of it": (opened.subscriber is opened.feed and opened.feed.answer is answer, True),
            "it has ended": (found.finish, None),
        }  # fmt: skip
        for what, (there, due) in same.items():
            if there != due:
                yield f"{what}: {there!r:.300}, where {due!r:.300} was due"


class _Named(Struct):
    name: ToolName


#: Why one ends that had finished.
_FINISHED: Final = "it had finished"
