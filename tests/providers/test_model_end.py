"""When a model goes out of service, and the names of models in what we show (docs/wire.md quirk 83)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from support.caught import Reply, caught
from support.offenders import no_offenders, places

from callboard.providers.catalog import Catalog
from callboard.providers.example_models import CHEAPEST, EXAMPLES, example
from callboard.providers.local.offline import Offline
from callboard.providers.model_end import day_in, end_of_service
from callboard.providers.provider_registry import PROVIDERS, provider_for, split_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("document", "day"),
    [
        ({"id": "m", "object": "model", "shutdown_date": "2026-12-11"}, date(2026, 12, 11)),
        ({"object": "list", "data": [{"id": "m", "shutdown_date": "2026-12-11"}]}, date(2026, 12, 11)),
        ({"data": [{"id": "m", "deprecation": "2026-11-30T12:00:00Z"}]}, date(2026, 11, 30)),
        ({"data": [{"id": "m", "expiration_date": "2027-01-02"}]}, date(2027, 1, 2)),
        ({"data": [{"id": "other", "shutdown_date": "2026-12-11"}, {"id": "m", "shutdown_date": None}]}, None),
        ({"data": [{"id": "m", "shutdown_date": "soon"}, {"id": "m", "shutdown_date": 7}, "m", None]}, None),
        ({"id": "m"}, None),
        (["m"], None),
        (None, None),
    ],
)
def test_quirk_83_where_a_list_of_models_says_when_one_ends(document: Any, day: date | None) -> None:
    assert day_in(document, "m") == day


@pytest.mark.parametrize(
    ("replies", "day", "paths"),
    [
        ([Reply(b'{"id":"m","shutdown_date":"2026-12-11"}')], date(2026, 12, 11), ["/v1/models/m"]),
        (
            [Reply(b'{"error":"no"}', 404), Reply(b'{"data":[{"id":"m","deprecation":"2026-12-11T00:00:00Z"}]}')],
            date(2026, 12, 11),
            ["/v1/models/m", "/v1/models"],
        ),
        ([Reply(b"<html>", 200)], None, ["/v1/models/m", "/v1/models"]),
    ],
)
def test_the_server_is_asked_for_the_model_and_then_for_its_list(
    replies: list[Reply], day: date | None, paths: list[str]
) -> None:
    async def talk(url: str) -> date | None:
        provider, name = provider_for("openai-compatible/m", base_url=f"{url}/v1")
        try:
            return await end_of_service(provider, name)
        finally:
            await provider.aclose()

    with caught(replies) as server:
        assert asyncio.run(talk(server.url)) == day
    assert [request.path for request in server.requests] == paths


def test_a_server_that_cannot_be_asked_is_no_fault() -> None:
    async def talk() -> list[date | None]:
        gone, name = provider_for("openai-compatible/m", base_url="http://127.0.0.1:9/v1")
        try:
            return [await end_of_service(gone, name), await end_of_service(Offline(), "m")]
        finally:
            await gone.aclose()

    assert asyncio.run(talk()) == [None, None]


# The names in what we show: current ones, from one table.

#: A hosted model as users write it. Models of one's own, and names of the form provider/MODEL, are no promise.
_NAMED = re.compile(r"\b(openai|anthropic|gemini|openrouter|vertex|bedrock)/(?!v\d|api/)([a-z][\w.:/-]*\d[\w.:-]*)")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.py"))]
SOURCES = [path for layer in ("actors", "protocol") for path in sorted((ROOT / layer).rglob("*.py"))]


def test_quirk_83_examples_name_the_models_of_the_one_table() -> None:
    known = {f"{provider}/{model}" for table in (EXAMPLES, CHEAPEST) for provider, model in table.items()}
    known |= {f"vertex/{EXAMPLES['gemini']}", "openai/text-embedding-3-small"}
    named = [each for path in (*PAGES, *SOURCES) for each in models_named_in(path)]
    assert len(named) > 20
    no_offenders(f"{where} names {model}" for where, model in named if model not in known)


def models_named_in(path: Path) -> Iterator[tuple[str, str]]:
    if path.name == "wire.md" or "testing" in path.parts:
        return  # facts about servers, and made-up models
    text = path.read_text()
    if path.name == "structured_output.md":
        text = re.sub(r"(?m)^\|.*$", "", text)  # its table says what each generation of models takes
    for where, found in places(_NAMED, path, text):
        if ".py" not in found[2]:
            yield where, found[0].rstrip(".:")


def test_the_models_of_the_table_are_in_the_price_list() -> None:
    """So they exist: the list is kept up by others."""
    hosted = {name: model for name, model in EXAMPLES.items() if name not in ("azure", "ollama")}
    for provider, model in [*hosted.items(), *CHEAPEST.items()]:
        assert split_model(f"{provider}/{model}") == (provider, model)
        assert Catalog().info(provider, model).prices is not None, f"{provider}/{model}"
    assert set(EXAMPLES) | set(CHEAPEST) <= set(PROVIDERS)
    assert example("openai") == f"openai/{EXAMPLES['openai']}"
