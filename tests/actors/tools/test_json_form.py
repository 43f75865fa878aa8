"""Bytes are base64 text in JSON, both ways, wherever a type holds them; unless its author says how they are written."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
import pytest
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, RootModel
from typing_extensions import TypedDict

from callboard import Runtime, Settings, tool
from callboard.actors.requests.outputs import output_type
from callboard.actors.tools.json_form import adapter_of, json_schema_of
from callboard.providers.local.scripted import ScriptedTurn

RAW = b"\xff\xfe"
TEXT = "//4="


class Picture(BaseModel):
    data: bytes
    small: Picture | None = None


@dataclass
class Held:
    picture: Picture
    raw: bytes | None = None


class Typed(TypedDict, total=False):
    type: bytes
    config: bytes
    serialization: list[bytes]


class Pair(NamedTuple):
    name: str
    raw: bytes


class Root(RootModel[list[bytes]]):
    pass


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    raw: bytes


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    raw: bytes


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        (bytes, RAW, TEXT), (bytes | None, None, None), (list[bytes], [RAW, b""], [TEXT, ""]),
        (dict[str, bytes], {"a": RAW}, {"a": TEXT}), (tuple[int, bytes], (1, RAW), [1, TEXT]),
        (Picture, Picture(data=RAW), {"data": TEXT, "small": None}),
        (Picture, Picture(data=b"", small=Picture(data=RAW)), {"data": "", "small": {"data": TEXT, "small": None}}),
        (Held, Held(Picture(data=RAW), RAW), {"picture": {"data": TEXT, "small": None}, "raw": TEXT}),
        (Typed, {"type": RAW, "config": RAW, "serialization": [RAW]},
         {"type": TEXT, "config": TEXT, "serialization": [TEXT]}),
        (Pair, Pair("a", RAW), ["a", TEXT]), (Root, Root([RAW]), [TEXT]),
        (Pet, Dog(raw=RAW), {"kind": "dog", "raw": TEXT}), (list[Pet], [Cat(raw=RAW)], [{"kind": "cat", "raw": TEXT}]),
        (Annotated[bytes, Field(max_length=2, description="x")], RAW, TEXT),
        (frozenset[bytes], frozenset([RAW]), [TEXT]), (Mapping[str, Picture | bytes], {"a": RAW}, {"a": TEXT}),
    ],
)  # fmt: skip
def test_bytes_are_base64_wherever_they_are(kind: Any, value: object, written: object) -> None:
    adapter = adapter_of(kind)
    document = adapter.dump_json(value, by_alias=True)
    assert pydantic.TypeAdapter(object).validate_json(document) == written
    assert adapter.validate_json(document) == value
    assert adapter.validate_python(value) == value, "from Python they are what they are"
    for mode in ("validation", "serialization"):
        told = str(json_schema_of(adapter, mode))  # type: ignore[arg-type]
        assert "'contentEncoding': 'base64'" in told
        assert "binary" not in told


@pytest.mark.parametrize("text", ["//4=", "//4", "__4=", "__4", " //\n4=", "\t//4="])
def test_both_alphabets_are_read_with_padding_and_without(text: str) -> None:
    assert adapter_of(bytes).validate_json(f'"{text}"'.replace("\n", "\\n").replace("\t", "\\t")) == RAW


@pytest.mark.parametrize("text", ["?", "a", "abcde", "//4=x", "ä", "a" * 1_001])
def test_what_is_no_base64_is_said(text: str) -> None:
    with pytest.raises(pydantic.ValidationError, match="Input should be bytes as base64 text"):
        adapter_of(list[bytes]).validate_json(f'["{text}"]')


class Hex(BaseModel):
    model_config = ConfigDict(val_json_bytes="hex", ser_json_bytes="hex")

    raw: bytes


class Plain(BaseModel):
    model_config = ConfigDict(val_json_bytes="utf8", ser_json_bytes="utf8")

    raw: bytes


Reversed = Annotated[
    bytes,
    BeforeValidator(lambda value: bytes(reversed(value.encode())) if isinstance(value, str) else value),
    PlainSerializer(lambda value: value[::-1].decode(), when_used="json"),
]


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        (Hex, '{"raw":"fffe"}'), (list[Hex], '[{"raw":"fffe"}]'), (Plain, '{"raw":"abc"}'), (Reversed, '"abc"'),
        (pydantic.Base64Bytes, f'"{TEXT}"'), (str, '"abc"'),
    ],
)  # fmt: skip
def test_what_its_author_says_holds(kind: Any, document: str) -> None:
    ours, theirs = adapter_of(kind), pydantic.TypeAdapter(kind)
    assert ours.validate_json(document) == theirs.validate_json(document)
    assert ours.dump_json(ours.validate_json(document)) == document.encode()
    assert json_schema_of(ours, "validation") == theirs.json_schema()


def test_pydantics_own_reading_of_a_model_is_left_alone() -> None:
    adapter_of(Held)
    assert pydantic.TypeAdapter(Held).validate_json('{"picture": {"data": "abc"}}').picture.data == b"abc"
    assert Picture.model_validate_json('{"data": "abc"}').data == b"abc"


def test_defaults_in_a_schema_are_written_so_too() -> None:
    class Framed(BaseModel):
        picture: Picture = Picture(data=RAW)
        raw: bytes = RAW
        noise: float = float("nan")

    properties: Any = json_schema_of(adapter_of(Framed), "validation")["properties"]
    assert properties["raw"]["default"] == TEXT


@tool(isolation="thread")
def turn(picture: Picture, raw: bytes = RAW, more: list[bytes] = Field(default_factory=list)) -> Held:  # noqa: B008
    """Turn it."""
    return Held(Picture(data=picture.data[::-1]), raw + b"".join(more))


async def test_a_tool_takes_and_gives_them() -> None:
    async with Runtime(Settings(model="scripted/model", script=["x"]), tools=[turn]) as runtime:
        turned = await runtime.call_tool("turn", {"picture": {"data": TEXT}, "more": ["AA=="]})
        wrong = (await runtime.call_tool("turn", {"picture": {"data": "no base64!"}})).failure
    assert turned.data == {
        "picture": {"data": "/v8=", "small": None}, "raw": base64.b64encode(RAW + b"\x00").decode(),
    }  # fmt: skip
    assert wrong is not None
    assert (wrong.code, wrong.field) == ("invalid_arguments", "picture.data")
    assert "Input should be bytes as base64 text (RFC 4648), such as aGVsbG8=" in wrong.message
    parameters: Any = turn.definition.parameters
    assert parameters["properties"]["raw"] == {"type": "string", "contentEncoding": "base64", "default": TEXT}


async def test_an_answer_of_a_type_has_them() -> None:
    assert output_type(Picture).spec.schema["properties"]["data"]["contentEncoding"] == "base64"  # type: ignore[union-attr, index]
    script = [ScriptedTurn(f'{{"data": "{TEXT}"}}')]
    async with Runtime(Settings(model="scripted/model", script=script)) as runtime:
        reply = await runtime.ask("Draw.", output=Picture)
    assert reply.output == Picture(data=RAW)
