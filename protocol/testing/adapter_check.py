"""`check_provider_adapter`: an adapter's decoder held to expected events, its encoder to carrying all it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Protocol

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from callboard.protocol.errors import UsageError
from callboard.protocol.model import ModelRequest, StreamEvent
from callboard.protocol.testing.adapter_encode import check_encode, check_replay
from callboard.protocol.testing.answers import APIS, Answer, shipped_answers
from callboard.protocol.testing.strategies import chunkings
from callboard.protocol.testing.turn_summary import Summary, difference, prefix_difference, summary_of, turn_of

#: The wire API that an adapter of ours speaks, by the adapter's name, where the two differ.
_APIS_BY_NAME: Final[Mapping[str, str]] = {"openai": "openai-responses"}


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
    ends in exactly one Done or Error, and so does garbage; one decoder's bytes never show in another's events.

    `encode` must carry every text, image, call, result, tool and option of a request for `model`, once and in order, or
    say in its notes (or by a UsageError) what the API cannot be told; it must pair results with their calls, give back
    what an answer left to be replayed, give the same bytes for the same request, and leave the request as it is.

    `headers` are those of `answers` given as bytes. Raises UsageError where neither `api` nor `answers` are known.
    """
    held = _answers_of(adapter, answers, api, headers)
    for answer in held:
        _check_answer(adapter, answer)
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
    name = str(api or getattr(adapter, "name", ""))
    known = _APIS_BY_NAME.get(name, name)
    if known not in APIS:
        raise UsageError(
            f"an adapter named {name!r} speaks no wire API that the kit has answers of: give api= one of "
            f"{', '.join(APIS)}, or answers= of your own; without any, nothing would be checked"
        )
    return shipped_answers(known)


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
