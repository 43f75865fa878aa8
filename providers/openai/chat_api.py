"""OpenAI Chat Completions, and every server that speaks it: the request side. The answer side is chat_stream.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from callboard.protocol import content
from callboard.protocol.model import ModelRequest, Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.tools import ToolDefinition
from callboard.providers import request_encoding as encoding
from callboard.providers.adapter import WireRequest
from callboard.providers.json_values import Body
from callboard.providers.openai.chat_stream import ChatDecoder
from callboard.providers.openai.dialects import OPENAI, ChatDialect
from callboard.providers.tool_schema import OPENAI as OPENAI_SCHEMA
from callboard.providers.tool_schema import OPENAI_STRICT, is_strict

_MODES: Final = {ToolChoiceMode.AUTO: "auto", ToolChoiceMode.NONE: "none", ToolChoiceMode.REQUIRED: "required"}


class OpenAIChat(encoding.HttpAdapter):
    """The adapter of one Chat Completions server."""

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        dialect: ChatDialect = OPENAI,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.dialect = dialect
        super().__init__(
            dialect.name,
            # Decoding needs no address: an adapter without one can read what was recorded, and encodes nothing.
            dialect.address(base_url) if base_url or dialect.base_url else "",
            api_key,
            lambda head: ChatDecoder(head, dialect),
            credential=encoding.bearer(api_key),
            headers={**dialect.extra_headers, **(headers or {})},
            family=dialect.family,
        )

    def encode(self, request: ModelRequest, /) -> WireRequest:
        url = self._url or self.dialect.address(None)
        encoded = encoding.Encoding(request)
        tools = encoded.adapted_tools(OPENAI_SCHEMA, OPENAI_STRICT)
        body = {**self.body(replace(request, tools=tools)), **request.options}
        return encoding.post(f"{url}/chat/completions", self.headers(request), body, encoded.notes)

    def body(self, request: ModelRequest) -> Body:
        """The request's fields, without the caller's `options`; variants change and add."""
        dialect = self.dialect
        messages = encoding.rewrite_call_ids(request.messages, dialect.call_ids)
        body: Body = {"model": request.model, "messages": [self.message(message) for message in messages]}
        if request.stream:
            body["stream"] = True
            if dialect.stream_usage:
                body["stream_options"] = {"include_usage": True}
        if request.tools:
            body["tools"] = [_tool(tool) for tool in request.tools]
            body |= _tool_choice(request.tool_choice)
            if request.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = request.parallel_tool_calls
        if request.response_schema is not None:
            body["response_format"] = _response_format(request.response_schema)
        return body | self.sampling(request.sampling)

    def sampling(self, sampling: Sampling) -> Body:
        """The knobs that were set."""
        knobs = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self.dialect.max_tokens_field: sampling.max_output_tokens,
            "stop": list(sampling.stop) or None,
            self.dialect.seed_field: sampling.seed,
            "reasoning_effort": sampling.reasoning_effort,
        }
        return {name: value for name, value in knobs.items() if value is not None}

    def message(self, message: content.Message) -> Body:
        """One message of the history."""
        if isinstance(message, content.AssistantMessage):
            return self.assistant(message)
        if isinstance(message, content.ToolMessage):
            return {"role": "tool", "tool_call_id": message.call_id, "content": message.content}
        if isinstance(message, content.SystemMessage):
            return {"role": "system", "content": message.text}
        return {"role": "user", "content": _user_content(message)}

    def assistant(self, message: content.AssistantMessage) -> Body:
        """A turn of the model's. Thinking goes back only where this server wants its own back."""
        calls = [self._call(call) for call in message.tool_calls]
        body: Body = {"role": "assistant", "content": message.text or (None if calls else "")}
        if calls:
            body["tool_calls"] = calls
        field = self.dialect.reasoning_replay_field
        thinking = "".join(p.text for p in message.parts if isinstance(p, content.Thinking) and self._is_ours(p))
        if field and thinking:
            body[field] = thinking
        for part in message.parts:
            if isinstance(part, content.Text):
                body |= encoding.own_replay(part.replay, self.name) or {}
        return body

    def _is_ours(self, part: content.Thinking) -> bool:
        return part.replay is not None and part.replay.origin == self.name

    def _call(self, call: content.ToolCall) -> Body:
        function = {"name": encoding.called_name(call), "arguments": encoding.sent_arguments(call)}
        replay = encoding.own_replay(call.replay, self.name) or {}
        return {"id": call.call_id, "type": "function", "function": function, **replay}


def _tool(tool: ToolDefinition) -> Body:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function | ({"strict": True} if tool.strict else {})}


def _tool_choice(choice: ToolChoice) -> Body:
    if choice.mode is ToolChoiceMode.NAMED:
        return {"tool_choice": {"type": "function", "function": {"name": choice.name}}}
    return {} if choice.mode is ToolChoiceMode.AUTO else {"tool_choice": _MODES[choice.mode]}


def _response_format(schema: Mapping[str, object]) -> Body:
    # strict is refused for schemas outside OpenAI's subset; without it the schema is a strong hint.
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": is_strict(schema)}}


def _user_content(message: content.UserMessage) -> str | list[Body]:
    # Two texts stay two parts: glued together, words would run into each other (docs/wire.md quirk 81).
    if len(message.parts) <= 1 and not any(isinstance(part, content.Image) for part in message.parts):
        return message.text
    return [_user_part(part) for part in message.parts]


def _user_part(part: content.UserPart) -> Body:
    if isinstance(part, content.Text):
        return {"type": "text", "text": part.text}
    return {"type": "image_url", "image_url": {"url": encoding.image_url(part)}}
