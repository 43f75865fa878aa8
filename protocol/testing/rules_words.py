"""The rule about further words to search by: when a model is asked for them, and which call is given them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import orjson

from callboard.protocol.commands import Note, NoteKind, RunTool
from callboard.protocol.content import SystemMessage, UserMessage
from callboard.protocol.events import ModelResponded
from callboard.protocol.ids import Tag
from callboard.protocol.model import CallPurpose, FinishReason
from callboard.protocol.search_words import words_request
from callboard.protocol.testing.counted import tokens_of
from callboard.protocol.testing.expected import ExpectedCall, ExpectedTurn, Follows, expected_turns
from callboard.protocol.testing.expected_prompts import expected_prompts
from callboard.protocol.testing.rules_compaction import models_asked
from callboard.protocol.testing.rules_limits import covers_aside, spending, spending_after, wrong_aside
from callboard.protocol.testing.story import STOPPED, ModelRun, Story
from callboard.protocol.tools import Risk

#: docs/protocol.md, "Words to search by".
_MOST: Final = 4
_MOST_CHARS: Final = 200
#: Output tokens of the call.
_MOST_TOKENS: Final = 2_000


def expands(story: Story) -> Iterator[str]:
    """I32: where it is asked for, and there alone, the model is asked for further words, once, before the first search.

    That is a call without tools, of one request, before the calls of the turn begin. The first search of the turn is
    given the words, and no other call; where there are none, a note says so, and the calls begin without.
    """
    if story.start is None:
        return
    asked = [model for model in story.asked if model.command.purpose is CallPurpose.SEARCH_WORDS]
    if len(asked) > 1:
        yield f"further words were asked for {len(asked)} times"
    for model in asked:
        yield from _wrong_call(story, model)
    given = {run.tag: run.search_words for run in story.given(RunTool) if run.search_words}
    is_first = story.start.options.expand_search
    if not (is_first or asked or given):
        return
    for turn in expected_turns(story):
        found = [call for call in turn.calls if _searches(call)] if turn.follows is Follows.CALLS else []
        wants = is_first and bool(found) and sum(max(len(_queries(call)), 1) for call in found) < 2
        wants = wants and turn.answer is None and not turn.loops
        is_first = is_first and not found
        yield from _wrong_turn(story, turn, given, wants=wants)
    yield from (f"call {tag} was given words, and is not the first search" for tag in given)


def _searches(expected: ExpectedCall) -> bool:
    offer = expected.offer
    if offer is None or expected.begins != "run":
        return False
    return bool(offer.contract.searches_by) and offer.contract.risk is Risk.READ


def _queries(expected: ExpectedCall) -> list[str]:
    assert expected.offer is not None
    found = orjson.loads(expected.call.arguments).get(expected.offer.contract.searches_by)
    return [each for each in found if isinstance(each, str) and each.strip()] if isinstance(found, list) else []


def _is_covered(story: Story, turn: ExpectedTurn) -> bool:
    """Whether window and budgets cover a call for words behind this turn, together with the next step; where what was
    spent is not known, only without budgets."""
    assert story.start is not None
    options, spent = story.start.options, spending_after(story, turn.model)
    if not spent.exact and (options.token_budget is not None or options.cost_budget is not None):
        return False
    prompt = next(each for each in expected_prompts(story) if each.model is turn.model)
    queries = next((_queries(call) for call in turn.calls if _searches(call)), [])
    size = math.ceil(tokens_of(words_request("", story.question.text, queries).messages) * prompt.ratio_heard)
    window = turn.context_tokens
    return (window is None or size + _MOST_TOKENS <= window) and covers_aside(
        options, spent, size, _MOST_TOKENS, prompt.heard
    )


def _wrong_call(story: Story, model: ModelRun) -> Iterator[str]:
    assert story.start is not None
    request, step, options = model.command.request, model.command.tag.step, story.start.options
    if not options.expand_search:
        yield f"model call {step} asks for further words, which is switched off"
    yield from wrong_aside(model, options, _MOST_TOKENS)
    if request.model != models_asked(story)[model.command.tag]:
        yield f"model call {step} asks {request.model!r} for further words"
    calls = [call for turn in expected_turns(story) if turn.model.words is model for call in turn.calls]
    told = [story.question.text, " / ".join(next((_queries(call) for call in calls if _searches(call)), []))]
    shown, asked = request.messages[0], request.messages[-1]
    if len(request.messages) != 2 or not isinstance(shown, SystemMessage) or not isinstance(asked, UserMessage):
        yield f"model call {step} asks for further words by {len(request.messages)} messages"
    elif not all(f"\n{each}" in asked.text for each in filter(None, told)):
        yield f"model call {step} asks for further words by {request.messages!r:.400}; it is about {told}"
    if model.command.attempts != 1:
        yield f"model call {step} asks for further words up to {model.command.attempts} times"


def _wrong_turn(story: Story, turn: ExpectedTurn, given: dict[Tag, tuple[str, ...]], *, wants: bool) -> Iterator[str]:
    """Takes out of `given` what was given rightly."""
    assert story.start is not None
    step, words = turn.model.command.tag.step, turn.model.words
    if words is None:
        if wants and _is_covered(story, turn):
            yield f"step {step} searches first, and no further words were asked for"
        return
    if not _is_covered(story, turn) and spending(story)[words.command.tag].exact:
        yield f"step {step} asks for further words, which its window and budgets do not cover with the next step"
    if not wants:
        yield f"step {step} does not search first, or says the need in several ways, and further words were asked for"
    if words.end is None:
        return
    expected = _words_in(words)
    is_noted = any(note.kind is NoteKind.WORDS_FAILED for note in words.end.given(Note))
    if is_noted is bool(expected):
        yield f"step {step} got the further words {expected}, a note that there are none: {is_noted}"
    searches = [(call.call.name, call.call.arguments) for call in turn.calls if _searches(call)]
    runs = [run for run in words.end.given(RunTool) if (run.name, run.arguments) in searches[:1]]
    if not runs:
        yield f"the search of step {step} did not begin when its further words had come, or had not"
    for again in (each for each in story.given(RunTool) if each.tag in {run.tag for run in runs[:1]}):
        given.pop(again.tag, None)
        if again.search_words != expected:
            yield f"call {again.tag} was given the words {again.search_words}, the model gave {expected}"


def _words_in(model: ModelRun) -> tuple[str, ...]:
    event = model.end.event if model.end is not None else None
    if not isinstance(event, ModelResponded) or event.response.error or event.response.finish_reason in STOPPED:
        return ()
    lines = [line.strip().removeprefix("- ") for line in event.response.text.split("\n")]
    if event.response.finish_reason is FinishReason.LENGTH:
        lines.pop()
    return tuple(line for line in lines if 0 < len(line) <= _MOST_CHARS)[:_MOST]
