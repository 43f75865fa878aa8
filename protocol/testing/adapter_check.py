"""`check_provider_adapter`: an adapter's decoder held to expected events, its encoder to carrying all it is given."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Protocol

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from callboard.protocol.errors import UsageError
from callboard.protocol.model import Done, Error, ModelRequest, StreamEvent
from callboard.protocol.testing.adapter_encode import check_encode, check_replay
from callboard.protocol.testing.answers import APIS, Answer, shipped_answers
from callboard.protocol.testing.strategies import chunkings
from callboard.protocol.testing.turn_summary import Summary, difference, prefix_difference, summary_of, turn_of

#: The wire API that an adapter of ours speaks, by the adapter's name, where the two differ.
_APIS_BY_NAME: Final[Mapping[str, str]] = {"openai": "openai-responses"}


#: What stands in a stream once its end has come, by the wire API. Copilot's may have none (docs/wire.md, quirk 23).
_END_MARKS: Final[Mapping[str, re.Pattern[bytes]]] = {
    "anthropic": re.compile(rb'"stop_reason":\s*"\w'),
    "gemini": re.compile(rb'"finishReason":\s*"\w'),
    "openai-responses": re.compile(rb"response\.(completed|incomplete|failed|done)\b"),
    **dict.fromkeys(("openai-chat", "openrouter"), re.compile(rb'"finish_reason":\s*"\w')),
}
#: A stream is cut there: where a cut is hardest to see.
_EVENT_ENDS: Final = re.compile(rb"\r?\n\r?\n")
#: HTTP statuses that no answer has, and whether it is of use to ask again.
_STATUSES: Final = {400: False, 401: False, 404: False, 429: True, 500: True, 503: True}
_WAIT_SECONDS: Final = 7.0


class DecoderLike(Protocol):
    """A decoder, by its shape: see callboard.providers.adapter."""

    def feed(self, data: bytes, /) -> list[StreamEvent]: ...
    def finish(self) -> list[StreamEvent]: ...


class AdapterLike(Protocol):
    """A provider adapter, by its shape: see callboard.providers.adapter."""

    def encode(self, request: ModelRequest, /) -> Any: ...
    def decoder(
        self, status: int = 200, headers: Mapping[str, str] | None = None, streaming: bool = True
    ) -> DecoderLike: ...


AnswerLike = Answer | bytes | tuple[bytes, Sequence[StreamEvent]]


def check_provider_adapter(
    adapter: AdapterLike,
    answers: Sequence[AnswerLike] | None = None,
    *,
    api: str | None = None,
    headers: Mapping[str, str] | None = None,
    examples: int = 50,
    model: str = "model",
) -> None:
    """Hold an adapter to its contract. The first breach raises AssertionError, and says what to play again.

    Its decoders must make of each answer the expected events. The answers are those that the kit has for a wire API:
    `api`, one of `answers.APIS`, or the one that the adapter's name is known for. Or they are your own `answers`:
    bytes, for which only the rules hold that every stream keeps, `(bytes, events)`, or an `Answer`. However the bytes
    are cut, the events say the same; an answer that breaks off anywhere says a part of what the whole one says; it
    ends in exactly one Done or Error, and so does garbage; one decoder's bytes never show in another's events. What is
    cut before its end is no Done, nor is what comes with an HTTP status of an error, whatever its body says; a 429 says
    when to ask again.

    `encode` must carry every text, image, call, result, tool and option of a request for `model`, once and in order, or
    say in its notes (or by a UsageError) what the API cannot be told; it must pair results with their calls, give back
    what an answer left to be replayed, give the same bytes for the same request, and leave the request as it is.

    `headers` are those of `answers` given as bytes. Raises UsageError where neither `api` nor `answers` are known.
    """
    held = _answers_of(adapter, answers, api, headers)
    mark = _END_MARKS.get(_api_of(adapter, api))
    for answer in held:
        _check_answer(adapter, answer)
        _check_cuts(adapter, answer, mark)
    _check_statuses(adapter, held)
    _check_apart(adapter, held)

    @_quiet(examples)
    @given(st.data())
    def decodes(data: st.DataObject) -> None:
        answer = data.draw(st.sampled_from(held))
        whole = _decoded(adapter, answer, [answer.body])
        pieces = data.draw(chunkings(answer.body))
        _say_same(
            answer, whole, _decoded(adapter, answer, pieces), f"cut into {[len(piece) for piece in pieces]} bytes"
        )
        size = data.draw(st.integers(0, len(answer.body)))
        cut = _decoded(adapter, answer, [answer.body[:size]])
        fault = (
            cut.faults[0]
            if whole.restarted and cut.faults
            else ""
            if whole.restarted
            else prefix_difference(whole, cut)
        )
        _require(answer, fault, f"broken off after {size} bytes")

    @_quiet(examples)
    @given(st.binary(max_size=200), st.sampled_from((200, 400, 404, 429, 500, 529)), st.booleans())
    def survives(garbage: bytes, status: int, streaming: bool) -> None:
        answer = Answer(f"the bytes {garbage!r}", garbage, None, status, headers or {}, streaming)
        _require(answer, *_decoded(adapter, answer, [garbage]).faults[:1])

    decodes()
    survives()
    check_encode(adapter, model, _quiet(examples))
    for answer in held:
        if answer.events is not None:
            kept = frozenset(text for part in summary_of(answer.events).parts for text in part.kept)
            check_replay(adapter, model, answer.name, turn_of(_decoded(adapter, answer, [answer.body])), kept)


def _answers_of(
    adapter: AdapterLike, answers: Sequence[AnswerLike] | None, api: str | None, headers: Mapping[str, str] | None
) -> Sequence[Answer]:
    if answers:
        return [_answer(number, one, headers or {}) for number, one in enumerate(answers)]
    known = _api_of(adapter, api)
    if known not in APIS:
        raise UsageError(
            f"an adapter named {known!r} speaks no wire API that the kit has answers of: give api= one of "
            f"{', '.join(APIS)}, or answers= of your own; without any, nothing would be checked"
        )
    return shipped_answers(known)


def _api_of(adapter: AdapterLike, api: str | None) -> str:
    name = str(api or getattr(adapter, "name", ""))
    return _APIS_BY_NAME.get(name, name)


def _answer(number: int, one: AnswerLike, headers: Mapping[str, str]) -> Answer:
    if isinstance(one, Answer):
        return one
    if isinstance(one, bytes):
        return Answer(f"answers[{number}]", one, None, headers=headers)
    body, events = one
    return Answer(f"answers[{number}]", body, tuple(events), headers=headers)


def _check_answer(adapter: AdapterLike, answer: Answer) -> None:
    """Whole, and byte by byte: each character and line end is cut once."""
    whole = _decoded(adapter, answer, [answer.body])
    if answer.events is None:
        _require(answer, *whole.faults[:1])
    else:
        _require(answer, difference(summary_of(answer.events), whole))
    single = _decoded(adapter, answer, [answer.body[at : at + 1] for at in range(len(answer.body))])
    _say_same(answer, whole, single, "byte by byte")


def _check_cuts(adapter: AdapterLike, answer: Answer, mark: re.Pattern[bytes] | None) -> None:
    """Behind each event before the one that says that the turn is over."""
    ended = mark.search(answer.body) if mark is not None else None
    whole = _decoded(adapter, answer, [answer.body])
    if ended is None or not answer.streaming or whole.restarted or not isinstance(whole.end, Done):
        return
    sizes = [end.end() for end in _EVENT_ENDS.finditer(answer.body) if end.end() <= ended.start()]
    for size in sizes:
        end = _decoded(adapter, answer, [answer.body[:size]]).end
        fault = "it ends as Done, and its end has not come" if isinstance(end, Done) else ""
        _require(answer, fault, f"broken off after {size} bytes")


def _check_statuses(adapter: AdapterLike, answers: Sequence[Answer]) -> None:
    """Bodies of good answers, and an empty one, that come with the status of an error."""
    good = [answer for answer in answers if answer.status < 400 and answer.events and _is_done(answer.events)]
    kinds = {answer.streaming: answer for answer in reversed(good)}
    headers = {"retry-after": f"{_WAIT_SECONDS:g}"}
    for status, may_repeat in _STATUSES.items():
        for like in (*kinds.values(), Answer("an empty object", b"{}")):
            answer = Answer(f"{like.name}, with status {status}", like.body, None, status, headers, like.streaming)
            error = _decoded(adapter, answer, [answer.body]).end
            _require(answer, "" if isinstance(error, Error) else "the status is ignored: it ends as Done")
            if like.body == b"{}" and isinstance(error, Error):
                said = f"the error is{'' if error.retryable else ' not'} retryable"
                _require(answer, "" if error.retryable is may_repeat else f"{said}, whatever its status")
                waits = status != 429 or error.retry_after == _WAIT_SECONDS
                _require(answer, "" if waits else f"retry-after: 7 came, and Error.retry_after is {error.retry_after}")


def _is_done(events: Sequence[StreamEvent]) -> bool:
    return any(isinstance(event, Done) for event in events)


def _check_apart(adapter: AdapterLike, answers: Sequence[Answer]) -> None:
    """Two answers at the same time: what one decoder reads is no concern of the other."""
    for one, other in pairwise(answers):
        alone = [_decoded(adapter, answer, [answer.body]) for answer in (one, other)]
        decoders = [adapter.decoder(answer.status, answer.headers, answer.streaming) for answer in (one, other)]
        heard: list[list[StreamEvent]] = [[], []]
        for at in range(0, max(len(one.body), len(other.body)), 64):
            for answer, decoder, events in zip((one, other), decoders, heard, strict=True):
                events += decoder.feed(answer.body[at : at + 64])
        for decoder, events in zip(decoders, heard, strict=True):
            events += decoder.finish()
        for answer, before, events in zip((one, other), alone, heard, strict=True):
            _say_same(answer, before, summary_of(events), "while another answer was decoded")


def _say_same(answer: Answer, whole: Summary, other: Summary, how: str) -> None:
    _require(answer, difference(whole, other), f"{how}, it reads differently than whole")


def _require(answer: Answer, fault: str = "", how: str = "") -> None:
    when = f" ({how})" if how else ""
    where = f" [{answer.source}]" if answer.source else ""
    assert not fault, f"the answer {answer.name!r}{where}{when}: {fault}"


def _decoded(adapter: AdapterLike, answer: Answer, pieces: Sequence[bytes]) -> Summary:
    return summary_of(_events(adapter, answer, pieces))


def _events(adapter: AdapterLike, answer: Answer, pieces: Sequence[bytes]) -> list[StreamEvent]:
    try:
        decoder = adapter.decoder(answer.status, answer.headers, answer.streaming)
        events = [event for piece in pieces for event in decoder.feed(piece)] + decoder.finish()
        return events + decoder.finish()  # a second time it has nothing more to say
    except Exception as error:
        raise AssertionError(
            f"the answer {answer.name!r}: the decoder raised {type(error).__name__}: {error}; it must never raise, "
            "but end with an Error"
        ) from error


def _quiet(examples: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
