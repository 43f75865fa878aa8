"""Chat Completions, and what OpenRouter and GitHub Copilot do differently (docs/wire.md 1.1, 1.5, 1.6)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

from callboard.actors.testing.wire_double.script import Fault, Tokens
from callboard.actors.testing.wire_double.wire_api import (
    CREATED,
    SIGNATURE,
    Document,
    Event,
    ResolvedCall,
    ResolvedTurn,
    Said,
    Speaker,
    WireApi,
    objects_in,
    sse,
    user_said,
)

#: status -> (type, code) of OpenAI's error object. Other statuses: invalid_request_error below 500, else server_error.
_ERRORS: Final[dict[int, tuple[str, str | None]]] = {
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
    503: ("server_error", "service_unavailable"),
}
_SPEAKERS: Final = {"user": Speaker.USER, "assistant": Speaker.MODEL}


def openai_error(fault: Fault) -> Document:
    """The error object of both OpenAI APIs."""
    kind, code = _ERRORS.get(fault.status, ("invalid_request_error" if fault.status < 500 else "server_error", None))
    return {"message": fault.message, "type": kind, "param": None, "code": code}


class ChatApi(WireApi):
    """Chat Completions as OpenAI sends it, with the thinking in `reasoning_content` as DeepSeek does."""

    def events(self, turn: ResolvedTurn) -> Iterator[Event]:
        yield self._event(turn, {"role": "assistant", "content": "" if turn.text else None}, content=False)
        for piece in turn.thinking_pieces():
            yield self._event(turn, self.thinking(piece))
        for piece in turn.text_pieces():
            yield self._event(turn, {"content": piece})
        yield from self._calls(turn)
        yield from self.closing(turn)

    def _calls(self, turn: ResolvedTurn) -> Iterator[Event]:
        """All calls begin; then their arguments come in turns, a piece of each call."""
        choice = self.choice_of_calls(turn)
        for index, call in enumerate(turn.calls):
            function = {"name": call.name, "arguments": ""}
            begun = {"index": index, "id": call.id, "type": "function", "function": function}
            yield self._event(turn, {"tool_calls": [begun]}, choice=choice)
        for pieces in itertools.zip_longest(*(turn.argument_pieces(call) for call in turn.calls)):
            for index, piece in enumerate(pieces):
                if piece is not None:
                    delta = {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
                    yield self._event(turn, delta, choice=choice)

    def closing(self, turn: ResolvedTurn) -> Iterator[Event]:
        """From the finish reason to the end."""
        finish = self.choice({}, str(turn.finish), self.choice_of_calls(turn))
        yield Event(sse(self.chunk(turn, [finish])))
        if turn.usage is not None and turn.question.include_usage:
            yield Event(sse(self.chunk(turn, [], usage=chat_usage(turn.usage))))
        yield Event(b"data: [DONE]\n\n")

    def thinking(self, text: str) -> Document:
        """The fields of a delta, or of a message, that hold thinking."""
        return {"reasoning_content": text}

    def choice_of_calls(self, turn: ResolvedTurn) -> int:
        """The index of the choice that holds the calls and the finish reason."""
        return 0

    def choice(self, delta: Document, finish: str | None = None, index: int = 0) -> Document:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}

    def chunk(self, turn: ResolvedTurn, choices: list[Document], **more: Any) -> Document:
        return {**self._head(turn, "chat.completion.chunk"), "choices": choices, **more}

    def _event(self, turn: ResolvedTurn, delta: Document, *, content: bool = True, choice: int = 0) -> Event:
        return Event(sse(self.chunk(turn, [self.choice(delta, None, choice)])), content)

    def _head(self, turn: ResolvedTurn, kind: str) -> Document:
        return {"id": turn.id("chatcmpl"), "object": kind, "created": CREATED, "model": turn.question.model}

    def whole(self, turn: ResolvedTurn) -> Document:
        usage = {"usage": chat_usage(turn.usage)} if turn.usage is not None else {}
        return {**self._head(turn, "chat.completion"), "choices": self.choices(turn), **usage}

    def choices(self, turn: ResolvedTurn) -> list[Document]:
        """The choices of a whole answer."""
        calls = {"tool_calls": [_whole_call(call) for call in turn.calls]} if turn.calls else {}
        thinking = self.thinking(turn.thinking) if turn.thinking else {}
        message = {"role": "assistant", "content": turn.text or None, "refusal": None, **thinking, **calls}
        return [{"index": 0, "message": message, "logprobs": None, "finish_reason": str(turn.finish)}]

    def error(self, fault: Fault) -> Document:
        return {"error": openai_error(fault)}

    def stream_error(self, fault: Fault, turn: ResolvedTurn) -> bytes:
        return sse(self.error(fault)) + b"data: [DONE]\n\n"

    def history(self, body: Document) -> Iterator[Said]:
        for message in objects_in(body.get("messages")):
            speaker = _SPEAKERS.get(str(message.get("role")), Speaker.OTHER)
            yield user_said(message.get("content")) if speaker is Speaker.USER else Said(speaker)


class OpenRouterApi(ChatApi):
    """A comment before the answer, reasoning twice in one delta, the finish chunk twice and usage on the second."""

    def events(self, turn: ResolvedTurn) -> Iterator[Event]:
        yield Event(b": OPENROUTER PROCESSING\n\n" * 2)
        yield from super().events(turn)

    def closing(self, turn: ResolvedTurn) -> Iterator[Event]:
        finish = self.choice({"role": "assistant", "content": ""}, str(turn.finish))
        yield Event(sse(self.chunk(turn, [finish])))
        if turn.usage is not None:
            usage = {**chat_usage(turn.usage), "cost": 0.00042, "is_byok": False}
            yield Event(sse(self.chunk(turn, [finish], usage=usage)))
        yield Event(b"data: [DONE]\n\n")

    def thinking(self, text: str) -> Document:
        detail = {"type": "reasoning.text", "text": text, "signature": SIGNATURE, "format": "unknown", "index": 0}
        return {"reasoning": text, "reasoning_details": [detail]}

    def choice(self, delta: Document, finish: str | None = None, index: int = 0) -> Document:
        return {**super().choice(delta, finish, index), "native_finish_reason": finish}

    def chunk(self, turn: ResolvedTurn, choices: list[Document], **more: Any) -> Document:
        return super().chunk(turn, choices, provider="Wire Double", **more)

    def error(self, fault: Fault) -> Document:
        metadata = {"provider_name": "Wire Double", "raw": fault.message}
        return {
            "error": {"code": fault.status, "message": fault.message, "metadata": metadata},
            "user_id": "user_double",
        }

    def stream_error(self, fault: Fault, turn: ResolvedTurn) -> bytes:
        error = {"code": fault.status, "message": fault.message}
        failed = self.chunk(turn, [self.choice({"content": ""}, "error")], error=error)
        return sse(failed) + b"data: [DONE]\n\n"


class CopilotApi(ChatApi):
    """A first chunk without choices; the calls of a Claude model are in a second choice."""

    def events(self, turn: ResolvedTurn) -> Iterator[Event]:
        filters = [{"prompt_index": 0, "content_filter_results": {"hate": {"filtered": False, "severity": "safe"}}}]
        yield Event(sse({"choices": [], "created": 0, "id": "", "prompt_filter_results": filters}))
        yield from super().events(turn)

    def choice_of_calls(self, turn: ResolvedTurn) -> int:
        return 1 if turn.calls and "claude" in turn.question.model else 0

    def choices(self, turn: ResolvedTurn) -> list[Document]:
        (choice,) = super().choices(turn)
        if self.choice_of_calls(turn) == 0:
            return [choice]
        message = choice["message"]
        calls = {"role": "assistant", "content": None, "tool_calls": message.pop("tool_calls")}
        return [choice, {**choice, "index": 1, "message": calls}]

    def error(self, fault: Fault) -> Document:
        code = openai_error(fault)["code"]
        return {"error": {"message": fault.message, "code": code or ""}}


def chat_usage(tokens: Tokens) -> Document:
    """The usage object of Chat Completions."""
    return {
        "prompt_tokens": tokens.input,
        "completion_tokens": tokens.output,
        "total_tokens": tokens.input + tokens.output,
        "prompt_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": tokens.cache_write},
        "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
    }


def _whole_call(call: ResolvedCall) -> Document:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
