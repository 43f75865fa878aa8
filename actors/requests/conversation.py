"""Conversation: what was said so far. It outlives its requests, and its process: `to_json` and `from_json`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import chain, count
from threading import Lock
from typing import Final, Protocol, Self

from msgspec.structs import replace

from callboard.actors.journal.journal_records import NewMessage
from callboard.actors.requests.client_tools import CallResults, check_goes_on, closed_turn, given_up, open_turn_faults
from callboard.protocol.codec import SavedConversation, check_types, decode_conversation, encode_conversation
from callboard.protocol.commands import OpenTurn
from callboard.protocol.compaction import Compacted, compacted_faults
from callboard.protocol.content import Message, SystemMessage, history_faults
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import MessageId, RequestId

#: Requests' messages are named after them; these are of a conversation that was begun with messages.
GIVEN: Final = "given"
_TAKEN: Final = "this conversation has a request running; await its end, or start another conversation"


class HeldAnswer(Protocol):
    """The answer for which a conversation is taken."""

    is_left: bool
    """Its asker waits no longer."""

    def wait_until_over(self) -> bool:
        """Block until it is there, a bounded time."""


class Conversation:
    """What was said so far. It only ever takes whole finished steps, so it stays legal for every provider (I2).

    One request at a time belongs to a conversation; the runtime refuses a second, unless the first was cancelled: then
    the second waits for its end. It keeps all messages, also those
    that a request with `Settings.compaction` leaves out of its prompts; what such requests have cleared or summarised
    is kept beside them, and the next one goes on with it.

    `Conversation(messages)` begins with messages of your own. Two conversations are equal when their messages, ids and
    summaries are.
    """

    __slots__ = (
        "_answer", "_compacted", "_holder", "_id", "_ids", "_in_journal", "_is_checked", "_journal", "_messages",
        "_name", "_open_turn", "_recorded", "_taken",
    )  # fmt: skip

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        if isinstance(messages, str):
            raise UsageError(
                "a Conversation begins with messages, not with a text; a kept one is runtime.journal.conversation(id)"
            )
        self._messages = tuple(messages)
        self._ids = tuple(MessageId(f"{GIVEN}/{number}") for number in range(1, len(self._messages) + 1))
        """At least one for each message: those of a step come a moment before its messages."""
        self._compacted = Compacted()
        self._open_turn: OpenTurn | None = None
        self._is_checked = not self._messages
        self._holder: RequestId | None = None
        """The request that runs."""
        self._name = ""
        """By which the messages of the request that runs are called; "" before the first of them."""
        self._recorded = 0
        """How many of them there are."""
        self._taken = Lock()
        self._answer: HeldAnswer | None = None
        """Of the request that runs."""
        self._id = ""
        self._journal = ""
        self._in_journal = 0
        """So many first messages are in the journal of that name."""

    @property
    def id(self) -> str:
        """By which a journal knows the conversation: no other has it. A fork has one of its own."""
        if not self._id:
            self._id = uuid.uuid4().hex
        return self._id

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, oldest first."""
        return self._messages

    @property
    def compacted(self) -> Compacted:
        """What requests with a compaction have cleared and summarised so far."""
        return self._compacted

    @property
    def open_turn(self) -> OpenTurn | None:
        """The turn with which the last request has ended where its calls are the asker's own to answer (ClientTool)."""
        return self._open_turn

    @property
    def ids(self) -> tuple[MessageId, ...]:
        """The id of each message, in their order: the parent of a message is the one before it.

        An id is unique in its conversation and never changes, and a fork has the same ones. The user's message of a
        request is "<request id>/user", which is the `parent_id` of its events; what follows is "<request id>/1", "/2"
        and so on. Messages that a conversation was begun with are "given/1", "given/2" and so on.
        """
        messages = self._messages
        return self._ids[: len(messages)]

    def fork(self, message_id: str) -> Conversation:
        """A new conversation up to and including this message; neither changes the other.

        A summary goes with it where it is of messages that the fork has. Raises UsageError for an id that no message
        has, and for a place between a call and its result, where no provider would go on; it says where one can fork.
        """
        before, messages = self._compacted, self._messages  # in this order: each is of messages that were there before
        ids = self._ids[: len(messages)]
        if message_id not in ids:
            raise UsageError(f"no message of this conversation has the id {message_id!r}; `.ids` lists them")
        end = ids.index(MessageId(message_id)) + 1
        if history_faults(messages[:end]):
            places = [at for at in range(1, len(messages) + 1) if not history_faults(messages[:at])]
            near = [repr(ids[at - 1]) for at in sorted(places, key=lambda at: abs(at - end))[:2]]
            raise UsageError(
                f"{message_id!r} is between a call and its result, where no conversation can go on; "
                f"fork at {' or '.join(near) or 'no message of this one'}"
            )
        if end < before.summarised:
            before = Compacted(cleared=before.cleared)
        elif end < before.left_out:  # what was cut behind the summary has room in the shorter one
            before = replace(before, left_out=before.summarised)
        cleared, tried = min(before.cleared, end), min(before.tried, end)
        made = self._made(messages[:end], ids[:end], replace(before, cleared=cleared, tried=tried))
        made._open_turn = self._open_turn if end == len(messages) else None
        return made

    # -- as a text

    def to_json(self) -> str:
        """The conversation as JSON, to be kept: messages with their ids, and what was summarised.

        The format is versioned. Keep it where a stranger cannot read it: it holds what was said, as it was said.
        """
        compacted, messages = self._compacted, self._messages  # in this order: see `fork`
        saved = SavedConversation(messages, self._ids[: len(messages)], compacted, self.id, self._open_turn)
        return encode_conversation(saved)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The conversation that `to_json` wrote.

        Raises UsageError, with the place and the fault, for anything else: text that was cut or edited wrongly, a
        later format, a history that no provider would accept. A text of a stranger should be bounded first: up to 512
        Mi characters are read, and one made for it takes 35 times its size in memory.
        """
        saved = decode_conversation(text)
        if faults := "; ".join(history_faults(saved.messages)[:3]):
            raise UsageError(f"no provider would accept this conversation: {faults}; correct its messages")
        if faults := "; ".join(compacted_faults(saved.compacted, saved.messages)):
            raise UsageError(f"compacted: {faults}; correct it, or leave it out: it is made again when it is needed")
        if saved.open_turn is not None and (faults := "; ".join(open_turn_faults(saved.open_turn)[:3])):
            raise UsageError(f"open_turn: {faults}; correct it, or leave it out: its calls are forgotten then")
        return cls.from_saved(saved)

    @classmethod
    def from_saved(cls, saved: SavedConversation) -> Self:
        """The conversation of these messages, ids and summaries, which were checked."""
        made = cls._made(saved.messages, saved.ids, saved.compacted)
        made._id, made._open_turn = saved.id, saved.open_turn
        return made

    @classmethod
    def _made(cls, messages: tuple[Message, ...], ids: tuple[MessageId, ...], compacted: Compacted) -> Self:
        made = cls()
        made._messages, made._ids, made._compacted = messages, ids, compacted
        return made

    @classmethod
    def of_record(
        cls, conversation_id: str, messages: tuple[Message, ...], ids: tuple[MessageId, ...], compacted: Compacted
    ) -> Self:
        """As a journal has it: it was legal when it was written."""
        made = cls._made(messages, ids, compacted)
        made._id = conversation_id
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Conversation):
            return NotImplemented
        same = self._messages == other._messages and self._compacted == other._compacted
        same = same and self._open_turn == other._open_turn
        return same and self.ids == other.ids

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Without what was said, which does not belong into a log."""
        return f"<Conversation of {len(self._messages)} messages>"

    # -- for the runtime

    @property
    def of_request(self) -> tuple[Message, ...]:
        """What the request that runs has added so far."""
        return self._messages[len(self._messages) - self._recorded :]

    @property
    def held_by(self) -> HeldAnswer | None:
        """The answer of the request that runs."""
        return self._answer

    def take(self, request_id: RequestId, recorded: int = 0, answer: HeldAnswer | None = None) -> None:
        """Claim it for one request, of which it has so many messages already where that was taken up from a journal.

        Raises UsageError while another one runs, and when no provider would accept it.
        """
        self.check_free()
        if not self._taken.acquire(blocking=False):
            raise UsageError(_TAKEN)
        self._holder, self._recorded, self._answer = request_id, recorded, answer
        self._name = self._ids[-1].rpartition("/")[0] if recorded else ""

    def check_free(self) -> None:
        """Raise what `take` would raise now."""
        if not self._is_checked:  # what is recorded later is legal
            for position, message in enumerate(self._messages):
                if not isinstance(message, Message):
                    what = type(message).__name__
                    raise UsageError(f"message {position} of the conversation is a {what}, not a Message")
            check_types(self._messages, tuple[Message, ...], "messages")
            if faults := "; ".join(history_faults(self._messages)[:3]):
                raise UsageError(f"no provider would accept this conversation: {faults}; correct its messages")
            self._is_checked = True
        if self._taken.locked():
            raise UsageError(_TAKEN)

    def release(self, request_id: RequestId | None = None) -> None:
        """The request has ended. Does nothing for one that does not have the conversation."""
        if request_id not in (None, self._holder):
            return
        self._holder = self._answer = None
        self._taken.release()

    def going_on(self, given: CallResults | None) -> tuple[Message, ...]:
        """What a request begins with that has these results; None: another question. Raises UsageError."""
        turn = self._open_turn
        if turn is not None:
            return closed_turn(turn, given or given_up(turn))
        if given is None or not given.answers:
            check_goes_on(self._messages)
            return ()
        raise UsageError("no call of this conversation waits for a result; ask a question")

    def leave_open(self, turn: OpenTurn | None) -> None:
        """The request that runs ends with this turn."""
        self._open_turn = turn

    def close_turn(self, added: tuple[Message, ...], request_id: RequestId) -> None:
        """The calls of the open turn have these results, with which a request begins."""
        self._open_turn = None
        self._ids += tuple(MessageId(f"{request_id}/turn/{number}") for number in range(1, len(added) + 1))
        self._messages += added

    def told(self, text: str, name: str) -> None:
        """Add what the model is to read before the question of the request that has the conversation now.

        `name` becomes the id of the message: one that no other message of the conversation has.
        """
        self._ids += (MessageId(name),)
        self._messages += (SystemMessage(text),)

    @property
    def requests(self) -> tuple[str, ...]:
        """The names of the requests whose messages these are, in their order."""
        return tuple(dict.fromkeys(own.rpartition("/")[0] for own in self._ids))

    def record(self, recorded: tuple[Message, ...] | Compacted, request_id: RequestId) -> None:
        """Add the messages of a finished step, or what was cleared or summarised of those before it.

        Called by its request's session only. Ignored where the request no longer has the conversation: the asker
        knows by then that there is no answer.
        """
        if request_id != self._holder:
            return
        if isinstance(recorded, Compacted):
            self._compacted = recorded
            return
        self._ids += self.upcoming_ids(request_id, self._recorded, len(recorded))
        self._recorded += len(recorded)
        self._messages += recorded

    # -- for what writes a journal

    def not_in_journal(self, journal: str) -> tuple[NewMessage, ...]:
        """The messages that the journal of this name does not have."""
        if self._journal != journal:
            self._journal, self._in_journal = journal, 0
        first, ids = self._in_journal, self.ids
        parents: tuple[MessageId | None, ...] = (None, *ids)
        rows = zip(ids[first:], parents[first:], self._messages[first:], strict=False)
        return tuple(NewMessage(own, parent, message) for own, parent, message in rows)

    def upcoming_ids(self, request_id: RequestId, first: int, count: int) -> tuple[MessageId, ...]:
        """What `record` will call so many messages of this request, from number `first` on: 0 is the question."""
        if not self._name:
            self._name = self._unused(request_id)
        return tuple(MessageId(f"{self._name}/{number or 'user'}") for number in range(first, first + count))

    def is_in_journal(self, journal: str) -> None:
        """All messages that it has now are durable in the journal of this name."""
        self._journal, self._in_journal = journal, len(self._messages)

    def _unused(self, request_id: RequestId) -> str:
        """The request's id, or that with a number where earlier messages have such ids."""
        taken = {own.rpartition("/")[0] for own in self._ids}
        names = chain((request_id,), (f"{request_id}~{number}" for number in count(2)))
        return next(name for name in names if name not in taken)
