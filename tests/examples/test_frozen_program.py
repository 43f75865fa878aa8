"""callboard in a program frozen by PyInstaller: one that says so, and one that does not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.host_programs import EXAMPLES, Stage, python

#: What this environment has and a program does not need; looking through it would take minutes.
NOT_NEEDED = """
    IPython PIL _pytest anthropic apsw botocore callboard.actors.cli callboard.actors.testing
    callboard.protocol.testing celery cffi chardetng_py cryptography django google hf_xet httpx2 hypothesis jedi
    jsonschema keyring langchain matplotlib mcp mypy numpy onnxruntime openai opentelemetry pkg_resources
    prompt_toolkit psutil pycparser pytest quicktok rapidfuzz rich semble_grammars setuptools starlette tantivy tiktoken
    tkinter tokenizers tornado tree_sitter uvicorn yaml zmq
""".split()  # noqa: SIM905 - to be read as a list
#: The example itself, or without its first statement.
MAIN = """
import os
import callboard
if "FORGETFUL" in os.environ:
    callboard.freeze_support = lambda: None
from frozen_main import main
if __name__ == "__main__":
    main()
"""
#: Of one build: some 25 s CPU.
BUILD_SECONDS = 240
pytestmark = [pytest.mark.deep, pytest.mark.timeout(BUILD_SECONDS + 60)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The frozen program."""
    folder = tmp_path_factory.mktemp("frozen")
    (folder / "program.py").write_text(MAIN)
    excluded = [argument for name in NOT_NEEDED for argument in ("--exclude-module", name)]
    places = ["--paths", str(EXAMPLES), "--distpath", str(folder), "--workpath", str(folder / "build")]
    options = ["--onefile", "--log-level", "ERROR", "--specpath", str(folder), *places, *excluded]
    subprocess.run(
        python("-m", "PyInstaller", *options, str(folder / "program.py")), check=True, cwd=folder, timeout=BUILD_SECONDS
    )
    return folder / "program"


def test_a_frozen_program_runs_tools_in_child_processes(program: Path, stage: Stage) -> None:
    ran = stage.run(str(program))
    assert (ran.returncode, ran.stdout) == (0, "It rains in Oslo.\n")


def test_a_frozen_program_without_the_call_is_refused_and_starts_no_process(program: Path, stage: Stage) -> None:
    """It would have started itself again and again."""
    stage.variables["FORGETFUL"] = "1"
    ran = stage.run(str(program))
    assert "UsageError: tool weather cannot run: child processes of a frozen program need" in ran.stdout
    assert "`callboard.freeze_support()` as the first statement of its main module" in ran.stdout
    assert ran.returncode == 1
    assert stage.double.requests() == ()
