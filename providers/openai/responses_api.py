"""OpenAI Responses: requests. The answers are read by responses_stream.py. Facts: docs/wire.md 1.2.

Always stateless: the whole history goes out, `store` is false, no item carries an id of the server's but reasoning with
its encrypted content. Calls go back as `function_call` items, all calls of a turn before their outputs.
"""

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
from callboard.providers.json_values import Body
from callboard.providers.openai.responses_stream import ResponsesDecoder
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
        reasoning: bool | None = None,
        name: str = "openai",
    ) -> None:
        """`reasoning`: does the model reason, so that its encrypted reasoning is asked for and sent back?

        None: decided by its name.
        """
        # Encrypted reasoning can be read only where it was written.
        self._origin = origin = f"{name}-responses"
        self._reasoning = reasoning
        super().__init__(
            name,
            encoding.checked_url(base_url, "https://api.openai.com/v1"),
            api_key,
            lambda head: ResponsesDecoder(head, origin),
            credential=encoding.bearer(api_key),
            headers=headers,
        )

    def encode(self, request: ModelRequest, /) -> WireRequest:
        known = self._reasoning
        reasons = bool(_REASONING_MODEL.search(request.model)) if known is None else known
        returns = not _PLAIN_MODEL.search(request.model) if known is None else known
        written = _ResponsesEncoding(request, self._origin, reasons, returns)
        return encoding.post(f"{self._url}/responses", self.headers(request), written.body(), written.notes)


class _ResponsesEncoding(encoding.Encoding):
    def __init__(self, request: ModelRequest, origin: str, reasons: bool, returns: bool) -> None:
        super().__init__(request)
        self._origin = origin
        self._reasons = reasons
        self._returns = returns
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
        if self._reasons:
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
            result = {"type": "function_call_output", "call_id": message.call_id, "output": message.content}
            self._input.append({**result})
        elif isinstance(message, content.SystemMessage):
            self._say("system", message.text)
        else:
            self._user(message)

    def _user(self, message: content.UserMessage) -> None:
        parts = message.parts
        # Two texts stay two parts: glued together, words would run into each other (docs/wire.md quirk 81).
        one_text = len(parts) <= 1 and all(isinstance(part, content.Text) for part in parts)
        self._say("user", message.text if one_text else [_user_part(part) for part in parts])

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
        if not self._returns or not own.get("encrypted_content"):
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

    def _sampling(self, sampling: Sampling) -> Body:
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
    return {"type": "input_image", "image_url": encoding.image_url(part), "detail": "auto"}
