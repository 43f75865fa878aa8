"""What a type checker tells a user: wrong programs fail in mypy --strict, right ones (the README's too) pass it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import get_args

import pytest

from callboard.actors.tools import decorator
from callboard.protocol.tools import Isolation, Latency, Risk

ROOT = Path(__file__).resolve().parents[1]
START = "from pathlib import Path\nfrom callboard import *\n"
READERS = (
    "from callboard.protocol.masking import ForLog, ForModel, for_log, mask\n"
    "from callboard.protocol.readers import ForDecision, for_decision\n"
)

#: Program -> what mypy says of it.
WRONG = {
    'text: str = ask_sync("?", output=int).output': 'expression has type "int", variable has type "str"',
    'with Runtime() as runtime:\n    runtime.ask_sync("?", output=5)': "No overload variant of",
    'Output(mod="tool")': 'Unexpected keyword argument "mod" for "Output"',
    'Settings(modle="openai/gpt-5")': 'Unexpected keyword argument "modle" for "Settings"',
    'Settings(max_steps="many")': 'Argument "max_steps" to "Settings" has incompatible type "str"',
    'Settings(model=Path("x"))': 'Argument "model" to "Settings" has incompatible type "Path"',
    "Settings().max_steps = 3": 'Property "max_steps" defined in "Settings" is read-only',
    '@tool(risk="bogus")\ndef look() -> None: ...': 'No overload variant of "tool" matches argument type',
    '@tool(latency="slow")\ndef look() -> None: ...': 'No overload variant of "tool" matches argument type',
    '@tool(isolation="ray")\ndef look() -> None: ...': 'No overload variant of "tool" matches argument type',
    "@tool(retries=3)\ndef look() -> None: ...": 'Unexpected keyword argument "retries"',
    "@tool\ndef look(city: str) -> None: ...\nlook(3)": '"__call__" of "Tool" has incompatible type "int"',
    '@tool\ndef look(city: str) -> str: ...\nnumber: int = look("Oslo")': 'expression has type "str"',
    'Policy({"network": "ask"})': 'Dict entry 0 has incompatible type "str"',
    "Runtime(tools=[3])": "List item 0 has incompatible type",
    'ask_sync("?", modle="openai/gpt-5")': "No overload variant of",
    'ask_sync("?", timeout="5")': "No overload variant of",
    "ask_sync(3)": "No overload variant of",
    'number: int = Runtime().ask_sync("?").output': 'expression has type "str"',
    'text: str = Runtime().ask_sync("?", output=int).output': 'expression has type "int"',
    'Runtime().stream("?", tools=3)': "No overload variant of",
    'Runtime(providers={"mine": 3})': "Dict entry 0 has incompatible type",
    "OpenAIOptions(verbosity=3)": 'Argument "verbosity" to "OpenAIOptions" has incompatible type',
    'Connection(base_ur="http://h")': 'Unexpected keyword argument "base_ur" for "Connection"',
    # What a person decides on is never what was masked for others, and what goes to those is never what was not masked.
    f'{READERS}shown: ForDecision = for_decision(mask("x"))': 'type "None", variable has type "ForDecision"',
    f'{READERS}shown: ForDecision = for_decision(for_log("x"))': 'type "None", variable has type "ForDecision"',
    f'{READERS}shown: ForDecision = mask("x")': 'type "ForModel", variable has type "ForDecision"',
    f'{READERS}shown: ForLog = for_decision("x")': 'type "ForDecision", variable has type "ForLog"',
    f'{READERS}shown: ForModel = for_decision("x")': 'type "ForDecision", variable has type "ForModel"',
    f'{READERS}shown: ForLog = "x"': 'type "str", variable has type "ForLog"',
    f'{READERS}shown: ForDecision = "x"': 'type "str", variable has type "ForDecision"',
    "from callboard import Agent": 'Module "callboard" has no attribute "Agent"',
    "from callboard.actors import Agent": 'Module "callboard.actors" has no attribute "Agent"',
}
RIGHT = [
    "class Place:\n    name: str\n"
    "with Runtime() as runtime:\n"
    '    text: str = runtime.ask_sync("?").output\n'
    '    place: Place = runtime.ask_sync("?", output=Place).output\n'
    '    places: list[Place] = runtime.ask_sync("?", output=list[Place], max_steps=3).output\n'
    '    either: Place | int = runtime.ask_sync("?", output=Place | int).output\n'
    '    for item in runtime.stream_sync("?", output=Place):\n'
    "        if isinstance(item, Reply):\n"
    "            last: Place = item.output\n",
    "from typing import Annotated, Literal\n"
    "async def main(runtime: Runtime) -> None:\n"
    '    word: Literal["a", "b"] = (await runtime.ask("?", output=Literal["a", "b"])).output\n'
    '    number: int = (await runtime.ask("?", output=Annotated[int, Output(mode="tool", tries=5)])).output\n'
    '    async for item in runtime.stream("?", output=int):\n'
    "        if isinstance(item, PartialOutput):\n"
    "            print(item.value)\n"
    'one: int = ask_sync("?", output=int, settings=Settings()).output',
    'Settings(model="openai/gpt-5", api_key="key", workspace=Path("."), cost_budget=0.5)',
    "Settings(policy=Policy({Risk.NETWORK: Decision.ASK}))",
    "Policy({Risk.READ: Decision.ALLOW, Risk.UNDECLARED: {Origin.OWNER: Decision.ASK}})",
    '@tool(risk="undeclared")\ndef look() -> None: ...',
    "for offer in Runtime().tools(): print(offer.definition.name, offer.decision is Decision.DENY)",
    '@tool(risk="write", latency="long", isolation="process", reuse=True, timeout=5)\ndef look(city: str) -> int: ...\n'
    'number: int = look("Oslo")\nRuntime(tools=[look])',
    "@tool(risk=Risk.NETWORK)\nasync def look(city: str, context: ToolContext) -> str: ...\nRuntime(tools=[look])",
    'def look(city: str) -> int: ...\nRuntime(tools=[look])\nask_sync("?", tools=[look, "*"]).text',
    'number: int = ask_sync("?", output=int).output\n'
    'for event in stream_sync("?", output=int):\n    if isinstance(event, Reply): number = event.output',
    'for text in stream_sync("?", model="openai/gpt-5").texts(): print(text)',
    "def approve(question: AskApproval) -> bool: return question.risk is Risk.READ\nRuntime(approve=approve)",
    'options: AskOptions = {"model": "openai/gpt-5", "timeout": 5.0, "tools": ["look"]}\n'
    'text: str = Runtime().ask_sync("?", **options).output',
    'Runtime().ask_sync(["?", Image("image/png", "AA==")], sampling=Sampling(seed=3), tool_choice="required")',
    'Runtime().stream_sync("?", provider_options=[OpenAIOptions(user="u"), AnthropicOptions(thinking=2048)])',
    'def key() -> str: return "k"\nasync def later() -> str: return "k"\n'
    'Settings(api_key=key, connections={"groq": Connection(api_key=later, verify=Path("ca.pem"))}, proxy="")',
    "from collections.abc import AsyncIterator\n"
    "from callboard.protocol.model import Done, FinishReason, ModelRequest, StreamEvent\n"
    "class Mine:\n"
    '    name = "mine"\n'
    "    async def stream(self, request: ModelRequest) -> AsyncIterator[list[StreamEvent]]:\n"
    "        yield [Done(FinishReason.STOP)]\n"
    "    async def aclose(self) -> None: ...\n"
    'Runtime(Settings(model="mine/x"), providers={"mine": Mine()})',
    "async def main(runtime: Runtime) -> None:\n"
    '    reply: Reply = await runtime.ask("?")\n'
    "    cost: float | None = reply.cost\n"
    '    stream: Stream = runtime.stream("?")\n'
    "    async for event in stream:\n"
    "        if isinstance(event, ToolCallFailed): print(event.failure.code)\n",
]
README = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What mypy says of each program, by its file's name; of all in one run, which takes seconds."""
    folder = tmp_path_factory.mktemp("programs")
    programs = {"wrong": [START + each for each in WRONG], "right": [START + each for each in RIGHT], "readme": README}
    for kind, texts in programs.items():
        for number, text in enumerate(texts):
            (folder / f"{kind}_{number}.py").write_text(f"{text}\n")
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--allow-empty-bodies", "--hide-error-context", str(folder)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT / ".dev")},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode in (0, 1), ran.stderr + ran.stdout
    by_file: dict[str, list[str]] = defaultdict(list)
    for line in ran.stdout.splitlines()[:-1]:
        by_file[Path(line.partition(":")[0]).stem].append(line)
    assert not by_file.keys() - {f"{kind}_{n}" for kind, texts in programs.items() for n in range(len(texts))}, (
        ran.stdout
    )
    return {name: "\n".join(lines) for name, lines in by_file.items()}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", WRONG)
def test_a_wrong_program_fails(told: dict[str, str], program: str) -> None:
    assert WRONG[program] in told.get(f"wrong_{list(WRONG).index(program)}", "")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", RIGHT)
def test_a_right_program_passes(told: dict[str, str], program: str) -> None:
    assert told.get(f"right_{RIGHT.index(program)}", "") == ""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(len(README)))
def test_the_programs_of_the_readme_pass(told: dict[str, str], number: int) -> None:
    assert told.get(f"readme_{number}", "") == ""


def test_the_words_of_options_are_the_values_of_the_enums() -> None:
    assert get_args(decorator.RiskName) == tuple(Risk)
    assert get_args(decorator.LatencyName) == tuple(Latency)
    assert get_args(decorator.IsolationName) == tuple(Isolation)
