"""A conversation: the list of messages that outlives the requests."""

from __future__ import annotations

from threading import Lock

from callboard.protocol.content import Message
from callboard.protocol.errors import UsageError


class Conversation:
    """What was said so far. It only ever takes whole finished steps, so it is legal for every provider (I2).

    One request at a time belongs to a conversation; the runtime refuses a second.
    """

    __slots__ = ("_messages", "_taken")

    def __init__(self, messages: tuple[Message, ...] = ()) -> None:
        self._messages = messages
        self._taken = Lock()

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, oldest first."""
        return self._messages

    def take(self) -> None:
        """Claim it for one request. Raises UsageError while another one runs."""
        if not self._taken.acquire(blocking=False):
            raise UsageError("this conversation has a request running; await its end, or start another conversation")

    def release(self) -> None:
        """The request has ended."""
        self._taken.release()

    def record(self, messages: tuple[Message, ...]) -> None:
        """Add the messages of a finished step; called by its request's session only."""
        self._messages += messages
