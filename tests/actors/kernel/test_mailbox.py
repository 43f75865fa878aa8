"""The mailbox against two plain lists."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from callboard.actors.kernel.mailbox import NOTHING, Mailbox, Put, Signal

CAPACITY = 4


class MailboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.mailbox = Mailbox(CAPACITY)
        self.user: list[Any] = []
        self.control: list[Any] = []
        self.awake = True
        self.closed = False
        self.sent = 0

    @rule(item=st.integers())
    def put(self, item: int) -> None:
        outcome = self.mailbox.put(item)
        if self.closed:
            assert outcome is Put.CLOSED
        elif len(self.user) >= CAPACITY:
            assert outcome is Put.FULL
        else:
            assert outcome is (Put.QUEUED if self.awake else Put.WAKE)
            self.user.append(item)
            self.sent += 1

    @rule(item=st.integers())
    def put_control(self, item: int) -> None:
        outcome = self.mailbox.put_control(item)
        if self.closed:
            assert outcome is Put.CLOSED
        else:
            assert outcome is (Put.QUEUED if self.awake else Put.WAKE)
            self.control.append(item)
            self.sent += 1

    @rule()
    def wake(self) -> None:
        self.awake = self.mailbox.awake = True

    @precondition(lambda self: self.awake and not self.closed)
    @rule()
    def take(self) -> None:
        lane = self.control or self.user
        expected = lane.pop(0) if lane else NOTHING
        assert self.mailbox.peek() is expected or self.mailbox.peek() == expected
        assert self.mailbox.take() == expected
        self.awake = expected is not NOTHING

    @precondition(lambda self: self.awake and not self.closed)
    @rule()
    def sleep(self) -> None:
        empty = not (self.user or self.control)
        assert self.mailbox.sleep() is empty
        self.awake = not empty

    @rule()
    def hold(self) -> None:
        self.mailbox.put_control(Signal.STOP)
        self.mailbox.hold()
        self.awake = True

    @rule()
    def close(self) -> None:
        assert self.mailbox.close() == self.control + self.user
        self.user, self.control, self.closed = [], [], True

    @invariant()
    def same(self) -> None:
        assert len(self.mailbox) == len(self.user) + len(self.control)
        assert self.mailbox.accepted == self.sent
        assert self.mailbox.is_open is not self.closed


TestMailbox = MailboxMachine.TestCase


def test_no_room_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one message"):
        Mailbox(0)
