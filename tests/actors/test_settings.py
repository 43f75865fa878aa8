"""Settings: a bad value names its field, a key is never told, the environment is read when they are made."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.mcp.mcp_servers import McpServer, OAuth
from callboard.actors.models.routing import Router
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.wiring import Wiring
from callboard.protocol.errors import UsageError
from callboard.protocol.model import Sampling
from callboard.protocol.policy import Policy, Rule
from callboard.providers.catalog import FREE, Catalog, ModelInfo, Prices
from callboard.providers.rate_limit import RateLimits

KEY = "sk-very-secret-key"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("CALLBOARD_") or name.endswith("_API_KEY"):
            monkeypatch.delenv(name)


def test_the_defaults_need_no_key_and_no_network() -> None:
    settings = Settings()
    assert (settings.model, settings.provider, settings.workspace) == ("", "", None)
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
        ("token_budget", 0),
        ("token_budget", 2.5),
        ("token_budget", True),
        ("token_budget", float("nan")),
        ("cost_budget", 0.0),
        ("cost_budget", -0.5),
        ("cost_budget", float("nan")),
        ("cost_budget", float("inf")),
        ("cost_budget", True),
        ("context_tokens", 0),
        ("context_tokens", True),
        ("context_tokens", 10**12),
        ("request_timeout_seconds", float("inf")),
        ("max_steps", True),
        ("sampling", 0.5),
        ("sampling", {"temperatur": 0.5}),
        ("sampling", {"temperature": 2.5}),
        ("sampling", Sampling(temperature=float("nan"))),
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


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        (Sampling(temperature=3.0), "temperature must be a number from 0 to 2, got 3.0"),
        (Sampling(top_p=-1.0), "top_p must be a number from 0 to 1"),
        (Sampling(max_output_tokens=0), "max_output_tokens must be a whole number from 1"),
        (Sampling(stop="END"), "stop must be a tuple of texts"),  # type: ignore[arg-type]
        ({"seed": 0.5, "temperature": True}, "temperature must be .* got True, seed must be a whole number"),
        ({"temprature": 1}, "there is no 'temprature' in it; did you mean 'temperature'"),
    ],
)
def test_a_bad_sampling_value_names_its_field(sampling: Any, says: str) -> None:
    with pytest.raises(UsageError, match=f"^setting 'sampling': .*{says}"):
        Settings(sampling=sampling)


def test_sampling_can_be_given_by_its_fields() -> None:
    by_name: Any = {"temperature": 0.5, "stop": ["END"], "max_output_tokens": 100}
    assert Settings(sampling=by_name).sampling == Sampling(0.5, max_output_tokens=100, stop=("END",))


def test_a_token_budget_that_no_question_fits_is_refused() -> None:
    prompt = "Be brief. " * 100
    with pytest.raises(UsageError, match=r"token_budget of 100: .* at least \d{3}"):
        Runtime(Settings(model="scripted/m", instructions=prompt, token_budget=100))
    Runtime(Settings(model="scripted/m", instructions=prompt, token_budget=600))


PRICED = Catalog({"openai/own": ModelInfo(prices=Prices(1e-6, 2e-6)), "openai-compatible/*": ModelInfo(prices=FREE)})


@pytest.mark.parametrize(
    ("model", "fallbacks", "unknown"),
    [
        ("openai/no-such-model", (), "openai/no-such-model"),
        ("openai-compatible/m", (), "openai-compatible/m"),
        ("openai/gpt-5", ("openai/no-such-model",), "openai/no-such-model"),
        ("ollama/m", ("openai/gpt-5", "openai/other"), "openai/other"),
    ],
)
def test_a_cost_budget_that_cannot_be_kept_is_refused(
    monkeypatch: pytest.MonkeyPatch, model: str, fallbacks: tuple[str, ...], unknown: str
) -> None:
    given_: dict[str, Any] = {"model": model, "fallback_models": fallbacks, "api_key": "k", "base_url": "http://h/v1"}
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(UsageError) as caught:
        Runtime(Settings(cost_budget=1.0, **given_))
    assert unknown in str(caught.value)
    assert "Catalog({" in str(caught.value), "it says what to do"
    Runtime(Settings(**given_))  # without a budget any model can be asked


@pytest.mark.parametrize("model", ["openai/gpt-5", "openai/own", "openai-compatible/m", "ollama/m", "offline/x"])
def test_a_cost_budget_that_can_be_kept_is_taken(model: str) -> None:
    settings = Settings(model=model, api_key="k", base_url="http://h/v1", cost_budget=1.0, catalog=PRICED)
    options = Wiring(settings, ()).model.options
    assert options.cost_budget == 1.0
    assert options.input_price is not None
    assert options.output_price is not None


def test_a_step_is_estimated_by_the_dearest_model_that_may_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    prices = Catalog({"openai/a": ModelInfo(prices=Prices(1.0, 9.0)), "openai/b": ModelInfo(prices=Prices(5.0, 2.0))})
    for fallbacks, expected in (((), (1.0, 9.0)), (("openai/b",), (5.0, 9.0)), (("ollama/free",), (1.0, 9.0))):
        settings = Settings(model="openai/a", fallback_models=fallbacks, catalog=prices)
        options = Wiring(settings, ()).model.options
        assert (options.input_price, options.output_price) == expected


def test_a_misspelt_setting_is_told_what_was_meant() -> None:
    wrong: dict[str, Any] = {"modell": "openai/gpt-5", "max_stepz": 3, "colour": KEY}
    with pytest.raises(UsageError) as caught:
        Settings(**wrong)
    assert str(caught.value) == (
        "setting 'modell': there is no such setting; did you mean 'model'?; "
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
    route = Router(settings, RateLimits(lambda: 0.0, {})).route(settings.model)
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


def test_settings_as_json_are_whole_and_hold_no_secret(tmp_path: Path) -> None:
    programs = McpServer(command="x", env={"KEY": KEY}, cwd=tmp_path, tools={"*": "read"})
    pages = McpServer(
        url="https://example.com/mcp", headers={"Authorization": f"Bearer {KEY}"}, oauth=OAuth("me", client_secret=KEY)
    )
    settings = Settings(
        model="openai/gpt-6.1-sol",
        api_key=KEY,
        sampling=Sampling(temperature=0.5, stop=("x",)),
        policy=Policy({"read": {"inside": "allow"}}, rules=(Rule("x*", path="a", decision="deny"),)),
        mcp_servers={"programs": programs, "pages": pages},
    )
    text = settings.model_dump_json()
    assert KEY not in text + str(settings.model_dump()) + repr(settings)
    document = json.loads(text)
    assert document.keys() == set(Settings.model_fields)
    assert document["policy"] == {
        "trust": "balanced",
        "mode": "build",
        "rules": [{"tool": "x*", "decision": "deny", "path": "a"}],
        "table": {"read": {"inside": "allow"}},
    }
    assert (document["sampling"]["temperature"], document["sampling"]["stop"]) == (0.5, ["x"])
    servers = document["mcp_servers"]
    assert (servers["programs"]["env"], servers["programs"]["cwd"]) == ({"KEY": "***"}, str(tmp_path))
    assert (servers["programs"]["tools"], servers["pages"]["headers"]) == ({"*": "read"}, {"Authorization": "***"})


def test_a_test_writes_nothing_into_the_users_folders() -> None:
    settings = Settings()
    assert not settings.config_dir.is_relative_to(Path.home() / ".config")
    assert not settings.state_dir.is_relative_to(Path.home() / ".local")
    assert not settings.config_dir.exists(), "nor what another test has written"
