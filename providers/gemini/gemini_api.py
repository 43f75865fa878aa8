"""Gemini generateContent and streamGenerateContent, also on Vertex AI: requests. Facts: docs/wire.md 1.4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

import orjson

from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Image,
    Message,
    ServerTool,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import UsageError
from callboard.protocol.model import ModelRequest, Sampling, ToolChoiceMode
from callboard.protocol.tools import ToolDefinition
from callboard.providers.adapter import Decoder, WireRequest
from callboard.providers.base_decoder import AnswerHead
from callboard.providers.gemini.gemini_stream import ORIGIN, GeminiDecoder
from callboard.providers.json_values import Body, Json
from callboard.providers.request_encoding import (
    BLANK_USER,
    TRIMMED_START,
    arguments_object,
    called_name,
    check_request,
    checked_url,
    image_bytes,
    json_headers,
    own_replay,
    post,
    results_after,
    split_system,
)
from callboard.providers.tool_schema import GEMINI, GEMINI_ANSWER, adapt_schema, adapted_tools

#: What the API takes in place of a signature on a call that another model made (docs/wire.md 1.4). Only on a step's
#: first call: on its siblings it causes empty answers.
FOREIGN_SIGNATURE: Final = "skip_thought_signature_validator"
#: Tokens of thinking for an effort: Gemini 2.5 takes a budget.
THINKING_BUDGETS: Final = {"none": 0, "minimal": 512, "low": 1_024, "medium": 8_192, "high": 24_576}
#: Gemini 3 and later take a level, and cannot be kept from thinking altogether.
THINKING_LEVELS: Final = {"none": "minimal", "minimal": "minimal", "low": "low", "medium": "medium", "high": "high"}

_MODES: Final = {
    ToolChoiceMode.AUTO: "AUTO",
    ToolChoiceMode.NONE: "NONE",
    ToolChoiceMode.REQUIRED: "ANY",
    ToolChoiceMode.NAMED: "ANY",
}


class Gemini:
    """The adapter of the Gemini API. With `project` and `location` it is the same API on Vertex AI, where the key is an
    OAuth access token."""

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        project: str | None = None,
        location: str = "us-central1",
        name: str = "gemini",
    ) -> None:
        self._vertex = project is not None
        if project is None:
            default, self._path = "https://generativelanguage.googleapis.com", "v1beta"
        else:
            prefix = "" if location == "global" else f"{location}-"
            default = f"https://{prefix}aiplatform.googleapis.com"
            self._path = f"v1beta1/projects/{quote(project)}/locations/{quote(location)}/publishers/google"
        self._url = checked_url(base_url, default).removesuffix(f"/{self._path}")
        self._api_key = api_key
        self._headers = dict(headers or {})
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def encode(self, request: ModelRequest, /) -> WireRequest:
        encoding = _GeminiEncoding(request)
        method = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
        model = quote(request.model.removeprefix("models/"), safe="/")
        url = f"{self._url}/{self._path}/models/{model}:{method}"
        return post(url, self.headers(request), encoding.body(), encoding.notes)

    def decoder(self, status: int = 200, headers: Mapping[str, str] | None = None, streaming: bool = True) -> Decoder:
        return GeminiDecoder(AnswerHead(self._name, status, headers, streaming, self._api_key))

    def headers(self, request: ModelRequest) -> dict[str, str]:
        """The request's headers; variants add theirs."""
        headers = json_headers(request, self._headers)
        if self._api_key and self._vertex:
            headers["authorization"] = f"Bearer {self._api_key}"
        elif self._api_key:
            headers["x-goog-api-key"] = self._api_key
        return headers


class _GeminiEncoding:
    """One request being written."""

    def __init__(self, request: ModelRequest) -> None:
        self.request = request
        self.notes: list[str] = []
        self._contents: list[tuple[str, list[Body]]] = []
        """Roles and their parts."""

    def body(self) -> Body:
        request = self.request
        check_request(request)
        system, history = split_system(request.messages)
        self._history(history)
        if not self._contents:
            raise UsageError("Gemini needs at least one message besides the instructions")
        body: Body = {"contents": [{"role": role, "parts": parts} for role, parts in self._contents]}
        if system:
            body["systemInstruction"] = {"parts": [{"text": system}]}
        body.update(self._tools())
        config = self._sampling(request.sampling)
        if request.response_schema is not None:
            adapted = adapt_schema(request.response_schema, GEMINI_ANSWER)
            self.notes += [f"response_schema: {loss}" for loss in adapted.losses]
            config.update(responseMimeType="application/json", responseJsonSchema=adapted.schema)
        if config:
            body["generationConfig"] = config
        return {**body, **request.options}

    # History. Neighbours of one role are one content: a turn's results must be in one, what follows after them.

    def _history(self, history: Sequence[Message]) -> None:
        for position, message in enumerate(history):
            if isinstance(message, AssistantMessage):
                self._say("model", self._turn(message))
                self._say("user", _results(message, results_after(history, position)))
            elif isinstance(message, UserMessage):
                self._say("user", _user_parts(message))
            elif isinstance(message, SystemMessage) and message.text.strip():
                self._say("user", [{"text": f"<system>\n{message.text}\n</system>"}])

    def _say(self, role: str, parts: list[Body]) -> None:
        if not parts:
            return
        if not self._contents and role == "model":
            # A call must come directly after a turn of the user's, so the conversation cannot begin with the model.
            self._contents.append(("user", [{"text": TRIMMED_START}]))
        if self._contents and self._contents[-1][0] == role:
            self._contents[-1][1].extend(parts)
        else:
            self._contents.append((role, parts))

    def _turn(self, message: AssistantMessage) -> list[Body]:
        parts = [wire for part in message.parts if (wire := _part(part)) is not None]
        first_call = next((part for part in parts if "functionCall" in part), None)
        if first_call is not None:
            first_call.setdefault("thoughtSignature", FOREIGN_SIGNATURE)
        return parts

    # The rest of the body.

    def _tools(self) -> Body:
        request = self.request
        if not request.tools:
            return {}
        calling: Body = {"mode": _MODES[request.tool_choice.mode]}
        if request.tool_choice.mode is ToolChoiceMode.NAMED:
            calling["allowedFunctionNames"] = [request.tool_choice.name]
        if request.parallel_tool_calls is not None:
            self.notes.append("parallel_tool_calls: the API has no such flag; left out")
        adapted, notes = adapted_tools(request.tools, GEMINI, GEMINI)
        self.notes += notes + [
            f"tool {tool.name}: strict: the API has no such flag; left out" for tool in request.tools if tool.strict
        ]
        declarations = [_declaration(tool) for tool in adapted]
        return {
            "tools": [{"functionDeclarations": declarations}],
            "toolConfig": {"functionCallingConfig": calling},
        }

    def _sampling(self, sampling: Sampling) -> Body:
        knobs = {
            "temperature": sampling.temperature,
            "topP": sampling.top_p,
            "maxOutputTokens": sampling.max_output_tokens,
            "stopSequences": list(sampling.stop) or None,
            "seed": sampling.seed,
            "thinkingConfig": self._thinking(sampling.reasoning_effort),
        }
        return {name: value for name, value in knobs.items() if value is not None}

    def _thinking(self, effort: str | None) -> Body | None:
        if effort is None:
            return None
        if effort not in THINKING_BUDGETS:
            raise UsageError(f"reasoning_effort {effort!r} is unknown here; use one of {', '.join(THINKING_BUDGETS)}")
        if self.request.model.removeprefix("models/").startswith(("gemini-1", "gemini-2")):
            return {"includeThoughts": effort != "none", "thinkingBudget": THINKING_BUDGETS[effort]}
        if effort == "none":
            self.notes.append("reasoning_effort: this model cannot be kept from thinking; sent as `minimal`")
        return {"includeThoughts": True, "thinkingLevel": THINKING_LEVELS[effort]}


def _declaration(tool: ToolDefinition) -> Body:
    declaration: Body = {"name": tool.name, "description": tool.description}
    if tool.parameters.get("properties"):
        declaration["parametersJsonSchema"] = tool.parameters
    return declaration


def _part(part: AssistantPart) -> Body | None:
    """A part of a model's turn, with its own signature on exactly the part it came on; None for what is left out."""
    own = own_replay(part.replay, ORIGIN)
    if isinstance(part, ServerTool):
        return dict(own) if own is not None else None
    signature = {"thoughtSignature": own["thoughtSignature"]} if own and "thoughtSignature" in own else {}
    if isinstance(part, ToolCall):
        call: Body = {"name": called_name(part), "args": arguments_object(part)}
        if own and "id" in own:
            call["id"] = own["id"]
        return {"functionCall": call, **signature}
    if isinstance(part, Text):
        return {"text": part.text, **signature} if part.text.strip() or signature else None
    return {"text": part.text, "thought": True, **signature} if signature else None


def _results(turn: AssistantMessage, results: Sequence[ToolMessage]) -> list[Body]:
    """The results of a turn in the order of its calls, by which the API pairs them where there are no ids."""
    by_id = {result.call_id: result for result in results}
    return [_result(call, by_id[call.call_id]) for call in turn.tool_calls]


def _result(call: ToolCall, result: ToolMessage) -> Body:
    response: Body = {"name": called_name(call), "response": _response(result)}
    own = own_replay(call.replay, ORIGIN)
    if own and "id" in own:
        response["id"] = own["id"]
    return {"functionResponse": response}


def _response(result: ToolMessage) -> object:
    """The result as an object, which is all that the API takes: {"error": ..} is its word for a failure.

    The very text, where it is JSON; what only looks like it (NaN, half of a surrogate pair) goes as a string.
    """
    try:
        value: Json = orjson.loads(result.content)
    except orjson.JSONDecodeError:
        return {"error" if result.is_error else "result": result.content}
    if result.is_error:
        return {"error": orjson.Fragment(result.content)}
    return orjson.Fragment(result.content) if isinstance(value, dict) else {"result": result.content}


def _user_parts(message: UserMessage) -> list[Body]:
    parts: list[Body] = [
        _image(part) if isinstance(part, Image) else {"text": part.text}
        for part in message.parts
        if isinstance(part, Image) or part.text.strip()
    ]
    return parts or [{"text": BLANK_USER}]


def _image(image: Image) -> Body:
    if image.url:
        kind = {"mimeType": image.media_type} if image.media_type else {}
        return {"fileData": {**kind, "fileUri": image.url}}
    media_type, data = image_bytes(image)
    return {"inlineData": {"mimeType": media_type, "data": data}}
