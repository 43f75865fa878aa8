"""How Bedrock's Converse tells a turn (support/turns.py): in blocks, which a binary stream tells piece by piece."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from support.event_frames import METADATA, converse_events, stream
from support.turns import PIXEL, SOURCE, Json, Manner, Part, Turn, Wire

from callboard.protocol.model import Usage
from callboard.providers.bedrock.converse_api import Bedrock

Blocks = list[Json]


def _cited(part: Part) -> Blocks:
    source = {"title": SOURCE[1], "location": {"web": {"url": SOURCE[0]}}}
    return [{"citationsContent": {"content": [{"text": part.text}], "citations": [source]}}]


def _call(part: Part) -> Blocks:
    return [{"toolUse": {"toolUseId": f"tooluse_{part.number}", "name": part.name, "input": json.loads(part.text)}}]


def _server_tool(name: str) -> Callable[[Part], Blocks]:
    def blocks(part: Part) -> Blocks:
        ids = {"toolUseId": f"tooluse_{part.number}"}
        asked = {**ids, "name": name, "type": "server_tool_use", "input": {"query": "Rome"}}
        return [{"toolUse": asked}, {"toolResult": {**ids, "type": f"{name}_result", "content": [{"text": "found"}]}}]

    return blocks


class Converse(Wire):
    """Says anything in any order."""

    adapter = Bedrock()
    rows: ClassVar[Mapping[str, Callable[[Part], Blocks]]] = {
        "thinking": lambda part: [{"reasoningContent": {"reasoningText": {"text": part.text, "signature": "c2ln"}}}],
        "text": lambda part: [{"text": part.text}],
        "cited": _cited,
        "image": lambda part: [{"image": {"format": "png", "source": {"bytes": PIXEL}}}],
        "call": _call,
        "search": _server_tool("nova_grounding"),
        "code": _server_tool("nova_code_interpreter"),
    }
    blocks: ClassVar[Mapping[str, tuple[str, ...]]] = dict.fromkeys(("search", "code"), ("toolUse", "toolResult"))
    has_logprobs = False
    ends_each_call = False
    names_answers = False

    def usage(self, fresh: int, cached: int, written: int, output: int, reasoning: int) -> Usage:
        return Usage(fresh + cached + written, output, cached, written)

    def stream(self, turn: Turn, manner: Manner) -> list[Json]:
        *events, _ = converse_events(self._blocks(turn), self._reason(turn), 4)
        return [{kind: document} for kind, document in (*events, ("metadata", self._metadata(turn)))]

    def whole(self, turn: Turn) -> Json:
        message = {"role": "assistant", "content": self._blocks(turn)}
        return {"output": {"message": message}, "stopReason": self._reason(turn), **self._metadata(turn)}

    def framed(self, documents: Sequence[Json], manner: Manner) -> bytes:
        return stream(event for document in documents for event in document.items())

    def _blocks(self, turn: Turn) -> Blocks:
        return [block for part in turn.parts for block in self.rows[part.kind](part)]

    def _reason(self, turn: Turn) -> str:
        return {"length": "max_tokens", "tool_calls": "tool_use"}.get(turn.finish, "end_turn")

    def _metadata(self, turn: Turn) -> Json:
        _, metadata = METADATA
        if (usage := turn.usage) is None:
            return {name: value for name, value in metadata.items() if name != "usage"}
        told = {
            "inputTokens": usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens,
            "cacheReadInputTokens": usage.cached_tokens,
            "cacheWriteInputTokens": usage.cache_write_tokens,
            "outputTokens": usage.output_tokens,
            "totalTokens": usage.total_tokens,
        }
        return {**metadata, "usage": told}
