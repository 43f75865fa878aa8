"""A daemon before the scripted model of answering_daemon.py, for the tests of its stateless APIs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from support.running_daemon import RunningDaemon, running_daemon
from support.sdk_types import Lazy

if TYPE_CHECKING:
    import openai
else:
    openai = Lazy("openai")

_SUPPORT = Path(__file__).parent
CONFIG = """
[daemon]
models = {"gpt-4o" = "scripted/model"}
"""


@contextlib.contextmanager
def stateless_daemon(folder: Path, config: str = CONFIG, *options: str) -> Iterator[RunningDaemon]:
    """It has the tools of daemon_tools.py. `options` are those of answering_daemon.py."""
    program = (sys.executable, str(_SUPPORT / "answering_daemon.py"))
    tools = ("--tools", str(_SUPPORT / "daemon_tools.py"))
    with running_daemon(folder, *tools, *options, program=program, config=config) as found:
        yield found


def openai_client(daemon: RunningDaemon) -> openai.OpenAI:
    """The official client of it, which does not try again."""
    return openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=daemon.token, max_retries=0)


def ended_requests(daemon: RunningDaemon, outcome: str) -> float:
    """How many requests have ended so, by its metrics."""
    lines = daemon.get("/metrics").text.splitlines()
    counted = [line for line in lines if line.startswith("callboard_requests_total") and f'"{outcome}"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in counted)
