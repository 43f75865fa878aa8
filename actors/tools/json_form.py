"""How values of a type are written as JSON and read from it, for arguments, results and answers alike.

By the names that the JSON Schema has (aliases), and `bytes` as base64 text, which pydantic reads as the text's own
bytes. Where a type, or a model that holds it, says itself how its bytes are written, that holds.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from callboard.protocol.lazy_loading import lazy_module

if TYPE_CHECKING:
    import pydantic
    import pydantic_core
    from pydantic import TypeAdapter, json_schema
else:
    json_schema = lazy_module("pydantic.json_schema")
    pydantic = lazy_module("pydantic")
    pydantic_core = lazy_module("pydantic_core")

#: In the metadata of a core schema: these bytes are base64 text in JSON.
_BASE64: Final = "callboard_base64"
#: In the config of a model: its author says how its bytes are written.
_BYTES_OPTIONS: Final = ("val_json_bytes", "ser_json_bytes")
#: What a node holds that is no schema.
_NO_SCHEMAS: Final = ("metadata", "default", "expected", "members", "config")
#: Kinds of nodes whose own serialisation does not replace how what they hold is read.
_CONTAINERS: Final = ("model", "model-fields", "dataclass", "dataclass-args", "typed-dict", "definitions")
_URL_SAFE: Final = str.maketrans("-_", "+/", " \t\r\n")


def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """pydantic's adapter of a type, in whose JSON bytes are base64. Raises what `pydantic.TypeAdapter` raises."""
    adapter: TypeAdapter[Any] = pydantic.TypeAdapter(kind)
    core_schema: Any = adapter.core_schema
    if _holds_bytes(core_schema, set()):
        changed = _Rewriting().node(core_schema)
        adapter.core_schema = changed
        # Not what pydantic has built of each model already: that reads bytes in its own way.
        adapter.validator = pydantic_core.SchemaValidator(changed, None, _use_prebuilt=False)
        adapter.serializer = pydantic_core.SchemaSerializer(changed, None, _use_prebuilt=False)
    return adapter


def json_schema_of(adapter: TypeAdapter[Any], mode: Literal["validation", "serialization"]) -> dict[str, object]:
    """The JSON Schema, by aliases. Raises pydantic's errors for a type that has none."""
    found: dict[str, object] = adapter.json_schema(mode=mode, schema_generator=_generator())
    return found


@cache
def _generator() -> type[json_schema.GenerateJsonSchema]:
    class Generator(json_schema.GenerateJsonSchema):
        """Without warnings about defaults that JSON cannot carry: what is left out then is the function's own."""

        def emit_warning(self, kind: object, detail: str) -> None:
            """Nothing to say."""

        def bytes_schema(self, schema: Any) -> dict[str, Any]:
            """Of base64, bounds of the bytes are none of the text."""
            return {**_TOLD} if _BASE64 in schema.get("metadata", ()) else super().bytes_schema(schema)

        def str_schema(self, schema: Any) -> dict[str, Any]:
            """Of bytes as they are written."""
            return {**_TOLD} if _BASE64 in schema.get("metadata", ()) else super().str_schema(schema)

        def encode_default(self, dft: Any) -> Any:
            """Bytes as they are read."""
            return _written(dft) if isinstance(dft, bytes) else super().encode_default(dft)

    return Generator


_TOLD: Final = {"type": "string", "contentEncoding": "base64"}


def _holds_bytes(node: object, seen: set[int]) -> bool:
    if id(node) in seen:
        return False
    seen.add(id(node))
    if isinstance(node, Mapping):
        return node.get("type") == "bytes" or any(_holds_bytes(node[key], seen) for key in _schemas_in(node))
    return isinstance(node, list | tuple) and any(_holds_bytes(each, seen) for each in node)


def _is_node(node: Mapping[str, object]) -> bool:
    """Else it has nodes by the names of a user's, such as those of fields."""
    return isinstance(node.get("type"), str)


def _schemas_in(node: Mapping[str, object]) -> list[str]:
    return [key for key in node if key not in _NO_SCHEMAS or not _is_node(node)]


class _Rewriting:
    """One walk over a core schema, which is left as it is."""

    def __init__(self) -> None:
        self._done: dict[int, object] = {}

    def node(self, node: Any) -> Any:
        """With its bytes as base64."""
        if id(node) in self._done:
            return self._done[id(node)]
        if isinstance(node, list | tuple):
            return type(node)(map(self.node, node))
        if not isinstance(node, dict) or _is_authors(node):
            return node
        if node.get("type") == "bytes":
            made = _as_base64(node)
            self._done[id(node)] = made
            return made
        changed: dict[str, Any] = {}
        self._done[id(node)] = changed
        schemas = _schemas_in(node)
        changed.update((key, self.node(each) if key in schemas else each) for key, each in node.items())
        return changed


def _is_authors(node: Mapping[str, Any]) -> bool:
    """Does the author of this type say how its bytes are read and written?"""
    if not _is_node(node):
        return False
    config = node.get("config")
    if isinstance(config, Mapping) and any(option in config for option in _BYTES_OPTIONS):
        return True
    return "serialization" in node and node.get("type") not in _CONTAINERS


def _as_base64(node: Mapping[str, Any]) -> dict[str, Any]:
    inner = {key: each for key, each in node.items() if key != "ref"}
    inner["metadata"] = {**node.get("metadata", {}), _BASE64: True}
    made = {
        "type": "function-before",
        "function": {"type": "with-info", "function": _read},
        "schema": inner,
        "serialization": {
            "type": "function-plain",
            "function": _written,
            "when_used": "json-unless-none",
            "return_schema": {"type": "str", "metadata": {_BASE64: True}},
        },
    }
    return {**made, "ref": node["ref"]} if "ref" in node else made


def _read(value: object, info: pydantic_core.core_schema.ValidationInfo) -> object:
    if info.mode != "json" or not isinstance(value, str):
        return value
    text = value.translate(_URL_SAFE).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise pydantic_core.PydanticCustomError(
            "base64", "Input should be bytes as base64 text (RFC 4648), such as {example}", {"example": "aGVsbG8="}
        ) from None


def _written(value: object) -> object:
    """A value of another type is left to pydantic, which warns of it."""
    return base64.b64encode(value).decode() if isinstance(value, bytes | bytearray | memoryview) else value
