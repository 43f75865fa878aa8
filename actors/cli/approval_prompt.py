"""Asks a person on the terminal whether a call may run: shows what would happen, whole where that is wanted.

What the model wrote is shown whole, with what is not seen as an escape, so that it cannot pass itself off as something
else (`callboard.protocol.readers`). Input that was typed before the question was shown does not answer it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import orjson
from msgspec import Struct

from callboard import Approval, AskApproval, UserQuestion
from callboard.actors.calls.approvals import UNTRUSTED
from callboard.actors.cli.columns import columns_of, counted, wrapped
from callboard.actors.cli.screen import Screen
from callboard.protocol.readers import (
    ForDecision,
    for_decision,
    json_for_decision,
    name_for_decision,
    one_line_for_decision,
)

#: Lines of a value or a diff that are shown at once; `v` shows all of it.
SHOWN_LINES: Final = 30
#: A longer line is shown whole by `v` alone.
SHOWN_CHARS: Final = 400
#: What a terminal driver takes as one line (N_TTY_BUF_SIZE of Linux), and as much again.
_MAX_LINE_BYTES: Final = 8192
_CHOICES: Final = ForDecision("[y]es, once  [r]equest  [a]lways  [n]o  [d] never  [e]dit  [v]iew all  [?] ")
_HELP: Final = ForDecision("""\
  y  run it, this once
  r  run it, and equal calls of this request too (the same tool and arguments)
  a  run it, and save a rule: this tool with exactly what this call touches runs unasked in this workspace
  n  do not run it; a reason may follow, which the model reads: n not on a Friday
  d  do not run it, and save a rule: it is denied unasked in this workspace
  e  run it once with other arguments: one line of JSON follows
  v  show all of it
  Ctrl-C ends the request, or is a no where that has ended; `callboard rules` lists and removes what was saved
""")
#: No RGB values: the terminal's own green, red and cyan.
_COLOURS: Final = {"+": "\x1b[32m", "-": "\x1b[31m", "@": "\x1b[36m"}
_PLAIN: Final = "\x1b[0m"
_ANSWERS: Final[Mapping[str, Approval]] = {
    "y": Approval.ONCE,
    "yes": Approval.ONCE,
    "r": Approval.REQUEST,
    "request": Approval.REQUEST,
    "a": Approval.ALWAYS,
    "always": Approval.ALWAYS,
    "n": Approval.DENY,
    "no": Approval.DENY,
    "d": Approval.DENY_ALWAYS,
    "never": Approval.DENY_ALWAYS,
}
NO_TERMINAL: Final = "it needs approval, and there is no terminal to ask at"


class _Part(Struct, frozen=True):
    """One thing that is shown of a question: a title, and a text below it or behind it."""

    title: ForDecision
    text: ForDecision
    is_diff: bool = False


#: What parts of a question are called; an argument of that name is shown in quotation marks.
_OURS: Final = frozenset({"why", "careful", "touches", "confined", "changes"})
Write = Callable[[ForDecision], None]
"""While a question is open, nothing else is shown."""


class TerminalTurn:
    """Held by the one who reads the terminal: one question at a time, also of those on different loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        taking = asyncio.ensure_future(asyncio.to_thread(self._lock.acquire))
        try:
            await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(lambda _: self._lock.release())
            raise

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class TerminalApprover:
    """An `approve` callback, and by `answer` an `ask_user` callback: one question at a time."""

    def __init__(self, screen: Screen, *, coloured: bool) -> None:
        self._screen = screen
        self._coloured = coloured
        self.turn = TerminalTurn()
        """What else reads the terminal takes it, too."""
        self._lines: _Lines | None = None
        """Of the latest question."""

    def leave(self) -> None:
        """End the input of the question that is open, as Ctrl-D does. From any thread."""
        if self._lines is not None:
            self._lines.end()

    async def answer(self, question: UserQuestion) -> str | None:
        """What the person answers to a question of the model's; None where they type nothing."""
        await self._screen.until_shown(question.tag)
        async with self.turn:
            with self._screen.held() as write:
                # Before the question is shown: its answer may come at once.
                typing = self._lines = _Lines(sys.stdin.fileno())
                write(_asked_by_model(question))
                typed = (await typing.next() or "").strip()
        if typed.isdecimal() and 1 <= int(typed) <= len(question.choices):
            return question.choices[int(typed) - 1]
        return typed or None

    async def __call__(self, question: AskApproval) -> Approval:
        """Raises OSError when the terminal is gone: the call is denied then."""
        await self._screen.until_shown(question.tag)
        async with self.turn:
            with self._screen.held() as write:
                return await self._ask(question, write)

    async def _ask(self, question: AskApproval, write: Write) -> Approval:
        parts = list(_parts(question))
        write(self._shown(question, parts, whole=False))
        lines = self._lines = _Lines(sys.stdin.fileno())
        try:
            while True:
                write(ForDecision(wrapped(_CHOICES.rstrip(), columns_of(sys.stderr)) + " "))
                typed = await lines.next()
                if typed is None:
                    write(ForDecision("\n(no answer is a no)\n"))
                    return Approval.DENY.because("no answer was given")
                letter, _, more = typed.strip().partition(" ")
                answer = await self._answer(letter.lower(), more.strip(), lines, write)
                if answer is not None:
                    return answer
                if letter.lower() in ("v", "view"):
                    write(self._shown(question, parts, whole=True))
        except asyncio.CancelledError:
            write(ForDecision("\n(the question is withdrawn)\n"))
            raise

    async def _answer(self, letter: str, more: str, lines: _Lines, write: Write) -> Approval | None:
        """What was typed; None where the question is still open."""
        if letter in ("e", "edit"):
            return await _edited(more, lines, write)
        answer = _ANSWERS.get(letter)
        if answer is not None and more and answer is not Approval.DENY:
            reason = one_line_for_decision(more)
            write(ForDecision(f"only a no takes a reason; type {letter} alone, or: n {reason}\n"))
            return None
        if answer is not None:
            return answer.because(more) if more else answer
        if letter not in ("v", "view"):
            write(_HELP)
        return None

    def _shown(self, question: AskApproval, parts: Sequence[_Part], *, whole: bool) -> ForDecision:
        """The question, and of each part what fits, with a word about what does not."""
        lines = [f"? {one_line_for_decision(question.name)} asks to run ({question.risk})"]
        for part in parts:
            lines += _lines_of(part, whole=whole, style=self._coloured_line if part.is_diff else str)
        return ForDecision("\n".join(lines) + "\n")

    def _coloured_line(self, line: str) -> str:
        colour = _COLOURS.get(line[:1]) if self._coloured else None
        return f"{colour}{line}{_PLAIN}" if colour else line


def lines_of_text(title: str, text: str, *, whole: bool) -> Iterator[str]:
    """A text as a person is to see it: whole, nothing in it acts on the terminal, and what is left out is said."""
    shown = ForDecision(title) if title.isprintable() else one_line_for_decision(title)
    return _lines_of(_Part(shown, for_decision(text)), whole=whole)


def _lines_of(part: _Part, *, whole: bool, style: Callable[[str], str] = str) -> Iterator[str]:
    """One line of a diff has a line of its own, too."""
    lines = part.text.split("\n")
    cut = lines if whole else [_shortened(line) for line in lines[:SHOWN_LINES]]
    title = part.title if whole else _shortened(part.title)
    if len(lines) == 1 and not part.is_diff:
        yield f"  {title}: {style(cut[0])}"
    else:
        yield f"  {title}:"
        yield from (f"    {style(line)}" for line in cut)
    if len(lines) > len(cut):
        yield f"    ... {_left_out(len(lines) - len(cut), 'line')}"


def _shortened(line: str) -> str:
    over = len(line) - SHOWN_CHARS
    return f"{line[:SHOWN_CHARS]} ... {_left_out(over, 'character')}" if over > 0 else line


def _left_out(number: int, unit: str) -> str:
    are, them = ("is", "it") if number == 1 else ("are", "them")
    return f"{counted(number, f'more {unit}')} {are} not shown: v shows {them}"


def _asked_by_model(question: UserQuestion) -> ForDecision:
    """Each line begins with a mark, so that none passes for one of ours."""
    lines = [f"? {line}" for line in for_decision(question.question).split("\n")]
    lines += [f"  {number}  {one_line_for_decision(choice)}" for number, choice in enumerate(question.choices, 1)]
    how = "a number, or another answer" if question.choices else "your answer"
    return ForDecision("\n".join([*lines, f"[{how}; an empty line for none] "]))


def _parts(question: AskApproval) -> Iterator[_Part]:
    if question.preview:
        yield _Part(ForDecision("changes"), for_decision(question.preview), is_diff=True)
    if question.rule:
        yield _Part(ForDecision("why"), one_line_for_decision(question.rule))
    if question.is_after_untrusted:
        yield _Part(ForDecision("careful"), UNTRUSTED)
    for name, value in _arguments(question.arguments).items():
        yield _Part(name, for_decision(value) if isinstance(value, str) else json_for_decision(value))
    if question.accesses:
        touched = (f"{each.kind} {one_line_for_decision(each.value)}" for each in question.accesses)
        yield _Part(ForDecision("touches"), ForDecision("\n".join(touched)))
    if question.confinement:
        yield _Part(ForDecision("confined"), one_line_for_decision(question.confinement))


def _arguments(text: str) -> Mapping[ForDecision, object]:
    """By their names as they are shown: no two have the same, and none is one of ours."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return {ForDecision("arguments"): text}
    return {name_for_decision(name, _OURS): value for name, value in found.items()}


async def _edited(typed: str, lines: _Lines, write: Write) -> Approval | None:
    if not typed:
        write(ForDecision("arguments, one line of JSON: "))
        typed = await lines.next() or ""
    try:
        found = orjson.loads(typed)
    except orjson.JSONDecodeError as error:
        write(ForDecision(f"that is not JSON: {error}\n"))
        return None
    if not isinstance(found, dict):
        write(ForDecision('that is not a JSON object, such as {"path": "a.txt"}\n'))
        return None
    return Approval.ONCE.with_arguments(found)


class _Lines:
    """Reads lines of a terminal, without a thread: one that still reads when a question is withdrawn would take the
    answer to the next one. What was typed before is thrown away."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._loop = asyncio.get_running_loop()
        self._is_ready = asyncio.Event()
        self._is_at_end = False
        throw_away_input()

    async def next(self) -> str | None:
        """The next line; None at the end of the input (Ctrl-D)."""
        self._is_ready.clear()
        self._loop.add_reader(self._terminal, self._is_ready.set)
        try:
            await self._is_ready.wait()
        finally:
            self._loop.remove_reader(self._terminal)
        data = b"" if self._is_at_end else os.read(self._terminal, _MAX_LINE_BYTES)
        return data.decode(errors="replace") if data else None

    def end(self) -> None:
        """There is no next line. From any thread."""
        with contextlib.suppress(RuntimeError):  # its loop is closed: the question has ended
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._is_at_end = True
        self._is_ready.set()


def throw_away_input() -> None:
    """What was typed before a question was shown must not answer it."""
    termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def has_terminal() -> bool:
    """Is there a person to ask? Both the input and what shows a question must be a terminal."""
    with contextlib.suppress(ValueError, OSError, AttributeError):  # a closed stream
        return sys.stdin.isatty() and sys.stderr.isatty()
    return False


class Unasked:
    """An `approve` callback for where there is no terminal: no, and a word about it."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    async def __call__(self, question: AskApproval) -> Approval:
        why = f" ({question.rule})" if question.rule else ""
        self._screen.remark(f"? {question.name} was denied: {NO_TERMINAL}{why}")
        return Approval.DENY.because(NO_TERMINAL)


def approver_for(screen: Screen) -> TerminalApprover | Unasked:
    """Asks where there is a person at a terminal."""
    return TerminalApprover(screen, coloured=screen.is_coloured) if has_terminal() else Unasked(screen)
