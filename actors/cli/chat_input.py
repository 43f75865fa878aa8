"""Where the lines of `callboard chat` come from: a terminal with history and completion, or a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from callboard import UsageError
from callboard.actors.cli.approval_prompt import TerminalApprover
from callboard.actors.cli.chat_commands import SLASH_COMMANDS
from callboard.actors.cli.question import MAX_INPUT_BYTES
from callboard.actors.cli.screen import Screen

PROMPT: Final = "> "


class ChatInput(Protocol):
    """Gives one question or command after the other."""

    async def next(self) -> str | None:
        """None at the end."""
        ...


class TerminalInput:
    """A person at a terminal. A question for approval that is still open when an answer has ended comes first."""

    def __init__(self, screen: Screen, history: Path, approver: TerminalApprover) -> None:
        self._screen = screen
        self._approver = approver
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(_own_file(history)),
            completer=WordCompleter([*SLASH_COMMANDS], sentence=True),
            complete_while_typing=False,
            key_bindings=_keys(),
            multiline=True,
            enable_open_in_editor=True,
        )

    async def next(self) -> str | None:
        """Ctrl-C leaves the question that comes first, then drops what was typed; twice where nothing was typed, and
        Ctrl-D: the end."""
        was_interrupted = False
        while True:
            try:
                async with contextlib.AsyncExitStack() as stack:
                    with on_interrupt(self._approver.leave):
                        await stack.enter_async_context(self._approver.turn)
                    return await self._session.prompt_async(PROMPT)
            except EOFError:
                return None
            except KeyboardInterrupt:
                if self._session.default_buffer.text:
                    was_interrupted = False
                    continue
                if was_interrupted:
                    return None
                was_interrupted = True
                self._screen.remark("Ctrl-C once more, or Ctrl-D, leaves")


@contextlib.contextmanager
def on_interrupt(run: Callable[[], object]) -> Iterator[None]:
    """Within: what Ctrl-C does."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, run)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _own_file(path: Path) -> str:
    """The history, which only its owner may read. Raises UsageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(handle, 0o600)
        finally:
            os.close(handle)
    except OSError as error:
        raise UsageError(f"the history cannot be kept in {path}: {error.strerror or error}") from None
    return str(path)


class PipeInput:
    """Lines of standard input that is no terminal.

    Read by threads that do not hold up the end of the process: Ctrl-C ends it while a line is waited for.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._data = b""
        self._is_at_end = False

    async def next(self) -> str | None:
        while b"\n" not in self._data and not self._is_at_end:
            found = await self._read()
            self._is_at_end = not found
            self._data += found
            if len(self._data) > MAX_INPUT_BYTES and b"\n" not in self._data:
                raise UsageError(f"a line of standard input holds more than {MAX_INPUT_BYTES:,} bytes")
        if not self._data:
            return None
        line, _, self._data = self._data.partition(b"\n")
        return line.decode("utf-8", "replace").removeprefix("\ufeff").removesuffix("\r")

    async def _read(self) -> bytes:
        loop = asyncio.get_running_loop()
        read: asyncio.Future[bytes] = loop.create_future()

        def settle(data: bytes) -> None:
            if not read.done():
                read.set_result(data)

        def block() -> None:
            try:
                data = os.read(self._descriptor, 65_536)
            except OSError:  # closed: the end
                data = b""
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle, data)

        threading.Thread(target=block, name="callboard-chat-input", daemon=True).start()
        return await read
