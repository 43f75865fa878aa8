"""The configuration file: which value counts, what a wrong one is told, and that a program does not read it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.config_file import MAX_CONFIG_BYTES, read_profile
from callboard.actors.environment import VARIABLES
from callboard.actors.settings import Settings
from callboard.protocol.errors import UsageError
from callboard.protocol.model import Sampling, Usage
from callboard.protocol.tools import Decision, Risk

FILE = """
[default]
model = "openai/from-default"
max_steps = 7

[profiles.work]
model = "openai/from-work"

[profiles.local]
model = "openai-compatible/any"
base_url = "http://localhost:8000/v1"
"""
KEY = "sk-very-secret-key"


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file, not made yet; the environment has no variables of ours but the one that says where it is."""
    for name in list(os.environ):
        if name.startswith("CALLBOARD_") or name.endswith("_API_KEY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CALLBOARD_CONFIG_DIR", str(tmp_path))
    return tmp_path / "config.toml"


def write(config: Path, text: str, mode: int = 0o644) -> None:
    config.write_text(text)
    config.chmod(mode)


def test_no_file_is_no_values() -> None:
    assert Settings.from_file().model == ""


def test_arguments_before_environment_before_profile_before_default_section_before_the_rest(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(config, FILE)
    assert Settings.from_file().model == "openai/from-default"
    assert Settings.from_file("work").model == "openai/from-work"
    assert Settings.from_file("work").max_steps == 7
    monkeypatch.setenv("CALLBOARD_MODEL", "openai/from-environment")
    assert Settings.from_file("work").model == "openai/from-environment"
    assert Settings.from_file("work", given={"model": "openai/given"}).model == "openai/given"
    otherwise = {"max_steps": 3, "warm_workers": 0}
    settings = Settings.from_file("work", otherwise=otherwise)
    assert (settings.max_steps, settings.warm_workers) == (7, 0)


def test_a_variable_names_the_profile_and_the_argument_counts_more(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(config, FILE)
    monkeypatch.setenv("CALLBOARD_PROFILE", "work")
    assert Settings.from_file().model == "openai/from-work"
    assert Settings.from_file("local").model == "openai-compatible/any"
    monkeypatch.setenv("CALLBOARD_PROFILE", "")
    assert Settings.from_file().model == "openai/from-default"
    monkeypatch.setenv("CALLBOARD_PROFILE", "wrok")
    with pytest.raises(UsageError, match=r"no profile 'wrok' \(CALLBOARD_PROFILE\).*it has: work, local"):
        Settings.from_file()


def test_a_program_does_not_read_the_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(config, FILE)
    monkeypatch.setenv("CALLBOARD_PROFILE", "work")
    assert Settings().model == ""


def test_an_address_and_a_key_do_not_go_along_to_another_provider(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(config, f'{FILE}api_key = "{KEY}"\n', 0o600)
    other = Settings.from_file("local", given={"model": "openai/gpt-5"})
    assert (other.base_url, other.api_key) == (None, None)
    same = Settings.from_file("local", given={"model": "openai-compatible/other"})
    assert same.base_url == "http://localhost:8000/v1"
    assert same.key_for("openai-compatible") == KEY
    monkeypatch.setenv("CALLBOARD_MODEL", "openai-compatible/any")
    monkeypatch.setenv("CALLBOARD_BASE_URL", "http://localhost:1/v1")
    assert Settings(model="openai/gpt-5").base_url is None
    assert Settings(model="openai-compatible/b").base_url == "http://localhost:1/v1"


def test_objects_are_tables(config: Path) -> None:
    write(
        config,
        """
        [default]
        fallback_models = ["openai/gpt-5-mini"]
        sampling = {temperature = 0.5, stop = ["END"]}
        rate_limits = {openai = [500, 200000], groq = {requests = 30}, mistral = {tokens = 1000}}
        tool_fallback = "retry_without_tools"
        [default.policy.table]
        write = "allow"
        [default.catalog.overrides."openai-compatible/any"]
        context_tokens = 8192
        prices = {input = 1e-6, output = 2e-6}
        """,
    )
    settings = Settings.from_file()
    assert settings.fallback_models == ("openai/gpt-5-mini",)
    assert settings.sampling == Sampling(temperature=0.5, stop=("END",))
    assert settings.rate_limits == {"openai": (500, 200000), "groq": (30, None), "mistral": (None, 1000)}
    assert settings.policy.decisions[Risk.WRITE] is Decision.ALLOW
    known = settings.catalog.info("openai-compatible", "any")
    assert known.context_tokens == 8192
    assert settings.catalog.cost("openai-compatible", "any", Usage(1_000_000, 1_000_000)) == pytest.approx(3.0)


def test_relative_paths_are_meant_from_the_files_folder(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (config.parent / "code").mkdir()
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", str(config.parent))
    write(config, '[default]\nworkspace = "code"\nindex_dir = "index"\n[profiles.home]\nworkspace = "~/code"\n')
    for profile in ("", "home"):
        settings = Settings.from_file(profile)
        assert (settings.workspace, settings.index_dir) == (config.parent / "code", config.parent / "index")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[default]\nmodel = "gpt-5"', r"'model' in \[default\] of .*config.toml: must be"),
        ("[default]\nmodel = 7", r"'model' in \[default\] of .*config.toml: Input should be a valid string"),
        (
            "[default]\nmodell = 'openai/x'",
            r"'modell' in \[default\] of .*there is no such setting; did you mean 'model'",
        ),
        ("[profiles.a]\nmax_steps = 0", r"'max_steps' in \[profiles.a\] of .*greater than or equal to 1"),
        ("[default]\nsampling = {temprature = 1}", r"'sampling' in \[default\].*no 'temprature' in it; did you mean"),
        (
            "[default.sampling]\ntemperature = 'hot'",
            r"'sampling' in \[default\] of .*: temperature must be a number from 0 to 2",
        ),
        ('[default.catalog.overrides."a/b".prices]\ninputs = 1', "'catalog' in .*no 'inputs' in it"),
        ("[default]\nrate_limits = {a = {calls = 1}}", "'rate_limits' in .*a: there is no limit 'calls'"),
        ("[default]\nrate_limits = {a = [0, 1]}", "'rate_limits' in .*greater than 0"),
        ("[default]\nscript = 'x'", r"'script' in \[default\] of .*cannot be set in a file"),
        ("model = 'openai/x'", "has 'model' at its top level; put settings below"),
        ("default = 3", r"default in .* must be a table: write \[default\]"),
        ("profiles = 3", r"profiles in .* must be a table"),
        ("[profiles]\na = 3", r"profiles.a in .* must be a table: write \[profiles.a\]"),
        ("[default\n", "is not valid TOML: .*line 1"),
        (
            "[default]\napi_key = 5",
            r"'api_key' in \[default\] of [^ ]*config.toml: must be a text, or in a program a function",
        ),
        (
            "[default.policy.table]\nnetwork = 'maybe'",
            r"'policy' in \[default\] of .*: table.network",
        ),
        (
            '[default.catalog.overrides."a/b"]\ncontext_tokens = -5',
            r"'catalog' in \[default\] of .*: context_tokens must be .* got -5",
        ),
        ("[default]\nworkspace = '/no/such'", r"'workspace' in \[default\] of .*there is no folder /no/such"),
    ],
)
def test_a_wrong_file_is_one_sentence_with_file_section_and_field(config: Path, text: str, says: str) -> None:
    write(config, text, 0o600)
    with pytest.raises(UsageError, match=says) as caught:
        Settings.from_file("a" if "profiles" in text else "")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_none(config: Path) -> None:
    with pytest.raises(UsageError, match=r"no profile 'work' \(--profile\); write \[profiles.work\] in .*config.toml$"):
        Settings.from_file("work")
    config.write_bytes(b"[default]\n# caf\xe9\n")
    with pytest.raises(UsageError, match=r"is not UTF-8 \(line 2\)"):
        Settings.from_file()
    config.write_bytes(b"#" * (MAX_CONFIG_BYTES + 1))
    with pytest.raises(UsageError, match="larger than"):
        Settings.from_file()
    config.unlink()
    config.mkdir()
    with pytest.raises(UsageError, match="is not a regular file"):
        Settings.from_file()
    config.rmdir()
    os.mkfifo(config)
    with pytest.raises(UsageError, match="is not a regular file"):
        Settings.from_file()
    config.unlink()
    config.symlink_to(config)
    with pytest.raises(UsageError, match="cannot be read: Too many levels of symbolic links"):
        Settings.from_file()


def test_a_key_in_a_file_that_others_can_read_is_refused(config: Path) -> None:
    for text in (f'[default]\napi_key = "{KEY}"', f'[profiles.a]\napi_key = "{KEY}"'):
        write(config, text, 0o640)
        with pytest.raises(UsageError, match=f"holds a key.*chmod 600 {config}") as caught:
            Settings.from_file("a" if "profiles" in text else "")
        assert KEY not in str(caught.value)
        config.chmod(0o600)
        assert Settings.from_file("a" if "profiles" in text else "").key_for("") == KEY


def test_a_key_in_a_profile_that_is_not_chosen_is_refused_too(config: Path) -> None:
    write(config, f'[profiles.a]\napi_key = "{KEY}"\n[profiles.b]\nmax_steps = 3', 0o644)
    for name in ("", "b"):
        with pytest.raises(UsageError, match=f"holds a key.*chmod 600 {config}"):
            Settings.from_file(name)
    config.chmod(0o600)
    assert Settings.from_file("b").max_steps == 3


BAD = {"model": "gpt-5", "workspace": "/no/such/place", "base_url": "localhost:8000/v1"}


@pytest.mark.parametrize("variable", [name for field, name in VARIABLES.items() if field in BAD])
def test_a_wrong_variable_is_told_by_its_name(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    field = next(field for field, name in VARIABLES.items() if name == variable)
    monkeypatch.setenv(variable, BAD[field])
    for make in (Settings, Settings.from_file):
        with pytest.raises(UsageError, match=f"^{variable}: "):
            make()
    good: dict[str, Any] = {"model": "openai/x", "workspace": "/", "base_url": "http://localhost/v1"}
    Settings(**{field: good[field]})  # what is not used is not looked at


@pytest.mark.parametrize("key", ["sk-a\n", "sk a", "sk-\N{EN DASH}", "\r", "a\0b"])
def test_a_variable_that_cannot_hold_a_key_is_told_by_its_name(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "OPENAI_API_KEY": key})  # no environment can hold a NUL
    with pytest.raises(UsageError, match=r"^OPENAI_API_KEY: a key is one word of ASCII") as caught:
        Settings(model="openai/gpt-5").key_for("openai")
    assert key not in str(caught.value).replace("is one", "")
    with pytest.raises(UsageError, match=r"^setting 'api_key': a key is one word"):
        Settings(api_key=key)


def test_a_typed_value_is_told_by_its_option(config: Path) -> None:
    with pytest.raises(UsageError, match=r"^--model: must be"):
        Settings.from_file(given={"model": "gpt-5"}, options={"model": "--model"})


def test_the_users_own_folder_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CALLBOARD_CONFIG_DIR", "~/config")
    assert Settings().copilot_token_file == tmp_path / "config" / "copilot-token"


@pytest.mark.parametrize("url", ["nonsense", "http://", "ftp://x/y", "http://[::1", "localhost:1", "//host"])
def test_an_address_that_is_none_is_told_without_its_value(url: str) -> None:
    for field in ("base_url", "embedding_base_url"):
        with pytest.raises(UsageError, match=f"^setting '{field}': must be an address with http://") as caught:
            Settings(**{field: url})  # type: ignore[arg-type]
        assert url not in str(caught.value) or url in "http://"


@pytest.mark.parametrize("variable", VARIABLES.values())
def test_an_empty_variable_is_not_set(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALLBOARD_CONFIG_DIR")
    before = Settings()
    monkeypatch.setenv(variable, "")
    assert Settings() == before


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_no_file_raises_anything_else(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("config") / "config.toml"
    for each in (data, b"[default]\n" + data):
        path.write_bytes(each)
        with contextlib.suppress(UsageError):
            read_profile(path)


def test_connections_are_tables_and_their_secrets_and_paths_are_those_of_the_file(config: Path) -> None:
    authority = config.parent / "ca.pem"
    authority.write_text("")
    text = f"""
        [default]
        model = "openai/gpt-5"
        [default.connections.groq]
        api_key = "{KEY}"
        base_url = "http://localhost:8000/v1"
        proxy = "http://proxy.example:3128"
        [default.connections.mistral]
        verify = "ca.pem"
    """
    write(config, text, 0o644)
    with pytest.raises(UsageError, match=f"holds a key.*chmod 600 {config}"):
        Settings.from_file()
    config.chmod(0o600)
    with pytest.raises(UsageError, match=f"mistral: verify: no certificates can be read from {authority}"):
        Settings.from_file()
    write(config, text.replace('verify = "ca.pem"', 'headers = {x-team = "blue"}'), 0o600)
    settings = Settings.from_file()
    assert settings.key_for("groq") == KEY
    assert settings.key_source("groq") == "connections.groq.api_key"
    assert settings.connection("groq").proxy == "http://proxy.example:3128"
    assert settings.connection("mistral").headers == {"x-team": "blue"}
