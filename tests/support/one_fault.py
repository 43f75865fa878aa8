"""Conversations of one turn, each with one fault: what a seed would show sooner or later."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from callboard.protocol.testing.observation import AskedCall, AskedTurn, Conversation, Does, Stream

LOOK: Final = AskedCall(1, "look", "call_1")
AGAIN: Final = AskedCall(2, "again", "call_2")
WRITE: Final = AskedCall(3, "write", "call_3")


def of(*calls: AskedCall, cancel: float | None = None, stream: Stream = Stream.WHOLE) -> Conversation:
    return Conversation((AskedTurn(calls, stream=stream),), cancel_after_seconds=cancel)


CONVERSATIONS: Final = {
    "nothing": of(LOOK, AGAIN, WRITE),
    "async-raises": of(replace(LOOK, does=Does.RAISES), AGAIN),
    "plain-raises": of(LOOK, replace(AGAIN, does=Does.RAISES)),
    "async-exits": of(replace(LOOK, does=Does.EXITS), AGAIN),
    "plain-exits": of(LOOK, replace(AGAIN, does=Does.EXITS)),
    "async-hangs": of(replace(LOOK, does=Does.HANGS), AGAIN),
    "plain-hangs": of(LOOK, replace(AGAIN, does=Does.HANGS)),
    "async-blocks": of(replace(LOOK, does=Does.BLOCKS), AGAIN),
    "half": of(LOOK, replace(AGAIN, does=Does.HALF, garbled='{"call":2,"do')),
    "denied": of(LOOK, replace(WRITE, does=Does.DENIED)),
    "unknown": of(LOOK, replace(AGAIN, tool="nowhere", does=Does.UNKNOWN)),
    "cancel-async": of(replace(LOOK, does=Does.HANGS), AGAIN, cancel=0.3),
    "cancel-plain": of(LOOK, replace(AGAIN, does=Does.HANGS), cancel=0.3),
    "cancel-stream": of(LOOK, cancel=0.3, stream=Stream.STALLS),
    "cut": of(LOOK, AGAIN, stream=Stream.CUT),
    "steps": Conversation((AskedTurn((LOOK,)), AskedTurn((AGAIN,)), AskedTurn((WRITE,))), max_steps=2),
}
