"""OpenAI Responses: requests, then answers. Facts: docs/wire.md 1.2, quirks 12-16 and 56.

Always stateless: the whole history goes out, `store` is false, no item carries an id of the server's but reasoning with
its encrypted content. Calls go back as `function_call` items, all calls of a turn before their outputs.

Of an answer everything is keyed by `output_index` (and `content_index` or `summary_index`): GitHub Copilot gives each
event of one item another `item_id` (quirk 12). What `.done` events and the final response repeat is emitted only as far
as it has not come yet (13, 14).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

from callboard.protocol import content, model
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.model import FinishReason, StreamEvent, TextDelta, ThinkingDelta, ToolChoiceMode
from callboard.protocol.tools import ToolDefinition
from callboard.providers import request_encoding as encoding
from callboard.providers.adapter import WireRequest
from callboard.providers.base_decoder import (
    AnswerHead,
    BaseDecoder,
    count_at,
    fields_at,
    index_at,
    object_at,
    object_of,
    objects_at,
    text_at,
    text_of,
    usage_of,
)
from callboard.providers.http_errors import make_error
from callboard.providers.json_values import Body, Json, JsonObject
from callboard.providers.tool_schema import OPENAI, OPENAI_STRICT

#: A call_id longer than 64 is refused, and an output is paired with its call by it alone: it must not repeat.
RESPONSES_IDS: Final = encoding.CallIdRule(re.compile(r"[\x21-\x7e]{1,64}"))
#: What came from a model must go back to it, under any name of a deployment (docs/wire.md quirk 72): to all but those
#: that are known to refuse it.
_PLAIN_MODEL: Final = re.compile(r"(?:^|/)(?:chatgpt|gpt-[34]|gpt-\d.*chat)")
#: Others answer 400 "Encrypted content is not supported with this model".
_REASONING_MODEL: Final = re.compile(r"(?:^|/)(?:o\d|gpt-(?:[5-9]|\d\d)(?!.*chat)|codex|gpt-oss|computer-use)")


class OpenAIResponses(encoding.HttpAdapter):
    """The adapter of the Responses API at one address with one credential."""

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        name: str = "openai",
    ) -> None:
        # Encrypted reasoning can be read only where it was written.
        self._origin = origin = f"{name}-responses"
        super().__init__(
            name,
            encoding.checked_url(base_url, "https://api.openai.com/v1"),
            api_key,
            lambda head: ResponsesDecoder(head, origin),
            headers=headers,
        )

    def encode(self, request: model.ModelRequest, /) -> WireRequest:
        written = _ResponsesEncoding(request, self._origin)
        return encoding.post(f"{self._url}/responses", self.headers(request), written.body(), written.notes)


class _ResponsesEncoding(encoding.Encoding):
    def __init__(self, request: model.ModelRequest, origin: str) -> None:
        super().__init__(request)
        self._origin = origin
        self._input: list[Body] = []

    def body(self) -> Body:
        request = self.request
        system, history = encoding.split_system(encoding.rewrite_call_ids(request.messages, RESPONSES_IDS))
        for message in history:
            self._message(message)
        if not self._input:
            raise UsageError("the Responses API needs at least one message besides the instructions")
        body: Body = {"model": request.model, "input": self._input, "store": False}
        if system:
            body["instructions"] = system
        if _REASONING_MODEL.search(request.model):
            body["include"] = ["reasoning.encrypted_content"]
        body.update(self._tools())
        body.update(self._sampling(request.sampling))
        if adapted := self.answer_schema(OPENAI_STRICT):
            answer = {"type": "json_schema", "name": "answer", "schema": adapted.schema, "strict": adapted.strict}
            body["text"] = {"format": answer}
        if request.stream:
            body["stream"] = True
        return {**body, **request.options}

    # History.

    def _say(self, role: str, said: object, **more: object) -> None:
        self._input.append({"type": "message", "role": role, "content": said, **more})

    def _message(self, message: content.Message) -> None:
        if isinstance(message, content.AssistantMessage):
            self._assistant(message)
        elif isinstance(message, content.ToolMessage):
            self._input.append({"type": "function_call_output", "call_id": message.call_id, "output": message.content})
        elif isinstance(message, content.SystemMessage):
            self._say("system", message.text)
        else:
            self._say("user", encoding.user_content(message, _user_part))

    def _assistant(self, message: content.AssistantMessage) -> None:
        start = len(self._input)
        for part in message.parts:
            if isinstance(part, content.Text):
                self._text(part, start)
            elif (item := self._item(part)) is not None:
                self._input.append(item)
        # "Item 'rs_..' of type 'reasoning' was provided without its required following item": a cut turn's.
        while len(self._input) > start and self._input[-1]["type"] == "reasoning":
            self._input.pop()

    def _text(self, part: content.Text, start: int) -> None:
        if not part.text:
            return
        own = encoding.own_replay(part.replay, self._origin) or {}
        more = {"phase": own["phase"]} if "phase" in own else {}
        last = self._input[-1] if len(self._input) > start else {}
        if last.get("role") == "assistant" and last.get("phase") == more.get("phase"):
            last["content"] = f"{last['content']}{part.text}"
        else:
            self._say("assistant", part.text, **more)

    def _item(self, part: content.AssistantPart) -> Body | None:
        if isinstance(part, content.ToolCall):
            call = {"type": "function_call", "call_id": part.call_id, "name": encoding.called_name(part)}
            return {**call, "arguments": encoding.sent_arguments(part)}
        own = encoding.own_replay(part.replay, self._origin)
        if own is None:
            return None
        # Without `store` the server remembers no item, so only one that carries its content can go back.
        if _PLAIN_MODEL.search(self.request.model) or not own.get("encrypted_content"):
            if isinstance(part, content.ServerTool):
                self.notes.append(f"{part.kind}: an item without its encrypted content cannot go back; left out")
            return None
        if isinstance(part, content.ServerTool):
            return dict(own)
        return {**own, "type": "reasoning", "summary": own.get("summary") or []}

    # The rest of the body.

    def _tools(self) -> Body:
        request, choice = self.request, self.request.tool_choice
        if not request.tools:
            return {}
        named = {"type": "function", "name": choice.name}
        tools: Body = {
            "tools": [_tool(tool) for tool in self.adapted_tools(OPENAI, OPENAI_STRICT)],
            "tool_choice": named if choice.mode is ToolChoiceMode.NAMED else choice.mode.value,
        }
        if request.parallel_tool_calls is not None:
            tools["parallel_tool_calls"] = request.parallel_tool_calls
        return tools

    def _sampling(self, sampling: model.Sampling) -> Body:
        if sampling.stop:
            raise UsageError("the Responses API takes no stop sequences; use the openai-chat adapter, or drop `stop`")
        if sampling.seed is not None:
            self.notes.append("seed: the API has none; left out")
        effort = sampling.reasoning_effort
        knobs = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_output_tokens": sampling.max_output_tokens,
            "reasoning": {"effort": effort} if effort is not None else None,
        }
        return {name: value for name, value in knobs.items() if value is not None}


def _tool(tool: ToolDefinition) -> Body:
    wire = {"type": "function", "name": tool.name, "description": tool.description}
    return {**wire, "parameters": tool.parameters, "strict": tool.strict}


def _user_part(part: content.UserPart) -> Body:
    if isinstance(part, content.Text):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, content.Image):
        return {"type": "input_image", "image_url": encoding.data_url(part), "detail": "auto"}
    raise encoding.refused_part(part, "Responses", "text, Image")


_INCOMPLETE: Final = {"max_output_tokens": FinishReason.LENGTH, "content_filter": FinishReason.CONTENT_FILTER}
_SUMMARY, _REASONING, _TEXT = "summary", "reasoning", "text"
_Kind = type[TextDelta | ThinkingDelta]
_Out = list[StreamEvent]


class _TextEvent(NamedTuple):
    """What an event says of a text: which one of its item it is, and the field with all of it ("": a delta)."""

    slot: str
    place: str
    kind: _Kind
    whole: str = ""
    refusal: bool = False


_TEXTS: Final[Mapping[str, _TextEvent]] = {
    "response.output_text.delta": _TextEvent(_TEXT, "content_index", TextDelta),
    "response.output_text.done": _TextEvent(_TEXT, "content_index", TextDelta, "text"),
    "response.refusal.delta": _TextEvent(_TEXT, "content_index", TextDelta, refusal=True),
    "response.refusal.done": _TextEvent(_TEXT, "content_index", TextDelta, "refusal", True),
    "response.reasoning_summary_text.delta": _TextEvent(_SUMMARY, "summary_index", ThinkingDelta),
    "response.reasoning_summary_text.done": _TextEvent(_SUMMARY, "summary_index", ThinkingDelta, "text"),
    "response.reasoning_text.delta": _TextEvent(_REASONING, "content_index", ThinkingDelta),
    "response.reasoning_text.done": _TextEvent(_REASONING, "content_index", ThinkingDelta, "text"),
}


@dataclass(slots=True)
class _SentText:
    """One text that is being written."""

    block: int
    sent: int = 0
    """Characters emitted so far."""


@dataclass(slots=True)
class _Item:
    kind: str
    block: int = -1
    """Of the text that was written last in it."""
    arguments_sent: int = 0
    done: bool = False


class ResponsesDecoder(BaseDecoder):
    """Events of the Responses API. `origin` marks what must go back to where it came from."""

    def __init__(self, head: AnswerHead, origin: str) -> None:
        super().__init__(head)
        self._origin = origin
        self._items: dict[Hashable, _Item] = {}
        self._prose: dict[Hashable, _SentText] = {}
        self._owners: dict[str, Hashable] = {}
        """Which item has a call_id: each item is a call of its own, even where a server repeats one."""
        self._refused = False

    def on_json(self, event: str, document: JsonObject, out: _Out) -> None:
        # Some servers leave the event line out, none the type.
        kind = text_at(document, "type") or event
        if (text := _TEXTS.get(kind)) is not None:
            self._text_event(document, text, out)
        elif (handler := self._EVENTS.get(kind)) is not None:
            handler(self, document, out)
        elif "error" in document and "type" not in document:
            self.fail_payload(document, out)

    def on_body(self, document: Json, out: _Out) -> None:
        document = object_of(document)
        status = text_at(document, "status") or "completed"
        if status in ("queued", "in_progress"):
            why = f"The response is still {status}: it was asked for in background mode."
            self.fail(out, make_error(ErrorKind.OTHER, why, code=status))
            return
        if "output" not in document:
            raise KeyError("output")
        self._created({"response": document}, out)
        for index, item in enumerate(objects_at(document, "output")):
            self._item_done({"output_index": index, "item": item}, out)
        self._ENDS.get(f"response.{status}", ResponsesDecoder._completed)(self, {"response": document}, out)

    def on_end(self, out: _Out, marked: bool) -> None:
        self.fail_truncated(out)

    # Items.

    def _created(self, document: JsonObject, out: _Out) -> None:
        self.calls.seed = text_at(object_at(document, "response"), "id") or self.calls.seed

    def _item(self, document: JsonObject, kind: str) -> _Item:
        key = _key(document)
        item = self._items.get(key)
        if item is None:
            self.hold()
            item = self._items[key] = _Item(kind)
        return item

    def _item_added(self, document: JsonObject, out: _Out) -> None:
        item = object_of(document.get("item"))
        kind = text_of(item["type"])
        self.calls.settle(out)
        self._item(document, kind).kind = kind
        if kind == "function_call":
            self._name_call(_key(document), item, out)

    def _name_call(self, key: Hashable, item: JsonObject, out: _Out) -> None:
        # The arguments in here come again, by deltas or by the item's end.
        call_id = text_at(item, "call_id") or text_at(item, "id")
        owned = self._owners.setdefault(call_id, key) == key
        self.calls.delta(out, index=key, id=call_id if owned else "", name=text_at(item, "name"))

    def _item_done(self, document: JsonObject, out: _Out) -> None:
        item = object_of(document.get("item"))
        kind = text_of(item["type"])
        state = self._item(document, kind)
        if state.done:
            return
        state.done, state.kind = True, kind
        self.calls.settle(out)
        if (finish := self._ITEM_ENDS.get(kind)) is not None:
            finish(self, document, state, out)
        else:
            out.append(model.ServerToolEvent(kind, content.Replay(self._origin, item)))

    def _message_done(self, document: JsonObject, state: _Item, out: _Out) -> None:
        item = object_at(document, "item")
        for index, part in enumerate(objects_at(item, "content")):
            text = part.get("text") if part.get("type") == "output_text" else part.get("refusal")
            self._refused = self._refused or part.get("type") == "refusal"
            self._rest(document, (_TEXT, index), TextDelta, text, out)
        if (phase := item.get("phase")) and state.block >= 0:
            # Later requests must carry it (openai SDK: "dropping it can degrade performance").
            out.append(TextDelta("", state.block, content.Replay(self._origin, {"phase": phase})))

    def _reasoning_done(self, document: JsonObject, state: _Item, out: _Out) -> None:
        item = object_at(document, "item")
        for slot, field in ((_SUMMARY, "summary"), (_REASONING, "content")):
            for index, part in enumerate(objects_at(item, field)):
                self._rest(document, (slot, index), ThinkingDelta, part.get("text"), out)
        block = state.block if state.block >= 0 else self._open(document, (_SUMMARY, 0), ThinkingDelta).block
        kept = {key: value for key, value in item.items() if key != "status" and value is not None}
        out.append(ThinkingDelta("", block, content.Replay(self._origin, kept)))

    def _call_done(self, document: JsonObject, state: _Item, out: _Out) -> None:
        item, key = object_at(document, "item"), _key(document)
        self._name_call(key, item, out)
        self._arguments_rest(key, state, item.get("arguments"), out)
        if item.get("status") != "incomplete":
            self.calls.complete(out, index=key)

    # Texts.

    def _open(self, document: JsonObject, slot: tuple[str, int], kind: _Kind) -> _SentText:
        key = (_key(document), slot)
        prose = self._prose.get(key)
        if prose is None:
            prose = self._prose[key] = _SentText(len(self._prose))
            self._item(document, "message" if kind is TextDelta else "reasoning").block = prose.block
        return prose

    def _text_event(self, document: JsonObject, text: _TextEvent, out: _Out) -> None:
        slot = text.slot, index_at(document, text.place)
        self._refused = self._refused or text.refusal
        if text.whole:
            self._rest(document, slot, text.kind, document.get(text.whole), out)
        elif delta := text_at(document, "delta"):
            prose = self._open(document, slot, text.kind)
            prose.sent += len(delta)
            out.append(text.kind(delta, prose.block))

    def _rest(self, document: JsonObject, slot: tuple[str, int], kind: _Kind, whole: Json, out: _Out) -> None:
        """The part of `whole` that has not been emitted by deltas."""
        text = text_of(whole)
        known = self._prose.get((_key(document), slot))
        if len(text) > (known.sent if known else 0):
            prose = self._open(document, slot, kind)
            out.append(kind(text[prose.sent :], prose.block))
            prose.sent = len(text)

    # Arguments.

    def _arguments_delta(self, document: JsonObject, out: _Out) -> None:
        text = text_at(document, "delta")
        self._item(document, "function_call").arguments_sent += len(text)
        self.calls.delta(out, index=_key(document), arguments=text)

    def _arguments_done(self, document: JsonObject, out: _Out) -> None:
        key = _key(document)
        self._arguments_rest(key, self._item(document, "function_call"), document.get("arguments"), out)

    def _arguments_rest(self, key: Hashable, state: _Item, whole: Json, out: _Out) -> None:
        text = text_of(whole)
        if len(text) > state.arguments_sent:
            self.calls.delta(out, index=key, arguments=text[state.arguments_sent :])
            state.arguments_sent = len(text)

    # Ends.

    def _completed(self, document: JsonObject, out: _Out) -> None:
        response = object_of(document["response"])
        self._catch_up(response, out)
        for key, item in self._items.items():
            if item.kind == "function_call" and not item.done:
                self.calls.complete(out, index=key)
        self.calls.settle(out)
        reason = FinishReason.STOP
        if self.calls.count:
            reason = FinishReason.TOOL_CALLS
        elif self._refused:
            reason = FinishReason.REFUSAL
        self._done(reason, text_at(response, "status") or "completed", response, out)

    def _incomplete(self, document: JsonObject, out: _Out) -> None:
        response = object_of(document["response"])
        self._catch_up(response, out)
        why = text_at(object_at(response, "incomplete_details"), "reason")
        self._done(_INCOMPLETE.get(why, FinishReason.OTHER), why or "incomplete", response, out)

    def _failed(self, document: JsonObject, out: _Out) -> None:
        error = object_of(document["response"]).get("error")
        if error:
            self.fail_payload({"error": error}, out)
        else:
            self.fail(out, make_error(ErrorKind.SERVER, "The response failed, and the server did not say why."))

    def _cancelled(self, document: JsonObject, out: _Out) -> None:
        self.fail(out, make_error(ErrorKind.CANCELLED, "The response was cancelled at the server."))

    def _catch_up(self, response: JsonObject, out: _Out) -> None:
        """Items that only the final response has, or whose end the stream left out."""
        nothing_came = not self._items
        for index, item in enumerate(objects_at(response, "output")):
            state = self._items.get(index)
            if nothing_came or (state is not None and state.kind == item.get("type")):
                self._item_done({"output_index": index, "item": item}, out)

    def _done(self, reason: FinishReason, raw_reason: str, response: JsonObject, out: _Out) -> None:
        usage = fields_at(response, "usage")
        self.end(out, model.Done(reason, raw_reason, _usage(usage), usage, text_at(response, "model")))

    _ENDS: ClassVar[Mapping[str, Callable[[ResponsesDecoder, JsonObject, _Out], None]]] = {
        "response.completed": _completed,
        "response.incomplete": _incomplete,
        "response.failed": _failed,
        "response.cancelled": _cancelled,
    }
    _EVENTS: ClassVar[Mapping[str, Callable[[ResponsesDecoder, JsonObject, _Out], None]]] = {
        "response.created": _created,
        "response.in_progress": _created,
        "response.queued": _created,
        "response.output_item.added": _item_added,
        "response.output_item.done": _item_done,
        "response.function_call_arguments.delta": _arguments_delta,
        "response.function_call_arguments.done": _arguments_done,
        "error": BaseDecoder.fail_payload,
        **_ENDS,
    }
    _ITEM_ENDS: ClassVar[Mapping[str, Callable[[ResponsesDecoder, JsonObject, _Item, _Out], None]]] = {
        "message": _message_done,
        "reasoning": _reasoning_done,
        "function_call": _call_done,
    }


def _key(document: JsonObject) -> Hashable:
    """What the events of one item have in common. llama.cpp sends no output_index: there the item's id serves."""
    index = document.get("output_index")
    if isinstance(index, int):
        return index
    return text_at(document, "item_id") or text_at(object_at(document, "item"), "id")


def _usage(raw: JsonObject) -> model.Usage | None:
    """Input includes the cached tokens already, output the reasoning."""
    read, written = fields_at(raw, "input_tokens_details"), fields_at(raw, "output_tokens_details")
    return usage_of(
        input_tokens=count_at(raw, "input_tokens"),
        output_tokens=count_at(raw, "output_tokens"),
        cached_tokens=count_at(read, "cached_tokens"),
        cache_write_tokens=count_at(read, "cache_write_tokens"),
        reasoning_tokens=count_at(written, "reasoning_tokens"),
    )
