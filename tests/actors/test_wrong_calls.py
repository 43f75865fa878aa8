"""What people write first, coming from elsewhere: each ends in one short sentence with what was probably meant.

From the OpenAI and Anthropic SDKs, the OpenAI Agents SDK, LangChain, pydantic-ai, llm, litellm, FastAPI and MCP.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from callboard import AskOptions, Connection, Conversation, Runtime, Sampling, Settings, UsageError, ask_sync, tool
from callboard.actors import wrong_calls
from callboard.actors.requests.replies import Reply
from callboard.actors.tools.decorator import as_tool
from callboard.providers.meant_model import meant_model
from callboard.providers.provider_registry import PROVIDERS, split_model

#: One sentence that one reads at once.
MAX_CHARS = 300
M = "scripted/x"
S = Settings(model=M)


def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Its name.
    """
    return city


async def forecast(city: str) -> str:
    """The forecast."""
    return city


class Weather:
    """A class."""

    def __init__(self, city: str) -> None:
        self.city = city


async def read(stream: Any) -> None:
    for _ in stream():
        pass


#: What is written, and what its message names.
CASES: dict[str, str] = {
    # Runtime(...)
    "Runtime([weather])": "Runtime(tools=",
    "Runtime(weather)": "Runtime(tools=",
    "Runtime([])": "Runtime(tools=",
    "Runtime('openai/gpt-5')": "Settings(model='openai/gpt-5')",
    "Runtime({'model': 'openai/gpt-5'})": "Settings(**",
    "Runtime(Settings)": "not the class Settings",
    "Runtime(None, weather)": "tools=[weather]",
    "Runtime(model='openai/gpt-5')": "Runtime(Settings(model=...))",
    "Runtime(api_key='k')": "Runtime(Settings(api_key=...))",
    "Runtime(base_url='http://h')": "Runtime(Settings(base_url=...))",
    "Runtime(instructions='x')": "Runtime(Settings(instructions=...))",
    "Runtime(system_prompt='x')": "Runtime(Settings(instructions=...))",
    "Runtime(temperature=1)": "Runtime(Settings(sampling=Sampling(temperature=...)))",
    "Runtime(max_turns=3)": "Runtime(Settings(max_steps=...))",
    "Runtime(tool=[weather])": "did you mean 'tools'",
    "Runtime(functions=[weather])": "did you mean 'tools'",
    "Runtime(mcp_servers={})": "Runtime(Settings(mcp_servers=...))",
    "Runtime(timeout=3)": "Runtime(Settings(request_timeout_seconds=...))",
    "Runtime(memory=[])": "ask(..., conversation=...)",
    "Runtime(output_type=dict)": "ask(..., output=...)",
    "Runtime(S, [weather], True)": "approve=",
    "Runtime(approve=True)": "must be a function",
    "Runtime(ask_user='yes')": "must be a function",
    "Runtime(providers=['openai'])": "by name",
    "Runtime(tools=weather)": "tools=[weather]",
    "Runtime(tools='weather')": "must be a list",
    "Runtime(tools={'weather': weather})": "must be a list",
    "Runtime(tools=['weather'])": "give a function",
    "Runtime(tools=[weather('Oslo')])": "not what it returns",
    "Runtime(tools=[forecast('Oslo')])": "tools=[forecast]",
    "Runtime(tools=[Weather])": "the class Weather",
    "Runtime(tools=[Weather('Oslo')])": "one of its methods",
    "Runtime(tools=[{'type': 'function', 'function': {'name': 'w'}}])": "its schema is made of its signature",
    "Runtime(tools=[None])": "give a function",
    "Runtime(tools=[lambda city: city])": "@tool(name=...)",
    # Settings(...)
    "Settings('openai/gpt-5')": 'Settings(model="openai/gpt-5")',
    "Settings(tools=[weather])": "Runtime(tools=...)",
    "Settings(model=None)": "or left out",
    "Settings(model='gpt-5')": '"openai/gpt-5"',
    "Settings(model='claude-sonnet-5-5')": '"anthropic/claude-sonnet-5-5"',
    "Settings(model='gemini-3.8-flash')": '"gemini/gemini-3.8-flash"',
    "Settings(model='openai:gpt-5')": '"openai/gpt-5"',
    "Settings(model='google-gla:gemini-3')": '"gemini/gemini-3"',
    "Settings(provider='openai')": "first part of the model",
    "Settings(temperature=0.2)": "sampling=Sampling(temperature=...)",
    "Settings(max_tokens=100)": "Sampling(max_output_tokens=...)",
    "Settings(system='x')": "did you mean 'instructions'",
    "Settings(timeout=10)": "did you mean 'request_timeout_seconds'",
    "Settings(api_base='http://h')": "did you mean 'base_url'",
    "Settings(apikey='k')": "did you mean 'api_key'",
    "Settings(max_turns=3)": "did you mean 'max_steps'",
    "Settings(max_retries=3)": "did you mean 'max_attempts'",
    "Settings(fallbacks=['x/y'])": "did you mean 'fallback_models'",
    "Settings(fallback_models='x/y')": "must be a list",
    "Settings(response_format={})": "ask(..., output=...)",
    "Settings(sampling={'temprature': 1})": "did you mean 'temperature'",
    "Settings(request_timeout_seconds='10s')": "valid number",
    # ask(...)
    "ask_sync('hi', model='openai:gpt-5')": "'openai/gpt-5'",
    "ask_sync('hi', model='opnai/gpt-5')": "'openai/gpt-5'",
    "ask_sync('hi', model='OpenAI/gpt-5')": "'openai/gpt-5'",
    "ask_sync('hi', model='gpt-5')": "'openai/gpt-5'",
    "ask_sync('hi', model='claude-sonnet-5-5')": "'anthropic/claude-sonnet-5-5'",
    "ask_sync('hi', model='google/gemini-3')": "'gemini/gemini-3'",
    "ask_sync('hi', model='vertex_ai/gemini-3')": "'vertex/gemini-3'",
    "ask_sync('hi', model='meta-llama/llama-3')": "'openrouter/meta-llama/llama-3'",
    "ask_sync('hi', model='nobody/x')": "known providers are: anthropic",
    "ask_sync('hi', model=None)": "provider/model",
    "ask_sync('hi', 'openai/gpt-5')": "model=...",
    "ask_sync('hi', model=M, temprature=1)": "Sampling(temperature=...)",
    "ask_sync('hi', model=M, temperature=1)": "Sampling(temperature=...)",
    "ask_sync('hi', model=M, max_tokens=5)": "Sampling(max_output_tokens=...)",
    "ask_sync('hi', model=M, stop=['x'])": "Sampling(stop=...)",
    "ask_sync('hi', model=M, reasoning_effort='high')": "Sampling(reasoning_effort=...)",
    "ask_sync('hi', model=M, sampling={'temperature': 1})": "Sampling(temperature=",
    "ask_sync('hi', model=M, system='x')": "did you mean 'instructions'",
    "ask_sync('hi', model=M, api_key='k')": "Settings(api_key=...)",
    "ask_sync('hi', model=M, api_base='http://h')": "Settings(base_url=...)",
    "ask_sync('hi', model=M, max_turns=3)": "did you mean 'max_steps'",
    "ask_sync('hi', model=M, stream=True)": "stream_sync",
    "ask_sync('hi', model=M, history=[])": "did you mean 'conversation'",
    "ask_sync('hi', model=M, message_history=[])": "did you mean 'conversation'",
    "ask_sync('hi', model=M, conversation=[])": "Conversation()",
    "ask_sync('hi', model=M, conversation=Conversation([{'role': 'user'}]))": "is a dict, not a Message",
    "ask_sync('hi', model=M, images=['x'])": "Image(...)",
    "ask_sync('hi', model=M, deps=3)": "ToolContext",
    "ask_sync('hi', model=M, settings='openai/gpt-5')": "Settings(model='openai/gpt-5')",
    "ask_sync('hi', model=M, settings={'model': M})": "Settings(**",
    "ask_sync(model=M)": "needs the prompt",
    "ask_sync(model=M, messages=[{'role': 'user', 'content': 'hi'}])": "conversation=Conversation(...)",
    "ask_sync([{'role': 'user', 'content': 'hi'}], model=M)": "conversation=Conversation(...)",
    "ask_sync({'role': 'user', 'content': 'hi'}, model=M)": "conversation=Conversation(...)",
    "ask_sync(None, model=M)": "must be a str",
    "ask_sync('hi', model=M, tools=weather)": "tools=[weather]",
    "ask_sync('hi', model=M, tools=[weather('Oslo')])": "neither called nor as a text",
    "ask_sync('hi', model=M, tools=['weather'])": "neither called nor as a text",
    "ask_sync('hi', model=M, tools=[Weather])": "the class Weather",
    "ask_sync('hi', model=M, tools=[forecast('Oslo')])": "tools=[forecast]",
    "ask_sync('hi', model=M, tools=None)": "must be a list",
    "ask_sync('hi', model=M, timeout='10s')": "in seconds",
    "ask_sync('hi', model=M, output={'type': 'object'})": "json_schema(",
    "ask_sync('hi', model=M, output={'city': str})": "json_schema(",
    "ask_sync('hi', model=M, output='json')": "json_schema(",
    "ask_sync('hi', model=M, output=Weather('x'))": "output=Weather",
    "ask_sync('hi', model=M, output=[int])": "output=list[int]",
    "ask_sync('hi', model=M, output=weather)": "is a function",
    "ask_sync('hi', model=M, output=Weather)": "a dataclass",
    "ask_sync('hi', model=M, response_format={'type': 'json_object'})": "did you mean 'output'",
    "ask_sync('hi', model=M, response_model=dict)": "did you mean 'output'",
    "ask_sync('hi', model=M, output_type=dict)": "did you mean 'output'",
    "ask_sync('hi', model=M, tool_choice={'type': 'function'})": "the name of a tool",
    "ask_sync('hi', model=M, provider_options={'top_k': 1})": "Options(...)",
    # A runtime, and what comes of it
    "r.run('hi')": "runtime.ask(...)",
    "r.chat.completions.create(model=M)": "runtime.ask(...)",
    "r.invoke('hi')": "runtime.ask(...)",
    "r.run_sync('hi')": "runtime.ask_sync(...)",
    "r.close()": "runtime.stop()",
    "r.add_tool(weather)": "Runtime(tools=[...])",
    "r.conversation": "conversation=Conversation()",
    "r.history": "runtime.journal.conversation(id)",
    "r.resume('c1')": "runtime.journal.conversation(id)",
    "r.load_conversation('c1')": "runtime.journal.conversation(id)",
    "Conversation('c1')": "runtime.journal.conversation(id)",
    "ask_sync('hi', model=M, conversation='c1')": "runtime.journal.conversation(id)",
    "r.call_tool_sync('weather')": "await runtime.call_tool(",
    "r.aks('hi')": "runtime.ask",
    "asyncio.run(r.ask('hi', M))": "model=...",
    "asyncio.run(r.ask(messages=[]))": "conversation=Conversation(...)",
    "asyncio.run(read(lambda: r.stream('hi')))": "async for",
    "r.stream('hi')": "event loop",
    "asyncio.run(awaited(r))": "await",
    "Runtime(S).ask_sync('hi')": "with Runtime(",
    "asyncio.run(Runtime(S).ask('hi'))": "with Runtime(",
    "asyncio.run(r.call_tool('weather', city='Oslo'))": 'arguments: {"city": ...}',
    "asyncio.run(r.call_tool(weather, {'city': 'Oslo'}))": 'write "weather"',
    "r.ask_sync('hi').content": "reply.text",
    "r.ask_sync('hi').choices[0].message": "reply.text",
    "r.ask_sync('hi').final_output": "reply.output",
    "r.ask_sync('hi').json()": "reply.output",
    "r.ask_sync('hi').error": "reply.failures",
    "r.ask_sync('hi').tokens": "reply.usage",
    "r.ask_sync('hi').colour": "a Reply has no 'colour'",
    "r.tool(weather)": "Runtime(tools=[...])",
    # tool(...) and Connection(...)
    "tool(name_override='x')(weather)": "did you mean 'name'",
    "tool(retries=3)(weather)": 'effect="repeat"',
    "tool(args_schema=dict)(weather)": "signature",
    "tool(requires_approval=True)(weather)": "did you mean 'needs_approval'",
    "tool(timeout_seconds=3)(weather)": "did you mean 'timeout'",
    "tool(timout=3)(weather)": "did you mean 'timeout'",
    "tool(colour=3)(weather)": "it takes name, description",
    "tool(timeout='10s')(weather)": "number of seconds",
    "tool('weather')(weather)": "needs a function",
    "tool(Weather)": "needs a function",
    "Connection(url='http://h')": "did you mean 'base_url'",
    "Connection(apikey='k')": "did you mean 'api_key'",
}


#: Used by CASES.
_ = asyncio, ask_sync, Connection, Conversation


async def awaited(runtime: Any) -> None:
    await runtime.ask_sync("hi")


@pytest.fixture(scope="module")
def names() -> Iterator[dict[str, Any]]:
    kept = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith("CALLBOARD_")}
    with Runtime(S, tools=[as_tool(weather)]) as r:
        yield {**globals(), "r": r}
    os.environ.update(kept)


@pytest.mark.parametrize("written", CASES)
def test_one_sentence_says_what_was_meant(names: dict[str, Any], written: str) -> None:
    with pytest.raises((UsageError, TypeError)) as caught:
        eval(written, names)
    said = str(caught.value)
    assert CASES[written] in said, said
    assert len(said) < MAX_CHARS, said
    assert "\n" not in said


def test_the_table_is_long_enough() -> None:
    assert len(CASES) >= 60


def test_hasattr_and_dunders_are_as_of_any_object(names: dict[str, Any]) -> None:
    runtime, reply = names["r"], names["r"].ask_sync("hi")
    for each in (runtime, reply):
        assert not hasattr(each, "run")
        assert not hasattr(each, "_repr_html_")
        with pytest.raises(AttributeError, match="object has no attribute '_secret'"):
            each._secret  # noqa: B018 - to be read
    assert getattr(runtime, "chat", None) is None


def test_what_a_function_raises_itself_stays_what_it_is(names: dict[str, Any]) -> None:
    def tools() -> Any:
        yield weather
        raise TypeError("of the user's own")

    with pytest.raises(TypeError, match="of the user's own"):
        Runtime(tools=tools())


def test_asking_is_still_a_coroutine_function_with_its_signature() -> None:
    assert inspect.iscoroutinefunction(Runtime.ask)
    assert list(inspect.signature(Runtime.ask).parameters) == ["self", "prompt", "output", "options"]
    assert list(inspect.signature(Runtime).parameters)[:2] == ["settings", "tools"]


#: Names that other libraries give models, and what is meant by them.
MODELS = {
    "openai:gpt-5": "openai/gpt-5",
    "openai/gpt-5": "openai/gpt-5",
    "anthropic:claude-x": "anthropic/claude-x",
    "anthropc/claude-x": "anthropic/claude-x",
    "o3-mini": "openai/o3-mini",
    "models/gemini-3": "gemini/gemini-3",
    "us.anthropic.claude-x-v1:0": "bedrock/us.anthropic.claude-x-v1:0",
    "llama3:8b": "ollama/llama3:8b",
    "ollama:llama3:8b": "ollama/llama3:8b",
    "ollama_chat/qwen3": "ollama/qwen3",
    "together_ai/x": "together/x",
    "azure_openai:dep": "azure/dep",
    "google-vertex:gemini-3": "vertex/gemini-3",
    "grok-4": "xai/grok-4",
    "mistral-large-latest": "mistral/mistral-large-latest",
    "mine:big": "mine/big",
    "nobody/x": "",
    "nothing": "",
    "openai/": "",
    "": "",
    "/": "",
    ":": "",
}


@pytest.mark.parametrize(("given", "meant"), MODELS.items())
def test_a_model_is_guessed_by_the_names_of_other_libraries(given: str, meant: str) -> None:
    assert meant_model(given, (*PROVIDERS, "mine")) == meant


def test_what_is_guessed_is_a_model() -> None:
    for meant in filter(None, MODELS.values()):
        split_model(meant, ("mine",))


def test_names_of_ours_are_names_of_ours() -> None:
    runtime = set(inspect.signature(Runtime).parameters)
    assert set(wrong_calls.SETTINGS) <= set(Settings.model_fields)
    assert set(wrong_calls.RUNTIME) <= runtime
    assert set(wrong_calls.QUESTION) <= {*AskOptions.__annotations__, "output"}
    assert set(wrong_calls.SAMPLING) == set(Sampling.__struct_fields__)
    ours = {*Settings.model_fields, *runtime, *AskOptions.__annotations__, *wrong_calls.SAMPLING, "output"}
    homes = {*wrong_calls.SETTINGS, *wrong_calls.RUNTIME, *wrong_calls.QUESTION, *wrong_calls.SAMPLING}
    for foreign, name in wrong_calls._ELSEWHERE.items():
        assert name in homes or " " in name or "(" in name, name
        assert foreign not in ours, foreign
    tools = set(inspect.signature(tool).parameters)
    for foreign, name in wrong_calls._OF_TOOLS.items():
        assert foreign not in tools
        assert name.startswith("the ") or re.match(r"'?(\w+)", name)[1] in tools  # type: ignore[index]
    for foreign, name in wrong_calls._METHODS.items():
        assert not hasattr(Runtime, foreign)
        assert name.startswith("the ") or hasattr(Runtime(S), name.partition("(")[0].partition(".")[0])
    for foreign, name in wrong_calls._OF_REPLIES.items():
        assert not hasattr(Reply, foreign)
        assert hasattr(Reply, name)
