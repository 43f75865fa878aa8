"""Dispatcher, registry and ledger with workers, sessions and approver that do what chance says, beside a model.

    python -m callboard.actors.testing plays calls --seeds 1000

The model (calls_model.py) follows each turn of the dispatcher and of the workers, in whatever order they come, and
says what is due; what was heard is compared whenever nothing is left to do at that time. No model and no request is
played, so that a tool breaks, waits and comes back a thousand times as often as in a simulated run. `play(seed)` says
what is not as promised, one sentence each; the same for the same seed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from typing import Final

from msgspec.structs import replace

from callboard.actors.calls.approvals import SeekApproval, Verdict
from callboard.actors.calls.dispatcher import (
    ConfirmStops,
    DispatchCall,
    OfferTools,
    ReplaceTools,
)
from callboard.actors.calls.go_ahead import GoAhead
from callboard.actors.calls.ledger import Ending, Outcome
from callboard.actors.journal.journal_store import ChangeRefused
from callboard.actors.journal.outbox import EffectCommitted
from callboard.actors.kernel import (
    ExitReason,
)
from callboard.actors.kernel.system import cell_of
from callboard.actors.testing import played_answers
from callboard.actors.testing.calls_books import Call, named, same
from callboard.actors.testing.calls_stage import (
    NAMES,
    SOURCES,
    Crash,
    Do,
    Hand,
    Stage,
    some_tools,
)
from callboard.actors.testing.whole_run import left_open
from callboard.actors.tools import Tool
from callboard.actors.tools.progress import CallProgress
from callboard.actors.workers.call_stacks import ReadStack
from callboard.protocol.commands import AskApproval, CancelTool, RunTool, WithdrawApproval
from callboard.protocol.errors import RuntimeFailure
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.options import ToolOffer
from callboard.protocol.policy import Mode
from callboard.protocol.tools import (
    Deferred,
    Effect,
    FailureCode,
    Hold,
    Risk,
    ToolFailure,
)

DEEDS: Final = (
    *("dispatch",) * 10, *("storm",) * 2, *("cancel",) * 3, *("begins",) * 3, *("finish",) * 7, "give_it_back", "dies",
    *("abandons",) * 3, *("thread_returns",) * 3, "no_resources", "leaves", *("go_ahead",) * 2, "crash", "end_session",
    *("replace",) * 2, *("offers",) * 2, "confirm", *("seek",) * 3, *("answer",) * 3, "withdraw", *("commit",) * 2,
    "stack", "progress", "again", "fault", "mend", "trial", *("probe",) * 3, *("wait",) * 5,
)  # fmt: skip
#: Which are equal is not for the text to say.
ARGUMENTS: Final = ('{"a":1,"b":2}', '{"b": 2, "a": 1}', '{"a":1}', "{nothing")


class Play(Stage):
    """One play: what is done, and what is compared."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.simulation.at_rest = self.at_rest

    # -- deeds

    def _at_hand(self, *states: str, begun: bool | None = None) -> tuple[Hand, Call] | None:
        found = [
            (self.hands[call.worker.name], call)
            for call in self.model.calls.values()
            if call.worker is not None and call.worker.is_alive and call.worker.name in self.hands
            if call.number in self.hands[call.worker.name].given
            if (not states or call.state in states) and begun in (None, call.begun)
        ]
        return self.rng.choice(found) if found else None

    def _do(self, what: Callable[[Hand, Call], object], *states: str, begun: bool | None = None) -> None:
        """Have a worker do something about a call of its own, if it still has it by then."""
        if (found := self._at_hand(*states, begun=begun)) is None:
            return
        hand, call = found

        def run(hand: Hand) -> None:
            if call.worker is hand.worker and (not states or call.state in states) and begun in (None, call.begun):
                what(hand, call)

        hand.ref.tell_control(Do(run))

    def dispatch(
        self, name: str | None = None, seconds: float | None = None, plan: str | None = None, *, plain: bool = False
    ) -> None:
        """A session sends a call; a plain one has nothing to wait for."""
        rng, session = self.rng, self.session()
        self.serial += 1
        step = 1 + self.serial // 12
        tag = Tag(RequestId(f"r{session.name[1:]}"), MessageId("m"), step, CallId(f"c{self.serial}"))
        known = [entry.tool for key, entry in self.model.entries.items() if not isinstance(key, Tool)]
        made = rng.choice(self.brought) if name is None and rng.random() < 0.15 else None
        chosen = (
            made or next((each for each in known if each.name == name), None) or rng.choice((*known, *self.brought))
        )
        contract = chosen.contract
        if seconds is None:
            seconds = rng.choice((contract.timeout_seconds, contract.timeout_seconds, 0.3, 20.0, 0.0, -0.1))
        seen = None
        if rng.random() < 0.3 and not plain:
            shown = rng.choice((chosen, *some_tools()[chosen.name]))
            seen = ToolOffer(shown.definition, shown.contract)
        ahead = None
        if contract.effect is not Effect.REPEAT and rng.random() < 0.4 and not plain:
            ahead = GoAhead()
            ahead.is_given = rng.random() < 0.3
        called = chosen.name if made is not None or rng.random() < 0.97 else ToolName("none")
        run = RunTool(
            tag, called, "{}", self.simulation.now() + seconds, f"effect {self.serial}",
            hold=rng.choice((Hold.NONE, Hold.NONE, Hold.READING)),
        )  # fmt: skip
        message = DispatchCall(
            run, f"words {self.serial}", session.ref, Context() if rng.random() < 0.5 else None, rng.random() < 0.5,
            self.ended[session.name], made, seen, ahead,
        )  # fmt: skip
        if plan is not None:
            self.plans[tag] = plan
        self.sent.append((message, session))
        self.say(message)

    def act(self) -> None:
        """One random deed."""
        what = self.rng.choice(DEEDS)
        self.deeds.append(what)
        getattr(self, "dispatch" if what == "dispatch" else f"_{what}")()

    def _storm(self) -> None:
        """Many calls of one tool, most of which break it."""
        name = self.breaks or self.rng.choice(NAMES)
        plan = self.rng.choice((None, "crash", "lost", "hang", "hold"))
        for _ in range(self.rng.choice((2, 4, 8))):
            self.dispatch(name, self.rng.choice((0.3, 0.3, 5.0)), plan)

    def _again(self) -> None:
        """A call is sent once more, by its session or by another one."""
        if self.sent:
            message, session = self.rng.choice(self.sent[-6:])
            if self.rng.random() < 0.2:
                session = self.session()
                message = replace(message, reply_to=session.ref, ended=self.ended[session.name])
            self.say(message)

    def _tag(self) -> Tag:
        """Of a call, most often an open one."""
        tags = list(self.model.calls) if self.rng.random() < 0.8 else []
        tags = tags or [message.run.tag for message, _ in self.sent[-9:]]
        return self.rng.choice(tags or [Tag(RequestId("r0"), MessageId("m"), 1, CallId("none"))])

    def _cancel(self) -> None:
        self.say(CancelTool(self._tag()))

    def _confirm(self) -> None:
        session = self.session()
        stops: list[CancelTool | WithdrawApproval] = [CancelTool(self._tag())]
        stops += [self._withdrawn(tag) for tag in tuple(self.sought)[:1]]
        self.rng.shuffle(stops)
        tag = Tag(RequestId(session.name), MessageId("m"), 0, CallId(""))
        self.say(ConfirmStops(tag, session.ref, tuple(stops)))

    def _withdrawn(self, tag: Tag) -> WithdrawApproval:
        self.sought.pop(tag, None)
        return WithdrawApproval(tag)

    def _begin_later(self, hand: Hand, call: Call) -> None:
        self._begin(hand, call)

    def _begins(self) -> None:
        self._do(self._begin_later, begun=False)

    def _finish(self) -> None:
        code = self.rng.choice(tuple(FailureCode))
        hint = self.rng.choice(("", "", "ask me"))
        outcome: Outcome = self.rng.choice(("well", "well", Deferred(5.0, "later"), Ending.CANCELLED))
        is_twice = self.rng.random() < 0.1

        def end(hand: Hand, call: Call) -> None:
            failed = ToolFailure(call.name, code, "told to", retry_hint=hint)
            for _ in range(1 + is_twice):
                self._end(hand, call, failed if self.fails else outcome, self.rng.choice(("", "it printed")))

        self.fails = self.rng.random() < 0.5
        self._do(end, begun=None if self.rng.random() < 0.1 else True)

    def _give_it_back(self) -> None:
        self._do(self.rng.choice((self._give_back, self._give_back, self._not_run)))

    def _dies(self) -> None:
        if self.rng.random() < 0.2:
            self.unmade = self.rng.choice((1, 1, 6))
        self._do(self._die)

    def _abandons(self) -> None:
        self._do(self._abandon, "ending", "killed", begun=True)

    def _one(self, what: Callable[[Hand], object]) -> None:
        """A worker does this, with or without calls."""
        if alive := [each for each in self.hands.values() if each.worker.is_alive]:
            self.rng.choice(alive).ref.tell_control(Do(what))

    def _thread_returns(self) -> None:
        held = [each for each in self.hands.values() if each.worker.is_alive and each.worker.holds]
        if held:
            hand = self.rng.choice(held)
            hand.ref.tell_control(Do(lambda hand: self._returns(hand) if hand.worker.holds else None))

    def _no_resources(self) -> None:
        self._one(self._no_worker)

    def _leaves(self) -> None:
        """It is killed, or stops as if it were done."""
        alive = [each for each in self.hands.values() if each.worker.is_alive]
        if not alive:
            return
        hand = self.rng.choice(alive)
        cell = cell_of(hand.ref)

        def kill() -> None:
            if hand.worker.is_alive:
                hand.worker.death = ExitReason.KILLED, None
                cell.kill()

        if self.rng.random() < 0.5:
            cell.executor.call_soon(kill)
        else:
            hand.ref.tell_control(Do(lambda hand: hand.stop()))

    def _go_ahead(self) -> None:
        found = [call.given.go_ahead for call in self.model.calls.values() if call.given.go_ahead is not None]
        if waiting := [each for each in found if not each.is_given]:
            ahead = self.rng.choice(waiting)
            if (hand := self.waits.get(ahead)) is not None:
                tag = next(tag for tag, call in self.model.calls.items() if call.given.go_ahead is ahead)
                self.model.tell_worker(hand.worker, ("BeginCode", tag))
            ahead.give()

    def _crash(self) -> None:
        self.start_failures = self.rng.choice((0, 0, 0, 1, 2))
        self.say(Crash())

    def _end_session(self) -> None:
        """With its calls cancelled, in time or not; another one comes in its place."""
        session = self.session()
        for tag in [tag for tag, seek in self.sought.items() if seek.reply_to is session.ref]:
            self.say(self._withdrawn(tag))
        for call in [call for call in self.model.calls.values() if call.session is session]:
            if self.rng.random() < 0.8:
                self.say(CancelTool(call.tag))
        self.leaving.add(session.name)
        session.ref.stop()
        self._new_session(len(self.model.sessions))

    def _replace(self) -> None:
        source = self.rng.choice(SOURCES)
        tools = self.some_of_them()
        if self.rng.random() < 0.3:
            tools = self.current[source][1:]
        elif self.rng.random() < 0.5:
            tools = (*self.current[source][1:], *tools)
        unique = {each.name: each for each in tools}
        self.current[source] = tuple(unique.values())
        self.say(ReplaceTools(source, self.current[source]))

    def _offers(self) -> None:
        session = self.session()
        tag = Tag(RequestId(session.name), MessageId("m"), 0, CallId("offers"))
        self.say(OfferTools(tag, session.ref, self.rng.choice((None, *Mode))))

    def _commit(self) -> None:
        handed = [call.tag for call in self.model.calls.values() if call.handed is not None]
        if handed:
            error = self.rng.choice((None, None, ChangeRefused("told to"), RuntimeFailure("told to")))
            self.say(EffectCommitted(self.rng.choice(handed), error))
        self.model.is_full = self.rng.random() < 0.2

    def _stack(self) -> None:
        message = ReadStack(self._tag(), Future())
        self.stacks.append(message)
        self.say(message)

    def _progress(self) -> None:
        def report(hand: Hand, call: Call) -> None:
            if call.session.is_alive:
                for said in ("one", "two"):
                    call.progress = CallProgress(said, None)
                    hand.given[call.number].record.report(call.progress)

        self._do(report, begun=True)

    def _wait(self) -> None:
        """Until something is due, or a while."""
        rng, model, now = self.rng, self.model, self.simulation.now()
        due = [call.due for call in model.calls.values()]
        due += [entry.health.until for entry in model.entries.values() if entry.health.until is not None]
        due = [each for each in due if each > now]
        kinds = (0.01, 0.2, min(due, default=now) - now, rng.uniform(0, 3), rng.choice((15.0, 61.0)))
        self.go_on(now + rng.choice(kinds))

    def go_on(self, until: float) -> None:
        """Until this time."""
        self.simulation.run_until_idle(until)

    def _trial(self) -> None:
        """One tool breaks as often as it may, and once more: within the time that counts, among calls that go well."""
        rng, model, budget = self.rng, self.model, self.model.budget
        names = [key for key in model.entries if not isinstance(key, Tool)]
        if budget is None or not names:
            return
        name = rng.choice(names)
        what = rng.choice(("pauses", "share", "window"))
        self.deeds[-1] = f"{what} of {name}"
        began = self.simulation.now()
        self._calls(name, "crash")
        if what == "share":
            self._calls(name, *["ok"] * (10 * (budget + 1) - budget - rng.choice((0, 1, 2, 3))))
        self._calls(name, *["crash"] * (budget - 1))
        if what == "window":
            self.go_on(began + rng.choice((59.9, 60.0, 60.1)))
        self._calls(name, "crash", "ok")
        for _ in range(rng.choice((1, 3, 7)) if what == "pauses" else 1):
            until = model.entries[name].health.until if name in model.entries else None
            if until is None or until < self.simulation.now():
                return
            self.go_on(until)
            self._calls(name, rng.choice(("crash", "crash", "crash", "ok")), "ok")

    def _calls(self, name: ToolName, *plans: str) -> None:
        for plan in plans:
            self.dispatch(name, 5.0, plan, plain=True)
            self.go_on(self.simulation.now())

    def _mend(self) -> None:
        """A tool that has broken is replaced by another one of its name."""
        broken = {named(key) for key, each in self.model.entries.items() if each.health.breaks or each.health.until}
        source = self.rng.choice(SOURCES)
        self.current[source] = tuple(
            self.rng.choice(some_tools()[each.name]) if each.name in broken else each for each in self.current[source]
        )
        self.say(ReplaceTools(source, self.current[source]))

    def _fault(self) -> None:
        if self.model.is_on_server:
            self.fault = self.model.fault = self.rng.choice(("admit", "give"))

    def _probe(self) -> None:
        """A tool that is withdrawn is called again when that may be, or a moment before."""
        model, now = self.model, self.simulation.now()
        named = [(each.health.until, key) for key, each in model.entries.items() if not isinstance(key, Tool)]
        if found := [(until, name) for until, name in named if until is not None]:
            until, name = self.rng.choice(found)
            if now < until:
                self.go_on(self.rng.choice((until, until, (now + until) / 2)))
            self.dispatch(name, 5.0, self.rng.choice(("ok", "begin", "crash", "lost")))

    def _seek(self) -> None:
        session, rng = self.session(), self.rng
        self.serial += 1
        tag = Tag(RequestId(f"r{session.name[1:]}"), MessageId("m"), 1, CallId(f"q{self.serial}"))
        arguments = rng.choice(ARGUMENTS)
        question = AskApproval(tag, ToolName(rng.choice(NAMES[:2])), arguments, Risk.WRITE, rule=f"rule {self.serial}")
        made = rng.choice(self.brought) if rng.random() < 0.2 else None
        seek = self.sought[tag] = SeekApproval(question, session.ref, Context(), made)
        self.say(seek)

    def _answer(self) -> None:
        if not self.asked:
            return
        rng = self.rng
        tag = rng.choice(list(self.asked))
        decide = self.asked.pop(tag)
        self.questions.moot(tag)
        granted, is_all = rng.random() < 0.6, rng.random() < 0.3
        arguments = '{"c":1}' if granted and not is_all and rng.random() < 0.3 else ""
        hold = rng.choice((Hold.NONE, Hold.READING)) if granted else Hold.NONE
        reason = "" if granted else f"since {self.serial}"
        verdict = Verdict(
            tag, granted, f"by {self.serial}", reason, f"rule {self.serial}", arguments, False, hold, is_all
        )
        self.model.inbox.append(verdict)
        decide(verdict)

    def _withdraw(self) -> None:
        if self.sought:
            self.say(self._withdrawn(self.rng.choice(list(self.sought))))

    # -- at rest

    def at_rest(self) -> None:
        """The clock is about to move."""
        model = self.model
        model.now = self.simulation.now()
        if self.problems:
            return
        for told in model.wrong():
            self.wrong(told)
        for key in {**self.log, **model.due}:
            found, due = self.log[key], model.due[key]
            if len(found) != len(due) or not all(map(same, found, due)):
                self.wrong(f"{'/'.join(map(str, key))!s:.60} heard {found!r:.600}, due was {due!r:.600}")
        self.log.clear()
        model.due.clear()
        self.questions.at_rest()
        self._compare_pools()
        self._compare_stacks()

    def _compare_pools(self) -> None:
        if not self.model.is_up:
            return
        there = {name for name in self.system._cells if name.startswith("root/tools/")}
        due = {f"root/tools/{pool.name}" for pool in self.model.pools.values() if pool.is_started}
        due |= {f"{name}/source" for name in due if self.starts_ahead and name.startswith("root/tools/process")}
        due |= {name for name, worker in self.named.items() if worker.name in self.model.workers}
        if there != due:
            self.wrong(
                f"of pools and workers there are {sorted(there - due)} too many, and {sorted(due - there)} missing"
            )

    def _compare_stacks(self) -> None:
        for message in [each for each in self.stacks if self.model.is_up]:
            self.stacks.remove(message)
            if not message.answer.done():
                call = self.model.calls.get(message.tag)
                self.wrong(f"nobody has said where {message.tag.call_id} is ({call and call.state})")

    def end(self) -> None:
        """All comes to its end, and nothing is left."""
        for tag in tuple(self.sought):
            self.say(self._withdrawn(tag))
        for session in self.model.sessions.values():
            if session.is_alive:
                session.ref.stop()
        for tag in tuple(self.model.calls):
            self.say(CancelTool(tag))
        self.go_on(self.simulation.now() + 60.0)
        if self.problems:
            return
        left = [*left_open(self.ledger)]
        left += [f"the tools of {each}" for each in self.ledger.brought]
        left += [f"the lane of {each}" for each in self.ledger.lanes if each not in self.model.lanes]
        self.problems += (f"in the end there is still: {each}" for each in left)


def play_calls(seed: int) -> list[str]:
    """Dispatcher, registry and ledger."""
    made = Play(seed)
    for _ in range(45):
        made.act()
        if made.rng.random() < 0.6:
            made.go_on(made.simulation.now() + made.rng.choice((0.0, 0.0, 0.02)))
        if made.problems:
            return made.problems[:1]
    made.end()
    return made.problems[:1]


def play(seed: int) -> list[str]:
    """What is not as promised, in a play of the calls and in one of the approver."""
    return [*play_calls(seed), *played_answers.play(seed)]
