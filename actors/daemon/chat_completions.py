"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from callboard.actors.daemon.api_errors import Api
from callboard.actors.daemon.body_models import parsed
from callboard.actors.daemon.chat_answers import ChatStream, whole_chat
from callboard.actors.daemon.chat_body import ChatBody, chat_question
from callboard.actors.daemon.client_answer import StatelessApi, WholeAnswer, answer
from callboard.actors.daemon.client_question import ClientQuestion
from callboard.actors.daemon.endpoint import Endpoint, HttpCall


def _stream(request_id: str, model: str, question: ClientQuestion) -> ChatStream:
    return ChatStream(request_id, model, includes_usage=question.includes_usage)


def _whole(found: WholeAnswer) -> dict[str, object]:
    return whole_chat(
        found.request_id, found.model, found.pieces, found.reason, found.usage, found.about, found.citations
    )


CHAT: Final = StatelessApi(Api.OPENAI, _stream, _whole, b": waiting\n\n", "x-request-id")


async def chat_completions(call: HttpCall) -> Response:
    """Answers a body of Chat Completions, whole or streamed."""
    return await answer(call, CHAT, await parsed(chat_question, call.body))


ENDPOINTS: Final = (
    Endpoint(
        "POST",
        "/v1/chat/completions",
        chat_completions,
        api=Api.OPENAI,
        summary="Chat Completions: ask, whole or streamed",
        body=ChatBody,
        is_stream=True,
    ),
)
