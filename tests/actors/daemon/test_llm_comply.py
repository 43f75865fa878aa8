"""The daemon under llm-comply, a test suite of others for servers of these APIs. It runs offline."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.running_daemon import RunningDaemon
from support.stateless_daemon import stateless_daemon

#: It skips the tests of thinking for models whose names do not promise any.
MODEL = "gpt-5-claude-sonnet-4"
CONFIG = f"""
[daemon]
models = {{"{MODEL}" = "scripted/model"}}
"""
#: Tests of each format in llm-comply 0.5.
FORMATS = {"openai-chat": 9, "anthropic": 9, "open-responses": 13}
COMMAND = Path(sys.executable).with_name("llm-comply")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    # Without a model of its own: a body that names none is refused then, as these tests want it.
    with stateless_daemon(tmp_path_factory.mktemp("daemon"), CONFIG, "--nameless") as found:
        yield found


@pytest.mark.parametrize("wire_format", FORMATS)
def test_all_tests_of_a_format_pass(wire_format: str, daemon: RunningDaemon) -> None:
    command = [
        str(COMMAND),
        "-u",
        f"{daemon.url}/v1",
        "-k",
        daemon.token,
        "-m",
        MODEL,
        "--format",
        wire_format,
        "--json",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = json.loads(ran.stdout)
    failed = {each["id"]: each for each in found["results"] if each["status"] != "passed"}
    assert not failed
    assert not {each["id"]: each["warnings"] for each in found["results"] if each.get("warnings")}
    assert len(found["results"]) >= FORMATS[wire_format]
    assert ran.returncode == 0
