"""What the MCP conformance suite expects of a server, as a file of tools: `callboard mcp --tools` serves it.

The tools are callboard's, run under its rules. Resources, prompts and completions are those of a server of the SDK,
which callboard serves beside its tools. Names, texts and schemas are the suite's.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Annotated

from mcp.server.lowlevel import Server
from mcp.server.subscriptions import PromptsListChanged, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    AudioContent,
    BlobResourceContents,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    ContentBlock,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    EmbeddedResource,
    EmptyResult,
    GetPromptRequestParams,
    GetPromptResult,
    ImageContent,
    InputRequiredResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListRootsRequest,
    PaginatedRequestParams,
    Prompt,
    PromptArgument,
    PromptMessage,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    SamplingMessage,
    SubscribeRequestParams,
    TextContent,
    TextResourceContents,
    UnsubscribeRequestParams,
)
from msgspec import structs
from pydantic import Field

from callboard import ToolContext, ToolError, tool
from callboard.actors.mcp.callers import caller

#: One pixel, and a tenth of a second of silence.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=="
PROGRESS_PAUSE_SECONDS = 0.15


def form(message: str, **fields: object) -> ElicitRequest:
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(prompt: str, tokens: int = 100) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=TextContent(text=prompt))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=tokens))


TEXT = {"type": "string"}
BOOLEAN = {"type": "boolean"}
NAME = form("What is your name?", name=TEXT)
CONFIRM = form("Please confirm", ok=BOOLEAN)


def said(answer: object) -> object:
    assert isinstance(answer, ElicitResult)
    return answer.content


# -- results


@tool(risk="read")
def test_simple_text() -> str:
    """A text."""
    return "This is a simple text response for testing."


@tool(risk="read")
def test_image_content() -> ImageContent:
    """A picture."""
    return ImageContent(data=PNG, mime_type="image/png")


@tool(risk="read")
def test_audio_content() -> AudioContent:
    """A sound."""
    return AudioContent(data=WAV, mime_type="audio/wav")


@tool(risk="read")
def test_embedded_resource() -> EmbeddedResource:
    """A resource."""
    text = "This is an embedded resource content."
    found = TextResourceContents(uri="test://embedded-resource", mime_type="text/plain", text=text)
    return EmbeddedResource(resource=found)


@tool(risk="read")
def test_multiple_content_types() -> list[ContentBlock]:
    """A text, a picture and a resource."""
    text = '{"test":"data","value":123}'
    found = TextResourceContents(uri="test://mixed-content-resource", mime_type="application/json", text=text)
    return [
        TextContent(text="Multiple content types test:"),
        ImageContent(data=PNG, mime_type="image/png"),
        EmbeddedResource(resource=found),
    ]


@tool(risk="read")
def test_error_handling() -> str:
    """Fails."""
    raise ToolError("This tool intentionally returns an error for testing")


# -- while it runs


@tool(risk="read")
async def test_tool_with_logging() -> str:
    """Three log messages."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await caller().log("info", message)
        await asyncio.sleep(0.05)
    return "Logged three messages."


@tool(risk="read")
async def test_logging_tool() -> str:
    """A log message, where the client wants it."""
    await caller().log("info", "logged")
    return "Logged."


@tool(risk="read")
async def test_tool_with_progress(context: ToolContext) -> str:
    """Three notes of progress."""
    for fraction in (0.0, 0.5, 1.0):
        context.progress("", fraction)
        await asyncio.sleep(PROGRESS_PAUSE_SECONDS)
    return "Done."


# -- questions to the client


@tool(risk="read")
async def test_sampling(prompt: str) -> str:
    """Asks the client's model."""
    answer = (await caller().ask({"answer": sampling(prompt)}))["answer"]
    assert isinstance(answer, CreateMessageResult)
    assert isinstance(answer.content, TextContent)
    return f"LLM response: {answer.content.text}"


@tool(risk="read")
async def test_elicitation(message: str) -> str:
    """Asks the client's user."""
    asked = form(message, username={**TEXT, "description": "User's response"}, email=TEXT)
    answer = (await caller().ask({"answer": asked}))["answer"]
    assert isinstance(answer, ElicitResult)
    return f"User response: action={answer.action}, content={answer.content}"


async def completed(message: str, **fields: object) -> str:
    answer = await caller().elicit(message, {"type": "object", "properties": fields, "required": []})
    return f"Elicitation completed: action={answer.action}, content={answer.content}"


@tool(risk="read")
async def test_elicitation_sep1034_defaults() -> str:
    """Asks with defaults."""
    return await completed(
        "Please review",
        name={"type": "string", "default": "John Doe"},
        age={"type": "integer", "default": 30},
        score={"type": "number", "default": 95.5},
        status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        verified={"type": "boolean", "default": True},
    )


@tool(risk="read")
async def test_elicitation_sep1330_enums() -> str:
    """Asks for choices."""
    options = ["option1", "option2", "option3"]
    named = [{"const": f"value{n}", "title": f"{which} Option"} for n, which in enumerate(("First", "Second"), 1)]
    return await completed(
        "Please choose",
        untitledSingle={"type": "string", "enum": options},
        titledSingle={"type": "string", "oneOf": named},
        legacyEnum={"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
        untitledMulti={"type": "array", "items": {"type": "string", "enum": options}},
        titledMulti={"type": "array", "items": {"anyOf": named}},
    )


@tool(risk="read")
async def test_input_required_result_elicitation() -> str:
    """Asks for a name."""
    answer = said((await caller().ask({"user_name": NAME}))["user_name"])
    return f"Hello, {answer}!"


@tool(risk="read")
async def test_input_required_result_sampling() -> str:
    """Asks the client's model."""
    return f"It said: {await caller().ask({'capital_question': sampling('What is the capital of France?')})}"


@tool(risk="read")
async def test_input_required_result_list_roots() -> str:
    """Asks for the client's folders."""
    return f"Roots: {await caller().ask({'client_roots': ListRootsRequest()})}"


@tool(risk="read")
async def test_input_required_result_request_state() -> str:
    """Asks, and knows the state again."""
    return f"state-ok {said((await caller().ask({'confirm': CONFIRM}))['confirm'])}"


@tool(risk="read")
async def test_input_required_result_tampered_state() -> str:
    """Likewise."""
    return f"state-ok {said((await caller().ask({'confirm': CONFIRM}))['confirm'])}"


@tool(risk="read")
async def test_input_required_result_multiple_inputs() -> str:
    """Asks for three things at once."""
    asked = {"user_name": NAME, "greeting": sampling("Generate a greeting", 50), "client_roots": ListRootsRequest()}
    return f"Answers: {', '.join(await caller().ask(asked))}"


@tool(risk="read")
async def test_input_required_result_multi_round() -> str:
    """Asks for one thing after the other."""
    first = said((await caller().ask({"step1": form("Step 1: What is your name?", name=TEXT)}))["step1"])
    second = said((await caller().ask({"step2": form("Step 2: What is your favorite color?", color=TEXT)}))["step2"])
    return f"{first} {second}"


@tool(risk="read")
async def test_input_required_result_capabilities() -> str:
    """Asks for what the client can do."""
    asked = {"elicitation": NAME, "sampling": sampling("Say hello"), "roots": ListRootsRequest()}
    known = {name: question for name, question in asked.items() if caller().can(name)}
    return f"Answers: {', '.join(await caller().ask(known))}"


@tool(risk="read")
async def test_missing_capability() -> str:
    """Needs a client that has a model."""
    return str(await caller().ask({"answer": sampling("Say hello")}))


@tool(risk="read")
async def test_streaming_elicitation() -> str:
    """Asks for a name."""
    return str(await caller().ask({"user_name": NAME}))


# -- changes


@tool(risk="read")
async def test_trigger_tool_change() -> str:
    """Says that the tools have changed."""
    await caller().announce(ToolsListChanged())
    return "Told."


@tool(risk="read")
async def test_trigger_prompt_change() -> str:
    """Says that the prompts have changed."""
    await caller().announce(PromptsListChanged())
    return "Told."


# -- schemas


@tool(risk="read")
def json_schema_2020_12_tool(
    name: str = "", address: dict[str, str] | None = None, contactMethod: str = "", phone: str = "", email: str = ""
) -> str:
    """Tool with JSON Schema 2020-12 features."""
    return name


SCHEMA: dict[str, object] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {"street": TEXT, "city": TEXT}}},
    "properties": {
        "name": TEXT,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": TEXT,
        "email": TEXT,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
json_schema_2020_12_tool = dataclasses.replace(
    json_schema_2020_12_tool, definition=structs.replace(json_schema_2020_12_tool.definition, parameters=SCHEMA)
)


@tool(risk="read")
def test_custom_header(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    """Takes an argument that is in a header, too."""
    return region


# -- beside the tools


async def list_resources(context: object, params: PaginatedRequestParams | None) -> ListResourcesResult:
    texts = Resource(uri="test://static-text", name="Text", description="A text.", mime_type="text/plain")
    binary = Resource(uri="test://static-binary", name="Picture", description="A picture.", mime_type="image/png")
    return ListResourcesResult(resources=[texts, binary], ttl_ms=1_000, cache_scope="public")


async def list_templates(context: object, params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
    uri = "test://template/{id}/data"
    template = ResourceTemplate(uri_template=uri, name="Template", description="Any.", mime_type="application/json")
    return ListResourceTemplatesResult(resource_templates=[template], ttl_ms=1_000, cache_scope="public")


async def read_resource(context: object, params: ReadResourceRequestParams) -> ReadResourceResult:
    uri = params.uri
    found: TextResourceContents | BlobResourceContents
    if uri == "test://static-text":
        text = "This is the content of the static text resource."
        found = TextResourceContents(uri=uri, mime_type="text/plain", text=text)
    elif uri == "test://static-binary":
        found = BlobResourceContents(uri=uri, mime_type="image/png", blob=PNG)
    elif uri.startswith("test://template/") and uri.endswith("/data"):
        number = uri.removeprefix("test://template/").removesuffix("/data")
        text = f'{{"id":"{number}","templateTest":true,"data":"Data for ID: {number}"}}'
        found = TextResourceContents(uri=uri, mime_type="application/json", text=text)
    else:
        raise MCPError(INVALID_PARAMS, "Resource not found", {"uri": uri})
    return ReadResourceResult(contents=[found], ttl_ms=1_000, cache_scope="public")


async def subscribe(context: object, params: SubscribeRequestParams) -> EmptyResult:
    return EmptyResult()


async def unsubscribe(context: object, params: UnsubscribeRequestParams) -> EmptyResult:
    return EmptyResult()


def argument(name: str) -> PromptArgument:
    return PromptArgument(name=name, description=f"{name}.", required=True)


PROMPTS = [
    Prompt(name="test_simple_prompt", description="A simple prompt."),
    Prompt(name="test_prompt_with_arguments", description="With two.", arguments=[argument("arg1"), argument("arg2")]),
    Prompt(name="test_prompt_with_embedded_resource", description="A resource.", arguments=[argument("resourceUri")]),
    Prompt(name="test_prompt_with_image", description="A picture."),
    Prompt(name="test_input_required_result_prompt", description="Asks for a context."),
]


async def list_prompts(context: object, params: PaginatedRequestParams | None) -> ListPromptsResult:
    return ListPromptsResult(prompts=PROMPTS, ttl_ms=1_000, cache_scope="public")


def user(*content: ContentBlock) -> GetPromptResult:
    return GetPromptResult(messages=[PromptMessage(role="user", content=each) for each in content])


async def get_prompt(context: object, params: GetPromptRequestParams) -> GetPromptResult | InputRequiredResult:
    given = params.arguments or {}
    match params.name:
        case "test_simple_prompt":
            return user(TextContent(text="This is a simple prompt for testing."))
        case "test_prompt_with_arguments":
            text = f"Prompt with arguments: arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'"
            return user(TextContent(text=text))
        case "test_prompt_with_embedded_resource":
            text = "Embedded resource content for testing."
            found = TextResourceContents(uri=given["resourceUri"], mime_type="text/plain", text=text)
            return user(
                EmbeddedResource(resource=found), TextContent(text="Please process the embedded resource above.")
            )
        case "test_prompt_with_image":
            picture = ImageContent(data=PNG, mime_type="image/png")
            return user(picture, TextContent(text="Please analyze the image above."))
        case "test_input_required_result_prompt":
            answer = (params.input_responses or {}).get("user_context")
            if not isinstance(answer, ElicitResult):
                asked = form("What context should the prompt use?", context=TEXT)
                return InputRequiredResult(input_requests={"user_context": asked})
            return user(TextContent(text=f"In the context of {answer.content}"))
    raise MCPError(INVALID_PARAMS, "Prompt not found", {"name": params.name})


async def complete(context: object, params: CompleteRequestParams) -> CompleteResult:
    values = [word for word in ("paris", "park", "party") if word.startswith(params.argument.value)]
    return CompleteResult(completion=Completion(values=values, total=len(values), has_more=False))


server: Server[object] = Server(
    "conformance",
    on_list_resources=list_resources,
    on_list_resource_templates=list_templates,
    on_read_resource=read_resource,
    on_subscribe_resource=subscribe,
    on_unsubscribe_resource=unsubscribe,
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
    on_completion=complete,
)
