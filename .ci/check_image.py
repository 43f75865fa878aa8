"""Build the image of the Dockerfile, and run it as docs/operating.md says: read-only, without root, asked, stopped.

    .venv-ci/bin/python .ci/check_image.py

The engine is docker or podman, or the words of CALLBOARD_ENGINE ("podman --runtime runc"); CALLBOARD_BUILD has further
words for its `build`. Needs callboard in this environment, and port 8330. The exit status is 77 where no engine runs
Debian here.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from callboard.actors.testing.wire_double import Api, Call, Turn, WireDouble

ROOT = Path(__file__).resolve().parents[1]
NOT_RUN_HERE = 77
MAX_MB = 200
IMAGE = NAME = "callboard-checked"
URL = "http://127.0.0.1:8330"
TOKEN = "a-token-of-the-check-0123456789"
VOLUMES = ("callboard-checked-state", "callboard-checked-work")
LONG = "It drains." * 12


def engine() -> list[str] | None:
    """The words of an engine that runs the base image here."""
    (base,) = set(re.findall(r"^FROM (\S+/\S+)", (ROOT / "Dockerfile").read_text(), re.M))
    given = os.environ.get("CALLBOARD_ENGINE")
    for words in [shlex.split(given)] if given else [["docker"], ["podman"]]:
        if shutil.which(words[0]):
            tried = subprocess.run([*words, "run", "--rm", base, "true"], capture_output=True, text=True, timeout=300)
            if tried.returncode == 0:
                return words
            print(f"{words[0]}: {tried.stderr.strip().splitlines()[-1:]}")
    return None


class Engine:
    """Its commands; each must succeed."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def run(self, *arguments: str) -> str:
        """The output of a command."""
        print("$", *self._words, *arguments, flush=True)
        ran = subprocess.run([*self._words, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=900)
        if ran.returncode:
            sys.exit(f"{ran.stdout}\n{ran.stderr}")
        return ran.stdout.strip()

    def remove(self) -> None:
        """What an earlier run has left, and this one."""
        for words in (("rm", "--force", NAME), ("volume", "rm", "--force", *VOLUMES)):
            subprocess.run([*self._words, *words], capture_output=True, timeout=60)

    def megabytes(self) -> tuple[float, float]:
        """Of the image, as it lies on the disk and as a registry sends it."""
        whole = int(self.run("image", "inspect", "--format", "{{.Size}}", IMAGE))
        saved = subprocess.run([*self._words, "save", IMAGE], stdout=subprocess.PIPE, check=True, timeout=300).stdout
        return whole / 1e6, len(gzip.compress(saved, 6)) / 1e6


def asked(words: str, token: str) -> tuple[str, list[Any]]:
    """What the daemon in the container answers, and how each call of a tool has failed."""
    body = json.dumps({"messages": [{"role": "user", "content": words}]}).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with urlopen(Request(f"{URL}/v1/chat/completions", body, headers), timeout=60) as answer:
        told = json.load(answer)
    return told["choices"][0]["message"]["content"], [each["failed"] for each in told["callboard"]["calls"]]


def wait_until_ready() -> None:
    """The first start takes some seconds."""
    until = time.monotonic() + 60
    while True:
        try:
            urlopen(f"{URL}/readyz", timeout=5).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def check(found: Engine, double: WireDouble) -> None:
    """It answers, uses a tool in a process, keeps to its user and its volumes, and drains."""
    (state, work) = VOLUMES
    environment = {
        "CALLBOARD_TOKEN": TOKEN,
        "CALLBOARD_MODEL": "openai/gpt-6.1-sol",
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": double.base_url(Api.RESPONSES),
    }
    given = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
    volumes = ["--volume", f"{state}:/var/lib/callboard", "--volume", f"{work}:/workspace"]
    found.run("run", "--detach", "--name", NAME, "--network", "host", "--read-only", *volumes, *given, IMAGE)
    wait_until_ready()
    double.play([Turn("", (Call("list_dir", {"path": "."}),)), Turn("A tool has run.")], by_turn=True)
    assert asked("Hello", TOKEN) == ("A tool has run.", [None])
    made = found.run("exec", NAME, "callboard", "tokens", "make", "--note", "a client").splitlines()[-1]
    assert asked("Hello", made) == ("A tool has run.", [None])
    assert found.run("exec", NAME, "id", "-u") == "10001"
    health = json.loads(found.run("image", "inspect", "--format", "{{json .Config.Healthcheck.Test}}", IMAGE))
    found.run("exec", NAME, *health[1:])
    double.play([Turn(LONG, fragment=4, pause=0.1)], by_turn=True)
    seen = len(double.requests())
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(asked, "Take your time", TOKEN)
        double.wait_until(lambda traffic: len(traffic.requests) > seen)
        found.run("stop", "--time", "60", NAME)
        assert answer.result(60) == (LONG, [])
    assert found.run("inspect", "--format", "{{.State.ExitCode}}", NAME) == "0"


def main() -> int:
    """Check all of it."""
    words = engine()
    if words is None:
        print("no container engine runs here")
        return NOT_RUN_HERE
    found = Engine(words)
    found.remove()
    found.run("build", "--tag", IMAGE, *shlex.split(os.environ.get("CALLBOARD_BUILD", "")), ".")
    whole, sent = found.megabytes()
    print(f"{whole:.0f} MB, {sent:.0f} MB compressed")
    assert whole < MAX_MB
    try:
        with WireDouble() as double:
            check(found, double)
    finally:
        found.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
