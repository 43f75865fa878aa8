"""What an MCP server runs of a workspace: no confined command writes it, and a change of it is asked about."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from callboard.actors.builtins.run_command import run_command_tool
from callboard.actors.builtins.workspace import Workspace
from callboard.actors.mcp.mcp_servers import McpServer, mcp_servers_of
from callboard.actors.mcp.named_files import named_files
from callboard.actors.policy.workspace_trust import SERVERS, FileState, WorkspaceTrust
from callboard.actors.processes.keeper import containment
from callboard.actors.processes.supply import ProcessOptions
from callboard.actors.testing.tool_stage import ToolStage
from callboard.protocol.events import ToolCallCompleted

FILES = {
    "server.py": "print(1)\n",
    "server.js": "",
    "tools/run.sh": "#!/bin/sh\n",
    "tools/settings.toml": "x = 1\n",
    "package/__init__.py": "",
    "package/__main__.py": "",
    "package/inner/__init__.py": "",
    "package/inner/more.py": "",
    "src/below/__main__.py": "",
    "node/package.json": "{}",
    "node/dist/index.js": "",
    "package.json": "{}",
    "pyproject.toml": "",
    "Makefile": "",
    "docs/page.md": "text",
    "notes.db": "",
    "hook.js": "",
    "with a blank.py": "",
}
#: The words of a command, and what of the workspace they name.
NAMED: Mapping[tuple[str, ...], set[str]] = {
    ("python", "server.py"): {"server.py"},
    ("python", "-u", "{root}/server.py", "--port", "1"): {"server.py"},
    ("python3.12", "-Im", "package"): {"package"},
    ("python", "-m", "package.inner"): {"package"},
    ("python", "-m", "below"): {"src/below"},
    ("python", "-mserver"): {"server.py"},
    ("python", "package"): {"package"},
    ("python", "package/inner/more.py"): {"package"},
    ("python", "with a blank.py"): {"with a blank.py"},
    ("python", "./tools/../server.py"): {"server.py"},
    ("node", "server.js", "--config=tools/settings.toml"): {"server.js", "tools/settings.toml"},
    ("node", "--require", "./hook.js", "server.js"): {"hook.js", "server.js"},
    ("node", "-r./hook.js", "server.js"): {"hook.js", "server.js"},
    ("node", "node"): {"node"},
    ("./tools/run.sh",): {"tools/run.sh"},
    ("{root}/tools/run.sh", "-c", "tools/settings.toml"): {"tools/run.sh", "tools/settings.toml"},
    ("sh", "-c", "cd tools && exec ./run.sh"): {"tools/run.sh"},
    ("bash", "-lc", "python 'with a blank.py'"): {"with a blank.py"},
    ("env", "MODE=1", "python", "server.py"): {"server.py"},
    ("uv", "run", "--directory", "{root}", "server.py"): {"server.py", "pyproject.toml"},
    ("uv", "--directory", "tools", "run", "settings.toml"): {"pyproject.toml", "tools/settings.toml"},
    ("npm", "run", "start"): {"package.json"},
    ("npm", "--prefix", "node", "start"): {"package.json", "node"},
    ("make", "serve"): {"Makefile"},
    ("deno", "run", "server.js"): {"package.json", "server.js"},
    ("npx", "-y", "@somebody/server-of-files", "{root}"): {"package.json"},
    ("server-of-files", "{root}", "docs", "docs/page.md"): {"docs/page.md"},
    ("server-of-a-table", "--path", "notes.db"): set(),
    ("docker", "run", "-v", "{root}:/data", "image"): set(),
    ("python", "-c", "print(1)"): set(),
    ("python", "'open quote", "server.py"): {"server.py"},
}


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "workspace"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "tools/run.sh").chmod(0o755)
    monkeypatch.chdir(root)
    return root


def named(workspace: Path, server: McpServer) -> set[str]:
    return {os.path.relpath(each, workspace) for each in named_files([server], workspace)}


@pytest.mark.parametrize("words", NAMED, ids=" ".join)
def test_the_words_of_a_command_name_files(workspace: Path, words: tuple[str, ...]) -> None:
    command, *args = (each.replace("{root}", str(workspace)) for each in words)
    expected = NAMED[words]
    if words[:2] == ("python3.12", "-Im"):
        args = ["-I", "-m", "package"]
    assert named(workspace, McpServer(command=command, args=tuple(args))) == expected


def test_they_are_named_from_its_own_folder_and_by_its_variables_too(workspace: Path, tmp_path: Path) -> None:
    assert named(workspace, McpServer(command="python", args=("run.sh",), cwd=workspace / "tools")) == {"tools/run.sh"}
    given = McpServer(command="node", args=("x",), env={"NODE_OPTIONS": "--require=./hook.js", "PYTHONPATH": "package"})
    assert named(workspace, given) == {"hook.js", "package"}
    (tmp_path / "outside.py").touch()
    (workspace / "link.py").symlink_to(workspace / "server.py")
    assert named(workspace, McpServer(command="python", args=(str(tmp_path / "outside.py"), "link.py"))) == {
        "server.py"
    }
    assert named(workspace, McpServer(url="https://host/server.py")) == set()


# -- what a confined command may do to them


@pytest.fixture
def stage(workspace: Path) -> Iterator[ToolStage]:
    if not containment().mounts:
        pytest.skip("this kernel gives a tool no mounts of its own")
    servers = [
        McpServer(command="python", args=("server.py", "--config", "tools/settings.toml")),
        McpServer(command="python", args=("-m", "package")),
    ]
    with ToolStage(ProcessOptions(workspace=workspace, kept=named_files(servers, workspace))) as stage:
        yield stage


WAYS = [
    "echo x > server.py",
    "echo x >> server.py",
    "rm -f server.py",
    "mv server.py other.py",
    "touch new && mv -f new server.py",
    "ln -sf /etc/hosts server.py",
    "sed -i s/1/2/ server.py",
    "cp -f /etc/hosts server.py",
    "truncate -s 0 server.py",
    'python3 -c \'import os; os.replace("hook.js", "server.py")\'',
    "chmod 777 server.py",
    "ln server.py hard && echo x > hard",
    "echo x > tools/settings.toml",
    "mv tools elsewhere && mkdir tools && echo x > tools/settings.toml",
    "echo x > package/__main__.py",
    "echo x > package/new.py",
    "rm -rf package",
    "mv package elsewhere && mkdir package && echo x > package/__main__.py",
    "mkdir -p package/__pycache__ && echo x > package/__pycache__/more.pyc",
]


def contents(workspace: Path) -> dict[str, tuple[int, bytes]]:
    places = [workspace / "server.py", workspace / "tools/settings.toml", *(workspace / "package").rglob("*")]
    return {str(each): (each.lstat().st_mode, each.read_bytes()) for each in places if each.is_file()}


@pytest.mark.parametrize("line", WAYS)
def test_no_confined_command_changes_what_a_server_runs(stage: ToolStage, workspace: Path, line: str) -> None:
    before = contents(workspace)
    event = stage.call(run_command_tool(Workspace.at(workspace)), command=line)
    assert isinstance(event, ToolCallCompleted), event
    assert json.loads(event.content)["exit_code"] != 0, event.content
    assert contents(workspace) == before


def test_the_rest_of_the_workspace_may_be_written(stage: ToolStage, workspace: Path) -> None:
    line = "echo x > server.js && echo x > tools/new && rm hook.js && mkdir folder && python3 server.py"
    event = stage.call(run_command_tool(Workspace.at(workspace)), command=line)
    assert isinstance(event, ToolCallCompleted), event
    assert json.loads(event.content)["exit_code"] == 0, event.content
    assert (workspace / "tools/new").exists()


# -- what was agreed to


def replace(place: Path, target: Path) -> None:
    place.unlink()
    place.symlink_to(target)


CHANGES: Mapping[str, Callable[[Path], object]] = {
    "the script": lambda root: (root / "server.py").write_text("print(2)\n"),
    "its settings": lambda root: (root / "tools/settings.toml").write_text("x = 2\n"),
    "a file of the package": lambda root: (root / "package/inner/more.py").write_text("x = 2\n"),
    "a new file of the package": lambda root: (root / "package/other.py").touch(),
    "one less": lambda root: (root / "package/inner/more.py").unlink(),
    "another name": lambda root: (root / "package/inner/more.py").rename(root / "package/inner/less.py"),
    "a link in place of the script": lambda root: replace(root / "server.py", root / "hook.js"),
    "a link in the package": lambda root: (root / "package/link").symlink_to("/etc"),
    "a file of the package that is a link": lambda root: replace(root / "package/inner/more.py", root / "server.py"),
    "the file of servers": lambda root: (root / SERVERS).write_text((root / SERVERS).read_text() + "\n"),
}  # fmt: skip


@pytest.fixture
def trust(workspace: Path, tmp_path: Path) -> WorkspaceTrust:
    words = {"command": sys.executable, "args": ["server.py", "--config", "tools/settings.toml"]}
    servers = {"one": words, "two": {"command": sys.executable, "args": ["-m", "package"]}}
    (workspace / SERVERS).write_text(json.dumps({"mcpServers": servers}))
    of_file = lambda file: named_files(mcp_servers_of(json.loads(file.data)["mcpServers"]).values(), workspace)  # noqa: E731
    return WorkspaceTrust(tmp_path / "config", workspace, of_file)


def states(trust: WorkspaceTrust) -> dict[str, FileState]:
    return {file.path: file.state for file in trust.files()}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_what_a_server_runs_is_asked_about(trust: WorkspaceTrust, workspace: Path, change: str) -> None:
    paths = (SERVERS, "package", "server.py", "tools/settings.toml")
    assert states(trust) == dict.fromkeys(paths, FileState.NEW)
    trust.agree(trust.files())
    assert states(trust) == dict.fromkeys(paths, FileState.AGREED)
    (workspace / "package/__pycache__").mkdir()
    (workspace / "package/__pycache__/more.pyc").touch()
    assert states(trust) == dict.fromkeys(paths, FileState.AGREED), "Python writes there whenever it runs"
    CHANGES[change](workspace)
    found = states(trust)
    assert found[SERVERS] is FileState.CHANGED
    assert change == "the file of servers" or not {*found.values()} <= {FileState.AGREED}
    trust.agree(trust.files())
    assert set(states(trust).values()) == {FileState.AGREED}


def test_what_cannot_be_summed_up_is_not_agreed_to(trust: WorkspaceTrust, workspace: Path) -> None:
    os.mkfifo(workspace / "package/pipe")
    (servers,) = trust.files()
    assert servers.state is FileState.UNUSABLE
    assert servers.fault.startswith("of package, which it runs: it holds more than")
    trust.agree(trust.files())
    shutil.rmtree(workspace / "package")
    assert states(trust)[SERVERS] is FileState.NEW


def test_a_folder_is_shown_by_its_sums(trust: WorkspaceTrust) -> None:
    (package,) = (file for file in trust.files() if file.path == "package")
    assert [line.partition("  ")[2] for line in package.data.decode().splitlines()] == [
        "__init__.py", "__main__.py", "inner/__init__.py", "inner/more.py",
    ]  # fmt: skip
