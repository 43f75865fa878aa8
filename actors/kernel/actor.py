"""What users of the kernel write: an Actor with handlers that are synchronous and short.

Long work is started elsewhere (a task, a process, a `runs_on="thread"` actor) and tells its result back.
"""

from typing import TYPE_CHECKING, Any, NoReturn

import pykka

from .errors import NotSpawned
from .monitors import Monitor
from .reply import Reply
from .scheduler import Timer

if TYPE_CHECKING:
    from .cell import Cell
    from .ref import Ref
    from .system import ActorSystem

__all__ = ["Actor"]


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


class Actor(pykka.Actor):
    """A Pykka actor that lives in an ActorSystem.

    `__init__` is free for the subclass and need not call ours; `self.ref` and `self.system` exist from `on_start` on.
    Any exception that escapes a handler, an ask's too, ends this incarnation and nothing else.
    """

    # Class attributes cost an instance nothing: 10,000 idle actors pay for what they use.
    _kernel_cell: "Cell | None" = None
    _kernel_timers: "set[SelfTimer]" = set()  # noqa: RUF012 - replaced by an own set at the first timer
    _kernel_monitors: "set[Monitor]" = set()  # noqa: RUF012 - likewise

    def __init__(self) -> None:
        """Nothing: pykka.Actor would make a UUID, an inbox, a threading.Event and a ref, 20 kB with its thread."""

    # -- what subclasses write --------------------------------------------------------------------------------

    def on_start(self) -> None:
        """Runs before the first message. An exception counts as a crash."""

    def on_receive(self, message: Any) -> Any:
        """Handle one message; what it returns answers an ask."""
        return super().on_receive(message)

    def on_stopping(self) -> bool:
        """Asked to stop: True to stop now. False to go on until `self.stopped()` is called or the deadline kills it."""
        return True

    def on_stop(self) -> None:
        """Runs last in an orderly stop. Not called after a crash or a kill."""

    # -- what subclasses use ----------------------------------------------------------------------------------

    @property
    def ref(self) -> "Ref":
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

    def tell_at(self, when_seconds: float, message: Any) -> Timer:
        """Send oneself a message, on the control lane, when `now()` has reached `when_seconds`."""
        timer = SelfTimer(self, when_seconds, message)
        if not self._kernel_timers:
            self._kernel_timers = set()
        self._kernel_timers.add(timer)
        return timer

    def tell_after(self, seconds: float, message: Any) -> Timer:
        """Send oneself a message, on the control lane, in `seconds`."""
        return self.tell_at(self.now() + seconds, message)

    def monitor(self, ref: "Ref") -> Monitor:
        """Get one `Down(ref, reason)` when that actor's present incarnation ends, at once if it is dead already."""
        if not self._kernel_monitors:
            self._kernel_monitors = set()
        return ref._cell.watch(self.ref.tell_control, self._kernel_monitors)

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

    def _kernel_leave(self) -> None:
        for timer in tuple(self._kernel_timers):
            timer.cancel()
        for monitor in tuple(self._kernel_monitors):
            monitor.cancel()
        self._kernel_cell = None
