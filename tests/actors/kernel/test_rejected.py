"""An actor may decline a message: that is a dead letter with a reason, and no crash."""

from __future__ import annotations

from typing import Any

import pytest

from callboard.actors.kernel import Actor, ActorSystem, DeadLetterReason, LoopScheduler, Rejected
from callboard.actors.testing.simulation import SimulatedScheduler


class Choosy(Actor):
    def on_receive(self, message: Any) -> Any:
        if message == "late":
            raise Rejected("it came too late")
        return message


def test_a_rejected_tell_is_a_dead_letter_and_the_actor_goes_on() -> None:
    scheduler = SimulatedScheduler()
    system = ActorSystem(scheduler)
    choosy = system.spawn(Choosy, "choosy")
    choosy.tell("late")
    choosy.tell("fine")
    scheduler.run_until_idle()
    (letter,) = system.dead_letters.list()
    assert (letter.message, letter.reason, letter.note) == ("late", DeadLetterReason.REJECTED, "it came too late")
    assert choosy.is_alive()
    counts = system.statistics()
    assert (counts.sent, counts.handled, counts.dead_lettered, counts.queued) == (2, 1, 1, 0)


@pytest.mark.parametrize("runs_on", ["loop", "thread"])
def test_the_asker_of_a_rejected_message_is_told(runs_on: Any) -> None:
    scheduler = LoopScheduler("rejecting").start()
    try:
        system = ActorSystem(scheduler)
        choosy = system.spawn(Choosy, "choosy", runs_on=runs_on)
        with pytest.raises(Rejected, match="too late"):
            choosy.ask("late", 5)
        assert choosy.ask("fine", 5) == "fine"
        assert system.statistics().restarts == 0
        system.shutdown(5)
    finally:
        scheduler.stop(5)
