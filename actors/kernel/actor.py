"""What users of the kernel write: an Actor with handlers that are synchronous and short.

Long work is started elsewhere (a task, a process, a `runs_on="thread"` actor) and tells its result back.
"""

from abc import ABC
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Final, Generic, Never, NoReturn, TypeVar, Union, get_args, get_origin, overload

import typing_extensions

from .errors import AskTimeout, NotSpawned, Rejected, contained
from .ref import ASK_TIMEOUT_SECONDS, Down, M, Monitor, Place, Ref, System
from .reply import Answer, Reply
from .scheduler import Timer

#: What an actor takes, for functions that make an address of a factory.
Message = TypeVar("Message")
_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_Self = TypeVar("_Self")

Handler = Callable[..., object]
"""A method before it is bound: the actor, the message."""

_MARK: Final = "_handles"
#: Message classes a class remembers besides those it names: subclasses of these, or all where on_receive is overridden.
REMEMBERED: Final = 1_000


# -- which method takes which message -------------------------------------------------------------------------


@overload
def handles(first: type[_A], /) -> Callable[[Callable[[_Self, _A], Answer]], Callable[[_Self, _A], Answer]]: ...
@overload
def handles(
    first: type[_A], second: type[_B], /
) -> Callable[[Callable[[_Self, _A | _B], Answer]], Callable[[_Self, _A | _B], Answer]]: ...
@overload
def handles(
    first: type[_A], second: type[_B], third: type[_C], /
) -> Callable[[Callable[[_Self, _A | _B | _C], Answer]], Callable[[_Self, _A | _B | _C], Answer]]: ...
@overload
def handles(*kinds: type[_A]) -> Callable[[Callable[[_Self, _A], Answer]], Callable[[_Self, _A], Answer]]: ...


def handles(*kinds: type) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Mark the method that takes messages of these classes, and of their subclasses.

    For a long union: `@handles(*get_args(Event))`, which a type checker cannot check.
    """

    def mark(method: Callable[..., Answer]) -> Callable[..., Answer]:
        setattr(method, _MARK, (*getattr(method, _MARK, ()), *kinds))
        return method

    return mark


def _marked(cls: type) -> dict[type, str]:
    """Message class -> name of the method that handles it, of this class and its bases."""
    names: dict[type, str] = {}
    for base in reversed(cls.__mro__):
        own: dict[type, str] = {}
        for name, value in vars(base).items():
            for kind in getattr(value, _MARK, ()):
                if own.setdefault(kind, name) != name:
                    raise TypeError(f"{base.__qualname__}: {own[kind]} and {name} both handle {kind.__name__}")
        names.update(own)
    return names


def _union(cls: type) -> object:
    """The type in the brackets of `Actor[...]`, also through a generic class in between; None when there is none."""
    for alias in vars(cls).get("__orig_bases__", ()):
        base = get_origin(alias)
        if isinstance(base, type) and issubclass(base, Actor):
            if base is Actor:
                return get_args(alias)[0]
            union = base._kernel_union
            given = dict(zip(_variables(base), get_args(alias), strict=True))
            chosen = tuple(given[each] for each in _variables(union))
            return chosen[0] if isinstance(union, TypeVar) else union[chosen] if chosen else union  # type: ignore[index]
    return next(base._kernel_union for base in cls.__mro__[1:] if issubclass(base, Actor))


def _variables(form: object) -> tuple[TypeVar, ...]:
    return (form,) if isinstance(form, TypeVar) else tuple(getattr(form, "__parameters__", ()))


def _members(union: object) -> list[type]:
    """The classes of a union, in order."""
    if isinstance(union, typing_extensions.TypeAliasType):
        return _members(union.__value__)
    origin = get_origin(union)
    if origin in (Union, UnionType):
        return [kind for each in get_args(union) for kind in _members(each)]
    kind = NoneType if union is None else origin or union
    if not isinstance(kind, type):
        raise TypeError(f"Actor[...] takes a class or a union of classes, not {union!r}")
    return [kind]


def _check(cls: type, taken: tuple[type, ...], names: Mapping[type, str]) -> None:
    missing = [kind.__name__ for kind in taken if kind not in names]
    if missing:
        raise TypeError(f"{cls.__qualname__} takes {', '.join(missing)} but has no method with @handles for it")
    strange = [f"{name} handles {kind.__name__}" for kind, name in names.items() if kind not in taken]
    if strange:
        raise TypeError(f"{cls.__qualname__}: {'; '.join(strange)}, which is not among the messages it takes")


def _is_abstract(cls: type) -> bool:
    return ABC in cls.__bases__ or any(getattr(value, "__isabstractmethod__", False) for value in vars(cls).values())


# -- the actor ------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False, repr=False)
class SelfTimer:
    """A message an actor has sent itself for later. Ends with the incarnation that set it."""

    _actor: "Actor[Never]"
    _message: object
    _timer: Timer = field(init=False)

    def __call__(self) -> None:
        actor = self._actor
        actor._kernel_timers.discard(self)
        if actor._kernel_cell is not None:
            # The control lane: a deadline has to be noticed most of all when the actor is flooded.
            actor._kernel_cell.ref.tell_control(self._message)

    def describe(self) -> str:
        """For traces."""
        return f"timer {self._actor.name} {type(self._message).__name__}"

    def cancel(self) -> None:
        """Do not send it."""
        self._actor._kernel_timers.discard(self)
        self._timer.cancel()


class Actor(Generic[M]):
    """An actor, which lives in an ActorSystem. `Actor[Say | Stop]` takes these messages, each by its method:

        class Echo(Actor[Say | Stop]):
            @handles(Say)
            def _say(self, message: Say) -> str: ...
            @handles(Stop)
            def _stop(self, message: Stop) -> None: ...

    What it returns answers an ask. A member without a handler, or a handler of no member, is a TypeError when the class
    is made (but not for an abstract or generic class). Any other message is `Rejected`: a dead letter. Without brackets
    nothing is checked, and `on_receive` may be overridden to take everything. Any exception that escapes a handler, an
    ask's too, ends this incarnation and nothing else.

    A subclass's `__init__` need not call ours; `self.ref` and `self.system` exist from `on_start` on.
    """

    # Class attributes cost an instance nothing: 10,000 idle actors pay for what they use.
    _kernel_cell: Place | None = None
    _kernel_ended: bool = False
    _kernel_timers: set[SelfTimer] = set()  # noqa: RUF012 - replaced by an own set at the first timer
    _kernel_monitors: set[Monitor] = set()  # noqa: RUF012 - likewise
    _kernel_at_end: tuple[Callable[[], object], ...] = ()
    _kernel_union: object = None
    """The type in the brackets of the class."""
    _kernel_messages: tuple[type, ...] = ()
    _kernel_handlers: dict[type, Handler] = {}  # noqa: RUF012 - set by __init_subclass__
    """By class of message, as the methods are marked; filled further with the subclasses that come."""
    _kernel_dispatch: dict[type, Handler] = {}  # noqa: RUF012 - likewise
    """What the cell calls: the same, or `on_receive` for everything where a class overrides it."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        names = _marked(cls)
        union = cls._kernel_union = _union(cls)
        is_open = union is None or getattr(union, "__name__", "") == "Any" or bool(_variables(union))
        overrides = cls.on_receive is not Actor.on_receive
        cls._kernel_messages = tuple(names) if is_open else tuple(dict.fromkeys(_members(union)))
        if not (is_open or overrides or _is_abstract(cls)):
            _check(cls, cls._kernel_messages, names)
        cls._kernel_handlers = {kind: getattr(cls, name) for kind, name in names.items()}
        cls._kernel_dispatch = {} if overrides else cls._kernel_handlers

    @classmethod
    def messages(cls) -> tuple[type, ...]:
        """The classes of the messages it takes, in the order of the union."""
        return cls._kernel_messages

    # -- what subclasses write --------------------------------------------------------------------------------

    def on_start(self) -> None:
        """Runs before the first message. An exception counts as a crash."""

    def on_receive(self, message: M) -> object:
        """Handle one message, by the method that @handles it; what it returns answers an ask. Raises Rejected."""
        cls, kind = type(self), type(message)
        handler = cls._kernel_handlers.get(kind)
        if handler is None:
            handler = next((cls._kernel_handlers[base] for base in kind.__mro__ if base in cls._kernel_handlers), None)
            if handler is None:
                raise Rejected(f"{self.name} ({cls.__name__}) does not take a {kind.__name__}")
            if len(cls._kernel_handlers) < REMEMBERED:
                cls._kernel_handlers[kind] = handler
        return handler(self, message)

    def on_stopping(self) -> bool:
        """Asked to stop: True to stop now. False to go on until `self.stopped()` is called or the deadline kills it."""
        return True

    def on_stop(self) -> None:
        """Runs last in an orderly stop. Not called after a crash or a kill."""

    def on_abandoned(self) -> None:
        """With `runs_on="thread"`: this actor was killed in a handler, which has returned now. Let go of what it holds,
        such as processes; the next incarnation may have begun, and what is told or written here would be its."""

    # -- what subclasses use ----------------------------------------------------------------------------------

    @property
    def ref(self) -> Ref[M]:
        """This actor's address; stays valid when a supervisor restarts it."""
        return self._kernel_here().ref

    @property
    def name(self) -> str:
        """Unique among the live actors of its system."""
        return self._kernel_here().name

    @property
    def system(self) -> System:
        """The system it lives in."""
        return self._kernel_here().system

    def now(self) -> float:
        """The scheduler's time in seconds."""
        return self._kernel_here().system.now()

    def tell_at(self, when_seconds: float, message: M, *, lived: bool = False) -> Timer:
        """Send oneself a message, on the control lane, when `now()` has reached `when_seconds`.

        `lived`: time in which this process was stopped does not count."""
        timer = SelfTimer(self, message)
        timer._timer = self.system.scheduler.call_at(when_seconds, timer, lived=lived)
        if not self._kernel_timers:
            self._kernel_timers = set()
        self._kernel_timers.add(timer)
        return timer

    def tell_after(self, seconds: float, message: M) -> Timer:
        """Send oneself a message, on the control lane, in `seconds`."""
        return self.tell_at(self.now() + seconds, message)

    def tell_answer(
        self, reply: Reply, to_message: Callable[[Reply], M], timeout_seconds: float = ASK_TIMEOUT_SECONDS
    ) -> None:
        """Send oneself `to_message(reply)`, on the control lane, when an ask is answered, so that no handler waits.

        For what `ref.ask(..., block=False)` or `ask_pykka` returned; `reply.result()` has the answer, or raises what
        went wrong: AskTimeout after `timeout_seconds`. Ends with this incarnation.
        """
        cell = self._kernel_here()
        late = AskTimeout(f"{cell.name} had no answer within {timeout_seconds} s")
        timer = cell.system.scheduler.call_at(self.now() + timeout_seconds, lambda: reply.fail(late))

        def answered() -> None:
            timer.cancel()
            if self._kernel_cell is not None:
                cell.ref.tell_control(to_message(reply))

        reply.on_done(answered)

    def monitor(self, ref: Ref[Never]) -> Monitor:
        """Get one `Down(ref, reason)` when that actor's present incarnation ends, at once if it is dead already.

        Raises TypeError when this actor has no handler for it.
        """
        cls = type(self)
        if cls.on_receive is Actor.on_receive and Down not in cls._kernel_handlers:
            raise TypeError(f"{cls.__qualname__} monitors {ref.name} but has no method with @handles(Down)")
        if not self._kernel_monitors:
            self._kernel_monitors = set()
        return ref._cell.watch(self._kernel_here().ref.tell_control, self._kernel_monitors)

    def children(self, ref: Ref[Never]) -> tuple[Ref, ...]:
        """A snapshot of a supervisor's children, in order of their start; also those that wait for a restart."""
        cell = ref._cell
        with cell.system.lock:
            return tuple(child.ref for child in cell.children.values())

    def at_end(self, callback: Callable[[], object]) -> None:
        """Call once, however this incarnation ends: stop, crash or kill. The last one set is called first.

        At once when it has ended already, as a killed handler on a thread may find. An exception is logged.
        """
        cell = self._kernel_cell
        if cell is None and not self._kernel_ended:
            self._kernel_here()
        if cell is not None:
            with cell.system.lock:
                if self._kernel_cell is not None:
                    self._kernel_at_end = (*self._kernel_at_end, callback)
                    return
        contained(callback, "the end of an actor")

    def stop(self) -> None:
        """Stop after this message; what still waits becomes dead letters."""
        self._kernel_here().ask_to_stop()

    def stopped(self) -> None:
        """End the stop that `on_stopping` put off."""
        self._kernel_here().finish_stopping()

    @classmethod
    def start(cls, *_arguments: object, **_options: object) -> NoReturn:
        """Pykka's way to start an actor; refused: ours live in an ActorSystem, not in a process-global registry."""
        raise NotSpawned(f"{cls.__name__}.start() is Pykka's; use ActorSystem.spawn(lambda: {cls.__name__}(...), name)")

    # -- the cell's side --------------------------------------------------------------------------------------

    def _kernel_here(self) -> Place:
        if self._kernel_cell is None:
            raise NotSpawned(f"{type(self).__name__} is not running; ref, name and system exist from on_start on")
        return self._kernel_cell

    def _kernel_enter(self, cell: Place) -> None:
        if self._kernel_cell is not None or self._kernel_ended:
            raise NotSpawned(f"the factory of {cell.name} returned an actor that has lived before; make a new one")
        self._kernel_cell = cell

    @classmethod
    def _kernel_handler(cls, kind: type) -> Handler:
        """What handles a message class, also one that comes for the first time."""
        handler = cls._kernel_dispatch.get(kind)
        if handler is None:
            handler = cls.on_receive
            if handler is not Actor.on_receive and len(cls._kernel_dispatch) < REMEMBERED:
                cls._kernel_dispatch[kind] = handler
        return handler

    def _kernel_leave(self, cell: Place) -> None:
        while True:
            with cell.system.lock:
                if not self._kernel_at_end:
                    self._kernel_ended, self._kernel_cell = True, None
                    break
                *left, callback = self._kernel_at_end
                self._kernel_at_end = tuple(left)
            contained(callback, f"the end of {cell.name}")
        for timer in tuple(self._kernel_timers):
            timer.cancel()
        for monitor in tuple(self._kernel_monitors):
            monitor.cancel()
