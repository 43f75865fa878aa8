"""The OpenAPI document of Open Responses (openresponses.org, version 2026-04-24), as llm-comply 0.5 carries it, and
what is said here in place of it where it is wrong, or where the daemon does more or less on purpose."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

DOCUMENT: Final[dict[str, Any]] = json.loads(files("llm_comply").joinpath("specs/openresponses.json").read_text())
_REF: Final = "#/components/schemas/"
#: Tools of the daemon run there: OpenAI has items and events for that, Open Responses has none.
BEYOND_EVENTS: Final = "response.mcp_call"
#: Of items and their parts, what the daemon does not look at.
_IGNORED_IN_ITEMS: Final = ("id", "status", "phase", "detail", "annotations", "logprobs", "filename")
_BEYOND_ITEM: Final = {
    "type": "object",
    "required": ["id", "type", "server_label", "name", "arguments", "status"],
    "properties": {"type": {"const": "mcp_call"}},
}


def amended() -> dict[str, Any]:
    """The document with these changes, each a deviation:

    - `mcp_call` is an item too
    - the schema of a JSON format comes back as it was sent (the document has null there, OpenAI the schema)
    - errors have an answer of their own; the document describes 200 only
    - discriminators are left out: their values are not names of schemas, as OpenAPI would have it
    """
    found: dict[str, Any] = _without_discriminators(json.loads(json.dumps(DOCUMENT)))
    schemas = found["components"]["schemas"]
    schemas["ItemField"]["oneOf"].append(_BEYOND_ITEM)
    schemas["JsonSchemaResponseFormat"]["properties"]["schema"] = {"type": "object"}
    failure = {"type": "object", "required": ["error"], "properties": {"error": {"$ref": f"{_REF}ErrorPayload"}}}
    for path in found["paths"].values():
        for status in ("4XX", "5XX"):
            content = {"application/json": {"schema": failure}}
            path["post"]["responses"][status] = {"description": "An error", "content": content}
    return found


def asked_deeply() -> dict[str, Any]:
    """The same for schemathesis. `model` names the one there is, `input` must be there, and nothing follows on another
    response, so that more of what it sends is a question. Further deviations:

    - a message may lack its type, as with OpenAI
    - `temperature` and `top_p` have OpenAI's bounds
    - fields that the daemon ignores may have any value
    - bodies are JSON only, not forms; of streams, the tests beside this look at the events
    """
    found = amended()
    schemas = found["components"]["schemas"]
    for name in ("CreateResponseBody", "CompactResponseMethodPublicBody"):
        properties = schemas[name]["properties"]
        properties["model"] = {"enum": ["gpt-4o"]}
        properties["input"] = properties["input"]["anyOf"][0]
        schemas[name]["required"] = ["model", "input"]
        del properties["previous_response_id"]
    for name in ("User", "System", "Developer", "Assistant"):
        schemas[f"{name}MessageItemParam"]["required"].remove("type")
    for name, schema in schemas.items():
        for ignored in _IGNORED_IN_ITEMS if name.endswith("Param") else ():
            schema.get("properties", {}).pop(ignored, None)
    for name in ("presence_penalty", "frequency_penalty", "stream_options", "stream"):
        del schemas["CreateResponseBody"]["properties"][name]
    for name, least, most in (("temperature", 0, 2), ("top_p", 0, 1)):
        schemas["CreateResponseBody"]["properties"][name] = {"type": "number", "minimum": least, "maximum": most}
    for path in found["paths"].values():
        path["post"]["requestBody"]["required"] = True
        path["post"]["requestBody"]["content"].pop("application/x-www-form-urlencoded", None)
        path["post"]["responses"]["200"]["content"].pop("text/event-stream", None)
    return found


def _without_discriminators(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_discriminators(each) for name, each in value.items() if name != "discriminator"}
    return [_without_discriminators(each) for each in value] if isinstance(value, list) else value


class OpenResponsesCheck:
    """Finds what in an answer is not as the document has it."""

    def __init__(self) -> None:
        self._document = amended()
        events = self._document["paths"]["/responses"]["post"]["responses"]["200"]["content"]["text/event-stream"]
        names = [each["$ref"].removeprefix(_REF) for each in events["schema"]["oneOf"]]
        schemas = self._document["components"]["schemas"]
        self._events = {schemas[name]["properties"]["type"]["enum"][0]: name for name in names}

    def faults(self, name: str, value: object) -> list[str]:
        """Of a value that should fit the schema of this name."""
        schema = {"$ref": f"{_REF}{name}", "components": self._document["components"]}
        found = Draft202012Validator(schema).iter_errors(value)
        worst = [best_match([each]) or each for each in found]
        return [f"{name}: {'.'.join(map(str, each.absolute_path))}: {each.message[:200]}" for each in worst]

    def event_faults(self, event: dict[str, Any]) -> list[str]:
        """Of an event of a stream."""
        kind = event["type"]
        if kind.startswith(BEYOND_EVENTS):
            return []
        return self.faults(self._events[kind], event) if kind in self._events else [f"no event {kind}"]
