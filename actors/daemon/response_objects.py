"""The response object (OpenAI, API reference, "The response object"; Open Responses: ResponseResource)."""

from __future__ import annotations

import time
from typing import Final

from callboard.actors.daemon.api_errors import ApiError
from callboard.actors.daemon.client_answer import about_request
from callboard.actors.daemon.responses_body import ResponsesBody
from callboard.actors.daemon.responses_stream import INCOMPLETE
from callboard.actors.requests.replies import Reply
from callboard.protocol.commands import Outcome
from callboard.protocol.masking import for_log
from callboard.protocol.model import Usage

Fields = dict[str, object]
#: Begins the ids of responses; the id of the request follows.
PREFIX: Final = "resp_"


def response_id(request_id: str) -> str:
    """The id by which clients know the request."""
    return PREFIX + request_id


def begun(read: ResponsesBody, model: str, request_id: str, created_at: float) -> Fields:
    """The object at its beginning: what was asked, with what holds where nothing was said."""
    text: Fields = {"format": {"type": "text"}}
    if read.text is not None:
        text |= read.text.model_dump(by_alias=True, exclude_none=True)
    if isinstance(form := text["format"], dict) and form["type"] == "json_schema":
        text["format"] = {"description": None, "strict": False, **form}
    reasoning = read.reasoning
    choice = read.tool_choice or "auto"
    return {
        "id": response_id(request_id),
        "object": "response",
        "created_at": int(created_at),
        "completed_at": None,
        "status": "queued" if read.background else "in_progress",
        "background": bool(read.background),
        "error": None,
        "incomplete_details": None,
        "instructions": read.instructions,
        "max_output_tokens": read.max_output_tokens,
        "max_tool_calls": read.max_tool_calls,
        "metadata": read.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": read.parallel_tool_calls is not False,
        "previous_response_id": read.previous_response_id,
        "prompt_cache_key": read.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.effort if reasoning is not None else None,
            "summary": reasoning.summary if reasoning is not None else None,
        },
        "safety_identifier": read.safety_identifier,
        "service_tier": read.service_tier or "default",
        "store": read.store is not False,
        "temperature": 1.0 if read.temperature is None else read.temperature,
        "text": text,
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "tools": [{"description": None, "parameters": None, "strict": None, **_tool} for _tool in _tools(read)],
        "top_logprobs": 0,
        "top_p": 1.0 if read.top_p is None else read.top_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "truncation": read.truncation or "disabled",
        "usage": None,
        "user": read.user,
    }


def _tools(read: ResponsesBody) -> list[Fields]:
    return [tool.model_dump(exclude_none=True) for tool in read.tools or ()]


def running(first: Fields) -> Fields:
    """The object while the request runs."""
    return {**first, "status": "in_progress"}


def ended(first: Fields, output: list[Fields], reply: Reply[object]) -> Fields:
    """The object of a request that has ended with this reply."""
    known: Fields = {
        **first,
        "output": output,
        "usage": None if reply.usage is None else usage_fields(reply.usage),
        "callboard": about_request(reply),
    }
    if reply.outcome not in (Outcome.ANSWERED, Outcome.CALLS_OUTSIDE):
        status = "cancelled" if reply.outcome is Outcome.CANCELLED else "failed"
        error = None if status == "cancelled" else {"code": "server_error", "message": for_log(reply.reason)}
        return {**known, "status": status, "error": error}
    if reply.finish_reason in INCOMPLETE:
        return {**known, "status": "incomplete", "incomplete_details": {"reason": INCOMPLETE[reply.finish_reason]}}
    return {**known, "status": "completed", "completed_at": int(time.time())}


#: The codes of errors in a response object (API reference, `error.code`): the others are "server_error".
_CODES: Final = {"provider_rate_limit": "rate_limit_exceeded", "invalid_request": "invalid_prompt"}


def failed(first: Fields, output: list[Fields], error: ApiError) -> Fields:
    """The object of a request that has ended with an error."""
    code = _CODES.get(error.code, "rate_limit_exceeded" if error.status == 429 else "server_error")
    return {**first, "status": "failed", "output": output, "error": {"code": code, "message": for_log(error.message)}}


def usage_fields(usage: Usage) -> Fields:
    """As the API writes what was used."""
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
