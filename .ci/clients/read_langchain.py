"""Reads a daemon's answers with LangChain: read_langchain.py URL TOKEN, with langchain-openai and langchain-anthropic.

What the scripted model says to which words: tests/support/answering_daemon.py. Prints a line for each check that
failed; exit status 1 where one did.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from langchain_anthropic import ChatAnthropic  # type: ignore[import-not-found]
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage  # type: ignore[import-not-found]
from langchain_core.tools import tool  # type: ignore[import-not-found]
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

URL, TOKEN = sys.argv[1:]
MODEL: Final = "scripted/model"
BOTH: Final = 'call [["weather", {"city": "Oslo"}], ["calendar", {"day": "Monday"}], ["calendar", {"day": "Tuesday"}]]'
RESULTS: Final = "rain in Oslo and busy on Monday and busy on Tuesday"


class Place(BaseModel):
    """A place."""

    city: str
    degrees: float


@tool  # type: ignore[untyped-decorator]  # where LangChain is not installed
def calendar(day: str) -> str:
    """What is on."""
    return f"busy on {day}"


def chat(token: str = TOKEN, **more: Any) -> Any:
    """A model behind Chat Completions."""
    return ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key=token, max_retries=0, stream_usage=True, **more)


def responses(token: str = TOKEN) -> Any:
    """One behind the Responses API."""
    return chat(token, use_responses_api=True)


def messages(token: str = TOKEN) -> Any:
    """One behind the Messages API."""
    return ChatAnthropic(model=MODEL, base_url=URL, api_key=token, max_retries=0, max_tokens=500)


def whole(made: Callable[..., Any]) -> None:
    """Whole answers, with and without thinking."""
    answer = made().invoke("hello")
    assert answer.text == "You said: hello", answer
    assert (answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"]) == (11, 7), answer
    assert made().invoke("think hello").text == "You said: hello"


def streamed(made: Callable[..., Any]) -> None:
    """The same, streamed."""
    for prompt in ("hello", "think hello"):
        answer = joined(made().stream(prompt))
        assert answer.text == "You said: hello", answer
        assert answer.usage_metadata["output_tokens"] == 7, answer


def joined(chunks: Iterator[Any]) -> Any:
    """The message that the chunks make."""
    found = next(chunks)
    for chunk in chunks:
        found += chunk
    return found


def tools(made: Callable[..., Any]) -> None:
    """Of the daemon and of the client in one turn, whole and streamed, and the results sent back."""
    model = made().bind_tools([calendar])
    for is_streamed in (False, True):
        said: AIMessage = joined(model.stream(BOTH)) if is_streamed else model.invoke(BOTH)
        calls = [call for call in said.tool_calls if call["name"] == "calendar"]
        assert [call["args"] for call in calls] == [{"day": "Monday"}, {"day": "Tuesday"}], said
        results = [ToolMessage(calendar.invoke(call["args"]), tool_call_id=call["id"]) for call in calls]
        history = [HumanMessage(BOTH), said, *results]
        again = joined(model.stream(history)) if is_streamed else model.invoke(history)
        assert RESULTS in again.text, again


def form(made: Callable[..., Any]) -> None:
    """Answers with a form, by both ways of asking for one."""
    for method in ("json_schema", "function_calling"):
        assert made().with_structured_output(Place, method=method).invoke("where?") == Place(city="Oslo", degrees=4.5)


def errors(made: Callable[..., Any]) -> None:
    """Errors have the status that their library makes of it."""
    for act, status in (
        (lambda: made("a-token-that-nobody-has-0123456789").invoke("hello"), 401),
        (lambda: made().bind(model="openai/gpt-9").invoke("hello"), 404),
        (lambda: made().invoke("fail rate_limited"), 429),
        (lambda: made().invoke("fail other"), 502),
    ):
        error = failure_of(act)
        assert getattr(error, "status_code", None) == status, f"{status}: {type(error).__name__}: {error}"


def broken_off(made: Callable[..., Any]) -> None:
    """A stream that fails at its end, or at its beginning."""
    for prompt, word in (("break so far", "broke off"), ("fail rate_limited", "rate_limited")):
        error = failure_of(partial(all_of, made, prompt))
        assert word in str(error), repr(error)


def all_of(made: Callable[..., Any], prompt: str) -> list[Any]:
    """The chunks of a streamed answer."""
    return list(made().stream(prompt))


def failure_of(act: Callable[[], object]) -> Exception:
    """What it raises, which must be something."""
    try:
        said = act()
    except Exception as error:  # noqa: BLE001 - each library's own
        return error
    raise AssertionError(f"answered {said}")


def main() -> int:
    """The exit status."""
    checks = [(made, check) for made in (chat, responses, messages) for check in CHECKS]
    failed = 0
    for made, check in checks:
        try:
            check(made)
        except Exception as error:  # noqa: BLE001 - the other checks are to be seen too
            failed += 1
            print(f"FAIL  langchain, {made.__name__}, {check.__name__}: {type(error).__name__}: {str(error)[:900]}")
    print(f"LangChain: {len(checks) - failed} of {len(checks)} checks passed")
    return 1 if failed else 0


CHECKS: Final = (whole, streamed, tools, form, errors, broken_off)

if __name__ == "__main__":
    sys.exit(main())
