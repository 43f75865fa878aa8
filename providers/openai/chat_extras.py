"""What a Chat Completions answer may have beside text, reasoning and calls: sources, pictures, sound, log
probabilities, the tools that its server ran, and usage.

None of it is worth losing an answer over: what is not of the expected shape is not taken.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from io import StringIO
from typing import Final
from urllib.parse import unquote_to_bytes

from callboard.protocol import model
from callboard.protocol.content import Audio, Citation, Image, Replay
from callboard.protocol.limits import MAX_RESPONSE_BYTES
from callboard.protocol.model import ServerToolEvent, StreamEvent, TextDelta, TokenLogprob
from callboard.providers.json_values import (
    Json,
    JsonObject,
    count_at,
    fields_at,
    likely_token,
    span_at,
    usage_of,
    whole_counts,
)

#: Of what a server's tool was asked so much is shown.
_SHOWN_CHARS: Final = 500
_Out = list[StreamEvent]


def dicts(value: Json) -> list[JsonObject]:
    """The objects of a list; [] for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def word(holder: JsonObject, *names: str) -> str:
    """The first of these fields that is a text; "" where none is."""
    return next((value for name in names if isinstance(value := holder.get(name), str) and value), "")


# CitedSources.


def citation(raw: JsonObject) -> Citation:
    """An annotation (OpenAI, OpenRouter), a search result (Perplexity, Z.ai, Groq), or any other source."""
    inner = fields_at(raw, "url_citation") or raw
    start, end = span_at(inner, "start_index", "end_index")
    return Citation(
        url=word(inner, "url", "link"),
        title=word(inner, "title"),
        cited_text=word(inner, "cited_text", "content", "snippet"),
        start=start,
        end=end,
        raw=raw,
    )


class CitedSources:
    """The pages that an answer rests on as a whole, in the order of its marks [1], [2] ..., each once. Servers repeat
    them in every chunk, so the last list of each kind counts."""

    def __init__(self) -> None:
        self._lists: dict[str, list[JsonObject]] = {}

    def note(self, field: str, found: Json) -> None:
        """Take a list of URLs or of results in."""
        entries = [_entry(each) for each in found] if isinstance(found, list) else []
        if known := [entry for entry in entries if entry]:
            self._lists[field] = known

    def citations(self) -> tuple[Citation, ...]:
        """What has come."""
        told: dict[str, JsonObject] = {}
        for entry in (entry for entries in self._lists.values() for entry in entries):
            url = word(entry, "url", "link")
            # A result tells more than its bare URL.
            if url not in told or len(entry) > len(told[url]):
                told[url] = entry
        return tuple(map(citation, told.values()))


def _entry(found: Json) -> JsonObject:
    """A result, or a bare URL; {} for anything else."""
    return found if isinstance(found, dict) else {"url": found} if isinstance(found, str) and found else {}


# Pictures and sound.


def picture(raw: JsonObject) -> Image | None:
    """An image of an answer: {"image_url": {"url": ..}}, by its bytes or its address."""
    holder = raw.get("image_url")
    url = holder if isinstance(holder, str) else word(fields_at(raw, "image_url") or raw, "url")
    if not url.startswith("data:"):
        return Image(url=url) if url else None
    head, _, data = url.removeprefix("data:").partition(",")
    media_type, *parameters = head.split(";")
    if "base64" not in parameters:  # SVG is written as it is (RFC 2397)
        data = b64encode(unquote_to_bytes(data)).decode()
    return Image(media_type, data)


#: How sound begins, by its format; what begins otherwise is bare samples.
_SOUNDS: Final = (
    (b"RIFF", "audio/wav"),
    (b"ID3", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf1", "audio/aac"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
)


#: So much base64 tells the format: four bytes.
_SNIFF_CHARS: Final = 8


def _sound_type(data_base64: str) -> str:
    try:
        head = b64decode(data_base64[:_SNIFF_CHARS])
    except ValueError:
        return "audio/pcm"
    return next((kind for start, kind in _SOUNDS if head.startswith(start)), "audio/pcm")


class Speech:
    """A spoken answer: sound as it comes, its words at its end (pieces of both are mixed, and must not cut each other
    into many parts). It goes back by its id."""

    def __init__(self, origin: str, show: Callable[[_Out, Audio, int], None]) -> None:
        self._origin = origin
        self._show = show
        self._id = ""
        self._words = StringIO()
        self._rest = ""
        """Base64 that was cut off in the middle of a group of four."""
        self._begun = False

    def feed(self, piece: JsonObject, block: int, out: _Out) -> None:
        """Take a piece in. Raises ValueError past the limit."""
        self._id = self._id or word(piece, "id")
        self._words.write(word(piece, "transcript"))
        if self._words.tell() > MAX_RESPONSE_BYTES:
            raise ValueError(f"the transcript is longer than {MAX_RESPONSE_BYTES} characters")
        if data := word(piece, "data"):
            self._rest += data
            # The first piece tells the format; padding ends a piece.
            if self._begun or len(self._rest) >= _SNIFF_CHARS or data.endswith("="):
                self._emit(block, out)

    def _emit(self, block: int, out: _Out) -> None:
        whole = len(self._rest) - len(self._rest) % 4
        data, self._rest = self._rest[:whole], self._rest[whole:]
        if data:
            media_type, replay = ("", None) if self._begun else (_sound_type(data), self._replay())
            self._begun = True
            self._show(out, Audio(media_type, data, replay=replay), block)

    def finish(self, block: int, out: _Out, written: str) -> None:
        """The answer is over: the rest of its sound, and what was said, unless the same words are `written` too."""
        self._emit(block, out)
        if (said := self._words.getvalue()) and said != written:
            out.append(TextDelta(said, block, self._replay()))

    def _replay(self) -> Replay | None:
        return Replay(self._origin, {"audio": {"id": self._id}}) if self._id else None


# Tools that the server ran.


class ExecutedTools:
    """Groq's `executed_tools`: each comes when it is called, and again with its output."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._tools: dict[object, JsonObject] = {}

    def note(self, entries: Iterable[JsonObject], sources: CitedSources) -> None:
        """Take calls and outputs in."""
        for place, entry in enumerate(entries):
            index = entry.get("index")
            tool = self._tools.setdefault(index if isinstance(index, int) else (word(entry, "type"), place), {})
            tool |= {key: value for key, value in entry.items() if value is not None}
            sources.note(f"executed_tools {len(self._tools)}", fields_at(tool, "search_results").get("results"))

    def events(self) -> Iterator[ServerToolEvent]:
        """What was run, in its order."""
        for tool in self._tools.values():
            name = word(tool, "name", "type")
            text = word(tool, "arguments", "output")[:_SHOWN_CHARS]
            yield ServerToolEvent("executed_tools", Replay(self._origin, {"executed_tools": [tool]}), name, "", text)


# Numbers.


def token_logprobs(raw: JsonObject) -> Iterator[TokenLogprob]:
    """OpenAI's list of objects, or Together's two lists."""
    for entry in dicts(raw.get("content")):
        if (likely := likely_token(entry)) is not None:
            yield TokenLogprob(*likely, tuple(filter(None, map(likely_token, dicts(entry.get("top_logprobs"))))))
    tokens, numbers = raw.get("tokens"), raw.get("token_logprobs")
    if isinstance(tokens, list) and isinstance(numbers, list):
        for token, number in zip(tokens, numbers, strict=False):
            if (likely := likely_token({"token": token, "logprob": number})) is not None:
                yield TokenLogprob(*likely)


def normal_usage(raw: JsonObject) -> model.Usage | None:
    """Usage by our definition: input includes what was read from the cache and written to it, output the reasoning."""
    prompt, completion = fields_at(raw, "prompt_tokens_details"), fields_at(raw, "completion_tokens_details")
    asked, answered = _count(raw, "prompt_tokens", "input_tokens"), _count(raw, "completion_tokens", "output_tokens")
    if asked is None and answered is None:
        return None
    # DeepSeek, Moonshot and Mistral put it on the top level, LiteLLM under Anthropic's names, Perplexity its reasoning.
    read = (
        _count(prompt, "cached_tokens")
        or _count(raw, "prompt_cache_hit_tokens", "cached_tokens", "num_cached_tokens", "cache_read_input_tokens")
        or 0
    )
    written = (
        _count(prompt, "cache_write_tokens", "cache_creation_tokens") or _count(raw, "cache_creation_input_tokens") or 0
    )
    reasoned = _count(completion, "reasoning_tokens") or _count(raw, "reasoning_tokens") or 0
    asked, heard = _with_sound(raw, asked or 0, answered or 0, _count(prompt, "audio_tokens"))
    asked, answered = whole_counts(asked, answered or 0, read, written, reasoned, count_at(raw, "total_tokens"))
    return usage_of(
        input_tokens=asked,
        output_tokens=answered,
        cached_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=reasoned,
        input_audio_tokens=heard,
        output_audio_tokens=_count(completion, "audio_tokens"),
        output_image_tokens=_count(completion, "image_tokens"),
        web_searches=_count(raw, "num_search_queries")
        or _count(fields_at(raw, "server_tool_use"), "web_search_requests"),
    )


def _with_sound(raw: JsonObject, asked: int, answered: int, heard: int | None) -> tuple[int, int | None]:
    """(input, sound in it) as a whole. Mistral counts sound beside the prompt, by its tokens or only by its seconds; in
    total it is counted (Voxtral: 6 and 375 of sound, 2, together 383; its docs, "Audio": 4, 635, together 3264)."""
    total = count_at(raw, "total_tokens")
    if heard and (heard > asked or total == asked + answered + heard):
        return asked + heard, heard
    rest = (total or 0) - asked - answered
    if not heard and rest > 0 and _count(raw, "prompt_audio_seconds"):
        return asked + rest, rest
    return asked, heard


def _count(holder: JsonObject, *names: str) -> int | None:
    for name in names:
        if (count := count_at(holder, name)) is not None:
            return count
    return None
