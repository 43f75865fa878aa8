"""What was probably meant by a call that is wrong: by the names of other libraries, and by likeness. Loaded where one
was wrong, and only then; tests/actors/test_wrong_calls.py holds that the names of ours are names of ours.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Final

from callboard.actors.config_file import likest
from callboard.protocol.annotation_reading import signature_of
from callboard.protocol.errors import UsageError
from callboard.protocol.model import Sampling

#: Where a name belongs, and how it is written there. The first one that has it counts, behind the place itself.
SETTINGS: Final = tuple(
    """model fallback_models base_url api_key headers connections proxy verify workspace instructions max_steps
    token_budget cost_budget request_timeout_seconds approval_timeout_seconds sampling compaction max_attempts
    mcp_servers trust mode policy journal script provider_options prompt_cache parallel_tool_calls confine
    tool_environment embedding_model log_content catalog rate_limits""".split()  # noqa: SIM905 - to be read as a list
)
RUNTIME: Final = ("tools", "approve", "ask_user", "providers", "outputs")
QUESTION: Final = ("output", "conversation", "tool_choice", "metadata", "extra_body", "extra_headers", "timeout")
SAMPLING: Final = Sampling.__struct_fields__
_HOMES: Final[Mapping[str, tuple[Collection[str], str]]] = {
    "Sampling": (SAMPLING, "sampling=Sampling({}=...)"),
    "Settings": (SETTINGS, "Settings({}=...)"),
    "Runtime": (RUNTIME, "Runtime({}=...)"),
    "question": (QUESTION, "ask(..., {}=...)"),
}


def _each(names_of: Mapping[str, str]) -> Mapping[str, str]:
    """What is ours by each of the foreign names, which are given as one text of words."""
    return {foreign: ours for ours, names in names_of.items() for foreign in names.split()}


#: What other libraries call it. What has a bracket is no name, but what to write.
_ELSEWHERE: Final = _each(
    {
        "[text, Image(...)] as the prompt": "images image files attachments image_url image_urls documents media",
        "stream(...) or stream_sync(...)": "stream streaming on_token callbacks",
        "a ToolContext argument of the tool (or a closure)": "deps deps_type dependencies context run_context",
        'the provider is the first part of the model, "openai/..."': "provider llm_provider custom_llm_provider "
        "model_provider vendor",
        "api_key": "apikey key openai_api_key anthropic_api_key auth_token access_token secret",
        "approve": "approval on_approval human_in_the_loop confirm permission_mode can_use_tool",
        "base_url": "api_base endpoint server_url host url openai_api_base azure_endpoint address uri",
        "conversation": "messages history message_history chat_history thread thread_id session session_id memory "
        "conversation_id previous_response_id checkpointer",
        "fallback_models": "fallbacks fallback fallback_model",
        "headers": "default_headers",
        "instructions": "system system_prompt system_message system_instruction developer role persona prompt_template",
        "max_attempts": "max_retries retries num_retries retry",
        "max_output_tokens": "max_tokens max_completion_tokens max_new_tokens num_predict token_limit",
        "max_steps": "max_turns max_iterations max_iter recursion_limit max_tool_rounds max_rounds",
        "mcp_servers": "mcp servers",
        "model": "llm engine model_name deployment chat_model",
        "output": "response_format response_model output_type result_type output_schema schema text_format "
        "response_schema structured_output",
        "reasoning_effort": "reasoning effort thinking enable_thinking think",
        "request_timeout_seconds": "request_timeout deadline",
        "sampling": "model_settings generation_config model_kwargs params config",
        "stop": "stop_sequences stop_words",
        "tool_choice": "function_call tool_use tool_config",
        "tools": "functions toolsets toolset tool function_tools function",
    }
)
#: Likewise of a tool.
_OF_TOOLS: Final = _each(
    {
        "'name'": "name_override title",
        "'description'": "description_override doc docstring",
        "'timeout'": "timeout_seconds deadline max_seconds",
        "'needs_approval'": "requires_approval approval human_in_the_loop confirm",
        'effect="repeat"': "retries max_retries retry idempotent",
        "the schema is made of the function's signature and docstring": "args_schema parameters schema "
        "input_schema params_json_schema strict strict_mode return_direct model",
        "'concurrency'": "max_concurrency parallel",
        "'isolation'": "sandbox process thread",
        "'risk'": "readonly read_only destructive",
    }
)
#: Methods of other libraries' objects.
_METHODS: Final = _each(
    {
        "ask(...)": "run invoke ainvoke chat complete completion completions generate agenerate arun prompt query "
        "responses messages send acomplete achat create",
        "ask_sync(...)": "run_sync call kickoff predict",
        "stream(...)": "run_stream astream stream_events run_streamed iter",
        "stop()": "close aclose shutdown disconnect exit",
        "start()": "open connect run_forever",
        "the tools are given when it is made: Runtime(tools=[...])": "add_tool register tool_plain register_tool "
        "bind_tools with_tools",
        "the conversation goes with the question: ask(..., conversation=Conversation()); one that a journal has "
        "kept is runtime.journal.conversation(id)": "conversation history memory chat_history conversations resume "
        "get_conversation load_conversation",
        "the call of a tool is awaited: await runtime.call_tool(...)": "call_tool_sync",
        "call_tool(...)": "run_tool execute invoke_tool",
        "settings.model": "model",
    }
)
#: What other libraries' answers have.
_OF_REPLIES: Final = _each(
    {
        "text": "content choices message output_text answer response completion",
        "output": "final_output data result parsed output_parsed value object structured_output json dict model_dump",
        "messages": "all_messages new_messages history to_input_list new_items",
        "usage": "tokens token_usage usage_metadata",
        "outcome": "status state stop_reason",
        "failures": "error errors tool_errors",
        "steps": "tool_calls trace intermediate_steps",
        "request_id": "id response_id",
    }
)
#: Of a list in a message.
_MAX_LIST_CHARS: Final = 160
#: Likeness from which on a name of another place is meant.
_CLOSE: Final = 0.75


class NoAttribute(UsageError, AttributeError):
    """There is no such name; `hasattr` hears that."""


def meant(name: str, place: str, known: Collection[str]) -> str:
    """The end of a message about a name that its place does not have: what was probably meant. "" for no guess.

    `place` is "question", "Settings" or "Runtime", and `known` are its names.
    """
    far = [each for each, _ in _HOMES.values()]
    found = (
        _written(_ELSEWHERE.get(name, name), place, known)
        or _written(_close(name, known, _CLOSE), place, known)
        or _written(_close(name, {*_ELSEWHERE, *(each for names in far for each in names)}, _CLOSE), place, known)
        or _written(_close(name, known, 0.6), place, known)
    )
    return _ending(found)


def _close(name: str, names: Collection[str], cutoff: float) -> str:
    found = likest(name, names, cutoff)
    return _ELSEWHERE.get(found, found)


def _written(name: str, place: str, known: Collection[str]) -> str:
    """How one writes it, from that place; "" where no place has it."""
    if "(" in name or " " in name:
        return name
    name = {"timeout": "request_timeout_seconds"}.get(name, name) if place in ("Settings", "Runtime") else name
    name = {"request_timeout_seconds": "timeout"}.get(name, name) if place == "question" else name
    if name in known:
        return repr(name)
    form = next((form for names, form in _HOMES.values() if name in names), "")
    if place == "Runtime" and (name in SETTINGS or name in SAMPLING):
        inner = f"sampling=Sampling({name}=...)" if name in SAMPLING else f"{name}=..."
        return f"Runtime(Settings({inner}))"
    return form.format(name)


def listed(names: Collection[str]) -> str:
    """The first of them, as many as a message should have."""
    text = ", ".join(names)
    return text if len(text) <= _MAX_LIST_CHARS else f"{text[:_MAX_LIST_CHARS].rpartition(',')[0]} ..."


def of_runtime(call: Callable[..., object], args: tuple[object, ...], options: Mapping[str, object]) -> UsageError:
    """Runtime(...) was given what it does not take."""
    known = tuple(signature_of(call).parameters)[1:]
    for name in options:
        if name not in known:
            return UsageError(
                f"Runtime takes no {name!r}{meant(name, 'Runtime', known) or f'; it takes {listed(known)}'}"
            )
    return UsageError(
        "Runtime takes settings and tools without their names, the rest by name: Runtime(settings, tools, approve=...)"
    )


def of_settings(call: Callable[..., object], args: tuple[object, ...], options: Mapping[str, object]) -> UsageError:
    """Settings(...) was given a value without its name."""
    given = args[1] if len(args) > 1 else None
    example = f'model="{given}"' if isinstance(given, str) and given.isprintable() and len(given) < 60 else "model=..."
    return UsageError(f"Settings takes its values by name: Settings({example})")


def of_question(call: Callable[..., object], args: tuple[object, ...], options: Mapping[str, object]) -> UsageError:
    """A question was asked without its prompt, or with more than that without a name."""
    of_method = next(iter(signature_of(call).parameters)) == "self"
    what = f"{'runtime.' if of_method else ''}{call.__name__}"
    if len(args) > 1 + of_method:
        return UsageError(
            f"{what} takes the prompt alone without a name; the rest by name: {what}(prompt, model=..., tools=[...])"
        )
    said = "; what was said before is conversation=Conversation(...)" if "messages" in options else ""
    return UsageError(f'{what} needs the prompt first: {what}("What is ...?"){said}')


def of_connection(call: Callable[..., object], args: tuple[object, ...], options: Mapping[str, object]) -> UsageError:
    """Connection(...) was given what it does not take."""
    known = tuple(signature_of(call).parameters)[1:]
    name = next((each for each in options if each not in known), "")
    return UsageError(
        f"Connection takes no {name!r}{meant(name, 'Connection', known) or f'; it takes {listed(known)}'}"
    )


def no_tool_option(name: str, known: Collection[str]) -> UsageError:
    """@tool(...) was given what it does not take."""
    close = likest(name, [*known, *_OF_TOOLS], _CLOSE)
    found = _OF_TOOLS.get(name) or _OF_TOOLS.get(close, repr(close) if close else "")
    return UsageError(
        f"@tool takes no {name!r}{f'; did you mean {found}?' if found else f'; it takes {listed(known)}'}"
    )


def _ending(found: str) -> str:
    """Of a message: what was meant, or how it is ("the ...")."""
    if not found:
        return ""
    return f"; {found}" if found.startswith("the ") else f"; did you mean {found}?"


def no_method(name: str, known: Collection[str]) -> NoAttribute:
    """A runtime was asked for what it does not have."""
    found = _METHODS.get(name) or likest(name, [each for each in known if not each.startswith("_")])
    found = found if found.startswith("the ") or not found else f"runtime.{found}"
    return NoAttribute(f"a Runtime has no {name!r}{_ending(found)}")


def no_part(name: str, known: Collection[str]) -> NoAttribute:
    """A reply was asked for what it does not have."""
    found = _OF_REPLIES.get(name) or likest(name, [each for each in known if not each.startswith("_")], _CLOSE)
    return NoAttribute(f"a Reply has no {name!r}{_ending(f'reply.{found}' if found else '')}")


def not_settings(given: object) -> UsageError:
    """In place of settings."""
    if isinstance(given, str):
        return UsageError(f"Runtime takes Settings first: Runtime(Settings(model={given[:60]!r}))")
    if isinstance(given, Mapping):
        return UsageError("Runtime takes Settings first, not a dict: Runtime(Settings(**values))")
    if isinstance(given, type):
        return UsageError(f"Runtime takes Settings first, not the class {given.__name__}: Runtime(Settings(...))")
    if callable(given) or isinstance(given, Collection):
        return UsageError(f"Runtime takes Settings first, not {_a(given)}; tools go by name: Runtime(tools=[...])")
    return UsageError(f"Runtime takes Settings first, not {_a(given)}: Runtime(Settings(model=...))")


def not_tools(given: object, of: str) -> UsageError:
    """In place of a list of tools."""
    name = getattr(given, "__name__", None) or getattr(given, "name", None)
    is_name = isinstance(given, str) and "names" in of
    example = repr(given[:60]) if isinstance(given, str) and is_name else name if isinstance(name, str) else "weather"
    return UsageError(f"tools must be a list of {of}, such as tools=[{example}], not {_a(given)}")


def not_a_tool(given: object) -> UsageError:
    """In place of one tool."""
    todo = "give a function, or one that is decorated with @tool"
    if inspect.iscoroutine(given):
        name = given.__name__
        given.close()  # nobody will await it
        return UsageError(
            f"{name}(...) was called, and a coroutine is not a tool; give a function itself: tools=[{name}]"
        )
    if isinstance(given, type):
        return UsageError(f"the class {given.__name__} is not a tool; {todo}, or a method of an object of it")
    if isinstance(given, Mapping):
        return UsageError(f"a dict is not a tool; {todo} (its schema is made of its signature), or a ClientTool")
    if isinstance(given, str | int | float | bool | list | tuple | None):
        shown = repr(given)[:60]
        return UsageError(
            f"{shown} is not a tool; {todo}, itself and not what it returns: tools=[weather], not [weather(...)]"
        )
    return UsageError(f"{repr(given)[:100]} is not a tool; {todo}, or one of its methods")


def not_callable(name: str, given: object) -> UsageError:
    """In place of a callback."""
    unasked = "; to run calls unasked, Settings(trust=...) or a Policy" if name == "approve" else ""
    return UsageError(f"{name} must be a function that is given the question, not {given!r:.60}{unasked}")


def not_an_output(given: object) -> UsageError:
    """In place of a type of answers."""
    if isinstance(given, Mapping):
        is_schema = isinstance(given.get("type", given.get("$schema")), str) or "properties" in given
        what = "a JSON Schema" if is_schema else "a dict"
        return UsageError(
            f"output: {what} is not a type; write output=json_schema({{...}}), or give a dataclass or TypedDict"
        )
    if isinstance(given, list | tuple) and len(given) == 1 and isinstance(given[0], type):
        return UsageError(f"output: a list of one type has no JSON Schema; write output=list[{given[0].__name__}]")
    if isinstance(given, str):
        text = f"{given[:60]} has no JSON Schema, being a text"
        return UsageError(f"output: {text}; give a type (dict, a dataclass ...) or json_schema({{...}})")
    kind, shown = type(given).__name__, repr(given)
    text = shown if len(shown) <= _MAX_LIST_CHARS // 2 else f"{shown[: _MAX_LIST_CHARS // 2]}..."
    return UsageError(f"output: {text} has no JSON Schema, being an object; give the class itself: output={kind}")


def not_a_prompt(given: object) -> str:
    """The end of a message about a prompt that is none: what to write for messages of an API."""
    if isinstance(given, Mapping) and {"role", "content"} & set(given):
        return "; a message is its text here, and what was said before conversation=Conversation(...)"
    return ""


def _a(value: object) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0].lower() in "aeio" else f"a {name}"
