"""Arguments that Gemini streams as (JSONPath, value) pieces, put together to the object they describe (quirk 43)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from callboard.protocol.limits import MAX_ARGUMENT_BYTES

_STEP: Final = re.compile(r"""\.([^.\[\]'"]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")
#: The steps of a path, the place in a list, the pieces of a call: models stay far below, broken servers may not.
_MAX_STEPS: Final = 64
_MAX_INDEX: Final = 10_000
_MAX_PIECES: Final = 100_000
_VALUES: Final = ("numberValue", "boolValue", "nullValue")

_Path = tuple[str | int, ...]


class PartialArguments:
    """The pieces of one call. Linear in their bytes: strings are joined once, at the end."""

    def __init__(self) -> None:
        self._strings: dict[str, list[str]] = {}
        self._values: dict[str, Any] = {}
        self._size = 0

    def add(self, piece: Mapping[str, Any]) -> None:
        """One entry of `partialArgs`. Raises ValueError past the limits."""
        path = piece["jsonPath"]
        text = piece.get("stringValue")
        self._size += len(path) + len(text or "")
        if self._size > MAX_ARGUMENT_BYTES or len(self._values) >= _MAX_PIECES:
            raise ValueError(f"the streamed arguments are longer than {MAX_ARGUMENT_BYTES} characters")
        if isinstance(text, str):
            # Text at a path that had some goes on with it.
            self._strings.setdefault(path, []).append(text)
            self._values[path] = None
        for kind in _VALUES:
            if kind in piece:
                self._values[path] = None if kind == "nullValue" else piece[kind]

    def value(self) -> dict[str, Any]:
        """The object so far. Raises ValueError where two pieces contradict each other."""
        root: dict[str, Any] = {}
        for path, value in self._values.items():
            strings = self._strings.get(path)
            _put(root, _steps(path), value if strings is None else "".join(strings))
        return root


def _steps(path: str) -> _Path:
    if not path.startswith("$"):
        raise ValueError(f"a JSONPath starts with $, not {path[:40]!r}")
    steps: list[str | int] = []
    end = 1
    while end < len(path):
        match = _STEP.match(path, end)
        if match is None or len(steps) >= _MAX_STEPS:
            raise ValueError(f"not a JSONPath to one value: {path[:80]!r}")
        name, index, single, double = match.groups()
        if index is not None:
            steps.append(int(index[:6]))
        else:
            quoted = single if single is not None else double
            steps.append(name if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        end = match.end()
    if not steps or isinstance(steps[0], int):
        raise ValueError(f"the arguments are an object, so {path[:40]!r} is no place in them")
    return tuple(steps)


def _put(root: dict[str, Any], steps: _Path, value: Any) -> None:
    node: Any = root
    for step, following in pairwise(steps):
        fresh: Any = [] if isinstance(following, int) else {}
        node = _child(node, step, fresh)
    _child(node, steps[-1], value, replace=True)


def _child(node: Any, step: str | int, value: Any, *, replace: bool = False) -> Any:
    """What stands at `step` of `node`; `value` is put there first if nothing does, or always with `replace`."""
    if isinstance(step, int):
        if not isinstance(node, list) or step > _MAX_INDEX:
            raise ValueError(f"no list with a place {step}")
        node.extend([None] * (step + 1 - len(node)))
        if replace or node[step] is None:
            node[step] = value
        return node[step]
    if not isinstance(node, dict):
        raise ValueError(f"no object with a field {step!r}")
    if replace or node.get(step) is None:
        node[step] = value
    return node[step]
