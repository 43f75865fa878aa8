"""Each curl line of docs/native_api.md, against a real daemon."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from support.conditions import wait_until
from support.imports import ROOT
from support.scripted_daemon import scripted_daemon

from callboard.actors.daemon.app import ENDPOINTS

PAGE = (ROOT / "docs/native_api.md").read_text()
LINES = [
    line
    for block in re.findall(r"<!-- not run: tests/actors/daemon/test_native_docs\.py .*?```bash\n(.*?)```", PAGE, re.S)
    for line in block.splitlines()
]
#: What each answer shows, line by line. The last is the one that is refused; a cancel may come too late.
SHOWN = (
    '"request_id":"r-1"', "event: reply", '"done":', '"state":"ended"', '"state":"waiting"', '"calls":[]',
    '"tool":"dangerous"', '"done":true', '"edits":[]', '"edits":[]', '"edits":[]', '"done":true', '"done":true',
    '"done":true', '"title":"How are retries decided?"', '"snippet":"How are retries decided?"', '"text":"retries"',
    '"conversation_id":"', '"remark":""', '"model":"scripted/model"', '"name":"dangerous"', '"path":"root/telemetry"',
    '"done":true', '"done":true', '"dead_letters":[', '"error":{"message":',
)  # fmt: skip


def test_each_path_of_the_native_api_has_a_line() -> None:
    paths = {re.sub(r"{\w+(:\w+)?}", "*", each.path) for each in ENDPOINTS if each.path.startswith("/api/")}
    paths -= {path for path in paths if path.startswith("/api/board")}
    told = {re.sub(r"/(r-1|\d+|\$\w+)(?=/|$)", "/*", found) for found in re.findall(r"\$URL(/[^ \"?]*)", PAGE)}
    assert paths <= told, paths - told


def test_the_lines_of_the_page_work(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    with scripted_daemon(tmp_path, ann=f'workspace = "{tmp_path / "code"}"') as daemon:

        def started(prompt: str, state: str) -> str:
            request_id = str(daemon.post("/api/requests", {"prompt": prompt}).json()["request_id"])
            wait_until(lambda: daemon.get(f"/api/requests/{request_id}").json()["request"]["state"] == state)
            return request_id

        def read(path: str) -> dict[str, dict[str, str]]:
            return daemon.get(path).json()

        ended = started("retries", "ended")
        conversation = read(f"/api/requests/{ended}")["request"]["conversation_id"]
        known = {
            "REQUEST": started('call dangerous {"what": "it"}', "waiting"),
            "DEFERRED": started("call put_off", "waiting"),
            "FAILING": started("call put_off", "waiting"),
            "CALL": "c1",
            "CONVERSATION": conversation,
            "MESSAGE": daemon.get(f"/api/conversations/{conversation}").json()["messages"][-1]["id"],
            "URL": daemon.url,
            "TOKEN": daemon.token,
        }
        for line, shown in zip(LINES, SHOWN, strict=True):
            ran = subprocess.run(
                ["bash", "-c", line],
                capture_output=True,
                text=True,
                env={**os.environ, **known},
                timeout=60,
                check=False,
            )
            assert ran.returncode == 0, (line, ran.stdout, ran.stderr)
            assert shown in ran.stdout, (line, ran.stdout)
            assert ('"error":{' in ran.stdout) is (line == LINES[-1]), (line, ran.stdout)
        assert len(LINES) > 20
