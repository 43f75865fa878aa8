"""From the fragments of an answer's calls to events, and from events to one finished turn.

A ModelResponse is a collected stream, never a second path.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from hashlib import blake2s
from io import StringIO
from itertools import accumulate
from typing import Final

from msgspec import Struct, field
from msgspec.structs import astuple, replace

from callboard.protocol import model
from callboard.protocol.content import (
    AssistantPart,
    Audio,
    Citation,
    Document,
    Image,
    Replay,
    ServerTool,
    Text,
    Thinking,
    ToolCall,
)
from callboard.protocol.errors import RETRYABLE_KINDS, ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.limits import MAX_ANSWER_BYTES, MAX_ARGUMENT_BYTES, MAX_CALLS_PER_STEP
from callboard.providers.json_values import Json, as_text, canonical_arguments, final_arguments, holds_objects

_PROSE: Final = (model.TextDelta, model.ThinkingDelta)
#: How the argument text of a call can begin.
_BEGINS: Final = frozenset({"{", '"'})
#: And how it can end.
_ENDS: Final = frozenset({"}", '"'})
#: Text that says of a call's arguments no more than that there are none, and how long such a text is at most.
_NO_ARGUMENTS: Final = frozenset({"", "null", "{}"})
_BARE_CHARS: Final = 32
#: Looks at one call's arguments before pieces that may begin another call. Each reads all of them.
_MAX_LOOKS: Final = 100
#: Told by the answer.
REPEATED_ID: Final = "calls of the answer had the same id; the later ones have new ones"
UNCLEAR_CALLS: Final = (
    "it is not clear which call of the answer some arguments belong to; the calls in question are not run"
)
#: What any piece of a medium may tell.
_OF_MEDIA: Final = ("media_type", "url", "file_id", "name", "replay")


# A call's fragments to events.


class TooManyCallsError(ValueError):
    """A turn with more calls, or a call with longer arguments, than any model sends on purpose."""


class _Call(Struct, eq=False):
    """A call that is being written."""

    sent_id: str
    """The provider's id, "" while unknown."""
    name: str = ""
    replay: Replay | None = None
    call_id: CallId = CallId("")
    """What we call it; set when it starts."""
    arguments: StringIO = field(default_factory=StringIO)
    completed: bool = False
    index: Hashable = None
    """Where it was opened, or its first later piece with its id came."""
    last_char: str = ""
    """Of its arguments, but for blanks."""
    looks: int = 0
    named_again: bool = False
    """Its name came once more, and no more of its arguments since."""
    after: _Call | None = None
    """The call that was being written when it was opened."""
    unclear: bool = False
    """Arguments that came may be its own or not: it is not run."""

    def is_written(self) -> bool:
        """Has any of its arguments come?"""
        return bool(self.last_char)

    def is_bare(self) -> bool:
        """Has nothing come of its arguments but an empty object?"""
        return self.arguments.tell() < _BARE_CHARS and self.arguments.getvalue().strip() in _NO_ARGUMENTS

    def is_over(self) -> bool:
        """Are its arguments one whole object, which nothing can go on with?"""
        if self.last_char not in _ENDS or self.looks >= _MAX_LOOKS:
            return False
        self.looks += 1
        return canonical_arguments(self.arguments.getvalue())[1]

    def part(self) -> AssistantPart:
        raw = self.arguments.getvalue()
        arguments, parsed = final_arguments(raw)
        complete = self.completed and parsed
        return ToolCall(self.call_id, ToolName(self.name), arguments if complete else raw, complete, self.replay)


class ToolCallTracker:
    """Turns the fragments of an answer's calls, as any API sends them, into ToolCallStart, Delta and Complete, which it
    appends to the caller's list of events.

    The rules (numbers are the quirks of docs/wire.md section 2):

        an id we know          goes to its call, with any index, unless it begins another: see below   5, 7
        an id we do not know   opens a call; a call at that index which has no id yet takes it         5, 55
        "" or null as an id    is no id                                                                3
        no id, but an index    goes to the call at that index, else opens one (indexes are keys)       1, 2, 6, 12
        neither                a name opens a call, anything else goes on with the last one            4
        the same name alone    behind a whole object: an object that follows it is another call's        48
        a name or id again     changes nothing: they are never concatenated, nor whole arguments       7
        arguments before name  wait; the call starts when its name is known                            55
        an object as arguments is encoded once                                                         10
        an id that another call of this answer has is replaced by a new one; `notes` tells             48
        no arguments at all    are whole once the API says so: see `complete`, `written`               9, 23, 57

    A piece without id and name, under an index that no call has, goes on with the last call where no arguments begin
    so. Else it waits for a name; without one at the end of the turn it belongs to the call that was being written, if
    that has whole arguments by it, or to the only one without any. If neither, no call is run of which it may be (85).

    A piece with the id of a call begins another call, if it

        has another name                                                 it is of no call that we know
        has another object, and the call's own is whole                  no JSON goes on so
        has another index and a name, and its text cannot be more        names come with first pieces, or with all

    `seed` (the provider's id of the answer, where there is one) goes into invented ids, so that they differ from turn
    to turn and are the same however the bytes were cut.
    """

    __slots__ = ("_by_id", "_by_index", "_calls", "_held", "_last", "_taken", "_waiting", "notes", "seed")

    def __init__(self, seed: str = "") -> None:
        self.seed = seed
        self.restart()

    def restart(self) -> None:
        """The provider began the turn again: forget every call (quirk 37). Pair it with a Restarted event."""
        self._calls: list[_Call] = []
        self._by_id: dict[str, _Call] = {}
        self._by_index: dict[Hashable, _Call] = {}
        self._taken: set[str] = set()
        self._last: _Call | None = None
        self._waiting: _Call | None = None
        self._held = 0
        """The length of the arguments of calls that have no name yet: no event tells of them, so no one else counts."""
        self.notes: tuple[str, ...] = ()
        """What was not kept as the provider sent it."""

    @property
    def count(self) -> int:
        """Calls seen so far, started or not."""
        return len(self._calls)

    def written(self) -> bool:
        """Does every call's argument text tell by itself that it is whole? An object does, by its closing brace; where
        no argument has come yet, only the API's own word (a finish reason, an end event) can tell."""
        return all(call.is_written() and final_arguments(call.arguments.getvalue())[1] for call in self._calls)

    def arguments_at(self, index: Hashable) -> str:
        """The argument text of the call at `index` as far as it has come."""
        call = self._by_index.get(index)
        return call.arguments.getvalue() if call is not None else ""

    def delta(
        self,
        out: list[model.StreamEvent],
        *,
        index: Hashable = None,
        id: str = "",
        name: str = "",
        arguments: Json = None,
        replay: Replay | None = None,
    ) -> None:
        """A fragment of a call. Raises TooManyCallsError past the limits of protocol.limits."""
        text = arguments if isinstance(arguments, str) else as_text(arguments)
        call = self._find(index, id, name, text)
        if call.completed or call is self._waiting:
            return
        if self._waiting is not None and (name or call.name):
            self.settle(out)
        self._last = call
        call.replay = replay or call.replay
        call.named_again = not text.strip() and (call.named_again or bool(name and call.name))
        if name and not call.name:
            call.name, call.unclear = name, False  # arguments that came under its own index before it are its own
        self._write(call, "" if id and _is_repeat(call, text) else text, out)

    def begin(
        self,
        out: list[model.StreamEvent],
        *,
        index: Hashable,
        id: str = "",
        name: str = "",
        replay: Replay | None = None,
    ) -> None:
        """The API said that a call begins at `index`: one of its own, even where a proxy repeats an id."""
        self.settle(out)
        call = self._by_index[index] = self._last = self._open(id)
        call.name, call.replay = name, replay
        self._write(call, "", out)

    def whole(
        self,
        out: list[model.StreamEvent],
        *,
        id: str = "",
        name: str = "",
        arguments: Json = None,
        replay: Replay | None = None,
        complete: bool = True,
    ) -> None:
        """A call that came in one piece: always one of its own, even beside an identical one (quirk 42)."""
        self.settle(out)
        call = self._open(id)
        self._last = call
        call.replay, call.name = replay, name
        self._write(call, as_text(arguments), out)
        if complete:
            self._complete(call, out)

    def complete(self, out: list[model.StreamEvent], index: Hashable) -> None:
        """The API said that the call at `index` is finished (a block's stop event). An unknown call is no error.

        A call without any argument text waits until more of the answer comes (`settle`) or its end does: servers send
        the stop event also where the length limit cut the call off before its first argument (57).
        """
        if index not in self._by_index or self._by_index[index] is self._waiting:
            return
        self.settle(out)
        self._reunite(out, self._by_index[index])
        call = self._by_index[index]
        if call.is_written():
            self._complete(call, out)
        else:
            self._waiting = call

    def settle(self, out: list[model.StreamEvent]) -> None:
        """More of the answer came, or its end and no cut: the call that was finished without arguments has none."""
        if (call := self._waiting) is not None:
            self._waiting = None
            self._complete(call, out)

    def complete_all(self, out: list[model.StreamEvent], *, cut: bool = False) -> None:
        """The turn is over. With `cut` (length limit, filter) the call that was written last stays incomplete."""
        self._reunite(out)
        bare = [call for call in self._calls if call.name and not call.completed and not call.is_written()]
        if bare and any(holds_objects(_arguments(call)) for call in self._calls if call.is_written()):
            self._doubt(bare)  # their arguments came under the index of another call
        for call in self._calls:
            if not (cut and call is self._last):
                self._complete(call, out)

    def _find(self, index: Hashable, id: str, name: str, text: str) -> _Call:
        if id:
            return self._find_by_id(index, id, name, text)
        call = self._last if index is None else self._by_index.get(index)
        if call is None:
            return self._continued(index, name, text) or self._open_at(index)
        if call.named_again and _begins_object(call, text) and not (call.sent_id and _is_repeat(call, text)):
            another = self._open_at(index, call.sent_id)
            another.name = call.name
            return another
        if index is None:
            return self._open_at(None) if name and call.name else call
        is_another = _is_named_otherwise(call, name) or (name and _begins_object(call, text))
        return self._open_at(index) if is_another else call

    def _continued(self, index: Hashable, name: str, text: str) -> _Call | None:
        """The last call, if a piece without an id, under an index that no call has, can only go on with it: indexes
        that are counted on with each piece."""
        last, begun = self._last, text.strip()
        if last is None or last.completed or last is self._waiting or (name and name != last.name):
            return None
        if not begun:
            return None if name else last
        if _may_begin(begun):
            is_another = last.is_over() if last.is_written() else not name or canonical_arguments(begun)[1]
            if is_another:
                return None
        self._by_index[index] = last
        return last

    def _find_by_id(self, index: Hashable, id: str, name: str, text: str) -> _Call:
        at_index = self._by_index.get(index)
        call = at_index if at_index is not None and at_index.sent_id == id else self._by_id.get(id)
        if call is None:
            return self._adopt(index, id)
        elsewhere = index is not None and call.index is not None and call is not at_index
        if not _begins_another(call, elsewhere, name, text):
            return call
        another = self._adopt(index, id)
        another.name = another.name or name or call.name
        return another

    def _adopt(self, index: Hashable, id: str) -> _Call:
        """Another call of this id: one at this index still without an id, else a new one."""
        call = self._by_index.get(index)
        if call is None or call.sent_id:
            call = self._open(id)
        else:
            call.sent_id = id
        self._by_id[id] = call
        if index is not None:
            self._by_index[index], call.index = call, index
        return call

    def _open_at(self, index: Hashable, id: str = "") -> _Call:
        call = self._open(id)
        if index is not None:
            self._by_index[index], call.index = call, index
        if id:
            self._by_id[id] = call
        return call

    def _open(self, id: str) -> _Call:
        if len(self._calls) >= MAX_CALLS_PER_STEP:
            raise TooManyCallsError(f"more than {MAX_CALLS_PER_STEP} tool calls in one turn")
        call = _Call(id, after=self._last)
        self._calls.append(call)
        return call

    def _write(self, call: _Call, text: str, out: list[model.StreamEvent]) -> None:
        """Add to the arguments. A call starts when its name is known; until then what has come is kept."""
        call.arguments.write(text)
        call.last_char = text.rstrip()[-1:] or call.last_char
        if call.arguments.tell() > MAX_ARGUMENT_BYTES:
            raise TooManyCallsError(f"the arguments of a tool call are longer than {MAX_ARGUMENT_BYTES} bytes")
        if not call.call_id:
            self._held += len(text)
            if call.name:
                self._start(call, out)
            elif self._held > MAX_ANSWER_BYTES:
                raise TooManyCallsError(
                    f"the arguments of calls without a name are longer than {MAX_ANSWER_BYTES} bytes"
                )
        elif text:
            out.append(model.ToolCallDelta(call.call_id, text))

    def _start(self, call: _Call, out: list[model.StreamEvent]) -> None:
        call.call_id = self._unique_id(call)
        out.append(model.ToolCallStart(call.call_id, ToolName(call.name), call.replay))
        if early := call.arguments.getvalue():
            self._held -= len(early)
            out.append(model.ToolCallDelta(call.call_id, early))

    def _complete(self, call: _Call, out: list[model.StreamEvent]) -> None:
        if call.completed:
            return
        if not call.call_id:
            # A call that never got a name is kept: its result says that there is no such tool.
            self._start(call, out)
        call.completed = True
        # Servers call a turn whole that the length limit has cut (docs/wire.md quirk 21, llama.cpp's Responses).
        if final_arguments(call.arguments.getvalue())[1] and not (call.unclear and call.name):
            out.append(model.ToolCallComplete(call.call_id))

    def _reunite(self, out: list[model.StreamEvent], finished: _Call | None = None) -> None:
        """Give arguments without a name to the call that they are of. `finished`: the API says that it has all."""
        strays = [call for call in self._calls if not call.name]
        if not strays:
            return
        pieces_of: dict[_Call | None, list[_Call]] = {}
        for stray in strays:
            if not stray.unclear:  # else it was looked at before
                pieces_of.setdefault(_named_before(stray), []).append(stray)
        left = [piece for owner, pieces in pieces_of.items() for piece in self._without_own(owner, pieces, out)]
        unsure = [call for call in self._calls if not (call.completed or (call is finished and call.is_written()))]
        bare = [call for call in unsure if call.name and call.is_bare()]
        text = "".join(map(_arguments, left))
        if len(bare) == 1 and not bare[0].is_written() and text.strip() and canonical_arguments(text)[1]:
            self._join(bare[0], left, text, out)
        elif left or any(stray.unclear for stray in strays):
            self._doubt(bare)
        for piece in left:
            piece.unclear = True

    def _without_own(self, owner: _Call | None, pieces: list[_Call], out: list[model.StreamEvent]) -> list[_Call]:
        """Those pieces that are not of the call that was being written when they came; it takes its own."""
        text = "".join(map(_arguments, pieces))
        says_nothing = text.strip() in _NO_ARGUMENTS
        if owner is None and says_nothing:
            owner = next((call for call in self._calls if call.name), None)
        if owner is None:
            return pieces
        own = owner.arguments.getvalue()
        if says_nothing or text.strip() == own.strip():
            self._join(owner, pieces, "", out)
            return []
        if owner.completed or (own.strip() and canonical_arguments(own)[1]):
            return pieces
        before = self._calls[: self._calls.index(pieces[0])]
        # An empty object that was written is all of a call's arguments, where its server writes none in a head.
        rivals = [call for call in before if call is not owner and call.name and not call.completed and call.is_bare()]
        rivals = [call for call in rivals if owner.is_written() or not call.is_written()]
        self._join(owner, pieces, text, out)
        if rivals:
            self._doubt([owner, *rivals])
        return []

    def _join(self, owner: _Call, pieces: list[_Call], text: str, out: list[model.StreamEvent]) -> None:
        """These pieces are of that call, and add this text to its arguments."""
        self._held -= sum(piece.arguments.tell() for piece in pieces)
        self._calls = [call for call in self._calls if call not in pieces]
        for place, call in self._by_index.items():
            if call in pieces:
                self._by_index[place] = owner
        self._last = owner if self._last in pieces else self._last
        if text:
            self._write(owner, text, out)

    def _doubt(self, calls: list[_Call]) -> None:
        for call in calls:
            call.unclear = True
        if calls and UNCLEAR_CALLS not in self.notes:
            self.notes = (*self.notes, UNCLEAR_CALLS)

    def _unique_id(self, call: _Call) -> CallId:
        chosen, ordinal, salt = call.sent_id, self._calls.index(call), 0
        if chosen in self._taken:
            self.notes = tuple(dict.fromkeys((*self.notes, REPEATED_ID)))
        while not chosen or chosen in self._taken:
            digest = blake2s(f"{self.seed}/{ordinal}/{salt}".encode("utf-8", "replace"), digest_size=12)
            chosen = f"call_{digest.hexdigest()}"
            salt += 1
        self._taken.add(chosen)
        return CallId(chosen)


def _begins_another(call: _Call, elsewhere: bool, name: str, text: str) -> bool:
    """Does a piece with the id of this call begin another one? `elsewhere`: at another index."""
    if _is_named_otherwise(call, name):
        return True
    if _begins_object(call, text):
        return bool(elsewhere and name) or not _is_repeat(call, text)
    if not (elsewhere and name):
        return False
    begun = text.strip()
    if not call.is_written():  # its first arguments, or another call: heads come first, or calls whole
        return not begun or canonical_arguments(begun)[1]
    return begun[:1] in {"", *_BEGINS} or call.is_over()


def _named_before(stray: _Call) -> _Call | None:
    """The call that was being written when these arguments came, which may have begun without a name themselves."""
    owner = stray.after
    while owner is not None and not owner.name:
        owner = owner.after
    return owner


def _arguments(call: _Call) -> str:
    return call.arguments.getvalue()


def _may_begin(text: str) -> bool:
    """May a call's arguments begin with this text: an object, or one that was encoded twice?"""
    return text[0] == "{" or text == '"' or text.startswith('"{') or text == "null"


def _is_named_otherwise(call: _Call, name: str) -> bool:
    return bool(name and call.name and name != call.name)


def _is_repeat(call: _Call, text: str) -> bool:
    """Does it say the call's whole arguments once more?"""
    return len(text) == call.arguments.tell() and text == _arguments(call) and canonical_arguments(text)[1]


def _begins_object(call: _Call, text: str) -> bool:
    """Does an object begin here behind one that is whole?"""
    return text.lstrip()[:1] in _BEGINS and call.is_over()


# Events to a turn.


class _BuiltProse(Struct):
    """A text or thinking part that is being written."""

    kind: type[model.TextDelta | model.ThinkingDelta]
    block: int
    replay: Replay | None
    pieces: StringIO = field(default_factory=StringIO)

    def part(self, citations: Sequence[Citation] = ()) -> AssistantPart:
        text = self.pieces.getvalue()
        if self.kind is model.TextDelta:
            return Text(text, self.replay, tuple(citations))
        return Thinking(text, self.replay)


class _BuiltBlock(Struct):
    """The text of one block: several parts, where other parts came between its pieces."""

    texts: list[_BuiltProse] = field(default_factory=list)
    citations: list[tuple[int, Citation]] = field(default_factory=list)
    """Each with the part that was being written when it came."""

    def placed(self) -> Iterator[tuple[_BuiltProse, Citation]]:
        """Each citation with its part, and its place in that."""
        starts = [0, *accumulate(text.pieces.tell() for text in self.texts)]
        for at, citation in self.citations if self.texts else ():
            start, end = citation.start, citation.end
            if len(self.texts) == 1 or start is None or end is None:
                yield self.texts[max(at, 0)], citation
                continue
            at = bisect_right(starts, start) - 1
            if 0 <= at < len(self.texts):
                end = min(end, starts[at + 1])
                yield self.texts[at], replace(citation, start=start - starts[at], end=end - starts[at])
            else:
                yield self.texts[-1], replace(citation, start=None, end=None)


class _BuiltMedia(Struct):
    """A picture, sound or file that is coming."""

    media: Image | Audio | Document
    block: int
    pieces: list[str] = field(default_factory=list)

    def add(self, piece: Image | Audio | Document) -> None:
        self.pieces.append(piece.data_base64)
        said = {name: value for name in _OF_MEDIA if (value := getattr(piece, name))}
        self.media = replace(self.media, **said)

    def part(self) -> AssistantPart:
        if len(self.pieces) == 1:
            return replace(self.media, data_base64=self.pieces[0])
        # Padding may end each piece, and must not be in the middle of the whole.
        data = b"".join(map(_decoded, self.pieces))
        return replace(self.media, data_base64=b64encode(data).decode())


def _decoded(piece: str) -> bytes:
    """The bytes of one piece; none, where it is not base64: an answer is not lost over its sound."""
    try:
        return b64decode(piece)
    except ValueError:
        return b""


class ResponseBuilder:
    """Collects the events of one stream. `response()` may be asked at any time, for the turn as far as it has come."""

    def __init__(self) -> None:
        self._parts: list[_BuiltProse | _BuiltMedia | _Call | ServerTool] = []
        self._blocks: dict[int, _BuiltBlock] = {}
        """Those that have text or citations."""
        self._prose_of: dict[int, _BuiltProse] = {}
        """The last text or thinking of each block."""
        self._calls: dict[CallId, _Call] = {}
        self._taken: set[CallId] = set()
        self._writing: _BuiltProse | None = None
        """The last part, where it is prose."""
        self._end: model.Done | model.Error | None = None
        self.media_bytes = 0
        """Of pictures and sound, as base64."""
        self.text_bytes = 0
        """Of all that was written and thought so far, and of the arguments."""

    def feed(self, events: Iterable[model.StreamEvent]) -> None:
        """Take events in. Those after the Done or Error are void. Raises TypeError for anything but an event."""
        for event in events:
            if self._end is not None:
                return
            if isinstance(event, _PROSE):
                self._prose(event)
            elif isinstance(event, model.ToolCallDelta):
                self.text_bytes += len(event.args_delta)
                if (call := self._calls.get(event.id)) is not None:
                    call.arguments.write(event.args_delta)
            elif isinstance(event, model.Done | model.Error):
                self._end = event
            else:
                self._mark(event)

    def response(self) -> model.ModelResponse:
        """The turn. Without Done or Error it is cut off: its `error` says TRUNCATED."""
        parts = tuple(self._finished_parts())
        if isinstance(end := self._end, model.Done):
            return model.ModelResponse(
                parts,
                end.finish_reason,
                end.raw_finish_reason,
                end.usage,
                end.raw_usage,
                model=end.model,
                notes=end.notes,
                response_id=end.response_id,
                provider_request_id=end.provider_request_id,
                service_tier=end.service_tier,
                logprobs=end.logprobs,
            )
        kind = ErrorKind.TRUNCATED
        error = end or model.Error(kind, "The stream ended before the turn did.", retryable=kind in RETRYABLE_KINDS)
        return model.ModelResponse(
            parts,
            model.FinishReason.ERROR,
            error=error,
            notes=error.notes,
            provider_request_id=error.provider_request_id,
        )

    def _finished_parts(self) -> Iterator[AssistantPart]:
        cited: dict[int, list[Citation]] = {}
        for block in self._blocks.values():
            for text, citation in block.placed():
                cited.setdefault(id(text), []).append(citation)
        for part in self._parts:
            if isinstance(part, _BuiltProse):
                yield part.part(cited.get(id(part), ()))
            else:
                yield part if isinstance(part, ServerTool) else part.part()

    def _prose(self, event: model.TextDelta | model.ThinkingDelta) -> None:
        last, text = self._writing, event.text
        if last is None or last.kind is not event.__class__ or last.block != event.block:
            if not text and event.replay is None:
                return
            last = self._writing = _BuiltProse(event.__class__, event.block, event.replay)
            self._parts.append(last)
            self._prose_of[event.block] = last
            if last.kind is model.TextDelta:
                self._block(event.block).texts.append(last)
        elif event.replay is not None:
            last.replay = event.replay
        last.pieces.write(text)
        self.text_bytes += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))

    def _mark(self, event: model.StreamEvent) -> None:
        if isinstance(event, model.ToolCallComplete):
            if event.id in self._calls:
                self._calls[event.id].completed = True
            return
        if isinstance(event, model.CitationDelta):
            block = self._block(event.block)
            block.citations += [(len(block.texts) - 1, citation) for citation in event.citations]
            return
        if isinstance(event, model.ReplayDelta):
            if (prose := self._prose_of.get(event.block)) is not None:
                prose.replay = event.replay
            return
        if isinstance(event, model.MediaDelta):
            self._media(event)
            return
        self._writing = None
        if isinstance(event, model.ToolCallStart):
            call = _Call(event.id, event.name, event.replay, self._unique(event.id))
            self._parts.append(call)
            # The provider's id, repeated or not, names the newest call that bears it.
            self._calls[event.id] = call
        elif isinstance(event, model.ServerToolEvent):
            self._parts.append(ServerTool(*astuple(event)))
        elif isinstance(event, model.Restarted):
            self._parts.clear()
            self._blocks.clear()
            self._prose_of.clear()
            self._calls.clear()
            self._taken.clear()
        else:
            raise TypeError(f"it yielded a {type(event).__name__} among its events")

    def _block(self, number: int) -> _BuiltBlock:
        return self._blocks.setdefault(number, _BuiltBlock())

    def _media(self, event: model.MediaDelta) -> None:
        self._writing = None
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, _BuiltMedia) or last.block != event.block or type(last.media) is not type(event.media):
            last = _BuiltMedia(event.media, event.block)
            self._parts.append(last)
        last.add(event.media)
        self.media_bytes += len(event.media.data_base64)

    def _unique(self, call_id: CallId) -> CallId:
        unique, number = call_id, 1
        while unique in self._taken:
            number += 1
            unique = CallId(f"{call_id}_{number}")
        self._taken.add(unique)
        return unique


def build_response(events: Iterable[model.StreamEvent]) -> model.ModelResponse:
    """The turn that these events tell."""
    builder = ResponseBuilder()
    builder.feed(events)
    return builder.response()
