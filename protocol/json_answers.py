"""JSON in what a model wrote: alone, in a code fence, or with text around it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

#: A fenced block, named json or not at all. The closing fence may be missing: the answer ended there.
_FENCE: Final = re.compile(r"```[ \t]*(?:json5?|JSON)?[ \t]*\r?\n(.*?)(?:\r?\n[ \t]*```|\Z)", re.DOTALL)
#: What servers that do not tell it apart leave of reasoning before the answer.
_THOUGHT: Final = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_OPENING: Final = re.compile(r"[{\[]")
#: Brackets that are looked at in a text; each one that begins no JSON costs up to a reading of the rest.
MAX_OPENINGS: Final = 50
_DECODER: Final = json.JSONDecoder()


def json_documents(text: str) -> Iterator[str]:
    """The JSON documents of an answer, the likeliest first: the whole text, then fenced blocks, then what is between.

    Of several alike the last comes first: a model that drafts gives its answer at the end. A text that is one JSON
    string is read as the text in it. What is not JSON is left out, but for a text that begins like it: its error tells
    most.
    """
    text = _THOUGHT.sub("", text).strip()
    if (inner := _quoted(text)) is not None:
        text = inner.strip()
    if _is_json(text):
        yield text
        return
    fenced = [block.strip() for block in _FENCE.findall(text)]
    yield from (block for block in reversed(fenced) if _is_json(block))
    yield from reversed(list(_embedded(text)))
    if _OPENING.match(text):
        yield text


def first_opening(text: str) -> int:
    """Where the first object or list of a text begins; -1 where there is none."""
    found = _OPENING.search(text)
    return found.start() if found else -1


def _quoted(text: str) -> str | None:
    """The text in a JSON string that holds a JSON document; None for any other text."""
    if not text.startswith('"'):
        return None
    try:
        inner = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return inner if isinstance(inner, str) and _OPENING.match(inner.lstrip()) else None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _embedded(text: str) -> Iterator[str]:
    """Objects and lists with text around them, from the first on; none that is within another."""
    at = looked = 0
    while looked < MAX_OPENINGS and (found := _OPENING.search(text, at)):
        start, looked = found.start(), looked + 1
        try:
            _, at = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            at = start + 1
            continue
        yield text[start:at]
