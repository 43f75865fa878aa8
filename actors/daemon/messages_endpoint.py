"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from callboard.actors.daemon.api_errors import Api, json_response
from callboard.actors.daemon.body_models import parsed
from callboard.actors.daemon.client_answer import StatelessApi, WholeAnswer, answer
from callboard.actors.daemon.client_question import ClientQuestion
from callboard.actors.daemon.endpoint import Endpoint, HttpCall
from callboard.actors.daemon.messages_answers import PING, MessageStream, whole_message
from callboard.actors.daemon.messages_body import CountBody, MessagesBody, count_question, messages_question
from callboard.actors.daemon.model_names import model_of
from callboard.protocol.content import SystemMessage
from callboard.protocol.prompt_tokens import message_tokens, tools_tokens
from callboard.providers.tokenizers import counter_for

#: "overloaded_error" (Anthropic, API reference, "Errors").
OVERLOADED: Final = 529


def _stream(request_id: str, model: str, question: ClientQuestion) -> MessageStream:
    return MessageStream(request_id, model)


def _whole(found: WholeAnswer) -> dict[str, object]:
    return whole_message(found.request_id, found.model, found.pieces, found.reason, found.usage, found.about)


MESSAGES: Final = StatelessApi(Api.ANTHROPIC, _stream, _whole, PING, "request-id", OVERLOADED)


async def messages(call: HttpCall) -> Response:
    """Answers a body of the Messages API, whole or streamed."""
    return await answer(call, MESSAGES, await parsed(messages_question, call.body))


async def count_tokens(call: HttpCall) -> Response:
    """Tokens of a prompt by our own count: with the model's tokenizer where it is loaded, else estimated, rather too
    many than too few. The daemon's own tools are in it, as they are in the prompt."""
    question = await parsed(count_question, call.body)
    count = counter_for(model_of(call.daemon, call.tenant, question.model), may_load=False)
    told = [] if question.instructions is None else [SystemMessage(question.instructions)]
    theirs = {tool.name for tool in question.tools}
    here = [
        offer.definition
        for offer in call.tenant.runtime.tools()
        if offer.is_shown
        and offer.definition.name not in theirs
        and (question.runs_here is None or {"*", offer.definition.name} & set(question.runs_here))
    ]
    total = sum(message_tokens(each, count) for each in (*told, *question.messages))
    return json_response({"input_tokens": total + tools_tokens([*here, *question.tools], count)})


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/v1/messages",
        messages,
        api=Api.ANTHROPIC,
        summary="Messages: ask, whole or streamed",
        body=MessagesBody,
        is_stream=True,
    ),
    Endpoint(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        api=Api.ANTHROPIC,
        summary="Messages: how many tokens a prompt has, by our count",
        body=CountBody,
    ),
)
