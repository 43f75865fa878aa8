"""What a Gemini answer rests on: its groundingMetadata, citationMetadata and urlContextMetadata, as citations of our
text parts and as blocks of server tools.

They may come with the last chunk, before it, alone or several times. Places in the text are counted in bytes of UTF-8,
and name a part by its place in the content (google-genai types.py, Segment).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from io import StringIO
from itertools import accumulate
from typing import Final

from msgspec import Struct

from callboard.protocol import content, model
from callboard.protocol.content import Citation, json_text
from callboard.providers.gemini.gemini_requests import ORIGIN, is_before_gemini_3
from callboard.providers.json_values import (
    Json,
    JsonObject,
    index_at,
    list_at,
    object_at,
    objects_at,
    said_at,
    storable_bytes,
    text_at,
    text_of,
)

#: AnswerSources, and places that they support, of one answer: real ones stay far below, broken servers may not.
_MAX_SOURCES: Final = 1_000
#: Text parts that a place is looked for in.
_MAX_PARTS: Final = 100
#: Characters from one known place in bytes to the next.
_STRIDE: Final = 4_096
#: What a source is, and which tool found it.
_SOURCES: Final = {
    "web": "web_search",
    "image": "image_search",
    "retrievedContext": "file_search",
    "maps": "maps_search",
}


class AnswerText:
    """The text of an answer as it comes, with the places of its parts."""

    def __init__(self) -> None:
        self._text = StringIO()
        self._blocks: list[int] = []
        self._starts: list[int] = []
        self.write = self._text.write
        """Add to the part that was begun last."""

    def begin(self, block: int) -> None:
        """A new text part, with the number of its block."""
        self._blocks.append(block)
        self._starts.append(self._text.tell())

    def read(self) -> WrittenText:
        """The text, to look for places in."""
        return WrittenText(self._text.getvalue(), self._blocks, self._starts)


class TextPlace(Struct, frozen=True):
    """Characters of a text part."""

    block: int
    start: int | None = None
    end: int | None = None


class WrittenText:
    """The whole text of an answer, and where in its parts a place given in bytes is."""

    def __init__(self, text: str, blocks: Sequence[int], starts: Sequence[int]) -> None:
        self.blocks = blocks
        self._starts = starts
        self._data = text.encode("utf-8", "replace")
        strides = (text[place : place + _STRIDE] for place in range(0, len(text), _STRIDE))
        #: Bytes before every _STRIDE-th character, and of the whole text.
        self._bytes_before = [0, *accumulate(len(piece.encode("utf-8", "replace")) for piece in strides)]
        self._starts_in_bytes = [
            self._bytes_before[start // _STRIDE] + len(text[start - start % _STRIDE : start].encode("utf-8", "replace"))
            for start in starts
        ]

    def place(self, segment: JsonObject, part_starts: Sequence[int]) -> TextPlace | None:
        """Where a segment is; None if that cannot be told. `part_starts`: bytes before each part of the content
        that the segment came with, and behind the last one.

        The API leaves `partIndex` out for parts behind the first (python-genai #961), and counts a text that is
        streamed in pieces as one. So each possible beginning is tried until the segment's own text is found there.
        """
        start, end, index = (index_at(segment, key) for key in ("startIndex", "endIndex", "partIndex"))
        expected = text_at(segment, "text").encode("utf-8", "replace")
        is_all_told = bool(part_starts) and part_starts[-1] == len(self._data)
        beginnings = [
            *(part_starts[index : index + 1] if is_all_told else ()),
            *(self._starts_in_bytes[n] for n, block in enumerate(self.blocks) if block == index),
            0,
            *self._starts_in_bytes[:_MAX_PARTS],
        ]
        for beginning in beginnings:
            found = self._data[beginning + start : beginning + end]
            if 0 <= start < end and len(found) == end - start and (not expected or found == expected):
                return self.characters(beginning + start, beginning + end)
        return None

    def characters(self, start: int, end: int) -> TextPlace | None:
        """The place of these bytes of the text; None if they are not whole characters of it."""
        if not 0 <= start < end <= len(self._data):
            return None
        try:
            first, last = self._character(start), self._character(end)
        except ValueError:
            return None
        part = bisect_right(self._starts, first) - 1
        if part < 0:
            return None
        begins, following = self._starts[part], self._starts[part + 1 : part + 2]
        return TextPlace(self.blocks[part], first - begins, min((last, *following)) - begins)

    def _character(self, place: int) -> int:
        stride = bisect_right(self._bytes_before, place, hi=max(1, len(self._bytes_before) - 1)) - 1
        return stride * _STRIDE + len(self._data[self._bytes_before[stride] : place].decode())


class AnswerSources:
    """What was told of an answer's sources, from all its chunks."""

    def __init__(self) -> None:
        self._grounding: JsonObject = {}
        self._chunks: list[Json] = []
        self._known: set[str] = set()
        self._supports: dict[str, JsonObject] = {}
        self._quotes: dict[str, JsonObject] = {}
        self._pages: dict[str, JsonObject] = {}
        self._queries: dict[str, None] = {}
        self._part_starts: list[int] = []

    def note(self, candidate: JsonObject) -> None:
        """Keep what a candidate tells. Nothing is kept twice."""
        if grounding := object_at(candidate, "groundingMetadata"):
            self._note_grounding(grounding)
        quoted = object_at(candidate, "citationMetadata")
        # Vertex AI calls them `citations`.
        _add(self._quotes, [*objects_at(quoted, "citationSources"), *objects_at(quoted, "citations")])
        _add(self._pages, objects_at(object_at(candidate, "urlContextMetadata"), "urlMetadata"))
        lengths = [_bytes_of_text(part) for part in objects_at(object_at(candidate, "content"), "parts")]
        self._part_starts = list(accumulate(lengths, initial=0))

    def note_query(self, query: str) -> None:
        """A search was run."""
        if query.strip() and len(self._queries) < _MAX_SOURCES:
            self._queries[query] = None

    def searches(self, version: str) -> int:
        """The searches that are billed: to Gemini 3 each query that is not empty, to older models one for each request
        (ai.google.dev, "Grounding with Google Search": Pricing)."""
        return min(len(self._queries), 1) if is_before_gemini_3(version) else len(self._queries)

    def events(self, text: WrittenText) -> list[model.StreamEvent]:
        """The citations of each text part, each once, and a block for each tool that told something. Raises ValueError
        for what could not be kept."""
        events: list[model.StreamEvent] = []
        places: dict[int, dict[tuple[object, ...], Citation]] = {}
        for place, citation in [*self._grounded(text), *self._quoted(text)]:
            same = (citation.url, citation.title, citation.cited_text, citation.start, citation.end, citation.file_id)
            places.setdefault(place.block, {}).setdefault(same, citation)
        for block, citations in places.items():
            events.append(model.CitationDelta(tuple(citations.values()), block))
            storable_bytes({"raw": [citation.raw for citation in citations.values()]})
        if self._grounding:
            told: JsonObject = {**self._grounding}
            if self._chunks:
                told["groundingChunks"] = self._chunks
            if self._supports:
                told["groundingSupports"] = list(self._supports.values())
            events.append(_block("groundingMetadata", told, self._tool(), "\n".join(self._asked())))
        if self._pages:
            pages = list(self._pages.values())
            told = {"urlMetadata": list(pages)}
            events.append(_block("urlContextMetadata", told, "web_fetch", "\n".join(map(_page, pages))))
        return events

    # How.

    def _note_grounding(self, given: JsonObject) -> None:
        """In a stream each chunk brings the sources that none before it brought, and the places refer to all of them
        (the API's reference, GroundingMetadata). A list that repeats an earlier source is the whole list again."""
        self._grounding.update((key, value) for key, value in given.items() if value)
        chunks, supports = list_at(given, "groundingChunks")[:_MAX_SOURCES], objects_at(given, "groundingSupports")
        texts = set(map(json_text, chunks))
        is_whole = not texts.isdisjoint(self._known)
        if is_whole and (supports or chunks[: len(self._chunks)] != self._chunks):
            self._supports.clear()
        if is_whole:
            self._chunks, self._known = chunks, texts
        elif len(self._chunks) < _MAX_SOURCES:
            self._chunks = (self._chunks + chunks)[:_MAX_SOURCES]
            self._known |= texts
        _add(self._supports, supports)
        for query in list_at(given, "webSearchQueries"):
            self.note_query(text_of(query))

    def _tool(self) -> str:
        kinds = [kind for chunk in self._chunks if isinstance(chunk, dict) for kind in chunk if kind in _SOURCES]
        return _SOURCES[kinds[0]] if kinds and not self._queries else "web_search"

    def _asked(self) -> list[str]:
        others = [*list_at(self._grounding, "imageSearchQueries"), *list_at(self._grounding, "retrievalQueries")]
        return [*self._queries, *(query for each in others if (query := text_of(each)))]

    def _grounded(self, text: WrittenText) -> Iterable[tuple[TextPlace, Citation]]:
        if not text.blocks:
            return
        end = TextPlace(text.blocks[-1])
        used: set[int] = set()
        for support in self._supports.values():
            place = text.place(object_at(support, "segment"), self._part_starts) or end
            for index in list_at(support, "groundingChunkIndices"):
                if isinstance(index, int) and 0 <= index < len(self._chunks):
                    used.add(index)
                    yield place, _citation(self._chunks[index], place, support)
        for index, chunk in enumerate(self._chunks):
            if index not in used:
                yield end, _citation(chunk, end, {})

    def _quoted(self, text: WrittenText) -> Iterable[tuple[TextPlace, Citation]]:
        for quote in self._quotes.values() if text.blocks else ():
            place = text.characters(index_at(quote, "startIndex"), index_at(quote, "endIndex"))
            place = place or TextPlace(text.blocks[-1])
            title, url = text_at(quote, "title"), text_at(quote, "uri")
            yield place, Citation(url, title, start=place.start, end=place.end, raw=quote)


def _add(known: dict[str, JsonObject], told: Iterable[JsonObject]) -> None:
    for each in told:
        if len(known) < _MAX_SOURCES:
            known.setdefault(json_text(each), each)


def _block(kind: str, told: JsonObject, tool: str, text: str) -> model.ServerToolEvent:
    data = {kind: told}
    storable_bytes(data)
    return model.ServerToolEvent(kind, content.Replay(ORIGIN, data), tool, text=text)


def _bytes_of_text(part: JsonObject) -> int:
    return 0 if part.get("thought") else len(said_at(part, "text").encode("utf-8", "replace"))


def _citation(chunk: Json, place: TextPlace, support: JsonObject) -> Citation:
    told = chunk if isinstance(chunk, dict) else {}
    source: JsonObject = next((object_at(told, kind) for kind in _SOURCES if kind in told), {})
    raw: JsonObject = {"groundingChunk": told}
    if support:
        raw["groundingSupport"] = support
    return Citation(
        text_at(source, "uri") or text_at(source, "sourceUri"),
        text_at(source, "title"),
        text_at(source, "text"),
        place.start,
        place.end,
        file_id=text_at(source, "documentName") or text_at(source, "mediaId"),
        raw=raw,
    )


def _page(page: JsonObject) -> str:
    url, status = text_at(page, "retrievedUrl"), text_at(page, "urlRetrievalStatus")
    return url if status in ("", "URL_RETRIEVAL_STATUS_SUCCESS") else f"{url} ({status})"
