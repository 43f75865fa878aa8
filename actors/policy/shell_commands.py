"""What a line of shell would touch: each simple command in it, its paths, and the files that it is redirected to.

A command is judged as reading where the tables know that it only reads, and by its paths then (patterns of files by
those that there are); any other one as `execute`. Wrappers (`env`, `sudo`, `xargs`, `find -exec`, `sh -c`) are seen
through as far as their words tell: rules that ask or deny match what they run, and so does the list of what cannot be
undone. Only a few without options may themselves run unasked.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors.policy import command_table as table
from callboard.actors.policy.command_names import TAKES_LINES, Meant, meant, takes_data
from callboard.actors.policy.paths import Paths, follow
from callboard.actors.policy.reading_programs import Reads, reads
from callboard.actors.policy.shell_grammar import (
    MAX_DEPTH,
    Redirection,
    SimpleCommand,
    Word,
    program_name,
    read_line,
)
from callboard.actors.policy.undo_table import WRITES, why_not_undone
from callboard.protocol.policy import AccessKind, Location, Touch
from callboard.protocol.tools import Hold, Risk

#: Where output may go without a trace.
_NOWHERE: Final = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})
_OVERWRITES: Final = "it replaces what is in a file"
#: Folders in which a line may run, after all its `cd`s; with more it is asked about.
MAX_FOLDERS: Final = 64
#: Files that a pattern stands for; one with more is not looked at.
MAX_MATCHES: Final = 1_000
#: A name that stays one word where a variable of a loop stands for it.
_PLAIN_NAME: Final = re.compile(r"[\w./@%+=:,-]+")
_UNKNOWN_WORDS: Final = "words that are only known when it runs"
#: Words that say where a path may be in them: `if=x`, `@x`, `HEAD:x`, `-Ix`.
_PIECES: Final = re.compile(r"[=@:,]")
_PATH_LIKE: Final = re.compile(r"[/~]|^\.")


class _Reader(Struct):
    """Of one line, and of the lines in it."""

    paths: Paths
    folders: list[str]
    """Where it may run: a `cd` adds some."""
    can_hold: bool = False
    depth: int = 0
    found: list[Touch] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    """Files that it may write, as it names them."""


def command_touches(
    line: str, paths: Paths, folders: Sequence[str] = (), *, can_hold: bool = False
) -> tuple[Touch, ...]:
    """All that a line would touch, run in one of these folders (absolute; none: the workspace). Never raises for what
    the line is; with nothing in it, it is not understood. `can_hold`: what runs it can be held to reading by the kernel
    (protocol.tools.Hold)."""
    reader = _Reader(paths, list(folders) or [paths.root], can_hold)
    _read(reader, line)
    return tuple(reader.found) or (_unclear("", "no command"),)


def _read(reader: _Reader, line: str) -> None:
    parsed = read_line(line)
    reader.written.update(os.path.normpath(each.target.text) for each in parsed.redirections if each.target.text)
    for command in parsed.commands:
        _take(reader, command)
    for each in parsed.redirections:
        reader.found += _redirected(reader, each)
    if parsed.unclear or not parsed.commands:
        reader.found.append(_unclear(line, parsed.unclear or "no command"))


def _unclear(line: str, why: str) -> Touch:
    return Touch(AccessKind.COMMAND, risk=Risk.EXECUTE, aliases=(line,), unclear=why)


def _take(reader: _Reader, command: SimpleCommand) -> None:
    words = list(command.words)
    reasons = [f"it sets {name}" for name, word in command.assignments if not _is_harmless(name, word)]
    if [name for name, _ in command.assignments] == ["IFS"] and words and words[0].text == "read":
        reasons = []
    if not words:
        reader.found.append(_unclear("", reasons[0] if reasons else "it sets a variable"))
        return
    while len(words) > 1 and words[0].text in table.TRANSPARENT and not (words[1].text or "-").startswith("-"):
        if "=" in (words[1].text or "="):
            break
        words = words[1:]
    name = words[0].text or ""
    if name == "cd" and not reasons and not command.repeats and _changes_folder(reader, words[1:]):
        return
    said = [word.source if word.text is None else word.text for word in command.words]
    may_be = meant(said, lambda name: _other_names(reader, name))
    forms, aliases = _forms(command.words), may_be.names
    # Behind `command` or `env` it is not the shell's function of that name (processes/held_environment.py).
    is_other_git = name == "git" and command.words[0].text not in ("git", "time")
    is_open = words[0].text is None or bool(reasons) or is_other_git
    found = None if is_open else _read_only(reader, name, words[1:])
    if found is not None and (command.given is None or command.given.text is not None or command.given.is_shown):
        reads = tuple(touch for path in found.paths for touch in _of_path(reader, AccessKind.READ, path))
        hold = Hold.READING_BELOW if found.below else Hold.READING if reader.can_hold else Hold.NONE
        reader.found.append(
            Touch(AccessKind.COMMAND, risk=Risk.READ, forms=forms, aliases=aliases, touches=reads, hold=hold)
        )
        return
    if command.given is not None:
        reasons.append("a here-string")
    if any(word.text is None for word in words):
        reasons.append(_UNKNOWN_WORDS)
    elif program_name(name) in table.RUNS_CODE:
        reasons.append(f"{program_name(name)} can run what it is given")
    elif why := may_be.unclear or _unknown_program(reader, may_be, name):
        reasons.append(why)
    if program_name(name) in WRITES:
        reader.written.update(os.path.normpath(word.text) for word in words[1:] if word.text is not None)
    destroys = _destroys(reader, may_be.commands)
    place, secret, guarded = _whereabouts(reader, words if "/" in name else words[1:])
    reader.found.append(
        Touch(
            AccessKind.COMMAND,
            place,
            Risk.EXECUTE,
            forms,
            aliases,
            destroys=destroys,
            unclear=reasons[0] if reasons else "",
            refused=secret,
            guarded=guarded,
        )
    )
    _look_inside(reader, words)


def _read_only(reader: _Reader, name: str, words: Sequence[Word]) -> Reads | None:
    """What a command reads, where it is known to do no more; patterns of files are looked up."""
    if _is_shadowed(reader, name):
        return None
    texts: list[str | None] = []
    for word in words:
        if word.text is not None:
            texts.append(word.text)
        elif word.pattern and (names := _matches(reader, word.pattern)) is not None:
            texts += names
        elif word.is_shown:
            texts.append(None)
        else:
            return None
    found = reads(name, texts)
    return None if found is not None and found.below and not reader.can_hold else found


def _matches(reader: _Reader, pattern: str) -> list[str] | None:
    """The names that a pattern may stand for, in each folder; None where that is not certain."""
    if any(part.startswith(".") and fnmatchcase("..", part) for part in pattern.split("/")) or "**" in pattern:
        return None
    found: list[str] = []
    for folder in reader.folders:
        in_folder = list(islice(glob.iglob(pattern, root_dir=folder), MAX_MATCHES))
        found += in_folder or [pattern]
    if len(found) >= MAX_MATCHES or not all(name == pattern or _PLAIN_NAME.fullmatch(name) for name in found):
        return None
    if any(touch.refused for name in found for touch in _of_path(reader, AccessKind.READ, name)):
        return None  # a person says whether the rest of them may be read
    return list(dict.fromkeys(found))


def _is_harmless(name: str, value: Word) -> bool:
    return value.text is not None and (name in table.HARMLESS_VARIABLES or name.startswith("LC_"))


def _forms(words: Sequence[Word]) -> tuple[str, ...]:
    """What a rule's pattern is compared with: the words, quoted where they need it."""
    return (shlex.join(word.source if word.text is None else word.text for word in words),)


def _other_names(reader: _Reader, name: str) -> list[str]:
    """Of a program that a link leads to: what it is there."""
    if "/" not in name:
        places = [found] if (found := shutil.which(name)) else []
    else:
        places = [os.path.join(folder, os.path.expanduser(name)) for folder in dict.fromkeys(reader.folders)]
    found_names = [program_name(follow(os.path.abspath(place)).place) for place in places if "\0" not in place]
    return [each for each in dict.fromkeys(found_names) if each and each != program_name(name)]


def _unknown_program(reader: _Reader, may_be: Meant, name: str) -> str:
    """Why it is not known what is run by a path, or by a shell: the line may have made it."""
    runs = [each for each in (name, *may_be.scripts) if "/" in each or each != name]
    if any(os.path.normpath(each) in reader.written for each in runs):
        return "it runs what it has written"
    is_there = all(_exists(reader, os.path.expanduser(each)) for each in runs)
    return "" if is_there else "a program that is not there"


def _changes_folder(reader: _Reader, words: Sequence[Word]) -> bool:
    """A `cd` to a folder that is known: what follows runs there, or where it ran before if that fails."""
    if len(words) != 1 or not words[0].text or words[0].is_tilde or words[0].text.startswith("-"):
        return False
    target = words[0].text
    if not reader.can_hold and not target.startswith(("/", ".")):
        return False  # its CDPATH is not known; what is held has none
    touched = _of_path(reader, AccessKind.READ, target)
    forms = _forms((Word("cd", "cd"), words[0]))
    hold = Hold.READING if reader.can_hold else Hold.NONE
    reader.found.append(Touch(AccessKind.COMMAND, risk=Risk.READ, forms=forms, touches=touched, hold=hold))
    joined = [os.path.join(folder, target) for folder in reader.folders]
    # The shell takes `..` back before links, the kernel behind them.
    places = dict.fromkeys((*reader.folders, *map(os.path.normpath, joined), *(follow(each).place for each in joined)))
    if len(places) > MAX_FOLDERS:
        reader.found.append(_unclear("", f"more than {MAX_FOLDERS} folders in which it may run"))
    reader.folders = list(places)[:MAX_FOLDERS]
    return True


def _is_shadowed(reader: _Reader, name: str) -> bool:
    """Is it a program that a model could have written? Also where it is none at all, but by a path."""
    if "/" in name:
        return True
    found = shutil.which(name)
    return found is not None and any(
        touch.place is Location.INSIDE for touch in reader.paths.touches(AccessKind.READ, os.path.abspath(found))
    )


def _of_path(reader: _Reader, kind: AccessKind, path: str) -> tuple[Touch, ...]:
    folders = dict.fromkeys(reader.folders)
    return tuple(touch for folder in folders for touch in reader.paths.touches(kind, path, folder))


def _redirected(reader: _Reader, each: Redirection) -> Iterator[Touch]:
    operator, target = each.operator, each.target.text
    if target is None:
        yield _unclear("", f"a redirection to {_UNKNOWN_WORDS}")
        return
    if target in _NOWHERE or (operator in (">&", "<&") and re.fullmatch(r"[0-9]+|-", target)):
        return
    if operator == "<":
        yield from _of_path(reader, AccessKind.READ, target)
        return
    for touch in _of_path(reader, AccessKind.WRITE, target):
        destroys = "" if operator in (">>", "&>>") else _OVERWRITES
        yield replace(touch, destroys=destroys)


def _destroys(reader: _Reader, commands: Sequence[Sequence[str]]) -> str:
    """Why what it does could not be undone, as far as its words tell."""
    reasons = (
        why_not_undone(command, lambda name: _exists(reader, name), is_first=at == 0)
        for at, command in enumerate(commands)
    )
    return next(filter(None, reasons), "")


def _whereabouts(reader: _Reader, words: Sequence[Word]) -> tuple[Location, str, str]:
    """Of a command that may do anything: does a word of it lead out of the workspace, to a secret file, to a guarded
    place?"""
    place, refused, guarded = Location.INSIDE, "", ""
    for word in words:
        for piece in _pieces(word):
            if not _PATH_LIKE.search(piece) and not _exists(reader, piece):
                continue
            for touch in _of_path(reader, AccessKind.WRITE, piece):
                place = touch.place if touch.place is Location.OUTSIDE else place
                refused, guarded = refused or touch.refused, guarded or touch.guarded
    return place, refused, guarded


def _pieces(word: Word) -> Iterator[str]:
    text = word.source if word.text is None else word.text
    if re.fullmatch(r"[a-z][a-z0-9+.-]*://.*", text, re.IGNORECASE | re.DOTALL) or "\0" in text:
        return
    yield text
    yield from filter(None, _PIECES.split(text)[1:])
    if text.startswith("-") and not text.startswith("--") and len(text) > 2:
        yield text[2:]


def _exists(reader: _Reader, name: str) -> bool:
    try:
        return any(os.path.lexists(os.path.join(folder, name)) for folder in reader.folders)
    except ValueError:
        return False


def _look_inside(reader: _Reader, words: Sequence[Word]) -> None:
    """Words that may be lines themselves (`sh -c "..."`): what is in them counts, too, where it makes it stricter."""
    takes = [at for at, word in enumerate(words) if program_name(word.text or "") in TAKES_LINES]
    if not takes or takes_data([word.text or "" for word in words]):
        return
    if reader.depth >= MAX_DEPTH:
        reader.found.append(_unclear("", "commands in commands in commands"))
        return
    reader.depth += 1
    for word in words[takes[0] + 1 :]:
        if word.text and re.search(r"[\s;&|<>`$()]", word.text):
            _read(reader, word.text)
    reader.depth -= 1
