"""`callboard serve` with a model that does as it is told: "call NAME {...}" makes it call a tool, "talk NAME" too,
after much text.

Run as a program: `python scripted_daemon.py serve ...`. Two tenants have tools to approve, to wait for, and to look at.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace
from support.running_daemon import RunningDaemon, running_daemon

TOOLS = '''
import time
from callboard import Deferred, tool

@tool(risk="execute")
def dangerous(what: str) -> str:
    """Needs an approval."""
    return "did " + what

@tool(risk="read")
async def put_off() -> Deferred:
    """Its result comes from outside."""
    return Deferred(600.0)

@tool(risk="read", timeout=60)
def sleeps() -> str:
    """Runs until it is killed."""
    time.sleep(50)
    return "slept"

@tool(risk="read")
def quick() -> str:
    """At once."""
    return "quick"
'''
PLANTED_KEY = "sk-proj-planted0123456789abcdefghijklmnopqrstuv"
CONFIG = """
[default]
model = "scripted/model"

[daemon]
{daemon}

[tenants.ann]
tools = ["daemon_test_tools.py"]
{ann}

[tenants.bob]
tools = ["daemon_test_tools_of_bob.py"]
"""


@contextlib.contextmanager
def scripted_daemon(
    folder: Path, *arguments: str, daemon: str = "", ann: str = "", token: str | None = None
) -> Iterator[RunningDaemon]:
    """CALLBOARD_TOKEN is an admin's of the tenant `ann`."""
    (folder / "config").mkdir(exist_ok=True)
    for name in ("daemon_test_tools", "daemon_test_tools_of_bob"):
        (folder / f"config/{name}.py").write_text(TOOLS)
    program = (sys.executable, "-m", "support.scripted_daemon")
    config = CONFIG.format(daemon=daemon, ann=ann)
    more = {} if token is None else {"token": token}
    path = [str(Path(__file__).parents[1]), *sys.path]
    environment = {"PYTHONPATH": ":".join(each for each in path if each), "OPENAI_API_KEY": PLANTED_KEY}
    with running_daemon(folder, *arguments, config=config, program=program, environment=environment, **more) as found:
        yield found


def main() -> int:
    from callboard.actors.cli.__main__ import main as command  # noqa: PLC0415 - only the program needs it
    from callboard.actors.daemon import tenants  # noqa: PLC0415
    from callboard.actors.daemon.daemon_settings import TenantPlan  # noqa: PLC0415
    from callboard.protocol.content import ToolMessage, UserMessage  # noqa: PLC0415
    from callboard.protocol.model import ModelRequest, Usage  # noqa: PLC0415
    from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn  # noqa: PLC0415

    used = Usage(input_tokens=10, output_tokens=5)

    def model(request: ModelRequest) -> ScriptedTurn:
        last = next(each for each in reversed(request.messages) if isinstance(each, UserMessage | ToolMessage))
        if isinstance(last, ToolMessage):
            return ScriptedTurn(text=f"the tool said {last.content}", usage=used)
        text = next(each.text for each in reversed(request.messages) if isinstance(each, UserMessage))
        word, _, rest = text.partition(" ")
        if word == "call":
            name, _, arguments = rest.partition(" ")
            return ScriptedTurn(calls=(ScriptedCall(name, arguments or "{}", id="c1"),), usage=used)
        if word == "talk":
            return ScriptedTurn("word " * 120_000, calls=(ScriptedCall(rest, {}, id="c1"),), usage=used)
        return ScriptedTurn(text=f"you said {text}", usage=used)

    original = tenants.made

    def made(plan: TenantPlan) -> tenants.Tenant:
        return original(replace(plan, settings=plan.settings.model_copy(update={"script": model})))

    tenants.made = made
    return command()


if __name__ == "__main__":
    sys.exit(main())
