"""The life of the daemon's process: signals, reloads and what its log says, with requests that run meanwhile."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from support.running_daemon import RunningDaemon, running_daemon

from callboard.actors.testing.wire_double import Call, Turn, WireDouble

Until = Callable[[Callable[[], bool]], None]
TOOLS = """
import asyncio
from callboard import tool

@tool(risk="read", timeout=60)
async def look(city: str) -> str:
    "Look."
    await asyncio.sleep({seconds})
    return f"rain in {{city}}"
"""
ASKS, SAYS = Turn(calls=(Call("look", {"city": "Oslo"}),)), Turn("It rains.")
QUESTION = {"model": "any", "messages": [{"role": "user", "content": "Rain?"}]}


@pytest.fixture
def double() -> Iterator[WireDouble]:
    with WireDouble([ASKS, SAYS], by_turn=True) as running:
        yield running


def config(double: WireDouble, key: str = "sk-first-key-0123456789", more: str = "", seconds: float = 0.0) -> str:
    return (
        f'[default]\nmodel = "openai-compatible/any"\nbase_url = "{double.base_url()}"\napi_key = "{key}"\n'
        f'[daemon]\nlog_format = "json"\ndrain_seconds = 20\n{more}\n[tenants.default]\ntools = ["look_tools.py"]\n'
    )


def tools_in(folder: Path, seconds: float = 0.0) -> None:
    (folder / "config").mkdir(exist_ok=True)
    (folder / "config/look_tools.py").write_text(TOOLS.format(seconds=seconds))


def ask(daemon: RunningDaemon) -> httpx.Response:
    return daemon.post("/v1/chat/completions", QUESTION)


def asked(double: WireDouble) -> int:
    return len(double.requests())


def test_twenty_reloads_under_load_fail_no_request_and_take_new_keys(tmp_path: Path, double: WireDouble) -> None:
    tools_in(tmp_path)
    with running_daemon(tmp_path, config=config(double)) as daemon:
        answers: list[httpx.Response] = []

        def some() -> None:
            answers.extend(ask(daemon) for _ in range(6))

        asking = [threading.Thread(target=some) for _ in range(4)]
        for each in asking:
            each.start()
        for number in range(20):
            (tmp_path / "config/callboard.toml").write_text(config(double, f"sk-key-{number}-0123456789"))
            if number % 2:
                daemon.process.send_signal(signal.SIGHUP)
            else:
                assert daemon.post("/reload", None).status_code == 200
        for each in asking:
            each.join(60)
        assert [each.status_code for each in answers] == [200] * 24
        assert daemon.post("/reload", None).status_code == 200  # the last signal may not be heeded yet
        assert ask(daemon).status_code == 200
        assert "sk-key-19" in double.requests()[-1].headers["authorization"]


def test_a_faulty_configuration_changes_nothing_and_is_reported(
    tmp_path: Path, double: WireDouble, until: Until
) -> None:
    tools_in(tmp_path)
    with running_daemon(tmp_path, config=config(double)) as daemon:
        path = tmp_path / "config/callboard.toml"
        for wrong, told in (
            (config(double, more="prot = 1"), "there is no such setting"),
            (config(double, more='host = "127.0.0.2"'), "host in [daemon] cannot change"),
            (config(double) + "[tenants.new]\n", "tenants come and go with a restart"),
            ("", "callboard.toml is empty or gone"),
        ):
            path.write_text(wrong)
            refused = daemon.post("/reload", None)
            assert (refused.status_code, told in refused.json()["error"]["message"]) == (400, True), refused.text
        daemon.process.send_signal(signal.SIGHUP)
        until(lambda: "nothing has changed" in daemon.stderr())
        assert ask(daemon).status_code == 200


def test_sigterm_lets_what_runs_end_and_takes_nothing_new(tmp_path: Path, double: WireDouble, until: Until) -> None:
    tools_in(tmp_path, 1.5)
    with running_daemon(tmp_path, config=config(double)) as daemon:
        answers: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: answers.append(ask(daemon)))
        asking.start()
        until(lambda: asked(double) == 1)
        daemon.process.send_signal(signal.SIGTERM)
        until(lambda: "draining" in daemon.stderr())
        assert daemon.get("/readyz").status_code == 503
        refused = ask(daemon)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        asking.join(30)
        assert answers[0].json()["choices"][0]["message"]["content"] == "It rains."
        assert daemon.process.wait(30) == 0
        assert "sk-first-key" not in daemon.stderr()
        lines = [json.loads(line) for line in daemon.stderr().splitlines() if line.startswith("{")]
        assert {"time", "level", "message", "status"} <= set().union(*lines)


def test_a_second_signal_ends_at_once_and_the_next_start_goes_on(
    tmp_path: Path, double: WireDouble, until: Until
) -> None:
    tools_in(tmp_path, 3.0)
    with running_daemon(tmp_path, config=config(double)) as daemon:
        begun = daemon.post("/api/requests", {"prompt": "Rain?"}).json()["request_id"]
        until(lambda: asked(double) == 1)
        for _ in range(2):
            daemon.process.send_signal(signal.SIGTERM)
            until(lambda: "draining" in daemon.stderr())
        assert daemon.process.wait(15) == 0
        assert "Traceback" not in daemon.stderr()
    with running_daemon(tmp_path, config=config(double)) as daemon:
        until(lambda: "It rains." in daemon.get(f"/api/requests/{begun}").text)
