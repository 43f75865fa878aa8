"""The native API: what a tenant's journal has. Conversations, search, usage."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from callboard.actors.daemon.access_tokens import Scope
from callboard.actors.daemon.api_errors import ApiError, not_found
from callboard.actors.daemon.endpoint import Endpoint, HttpCall
from callboard.actors.daemon.native_answers import (
    ConversationRead,
    ConversationShown,
    ConversationsShown,
    Deleted,
    Forked,
    FoundShown,
    MessageShown,
    SearchShown,
)
from callboard.actors.daemon.native_bodies import ConversationsQuery, ForkConversation, SearchQuery, UsageQuery
from callboard.actors.daemon.native_io import answered, body_as, one_of_them, query_as, waited
from callboard.actors.daemon.system_answers import UsageShown
from callboard.actors.journal.journal_handle import JournalHandle
from callboard.protocol.errors import UsageError, said


def _journal(call: HttpCall) -> JournalHandle:
    """Raises ApiError where the tenant has none."""
    if call.tenant.runtime.settings.journal is None:
        raise ApiError(400, "no_journal", 'this tenant has no journal (journal = "off"): nothing is kept')
    return call.tenant.runtime.journal


async def list_conversations(call: HttpCall) -> Response:
    """Those with the newest question first."""
    query, journal = query_as(call, ConversationsQuery), _journal(call)
    found = await waited(lambda: journal.conversations(query.limit, text=query.text))
    return answered(ConversationsShown(conversations=[ConversationShown.of(each) for each in found]))


async def read_conversation(call: HttpCall) -> Response:
    """Its messages, up to the last request that has ended."""
    journal, conversation_id = _journal(call), call.path("conversation_id")

    def read() -> ConversationRead:
        try:
            with one_of_them():
                found = journal.conversation(journal.whole_conversation_id(conversation_id))
        except UsageError as error:
            raise _refused(error) from None
        pairs = zip(found.ids, found.messages, strict=False)
        return ConversationRead(id=found.id, messages=[MessageShown.of(own, each) for own, each in pairs])

    return answered(await waited(read))


async def delete_conversation(call: HttpCall) -> Response:
    """For good; only numbers are left of its requests."""
    journal, conversation_id = _journal(call), call.path("conversation_id")

    def delete() -> str:
        try:
            return journal.delete_conversation(conversation_id)
        except UsageError as error:
            raise _refused(error) from None

    return answered(Deleted(remark=await waited(delete)))


async def fork_conversation(call: HttpCall) -> Response:
    """A conversation of its own, with the messages up to one of this."""
    body, journal, conversation_id = body_as(call, ForkConversation), _journal(call), call.path("conversation_id")

    def fork() -> str:
        try:
            with one_of_them():
                whole = journal.whole_conversation_id(conversation_id)
            return journal.import_conversation(journal.conversation(whole, at=body.at).to_json())
        except UsageError as error:
            raise _refused(error) from None

    return answered(Forked(conversation_id=await waited(fork)), 201)


def _refused(error: UsageError) -> ApiError:
    """A request of it runs; else it is not there."""
    if "has not ended" in str(error):
        return ApiError(409, "conversation_is_busy", said(error))
    return not_found(said(error))


async def search(call: HttpCall) -> Response:
    """Messages in which all words occur."""
    query, journal = query_as(call, SearchQuery), _journal(call)
    found = await waited(lambda: journal.search(query.text, query.limit))
    return answered(SearchShown(found=[FoundShown.of(each) for each in found]))


async def usage(call: HttpCall) -> Response:
    """What requests used, in lines by day, model, tool and conversation."""
    query, journal = query_as(call, UsageQuery), _journal(call)
    by = tuple(dict.fromkeys(query.by.split(",")))
    return answered(UsageShown.of(await waited(lambda: journal.usage(by, since=query.since, until=query.until))))


_ONE: Final = "/api/conversations/{conversation_id}"
ENDPOINTS: Final = (
    Endpoint(
        "GET", "/api/conversations", list_conversations, summary="Saved conversations", query=ConversationsQuery,
        answer=ConversationsShown,
    ),
    Endpoint("GET", _ONE, read_conversation, summary="The messages of a conversation", answer=ConversationRead),
    Endpoint(
        "DELETE", _ONE, delete_conversation, scope=Scope.APPROVE, summary="Delete a conversation for good",
        answer=Deleted,
    ),
    Endpoint(
        "POST", f"{_ONE}/fork", fork_conversation, summary="Fork a conversation at a message", body=ForkConversation,
        answer=Forked, status=201, may_be_large=False,
    ),
    Endpoint("GET", "/api/search", search, summary="Search messages", query=SearchQuery, answer=SearchShown),
    Endpoint("GET", "/api/usage", usage, summary="Tokens and cost", query=UsageQuery, answer=UsageShown),
)  # fmt: skip
