"""What users of the kernel write: an Actor with handlers that are synchronous and short.

Long work is started elsewhere (a task, a process, a `runs_on="thread"` actor) and tells its result back.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn

import pykka

from .errors import NotSpawned, Rejected
from .handlers import Handler, M, check, collect, form_of, is_abstract, members
from .monitors import Monitor
from .reply import Reply
from .scheduler import Timer

if TYPE_CHECKING:
    from .cell import Cell
    from .ref import Ref
    from .system import ActorSystem

__all__ = ["Actor"]

logger = logging.getLogger("callboard.kernel")

#: Message classes a class remembers besides those it names: subclasses of these, or all where on_receive is overridden.
REMEMBERED = 1_000


class SelfTimer:
    """A message an actor has sent itself for later. Ends with the incarnation that set it."""

    __slots__ = ("_actor", "_message", "_timer")

    def __init__(self, actor: "Actor", when_seconds: float, message: Any) -> None:
        self._actor = actor
        self._message = message
        self._timer = actor.system.scheduler.call_at(when_seconds, self)

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


class Actor(pykka.Actor, Generic[M]):
    """A Pykka actor that lives in an ActorSystem. `Actor[Say | Stop]` takes these messages, each by its method:

        class Echo(Actor[Say | Stop]):
            @handles(Say)
            def _say(self, message: Say) -> str: ...
            @handles(Stop)
            def _stop(self, message: Stop) -> None: ...

    What it returns answers an ask. A member without a handler, or a handler of no member, is a TypeError when the class
    is made (but not for an abstract or generic class). Any other message is `Rejected`: a dead letter.
    Without brackets nothing is checked, and `on_receive` may be overridden to take everything.

    `__init__` is free for the subclass and need not call ours; `self.ref` and `self.system` exist from `on_start` on.
    Any exception that escapes a handler, an ask's too, ends this incarnation and nothing else.
    """

    # Class attributes cost an instance nothing: 10,000 idle actors pay for what they use.
    _kernel_cell: "Cell | None" = None
    _kernel_timers: "set[SelfTimer]" = set()  # noqa: RUF012 - replaced by an own set at the first timer
    _kernel_monitors: "set[Monitor]" = set()  # noqa: RUF012 - likewise
    _kernel_at_end: tuple[Callable[[], object], ...] = ()
    _kernel_form: Any = None
    """What stands in the brackets of the class."""
    _kernel_messages: tuple[type, ...] = ()
    _kernel_handlers: dict[type, Handler] = {}  # noqa: RUF012 - set by __init_subclass__
    """By class of message, as the methods are marked; filled further with the subclasses that come."""
    _kernel_dispatch: dict[type, Handler] = {}  # noqa: RUF012 - likewise
    """What the cell calls: the same, or `on_receive` for everything where a class overrides it."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        names = collect(cls)
        cls._kernel_form = form_of(cls, Actor)
        union = members(cls._kernel_form)
        overrides = cls.on_receive is not Actor.on_receive
        if union is not None and not (overrides or is_abstract(cls)):
            check(cls, union, names)
        cls._kernel_messages = tuple(names) if union is None else union
        cls._kernel_handlers = {kind: getattr(cls, name) for kind, name in names.items()}
        cls._kernel_dispatch = {} if overrides else cls._kernel_handlers

    @classmethod
    def messages(cls) -> tuple[type, ...]:
        """The classes of the messages it takes, in the order of the union."""
        return cls._kernel_messages

    def __init__(self) -> None:
        """Nothing: pykka.Actor would make a UUID, an inbox, a threading.Event and a ref, 20 kB with its thread."""

    # -- what subclasses write --------------------------------------------------------------------------------

    def on_start(self) -> None:
        """Runs before the first message. An exception counts as a crash."""

    def on_receive(self, message: Any) -> Any:
        """Handle one message, by the method that @handles it; what it returns answers an ask. Raises Rejected."""
        cls = type(self)
        handler = cls._kernel_handlers.get(type(message)) or cls._kernel_inherited(type(message))
        if handler is None:
            raise Rejected(f"{self.name} ({cls.__name__}) does not take a {type(message).__name__}")
        return handler(self, message)

    def on_stopping(self) -> bool:
        """Asked to stop: True to stop now. False to go on until `self.stopped()` is called or the deadline kills it."""
        return True

    def on_stop(self) -> None:
        """Runs last in an orderly stop. Not called after a crash or a kill."""

    # -- what subclasses use ----------------------------------------------------------------------------------

    @property
    def ref(self) -> "Ref[M]":
        """This actor's address; stays valid when a supervisor restarts it."""
        return self._kernel_here().ref

    @property
    def name(self) -> str:
        """Unique among the live actors of its system."""
        return self._kernel_here().name

    @property
    def system(self) -> "ActorSystem":
        """The system it lives in."""
        return self._kernel_here().system

    def now(self) -> float:
        """The scheduler's time in seconds."""
        return self._kernel_here().system.scheduler.now()

    def tell_at(self, when_seconds: float, message: M) -> Timer:
        """Send oneself a message, on the control lane, when `now()` has reached `when_seconds`."""
        timer = SelfTimer(self, when_seconds, message)
        if not self._kernel_timers:
            self._kernel_timers = set()
        self._kernel_timers.add(timer)
        return timer

    def tell_after(self, seconds: float, message: M) -> Timer:
        """Send oneself a message, on the control lane, in `seconds`."""
        return self.tell_at(self.now() + seconds, message)

    def monitor(self, ref: "Ref[Never]") -> Monitor:
        """Get one `Down(ref, reason)` when that actor's present incarnation ends, at once if it is dead already."""
        if not self._kernel_monitors:
            self._kernel_monitors = set()
        myself: Ref = self.ref
        return ref._cell.watch(myself.tell_control, self._kernel_monitors)

    def children(self, ref: "Ref[Never]") -> "tuple[Ref, ...]":
        """The present children of a supervisor, in order of their start; also those that wait for a restart.

        A snapshot, without waiting.
        """
        cell = ref._cell
        with cell.system.lock:
            return tuple(child.ref for child in (cell.children or {}).values())

    def at_end(self, callback: Callable[[], object]) -> None:
        """Call once, however this incarnation ends: stop, crash or kill. The last one set is called first.

        At once when it has ended already, as a killed handler on a thread may find. An exception is logged.
        """
        cell = self._kernel_cell
        if cell is not None:
            with cell.system.lock:
                if self._kernel_cell is not None:
                    self._kernel_at_end = (*self._kernel_at_end, callback)
                    return
        elif "_actor_ref" not in self.__dict__:
            self._kernel_here()
        _contained(callback)

    def stop(self) -> None:
        """Stop after this message; what still waits becomes dead letters."""
        self._kernel_here().ask_to_stop()

    def stopped(self) -> None:
        """End the stop that `on_stopping` put off."""
        self._kernel_here().finish_stopping()

    # -- Pykka ------------------------------------------------------------------------------------------------

    @classmethod
    def start(cls, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Pykka's way to start an actor; refused, since it puts the actor into the process-global registry."""
        raise NotSpawned(f"{cls.__name__}.start() is Pykka's; use ActorSystem.spawn(lambda: {cls.__name__}(...), name)")

    @staticmethod
    def _create_future() -> Reply:
        return Reply()

    @staticmethod
    def _create_actor_inbox() -> NoReturn:
        raise NotSpawned("the mailbox belongs to the ref, since it outlives the actor")

    def _start_actor_loop(self) -> NoReturn:
        raise NotSpawned("the ActorSystem runs its actors itself")

    # -- the cell's side --------------------------------------------------------------------------------------

    def _kernel_here(self) -> "Cell":
        if self._kernel_cell is None:
            raise NotSpawned(
                f"{type(self).__name__} is not running; ref, name and system exist from on_start to its end"
            )
        return self._kernel_cell

    def _kernel_enter(self, cell: "Cell") -> None:
        if self._kernel_cell is not None or "_actor_ref" in self.__dict__:
            raise NotSpawned(f"the factory of {cell.name} returned an actor that has lived before; make a new one")
        self._kernel_cell = cell
        self._actor_ref = cell.ref
        self.actor_urn = cell.name

    @classmethod
    def _kernel_inherited(cls, kind: type) -> Handler | None:
        """The handler of the nearest base of that message class, remembered for the next one."""
        handler = next((cls._kernel_handlers[base] for base in kind.__mro__ if base in cls._kernel_handlers), None)
        if handler is not None and len(cls._kernel_handlers) < REMEMBERED:
            cls._kernel_handlers[kind] = handler
        return handler

    @classmethod
    def _kernel_resolve(cls, kind: type) -> Handler:
        """What handles a message class that `_kernel_dispatch` does not know (yet)."""
        if cls.on_receive is not Actor.on_receive and len(cls._kernel_dispatch) < REMEMBERED:
            cls._kernel_dispatch[kind] = cls.on_receive
        return cls.on_receive

    def _kernel_leave(self, cell: "Cell") -> None:
        while True:
            with cell.system.lock:
                if not self._kernel_at_end:
                    self._kernel_cell = None
                    break
                *left, callback = self._kernel_at_end
                self._kernel_at_end = tuple(left)
            _contained(callback)
        for timer in tuple(self._kernel_timers):
            timer.cancel()
        for monitor in tuple(self._kernel_monitors):
            monitor.cancel()


def _contained(callback: Callable[[], object]) -> None:
    try:
        callback()
    except BaseException:
        logger.exception("an exception escaped %r at the end of an actor", callback)
