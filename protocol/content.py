"""What a conversation is made of, and what makes a history legal for every provider (I2, I3)."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import orjson
from msgspec import field
from msgspec.structs import replace

from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.limits import ERROR_SNIPPET_CHARS, MAX_HALF_CHARS
from callboard.protocol.values import Value


class Replay(Value, frozen=True):
    """A provider's own data on a part (a signature, an encrypted item). It must go back unmodified to the provider it
    came from, and is left out for every other one."""

    origin: str
    """The adapter family that understands it: "anthropic", "gemini", "openai-responses", "openai-chat" ..."""
    data: Mapping[str, object]


class Citation(Value, frozen=True):
    """What a stretch of an answer rests on: a page, a document of the request, a file."""

    url: str = ""
    title: str = ""
    cited_text: str = ""
    """The words of the source."""
    start: int | None = None
    """The first character of its Text part that the source supports; None: not known."""
    end: int | None = None
    """The character behind the last one."""
    document: int | None = None
    """The place of the cited document among those of the request, from 0."""
    file_id: str = ""
    raw: Mapping[str, object] = field(default_factory=dict)
    """As the provider wrote it."""

    def moved_by(self, characters: int) -> Citation:
        """The same, with places in a text that has so many characters before its own."""
        start, end = (None if place is None else place + characters for place in (self.start, self.end))
        return replace(self, start=start, end=end)


class Text(Value, frozen=True):
    """What was said."""

    text: str
    replay: Replay | None = None
    citations: tuple[Citation, ...] = ()


class Media(Value, frozen=True):
    """What is no text, by exactly one source: its bytes, a `url` or a `file_id`. Use one of the four kinds below."""

    media_type: str = ""
    """Such as "image/png"; needed with `data_base64`."""
    data_base64: str = ""
    url: str = ""
    """The provider fetches it. Not only http: some take addresses of their own stores (gs://, s3://)."""
    file_id: str = ""
    """Of a file that the provider keeps."""
    name: str = ""
    """The name or title by which the model knows it."""
    replay: Replay | None = None


class Image(Media, frozen=True):
    """A picture."""


class Audio(Media, frozen=True):
    """Sound, speech most of all."""


class Video(Media, frozen=True):
    """Moving pictures."""


class Document(Media, frozen=True):
    """A file to read, such as a PDF."""

    text: str = ""
    """A plain text, in place of another source."""
    citations: bool = False
    """May the model cite it? Where the provider cites only what it is allowed to."""


class Thinking(Value, frozen=True):
    """One block of a model's reasoning. Blocks are never merged: each carries its own signature in `replay`."""

    text: str
    replay: Replay | None = None


class ToolCall(Value, frozen=True):
    """A call the model asked for."""

    call_id: CallId
    name: ToolName
    arguments: str
    """JSON text of an object; "{}" where the provider sent nothing. Raw and possibly cut off when not `complete`."""
    complete: bool = True
    """False when the arguments were cut off or are not a JSON object: such a call is never run (I12)."""
    replay: Replay | None = None


class ServerTool(Value, frozen=True):
    """A block of a tool the provider ran itself (web search, code execution): shown and replayed, never run by us."""

    kind: str
    """The provider's own word for the block, such as "web_search_call"."""
    replay: Replay
    name: str = ""
    """The tool: "web_search", "code_execution", ..."""
    call_id: str = ""
    """What a call and its result have in common, where the provider sends them as two blocks."""
    text: str = ""
    """What was asked, or what came of it, in short; "" where the block says nothing readable."""
    found: tuple[str, ...] = ()
    """Of a search for tools: the tools of ours that the model can call now."""


MediaPart = Image | Document | Audio | Video
AssistantPart = Text | Thinking | ToolCall | ServerTool | Image | Audio | Document
UserPart = Text | MediaPart


class SystemMessage(Value, frozen=True):
    """Instructions at the start of a conversation, or a note of ours in the middle of one."""

    text: str


class UserMessage(Value, frozen=True):
    """What a person said or showed."""

    parts: tuple[UserPart, ...]

    @classmethod
    def of(cls, text: str) -> UserMessage:
        """A message of one text."""
        return cls((Text(text),))

    @property
    def text(self) -> str:
        return "".join([part.text for part in self.parts if type(part) is Text])


class AssistantMessage(Value, frozen=True):
    """One model turn, its parts in the order in which they came."""

    parts: tuple[AssistantPart, ...]

    @property
    def text(self) -> str:
        return "".join([part.text for part in self.parts if type(part) is Text])

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple([part for part in self.parts if type(part) is ToolCall])


class ToolMessage(Value, frozen=True):
    """The result of one call. It comes after the turn that asked, in the order of that turn's calls (I2, I3)."""

    call_id: CallId
    name: ToolName
    content: str
    """What the model reads: the tool's result (a text as it is, anything else as JSON), or a ToolFailure as JSON."""
    is_error: bool = False
    """Whether it is a ToolFailure. The content does not tell: a tool may return a text that looks like one."""
    media: tuple[MediaPart, ...] = ()
    """Shown behind the content; where an API takes none, a line of text says what is missing."""
    is_trusted: bool = False
    """Are these the words of the runtime's owner, or callboard's? All else may try to steer the model."""


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage


def is_from_outside(message: Message) -> bool:
    """Does the message hold text that may try to steer the model: a tool's result, a file that a person showed, what a
    tool of the provider found?"""
    match message:
        case ToolMessage():
            return not message.is_trusted
        case UserMessage():
            return any(isinstance(part, Media) for part in message.parts)
        case AssistantMessage():
            return any(isinstance(part, ServerTool) for part in message.parts)
    return False


def json_text(value: object) -> str:
    """The JSON of any value: what is not JSON is written as its `str`, a lone surrogate is escaped."""
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:
        # A lone surrogate, which UTF-8 cannot hold, a key that is not a text, or objects nested more than 254 deep.
        return _stdlib_json(value)


def _stdlib_json(value: object) -> str:
    try:
        return json.dumps(value, default=str, skipkeys=True, separators=(",", ":"))
    except RecursionError:
        return json.dumps("too deep to be shown")


def bad_number(text: str) -> str:
    """The first number of a JSON text that is none (RFC 8259): NaN, Infinity, or one out of range.

    Empty when there is none, and for a text that is not JSON for another reason.
    """
    found: list[str] = []

    def constant(name: str) -> float:
        found.append(name)
        return 0.0

    def number(digits: str) -> float:
        if math.isinf(float(digits)):
            found.append(digits[:ERROR_SNIPPET_CHARS])
        return 0.0

    try:
        json.loads(text, parse_constant=constant, parse_float=number)
    except (ValueError, RecursionError):
        return ""
    return found[0] if found else ""


_JSON_TYPES: Final = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
#: Of a text, what is shown around the place where it is wrong, before and behind it.
_AROUND_CHARS: Final = 20


def object_fault(text: str) -> str:
    """What keeps a text from being the JSON of an object, and where; "" where nothing does."""
    end = len(text.rstrip())
    if not end:
        return "nothing came"
    try:
        value = json.loads(text, strict=False)
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        if error.pos >= end or error.msg.startswith("Unterminated"):
            return f"they end too early, after {len(text):,} characters"
        near = text[max(error.pos - _AROUND_CHARS, 0) : error.pos + _AROUND_CHARS]
        return f"{error.msg} at character {error.pos + 1:,}, {text[error.pos]!r}, near {near!r}"
    except UnicodeEncodeError as error:
        return f"\\u{ord(error.object[error.start]):04x} is half of a character (a lone surrogate, RFC 8259)"
    except (ValueError, RecursionError) as error:
        return str(error)[:ERROR_SNIPPET_CHARS]
    return "" if isinstance(value, dict) else f"they are {_JSON_TYPES.get(type(value), 'a number')}"


#: The field in which a model sees its own text where that is not complete.
_INCOMPLETE: Final = "incomplete_arguments"


def half_arguments(text: str) -> str:
    """The arguments of an incomplete call as a history has them, and every provider takes them: an object, in which the
    model sees its own text, shortened. A text that is one already stays as it is."""
    if not text.strip() or text == "{}":
        return "{}"
    if text.startswith(f'{{"{_INCOMPLETE}":') and is_json_object(text):
        return text
    shown = text.encode("utf-8", "replace").decode()
    if len(shown) > MAX_HALF_CHARS:
        shown = f"{shown[:MAX_HALF_CHARS]}... ({len(shown) - MAX_HALF_CHARS:,} characters more)"
    return orjson.dumps({_INCOMPLETE: shown}).decode()


#: Types without a number that is none.
_FINITE: Final = frozenset({str, int, bool, type(None)})


def not_finite(value: object) -> str:
    """The first NaN or infinity in a value without cycles, and where ("nan at a.0"); "" if there is none.

    orjson writes null for them: without a null in the value's JSON there is no need to look.
    """
    waiting: list[tuple[str, object]] = [("", value)]
    while waiting:
        path, each = waiting.pop()
        if isinstance(each, float) and not math.isfinite(each):
            return f"{each!r} at {path[1:]}" if path else repr(each)
        if isinstance(each, Mapping):
            waiting += [(f"{path}.{key}", item) for key, item in each.items() if type(item) not in _FINITE]
        elif isinstance(each, Collection) and not isinstance(each, str | bytes):
            waiting += [(f"{path}.{index}", item) for index, item in enumerate(each) if type(item) not in _FINITE]
    return ""


def byte_size(text: str) -> int:
    """Bytes of a text in UTF-8; a lone surrogate takes three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


Atom = tuple[Message, ...]


def is_json_object(text: str) -> bool:
    """Whether the text is the JSON of an object: what every provider demands of a call's arguments."""
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def split_atoms(messages: Sequence[Message]) -> list[Atom]:
    """The messages in pieces that may be cut apart. The history must be legal."""
    atoms: list[Atom] = []
    start = 0
    while start < len(messages):
        message = messages[start]
        size = 1 + len(message.tool_calls) if isinstance(message, AssistantMessage) else 1
        atoms.append(tuple(messages[start : start + size]))
        start += size
    return atoms


def history_faults(messages: Sequence[Message]) -> list[str]:
    """What makes this history illegal for some provider, one sentence each; empty when it is legal."""
    faults: list[str] = []
    awaited = 0
    for position, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            # A wrong result is reported with its turn, and not again as an orphan.
            if not awaited:
                faults.append(
                    f"message {position}: result of {message.call_id!r:.80} follows no turn that asked for it"
                )
            awaited = max(awaited - 1, 0)
        elif isinstance(message, AssistantMessage):
            awaited = len(message.tool_calls)
            faults += _turn_faults(position, message, messages[position + 1 : position + 1 + awaited])
        else:
            awaited = 0
    return faults


def _turn_faults(position: int, turn: AssistantMessage, following: Sequence[Message]) -> Iterator[str]:
    calls = turn.tool_calls
    if not turn.parts:
        yield f"message {position}: an assistant turn without any part"
    if len({call.call_id for call in calls}) < len(calls):
        yield f"message {position}: two calls of one turn share an id"
    for index, call in enumerate(calls):
        if not call.call_id:
            yield f"message {position}: a call of {call.name!r:.80} has no id"
        if not is_json_object(call.arguments):
            yield f"message {position}: the arguments of {call.call_id!r:.80} are not a JSON object"
        result = following[index] if index < len(following) else None
        if not isinstance(result, ToolMessage):
            yield f"message {position}: {call.call_id!r:.80} has no result directly after its turn"
            return
        if result.call_id != call.call_id or result.name != call.name:
            yield (
                f"message {position}: result {index + 1} is of {result.call_id!r:.80} ({result.name:.80}), "
                f"the turn asked for {call.call_id!r:.80} ({call.name:.80}) there"
            )
