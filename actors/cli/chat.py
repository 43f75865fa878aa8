"""`callboard chat`: a conversation at a terminal, with a runtime of this process or with a daemon.

Without a terminal each line of standard input is a question or a slash command, and the first failure ends it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

from callboard import AskOptions, CallboardError, Runtime, Settings, UsageError
from callboard.actors.cli.approval_prompt import TerminalApprover, Unasked, approver_for
from callboard.actors.cli.ask import Wanted, refreshed
from callboard.actors.cli.chat_commands import ChatState, run_slash_command, so_far_shown
from callboard.actors.cli.chat_input import ChatInput, PipeInput, TerminalInput, on_interrupt
from callboard.actors.cli.chat_partner import AnswerEnded, ChatPartner, LocalPartner
from callboard.actors.cli.daemon_client import DaemonPartner, daemon_token
from callboard.actors.cli.failure import failure_of
from callboard.actors.cli.model_choice import with_model
from callboard.actors.cli.screen import Screen
from callboard.actors.cli.terminal import cleaned, print_line
from callboard.actors.cli.workspace_setup import WorkspaceSetup, set_up
from callboard.actors.requests.asking import Prompt
from callboard.protocol.masking import for_log


def run(options: argparse.Namespace, known: dict[str, object]) -> Coroutine[object, object, None]:
    """Answers go to stdout; tool calls, notes and questions for approval to stderr."""
    if options.url is not None:
        _check_daemon_options(options)
        return _chat(options, None)
    if options.token_file is not None:
        raise UsageError("--token-file is for a daemon; name it with --url")
    return _chat(options, set_up(options, may_ask=True))


#: Options of the runtime of this process: a daemon has its own.
_LOCAL = ("workspace", "base_url", "journal", "tools", "trust", "mode", "confine", "instructions")


def _check_daemon_options(options: argparse.Namespace) -> None:
    for name in _LOCAL:
        if getattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')} and --url contradict each other: the daemon has its own")


async def _chat(options: argparse.Namespace, given: WorkspaceSetup | None) -> None:
    screen = Screen(quiet=False, timed=True)
    approver = approver_for(screen)
    settings = Settings() if given is None else given.settings
    reader: ChatInput = (
        TerminalInput(screen, settings.state_dir / "chat-history", approver)
        if isinstance(approver, TerminalApprover)
        else PipeInput(sys.stdin.fileno())
    )
    is_terminal = isinstance(reader, TerminalInput)
    async with AsyncExitStack() as stack:
        wanted = Wanted(options.conversation, options.goes_on)
        partner = await stack.enter_async_context(
            _daemon(options, wanted, screen, approver)
            if given is None
            else _local(options, wanted, given, screen, approver)
        )
        if is_terminal:
            screen.remark(f"{partner.model or options.url}; /help lists the commands, Ctrl-D leaves")
            if options.goes_on or options.conversation:
                print_line(for_log(cleaned(await so_far_shown(partner))))
        await Chat(partner, screen, reader, is_terminal=is_terminal).converse()


@asynccontextmanager
async def _local(
    options: argparse.Namespace,
    wanted: Wanted,
    given: WorkspaceSetup,
    screen: Screen,
    approver: TerminalApprover | Unasked,
) -> AsyncIterator[ChatPartner]:
    settings = await with_model(given.settings)
    if given.note:
        screen.remark(given.note)
    ask_user = approver.answer if isinstance(approver, TerminalApprover) else None
    said: AskOptions = {} if options.instructions is None else {"instructions": options.instructions}
    async with Runtime(settings, given.tools, approve=approver, ask_user=ask_user) as runtime:
        conversation = await asyncio.to_thread(wanted.of, runtime)
        if note := await refreshed(runtime):
            screen.remark(note)
        yield LocalPartner(runtime, conversation, said)


@asynccontextmanager
async def _daemon(
    options: argparse.Namespace, wanted: Wanted, screen: Screen, approver: TerminalApprover | Unasked
) -> AsyncIterator[ChatPartner]:
    async with DaemonPartner(
        options.url, daemon_token(options.token_file), approver, screen.remark, model=options.model or ""
    ) as partner:
        await partner.check()
        if wanted.latest:
            found = await partner.conversations()
            if not found:
                raise UsageError("the daemon has no conversation yet; leave out --continue")
            await partner.go_on_with(found[0][0])
        elif wanted.conversation_id is not None:
            await partner.go_on_with(wanted.conversation_id)
        yield partner


class Chat:
    """Lines in, answers out, until there are no more lines."""

    def __init__(self, partner: ChatPartner, screen: Screen, reader: ChatInput, *, is_terminal: bool) -> None:
        self._state = ChatState(partner)
        self._screen = screen
        self._reader = reader
        self._is_terminal = is_terminal

    async def converse(self) -> None:
        """At a terminal a failure is shown, and the conversation goes on; in a pipe it is raised."""
        while not self._state.is_over and (line := await self._reader.next()) is not None:
            try:
                await self._take(line)
            except (CallboardError, OSError) as error:
                self._screen.end_line()
                if not self._is_terminal:
                    raise
                self._screen.remark(failure_of(error).message)

    async def _take(self, line: str) -> None:
        if line.startswith("/"):
            if shown := await run_slash_command(self._state, line):
                print_line(shown)
        elif line.strip() or self._state.attachments:
            await self._ask(line)

    async def _ask(self, line: str) -> None:
        parts, self._state.attachments = self._state.attachments, []
        showing = asyncio.ensure_future(self._show([line, *parts] if parts else line))
        if not self._is_terminal:
            await showing
            return
        with _interrupts(showing) as interrupted:
            try:
                await showing
            except asyncio.CancelledError:
                if not interrupted:
                    raise
                self._screen.end_interrupted()
                self._screen.remark("cancelled")

    async def _show(self, prompt: Prompt) -> None:
        with self._screen.answering():
            async with aclosing(self._state.partner.ask(prompt)) as items:
                async for item in items:
                    if isinstance(item, AnswerEnded):
                        self._screen.end_line()
                        self._state.ended.append(item)
                    else:
                        self._screen.show(item)


@contextlib.contextmanager
def _interrupts(task: asyncio.Future[None]) -> Iterator[list[bool]]:
    """Within: Ctrl-C cancels the task, and is noted in the list."""
    interrupted: list[bool] = []

    def interrupt() -> None:
        interrupted.append(True)
        task.cancel()

    with on_interrupt(interrupt):
        yield interrupted
