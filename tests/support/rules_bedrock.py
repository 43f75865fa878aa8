"""What Bedrock's Converse accepts beyond its service model (docs/wire.md 1.8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from support.aws_model import request_faults

Body = Mapping[str, Any]


def bedrock(body: Body, model: str) -> list[str]:
    return request_faults(body, model) or [*_turns(body), *_cache_points(body)]


def _turns(body: Body) -> Iterator[str]:
    asked: list[str] = []
    seen: set[str] = set()
    roles = [message["role"] for message in body["messages"]]
    if roles[0] != "user" or any(a == b for a, b in pairwise(roles)):
        yield f"roles {roles}"
    for message in body["messages"]:
        blocks = message["content"]
        if not blocks:
            yield "an empty message"
        yield from _results(asked, blocks)
        asked = [block["toolUse"]["toolUseId"] for block in blocks if "type" not in block.get("toolUse", {"type": ""})]
        if seen & set(asked) or len(set(asked)) < len(asked):
            yield f"repeated ids {asked}"
        seen.update(asked)
        if any("document" in block for block in blocks) and not any("text" in block for block in blocks):
            yield "a document without a text"
        if any("text" in block and not block["text"].strip() for block in blocks):
            yield "a blank text"
    if asked:
        yield f"calls without results: {asked}"
    if seen and "toolConfig" not in body:
        yield "The toolConfig field must be defined when using toolUse and toolResult content blocks."
    names = [block["document"]["name"] for m in body["messages"] for block in m["content"] if "document" in block]
    if len(set(names)) < len(names):
        yield f"repeated names of documents: {names}"


def _results(asked: Sequence[str], blocks: Sequence[Body]) -> Iterator[str]:
    # Results of the provider's own tools have a type, and stand in the turn of their calls.
    ours = [block["toolResult"] for block in blocks if "type" not in block.get("toolResult", {"type": ""})]
    results = [result["toolUseId"] for result in ours]
    if sorted(results) != sorted(asked):
        yield f"results {results} for the calls {asked}"
    if any("toolResult" not in block for block in blocks[: len(results)]):
        yield "something comes before the results"


def _cache_points(body: Body) -> Iterator[str]:
    lists = [body.get("system", []), body.get("toolConfig", {}).get("tools", [])]
    lists += [message["content"] for message in body["messages"]]
    points = [(each, place) for each in lists for place, block in enumerate(each) if "cachePoint" in block]
    if len(points) > 4:
        yield f"{len(points)} cache points"
    for blocks, place in points:
        if place == 0 or blocks[place - 1].keys() & {"document", "video", "cachePoint", "reasoningContent"}:
            yield "a cache point behind nothing, a document or a video"
