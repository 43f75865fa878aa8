"""callboard in programs of several kinds: scripts, threads, `python -c`, the interactive interpreter, trio, pytest."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess

import pytest
from support.host_programs import ASKS_THE_TOOL, EXAMPLES, SAYS_IT_RAINS, Stage, example, python
from support.shared_double import stall

#: Each test starts several programs, on a machine that may be busy with other tests.
pytestmark = pytest.mark.timeout(150)

ONE_LINE = "import callboard as c; r = c.Runtime().start(); print(r.ask_sync('Is it raining in Oslo?').text); r.stop()"
WITH_A_TOOL = """
from callboard import Runtime, tool
@tool
def weather(city: str) -> str:
    '''The weather.'''
    return f"It rains in {city}."
runtime = Runtime(tools=[weather]).start()
print(runtime.ask_sync("What is the weather in Oslo?").messages[2].content)
"""


@pytest.mark.parametrize("name", ["script.py", "background_thread.py"])
def test_a_program(stage: Stage, name: str) -> None:
    ran = stage.run(*python(example(name)))
    assert (ran.returncode, ran.stdout) == (0, "It rains in Oslo.\n")


def test_one_line(stage: Stage) -> None:
    stage.play(SAYS_IT_RAINS)
    ran = stage.run(*python("-c", ONE_LINE))
    assert (ran.returncode, ran.stdout) == (0, "It rains in Oslo.\n")


def test_python_c_with_a_tool_in_a_child_process(stage: Stage) -> None:
    ran = stage.run(*python("-c", WITH_A_TOOL + "runtime.stop()"))
    assert (ran.returncode, ran.stdout) == (0, "It rains in Oslo.\n")


def test_the_interactive_interpreter(stage: Stage) -> None:
    """What is typed line by line; the runtime is left running at its end."""
    with stage.started(*python("-q", "-i"), stdin=subprocess.PIPE) as program:
        assert program.process.stdin is not None
        program.process.stdin.write(WITH_A_TOOL.replace('."\nruntime', '."\n\nruntime').encode())
        program.process.stdin.close()
        assert program.wait() == 0
    assert "It rains in Oslo." in program.said()
    assert "Traceback" not in program.said()
    assert "dropped without stop()" in program.said()


DAEMON = (
    WITH_A_TOOL
    + """
import threading
begun = threading.Event()
def wait():
    begun.set()
    runtime.ask_sync("And in Bergen?")
threading.Thread(target=wait, daemon=True).start()
begun.wait()
"""
)


def test_a_daemon_thread_that_waits_for_an_answer_when_the_process_ends(stage: Stage) -> None:
    """The process ends at once, with all of its children; not at the deadline of the question."""
    stage.double.play([ASKS_THE_TOOL, SAYS_IT_RAINS, stall()])
    ran = stage.run(*python("-c", DAEMON))
    assert ran.returncode == 0
    assert "It rains in Oslo." in ran.stdout
    assert "Fatal" not in ran.stdout


def test_ctrl_c_ends_a_script_that_waits(stage: Stage) -> None:
    stage.play(stall())
    with stage.started(*python(example("script.py"))) as program:
        stage.double.wait_until(lambda traffic: len(traffic.requests) == 1)
        assert program.end(signal.SIGINT) == -signal.SIGINT
    assert "KeyboardInterrupt" in program.said()
    stage.wait_until_model_left()


def test_trio(stage: Stage) -> None:
    ran = stage.run(*python(example("under_trio.py")))
    assert (ran.returncode, ran.stdout) == (0, "It rains in Oslo.\n" * 3)


def test_trio_leaving_a_cancel_scope_cancels_the_request(stage: Stage) -> None:
    stage.the_tool_hangs()
    program = example("under_trio.py")
    (stage.folder / "impatient.py").write_text(
        "import sys, trio\n"
        f"sys.path.insert(0, {str(EXAMPLES)!r})\n"
        "import under_trio\n"
        "move_on_after = trio.move_on_after\n"
        "scopes = []\n"
        "def remembered(seconds):\n"
        "    scopes.append(move_on_after(seconds))\n"
        "    return scopes[-1]\n"
        "trio.move_on_after = remembered\n"
        "async def main():\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        nursery.start_soon(under_trio.main)\n"
        "        await trio.to_thread.run_sync(sys.stdin.readline)\n"
        "        scopes[0].cancel()\n"
        "trio.run(main)\n"
    )
    assert os.path.exists(program)
    with stage.started(*python("impatient.py"), stdin=subprocess.PIPE) as impatient:
        stage.weather.wait_until_asked(3)
        assert impatient.process.stdin is not None
        impatient.process.stdin.write(b"now\n")
        impatient.process.stdin.flush()
        stage.weather.wait_until_left(3)
        assert impatient.wait() == 0
    assert impatient.said() == "No answer within 20 s.\n"


def test_pytest_asyncio(stage: Stage) -> None:
    """A user's own tests, with warnings as errors."""
    for name in ("test_with_pytest_asyncio.py", "weather.py"):
        shutil.copy(example(name), stage.folder)
    (stage.folder / "pytest.ini").write_text(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\npythonpath = .\n"
    )
    ran = stage.run(*python("-m", "pytest", "-q", "-p", "no:cacheprovider"))
    assert ran.returncode == 0, ran.stdout
    assert re.search(r"^4 passed", ran.stdout, re.M), ran.stdout
