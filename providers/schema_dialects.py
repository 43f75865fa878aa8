"""Which subset of JSON Schema each API takes: one row of values each, with where it comes from.

How a schema is brought into such a subset is in `tool_schema.py`.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.providers import schema_forms as forms

#: Deeper than any hand-written schema, shallow enough for every JSON parser on the way.
MAX_SCHEMA_DEPTH: Final = 64
#: APIs refuse these beside `type: object` at the root of a tool's parameters.
ROOT_COMBINATORS: Final = frozenset({"anyOf", "oneOf", "allOf", "not", "enum", "const", "if", "then", "else"})


class SchemaLimits(Struct, frozen=True):
    """What a strict schema may have at most; 0: as much as one likes."""

    properties: int = 0
    levels: int = 0
    """Objects within each other."""
    values: int = 0
    """Of all enums."""
    chars: int = 0
    """In names of properties and definitions, and in values."""
    bytes: int = 0
    """Of the whole schema as JSON."""


class StrictBudget(Struct, frozen=True):
    """What all strict schemas of one request may have together."""

    tools: int
    optional: int
    """Parameters that may be left out."""
    unions: int
    """Parameters of several types."""

    def __str__(self) -> str:
        return (
            f"at most {self.tools} strict tools, {self.optional} parameters that may be left out and {self.unions} of "
            "several types in one request"
        )

    def after(self, optional: int, unions: int, tools: int = 1) -> StrictBudget | None:
        """What is left behind one schema more; None where it does not fit in."""
        left = StrictBudget(self.tools - tools, self.optional - optional, self.unions - unions)
        return None if min(left.tools, left.optional, left.unions) < 0 else left


class SchemaDialect(Struct, frozen=True):
    """What one API's subset of JSON Schema takes."""

    name: str
    keywords: frozenset[str] | None = None
    """None: every keyword is taken."""
    formats: frozenset[str] | None = None
    """Values of `format` that are taken; None: all."""
    any_regex: bool = True
    """A `pattern` may be what no automaton follows."""
    plain_enum: bool = False
    """An enum has numbers and texts that are not empty, and stands for `const` too."""
    type_lists: bool = True
    """`type` may be a list; else that is an `anyOf`."""
    one_of_as_any_of: bool = False
    explicit: bool = False
    """Every array must say `items`, and the root `properties`."""
    closed: bool = False
    """Every object must say `additionalProperties: false`, every array its items, and every schema its type."""
    all_required: bool = False
    """Every property must be required. A model then always gives the optional ones too: their default, or null."""
    bare_refs: bool = False
    """A `$ref` must have no siblings."""
    recursive: bool = True
    """A definition may refer to itself."""
    circles_optional: bool = False
    """But only within a property that may be left out."""
    references: bool = True
    """It takes `$ref`; else each definition is written out where it is used, and a circle is cut."""
    object_root: bool = True
    """The root must be `type: object`, without what is not taken there."""
    not_at_root: frozenset[str] = ROOT_COMBINATORS
    property_pattern: re.Pattern[str] | None = None
    limits: SchemaLimits = SchemaLimits()
    budget: StrictBudget | None = None
    relaxed: SchemaDialect | None = None
    """Used, and not strict, where something cannot be said in this dialect."""
    lenient: bool = False
    """For a server's schemas, of which nobody here can mend a fault: what is no schema stands for anything, and a
    property whose name is not taken is left out if it may be."""
    in_words: bool = True
    max_depth: int = MAX_SCHEMA_DEPTH
    max_nodes: int = 0
    """Schemas within it; what is beyond stands for anything. 0: all."""
    max_text: int = 0
    max_values: int = 0


_STRUCTURE: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "enum", "anyOf", "description", "$ref", "$defs"}
)
_NUMBER_BOUNDS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
#: developers.openai.com, "Structured Outputs", "Supported schemas": these nine, no `uri`.
_OPENAI_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
#: platform.claude.com, "Structured outputs", "JSON Schema limitations".
_ANTHROPIC_FORMATS: Final = _OPENAI_FORMATS | {"uri"}

#: Without `strict` too: "array schema missing items" (langgenius/dify#32894), "regex lookaround is not supported"
#: (9router 1556).
OPENAI: Final = SchemaDialect("openai", any_regex=False, explicit=True)
#: The guide's "Supported properties" and limits; "'allOf' is not permitted", "'oneOf' is not permitted"
#: (docker/docker-agent#4155), "schema must have a 'type' key", also of a `const` or of {}.
OPENAI_STRICT: Final = SchemaDialect(
    "openai strict",
    keywords=_STRUCTURE | _NUMBER_BOUNDS | {"const", "pattern", "format", "minItems", "maxItems"},
    formats=_OPENAI_FORMATS,
    any_regex=False,
    one_of_as_any_of=True,
    explicit=True,
    closed=True,
    all_required=True,
    bare_refs=True,
    limits=SchemaLimits(properties=5_000, levels=10, values=1_000, chars=120_000),
    relaxed=OPENAI,
)
#: inference-docs.cerebras.ai, "Structured Outputs", "Union types": no `"type": [...]` ("Lists of types are not
#: supported in JSON schema. If you are trying to make a field Optional, use anyOf with a null type"), in tools too.
CEREBRAS: Final = replace(OPENAI, name="cerebras", type_lists=False)
#: The same page, "Limitations": no recursion, no pattern, format, minItems and maxItems, at most 5,000 characters, 500
#: properties, 500 values and 10 levels. Its tools take the same.
CEREBRAS_STRICT: Final = replace(
    OPENAI_STRICT,
    name="cerebras strict",
    type_lists=False,
    relaxed=CEREBRAS,
    keywords=_STRUCTURE | _NUMBER_BOUNDS | {"const"},
    recursive=False,
    limits=SchemaLimits(properties=500, levels=10, values=500, bytes=5_000),
)
_ANTHROPIC_PROPERTY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
ANTHROPIC: Final = SchemaDialect("anthropic", property_pattern=_ANTHROPIC_PROPERTY)
#: "Structured outputs" again: no recursion ("Circular reference detected"), no bounds; and "Schema complexity limits",
#: over all strict schemas of a request. Bedrock has the same (pydantic-ai 5579, strands-agents/harness-sdk 2664).
ANTHROPIC_STRICT: Final = SchemaDialect(
    "anthropic strict",
    keywords=_STRUCTURE | {"const", "format", "title"},
    formats=_ANTHROPIC_FORMATS,
    one_of_as_any_of=True,
    closed=True,
    bare_refs=True,
    recursive=False,
    property_pattern=_ANTHROPIC_PROPERTY,
    budget=StrictBudget(tools=20, optional=24, unions=16),
    relaxed=ANTHROPIC,
)
#: The answer's schema: there is no lax mode to fall back to, and the root may be anything.
ANTHROPIC_ANSWER: Final = replace(
    ANTHROPIC_STRICT, name="anthropic structured output", object_root=False, property_pattern=None, relaxed=None
)
#: Other models on Bedrock: the names of parameters are free there.
BEDROCK: Final = SchemaDialect("bedrock")
BEDROCK_STRICT: Final = replace(ANTHROPIC_STRICT, name="bedrock strict", property_pattern=None, relaxed=BEDROCK)
#: docs.aws.amazon.com, Nova, "Defining a tool": at the root "only type, properties and required", else "extraneous key
#: [$defs] is not permitted" (pydantic-ai 1623, zed-industries/zed#28521). So references are written out.
NOVA: Final = SchemaDialect(
    "amazon nova",
    keywords=forms.ASSERTIONS - {"$ref", *forms.DEFINITIONS} | {"description", "default"},
    explicit=True,
    references=False,
    not_at_root=forms.ASSERTIONS - {"type", "properties", "required", "$ref", *forms.DEFINITIONS},
)
#: ai.google.dev, "GenerateContentRequest", `parametersJsonSchema` and `responseJsonSchema`: "Cyclic references ... may
#: only be used within non-required properties", nothing beside a `$ref`. A reference to anything but a definition is
#: not found (DEEIX-AI/DEEIX-Chat#546, google-gemini/gemini-cli#13326). `enum`: "strings and numbers", of which none is
#: empty ("enum[3]: cannot be empty", Smana/runlore#40, Bobsilvio/ha-claude#32).
GEMINI: Final = SchemaDialect(
    "gemini",
    keywords=_STRUCTURE | {"prefixItems", "minItems", "maxItems", "minimum", "maximum", "format", "propertyOrdering"},
    plain_enum=True,
    one_of_as_any_of=True,
    bare_refs=True,
    circles_optional=True,
)
GEMINI_ANSWER: Final = replace(GEMINI, name="gemini structured output", object_root=False)
