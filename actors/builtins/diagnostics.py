"""What compilers, linters and test runners print, as data: where, how bad, which code, what it says.

The tables below have the forms of gcc, clang, javac, mypy, ruff, flake8, pylint, pyright, tsc, eslint, go, rustc and
cargo, pytest and Python's own tracebacks. A line that has none of these forms says nothing. Each expression begins at
the beginning of a line and has no more than one repetition that can end in several places, and that one is bounded: a
line costs the same whatever is in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.builtins.command_output import Diagnostic, Severity

#: Of one output, about 3,000 tokens.
MAX_DIAGNOSTICS: Final = 50
MAX_MESSAGE_CHARS: Final = 500
#: A longer line is no diagnostic.
MAX_LINE_CHARS: Final = 2_000
#: A shorter one has no room for a place and a word.
MIN_LINE_CHARS: Final = 8
#: Found ones that are kept before the worst of them are chosen.
MAX_FOUND: Final = 2_000
#: Without a colon, only these beginnings of a line say something; most lines have neither.
_BEGINNINGS: Final = ("___", "E   ", "===", "FAIL", "ERROR", "ok  ", "  File", "/")


def diagnostics_of(output: str, folder: str, root: str) -> tuple[list[Diagnostic], int]:
    """Those in an output (as it was shown) of a command that ran in `folder`, at most MAX_DIAGNOSTICS, errors before
    warnings; and how many more there are. `root` is the workspace. It never raises."""
    reader = _Reader()
    for line in _ESCAPE.sub("", output).splitlines():
        if len(line) <= MAX_LINE_CHARS:
            reader.take(line.rstrip())
    kept = found = reader.found
    if len(found) > MAX_DIAGNOSTICS:
        worst = sorted(range(len(found)), key=lambda at: (_RANK[found[at].severity], at))[:MAX_DIAGNOSTICS]
        kept = [found[at] for at in sorted(worst)]
    places = _Places(folder, root)
    shown = [
        Diagnostic(
            places.shown(each.file, each.packages), each.line, each.column, each.severity, each.code,
            each.message[:MAX_MESSAGE_CHARS],
        )
        for each in kept
    ]  # fmt: skip
    return shown, len(reader.seen) - len(kept)


#: Colours, titles and links of a terminal.
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;:?]{0,40}[ -/]?[@-~]|\x1b\][^\x07\x1b\n]{0,2000}(?:\x07|\x1b\\)|\x1b[()][0B]")
_RANK: Final[Mapping[Severity, int]] = {"error": 0, "warning": 1, "note": 2}
_SEVERITIES: Final[Mapping[str, Severity]] = {
    "error": "error", "fatal error": "error", "warning": "warning", "note": "note", "info": "note",
    "information": "note", "help": "note", "message": "note", "ERROR": "error", "WARNING": "warning",
}  # fmt: skip

_FILE: Final = r"(?P<file>[^\s:(\[<\"'][^:(\[\n\"]{0,300})"
_PLACE: Final = _FILE + r":(?P<line>\d{1,7})(?::(?P<column>\d{1,6})(?::\d{1,7}:\d{1,6})?)?"
_SEVERITY: Final = r"(?P<severity>fatal error|error|warning|note|info|information|help)"
_LINT: Final = r"(?P<code>[A-Z]{1,5}\d{2,5}|invalid-syntax|SyntaxError)"
_IN_BRACKETS: Final = r"(?:\[(?P<code>[\w:.-]{1,60})\])?"
_PAIR: Final = r"(?P<line>\d{1,7}),(?P<column>\d{1,6})"
_SAYS: Final = r"(?P<message>.+)"
#: A diagnostic in one line.
ONE_LINE: Final = tuple(
    re.compile(pattern)
    for pattern in (
        rf"{_PLACE}: {_SEVERITY}{_IN_BRACKETS}: {_SAYS}",  # gcc, clang, mypy, javac, cargo (short)
        rf"{_PLACE}: {_LINT}:? (?:\[\*\] )?{_SAYS}",  # ruff (concise), flake8, pylint
        rf"{_FILE}\({_PAIR}\): {_SEVERITY} (?P<code>TS\d{{1,6}}): {_SAYS}",  # tsc
        rf" {{0,4}}{_PLACE} - {_SEVERITY}(?: (?P<code>TS\d{{1,6}}))?: {_SAYS}",  # tsc for people, pyright
        rf"(?:vet: )?(?P<file>[^\s:]{{1,300}}\.go):(?P<line>\d{{1,7}}):(?P<column>\d{{1,6}}): {_SAYS}",  # go
        rf"(?:/\S{{0,100}}: )?{_FILE}:\(\.\w{{1,40}}\+0x[0-9a-f]{{1,16}}\): (?P<message>undefined .+)",  # ld
        rf"\[(?P<severity>ERROR|WARNING)\] {_FILE}:\[{_PAIR}\] {_SAYS}",  # maven
    )
)
#: The first of two lines: what it says; the second one says where.
HEADS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?P<severity>error|warning)(?:\[(?P<code>[\w:.-]{1,60})\])?: (?P<message>.+)",  # rustc
        rf"{_LINT}:? (?:\[\*\] )?(?P<message>.+)",  # ruff
    )
)
_ARROW: Final = re.compile(rf" {{0,12}}--> {_PLACE}")
_RUST_PANIC: Final = re.compile(rf"thread '[^']{{0,300}}' (?:\(\d{{1,20}}\) )?panicked at {_PLACE}:")
_GO_PANIC: Final = re.compile(r"panic: (?P<message>.+)")
_GO_FRAME: Final = re.compile(r"\t(?P<file>/[^:\n]{1,300}\.go):(?P<line>\d{1,7})")
_GO_LOG: Final = re.compile(r" {4,12}(?P<file>[\w.-]{1,200}\.go):(?P<line>\d{1,7}): (?P<message>.+)")
_GO_END: Final = re.compile(r"(?:FAIL|ok  )\t(?P<package>[^\s]{1,300})")
_ESLINT_ROW: Final = re.compile(
    r" {2,8}(?P<line>\d{1,7}):(?P<column>\d{1,6}) +(?P<severity>error|warning) +(?P<rest>\S.*)"
)
_ESLINT_FILE: Final = re.compile(r"/[^:\n]{1,300}\.\w{1,10}")
_RAISED: Final = re.compile(
    r"(?P<code>[A-Za-z_][\w.]{0,100}(?:Error|Exception|Exit|Interrupt|Warning|Failed|Iteration|Group))"
    r"(?:: (?P<message>.*))?"
)
#: That of an exception, whatever it is called; below the frames of a traceback, with what it says.
_CLASS: Final = re.compile(r"(?:[a-z_]\w{0,60}\.){0,10}[A-Z]\w{0,100}")
_BELOW_FRAMES: Final = re.compile(
    r"(?P<code>(?:\w{1,60}\.){0,10}[A-Z][A-Z0-9]{0,20}[a-z]\w{0,100})(?:: (?P<message>.*))?"
)
_FRAME: Final = re.compile(r" {1,8}File \"(?P<file>[^\"\n]{1,300})\", line (?P<line>\d{1,7})")
_PYTEST_PLACE: Final = re.compile(r"(?P<file>[^\s:][^:\n]{0,300}\.py):(?P<line>\d{1,7}): (?P<rest>\S.*)")
#: A test's parameters are in brackets, with any text in them.
_PYTEST_END: Final = re.compile(r"(?:FAILED|ERROR) (?P<node>[^\s\[][^\[]*?(?:\[.*?\])?)(?: - (?P<said>.*))?")


class _Found(Struct, frozen=True):
    file: str
    line: int | None
    column: int | None
    severity: Severity
    code: str
    message: str
    packages: tuple[str, ...] = ()
    """Where it may be, of a file that is named without its folder."""


class _Reader:
    """Reads one output, line by line. What a form needs of the lines before is kept here."""

    def __init__(self) -> None:
        self.found: list[_Found] = []
        self.seen: set[int] = set()
        """Digests of all that was found: the same thing is told once."""
        self._before = ""
        """The line before: it says what, where this one says where."""
        self._panics = False
        """The next line says why."""
        self._go_panic = ""
        self._go_logs: list[_Found] = []
        self._go_fails = False
        self._of_package = 0
        """From which of the found ones on the package of Go is not known yet."""
        self._eslint_file = ""
        self._frame: tuple[str, int] | None = None
        self._place: tuple[str, int] | None = None
        self._is_source = False
        """Of a syntax error: lines of the source come before what it says."""
        self._said = ""
        """By pytest, of the test of the heading `_test`."""
        self._test = ""
        self._tests: set[str] = set()
        self._messages: set[str] = set()

    def take(self, line: str) -> None:
        """One more line."""
        before, self._before = self._before, line
        if self._panics:
            self._panics = False
            self.found[-1] = replace(self.found[-1], message=line.strip() or self.found[-1].message)
            return
        if "--> " in line and (arrow := _ARROW.fullmatch(line)):
            self._pointed_at(arrow, before)
            return
        may_say = ":" in line and len(line) >= MIN_LINE_CHARS
        if not may_say and not line.startswith(_BEGINNINGS) and self._frame is None:
            return
        for form in _FORMS:
            if form(self, line):
                return

    def _add(self, found: _Found) -> bool:
        """False where it was told before, or there are too many."""
        key = hash((found.file, found.line, found.column, found.code, found.message))
        if key in self.seen:
            return False
        self.seen.add(key)
        if len(self.found) == MAX_FOUND:
            return False
        self.found.append(found)
        return True

    def _pointed_at(self, arrow: re.Match[str], line: str) -> None:
        for pattern in HEADS:
            if found := pattern.fullmatch(line):
                head = _found(found)
                self._add(_found(arrow, head.severity, head.code, head.message))
                return

    # -- the forms: True where the line was one

    def one_line(self, line: str) -> bool:
        for pattern in ONE_LINE:
            if (found := pattern.fullmatch(line)) and _is_path(found["file"]):
                self._add(_with_code(_found(found)))
                return True
        return False

    def rust_panic(self, line: str) -> bool:
        found = _RUST_PANIC.fullmatch(line)
        if found:
            self._panics = self._add(_found(found, "error", "panic", "it panicked"))
        return found is not None

    def go_test(self, line: str) -> bool:
        if line.lstrip().startswith(("--- FAIL", "--- PASS", "--- SKIP")):
            self._go_fails = "--- FAIL" in line
            for each in self._go_logs if self._go_fails else ():
                self._add(each)
            self._go_logs.clear()
        elif line.startswith("=== RUN"):
            self._go_fails = False
        elif found := _GO_LOG.fullmatch(line):
            said = _found(found)
            if self._go_fails:
                self._add(said)
            elif len(self._go_logs) < MAX_DIAGNOSTICS:
                self._go_logs.append(said)
        elif found := _GO_END.match(line):
            self._end_package(found["package"])
        else:
            return False
        return True

    def _end_package(self, package: str) -> None:
        parts = package.split("/")
        folders = tuple("/".join(parts[at:]) for at in range(1, len(parts)))
        for at in range(self._of_package, len(self.found)):
            if self.found[at].file.endswith(".go") and "/" not in self.found[at].file:
                self.found[at] = replace(self.found[at], packages=folders)
        self._of_package, self._go_fails = len(self.found), False

    def go_panic(self, line: str) -> bool:
        if found := _GO_PANIC.fullmatch(line):
            self._go_panic = found["message"]
        elif self._go_panic and (frame := _GO_FRAME.match(line)):
            if "/src/runtime/" in frame["file"] or "/src/testing/" in frame["file"]:
                return True
            self._add(_found(frame, "error", "panic", self._go_panic))
            self._go_panic = ""
        else:
            return False
        return True

    def eslint(self, line: str) -> bool:
        if self._eslint_file and (row := _ESLINT_ROW.fullmatch(line)):
            message, _, rule = row["rest"].rpartition("  ")
            said = (message.strip(), rule) if message and " " not in rule else (row["rest"], "")
            self._add(_found(row, code=said[1], message=said[0], file=self._eslint_file))
            return True
        self._eslint_file = line if _ESLINT_FILE.fullmatch(line) else ""
        return bool(self._eslint_file)

    def traceback(self, line: str) -> bool:
        if frame := _FRAME.match(line):
            self._frame = frame["file"], int(frame["line"])
            return True
        if self._frame is None or not line or line[0] == " ":
            return False
        (file, number), self._frame = self._frame, None
        raised = _RAISED.fullmatch(line) or _BELOW_FRAMES.fullmatch(line)
        if raised is not None:
            self._test_failed(file, number, raised["code"], raised["message"] or raised["code"])
        return raised is not None

    def pytest(self, line: str) -> bool:
        if line.startswith("___") and line.endswith("___"):
            name = line.strip("_ ").removeprefix("ERROR collecting ")
            self._test = name.partition(" of ")[2] if name.startswith("ERROR at ") else name
            self._said, self._place = "", None
        elif line.startswith("E   "):
            self._explained(line[4:].strip(), line[1:])
        elif found := _PYTEST_PLACE.fullmatch(line):
            return self._placed(found["file"], int(found["line"]), found["rest"])
        elif ".py" in line and (end := _PYTEST_END.fullmatch(line)):
            return self._summed_up(end["node"], end["said"] or "")
        else:
            return False
        return True

    def _explained(self, said: str, line: str) -> None:
        """What was raised: behind its place (`--tb=short`), or before it."""
        if frame := _FRAME.match(line):
            self._place, self._is_source, self._said = (frame["file"], int(frame["line"])), True, ""
            return
        if not self._said:
            self._said = said
        if self._place is not None and (_RAISED.fullmatch(said) or not self._is_source):
            self._test_failed(*self._place, *_exception(said))
            self._place = None

    def _placed(self, file: str, line: int, rest: str) -> bool:
        if rest.startswith("in "):
            self._place, self._is_source = (file, line), False
            return True
        if self._said and _CLASS.fullmatch(rest):  # what it says was printed above
            code, message = _exception(self._said)
            self._test_failed(file, line, code or rest, message)
            self._said = ""
        elif rest.startswith("assert ") or _RAISED.fullmatch(rest):
            self._test_failed(file, line, *_exception(rest))
        else:
            return False
        return True

    def _test_failed(self, file: str, line: int, code: str, message: str) -> None:
        self._add(_Found(file, line, None, _how_bad(code), code, message))
        self._tests.add(self._test)
        self._messages.add(message)

    def _summed_up(self, node: str, said: str) -> bool:
        """A line of the short summary: told only where the test's place is not."""
        file, _, inner = node.partition("::")
        code, message = _exception(said)
        name = inner.replace("::", ".") or file
        if not file.endswith(".py"):
            return False
        if name not in self._tests and (not message or message not in self._messages):
            told = f"{inner}: {message}" if message and inner else message or f"{name} failed"
            self._add(_Found(file, None, None, "error", code, told))
        return True


#: In which order a line is tried.
_FORMS: Final[tuple[Callable[[_Reader, str], bool], ...]] = (
    _Reader.one_line,
    _Reader.rust_panic,
    _Reader.go_test,
    _Reader.go_panic,
    _Reader.pytest,
    _Reader.traceback,
    _Reader.eslint,
)


def _found(match: re.Match[str], severity: str = "", code: str = "", message: str = "", file: str = "") -> _Found:
    said = match.groupdict()
    line, column = said.get("line"), said.get("column")
    code = code or said.get("code") or ""
    # Of pylint and flake8 those of these letters are warnings; ruff tells none apart.
    default = "warning" if re.fullmatch(r"[CRW]\d{4}|W\d{3}", code) else "error"
    is_pylint = not severity and "severity" not in said and re.fullmatch(r"[A-Z]\d{4}", code)
    first = 1 if is_pylint else 0  # it counts columns from 0
    return _Found(
        file or (said.get("file") or "").strip(),
        (int(line) or None) if line else None,
        (int(column) + first or None) if column else None,
        _SEVERITIES[severity or said.get("severity") or default],
        code,
        (message or said.get("message") or "").strip(),
    )


def _with_code(found: _Found) -> _Found:
    """gcc and mypy write it at the end, in brackets; pylint and pyright in parentheses."""
    message = found.message
    if found.code or not message.endswith(("]", ")")):
        return found
    opening = message.rfind(" [" if message.endswith("]") else " (")
    code = message[opening + 2 : -1]
    if opening < 0 or not re.fullmatch(r"-W[\w=+-]{1,60}|[a-z][a-z0-9]*(?:-[a-z0-9]+)*|report\w{1,60}", code):
        return found
    is_marked = code.startswith(("-W", "report")) or message[opening - 1 : opening] == " "
    return replace(found, code=code, message=message[:opening].rstrip()) if is_marked else found


def _how_bad(exception: str) -> Severity:
    return "warning" if exception.endswith("Warning") else "error"


def _exception(said: str) -> tuple[str, str]:
    """The class and the text of an exception as Python writes it."""
    raised = _RAISED.fullmatch(said)
    if raised is None:
        return ("AssertionError", said) if said.startswith("assert ") else ("", said)
    return raised["code"], raised["message"] or raised["code"]


def _is_path(text: str) -> bool:
    """A time of day and a level of a log look like a place, too; a file has a folder or an ending."""
    return "/" in text or bool(re.search(r"\.[A-Za-z_]\w{0,9}$|^[A-Z]\w{3,}file$", text.strip()))


class _Places:
    """Where files are that an output names, by what is there."""

    def __init__(self, folder: str, root: str) -> None:
        self._root = os.path.normpath(root)
        self._folders = list(_upwards(os.path.normpath(folder), self._root))
        self._known: dict[tuple[str, tuple[str, ...]], str] = {}

    def shown(self, file: str, packages: tuple[str, ...]) -> str:
        """Relative to the workspace where it is in it; else as it was printed."""
        key = file, packages
        if key not in self._known:
            self._known[key] = self._found(file, packages)
        return self._known[key]

    def _found(self, file: str, packages: tuple[str, ...]) -> str:
        below = (os.path.join(folder, package, file) for folder in self._folders for package in packages)
        tried = [file] if os.path.isabs(file) else [os.path.join(folder, file) for folder in self._folders]
        for place in map(os.path.normpath, (*below, *tried)):
            if _is_there(place):
                return self._relative(place) or file
        return self._relative(os.path.normpath(tried[0])) or file

    def _relative(self, place: str) -> str:
        """\"\" where it is outside."""
        root = self._root.rstrip("/") + "/"
        return place[len(root) :] if place.startswith(root) else ""


def _upwards(folder: str, root: str) -> Iterable[str]:
    """A folder and those above it, to the workspace: cargo names files from where its workspace is."""
    while folder.startswith(root):
        yield folder
        if folder == root:
            return
        folder = os.path.dirname(folder)
    yield folder


def _is_there(place: str) -> bool:
    try:
        return os.path.lexists(place)
    except (OSError, ValueError):
        return False
