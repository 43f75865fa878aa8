"""A tool that declares `read` gets at nothing else: each attempt succeeds in a plain process and is refused in a tool.

Also where the kernel gives no namespaces, and so no mounts.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import escapes
from support.escapes import ESCAPES, HELD_ANYWAY, NAMESPACES, ROOT_ONLY, WITH_MOUNTS, Scene

from callboard.actors.processes.confinement import kernel_support
from callboard.actors.processes.keeper import containment
from callboard.actors.processes.spawning import interpreter
from callboard.actors.processes.supply import ProcessOptions
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import Tool, tool
from callboard.protocol.events import ToolCallCompleted, ToolCallFailed

pytestmark = pytest.mark.skipif(bool(kernel_support().lacks), reason=f"this kernel has {kernel_support()}")


Cage = tuple[ToolStage, Tool, Scene, bool, bool]
"""With whether it has namespaces and mounts."""


def furnish(root: Path, sockets: dict[str, str]) -> Scene:
    inside, outside = root / "inside", root / "outside"
    for folder in (inside, outside, inside / "empty", inside / ".ssh"):
        folder.mkdir(parents=True)
    for file in (inside / "file", outside / "file", inside / ".env", inside / ".ssh" / "config"):
        file.write_text(f"text of {file.name}")
    (inside / "link_out").symlink_to(outside / "file")
    return {
        "inside": str(inside),
        "outside": str(outside),
        "home": str(Path.home()),
        "host": str(os.getpid()),
        **sockets,
    }


@pytest.fixture(scope="module")
def sockets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("s")
    abstract = f"callboard-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0), backlog=100) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as unnamed,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        unix.bind(str(folder / "u"))
        unix.listen(100)
        unnamed.bind(f"\0{abstract}")
        unnamed.listen(100)
        datagrams.bind(str(folder / "d"))
        port = str(tcp.getsockname()[1])
        yield {"port": port, "unix": str(folder / "u"), "abstract": abstract, "unix_datagrams": str(folder / "d")}


@pytest.fixture(scope="module")
def at_large(tmp_path_factory: pytest.TempPathFactory, sockets: dict[str, str]) -> dict[str, str]:
    """What came of each attempt in plain processes."""
    root = tmp_path_factory.mktemp("at_large")
    lines = [json.dumps([name, furnish(root / name, sockets)]) for name in ESCAPES]
    ran = subprocess.run(
        interpreter(f"import sys\nsys.argv[1:] = [{str(root)!r}]\nfrom support.escapes import main\nmain()"),
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return dict(json.loads(line) for line in ran.stdout.splitlines())


@pytest.fixture(scope="module", params=["namespaces", "none"])
def cage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, sockets: dict[str, str]
) -> Iterator[Cage]:
    has_namespaces = request.param == "namespaces"
    if has_namespaces and not containment().namespaces:
        pytest.skip(f"no namespaces here: {containment().why_not}")
    scene = furnish(tmp_path_factory.mktemp("caged"), sockets)
    confined = tool(risk="read", name="attempt", paths=[scene["inside"]])(escapes.attempt)
    with ToolStage(ProcessOptions(namespaces=has_namespaces)) as stage:
        yield stage, confined, scene, has_namespaces, has_namespaces and containment().mounts


@pytest.mark.parametrize("name", [name for name in ESCAPES if name not in HELD_ANYWAY])
def test_an_attempt_succeeds_in_a_plain_process(name: str, at_large: dict[str, str]) -> None:
    if name in ROOT_ONLY and os.geteuid() != 0:
        pytest.skip("only a root can do this at all")
    assert at_large[name] == "succeeded"


@pytest.mark.parametrize("name", list(ESCAPES))
def test_an_attempt_is_refused_in_a_tool(name: str, cage: Cage) -> None:
    stage, confined, scene, has_namespaces, has_mounts = cage
    if name in NAMESPACES and not has_namespaces:
        pytest.skip("without namespaces, the processes of this machine are in sight")
    if name in WITH_MOUNTS and not has_mounts:
        pytest.skip("without mounts, secret files are not covered")
    before = contents(scene)
    event = stage.call(confined, name=name, scene=scene)
    if isinstance(event, ToolCallCompleted):
        assert event.content.startswith(("refused: ", "nothing came of it")), event.content
    else:
        assert isinstance(event, ToolCallFailed), event
        assert "SIGSYS" in event.failure.message
    assert contents(scene) == before


def contents(scene: Scene) -> list[tuple[str, int, int, bytes]]:
    """Of the files that a tool could have changed: names, modes, times, and what is in them."""
    found = []
    for folder in (scene["inside"], scene["outside"]):
        for path in sorted(Path(folder).rglob("*")):
            status = path.lstat()
            data = path.read_bytes() if path.is_file() else b""
            found.append((str(path), status.st_mode, status.st_mtime_ns, data))
    return found


def test_there_are_at_least_sixty_attempts() -> None:
    assert len(ESCAPES) >= 60
    assert len(set(ESCAPES) - HELD_ANYWAY) >= 60 or sys.platform != "linux"
