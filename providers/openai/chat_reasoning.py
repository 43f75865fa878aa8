"""Reasoning in the answers of Chat Completions servers: told apart from the text, and kept as it must be sent back."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import Final

from callboard.protocol import content
from callboard.protocol.limits import MAX_RESPONSE_BYTES
from callboard.protocol.model import StreamEvent, TextDelta, ThinkingDelta
from callboard.providers.json_values import JsonObject, as_text, said_at, storable_bytes

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"
#: The fields of a block of reasoning that are streamed piece by piece.
_TEXT_FIELDS: Final = ("text", "summary", "data", "thinking")
_Out = list[StreamEvent]


class ThinkTags:
    """`<think>...</think>` at the start of a text, told apart from the answer; only where a dialect asks for it.

    A tag may be cut anywhere: what could be the start of one is held back until it is known.
    """

    def __init__(self) -> None:
        self._state = "before"
        self._held = ""
        self._block = 0

    def feed(self, text: str, block: int, out: _Out) -> None:
        self._block = block
        self._held += text
        if self._state == "before":
            start = self._held.lstrip()
            if start.startswith(_OPEN):
                self._state, self._held = "inside", start[len(_OPEN) :]
            elif not _OPEN.startswith(start):
                self._state = "after"
        if self._state == "inside":
            thought, found, self._held = self._held.partition(_CLOSE)
            if found:
                self._state = "closed"
            else:
                kept = len(thought) - _overlap(thought)
                thought, self._held = thought[:kept], thought[kept:]
            if thought:
                out.append(ThinkingDelta(thought, block))
        if self._state == "closed":
            # Templates put empty lines between the tag and the answer.
            self._held = self._held.lstrip("\n")
            self._state = "after" if self._held else "closed"
        if self._state == "after":
            self.finish(out)

    def finish(self, out: _Out) -> None:
        """The text is over: what was held back is what it looked like."""
        held, self._held = self._held, ""
        if held:
            out.append((ThinkingDelta if self._state == "inside" else TextDelta)(held, self._block))


def _overlap(text: str) -> int:
    """How many characters at the end of `text` could begin the closing tag."""
    return next((n for n in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:n])), 0)


class HeldReasoning:
    """What must go back unmodified of a stretch of reasoning: the blocks of OpenRouter (`reasoning_details`) and of
    LiteLLM (`thinking_blocks`), whose fragments are merged, and single opaque values (Copilot's `reasoning_opaque`).
    `take` hands out what has come since the last time (docs/wire.md 1.5)."""

    def __init__(self, origin: str) -> None:
        self.mark = content.Replay(origin, {})
        """Whose it is."""
        self._size = 0
        self.pending = False
        self._values: dict[str, str] = {}
        self._blocks: dict[str, list[tuple[JsonObject, dict[str, StringIO]]]] = {}
        """By field: items, and their texts that come in pieces."""

    def keep(self, field: str, value: str) -> None:
        """Take an opaque value in. Raises ValueError past the limit."""
        self._count(len(value))
        self._values[field] = value

    def add(self, field: str, fragments: Iterable[JsonObject]) -> str:
        """Take fragments of blocks in; returns their readable text. Raises ValueError past the limit."""
        blocks, seen = self._blocks.setdefault(field, []), ""
        for fragment in fragments:
            self._count(storable_bytes(fragment))
            if not blocks or not _continues(blocks[-1][0], fragment):
                blocks.append(({}, {}))
            item, texts = blocks[-1]
            for key, value in fragment.items():
                if key in _TEXT_FIELDS and isinstance(value, str | int | float):
                    texts.setdefault(key, StringIO()).write(as_text(value))
                    item.setdefault(key, "")
                elif value is not None or key not in item:
                    item[key] = value
            seen += said_at(fragment, "text") or said_at(fragment, "summary") or said_at(fragment, "thinking")
        return seen

    def take(self) -> content.Replay | None:
        """What has come, to be replayed unmodified; None where nothing has."""
        if not self.pending:
            return None
        data: dict[str, object] = {**self.mark.data, **self._values}
        for field, blocks in self._blocks.items():
            data[field] = [{**item, **{key: text.getvalue() for key, text in texts.items()}} for item, texts in blocks]
        self._values, self._blocks, self.pending = {}, {}, False
        return content.Replay(self.mark.origin, data)

    def _count(self, size: int) -> None:
        self.pending = True
        self._size += size
        if self._size > MAX_RESPONSE_BYTES:
            raise ValueError(f"the reasoning details are longer than {MAX_RESPONSE_BYTES} bytes")


def _continues(last: JsonObject, fragment: JsonObject) -> bool:
    """A fragment of the same block: of the same type and place, and the block has not been signed yet."""
    kind = fragment.get("type")
    if last.get("type") != kind or last.get("index") != fragment.get("index"):
        return False
    if kind == "thinking":  # LiteLLM's have no index; each ends with its signature
        return not last.get("signature")
    return fragment.get("index") is not None and kind != "reasoning.encrypted"
