"""`ask_user`: a question of the model's to the person it works for. Their answer comes from outside, by a callback.

The call is deferred while the question is open, so the wait costs no deadline, neither the tool's nor the request's; it
has a limit of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Final, Literal, Protocol

from msgspec import Struct
from pydantic import Field

from callboard.actors.builtins.brief_result import BriefResult
from callboard.actors.tools import Tool, ToolContext, tool
from callboard.actors.tools.invoke import text_of
from callboard.protocol.errors import RuntimeFailure, ToolError, UsageError
from callboard.protocol.ids import Tag
from callboard.protocol.tools import Deferred

logger = logging.getLogger("callboard.questions")

MAX_QUESTION_CHARS: Final = 4_000
MAX_CHOICES: Final = 20
MAX_CHOICE_CHARS: Final = 200
#: A longer answer is cut: it becomes a part of the conversation.
MAX_ANSWER_CHARS: Final = 100_000


class UserQuestion(Struct, frozen=True):
    """What an `ask_user` callback is given."""

    tag: Tag
    """Of the call: its `request_id` says which request asks."""
    question: str
    choices: tuple[str, ...] = ()
    """What the model expects; any other answer will do as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAnswer(BriefResult):
    """What the person has answered."""

    KEEPS: ClassVar = frozenset({"answer"})

    version: Literal[1] = 1
    answer: str | None
    """None: nothing."""


AskUserCallback = Callable[[UserQuestion], str | Awaitable[str | None] | None]


class Outside(Protocol):
    """Where the answers go."""

    def complete(self, tag: Tag, result: object) -> bool: ...

    def fail(self, tag: Tag, message: str) -> bool: ...


class UserQuestions:
    """Puts the questions of one runtime to a function of its owner, sync or async.

    Each has a daemon thread of its own, and an async function a loop of its own on it: a person may take hours, and one
    question neither holds up another nor keeps the process from ending.
    """

    def __init__(self, callback: AskUserCallback, timeout_seconds: float) -> None:
        self.tool = ask_user_tool(self.put, timeout_seconds)
        self._callback = callback
        self._timeout_seconds = timeout_seconds
        self._outside: Outside | None = None
        self._changing = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Task[str | None]]] = set()

    def tool_for(self, timeout_seconds: float) -> Tool:
        """The tool with this patience, for `go_by`."""
        return self.tool if timeout_seconds == self._timeout_seconds else ask_user_tool(self.put, timeout_seconds)

    def go_by(self, tool: Tool, timeout_seconds: float) -> None:
        """For questions from now on."""
        self.tool, self._timeout_seconds = tool, timeout_seconds

    def open(self, outside: Outside) -> None:
        """From now on questions can be put."""
        self._outside = outside

    def close(self) -> None:
        """Async callbacks are cancelled; sync ones are left behind, and their answers are not taken."""
        self._outside = None
        with self._changing:
            for loop, task in self._waiting:
                loop.call_soon_threadsafe(task.cancel)

    def put(self, question: UserQuestion) -> None:
        """Ask, without waiting. Raises ToolError where it cannot be asked."""
        outside = self._outside
        if outside is None:
            raise ToolError("the user cannot be asked: the runtime is stopping")
        run = partial(copy_context().run, self._answer, question, outside)
        threading.Thread(target=run, name="callboard-question", daemon=True).start()

    def _answer(self, question: UserQuestion, outside: Outside) -> None:
        try:
            answer = self._callback(question)
            if inspect.isawaitable(answer):
                answer = asyncio.run(self._awaited(answer))
            if answer is not None and not isinstance(answer, str):
                raise TypeError(f"ask_user must return a text or None, not {type(answer).__name__}")
        except asyncio.CancelledError:
            return  # the runtime stops, and the request has ended
        except TimeoutError:
            return  # the call has ended by its own limit, of the same length
        except BaseException as error:  # noqa: BLE001 - the owner's function may raise anything, which is told
            logger.warning("the user could not be asked: %s", text_of(error), extra=question.tag.shown())
            why = f"the user could not be asked: {type(error).__name__}"
            self._tell(lambda: outside.fail(question.tag, why))
            return
        said = UserAnswer(answer=answer[:MAX_ANSWER_CHARS] if answer is not None else None)
        self._tell(lambda: outside.complete(question.tag, said))

    async def _awaited(self, answer: Awaitable[str | None]) -> str | None:
        task = asyncio.ensure_future(_waited_for(answer, self._timeout_seconds))
        waiting = asyncio.get_running_loop(), task
        with self._changing:
            self._waiting.add(waiting)
        try:
            return await task
        finally:
            with self._changing:
                self._waiting.discard(waiting)

    @staticmethod
    def _tell(tell: Callable[[], bool]) -> None:
        try:
            tell()
        except (RuntimeFailure, UsageError) as error:
            logger.warning("an answer of the user was not taken: %s", error)


async def _waited_for(answer: Awaitable[str | None], seconds: float) -> str | None:
    async with asyncio.timeout(seconds):
        return await answer


def ask_user_tool(put: Callable[[UserQuestion], None], timeout_seconds: float) -> Tool:
    """`ask_user`, as the model sees it. `put` asks without waiting."""

    @tool(risk="read", timeout=10, concurrency=100, trusted=True, effect="repeat")
    async def ask_user(
        question: Annotated[str, Field(min_length=1, max_length=MAX_QUESTION_CHARS)],
        context: ToolContext,
        choices: Annotated[
            list[Annotated[str, Field(min_length=1, max_length=MAX_CHOICE_CHARS)]], Field(max_length=MAX_CHOICES)
        ]
        | None = None,
    ) -> UserAnswer | Deferred:
        """Ask the user what you cannot find out yourself, and wait for the answer.

        Args:
            question: One question, in the user's language.
            choices: Answers to choose from; the user may answer something else.
        """
        put(UserQuestion(context.tag, question, tuple(choices or ())))
        return Deferred(timeout_seconds, note="the user is asked")

    return ask_user
