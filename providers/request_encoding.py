"""What the encoders of all APIs share: what is asked of a request, and how its common parts are written.

An illegal history, or a number that JSON has not (NaN), is a UsageError. Call ids are changed where an API has rules
for them, in call and result alike: a history of one provider can be continued on any other. What cannot be said
is refused, left out or named by the helpers of `Encoding`, so that all APIs say so in the same words.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import reduce
from hashlib import blake2s
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

import orjson
from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol import content
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.model import ModelRequest, PromptCache, ResponseStorage, ToolChoiceMode, sampling_faults
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.server_tools import ServerToolOffer
from callboard.protocol.tools import ToolDefinition
from callboard.providers.adapter import Decoder, WireRequest
from callboard.providers.base_decoder import AnswerHead
from callboard.providers.json_values import Body, Json, dumps, finite_loads
from callboard.providers.own_options import NO_OPTIONS, OptionTable, merged, own_fields
from callboard.providers.schema_dialects import SchemaDialect, StrictBudget
from callboard.providers.tool_schema import AdaptedSchema, adapted

if TYPE_CHECKING:
    from callboard.providers import model_rules
else:
    model_rules = lazy_module("callboard.providers.model_rules")  # not where nothing is encoded

#: OpenAI and Anthropic take these names for tools and calls; it is within what Gemini takes.
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]")
_VERSION: Final = re.compile(r"/v\d\w*$")
_SPELLINGS: Final = {"image/jpg": "image/jpeg"}
#: The end of a file's name, by the types of documents that OpenAI tells by it.
_ENDINGS: Final = {
    "application/pdf": "pdf",
    "application/json": "json",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
}
_M = TypeVar("_M", bound=content.Media)

#: Anthropic and Gemini refuse a blank text, and a conversation that begins with the model (the rest was cut off).
BLANK_USER: Final = "(empty message)"
#: The result of a call that came back with nothing, where an API refuses an empty one.
NO_OUTPUT: Final = "(no output)"
#: Beside JSON mode: OpenAI and DeepSeek answer 400 where no message has the word ("'messages' must contain the word
#: 'json' in some form").
JSON_WORDS: Final = "Answer with one JSON object, and nothing else."
TRIMMED_START: Final = "(The beginning of this conversation was left out.)"
#: Where a part of a turn of the model's was, in notes.
OF_AN_ANSWER: Final = "of an earlier answer"
#: Options of server tools that keep something out, or name what is worked on: without them the tool would do another
#: thing than it was asked for. The others set how it does it.
_FIRM_OPTIONS: Final = frozenset({"allowed_domains", "blocked_domains", "allowed_tools", "file_ids"})
#: A URL that holds the bytes themselves (RFC 2397). Few APIs fetch one.
_DATA_URL: Final = re.compile(r"data:([^,]*?)(?:;charset=[^;,]*)?;base64,", re.IGNORECASE)


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
    if missing := [name for name in choice.allowed if name not in names]:
        raise UsageError(f"tool_choice allows {missing[0]!r}, which is not offered; offered are: {names or 'none'}.")
    if choice.mode is ToolChoiceMode.NAMED and choice.allowed and choice.name not in choice.allowed:
        raise UsageError(f"tool_choice names {choice.name!r}, which it does not allow; allowed are: {choice.allowed}.")
    if choice.mode is ToolChoiceMode.REQUIRED and not (names or request.server_tools):
        raise UsageError("tool_choice is REQUIRED, but no tool is offered.")
    for name in names:
        if not _NAME.fullmatch(name):
            raise UsageError(f"tool name {name!r} is taken by no API; it must match {_NAME.pattern}")
    offers = [(type(offer).__name__, getattr(offer, "name", "")) for offer in request.server_tools]
    if twice := [kind for kind, name in offers if offers.count((kind, name)) > 1]:
        raise UsageError(f"server_tools has {twice[0]} twice; offer it once.")


def _with_allowed_tools_alone(request: ModelRequest) -> ModelRequest:
    choice = request.tool_choice
    tools = tuple(tool for tool in request.tools if tool.name in choice.allowed)
    return replace(request, tools=tools, tool_choice=replace(choice, allowed=()))


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
        text = content.half_arguments(text)
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


class CallIdRule(Struct, frozen=True):
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
#: What OpenAI's models see, over both of its APIs (guide "Images and vision": PNG, JPEG, WEBP and GIF).
OPENAI_IMAGES: Final = ("image/png", "image/jpeg", "image/webp", "image/gif")
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

    own_options: OptionTable = NO_OPTIONS
    """How the options of its API are written."""

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

    @property
    def address(self) -> str:
        """See `HasAddress.address`."""
        return self._url

    def decoder(self, status: int = 200, headers: Mapping[str, str] | None = None, streaming: bool = True) -> Decoder:
        """See `Adapter.decoder`."""
        return self._decodes(AnswerHead(self.family, status, headers, streaming, self._api_key))

    def headers(self, request: ModelRequest) -> dict[str, str]:
        """The request's headers."""
        return self._headers_for("text/event-stream" if request.stream else "application/json")

    def sent(self, url: str, headers: Mapping[str, str], written: Encoding, body: Body) -> WireRequest:
        """The finished request, with what is asked of this API alone."""
        if written.request.provider_options:
            own = own_fields(self.own_options, self.name, written.request.provider_options)
            body, headers = own.in_body(body), own.in_headers(headers)
            for note in own.notes:
                written.note(note)
        return post(url, headers, body, written.notes)

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
    cites_documents: ClassVar[bool] = False
    """Can the model be asked to cite a document (`Document.citations`)?"""

    def __init__(self, request: ModelRequest, server: str = "", *, takes_allowed: bool = False) -> None:
        """`takes_allowed`: the API can be told which of the tools may be called."""
        check_request(request)
        if request.tool_choice.allowed and not takes_allowed:
            request = _with_allowed_tools_alone(request)
        self.notes: list[str] = []
        if request.provider_options or not model_rules.is_bare(request.sampling):
            request, self.notes = model_rules.fitted(request, server)
        self.request = replace(request, messages=tuple(map(_with_plain_media, request.messages)))
        self._server = server
        if not self.cites_documents and any(map(_asks_for_citations, self.request.messages)):
            self.note("citations of documents: the API has none; left out")
        if request.storage is not None and not self.keeps_answers:
            self._refuse_storage(request.storage)

    @property
    def extra_body(self) -> Body:
        """The fields that callboard does not know."""
        extra = [each.body for each in self.request.provider_options if isinstance(each, ExtraFields)]
        return reduce(merged, extra, {})

    def note(self, note: str) -> None:
        """Say once what could not be expressed."""
        if note not in self.notes:
            self.notes.append(note)

    @property
    def asked(self) -> str:
        """The model, as errors and notes call it."""
        return self.request.model

    def in_place_of(self, media: content.Media, where: str) -> str:
        """The line of text that is sent for a medium where the API takes none. Noted."""
        self.note(f"{kind_of(media)} {where}: {self.asked} takes none there; a line of text says what is missing")
        return stand_in(media)

    def note_left_out(self, part: content.ServerTool) -> None:
        """Say that a block of a server tool cannot go back, since another server wrote it."""
        self.note(
            f"{part.name or part.kind} (a tool of its server) {OF_AN_ANSWER}: {self.asked} takes none back; left out"
        )

    def refused_tool(self, offer: ServerToolOffer, has: Iterable[type], hint: str = "") -> UsageError:
        """The error for a server tool that the API has not, with those that it `has`."""
        names = ", ".join(kind.__name__ for kind in has) or "none"
        return UsageError(
            f"{self.asked} has no {type(offer).__name__} of its own on this API; it has: {names}. Leave it out, or ask "
            f"another provider.{hint and f' {hint}'}"
        )

    def check_options(self, offer: ServerToolOffer, takes: Collection[str]) -> None:
        """Note the options of a server tool that the API has not. Raises UsageError for one that keeps something out:
        without it the tool must not run."""
        kind = type(offer).__name__
        given = [name for name in offer.__struct_fields__ if getattr(offer, name) not in (None, "", (), {})]
        for name in given:
            if name in _FIRM_OPTIONS and name not in takes:
                raise UsageError(
                    f"{kind}.{name}: {self.asked} has none on this API, and the tool must not run without it; leave "
                    "it out, or ask another provider."
                )
            if name not in takes:
                self.note(f"{kind}.{name}: the API has none; left out")

    def note_choice_among_server_tools(self) -> None:
        """Where `tool_choice` is about tools of ours only, and there are none: say that it was left out."""
        request, mode = self.request, self.request.tool_choice.mode
        if request.server_tools and not request.tools and mode is not ToolChoiceMode.AUTO:
            self.note(f"tool_choice {mode.value}: the API has none for server tools; left out")

    def refused_sound(self) -> UsageError:
        """The error for `audio_out` where answers have no sound: without it an answer is another one."""
        return UsageError(
            f"{self.asked} answers without sound on this API; leave audio_out out, or ask a model that speaks."
        )

    def may_force_call(self) -> bool:
        """May the model be sent the forced call that it is asked for? One that takes none while it thinks is kept from
        thinking, or where it cannot be, is asked without force; noted. UsageError where it was told to think."""
        choice, rule = self.request.tool_choice, model_rules.forced_calls_of(self.request.model)
        if rule is None or (rule.at and rule.at != self._server) or not model_rules.thinks(self.request):
            return True
        if rule.named and choice.mode is not ToolChoiceMode.NAMED:
            return True
        what = f"tool_choice {choice.name or choice.mode.value}"
        if model_rules.told_to_think(self.request):
            raise UsageError(
                f"{what}: {self.asked} takes no forced call while it thinks; drop reasoning_effort (or what else asks "
                "for thinking), or drop tool_choice"
            )
        thinking = model_rules.thinking_of(self.request.model)
        if thinking is not None and thinking.when is model_rules.Thinks.UNLESS:
            self.note(f"{what}: {self.asked} takes no forced call while it thinks; it was asked not to think")
            sampling = replace(self.request.sampling, reasoning_effort="none")
            self.request = replace(self.request, sampling=sampling)
            return True
        self.note(f"{what}: {self.asked} takes no forced call, since it always thinks; it may answer without a call")
        return False

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

    def adapted_tools(
        self, lax: SchemaDialect, strict: SchemaDialect, answer: SchemaDialect | None = None
    ) -> tuple[ToolDefinition, ...]:
        """The request's tools with schemas that the API takes, not strict where that is impossible. Raises UsageError
        for a schema that no API takes.

        Where strict schemas have a budget, the answer's comes first, since it is always strict (`answer`), then tools
        in their order: one that is added behind them changes none before it, and a cached prompt stays.
        """
        tools: list[ToolDefinition] = []
        budget, schema = strict.budget, self.request.response_schema
        if budget is not None and answer is not None and schema is not None:
            costs = adapted(schema, answer)
            budget = budget.after(costs.optional, costs.unions, tools=0) or StrictBudget(0, 0, 0)
        for tool in self.request.tools:
            try:
                found = adapted(tool.parameters, strict if tool.strict else lax)
                if found.strict and found.made_up:
                    # OpenAI's guide writes it as a union with null, which only a tool that takes null may be sent:
                    # strict tools are a client's, which gets the arguments as they come.
                    why = f"{found.made_up} may be left out and takes no null, and {strict.name} requires it"
                    self.notes.append(f"tool {tool.name}: strict: {why}; left out")
                    found = adapted(tool.parameters, lax)
                elif found.strict and budget is not None:
                    if left := budget.after(found.optional, found.unions):
                        budget = left
                    else:
                        found = adapted(tool.parameters, lax)
                        self.notes.append(f"tool {tool.name}: strict: {strict.name} takes {strict.budget}; left out")
            except UsageError as error:
                raise UsageError(f"tool {tool.name!r}: {error}; asked was {self.asked}") from None
            self.notes += [f"tool {tool.name}: {loss}" for loss in found.losses]
            if tool.strict and not strict.closed:
                self.notes.append(f"tool {tool.name}: strict: the API has no such flag; left out")
            elif tool.strict and not adapted(tool.parameters, strict).strict:
                self.notes.append(f"tool {tool.name}: strict: left out, since its schema cannot be said so")
            tools.append(replace(tool, parameters=found.schema, strict=found.strict))
        return tuple(tools)

    def answer_schema(self, dialect: SchemaDialect) -> AdaptedSchema | None:
        """The schema of the answer in the API's words; None where none is asked for."""
        if self.request.response_schema is None:
            return None
        found = adapted(self.request.response_schema, dialect)
        self.notes += [f"response_schema: {loss}" for loss in found.losses]
        return found


def with_root_words(tool: ToolDefinition) -> str:
    """Its description, with what is said at the root of its parameters, for an API that has no place for it there."""
    words = tool.parameters.get("description")
    if not isinstance(words, str) or words in tool.description:
        return tool.description
    return f"{tool.description}\n{words}" if tool.description else words


def searched_by_provider(request: ModelRequest, origin: str) -> ModelRequest:
    """The request for a provider that searches for tools itself: those to be searched are `deferred`, and our search
    tool is away.

    A tool that was found is shown openly, unless the messages hold the very result, of this `origin`, by which the
    provider loads it.
    """
    if (search := request.tool_search) is None:
        return request
    turns = [message for message in request.messages if isinstance(message, content.AssistantMessage)]
    parts = [part for turn in turns for part in turn.parts if isinstance(part, content.ServerTool) and part.found]
    loaded = {name for part in parts if own_replay(part.replay, origin) is not None for name in part.found}
    offered = {tool.name for tool in request.tools}
    hidden = [tool for tool in search.deferred if tool.name in loaded or tool.name not in offered]
    away = {search.name, *(tool.name for tool in hidden)}
    return replace(request, tools=(*(tool for tool in request.tools if tool.name not in away), *hidden))


class TurnEncoding(Encoding, ABC):
    """A request to an API whose conversation begins with the user and in which neighbours of one role are one message:
    Anthropic and Gemini."""

    def __init__(self, request: ModelRequest, server: str = "", *, takes_allowed: bool = False) -> None:
        super().__init__(request, server, takes_allowed=takes_allowed)
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


def document_text(document: content.Document) -> str:
    """A document that is plain text, as a text of the message."""
    name = f' name="{document.name}"' if document.name else ""
    return f"<document{name}>\n{plain_text(document)}\n</document>"


def plain_text(document: content.Document) -> str:
    """The text of a document that is plain text, given as such or by its bytes; "" for any other. Raises UsageError
    for bytes that are no UTF-8."""
    if document.text or not (document.data_base64 and document.media_type.startswith("text/")):
        return document.text
    try:
        return b64decode(document.data_base64, validate=True).decode()
    except ValueError:
        raise UsageError(f"{kind_of(document)}: its data_base64 is not the base64 of UTF-8 text.") from None


def file_name(document: content.Media) -> str:
    """The name of a document, or one that fits its type: a server may tell the type by it."""
    text = "txt" if document.media_type.startswith("text/") else "pdf"
    return document.name or f"document.{_ENDINGS.get(document.media_type, text)}"


def _with_plain_media(message: content.Message) -> content.Message:
    """The message with its media by one source and type each: the bytes of a `data:` URL are bytes. Raises UsageError
    for a medium that is given twice."""
    if isinstance(message, content.UserMessage):
        parts = [_by_one_source(part) if isinstance(part, content.Media) else part for part in message.parts]
        return content.UserMessage(tuple(parts))
    if isinstance(message, content.ToolMessage) and message.media:
        return replace(message, media=tuple(map(_by_one_source, message.media)))
    return message


def _by_one_source(media: _M) -> _M:
    text = media.text if isinstance(media, content.Document) else ""
    if sum(map(bool, (media.data_base64, media.url, media.file_id, text))) > 1:
        raise UsageError(f"{kind_of(media)} has several sources; give its bytes, url, file_id or text, only one.")
    if found := _DATA_URL.match(media.url):
        media = replace(media, url="", media_type=found[1] or "text/plain", data_base64=media.url[found.end() :])
    if isinstance(media, content.Image) and media.media_type:
        spelled = media.media_type.lower()
        return replace(media, media_type=_SPELLINGS.get(spelled, spelled))
    return media


def shown_parts(message: content.Message) -> Sequence[object]:
    """The parts of a user's message, or the media of a result."""
    if isinstance(message, content.ToolMessage):
        return message.media
    return message.parts if isinstance(message, content.UserMessage) else ()


def _asks_for_citations(message: content.Message) -> bool:
    return any(isinstance(each, content.Document) and each.citations for each in shown_parts(message))


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
    """What is sent in place of a medium where the API takes none: a line that says what it was."""
    size = f", {len(media.data_base64) * 3 // 4:,} bytes" if media.data_base64 else ""
    name = media.name or media.url or media.file_id
    return f"[{kind_of(media)}{f' {name}' if name else ''}{size}: not shown, since this model takes none here]"


def post(url: str, headers: Mapping[str, str], body: Body, notes: Sequence[str]) -> WireRequest:
    """The finished request. Raises UsageError for what JSON cannot hold: half of a surrogate pair, NaN, a cycle."""
    try:
        return WireRequest("POST", url, headers, dumps(body), tuple(notes))
    except ValueError as error:
        raise UsageError(f"The request cannot be written as JSON: {error}.") from None
