"""From a client's question to what a runtime is asked."""

from __future__ import annotations

from msgspec import Struct

from callboard.actors.daemon.client_question import ClientQuestion
from callboard.actors.daemon.endpoint import HttpCall
from callboard.actors.daemon.model_names import model_of
from callboard.actors.daemon.recorded_turns import requests_in, with_recorded_turns
from callboard.actors.daemon.tenants import Tenant
from callboard.actors.requests.asking import AskOptions, Prompt
from callboard.actors.requests.client_tools import CallResults, ClientTool
from callboard.actors.requests.conversation import Conversation
from callboard.protocol.content import Message, UserMessage
from callboard.protocol.tools import ToolDefinition


class AskedQuestion(Struct, frozen=True):
    """What a runtime is asked."""

    prompt: Prompt
    options: AskOptions
    """With everything but the form of the answer."""
    conversation: Conversation


async def asked_of(call: HttpCall, question: ClientQuestion, request_id: str) -> AskedQuestion:
    """The question as its tenant's runtime takes it. Raises ApiError for an unknown model."""
    model = model_of(call.daemon, call.tenant, question.model)
    messages = await with_own_turns(call.tenant, question.messages)
    last = messages[-1]
    is_asked = isinstance(last, UserMessage)
    conversation = Conversation(messages[:-1] if is_asked else messages)
    by_provider = question.only_for.get(model.partition("/")[0], question.only_for.get("", AskOptions()))
    options: AskOptions = {**question.options, **by_provider}
    options["model"] = model
    options["conversation"] = conversation
    options["request_id"] = request_id
    if question.instructions is not None:
        options["instructions"] = question.instructions
    if question.tools or question.runs_here is not None:
        options["tools"] = [*_names_here(call.tenant, question), *map(_client_tool, question.tools)]
    prompt = last.parts if isinstance(last, UserMessage) else CallResults()
    return AskedQuestion(prompt, options, conversation)


def _names_here(tenant: Tenant, question: ClientQuestion) -> list[str]:
    """The runtime's own tools for this question. Where a client's tool has the name of one, the client's is meant."""
    if question.runs_here is not None:
        return list(question.runs_here)
    theirs = {str(tool.name) for tool in question.tools}
    own = [str(offer.definition.name) for offer in tenant.runtime.tools()]
    return [name for name in own if name not in theirs] if theirs & set(own) else ["*"]


async def with_own_turns(tenant: Tenant, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages, with what the runtime has of the turns whose calls the client was given."""
    found = {each: await tenant.turns.find(tenant.runtime, each) for each in requests_in(messages)}
    known = {request_id: turn for request_id, turn in found.items() if turn is not None}
    return with_recorded_turns(messages, known) if known else messages


def _client_tool(tool: ToolDefinition) -> ClientTool:
    return ClientTool(tool.name, tool.description, tool.parameters, tool.strict, tool.deferred)
