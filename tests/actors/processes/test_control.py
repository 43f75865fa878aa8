"""What the runtime and the processes of its own say to each other."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.processes.control import Kind, Message, hear, pair, receive, send


@given(st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.integers(-(2**31), 2**31 - 1), st.text(max_size=50))
def test_messages_of_the_fork_servers_arrive(kind: Kind, number: int, value: int, text: str) -> None:
    message = Message(kind, number, value, text.encode(errors="replace").decode())
    one, other = pair()
    with one, other:
        send(one, message)
        assert hear(other) == message
        send(one, message, (0, 1))
        received = receive(other)
        assert received is not None
        assert received[0] == message
        for descriptor in received[1]:
            os.close(descriptor)
        assert len(received[1]) == 2
        one.close()
        assert hear(other) is None
        assert receive(other) is None


def test_no_two_kinds_of_message_have_one_number() -> None:
    assert [member.name for member in Kind] == list(Kind.__members__)
