"""What the wire double is to answer, in no API's words: turns, raw answers, faults and scripts of them.

These dataclasses are the JSON format too (docs/wire_double.md): `scripts_from_json` reads it, `scripts_to_json` writes
it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Annotated, Any, ClassVar, Final

from pydantic import ConfigDict, Discriminator, JsonValue, Tag, TypeAdapter, ValidationError

from callboard.protocol.errors import UsageError
from callboard.protocol.model import FinishReason

MAX_PAUSE_SECONDS: Final = 3600.0
_FORBID_EXTRA: Final = ConfigDict(extra="forbid")
_FINISH_REASONS: Final = (
    FinishReason.STOP,
    FinishReason.LENGTH,
    FinishReason.TOOL_CALLS,
    FinishReason.CONTENT_FILTER,
)
#: A script's name is part of paths and headers.
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{0,64}")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _check_pause(seconds: float) -> None:
    _require(math.isfinite(seconds) and 0 <= seconds <= MAX_PAUSE_SECONDS, f"pause must be 0 to {MAX_PAUSE_SECONDS:g}")


class Api(StrEnum):
    """The wire APIs that the double serves."""

    CHAT = "openai-chat"
    """Usage in a stream only with `stream_options.include_usage`; thinking as `reasoning_content`."""
    RESPONSES = "openai-responses"
    """`previous_response_id` counts as history for `by_turn`, as long as the id is one of the double's."""
    ANTHROPIC = "anthropic"
    """Input tokens leave the cache out; a content filter is a `refusal`."""
    GEMINI = "gemini"
    """Whole calls, ids only where the script gives them; without `alt=sse` one JSON array."""
    OPENROUTER = "openrouter"
    """Comments first, reasoning twice, the finish reason twice, usage and cost on the second."""
    COPILOT = "copilot"
    """Calls must carry the token of `GET /copilot_internal/v2/token` and the editor's headers; Claude's calls come in a
    second choice. Its `/responses` and `/v1/messages` are there too."""


class FaultKind(StrEnum):
    """What goes wrong. `Fault.after` counts pieces of content; without it the fault comes after the last piece."""

    STALL = "stall"
    """The bytes stop, the connection stays open until the client leaves."""
    CUT = "cut"
    """The connection breaks in the middle of the answer."""
    GARBAGE = "garbage"
    """An event that is not JSON and not UTF-8, then the connection closes."""
    STREAM_ERROR = "stream_error"
    """The API's own error inside an answer with status 200, in place of its end."""
    ENDLESS = "endless"
    """The text, or the body of a raw answer, is repeated until the client leaves."""
    HALF_CALL = "half_call"
    """The arguments of the last call stop halfway, and the turn ends with finish reason `length`."""
    HANGUP = "hangup"
    """A whole answer that promises to keep the connection, which then closes."""
    STATUS = "status"
    """An HTTP error status with the API's own error body, and `retry-after` where `Fault.retry_after` is set."""
    HTML = "html"
    """Status 200 with an HTML page in place of the API's JSON or stream."""
    RESET = "reset"
    """The connection is reset (RST) before any byte of an answer."""
    CLOSE = "close"
    """The connection is closed in good order (FIN) before any byte of an answer."""
    DEAF = "deaf"
    """No byte of an answer; the connection stays open until the client leaves."""


#: The faults of a raw answer.
_RAW_FAULTS: Final = (
    FaultKind.STALL,
    FaultKind.CUT,
    FaultKind.GARBAGE,
    FaultKind.HANGUP,
    FaultKind.RESET,
    FaultKind.CLOSE,
    FaultKind.DEAF,
    FaultKind.ENDLESS,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong with an answer. Raises ValueError for values that no answer can have."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID_EXTRA

    kind: FaultKind
    after: int | None = None
    """Pieces of content that are sent before a stall, cut, garbage or stream_error. None: all of them."""
    status: int = 500
    """The HTTP status of `status`, and the one that the error inside a `stream_error` has."""
    message: str = "The wire double was told to fail."
    retry_after: float | None = None
    """Seconds."""

    def __post_init__(self) -> None:
        _require(self.after is None or self.after >= 0, "after must be 0 or more")
        _require(400 <= self.status <= 599, "status must be between 400 and 599")
        _require(self.retry_after is None or self.retry_after >= 0, "retry_after must be 0 or more")


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. `arguments` is an object, or a text that is sent as it is, valid JSON or not."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID_EXTRA

    name: str
    arguments: Mapping[str, JsonValue] | str = field(default_factory=dict)
    id: str = ""
    """"" lets the double invent one, which differs from turn to turn of a script."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The usage of a turn. Raises ValueError where a part is larger than its whole."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID_EXTRA

    input: int = 11
    """Includes `cached` and `cache_write`."""
    output: int = 7
    """Includes `reasoning`."""
    cached: int = 0
    cache_write: int = 0
    """Chat Completions, OpenRouter, Responses and Anthropic have a field for it; the others leave it out."""
    reasoning: int = 0

    def __post_init__(self) -> None:
        counts = (self.input, self.output, self.cached, self.cache_write, self.reasoning)
        _require(min(counts) >= 0, "token counts must be 0 or more")
        _require(self.cached + self.cache_write <= self.input, "input must include cached and cache_write")
        _require(self.reasoning <= self.output, "output must include reasoning")


@dataclass(frozen=True, slots=True)
class Turn:
    """One model turn. Raises ValueError for values that no turn can have."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID_EXTRA

    text: str = ""
    calls: tuple[Call, ...] = ()
    thinking: str = ""
    finish: FinishReason | None = None
    """stop, length, tool_calls or content_filter. None: tool_calls where there are calls, else stop."""
    usage: Tokens | None = Tokens()
    """None leaves it out of the answer."""
    fragment: int = 4
    """Characters of each piece in which text, thinking and arguments are sent."""
    pause: float = 0.0
    """Seconds between two pieces, and at most as long before the first."""
    fault: Fault | None = None

    def __post_init__(self) -> None:
        known = ", ".join(_FINISH_REASONS)
        _require(self.finish is None or self.finish in _FINISH_REASONS, f"finish must be one of {known}")
        _require(self.fragment >= 1, "fragment must be 1 or more")
        _check_pause(self.pause)
        half = self.fault is not None and self.fault.kind is FaultKind.HALF_CALL
        _require(not half or bool(self.calls), "half_call needs a turn with calls")

    @property
    def finish_reason(self) -> FinishReason:
        """`finish`, or what follows from the calls."""
        return self.finish or (FinishReason.TOOL_CALLS if self.calls else FinishReason.STOP)


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """An HTTP answer as it is, for what no turn can say. Raises ValueError for a status that has no body."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID_EXTRA

    body: JsonValue = ""
    """A string is sent as it is, any other value as JSON."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    """`content-type` is text/html for a string and application/json for a document, unless it is given here."""
    fault: Fault | None = None

    def __post_init__(self) -> None:
        _require(200 <= self.status <= 599 and self.status not in (204, 304), "status must be one with a body")
        kinds = ", ".join(_RAW_FAULTS)
        _require(self.fault is None or self.fault.kind in _RAW_FAULTS, f"the fault of a raw answer is one of {kinds}")


def _kind_of_answer(value: Any) -> str:
    is_raw = "body" in value or "status" in value if isinstance(value, Mapping) else isinstance(value, RawAnswer)
    return "raw" if is_raw else "turn"


Answer = Annotated[
    Annotated[Turn, Tag("turn")] | Annotated[RawAnswer, Tag("raw")],
    Discriminator(_kind_of_answer),
]
"""In JSON an answer with `body` or `status` is a RawAnswer, any other a Turn."""


@dataclass(frozen=True, slots=True)
class Chance:
    """A fault that a share of the answers has. Raises ValueError for a share that is none."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID_EXTRA

    share: float
    """Of all answers, 0 to 1."""
    fault: Fault

    def __post_init__(self) -> None:
        _require(0 <= self.share <= 1, "share must be between 0 and 1")


@dataclass(frozen=True, slots=True)
class Script:
    """Answers under a name. Raises ValueError for a name that cannot be part of a path and for impossible chances."""

    __pydantic_config__: ClassVar[ConfigDict] = _FORBID_EXTRA

    turns: tuple[Answer, ...] = ()
    by_turn: bool = False
    """The answer is picked by the number of model turns after the last user message, and not in order."""
    name: str = ""
    """Requests choose a script by the path prefix /s/NAME, the header x-script, the text of the last user message or
    the model's name; "" serves all other requests."""
    chances: tuple[Chance, ...] = ()
    """Faults at random, one an answer at the most."""
    seed: int = 0
    """Of the chances: which of the answers, in the order of their requests, have which fault."""

    def __post_init__(self) -> None:
        _require(_NAME.fullmatch(self.name) is not None, "name must be up to 64 letters, digits and . _ -")
        _require(sum(chance.share for chance in self.chances) <= 1, "the shares of all chances must be 1 at the most")
        kinds = {chance.fault.kind for chance in self.chances}
        whole = all(isinstance(turn, Turn) and turn.fault is None for turn in self.turns)
        _require(not kinds or whole, "chances need turns without faults of their own, and no raw answers")
        _require(FaultKind.HALF_CALL not in kinds, "half_call cannot come at random: it needs a turn with calls")

    def random(self) -> Iterator[Fault | None]:
        """Of one answer after the other, which fault it has, without end."""
        drawn = Random(self.seed)
        shares = [chance.share for chance in self.chances]
        faults = [*(chance.fault for chance in self.chances), None]
        while True:
            yield drawn.choices(faults, [*shares, max(0.0, 1 - sum(shares))])[0]


_SCRIPT: Final[TypeAdapter[Script]] = TypeAdapter(Script)
_SCRIPTS: Final[TypeAdapter[list[Script]]] = TypeAdapter(list[Script])


def scripts_from_json(data: bytes | str) -> list[Script]:
    """The scripts of a JSON document: one script, or a list. Raises UsageError with one sentence for anything else."""
    text = data.encode() if isinstance(data, str) else data
    try:
        if text.lstrip().startswith(b"["):
            return _SCRIPTS.validate_json(text, strict=True)
        return [_SCRIPT.validate_json(text, strict=True)]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(step) for step in first["loc"] if step not in ("turn", "raw"))
        where = f" at {place}" if place else ""
        raise UsageError(f"The script is not valid{where}: {first['msg'].removeprefix('Value error, ')}.") from None


def scripts_to_json(scripts: list[Script]) -> bytes:
    """The JSON that `scripts_from_json` reads."""
    return _SCRIPTS.dump_json(scripts)
