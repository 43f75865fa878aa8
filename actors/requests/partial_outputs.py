"""The object of an answer while it is written, for the reader of a stream.

Made where the reader reads, so that a request which is not streamed pays nothing. The text is read again only when it
has grown by an eighth: over a whole answer that is nine times its length, however small the pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from callboard.actors.requests.outputs import OutputType
from callboard.protocol.events import RequestStarted
from callboard.protocol.ids import CallId
from callboard.protocol.json_answers import first_opening
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.model import Done, Restarted, TextDelta, ToolCallDelta, ToolCallStart
from callboard.protocol.output import OUTPUT_TOOL

if TYPE_CHECKING:
    import pydantic_core
else:
    pydantic_core = lazy_module("pydantic_core")

#: By this share the text must have grown before it is read again.
GROWTH: Final = 0.125

Item = TypeVar("Item")


class PartialOutput(Struct, frozen=True):
    """The answer as far as it is written: plain JSON data, not validated (a dict for a model or a dataclass).

    A text or number that is not finished is there as far as it goes. A `Restarted`, and an answer that is not taken,
    make void what came before. The last one holds all of the answer that was taken, as the model wrote it.
    """

    value: object


_NOTHING: Final = object()


class PartialReader:
    """Follows the events of one request."""

    def __init__(self, output: OutputType[object]) -> None:
        self._output = output
        self._tool_name = OUTPUT_TOOL
        self._call: CallId | None = None
        """Of the output tool, whose arguments are followed; None: the text is."""
        self._pieces: list[str] = []
        self._size = self._read_at = 0
        self._shown: object = _NOTHING

    def follow(self, items: Iterable[Item]) -> Iterator[Item | PartialOutput]:
        """The same items, with what is known of the answer between them."""
        for item in items:
            yield item
            if (found := self._after(item)) is not None:
                yield found

    def last(self, text: str) -> Iterator[PartialOutput]:
        """At the end of a request that is answered by this text: the whole answer, where it was not shown yet."""
        try:
            value = self._output.data(text)
        except ValueError:
            return
        if value != self._shown:
            yield PartialOutput(value)

    def _after(self, item: object) -> PartialOutput | None:
        match item:
            case TextDelta() if self._call is None:
                return self._grown(item.text)
            case ToolCallDelta() if item.id == self._call:
                return self._grown(item.args_delta)
            case ToolCallStart() if item.name == self._tool_name:
                self._begin(item.id)
            case Done():
                found = self._read()
                self._begin(None)
                return found
            case Restarted():
                self._begin(None)
                self._shown = _NOTHING
            case RequestStarted() if item.options.output is not None:
                self._tool_name = item.options.output.tool_name
        return None

    def _begin(self, call: CallId | None) -> None:
        self._call, self._pieces, self._size, self._read_at = call, [], 0, 0

    def _grown(self, piece: str) -> PartialOutput | None:
        self._pieces.append(piece)
        self._size += len(piece)
        return self._read() if self._size > self._read_at * (1 + GROWTH) else None

    def _read(self) -> PartialOutput | None:
        text = "".join(self._pieces)
        self._pieces, self._read_at = [text], self._size
        start = first_opening(text)
        if start < 0:
            return None
        try:
            data = pydantic_core.from_json(text[start:], allow_partial="trailing-strings")
        except ValueError:  # text around the JSON: only the end of the turn tells what is what
            return None
        value = self._output.unwrapped(data)
        if value is None or value == self._shown:
            return None
        self._shown = value
        return PartialOutput(value)
