"""Supervisors and their children, which fail, leave, hang, come and go at random, beside a model of OTP's rules.

The model (family_model.py) says who starts and ends when, and how; what it says is compared after each deed, once
nothing is left to do at that moment. What happens at one moment in two families has no order. In the end comes a rush:
deeds in the middle of starts and stops, after which only what holds at rest is asked.
"""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

from callboard.actors.kernel import (
    Actor,
    ActorDeadError,
    ActorInfo,
    ActorSystem,
    Backoff,
    ChildSpec,
    ExitReason,
    NameTaken,
    NoSuchActor,
    Ref,
    Restart,
    StartFailed,
    Strategy,
    Supervisor,
    restart_child,
    start_child,
    stop_child,
)
from callboard.actors.kernel.system import cell_of
from callboard.actors.testing.family_model import CHANCE, KILLED, NORMAL, Clock, Kin, Kind, Log, Member, Model
from callboard.actors.testing.simulation import SimulatedScheduler

#: What is done by chance.
DEEDS = (*("crash",) * 6, "leave", "leave", "kill", "stop_child", "restart_child", "add", "add", "ask", "ask")


class Careless(Supervisor):
    """A supervisor that can be told to crash, and says when it starts."""

    def __init__(self, world: World, kin: Kin) -> None:
        specs = [world.spec(kind) for kind in kin.children]
        super().__init__(
            specs, kin.strategy, kin.intensity, kin.period_seconds, chance=lambda: CHANCE,
            gives_up=lambda _: world.told("gives up", f"{kin.name}/-"),
        )  # fmt: skip
        self.world = world

    def on_start(self) -> None:
        self.world.begins(self)
        super().on_start()

    def on_receive(self, message: Any) -> Any:
        if message == "crash":
            raise ValueError("told to")
        return super().on_receive(message)


class Child(Actor[Any]):
    """Fails, leaves and hangs as it is told to."""

    def __init__(self, world: World, kind: Kind) -> None:
        self.world, self.kind, self.taken = world, kind, 0

    def on_start(self) -> None:
        if self.world.fails.get(self.kind.id, 0):
            self.world.fails[self.kind.id] -= 1
            self.world.told("cannot start", self.name)
            raise OSError("told to")
        self.world.begins(self)

    def on_receive(self, message: Any) -> Any:
        self.taken += 1
        if message == "crash":
            raise SystemExit("told to")
        if message == "ready":
            self.stopped()
        return self.name, self.taken

    def on_stopping(self) -> bool:
        if self.kind.takes_seconds:
            self.tell_after(self.kind.takes_seconds, "ready")
        return self.kind.takes_seconds == 0


class World:
    """A tree of supervisors in virtual time, and its model."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"families {seed}")
        self.simulation = SimulatedScheduler(rng.randrange(2**32))
        self.system = ActorSystem(self.simulation)
        self.problems: list[str] = []
        self.log: Log = []
        self.due: Log = []
        self.compared = 0
        self.ids = 0
        self.fails: dict[str, int] = {}
        self.deeds: list[str] = []
        self.gone: list[Kind] = []
        self.is_down = False
        self.asks: list[tuple[str, Any]] = []
        self.is_nested, self.is_single = rng.random() < 0.6, rng.random() < 0.3
        self.kin = self._kin("root", depth=0)
        self.clock = Clock()
        self.model = Model(self.kin, self.clock, self.due, self._root_over)
        self.root = self.system.spawn(lambda: Careless(self, self.kin), "root")

    def _root_over(self, _reason: ExitReason) -> None:
        self.is_down = True

    # -- what there is

    def _kin(self, name: str, depth: int) -> Kin:
        rng = self.rng
        kin = Kin(name, rng.choice(list(Strategy)), rng.choice((0, 1, 3, 9)), rng.choice((0.5, 5.0)))
        kin.children = [
            self.kind(name, depth) for _ in range(1 if self.is_single and depth == 0 else rng.randint(1, 4 - depth))
        ]
        return kin

    def kind(self, parent: str, depth: int) -> Kind:
        """A random child."""
        rng = self.rng
        self.ids += 1
        initial = rng.choice((0.0, 0.05, 1.0))
        backoff = Backoff(initial, rng.choice((initial, 2 * initial, 5.0)), rng.choice((0, 0.5)), rng.choice((0.7, 30)))
        kind = Kind(
            f"{'abcdefghi'[self.ids % 9] if depth < 2 else 'x'}{self.ids}",
            rng.choice((Restart.PERMANENT, *Restart)),
            backoff,
            shutdown_seconds=rng.choice((0.3, 2.0)),
            intensity=rng.choice((None, None, None, 0, 2)),
            period_seconds=rng.choice((1.0, 5.0)),
            takes_seconds=rng.choice((0.0, 0.0, 0.0, 0.0, 0.1, 1.0, None)),
            runs_on=rng.choice(("loop",) * 9 + ("thread",)),
            fails=rng.choice((0,) * 9 + (1, 2)),
        )
        if self.is_nested and depth < 2 - self.is_single:
            kind.fails = 0  # two families that start at one moment have no order
        if self.is_nested and depth < 1 and (self.is_single or rng.random() < 0.4):
            kind.family, kind.runs_on = self._kin(f"{parent}/{kind.id}", depth + 1), "loop"
            kind.shutdown_seconds = rng.choice((0.37, 7.0))
        self.fails[kind.id] = kind.fails
        return kind

    def spec(self, kind: Kind) -> ChildSpec[Any]:
        """For the real supervisor."""
        kin = kind.family
        return ChildSpec(
            kind.id,
            (lambda: Child(self, kind)) if kin is None else (lambda: Careless(self, kin)),
            kind.restart, kind.shutdown_seconds, kind.intensity, kind.period_seconds, kind.backoff,
            runs_on=kind.runs_on,
        )  # fmt: skip

    def told(self, what: str, who: str) -> None:
        """Something has happened."""
        self.log.append((round(self.simulation.now(), 6), what, who))

    def begins(self, actor: Actor[Any]) -> None:
        """An incarnation has begun; its end is told too."""
        if actor.name != "root":
            self.told("start", actor.name)
            self.system.watch(actor.ref, lambda down: self.told(down.reason.value, down.ref.name))

    # -- what is done

    def families(self) -> list[tuple[str, Model]]:
        """Those that live."""
        families = [("root", self.model)]
        for name, model in families:
            families += [
                (f"{name}/{each.kind.id}", each.model)
                for each in model.members.values()
                if each.model is not None and each.up
            ]
        return families

    def act(self) -> None:
        """One random deed, to both."""
        name, model = self.rng.choice(self.families())
        what = self.rng.choice(DEEDS)
        members = list(model.members.values())
        if not members and what != "add":
            return
        member = self.rng.choice(members) if members else None
        self.deeds.append(f"{what} {member.kind.id if member is not None and what != 'add' else name}")
        getattr(self, f"_{what}")(self.system.ref(name), model, member)

    def _crash(self, parent: Ref, model: Model, member: Member) -> None:
        if member.up:
            self.system.ref(f"{parent.name}/{member.kind.id}").tell("crash")
            model.fail(member)

    def _leave(self, parent: Ref, model: Model, member: Member) -> None:
        if member.up and member.model is not None:
            self.system.ref(f"{parent.name}/{member.kind.id}").stop()
            member.model.stop(NORMAL)
        elif member.up and member.kind.takes_seconds == 0:
            self.system.ref(f"{parent.name}/{member.kind.id}").stop()
            model.leave(member)
        elif not member.up and model.starting is not member:  # it waits for its restart, and there will be none
            self.system.ref(f"{parent.name}/{member.kind.id}").stop()
            model.forget(member)
            self.gone.append(member.kind)

    def _kill(self, parent: Ref, model: Model, member: Member) -> None:
        if member.up:
            self.system.kill(self.system.ref(f"{parent.name}/{member.kind.id}"))
            model.killed(member)

    def _stop_child(self, parent: Ref, model: Model, member: Member) -> None:
        stop_child(parent, member.kind.id)
        model.stop_child(member)

    def _restart_child(self, parent: Ref, model: Model, member: Member) -> None:
        restart_child(parent, member.kind.id)
        model.restart_child(member)

    def _add(self, parent: Ref, model: Model, member: Member | None) -> None:
        if member is not None and self.rng.random() < 0.2:
            try:
                start_child(parent, self.spec(member.kind))
            except NameTaken:
                return
            self.problems.append(f"a second child of {parent.name} is called {member.kind.id}")
            return
        kind = self.kind(parent.name, depth=2)
        if self.gone and self.rng.random() < 0.5:
            kind.id = self.gone.pop().id
            self.fails[kind.id] = kind.fails
            if kind.id in model.members:
                return
        start_child(parent, self.spec(kind))
        model.add(kind)

    def _ask(self, parent: Ref, model: Model, member: Member) -> None:
        if member.model is None:
            name = f"{parent.name}/{member.kind.id}"
            self.asks.append((name, self.system.ref(name).ask("well?", block=False)))

    # -- what is compared

    def compare(self) -> None:
        """Both have come to the same moment."""
        log, due = by_family(self.log[self.compared :]), by_family(self.due[self.compared :])
        if log != due:
            odd = next(name for name in {**log, **due} if log.get(name) != due.get(name))
            self.problems.append(
                f"after {self.deeds[-1:]} (deed {len(self.deeds)}) in {odd}: "
                f"{log.get(odd, [])} happened, due is {due.get(odd, [])}"
            )
            return
        self.compared = len(self.log)
        if self.root.is_alive() is self.is_down:
            self.problems.append(f"root is alive: {self.root.is_alive()}, which is wrong")
        elif not self.is_down:
            self._compare_family("root", self.model)

    def _compare_family(self, name: str, model: Model) -> None:
        here = cell_of(self.system.ref(name)).info(self.simulation.now())
        infos = {info.name.rpartition("/")[2]: info for info in here.children}
        for child_id, member in model.members.items():
            info = infos.pop(child_id, None)
            found = info and (info.state == "running", info.restarts)
            if found != (member.up, max(0, member.restarts)):
                due = f"{'running' if member.up else 'waiting'} after {member.restarts} restarts"
                self.problems.append(f"{name}/{child_id} is {info and info.state, info}, due is {due}")
            if member.model is not None and member.up:
                self._compare_family(f"{name}/{child_id}", member.model)
        if infos:
            self.problems.append(f"{name} has children of which nothing should be left: {sorted(infos)}")

    def compare_answers(self) -> None:
        """Who runs has answered; who waits has not; who is gone never will."""
        left: list[tuple[str, Any]] = []
        for name, reply in self.asks:
            member = self.find(name)
            if reply.done:
                dead = isinstance(reply._error, ActorDeadError)
                if not dead and (reply._error is not None or reply.result()[0] != name):
                    self.problems.append(f"an ask of {name} was answered with {reply._error or reply.result()}")
                elif dead and member is not None and member.restarts == 0:
                    self.problems.append(f"an ask of {name} was refused as if it were dead")
            elif member is None or member.up:
                self.problems.append(f"an ask of {name} has no answer, and it is {'running' if member else 'dead'}")
            else:
                left.append((name, reply))
        self.asks = left

    def find(self, name: str) -> Member | None:
        """A child of the model that lives or waits."""
        if self.is_down:
            return None
        model, member = self.model, None
        for part in name.split("/")[1:]:
            member = model.members.get(part)
            if member is None:
                return None
            model = member.model or model
        return member

    def go_on(self, until: float) -> None:
        """Both."""
        self.simulation.run_until_idle(None if until == float("inf") else until)
        self.clock.advance(until)

    def settle(self) -> None:
        """Until nobody is about to stop, and compare."""
        if not self.is_down and not self.model.is_calm():
            self.go_on(float("inf"))
            self.clock.now = self.simulation.now()
        self.compare()

    def first_starts(self) -> None:
        """Who waits for all to run is told which permanent one cannot start."""
        failing = failing_first(self.kin)
        kinds = [
            *self.kin.children,
            *(each for kind in self.kin.children if kind.family for each in kind.family.children),
        ]
        if any(kind.fails and kind.restart is not Restart.PERMANENT for kind in kinds):
            return  # the others may have to wait for it
        found = ""
        try:
            self.system.wait_until_started(self.root, 0.0)
        except StartFailed as error:
            found = error.name
        if found not in failing if failing else found:
            self.problems.append(f"whoever waited for the start heard of {found or 'no failure'}, not of {failing}")

    # -- a rush, in which only what holds at rest is known

    def rush(self) -> None:
        """Deeds in the middle of starts and stops."""
        spared = {
            f"{name}/{member.kind.id}"
            for name, model in self.families()
            for member in model.members.values()
            if not member.dynamic and member.up and member.kind.restart is Restart.PERMANENT
        }
        never = {
            f"{name}/{member.kind.id}"
            for name, model in self.families()
            for member in model.members.values()
            if member.kind.takes_seconds is None
        }
        for _ in range(self.rng.randint(2, 12)):
            name, model = self.rng.choice(self.families())
            members = list(model.members)
            child = f"{name}/{self.rng.choice(members)}" if members else name
            what = self.rng.choice(("crash",) * 5 + ("restart", "restart", "stop", "gone", "add"))
            if what == "stop" and child in never:
                continue
            spared -= {child} if what in ("stop", "gone") else set()
            try:
                self._rush(what, self.system.ref(name), self.system.ref(child))
            except (NoSuchActor, ActorDeadError):
                continue
            finally:
                for _ in range(self.rng.choice((0, 1, 3, 8))):
                    self.simulation.step(self.simulation.now() + 0.5)
        self.simulation.run_until_idle()
        self._look_at_rest(self.system.tree(), spared)

    def _rush(self, what: str, parent: Ref, child: Ref) -> None:
        child_id = child.name.rpartition("/")[2]
        if what == "crash":
            child.tell("crash")
        elif what == "stop":
            child.stop()
        elif what == "restart":
            restart_child(parent, child_id)
        elif what == "gone":
            stop_child(parent, child_id)
        else:
            kind = self.kind(parent.name, depth=2)
            start_child(parent, self.spec(kind))

    def _look_at_rest(self, infos: tuple[ActorInfo, ...], spared: set[str]) -> None:
        for info in infos:
            if info.state != "running" or info.mailbox_depth:
                self.problems.append(f"{info.name} is {info.state} at rest, {info.mailbox_depth} messages wait for it")
            here = {child.name for child in info.children}
            if lost := [name for name in sorted(spared) if name.rpartition("/")[0] == info.name and name not in here]:
                self.problems.append(f"{lost[0]} is permanent, and was not started again")
            self._look_at_rest(info.children, spared)


def failing_first(kin: Kin) -> set[str]:
    """Names of permanent ones of which the first start fails, whose supervisors are permanent too."""
    found: set[str] = set()
    for kind in kin.children:
        if kind.restart is Restart.PERMANENT:
            if kind.fails:
                found.add(f"{kin.name}/{kind.id}")
            if kind.family is not None:
                found |= failing_first(kind.family)
    return found


def by_family(log: Log) -> dict[str, Log]:
    """What happened in each, in order; those that came later and end at one moment have no order."""
    families: dict[str, Log] = {}
    for entry in log:
        families.setdefault(entry[2].rpartition("/")[0], []).append(entry)
    return {name: _in_order(happened) for name, happened in families.items()}


def _in_order(happened: Log) -> Log:
    """With each run of ends that have none sorted: of those killed with their supervisor, of those that came later."""
    ordered: Log = []
    for (_, what, is_late), run in groupby(happened, key=lambda each: (each[0], each[1], "/x" in each[2])):
        together = list(run)
        ordered += sorted(together) if is_late or what == KILLED.value else together
    return ordered


def play(seed: int) -> list[str]:
    """What is not as promised, in one play of it."""
    world = World(seed)
    rng = world.rng
    world.first_starts()
    world.model.start({})
    world.go_on(0.0)
    world.settle()
    for _ in range(rng.choice((5, 15, 30))):
        if world.problems or world.is_down:
            break
        world.act()
        world.go_on(world.clock.now)
        world.go_on(world.clock.now + rng.choice((0.001, 0.01, 0.2, 1.0, 3.0)) * (0.5 + rng.random()))
        world.settle()
        world.compare_answers()
    if not world.problems and not world.is_down and rng.random() < 0.5:
        world.rush()
    if not world.problems and world.root.is_alive():
        orderly = world.system.shutdown(1_000)
        world.simulation.run_until_idle()
        if not orderly or world.system.statistics().actors:
            world.problems.append(f"the tree has not stopped: {world.system.statistics()}")
    world.simulation.close()
    if world.system.statistics().unaccounted:
        world.problems.append(f"not every message is accounted for: {world.system.statistics()}")
    return world.problems
