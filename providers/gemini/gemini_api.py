"""Gemini generateContent and streamGenerateContent, also on Vertex AI. Facts: docs/wire.md 1.4, quirks 40-45.

Requests first, then answers: as SSE, as one long JSON array, or whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from io import StringIO
from itertools import pairwise
from typing import Final
from urllib.parse import quote

import orjson

from callboard.protocol import content, model
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.limits import MAX_ARGUMENT_BYTES, MAX_RESPONSE_BYTES
from callboard.protocol.model import FinishReason, StreamEvent, TextDelta, ThinkingDelta, ToolChoiceMode
from callboard.protocol.tools import ToolDefinition
from callboard.providers import request_encoding as encoding
from callboard.providers.adapter import WireRequest
from callboard.providers.base_decoder import (
    AnswerHead,
    BaseDecoder,
    count_at,
    fields_at,
    object_at,
    object_of,
    objects_at,
    text_at,
    text_of,
    usage_of,
)
from callboard.providers.http_errors import make_error
from callboard.providers.json_values import Body, Json, JsonObject
from callboard.providers.tool_schema import GEMINI, GEMINI_ANSWER

ORIGIN: Final = "gemini"
#: What the API takes in place of a signature on a call that another model made (docs/wire.md 1.4). Only on a step's
#: first call: on its siblings it causes empty answers.
FOREIGN_SIGNATURE: Final = "skip_thought_signature_validator"
#: Tokens of thinking for an effort: Gemini 2.5 takes a budget.
THINKING_BUDGETS: Final = {"none": 0, "minimal": 512, "low": 1_024, "medium": 8_192, "high": 24_576}
#: Gemini 3 and later take a level, and cannot be kept from thinking altogether.
THINKING_LEVELS: Final = {"none": "minimal", "minimal": "minimal", "low": "low", "medium": "medium", "high": "high"}


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
        super().__init__("gemini", url, api_key, GeminiDecoder, credential=credential, headers=headers)

    def encode(self, request: model.ModelRequest, /) -> WireRequest:
        written = _GeminiEncoding(request)
        method = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
        name = quote(request.model.removeprefix("models/"), safe="/")
        url = f"{self._url}/{self._path}/models/{name}:{method}"
        return encoding.post(url, self.headers(request), written.body(), written.notes)


class _GeminiEncoding(encoding.TurnEncoding):
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
                after = history[position + 1 : position + 1 + len(message.tool_calls)]
                results = {each.call_id: each for each in after if isinstance(each, content.ToolMessage)}
                # In the order of the calls, by which the API pairs them where there are no ids.
                self.say("user", [_result(call, results[call.call_id]) for call in message.tool_calls])
            elif not isinstance(message, content.ToolMessage):
                self.say_asked(message)

    def _turn(self, message: content.AssistantMessage) -> list[Body]:
        parts = [wire for part in message.parts if (wire := _part(part)) is not None]
        first_call = next((part for part in parts if "functionCall" in part), None)
        if first_call is not None:
            first_call.setdefault("thoughtSignature", FOREIGN_SIGNATURE)
        return parts

    def text(self, text: str) -> Body:
        return {"text": text}

    def media(self, media: content.Media) -> Body:
        if not isinstance(media, content.Image):
            raise encoding.refused_part(media, self.request.model, "text, Image")
        if media.url:
            kind = {"mimeType": media.media_type} if media.media_type else {}
            return {"fileData": {**kind, "fileUri": media.url}}
        media_type, data = encoding.media_bytes(media)
        return {"inlineData": {"mimeType": media_type, "data": data}}

    # The rest of the body.

    def _tools(self) -> Body:
        request = self.request
        if not request.tools:
            return {}
        mode = request.tool_choice.mode
        calling: Body = {"mode": mode.name if mode in (ToolChoiceMode.AUTO, ToolChoiceMode.NONE) else "ANY"}
        if mode is ToolChoiceMode.NAMED:
            calling["allowedFunctionNames"] = [request.tool_choice.name]
        if request.parallel_tool_calls is not None:
            self.notes.append("parallel_tool_calls: the API has no such flag; left out")
        declarations = [_declaration(tool) for tool in self.adapted_tools(GEMINI, GEMINI)]
        self.notes += [
            f"tool {tool.name}: strict: the API has no such flag; left out" for tool in request.tools if tool.strict
        ]
        return {"tools": [{"functionDeclarations": declarations}], "toolConfig": {"functionCallingConfig": calling}}

    def _sampling(self, sampling: model.Sampling) -> Body:
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
    if isinstance(part, content.ServerTool | content.Media):
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


_FILTERS: Final = (
    "SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT SPII MODEL_ARMOR "
    "IMAGE_SAFETY IMAGE_PROHIBITED_CONTENT IMAGE_RECITATION"
)
_FINISH_REASONS: Final = {
    "STOP": FinishReason.STOP,
    "MAX_TOKENS": FinishReason.LENGTH,
    "UNEXPECTED_TOOL_CALL": FinishReason.TOOL_CALLS,
    **dict.fromkeys(_FILTERS.split(), FinishReason.CONTENT_FILTER),
}
#: Reasons that mean that there is no answer.
_FAILURES: Final = {
    "MALFORMED_FUNCTION_CALL": ErrorKind.MALFORMED_TOOL_CALL,
    "MALFORMED_RESPONSE": ErrorKind.MALFORMED,
    "MISSING_THOUGHT_SIGNATURE": ErrorKind.INVALID_REQUEST,
}
#: A step of a JSONPath: .name, [index] or a name in brackets and quotes.
_STEP: Final = re.compile(r"""\.([^.\[\]'"]+)|\[(\d+)\]|\[(['"])((?:\\.|(?!\3)[^\\])*)\3\]""")
#: The steps of a path; the pieces of a call and the places of its lists. Models stay far below, broken servers may not.
_MAX_STEPS: Final = 64
_MAX_PIECES: Final = 100_000
_MAX_PLACES: Final = 10_000
#: What the bounds of an array's elements depend on: strings with their escapes, brackets, commas.
_MARK: Final = re.compile(rb'\\.?|["{}\[\],]', re.DOTALL)
_NESTING: Final = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}
_BLANK: Final = b" \t\r\n\xef\xbb\xbf"
_SIGNATURE_ONLY: Final = frozenset({"thoughtSignature", "thought"})
_Out = list[StreamEvent]


class PartialArguments:
    """The arguments of one call, streamed as (JSONPath, value) pieces, put together to their object (quirk 43).

    Linear in their bytes: strings are joined once, at the end.
    """

    def __init__(self) -> None:
        self._strings: dict[str, StringIO] = {}
        self._values: JsonObject = {}
        self._size = 0
        self._padded = 0

    def add(self, piece: JsonObject) -> None:
        """One entry of `partialArgs`. Raises ValueError past the limits."""
        path, text = text_of(piece["jsonPath"]), text_at(piece, "stringValue")
        self._size += len(path) + len(text)
        if self._size > MAX_ARGUMENT_BYTES or len(self._values) >= _MAX_PIECES:
            raise ValueError(f"the streamed arguments are longer than {MAX_ARGUMENT_BYTES} characters")
        if isinstance(piece.get("stringValue"), str):
            # Text at a path that had some goes on with it.
            self._strings.setdefault(path, StringIO()).write(text)
            self._values[path] = None
        for kind in ("numberValue", "boolValue", "nullValue"):
            if kind in piece:
                self._values[path] = None if kind == "nullValue" else piece[kind]

    def value(self) -> JsonObject:
        """The object so far. Raises ValueError where two pieces contradict each other."""
        root: JsonObject = {}
        self._padded = 0
        for path, value in self._values.items():
            steps, pieces = _steps(path), self._strings.get(path)
            inner: Json = root
            for step, following in pairwise(steps):
                inner = self._child(inner, step, [] if isinstance(following, int) else {})
            self._child(inner, steps[-1], value if pieces is None else pieces.getvalue(), replace=True)
        return root

    def _child(self, node: Json, step: str | int, value: Json, *, replace: bool = False) -> Json:
        """What is at `step` of `node`; `value` is put there first if nothing is, or always with `replace`."""
        if isinstance(step, int):
            if not isinstance(node, list):
                raise ValueError(f"no list with a place {step}")
            missing = max(0, step + 1 - len(node))
            self._padded += missing
            if self._padded > _MAX_PLACES:
                raise ValueError(f"lists of more than {_MAX_PLACES} places")
            node.extend([None] * missing)
            if replace or node[step] is None:
                node[step] = value
            return node[step]
        if not isinstance(node, dict):
            raise ValueError(f"no object with a field {step!r}")
        if replace or node.get(step) is None:
            node[step] = value
        return node[step]


def _steps(path: str) -> list[str | int]:
    if not path.startswith("$"):
        raise ValueError(f"a JSONPath starts with $, not {path[:40]!r}")
    steps: list[str | int] = []
    end = 1
    while end < len(path):
        match = _STEP.match(path, end)
        if match is None or len(steps) >= _MAX_STEPS:
            raise ValueError(f"not a JSONPath to one value: {path[:80]!r}")
        name, index, _, quoted = match.groups()
        if index is not None:
            steps.append(int(index[:6]))
        else:
            steps.append(name if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        end = match.end()
    if not steps or isinstance(steps[0], int):
        raise ValueError(f"the arguments are an object, so {path[:40]!r} is not a place in them")
    return steps


class JsonArraySplitter:
    """Hands out the elements of one long JSON array as soon as each is whole (Gemini's stream without alt=sse).

    Cuts, and parses nothing: an element that is not JSON fails in the parser. Cost is linear in the bytes for any
    chunking; memory is bounded by one element.
    """

    def __init__(self, max_element_bytes: int = MAX_RESPONSE_BYTES) -> None:
        self._max_element_bytes = max_element_bytes
        self._element = bytearray()
        self._scanned = 0
        """Of the element: bytes that were looked at, but for a backslash at its end."""
        self._depth = 0
        self._in_string = False
        self.closed = False
        """The array's own bracket was closed: all that follows is ignored."""

    def feed(self, data: bytes) -> list[bytes]:
        """The elements that `data` completes. Raises ValueError for an element without end."""
        if self.closed:
            return []
        self._element += data
        elements: list[bytes] = []
        start, scanned = 0, len(self._element)
        for mark in _MARK.finditer(self._element, self._scanned):
            sign = mark.group()
            if sign == b"\\":
                scanned = mark.start()  # what it escapes is still to come
            elif sign == b'"':
                self._in_string = not self._in_string
            elif not self._in_string and len(sign) == 1:
                step = _NESTING.get(sign, 0)
                self._depth += step
                self.closed = self._depth <= 0
                if self.closed or (self._depth == 1 and step >= 0):
                    element, start = bytes(self._element[start : mark.start()]).strip(_BLANK), mark.end()
                    elements += [element] if element else []
                if self.closed:
                    return elements
        if start:
            del self._element[:start]
        self._scanned = scanned - start
        if len(self._element) > self._max_element_bytes:
            raise ValueError(f"an element of more than {self._max_element_bytes} bytes")
        return elements


class GeminiDecoder(BaseDecoder):
    """Events of generateContent. The end of the body is the end; a finishReason before it makes the turn whole."""

    def __init__(self, head: AnswerHead) -> None:
        super().__init__(head)
        self._array: JsonArraySplitter | None = None
        self._may_be_array = head.streaming and head.status < 400
        self._partial: tuple[int, PartialArguments] | None = None
        """A call whose arguments are being streamed: its index, and they."""
        self._block_number = 0
        self._finish_reason = ""
        self._finish_message = ""
        self._block_reason = ""

    def on_json(self, event: str, document: JsonObject, out: _Out) -> None:
        if document.get("error"):
            self.fail_payload(document, out)
            return
        if not self.calls.seed:
            self.calls.seed = text_at(document, "responseId")
        if "usageMetadata" in document:
            self._note_usage(fields_at(document, "usageMetadata"))
        self.model = text_at(document, "modelVersion") or self.model
        # No candidate will come where the filter took the prompt (quirk 45).
        if "promptFeedback" in document:
            self._block_reason = text_at(object_at(document, "promptFeedback"), "blockReason") or self._block_reason
        for candidate in objects_at(document, "candidates"):
            if not candidate.get("index"):
                self._candidate(candidate, out)

    def _note_usage(self, given: JsonObject) -> None:
        """Cumulative: the last counts, as a whole. Vertex sends some without any count, which add to it (quirk 67)."""
        if given.get("promptTokenCount") or any(given[key] is not None for key in given if key.endswith("TokenCount")):
            self.usage = given
        else:
            self.usage = {**self.usage, **{key: value for key, value in given.items() if value is not None}}

    def on_body(self, document: Json, out: _Out) -> None:
        for chunk in document if isinstance(document, list) else [document]:
            self.on_json("", object_of(chunk), out)
            if self.ended:
                return
        self.on_end(out, False)

    def on_end(self, out: _Out, marked: bool) -> None:
        reason = self._finish_reason
        finish = _FINISH_REASONS.get(reason, FinishReason.OTHER)
        if not reason and self._block_reason:
            self._done(FinishReason.CONTENT_FILTER, self._block_reason, out)
        elif not reason:
            self.fail_truncated(out)
        elif reason in _FAILURES or (reason == "UNEXPECTED_TOOL_CALL" and not self.calls.count):
            kind = _FAILURES.get(reason, ErrorKind.MALFORMED_TOOL_CALL)
            detail = f": {self._finish_message}" if self._finish_message else ""
            self.fail(out, make_error(kind, f"The model's turn ended with {reason}{detail}", code=reason))
        else:
            if finish in (FinishReason.STOP, FinishReason.TOOL_CALLS):
                # The piece that closes a streamed call may be missing before the finish reason (quirk 43); any other
                # reason (length, filter, one that we do not know) broke the call off.
                self._close_partial(out)
            if finish is FinishReason.STOP and self.calls.count:
                finish = FinishReason.TOOL_CALLS
            self._done(finish, reason, out)

    def _done(self, finish: FinishReason, reason: str, out: _Out) -> None:
        usage: JsonObject = {key: value for key, value in self.usage.items() if value is not None}
        self.end(out, model.Done(finish, reason, _usage(usage), usage, self.model))

    # A stream without alt=sse is one JSON array.

    def _take_body(self, data: bytes, out: _Out) -> None:
        if self._may_be_array and data.lstrip(_BLANK).startswith(b"["):
            self._array = JsonArraySplitter()
        self._may_be_array = False
        if self._array is None:
            super()._take_body(data, out)
            return
        for element in self._array.feed(data):
            self._take_event("", element, out)
            if self.ended:
                return

    def _read_body(self, body: bytes, out: _Out) -> None:
        if self._array is None:
            super()._read_body(body, out)
        elif self._array.closed:
            self.on_end(out, False)
        else:
            self.fail_truncated(out)

    # How.

    def _candidate(self, candidate: JsonObject, out: _Out) -> None:
        for part in objects_at(object_at(candidate, "content"), "parts"):
            self._part(part, out)
        if candidate.get("finishReason"):
            self._finish_reason = text_at(candidate, "finishReason")
            self._finish_message = text_at(candidate, "finishMessage")

    def _part(self, part: JsonObject, out: _Out) -> None:
        signature = text_at(part, "thoughtSignature") if "thoughtSignature" in part else ""
        if "functionCall" in part:
            self._call(object_of(part["functionCall"]), signature, out)
        elif "text" in part or part.keys() <= _SIGNATURE_ONLY:
            self._prose(ThinkingDelta if part.get("thought") else TextDelta, text_at(part, "text"), signature, out)
        else:
            kind = next(key for key in part if key not in _SIGNATURE_ONLY)
            out.append(model.ServerToolEvent(kind, content.Replay(ORIGIN, part)))

    def _prose(self, kind: type[TextDelta | ThinkingDelta], text: str, signature: str, out: _Out) -> None:
        if signature:
            # A signed part is one of its own: it goes back exactly as it came (quirk 44).
            out.append(kind(text, self._block_number + 1, content.Replay(ORIGIN, {"thoughtSignature": signature})))
            self._block_number += 2
        elif text:
            out.append(kind(text, self._block_number))

    def _call(self, call: JsonObject, signature: str, out: _Out) -> None:
        name, call_id = text_at(call, "name"), text_at(call, "id")
        # What must go back on the very part: the API's own id, if it gave one, and the signature.
        kept = {key: value for key, value in (("id", call_id), ("thoughtSignature", signature)) if value}
        replay = content.Replay(ORIGIN, kept) if kept else None
        if call.get("partialArgs") or call.get("willContinue") or (self._partial is not None and not name):
            self._partial_call(call, name, call_id, replay, out)
            return
        self._close_partial(out)
        arguments = call.get("args") or {}
        self.calls.whole(out, id=call_id, name=name, arguments=arguments, replay=replay)

    def _partial_call(
        self, call: JsonObject, name: str, call_id: str, replay: content.Replay | None, out: _Out
    ) -> None:
        if self._partial is None or name:
            self._close_partial(out)
            self._partial = self.calls.count, PartialArguments()
            self.calls.delta(out, index=self.calls.count, id=call_id, name=name, replay=replay)
        for piece in objects_at(call, "partialArgs"):
            self._partial[1].add(piece)
        if not call.get("willContinue"):
            self._close_partial(out)

    def _close_partial(self, out: _Out) -> None:
        if self._partial is not None:
            (index, arguments), self._partial = self._partial, None
            self.calls.delta(out, index=index, arguments=arguments.value())
            self.calls.complete(out, index=index)


def _usage(raw: JsonObject) -> model.Usage | None:
    """candidatesTokenCount leaves the thoughts out, promptTokenCount the results of the provider's own tools."""
    asked, thoughts = count_at(raw, "promptTokenCount"), count_at(raw, "thoughtsTokenCount")
    if asked is None:
        return None
    return usage_of(
        input_tokens=asked + (count_at(raw, "toolUsePromptTokenCount") or 0),
        output_tokens=(count_at(raw, "candidatesTokenCount") or 0) + (thoughts or 0),
        cached_tokens=count_at(raw, "cachedContentTokenCount"),
        reasoning_tokens=thoughts,
    )
