"""Runs CompatCanary (npm), a scanner for OpenAI's APIs, against `callboard serve` with a scripted model.

Exit status 0: each profile scored 100 of 100; 77: there is no npm, no registry or no node 20, which is said. The
scanner has no dependencies and is pinned in package-lock.json. Some 10 s.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
PROGRAM: Final = ROOT / "tests" / "support" / "answering_daemon.py"
#: "modern" is "chat" with the Responses API.
PROFILES: Final = ("chat", "modern")
INSTALL_SECONDS: Final = 120
SCAN_SECONDS: Final = 60
STOP_SECONDS: Final = 30
MODEL: Final = "scripted/model"
#: The exit status for that.
NOT_RUN: Final = 77
TOKEN: Final = "a-token-for-this-scan-0123456789"


def main() -> int:
    """The exit status."""
    with tempfile.TemporaryDirectory() as folder:
        if missing := not_installed(HERE, Path(folder)):
            print(f"compatcanary: not run, {missing}")
            return NOT_RUN
        with served(Path(folder)) as url:
            scanner = ["node", str(Path(folder) / "node_modules/compatcanary/src/cli.js"), "scan"]
            target = ["--base-url", f"{url}/v1", "--model", MODEL, "--api-key", TOKEN]
            return max([scan([*scanner, *target], profile) for profile in PROFILES])


def not_installed(pinned: Path, folder: Path) -> str:
    """Install the packages that package-lock.json in `pinned` names into `folder`. Why that could not be, or ""."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        return "npm is not installed"
    for name in ("package.json", "package-lock.json"):
        shutil.copy(pinned / name, folder)
    install = ["npm", "ci", "--no-audit", "--no-fund", "--no-progress"]
    try:
        done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        return f"npm did not install the packages within {INSTALL_SECONDS} s"
    return f"npm could not install the packages: {done.stderr.strip()[-300:]}" if done.returncode else ""


@contextlib.contextmanager
def served(folder: Path, *arguments: str) -> Iterator[str]:
    """`callboard serve` with the scripted model of the tests; its URL."""
    config = folder / "callboard.toml"
    config.touch(mode=0o600)
    names = {"CALLBOARD_TOKEN": TOKEN, "XDG_STATE_HOME": str(folder), "CALLBOARD_CONFIG_DIR": str(folder)}
    command = [sys.executable, str(PROGRAM), "serve", "--config", str(config), "--port", "0", *arguments]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder, env={**os.environ, **names})
    assert server.stderr is not None
    try:
        for line in server.stderr:
            if found := re.search(r"ready: (\S+)", line):
                break
        else:
            raise SystemExit(f"callboard serve ended with {server.wait(STOP_SECONDS)}")
        reader = threading.Thread(target=server.stderr.read)  # a full pipe would stop the server
        reader.start()
        yield found[1]
    finally:
        server.terminate()
        server.wait(STOP_SECONDS)
    reader.join(STOP_SECONDS)


def scan(command: list[str], profile: str) -> int:
    """One profile: 0 where all of it passed."""
    told = [*command, "--profile", profile, "--format", "json", "--fail-on", "never"]
    ran = subprocess.run(told, capture_output=True, text=True, timeout=SCAN_SECONDS, check=True)
    found = json.loads(ran.stdout)
    for each in found["results"]:
        print(f"{each['status'].upper()}  {each['id']}: {each['summary']}")
    score = found["score"]
    print(f"compatcanary, profile {profile}: {score} of 100")
    return 0 if score == 100 else 1


if __name__ == "__main__":
    sys.exit(main())
