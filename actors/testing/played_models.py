"""The LLM manager under calls that begin, are stopped, come again and overlap, and crash with it, beside accounts of
each (model_accounts.py); and the reader of a provider's stream, beside what that stream is.

    python -m callboard.actors.testing plays models --seeds 1000

`play(seed)` says what is not as promised, one sentence each; the same for the same seed.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.kernel import Actor, ActorSystem, ChildSpec, MailboxFull, Supervisor
from callboard.actors.models.llm_manager import Emit, End, LlmManager, Route, StartModel
from callboard.actors.models.refusals import Refusals
from callboard.actors.models.token_ratios import TokenRatios
from callboard.actors.testing import played_streams
from callboard.actors.testing.model_accounts import (
    OF_THE_MODEL,
    Account,
    Gate,
    Happened,
    Piece,
    Planned,
    UnknownModel,
    World,
    settle_accounts,
)
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.protocol.commands import CallModel, StopModel
from callboard.protocol.content import Text, UserMessage
from callboard.protocol.errors import RETRYABLE_KINDS, ErrorKind
from callboard.protocol.events import ModelFailed, ModelNoted
from callboard.protocol.ids import MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import CallPurpose, Error, ModelRequest, ModelResponse, TextDelta, Usage
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.tools import ToolDefinition
from callboard.providers.adapter import Provider
from callboard.providers.retry import RetryPolicy

#: Sums of virtual times, in seconds.
EPSILON: Final = 1e-6
MODELS: Final = ("sim/a", "sim/b", "sim/unknown", "sim/fails")
_TOOLS: Final = (ToolDefinition(ToolName("look"), "Looks."),)
_SCHEMAS: Final[tuple[dict[str, object], ...]] = ({"type": "object"}, {"type": "object", "properties": {}})
_KINDS: Final = (
    *(ErrorKind.SERVER, ErrorKind.OVERLOADED, ErrorKind.RATE_LIMITED, ErrorKind.TRUNCATED) * 3,
    ErrorKind.BILLING, ErrorKind.QUOTA_SPENT, ErrorKind.NOT_FOUND, ErrorKind.UNSUPPORTED,
    ErrorKind.AUTHENTICATION, ErrorKind.INVALID_REQUEST,
    *(ErrorKind.TOOLS_UNSUPPORTED,) * 4, ErrorKind.SCHEMA_UNSUPPORTED, ErrorKind.CONTEXT_LENGTH,
    ErrorKind.MALFORMED_TOOL_CALL,
)  # fmt: skip


class _Provider(Struct, frozen=True):
    """Of a route: the play says what its streams are."""

    name: str


class _Session(Struct, eq=False):
    """Hears of one call: the address that its StartModel names."""

    stage: Stage
    number: int

    def tell_control(self, event: Any) -> None:
        """Always taken."""
        self.stage.sees("told", self.number, event)

    def tell(self, event: Any) -> None:
        """Where there is room."""
        if self.stage.is_full(self.number, self.stage.scheduler.now()):
            raise MailboxFull("no room")
        self.stage.sees("told", self.number, event)

    def is_alive(self) -> bool:
        """A session is not asked for in these plays."""
        return True


class _Request(Struct, eq=False):
    """One that runs: it says its pieces in turn, each when there is room for it."""

    stage: Stage
    call: int
    number: int
    emit: Emit
    end: End
    plan: Planned
    said: int = 0
    is_cancelled: bool = False

    def wait(self) -> None:
        """For what comes next."""
        pieces, plan = self.plan.pieces, self.plan
        if self.said < len(pieces):
            self.stage.after(pieces[self.said].after_seconds, self.go_on)
        elif plan.response is not None:
            self.stage.after(plan.after_seconds, self.go_on)

    def go_on(self) -> None:
        """Say it."""
        if self.is_cancelled:
            return
        if self.said == len(self.plan.pieces):
            assert self.plan.response is not None
            self.end(self.plan.response)
            return
        try:
            self.emit(list(self.plan.pieces[self.said].events))
        except MailboxFull:
            self.stage.after(0.01, self.go_on)
            return
        self.said += 1
        self.wait()

    def cancel(self) -> None:
        """Nothing more of it is wanted."""
        if not self.is_cancelled:
            self.stage.sees("cancelled", self.call, self.number)
        self.is_cancelled = True


class _Manager(LlmManager):
    """It says what it reads, and crashes as it is told to."""

    stage: Stage

    def on_receive(self, message: Any) -> Any:
        if message == "crash":
            self.stage.crashes()
            raise SystemExit("told to")
        self.stage.reads(message)
        return super().on_receive(message)


class Stage:
    """One play: some calls, in virtual time."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"models {seed}")
        self.scheduler = SimulatedScheduler(seed)
        self.seen: list[Happened] = []
        self.problems: list[str] = []
        self.calls: list[StartModel] = []
        self.accounts: dict[int, Account] = {}
        self.sent: Counter[int] = Counter()
        self.ratios, self.refusals = TokenRatios(), Refusals()
        self.gates = [self._gate(f"gate {number}") for number in range(3)]
        self.routes_of = {model: self._routes(model) for model in MODELS}
        self.hard_up = rng.random()
        """The share of requests that fail."""
        self.quiet = rng.choice((0.0, 0.0, 0.3))
        """The share of sessions that have no room at times."""
        self.world = World(self.planned, self.routes, self.renewed, self.cost, self.is_full)
        self.system = ActorSystem(self.scheduler)
        spec = ChildSpec("llm_manager", self._manager)
        self.system.spawn(lambda: Supervisor([spec], intensity=100, chance=lambda: 0.5), "root")
        while self.scheduler.step(0.0):
            pass
        self.manager = self.system.ref("root/llm_manager")

    def _manager(self) -> Actor[Any]:
        manager = _Manager(
            self.routes, self._start, RetryPolicy(chance=lambda: 0.5), lambda name, usage, *_: self.cost(name, usage),
            self.ratios, self.refusals, self.renewed,
        )  # fmt: skip
        manager.stage = self
        return manager

    # -- what there is

    def _gate(self, name: str) -> Gate:
        rng = self.rng
        starts = [rng.uniform(0.0, 40.0) for _ in range(rng.choice((0, 1, 3)))]
        closed = tuple((start, start + rng.choice((0.7, 5.3, 200.9))) for start in starts)
        return Gate(name, closed, rng.random() < 0.5, self.scheduler.now)

    def _routes(self, model: str) -> tuple[Route, ...]:
        rng, name = self.rng, model.partition("/")[2]
        gates: list[Any] = [rng.choice((None, None, *self.gates)) for _ in range(3)]
        providers: list[Any] = [_Provider(f"provider {n}") for n in range(3)]
        own = Route(providers[0], name, gates[0], listed_as=model)
        more = (Route(providers[n], f"{name}{n}", gates[n], listed_as=f"sim{n}/{name}") for n in (1, 2))
        return (own, *more)[: rng.choice((1, 2, 3))]

    def routes(self, model: str) -> Sequence[Route]:
        """By the name of a model."""
        if model == "sim/unknown":
            raise UnknownModel("no such model")
        if model == "sim/fails":
            raise RuntimeError("told to")
        return self.routes_of[model]

    def renewed(self, route: Route) -> Route:
        """One that a question brought, as it is now."""
        provider: Any = _Provider(f"new {route.provider.name}")
        return replace(route, provider=provider)

    def cost(self, name: str, usage: Usage | None) -> float | None:
        """By the name of the route."""
        if usage is None or name == "sim2/a":
            return None
        if name == "sim1/b" and usage.output_tokens == 7:
            raise RuntimeError("told to")
        return usage.input_tokens * 0.001 + usage.output_tokens * (0.01 if name.startswith("sim/") else 0.02)

    def is_full(self, number: int, now: float) -> bool:
        """In some sessions there is no room for 0.3 s of each 2 s."""
        draw = random.Random(f"full {number} {self.quiet}").random()
        return draw < self.quiet and (now + draw) % 2.0 < 0.3

    def planned(self, call: int, number: int) -> Planned:
        """What this request comes to."""
        rng = random.Random(f"plan {self.hard_up} {call} {number}")
        usage = rng.choice((None, Usage(), Usage(2_000, 7), Usage(rng.randrange(1, 9_000), rng.randrange(200))))
        words = [f"{call}.{number}.{n} " for n in range(rng.choice((0, 0, 1, 2, 4)))]
        pieces = tuple(Piece(rng.uniform(0.01, 2.0), (TextDelta(word),)) for word in words)
        parts = (Text("".join(words)),) if words else ()
        after = rng.uniform(0.01, 3.0)
        if rng.random() >= self.hard_up:
            return Planned(pieces, after, ModelResponse(parts, usage=usage))
        if rng.random() < 0.15:
            return Planned(pieces, cannot_start=rng.random() < 0.3)
        kind = rng.choice(_KINDS)
        asks = rng.choice((None, None, 0.0, 3.3, 30.1, 400.0)) if kind in RETRYABLE_KINDS else None
        window = rng.choice((None, 4_096, 8_192)) if kind is ErrorKind.CONTEXT_LENGTH else None
        said = rng.choice(("planned", OF_THE_MODEL))
        error = Error(
            kind, said, kind in RETRYABLE_KINDS and rng.random() < 0.9, asks, status=400,
            at_once=rng.random() < 0.1, context_tokens=window,
        )  # fmt: skip
        if not pieces and rng.random() < 0.5:  # a stream that says no more than that
            pieces = (Piece(0.0, (error,)),)
        used = usage if parts else rng.choice((None, None, usage))
        return Planned(pieces, after, ModelResponse(parts, usage=used, error=error))

    def _call(self, number: int, now: float, *, is_first: bool) -> StartModel:
        rng = self.rng
        model = rng.choice((*MODELS[:2] * 6, *MODELS[2:]))
        schema = rng.choice((None, None, None, *_SCHEMAS))
        extra = tuple(
            ExtraFields({"n": n}, provider=name) for n, name in enumerate(rng.choice(((), ("", "sim", "sim1"))))
        )
        request = ModelRequest(
            model, (UserMessage.of(f"call {number}"),), tools=rng.choice(((), _TOOLS)), response_schema=schema,
            provider_options=extra,
        )  # fmt: skip
        tag = Tag(RequestId(f"r{number}"), MessageId("m"), 1)
        earlier = [each.asked.call.tag for each in self.accounts.values() if each.begun_at < now]
        if earlier and is_first and rng.random() < 0.15:
            tag = rng.choice(earlier)  # it is asked once more, by a session that was told of a loss
        call = CallModel(
            tag, request, now + rng.choice((3.1, 20.3, 60.7, 600.1)) * rng.uniform(0.5, 1.5),
            now + rng.uniform(0.1, 4.0) if rng.random() < 0.2 else 0.0,
            rng.choice((1, 2, 3, 4, 8)), rng.choice((0, 900, 1_500, 4_000)),
            rng.choice((CallPurpose.TURN, CallPurpose.TURN, CallPurpose.SUMMARY)),
        )  # fmt: skip
        routes: Sequence[Route] = ()
        if model in MODELS[:2] and rng.random() < 0.4:
            routes = self.routes_of[rng.choice(MODELS[:2])]
            if rng.random() < 0.3:  # it goes on with a fallback
                routed = replace(request, model=rng.choice(routes).name)
                call = replace(call, request=routed)
                routes = self.routes_of["sim/" + routed.model.partition("/")[2]]
        address: Any = _Session(self, number)
        return StartModel(call, address, Context(), rng.random() < 0.6, routes)

    # -- what happens

    def sees(self, what: str, call: int, detail: Any) -> None:
        """Of the manager, from outside."""
        self.seen.append(Happened(self.scheduler.now(), what, call, detail))

    def after(self, seconds: float, run: Callable[[], object]) -> None:
        """In virtual time."""
        self.scheduler.call_at(self.scheduler.now() + seconds, run)

    def _start(self, provider: Provider, request: ModelRequest, emit: Emit, end: End, asker: Context | None) -> Any:
        asked = request.messages[0]
        assert isinstance(asked, UserMessage)
        number = int(asked.text.partition(" ")[2])
        self.sent[number] += 1
        plan = self.planned(number, self.sent[number])
        if asker is not self.calls[number].asker:
            self.problems.append(f"call {number} runs in the context of another")
        if plan.cannot_start:
            raise OSError("told to")
        self.sees("asked", number, (provider.name, request))
        running = _Request(self, number, self.sent[number], emit, end, plan)
        running.wait()
        return running

    def reads(self, message: Any) -> None:
        """The manager has this one before it."""
        now = self.scheduler.now()
        if not isinstance(message, (StartModel, StopModel)):
            return
        tag = message.tag if isinstance(message, StopModel) else message.call.tag
        for account in self.accounts.values():
            if account.asked.call.tag == tag:
                account.stopped_at = min(account.stopped_at, now)
        if isinstance(message, StartModel):
            number = next(n for n, each in enumerate(self.calls) if each is message)
            self.accounts[number] = Account(self.world, number, message, now)

    def crashes(self) -> None:
        """It is about to: what it has open is lost."""
        self.world.crashes.append(self.scheduler.now())
        for account in self.accounts.values():
            account.stopped_at = min(account.stopped_at, self.scheduler.now())

    def _do(self) -> None:
        rng = self.rng
        deed = rng.choice(("begin", "begin", "begin", "begin", "stop", "crash" if rng.random() < 0.3 else "stop"))
        if deed == "crash":
            self.manager.tell_control("crash")
        for place in range(rng.choice((1, 1, 2)) if deed != "stop" else 0):
            started = self._call(len(self.calls), self.scheduler.now(), is_first=place == 0)
            self.calls.append(started)
            self.manager.tell_control(started)
        if deed != "begin" and self.calls:
            self.manager.tell_control(StopModel(rng.choice(self.calls).call.tag))

    def play(self) -> list[str]:
        """Until nothing is left to do."""
        at = 0.0
        for _ in range(self.rng.choice((1, 2, 4, 8))):
            self.scheduler.call_at(at, self._do)
            at += self.rng.choice((0.1, 0.4, 3.0, 30.0)) * self.rng.uniform(0.5, 1.5)
        while self.scheduler.step():
            if self.scheduler.steps > 20_000:
                return ["the manager never comes to rest"]
        return [*self.problems, *self._compared()]

    # -- what should have happened

    def _compared(self) -> Iterable[str]:
        for number, account in self.accounts.items():
            ends = [each for each in self.seen if each.call == number and isinstance(each.detail, ModelFailed)]
            timeouts = [each.detail.at for each in ends if each.detail.error.kind is ErrorKind.TIMEOUT]
            account.over_at = timeouts[0] if timeouts and timeouts[0] >= account.asked.call.deadline_at + 1.0 else None
        settle_accounts(list(self.accounts.values()))
        for number in range(len(self.calls)):
            due = sorted((each for each in self.world.book if each.call == number), key=lambda each: each.at)
            seen = [each for each in self.seen if each.call == number]
            yield from _differ(number, due, seen)
        yield from self._learned()

    def _learned(self) -> Iterable[str]:
        """What was kept of models and limits."""
        now, world = self.scheduler.now(), self.world
        for name in {route.name for routes in self.routes_of.values() for route in routes}:
            tokens, until = world.windows.get(name, (None, now))
            pairs = {
                "takes tools": (self.refusals.takes_tools(name, now), world.no_tools.get(name, now) <= now),
                **{
                    f"takes {schema}": (
                        self.refusals.takes_schemas(name, now, schema),
                        world.takes(name, str(schema), now),
                    )
                    for schema in _SCHEMAS
                },
                "window": (self.refusals.window(name, now), tokens if until > now else None),
                "ratio": (round(self.ratios.ratio(name), 9), round(max(world.ratios.get(name, 1.0), 1.0), 9)),
            }
            for what, (kept, due) in pairs.items():
                if kept != due:
                    yield f"of {name} is kept, {what}: {kept}, due is {due}"
        for gate in self.gates:
            told, due_of_it = tuple(sorted(gate.settled)), tuple(sorted(world.settled.get(gate.name, [])))
            if not _alike(due_of_it, told):
                yield f"{gate.name} was told {told}, due is {due_of_it}"


def _differ(number: int, due: list[Happened], seen: list[Happened]) -> Iterable[str]:
    """The first thing that is not as it should be. What happens at one moment to one call has its order."""
    for place, wanted in enumerate(due):
        if place == len(seen):
            yield f"call {number}: nothing more happens, due is {wanted}"
            return
        if not _same(wanted, seen[place]):
            yield f"call {number}: due is {wanted}, and there is {seen[place]}"
            return
    if len(seen) > len(due):
        yield f"call {number}: nothing more is due, and there is {seen[len(due)]}"


def _same(due: Happened, seen: Happened) -> bool:
    if due.what != seen.what or not _alike(due.at, seen.at):
        return False
    wanted, found = due.detail, seen.detail
    if isinstance(found, ModelNoted):
        if not all(name in found.text for name in due.names):
            return False
        found = replace(found, text="")
    if isinstance(found, ModelFailed) and isinstance(wanted, ModelFailed) and not wanted.error.message:
        told = Error(found.error.kind, "", wanted.error.retryable, wanted.error.retry_after)
        found = replace(found, error=told)
    return _alike(wanted, found)


def _alike(due: Any, found: Any) -> bool:
    """The same, but for what sums of floats lose."""
    if isinstance(due, float) and isinstance(found, (int, float)):
        return math.isclose(due, found, abs_tol=EPSILON)
    if type(due) is not type(found):
        return False
    if isinstance(due, tuple) and not hasattr(due, "_fields"):
        return len(due) == len(found) and all(_alike(*pair) for pair in zip(due, found, strict=True))
    names = getattr(due, "__struct_fields__", None)
    if names is None or due == found:
        return bool(due == found)
    return all(_alike(getattr(due, name), getattr(found, name)) for name in names)


def play(seed: int) -> list[str]:
    """What is not as promised, in one play of each."""
    return [*Stage(seed).play()[:3], *played_streams.play(seed)]
