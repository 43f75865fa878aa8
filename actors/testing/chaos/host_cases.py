"""Runs the cases of hosts, each in a process of its own, two at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final

from callboard.actors.testing.chaos.beside import Host
from callboard.actors.testing.chaos.hosts import COMMAND, SCENARIO_SECONDS, HostWay
from callboard.actors.testing.chaos.judging import Result, judged
from callboard.actors.testing.ways.case import Case

AT_A_TIME: Final = 2


async def run_hosts(cases: Sequence[Case], _host: Host) -> list[Result]:
    """In the order of the cases."""
    places = asyncio.Semaphore(AT_A_TIME)

    async def run_one(case: Case) -> Result:
        async with places:
            began = time.monotonic()
            return judged(case, await _faults_of(case), time.monotonic() - began)

    return list(await asyncio.gather(*map(run_one, cases)))


async def _faults_of(case: Case) -> list[str]:
    way = case.way
    assert isinstance(way, HostWay)
    scenario = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        COMMAND,
        way.name,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        said, complaint = await asyncio.wait_for(scenario.communicate(), SCENARIO_SECONDS)
    except TimeoutError:
        return [f"the host had not ended after {SCENARIO_SECONDS:g} s"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(scenario.pid, signal.SIGKILL)
    try:
        faults: list[str] = json.loads(said.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return [f"the host ended with status {scenario.returncode}: {complaint.decode(errors='replace')[-400:]}"]
    return faults
