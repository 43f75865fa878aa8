"""`callboard doctor`, `callboard login` and `callboard tools`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.caught import Reply, caught
from support.owners import NOBODY, needs_root
from support.shared_double import shared_double
from support.wire import sse

from callboard.actors.cli.login import sign_in
from callboard.actors.models.routing import Router
from callboard.actors.settings import Settings
from callboard.actors.testing.wire_double import RawAnswer, Turn
from callboard.protocol.errors import ProviderError, UsageError
from callboard.providers.adapter import HttpAnswer, WireRequest
from callboard.providers.copilot.copilot_login import FileStore
from callboard.providers.provider_table import ROWS
from callboard.providers.rate_limit import RateLimits

MODEL = "openai-compatible/any"
SECRET = "sk-very-secret"


def test_the_doctor_says_what_is_set_and_that_the_model_answers(callboard: Any) -> None:
    callboard.environment["CALLBOARD_API_KEY"] = SECRET
    with shared_double([Turn("ok")]) as server:
        ran = callboard.run("doctor", "--model", MODEL, "--base-url", server.base_url())
        asked, *_ = server.traffic().bodies  # the others ask when the model goes out of service
    assert ran.status == 0, ran.err
    assert f"ok   {MODEL}" in ran.out
    assert "CALLBOARD_API_KEY is set" in ran.out
    assert "'ok' in" in ran.out
    assert "tools run in" in ran.out
    assert "ok   a tool that declares risk='read' was tried, and ran" in ran.out
    assert asked["max_tokens"] == 16
    assert SECRET not in ran.out + ran.err


def test_the_doctor_says_that_no_model_is_chosen(callboard: Any) -> None:
    ran = callboard.run("doctor")
    assert ran.status == 0, ran.err
    assert "note:   this asks no model; to try one: callboard doctor --model PROVIDER/MODEL" in ran.out


def test_the_doctor_says_what_to_do_and_fails_when_the_model_does_not_answer(callboard: Any) -> None:
    callboard.environment["CALLBOARD_API_KEY"] = SECRET
    refusal = RawAnswer({"error": {"message": f"bad key {SECRET}", "code": "invalid_api_key"}}, 401)
    with shared_double([refusal] * 2) as server:
        ran = callboard.run("doctor", "--model", MODEL, "--base-url", server.base_url())
        assert len(server.traffic().bodies) == 1
    assert ran.status == 1
    assert "HTTP 401" in ran.out
    assert "check the key in CALLBOARD_API_KEY" in ran.sentence


@pytest.mark.parametrize(("days", "warned"), [(30, True), (-1, True), (200, False), (None, False)])
def test_quirk_83_the_doctor_warns_of_a_model_that_goes_out_of_service(
    callboard: Any, days: int | None, warned: bool
) -> None:
    end = None if days is None else str((datetime.now(UTC) + timedelta(days=days)).date())
    chunk = {"choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}]}
    replies = [
        Reply(sse([chunk], done=True), headers={"content-type": "text/event-stream"}),
        Reply(json.dumps({"id": "any", "object": "model", "shutdown_date": end}).encode()),
    ]
    with caught(replies) as server:
        ran = callboard.run("doctor", "--model", MODEL, "--base-url", f"{server.url}/v1")
    assert ran.status == 0, ran.err
    assert ("goes out of service on" in ran.out) is warned
    assert not warned or (str(end) in ran.out and "choose another with --model" in ran.out)


def test_the_providers_are_listed(callboard: Any) -> None:
    shown = callboard.run("models", "--providers").out.splitlines()
    assert shown[0].split()[:2] == ["PROVIDER", "KEY"]
    assert [line.split()[0] for line in shown[1:]] == list(ROWS)
    assert any("AWS_BEARER_TOKEN_BEDROCK" in line for line in shown)
    bedrock = callboard.run("models", "bedrock").out
    assert "  wire API: Bedrock Converse\n" in bedrock
    assert "  key: AWS_BEARER_TOKEN_BEDROCK is not set\n" in bedrock
    listed = json.loads(callboard.run("models", "--providers", "--json").out)
    assert [row["name"] for row in listed] == list(ROWS)
    (azure,) = (row for row in listed if row["name"] == "azure")
    assert azure["variables"] == {
        "base_url": ["AZURE_OPENAI_ENDPOINT"],
        "api_version": ["OPENAI_API_VERSION"],
        "token": ["AZURE_OPENAI_AD_TOKEN"],
    }


@pytest.mark.parametrize(
    ("environment", "model", "path", "header"),
    [
        ({"AZURE_OPENAI_API_KEY": "a", "OPENAI_API_VERSION": "2024-10-21"}, "azure/dep",
         "/openai/deployments/dep/chat/completions?api-version=2024-10-21", ("api-key", "a")),
        ({"AZURE_OPENAI_API_KEY": "a"}, "azure/dep", "/openai/v1/chat/completions", ("api-key", "a")),
        ({"AZURE_OPENAI_API_KEY": "a", "AZURE_OPENAI_AD_TOKEN": "eyJ"}, "azure/dep", "/openai/v1/chat/completions",
         ("authorization", "Bearer eyJ")),
        ({"AZURE_OPENAI_AD_TOKEN": "eyJ", "CALLBOARD_API_KEY": "b"}, "azure/dep", "/openai/v1/chat/completions",
         ("api-key", "b")),
    ],
)  # fmt: skip
def test_azure_is_set_up_by_the_variables_of_its_own_client(
    callboard: Any, environment: dict[str, str], model: str, path: str, header: tuple[str, str]
) -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}]}
    answer = Reply(sse([chunk], done=True), headers={"content-type": "text/event-stream"})
    with caught([answer]) as server:
        callboard.environment |= {**environment, "AZURE_OPENAI_ENDPOINT": server.url}
        ran = callboard.run("doctor", "--model", model)
    assert ran.status == 0, ran.err
    assert server.requests[0].path == path
    assert server.requests[0].headers[header[0]] == header[1]


def test_vertex_and_bedrock_are_set_up_by_the_variables_of_their_own_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "GOOGLE_CLOUD_PROJECT": "p",
        "CLOUD_ML_REGION": "us-east5",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_PROFILE": "work",
    }
    for name in ("GOOGLE_CLOUD_LOCATION", "ANTHROPIC_VERTEX_PROJECT_ID", "AWS_REGION"):
        monkeypatch.setenv(name, "")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.options_for("vertex") == {"project": "p", "location": "us-east5"}
    assert settings.options_for("bedrock") == {"region": "eu-west-1", "profile": "work"}
    assert settings.options_for("openai") == settings.options_for("no such provider") == {}


def test_the_doctor_looks_at_every_provider_that_has_a_key(callboard: Any) -> None:
    callboard.environment |= {"TOGETHER_API_KEY": SECRET, "PERPLEXITY_API_KEY": SECRET}
    ran = callboard.run("doctor")
    assert ran.status == 0, ran.err  # the configured model is offline, and that answers
    assert "ok   offline/code-context" in ran.out
    assert "callboard doctor --model together/MODEL" in ran.out
    assert "PERPLEXITY_API_KEY is set" in ran.out
    assert "anthropic" not in ran.out
    assert SECRET not in ran.out + ran.err


def test_tools_for_people_and_as_json(callboard: Any) -> None:
    for_people = callboard.run("tools").out.splitlines()
    assert re.split(r"  +", for_people[0]) == ["TOOL", "RISK", "POLICY", "WHAT IT DOES"]
    (row,) = (re.split(r"  +", line) for line in for_people if line.startswith("read_file "))
    assert row[1:3] == ["read", "allowed"]
    told = callboard.run("tools", "read_file").out
    for line in ("policy: allowed: ", "state: healthy\n", "runs in: process, for at most 10 s\n", "- path (string): "):
        assert f"  {line}" in told
    listed = json.loads(callboard.run("tools", "--json").out)["tools"]
    by_name = {each["name"]: each for each in listed}
    assert by_name.keys() >= {"read_file", "list_dir", "request_code_context", "create_file"}
    assert by_name["read_file"]["parameters"]["type"] == "object"
    assert by_name["request_code_context"]["isolation"] == "task"
    assert {each["state"] for each in listed} == {"healthy"}
    assert all(each["confinement"] for each in listed)
    policies = {name: by_name[name]["policy"] for name in ("read_file", "request_code_context", "create_file")}
    assert policies == {"read_file": "allowed", "request_code_context": "allowed", "create_file": "staged"}


class GitHub:
    """Answers as GitHub does when a code has been typed at the second look."""

    def __init__(self, exchange_status: int = 200) -> None:
        self.asked: list[str] = []
        self.slept: list[float] = []
        self._exchange_status = exchange_status

    async def __call__(self, wire: WireRequest) -> HttpAnswer:
        self.asked.append(wire.url)
        status, document = 200, dict[str, object]()
        if wire.url.endswith("/device/code"):
            document = {"device_code": "d", "user_code": "AB-12", "verification_uri": "https://g/login", "interval": 5}
        elif wire.url.endswith("/access_token"):
            waited = len(self.slept) > 1
            document = {"access_token": SECRET} if waited else {"error": "authorization_pending"}
        else:
            status = self._exchange_status
            document = {"token": "short", "expires_at": 2e9} if status == 200 else {"message": "no subscription"}
        return HttpAnswer(status, json.dumps(document).encode())

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@needs_root
def test_a_login_that_root_makes_for_another_user_stays_that_users(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "copilot-token")
    store.save("old")
    os.chown(tmp_path / "copilot-token", NOBODY, NOBODY)
    store.save("new")
    found = (tmp_path / "copilot-token").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (NOBODY, NOBODY, 0o600)
    assert store.load() == "new"


def test_a_login_is_kept_for_the_owner_only(tmp_path: Path) -> None:
    github, said, store = GitHub(), list[str](), FileStore(tmp_path / "config" / "copilot-token")
    asyncio.run(sign_in(github, github.sleep, "client", store, said.append))
    assert "AB-12" in said[0]
    assert github.slept == [5, 5]
    assert store.load() == SECRET
    assert stat.S_IMODE((tmp_path / "config" / "copilot-token").stat().st_mode) == 0o600
    assert SECRET not in "".join(said)


def test_a_login_that_copilot_refuses_is_not_kept(tmp_path: Path) -> None:
    github, store = GitHub(exchange_status=403), FileStore(tmp_path / "copilot-token")
    with pytest.raises(ProviderError, match="no subscription"):
        asyncio.run(sign_in(github, github.sleep, "client", store, lambda _: None))
    assert store.load() is None


def test_a_kept_login_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    monkeypatch.delenv("CALLBOARD_API_KEY", raising=False)
    settings = Settings(model="copilot/gpt-5", config_dir=tmp_path)
    limits = RateLimits(time.monotonic, {})
    with pytest.raises(UsageError, match="callboard login copilot"):
        Router(settings, limits).route(settings.model)
    FileStore(settings.copilot_token_file).save(SECRET)
    route = Router(settings, limits).route(settings.model)
    assert (route.provider.name, route.model) == ("copilot", "gpt-5")


def test_where_a_key_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "CALLBOARD_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    settings = Settings(model="openai/x")
    assert settings.key_source("openai") == ""
    monkeypatch.setenv("OPENAI_API_KEY", "a")
    assert settings.key_source("openai") == "OPENAI_API_KEY"
    monkeypatch.setenv("CALLBOARD_API_KEY", "b")
    assert (settings.key_source("openai"), settings.key_for("openai")) == ("CALLBOARD_API_KEY", "b")
    assert settings.key_source("anthropic") == ""
    assert Settings(model="openai/x", api_key="c").key_source("openai") == "api_key"


def test_a_workspace_that_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "n\udce9"
    folder.mkdir()
    with pytest.raises(UsageError, match="not valid UTF-8"):
        Settings(workspace=folder)
