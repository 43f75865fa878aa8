"""The daemon killed again and again while requests run, and started again at once: is anything lost, or there twice?

    python benchmarks/daemon_kills.py                      # 20 kills, 60 requests, a follower each
    python benchmarks/daemon_kills.py --kills 3            # a short one

Each request calls a tool twice, whose effect is a line in a file (`effect="once"`), and then answers. Its follower
reads the events by HTTP, and after each kill goes on behind the last one that it has seen (`Last-Event-ID`). At the
end each request must have its whole answer; each follower must have read what one that begins now reads, each event
once and in order, but for what was only streamed (deltas of a model turn that a kill has cut), and must have put the
answer together from what was streamed; no effect is there twice, and none that was reported as done is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from daemon_clients import answer, request
from daemon_load import TOKEN, wait_for

from callboard.actors.requests.feed_positions import Position, comes_after
from callboard.actors.testing.wire_double import Call, Script, Tokens, Turn, WireDouble

WORDS = "one two three four five six seven eight nine ten eleven twelve"
#: From the start of a daemon to its kill.
LIVES_SECONDS = (0.3, 3.0)
END_SECONDS = 120.0
RETRY_SECONDS = 0.05
#: What is only streamed: it may come in other pieces, or again from the start of its turn.
STREAMED = frozenset(
    {"text_delta", "thinking_delta", "tool_call_start", "tool_call_delta", "tool_call_complete", "restarted"}
)
TIME = re.compile(r'"(?:at|[a-z_]+_at)":[0-9.e+]+,?')
TOOLS = '''
import asyncio, os
from callboard import ToolContext, tool

@tool(risk="read", effect="once", timeout=20)
async def book(number: int, context: ToolContext) -> str:
    """Book."""
    await asyncio.sleep(0.2)
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(context.effect_id + "\\\\n")
        file.flush()
        os.fsync(file.fileno())
    return "booked"
'''


@dataclass
class Follower:
    """One reader of one request."""

    request_id: str
    ids: list[str] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)
    """Names and data."""
    reply: dict[str, object] = field(default_factory=dict)
    connections: int = 0

    async def follow(self, port: int) -> None:
        """Until the reply, over any number of connections."""
        while not self.reply:
            with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError):  # the daemon is away
                await self._read(port)
            await asyncio.sleep(RETRY_SECONDS)

    async def _read(self, port: int) -> None:
        reading, writing = await asyncio.open_connection("127.0.0.1", port)
        asked = request(port, TOKEN, "GET", f"/api/requests/{self.request_id}/events")
        if self.ids:
            asked = asked.replace(
                b"Connection: close", b"Last-Event-ID: " + self.ids[-1].encode() + b"\r\nConnection: close"
            )
        try:
            writing.write(asked)
            if b" 200 " not in await reading.readline():
                return
            self.connections += 1
            await reading.readuntil(b"\r\n\r\n")
            kept = b""
            while data := await reading.read(65_536):
                kept = self._take(kept + data)
        finally:
            writing.close()

    def _take(self, data: bytes) -> bytes:
        *whole, rest = data.split(b"\n\n")
        for block in whole:
            lines = [line.partition(b": ") for line in block.split(b"\n") if b": " in line]
            fields = {name.decode(): value.decode() for name, _, value in lines if name}
            name = fields.get("event", "")
            if "data" not in fields or name == "error":  # the stream broke; the request goes on
                continue
            if "id" in fields:
                self.ids.append(fields["id"])
            self.events.append((name, fields["data"]))
            if name == "reply":
                self.reply = json.loads(fields["data"])
        return rest

    @property
    def durable(self) -> list[tuple[str, str]]:
        """Without what is only streamed, and without times: each process has a clock of its own for them.

        What a provider says at the end of a turn is kept as its reason and its usage.
        """
        kept = [each for each in self.events if each[0] not in STREAMED]
        return [(name, end_of(data) if name == "done" else TIME.sub("", data)) for name, data in kept]

    @property
    def streamed_text(self) -> str:
        """What a reader has on the screen: a `restarted` takes back what was streamed of its turn."""
        text = ""
        for name, data in self.events:
            if name == "restarted":
                text = ""
            elif name == "text_delta":
                text += json.loads(data)["text"]
        return text


def end_of(done: str) -> str:
    """Of a turn."""
    told = json.loads(done)
    return f"{told['finish_reason']} {told['usage']}"


class Daemons:
    """One daemon after the other, on one port and one journal."""

    def __init__(self, double: WireDouble, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        (folder / "kill_tools.py").write_text(TOOLS.replace("\\\\n", "\\n"))
        self._config = folder / "callboard.toml"
        self._config.write_text(
            f'[default]\nmodel = "openai-compatible/any"\nbase_url = "{double.base_url()}"\napi_key = "sk-benchmark"\n'
            f'[daemon]\nport = {self.port}\n[tenants.default]\ntools = ["kill_tools.py"]\n'
        )
        self._config.chmod(0o600)
        self.process: subprocess.Popen[bytes] | None = None
        self.number = 0

    def start(self) -> None:
        self.number += 1
        log = self.folder / f"daemon-{self.number}.log"
        environment = {
            **os.environ,
            "CALLBOARD_TOKEN": TOKEN,
            "XDG_STATE_HOME": str(self.folder / "state"),
            "EFFECTS": str(self.folder / "effects"),
        }
        command = [sys.executable, "-m", "callboard.actors.cli", "serve", "--config", str(self._config)]
        with open(log, "wb") as out:
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
        wait_for(log, "ready: ", self.process)

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(timeout=60)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        port: int = made.getsockname()[1]
        return port


async def campaign(daemons: Daemons, kills: int, requests: int, rng: random.Random) -> list[Follower]:
    """Requests begin all the time; the daemon dies `kills` times."""
    followers: list[Follower] = []
    following: list[asyncio.Task[None]] = []
    await asyncio.to_thread(daemons.start)
    for number in range(kills + 1):
        share = requests // (kills + 1) + (number < requests % (kills + 1))
        for _ in range(share):
            asked = {"prompt": "Book twice.", "request_id": f"r{len(followers):04}"}
            body = await answer(daemons.port, request(daemons.port, TOKEN, "POST", "/api/requests", asked))
            followers.append(Follower(json.loads(body)["request_id"]))
            following.append(asyncio.ensure_future(followers[-1].follow(daemons.port)))
        if number < kills:
            await asyncio.sleep(rng.uniform(*LIVES_SECONDS))
            await asyncio.to_thread(daemons.kill)
            await asyncio.to_thread(daemons.start)
    await asyncio.wait(following, timeout=END_SECONDS)
    for each in following:
        each.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    return followers


async def fresh(daemons: Daemons, followers: list[Follower]) -> list[Follower]:
    """What one who begins now reads of each."""
    again = [Follower(each.request_id) for each in followers]
    reading = [asyncio.ensure_future(each.follow(daemons.port)) for each in again]
    _, late = await asyncio.wait(reading, timeout=END_SECONDS)
    for each in late:
        each.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    return again


def faults_of(follower: Follower, whole: Follower) -> list[str]:
    """What is wrong with what it has read."""
    if not follower.reply or not whole.reply:
        return ["no end"]
    places = [Position.read(each) for each in follower.ids]
    checks = {
        f"ended as {follower.reply['outcome']}": follower.reply["text"] == WORDS,
        "an id twice": len(set(follower.ids)) == len(follower.ids),
        "ids out of order": all(comes_after(two, one) or two.process != one.process for one, two in pairwise(places)),
        "other events than a new follower reads": follower.durable == whole.durable,
        "another text than the answer was streamed": follower.streamed_text == WORDS,
    }
    return [fault for fault, is_right in checks.items() if not is_right]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    asks = Turn(calls=(Call("book", {"number": 1}, "a"), Call("book", {"number": 2}, "b")), usage=Tokens(10, 5))
    says = Turn(WORDS, fragment=5, pause=0.05, usage=Tokens(10, 5))
    with tempfile.TemporaryDirectory() as folder, WireDouble([asks, says], by_turn=True) as double:
        double.play_scripts(Script((asks, says), by_turn=True))
        daemons = Daemons(double, Path(folder))
        began = time.monotonic()
        try:
            followers = asyncio.run(campaign(daemons, options.kills, options.requests, random.Random(options.seed)))
            whole = asyncio.run(fresh(daemons, followers))
        finally:
            if daemons.process is not None:
                daemons.kill(signal.SIGTERM)
        effects = Counter((Path(folder) / "effects").read_text().split())
    faults = Counter(fault for one, other in zip(followers, whole, strict=True) for fault in faults_of(one, other))
    answered = sum(each.reply.get("text") == WORDS for each in followers)
    done = sum('"booked"' in data for each in followers for name, data in each.events if name == "tool_call_completed")
    lost = max(0, done - sum(effects.values()))
    print(f"seed {options.seed}: {options.kills} kills, {len(followers)} requests in {time.monotonic() - began:.0f} s")
    print(
        f"answered {answered}, connections of a follower {sum(f.connections for f in followers) / len(followers):.1f}"
    )
    print(f"effects {sum(effects.values())}, there twice {sum(count > 1 for count in effects.values())}", end="")
    print(f", reported as done and not there {lost}")
    print(f"faults of followers: {dict(faults) or 'none'}")
    return 1 if faults or lost or any(count > 1 for count in effects.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
