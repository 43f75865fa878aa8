"""The wire double from Python: starts its process, gives it scripts, and reads what it was asked.

with WireDouble([Turn("Hello")]) as double:
    provider, model = provider_for("openai-compatible/any", base_url=double.base_url(Api.CHAT))
    ...
    double.traffic().bodies
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Self
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from callboard.actors.testing.wire_double.script import Answer, Api, Script, scripts_to_json
from callboard.actors.testing.wire_double.traffic import Asked, Traffic, traffic_from_json
from callboard.protocol.errors import UsageError

#: For one answer of the double itself, for its start and its end, and for what a test waits for.
_PATIENCE_SECONDS: Final = 5.0
#: Between two looks at the traffic while waiting.
_LOOK_SECONDS: Final = 0.01

_PATHS: Final[Mapping[Api, str]] = {
    Api.CHAT: "/v1",
    Api.RESPONSES: "/v1",
    Api.ANTHROPIC: "",
    Api.GEMINI: "",
    Api.OPENROUTER: "/openrouter/api/v1",
    Api.COPILOT: "/copilot",
}


class WireDouble:
    """The server in a process of its own, as a context manager. `turns` and `by_turn` are its first script.

    It cannot outlive this process: it stops when its standard input closes.
    """

    def __init__(self, turns: Iterable[Answer] = (), *, by_turn: bool = False) -> None:
        self._first = Script(tuple(turns), by_turn)
        self.url = ""
        """http://127.0.0.1:PORT, once it has started."""
        self.pid = 0
        """Of its process, likewise."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "callboard.actors.testing.wire_double", "--port", "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert self._process.stdout is not None
            told = json.loads(self._process.stdout.readline())
            self.url, self.pid = told["url"], told["pid"]
            self.play_scripts(self._first)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # The end of its input would do, unless a forked child of this process still holds the other end.
        self._process.terminate()
        try:
            self._process.communicate(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def base_url(self, api: Api = Api.CHAT, script: str = "") -> str:
        """Where a client of `api` asks for the answers of `script`, as this API's base URLs are written.

        The official SDKs of Anthropic and Google take it as it is, they add /v1/messages and /v1beta/models themselves.
        """
        return f"{self.url}{f'/s/{script}' if script else ''}{_PATHS[api]}"

    def play(self, turns: Iterable[Answer], *, name: str = "", by_turn: bool = False) -> None:
        """Set the script `name`, from its beginning, in place of the one before."""
        self.play_scripts(Script(tuple(turns), by_turn, name))

    def play_scripts(self, *scripts: Script) -> None:
        """Set several scripts. Raises UsageError where the double refuses them; then none of them is set."""
        self._ask("POST", "/_double/script", scripts_to_json(list(scripts)))

    def reset(self) -> None:
        """Forget all scripts and all traffic."""
        self._ask("DELETE", "/_double/script")
        self._ask("DELETE", "/_double/requests")

    def traffic(self) -> Traffic:
        """What it has seen so far."""
        return traffic_from_json(self._ask("GET", "/_double/requests"))

    def requests(self) -> tuple[Asked, ...]:
        """The requests it was sent so far."""
        return self.traffic().requests

    def wait_until(self, condition: Callable[[Traffic], bool]) -> Traffic:
        """The traffic as soon as it meets the condition. Raises AssertionError when it does not within 5 seconds."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not condition(traffic := self.traffic()):
            if time.monotonic() >= deadline:
                raise AssertionError(f"not seen within {_PATIENCE_SECONDS:g} s; the wire double saw {traffic}")
            time.sleep(_LOOK_SECONDS)
        return traffic

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        request = Request(self.url + path, data=body, method=method)
        try:
            with urlopen(request, timeout=_PATIENCE_SECONDS) as answer:
                content: bytes = answer.read()
                return content
        except HTTPError as error:
            with error:
                raise UsageError(json.loads(error.read())["error"]["message"]) from None
