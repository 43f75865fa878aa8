"""A ModelRequest in the words of generateContent. Facts: docs/wire.md 1.4; types: google-genai 3.4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import orjson
from msgspec import Struct

from callboard.protocol import content, model, server_tools
from callboard.protocol.errors import UsageError
from callboard.protocol.model import ToolChoiceMode
from callboard.protocol.output import is_any_object
from callboard.protocol.tools import ToolDefinition
from callboard.providers import request_encoding as encoding
from callboard.providers.json_values import Body, Json, dumps
from callboard.providers.schema_dialects import GEMINI, GEMINI_ANSWER

ORIGIN: Final = "gemini"
#: What the API takes in place of a signature on a part that another model made (docs/wire.md 1.4). Of a step's calls
#: only on the first: on its siblings it causes empty answers.
FOREIGN_SIGNATURE: Final = "skip_thought_signature_validator"
#: What comes beside an answer's parts. We show it as a block of a server tool; it is no part, and cannot go back.
METADATA_KINDS: Final = frozenset({"groundingMetadata", "urlContextMetadata"})
#: Blocks that Vertex AI does not take (google-genai models.py, _Part_to_vertex).
_NOT_ON_VERTEX: Final = frozenset({"toolCall", "toolResponse"})
#: Tokens of thinking for an effort: Gemini 2.5 takes a budget.
THINKING_BUDGETS: Final = {"none": 0, "minimal": 512, "low": 1_024, "medium": 8_192, "high": 24_576}
#: Gemini 3 and later take a level, and cannot be kept from thinking altogether.
THINKING_LEVELS: Final = {"none": "minimal", "minimal": "minimal", "low": "low", "medium": "medium", "high": "high"}

#: The media types that the API takes (ai.google.dev, "File input methods", "Image/Audio/Video understanding", and the
#: model pages of Vertex AI); of documents also every text.
_TYPES: Final[Mapping[type[content.Media], str]] = {
    content.Image: "image/png image/jpeg image/webp image/heic image/heif image/bmp",
    content.Audio: "audio/wav audio/x-wav audio/mp3 audio/mpeg audio/mpga audio/aiff audio/aac audio/ogg audio/opus "
    "audio/flac audio/m4a audio/mp4 audio/webm audio/pcm audio/l16",
    content.Video: "video/mp4 video/mpeg video/mpegs video/mpg video/mov video/quicktime video/avi video/x-msvideo "
    "video/x-flv video/webm video/wmv video/x-ms-wmv video/3gpp",
    content.Document: "application/pdf application/json application/rtf application/x-javascript "
    "application/x-python-code text/*",
}
#: What Gemini 3 takes within the result of a call (ai.google.dev, "Function calling: multimodal function responses").
_RESULT_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain"})
_INSTEAD_OF_A_SCHEMA: Final = "Answer with one JSON value that fits this JSON Schema, and with nothing around it:\n"


class Platform(Struct, frozen=True):
    """One of the two places that serve the API, by what they take (google-genai models.py, *_to_mldev, *_to_vertex)."""

    name: str
    server_tools: Mapping[type[server_tools.ServerToolOffer], tuple[str, ...]]
    """Those that it has, with the options that each has there."""
    files: str = ""
    """Where kept files are; "" where it keeps none."""
    shows_server_tools: bool = False
    """Can the calls of server tools, and their results, be parts of the answer?"""
    validates_calls: bool = False
    """Does it take the names of the tools that may be called, where none must be?"""


GEMINI_API: Final = Platform(
    "the Gemini API",
    {
        server_tools.WebSearch: (),
        server_tools.WebFetch: (),
        server_tools.CodeExecution: (),
        server_tools.FileSearch: ("store_ids", "max_results"),
        server_tools.RemoteMcp: ("name", "url", "authorization", "headers"),
    },
    files="https://generativelanguage.googleapis.com/v1beta/",
    shows_server_tools=True,
    validates_calls=True,
)
VERTEX_AI: Final = Platform(
    "Vertex AI",
    {server_tools.WebSearch: ("blocked_domains",), server_tools.WebFetch: (), server_tools.CodeExecution: ()},
)


def is_before_gemini_3(name: str) -> bool:
    """Is it one of the models that think within a budget, take no media in results, and take no tools of ours beside
    server tools or a schema? Aliases without a number ("gemini-flash-latest") are newer ones."""
    return name.rpartition("/")[2].startswith(("gemini-1", "gemini-2"))


class GeminiEncoding(encoding.TurnEncoding):
    """One request being written."""

    def __init__(self, request: model.ModelRequest, platform: Platform) -> None:
        # "This should only be set when the Mode is ANY or VALIDATED"; Vertex AI says ANY (FunctionCallingConfig).
        is_forced = request.tool_choice.mode is ToolChoiceMode.REQUIRED
        super().__init__(request, takes_allowed=is_forced or platform.validates_calls)
        self._platform = platform
        self._is_old = is_before_gemini_3(request.model)
        #: These check the signature of the first part and of each picture (js-genai #1116, langchain-google #1431).
        self._wants_signed_media = not self._is_old and "-image" in request.model

    def body(self) -> Body:
        """The request's body; `notes` hold what it could not say. Raises UsageError for what the API cannot take."""
        request = self.request
        system, history = encoding.split_system(request.messages)
        self._history(history)
        if not self.turns:
            raise UsageError("Gemini needs at least one message besides the instructions")
        body: Body = {"contents": [{"role": role, "parts": parts} for role, parts in self.turns]}
        config = {**self._sampling(request.sampling), **self._modalities()}
        if adapted := self.answer_schema(GEMINI_ANSWER):
            if self._is_old and (request.tools or request.server_tools):
                # 400 "Function calling with a response mime type: 'application/json' is unsupported" (python-genai
                # #867, #706).
                self.notes.append("response_schema: this model takes none beside tools; sent as an instruction")
                words = _INSTEAD_OF_A_SCHEMA + dumps(adapted.schema).decode()
                system = f"{system}\n\n{words}" if system else words
            else:
                config["responseMimeType"] = "application/json"
                if not is_any_object(adapted.schema):
                    config["responseJsonSchema"] = adapted.schema
        if system:
            body["systemInstruction"] = {"parts": [{"text": system}]}
        body.update(self._tools())
        if config:
            body["generationConfig"] = config
        if request.service_tier:
            body["serviceTier"] = request.service_tier
        self._note_what_is_missing()
        return body

    # History. A turn's results must be in one message, what follows after them.

    def _history(self, history: Sequence[content.Message]) -> None:
        for position, message in enumerate(history):
            if isinstance(message, content.AssistantMessage):
                self.say("model", self._turn(message))
                after = history[position + 1 : position + 1 + len(message.tool_calls)]
                results = {each.call_id: each for each in after if isinstance(each, content.ToolMessage)}
                # In the order of the calls, by which the API pairs them where there are no ids.
                self.say("user", [self._result(call, results[call.call_id]) for call in message.tool_calls])
            elif not isinstance(message, content.ToolMessage):
                self.say_asked(message)

    def _turn(self, message: content.AssistantMessage) -> list[Body]:
        parts = [wire for part in message.parts if (wire := self._part(part)) is not None]
        first_call = next((part for part in parts if "functionCall" in part), None)
        if first_call is not None:
            first_call.setdefault("thoughtSignature", FOREIGN_SIGNATURE)
        if self._wants_signed_media:
            said = [part for part in parts if "thought" not in part and "functionCall" not in part]
            for part in said:
                if part is said[0] or "inlineData" in part:
                    part.setdefault("thoughtSignature", FOREIGN_SIGNATURE)
        return parts

    def _part(self, part: content.AssistantPart) -> Body | None:
        """A part of a model's turn, with its own signature on exactly the part it came on; None if it is left out."""
        own = encoding.own_replay(part.replay, ORIGIN)
        if isinstance(part, content.ServerTool):
            return self._server_block(part, own)
        if isinstance(part, content.Media):
            return self._shown(part, own)
        signature = {"thoughtSignature": own["thoughtSignature"]} if own and "thoughtSignature" in own else {}
        if isinstance(part, content.ToolCall):
            call: Body = {"name": encoding.called_name(part), "args": encoding.arguments_object(part)}
            if own and "id" in own:
                call["id"] = own["id"]
            return {"functionCall": call, **signature}
        if isinstance(part, content.Text):
            return {"text": part.text, **signature} if part.text.strip() or signature else None
        return {"text": part.text, "thought": True, **signature} if signature else None

    def _server_block(self, part: content.ServerTool, own: Mapping[str, object] | None) -> Body | None:
        if own is None:
            self.note_left_out(part)
        elif not self._platform.shows_server_tools and part.kind in _NOT_ON_VERTEX:
            self.note(f"{part.kind}: {self._platform.name} takes no such block back; left out")
        elif part.kind not in METADATA_KINDS:
            return dict(own)
        return None

    def _shown(self, media: content.Media, own: Mapping[str, object] | None) -> Body:
        """A picture or sound that a model made."""
        is_taken = bool(media.data_base64) and _is_of(media, _TYPES.get(type(media), ""))
        if own is not None or is_taken:
            return {**_data(media, self._platform), **(own or {})}
        return {"text": self.in_place_of(media, encoding.OF_AN_ANSWER)}

    def _result(self, call: content.ToolCall, result: content.ToolMessage) -> Body:
        said: list[str] = []
        parts: list[Body] = []
        for media in result.media:
            if isinstance(media, content.Document) and media.text:
                said.append(encoding.document_text(media))
            elif self._is_old or (media.media_type and _bare_type(media) not in _RESULT_TYPES):
                said.append(self.in_place_of(media, f"in the result of {result.name}"))
            else:
                # Without a display name: nothing refers to it, and the API has trouble with such references
                # (python-genai #2268, #2792).
                parts.append(_data(media, self._platform, named=False))
        response: Body = {"name": encoding.called_name(call), "response": _response(result, said)}
        if parts:
            response["parts"] = parts
        own = encoding.own_replay(call.replay, ORIGIN)
        if own and "id" in own:
            response["id"] = own["id"]
        return {"functionResponse": response}

    def text(self, text: str) -> Body:
        return {"text": text}

    def media(self, media: content.Media) -> Body:
        if isinstance(media, content.Document) and media.text:
            return {"text": encoding.document_text(media)}
        types = _TYPES.get(type(media), "")
        if not _is_of(media, types):
            takes = f"{type(media).__name__} ({types.replace(' ', ', ')})" if types else "Image, Document, Audio, Video"
            raise encoding.refused_part(media, self.request.model, takes)
        # What the API has for a medium beyond ours: videoMetadata, mediaResolution. A signature belongs to the answer
        # that the medium came in.
        own = encoding.own_replay(media.replay, ORIGIN) or {}
        return {**_data(media, self._platform), **{name: own[name] for name in own if name != "thoughtSignature"}}

    # Tools.

    def _tools(self) -> Body:
        request = self.request
        offered: list[Body] = []
        config: Body = {}
        if request.tools:
            # All declarations in one tool: with one tool each, calls are not matched with them (dust #26621).
            offered.append(
                {"functionDeclarations": [_declaration(tool) for tool in self.adapted_tools(GEMINI, GEMINI)]}
            )
            config["functionCallingConfig"] = self._calling()
        if request.server_tools:
            if request.tools and self._is_old:
                # 400 "Tool use with function calling is unsupported" (go-genai #323, celeste-python #197).
                raise UsageError(
                    f"{request.model} takes server tools or tools of yours, not both in one request. Leave one kind "
                    "out, or ask gemini-3 or later."
                )
            offered += [self._server_tool(offer) for offer in request.server_tools]
            if self._platform.shows_server_tools and not self._is_old:
                # Required where both kinds are offered (strands-agents #3646).
                config["includeServerSideToolInvocations"] = True
        return {"tools": offered, **({"toolConfig": config} if config else {})} if offered else {}

    def _calling(self) -> Body:
        choice = self.request.tool_choice
        is_free = choice.mode in (ToolChoiceMode.AUTO, ToolChoiceMode.NONE)
        calling: Body = {"mode": choice.mode.name if is_free else "ANY"}
        if choice.mode is ToolChoiceMode.NAMED:
            calling["allowedFunctionNames"] = [choice.name]
        elif choice.allowed and choice.mode is not ToolChoiceMode.NONE:
            calling["allowedFunctionNames"] = list(choice.allowed)
            if choice.mode is ToolChoiceMode.AUTO:
                calling["mode"] = "VALIDATED"
        return calling

    def _server_tool(self, offer: server_tools.ServerToolOffer) -> Body:
        """A tool of the provider's. Raises UsageError where it has none, or not with these limits."""
        has = self._platform.server_tools
        if type(offer) not in has:
            is_picture = isinstance(offer, server_tools.ImageGeneration)
            raise self.refused_tool(offer, has, "For pictures in the answer set images_out." if is_picture else "")
        self.check_options(offer, has[type(offer)])
        return _server_tool(offer)

    # The rest of the body.

    def _sampling(self, sampling: model.Sampling) -> Body:
        knobs = {
            "temperature": sampling.temperature,
            "topP": sampling.top_p,
            "maxOutputTokens": sampling.max_output_tokens,
            "stopSequences": list(sampling.stop) or None,
            "seed": sampling.seed,
            "thinkingConfig": self._thinking(sampling.reasoning_effort),
            "responseLogprobs": True if sampling.logprobs is not None else None,
            "logprobs": sampling.logprobs or None,
        }
        return {name: value for name, value in knobs.items() if value is not None}

    def _thinking(self, effort: str | None) -> Body | None:
        if effort is None:
            return None
        if effort not in THINKING_BUDGETS:
            raise UsageError(f"reasoning_effort {effort!r} is unknown here; use one of {', '.join(THINKING_BUDGETS)}")
        if self._is_old:
            return {"includeThoughts": effort != "none", "thinkingBudget": THINKING_BUDGETS[effort]}
        if effort == "none":
            self.notes.append("reasoning_effort: this model cannot be kept from thinking; sent as `minimal`")
        return {"includeThoughts": True, "thinkingLevel": THINKING_LEVELS[effort]}

    def _modalities(self) -> Body:
        """What the answer may be made of: text alone, unless it is asked for more. Speech comes without text."""
        request, audio = self.request, self.request.audio_out
        wanted = (["TEXT", "IMAGE"] if request.images_out else []) + (["AUDIO"] if audio else [])
        config: Body = {"responseModalities": wanted} if wanted else {}
        if audio is not None:
            if audio.voice == model.AudioOut().voice:
                self.note(f"audio_out.voice: the API has no {audio.voice!r}; its own default speaks")
            else:
                config["speechConfig"] = {"voiceConfig": {"prebuiltVoiceConfig": {"voiceName": audio.voice}}}
            if audio.format not in ("pcm", "pcm16"):
                self.note(f"audio_out.format: the API has no {audio.format}; the sound comes as PCM (audio/L16)")
        return config

    def _note_what_is_missing(self) -> None:
        request = self.request
        self.note_own_cache()
        self.note_choice_among_server_tools()
        if request.tools and request.parallel_tool_calls is not None:
            self.note("parallel_tool_calls: the API has no such flag; left out")


def _declaration(tool: ToolDefinition) -> Body:
    if tool.parameters.get("properties") or tool.parameters.get("additionalProperties"):
        return {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}
    return {"name": tool.name, "description": encoding.with_root_words(tool)}


def _server_tool(offer: server_tools.ServerToolOffer) -> Body:
    match offer:
        case server_tools.WebSearch():
            return {"googleSearch": {"excludeDomains": list(offer.blocked_domains)} if offer.blocked_domains else {}}
        case server_tools.WebFetch():
            return {"urlContext": {}}
        case server_tools.FileSearch():
            names = [_prefixed("fileSearchStores/", name) for name in offer.store_ids]
            most = {"topK": offer.max_results} if offer.max_results is not None else {}
            return {"fileSearch": {"fileSearchStoreNames": names, **most}}
        case server_tools.RemoteMcp():
            return {"mcpServers": [_mcp_server(offer)]}
        case _:
            return {"codeExecution": {}}


def _mcp_server(offer: server_tools.RemoteMcp) -> Body:
    headers = dict(offer.headers)
    if offer.authorization:
        headers["Authorization"] = f"Bearer {offer.authorization}"
    transport: Body = {"url": offer.url}
    if headers:
        transport["headers"] = headers
    return {"name": offer.name, "streamableHttpTransport": transport}


def _bare_type(media: content.Media) -> str:
    """The media type without its parameters: "audio/L16;rate=24000" is "audio/l16"."""
    return media.media_type.partition(";")[0].strip().lower()


def _is_of(media: content.Media, types: str) -> bool:
    """Is the media type among these? A medium that is given by its address may leave it to the provider."""
    if not media.media_type:
        return bool(types)
    return _bare_type(media) in types.split() or ("text/*" in types and _bare_type(media).startswith("text/"))


def _data(media: content.Media, platform: Platform, *, named: bool = True) -> Body:
    """A medium by its source. Raises UsageError where it has none, or one that the platform has not."""
    name = {"displayName": media.name} if named and media.name else {}
    uri = _file_uri(media, platform) if media.file_id else media.url
    if uri:
        kind = {"mimeType": media.media_type} if media.media_type else {}
        return {"fileData": {**kind, "fileUri": uri, **name}}
    media_type, data = encoding.media_bytes(media)
    return {"inlineData": {"mimeType": media_type, "data": data, **name}}


def _file_uri(media: content.Media, platform: Platform) -> str:
    if "://" in media.file_id:
        return media.file_id
    if not platform.files:
        raise UsageError(f"{platform.name} keeps no files; give {encoding.kind_of(media)} by a gs:// address in `url`.")
    return platform.files + _prefixed("files/", media.file_id)


def _prefixed(prefix: str, name: str) -> str:
    return name if name.startswith(prefix) else prefix + name


def _response(result: content.ToolMessage, said: Sequence[str]) -> object:
    """The result as an object, which is all that the API takes: {"error": ..} is its word for a failure.

    The very text, where it is JSON; what only looks like it (NaN, half of a surrogate pair) goes as a string. What is
    `said` of its media is beside it.
    """
    name = "error" if result.is_error else "result"
    try:
        value: Json = orjson.loads(result.content)
    except orjson.JSONDecodeError:
        answer: Body = {name: result.content}
    else:
        if isinstance(value, dict) and not result.is_error and not said:
            return orjson.Fragment(result.content)
        goes_as_json = isinstance(value, dict) or result.is_error
        answer = {name: orjson.Fragment(result.content) if goes_as_json else result.content}
    return {**answer, "attachments": list(said)} if said else answer
