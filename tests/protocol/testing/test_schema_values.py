"""Values by JSON Schema: all of them valid, the edges among them, and the hints where they fit."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from hypothesis import find, given
from pydantic import BaseModel, Field, TypeAdapter

from callboard.protocol.errors import UsageError
from callboard.protocol.testing.schema_values import boundary_values, schema_values
from callboard.protocol.testing.strategies import chunkings
from callboard.protocol.testing.tool_literals import literals_of


class Tree(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=12)]
    size: Annotated[int, Field(ge=-3, lt=40, multiple_of=3)]
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    kind: Literal["oak", "elm"] = "oak"
    code: Annotated[str, Field(pattern="^[a-z]{3}$")] = "abc"
    twigs: Annotated[list[Tree], Field(max_length=2)] = []
    note: str | None = None


SCHEMA = TypeAdapter(Tree).json_schema()
HINTS = ("Atlantis", "abd", 4711, 6, 0.25, -3)


@given(schema_values(SCHEMA, hints=HINTS))
def test_what_is_drawn_is_valid(value: Any) -> None:
    Tree.model_validate(value, strict=True)


def test_all_edges_are_valid_and_hold_the_hints() -> None:
    trees = [Tree.model_validate(value, strict=True) for value in boundary_values(SCHEMA, SCHEMA, HINTS)]
    assert {"Atlantis", "abd", "x", "x" * 12} <= {tree.name for tree in trees}
    assert {-3, 0, 6, 39} == {tree.size for tree in trees} & {-3, 0, 6, 39}
    assert {"oak", "elm"} == {tree.kind for tree in trees}
    assert {"abc", "abd"} == {tree.code for tree in trees}
    assert {0.25, 1.0} <= {tree.share for tree in trees}
    assert {0, 1, 2} == {len(tree.twigs) for tree in trees}


def test_hints_are_drawn_often() -> None:
    assert find(schema_values({"type": "string"}, hints=("Atlantis",)), lambda text: text == "Atlantis") == "Atlantis"
    assert find(schema_values({"type": "integer"}, hints=(4711,)), lambda number: number > 4711) == 4712


def test_schemas_are_followed() -> None:
    @given(schema_values({"type": ["integer", "null"], "minimum": 3, "exclusiveMaximum": 5}))
    def holds(value: Any) -> None:
        assert value in (3, 4, None)

    holds()

    @given(schema_values({"type": "object", "additionalProperties": {"type": "string", "format": "date"}}))
    def dates(value: Any) -> None:
        TypeAdapter(dict[str, str]).validate_python(value)

    dates()
    with pytest.raises(UsageError, match="is not JSON Schema"):
        schema_values({"type": "integr"})

    @given(schema_values({"$ref": "#/$defs/Nowhere"}))
    def nowhere(value: Any) -> None:
        raise AssertionError(value)

    with pytest.raises(UsageError, match="which it does not define"):
        nowhere()


LIMITS = {"deep": 99}


def _called(text: str) -> bool:
    return text in ("called", "also")


def compares(text: str, number: int) -> bool:
    """Not this text."""
    inner = [one for one in text if one == "inner"]
    return _called(text) or number > 1_234 or LIMITS[text] == number or bool(inner) or text.startswith("https://")


def test_literals_are_those_that_the_code_compares_with() -> None:
    assert {"called", "also", 1_234, "deep", "inner", "https://"} <= set(literals_of(compares))
    assert "Not this text." not in literals_of(compares)
    assert literals_of(len) == ()


@given(chunkings(b"some bytes"))
def test_chunkings_are_the_same_bytes(pieces: list[bytes]) -> None:
    assert b"".join(pieces) == b"some bytes"
