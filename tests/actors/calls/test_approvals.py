"""Who is asked, and that a broken or slow answer costs nobody else anything."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from callboard import UsageError, tool
from callboard.actors.calls.approvals import Approval, ApprovalCallback, CallbackApprover, NobodyToAsk, Verdict
from callboard.protocol.commands import AskApproval
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.policy import Access, AccessKind
from callboard.protocol.tools import Risk

Until = Callable[[Callable[[], bool]], None]
Make = Callable[[ApprovalCallback], CallbackApprover]


def question(call_id: str = "c") -> AskApproval:
    tag = Tag(RequestId("r"), MessageId("m"), 1, CallId(call_id))
    return AskApproval(tag, ToolName("write"), "{}", Risk.WRITE)


class Verdicts:
    """Takes verdicts from any thread."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Verdict] = queue.Queue()

    def __call__(self, verdict: Verdict) -> None:
        self._queue.put(verdict)

    def next(self) -> Verdict:
        return self._queue.get(timeout=5)

    @property
    def none(self) -> bool:
        return self._queue.empty()


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[CallbackApprover] = []

    def make(callback: ApprovalCallback) -> CallbackApprover:
        made.append(CallbackApprover(callback))
        return made[-1]

    yield make
    for approver in made:
        approver.close()
        approver.close()


async def async_yes(asked: AskApproval) -> bool:
    return True


class AsyncObject:
    async def __call__(self, asked: AskApproval) -> bool:
        return True


def truthy(asked: AskApproval) -> Any:
    return "yes, I suppose"


@pytest.mark.parametrize(
    ("callback", "granted"),
    [
        (lambda asked: True, True),
        (lambda asked: False, False),
        (async_yes, True),
        (AsyncObject(), True),
        (truthy, False),
        (lambda asked: None, False),
    ],
)
def test_only_true_allows(make: Make, callback: Any, granted: bool) -> None:
    verdicts = Verdicts()
    make(callback).ask(question(), verdicts)
    verdict = verdicts.next()
    assert (verdict.tag, verdict.granted, verdict.by) == (question().tag, granted, "approver")


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_callback_that_raises_means_no_and_the_next_is_asked(
    make: Make, error: BaseException, is_async: bool
) -> None:
    def raises(asked: AskApproval) -> bool:
        if asked.tag.call_id == "bad":
            raise error
        return True

    async def raises_later(asked: AskApproval) -> bool:
        return raises(asked)

    verdicts = Verdicts()
    approver = make(raises_later if is_async else raises)
    approver.ask(question("bad"), verdicts)
    verdict = verdicts.next()
    assert not verdict.granted
    assert type(error).__name__ in verdict.reason
    approver.ask(question("good"), verdicts)
    assert verdicts.next().granted


def test_slow_answers_do_not_hold_up_each_other(make: Make) -> None:
    released = threading.Event()

    def slow(asked: AskApproval) -> bool:
        return asked.tag.call_id == "quick" or released.wait(10)

    verdicts = Verdicts()
    approver = make(slow)
    for number in range(100):  # more than any pool of threads holds
        approver.ask(question(f"slow-{number}"), verdicts)
    approver.ask(question("quick"), verdicts)
    assert verdicts.next().tag.call_id == "quick"
    released.set()
    assert all(verdicts.next().granted for _ in range(100))


def test_a_withdrawn_question_gets_no_verdict(make: Make) -> None:
    asked, ended = threading.Event(), threading.Event()

    async def wait(question: AskApproval) -> bool:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return True

    verdicts = Verdicts()
    approver = make(wait)
    approver.ask(question(), verdicts)
    assert asked.wait(5)
    approver.withdraw(question().tag)
    approver.withdraw(question("never asked").tag)
    assert ended.wait(5)
    assert verdicts.none


def test_a_question_asked_again_while_it_waits_is_put_once(make: Make) -> None:
    calls: list[AskApproval] = []
    go = threading.Event()

    def once(asked: AskApproval) -> bool:
        calls.append(asked)
        return go.wait(5)

    verdicts = Verdicts()
    approver = make(once)
    approver.ask(question(), verdicts)
    approver.ask(question(), verdicts)
    go.set()
    assert verdicts.next().granted
    assert len(calls) == 1


def test_closing_withdraws_what_is_open_and_ends_the_thread(make: Make, until: Until) -> None:
    asked = threading.Event()

    async def wait(question: AskApproval) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    verdicts = Verdicts()
    approver = make(wait)
    approver.ask(question(), verdicts)
    assert asked.wait(5)
    approver.close()
    assert not approver._thread.is_alive()
    assert verdicts.none
    approver.withdraw(question().tag)
    approver.ask(question("late"), verdicts)
    assert verdicts.next() == Verdict(question("late").tag, False, "approver", "the runtime is stopping")


def test_threads_of_sync_callbacks_do_not_keep_the_process(make: Make, until: Until) -> None:
    asked, go = threading.Event(), threading.Event()

    def hang(question: AskApproval) -> bool:
        asked.set()
        return go.wait(10)

    make(hang).ask(question(), Verdicts())
    assert asked.wait(5)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("callboard-approval"))
    go.set()


WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_question_is_asked_in_a_copy_of_its_askers_context(make: Make, is_async: bool) -> None:
    def decide(asked: AskApproval) -> bool:
        before = WHO.get()
        WHO.set("changed by the approver")
        return before == asked.tag.call_id

    async def decide_later(asked: AskApproval) -> bool:
        await asyncio.sleep(0.001)
        return decide(asked)

    verdicts = Verdicts()
    approver = make(decide_later if is_async else decide)
    for number in range(20):
        context = contextvars.Context()
        context.run(WHO.set, str(number))
        approver.ask(question(str(number)), verdicts, context)
    assert all(verdicts.next().granted for _ in range(20))
    approver.ask(question("nobody"), verdicts)
    assert verdicts.next().granted


class Mute(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


def test_an_approver_whose_error_has_no_text_means_no(make: Make) -> None:
    def raises(asked: AskApproval) -> bool:
        raise Mute

    verdicts = Verdicts()
    make(raises).ask(question(), verdicts)
    assert verdicts.next() == Verdict(question().tag, False, "approver", "the approver failed: Mute")


def test_nobody_to_ask() -> None:
    verdicts = Verdicts()
    nobody = NobodyToAsk()
    nobody.ask(question(), verdicts)
    verdict = verdicts.next()
    assert (verdict.granted, verdict.by) == (False, "policy")
    assert "write needs approval" in verdict.reason
    nobody.withdraw(question().tag)
    nobody.close()


# What an answer says besides yes and no.


@pytest.mark.parametrize(
    ("approval", "granted", "is_for_request", "rule"),
    [
        (Approval.ONCE, True, False, "the approver allowed write once"),
        (Approval.REQUEST, True, True, "the approver allowed write for this request"),
        (Approval.ALWAYS, True, True, "the approver allowed write for always"),
        (Approval.DENY, False, False, "the approver denied write"),
        (Approval.DENY_ALWAYS, False, True, "the approver denied write for always"),
    ],
    ids=lambda each: str(getattr(each, "kind", each)),
)
def test_an_answer_says_for_which_calls_it_counts(
    make: Make, approval: Approval, granted: bool, is_for_request: bool, rule: str
) -> None:
    verdicts = Verdicts()
    make(lambda asked: approval).ask(question(), verdicts)
    assert verdicts.next() == Verdict(question().tag, granted, "approver", rule=rule, is_for_request=is_for_request)


def test_a_denial_has_its_reason_and_the_rule_by_which_it_was_asked(make: Make) -> None:
    async def deny(asked: AskApproval) -> Approval:
        return Approval.DENY.because("not on a Friday")

    verdicts = Verdicts()
    make(deny).ask(replace(question(), rule="write makes changes"), verdicts)
    assert verdicts.next() == Verdict(
        question().tag, False, "approver", "not on a Friday", "the approver denied write (write makes changes)"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Approval.ONCE.because("I like it"),
        lambda: Approval.ALWAYS.with_arguments({}),
        lambda: Approval.DENY.with_arguments({}),
        lambda: Approval("perhaps"),  # type: ignore[arg-type]
        lambda: Approval.DENY.because("x" * 10_001),
        lambda: Approval.ONCE.with_arguments(["x"]),  # type: ignore[arg-type]
    ],
)
def test_an_approval_that_contradicts_itself_is_refused(wrong: Callable[[], Approval]) -> None:
    with pytest.raises(UsageError):
        wrong()


@tool(risk="write", accesses={"path": "write"})
def write(path: str, days: int = 1) -> str:
    """Write."""
    return path


@pytest.mark.parametrize(
    ("changed", "told"),
    [({"path": "b", "days": 2}, '{"days":2,"path":"b"}'), ({"path": "b"}, '{"path":"b"}')],
)
def test_changed_arguments_come_with_the_verdict(make: Make, changed: dict[str, object], told: str) -> None:
    verdicts = Verdicts()
    make(lambda asked: Approval.ONCE.with_arguments(changed)).ask(question(), verdicts, tool=write)
    verdict = verdicts.next()
    assert (verdict.granted, verdict.arguments) == (True, told)


@pytest.mark.parametrize("changed", [{"path": "b", "days": "many"}, {}, {"path": "b", "extra": 1}, {"path": 7}])
def test_changed_arguments_that_the_tool_does_not_take_are_a_denial_that_says_so(
    make: Make, changed: dict[str, object]
) -> None:
    verdicts = Verdicts()
    make(lambda asked: Approval.ONCE.with_arguments(changed)).ask(question(), verdicts, tool=write)
    verdict = verdicts.next()
    assert not verdict.granted
    assert "what the tool does not take" in verdict.reason


def test_the_question_says_what_the_call_would_touch(make: Make) -> None:
    asked: list[AskApproval] = []
    verdicts = Verdicts()
    make(lambda each: asked.append(each) or True).ask(  # type: ignore[func-returns-value]
        replace(question(), arguments='{"path": "a.txt"}'), verdicts, tool=write
    )
    assert verdicts.next().granted
    assert asked[0].accesses == (Access(AccessKind.WRITE, "a.txt", "path"),)


def test_a_tool_that_fails_to_say_what_a_call_would_touch_is_asked_about_all_the_same(make: Make) -> None:
    def broken(arguments: Mapping[str, object]) -> list[Access]:
        raise LookupError("no such thing")

    verdicts = Verdicts()
    make(lambda asked: not asked.accesses).ask(question(), verdicts, tool=dataclasses.replace(write, accesses=broken))
    assert verdicts.next().granted


@pytest.mark.parametrize(("approval", "granted"), [(Approval.ALWAYS, True), (Approval.DENY_ALWAYS, False)])
def test_an_answer_that_counts_always_is_saved_with_what_the_call_touches(approval: Approval, granted: bool) -> None:
    saved: list[tuple[AskApproval, bool]] = []
    verdicts = Verdicts()
    approver = CallbackApprover(lambda asked: approval, lambda *answer: saved.append(answer))
    approver.ask(replace(question(), arguments='{"path": "a.txt"}'), verdicts, tool=write)
    assert verdicts.next().granted is granted
    approver.close()
    [(asked, was_granted)] = saved
    assert was_granted is granted
    assert asked.accesses == (Access(AccessKind.WRITE, "a.txt", "path"),)


def test_an_answer_that_cannot_be_saved_counts_for_the_request_and_says_so() -> None:
    def full(asked: AskApproval, granted: bool) -> None:
        raise OSError(28, "No space left on device")

    verdicts = Verdicts()
    approver = CallbackApprover(lambda asked: Approval.ALWAYS, full)
    approver.ask(question(), verdicts)
    verdict = verdicts.next()
    approver.close()
    assert verdict.granted
    assert verdict.is_for_request
    assert "not saved" in verdict.rule
