"""What the encoders of all APIs share: what is asked of a request, and how its common parts are written.

An illegal history, or a number that JSON has not (NaN), is a UsageError. Only call ids are changed, where an API has
rules for them, in the call and in its result alike: a history of one provider can be continued on any other.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2s
from typing import ClassVar, Final

import orjson

from callboard.protocol import content
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId
from callboard.protocol.model import ModelRequest, PromptCache, ResponseStorage, ToolChoiceMode, sampling_faults
from callboard.protocol.tools import ToolDefinition
from callboard.providers.adapter import Decoder, WireRequest
from callboard.providers.base_decoder import AnswerHead
from callboard.providers.json_values import Body, Json, dumps, finite_loads
from callboard.providers.tool_schema import AdaptedSchema, SchemaDialect, adapt_schema, tool_parameters

#: OpenAI and Anthropic take these names for tools and calls; it is within what Gemini takes.
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]")
_VERSION: Final = re.compile(r"/v\d\w*$")

#: Anthropic and Gemini refuse a blank text, and a conversation that begins with the model (the rest was cut off).
BLANK_USER: Final = "(empty message)"
TRIMMED_START: Final = "(The beginning of this conversation was left out.)"


def check_history(messages: Sequence[content.Message]) -> None:
    """Each call has its result, directly after the turn that asked, and there are no others (I2). Else UsageError."""
    if not messages:
        raise UsageError("The request has no messages; give it at least a user message.")
    open_calls: set[CallId] = set()
    for position, message in enumerate((*messages, None)):
        if isinstance(message, content.ToolMessage):
            if message.call_id not in open_calls:
                raise UsageError(
                    f"Message {position} is the result of call {message.call_id!r}, which the turn before it did not "
                    "ask for or which has its result already. Remove the result, or put it directly after its turn."
                )
            open_calls.remove(message.call_id)
            continue
        if open_calls:
            raise UsageError(
                f"Before message {position}, tool call {', '.join(map(repr, sorted(open_calls)))} has no result. Every "
                "call needs its ToolMessage directly after the turn that asked (an error or a cancellation is a result "
                "too)."
            )
        if isinstance(message, content.AssistantMessage):
            open_calls = {call.call_id for call in message.tool_calls}
            if len(open_calls) != len(message.tool_calls):
                raise UsageError(f"Message {position} has two tool calls with the same id; ids are unique in a turn.")


def check_request(request: ModelRequest) -> None:
    """All that must hold for any API, before it is encoded. UsageError says what to do."""
    if not request.model:
        raise UsageError("The request names no model.")
    if faults := sampling_faults(request.sampling):
        raise UsageError("; ".join(faults))
    check_history(request.messages)
    choice, names = request.tool_choice, [tool.name for tool in request.tools]
    if len(set(names)) != len(names):
        raise UsageError("Two tools have the same name; names are unique in a request.")
    if choice.mode is ToolChoiceMode.NAMED and choice.name not in names:
        raise UsageError(f"tool_choice names {choice.name!r}, which is not offered; offered are: {names or 'none'}.")
    if choice.mode is ToolChoiceMode.REQUIRED and not (names or request.server_tools):
        raise UsageError("tool_choice is REQUIRED, but no tool is offered.")
    for name in names:
        if not _NAME.fullmatch(name):
            raise UsageError(f"tool name {name!r} is taken by no API; it must match {_NAME.pattern}")


def sent_arguments(call: content.ToolCall) -> str:
    """The argument text of a call as history carries it: always a JSON object, since servers parse it (vLLM).

    An incomplete call shows the model its own cut-off text, under a key that says so. Raises UsageError for a complete
    call whose arguments are not a JSON object.
    """
    return _arguments(call)[0]


def arguments_object(call: content.ToolCall) -> object:
    """`sent_arguments` for the APIs that take an object: the very text, so that no long integer loses digits. Where
    only a forgiving parser could read it (half of a surrogate pair): what was read."""
    text, value = _arguments(call)
    return orjson.Fragment(text) if content.is_json_object(text) else value


def _arguments(call: content.ToolCall) -> tuple[str, Json]:
    text = call.arguments
    if not call.complete:
        text = orjson.dumps({"incomplete_arguments": text.encode("utf-8", "replace").decode()}).decode()
    try:
        value, why = finite_loads(text), "are not a JSON object"
    except ValueError as error:
        value, why = None, f"cannot be read: {error}"
    if not isinstance(value, dict):
        raise UsageError(f"The arguments of tool call {call.call_id!r} {why}; mark it complete=False.")
    return text, value


def own_replay(replay: content.Replay | None, origin: str) -> Mapping[str, object] | None:
    """A part's replay data where it came from `origin`, else None: another provider's is left out."""
    return replay.data if replay is not None and replay.origin == origin else None


@dataclass(frozen=True, slots=True)
class CallIdRule:
    """What an API accepts as a call id."""

    pattern: re.Pattern[str]
    unique: bool = True
    """Ids must differ through the whole history, not only within a turn."""
    mint: Callable[[str], str] = lambda digest: f"call_{digest}"
    """An id that fits `pattern`, from 24 hexadecimal digits."""


#: Anthropic and Bedrock (docs/wire.md 1.3).
ANTHROPIC_IDS = CallIdRule(re.compile(r"[a-zA-Z0-9_-]{1,64}"))
#: OpenAI rejects ids longer than 64 characters (responses) and 40 (chat).
OPENAI_IDS = CallIdRule(re.compile(r".{1,40}", re.DOTALL), unique=False)
#: Mistral: "must be a-z, A-Z, 0-9, with a length of 9".
MISTRAL_IDS = CallIdRule(re.compile(r"[a-zA-Z0-9]{9}"), mint=lambda digest: digest[:9])


def rewrite_call_ids(messages: Sequence[content.Message], rule: CallIdRule) -> tuple[content.Message, ...]:
    """The same history with ids that fit `rule`: unfit and (if asked) repeated ids are replaced in call and result.

    New ids are a function of the old id and its place, so a growing history keeps them and prompt caches stay warm.
    The history must have passed `check_history`.
    """
    taken: set[str] = set()
    renamed: dict[CallId, CallId] = {}
    rewritten: list[content.Message] = []
    for position, message in enumerate(messages):
        if isinstance(message, content.AssistantMessage):
            renamed = {call.call_id: _fitting(call.call_id, position, rule, taken) for call in message.tool_calls}
            taken.update(renamed.values())
            rewritten.append(_renamed_turn(message, renamed))
        elif isinstance(message, content.ToolMessage):
            rewritten.append(replace(message, call_id=renamed.get(message.call_id, message.call_id)))
        else:
            rewritten.append(message)
    return tuple(rewritten)


def _fitting(call_id: CallId, position: int, rule: CallIdRule, taken: set[str]) -> CallId:
    fits = rule.pattern.fullmatch(call_id) is not None
    candidate: str = call_id
    salt = 0
    while not fits or (rule.unique and candidate in taken):
        digest = blake2s(f"{position}/{salt}/{call_id}".encode("utf-8", "replace"), digest_size=12).hexdigest()
        candidate, fits, salt = rule.mint(digest), True, salt + 1
    return CallId(candidate)


def _renamed_turn(message: content.AssistantMessage, renamed: dict[CallId, CallId]) -> content.AssistantMessage:
    if all(old == new for old, new in renamed.items()):
        return message
    parts = [replace(p, call_id=renamed[p.call_id]) if isinstance(p, content.ToolCall) else p for p in message.parts]
    return content.AssistantMessage(tuple(parts))


def split_system(messages: Sequence[content.Message]) -> tuple[str, Sequence[content.Message]]:
    """(instructions, the rest): the system messages at the start, joined. Later ones are notes in the conversation."""
    leading: list[str] = []
    for message in messages:
        if not isinstance(message, content.SystemMessage):
            break
        leading.append(message.text)
    return "\n\n".join(text for text in leading if text.strip()), messages[len(leading) :]


def checked_url(base_url: str | None, default: str, *, with_query: bool = False) -> str:
    """An adapter's address without a slash at its end. Raises UsageError for what is none, and for a query, behind
    which no path can be written, unless the adapter reads it (`with_query`)."""
    url = base_url or default
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"base_url must start with http:// or https://, not {url!r}.")
    if not with_query and ("?" in url or "#" in url):
        raise UsageError(
            "base_url must end with a path, since the API's own is added to it: leave out what is behind ? or #."
        )
    return url.rstrip("/")


def bearer(api_key: str | None) -> dict[str, str]:
    """The credential as most APIs take it."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


class HttpAdapter:
    """What the adapter of any API keeps: its address, its credential, and what reads its answers."""

    def __init__(
        self,
        name: str,
        url: str,
        api_key: str | None,
        decodes: Callable[[AnswerHead], Decoder],
        *,
        headers: Mapping[str, str] | None,
        credential: Mapping[str, str] | None = None,
    ) -> None:
        """`headers`: the API's own and the caller's. `credential`: the headers with the key; None: a bearer token."""
        self.name = name
        self.family = name
        """The first column of the error table."""
        self._url = url
        self._api_key = api_key
        self._decodes = decodes
        self._credential = bearer(api_key) if credential is None else credential
        self._headers = headers or {}

    def decoder(self, status: int = 200, headers: Mapping[str, str] | None = None, streaming: bool = True) -> Decoder:
        """See `Adapter.decoder`."""
        return self._decodes(AnswerHead(self.family, status, headers, streaming, self._api_key))

    def headers(self, request: ModelRequest) -> dict[str, str]:
        """The request's headers."""
        return self._headers_for("text/event-stream" if request.stream else "application/json")

    def question(self, path: str, body: bytes | None = None) -> WireRequest:
        """See `AsksServer.question`."""
        url = path.replace("{api}", self._url).replace("{root}", _VERSION.sub("", self._url))
        return WireRequest("GET" if body is None else "POST", url, self._headers_for("application/json"), body or b"")

    def _headers_for(self, accept: str) -> dict[str, str]:
        return {"content-type": "application/json", **self._headers, "accept": accept, **self._credential}


class Encoding:
    """One request being written. `notes` say what could not be expressed in the API."""

    keeps_answers: ClassVar[bool] = False
    """Can the API keep answers (`ModelRequest.storage`)?"""

    def __init__(self, request: ModelRequest) -> None:
        check_request(request)
        self.request = request
        self.notes: list[str] = []
        if request.storage is not None and not self.keeps_answers:
            self._refuse_storage(request.storage)

    def note(self, note: str) -> None:
        """Say once what could not be expressed."""
        if note not in self.notes:
            self.notes.append(note)

    def note_own_cache(self) -> None:
        """Where the server decides what it caches: say that it cannot be asked to keep it for an hour."""
        if self.request.prompt_cache is PromptCache.ONE_HOUR:
            self.note("prompt_cache: the server decides by itself how long it keeps a prompt; left out")

    def _refuse_storage(self, storage: ResponseStorage) -> None:
        if storage.previous_response_id:
            raise UsageError(
                "storage.previous_response_id: this API keeps no answers; send the whole conversation without it, or "
                "use a Responses API (openai/...)."
            )
        if storage.store or storage.background:
            self.note("storage: this API keeps no answers; left out")

    def adapted_tools(self, lax: SchemaDialect, strict: SchemaDialect) -> tuple[ToolDefinition, ...]:
        """The request's tools with schemas that the API takes, not strict where that is impossible. Raises UsageError
        for a schema that no API takes."""
        tools: list[ToolDefinition] = []
        for tool in self.request.tools:
            try:
                adapted = tool_parameters(tool.parameters, strict if tool.strict else lax)
            except UsageError as error:
                raise UsageError(f"tool {tool.name!r}: {error}") from None
            self.notes += [f"tool {tool.name}: {loss}" for loss in adapted.losses]
            tools.append(replace(tool, parameters=adapted.schema, strict=adapted.strict))
        return tuple(tools)

    def answer_schema(self, dialect: SchemaDialect) -> AdaptedSchema | None:
        """The schema of the answer in the API's words; None where none is asked for."""
        if self.request.response_schema is None:
            return None
        adapted = adapt_schema(self.request.response_schema, dialect)
        self.notes += [f"response_schema: {loss}" for loss in adapted.losses]
        return adapted


class TurnEncoding(Encoding, ABC):
    """A request to an API whose conversation begins with the user and in which neighbours of one role are one message:
    Anthropic and Gemini."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__(request)
        self.turns: list[tuple[str, list[Body]]] = []
        """Roles and their parts."""

    @abstractmethod
    def text(self, text: str) -> Body:
        """A part that is text."""

    @abstractmethod
    def media(self, media: content.Media) -> Body:
        """A part that is a picture, sound, film or file. Raises UsageError for what the API does not take."""

    def say(self, role: str, parts: list[Body]) -> None:
        """Add what one role says; nothing, where there are no parts."""
        if not parts:
            return
        if not self.turns and role != "user":
            self.turns.append(("user", [self.text(TRIMMED_START)]))
        if self.turns and self.turns[-1][0] == role:
            self.turns[-1][1].extend(parts)
        else:
            self.turns.append((role, parts))

    def say_asked(self, message: content.UserMessage | content.SystemMessage) -> None:
        """Add what the user said, or a note in the conversation."""
        if isinstance(message, content.SystemMessage):
            self.say("user", [self.text(f"<system>\n{message.text}\n</system>")] if message.text.strip() else [])
            return
        parts = [
            self.media(part) if isinstance(part, content.Media) else self.text(part.text)
            for part in message.parts
            if isinstance(part, content.Media) or part.text.strip()
        ]
        self.say("user", parts or [self.text(BLANK_USER)])


def called_name(call: content.ToolCall) -> str:
    """A call's name as APIs take it in a history: a model may have called a tool whose name cannot exist."""
    return _ILLEGAL.sub("_", call.name)[:64] or "unknown_tool"


def user_content(message: content.UserMessage, written: Callable[[content.UserPart], Body]) -> str | list[Body]:
    """What a user said, as OpenAI's APIs take it: one text as it is, else its parts.

    Two texts stay two parts: glued together, words would run into each other (docs/wire.md quirk 81).
    """
    if len(message.parts) <= 1 and all(isinstance(part, content.Text) for part in message.parts):
        return message.text
    return [written(part) for part in message.parts]


def kind_of(part: object) -> str:
    """What a part is called in messages: "Image", "Document (application/pdf)"."""
    media_type = part.media_type if isinstance(part, content.Media) else ""
    return f"{type(part).__name__}{f' ({media_type})' if media_type else ''}"


def refused_part(part: object, model: str, takes: str) -> UsageError:
    """The error for a part that cannot be sent. `takes` lists what can: "text, Image (image/png, image/jpeg)"."""
    return UsageError(
        f"{model} takes no {kind_of(part)} here; it takes {takes}. Leave the part out, or ask a model that does."
    )


def media_bytes(media: content.Media) -> tuple[str, str]:
    """(media type, base64) of a medium given by its bytes. Raises UsageError where it has none."""
    if not media.data_base64 or not media.media_type:
        raise UsageError(
            f"{kind_of(media)} needs a url, a file_id, or data_base64 together with its media_type (e.g. image/png)."
        )
    return media.media_type, media.data_base64


def data_url(media: content.Media) -> str:
    """The URL of a medium, as `data:` where its bytes are given. Raises UsageError where it has neither."""
    if media.url:
        return media.url
    media_type, data = media_bytes(media)
    return f"data:{media_type};base64,{data}"


def stand_in(media: content.Media) -> str:
    """What is sent in place of a medium in a result, where the API takes none there: a line that says what it was."""
    size = f", {len(media.data_base64) * 3 // 4:,} bytes" if media.data_base64 else ""
    name = media.name or media.url or media.file_id
    return f"[{kind_of(media)}{f' {name}' if name else ''}{size}: not shown, since this model takes none in a result]"


def post(url: str, headers: Mapping[str, str], body: Body, notes: Sequence[str]) -> WireRequest:
    """The finished request. Raises UsageError for what JSON cannot hold: half of a surrogate pair, NaN, a cycle."""
    try:
        return WireRequest("POST", url, headers, dumps(body), tuple(notes))
    except ValueError as error:
        raise UsageError(f"The request cannot be written as JSON: {error}.") from None
