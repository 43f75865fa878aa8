"""Answers by a JSON Schema, from a server that writes them, and over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard import RequestEnded, Runtime, Settings, UsageError, json_schema
from callboard.actors.testing.wire_double import Turn, WireDouble

PLACE = json_schema(
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
    name="place",
)


def settings(double: WireDouble, journal: Path | None = None) -> Settings:
    return Settings(model="openai-compatible/any", base_url=double.base_url(), api_key="k", journal=journal)


def test_an_answer_that_fits_is_plain_data() -> None:
    with WireDouble([Turn('{"city": "Oslo"}')]) as double, Runtime(settings(double)) as runtime:
        assert runtime.ask_sync("Where?", output=PLACE).output == {"city": "Oslo"}
        asked = double.traffic().bodies[0]["response_format"]["json_schema"]
        assert asked["schema"]["required"] == ["city"]


def test_one_that_does_not_is_asked_for_again_and_the_model_reads_why() -> None:
    turns = [Turn('{"town": "Oslo"}'), Turn('{"city": "Oslo"}')]
    with WireDouble(turns) as double, Runtime(settings(double)) as runtime:
        assert runtime.ask_sync("Where?", output=PLACE).output == {"city": "Oslo"}
        assert "'city' is a required property" in double.traffic().bodies[1]["messages"][-1]["content"]
    with WireDouble([Turn("{}")] * 9) as double, Runtime(settings(double)) as runtime, pytest.raises(RequestEnded):
        runtime.ask_sync("Where?", output=PLACE)


def test_what_is_no_object_comes_as_it_is() -> None:
    with WireDouble([Turn('{"value": [1, 2]}')]) as double, Runtime(settings(double)) as runtime:
        numbers = json_schema({"type": "array", "items": {"type": "integer"}})
        assert runtime.ask_sync("Which?", output=numbers).output == [1, 2]


def test_the_journal_has_the_answer_without_being_told_the_type(tmp_path: Path) -> None:
    with WireDouble([Turn('{"city": "Oslo"}')]) as double:
        with Runtime(settings(double, tmp_path / "j.db")) as runtime:
            reply = runtime.ask_sync("Where?", output=PLACE)
        with Runtime(settings(double, tmp_path / "j.db")) as runtime:
            assert runtime.result_sync(reply.request_id).output == {"city": "Oslo"}


def test_what_is_no_schema_is_refused() -> None:
    with pytest.raises(UsageError, match="a JSON Schema is an object"):
        json_schema([])  # type: ignore[arg-type]
