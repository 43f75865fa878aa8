"""The names that everybody builds on, and what they need."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from callboard.protocol.content import UserMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.model import ModelRequest
from callboard.providers.azure import azure_openai
from callboard.providers.http_adapters import ADAPTERS
from callboard.providers.openai.dialects import SERVERS
from callboard.providers.provider_registry import PROVIDERS, adapter_for, provider_for, split_model
from callboard.providers.provider_table import ROWS, ProviderRow


@pytest.mark.parametrize("name", sorted(set(PROVIDERS) - {"offline", "scripted"}))
def test_every_adapter_decodes_without_address_and_key(name: str) -> None:
    """Recorded answers can be read by anybody; what cannot be asked says so when it is asked."""
    events = adapter_for(name).decoder(status=500, headers={}, streaming=True).finish()
    assert [type(event).__name__ for event in events] == ["Error"]


def test_a_request_to_nowhere_says_what_to_give() -> None:
    with pytest.raises(UsageError, match="base_url"):
        adapter_for("openai-compatible").encode(ModelRequest("m", (UserMessage.of("hi"),)))
    with pytest.raises(UsageError, match="base_url"):
        provider_for("openai-compatible/m")


@pytest.mark.parametrize("name", ["openai", "anthropic", "gemini", "bedrock", "vertex", "ollama", "openai-compatible"])
@pytest.mark.parametrize("behind", ["?key=secret-of-mine", "#part"])
def test_an_address_with_a_query_is_refused_and_not_shown(name: str, behind: str) -> None:
    with pytest.raises(UsageError, match=r"base_url must end with a path.* leave out") as refused:
        adapter_for(name, base_url=f"https://host.example/v1{behind}").encode(
            ModelRequest("m", (UserMessage.of("hi"),))
        )
    assert "secret" not in str(refused.value)


# The table.

ROOT = Path(__file__).resolve().parents[2]


def test_every_row_has_an_adapter_unless_it_is_local() -> None:
    assert set(ADAPTERS) == {row.name for row in ROWS.values() if not row.is_local}
    for name in (azure_openai.NAME, azure_openai.RESPONSES_NAME):
        assert ROWS[name].key_variable == azure_openai.KEY_VARIABLE
        assert ROWS[name].variables["base_url"] == (azure_openai.ENDPOINT_VARIABLE,)


def test_every_row_says_what_it_is_and_where_its_address_is_documented() -> None:
    extras = ConfigParser()
    extras.read(ROOT / "setup.cfg")
    assert set(SERVERS) <= set(ROWS)
    for row in ROWS.values():
        assert row.what, row
        assert bool(row.source) or not row.address, f"{row.name}: which page names {row.address}?"
        assert not row.extra or extras.has_option("options.extras_require", row.extra)
        names = {row.key_variable, *(name for names in row.variables.values() for name in names)} - {""}
        assert all(re.fullmatch(r"[A-Z][A-Z0-9_]+", name) for name in names)
        assert not row.address or row.address.startswith(("https://", "http://localhost:"))


#: What docs/providers.md calls the APIs.
APIS = {
    "OpenAI Chat Completions": "Chat",
    "OpenAI Responses": "Responses",
    "Anthropic Messages": "Messages",
    "Gemini generateContent": "Gemini",
    "Bedrock Converse": "Converse",
    "none": "-",
}


def _cells(row: ProviderRow) -> str:
    """Its addresses and extras are told by `callboard models --providers`."""
    key = f"`{row.key_variable}`" if row.key_variable else "a login" if row.sign_in else "-"
    apis = ", ".join(APIS[each] for each in row.api.split(", "))
    return f"|`{row.name}`|{key}|{apis}|{row.what}|"


def test_the_documented_table_is_this_one() -> None:
    """docs/providers.md, "What there is"."""
    page = (ROOT / "docs" / "providers.md").read_text()
    section = page.partition("## What there is\n")[2].partition("\n## ")[0]
    documented = [line for line in section.splitlines() if line.startswith("|`")]
    assert documented == [_cells(row) for row in ROWS.values()]


@pytest.mark.parametrize("name", sorted(name for name, row in ROWS.items() if row.key_variable))
def test_a_missing_key_is_named_before_anything_is_sent(name: str) -> None:
    row = ROWS[name]
    address = None if row.address else "https://own.example.org"
    options = {"region": "us-east-1"} if name == "bedrock" else {}
    if row.extra:  # there is another way to sign in
        provider_for(f"{name}/m", base_url=address, **options)
    else:
        with pytest.raises(UsageError, match=f"{name} needs a key: set the environment variable {row.key_variable}"):
            provider_for(f"{name}/m", base_url=address, **options)
    provider_for(f"{name}/m", base_url=address, api_key="k", **options)


def test_an_unknown_provider_and_a_missing_model_are_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"no provider 'azur' \(in 'azur/m'\); did you mean 'azure/m'\?"):
        split_model("azur/m")
    with pytest.raises(UsageError, match=r"no provider 'nowhere' .*known providers are: .*azure.*bedrock.*vertex"):
        split_model("nowhere/m")
    with pytest.raises(UsageError, match="names no model; write vertex/MODEL"):
        split_model("vertex/")
    with pytest.raises(UsageError, match="no adapter 'offline'"):
        adapter_for("offline")
