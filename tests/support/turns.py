"""Turns in no API's words, generated, and how each wire API writes them: as a stream and as one document.

What an API can say of a turn is a table of its own, a row for each kind of part: the events of its stream, and its
place in a whole answer.
"""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar

from hypothesis import strategies as st
from msgspec.structs import replace
from support.streams import chop, objects
from support.wire import sse

from callboard.protocol.content import (
    AssistantPart,
    Media,
    ServerTool,
    Text,
    Thinking,
    ToolCall,
)
from callboard.protocol.model import FinishReason, ModelResponse, TokenLogprob, Usage
from callboard.providers.adapter import Adapter
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.responses_api import OpenAIResponses

Json = dict[str, Any]
#: The beginnings of a PNG and of a WAV.
PIXEL, SOUND = "iVBORw0KGgo=", "UklGRiQAAABXQVZF"
#: The source of every cited text.
SOURCE = ("https://example.org/a", "A page")


@dataclass(frozen=True)
class Part:
    """One part of a turn."""

    kind: str
    pieces: tuple[str, ...] = ()
    """Of its text, or of a call's arguments, as they are streamed; some are empty."""
    name: str = ""
    number: int = 0
    """Its place in the turn, from which its ids are made."""
    likely: bool = False
    """Text: each of its pieces is a token, and comes with its log probability."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def tokens(self) -> tuple[TokenLogprob, ...]:
        """What is told of its pieces' probabilities."""
        pieces = [piece for piece in self.pieces if piece] if self.likely else []
        return tuple(TokenLogprob(piece, -0.5, ((piece, -0.5), ("x", -1.5))) for piece in pieces)


@dataclass(frozen=True)
class Turn:
    """A whole turn, and what it cost."""

    parts: tuple[Part, ...]
    usage: Usage | None
    cut: bool = False
    """Ended by the limit of its length."""

    @property
    def finish(self) -> FinishReason:
        if self.cut:
            return FinishReason.LENGTH
        return FinishReason.TOOL_CALLS if any(part.kind == "call" for part in self.parts) else FinishReason.STOP

    @property
    def tokens(self) -> tuple[TokenLogprob, ...]:
        return tuple(token for part in self.parts for token in part.tokens)


@dataclass(frozen=True)
class Manner:
    """What servers do differently, without saying anything else."""

    newline: str = "\n"
    bom: bool = False
    named: bool = True
    done: bool = True
    comments: bool = False
    told: int = 99
    """Responses: of each item at most so many deltas come, the rest with its end (LM Studio sends none)."""
    rotate: bool = False
    """Responses: another item id in each event (Copilot)."""
    indexed: bool = True
    """Responses: events name their places (llama.cpp's do not)."""


def framed(documents: Sequence[Json], manner: Manner) -> bytes:
    """An event stream of these documents."""
    body = sse(documents, named=manner.named and all("type" in each for each in documents), done=manner.done)
    if manner.comments:
        body = body.replace(b"data: ", b": keep-alive\n\ndata:")
    # Within JSON a line end is written as \n: all others are the stream's own.
    return (b"\xef\xbb\xbf" if manner.bom else b"") + body.replace(b"\n", manner.newline.encode())


# What was said, to compare: in the words of the tests for a turn and for what we made of it.

Said = tuple[object, ...]
#: Parts of ours by the kind of the turn's, where it is one: how it is told.
_PROSE = {"text": "text", "thinking": "thinking", "cited": "text"}


def told(turn: Turn, blocks: Mapping[str, tuple[str, ...]]) -> list[Said]:
    """What a turn says. `blocks`: the API's own words for the blocks of a server tool."""
    said: list[Said] = []
    for part in turn.parts:
        if part.kind in _PROSE:
            said.append((_PROSE[part.kind], part.text, (SOURCE,) if part.kind == "cited" else ()))
        elif part.kind == "call":
            said.append(("call", part.name, json.loads(part.text)))
        elif part.kind in ("image", "audio"):
            said.append((part.kind, PIXEL if part.kind == "image" else SOUND))
        else:
            said += [("server tool", word) for word in blocks[part.kind]]
    return said


def heard(response: ModelResponse) -> list[Said]:
    """What our turn says."""
    return [_heard(part) for part in response.parts]


def _heard(part: AssistantPart) -> Said:
    if isinstance(part, Text):
        return "text", part.text, tuple((citation.url, citation.title) for citation in part.citations)
    if isinstance(part, Thinking):
        return "thinking", part.text, ()
    if isinstance(part, ToolCall):
        assert part.complete
        return "call", part.name, json.loads(part.arguments)
    if isinstance(part, ServerTool):
        return "server tool", part.kind
    assert isinstance(part, Media)
    return type(part).__name__.lower(), part.data_base64


# Turns.

_words = st.text(st.characters(codec="utf-8"), max_size=5)
_prose = st.lists(_words, min_size=1, max_size=4).map(tuple).filter(lambda pieces: "".join(pieces).strip())


@st.composite
def _arguments(draw: st.DrawFn) -> tuple[str, ...]:
    # As the servers that send an object write it, so that both say the same text.
    return tuple(chop(draw, json.dumps(draw(objects), ensure_ascii=False, separators=(",", ":"))))


_counts = st.integers(0, 50)
#: No prompt and no answer is empty: servers that send zeros do not know.
_some = st.integers(1, 50)


@cache
def _part(kind: str) -> st.SearchStrategy[Part]:
    if kind in _PROSE:
        return _prose.map(lambda pieces: Part(kind, pieces))
    if kind == "call":
        return st.tuples(_arguments(), st.sampled_from(["lookup", "now"])).map(lambda given: Part(kind, *given))
    if kind == "audio":
        return st.just(Part(kind, ("spoken ", "words")))
    return st.just(Part(kind))


@cache
def _parts(kinds: tuple[str, ...]) -> st.SearchStrategy[list[Part]]:
    return st.lists(st.sampled_from(kinds).flatmap(_part), max_size=5)


_flags = st.booleans()
_usages = st.none() | st.tuples(_some, _counts, _counts, _some, _counts)


@st.composite
def turns(draw: st.DrawFn, wire: Wire) -> Turn:
    """Any turn that the API can say."""
    found = draw(_parts(tuple(sorted(wire.rows))))
    likely = wire.has_logprobs and draw(_flags)
    parts = [
        dataclasses.replace(part, number=number, likely=likely and part.kind in ("text", "cited"))
        for number, part in enumerate(wire.sayable(found))
    ]
    counts = draw(_usages)
    usage = None if counts is None else wire.usage(*counts)
    if usage is not None:
        usage = replace(usage, web_searches=sum(part.kind == "search" for part in parts))
    may_be_cut = wire.ends_each_call or all(part.kind != "call" for part in parts)
    cut = may_be_cut and bool(parts) and parts[-1].kind == "text" and draw(_flags)
    return Turn(tuple(parts), usage, cut)


#: Line ends, a mark of the byte order and comments carry nothing.
manners = st.builds(
    Manner,
    newline=st.sampled_from(["\n", "\r\n", "\r"]),
    bom=st.booleans(),
    named=st.booleans(),
    done=st.booleans(),
    comments=st.booleans(),
    told=st.integers(0, 5),
    rotate=st.booleans(),
    indexed=st.booleans(),
)


class Wire(ABC):
    """A wire API."""

    adapter: ClassVar[Adapter]
    rows: ClassVar[Mapping[str, Callable[[Part], Any]]]
    blocks: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """How the API calls what a server tool leaves in an answer."""
    has_logprobs: ClassVar[bool] = True
    ends_each_call: ClassVar[bool] = True
    """Is a call known to be whole before the turn is, so that a limit hit behind it takes nothing from it?"""
    names_answers: ClassVar[bool] = True
    """Does an answer say its id and its model?"""

    @abstractmethod
    def stream(self, turn: Turn, manner: Manner) -> list[Json]:
        """The documents of a stream."""

    @abstractmethod
    def whole(self, turn: Turn) -> Json:
        """The answer as one document."""

    def framed(self, documents: Sequence[Json], manner: Manner) -> bytes:
        """The bytes of a stream of these documents: server-sent events, where the API has no frame of its own."""
        return framed(documents, manner)

    def body(self, turn: Turn, manner: Manner) -> bytes:
        """The bytes of a turn's stream."""
        return self.framed(self.stream(turn, manner), manner)

    def sayable(self, parts: Sequence[Part]) -> Sequence[Part]:
        """The parts in an order, and as often, as the API can say them."""
        return parts

    def usage(self, fresh: int, cached: int, written: int, output: int, reasoning: int) -> Usage:
        """What the API can tell of these counts, which are apart from each other."""
        return Usage(fresh + cached, output + reasoning, cached, 0, reasoning)

    def told(self, turn: Turn) -> list[Said]:
        return told(turn, self.blocks)


# Chat Completions


def _chat_call(part: Part) -> tuple[list[Json], Json]:
    place = {"index": part.number}
    begun = {**place, "id": f"call_{part.number}", "type": "function"}
    first, *rest = part.pieces
    deltas = [{"tool_calls": [{**begun, "function": {"name": part.name, "arguments": first}}]}]
    deltas += [{"tool_calls": [{**place, "function": {"arguments": piece}}]} for piece in rest]
    return deltas, {"tool_calls": [{**begun, "function": {"name": part.name, "arguments": part.text}}]}


def _chat_cited(part: Part) -> tuple[list[Json], Json]:
    source = {"url": SOURCE[0], "title": SOURCE[1], "start_index": 0, "end_index": len(part.text)}
    annotations = [{"type": "url_citation", "url_citation": source}]
    deltas = [{"content": piece} for piece in part.pieces]
    return [*deltas, {"annotations": annotations}], {"content": part.text, "annotations": annotations}


def _chat_image(part: Part) -> tuple[list[Json], Json]:
    shown = {"images": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}]}
    return [shown], shown


def _chat_audio(part: Part) -> tuple[list[Json], Json]:
    ids = {"id": "audio_1", "expires_at": 1}
    words = [{"audio": {**ids, "transcript": piece}} for piece in part.pieces]
    whole = {"audio": {**ids, "data": SOUND, "transcript": part.text}}
    return [*words, {"audio": {**ids, "data": SOUND[:10]}}, {"audio": {**ids, "data": SOUND[10:]}}], whole


def _openai_logprobs(tokens: Iterable[TokenLogprob]) -> list[Json]:
    return [
        {
            "token": token.token,
            "logprob": token.logprob,
            "top_logprobs": [{"token": text, "logprob": logprob} for text, logprob in token.top],
        }
        for token in tokens
    ]


class Chat(Wire):
    """Says each thing in a field of its own, so that only the order of calls is told."""

    adapter = OpenAIChat()
    rows: ClassVar[Mapping[str, Callable[[Part], tuple[list[Json], Json]]]] = {
        "thinking": lambda part: (
            [{"reasoning_content": piece} for piece in part.pieces],
            {"reasoning_content": part.text},
        ),
        "text": lambda part: ([{"content": piece} for piece in part.pieces], {"content": part.text}),
        "cited": _chat_cited,
        "image": _chat_image,
        "audio": _chat_audio,
        "call": _chat_call,
    }

    def sayable(self, parts: Sequence[Part]) -> Sequence[Part]:
        fields: dict[str, Part] = {}
        for part in parts:
            if part.kind != "call":
                fields.setdefault(_PROSE.get(part.kind, part.kind), part)
        calls = [part for part in parts if part.kind == "call"]
        return [*(fields[kind] for kind in ("thinking", "text", "image", "audio") if kind in fields), *calls]

    def told(self, turn: Turn) -> list[Said]:
        # What was spoken is read out at the end.
        return super().told(turn) + [("text", part.text, ()) for part in turn.parts if part.kind == "audio"]

    def stream(self, turn: Turn, manner: Manner) -> list[Json]:
        documents = [self._document(turn, [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}])]
        for part in turn.parts:
            deltas = self.rows[part.kind](part)[0]
            # A token for each delta that brings some of the text.
            tokens = iter(part.tokens)
            for delta in deltas:
                likely = [next(tokens)] if part.likely and delta.get("content") else []
                more = {"logprobs": {"content": _openai_logprobs(likely)}} if likely else {}
                documents.append(self._document(turn, [{"index": 0, "delta": delta, "finish_reason": None, **more}]))
        documents.append(self._document(turn, [{"index": 0, "delta": {}, "finish_reason": str(turn.finish)}]))
        if turn.usage is not None:
            documents.append(self._document(turn, [], usage=self._usage(turn.usage)))
        return documents

    def whole(self, turn: Turn) -> Json:
        message: Json = {"role": "assistant", "content": None}
        for part in turn.parts:
            for name, value in self.rows[part.kind](part)[1].items():
                message[name] = message.get(name, []) + value if isinstance(value, list) else value
        choice: Json = {"index": 0, "message": message, "finish_reason": str(turn.finish)}
        if turn.tokens:
            choice["logprobs"] = {"content": _openai_logprobs(turn.tokens)}
        usage = {} if turn.usage is None else {"usage": self._usage(turn.usage)}
        return self._document(turn, [choice], **usage)

    def _document(self, turn: Turn, choices: list[Json], **more: Any) -> Json:
        return {"id": "chatcmpl-1", "model": "gpt", "service_tier": "default", "choices": choices, **more}

    def _usage(self, usage: Usage) -> Json:
        return {
            "prompt_tokens": usage.input_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            "completion_tokens": usage.output_tokens,
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.total_tokens,
        }


# Responses


@dataclass(frozen=True)
class Item:
    """An output item: as it begins, what is said of it, and as it ends."""

    added: Json
    events: list[Json]
    done: Json
    closing: tuple[Json, ...] = ()
    """Events that come however few of the deltas do."""


def _deltas(stem: str, part: Part, **place: int) -> list[Json]:
    return [{"type": f"response.{stem}.delta", **place, "delta": piece} for piece in part.pieces]


def _item_text(part: Part, *annotations: Json) -> Item:
    place = {"content_index": 0}
    added = {"type": "message", "id": f"msg_{part.number}", "role": "assistant", "content": [], "status": "in_progress"}
    likely = {"logprobs": _openai_logprobs(part.tokens)} if part.likely else {}
    content = {"type": "output_text", "text": part.text, "annotations": list(annotations), **likely}
    sources = [
        {"type": "response.output_text.annotation.added", **place, "annotation_index": index, "annotation": annotation}
        for index, annotation in enumerate(annotations)
    ]
    closing = {"type": "response.output_text.done", **place, "text": part.text, **likely}
    done = {**added, "content": [content], "status": "completed"}
    deltas, tokens = _deltas("output_text", part, **place), iter(part.tokens)
    for delta in deltas:
        if part.likely and delta["delta"]:
            delta["logprobs"] = _openai_logprobs([next(tokens)])
    return Item(added, deltas, done, (*sources, closing))


def _item_cited(part: Part) -> Item:
    source = {"url": SOURCE[0], "title": SOURCE[1], "start_index": 0, "end_index": len(part.text)}
    return _item_text(part, {"type": "url_citation", **source})


def _item_thinking(part: Part) -> Item:
    place = {"summary_index": 0}
    added = {"type": "reasoning", "id": f"rs_{part.number}", "summary": []}
    done = {**added, "summary": [{"type": "summary_text", "text": part.text}], "encrypted_content": "ZW5j"}
    closing = {"type": "response.reasoning_summary_text.done", **place, "text": part.text}
    return Item(added, _deltas("reasoning_summary_text", part, **place), done, (closing,))


def _item_call(part: Part) -> Item:
    ids = {"id": f"fc_{part.number}", "call_id": f"call_{part.number}"}
    added = {"type": "function_call", **ids, "name": part.name, "arguments": "", "status": "in_progress"}
    closing = {"type": "response.function_call_arguments.done", "name": part.name, "arguments": part.text}
    done = {**added, "arguments": part.text, "status": "completed"}
    return Item(added, _deltas("function_call_arguments", part), done, (closing,))


def _item_search(part: Part) -> Item:
    added = {"type": "web_search_call", "id": f"ws_{part.number}", "status": "in_progress"}
    done = {**added, "status": "completed", "action": {"type": "search", "query": "callboard"}}
    stages = [{"type": f"response.web_search_call.{stage}"} for stage in ("in_progress", "searching", "completed")]
    return Item(added, stages, done)


def _item_image(part: Part) -> Item:
    added = {"type": "image_generation_call", "id": f"ig_{part.number}", "status": "in_progress", "result": None}
    done = {**added, "status": "completed", "result": PIXEL, "output_format": "png"}
    stages = [{"type": f"response.image_generation_call.{stage}"} for stage in ("in_progress", "generating")]
    return Item(added, stages, done)


class Responses(Wire):
    """Begins every item, tells it in pieces, ends it with the whole, and repeats all of them in its last event."""

    adapter = OpenAIResponses()
    rows: ClassVar[Mapping[str, Callable[[Part], Item]]] = {
        "thinking": _item_thinking,
        "text": _item_text,
        "cited": _item_cited,
        "call": _item_call,
        "search": _item_search,
        "image": _item_image,
    }
    blocks: ClassVar = {"search": ("web_search_call",)}

    def stream(self, turn: Turn, manner: Manner) -> list[Json]:
        documents = [{"type": "response.created", "response": self._response("in_progress", [])}]
        for place, part in enumerate(turn.parts):
            documents += self._item(self.rows[part.kind](part), place, manner)
        whole = self.whole(turn)
        documents.append({"type": f"response.{whole['status']}", "response": whole})
        for number, document in enumerate(documents):
            document["sequence_number"] = number
            if manner.rotate and "item_id" in document:
                document["item_id"] = f"rotated_{number}"
        return documents

    def _item(self, item: Item, place: int, manner: Manner) -> Iterator[Json]:
        # Rotated ids need the place: nothing else says to which item an event belongs.
        index = {"output_index": place} if manner.indexed or manner.rotate else {}
        yield {"type": "response.output_item.added", **index, "item": item.added}
        for document in (*item.events[: manner.told], *item.closing):
            inner = {name: value for name, value in document.items() if index or not name.endswith("_index")}
            yield {**inner, **index, "item_id": item.done["id"]}
        yield {"type": "response.output_item.done", **index, "item": item.done}

    def whole(self, turn: Turn) -> Json:
        output = [self.rows[part.kind](part).done for part in turn.parts]
        why = {"incomplete_details": {"reason": "max_output_tokens"}} if turn.cut else {}
        response = self._response("incomplete" if turn.cut else "completed", output)
        return {**response, **why, "usage": self._usage(turn.usage)}

    def _response(self, status: str, output: list[Json]) -> Json:
        return {
            "id": "resp_1",
            "object": "response",
            "model": "gpt",
            "service_tier": "default",
            "status": status,
            "output": output,
        }

    def _usage(self, usage: Usage | None) -> Json | None:
        if usage is None:
            return None
        return {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.total_tokens,
        }


# Messages


@dataclass(frozen=True)
class Block:
    """A content block: as it begins, its deltas, and in a whole answer."""

    start: Json
    deltas: list[Json]
    whole: Json


def _block_text(part: Part) -> list[Block]:
    deltas = [{"type": "text_delta", "text": piece} for piece in part.pieces]
    return [Block({"type": "text", "text": ""}, deltas, {"type": "text", "text": part.text})]


def _block_cited(part: Part) -> list[Block]:
    source = {"url": SOURCE[0], "title": SOURCE[1], "cited_text": "words", "encrypted_index": "ZQ=="}
    citation = {"type": "web_search_result_location", **source}
    [block] = _block_text(part)
    deltas = [*block.deltas, {"type": "citations_delta", "citation": citation}]
    return [Block({**block.start, "citations": []}, deltas, {**block.whole, "citations": [citation]})]


def _block_thinking(part: Part) -> list[Block]:
    signature = f"sig{part.number}"
    deltas: list[Json] = [{"type": "thinking_delta", "thinking": piece} for piece in part.pieces]
    deltas.append({"type": "signature_delta", "signature": signature})
    start = {"type": "thinking", "thinking": "", "signature": ""}
    return [Block(start, deltas, {"type": "thinking", "thinking": part.text, "signature": signature})]


def _block_call(part: Part) -> list[Block]:
    start = {"type": "tool_use", "id": f"toolu_{part.number}", "name": part.name, "input": {}}
    # Nothing is sent of an empty object but one empty piece.
    pieces = ["", *([] if json.loads(part.text) == {} else part.pieces)]
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return [Block(start, deltas, {**start, "input": json.loads(part.text)})]


def _block_search(part: Part) -> list[Block]:
    call = {"type": "server_tool_use", "id": f"srvtoolu_{part.number}", "name": "web_search", "input": {}}
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", '{"query":', ' "x"}')]
    page = {"type": "web_search_result", "url": SOURCE[0], "title": SOURCE[1], "encrypted_content": "ZQ=="}
    result = {"type": "web_search_tool_result", "tool_use_id": call["id"], "content": [page]}
    return [Block(call, deltas, {**call, "input": {"query": "x"}}), Block(result, [], result)]


#: What the last event of usage has; the rest comes with the first one.
_COUNTED_LAST = ("output_tokens", "server_tool_use")


class Messages(Wire):
    """Numbers its blocks, and says how many tokens came before it and how many after."""

    adapter = Anthropic()
    has_logprobs = False
    rows: ClassVar[Mapping[str, Callable[[Part], list[Block]]]] = {
        "thinking": _block_thinking,
        "text": _block_text,
        "cited": _block_cited,
        "call": _block_call,
        "search": _block_search,
    }
    blocks: ClassVar = {"search": ("server_tool_use", "web_search_tool_result")}

    def usage(self, fresh: int, cached: int, written: int, output: int, reasoning: int) -> Usage:
        return Usage(fresh + cached + written, output, cached, written)

    def stream(self, turn: Turn, manner: Manner) -> list[Json]:
        usage = self._usage(turn.usage)
        begun = {**self._message([]), "stop_reason": None, **({"usage": usage | {"output_tokens": 1}} if usage else {})}
        documents: list[Json] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
        for index, block in enumerate(self._blocks(turn)):
            documents.append({"type": "content_block_start", "index": index, "content_block": block.start})
            documents += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in block.deltas]
            documents.append({"type": "content_block_stop", "index": index})
        after = {"usage": {name: usage[name] for name in _COUNTED_LAST if name in usage}} if usage else {}
        ended = {"stop_reason": self._reason(turn), "stop_sequence": None}
        return [*documents, {"type": "message_delta", "delta": ended, **after}, {"type": "message_stop"}]

    def whole(self, turn: Turn) -> Json:
        usage = self._usage(turn.usage)
        message = self._message([block.whole for block in self._blocks(turn)])
        return {**message, "stop_reason": self._reason(turn), **({"usage": usage} if usage else {})}

    def _blocks(self, turn: Turn) -> Iterable[Block]:
        return (block for part in turn.parts for block in self.rows[part.kind](part))

    def _message(self, content: list[Json]) -> Json:
        return {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": content}

    def _reason(self, turn: Turn) -> str:
        words = {FinishReason.LENGTH: "max_tokens", FinishReason.TOOL_CALLS: "tool_use", FinishReason.STOP: "end_turn"}
        return words[turn.finish]

    def _usage(self, usage: Usage | None) -> Json | None:
        if usage is None:
            return None
        return {
            "input_tokens": usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
            "cache_read_input_tokens": usage.cached_tokens,
            "cache_creation_input_tokens": usage.cache_write_tokens,
            "output_tokens": usage.output_tokens,
            "service_tier": "standard",
            **({"server_tool_use": {"web_search_requests": usage.web_searches}} if usage.web_searches else {}),
        }


# Gemini


def _prose_parts(part: Part, **more: Any) -> tuple[list[Json], list[Json]]:
    # What is signed comes in one piece: a signature belongs to its own piece only (quirk 44).
    pieces = [piece for piece in part.pieces if piece]
    signed = {"thoughtSignature": f"c2ln{part.number:04d}"} if len(pieces) == 1 else {}
    return [{"text": piece, **more, **signed} for piece in pieces], [{"text": part.text, **more, **signed}]


def _adjoin(one: Part, other: Part) -> bool:
    return one.kind == other.kind and one.kind in (*_PROSE, "audio")


def _same(*parts: Json) -> tuple[list[Json], list[Json]]:
    return list(parts), list(parts)


def _gemini_logprobs(tokens: Sequence[TokenLogprob]) -> Json:
    def likely(token: str, logprob: float) -> Json:
        return {"token": token, "logProbability": logprob}

    return {
        "chosenCandidates": [likely(token.token, token.logprob) for token in tokens],
        "topCandidates": [{"candidates": [likely(*each) for each in token.top]} for token in tokens],
    }


class GenerateContent(Wire):
    """Streams whole parts; every chunk looks like a whole answer."""

    adapter = Gemini()
    rows: ClassVar[Mapping[str, Callable[[Part], tuple[list[Json], list[Json]]]]] = {
        "thinking": lambda part: _prose_parts(part, thought=True),
        "text": _prose_parts,
        "cited": _prose_parts,
        "call": lambda part: _same(
            {"functionCall": {"id": f"g_{part.number}", "name": part.name, "args": json.loads(part.text)}}
        ),
        "image": lambda part: _same({"inlineData": {"mimeType": "image/png", "data": PIXEL}}),
        "audio": lambda part: _same({"inlineData": {"mimeType": "audio/wav", "data": SOUND}}),
        "code": lambda part: _same(
            {"executableCode": {"language": "PYTHON", "code": "1"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}},
        ),
    }
    blocks: ClassVar = {"code": ("executableCode", "codeExecutionResult")}

    def sayable(self, parts: Sequence[Part]) -> Sequence[Part]:
        # Nothing parts two texts, or two sounds, that follow each other; of the sources' places only those of the one
        # text are told here.
        cited = [part for part in parts if part.kind == "cited"][:1]
        parts = [part for part in parts if not cited or part is cited[0] or part.kind not in ("text", "cited")]
        return [part for before, part in pairwise((None, *parts)) if part and not (before and _adjoin(before, part))]

    def told(self, turn: Turn) -> list[Said]:
        grounded = any(part.kind == "cited" for part in turn.parts)
        return super().told(turn) + ([("server tool", "groundingMetadata")] if grounded else [])

    def stream(self, turn: Turn, manner: Manner) -> list[Json]:
        chunks = []
        for part in turn.parts:
            tokens = iter(part.tokens)
            for each in self.rows[part.kind](part)[0]:
                chunks.append(self._chunk([each], tokens=[next(tokens)] if part.likely else []))
        return [*chunks, self._chunk([{"text": ""}], turn)]

    def whole(self, turn: Turn) -> Json:
        return self._chunk([each for part in turn.parts for each in self.rows[part.kind](part)[1]], turn, turn.tokens)

    def _chunk(self, parts: list[Json], ended: Turn | None = None, tokens: Sequence[TokenLogprob] = ()) -> Json:
        candidate: Json = {"content": {"parts": parts, "role": "model"}, "index": 0}
        if tokens:
            candidate["logprobsResult"] = _gemini_logprobs(tokens)
        usage: Json = {}
        if ended is not None:
            candidate["finishReason"] = "MAX_TOKENS" if ended.cut else "STOP"
            usage = {} if ended.usage is None else {"usageMetadata": self._usage(ended.usage)}
            for part in ended.parts:
                if part.kind == "cited":
                    candidate["groundingMetadata"] = self._grounding(part.text)
        return {"candidates": [candidate], **usage, "modelVersion": "gemini", "responseId": "r1"}

    def _grounding(self, text: str) -> Json:
        segment = {"startIndex": 0, "endIndex": len(text.encode()), "text": text}
        return {
            "groundingChunks": [{"web": {"uri": SOURCE[0], "title": SOURCE[1]}}],
            "groundingSupports": [{"segment": segment, "groundingChunkIndices": [0]}],
        }

    def _usage(self, usage: Usage) -> Json:
        return {
            "promptTokenCount": usage.input_tokens,
            "cachedContentTokenCount": usage.cached_tokens,
            "candidatesTokenCount": usage.output_tokens - usage.reasoning_tokens,
            "thoughtsTokenCount": usage.reasoning_tokens,
            "totalTokenCount": usage.total_tokens,
        }


class GeminiArray(GenerateContent):
    """The same without `alt=sse`: all chunks in one JSON array."""

    def framed(self, documents: Sequence[Json], manner: Manner) -> bytes:
        indent = 2 if manner.named else None
        text = json.dumps(documents, indent=indent, ensure_ascii=manner.comments)
        return (b"\xef\xbb\xbf" if manner.bom else b"") + text.encode().replace(b"\n", manner.newline.encode())
