"""Anthropic Messages: requests. The answers are read by messages_stream.py. Facts: docs/wire.md 1.3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from callboard.protocol import content
from callboard.protocol.errors import UsageError
from callboard.protocol.model import ModelRequest, Sampling, ToolChoiceMode
from callboard.protocol.tools import ToolDefinition
from callboard.providers import request_encoding as encoding
from callboard.providers.adapter import WireRequest
from callboard.providers.anthropic.messages_stream import ORIGIN, AnthropicDecoder
from callboard.providers.json_values import Body
from callboard.providers.tool_schema import ANTHROPIC, ANTHROPIC_ANSWER, ANTHROPIC_STRICT

API_VERSION: Final = "2023-06-01"
#: `max_tokens` is required. 8,192 is the smallest output limit among the models that are still served.
DEFAULT_MAX_TOKENS: Final = 8_192
#: Tokens of thinking for an effort, where a model wants a budget; the API's least is 1,024.
THINKING_BUDGETS: Final = {"minimal": 1_024, "low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 32_768}
#: Where the model decides itself how much to think, it takes these instead.
ADAPTIVE_EFFORTS: Final = {
    "minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max",
}  # fmt: skip
#: Claude 4.6 and later: `thinking: adaptive`. A date ("claude-opus-4-20250514") is no minor version.
_ADAPTIVE_MODEL: Final = re.compile(r"claude-[a-z]+-(?:4[-.](?:[6-9]|[1-9]\d)(?!\d)|[5-9](?!\d)|[1-9]\d(?!\d))")
#: Claude 4.7 and later: 400 "`temperature` is deprecated for this model".
_NO_SAMPLING_MODEL: Final = re.compile(r"claude-[a-z]+-(?:4[-.](?:[7-9]|[1-9]\d)(?!\d)|[5-9](?!\d)|[1-9]\d(?!\d))")

_TOOL_CHOICES: Final = {
    ToolChoiceMode.AUTO: "auto",
    ToolChoiceMode.NONE: "none",
    ToolChoiceMode.REQUIRED: "any",
    ToolChoiceMode.NAMED: "tool",
}


class Anthropic(encoding.HttpAdapter):
    """The adapter of the Messages API at one address with one credential."""

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        bearer: bool = False,
        betas: tuple[str, ...] = (),
        adaptive_thinking: bool | None = None,
        name: str = "anthropic",
    ) -> None:
        """`bearer`: the credential is an OAuth token or a gateway's.

        `adaptive_thinking`: does the model take `thinking: adaptive` in place of a budget? None: decided by its name.
        """
        own = {"authorization": f"Bearer {api_key}"} if bearer else {"x-api-key": api_key or ""}
        super().__init__(
            name,
            # With the version or without: gateways name their address either way.
            encoding.checked_url(base_url, "https://api.anthropic.com").removesuffix("/v1"),
            api_key,
            AnthropicDecoder,
            credential=(own if api_key else {}) | ({"anthropic-beta": ",".join(betas)} if betas else {}),
            headers={"anthropic-version": API_VERSION, **(headers or {})},
        )
        self._adaptive_thinking = adaptive_thinking

    def encode(self, request: ModelRequest, /) -> WireRequest:
        known = self._adaptive_thinking
        adaptive = bool(_ADAPTIVE_MODEL.search(request.model)) if known is None else known
        written = _MessagesEncoding(request, adaptive)
        return encoding.post(f"{self._url}/v1/messages", self.headers(request), written.body(), written.notes)


class _MessagesEncoding(encoding.TurnEncoding):
    def __init__(self, request: ModelRequest, adaptive: bool) -> None:
        super().__init__(request, _text, _image)
        self._adaptive = adaptive

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
            return _text(part.text) if part.text.strip() else None
        if own is None:
            return None
        if isinstance(part, content.ServerTool):
            return dict(own)
        if "data" in own:
            return {"type": "redacted_thinking", "data": own["data"]}
        if "signature" in own:
            return {"type": "thinking", "thinking": part.text, "signature": own["signature"]}
        return None

    # The rest of the body.

    def _tools(self) -> Body:
        request = self.request
        if not request.tools:
            return {}
        choice: Body = {"type": _TOOL_CHOICES[request.tool_choice.mode]}
        if request.tool_choice.mode is ToolChoiceMode.NAMED:
            choice["name"] = request.tool_choice.name
        if request.parallel_tool_calls is not None and request.tool_choice.mode is not ToolChoiceMode.NONE:
            choice["disable_parallel_tool_use"] = not request.parallel_tool_calls
        tools = [_tool(tool) for tool in self.adapted_tools(ANTHROPIC, ANTHROPIC_STRICT)]
        return {"tools": tools, "tool_choice": choice}

    def _sampling(self, sampling: Sampling) -> Body:
        if sampling.seed is not None:
            self.notes.append("seed: the API has none; left out")
        knobs = {"temperature": sampling.temperature, "top_p": sampling.top_p}
        sent: Body = {name: value for name, value in knobs.items() if value is not None}
        if _NO_SAMPLING_MODEL.search(self.request.model):
            self.notes += [f"{name}: this model takes none; left out" for name in sent]
            sent = {}
        return {**sent, "stop_sequences": list(sampling.stop)} if sampling.stop else sent

    def _thinking(self, sampling: Sampling) -> Body:
        effort = sampling.reasoning_effort
        if effort is None or effort == "none":
            return {"thinking": {"type": "disabled"}} if effort and self._adaptive else {}
        efforts: Mapping[str, object] = ADAPTIVE_EFFORTS if self._adaptive else THINKING_BUDGETS
        if effort not in efforts:
            raise UsageError(f"reasoning_effort {effort!r} is unknown here; use one of none, {', '.join(efforts)}")
        if self.request.tools and self.request.tool_choice.mode in (ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED):
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


def _text(text: str) -> Body:
    return {"type": "text", "text": text}


def _image(image: content.Image) -> Body:
    if image.url:
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    media_type, data = encoding.image_bytes(image)
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}
