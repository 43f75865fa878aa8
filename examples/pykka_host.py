"""A program with Pykka actors of its own, and a supervised actor of callboard's among them.

    python examples/pykka_host.py

The till is a Pykka actor of the host. The stock is an actor of ours, which a supervisor starts again when it crashes.
Each asks the other, and the stock does so without blocking the loop that all of our actors share.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from dataclasses import dataclass

import pykka

from callboard.actors.kernel import (
    Actor,
    ActorSystem,
    Asks,
    ChildSpec,
    LoopScheduler,
    Ref,
    Supervisor,
    ask_pykka,
    handles,
)
from callboard.actors.kernel.reply import Reply


class Till(pykka.ThreadingActor):
    """The host's: sells what the stock has."""

    def __init__(self) -> None:
        super().__init__()
        self.sold = 0

    def on_receive(self, message: object) -> object:
        match message:
            case ("sell", int(count), Ref() as stock):
                left = stock.ask(Take(count), timeout=5)
                self.sold += count
                return left
            case "sold?":
                return self.sold
        raise ValueError(f"the till does not understand {message!r}")


@dataclass(frozen=True, slots=True)
class Take(Asks[int]):
    """Take so many out of the stock; the answer is how many are left."""

    count: int


@dataclass(frozen=True, slots=True)
class Audit:
    """Compare with the till."""

    till: pykka.ActorRef[Till]


@dataclass(frozen=True, slots=True)
class TillAnswered:
    """The till's answer, which may be an exception: `reply.result()` returns or raises it."""

    reply: Reply


class Stock(Actor[Take | Audit | TillAnswered]):
    """Ours: four things, and a supervisor."""

    def __init__(self, audited: Callable[[object], None]) -> None:
        self._left = 4
        self._audited = audited

    @handles(Take)
    def _take(self, message: Take) -> int:
        if message.count < 0:
            raise ValueError(f"cannot take {message.count}")
        self._left -= message.count
        return self._left

    @handles(Audit)
    def _audit(self, message: Audit) -> None:
        self.tell_answer(ask_pykka(message.till, "sold?"), TillAnswered, timeout_seconds=5)

    @handles(TillAnswered)
    def _till_answered(self, message: TillAnswered) -> None:
        self._audited(message.reply.result())


def main() -> None:
    """Both ask each other; then the stock crashes, and the till goes on."""
    logging.getLogger("callboard").setLevel(logging.ERROR)  # or the crash below would be logged as a warning
    audits: queue.SimpleQueue[object] = queue.SimpleQueue()
    scheduler = LoopScheduler("shop").start()
    system = ActorSystem(scheduler)
    root = system.spawn(lambda: Supervisor([ChildSpec("stock", lambda: Stock(audits.put))]), "root")
    system.wait_until_started(root, timeout_seconds=5)
    stock: Ref[Take | Audit] = system.ref("root/stock")
    till = Till.start()
    try:
        print(f"the till sold 1: {till.ask(('sell', 1, stock), timeout=5)} left")
        stock.tell(Audit(till))
        print(f"the stock asked the till: {audits.get(timeout=5)} sold")
        try:
            till.ask(("sell", -1, stock), timeout=5)
        except ValueError as error:
            print(f"the stock crashed, the till got {error!r}")
        print(f"the stock was started again: {stock.ask(Take(0), timeout_seconds=5)} left")
        print(f"the till goes on: {till.ask('sold?', timeout=5)} sold")
    finally:
        till.stop(timeout=5)
        system.shutdown(timeout_seconds=5)
        scheduler.stop(timeout_seconds=5)


if __name__ == "__main__":
    main()
