"""The arguments of a call that Gemini streams as pieces with paths (docs/wire.md quirk 43)."""

from __future__ import annotations

import re
from io import StringIO
from itertools import pairwise
from typing import Final

from callboard.protocol.limits import MAX_ARGUMENT_BYTES
from callboard.providers.json_values import Json, JsonObject, said_at, text_of

#: A step of a JSONPath: .name, [index] or a name in brackets and quotes.
_STEP: Final = re.compile(r"""\.([^.\[\]'"]+)|\[(\d+)\]|\[(['"])((?:\\.|(?!\3)[^\\])*)\3\]""")
#: The steps of a path; the pieces of a call and the places of its lists. Models stay far below, broken servers may not.
_MAX_STEPS: Final = 64
_MAX_PIECES: Final = 100_000
_MAX_PLACES: Final = 10_000


class PartialArguments:
    """The arguments of one call, streamed as (JSONPath, value) pieces, put together to their object (quirk 43).

    Linear in their bytes: strings are joined once, at the end.
    """

    def __init__(self) -> None:
        self._strings: dict[str, StringIO] = {}
        self._values: JsonObject = {}
        self._size = 0
        self._padded = 0

    def add(self, piece: JsonObject) -> None:
        """One entry of `partialArgs`. Raises ValueError past the limits."""
        path, text = text_of(piece["jsonPath"]), said_at(piece, "stringValue")
        self._size += len(path) + len(text)
        if self._size > MAX_ARGUMENT_BYTES or len(self._values) >= _MAX_PIECES:
            raise ValueError(f"the streamed arguments are longer than {MAX_ARGUMENT_BYTES} characters")
        if piece.get("stringValue") is not None:
            # Text at a path that had some goes on with it.
            self._strings.setdefault(path, StringIO()).write(text)
            self._values[path] = None
        for kind in ("numberValue", "boolValue", "nullValue"):
            if kind in piece:
                self._values[path] = None if kind == "nullValue" else piece[kind]

    def value(self) -> JsonObject:
        """The object so far. Raises ValueError where two pieces contradict each other."""
        root: JsonObject = {}
        self._padded = 0
        for path, value in self._values.items():
            steps, pieces = _steps(path), self._strings.get(path)
            inner: Json = root
            for step, following in pairwise(steps):
                inner = self._child(inner, step, [] if isinstance(following, int) else {})
            self._child(inner, steps[-1], value if pieces is None else pieces.getvalue(), replace=True)
        return root

    def _child(self, node: Json, step: str | int, value: Json, *, replace: bool = False) -> Json:
        """What is at `step` of `node`; `value` is put there first if nothing is, or always with `replace`."""
        if isinstance(step, int):
            if not isinstance(node, list):
                raise ValueError(f"no list with a place {step}")
            missing = max(0, step + 1 - len(node))
            self._padded += missing
            if self._padded > _MAX_PLACES:
                raise ValueError(f"lists of more than {_MAX_PLACES} places")
            node.extend([None] * missing)
            if replace or node[step] is None:
                node[step] = value
            return node[step]
        if not isinstance(node, dict):
            raise ValueError(f"no object with a field {step!r}")
        if replace or node.get(step) is None:
            node[step] = value
        return node[step]


def _steps(path: str) -> list[str | int]:
    if not path.startswith("$"):
        raise ValueError(f"a JSONPath starts with $, not {path[:40]!r}")
    steps: list[str | int] = []
    end = 1
    while end < len(path):
        match = _STEP.match(path, end)
        if match is None or len(steps) >= _MAX_STEPS:
            raise ValueError(f"not a JSONPath to one value: {path[:80]!r}")
        name, index, _, quoted = match.groups()
        if index is not None:
            steps.append(int(index[:6]))
        else:
            steps.append(name if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        end = match.end()
    if not steps or isinstance(steps[0], int):
        raise ValueError(f"the arguments are an object, so {path[:40]!r} is not a place in them")
    return steps
