"""What compilers, linters and test runners print, as it was recorded (outputs/), read as data; and other text."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import Policy, Runtime, Settings
from callboard.actors.builtins.command_output import READ_BYTES, Diagnostic
from callboard.actors.builtins.diagnostics import MAX_DIAGNOSTICS, MAX_MESSAGE_CHARS, diagnostics_of

OUTPUTS = sorted((Path(__file__).parent / "outputs").glob("said_by_*.txt"))
#: Files that the recorded outputs name and that must be there to be found.
FILES = ("gomod/sub/sub_test.go", "gomod/main.go", "crate/src/lib.rs", "crate2/src/lib.rs", "c.js")


def shown(found: Diagnostic) -> str:
    place = f"{found.file}:{found.line or ''}:{found.column or ''}"
    return f"{place} {found.severity} {found.code or '-'} {found.message}"


def read(text: str, folder: str = "/w", root: str = "/w") -> list[str]:
    found, left_out = diagnostics_of(text, folder, root)
    assert left_out == 0
    return [shown(each) for each in found]


@pytest.mark.parametrize("recorded", OUTPUTS, ids=lambda path: path.stem)
def test_what_was_recorded_is_read(recorded: Path, tmp_path: Path) -> None:
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    output, _, expected = recorded.read_text().partition("==== diagnostics\n")
    first, _, output = output.partition("\n")
    folder = tmp_path / first.removeprefix("folder: ")
    assert read(output.replace("WORKSPACE", str(tmp_path)), str(folder), str(tmp_path)) == expected.splitlines()
    assert expected


def test_there_are_recorded_outputs_of_all_that_the_docs_name() -> None:
    tools = {path.stem.removeprefix("said_by_").partition("_")[0] for path in OUTPUTS}
    assert {"cargo", "tsc", "mypy", "ruff", "pytest", "go", "gcc", "javac", "eslint", "ld", "unittest"} <= tools


#: Forms of which there was nothing to record.
WRITTEN = {
    "flake8": ("a.py:1:1: W605 invalid escape", "a.py:1:1 warning W605 invalid escape"),
    "pylint": (
        "a.py:1:0: C0114: Missing docstring (missing-docstring)",
        "a.py:1:1 warning C0114 Missing docstring (missing-docstring)",
    ),
    "pyright": ("  /w/a.py:3:5 - error: bad (reportFoo)", "a.py:3:5 error reportFoo bad"),
    "clang": ("x/a.c:3:5: fatal error: 'b.h' file not found", "x/a.c:3:5 error - 'b.h' file not found"),
    "maven": ("[ERROR] /w/A.java:[3,5] cannot find symbol", "A.java:3:5 error - cannot find symbol"),
    "go vet": ("vet: ./a.go:3:1: expected declaration", "a.go:3:1 error - expected declaration"),
    "rustc, old": ("warning: unused\n --> /w/src/a.rs:1:2", "src/a.rs:1:2 warning - unused"),
    "pytest, an exception of one's own": (
        "____ test_x ____\nE       lib.Odd: no\n\n/w/t.py:3: Odd\n",
        "t.py:3: error Odd lib.Odd: no",
    ),
    "pytest, a syntax error": (
        '____ ERROR collecting t.py ____\nE     File "/w/t.py", line 2\nE       def (\nE           ^\n'
        "E   SyntaxError: invalid syntax\n=== short test summary info ===\nERROR t.py\n",
        "t.py:2: error SyntaxError invalid syntax",
    ),
    "go test -v": (
        "=== RUN   TestA\n    a_test.go:3: only a log\n--- PASS: TestA (0.00s)\n"
        "=== RUN   TestB\n    a_test.go:9: wrong\n--- FAIL: TestB (0.00s)\nFAIL\nFAIL\tm\t0.01s\n",
        "a_test.go:9: error - wrong",
    ),
    "ruff, without a colon": (
        "B018 Found useless expression.\n  --> a.py:8:18",
        "a.py:8:18 error B018 Found useless expression.",
    ),
    "mypy --show-error-end": ("a.py:3:10:3:12: error: Bad type  [assignment]", "a.py:3:10 error assignment Bad type"),
    "pytest --tb=short, an exception of one's own": (
        "____ test_x ____\nt.py:14: in test_x\n    raise MyFail()\nE   t.MyFail: boom\n",
        "t.py:14: error - t.MyFail: boom",
    ),
    "pytest --tb=native": (
        '____ test_x ____\nTraceback (most recent call last):\n  File "/w/t.py", line 2, in test_x\n    f()\n'
        "KeyError: 'x'\n=== short test summary info ===\nFAILED t.py::test_x - KeyError: 'x'\n",
        "t.py:2: error KeyError 'x'",
    ),
    "pytest, a dash in a parameter": (
        "FAILED t.py::test_x[a - b] - ValueError: c - d",
        "t.py:: error ValueError test_x[a - b]: c - d",
    ),
    "an exception with any name": (
        '  File "/w/a.py", line 3, in f\n    run()\nsubprocess.TimeoutExpired: it took long\n',
        "a.py:3: error subprocess.TimeoutExpired it took long",
    ),
    "a warning of Python": ("/w/a.py:3: DeprecationWarning: old", "a.py:3: warning DeprecationWarning old"),
    "windows line ends": ("a.c:1:2: error: x\r\n", "a.c:1:2 error - x"),
    "colours": ("\x1b[1ma.c:1:2: \x1b[31merror:\x1b[0m x\x1b[K", "a.c:1:2 error - x"),
    "a link of the terminal": ("\x1b]8;;file:///w/a.c\x1b\\a.c:1:2: error: x\x1b]8;;\x1b\\", "a.c:1:2 error - x"),
}


@pytest.mark.parametrize("form", WRITTEN)
def test_other_forms(form: str) -> None:
    text, expected = WRITTEN[form]
    assert read(text) == [expected]


def test_each_exception_of_a_chain_is_told() -> None:
    text = (
        "____ test_x ____\nE       ZeroDivisionError: division by zero\n\nt.py:16: ZeroDivisionError\n\n"
        "E           ValueError: outer\n\nt.py:17: ValueError\n"
    )
    assert read(text) == ["t.py:16: error ZeroDivisionError division by zero", "t.py:17: error ValueError outer"]


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-29 12:30:45: error: the log of a server",
        "12:30:45: error: the same",
        "error: aborting due to 1 previous error",
        "a.py:12:def f(x):",
        "a.py:12: x = 1",
        "Compiling a v0.1.0 (/w/a)",
        "E   not of pytest",
        "    main.go:3: a log of a test that passed\nok  \tm\t0.01s",
        '  File "a.py", line 3\nnothing was raised',
        '  File "a.py", line 3\nlater\nValueError: not of these frames',
        "http://host:80: error of no file",
        "",
        "a.py:1: error: " + "x" * 3_000,
    ],
)
def test_what_is_no_diagnostic(text: str) -> None:
    assert read(text) == []


def test_they_are_bounded_and_the_errors_are_kept() -> None:
    lines = [f"a.c:{n}:1: {'error' if n > 900 else 'warning'}: it is {n}" for n in range(1, 1_000)]
    found, left_out = diagnostics_of("\n".join(lines * 2), "/w", "/w")
    assert len(found) == MAX_DIAGNOSTICS
    assert left_out == 999 - MAX_DIAGNOSTICS
    assert {each.severity for each in found} == {"error"}
    assert [each.line for each in found] == list(range(901, 901 + MAX_DIAGNOSTICS))
    (long,), _ = diagnostics_of("a.c:1:1: error: " + "x" * 1_500, "/w", "/w")
    assert len(long.message) == MAX_MESSAGE_CHARS


def test_files_are_relative_to_the_workspace_only_where_they_are_in_it(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "pkg" / "src").mkdir(parents=True)
    (work / "pkg" / "src" / "a.rs").touch()
    (work / "top.c").touch()
    names = (
        "src/a.rs",
        "../top.c",
        "top.c",
        "../../out.c",
        "/usr/include/x.h",
        f"{work}/top.c",
        f"{work}2/top.c",
        "gone.c",
    )
    text = "\n".join(f"{name}:1:1: error: {at}" for at, name in enumerate(names))
    found, _ = diagnostics_of(text, str(work / "pkg"), str(work))
    assert [each.file for each in found] == [
        "pkg/src/a.rs", "top.c", "top.c", "../../out.c", "/usr/include/x.h", "top.c", f"{work}2/top.c", "pkg/gone.c",
    ]  # fmt: skip


_PIECES = st.sampled_from(
    ["a.py", "/w/b.go", ":", "1", ": ", "error", "[E1]", "E   ", "___ t ___", " --> ", "panic: x", "\n", "\t", "\r",
     " ", "FAILED ", "::", " - ", "thread 'a' panicked at ", "--- FAIL: ", "    ", '  File "a", line 3',
     "ValueError", "(1,2)", "TS1", "\x1b[1m", "\x1b]", "\0", "é", "\ud800", "FAIL\tm/s", "assert ", "in f", "warning",
     "9" * 30]
)  # fmt: skip


@given(st.one_of(st.text(), st.lists(_PIECES, max_size=60).map("".join)))
def test_any_text_is_read_without_an_error(text: str) -> None:
    found, left_out = diagnostics_of(text, "/w/sub", "/w")
    assert len(found) <= MAX_DIAGNOSTICS
    assert left_out >= 0
    for each in found:
        assert each.file
        assert "\n" not in each.message
        assert each.severity in ("error", "warning", "note")


@pytest.mark.parametrize(
    "piece",
    ["a:", "a.py:1: ", "\x1b[", "\x1b]", "\x1b]8;;", "E   ", "_", " ", "a ", "/a.", "File ", "x", "\n", "a\n", ":\n",
     "a.py:1:1: error: x\n", "panic: x\n\t/a.go:1\n", "thread 'a' panicked at a/b.rs:1:1:\n", "error: ",
     "error: x\n --> a.c:1\n",     "FAILED a.py::b - c\n", "    a.go:1: x\n", "__ a __\nE   x\na.py:1: B\n",
     "(", "[", "a.b.", "1:1  error  x  y\n", "/a.js\n  1:1  error  x  y\n"],
)  # fmt: skip
def test_any_text_is_read_quickly(piece: str) -> None:
    """As much as is ever read, and a tenth of it: what is quadratic takes a hundred times as long."""

    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        begun = time.thread_time()
        diagnostics_of(text, "/w", "/w")
        return time.thread_time() - begun

    assert seconds(2 * READ_BYTES) < 40 * seconds(READ_BYTES // 5) + 0.5


@pytest.mark.timeout(240)  # beside a load of twelve
@pytest.mark.skipif(sys.platform != "linux", reason="commands run in processes of Linux")
def test_a_command_and_a_job_have_them(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "sub").mkdir(parents=True)
    (work / "sub" / "a.py").write_text("import os\n\nassert os.sep == 3, 'no'\n")
    (work / "long.sh").write_text(
        "for n in $(seq 3000); do echo line $n of many more; done\necho 'b.c:7:1: error: late'\n" * 2
    )
    python = f"{sys.executable} -I a.py"

    async def call() -> list[dict[str, object]]:
        settings = Settings(workspace=work, policy=Policy(trust="manual"), model="offline/x", state_dir=tmp_path)
        async with Runtime(settings, approve=lambda _: True) as runtime:

            async def answer(name: str, **given: object) -> dict[str, object]:
                result = await runtime.call_tool(name, given)
                assert result.ok, result.failure
                told: dict[str, object] = json.loads(result.content)
                return told

            found = [await answer("run_command", command=python, cwd="sub")]
            found.append(await answer("run_command", command="bash long.sh"))
            found.append(await answer("run_command", command="echo fine"))
            job = await answer("start_job", command=python, cwd="sub")
            ended = await answer("jobs", action="wait", id=job["id"])
            found.append(ended["jobs"][0])  # type: ignore[index]
            found.append(await answer("jobs", action="list"))
        return found

    raised, cut, fine, job, _ = asyncio.run(call())
    told = {"file": "sub/a.py", "line": 3, "severity": "error", "code": "AssertionError", "message": "no"}
    assert raised["diagnostics"] == job["diagnostics"] == [told]
    assert "diagnostics_left_out" not in raised
    assert cut["diagnostics"] == [{"file": "b.c", "line": 7, "column": 1, "severity": "error", "message": "late"}]
    assert "diagnostics" not in fine
