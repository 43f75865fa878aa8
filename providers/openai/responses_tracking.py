"""Which item and which text of a Responses answer an event is about.

Servers give an index, an id, both, or neither, and some change the id (GitHub Copilot, docs/wire.md quirk 12) or the
index (vLLM, LiteLLM) from event to event: what fits counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Final

from msgspec import Struct, field

from callboard.protocol.content import Replay
from callboard.protocol.model import TextDelta, ThinkingDelta, TokenLogprob
from callboard.providers.json_values import JsonObject, objects_at, said_at, text_at, text_of

SUMMARY, REASONING, TEXT = "summary", "reasoning", "text"
_SLOTS: Final = {"message": (TEXT,), "reasoning": (SUMMARY, REASONING)}
Prose = type[TextDelta | ThinkingDelta]


class TextEvent(Struct, frozen=True):
    """What an event says of a text: of what kind of item, which of its texts, and the field with all of it ("": the
    event is a delta)."""

    item: str
    slot: str
    place: str
    kind: Prose
    whole: str = ""
    refusal: bool = False


def _text_events(name: str, *of: str, whole: str = "text", refusal: bool = False) -> dict[str, TextEvent]:
    item, slot, place = of
    kind: Prose = TextDelta if item == "message" else ThinkingDelta
    return {
        f"response.{name}.delta": TextEvent(item, slot, place, kind, "", refusal),
        f"response.{name}.done": TextEvent(item, slot, place, kind, whole, refusal),
    }


TEXT_EVENTS: Final[Mapping[str, TextEvent]] = {
    **_text_events("output_text", "message", TEXT, "content_index"),
    **_text_events("refusal", "message", TEXT, "content_index", whole="refusal", refusal=True),
    **_text_events("reasoning_summary_text", "reasoning", SUMMARY, "summary_index"),
    **_text_events("reasoning_text", "reasoning", REASONING, "content_index"),
    **_text_events("reasoning", "reasoning", REASONING, "content_index"),  # Open Responses
}


class StreamedText(Struct, eq=False):
    """One text that is being written."""

    slot: str
    place: int | None
    """Its index by the events; None: they gave none."""
    block: int
    written: StringIO = field(default_factory=StringIO)
    """Emitted so far."""
    citations: list[JsonObject] = field(default_factory=list)
    """Emitted so far."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """As its own events tell them; they count if its item has none."""
    noted: bool = False
    """Its log probabilities are kept."""
    closed: bool = False
    """Its `.done` has come."""
    lead: str = ""
    """What it begins with that its model did not write: a break behind the message before it."""


class StreamedItem(Struct, eq=False):
    """One item, and what has been emitted of it."""

    number: int
    kind: str
    index: int | None = None
    ids: set[str] = field(default_factory=set)
    held: bool = False
    """The event that opened it is counted (`BaseDecoder.hold`)."""
    announced: bool = False
    """`output_item.added` has come."""
    begins_text: bool = False
    """`content_part.added` or its like has come, and no text since."""
    texts: list[StreamedText] = field(default_factory=list)
    arguments: str | None = None
    """All of them by their own `.done`, where that contradicts their deltas."""
    call: tuple[str, str] = ("", "")
    """The call's id and name, as first told."""
    call_replay: Replay | None = None
    began: int | None = None
    """How many items had been emitted in part before it."""
    final: JsonObject | None = None
    """The finished item, as far as it has come."""
    phase: str = ""
    """Of a message, in the API's words: is it commentary, or the final answer?"""
    spoke: int = 0
    """Which of the messages with a text it is, from 1."""

    def has_written(self) -> bool:
        """Has any of its texts been emitted?"""
        return any(text.written.tell() for text in self.texts)

    def has_whole_texts(self) -> bool:
        """Does the finished item tell any text?"""
        return self.final is not None and any(any(whole_texts(self.final, slot)) for slot in (SUMMARY, REASONING, TEXT))

    def can_be(self, document: JsonObject) -> bool:
        """Does this finished item begin as what was emitted does?"""
        written = "".join(text.written.getvalue() for text in self.texts)
        whole = "".join(whole for slot in (SUMMARY, REASONING, TEXT) for whole in whole_texts(document, slot))
        return whole.startswith(written) and self.call in (("", ""), call_of(document))

    def text_for(self, told: TextEvent, place: int | None) -> StreamedText | None:
        """The text that a delta goes on with; None: it begins a new one.

        A content_index that was not announced names no new text: vLLM counts it up with every delta.
        """
        if self.begins_text:
            return None
        mine = [text for text in self.texts if text.slot == told.slot and not text.closed]
        exact = [text for text in mine if place is not None and text.place == place]
        if exact or not mine:
            return exact[-1] if exact else None
        is_last = mine[-1] is self.texts[-1]
        return mine[-1] if is_last and (place is None or told.place == "content_index") else None

    def finished_text_for(self, told: TextEvent, place: int | None, whole: str) -> StreamedText | None:
        """The text that a `.done` event finishes; None: one of which nothing has come."""
        if self.begins_text:
            return None
        mine = [text for text in self.texts if text.slot == told.slot]
        exact = [text for text in mine if place is not None and text.place == place]
        found = exact or [text for text in mine if not text.closed or text.written.getvalue() == whole]
        return found[-1] if found else None


class StreamedItems:
    """The items of an answer, in the order in which they came, and which of them an event is about."""

    def __init__(self) -> None:
        self.all: list[StreamedItem] = []
        self._by_id: dict[str, StreamedItem] = {}
        self._by_index: dict[int, StreamedItem] = {}
        self._latest: StreamedItem | None = None
        self._ids_hold = False
        """The events of one item have one id."""

    def open(self, kind: str, index: int | None = None, item_id: str = "") -> StreamedItem:
        """A new one."""
        item = StreamedItem(len(self.all), kind)
        self.all.append(item)
        self._know(item, index, item_id)
        return item

    def about(self, kind: str, index: int | None, item_id: str) -> StreamedItem | None:
        """The unfinished item of this kind that an event with this index and id is about; None: one that is new."""
        by_index = self._by_index.get(index) if index is not None else None
        by_id = self._by_id.get(item_id) if item_id else None
        latest = self._latest
        if by_index is not by_id and by_index is not None and item_id in by_index.ids and self._fits(by_index, kind):
            return by_index
        if by_id is not None and self._fits(by_id, kind):
            self._ids_hold = True
            return by_id
        if by_index is not None and self._fits(by_index, kind):
            return by_index
        if latest is None or not self._fits(latest, kind) or (item_id and self._ids_hold):
            return None
        return latest if index is None or latest.index is None else None

    def take(self, kind: str, index: int | None, item_id: str) -> StreamedItem:
        """That item, or a new one."""
        latest = self._latest
        if latest is not None and latest.index == index and latest.kind == kind and latest.final is None:
            # Nearly all deltas are about the item that the last one was about.
            if item_id in latest.ids:
                self._ids_hold = True
                return latest
            if index is not None and item_id not in self._by_id:
                return latest
        item = self.about(kind, index, item_id)
        if item is None:
            return self.open(kind, index, item_id)
        # Ids that change with every event are not collected.
        self._know(item, index if item.index is None else None, "" if item.ids else item_id)
        return item

    def announced(self, kind: str, index: int | None, item_id: str) -> StreamedItem:
        """The item that `output_item.added` is about: a new one, but where its deltas came first, or it came twice."""
        item = self.about(kind, index, item_id)
        if item is None or (item.announced and (item_id not in item.ids or item.index != index)):
            item = self.open(kind, index, item_id)
        item.announced = True
        self._know(item, index, item_id)
        return item

    def finished(self, kind: str, index: int | None, document: JsonObject) -> StreamedItem | None:
        """The item that this document finishes; None: it has come before."""
        item_id = text_at(document, "id")
        for item in (self._by_id.get(item_id), self._by_index.get(index) if index is not None else None):
            if item is None or item.final is None or (index is not None and item.index not in (None, index)):
                continue
            if without_id(item.final) == without_id(document):
                return None
        item = self.about(kind, index, item_id)
        if item is None or (index is None and item_id not in item.ids and not item.can_be(document)):
            return self.open(kind, index, item_id)
        self._know(item, index if item.index is None else None, item_id)
        return item

    def knows(self, item_id: object) -> bool:
        """Is there an item with this id?"""
        return item_id in self._by_id

    def matching(self, documents: Sequence[JsonObject]) -> list[StreamedItem | None]:
        """For each item of the final response the one that was streamed, if any: by its place and kind, else by its
        id, else the next of its kind."""
        left = dict.fromkeys(self.all)
        by_index = {item.index: item for item in self.all}
        if None in by_index or len(by_index) < len(self.all):
            by_index = {}
        found: list[StreamedItem | None] = [None] * len(documents)
        for choice in (
            [by_index.get(place) for place in range(len(documents))],
            [self._by_id.get(text_at(document, "id")) for document in documents],
        ):
            for place, item in enumerate(choice):
                if found[place] is None and item in left and item is not None and item.kind == documents[place]["type"]:
                    found[place] = item
                    del left[item]
        waiting: dict[str, deque[StreamedItem]] = {}
        for item in left:
            waiting.setdefault(item.kind, deque()).append(item)
        for place, document in enumerate(documents):
            if found[place] is None and (same := waiting.get(text_of(document["type"]))):
                found[place] = same.popleft()
        return found

    def _fits(self, item: StreamedItem, kind: str) -> bool:
        return item.final is None and item.kind == kind

    def _know(self, item: StreamedItem, index: int | None, item_id: str) -> None:
        if index is not None:
            item.index = index
            self._by_index[index] = item
        if item_id:
            item.ids.add(item_id)
            self._by_id[item_id] = item
        self._latest = item


def call_of(item: JsonObject) -> tuple[str, str]:
    """The id and the name of a call."""
    return text_at(item, "call_id"), text_at(item, "name")


def whole_texts(item: JsonObject, slot: str) -> list[str]:
    """The texts of a finished item. Raises TypeError for what is none."""
    parts = (
        objects_at(item, "summary" if slot == SUMMARY else "content")
        if slot in _SLOTS.get(text_of(item["type"]), ())
        else []
    )
    return [said_at(part, "refusal") or said_at(part, "text") for part in parts]


def without_id(item: JsonObject) -> JsonObject:
    """An item but for its id, which GitHub Copilot changes from event to event."""
    return {key: value for key, value in item.items() if key != "id"}


def paired_texts(mine: Sequence[StreamedText], wholes: Sequence[str]) -> list[StreamedText | None]:
    """Which text each of the finished ones completes: by its place where all fit there (a server may count on from
    item to item: Bedrock, vLLM), else in their order."""
    found: list[StreamedText | None] = [None] * len(wholes)
    places = {text.place: text for text in mine}
    if len(places) == len(mine) and all(_fits(place, text, wholes) for place, text in places.items()):
        pairs = [(place, text) for place, text in places.items() if place is not None]
    else:
        pairs = list(zip((place for place, whole in enumerate(wholes) if whole), mine, strict=False))
    for place, text in pairs:
        found[place] = text
    return found


def _fits(place: int | None, text: StreamedText, wholes: Sequence[str]) -> bool:
    return place is not None and 0 <= place < len(wholes) and wholes[place].startswith(text.written.getvalue())


def in_order(texts: Sequence[StreamedText | None]) -> bool:
    """Were they begun in this order?"""
    blocks = [text.block for text in texts if text is not None]
    return blocks == sorted(blocks)
