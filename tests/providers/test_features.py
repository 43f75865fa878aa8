"""What docs/provider_details.md says of each adapter is what it takes; and nothing is left out without a word."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.features import APIS, DROPPED, REQUESTS, cell, features_table, render, servers_table

from callboard.providers.openai.dialects import SERVERS
from callboard.providers.provider_registry import adapter_for

PAGE = Path(__file__).parents[2] / "docs" / "provider_details.md"


def test_the_tables_of_the_page_are_true() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert features_table() in page
    assert servers_table() in page
    assert render(page) == page, "run: PYTHONPATH=tests python -m support.features docs/provider_details.md"


@pytest.mark.parametrize("feature", REQUESTS)
def test_no_api_drops_a_feature_in_silence(feature: str) -> None:
    for column, api in APIS.items():
        assert cell(api.adapter, api.model, feature) != DROPPED, column


@pytest.mark.parametrize("server", SERVERS)
def test_no_server_drops_a_feature_in_silence(server: str) -> None:
    adapter = adapter_for(server, base_url="http://localhost:1/v1")
    for feature in REQUESTS:
        assert cell(adapter, "model", feature) != DROPPED, feature
