"""The tables of reading commands against the programs themselves: each option of each, with a file behind it that must
not be read, is run under strace where it would run unasked. Which words a program opens is measured, not believed."""

from __future__ import annotations

import re
import shlex
import shutil
import string
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from callboard.actors.policy.command_table import _FIND_FILES, _FIND_TESTS, READING, READING_BELOW, ReadingCommand
from callboard.actors.policy.judge import CallJudge
from callboard.actors.policy.reading_programs import GIT
from callboard.actors.tools.decorator import tool
from callboard.protocol.content import json_text
from callboard.protocol.policy import Policy
from callboard.protocol.tools import Decision, Hold

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
    pytest.mark.timeout(600),
]

#: They wait, or are the shell's own.
NOT_RUN = frozenset({"sleep", "exit", "break", "continue", ":", "type"})
TARGETS = (".env", "../outside.txt")
CALLS = (
    "openat,openat2,open,execve,connect,unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat,chmod,fchmodat,symlink"
)
CALLS += ",clock_settime,settimeofday,link,linkat,symlinkat,truncate,utimensat"
#: What it opened of ours, wrote or changed.
FOUND = re.compile(
    r'open\w*\((?:AT_FDCWD, )?"(?:\S*/)?(?P<opened>\.env|outside\.txt)"[^\n]*\) = \d'
    r'|open\w*\([^"\n]*"(?!/dev/)(?P<written>[^"]*)"[^\n]*O_(?:WRONLY|RDWR|CREAT)[^\n]*\) = \d'
    r"|(?P<changed>connect|unlink\w*|rename\w*|mkdir\w*|f?chmod\w*|clock_settime|settimeofday|link\w*|symlink\w*|truncate"
    r"|utimensat)\([^\n]*\) = 0"
)
EXECUTED = re.compile(r'execve\("(?:\S*/)?([^"/]+)", [^\n]*= 0')


@tool(risk="execute", accesses={"command": "command"})
def run_line(command: str) -> str:
    raise AssertionError("it is only judged")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    root.mkdir()
    for name in (".env", "ok.txt", "../outside.txt"):
        (root / name).write_text("a 1\nb 2\n")
    (root / "opts.txt").write_text("../outside.txt\n")
    return root


def lines_of(name: str, known: ReadingCommand) -> Iterator[str]:
    """Each option, with a file as its value, behind its value, and as the next word."""
    letters = sorted(set(known.flags + known.valued + known.attached))
    for file in TARGETS:
        for letter in letters:
            for form in ("-{0} {1}", "-{0} 1 {1}", "-{0}{1}", "-{0}1 {1}", "-{0} {1} ok.txt", "ok.txt -{0} {1}"):
                yield f"{name} {form.format(letter, file)}"
            for other in letters[::5]:
                yield f"{name} -{other}{letter} {file}"
        for option in known.long.split():
            for form in ("--{0} {1}", "--{0}={1}", "--{0} 1 {1}", "--{0}= {1}", "ok.txt --{0} {1}"):
                yield f"{name} {form.format(option, file)}"
        for form in ("- {0}", "-- {0}", "ok.txt {0}", "x {0}", "+1 {0}", "-1 {0}", "--files0-from={0}", "-f {0} ok.txt",
                     "-e x -e y {0}", "x -e {0}", "--regexp x {0}", "-m 1 {0}", "@{0}", "-T {0}"):  # fmt: skip
            yield f"{name} {form.format(file)}"
    yield f"{name} @opts.txt"
    yield f"{name} ok.txt @opts.txt"


def find_lines() -> Iterator[str]:
    for word in (*_FIND_TESTS, *_FIND_FILES):
        for file in TARGETS:
            for form in ("{0} {1}", ". {0} {1}", ". {0} x {1}"):
                yield f"find {form.format(shlex.quote(word), file)}"


def git_lines() -> Iterator[str]:
    for command, (options, valued) in GIT.items():
        for option in (*sorted(options), *(f"-{letter}" for letter in valued)):
            for form in ("{0} {1}", "{0}={1}", "{0} 1 {1}", "HEAD {0} {1}", "{0}{1}"):
                yield f"git {command} {form.format(option, '../outside.txt')}"


LANGUAGES = """
    sed -n -e 1p -e 2p {}
    sed -n 1p ok.txt {}
    sed -s -n 1p {}
    sed s/x/y/ {}
    sed -E {} ok.txt
    sed -z {} ok.txt
    sed 1q {}
    awk -F {} 1 ok.txt
    awk -F, 1 {}
    awk -v a={} 1 ok.txt
    awk -v a=1 {} ok.txt
    awk 1 a=1 {}
    awk 1 ok.txt {}
    jq -r . {}
    jq --arg a {} . ok.txt
    jq --arg a 1 . {}
    jq --indent 1 . {}
    jq -n . {}
    jq -R {} ok.txt
    jq {} ok.txt
    [ -f {} ]
    [ x -nt {} ]
    [[ ok.txt -ef {} ]]
    test -s {}
    grep -rn x {}
    diff -r ok.txt {}
""".strip().splitlines()


def holes(lines: Iterable[str], workspace: Path, name: str) -> tuple[int, list[str]]:
    """How many of the lines run unasked, and those which then did more than they may."""
    judge = CallJudge(Policy(), workspace)
    said = {line: judge.judge(run_line.owned, json_text({"command": line})) for line in lines}
    allowed = {line: each.hold for line, each in said.items() if each.decision is Decision.ALLOW}
    found = []
    for line, done in under_strace(list(allowed), workspace, name):
        if allowed[line] is Hold.READING_BELOW:
            done.discard("opened .env")  # it is covered
        found += [f"{line}: {', '.join(sorted(done))}"] if done else []
    return len(allowed), found


def under_strace(lines: list[str], workspace: Path, name: str) -> Iterator[tuple[str, set[str]]]:
    """Each line with what it did, of one shell that runs them all and opens a mark before each."""
    log, script = workspace.parent / "log", workspace.parent / "script"
    script.write_text("".join(f": < /mark/{at}\n( {line}\n)\n" for at, line in enumerate(lines)))
    command = ["strace", "-f", "-qq", "-e", f"trace={CALLS}", "-o", str(log), "bash", str(script)]
    quiet = subprocess.DEVNULL
    subprocess.run(command, cwd=workspace, stdin=quiet, stdout=quiet, stderr=quiet, timeout=300, check=False)
    _, *parts = re.split(r'"/mark/(\d+)"[^\n]*\n', log.read_text(errors="replace"))
    assert [int(at) for at in parts[::2]] == list(range(len(lines)))
    for line, text in zip(lines, parts[1::2], strict=True):
        found = {" ".join(filter(None, (each.lastgroup, each[each.lastgroup or 0]))) for each in FOUND.finditer(text)}
        programs = set(EXECUTED.findall(text)) - {"bash", "sh", "dash", "grep", name}
        yield line, found | {f"executed {each}" for each in programs}


TABLES = {
    **{name: READING[name] for name in READING},
    **{f"{name} below": READING_BELOW[name] for name in READING_BELOW},
}


@pytest.mark.parametrize("named", [name for name in TABLES if name.partition(" ")[0] not in NOT_RUN])
def test_no_option_of_a_reading_command_opens_a_word_that_was_not_judged(named: str, workspace: Path) -> None:
    name = named.partition(" ")[0]
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    _, found = holes(lines_of(name, TABLES[named]), workspace, name)
    assert found == []


def test_no_test_of_find_opens_a_word_that_was_not_judged(workspace: Path) -> None:
    allowed, found = holes(find_lines(), workspace, "find")
    assert allowed > 0
    assert found == []


def test_no_option_of_git_opens_a_file_outside_or_runs_a_program(workspace: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "ok.txt"), (*author, "commit", "-qm", "one")):
        subprocess.run(["git", *words], cwd=workspace, check=True, capture_output=True)
    allowed, found = holes(git_lines(), workspace, "git")
    # It writes only its own index and locks, and only where it is not held; a held one does not lock.
    assert [each for each in found if "outside" in each or "executed" in each] == []
    assert allowed > 0


def test_no_word_of_a_language_opens_a_file_that_was_not_judged(workspace: Path) -> None:
    lines = [line.strip().format(file) for line in LANGUAGES for file in TARGETS]
    for name in ("sed", "awk", "jq", "[", "[[", "test", "grep", "diff"):
        of_name = (line for line in lines if line.partition(" ")[0] == name)
        _, found = holes(of_name, workspace, name)
        assert found == []


def test_an_option_that_the_tables_do_not_know_is_asked_about(workspace: Path) -> None:
    judge = CallJudge(Policy(), workspace)
    for name, known in READING.items():
        below = READING_BELOW.get(name, known)
        letters = known.flags + known.valued + known.attached + below.flags + below.valued
        if known.prefix or not known.reads_files:
            continue
        for letter in set(string.ascii_letters + string.digits) - set(letters):
            if name == "find" or (letter == "V" and name in ("grep", "tree")):
                continue
            for line in (f"{name} -{letter} ok.txt", f"{name} -{letter}", f"{name} ok.txt -{letter}x"):
                assert judge.judge(run_line.owned, json_text({"command": line})).decision is not Decision.ALLOW, line
