"""`--base-url` without a model: the server is asked which it has."""

from __future__ import annotations

from typing import Any

import pytest
from support.model_server import model_server

DONE, FAILED, USAGE = 0, 1, 2


def models(*names: str) -> dict[str, object]:
    return {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}


def test_the_only_model_of_a_server_is_asked(callboard: Any) -> None:
    callboard.environment["CALLBOARD_API_KEY"] = "sk-of-the-server"
    with model_server(models("org/small")) as url:
        ran = callboard.run("ask", "who are you?", "--base-url", url)
        assert (ran.status, ran.out) == (DONE, "I am org/small, Bearer sk-of-the-server.\n")
        callboard.environment = {"CALLBOARD_BASE_URL": url}
        assert callboard.run("ask", "who are you?").out == "I am org/small, no key.\n"
        assert "ok   openai-compatible/org/small" in callboard.run("doctor").out
        assert callboard.run("ask", "who?", "--model", "openai-compatible/b").out == "I am b, no key.\n"


def test_of_several_models_the_user_chooses(here: Any) -> None:
    with model_server(models("a", "b", "a")) as url:
        ran = here("ask", "x", "--base-url", url)
    assert ran.status == USAGE
    assert ran.sentence == (
        f"choose one of the 2 models at {url} with --model: openai-compatible/a, openai-compatible/b"
    )


def test_a_server_of_an_address_is_asked_what_it_has(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `callboard models`, as by a question without a model."""
    with model_server(models("a", "b\x1b[2J")) as url:
        monkeypatch.setenv("CALLBOARD_BASE_URL", url)
        listed = here("models").out
    assert f"\nopenai-compatible/a   it is served at {url}\nopenai-compatible/b   it is served" in listed


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("openai/any", "OPENAI_API_KEY is not set"),
        ("opnai/any", "there is no provider 'opnai'"),
    ],
)
def test_a_chosen_model_that_cannot_be_asked(here: Any, monkeypatch: pytest.MonkeyPatch, model: str, why: str) -> None:
    monkeypatch.setenv("CALLBOARD_MODEL", model)
    assert f"\n{model} is chosen, but {why}. For others, " in here("models").out


def test_a_long_list_is_cut(here: Any) -> None:
    with model_server(models(*(f"m{number}" for number in range(500)))) as url:
        ran = here("ask", "x", "--base-url", url)
    assert "one of the 500 models" in ran.sentence
    assert ran.sentence.endswith("openai-compatible/m19 and 480 more")


def test_a_server_that_names_none_or_none_at_all(here: Any, callboard: Any) -> None:
    with model_server({"error": {"message": "no such path"}}, 404) as url:
        ran = here("ask", "x", "--base-url", url)
    assert f"{url}/models answered HTTP 404: no such path; check that it is the address" in ran.sentence
    assert (ran.status, ran.out) == (FAILED, "")
    ran = here("ask", "x", "--base-url", "http://user:geheim@127.0.0.1:1/v1")
    assert "127.0.0.1:1" in ran.sentence
    assert "geheim" not in ran.err
    assert ran.status == FAILED
    assert not (callboard.workspace / ".callboard").exists()
