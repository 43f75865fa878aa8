"""What a stream of events says, whichever way its deltas were cut: what two decoders are compared by."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.protocol.content import (
    AssistantMessage,
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
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import (
    CitationDelta,
    Done,
    Error,
    MediaDelta,
    ReplayDelta,
    Restarted,
    ServerToolEvent,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallComplete,
    ToolCallDelta,
    ToolCallStart,
)

#: An expected id that begins with it stands for one that the adapter invents.
INVENTED: Final = "?"
#: Of a value that differs, in a message.
_SHOWN_CHARS: Final = 120


class Part(Struct):
    """A stretch of text or thinking, a call, or a block of a server's own tool."""

    kind: str
    text: str = ""
    """What was said; of a call, its arguments as they came."""
    name: str = ""
    call_id: str = ""
    complete: bool = False
    kept: frozenset[str] = frozenset()
    """All texts in what must be given back to the provider: signatures, opaque data."""
    block: int = 0
    replay: Replay | None = None
    """As the adapter wrote it, to be given back."""
    citations: tuple[Citation, ...] = ()
    media: type[Image | Audio | Document] | None = None
    """Of a picture, sound or file: which of them; its bytes are `text`, its address is `call_id`."""

    @property
    def arguments(self) -> Any:
        """Of a complete call, the JSON value; of a half one, the text."""
        return _object(self.text) if self.complete else self.text


class Summary(Struct):
    """One answer. `faults` are breaches of what every stream of events promises."""

    parts: list[Part] = field(default_factory=list)
    end: Done | Error | None = None
    faults: list[str] = field(default_factory=list)
    restarted: bool = False


def summary_of(events: Iterable[StreamEvent]) -> Summary:
    """Collect a stream."""
    told = Summary()
    calls: dict[str, Part] = {}
    cited: dict[int, list[Citation]] = {}
    for event in events:
        if told.end is not None:
            told.faults.append(f"{_short(event)} comes after the end")
        if isinstance(event, Done | Error):
            told.end = event
        elif isinstance(event, Restarted):
            told.parts.clear()
            calls.clear()
            cited.clear()
            told.restarted = True
        elif isinstance(event, TextDelta | ThinkingDelta):
            _say(told.parts, event)
        elif isinstance(event, ServerToolEvent):
            told.parts.append(Part("server tool", name=event.kind, kept=_kept(event.replay), replay=event.replay))
        elif isinstance(event, CitationDelta):
            cited.setdefault(event.block, []).extend(event.citations)
        elif isinstance(event, ReplayDelta | MediaDelta):
            _beside(told.parts, event)
        else:
            fault = _call_event(event, told.parts, calls)
            told.faults += [fault] if fault else []
    if told.end is None:
        told.faults.append("it ends without Done or Error")
    for part in told.parts:
        if part.kind == "text":
            part.citations = tuple(cited.pop(part.block, ()))
    told.parts = [part for part in told.parts if part.text or part.kept or part.kind not in ("text", "thinking")]
    told.parts = _joined_texts(told.parts)
    return told


def turn_of(told: Summary) -> AssistantMessage:
    """The turn as it stands in a history."""
    return AssistantMessage(tuple(_history_part(part) for part in told.parts))


def texts_in(value: Any) -> Iterator[str]:
    """All texts in JSON data, the keys of objects aside."""
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from texts_in(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from texts_in(inner)


def difference(expected: Summary, found: Summary) -> str:
    """How `found` differs from what was expected, as a sentence; "" where it does not.

    What `expected` leaves open is not compared: an id that begins with "?" (the adapter has to invent one), a message,
    an empty model, code or raw finish reason.
    """
    if found.faults:
        return found.faults[0]
    wanted, got = [_shown(part) for part in expected.parts], [_shown(part) for part in found.parts]
    if len(wanted) != len(got):
        return f"it has {len(got)} parts ({_list(got)}), expected are {len(wanted)} ({_list(wanted)})"
    for number, (want, part) in enumerate(zip(expected.parts, found.parts, strict=True), 1):
        if fault := _part_difference(want, part):
            return f"part {number} of {len(wanted)}: {fault}"
    assert expected.end is not None
    assert found.end is not None
    return _end_difference(expected.end, found.end)


def prefix_difference(whole: Summary, cut: Summary) -> str:
    """How the answer that broke off says what the whole one does not; "" where it says a part of it."""
    if cut.faults:
        return cut.faults[0]
    for number, part in enumerate(cut.parts, 1):
        if number > len(whole.parts):
            return f"it has a part {number} that the whole answer has not: {_shown(part)}"
        of = whole.parts[number - 1]
        last = number == len(cut.parts) or part.kind == "call"
        said = of.text.startswith(part.text) if last else of.text == part.text
        if part.kind != of.kind or part.name != of.name or not said:
            return f"part {number} is {_shown(part)}, in the whole answer it is {_shown(of)}"
        if part.complete and part.text != of.text:
            return f"part {number} is a complete call with {_short(part.text)}, whole it has {_short(of.text)}"
    return ""


def _say(parts: list[Part], event: TextDelta | ThinkingDelta) -> None:
    kind = "text" if isinstance(event, TextDelta) else "thinking"
    if not parts or parts[-1].kind != kind or parts[-1].block != event.block:
        parts.append(Part(kind, block=event.block))
    last = parts[-1]
    last.text += event.text
    last.kept |= _kept(event.replay)
    last.replay = event.replay or last.replay


def _beside(parts: list[Part], event: ReplayDelta | MediaDelta) -> None:
    if isinstance(event, MediaDelta):
        _show(parts, event)
        return
    for part in reversed(parts):
        if part.kind in ("text", "thinking") and part.block == event.block:
            part.kept |= _kept(event.replay)
            part.replay = event.replay
            return


def _show(parts: list[Part], event: MediaDelta) -> None:
    kind = type(event.media)
    if not parts or parts[-1].media is not kind or parts[-1].block != event.block:
        parts.append(Part("media", name=kind.__name__, block=event.block, media=kind))
    last = parts[-1]
    last.text = b64encode(b64decode(last.text) + b64decode(event.media.data_base64)).decode()
    last.call_id = event.media.url or event.media.file_id or last.call_id
    last.kept |= _kept(event.media.replay)
    last.replay = event.media.replay or last.replay


def _history_part(part: Part) -> AssistantPart:
    if part.media is not None:
        return part.media(data_base64=part.text, url=part.call_id, replay=part.replay)
    if part.kind == "call":
        text = part.text or "{}"
        return ToolCall(CallId(part.call_id), ToolName(part.name), text, part.complete, part.replay)
    if part.kind == "server tool":
        assert part.replay is not None
        return ServerTool(part.name, part.replay)
    if part.kind == "text":
        return Text(part.text, part.replay, part.citations)
    return Thinking(part.text, part.replay)


def _joined_texts(parts: Sequence[Part]) -> list[Part]:
    """Neighbouring texts are one: no API minds. Thinking stays apart, each block has its own signature."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last is not None and last.kind == part.kind == "text":
            joined[-1] = replace(
                last,
                text=last.text + part.text,
                kept=last.kept | part.kept,
                replay=part.replay or last.replay,
                citations=last.citations + part.citations,
            )
        else:
            joined.append(part)
    return joined


def _call_event(
    event: ToolCallStart | ToolCallDelta | ToolCallComplete, parts: list[Part], calls: dict[str, Part]
) -> str:
    call = calls.get(event.id)
    if isinstance(event, ToolCallStart):
        if call is not None or not event.id:
            return f"a call starts with the id {event.id!r}, which {'another call has' if event.id else 'is none'}"
        calls[event.id] = Part("call", name=event.name, call_id=event.id, kept=_kept(event.replay), replay=event.replay)
        parts.append(calls[event.id])
    elif call is None:
        return f"{_short(event)} is of a call that has not started"
    elif call.complete:
        return f"{_short(event)} is of a call that was complete already"
    elif isinstance(event, ToolCallDelta):
        call.text += event.args_delta
    elif _object(call.text) is None:
        return f"call {event.id} was completed with {_short(call.text)}"
    else:
        call.complete = True
    return ""


def _object(text: str) -> dict[str, Any] | None:
    """The arguments of a call; None for what is none. Nothing and null are {}, and some servers write the JSON text of
    a JSON text, or control characters as they are (docs/wire.md, quirks 9, 10 and 86)."""
    try:
        value = json.loads(text.strip() or "{}", strict=False)
        value = json.loads(value, strict=False) if isinstance(value, str) else value
    except ValueError:
        return None
    return {} if value is None else value if isinstance(value, dict) else None


def _kept(replay: Replay | None) -> frozenset[str]:
    return frozenset(texts_in(replay.data)) if replay is not None else frozenset()


def _part_difference(want: Part, part: Part) -> str:
    for name in ("kind", "name", "complete", "arguments"):
        wanted, got = getattr(want, name), getattr(part, name)
        if wanted != got:
            return f"expected {_shown(want)}, got {_shown(part)}"
    if not want.call_id.startswith(INVENTED) and want.call_id != part.call_id:
        return f"expected the call id {want.call_id!r}, got {part.call_id!r}"
    if lost := want.kept - part.kept:
        return f"{_short(sorted(lost)[0])} must be given back to the provider, and is not in `replay`"
    return ""


_COMPARED: Final = {
    Done: ("finish_reason", "usage"),
    Error: ("kind", "retryable", "retry_after", "status"),
}
_COMPARED_IF_GIVEN: Final = {Done: ("raw_finish_reason", "model"), Error: ("code",)}


def _end_difference(expected: Done | Error, found: Done | Error) -> str:
    if type(expected) is not type(found):
        return f"expected {_short(expected)}, got {_short(found)}"
    kind = type(expected)
    names = (*_COMPARED[kind], *(name for name in _COMPARED_IF_GIVEN[kind] if getattr(expected, name)))
    for name in names:
        wanted, got = getattr(expected, name), getattr(found, name)
        if wanted != got:
            return f"{kind.__name__}.{name}: expected {wanted!r}, got {got!r}"
    if isinstance(found, Error) and not found.message.strip():
        return "the error has no message: a person cannot tell what happened"
    return ""


def _shown(part: Part) -> str:
    if part.kind == "call":
        return f"{'a' if part.complete else 'an incomplete'} call of {part.name} with {_short(part.text or '{}')}"
    return f"{part.kind} {_short(part.name or part.text)}"


def _list(shown: Sequence[str]) -> str:
    return "; ".join(shown) or "none"


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}..."
