"""A program: `callboard serve` whose model is a script, for the tests of the board. Its arguments are the command's.

The words of a question decide what the model does: "edit PATH", "publish: TEXT". `POST /test/start` asks as many
questions as its body says; `{n}` in them is the number of each.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path

from starlette.responses import Response

from callboard.actors.daemon import app, http_server
from callboard.actors.daemon.api_errors import json_response
from callboard.actors.daemon.daemon import Daemon
from callboard.actors.daemon.daemon_settings import read_plan
from callboard.actors.daemon.endpoint import Endpoint, HttpCall
from callboard.actors.environment import token_of_environment
from callboard.protocol.content import UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import ModelRequest, Usage
from callboard.providers.http_errors import make_error
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

TOOLS = '''
"""Tools for the board's tests."""
import time

from callboard import tool


@tool(timeout=120, risk="read")
def slow(seconds: float = 60.0) -> str:
    """Takes its time."""
    time.sleep(seconds)
    return "awake"


@tool(timeout=1, risk="read")
def hangs() -> str:
    """Longer than it may."""
    time.sleep(60)
    return "never"


@tool(risk="read")
def breaks() -> str:
    """Raises."""
    raise RuntimeError("no luck")


@tool(risk="write", isolation="thread")
def publish(text: str) -> str:
    """Sends it to everyone."""
    return "sent"


@tool(risk="read", isolation="task")
async def quick(word: str) -> str:
    """Says a word."""
    return word
'''
CALLS = {
    "slow": (ScriptedCall("slow", {"seconds": 90.0}),),
    "several": (
        ScriptedCall("slow", {"seconds": 1.5}),
        ScriptedCall("breaks", {}),
        ScriptedCall("hangs", {}),
        ScriptedCall("quick", {"word": "hello"}),
    ),
}
USED = Usage(input_tokens=1_200, output_tokens=180)
tasks: set[asyncio.Task[object]] = set()


def script(request: ModelRequest) -> ScriptedTurn:
    """What the last question wants, then an answer."""
    last = request.messages[-1]
    if not isinstance(last, UserMessage):
        return ScriptedTurn("Done.", usage=USED, first_delay_seconds=0.3)
    if (calls := called(last.text)) is not None:
        return ScriptedTurn("I will see.", calls=calls, usage=USED, first_delay_seconds=0.3)
    if "refused" in last.text:
        return ScriptedTurn(error=make_error(ErrorKind.AUTHENTICATION, "the key is not known"))
    if "limited" in last.text:
        return ScriptedTurn(error=make_error(ErrorKind.RATE_LIMITED, "too many", retry_after=50.0))
    if "think" in last.text:
        return ScriptedTurn("At last.", first_delay_seconds=600)
    return ScriptedTurn("Here it is.", usage=USED)


def called(text: str) -> tuple[ScriptedCall, ...] | None:
    """What a question makes the model call."""
    if "edit" in text:
        path = text.partition("edit ")[2].partition(" ")[0] or "plan.txt"
        return (ScriptedCall("create_file", {"path": path, "content": "first line\nsecond line\n"}),)
    if "publish" in text:
        return (ScriptedCall("publish", {"text": text.partition("publish: ")[2] or "to all"}),)
    return next((calls for word, calls in CALLS.items() if word in text), None)


async def start(call: HttpCall) -> Response:
    """{"prompt", "count", "metadata"}: ask it so often, and do not wait."""
    body = call.json()
    about = {str(name): str(value) for name, value in dict(body.get("metadata") or {}).items()}  # type: ignore[call-overload]
    for n in range(int(str(body.get("count", 1)))):
        prompt = str(body["prompt"]).replace("{n}", str(n))
        task: asyncio.Task[object] = asyncio.ensure_future(call.tenant.runtime.ask(prompt, metadata=about))
        tasks.add(task)
        task.add_done_callback(ended)
    return json_response({}, 202)


def ended(task: asyncio.Task[object]) -> None:
    """How a question ended is on the board."""
    tasks.discard(task)
    if not task.cancelled():
        task.exception()


async def end_all(_: HttpCall) -> Response:
    """Cancel all questions."""
    for task in tuple(tasks):
        task.cancel()
    return json_response({}, 202)


def main(arguments: list[str]) -> None:
    """As the command does."""
    options = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    workspace = Path("workspace")
    workspace.mkdir(exist_ok=True)
    tools = Path("board_tools.py")
    tools.write_text(TOOLS)
    runtimes = {"script": script, "model": "scripted/model", "workspace": workspace.resolve(), "confine": "off"}
    config, daemons = Path(options["--config"]).resolve(), {"port": int(options["--port"])}
    plan = partial(read_plan, config, given=runtimes, daemon=daemons, tools=[tools.resolve()])
    own = (Endpoint("POST", "/test/start", start), Endpoint("POST", "/test/end", end_all))
    http_server.make_app = lambda daemon: app.make_app(daemon, (*app.ENDPOINTS, *own))  # type: ignore[assignment]
    daemon = Daemon(plan, token_of_environment())
    asyncio.run(http_server.serve(daemon, lambda url: sys.stderr.write(f"callboard: ready: {url}\n")))


if __name__ == "__main__":
    main(sys.argv[1:])
