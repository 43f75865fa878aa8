"""Anthropic Messages: requests, then answers. Facts: docs/wire.md 1.3, quirks 31-39 and 57."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import StringIO
from typing import ClassVar, Final

from callboard.protocol import content, model
from callboard.protocol.errors import UsageError
from callboard.protocol.limits import MAX_ARGUMENT_BYTES
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
from callboard.providers.json_values import Body, Json, JsonObject, loads
from callboard.providers.tool_schema import ANTHROPIC, ANTHROPIC_ANSWER, ANTHROPIC_STRICT

ORIGIN: Final = "anthropic"
API_VERSION: Final = "2023-06-01"
#: `max_tokens` is required. 8,192 is the smallest output limit among the models that are still served.
DEFAULT_MAX_TOKENS: Final = 8_192
#: Tokens of thinking for an effort, where a model wants a budget; the API's least is 1,024.
THINKING_BUDGETS: Final = {"minimal": 1_024, "low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 32_768}
#: Where the model decides itself how much to think, it takes these instead.
ADAPTIVE_EFFORTS: Final = {"minimal": "low"} | {effort: effort for effort in ("low", "medium", "high", "xhigh", "max")}
#: Claude 4.6 and later: `thinking: adaptive`. A date ("claude-opus-4-20250514") has no minor version.
_ADAPTIVE_MODEL: Final = re.compile(r"claude-[a-z]+-(?:4[-.](?:[6-9]|[1-9]\d)(?!\d)|[5-9](?!\d)|[1-9]\d(?!\d))")
#: Claude 4.7 and later: 400 "`temperature` is deprecated for this model".
_NO_SAMPLING_MODEL: Final = re.compile(r"claude-[a-z]+-(?:4[-.](?:[7-9]|[1-9]\d)(?!\d)|[5-9](?!\d)|[1-9]\d(?!\d))")
#: The modes that force a call, and the API's words for them.
_FORCED: Final = {ToolChoiceMode.REQUIRED: "any", ToolChoiceMode.NAMED: "tool"}


class Anthropic(encoding.HttpAdapter):
    """The adapter of the Messages API at one address with one credential."""

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        bearer: bool = False,
        name: str = "anthropic",
    ) -> None:
        """`bearer`: the credential is an OAuth token or a gateway's."""
        super().__init__(
            name,
            # With the version or without: gateways name their address either way.
            encoding.checked_url(base_url, "https://api.anthropic.com").removesuffix("/v1"),
            api_key,
            AnthropicDecoder,
            credential=encoding.bearer(api_key) if bearer or not api_key else {"x-api-key": api_key},
            headers={"anthropic-version": API_VERSION, **(headers or {})},
        )

    def encode(self, request: model.ModelRequest, /) -> WireRequest:
        written = _MessagesEncoding(request)
        body = self.envelope(written.body())
        return encoding.post(self.endpoint(request), self.headers(request), body, written.notes)

    def endpoint(self, request: model.ModelRequest) -> str:
        """Where the request goes. Clouds that host the API differ here, and in the envelope."""
        return f"{self._url}/v1/messages"

    def envelope(self, body: Body) -> Body:
        """What goes into the request of the API's own fields."""
        return body


class _MessagesEncoding(encoding.TurnEncoding):
    def __init__(self, request: model.ModelRequest) -> None:
        super().__init__(request)
        self._adaptive = _ADAPTIVE_MODEL.search(request.model) is not None

    def body(self) -> Body:
        request = self.request
        system, history = encoding.split_system(encoding.rewrite_call_ids(request.messages, encoding.ANTHROPIC_IDS))
        for message in history:
            self._message(message)
        if not self.turns:
            raise UsageError("Anthropic needs at least one message besides the instructions")
        body: Body = {"model": request.model, "max_tokens": request.sampling.max_output_tokens}
        if system.strip():
            body["system"] = system
        body["messages"] = [{"role": role, "content": blocks} for role, blocks in self.turns]
        body.update(self._tools())
        body.update(self._sampling(request.sampling))
        body.update(self._thinking(request.sampling))
        if adapted := self.answer_schema(ANTHROPIC_ANSWER):
            config = body.get("output_config")
            answer = {"format": {"type": "json_schema", "schema": adapted.schema}}
            body["output_config"] = {**config, **answer} if isinstance(config, dict) else answer
        body["max_tokens"] = body["max_tokens"] or DEFAULT_MAX_TOKENS
        if request.stream:
            body["stream"] = True
        return {**body, **request.options}

    # History.

    def _message(self, message: content.Message) -> None:
        if isinstance(message, content.AssistantMessage):
            self._assistant(message)
        elif isinstance(message, content.ToolMessage):
            result: Body = {"type": "tool_result", "tool_use_id": message.call_id, "content": message.content}
            self.say("user", [{**result, "is_error": True} if message.is_error else result])
        else:
            self.say_asked(message)

    def _assistant(self, message: content.AssistantMessage) -> None:
        blocks = [block for part in message.parts if (block := self._part(part)) is not None]
        kinds = {block["type"] for block in blocks}
        if kinds <= {"text", "tool_use"}:
            # Another provider's turn may hold text behind a call; here results must come directly behind the calls.
            blocks.sort(key=lambda block: block["type"] == "tool_use")
        self.say("assistant", blocks)

    def _part(self, part: content.AssistantPart) -> Body | None:
        own = encoding.own_replay(part.replay, ORIGIN)
        if isinstance(part, content.ToolCall):
            name, arguments = encoding.called_name(part), encoding.arguments_object(part)
            caller = {"caller": own["caller"]} if own and "caller" in own else {}
            return {"type": "tool_use", "id": part.call_id, "name": name, "input": arguments, **caller}
        if isinstance(part, content.Text):
            return self.text(part.text) if part.text.strip() else None
        if own is None:
            return None
        if not isinstance(part, content.Thinking):
            return dict(own)
        if "data" in own:
            return {"type": "redacted_thinking", "data": own["data"]}
        if "signature" in own:
            return {"type": "thinking", "thinking": part.text, "signature": own["signature"]}
        return None

    def text(self, text: str) -> Body:
        return {"type": "text", "text": text}

    def media(self, media: content.Media) -> Body:
        if not isinstance(media, content.Image):
            raise encoding.refused_part(media, self.request.model, "text, Image")
        if media.url:
            return {"type": "image", "source": {"type": "url", "url": media.url}}
        media_type, data = encoding.media_bytes(media)
        return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}

    # The rest of the body.

    def _tools(self) -> Body:
        request = self.request
        if not request.tools:
            return {}
        mode = request.tool_choice.mode
        choice: Body = {"type": _FORCED.get(mode, mode.value)}
        if mode is ToolChoiceMode.NAMED:
            choice["name"] = request.tool_choice.name
        if request.parallel_tool_calls is not None and mode is not ToolChoiceMode.NONE:
            choice["disable_parallel_tool_use"] = not request.parallel_tool_calls
        tools = [_tool(tool) for tool in self.adapted_tools(ANTHROPIC, ANTHROPIC_STRICT)]
        return {"tools": tools, "tool_choice": choice}

    def _sampling(self, sampling: model.Sampling) -> Body:
        if sampling.seed is not None:
            self.notes.append("seed: the API has none; left out")
        knobs = {"temperature": sampling.temperature, "top_p": sampling.top_p}
        sent: Body = {name: value for name, value in knobs.items() if value is not None}
        if _NO_SAMPLING_MODEL.search(self.request.model):
            self.notes += [f"{name}: this model takes none; left out" for name in sent]
            sent = {}
        return {**sent, "stop_sequences": list(sampling.stop)} if sampling.stop else sent

    def _thinking(self, sampling: model.Sampling) -> Body:
        effort = sampling.reasoning_effort
        if effort is None or effort == "none":
            return {"thinking": {"type": "disabled"}} if effort and self._adaptive else {}
        efforts: Mapping[str, object] = ADAPTIVE_EFFORTS if self._adaptive else THINKING_BUDGETS
        if effort not in efforts:
            raise UsageError(f"reasoning_effort {effort!r} is unknown here; use one of none, {', '.join(efforts)}")
        if self.request.tools and self.request.tool_choice.mode in _FORCED:
            raise UsageError("Anthropic cannot think when a tool call is forced: drop reasoning_effort or tool_choice")
        if sampling.temperature not in (None, 1, 1.0):
            raise UsageError("Anthropic takes no temperature with thinking: drop reasoning_effort or temperature")
        if self._adaptive:
            return {"thinking": {"type": "adaptive"}, "output_config": {"effort": ADAPTIVE_EFFORTS[effort]}}
        if self._in_unthought_tool_loop():
            self.notes.append("reasoning_effort: left out, since the open tool turn does not start with own thinking")
            return {}
        return self._budget(THINKING_BUDGETS[effort], sampling.max_output_tokens)

    def _budget(self, budget: int, max_tokens: int | None) -> Body:
        if max_tokens is None:
            max_tokens = DEFAULT_MAX_TOKENS + budget
        elif max_tokens <= budget:
            budget = max(max_tokens // 2, THINKING_BUDGETS["minimal"])
        if max_tokens <= budget:
            raise UsageError(f"max_output_tokens must be above {budget} to think, not {max_tokens}")
        return {"max_tokens": max_tokens, "thinking": {"type": "enabled", "budget_tokens": budget}}

    def _in_unthought_tool_loop(self) -> bool:
        """Are results of a turn being sent that another model (or this one without thinking) began? The API refuses to
        think on: "Expected `thinking` or `redacted_thinking`, but found `tool_use`"."""
        if len(self.turns) < 2 or self.turns[-1][1][0]["type"] != "tool_result":
            return False
        return self.turns[-2][1][0]["type"] not in ("thinking", "redacted_thinking")


def _tool(tool: ToolDefinition) -> Body:
    wire: Body = {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
    return {**wire, "strict": True} if tool.strict else wire


_FINISH_REASONS: Final = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "pause_turn": FinishReason.PAUSE,
    "refusal": FinishReason.REFUSAL,
}
#: Blocks that no tool of the provider's wrote; a client makes nothing of `fallback`.
_NO_TOOL_BLOCKS: Final = frozenset({"text", "thinking", "redacted_thinking", "fallback"})
#: After these the last call is as its model wrote it.
_UNBROKEN: Final = frozenset({FinishReason.STOP, FinishReason.TOOL_CALLS, FinishReason.PAUSE})
_Out = list[StreamEvent]


@dataclass(slots=True)
class _Block:
    """A content block that is being streamed, under its `index`."""

    kind: str
    ordinal: int
    """Its place among all blocks of this stream; indexes may be sparse or start at 1 (quirk 6)."""
    start: JsonObject
    pieces: StringIO = field(default_factory=StringIO)
    """Of a server tool's input."""
    size: int = 0
    """Of its input, in characters."""


class AnthropicDecoder(BaseDecoder):
    """Events of the Messages API. A call is complete at its content_block_stop, and only there."""

    def __init__(self, head: AnswerHead) -> None:
        super().__init__(head)
        self._blocks: dict[Json, _Block] = {}
        self._ordinal = 0
        self._ids: set[str] = set()
        self._started = False
        self._stop_reason = ""

    def on_json(self, event: str, document: JsonObject, out: _Out) -> None:
        # Proxies leave the event line out, or the type: whichever is there.
        kind = document.get("type")
        if (handler := self._EVENTS.get(kind if isinstance(kind, str) else event)) is not None:
            handler(self, document, out)

    def on_body(self, document: Json, out: _Out) -> None:
        document = object_of(document)
        if "content" not in document:
            raise KeyError("content")
        self._message_start({"message": document}, out)
        self._message_stop(document, out)

    def on_end(self, out: _Out, marked: bool) -> None:
        # Some proxies close with [DONE] in place of message_stop; a bare end of the body is a cut (quirk 23).
        if marked and self._stop_reason:
            self._message_stop({}, out)
        else:
            self.fail_truncated(out)

    @property
    def _cut(self) -> bool:
        """Was the last call broken off? A reason that we do not know may mean that (quirk 69)."""
        return self._stop_reason != "" and _FINISH_REASONS.get(self._stop_reason) not in _UNBROKEN

    def _message_start(self, document: JsonObject, out: _Out) -> None:
        message = object_at(document, "message")
        if self._started:
            # A proxy spliced a second answer in: the aborted one must not be run (quirk 37).
            self.calls.restart()
            self._blocks.clear()
            self._ids.clear()
            self.usage.clear()
            self._stop_reason = ""
            out.append(model.Restarted("a second message_start"))
        self._started = True
        self.calls.seed = text_at(message, "id")
        self.model = text_at(message, "model")
        self._note_end(message, message)
        # All blocks of a whole answer; newer servers may also begin a stream with whole blocks (quirk 68).
        blocks = objects_at(message, "content")
        for index, block in enumerate(blocks, 1):
            self._block_start({"content_block": block}, out)
            if index == len(blocks) and self._cut and block["type"] == "tool_use":
                # Arguments that the length limit cut off look finished in a whole answer (quirk 57).
                self.calls.delta(out, index=self._ordinal - 1, arguments=block.get("input"))
            else:
                self._block_stop({}, out)

    def _block_start(self, document: JsonObject, out: _Out) -> None:
        start = object_of(document.get("content_block"))
        kind = text_of(start["type"])
        block = _Block(kind, self._ordinal, start)
        self._ordinal += 1
        self._blocks[document.get("index")] = block
        self.hold()
        self.calls.settle(out)
        if kind == "tool_use":
            self._call_start(block, out)
        elif kind == "redacted_thinking":
            out.append(ThinkingDelta("", block.ordinal, content.Replay(ORIGIN, {"data": text_of(start["data"])})))
        elif kind == "text":
            self._text_delta(block, {"text": start.get("text")}, out)
        elif kind == "thinking":
            self._thinking_delta(block, {"thinking": start.get("thinking")}, out)
            if start.get("signature"):
                self._signature_delta(block, start, out)

    def _call_start(self, block: _Block, out: _Out) -> None:
        call_id, name = text_at(block.start, "id"), text_of(block.start["name"])
        # Each block is a call of its own, even where a proxy repeats an id.
        caller = object_at(block.start, "caller") or {"type": "direct"}
        # A call that the provider's own code execution makes must go back with its caller.
        replay = None if caller["type"] == "direct" else content.Replay(ORIGIN, {"caller": caller})
        sent_id = "" if call_id in self._ids else call_id
        self.calls.delta(out, index=block.ordinal, id=sent_id, name=name, replay=replay)
        self._ids.add(call_id)

    def _block_delta(self, document: JsonObject, out: _Out) -> None:
        block = self._blocks.get(document.get("index"))
        delta = object_at(document, "delta")
        handler = self._DELTAS.get(text_at(delta, "type"))
        if block is not None and handler is not None:
            handler(self, block, delta, out)

    def _text_delta(self, block: _Block, delta: JsonObject, out: _Out) -> None:
        if text := text_at(delta, "text"):
            out.append(TextDelta(text, block.ordinal))

    def _thinking_delta(self, block: _Block, delta: JsonObject, out: _Out) -> None:
        if text := text_at(delta, "thinking"):
            out.append(ThinkingDelta(text, block.ordinal))

    def _signature_delta(self, block: _Block, delta: JsonObject, out: _Out) -> None:
        out.append(ThinkingDelta("", block.ordinal, content.Replay(ORIGIN, {"signature": text_of(delta["signature"])})))

    def _input_delta(self, block: _Block, delta: JsonObject, out: _Out) -> None:
        text = text_at(delta, "partial_json")
        block.size += len(text)
        if block.kind == "tool_use":
            self.calls.delta(out, index=block.ordinal, arguments=text)
        elif block.size > MAX_ARGUMENT_BYTES:
            raise ValueError(f"the input of a {block.kind} block is longer than {MAX_ARGUMENT_BYTES} characters")
        else:
            # A server tool streams its input too; it is shown whole when its block ends, and is not our call (34).
            block.pieces.write(text)

    def _compaction_delta(self, block: _Block, delta: JsonObject, out: _Out) -> None:
        self.hold()
        block.start = {**block.start, **{key: value for key, value in delta.items() if key != "type"}}

    def _block_stop(self, document: JsonObject, out: _Out) -> None:
        block = self._blocks.pop(document.get("index"), None)
        if block is None:
            return
        if block.kind == "tool_use":
            given = block.start.get("input")
            if given and not block.size:
                # Programmatic tool calling: the input comes with the start, and no delta after it (quirk 32).
                self.calls.delta(out, index=block.ordinal, arguments=given)
            self.calls.complete(out, index=block.ordinal)
        elif block.kind not in _NO_TOOL_BLOCKS:
            out.append(model.ServerToolEvent(block.kind, content.Replay(ORIGIN, _server_block(block))))

    def _message_delta(self, document: JsonObject, out: _Out) -> None:
        self._note_end(object_at(document, "delta"), document)

    def _note_end(self, delta: JsonObject, holder: JsonObject) -> None:
        # Cumulative, field by field: the last value but null wins, nothing is added up (quirk 36).
        usage = fields_at(holder, "usage")
        self.usage.update((key, value) for key, value in usage.items() if value is not None)
        self._stop_reason = text_at(delta, "stop_reason") or self._stop_reason

    def _message_stop(self, document: JsonObject, out: _Out) -> None:
        if not self._cut:
            self.calls.settle(out)
        reason = _FINISH_REASONS.get(self._stop_reason, FinishReason.OTHER)
        if self.calls.count and reason in (FinishReason.STOP, FinishReason.OTHER):
            reason = FinishReason.TOOL_CALLS
        self.end(out, model.Done(reason, self._stop_reason, _usage(self.usage), dict(self.usage), self.model))

    _EVENTS: ClassVar[Mapping[str, Callable[[AnthropicDecoder, JsonObject, _Out], None]]] = {
        "message_start": _message_start,
        "content_block_start": _block_start,
        "content_block_delta": _block_delta,
        "content_block_stop": _block_stop,
        "message_delta": _message_delta,
        "message_stop": _message_stop,
        "error": BaseDecoder.fail_payload,
    }
    _DELTAS: ClassVar[Mapping[str, Callable[[AnthropicDecoder, _Block, JsonObject, _Out], None]]] = {
        "text_delta": _text_delta,
        "thinking_delta": _thinking_delta,
        "signature_delta": _signature_delta,
        "input_json_delta": _input_delta,
        "compaction_delta": _compaction_delta,
    }


def _server_block(block: _Block) -> JsonObject:
    """The whole block of a server tool, as it must go back."""
    text = block.pieces.getvalue()
    try:
        return {**block.start, "input": loads(text)} if text else block.start
    except ValueError:
        return block.start  # cut off by the length limit: no reason to lose the answer around it (quirk 64)


def _usage(raw: JsonObject) -> model.Usage | None:
    """Anthropic's input_tokens leave the cache out: the whole input is the sum of three (docs/wire.md 1.3)."""
    read, written = count_at(raw, "cache_read_input_tokens"), count_at(raw, "cache_creation_input_tokens")
    fresh = count_at(raw, "input_tokens")
    return usage_of(
        input_tokens=None if fresh is None else fresh + (read or 0) + (written or 0),
        output_tokens=count_at(raw, "output_tokens"),
        cached_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=count_at(fields_at(raw, "output_tokens_details"), "thinking_tokens"),
    )
