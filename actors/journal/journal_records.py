"""What the journal keeps, as values: of a request its events and its end, and of conversations their messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.protocol.commands import Finish
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import Message, ToolCall
from callboard.protocol.events import Event, ToolCallEnd
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag
from callboard.protocol.model import Error
from callboard.protocol.options import RequestOptions
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.server_tools import RemoteMcp
from callboard.protocol.tools import ToolFailure

# Times in this file are wall-clock seconds (time.time()), also those in events: another process reads them.


class Needs(Struct, frozen=True):
    """What a request needs besides what is written. It is found again when the request is taken up, or the request
    ends with an error that names it."""

    own_tools: Mapping[str, str] = field(default_factory=dict)
    """The tools that only its question has: a digest of what the model was shown, by name."""
    output: str = ""
    """What `output=` asked for, by the title of its form; "" where any text is an answer."""
    counter: str = ""
    """By what its tokens are counted: the name of a vocabulary, "" for the estimate."""
    has_approver: bool = False
    """An approver could be asked about its calls."""
    direct: ToolCall | None = None
    """The call that is run without a model."""
    headers: tuple[str, ...] = ()
    """The names of its `extra_headers` and of what else may hold keys (`unwritten`): the values are written nowhere."""


def unwritten(options: RequestOptions) -> tuple[str, ...]:
    """The names of the headers and tokens that its provider options and server tools have, of which `without_keys` has
    none."""
    extra = (each.headers for each in options.provider_options if isinstance(each, ExtraFields))
    servers = [each for each in options.server_tools if isinstance(each, RemoteMcp)]
    tokens = {f"authorization of {each.name}" for each in servers if each.authorization}
    return tuple(sorted(tokens.union(*extra, *(each.headers for each in servers))))


def without_keys(options: RequestOptions) -> RequestOptions:
    """The options as the journal has them."""
    if not unwritten(options):
        return options
    return replace(
        options,
        provider_options=tuple(
            replace(each, headers={}) if isinstance(each, ExtraFields) else each for each in options.provider_options
        ),
        server_tools=tuple(
            replace(each, authorization="", headers={}) if isinstance(each, RemoteMcp) else each
            for each in options.server_tools
        ),
    )


class Beginning(Struct, frozen=True):
    """What is known of a request when it begins, besides its first event."""

    conversation_id: str
    parent: MessageId | None
    """The last message of its history; None where it has none. The event itself is written without the history."""
    begun_at: float
    model: str
    needs: Needs = Needs()
    metadata: Mapping[str, str] = field(default_factory=dict)


class NewMessage(Struct, frozen=True):
    """A message that enters a conversation."""

    message_id: MessageId
    parent: MessageId | None
    message: Message


class RequestEnd(Struct, frozen=True):
    """How a request ended: all of its Reply but the messages, which are the conversation's."""

    ended_at: float
    finish: Finish | None
    """None: it could not be finished, and `failure` says why."""
    notes: tuple[str, ...] = ()
    failures: tuple[ToolFailure, ...] = ()
    error: Error | None = None
    """Why the model could not be asked."""
    failure: str = ""


class Write(Struct, frozen=True):
    """What one step of a session adds: all of it is durable at once, or none of it.

    Written twice, it is there once: a request's events are numbered.
    """

    request_id: RequestId
    number: int
    """Of the first of `events`: 1, 2, ... of each request."""
    events: tuple[Event, ...]
    led_to: tuple[str, ...] = ()
    """The commands that the last event led to, a line for each, to compare a replay with."""
    begins: Beginning | None = None
    """With the first event."""
    conversation_id: str = ""
    messages: tuple[NewMessage, ...] = ()
    """What enters the conversation with it, in order; with the first step also the question, and before that what the
    conversation has and the journal does not."""
    compacted: Compacted | None = None
    """Of the conversation, from now on."""
    ends: RequestEnd | None = None

    @property
    def only_goes_on(self) -> bool:
        """It says no more than that a request which was taken up goes on."""
        return not self.events and self.ends is None


class Statement(Struct, frozen=True):
    """One statement that a tool wants to be committed with the outcome of its call."""

    sql: str
    parameters: tuple[object, ...] = ()


class EffectWrite(Struct, frozen=True):
    """The outcome of a call with the effect `transaction`, and the statements that are committed with it."""

    tag: Tag
    outcome: ToolCallEnd
    statements: tuple[Statement, ...] = ()


Change = Write | EffectWrite
"""What is written; a batch of them is one commit."""


class Recorded(Struct, frozen=True):
    """One event of a request, as it was written."""

    number: int
    event: Event
    led_to: tuple[str, ...] = ()
    """Of the last event of its Write."""
    written_at: float = 0.0


def own_messages(
    added: Sequence[tuple[MessageId, Message]], parent: MessageId | None
) -> tuple[tuple[MessageId, Message], ...]:
    """Of the messages that a request's writes have brought, in order, those that are its own.

    Its first write brings also what the journal did not have of its history, which ends with `parent`.
    """
    first = next((place for place, (own, _) in enumerate(added, 1) if own == parent), 0)
    return tuple(added[first:])


class RequestLog(Struct, frozen=True):
    """All that the journal has of one request."""

    request_id: RequestId
    begins: Beginning
    records: tuple[Recorded, ...]
    """RequestStarted has its history again. Empty where the log of an ended request was compacted away."""
    outcomes: tuple[EffectWrite, ...] = ()
    """Of its calls with the effect `transaction`, without their statements."""
    messages: tuple[tuple[MessageId, Message], ...] = ()
    """What it has added to its conversation."""
    end: RequestEnd | None = None
    takings_up: int = 0
    """How often it was taken up since its last new event."""
    damage: str = ""
    """What is wrong with it, where a record of it is damaged: then it is not taken up. The records before are sound."""
    history_ids: tuple[MessageId, ...] = ()
    """The ids of the messages that were before it."""

    @property
    def counter(self) -> str:
        """By what its tokens were counted, as in `Needs`."""
        return self.begins.needs.counter


class SetAside(Struct, frozen=True):
    """A record that could not be read: kept apart, and never counted as one."""

    what: str
    why: str
    found_at: float
    request_id: RequestId | None = None
    call_id: CallId = CallId("")


class OpenReport(Struct, frozen=True):
    """What opening a journal found besides what it expected. People are told each line."""

    notes: tuple[str, ...] = ()
    """A damaged file that was moved aside, what was saved of it, files of dead processes that were merged ..."""
    set_aside: int = 0
    """Records that this has added to those that were set aside."""
