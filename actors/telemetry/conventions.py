"""callboard's values in the words of the OpenTelemetry GenAI conventions: names of spans and attributes.

As in opentelemetry-semantic-conventions 0.66b2 (semconv 1.44.0) and, since the GenAI part has moved there, the pages
`gen-ai-spans`, `gen-ai-agent-spans` and `gen-ai-metrics` of the repository open-telemetry/semantic-conventions-genai,
status Development. A test compares the names with the package. What they have no name for begins with `callboard.`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from callboard.actors.telemetry.message_json import instructions_json, messages_json, output_json, shown_text
from callboard.actors.telemetry.metrics import Labels, Metric
from callboard.protocol import events
from callboard.protocol.commands import WENT_WELL, AskApproval, CallModel, Finish, RunTool
from callboard.protocol.content import SystemMessage
from callboard.protocol.ids import Tag
from callboard.protocol.model import CallPurpose, Usage

Attributes = dict[str, str | int | float | bool | Sequence[str]]

# -- providers

#: The conventions' names of providers that are not ours (`gen_ai.provider.name`).
PROVIDER_NAMES: Final[Mapping[str, str]] = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}
#: Which of its APIs a provider is asked by.
_API_SUFFIXES: Final = ("-responses", "-chat", "-anthropic")


def provider_of(model: str) -> str:
    """`gen_ai.provider.name` of "provider/model"."""
    name = model.partition("/")[0]
    for suffix in _API_SUFFIXES:
        name = name.removesuffix(suffix)
    return PROVIDER_NAMES.get(name, name)


def model_of(model: str) -> str:
    """`gen_ai.request.model` of "provider/model"."""
    return model.partition("/")[2] or model


def server_attributes(address: str) -> Attributes:
    """Of the URL at which a provider is asked."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        return {}
    if not host:
        return {}
    return {"server.address": host, "server.port": port or (80 if parts.scheme == "http" else 443)}


# -- metrics

#: What labels of the metrics named gen_ai.* are called in the conventions; the model is split in two.
_LABEL_ATTRIBUTES: Final[Mapping[str, str]] = {
    "error": "error.type",
    "token": "gen_ai.token.type",
    "tool": "gen_ai.tool.name",
}
_OPERATIONS: Final[Mapping[str, str]] = {"gen_ai.client.": "chat"}


def metric_attributes(metric: Metric, labels: Labels) -> dict[str, str]:
    """One label set outside of callboard; "" where a label does not apply."""
    if not metric.name.startswith("gen_ai."):
        return dict(zip(metric.labels, labels, strict=True))
    found: dict[str, str] = {}
    for prefix, operation in _OPERATIONS.items():
        if metric.name.startswith(prefix):
            found["gen_ai.operation.name"] = operation
    for label, value in zip(metric.labels, labels, strict=True):
        if label == "model":
            found |= {"gen_ai.provider.name": provider_of(value), "gen_ai.request.model": model_of(value)}
        else:
            found[_LABEL_ATTRIBUTES[label]] = value
    return found


# -- spans


def request_ids(tag: Tag, metadata: Mapping[str, str]) -> Attributes:
    """callboard's own ids of a request, and what the host said of it: on each of its spans."""
    found: Attributes = {"callboard.request_id": tag.request_id, "callboard.parent_id": tag.parent_id}
    return found | {f"callboard.metadata.{name}": value for name, value in metadata.items()}


def request_attributes(model: str) -> Attributes:
    """Of a request as a whole."""
    return {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": provider_of(model),
        "gen_ai.request.model": model_of(model),
    }


def finish_attributes(finish: Finish) -> Attributes:
    """Of its end."""
    found: Attributes = {"callboard.outcome": finish.outcome.value}
    found |= _charge_attributes(finish.usage, finish.cost)
    if finish.outcome not in WENT_WELL:
        found["error.type"] = finish.outcome.value
    else:
        found["gen_ai.response.finish_reasons"] = (finish.finish_reason.value,)
    return found


def usage_attributes(usage: Usage) -> Attributes:
    """Tokens. The counts of all include those of the cache and of reasoning, as the conventions want it."""
    found: Attributes = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    further = {
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens + usage.cache_write_1h_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
    }
    return found | {name: count for name, count in further.items() if count}


def begin_of(command: CallModel | RunTool | AskApproval, log_content: bool) -> tuple[str, Attributes]:
    """The name of the span of a piece of work, and the attributes with which it begins."""
    match command:
        case CallModel():
            return f"chat {model_of(command.request.model)}", _chat_attributes(command, log_content)
        case RunTool():
            return f"execute_tool {command.name}", {
                "gen_ai.operation.name": "execute_tool",
                **({"callboard.rule": command.rule} if command.rule else {}),
                **_tool_attributes(command, log_content),
            }
        case AskApproval():
            return f"callboard.approval {command.name}", {
                "callboard.risk": command.risk.value,
                **_tool_attributes(command, log_content),
            }


def _tool_attributes(command: RunTool | AskApproval, log_content: bool) -> Attributes:
    found: Attributes = {
        "gen_ai.tool.name": command.name,
        "gen_ai.tool.call.id": command.tag.shown_call_id,
        "gen_ai.tool.type": "function",
    }
    if log_content:
        found["gen_ai.tool.call.arguments"] = shown_text(command.arguments)
    return found


def _chat_attributes(command: CallModel, log_content: bool) -> Attributes:
    request = command.request
    sampling = request.sampling
    optional = {
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.max_tokens": sampling.max_output_tokens,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.stop_sequences": sampling.stop or None,
        "gen_ai.output.type": "json" if request.response_schema is not None else None,
        "callboard.purpose": None if command.purpose is CallPurpose.TURN else command.purpose.value,
    }
    found: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider_of(request.model),
        "gen_ai.request.model": model_of(request.model),
        "gen_ai.request.stream": request.stream,
    }
    found |= {name: value for name, value in optional.items() if value is not None}
    if log_content:
        system = [message for message in request.messages if isinstance(message, SystemMessage)]
        others = [message for message in request.messages if not isinstance(message, SystemMessage)]
        found["gen_ai.input.messages"] = messages_json(others)
        if system:
            found["gen_ai.system_instructions"] = instructions_json(system)
    return found


def end_attributes(
    event: events.ModelResponded | events.ModelFailed | events.ModelLost | events.ToolCallEnd, log_content: bool
) -> Attributes:
    """What the end of a model call or tool call says, besides how it ended."""
    match event:
        case events.ModelResponded():
            return _answer_attributes(event, log_content)
        case events.ModelFailed():
            found: Attributes = {"callboard.requests": event.requests, "callboard.answered_by": event.model}
            if event.error.status:
                found["http.response.status_code"] = event.error.status
            if not event.is_free:
                found |= _charge_attributes(event.usage, event.cost)
            return found
        case events.ToolCallCompleted() if log_content:
            return {"gen_ai.tool.call.result": shown_text(event.content)}
    return {}


def _charge_attributes(usage: Usage | None, cost: float | None) -> Attributes:
    found = usage_attributes(usage) if usage is not None else {}
    return found if cost is None else found | {"callboard.cost_usd": cost}


def _answer_attributes(event: events.ModelResponded, log_content: bool) -> Attributes:
    response = event.response
    found: Attributes = {
        "gen_ai.response.finish_reasons": (response.finish_reason.value,),
        "callboard.requests": event.requests,
    }
    optional = {
        "callboard.answered_by": event.model,
        "gen_ai.response.model": response.model,
        "gen_ai.response.id": response.response_id,
        "callboard.provider_request_id": response.provider_request_id,
        "callboard.service_tier": response.service_tier,
    }
    found |= {name: value for name, value in optional.items() if value}
    found |= _charge_attributes(response.usage, event.cost)
    if log_content:
        found["gen_ai.output.messages"] = output_json(response)
    return found
