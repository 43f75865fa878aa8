"""What each model call must show: a second reading of docs/protocol.md ("The window", "Results", "History" ...).

Followed from call to call by what the trace says alone: what was recorded, what models have refused, which summaries
came. Sizes are counted by `counted`, and what providers say of them is believed as far as it can be true.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol.commands import RecordCompaction
from callboard.protocol.compaction import Compacted, Compaction
from callboard.protocol.content import (
    AssistantMessage,
    Media,
    Message,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    split_atoms,
)
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import ModelResponded
from callboard.protocol.ids import Tag
from callboard.protocol.model import CallPurpose, FinishReason, ModelResponse, Usage
from callboard.protocol.output import OutputMode
from callboard.protocol.prompt_tokens import estimate_tokens
from callboard.protocol.testing.counted import (
    SHORT_CHARS,
    in_part,
    shortened,
    tokens_of,
    tokens_of_one,
    tokens_of_schema,
    tokens_of_tools,
)
from callboard.protocol.testing.expected import (
    ASKED_AGAIN,
    Follows,
    begins_without_tools,
    expected_turns,
    named_window,
)
from callboard.protocol.testing.expected_output import mode_now
from callboard.protocol.testing.expected_search import found_in, search_now, tools_now
from callboard.protocol.testing.outside import input_tokens
from callboard.protocol.testing.story import ModelRun, Story, without_notices
from callboard.protocol.testing.told_calls import in_words
from callboard.protocol.tools import Decision, ToolDefinition, ToolSearch

READ: Final = "read_earlier_messages"
#: What is worth a new beginning of the prompt, and what must be said after a summary that failed, of the room.
_WORTH, _TRIED_AFTER = 0.1, 0.2
_MAX_SUMMARY_TOKENS: Final = 4_096
#: What an answer must have at least, and at most without a limit of the request's (docs/protocol.md, "The window").
_LEAST, _MOST = 16, 16_384
#: How much of one message a summary is asked for with: the most of these with which all fit.
_LEVELS: Final = (16_000, 4_000, 1_000, 250, 80)
_WRITTEN_BADLY: Final = frozenset({FinishReason.REFUSAL, FinishReason.CONTENT_FILTER})
#: A model call that fails so is made again.
REPEATED: Final = frozenset({ErrorKind.TRUNCATED, ErrorKind.MALFORMED_TOOL_CALL})
_ENDS_DATA: Final = re.compile(r"<(?=\s*/\s*(?:summary|conversation)\b)", re.IGNORECASE)


class DueSummary(Struct, frozen=True):
    """A summary that is to be asked for, unless a budget does not cover it."""

    first: int
    last: int
    """It is of the messages between these two numbers, from 1, both included."""
    blocks: int
    """So many of the oldest exchanges go."""
    tokens: int
    """Which it may have."""
    most: int
    """Output tokens of the call."""
    window: int
    """Of the model that is asked."""
    before: str
    """The summary that it takes the place of."""


class ExpectedPrompt(Struct):
    """What a model call must be; `model` is None for what would have come where the request ended in its place."""

    model: ModelRun | None
    due: DueSummary | None = None
    is_cut_harder: bool = False
    """The one before was too long."""
    is_repeated: bool = False
    """The same summary is asked for once more."""
    messages: tuple[Message, ...] = ()
    """Of a turn, as those below."""
    tools: tuple[ToolDefinition, ...] = ()
    search: ToolSearch | None = None
    schema: Any = None
    fits: bool = True
    trimmed: int = 0
    """Tokens that were cut since this was told last."""
    tokens: int = 0
    """Of the prompt of the turn, or of the one that comes after this summary."""
    heard: int = 0
    """Of the prompt of a turn that has ended, with what its provider says of it."""
    ratio_heard: float = 1.0
    """What a token of ours is taken for, once that is heard."""
    tokens_before: int = 0
    """Of the prompt before it was cut."""
    compacted: Compacted = Compacted()
    """What was done to the conversation by then."""
    ratio: float = 1.0


class _Block(Struct):
    """Messages that stay or go together: an atom of the history, or what is beside them."""

    number: int
    full: tuple[Message, ...]
    shown: tuple[Message, ...]
    tokens: int
    is_counted: bool = False
    """By a provider."""


@lru_cache(maxsize=1)
def expected_prompts(story: Story) -> tuple[ExpectedPrompt, ...]:
    """One for each model call, and one more where the request ended by a limit on tokens or cost."""
    return tuple(_expected_prompts(story))


def _expected_prompts(story: Story) -> Iterator[ExpectedPrompt]:
    if story.start is None:
        return
    state, recorded = _Prompt(story), 0
    before: ModelRun | None = None
    last = ExpectedPrompt(None)
    follows = {turn.model.command.tag: turn.follows for turn in expected_turns(story)}
    for model in (*story.asked, None):
        if before is not None and before.end is None:
            return
        if before is not None and before.command.is_turn:
            last.heard = state.hear(before)
            last.ratio_heard = state.ratio
        if model is None:
            break
        for record in story.records[recorded : model.records_before]:
            state.add(record.messages)
        recorded = model.records_before
        if model.command.purpose is CallPurpose.SEARCH_WORDS:
            last = ExpectedPrompt(model, tokens=state.tokens, ratio=state.ratio, compacted=state.compacted)
        elif before is not None and before.is_summary and model.is_summary:
            last = ExpectedPrompt(model, is_repeated=True, compacted=model.compacted, ratio=state.ratio)
        else:
            last = state.plan(model, before, None if before is None else follows.get(before.command.tag))
        yield last
        before = model
    end = story.finish()
    if end is not None and end[1].outcome in ("token_limit", "cost_limit"):
        last_follows = None if before is None else follows.get(before.command.tag)
        # What a turn that is to be asked again has said is recorded by the end, and was in no prompt.
        for record in story.records[recorded:] if last_follows not in ASKED_AGAIN else ():
            state.add(record.messages if without_notices(record.messages) else ())
        yield state.plan(None, before, last_follows)


@lru_cache(maxsize=1)
def prompt_tokens(story: Story) -> dict[Tag, int]:
    """The tokens of each model call as its provider counts them, as far as that is known."""
    found = {}
    for expected in expected_prompts(story):
        if (model := expected.model) is not None:
            own = math.ceil(input_tokens(model.command.request) * expected.ratio)
            found[model.command.tag] = expected.tokens if model.command.is_turn else own
    return found


class _Prompt:
    """The prompt of a request as it grows and is cut."""

    def __init__(self, story: Story) -> None:
        assert story.start is not None
        start = story.start
        self.story, self.options, self.ratio = story, start.options, start.options.token_ratio
        self.window = self.options.context_tokens
        self.most: int | None = None
        self.told = begins_without_tools(story)
        """Calls and results are told in words, and no tool is offered."""
        self._own_tools = tuple(each.definition for each in start.tools if each.decision is not Decision.DENY)
        self._kept: tuple[Message, ...] = start.history
        """All messages, also what is not shown: tools were found in them."""
        self._found = found_in(start, self._kept)
        self.modes = self.options.output.modes if self.options.output is not None else ()
        history = start.history
        others = (at for at, each in enumerate(history) if not isinstance(each, SystemMessage))
        self.leading = next(others, len(history))
        self.compacted = start.compacted if self.options.compaction is not None else Compacted()
        self.has_summarised, self.trimmed = False, 0
        self.due: DueSummary | None = None
        self.said, self.fresh, self.a_token = 0.0, 0, 1.0
        """What a provider has counted, less what was cut of it; what it has not; and what one of ours came to there."""
        begin = max(self.leading, self.compacted.left_out)
        self.asked_at = len(story.earlier)
        """So many messages stand before the question."""
        self.beside = self._new(())
        self.head = self._new(())
        self._ask_otherwise()
        self.earlier = self._new(self._in_their_place())
        self.old = self._blocks(story.earlier[begin:], begin + 1)
        self.user = self._new((story.question,), self.asked_at + 1)
        self.steps = self._blocks(story.begun, self.asked_at + 2)
        self.next_number = self.asked_at + 2 + len(story.begun)

    # What it holds.

    @property
    def tokens(self) -> int:
        return max(math.ceil(self.said + self.fresh * self.ratio), 0)

    @property
    def _all(self) -> list[_Block]:
        return [self.head, self.earlier, *self.old, self.user, *self.steps]

    @property
    def tools(self) -> tuple[ToolDefinition, ...]:
        output = self.options.output
        form = (output.tool,) if output is not None and self.mode is OutputMode.TOOL else ()
        assert self.story.start is not None
        return form if self.told else tools_now(self.story.start, self._found, form)

    @property
    def reads(self) -> bool:
        return not self.told and any(each.name == READ for each in self._own_tools)

    @property
    def mode(self) -> OutputMode | None:
        has_tools = not self.told and bool(self._own_tools)
        return mode_now(self.options, self.modes, has_tools=has_tools, takes_tools=not self.told)

    @property
    def schema(self) -> Any:
        output = self.options.output
        return output.schema if output is not None and self.mode is OutputMode.NATIVE else None

    def _ask_otherwise(self) -> None:
        """Instructions, tools and schema, by what the model is known to take."""
        options, output = self.options, self.options.output
        about_tools = options.tool_prompt if not self.told and self._own_tools else ""
        form = output.instructions(self.mode) if output is not None else ""
        prompt = "\n\n".join(filter(None, (options.system_prompt, about_tools, form)))
        assert self.story.start is not None
        leading = self.story.start.history[: self.leading]
        self._show(self.head, (*((SystemMessage(prompt),) if prompt else ()), *leading))
        self._resize(self.beside, tokens_of_tools(self.tools) + tokens_of_schema(self.schema))

    def _new(self, messages: tuple[Message, ...], number: int = 0) -> _Block:
        is_cleared = number and number <= self.compacted.cleared
        full = cleared(messages, number, self.compacted.cleared, reads=self.reads) if is_cleared else messages
        block = _Block(number, full, (), 0)
        self._show(block, full if self.window is None else tuple(map(self._shortened, full)))
        return block

    def _blocks(self, messages: Sequence[Message], number: int) -> list[_Block]:
        blocks = []
        for atom in split_atoms(messages):
            blocks.append(self._new(atom, number))
            number += len(atom)
        return blocks

    def _shortened(self, message: Message) -> Message:
        """A result that would fill too much of the window by itself is shown in part."""
        if self.window is None or not isinstance(message, ToolMessage):
            return message
        limit, shown = int(self.window * self.options.result_share), message
        chars = len(message.content)
        while (size := tokens_of_one(shown)) > limit and chars > SHORT_CHARS:
            chars = max(int(chars * min(limit / size, 0.9)), SHORT_CHARS)
            shown = replace(message, content=in_part(message.content, chars))
        return shown

    def _show(self, block: _Block, messages: Sequence[Message]) -> None:
        shown = in_words(messages) if self.told else tuple(messages)
        if shown != block.shown:
            block.shown = shown
            self._resize(block, tokens_of(shown))

    def _resize(self, block: _Block, tokens: int) -> None:
        self._forget(block)
        self.fresh += tokens
        block.tokens, block.is_counted = tokens, False

    def _forget(self, block: _Block) -> None:
        if block.is_counted:
            self.said -= block.tokens * self.a_token
        else:
            self.fresh -= block.tokens

    def _size(self, messages: Sequence[Message]) -> int:
        return tokens_of(in_words(messages) if self.told else messages)

    def add(self, messages: tuple[Message, ...]) -> None:
        """A step was recorded."""
        if messages:
            self._find(messages)
            self.steps.append(self._new(messages, self.next_number))
            self.next_number += len(messages)

    def _find(self, messages: tuple[Message, ...]) -> None:
        assert self.story.start is not None
        self._kept += messages
        before, self._found = self._found, found_in(self.story.start, self._kept)
        if self._found != before and not self.told:
            self._ask_otherwise()

    def hear(self, model: ModelRun) -> int:
        """A provider may have counted the prompt, whose tokens are then these."""
        event = model.end.event if model.end is not None else None
        usage: Usage | None = event.response.usage if isinstance(event, ModelResponded) else None
        blocks = [self.beside, *self._all]
        own = sum(block.tokens for block in blocks)
        if usage is None or not 0.2 * own <= usage.input_tokens <= 3 * own + 1_000:
            return self.tokens
        if own >= 1_000:
            self.ratio = max(min(usage.input_tokens / own, 3.0), 1.0)
        self.said, self.fresh, self.a_token = float(usage.input_tokens), 0, min(usage.input_tokens / own, 1.0)
        for block in blocks:
            block.is_counted = True
        return self.tokens

    # What is asked next.

    def plan(self, model: ModelRun | None, before: ModelRun | None, follows: Follows | None) -> ExpectedPrompt:
        """The next model call, by how the one before ended."""
        again, was_cut = follows in ASKED_AGAIN, True
        if before is not None and before.is_summary:
            self._take_summary(before)
        if follows is Follows.WITHOUT_TOOLS:
            self._without_tools()
        elif follows is Follows.OTHER_WAY:
            self.modes = tuple(mode for mode in self.modes if mode is not OutputMode.NATIVE)
            self._ask_otherwise()
        elif follows is Follows.CUT_HARDER and before is not None:
            was_cut = self._cut_harder(named_window(before))
        due = None if again else self._compact()
        if model is not None and model.is_summary:
            self.due = due
            return ExpectedPrompt(model, due, tokens=self.tokens, compacted=self.compacted, ratio=self.ratio)
        tokens_before = self.tokens
        fits = self._fit() and was_cut
        trimmed, self.trimmed = self.trimmed, 0
        expected = ExpectedPrompt(model, due, fits=fits, trimmed=trimmed, tokens=self.tokens, compacted=self.compacted)
        expected.tokens_before = tokens_before
        expected.messages = tuple(message for block in self._all for message in block.shown)
        expected.is_cut_harder = follows is Follows.CUT_HARDER
        expected.tools, expected.schema, expected.ratio = self.tools, self.schema, self.ratio
        assert self.story.start is not None
        expected.search = None if self.told else search_now(self.story.start)
        return expected

    def _without_tools(self) -> None:
        self.told = True
        self._ask_otherwise()
        for block in (*self.old, *self.steps):
            block.full = tuple(map(_without_hint, block.full))
            self._show(block, tuple(map(_without_hint, block.shown)))
        self._show(self.earlier, self._in_their_place())

    def _cut_harder(self, named: int | None) -> bool:
        sent = self.tokens
        self.window = min((each for each in (self.window, named) if each is not None), default=None)
        self.most = int(sent * 0.75)
        fits = self._fit()
        self.most = max(self.most, self.tokens)
        return fits and self.tokens < sent

    @property
    def room(self) -> int | None:
        """Tokens that the prompt may have."""
        limits = [] if self.window is None else [self.window - room_for_answer(self.window, self._asked_for)]
        return min([*limits, *([] if self.most is None else [self.most])], default=None)

    @property
    def _asked_for(self) -> int | None:
        return self.options.sampling.max_output_tokens

    # How it is made to fit.

    def _fit(self) -> bool:
        room, before = self.room, self.tokens
        if room is not None:
            self._keep_to_share(int(room * self.options.history_share))
            if self.tokens > room:
                self._cut(room)
        self.trimmed += before - self.tokens
        return self.window is None or self.tokens + _LEAST <= self.window

    def _keep_to_share(self, limit: int) -> None:
        over = sum(block.tokens for block in self.old) * self.ratio - limit
        if self.options.history_share < 1 and over > 0:
            self._cut_old(int(self.tokens - over - limit / 4))

    def _cut(self, room: int) -> None:
        self._cut_old(int(room * 0.75))
        if self.tokens > room:
            self._show(self.earlier, ())
        self._shorten(self.steps[:-1], room)
        while len(self.steps) > 1 and self.tokens > room:
            self._forget(self.steps.pop(0))
        self._shorten(self.steps[-1:], room)

    def _cut_old(self, target: int) -> None:
        """Shorten or clear what earlier questions have found, then leave out the oldest exchanges."""
        if self.options.compaction is None:
            self._shorten(self.old, target)
        elif self.tokens > target and self.compacted.cleared < self.asked_at:
            self._clear_all(self.old, self.asked_at)
        gone = False
        while self.old and (self.tokens > target or (gone and not isinstance(self.old[0].full[0], UserMessage))):
            self._forget(self.old.pop(0))
            gone = True
        if gone and self.options.compaction is not None:
            self.compacted = replace(self.compacted, left_out=self._shown_from - 1)
            self._show(self.earlier, self._in_their_place())

    @property
    def _shown_from(self) -> int:
        """The number of the first message that is shown."""
        return self.old[0].number if self.old else self.asked_at + 1

    def _shorten(self, blocks: Sequence[_Block], target: int) -> None:
        for block in blocks:
            if self.tokens <= target:
                return
            short = tuple(map(shortened, block.full))
            if self._size(short) < block.tokens:
                self._show(block, short)

    # Compaction.

    def _compact(self) -> DueSummary | None:
        wanted, room = self.options.compaction, self.room
        if wanted is None or room is None:
            return None
        if wanted.clear_at is not None and self.tokens > wanted.clear_at * room:
            self._clear(wanted.keep_results, room)
        if self.has_summarised or wanted.summarise_at is None or self.tokens <= wanted.summarise_at * room:
            return None
        return self._summary_due(wanted, room)

    def _clear(self, keep: int, room: int) -> None:
        blocks = [*self.old, *self.steps[:-1]]
        numbers = [number for block in blocks for number in _results(block)]
        keep -= sum(len(_results(block)) for block in self.steps[-1:])
        numbers = numbers[: max(len(numbers) - max(keep, 0), 0)]
        if not numbers or numbers[-1] <= self.compacted.cleared:
            return
        freed = 0
        for block in blocks:
            freed += max(block.tokens - self._size(self._cleared(block, numbers[-1])), 0)
        if freed * self.ratio >= _WORTH * room:
            self._clear_all(blocks, numbers[-1])

    def _clear_all(self, blocks: Sequence[_Block], last: int) -> None:
        for block in blocks:
            shorter = self._cleared(block, last)
            if self._size(shorter) < block.tokens:
                block.full = shorter
                self._show(block, shorter)
                self.compacted = replace(self.compacted, cleared=last)

    def _cleared(self, block: _Block, last: int) -> tuple[Message, ...]:
        return cleared(block.full, block.number, last, reads=self.reads)

    def _summary_due(self, wanted: Compaction, room: int) -> DueSummary | None:
        begins = [at for at, block in enumerate(self.old) if isinstance(block.full[0], UserMessage)]
        kept = [at for at in begins if self._tokens_of_old(at) <= wanted.keep * room]
        cut = kept[0] if kept else len(self.old)
        if sum(block.tokens for block in self.old[:cut]) * self.ratio < _WORTH * room:
            return None
        tried = self.compacted.tried
        news = sum(block.tokens for block in self.old if block.number > tried) * self.ratio
        if tried and news < _TRIED_AFTER * room:
            return None
        window = (wanted.context_tokens if wanted.model else None) or self.window or room
        tokens = min(int(wanted.summary * room), _MAX_SUMMARY_TOKENS)
        if not cut or not tokens:
            return None
        return DueSummary(
            first=max(self.compacted.summarised, self.leading) + 1,
            last=self.old[cut].number - 1 if cut < len(self.old) else self.asked_at,
            blocks=cut,
            tokens=tokens,
            most=max(room_for_answer(window, None), tokens),
            window=window,
            before=self.compacted.summary,
        )

    def _tokens_of_old(self, at: int) -> float:
        return sum(block.tokens for block in self.old[at:]) * self.ratio

    def _take_summary(self, model: ModelRun) -> None:
        """A summary has come, or could not be had."""
        self.has_summarised = True
        made = [] if model.end is None else model.end.given(RecordCompaction)
        if not summary_in(model)[0] or not made or self.due is None:
            self.compacted = replace(self.compacted, tried=self.asked_at)
            return
        text, last = made[0].compacted.summary, self.due.last
        self.compacted = replace(self.compacted, summary=text, summarised=last, left_out=last, tried=0)
        for block in self.old[: self.due.blocks]:
            self._forget(block)
        del self.old[: self.due.blocks]
        self._show(self.earlier, self._in_their_place())

    def _in_their_place(self) -> tuple[Message, ...]:
        first, done = self.leading + 1, self.compacted
        if done.left_out < first:
            return ()
        said = f"Note, not written by the user: messages {first} to {done.left_out} of this conversation are left out."
        if self.reads:
            said += f" {READ} shows their exact words, by number or by words in them."
        if done.summary:
            said += f" This is a summary of messages {first} to {done.summarised}:"
        summary = f"\n<summary>\n{as_data(done.summary)}\n</summary>" if done.summary else ""
        return (UserMessage.of(f"[{said}]{summary}"),)


def room_for_answer(window: int | None, limit: int | None) -> int:
    """Tokens of a window that are kept for an answer, which may have so many (docs/protocol.md, "The window")."""
    if window is None:
        return 0
    return max(_LEAST, min(window // 4, _MOST) if limit is None else min(limit, window // 2))


def cleared(messages: Sequence[Message], first: int, last: int, *, reads: bool) -> tuple[Message, ...]:
    """The messages, of which the first has this number, with a line in place of each long result up to the last one."""
    shown: list[Message] = []
    for number, message in enumerate(messages, first):
        if isinstance(message, ToolMessage) and number <= last and len(message.content) > SHORT_CHARS:
            what = "error" if message.is_error else "result"
            said = f"The {what} of this call ({len(message.content):,} characters) was cleared to make room."
            hint = f" {READ}(first={number}) shows it." if reads else ""
            message = replace(message, content=f"[{said}{hint}]")
        shown.append(message)
    return tuple(shown)


def _without_hint(message: Message) -> Message:
    if not isinstance(message, ToolMessage) or not message.content.startswith("[The "):
        return message
    return replace(message, content=re.sub(rf" {READ}\(first=\d+\) shows it\.\]$", "]", message.content))


def _results(block: _Block) -> list[int]:
    return [number for number, each in enumerate(block.full, block.number) if isinstance(each, ToolMessage)]


def as_data(text: str) -> str:
    """A text in which nothing ends the part of the prompt that it stands in."""
    return _ENDS_DATA.sub("&lt;", text) if "<" in text else text


# Summaries.


def summary_in(model: ModelRun) -> tuple[str, bool]:
    """The summary that came, if it is one; and whether the same may be asked once more."""
    event = model.end.event if model.end is not None else None
    if not isinstance(event, ModelResponded):
        return "", False
    response: ModelResponse = event.response
    if response.error is not None:
        return "", response.error.kind in REPEATED
    if response.finish_reason in _WRITTEN_BADLY:
        return "", False
    return ("" if response.tool_calls else response.text.strip()), True


def told_of(history: Sequence[Message], due: DueSummary, room: float) -> list[str]:
    """What a summary is asked for with, of the messages it is of: as much of each as there is room for; where that is
    too much even so, the oldest are left out."""
    messages = enumerate(history[due.first - 1 : due.last], due.first)
    said = [(number, who, text) for number, message in messages for who, text in _said(message)]
    for chars in _LEVELS:
        lines = [_line(number, who, text, chars) for number, who, text in said]
        sizes = [estimate_tokens(line) + 2 for line in lines]
        if sum(sizes) <= room:
            return lines
    while lines and sum(sizes) > room:
        del lines[0], sizes[0]
    return lines


def _line(number: int, who: str, text: str, chars: int) -> str:
    if len(text) > chars + 60:
        head = chars * 2 // 3
        tail = chars - head
        text = f"{text[:head]} [... {len(text) - chars:,} characters ...] {text[-tail:]}"
    return f"[{number}] {who}: " + "\n  ".join(as_data(text).splitlines())


def _said(message: Message) -> Iterator[tuple[str, str]]:
    if isinstance(message, SystemMessage):
        yield "note", message.text
    elif isinstance(message, ToolMessage):
        yield f"{'error' if message.is_error else 'result'} of {message.name}", message.content
    else:
        who = "assistant" if isinstance(message, AssistantMessage) else "user"
        for part in message.parts:
            if isinstance(part, ToolCall):
                yield who, f"calls {part.name}({part.arguments})"
            elif isinstance(part, Media):
                name = f" {part.name!r}" if part.name else ""
                yield who, f"[{type(part).__name__.lower()}{name} {part.media_type}]"
            elif isinstance(part, Text) and part.text:
                yield who, part.text
