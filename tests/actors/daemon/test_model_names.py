"""Which model a client means."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.running_daemon import RunningDaemon, running_daemon

from callboard.actors.connection import Connection
from callboard.actors.daemon.api_errors import ApiError
from callboard.actors.daemon.daemon import Daemon
from callboard.actors.daemon.daemon_settings import DaemonPlan, DaemonSettings, TenantPlan
from callboard.actors.daemon.model_names import listed_models, model_of, shown_name
from callboard.actors.settings import Settings


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    for name in ("OPENAI_API_KEY", "GROQ_API_KEY", "CALLBOARD_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MISTRAL_API_KEY", "a-key-of-mistral")
    settings = Settings(
        model="anthropic/claude-sonnet-5-5",
        api_key="k",
        fallback_models=("openrouter/vendor/model",),
        connections={"openrouter": Connection(api_key="k")},
        state_dir=tmp_path,
    )
    own = DaemonSettings(models={"fast": "groq/small"})
    plan = DaemonPlan(own, (TenantPlan("default", settings),), tmp_path, tmp_path / "callboard.toml", is_empty=True)
    return Daemon(lambda: plan)


MEANT = {
    "fast": "groq/small",
    "anthropic/claude-sonnet-5-5": "anthropic/claude-sonnet-5-5",
    "claude-sonnet-5-5": "anthropic/claude-sonnet-5-5",
    "vendor/model": "openrouter/vendor/model",
    "anthropic/another": "anthropic/another",
    "openrouter/any/other": "openrouter/any/other",
    "mistral/large": "mistral/large",
}


@pytest.mark.parametrize("name", MEANT)
def test_a_name_is_a_model(name: str, daemon: Daemon) -> None:
    assert model_of(daemon, daemon.tenants["default"], name) == MEANT[name]


def test_no_name_is_the_model_of_the_settings(daemon: Daemon) -> None:
    assert model_of(daemon, daemon.tenants["default"], None) == "anthropic/claude-sonnet-5-5"
    assert shown_name(daemon.tenants["default"], None) == "anthropic/claude-sonnet-5-5"
    assert shown_name(daemon.tenants["default"], "fast") == "fast"


def test_where_no_one_names_a_model_the_request_is_wrong(daemon: Daemon) -> None:
    with pytest.raises(ApiError, match="no model is named") as caught:
        model_of(daemon, daemon.tenants["default"], "")
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, "missing_required_parameter", "model")


@pytest.mark.parametrize(
    "name", ["another", "openai/gpt-6.1-sol", "groq/small", "mistral/", "nowhere/x", "/", "x" * 9_999]
)
def test_other_names_are_unknown(name: str, daemon: Daemon) -> None:
    with pytest.raises(ApiError) as caught:
        model_of(daemon, daemon.tenants["default"], name)
    assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")
    assert len(caught.value.message) < 300


def test_aliases_and_the_tenants_own_are_listed(daemon: Daemon) -> None:
    listed = listed_models(daemon, daemon.tenants["default"])
    assert list(listed) == ["fast", "anthropic/claude-sonnet-5-5", "openrouter/vendor/model"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/requests"])
def test_a_daemon_without_a_model_says_how_to_name_one(nameless: RunningDaemon, path: str) -> None:
    hello = [{"role": "user", "content": "Hello"}]
    body = {"input": "Hello"} if "responses" in path else {"messages": hello, "max_tokens": 5}
    answer = nameless.post(path, {"prompt": "Hello"} if path.startswith("/api") else body)
    assert answer.status_code == 400
    said = answer.json()["error"]["message"]
    assert said == "no model is named: name one in the request, or start the daemon with --model or CALLBOARD_MODEL"


@pytest.fixture(scope="module")
def nameless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with running_daemon(tmp_path_factory.mktemp("nameless")) as daemon:
        yield daemon
