"""Bad input: one sentence on stderr that says what to do, status 2 (usage) or 1 (failure), nothing half-written."""

from __future__ import annotations

import os
import platform
from typing import Any

import pytest
from support.shared_double import shared_double

from callboard import Mode, Trust
from callboard import __version__ as version
from callboard.actors.cli.arguments import CONFINE, MODE, TRUST
from callboard.actors.processes.confinement import Confine
from callboard.actors.testing.wire_double import RawAnswer

DONE, FAILED, USAGE = 0, 1, 2
MODEL = "openai-compatible/any"
HTML = RawAnswer("<!DOCTYPE html><title>Welcome</title>")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ask", ""], "the question is empty; type: callboard ask"),
        (["ask", " \n"], "the question is empty"),
        (["ask", "x", "--workspace", "no/such"], "name one that exists"),
        (["ask", "x", "--workspace", "weather.py"], "name one that exists"),
        (["ask", "x", "--model", "gpt-5"], 'must be "provider/model"'),
        (["ask", "x", "--model", "nobody/gpt-5"], "known providers are: "),
        (["ask", "x", "--model", "openai/gpt-5"], "set the environment variable OPENAI_API_KEY"),
        (["ask", "x", "--model", "copilot/gpt-5"], "run `callboard login copilot`"),
        (["ask", "x", "--model", "openai-compatible/any"], "base_url"),
        (["index", "no/such"], "name one that exists"),
        (["index", "weather.py"], "is not a folder"),
        (["tools", "--workspace", "no/such"], "name one that exists"),
        (["doctor", "--model", "nobody/x"], "known providers are: "),
        (["login", "copilot"], "set CALLBOARD_COPILOT_CLIENT_ID"),
    ],
    ids=" ".join,
)
def test_asked_wrongly(here: Any, callboard: Any, arguments: list[str], says: str) -> None:
    ran = here(*arguments)
    assert says in ran.sentence
    assert ran.status == USAGE
    assert ran.out == ""
    assert not (callboard.workspace / ".callboard").exists()


@pytest.mark.parametrize("arguments", [[], ["ask"], ["dance"], ["login", "nobody"], ["ask", "a", "b"]], ids=" ".join)
def test_unknown_commands_and_missing_arguments_show_the_usage(here: Any, arguments: list[str]) -> None:
    ran = here(*arguments)
    assert ran.status == USAGE
    assert ran.err.startswith("usage: callboard")
    assert "Traceback" not in ran.err


def test_it_is_so_in_a_process_of_its_own(callboard: Any) -> None:
    ran = callboard.run("ask", "x", "--model", "openai/gpt-5")
    assert "set the environment variable OPENAI_API_KEY" in ran.sentence
    assert (ran.status, ran.out) == (USAGE, "")


def test_what_can_be_typed_is_what_the_settings_take() -> None:
    assert (tuple(Trust), tuple(Mode), tuple(Confine)) == (TRUST, MODE, CONFINE)


def test_the_version_is_one_line_with_python_and_platform(callboard: Any) -> None:
    ran = callboard.run("--version")
    where = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    assert (ran.status, ran.out, ran.err) == (DONE, f"callboard {version}, {where}\n", "")


def test_a_fault_of_ours_is_one_sentence_and_with_python_dev_mode_a_traceback(callboard: Any) -> None:
    """The fault is a package of the extra `index` that is broken: its import raises a LookupError."""
    (callboard.workspace / "tantivy.py").write_text("raise LookupError('no table')\n")
    callboard.environment["PYTHONPATH"] = f"{callboard.workspace}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    ran = callboard.run("ask", "where?")
    assert ran.sentence.startswith("internal error: LookupError: no table; this is a fault in callboard")
    assert ran.status == FAILED
    callboard.environment["PYTHONDEVMODE"] = "1"
    assert "Traceback" in callboard.run("ask", "where?").err


def test_a_question_that_is_no_text(callboard: Any) -> None:
    ran = callboard.finish(callboard.start("ask", os.fsdecode(b"caf\xe9?")))
    assert "not valid UTF-8" in ran.sentence
    assert ran.status == USAGE


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (RawAnswer({"error": {"message": "Incorrect API key", "code": "invalid_api_key"}}, 401), "check the key in"),
        (RawAnswer({"error": {"message": "no model any", "code": "model_not_found"}}, 404), "check the model's name"),
        (RawAnswer("<html>forbidden</html>", 403), "check what the key"),
        (HTML, "check that --base-url is the address of the API"),
        (RawAnswer("data: {half\n\n", headers={"content-type": "text/event-stream"}), "check that --base-url"),
        (RawAnswer({"error": {"message": "bad"}}, 400), "check the model's name"),
    ],
    ids=["401", "404", "403 HTML", "HTML", "half JSON", "400"],
)
def test_a_server_that_refuses_or_talks_nonsense(callboard: Any, answer: RawAnswer, says: str) -> None:
    callboard.environment["CALLBOARD_API_KEY"] = "sk-very-secret"
    with shared_double([answer] * 8) as server:
        ran = callboard.run("ask", "x", "--model", MODEL, "--base-url", server.base_url())
    assert says in ran.sentence
    assert MODEL in ran.sentence
    assert ran.status == FAILED
    assert "very-secret" not in ran.err + ran.out


def test_an_address_where_nobody_is(callboard: Any) -> None:
    ran = callboard.run("ask", "x", "--model", MODEL, "--base-url", "http://127.0.0.1:1/v1")
    assert "check the address (--base-url)" in ran.sentence
    assert "begins again" not in ran.err
    assert ran.status == FAILED


@pytest.mark.parametrize("url", ["localhost:1", "nonsense", "http://", "ftp://x/y", "http://[::1"])
def test_an_address_that_is_none(callboard: Any, url: str) -> None:
    ran = callboard.run("ask", "x", "--model", MODEL, "--base-url", url)
    assert ran.sentence
    assert ran.status in (USAGE, FAILED)


def test_files_that_cannot_be_read_are_left_out_and_the_rest_is_found(callboard: Any) -> None:
    folder = callboard.workspace
    (folder / "latin1.py").write_bytes(b"def caf\xe9(): return '\xff\xfe'\n")
    (folder / "binary.py").write_bytes(bytes(range(256)) * 20)
    (folder / os.fsdecode(b"n\xe9.py")).write_text("def odd_name(): pass\n")
    (folder / "locked.py").write_text("def locked(): pass\n")
    (folder / "locked.py").chmod(0)
    (folder / "dangling.py").symlink_to("nowhere.py")
    (folder / "loop").symlink_to(".")
    os.mkfifo(folder / "pipe.py")
    ran = callboard.run("ask", "where is the weather fetched?")
    assert ran.status == 0
    assert "weather.py:1-3" in ran.out
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("file", ["truth.sqlite", "index.json"])
def test_a_broken_index_is_built_again(callboard: Any, file: str) -> None:
    assert callboard.run("index").status == 0
    (callboard.workspace / ".callboard" / "index" / file).write_bytes(b"\x00garbage" * 500)
    ran = callboard.run("ask", "where is the weather fetched?")
    assert ran.status == 0, ran.err
    assert "weather.py:1-3" in ran.out


def test_a_broken_word_index_is_built_again(callboard: Any) -> None:
    assert callboard.run("index").status == 0
    for file in (callboard.workspace / ".callboard" / "index" / "lexical").iterdir():
        file.write_bytes(b"garbage")
    ran = callboard.run("ask", "where is the weather fetched?")
    assert ran.status == 0, ran.err
    assert "weather.py:1-3" in ran.out


def test_a_folder_of_somebody_else_is_left_alone(callboard: Any) -> None:
    folder = callboard.workspace / ".callboard" / "index"
    folder.mkdir(parents=True)
    (folder / "diary.txt").write_text("private")
    for command in (["ask", "weather"], ["index"]):
        ran = callboard.run(*command)
        assert "not a callboard index" in ran.sentence
        assert ran.status == USAGE
    assert [each.name for each in folder.iterdir()] == ["diary.txt"]


def test_a_file_where_the_index_should_be(callboard: Any) -> None:
    (callboard.workspace / ".callboard").write_text("a file")
    ran = callboard.run("ask", "weather")
    assert "cannot use" in ran.sentence
    assert ran.status == USAGE
    assert (callboard.workspace / ".callboard").read_text() == "a file"


def test_an_empty_workspace_has_no_answer_and_says_so(callboard: Any) -> None:
    (callboard.workspace / "weather.py").unlink()
    ran = callboard.run("ask", "where is the weather fetched?")
    assert ran.status == 0
    assert "Nothing was found" in ran.out
