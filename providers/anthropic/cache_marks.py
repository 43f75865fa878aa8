"""Prompt caching: which blocks of a request say that what comes before them is to be kept (docs/wire.md quirk 82).

Without a mark the whole prefix costs its full price at every step; read from the cache it costs a tenth. A mark on the
last turn keeps the whole prompt, those on the instructions and the tools what other conversations share. The mark on
the turn before is where the last request ended: the API looks back 20 blocks from a mark, and a turn may have more.
Turns of empty results alone can have none; the turns before them have the marks.
A prompt that is too short to be kept (1,024 tokens for most models) is answered as if it had no mark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from callboard.protocol.model import PromptCache
from callboard.providers.json_values import Body

#: "A maximum of 4 blocks with cache_control may be provided."
MAX_MARKS: Final = 4
#: 400 for a mark on thinking, and "cache_control cannot be set for empty text blocks".
_CACHEABLE: Final = frozenset({"text", "image", "document", "tool_result"})

#: options > messages > message > content > tool_result > content > block: deeper there is no mark.
_LEVELS: Final = 8


def mark_prompt(
    body: Body, turns: Sequence[tuple[str, list[Body]]], cache: PromptCache, options: Mapping[str, object]
) -> None:
    """Mark the blocks of `body`, whose messages are `turns`. `options` replace fields of the body, and may have marks
    of their own, which count towards the four."""
    own = list(_ttls(options))
    # "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block": one for all.
    kept = set(own) or {cache.value}
    if cache is PromptCache.OFF or len(kept) > 1:
        return
    control: Body = {"type": "ephemeral"}
    if kept != {PromptCache.FIVE_MINUTES.value}:
        control["ttl"] = kept.pop()
    for block in islice(_places(body, turns, options), max(MAX_MARKS - len(own), 0)):
        block["cache_control"] = control


def _places(body: Body, turns: Sequence[tuple[str, list[Body]]], options: Mapping[str, object]) -> Iterator[Body]:
    """The blocks to mark, the most useful first."""
    ends = [] if "messages" in options else [end for role, blocks in turns if role == "user" for end in _last(blocks)]
    # With `cache_control` beside the messages the API marks the last block itself.
    if ends and "cache_control" not in options:
        yield ends[-1]
    if isinstance(system := body.get("system"), str) and "system" not in options:
        block: Body = {"type": "text", "text": system}
        body["system"] = [block]
        yield block
    if isinstance(tools := body.get("tools"), list) and "tools" not in options:
        yield tools[-1]
    if len(ends) > 1:
        yield ends[-2]


def _last(blocks: Sequence[Body]) -> Iterator[Body]:
    """The last block that may be marked, if there is one."""
    for block in reversed(blocks):
        if block["type"] in _CACHEABLE and block.get("content") != "":
            yield block
            return


def _ttls(value: object, levels: int = _LEVELS) -> Iterator[str]:
    """How long each mark in the caller's own fields asks to be kept."""
    if not levels:
        return
    if isinstance(value, Mapping):
        control = value.get("cache_control")
        if isinstance(control, Mapping) and control.get("type") == "ephemeral":
            yield str(control.get("ttl") or "5m")
        for child in value.values():
            yield from _ttls(child, levels - 1)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from _ttls(child, levels - 1)
