"""callboard: a supervised actor runtime for LLM tool calls. This package is its front door: the names for programs.

- To run requests: `Runtime`, its `Settings`, and `AskOptions`, what one question may say. `ask_sync` and `stream_sync`
  ask one question in a runtime of its own, for scripts. A program frozen by PyInstaller calls `freeze_support` first.
- To ask: a prompt is text, or a list with `Image`, `Document`, `Audio` and `Video`. `Sampling` sets how the answer is
  drawn; `OpenAIOptions`, `AnthropicOptions`, `GeminiOptions`, `OpenRouterOptions` and `BedrockOptions` say what only
  one API has. A `Connection` says how one provider is reached. For an object instead of a text: `output=` with a type;
  `Output` beside it says how it is asked for, and a stream shows it as far as it is known, as `PartialOutput`;
  `json_schema` makes such a type of a JSON Schema.
- What comes of a request: a `Reply` with its `Outcome`, a `StepReport` for each model call and a `CallReport` for each
  tool call, or a `Stream` (`SyncStream` without an event loop) of events. A `Conversation` lasts over several requests;
  its `Compaction` keeps a long one within the model's window. The code in an answer is a `CodeFence` each, or a
  `MalformedFence`.
- `Runtime.start_request` begins a request that no one waits for; `Runtime.follow` gives a `Followed` for each of its
  items, to any number of readers, and ends with FollowerTooSlow for one that leaves too much unread.
- With a journal, `Settings(journal=...)`: `Runtime.open_requests` gives an `OpenRequest` for each that has not ended,
  with its `OpenState` and each `PendingCall`; `Runtime.result` the reply of any, also of an earlier process.
- What a runtime did: `Metrics`; `RequestLogFilter` adds the ids of a request to log records. What models cost and take:
  a `Catalog` of `ModelInfo` tells the `Prices` and windows of those that the price list does not know.
- To write tools: `tool` makes a `Tool` of a function, `ToolContext` tells it about its call, and a `ToolError` that it
  raises tells the model what went wrong. One that returns `Deferred` leaves its result to `Runtime.complete_call`.
  `Runtime.call_tool` runs one without a model and gives a `CallResult`. A `ClientTool` is run by the asker: its calls
  end a request, and `CallResults`, a `CallAnswer` each, are asked in place of a question.
  An `McpServer` among the settings brings the tools of another program.
- To decide what tools may do: a `Policy` is a table by `Risk`, `Trust` and where a path leads, each `Rule` of the owner
  and a `Mode`; each ends in a `Decision`, where tools of an `Origin` may be apart. An `approve` callback is given
  `AskApproval` and answers yes or no, or with an `Approval`. An `ask_user` callback is given a `UserQuestion` of the
  model's.
- To catch: `CallboardError` is the base of all errors. `UsageError`: an argument or a setting was wrong.
  `ModelCallFailed`: the model gave no answer; its `kind`, an `ErrorKind`, says why. `RequestEnded`: the request was
  cancelled, ran out of time or passed a limit. `RuntimeFailure`: its base, for other failures of callboard itself; an
  `OutcomeUnknown` among them is no refusal: what was asked for may still happen.
- To match in a stream: `TextDelta`, `PartialOutput`, `RunTool`, `ToolProgressed`, `ToolCallDeferred`,
  `ToolCallCompleted`, `ToolCallFailed`, and the `Reply` at its end. Less common events are in
  `callboard.protocol.model`, `.events` and `.commands`.

Everything else is imported from its own module. A name is loaded when it is first used: child processes import this
package too, and would start several times slower with HTTP clients and settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callboard.protocol.lazy_loading import lazy_names

if TYPE_CHECKING:
    from callboard.actors.builtins.asking_user import UserQuestion
    from callboard.actors.calls.approvals import Approval
    from callboard.actors.connection import Connection
    from callboard.actors.edits.proposals import Proposal, ProposalState
    from callboard.actors.mcp.mcp_servers import McpServer
    from callboard.actors.one_question import ask_sync, stream_sync
    from callboard.actors.processes.spawning import freeze_support
    from callboard.actors.requests.asking import AskOptions
    from callboard.actors.requests.client_tools import CallAnswer, CallResults, ClientTool
    from callboard.actors.requests.conversation import Conversation
    from callboard.actors.requests.direct_calls import CallResult
    from callboard.actors.requests.json_schema import json_schema
    from callboard.actors.requests.open_requests import OpenRequest, OpenState, PendingCall
    from callboard.actors.requests.outputs import Output
    from callboard.actors.requests.partial_outputs import PartialOutput
    from callboard.actors.requests.replies import ModelCallFailed, Reply, RequestEnded, Stream, SyncStream
    from callboard.actors.requests.request_feed import Followed, FollowerTooSlow
    from callboard.actors.runtime import Runtime
    from callboard.actors.settings import Settings
    from callboard.actors.telemetry.metrics import Metrics
    from callboard.actors.telemetry.request_log import RequestLogFilter
    from callboard.actors.tools.context import ToolContext
    from callboard.actors.tools.decorator import Tool, tool
    from callboard.actors.tools.progress import ToolProgressed
    from callboard.protocol.code_fences import CodeFence, MalformedFence
    from callboard.protocol.commands import AskApproval, Outcome, RunTool
    from callboard.protocol.compaction import Compaction
    from callboard.protocol.content import Audio, Document, Image, Video
    from callboard.protocol.errors import (
        CallboardError,
        ErrorKind,
        OutcomeUnknown,
        RuntimeFailure,
        ToolError,
        UsageError,
    )
    from callboard.protocol.events import ToolCallCompleted, ToolCallDeferred, ToolCallFailed
    from callboard.protocol.model import Sampling, TextDelta
    from callboard.protocol.policy import Mode, Policy, Rule, Trust
    from callboard.protocol.provider_options import (
        AnthropicOptions,
        BedrockOptions,
        GeminiOptions,
        OpenAIOptions,
        OpenRouterOptions,
    )
    from callboard.protocol.reports import CallReport, StepReport
    from callboard.protocol.tools import Decision, Deferred, Origin, Risk
    from callboard.providers.catalog import Catalog, ModelInfo, Prices

__version__ = "0.1.0"
__all__ = [
    "AnthropicOptions", "Approval", "AskApproval", "AskOptions", "Audio", "BedrockOptions", "CallAnswer", "CallReport",
    "CallResult", "CallResults", "CallboardError", "Catalog", "ClientTool", "CodeFence", "Compaction", "Connection",
    "Conversation", "Decision", "Deferred", "Document", "ErrorKind", "Followed", "FollowerTooSlow", "GeminiOptions",
    "Image", "MalformedFence", "McpServer", "Metrics", "Mode", "ModelCallFailed", "ModelInfo", "OpenAIOptions",
    "OpenRequest", "OpenRouterOptions", "OpenState", "Origin", "Outcome", "OutcomeUnknown", "Output", "PartialOutput",
    "PendingCall", "Policy", "Prices", "Proposal", "ProposalState", "Reply", "RequestEnded", "RequestLogFilter", "Risk",
    "Rule", "RunTool", "Runtime", "RuntimeFailure", "Sampling", "Settings", "StepReport", "Stream", "SyncStream",
    "TextDelta", "Tool", "ToolCallCompleted", "ToolCallDeferred", "ToolCallFailed", "ToolContext", "ToolError",
    "ToolProgressed", "Trust", "UsageError", "UserQuestion", "Video", "__version__", "ask_sync", "freeze_support",
    "json_schema", "stream_sync", "tool",
]  # fmt: skip

if not TYPE_CHECKING:  # a type checker that saw this function would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "callboard.actors.builtins.asking_user": ("UserQuestion",),
            "callboard.actors.calls.approvals": ("Approval",),
            "callboard.actors.connection": ("Connection",),
            "callboard.actors.edits.proposals": ("Proposal", "ProposalState"),
            "callboard.actors.mcp.mcp_servers": ("McpServer",),
            "callboard.actors.one_question": ("ask_sync", "stream_sync"),
            "callboard.actors.processes.spawning": ("freeze_support",),
            "callboard.actors.requests.asking": ("AskOptions",),
            "callboard.actors.requests.client_tools": ("CallAnswer", "CallResults", "ClientTool"),
            "callboard.actors.requests.conversation": ("Conversation",),
            "callboard.actors.requests.direct_calls": ("CallResult",),
            "callboard.actors.requests.json_schema": ("json_schema",),
            "callboard.actors.requests.open_requests": ("OpenRequest", "OpenState", "PendingCall"),
            "callboard.actors.requests.outputs": ("Output",),
            "callboard.actors.requests.partial_outputs": ("PartialOutput",),
            "callboard.actors.requests.replies": ("ModelCallFailed", "Reply", "RequestEnded", "Stream", "SyncStream"),
            "callboard.actors.requests.request_feed": ("Followed", "FollowerTooSlow"),
            "callboard.actors.runtime": ("Runtime",),
            "callboard.actors.settings": ("Settings",),
            "callboard.actors.telemetry.metrics": ("Metrics",),
            "callboard.actors.telemetry.request_log": ("RequestLogFilter",),
            "callboard.actors.tools.context": ("ToolContext",),
            "callboard.actors.tools.decorator": ("Tool", "tool"),
            "callboard.actors.tools.progress": ("ToolProgressed",),
            "callboard.protocol.code_fences": ("CodeFence", "MalformedFence"),
            "callboard.protocol.commands": ("AskApproval", "Outcome", "RunTool"),
            "callboard.protocol.compaction": ("Compaction",),
            "callboard.protocol.content": ("Audio", "Document", "Image", "Video"),
            "callboard.protocol.errors": (
                "CallboardError",
                "ErrorKind",
                "OutcomeUnknown",
                "RuntimeFailure",
                "ToolError",
                "UsageError",
            ),
            "callboard.protocol.events": ("ToolCallCompleted", "ToolCallDeferred", "ToolCallFailed"),
            "callboard.protocol.model": ("Sampling", "TextDelta"),
            "callboard.protocol.policy": ("Mode", "Policy", "Rule", "Trust"),
            "callboard.protocol.provider_options": (
                "AnthropicOptions",
                "BedrockOptions",
                "GeminiOptions",
                "OpenAIOptions",
                "OpenRouterOptions",
            ),
            "callboard.protocol.reports": ("CallReport", "StepReport"),
            "callboard.protocol.tools": ("Decision", "Deferred", "Origin", "Risk"),
            "callboard.providers.catalog": ("Catalog", "ModelInfo", "Prices"),
        },
    )
