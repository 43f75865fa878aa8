"""A model of one's own: any object with `name`, `stream` and `aclose`. It answers here by shouting."""

from __future__ import annotations

from collections.abc import AsyncIterator

from callboard import Runtime, Settings
from callboard.protocol.content import UserMessage
from callboard.protocol.model import Done, FinishReason, ModelRequest, StreamEvent, TextDelta


class Shouting:
    """A model that repeats the question, louder."""

    name = "mine"

    async def stream(self, request: ModelRequest) -> AsyncIterator[list[StreamEvent]]:
        asked = [message.text for message in request.messages if isinstance(message, UserMessage)]
        yield [TextDelta(asked[-1].upper())]
        yield [Done(FinishReason.STOP)]

    async def aclose(self) -> None:
        """Close what is open."""


if __name__ == "__main__":
    with Runtime(Settings(model="mine/loud"), providers={"mine": Shouting()}) as runtime:
        print(runtime.ask_sync("hello").text)
