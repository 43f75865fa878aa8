"""Conversations in a journal: which there are, one of them again, where words occur in them, and whose id begins so.

Messages of a conversation are a tree: each has a parent. It has one branch, but where two processes have gone on from
the same message; then the branch with the latest message is the conversation, and the others can be forked.

**Why search has no index.** A full-text index would hold everything that was said a second time, would have to be
written with each message and cleaned with each deletion, and would differ between SQLite and PostgreSQL. Instead the
messages are read, the newest conversations first, and only those are decoded whose bytes hold the words at all.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from callboard.actors.journal.encoding import (
    DamagedRecord,
    column,
    from_column,
    read_beginning,
    read_compacted,
    read_end,
    read_message,
)
from callboard.actors.journal.journal_database import JournalDatabase
from callboard.actors.journal.journal_records import Beginning, NewMessage
from callboard.actors.journal.sql_reader import SqlReader
from callboard.actors.journal.tables import COMPACTIONS, CONVERSATIONS, ENDS, MESSAGES, OPEN, REQUESTS
from callboard.protocol.codec import SavedConversation
from callboard.protocol.commands import OpenTurn
from callboard.protocol.compaction import Compacted, compacted_faults
from callboard.protocol.content import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolMessage,
    UserMessage,
    history_faults,
)
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import MessageId, RequestId
from callboard.protocol.masking import for_log

#: Of a title: what a list has room for.
TITLE_CHARS: Final = 60
#: On each side of the first word that was found.
SNIPPET_CHARS: Final = 80
#: Words of one search.
MAX_TERMS: Final = 16
#: Conversations that are read from the database at once.
_PAGE: Final = 200
#: System messages and the like before the first question, of which the title is made.
_MAX_BEFORE_QUESTION: Final = 20
#: Of an id: fewer would be found by chance.
MIN_CHARS: Final = 4
#: As many as lists show.
SHOWN_CHARS: Final = 8
#: Ids that are read, and that an error names.
_MAX_FOUND, _MAX_NAMED = 1_000, 5
#: As `uuid4().hex` writes them.
_OWN: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_TOO_SHORT: Final = re.compile(rf"[0-9a-f]{{1,{MIN_CHARS - 1}}}", re.ASCII)
_BEGINNING: Final = re.compile(rf"[0-9a-f]{{{MIN_CHARS},31}}", re.ASCII)
_TABLES: Final = {
    "request_id": (REQUESTS.name, ENDS.name, OPEN),
    "conversation_id": (CONVERSATIONS.name, REQUESTS.name),
}
_OF_ONE: Final = "WHERE conversation_id = ?"


class ConversationInfo(Struct, frozen=True):
    """One conversation of a journal, without its messages."""

    id: str
    title: str
    """The first words of the first question; what looks like a key is masked."""
    begun_at: float
    """Wall-clock seconds."""
    last_at: float
    """When the latest question was asked."""
    messages: int
    requests: int
    """Those that were asked in it; a fork has none of before."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """That of the latest request."""
    open_request: RequestId | None = None
    """The request that has begun and not ended."""
    damage: str = ""
    """What is wrong, where a record that this was made of is damaged."""


class FoundMessage(Struct, frozen=True):
    """A message in which all words of a search occur."""

    conversation_id: str
    message_id: MessageId
    role: str
    """"user", "assistant", "tool" or "system"."""
    snippet: str
    """On one line, around the first word; what looks like a key is masked."""
    added_at: float


class Filter(Struct, frozen=True):
    """Which conversations are meant. Times are wall-clock seconds."""

    since: float | None = None
    """Their latest question is not older."""
    until: float | None = None
    """Their latest question is older."""
    text: str = ""
    """All these words are in one message, as in a search."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Their latest request has all of these."""


# -- which there are

_LATEST: Final = "COALESCE(MAX(r.begun_at), c.begun_at)"
_LIST: Final = (
    f"SELECT c.conversation_id, c.begun_at, {_LATEST}, COUNT(r.request_id) FROM {CONVERSATIONS.name} c"
    f" LEFT JOIN {REQUESTS.name} r ON r.conversation_id = c.conversation_id"
    f" GROUP BY c.conversation_id, c.begun_at"
    f" HAVING {_LATEST} >= ? AND ({_LATEST} < ? OR ({_LATEST} = ? AND c.conversation_id > ?))"
    f" ORDER BY {_LATEST} DESC, c.conversation_id LIMIT ?"
)
_ENDLESS: Final = 1e18
_OPEN_OF: Final = (
    f"SELECT o.request_id FROM {OPEN} o JOIN {REQUESTS.name} r ON r.request_id = o.request_id"
    " WHERE r.conversation_id = ? ORDER BY r.begun_at, o.request_id"
)


def conversations(
    reader: SqlReader, which: Filter, limit: int, after: ConversationInfo | None = None
) -> list[ConversationInfo]:
    """Newest first; `after`: the last one of the page before."""
    found: list[ConversationInfo] = []
    for info in _listed(reader.database, which, after):
        if all(info.metadata.get(name) == value for name, value in which.metadata.items()) and (
            not which.text or next(found_in(reader.database, info.id, which.text), None) is not None
        ):
            found.append(info)
            if len(found) == limit:
                break
    return found


def _listed(database: JournalDatabase, which: Filter, after: ConversationInfo | None) -> Iterator[ConversationInfo]:
    before = _ENDLESS if which.until is None else which.until
    # Of conversations of the same moment, those with a greater id come later.
    same, last_id = (-_ENDLESS, "") if after is None else (after.last_at, column(after.id))
    if after is not None:
        before = min(before, after.last_at)
    since = -_ENDLESS if which.since is None else which.since
    while True:
        rows = database.query(_LIST, (since, before, same, last_id, _PAGE))
        for own, begun_at, last_at, requests in rows:
            if (info := _described(database, str(own), begun_at, last_at, requests)) is not None:
                yield info
        if len(rows) < _PAGE:
            return
        last_id, last = str(rows[-1][0]), rows[-1][2]
        before = same = last if isinstance(last, float) else since


def _described(
    database: JournalDatabase, own: str, begun_at: object, last_at: object, requests: object
) -> ConversationInfo | None:
    """None of what is no conversation: a call of a tool without a model."""
    damages: list[str] = []
    metadata: Mapping[str, str] = {}
    try:
        if (latest := _latest_request(database, own)) is not None:
            if latest.needs.direct is not None:
                return None
            metadata = latest.metadata
    except DamagedRecord as error:
        damages.append(str(error))
    title = ""
    try:
        title = _title(database, own)
    except DamagedRecord as error:
        damages.append(str(error))
    ((count,),) = database.query(f"SELECT COUNT(*) FROM {MESSAGES.name} {_OF_ONE}", (own,))
    open_ones = database.query(_OPEN_OF, (own,))
    return ConversationInfo(
        _shown_id(own),
        title,
        _float(begun_at),
        _float(last_at),
        _int(count),
        _int(requests),
        metadata,
        RequestId(from_column(open_ones[0][0])) if open_ones else None,
        "; ".join(damages),
    )


def _latest_request(database: JournalDatabase, own: str) -> Beginning | None:
    rows = database.query(f"{REQUESTS.select} {_OF_ONE} ORDER BY begun_at DESC, request_id LIMIT 1", (own,))
    return read_beginning(rows[0])[0] if rows else None


def _title(database: JournalDatabase, own: str) -> str:
    """From the first question on the way down from the first message."""
    rows = database.query(f"{MESSAGES.select} {_OF_ONE} AND parent IS NULL ORDER BY added_at, number, place", (own,))
    for _ in range(_MAX_BEFORE_QUESTION):
        if not rows:
            break
        new, _ = read_message(rows[0])
        if isinstance(new.message, UserMessage):
            return title_of(new.message.text) or "(no text)"
        rows = database.query(
            f"{MESSAGES.select} {_OF_ONE} AND parent = ? ORDER BY added_at, number, place",
            (own, column(new.message_id)),
        )
    return ""


def title_of(question: str) -> str:
    """The first words of it."""
    text = " ".join(for_log(question[: 100 * TITLE_CHARS]).split())
    if len(text) <= TITLE_CHARS:
        return text
    cut = text[: TITLE_CHARS - 1]
    return (cut.rpartition(" ")[0] or cut) + "…"


# -- one of them


def saved_conversation(reader: SqlReader, conversation_id: str, at: str | None = None) -> SavedConversation:
    """The messages up to the latest one, or up to the one with the id `at`, checked.

    Raises UsageError where there is none of this id, DamagedRecord for one that cannot go on as it is.
    """
    own, database = column(conversation_id), reader.database
    rows = {str(row[1]): row for row in database.query(f"{MESSAGES.select} {_OF_ONE}", (own,))}
    if not rows and not database.query(f"SELECT 1 FROM {CONVERSATIONS.name} {_OF_ONE}", (own,)):
        raise no_such("conversation", conversation_id)
    if at is not None and column(at) not in rows:
        raise UsageError(f"no message of conversation {conversation_id!r} has the id {at!r}")
    path, requests = _path(rows, _latest_leaf(rows) if at is None else column(at))
    messages = tuple(new.message for new in path)
    if at is None and (faults := history_faults(messages)):
        raise DamagedRecord("; ".join(faults[:3]))
    compacted = _compacted(database, own, requests, messages)
    open_turn = _open_turn(database, own, requests, path) if at is None else None
    return SavedConversation(messages, tuple(new.message_id for new in path), compacted, conversation_id, open_turn)


def open_request(reader: SqlReader, conversation_id: str) -> RequestId | None:
    """The request of this conversation that has begun and not ended."""
    rows = reader.database.query(_OPEN_OF, (column(conversation_id),))
    return RequestId(from_column(rows[0][0])) if rows else None


def branches(reader: SqlReader, conversation_id: str) -> list[MessageId]:
    """The last message of each branch, the latest branch first. More than one where two processes went on from one
    message."""
    rows = reader.database.query(f"{MESSAGES.select} {_OF_ONE}", (column(conversation_id),))
    return [MessageId(from_column(row[1])) for row in _leaves({str(row[1]): row for row in rows})]


def _leaves(rows: Mapping[str, Sequence[object]]) -> list[Sequence[object]]:
    parents = {row[2] for row in rows.values()}
    leaves = [row for own, row in rows.items() if own not in parents]
    return sorted(leaves, key=lambda row: (_float(row[6]), _int(row[4]), _int(row[5])), reverse=True)


def _latest_leaf(rows: Mapping[str, Sequence[object]]) -> str | None:
    leaves = _leaves(rows)
    if rows and not leaves:
        raise DamagedRecord("each of its messages is the parent of another one")
    return str(leaves[0][1]) if leaves else None


def _path(rows: Mapping[str, Sequence[object]], last: str | None) -> tuple[list[NewMessage], dict[str, None]]:
    """The messages from the first to this one, and the requests that added them, as their columns have them."""
    left = dict(rows)
    path: list[NewMessage] = []
    requests: dict[str, None] = {}
    while last is not None:
        row = left.pop(last, None)
        if row is None:
            raise DamagedRecord(f"message {_shown_id(last)!r} is missing")
        new, request_id = read_message(row)
        path.append(new)
        requests[column(request_id)] = None
        last = None if new.parent is None else column(new.parent)
    path.reverse()
    return path, requests


def _open_turn(
    database: JournalDatabase, own: str, requests: Mapping[str, None], path: Sequence[NewMessage]
) -> OpenTurn | None:
    """Of the request that has added the last message, or begun behind it and added none: where it has ended with calls
    for the one who asked."""
    if not path:
        return None
    behind = database.query(f"{REQUESTS.select} {_OF_ONE} ORDER BY begun_at DESC, request_id LIMIT 1", (own,))
    begins_here = bool(behind) and read_beginning(behind[0])[0].parent == path[-1].message_id
    latest = str(behind[0][0]) if begins_here else next(iter(requests))
    rows = database.query(f"{ENDS.select} WHERE request_id = ?", (latest,))
    finish = read_end(rows[0]).finish if rows else None
    return None if finish is None else finish.open_turn


def _compacted(
    database: JournalDatabase, own: str, requests: Mapping[str, None], messages: Sequence[Message]
) -> Compacted:
    """The latest that fits; a summary that is damaged is made again when it is needed."""
    rows = database.query(f"{COMPACTIONS.select} {_OF_ONE} ORDER BY written_at DESC, number DESC", (own,))
    for row in rows:
        if row[1] in requests:
            try:
                compacted = read_compacted(row)
            except DamagedRecord:
                continue
            if not compacted_faults(compacted, messages):
                return compacted
    return Compacted()


# -- search


def search(reader: SqlReader, text: str, which: Filter, limit: int) -> list[FoundMessage]:
    """Messages with all words of the text, those of the conversation with the newest question first."""
    check_search(text)
    found: list[FoundMessage] = []
    for info in _listed(reader.database, which, None):
        if any(info.metadata.get(name) != value for name, value in which.metadata.items()):
            continue
        for each in found_in(reader.database, info.id, text):
            found.append(each)
            if len(found) == limit:
                return found
    return found


def found_in(database: JournalDatabase, conversation_id: str, text: str) -> Iterator[FoundMessage]:
    """The messages of one conversation that have all words, in their order."""
    patterns = check_search(text)
    probes = [probe for each in terms_of(text) if (probe := _probe(each))]
    rows = database.query(
        f"SELECT data, message_id, added_at FROM {MESSAGES.name} {_OF_ONE} ORDER BY added_at, number, place",
        (column(conversation_id),),
    )
    for data, message_id, added_at in rows:
        if isinstance(data, bytes) and _may_have(data, probes):
            whole = database.query(
                f"{MESSAGES.select} {_OF_ONE} AND message_id = ?", (column(conversation_id), message_id)
            )
            try:
                new, _ = read_message(whole[0])
            except (DamagedRecord, IndexError):
                continue  # `conversation` and `verify` tell of it; what is damaged has no words
            role, said = _role_and_text(new.message)
            said = for_log(unicodedata.normalize("NFC", said))
            places = [pattern.search(said) for pattern in patterns]
            if all(places):
                first = min(place.start() for place in places if place is not None)
                yield FoundMessage(conversation_id, new.message_id, role, _snippet(said, first), _float(added_at))


def terms_of(text: str) -> list[str]:
    """The words of a search; what is in double quotes is one term."""
    return [
        term
        for quoted, word in re.findall(r'"([^"]*)"|(\S+)', unicodedata.normalize("NFC", text))
        if (term := (quoted or word).strip(' "'))
    ]


def check_search(text: str) -> list[re.Pattern[str]]:
    """What is looked for, a pattern for each term. Raises UsageError for a search of nothing or of too much."""
    terms = terms_of(text)
    if not terms:
        raise UsageError("the search is empty; name a word")
    if len(terms) > MAX_TERMS:
        raise UsageError(f"a search has up to {MAX_TERMS} words, this one {len(terms)}; name the rarest of them")
    return [re.compile(_beginning(term) + re.escape(term).replace(r"\ ", r"\s+"), re.IGNORECASE) for term in terms]


def _beginning(term: str) -> str:
    """A term is found where a word begins; in scripts without capital letters, which often write words without spaces
    between them (Chinese, Japanese, Thai), anywhere."""
    return r"(?<!\w)" if term[0].isalnum() and unicodedata.category(term[0]) != "Lo" else ""


def _probe(term: str) -> bytes:
    """Of a term, the longest piece that the bytes of a message have as it is, but for capital letters."""
    return max(re.findall(r"[a-z0-9]+", term.lower()), key=len, default="").encode()


def _may_have(data: bytes, probes: Sequence[bytes]) -> bool:
    """False: the message surely does not have all terms. Other letters than ASCII's may be capital ones of these."""
    if not data.isascii():
        return True
    lower = data.lower()
    return all(probe in lower for probe in probes)


def _role_and_text(message: Message) -> tuple[str, str]:
    match message:
        case UserMessage():
            return "user", message.text
        case AssistantMessage():
            return "assistant", message.text
        case ToolMessage():
            return "tool", message.content
        case SystemMessage():
            return "system", message.text


def _snippet(text: str, at: int) -> str:
    begin, end = max(0, at - SNIPPET_CHARS), at + SNIPPET_CHARS
    piece = " ".join(text[begin:end].split())
    return f"{'…' if begin else ''}{piece}{'…' if end < len(text) else ''}"


def _shown_id(own: str) -> str:
    try:
        return from_column(own)
    except DamagedRecord:
        return own


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


# -- ids by their first characters

# Only ids of callboard's own making can be shortened. One that a program has chosen is taken whole: "order-1" is never
# taken for "order-12".

IdsLike = Callable[[str], Collection[str]]
"""At least the ids that begin with these characters, also those that are exactly these."""


class AmbiguousId(UsageError):
    """Several ids begin with what was given."""


def shown_id(whole: str) -> str:
    """As lists show it: the first characters of an id of our own, else all of it."""
    return whole[:SHOWN_CHARS] if _OWN.fullmatch(whole) else whole


def no_such(noun: str, given: str) -> UsageError:
    """The journal has none of this id. `noun`: "request" or "conversation"."""
    listing = {"request": "requests", "conversation": "list"}[noun]
    short = f": {MIN_CHARS} characters of an id are needed" if _TOO_SHORT.fullmatch(given) else ""
    return UsageError(f"the journal has no {noun} {given!r}{short}; `callboard journal {listing}` shows them")


def whole_id(given: str, ids_like: IdsLike, noun: str, least: int = MIN_CHARS) -> str:
    """The one id that begins with `given`, which has `least` characters or more; else `given` itself, also where it is
    unknown. Raises AmbiguousId where several begin so. `noun`: "request" or "conversation", for the message.
    """
    if len(given) < least or not _BEGINNING.fullmatch(given):
        return given
    found = {each for each in ids_like(given) if each.startswith(given)}
    own = sorted(each for each in found if _OWN.fullmatch(each))
    if given in found or not own:
        return given
    if len(own) > 1:
        named = ", ".join([each[: len(given) + 4] + "…" for each in own[:_MAX_NAMED]])
        more = ", …" if len(own) > _MAX_NAMED else ""
        raise AmbiguousId(f"{len(own):,} {noun}s begin with {given!r} ({named}{more}): give more of the id")
    return own[0]


def ids_in_journal(reader: SqlReader, kind: str, beginning: str) -> list[str]:
    """`kind`: "request_id" or "conversation_id". The one that is exactly so, and the first thousand that begin so and
    are as long as those of our own: chosen ones, however many, hide none of them."""
    # A part of the text, since an order by bytes is not what each PostgreSQL's indexes have.
    one = (
        f"SELECT {kind} FROM {{}} WHERE substr({kind}, 1, {len(beginning)}) = ? AND (length({kind}) = 32 OR {kind} = ?)"
    )
    tables = _TABLES[kind]
    sql = " UNION ".join(one.format(table) for table in tables) + f" ORDER BY 1 LIMIT {_MAX_FOUND}"
    return [from_column(row[0]) for row in reader.database.query(sql, [beginning, beginning] * len(tables))]
