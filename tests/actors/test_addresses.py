"""Where a provider is: what the variables of its own clients say counts, for each request that carries its key.

The server is the wire double, in a process of its own; what it was asked says by its path which address was used.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.shared_double import shared_double

from callboard import Connection, Runtime, Settings, UsageError, ask_sync
from callboard.actors.models.embedding_access import embedding_api
from callboard.actors.testing.wire_double import RawAnswer, Turn, WireDouble
from callboard.providers.provider_registry import KEY_VARIABLES
from callboard.providers.provider_table import ROWS

VARIABLES = sorted({name for row in ROWS.values() for names in row.variables.values() for name in names})


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*VARIABLES, *KEY_VARIABLES.values(), *(each for each in os.environ if each.startswith("CALLBOARD_"))]:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def running() -> Iterator[WireDouble]:
    with shared_double() as double:
        yield double


@pytest.fixture
def double(running: WireDouble) -> WireDouble:
    running.reset()
    running.play([Turn("yes")] * 4)
    return running


def paths(double: WireDouble) -> list[str]:
    return [asked.path.partition("?")[0] for asked in double.traffic().requests]


def set_to(monkeypatch: pytest.MonkeyPatch, double: WireDouble, variables: Mapping[str, str]) -> None:
    """`{}` is the address of the double, `{host}` without http://, `{port}` its port."""
    for name, value in variables.items():
        host = double.url.removeprefix("http://")
        value = value.replace("{host}", host).replace("{port}", host.rpartition(":")[2])
        monkeypatch.setenv(name, value.replace("{}", double.url))


KEYS = dict.fromkeys(KEY_VARIABLES.values(), "sk-none")
#: Model, variables, and the path that is asked then.
HONOURED = [
    ("openai/m", {"OPENAI_BASE_URL": "{}/gate/v1"}, "/gate/v1/responses"),
    ("openai-responses/m", {"OPENAI_API_BASE": "{}/gate/v1/"}, "/gate/v1/responses"),
    ("openai/m", {"OPENAI_BASE_URL": " {}/first\n", "OPENAI_API_BASE": "{}/second"}, "/first/responses"),
    ("openai/m", {"OPENAI_BASE_URL": "", "OPENAI_API_BASE": "{}/second"}, "/second/responses"),
    ("openai-chat/m", {"OPENAI_BASE_URL": "{}/gate/v1"}, "/gate/v1/chat/completions"),
    ("openai-compatible/m", {"OPENAI_BASE_URL": "{}/gate/v1"}, "/gate/v1/chat/completions"),
    ("anthropic/m", {"ANTHROPIC_BASE_URL": "{}/gate"}, "/gate/v1/messages"),
    ("anthropic/m", {"ANTHROPIC_API_BASE": "{}/gate/v1"}, "/gate/v1/messages"),
    ("gemini/m", {"GOOGLE_GEMINI_BASE_URL": "{}/gate"}, "/gate/v1beta/models/m:streamGenerateContent"),
    ("gemini/m", {"GEMINI_BASE_URL": "{}/gate/v1beta"}, "/gate/v1beta/models/m:streamGenerateContent"),
    ("azure/dep", {"AZURE_OPENAI_ENDPOINT": "{}"}, "/openai/v1/chat/completions"),
    ("openrouter/a/m", {"OPENROUTER_BASE_URL": "{}/gate/v1"}, "/gate/v1/chat/completions"),
    ("openrouter-anthropic/m", {"OPENROUTER_BASE_URL": "{}/gate/v1"}, "/gate/v1/messages"),
    ("groq/m", {"GROQ_BASE_URL": "{}"}, "/openai/v1/chat/completions"),
    ("groq/m", {"GROQ_BASE_URL": "{}/gate"}, "/gate/chat/completions"),
    ("mistral/m", {"MISTRAL_BASE_URL": "{}"}, "/v1/chat/completions"),
    ("mistral/m", {"MISTRAL_API_BASE": "{}/v1"}, "/v1/chat/completions"),
    ("deepseek/m", {"DEEPSEEK_API_BASE": "{}/gate"}, "/gate/chat/completions"),
    ("xai/m", {"XAI_API_BASE": "{}/v1"}, "/v1/chat/completions"),
    ("together/m", {"TOGETHER_BASE_URL": "{}/v1"}, "/v1/chat/completions"),
    ("cohere/m", {"CO_API_URL": "{}"}, "/compatibility/v1/chat/completions"),
    ("minimax-anthropic/m", {"MINIMAX_BASE_URL": "{}/gate"}, "/gate/v1/messages"),
    ("ollama/m", {"OLLAMA_HOST": "{host}"}, "/v1/chat/completions"),
    ("ollama/m", {"OLLAMA_HOST": "{}"}, "/v1/chat/completions"),
    ("ollama/m", {"OLLAMA_HOST": ":{port}"}, "/v1/chat/completions"),
    ("vllm/m", {"HOSTED": "", "VLLM_API_BASE": "{}"}, "/v1/chat/completions"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "variables", "path"), HONOURED, ids=lambda each: str(each)[:60])
def test_a_variable_of_the_providers_own_client_says_where_it_is(
    monkeypatch: pytest.MonkeyPatch, double: WireDouble, model: str, variables: dict[str, str], path: str
) -> None:
    set_to(monkeypatch, double, {**KEYS, **variables})
    assert ask_sync("hi", model=model).text == "yes"
    assert paths(double)[-1] == path


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
def test_every_provider_with_a_key_has_such_a_variable_or_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, row: Any
) -> None:
    names = row.variables.get("base_url", ()) or row.stray_variables
    assert names or not row.key_variable
    for name in names:
        with monkeypatch.context() as only:
            only.setenv(name, "http://gateway.example/x")
            if row.stray_variables:
                with pytest.raises(UsageError, match=f"{name} says where .* goes, but not where {row.name} is"):
                    Settings().address_for(row.name)
            else:
                assert Settings().address_for(row.name) == ("http://gateway.example/x", name)
            only.setenv(name, "")
            assert Settings().address_for(row.name) == (None, "")


def test_what_is_said_here_comes_before_a_variable(monkeypatch: pytest.MonkeyPatch, double: WireDouble) -> None:
    set_to(monkeypatch, double, {**KEYS, "OPENAI_BASE_URL": "{}/variable"})
    connections = {"openai": Connection(base_url=f"{double.url}/connection")}
    ask_sync("hi", settings=Settings(model="openai/m", connections=connections, base_url=f"{double.url}/given"))
    ask_sync("hi", settings=Settings(model="openai/m", connections=connections))
    monkeypatch.setenv("CALLBOARD_BASE_URL", f"{double.url}/ours")
    ask_sync("hi", settings=Settings(model="openai/m"))
    assert paths(double) == ["/given/responses", "/connection/responses", "/ours/responses"]


#: Variable, value, model.
WRONG = [
    ("OPENAI_BASE_URL", "gateway:8080/v1", "openai/m"),
    ("OPENAI_BASE_URL", "ftp://gateway/v1", "openai/m"),
    ("ANTHROPIC_BASE_URL", "gateway", "anthropic/m"),
    ("GROQ_BASE_URL", "http://", "groq/m"),
    ("MISTRAL_BASE_URL", "http://[::", "mistral/m"),
    ("OLLAMA_HOST", "host:port", "ollama/m"),
    ("OLLAMA_HOST", "a box", "ollama/m"),
    ("OPENAI_BASE_URL", "http://gateway:99999/v1", "openai/m"),
    ("GOOGLE_GEMINI_BASE_URL", "/v1", "gemini/m"),
]


@pytest.mark.parametrize(("variable", "value", "model"), WRONG)
def test_a_variable_that_holds_no_address_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, model: str
) -> None:
    for name, text in {**KEYS, variable: value}.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(UsageError, match=f"^{variable} must be an address with http://"):
        ask_sync("hi", model=model)


def test_the_same_server_has_the_same_address_in_fallbacks(monkeypatch: pytest.MonkeyPatch, double: WireDouble) -> None:
    set_to(monkeypatch, double, KEYS)
    double.play([RawAnswer({"error": {"message": "gone"}}, 404)] * 2 + [Turn("yes")])
    gate = f"{double.url}/gate/v1"
    fallbacks = ("openai-chat/other", "openai/third")
    settings = Settings(model="openai/m", base_url=gate, api_key="sk-ours", fallback_models=fallbacks)
    ask_sync("hi", settings=settings)
    assert paths(double) == ["/gate/v1/responses", "/gate/v1/chat/completions", "/gate/v1/responses"]
    assert {asked.headers["authorization"] for asked in double.traffic().requests} == {"Bearer sk-ours"}


#: What `connections` say, a provider, and its address and key.
SHARED: list[tuple[dict[str, Connection], str, tuple[str | None, str | None]]] = [
    ({"openai": Connection("http://gate/v1", "sk-gate")}, "openai-chat", ("http://gate/v1", "sk-gate")),
    ({"openai-chat": Connection("http://gate/v1")}, "openai-responses", ("http://gate/v1", None)),
    (
        {"openai": Connection("http://gate/v1", "sk-gate"), "openai-chat": Connection(api_key="sk-own")},
        "openai-chat",
        ("http://gate/v1", "sk-own"),
    ),
    (
        {"openai": Connection("http://gate/v1", "sk-gate"), "openai-chat": Connection("http://own/v1")},
        "openai-chat",
        ("http://own/v1", None),
    ),
    ({"openai": Connection("http://gate/v1", "sk-gate")}, "mistral", (None, None)),
]


@pytest.mark.parametrize(("connections", "provider", "reached"), SHARED, ids=lambda each: str(each)[:60])
def test_the_same_server_has_the_same_connection(
    connections: dict[str, Connection], provider: str, reached: tuple[str | None, str | None]
) -> None:
    settings = Settings(model="anthropic/m", connections=connections)
    assert (settings.connection(provider).base_url, settings.key_for(provider)) == reached


def test_what_is_said_of_a_provider_by_its_name_is_not_taken_from_the_models() -> None:
    elsewhere = {"openai-chat": Connection("http://own/v1", headers={"x-own": "1"})}
    settings = Settings(
        model="openai/m", base_url="http://gate/v1", api_key="sk-gate", headers={"x": "1"}, connections=elsewhere
    )
    found = settings.connection("openai-chat")
    assert (found.base_url, found.api_key, found.headers) == ("http://own/v1", None, {"x-own": "1"})
    assert (settings.address_for("openai-responses"), settings.key_for("openai-responses")) == (
        ("http://gate/v1", "base_url"),
        "sk-gate",
    )


def test_embeddings_of_the_same_provider_have_the_same_address(
    monkeypatch: pytest.MonkeyPatch, double: WireDouble
) -> None:
    set_to(monkeypatch, double, {**KEYS, "MISTRAL_BASE_URL": "{}/mistral"})
    gate = f"{double.url}/gate/v1"
    given = Settings(model="openai/m", base_url=gate)
    cases = [
        (given, "openai/e", "/gate/v1/embeddings"),
        (Settings(model="anthropic/m", base_url=gate), "mistral/e", "/mistral/embeddings"),
        (given.model_copy(update={"embedding_base_url": f"{double.url}/own"}), "openai/e", "/own/embeddings"),
        (
            Settings(model="anthropic/m", connections={"openai": Connection(base_url=f"{double.url}/c")}),
            "openai/e",
            "/c/embeddings",
        ),
    ]
    double.play([RawAnswer({"data": []})] * len(cases))

    async def post(settings: Settings, model: str) -> None:
        api = embedding_api(settings, model)
        try:
            await api.post({"input": ["x"]})
        finally:
            await api.aclose()

    for settings, model, _ in cases:
        asyncio.run(post(settings, model))
    assert paths(double) == [path for _, _, path in cases]


#: Settings with an address of one API of a key, and another API of that key, whose address is another one.
PAST_THE_GATEWAY: list[tuple[dict[str, Any], str]] = [
    ({"model": "deepseek/m", "base_url": "http://gate.example/v1"}, "deepseek-anthropic"),
    ({"model": "zai/m", "base_url": "http://gate.example/v1"}, "zai-anthropic"),
    ({"model": "moonshot/m", "base_url": "http://gate.example/v1"}, "moonshot-anthropic"),
    ({"model": "moonshot-anthropic/m", "base_url": "http://gate.example/v1"}, "moonshot"),
    ({"model": "openrouter/m", "base_url": "http://gate.example/v1"}, "openrouter-anthropic"),
    ({"model": "openai/m", "connections": {"zai": Connection("http://gate.example/v1")}}, "zai-anthropic"),
]


@pytest.mark.parametrize(("given", "other"), PAST_THE_GATEWAY, ids=str)
def test_a_key_does_not_go_past_the_address_that_is_given_for_it(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], other: str
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    said = rf'where {other} is: give Settings\(connections=\{{"{other}": Connection\(base_url='
    with pytest.raises(UsageError, match=said):
        Runtime(Settings(**given, fallback_models=(f"{other}/m",)))
    given = given | {"connections": {**given.get("connections", {}), other: Connection(base_url="http://o/")}}
    Runtime(Settings(**given, fallback_models=(f"{other}/m",)))


def test_an_address_and_a_key_without_a_model_are_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    for given in ({"base_url": "http://gate.example"}, {"api_key": "sk-ours"}):
        (name,) = given
        with pytest.raises(UsageError, match=rf"^{name} is that of the model in the settings, which name none: give"):
            ask_sync("hi", model="openai/m", settings=Settings(**given))


def test_the_workspaces_own_env_file_is_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, double: WireDouble
) -> None:
    (tmp_path / ".env").write_text("OPENAI_BASE_URL=http://evil.example/v1\nOLLAMA_HOST=evil.example\n")
    monkeypatch.chdir(tmp_path)
    settings = Settings(model="openai/m", workspace=tmp_path)
    assert settings.address_for("openai") == settings.address_for("ollama") == (None, "")


def test_a_tools_child_is_told_addresses_without_their_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://u:secret@gate.example/a?token=secret#x")
    monkeypatch.setenv("OLLAMA_HOST", "me:secret@box:1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    settings = Settings(model="openai/m", base_url="https://me:secret@gate.example/v1", api_key="sk-secret")
    assert settings.environment_for_tools == {
        "CALLBOARD_MODEL": "openai/m",
        "CALLBOARD_BASE_URL": "https://gate.example/v1",
        "ANTHROPIC_BASE_URL": "https://gate.example/a",
        "OLLAMA_HOST": "box:1",
    }
    named = Settings(model="mine/m", tool_environment=("OPENAI_API_KEY", "OLLAMA_HOST"))
    assert named.environment_for_tools["OPENAI_API_KEY"] == "sk-secret"
    assert named.environment_for_tools["OLLAMA_HOST"] == "me:secret@box:1"
    assert "CALLBOARD_MODEL" not in named.environment_for_tools
