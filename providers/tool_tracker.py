"""ONE tracker that turns the fragments of tool calls, as any API sends them, into ToolCallStart, Delta and Complete.

The rules (numbers are the quirks of docs/wire.md section 2):

    an id we know          goes to its call, with any index                                        5, 7
    an id we do not know   opens a call; a call at that index which has no id yet takes it         5, 55
    "" or null as an id    is no id                                                                3
    no id, but an index    goes to the call at that index, else opens one (indexes are keys)       1, 2, 6, 12
    neither                a name opens a call, anything else goes on with the last one            4
    a name or id again     changes nothing: the first wins, they are never concatenated            7
    arguments before name  wait; the call starts when its name is known                            55
    an object as arguments is encoded once                                                         10
    an id that another call of this answer has is replaced by a new one                            48
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from hashlib import blake2s
from io import StringIO
from typing import Final

from callboard.protocol.content import Replay
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.limits import MAX_ARGUMENT_BYTES, MAX_CALLS_PER_STEP
from callboard.protocol.model import StreamEvent, ToolCallComplete, ToolCallDelta, ToolCallStart
from callboard.providers.json_values import Json, arguments_text, canonical_arguments

_TOO_LONG: Final = f"the arguments of a tool call are longer than {MAX_ARGUMENT_BYTES} bytes"


class TooManyCallsError(ValueError):
    """A turn with more calls, or a call with longer arguments, than any model sends on purpose."""


@dataclass(slots=True)
class _TrackedCall:
    ordinal: int
    sent_id: str
    """The provider's id, "" while unknown."""
    name: str = ""
    replay: Replay | None = None
    call_id: CallId = CallId("")
    """What we call it; set when it starts."""
    kept: StringIO = field(default_factory=StringIO)
    """All argument text."""
    completed: bool = False


class ToolCallTracker:
    """The calls of one answer. Appends what it finds out to the caller's list of events.

    `seed` (the provider's id of the answer, where there is one) goes into invented ids, so that they differ from turn
    to turn and are the same however the bytes were cut.
    """

    __slots__ = ("_by_id", "_by_index", "_calls", "_last", "_taken", "seed")

    def __init__(self, seed: str = "") -> None:
        self.seed = seed
        self._calls: list[_TrackedCall] = []
        self._by_id: dict[str, _TrackedCall] = {}
        self._by_index: dict[Hashable, _TrackedCall] = {}
        self._taken: set[str] = set()
        self._last: _TrackedCall | None = None

    @property
    def count(self) -> int:
        """Calls seen so far, started or not."""
        return len(self._calls)

    def all_whole(self) -> bool:
        """Are the arguments of every call a whole JSON object?"""
        return all(canonical_arguments(call.kept.getvalue())[1] for call in self._calls)

    def delta(
        self,
        out: list[StreamEvent],
        *,
        index: Hashable = None,
        id: str = "",
        name: str = "",
        arguments: Json = None,
        replay: Replay | None = None,
    ) -> None:
        """A fragment of a call. Raises TooManyCallsError past the limits of protocol.limits."""
        call = self._find(index, id, name)
        if call.completed:
            return
        self._last = call
        if replay is not None:
            call.replay = replay
        if name and not call.name:
            call.name = name
        text = arguments if isinstance(arguments, str) else arguments_text(arguments)
        if call.call_id:
            if text:
                _keep(call, text)
                out.append(ToolCallDelta(call.call_id, text))
        else:
            self._begin(call, text, out)

    def whole(
        self,
        out: list[StreamEvent],
        *,
        id: str = "",
        name: str = "",
        arguments: Json = None,
        replay: Replay | None = None,
        complete: bool = True,
    ) -> None:
        """A call that came in one piece: always one of its own, even beside an identical one (quirk 42)."""
        call = self._open(id)
        self._last = call
        call.replay, call.name = replay, name
        self._begin(call, arguments_text(arguments), out)
        if complete:
            self._complete(call, out)

    def complete(self, out: list[StreamEvent], *, index: Hashable = None, id: str = "") -> None:
        """The API said that this call is finished (a block's stop event). An unknown call is no error."""
        call = self._by_id.get(id) if id else None
        call = call or self._by_index.get(index)
        if call is not None:
            self._complete(call, out)

    def complete_all(self, out: list[StreamEvent], *, cut: bool = False) -> None:
        """The turn is over. With `cut` (length limit, filter) the call that was written last stays incomplete."""
        for call in self._calls:
            if not (cut and call is self._last):
                self._complete(call, out)

    def restart(self) -> None:
        """The provider began the turn again: forget every call (quirk 37). Pair it with a Restarted event."""
        self._calls.clear()
        self._by_id.clear()
        self._by_index.clear()
        self._taken.clear()
        self._last = None

    def _find(self, index: Hashable, id: str, name: str) -> _TrackedCall:
        if id:
            return self._by_id.get(id) or self._adopt(index, id)
        if index is not None:
            call = self._by_index.get(index)
            if call is None or (name and call.name and name != call.name):
                call = self._by_index[index] = self._open("")
            return call
        last = self._last
        if last is None or (name and last.name):
            return self._open("")
        return last

    def _adopt(self, index: Hashable, id: str) -> _TrackedCall:
        """The call of an id that is new: one at this index still without an id, else a new one."""
        call = self._by_index.get(index) if index is not None else None
        if call is None or call.sent_id:
            call = self._open(id)
        else:
            call.sent_id = id
        self._by_id[id] = call
        if index is not None:
            self._by_index[index] = call
        return call

    def _open(self, id: str) -> _TrackedCall:
        if len(self._calls) >= MAX_CALLS_PER_STEP:
            raise TooManyCallsError(f"more than {MAX_CALLS_PER_STEP} tool calls in one turn")
        call = _TrackedCall(len(self._calls), id)
        self._calls.append(call)
        return call

    def _begin(self, call: _TrackedCall, text: str, out: list[StreamEvent]) -> None:
        """Start a call whose name is known; until then keep what has come."""
        _keep(call, text)
        if call.name:
            self._start(call, out)

    def _start(self, call: _TrackedCall, out: list[StreamEvent]) -> None:
        call.call_id = self._unique_id(call)
        out.append(ToolCallStart(call.call_id, ToolName(call.name), call.replay))
        if text := call.kept.getvalue():
            out.append(ToolCallDelta(call.call_id, text))

    def _complete(self, call: _TrackedCall, out: list[StreamEvent]) -> None:
        if call.completed:
            return
        if not call.call_id:
            # A call that never got a name is shown all the same: the model is told that there is no such tool.
            self._start(call, out)
        call.completed = True
        # Servers call a turn whole that the length limit has cut (docs/wire.md quirk 21, llama.cpp's Responses).
        if canonical_arguments(call.kept.getvalue())[1]:
            out.append(ToolCallComplete(call.call_id))

    def _unique_id(self, call: _TrackedCall) -> CallId:
        chosen = call.sent_id
        salt = 0
        while not chosen or chosen in self._taken:
            digest = blake2s(f"{self.seed}/{call.ordinal}/{salt}".encode("utf-8", "replace"), digest_size=12)
            chosen = f"call_{digest.hexdigest()}"
            salt += 1
        self._taken.add(chosen)
        return CallId(chosen)


def _keep(call: _TrackedCall, text: str) -> None:
    call.kept.write(text)
    if call.kept.tell() > MAX_ARGUMENT_BYTES:
        raise TooManyCallsError(_TOO_LONG)
