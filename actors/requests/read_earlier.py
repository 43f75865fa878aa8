"""`read_earlier_messages`: the tool by which a model reads what its prompt no longer shows of the conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from callboard.actors.requests.conversation import Conversation
from callboard.actors.tools import Tool, ToolContext, tool
from callboard.protocol.compaction import message_text, shortened
from callboard.protocol.content import Message
from callboard.protocol.errors import ToolError
from callboard.protocol.ids import RequestId

#: Of one result: about 3,000 tokens, which most windows have room for beside the rest.
MAX_RESULT_CHARS: Final = 12_000
#: Messages found by words are shown in short; the model reads the one it wants by its number.
FOUND_CHARS: Final = 600
MAX_FOUND: Final = 10


def read_tool(conversation_of: Callable[[RequestId], Conversation | None]) -> Tool:
    """The tool of a runtime: a call of it reads the conversation of its own request and no other."""

    @tool(risk="read", effect="repeat")
    async def read_earlier_messages(
        context: ToolContext, first: int = 0, last: int = 0, words: str = "", offset: int = 0
    ) -> str:
        """Read messages of this conversation that are left out, cleared or summarised. They are numbered from 1.

        Args:
            first: The number of the first message to read. 0: search all of them for `words`.
            last: The number of the last one. 0: only `first`.
            words: Only messages that have all of these words; without `first` they come in short, the latest first.
            offset: Where to go on in what was too long to be read at once: a number of characters.
        """
        conversation = conversation_of(context.tag.request_id)
        if conversation is None:
            raise ToolError("this request has no conversation any more")
        return read(conversation.messages, first, last, words, offset)

    return read_earlier_messages.owned


def read(messages: Sequence[Message], first: int, last: int, words: str, offset: int) -> str:
    """What the tool answers. Raises ToolError for what names no message."""
    if not first and not words.strip():
        raise ToolError(f"give first, a number from 1 to {len(messages)}, or words")
    if not first:
        return _found(messages, words)
    last = last or first
    if not 1 <= first <= last:
        raise ToolError(f"first must be 1 or more, and last not before it; got {first} and {last}")
    if first > len(messages):
        raise ToolError(f"there is no message {first}; the conversation has {len(messages)} so far")
    numbers = range(first, min(last, len(messages)) + 1)
    shown = [told for number in numbers if _has(messages[number - 1], words) and (told := _told(messages, number))]
    if not shown:
        return "There is nothing to read in these messages" + (" that has these words." if words else ".")
    return _page("\n\n".join(shown), max(offset, 0))


def _page(text: str, offset: int) -> str:
    page = text[offset : offset + MAX_RESULT_CHARS]
    end = offset + len(page)
    if end >= len(text):
        return page or "There is nothing behind this offset."
    return f"{page}\n[{len(text) - end:,} more characters: go on with offset={end}, or fewer messages.]"


def _found(messages: Sequence[Message], words: str) -> str:
    numbers = [number for number in range(len(messages), 0, -1) if _has(messages[number - 1], words)]
    if not numbers:
        return "No message has all of these words; try fewer, or others."
    shown = [shortened(_told(messages, number), FOUND_CHARS) for number in numbers[:MAX_FOUND]]
    more = len(numbers) - len(shown)
    return "\n\n".join(shown) + (f"\n\n[{more} older messages have them too.]" if more else "")


def _has(message: Message, words: str) -> bool:
    text = "\n".join(said for _, said in message_text(message)).casefold()
    return all(word in text for word in words.casefold().split())


def _told(messages: Sequence[Message], number: int) -> str:
    return "\n".join(f"[{number}] {who}: {text}" for who, text in message_text(messages[number - 1]))
