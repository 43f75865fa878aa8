"""Settings: a bad value names its field, a key is never told, the environment is read when they are made."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.runtime import Runtime, Wiring, route_for
from callboard.actors.settings import OFFLINE_MODEL, Settings
from callboard.protocol.errors import UsageError
from callboard.providers.rate_limit import RateLimits

KEY = "sk-very-secret-key"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("CALLBOARD_") or name.endswith("_API_KEY"):
            monkeypatch.delenv(name)


def test_the_defaults_need_no_key_and_no_network() -> None:
    settings = Settings()
    assert (settings.model, settings.provider, settings.workspace) == (OFFLINE_MODEL, "offline", None)
    with Runtime(settings):
        pass


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "gpt-5"),
        ("model", "/gpt-5"),
        ("model", 7),
        ("workspace", "/there/is/no/such/folder"),
        ("request_timeout_seconds", 0),
        ("request_timeout_seconds", "soon"),
        ("max_steps", 0),
        ("token_budget", -1),
        ("cost_budget", 0.0),
        ("max_attempts", 0),
        ("max_concurrent_requests", 0),
        ("process_workers", 0),
        ("worker_memory_bytes", 1),
        ("tool_fallback", "perhaps"),
        ("stream_idle_timeout_seconds", -1.0),
        ("no_such_setting", 1),
    ],
)
def test_a_bad_value_is_a_usage_error_that_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"setting '{field}"):
        Settings(**{field: value})


def test_a_misspelt_setting_is_told_what_was_meant() -> None:
    wrong: dict[str, Any] = {"modle": "openai/gpt-5", "max_stepz": 3, "colour": KEY}
    with pytest.raises(UsageError) as caught:
        Settings(**wrong)
    assert str(caught.value) == (
        "setting 'modle': there is no such setting; did you mean 'model'?; "
        "setting 'max_stepz': there is no such setting; did you mean 'max_steps'?; "
        "setting 'colour': there is no such setting"
    )


@given(st.sampled_from(sorted(Settings.model_fields)), st.one_of(st.text(), st.integers(), st.none(), st.binary()))
def test_no_value_whatever_raises_anything_else(field: str, value: Any) -> None:
    with contextlib.suppress(UsageError):
        Settings(**{field: value})


@pytest.mark.parametrize(
    "values",
    [{"api_key": KEY, "model": "bad"}, {"openai_key": KEY}, {"api_key": [KEY]}, {"model": KEY}, {"base_url": [KEY]}],
)
def test_an_error_never_tells_a_value(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        Settings(**values)
    assert KEY not in f"{caught.value!r}{caught.value}{caught.value.__cause__}{caught.value.__context__}"


def test_a_key_is_in_no_repr_of_settings_parts_or_runtime() -> None:
    settings = Settings(model="openai/gpt-5", api_key=KEY)
    runtime = Runtime(settings)
    route = route_for(settings, settings.model, RateLimits(lambda: 0.0, {}))
    for shown in (
        settings,
        runtime,
        vars(runtime),
        Wiring(settings, ()),
        route,
        vars(route.provider),
    ):
        assert KEY not in f"{shown!r} {shown}"
    assert settings.key_for("openai") == KEY


def test_where_keys_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(model="openai/gpt-5")
    assert (settings.key_source("openai"), settings.key_for("openai")) == ("", None)
    monkeypatch.setenv("OPENAI_API_KEY", "own")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "other")
    assert (settings.key_source("openai"), settings.key_for("openai")) == ("OPENAI_API_KEY", "own")
    monkeypatch.setenv("CALLBOARD_API_KEY", "ours")
    assert (settings.key_source("openai"), settings.key_for("openai")) == ("CALLBOARD_API_KEY", "ours")
    assert settings.key_for("anthropic") == "other", "the key of another provider is not sent there"
    given_key = Settings(model="openai/gpt-5", api_key="given")
    assert (given_key.key_source("openai"), given_key.key_for("openai")) == ("api_key", "given")
    assert given_key.key_for("anthropic") == "other"


def test_the_environment_is_read_when_settings_are_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CALLBOARD_MODEL", "openai/from-environment")
    monkeypatch.setenv("CALLBOARD_WORKSPACE", str(tmp_path))
    monkeypatch.setenv("CALLBOARD_CONFIG_DIR", str(tmp_path / "config"))
    settings = Settings()
    assert settings.model == "openai/from-environment"
    assert settings.workspace == tmp_path.resolve()
    assert settings.copilot_token_file == tmp_path / "config" / "copilot-token"
    assert Settings(model="openai/given").model == "openai/given"


def test_the_config_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert Settings().config_dir == tmp_path / "callboard"


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().max_steps = 2


def test_an_unknown_provider_or_a_missing_key_is_told_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="nowhere"):
        Runtime(Settings(model="nowhere/model"))
    with pytest.raises(UsageError, match="OPENAI_API_KEY"):
        Runtime(Settings(model="openai/gpt-5"))
