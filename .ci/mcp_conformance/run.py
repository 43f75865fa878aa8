"""Runs the MCP conformance suite (npm) against `callboard mcp` and against our client, in both revisions.

Exit status 0: every scenario of both sides passed, but for those in `NOT_OURS`; 77: there is no npm, or no registry,
and nothing could be run, which is said. The suite is pinned in package-lock.json and installed into a folder of the
user's cache; its own node comes with it, since it needs version 22. Some 2 minutes on two cores.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
TOOLS: Final = ROOT / "tests" / "actors" / "mcp" / "conformance_tools.py"
CLIENT: Final = ROOT / "tests" / "support" / "mcp_conformance_client.py"
REVISIONS: Final = ("2025-11-25", "2026-07-28")
INSTALL_SECONDS: Final = 120
START_SECONDS: Final = 60
#: The suite starts 40 clients at the same time, which take turns.
SCENARIO_SECONDS: Final = 200
SUITE_SECONDS: Final = 240

_TASKS: Final = "callboard has no tasks (an extension, SEP-2663): a call lasts as long as its request"
_SIGN_IN: Final = "callboard signs in by a browser or by a client secret, not in the ways of these extensions"
#: Scenarios that are not passed, and why. The suite itself counts none of them: they are of
#: optional extensions. One that passes after all must be taken out.
NOT_OURS: Final[Mapping[str, str]] = {
    "tasks-lifecycle": _TASKS,
    "tasks-capability-negotiation": _TASKS,
    "tasks-wire-fields": _TASKS,
    "tasks-request-state-removal": _TASKS,
    "tasks-mrtr-input": _TASKS,
    "tasks-request-headers": _TASKS,
    "tasks-dispatch-and-envelope": _TASKS,
    "tasks-required-task-error": _TASKS,
    "tasks-mrtr-composition": _TASKS,
    "auth/client-credentials-jwt": _SIGN_IN,
    "auth/dpop": _SIGN_IN,
    "auth/dpop-nonce": _SIGN_IN,
    "auth/enterprise-managed-authorization": _SIGN_IN,
    "auth/wif-jwt-bearer": _SIGN_IN,
}


class CannotRun(Exception):
    """There is no suite to run."""


def installed() -> Path:
    """The folder of the suite's commands."""
    npm = shutil.which("npm")
    if npm is None:
        raise CannotRun("npm is not installed")
    lock = (HERE / "package-lock.json").read_bytes()
    version = json.loads((HERE / "package.json").read_bytes())["dependencies"]["@modelcontextprotocol/conformance"]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "callboard-ci" / f"conformance-{version}"
    commands = cache / "node_modules" / ".bin"
    held = cache / "package-lock.json"
    if (commands / "conformance").exists() and held.exists() and held.read_bytes() == lock:
        return commands
    cache.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "package.json", cache)
    held.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as fresh:  # the lock file comes last: then the folder is whole
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, fresh)
        install = [npm, "ci", "--no-audit", "--no-fund", "--no-progress"]
        try:
            done = subprocess.run(install, cwd=fresh, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            raise CannotRun(f"npm did not install the suite within {INSTALL_SECONDS} s") from None
        if done.returncode:
            raise CannotRun(f"npm could not install the suite: {done.stderr.strip()[-500:]}")
        shutil.rmtree(cache / "node_modules", ignore_errors=True)
        shutil.copytree(Path(fresh) / "node_modules", cache / "node_modules", symlinks=True)
    held.write_bytes(lock)
    return commands


@contextlib.contextmanager
def served(workspace: Path) -> Iterator[str]:
    """`callboard mcp` over HTTP with the tools of the suite; its URL."""
    command = [sys.executable, "-m", "callboard.actors.cli", "mcp", "--http", "127.0.0.1:0", "--no-token"]
    command += ["--workspace", str(workspace), "--tools", str(TOOLS)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=workspace)
    assert server.stderr is not None
    try:
        for line in server.stderr:
            if found := re.search(r"MCP server: (\S+)", line):
                break
        else:
            raise SystemExit(f"callboard mcp ended with {server.wait(START_SECONDS)}")
        log = open(workspace.with_suffix(".log"), "wb")  # noqa: SIM115 - as long as `cat` runs
        reader = subprocess.Popen(["cat"], stdin=server.stderr, stdout=log)  # a full pipe would stop the server
        yield found[1]
    finally:
        server.terminate()
        server.wait(START_SECONDS)
    reader.wait(START_SECONDS)
    log.close()


def play(commands: Path, side: str, revision: str, target: list[str], results: Path) -> dict[str, list[str]]:
    """Run the scenarios of one side and revision: what failed of each."""
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    browser = f"{sys.executable} {HERE / 'browser.py'} %s"
    environment = {**os.environ, "PATH": path, "BROWSER": browser, "TMPDIR": str(results.parent)}
    arguments = [str(commands / "conformance"), side, *target, "--requirements", revision, "-o", str(results)]
    arguments += ["--timeout", str(SCENARIO_SECONDS * 1_000)]
    with open(results.with_suffix(".log"), "wb") as log:
        suite = subprocess.Popen(arguments, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            suite.wait(SUITE_SECONDS)
        except subprocess.TimeoutExpired:
            return {"(all)": [f"the suite did not end within {SUITE_SECONDS} s"]}
        finally:
            with contextlib.suppress(ProcessLookupError):  # clients that it has left, or all of it
                os.killpg(suite.pid, signal.SIGKILL)
            suite.wait()
    failed: dict[str, list[str]] = {}
    for checks in sorted(results.glob("**/checks.json")):
        folder = str(checks.parent.relative_to(results))
        scenario = re.sub(r"-\d{4}-\d\d-\d\dT[\d-]+Z$", "", folder).removeprefix(f"{side}-")
        wrong = [each for each in json.loads(checks.read_bytes()) if each["status"] == "FAILURE"]
        failed[scenario] = [f"{each['id']}: {each.get('errorMessage') or each['description']}" for each in wrong]
    if not failed:
        raise SystemExit(f"the suite ran nothing; it said:\n{results.with_suffix('.log').read_text()[-2_000:]}")
    return failed


def told(side: str, revision: str, failed: Mapping[str, list[str]]) -> bool:
    """Print what came of it; True where nothing is wrong."""
    unexpected = {name: why for name, why in failed.items() if why and name not in NOT_OURS}
    stale = [name for name, why in failed.items() if not why and name in NOT_OURS]
    passed = sum(not why for why in failed.values())
    print(f"{side} {revision}: {passed} of {len(failed)} scenarios passed", end="")
    print(f", {len(failed) - passed - len(unexpected)} are not ours" if passed < len(failed) else "")
    for name, why in unexpected.items():
        print(f"  FAILED {name}", *why[:5], sep="\n    ")
    for name in stale:
        print(f"  {name} passes: take it out of NOT_OURS")
    return not unexpected and not stale


def main(sides: list[str]) -> int:
    """Print a line for each side and revision. `sides`: "server", "client" or both."""
    try:
        commands = installed()
    except CannotRun as reason:
        print(f"not run: {reason}")
        return 77
    is_right = True
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # a client may still write to it
        workspace = Path(folder) / "workspace"
        workspace.mkdir()
        with contextlib.ExitStack() as open_server:
            for side in sides:
                target = ["--command", f"{sys.executable} {HERE / 'in_turn.py'} {folder} {CLIENT}"]
                if side == "server":
                    target = ["--url", open_server.enter_context(served(workspace))]
                for revision in REVISIONS:
                    failed = play(commands, side, revision, target, Path(folder) / f"{side}-{revision}")
                    is_right &= told(side, revision, failed)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["server", "client"]))
