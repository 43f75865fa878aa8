"""A body of the Responses API, read (OpenAI, API reference, "Create a model response"; Open Responses specification).

docs/responses_endpoint.md lists every field: taken, ignored, refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from callboard.actors.daemon.api_errors import bad_field
from callboard.actors.daemon.body_models import ApiBody, ModelField, RunTools, ToolNameField, read_body
from callboard.actors.daemon.client_question import AnswerFormat
from callboard.actors.requests.asking import AskOptions
from callboard.protocol.ids import ToolName
from callboard.protocol.limits import MAX_CALL_TOKENS
from callboard.protocol.model import Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.provider_options import OpenAIOptions
from callboard.protocol.tools import ToolDefinition


class _Function(ApiBody):
    type: Literal["function"]
    name: ToolNameField
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class _SearchTool(ApiBody):
    """The API's search for deferred tools: callboard searches by the provider's, or by its own."""

    type: Literal["tool_search"]
    execution: str | None = None


class _NamedTool(ApiBody):
    type: Literal["function"]
    name: str


class _AllowedTools(ApiBody):
    type: Literal["allowed_tools"]
    mode: Literal["none", "auto", "required"] = "auto"
    tools: list[_NamedTool] = Field(min_length=1, max_length=128)


class _AnyText(ApiBody):
    type: Literal["text"]


class _AnyObject(ApiBody):
    type: Literal["json_object"]


class _BySchema(ApiBody):
    type: Literal["json_schema"]
    name: str = ""
    description: str | None = None
    schema_: dict[str, object] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class _TextForm(ApiBody):
    format: Annotated[_AnyText | _AnyObject | _BySchema, Field(discriminator="type")] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class _Reasoning(ApiBody):
    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesBody(ApiBody):
    """What is read of a request. Fields that are not here are ignored, or refused by name (NOT_DONE)."""

    model: ModelField = None
    input: str | list[dict[str, object]]
    """Items: responses_input.py reads them."""
    instructions: str | None = None
    previous_response_id: str | None = Field(default=None, min_length=1)
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    tools: list[_Function | _SearchTool] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | _NamedTool | _AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    text: _TextForm | None = None
    reasoning: _Reasoning | None = None
    include: list[str] | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=MAX_CALL_TOKENS)
    max_tool_calls: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = Field(default=None, max_length=16)
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    top_logprobs: int | None = None
    conversation: object = None
    prompt: object = None
    callboard: RunTools | None = None


#: Fields that would change the answer and are not done here: what says so, by the field.
NOT_DONE: Final = {
    "conversation": "conversations are kept by their responses here: send previous_response_id",
    "prompt": "no templates of prompts are kept here: send instructions and input",
    "top_logprobs": "log probabilities are not given here; leave top_logprobs out",
}
#: What `include` may ask for: the rest is of tools that are not offered here.
ENCRYPTED_REASONING: Final = "reasoning.encrypted_content"
_LOG_PROBABILITIES: Final = "message.output_text.logprobs"
_USUAL_TIERS: Final = ("auto", "default")


def read_responses_body(body: bytes) -> ResponsesBody:
    """The body. Raises ApiError (400), naming the field."""
    read = read_body(ResponsesBody, body)
    for name, why in NOT_DONE.items():
        if getattr(read, name):
            raise bad_field(name, why)
    if _LOG_PROBABILITIES in (read.include or ()):
        raise bad_field("include", "log probabilities are not given here; leave them out of include")
    for place, tool in enumerate(read.tools or ()):
        if isinstance(tool, _SearchTool) and tool.execution not in (None, "server"):
            said = "deferred tools are searched for here, by their defer_loading; leave execution out, or send server"
            raise bad_field(f"tools.{place}.execution", f"tools.{place}.execution: {said}")
    if read.background and read.store is False:
        raise bad_field("background", "a response in the background must be stored: leave store out, or send true")
    return read


def tools_in(read: ResponsesBody) -> tuple[ToolDefinition, ...]:
    """The client's own tools that the model may call."""
    allowed = None
    if isinstance(read.tool_choice, _AllowedTools):
        allowed = {tool.name for tool in read.tool_choice.tools}
    tools = (each for each in read.tools or () if isinstance(each, _Function))
    return tuple(_tool(each) for each in tools if allowed is None or each.name in allowed)


def _tool(declared: _Function) -> ToolDefinition:
    parameters = declared.parameters or {"type": "object", "properties": {}}
    name, is_deferred = ToolName(declared.name), bool(declared.defer_loading)
    return ToolDefinition(name, declared.description or "", parameters, bool(declared.strict), is_deferred)


def format_in(read: ResponsesBody) -> AnswerFormat | None:
    """The form of the answer; None: any text."""
    match read.text.format if read.text is not None else None:
        case _BySchema() as given:
            return AnswerFormat(given.schema_ or {"type": "object"}, given.name)
        case _AnyObject():
            return AnswerFormat({"type": "object"})
    return None


def options_in(read: ResponsesBody) -> AskOptions:
    """What is said with the question for any model."""
    options = AskOptions(
        sampling=Sampling(
            temperature=read.temperature,
            top_p=read.top_p,
            max_output_tokens=read.max_output_tokens,
            reasoning_effort=read.reasoning.effort if read.reasoning is not None else None,
        )
    )
    if read.tool_choice is not None and (read.tools or read.tool_choice != "auto"):
        options["tool_choice"] = _choice(read.tool_choice)
    if read.parallel_tool_calls is not None and read.tools:
        options["parallel_tool_calls"] = read.parallel_tool_calls
    if read.metadata:
        options["metadata"] = read.metadata
    if read.service_tier and read.service_tier not in _USUAL_TIERS:
        options["service_tier"] = read.service_tier
    return options


def hints_in(read: ResponsesBody) -> Mapping[str, AskOptions]:
    """What only models of OpenAI take, by provider."""
    hints = OpenAIOptions(
        user=read.user,
        safety_identifier=read.safety_identifier,
        prompt_cache_key=read.prompt_cache_key,
        verbosity=read.text.verbosity if read.text is not None else None,
        reasoning_summary=read.reasoning.summary if read.reasoning is not None else None,
    )
    return {} if hints == OpenAIOptions() else {"openai": AskOptions(provider_options=hints)}


def _choice(given: str | _NamedTool | _AllowedTools) -> ToolChoice:
    if isinstance(given, _NamedTool):
        return ToolChoice(ToolChoiceMode.NAMED, ToolName(given.name))
    return ToolChoice(ToolChoiceMode(given.mode if isinstance(given, _AllowedTools) else given))
