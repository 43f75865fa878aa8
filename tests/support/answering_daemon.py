"""`callboard serve` before a scripted model that answers by what it is asked: run it with the arguments of `callboard`.

What the last user's message begins with decides: "call [[NAME, ARGUMENTS], ...]" asks for tools, "fail KIND" fails,
"wait" says nothing for a minute, "gate FILE" nothing until there is the file, "slow" a letter each half minute, "think"
thinks first, "see" names the parts of the message, "recall" repeats all that was said before, "short" is cut off at the
limit of its tokens. Anything else is answered with "You said: ...", and results of tools with "The tools said: ...".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from callboard.actors.cli import serve_command
from callboard.actors.cli.__main__ import main
from callboard.actors.daemon.daemon_settings import DaemonPlan, read_plan
from callboard.protocol.content import Message, Text, ToolMessage, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import Error, FinishReason, ModelRequest, ToolChoiceMode, Usage
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

#: Of each turn.
USAGE = Usage(11, 7, cached_tokens=2, reasoning_tokens=1)
#: A value of each type of JSON Schema.
VALUES: dict[str, Any] = {"string": "Oslo", "number": 4.5, "integer": 4, "boolean": True, "array": [], "null": None}


#: That of requests which name none.
MODEL = {"model": "scripted/model"}


def play(request: ModelRequest) -> ScriptedTurn:
    """The turn that answers this request."""
    last = [message for message in request.messages if isinstance(message, UserMessage | ToolMessage)][-1]
    if isinstance(last, ToolMessage):
        said = "The tools said: " + " and ".join(_results(request.messages))
        return ScriptedTurn(said, chunk_chars=5, usage=USAGE)
    if request.response_schema is not None:
        return ScriptedTurn(json.dumps(_value_of(request.response_schema)), usage=USAGE)
    if request.tool_choice.mode in (ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED):
        wanted = request.tool_choice.name or request.tools[-1].name
        chosen = next(tool for tool in request.tools if tool.name == wanted)
        return ScriptedTurn(calls=(ScriptedCall(chosen.name, _value_of(chosen.parameters)),), usage=USAGE)
    if "[1] user: say nothing" in last.text:  # a summary of that is asked for
        return ScriptedTurn(finish_reason=FinishReason.REFUSAL, usage=USAGE)
    return _told(last, request)


def _told(last: UserMessage, request: ModelRequest) -> ScriptedTurn:
    """The turn that the words of the last message ask for."""
    word, _, rest = last.text.partition(" ")
    match word:
        case "call":
            calls = tuple(ScriptedCall(name, arguments) for name, arguments in json.loads(rest))
            return ScriptedTurn("One moment.", calls, thinking="Which tool?", chunk_chars=4, usage=USAGE)
        case "fail":
            return ScriptedTurn(error=Error(ErrorKind(rest), f"the model failed: {rest}"))
        case "break":
            return ScriptedTurn(rest, chunk_chars=3, error=Error(ErrorKind.OTHER, "the model broke off"))
        case "wait":
            return ScriptedTurn("late", first_delay_seconds=60.0)
        case "gate":  # closed until there is such a file
            return ScriptedTurn("through", first_delay_seconds=0.0 if Path(rest).exists() else 600.0, usage=USAGE)
        case "slow":
            return ScriptedTurn(rest, chunk_chars=1, delay_seconds=30.0)
        case "think":
            return ScriptedTurn(f"You said: {rest}", thinking="Let me think.", chunk_chars=4, usage=USAGE)
        case "short":
            return ScriptedTurn(f"You said: {rest}", chunk_chars=4, usage=USAGE, finish_reason=FinishReason.LENGTH)
        case "recall":
            return ScriptedTurn("\n".join(_texts(request.messages[:-1])), usage=USAGE)
        case "see":
            seen = [type(part).__name__ for part in last.parts if not isinstance(part, Text)]
            return ScriptedTurn(f"I see: {', '.join(seen)}", usage=USAGE)
    thinking = "Let me see." if request.sampling.reasoning_effort else ""
    return ScriptedTurn(f"You said: {last.text}", thinking=thinking, chunk_chars=4, usage=USAGE)


def _value_of(schema: Any) -> Any:
    """One that fits the simple schemas of these tests."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type", "object")
    if kind == "object":
        return {name: _value_of(each) for name, each in schema.get("properties", {}).items()}
    return VALUES[kind]


def _texts(messages: tuple[Message, ...]) -> list[str]:
    return [message.content if isinstance(message, ToolMessage) else message.text for message in messages]


def _results(messages: tuple[Message, ...]) -> list[str]:
    """Of the last turn."""
    found: list[str] = []
    for message in reversed(messages):
        if not isinstance(message, ToolMessage):
            break
        found.append(message.content)
    return found[::-1]


def _with_script(*arguments: Any, given: Any = None, **more: Any) -> DaemonPlan:
    return read_plan(*arguments, given={"script": play, **MODEL, **(given or {})}, **more)


if __name__ == "__main__":
    if "--nameless" in sys.argv:  # clients name the model
        sys.argv.remove("--nameless")
        MODEL.clear()
    serve_command.read_plan = _with_script  # type: ignore[assignment]
    sys.exit(main())
