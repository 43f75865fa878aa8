"""The slash commands of `callboard chat`: one table."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from callboard import UsageError
from callboard.actors.cli.approval_prompt import SHOWN_LINES
from callboard.actors.cli.attachments import Part, attached
from callboard.actors.cli.chat_partner import AnswerEnded, ChatPartner, StagedEdit
from callboard.actors.cli.columns import WordWrap, columns_of, counted, table, wrapped
from callboard.actors.cli.listed_tools import tools_shown
from callboard.actors.cli.terminal import cleaned, printable
from callboard.actors.config_file import similar
from callboard.actors.journal.saved_conversations import shown_id
from callboard.protocol.masking import ForLog, for_log
from callboard.protocol.policy import Mode
from callboard.protocol.readers import ForDecision, for_decision, one_line_for_decision


class ChatState(Struct):
    """What the commands read and change."""

    partner: ChatPartner
    ended: list[AnswerEnded] = field(default_factory=list)
    attachments: list[Part] = field(default_factory=list)
    """Go with the next question."""
    is_over: bool = False


class SlashCommand(Struct, frozen=True):
    """One command."""

    argument: str
    """What may follow its name, for /help; "" nothing."""
    help_text: str
    run: Callable[[ChatState, str], Awaitable[str]]
    """Given the rest of the line; what it returns is shown."""
    is_decided_on: bool = False
    """That is a ForDecision: a person says yes or no to it next."""


async def run_slash_command(state: ChatState, line: str) -> ForLog | ForDecision:
    """What to show: titles, diffs and names are of models. Raises UsageError for a line that is no command."""
    name, _, rest = line.strip().partition(" ")
    command = SLASH_COMMANDS.get(name)
    if command is None:
        near = similar(name, SLASH_COMMANDS)
        raise UsageError(f"there is no command {name!r:.60}{near}; /help lists them")
    if rest.strip() and not command.argument:
        raise UsageError(f"{name} takes nothing behind it")
    shown = await command.run(state, rest.strip())
    return ForDecision(shown) if command.is_decided_on else for_log(cleaned(shown))


async def _help(_: ChatState, __: str) -> str:
    rows = [(f"{name} {each.argument}".rstrip(), each.help_text) for name, each in SLASH_COMMANDS.items()]
    columns = columns_of(sys.stdout)
    return f"{table([('COMMAND', 'WHAT IT DOES'), *rows], columns)}\n{wrapped(_KEYS, columns)}"


async def _model(state: ChatState, name: str) -> str:
    if name and "/" not in name:
        raise UsageError(f"{name!r:.60} is no model: write provider/model, such as openai/gpt-6.1-sol")
    if name:
        state.partner.model = name
    return f"model: {state.partner.model or 'as the daemon has it'}"


async def _mode(state: ChatState, mode: str) -> str:
    if mode and mode not in list(Mode):
        raise UsageError(f"{mode!r:.60} is no mode; write one of {', '.join(Mode)}")
    if mode:
        state.partner.mode = Mode(mode)
    return f"mode: {state.partner.mode or 'as the daemon has it'}"


async def _tools(state: ChatState, names: str) -> str:
    return tools_shown(await state.partner.tools(), names.split(), columns_of(sys.stdout))


async def _edits(state: ChatState, _: str) -> ForDecision:
    found = await state.partner.edits()
    shown = "\n".join(f"{_edit(each, one_line_for_decision)}\n{for_decision(each.diff)}" for each in found)
    return ForDecision(shown or "no edit waits")


async def _approve(state: ChatState, ids: str) -> str:
    return _decided(await state.partner.decide(ids.split() or None, approve=True))


async def _deny(state: ChatState, ids: str) -> str:
    return _decided(await state.partner.decide(ids.split() or None, approve=False))


def _decided(edits: Sequence[StagedEdit]) -> str:
    return "\n".join(map(_edit, edits)) or "no edit waits"


def _edit(edit: StagedEdit, shown: Callable[[str], str] = str) -> str:
    reason = f"  ({shown(edit.reason)})" if edit.reason else ""
    return f"{edit.id}  {edit.state}  {', '.join(map(shown, edit.files))}{reason}"


async def _usage(state: ChatState, _: str) -> str:
    costs = [each.cost for each in state.ended if each.cost is not None]
    spent = f"{sum(costs):.4f} US dollars" if costs else "cost not known"
    tokens = f"{counted(sum(each.input_tokens for each in state.ended), 'token')} in, "
    tokens += f"{sum(each.output_tokens for each in state.ended):,} out"
    return f"{counted(len(state.ended), 'answer')}, {tokens}, {spent}"


async def _conversations(state: ChatState, _: str) -> str:
    rows = [tuple(map(printable, row)) for row in await state.partner.conversations()]
    return table([("ID", "TITLE"), *rows], columns_of(sys.stdout)) if rows else "there is no conversation yet"


async def _open(state: ChatState, conversation_id: str) -> str:
    if not conversation_id:
        raise UsageError("which one? /conversations lists their ids: /open ID")
    await state.partner.go_on_with(conversation_id)
    return await so_far_shown(state.partner)


async def so_far_shown(partner: ChatPartner) -> str:
    """Which conversation is gone on with: its title and its last exchange."""
    own = f"conversation: {shown_id(partner.conversation_id)}"
    said = await partner.so_far()
    if said is None:
        return own
    # Masked before it is wrapped: a key behind its name is one no more where a line ends between them.
    question, answer = for_log(printable(said.question)), for_log(cleaned(said.answer))
    columns, lines = columns_of(sys.stdout), answer.strip().split("\n")
    told = [wrapped(f"{own}: {said.title}", columns, "  "), wrapped(f"> {question}", columns, "  ")]
    if (left := len(lines) - SHOWN_LINES) > 0:
        told.append(f"({counted(left, 'line')} before these; /export has all)")
    wrap = WordWrap(lambda: columns)
    return "\n".join([*told, wrap.feed("\n".join(lines[-SHOWN_LINES:])) + wrap.finish()])


async def _new(state: ChatState, _: str) -> str:
    await state.partner.go_on_with("")
    return "a new conversation"


async def _fork(state: ChatState, _: str) -> str:
    await state.partner.fork()
    return f"conversation: {shown_id(state.partner.conversation_id)}, a copy"


async def _export(state: ChatState, path: str) -> str:
    document = await state.partner.export()
    if not path:
        return document
    await asyncio.to_thread(_write_new, path, document)
    return f"written to {path}"


def _write_new(path: str, document: str) -> None:
    """A new file for its owner. Raises UsageError."""
    try:
        with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(document + "\n")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None


async def _image(state: ChatState, path: str) -> str:
    return _attach(state, images=[Path(_named(path))])


async def _file(state: ChatState, path: str) -> str:
    return _attach(state, files=[Path(_named(path))])


def _named(path: str) -> str:
    if not path:
        raise UsageError("name the file behind the command")
    return path


def _attach(state: ChatState, images: Sequence[Path] = (), files: Sequence[Path] = ()) -> str:
    state.attachments += attached(images, files)
    return f"{len(state.attachments)} attached to the next question"


async def _cancel(state: ChatState, _: str) -> str:
    had = len(state.attachments)
    state.attachments.clear()
    return f"{counted(had, 'attachment')} dropped" if had else "nothing runs; Ctrl-C cancels an answer while it comes"


async def _quit(state: ChatState, _: str) -> str:
    state.is_over = True
    return ""


_KEYS: Final = "Enter sends, Alt-Enter or Ctrl-J begins a new line; Ctrl-C cancels, Ctrl-D leaves"
SLASH_COMMANDS: Final[Mapping[str, SlashCommand]] = {
    "/help": SlashCommand("", "these commands", _help),
    "/model": SlashCommand("[PROVIDER/MODEL]", "which model answers; choose another", _model),
    "/mode": SlashCommand("[ask|plan|build]", "what questions are for; choose another", _mode),
    "/tools": SlashCommand("[NAME ...]", "what the model is offered; all of a tool", _tools),
    "/edits": SlashCommand("", "edits that wait, with their diffs", _edits, is_decided_on=True),
    "/approve": SlashCommand("[ID ...]", "apply these edits, or all that wait", _approve),
    "/deny": SlashCommand("[ID ...]", "give these edits up, or all that wait", _deny),
    "/usage": SlashCommand("", "tokens and cost since the start", _usage),
    "/conversations": SlashCommand("", "the latest of the journal", _conversations),
    "/open": SlashCommand("ID", "go on with one of them", _open),
    "/new": SlashCommand("", "begin a new conversation", _new),
    "/fork": SlashCommand("", "go on in a copy of this conversation", _fork),
    "/export": SlashCommand("[FILE]", "this conversation as JSON", _export),
    "/image": SlashCommand("FILE", "show the model a picture with the next question", _image),
    "/file": SlashCommand("FILE", "show the model a file with the next question", _file),
    "/cancel": SlashCommand("", "drop what is attached", _cancel),
    "/quit": SlashCommand("", "leave", _quit),
}
