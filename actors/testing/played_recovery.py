"""Writing ahead, the journal's actor and taking up, beside a model of what a journal has of requests.

    python -m callboard.actors.testing plays recovery --seeds 1000

The sessions are those of scenarios, whose events come one by one, in any order among the requests; their writes gather,
and are committed together, refused, or not written at all. Then the process dies, and the next one goes on. After each
deed the journal, and what everybody was told, are those of the model. `play(seed)` says what is not, one sentence each;
the same for the same seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from msgspec.structs import replace

from callboard.actors.journal.journal_records import Change, EffectWrite, Needs, Statement
from callboard.actors.journal.journal_store import JournalGone, JournalLost
from callboard.actors.journal.outbox import CommitEffect
from callboard.actors.journal.recovery import MAX_TAKINGS_UP, digest
from callboard.actors.requests.conversation import Conversation
from callboard.actors.testing.played_commits import (
    CLOCKS,
    LEASE_SECONDS,
    UNTIL_WRITTEN_SECONDS,
    Commits,
    Effect,
)
from callboard.actors.testing.played_start import ASKS, QUESTION, Start
from callboard.actors.testing.simulated_run import seeded_scenarios
from callboard.actors.testing.simulated_store import (
    REFUSED_STATEMENT,
)
from callboard.actors.testing.written_request import Address, Talk, Wanted
from callboard.protocol.events import Event, RequestStarted, ToolCallCompleted, ToolCallEnd, shifted
from callboard.protocol.ids import RequestId
from callboard.protocol.states import CallState
from callboard.protocol.testing.driver import drive
from callboard.protocol.testing.scenario import PlannedCall, Scenario, ToolDoes


class World(Commits):
    """What happens to the requests, and to their process."""

    def act(self) -> None:
        """One deed."""
        deed = self.rng.choice(_DEEDS)
        self.deed = deed.__name__.replace("_", " ").strip()
        deed(self)
        for talk in self.talks:
            if not talk.is_over:
                talk.look()

    def ask(self) -> None:
        """One or more requests begin, some in a conversation that had others."""
        for _ in range(self.rng.choice((1, 1, 2))):
            self.numbers += 1
            scenario = self._asking_people(self.rng.choice(seeded_scenarios(self.rng.randrange(1 << 20), None)))
            free = [each for each in self.conversations if each.held_by is None and not each._taken.locked()]
            conversation = self.rng.choice(free) if free and self.rng.random() < 0.5 else None
            if conversation is None:
                conversation = Conversation(scenario.history)
                conversation._id = f"of request {self.numbers}"  # the same in each play of the seed
                conversation.record(scenario.compacted, cast(RequestId, None))
                self.conversations.append(conversation)
            scenario = replace(
                scenario, history=conversation.messages, compacted=conversation.compacted,
                request_id=RequestId(f"r{self.numbers}"), strays=(), foreign=(), tools=self.tools or scenario.tools,
            )  # fmt: skip
            self.tools = scenario.tools
            trace = drive(scenario, self.numbers)
            if trace.broken or not trace.applied:
                continue
            talk = Talk(self, trace.applied, conversation, self._needs(trace.applied[0]), self._metadata())
            self.talks.append(talk)
            self.here[talk.request_id] = talk
            self._step(talk)

    def _asking_people(self, scenario: Scenario) -> Scenario:
        """In some plays the calls of one tool are questions to people, whose answers come from outside."""
        if not self.asks_people:
            return scenario

        def asks(call: PlannedCall) -> PlannedCall:
            does = self.rng.choice((ToolDoes.DEFER, ToolDoes.DEFER, call.does))
            return replace(call, tool=ASKS, arguments=QUESTION, does=does)

        turns = (replace(turn, calls=tuple(map(asks, turn.calls))) for turn in scenario.turns)
        return replace(scenario, turns=tuple(turns))

    def _needs(self, started: Event) -> Needs:
        assert isinstance(started, RequestStarted)
        rng = self.rng
        own = rng.sample(started.tools, min(len(started.tools), rng.choice((0, 0, 1))))
        output = started.options.output.title if started.options.output is not None else ""
        return Needs(
            {str(each.definition.name): digest(each.definition) for each in own}, output,
            has_approver=rng.random() < 0.3, headers=("x-key",) if rng.random() < 0.05 else (),
        )  # fmt: skip

    def _metadata(self) -> dict[str, str]:
        return {"of": f"request {self.numbers}"}

    def go_on(self) -> None:
        """Something happens to one request or several."""
        running = [talk for talk in self.talks if talk.has_more]
        for _ in range(self.rng.choice((1, 2, 4, 8)) if running else 0):
            talk = self.rng.choice(running)
            if talk.has_more:
                self._step(talk)
                if self.rng.random() < 0.1:
                    talk.confirm()

    def transaction(self) -> None:
        """A tool commits its outcome with what it wrote; the database may refuse that."""
        running = [
            (talk, each)
            for talk in self.talks
            if talk.has_more
            for each in talk.script[talk.place :]
            if isinstance(each, ToolCallEnd) and talk.session.calls.get(each.tag) is CallState.RUNNING
        ]
        if not running:
            return
        talk, end = self.rng.choice(running)
        outcome = shifted(end, talk.delta + self.wall() - self.now())
        assert isinstance(outcome, ToolCallEnd)
        if self.rng.random() < 0.1:
            outcome = ToolCallCompleted(outcome.tag, outcome.at, "another")
        sql = REFUSED_STATEMENT if self.rng.random() < 0.3 else "insert"
        effect = Effect(talk, EffectWrite(outcome.tag, outcome, (Statement(sql),)), Address())
        if not self.has_room or any(isinstance(each, Effect) and each.change.tag == outcome.tag for each in self.queue):
            return
        self.outbox.hand_over(CommitEffect(effect.change, cast(Any, effect.address)))
        self.queue.append(effect)

    def give_up(self) -> None:
        """A session is lost."""
        running = [talk for talk in self.talks if talk.has_more and talk.handed]
        if running:
            wanted = self.rng.choice(running).give_up("lost for a reason")
            if wanted is not None:
                self.queue.append(wanted)

    def pause(self) -> None:
        """Time passes, and the journal does not come to write; or nothing waits for it."""
        if self.queue or self.marks:
            self.scheduler.jump(self.rng.choice((1.0, 20.0, 40.0)))
        else:
            self.scheduler.run_until_idle(self.now() + 4 * LEASE_SECONDS)
            if self.is_shared and self.now() - self.renewed_at > LEASE_SECONDS:
                self.wrong(f"its lease was renewed {self.now() - self.renewed_at:g} s ago")

    def lose(self) -> None:
        """Another process has taken over what this one had, which a commit or a lease finds; or all is gone."""
        is_gone = self.rng.random() < 0.2
        error = (JournalGone if is_gone else JournalLost)("another process has it")
        batch = list(self.queue)
        told: list[str] = []
        self.outbox.ends_runtime = told.append
        by_lease = self.is_shared and self.rng.random() < 0.5
        if by_lease:
            self.commit()
            batch.clear()
            self.loses = error
            self.failed |= self.sessions
            self.scheduler.run_until_idle(self.now() + LEASE_SECONDS)
            self.loses = None
        else:

            def loses(_: Sequence[Change]) -> None:
                self.failures = []
                raise error

            if not batch:
                return
            self.failures = [loses]
            self.scheduler.run_until_idle(self.now())
        whose = {each.talk.request_id for each in batch if isinstance(each, Wanted) and each.is_heard} | self.sessions
        if self._are_marked():  # in the meantime
            self._mark()
        marks = self.marks
        lost = [Wanted(talk, 0, ()) for talk in self.talks if talk.request_id in whose]
        effects = [each for each in batch if isinstance(each, Effect)]
        says = self.outbox.failure, str(self.outbox.error)
        if not marks and says != ("another process has it", "another process has it"):
            self.wrong(f"the journal is lost, and says {says}")
        self._not_written([*lost, *effects], "another process has it", is_unsure=True)
        self.marks = marks  # what had still to be said is still to be said, and nothing of those that were lost
        if told != (["another process has it"] if is_gone else []):
            self.wrong(f"the runtime is to end for {told}")
        if is_gone:
            self.is_set_back = False
            self.die()
        else:
            self.compare()

    def die(self) -> None:
        """What was not written did not happen, and the next process goes on, or dies too."""
        rng = self.rng
        if self.is_set_back:  # what is written from then on is before what was written until then
            return
        for _ in range(0 if self.outbox.gone else rng.choice((0, 0, 3, 10))):
            self.go_on()
            if rng.random() < 0.3:
                self.transaction()
        if rng.random() < 0.5 and not self.outbox.gone:
            self.commit()
        left = [talk for talk in self.talks if talk.due.events and talk.due.end is None]
        self._end_process()
        for talk in rng.sample(left, rng.randint(0, len(left))):
            times = rng.choice((0, 0, 1, MAX_TAKINGS_UP - 1, MAX_TAKINGS_UP))
            talk.due.takings_up = self.disk.requests[talk.request_id].takings_up = times
        if left and rng.random() < 0.2:
            talk = rng.choice(left)
            number = rng.randint(1, len(talk.due.events))
            self.disk.damage(talk.request_id, number)
            talk.due.events, talk.due.led_to = talk.due.events[: number - 1], talk.due.led_to[: number - 1]
        ended = [talk for talk in self.talks if talk.due.end is not None and talk.due.end.finish is not None]
        if ended and rng.random() < 0.3:  # by an older callboard, which wrote that by itself
            talk = rng.choice(ended)
            talk.due.end = self.disk.requests[talk.request_id].end = None
        may_die = True
        while not Start(self, may_die=may_die).run():
            may_die = rng.random() < 0.5
            self._end_process()
        self.compare()

    def _end_process(self) -> None:
        self.queue.clear()
        self.marks.clear()
        for talk in self.talks:
            talk.process_dies()
        self.disk.process_dies()
        self.scheduler.lose_all()
        if self.rng.random() < 0.3:
            before = self.ahead
            self.ahead = self.rng.choice(CLOCKS)
            self.is_set_back |= self.ahead < before
        self.conversations.clear()
        self._process_starts()

    def end(self) -> None:
        """Write what waits, and leave nothing."""
        self.deed = "at the end"
        if not self.problems:
            self.commit()
            self.scheduler.run_until_idle(self.now() + UNTIL_WRITTEN_SECONDS)
            self._marked()
        self.system.shutdown(5)
        self.scheduler.run_until_idle(self.now() + UNTIL_WRITTEN_SECONDS)
        self.scheduler.close()


_DEEDS: Final[tuple[Callable[[World], None], ...]] = (
    World.ask, World.go_on, World.go_on, World.go_on, World.go_on, World.commit, World.commit, World.commit,
    World.transaction, World.transaction, World.give_up, World.pause, World.full, World.crash, World.poison,
    World.refused, World.lose, World.lease, World.read, World.die, World.die,
)  # fmt: skip


def play(seed: int) -> list[str]:
    """What is not as promised, in one play of it."""
    world = World(seed)
    world.deed = "at first"
    try:
        world.ask()
        for _ in range(world.rng.choice((10, 20, 40))):
            if world.problems:
                break
            world.act()
    finally:
        world.end()
    return world.problems
