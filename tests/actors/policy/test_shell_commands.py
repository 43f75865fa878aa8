"""What happens to a command: the table in commands.txt, at each trust level."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callboard.actors.policy.command_table import READING, READING_BELOW, VERSIONS
from callboard.actors.policy.judge import CallJudge
from callboard.actors.tools.decorator import tool
from callboard.protocol.content import json_text
from callboard.protocol.policy import MODES, Mode, Policy, Rule, Trust
from callboard.protocol.tools import Decision, Hold, Risk

TABLE = Path(__file__).parent / "commands.txt"


def rows() -> list[tuple[str, tuple[str, ...]]]:
    """Each command, with the decision at each trust level."""
    found: list[tuple[str, tuple[str, ...]]] = []
    decided: tuple[str, ...] = ()
    block: list[str] = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            names = line[3:].partition(":")[0].split()
            decided = tuple(names) if len(names) == len(Trust) else (names[0],) * len(Trust)
        elif line and not line.startswith("# "):
            block.append(line)
            if not line.endswith("\\"):
                found.append(("\n".join(block), decided))
                block = []
    return found


ROWS = rows()


@tool(risk="execute", accesses={"command": "command", "cwd": "read"})
def run_command(command: str, cwd: str = ".") -> str:
    raise AssertionError("it is only judged")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("workspace")
    (root / "src").mkdir()
    for name in ("README.md", "src/a.py", ".env", "id_rsa"):
        (root / name).write_text("x")
    (root / "src" / "out").symlink_to("/etc")
    (root / "src" / "in").symlink_to("../README.md")
    return root


def decision(command: str, workspace: Path, policy: Policy | None = None, **arguments: str) -> Decision:
    judge = CallJudge(policy or Policy(), workspace)
    return judge.judge(run_command.owned, json_text({"command": command, **arguments})).decision


def test_the_table_is_long_and_says_nothing_twice() -> None:
    assert len(ROWS) >= 250
    said = [command for command, _ in ROWS]
    assert sorted({each for each in said if said.count(each) > 1}) == ["find . -delete"]


@pytest.mark.parametrize(("command", "decided"), ROWS, ids=[repr(command)[1:-1] for command, _ in ROWS])
def test_a_command_is_judged_as_the_table_says(command: str, decided: tuple[str, ...], workspace: Path) -> None:
    found = tuple(str(decision(command, workspace, Policy(trust=trust))) for trust in Trust)
    assert found == decided


def one_of(table: str) -> st.SearchStrategy[str]:
    """One of the lines; in them, \\n is a line end."""
    return st.sampled_from([line.strip().replace("\\n", "\n") for line in table.strip().splitlines()])


DESTRUCTIVE = one_of(
    """rm -rf src
    rm README.md
    shred x
    dd if=a of=b
    git reset --hard
    find . -delete"""
)
QUOTES = st.sampled_from(["{}", "'{}'", '"{}"', "\\{}", "''{}", '{}""'])
HARMLESS = one_of(
    """ls
    cat README.md
    echo 'a b'
    grep -n x src/a.py
    pwd
    find . -name '*.py'"""
)
JOINED = one_of(
    r"""{0}; {1}
    {1}; {0}
    {0} && {1}
    {1} || {0}
    {1} | {0}
    {0} & {1}
    ({1}; {0})
    {1}\n{0}
    ! {0}
    {1};{0}
    {1} 2>&1 | {0} >/dev/null"""
)
WRAPPED = one_of(
    r"""env {}
    nice {}
    command {}
    time {}
    sudo {}
    nohup {}
    timeout 5 {}
    xargs {}
    LANG=C {}
    $({})
    `{}`
    echo $({})
    echo "$({})"
    cat <({})
    A=$({}) ls
    if true; then {}; fi
    for i in a; do {}; done
    f() {{ {}; }}; f
    {{ {}; }}
    cat <<E\n$({})\nE
    busybox {}
    exec {}
    eval {}
    ls ${{X:-$({})}}
    find . -exec {} \;"""
)
LINE_OF = one_of(
    """sh -c {}
    bash -c {}
    eval {}
    su -c {}
    watch {}
    ssh host {}
    env -S {}
    xargs sh -c {}"""
)
#: Of an owner who lets every program run unasked that can be undone.
ALLOWS_PROGRAMS = Policy({Risk.READ: Decision.ALLOW, Risk.WRITE: Decision.ALLOW, Risk.EXECUTE: Decision.ALLOW})


@st.composite
def destructive_lines(draw: st.DrawFn) -> str:
    """Something destructive with some words quoted, wrapped and beside something harmless, up to three times."""
    words = draw(DESTRUCTIVE).split()
    words[0] = draw(QUOTES).format(words[0])
    line = " ".join(words)
    for _ in range(draw(st.integers(0, 3))):
        way = draw(st.integers(0, 2))
        if way == 0:
            line = draw(WRAPPED).format(line)
        elif way == 1:
            line = draw(JOINED).format(line, draw(HARMLESS))
        else:
            line = draw(LINE_OF).format(shlex.quote(line))
    return line


@given(destructive_lines())
def test_what_destroys_never_runs_unasked_however_it_is_written(workspace: Path, line: str) -> None:
    for policy in (*(Policy(trust=trust) for trust in Trust), ALLOWS_PROGRAMS):
        assert decision(line, workspace, policy) is not Decision.ALLOW, policy


PARTS = [
    *"abc ;|&<>()'\"\\\n#!~=-/*$",
    "ls ",
    "rm ",
    "cat ",
    "$(",
    "`",
    "${",
    "<<E\n",
    "\nE\n",
    "$'",
    "<<< ",
    "[ ",
    " ]",
]
PARTS += [
    "for f in a b; do ",
    "; done",
    "$f ",
    '"$f" ',
    "if ",
    "; then ",
    "; fi",
    "[[ ",
    " ]]",
    "{ ",
    "; }",
    " # ",
    "echo ",
]
LINES = st.lists(st.sampled_from(PARTS), max_size=12).map("".join) | st.text(st.characters(codec="utf-8"), max_size=40)


@given(LINES, HARMLESS)
def test_a_shell_finds_no_other_commands_in_a_line_that_is_allowed(workspace: Path, text: str, before: str) -> None:
    """By bash itself, where no program can be found: it names what it would have run."""
    line = before + text
    if decision(line, workspace) is not Decision.ALLOW:
        return
    ran = subprocess.run(
        ["/bin/bash", "-c", line], env={"PATH": ""}, cwd=workspace, capture_output=True, timeout=10, check=False
    )
    errors = ran.stderr.decode(errors="replace")
    named = re.findall(r"line \d+: (.*): command not found", errors)
    assert {*named} <= {*READING, *READING_BELOW, *VERSIONS, "find", "sed", "awk", "jq", "git"}, line


def test_a_line_that_would_kill_the_parser_is_unclear() -> None:
    """By an example of CI's, in a process of its own: the parser reads memory that is not its own, and mostly dies."""
    program = """
from callboard.actors.policy.shell_grammar import read_line
for code in range(0x10000, 0x110000, 0x400):
    assert read_line("ls {" + chr(code)).unclear
    assert not read_line("ls " + chr(code) + "{").unclear
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_rules_match_each_command_of_a_line_and_not_the_line(workspace: Path) -> None:
    policy = Policy(rules=(Rule("run_command", "git status*", "allow"), Rule("*", "git push*", "deny")))
    expected = {
        "git status": "allow",
        "git status --short": "allow",
        "git status && ls": "allow",
        "  git   'status' -s": "allow",
        "git status; rm -rf src": "ask",
        "git status $(rm x)": "ask",
        "git status $X": "ask",
        "git status > x": "ask",
        "./git status": "ask",
        "env git status": "ask",
        "sudo git status": "ask",
        "git push": "deny",
        "ls; git push origin": "deny",
        "/usr/bin/git push": "deny",
        "sudo git push": "deny",
        "env A=b git push": "deny",
        "sh -c 'ls && git push'": "deny",
        "GIT push": "deny",
        "git status | xargs git push": "deny",
        "if true; then git push; fi": "deny",
    }
    assert {line: str(decision(line, workspace, policy)) for line in expected} == expected


def test_where_secret_files_are_not_covered_only_a_rule_lets_a_command_run_unasked(workspace: Path) -> None:
    def judged(line: str, *rules: Rule) -> Decision:
        judge = CallJudge(Policy(rules=rules), workspace, masks_secrets=lambda: False)
        return judge.judge(run_command.owned, json_text({"command": line})).decision

    for line in ("cat README.md", "grep KEY README.md", "ls"):
        assert decision(line, workspace) is Decision.ALLOW
        assert judged(line) is Decision.ASK
        assert judged(line, Rule("run_command", line, "allow")) is Decision.ALLOW
        assert judged(line, Rule("run_command", decision="deny")) is Decision.DENY


def test_a_rule_may_allow_what_destroys_but_no_secret_file(workspace: Path) -> None:
    policy = Policy(rules=(Rule("run_command", "rm *", "allow"),))
    assert decision("rm -rf src", workspace, policy) is Decision.ALLOW
    assert decision("rm -rf src; rm .env", workspace, policy) is Decision.DENY
    assert decision("ls; mv a b", workspace, policy) is Decision.ASK


def test_a_rule_for_every_command_allows_what_is_not_understood_unless_another_might_deny_it(
    workspace: Path,
) -> None:
    every = Rule("run_command", decision="allow")
    assert decision("for x in *; do $x; done", workspace, Policy(rules=(every,))) is Decision.ALLOW
    narrowed = Policy(rules=(every, Rule("*", "git push*", "deny")))
    assert decision("for x in *; do $x; done", workspace, narrowed) is Decision.ASK
    assert decision("make", workspace, narrowed) is Decision.ALLOW


@pytest.mark.parametrize("mode", [Mode.ASK, Mode.PLAN])
def test_modes_that_change_nothing_run_commands_that_only_read(workspace: Path, mode: Mode) -> None:
    """Held to reading by the kernel, also where a rule allows them; what does more is denied, whatever rules say."""
    rules = (Rule("run_command", decision="allow"), Rule("run_command", "git status*", "allow"))
    for policy in (Policy(mode=mode), Policy(mode=mode, rules=rules), Policy(mode=mode, rules=rules[1:])):
        judge = CallJudge(policy, workspace)
        for line in ("ls", "cat README.md | head -3", "grep -rn one src", "git status", "git log -3", "cd src && ls"):
            said = judge.judge(run_command.owned, json_text({"command": line}))
            assert (line, said.decision) == (line, Decision.ALLOW)
            assert said.hold is not Hold.NONE
        for line in (
            "rm README.md",
            "make",
            "echo x > a",
            "curl http://a.example",
            "python -c 1",
            "ls | tee b",
            "ls; $x",
        ):
            assert (line, decision(line, workspace, policy)) == (line, Decision.DENY)
    assert decision("cat /etc/hostname", workspace, Policy(mode=mode)) is Decision.ASK
    assert decision("cat .env", workspace, Policy(mode=mode)) is Decision.DENY
    assert MODES[Mode.BUILD] == ()


@pytest.mark.parametrize("mode", [Mode.ASK, Mode.PLAN])
def test_what_the_kernel_cannot_hold_runs_in_no_such_mode(workspace: Path, mode: Mode) -> None:
    loose = dataclasses.replace(run_command.owned, contract=replace(run_command.owned.contract, can_be_held=False))
    judge = CallJudge(Policy(mode=mode), workspace)
    assert judge.judge(loose, json_text({"command": "ls"})).decision is Decision.DENY
    assert Policy(mode=mode).offer(loose.name, loose.contract, has_accesses=True).decision is Decision.DENY
    held = run_command.owned
    assert Policy(mode=mode).offer(held.name, held.contract, has_accesses=True).decision is Decision.ASK


def test_paths_are_meant_from_the_folder_that_the_call_names(workspace: Path) -> None:
    assert decision("cat a.py", workspace, cwd="src") is Decision.ALLOW
    assert decision("cat ../README.md", workspace, cwd="src") is Decision.ALLOW
    assert decision("cat ../README.md", workspace) is Decision.ASK
    assert decision("ls", workspace, cwd="/etc") is Decision.ASK
    assert decision("cat passwd", workspace, cwd="src/out") is Decision.ASK


def test_a_program_in_the_workspace_is_not_taken_for_the_one_of_that_name(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert decision("ls", workspace) is Decision.ALLOW
    folder = workspace / "bin"
    folder.mkdir()
    (folder / "ls").write_text("#!/bin/sh\nrm x\n")
    (folder / "ls").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    assert decision("ls", workspace) is Decision.ASK


IN_ANOTHER_FOLDER = """
    CDPATH=/ cd etc; head passwd
    CDPATH=/etc cd apt && ls
    CDPATH=/proc cd self; head mountinfo
    CDPATH=.. cd x; cat y
    CDPATH=/; cd etc; head passwd
    export CDPATH=/; cd etc; head passwd
    HOME=/etc cd; cat passwd
    cd src; cd out; head passwd
    cd .; cd .; cd .; cd .; cd .; cd .; cd .; cd src; cat out/passwd
    cd .; cd src; cd ..; cd src; cd ..; cd src; cd ..; cd src; cd out; head passwd
    cd src/out/..; cat passwd
    cd src/out; cd ..; cat etc/passwd
    while true; do cd ..; cat x; done
    for i in 1 2 3; do cd src; cd ..; cd ..; cat x; done
    until [ -f x ]; do cd src; done
    (cd src; cd out; cat passwd)
"""


@pytest.mark.parametrize("line", IN_ANOTHER_FOLDER.strip().splitlines())
def test_a_line_is_judged_in_the_folder_where_it_runs(line: str, workspace: Path) -> None:
    assert decision(line.strip(), workspace) is Decision.ASK


def test_more_folders_than_are_judged_are_asked_about(workspace: Path, tmp_path: Path) -> None:
    names = [f"f{at}" for at in range(8)]
    for name in names:
        (tmp_path / name).mkdir()
    few = "; ".join(f"cd {name}" for name in names[:5])
    many = "; ".join(f"cd {name}" for name in names)
    assert decision(f"{few}; ls", tmp_path) is Decision.ALLOW
    assert decision(f"{many}; ls", tmp_path) is Decision.ASK
    assert decision("; ".join(["cd ."] * 100), tmp_path) is Decision.ALLOW


#: Behind each option stands a file, which is no value of it.
NO_VALUE = """
    od -w {}
    od -An -c -w {}
    od -vw {}
    strings -d {}
    strings -ad {}
    strings -d -n 3 {}
    ls -I x {}
    xxd -ps {}
    sort -u {}
    diff -q {} README.md
    grep -rI x {}
    tree -a {}
    git log -p {}
    git diff --stat {}
    jq -r . {}
    sed -ne 1p {}
    awk -F, 1 {}
    [ -f {} ]
    find . -newer {}
    column -t {}
"""


@pytest.mark.parametrize("line", NO_VALUE.strip().splitlines())
def test_what_stands_behind_an_option_is_judged_where_it_is_no_value(line: str, workspace: Path) -> None:
    said = [decision(line.strip().format(path), workspace) for path in (".env", "../outside", "README.md")]
    assert said[0] is not Decision.ALLOW
    assert said[1] is Decision.ASK
    assert said[2] is (Decision.ASK if "-ps" in line else Decision.ALLOW)


@pytest.mark.parametrize(
    "line",
    ["strings @README.md", "strings -a @README.md", "strings README.md @x", "date -I 010203042026", "date -u 01020304",
     "date -R 01020304", "date --iso-8601 01020304"],
)  # fmt: skip
def test_files_of_options_and_dates_to_set_are_asked_about(line: str, workspace: Path) -> None:
    assert decision(line, workspace) is Decision.ASK


def test_a_line_that_must_be_held_is_asked_about_beside_one_that_a_rule_allows(workspace: Path) -> None:
    policy = Policy(rules=(Rule("run_command", "make*", "allow"),))
    judge = CallJudge(policy, workspace)
    expected = {
        "git log": (Decision.ALLOW, Hold.READING_BELOW),
        "ls": (Decision.ALLOW, Hold.READING),
        "ls; git log": (Decision.ALLOW, Hold.READING_BELOW),
        "make": (Decision.ALLOW, Hold.NONE),
        "ls; make": (Decision.ALLOW, Hold.NONE),
        "git log; make": (Decision.ASK, Hold.NONE),
        "grep -r x . && make -s": (Decision.ASK, Hold.NONE),
    }
    found = {line: judge.judge(run_command.owned, json_text({"command": line})) for line in expected}
    assert {line: (said.decision, said.hold) for line, said in found.items()} == expected


def test_patterns_stand_for_the_files_that_there_are(workspace: Path) -> None:
    assert decision("cat src/*.py", workspace) is Decision.ALLOW
    assert decision("cat nothing*.x", workspace) is Decision.ALLOW
    for line in ("cat i*", "cat src/o*/passwd", "cat ../*", "cat .*", "cat */*", "ls src/out/*", "cat .e*"):
        assert decision(line, workspace) is not Decision.ALLOW, line
    odd = workspace / "odd"
    odd.mkdir()
    (odd / "a .env").write_text("x")
    assert decision("for f in odd/*; do cat $f; done", workspace) is Decision.ASK
