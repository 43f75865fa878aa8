"""Gemini generateContent and streamGenerateContent, also on Vertex AI: requests. Facts: docs/wire.md 1.4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

import orjson

from callboard.protocol import content
from callboard.protocol.errors import UsageError
from callboard.protocol.model import ModelRequest, Sampling, ToolChoiceMode
from callboard.protocol.tools import ToolDefinition
from callboard.providers import request_encoding as encoding
from callboard.providers.adapter import WireRequest
from callboard.providers.gemini.gemini_stream import ORIGIN, GeminiDecoder
from callboard.providers.json_values import Body, Json
from callboard.providers.tool_schema import GEMINI, GEMINI_ANSWER

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


class Gemini(encoding.HttpAdapter):
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
        if project is None:
            default, self._path = "https://generativelanguage.googleapis.com", "v1beta"
            credential = {"x-goog-api-key": api_key} if api_key else {}
        else:
            prefix = "" if location == "global" else f"{location}-"
            default = f"https://{prefix}aiplatform.googleapis.com"
            self._path = f"v1beta1/projects/{quote(project)}/locations/{quote(location)}/publishers/google"
            credential = encoding.bearer(api_key)
        url = encoding.checked_url(base_url, default).removesuffix(f"/{self._path}")
        super().__init__(name, url, api_key, GeminiDecoder, credential=credential, headers=headers)

    def encode(self, request: ModelRequest, /) -> WireRequest:
        written = _GeminiEncoding(request)
        method = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
        model = quote(request.model.removeprefix("models/"), safe="/")
        url = f"{self._url}/{self._path}/models/{model}:{method}"
        return encoding.post(url, self.headers(request), written.body(), written.notes)


class _GeminiEncoding(encoding.TurnEncoding):
    def __init__(self, request: ModelRequest) -> None:
        super().__init__(request, _text, _image)

    def body(self) -> Body:
        request = self.request
        system, history = encoding.split_system(request.messages)
        self._history(history)
        if not self.turns:
            raise UsageError("Gemini needs at least one message besides the instructions")
        body: Body = {"contents": [{"role": role, "parts": parts} for role, parts in self.turns]}
        if system:
            body["systemInstruction"] = {"parts": [{"text": system}]}
        body.update(self._tools())
        config = self._sampling(request.sampling)
        if adapted := self.answer_schema(GEMINI_ANSWER):
            config.update(responseMimeType="application/json", responseJsonSchema=adapted.schema)
        if config:
            body["generationConfig"] = config
        return {**body, **request.options}

    # History. A turn's results must be in one message, what follows after them.

    def _history(self, history: Sequence[content.Message]) -> None:
        for position, message in enumerate(history):
            if isinstance(message, content.AssistantMessage):
                self.say("model", self._turn(message))
                after = position + 1
                self.say("user", _results(message, history[after : after + len(message.tool_calls)]))
            elif not isinstance(message, content.ToolMessage):
                self.say_asked(message)

    def _turn(self, message: content.AssistantMessage) -> list[Body]:
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
        declarations = [_declaration(tool) for tool in self.adapted_tools(GEMINI, GEMINI)]
        self.notes += [
            f"tool {tool.name}: strict: the API has no such flag; left out" for tool in request.tools if tool.strict
        ]
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


def _part(part: content.AssistantPart) -> Body | None:
    """A part of a model's turn, with its own signature on exactly the part it came on; None for what is left out."""
    own = encoding.own_replay(part.replay, ORIGIN)
    if isinstance(part, content.ServerTool):
        return dict(own) if own is not None else None
    signature = {"thoughtSignature": own["thoughtSignature"]} if own and "thoughtSignature" in own else {}
    if isinstance(part, content.ToolCall):
        call: Body = {"name": encoding.called_name(part), "args": encoding.arguments_object(part)}
        if own and "id" in own:
            call["id"] = own["id"]
        return {"functionCall": call, **signature}
    if isinstance(part, content.Text):
        return {"text": part.text, **signature} if part.text.strip() or signature else None
    return {"text": part.text, "thought": True, **signature} if signature else None


def _results(turn: content.AssistantMessage, results: Sequence[content.Message]) -> list[Body]:
    """The results of a turn in the order of its calls, by which the API pairs them where there are no ids."""
    by_id = {result.call_id: result for result in results if isinstance(result, content.ToolMessage)}
    return [_result(call, by_id[call.call_id]) for call in turn.tool_calls]


def _result(call: content.ToolCall, result: content.ToolMessage) -> Body:
    response: Body = {"name": encoding.called_name(call), "response": _response(result)}
    own = encoding.own_replay(call.replay, ORIGIN)
    if own and "id" in own:
        response["id"] = own["id"]
    return {"functionResponse": response}


def _response(result: content.ToolMessage) -> object:
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


def _text(text: str) -> Body:
    return {"text": text}


def _image(image: content.Image) -> Body:
    if image.url:
        kind = {"mimeType": image.media_type} if image.media_type else {}
        return {"fileData": {**kind, "fileUri": image.url}}
    media_type, data = encoding.image_bytes(image)
    return {"inlineData": {"mimeType": media_type, "data": data}}
