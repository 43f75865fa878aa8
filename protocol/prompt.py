"""What the model sees: instructions, history, finished steps and tools, made into the next model call and cut to fit.

The window holds the prompt and the answer: the prompt is cut to what `budgets.answer_room` leaves of it. Order of
cutting, the cheapest loss first: old tool results are shortened; the oldest exchanges are dropped; the results of this
request's earlier steps are shortened; those steps are dropped; the last step's results are shortened. The instructions,
the user's message and the last step itself always stay. A result that would fill more than half of the window is
shortened to that as soon as it comes.

Tokens are counted by the model's own tokenizer where there is one, else estimated: one sum over two tables, what a
character costs by its class and that of the one before it, and what each further script costs a character. Word
lengths, digits, changes of case and script decide what a tokenizer does, and pairs of neighbours show them. The tables
were fitted by least squares, with texts that are estimated too low weighted 60 times, on one half of a corpus of 250
kinds (prose in 40 languages, code, data, encodings, random characters), so that no kind falls below the largest count
among o200k, cl100k, llama3, qwen3 and the tokenizers of DeepSeek and Mistral; `benchmarks/tokens.py` measures it on
other texts. The price is prose and code: about 1.4 times the true count, as with characters / 3.2, which has only a
tenth of it on emoji and a third on numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from callboard.protocol import content
from callboard.protocol.budgets import MIN_OUTPUT_TOKENS, Spending, Stop, allow_step, answer_room
from callboard.protocol.calls_as_text import calls_as_text
from callboard.protocol.commands import Outcome
from callboard.protocol.content import Atom, Message
from callboard.protocol.events import RequestStarted
from callboard.protocol.ids import ToolName
from callboard.protocol.limits import (
    MAX_FRAMING_TOKENS,
    MAX_RESULT_WINDOW_SHARE,
    MIN_RATIO_TOKENS,
    OVERFLOW_SHARE,
    TOKEN_RATIO_BOUNDS,
)
from callboard.protocol.model import ModelRequest, ToolChoice, ToolChoiceMode, Usage
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.tools import ToolDefinition

# How many tokens.

TokenCounter = Callable[[str], int]
"""Tokens of a text; pure, never negative. The real tokenizer of a model, where one is installed."""

#: All costs are in 64ths of a token.
_UNIT: Final = 64
#: Classes of characters up to U+00FF, in the order of their numbers. The last one holds "?" too: all further characters
#: are written as "?" before the classes are looked up.
_CLASSES: Final = (
    "",  # what no other class names: control characters
    " ",
    "\n",
    "\t\r\v\f",
    "0123456789",
    "aeo",
    "iu",
    "tnsrh",
    "ldcmgp",
    "bfjkqvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    ".,;:!'\"`",
    "()[]{}<>",
    "=*+&|^%$#@~\\_-/",
    "".join(map(chr, range(0x80, 0x100))),
    "?",
)
_LINE_END: Final = _CLASSES.index("\n")
_CLASS_OF: Final = bytes(next((at for at, of in enumerate(_CLASSES) if chr(byte) in of), 0) for byte in range(256))
#: The cost of a character, by the class of the one before it (row) and its own (column).
_PAIR_COSTS: Final = bytes.fromhex(
    """
    40 16 40 40 16 16 16 16 16 16 16 16 40 16 16 16
    40 09 40 40 40 40 05 28 04 14 00 40 00 40 3b 00
    40 24 28 23 40 40 27 40 40 40 40 02 00 14 23 07
    40 40 40 31 40 02 13 24 04 00 00 0e 03 2f 16 00
    16 64 40 40 40 40 40 40 40 40 40 40 40 40 21 31
    16 40 40 15 40 40 40 00 00 02 40 0f 00 40 40 40
    16 40 40 16 40 00 40 00 00 36 40 40 40 40 40 00
    40 00 40 15 40 00 00 00 38 40 40 00 00 01 40 00
    40 40 00 17 40 00 19 40 40 40 40 0d 25 40 3e 40
    40 0d 00 16 40 2e 00 40 40 16 40 40 40 40 3c 40
    16 00 00 18 40 00 40 0d 40 40 2d 40 40 40 2e 40
    16 40 00 40 40 40 2f 24 00 40 40 22 40 40 00 40
    16 40 00 15 40 16 40 22 3e 40 40 32 40 15 40 15
    16 1b 0e 13 40 40 1d 07 1c 29 40 28 40 0d 15 40
    16 40 40 16 05 40 35 40 1f 40 0c 19 13 0f 80 25
    16 00 40 1b 3b 40 00 00 40 40 40 00 30 40 00 00
    """
)
#: The cost of a character above U+00FF, by the first of its two bytes in UTF-16 (what is beyond U+FFFF has two such
#: pairs, from D8 to DF). Pages that are not named hold rare scripts and symbols: about a token a byte.
_PAGE_COSTS: Final = (
    (0x01, 0x01, 128), (0x02, 0x02, 136), (0x03, 0x03, 120), (0x04, 0x04, 51), (0x05, 0x05, 141), (0x06, 0x06, 74),
    (0x07, 0x07, 137), (0x09, 0x09, 98), (0x0A, 0x0A, 137), (0x0B, 0x0B, 166), (0x0C, 0x0C, 138), (0x0D, 0x0D, 146),
    (0x0E, 0x0E, 68), (0x0F, 0x0F, 188), (0x10, 0x10, 144), (0x1E, 0x1E, 160), (0x20, 0x20, 140), (0x21, 0x21, 200),
    (0x22, 0x22, 169), (0x24, 0x24, 191), (0x25, 0x25, 131), (0x26, 0x26, 170), (0x30, 0x30, 103), (0x4E, 0x9F, 94),
    (0xAC, 0xD7, 94), (0xD8, 0xDF, 138), (0xFF, 0xFF, 154),
)  # fmt: skip
_OTHER_PAGES: Final = 205
#: What a Chinese character or Korean syllable costs besides when it is in no list of common ones.
_RARE: Final = 123
#: The common ones: the first levels of the national character sets, as (codec, first bytes, second bytes).
_COMMON: Final = (
    ("gb2312", range(0xB0, 0xD8), range(0xA1, 0xFF)),
    ("big5", range(0xA4, 0xC7), (*range(0x40, 0x7F), *range(0xA1, 0xFF))),
    ("shift_jis", range(0x88, 0x99), (*range(0x40, 0x7F), *range(0x80, 0xFD))),
    ("euc_kr", range(0xB0, 0xC9), range(0xA1, 0xFF)),
)


def _page_table() -> bytes:
    costs = [_OTHER_PAGES] * 256
    costs[0] = 0  # these have their classes
    for first, last, cost in _PAGE_COSTS:
        costs[first : last + 1] = [cost] * (last + 1 - first)
    return bytes(costs)


_COST_OF_PAGE: Final = _page_table()


def estimate_tokens(text: str) -> int:
    """Tokens of a text when no tokenizer is at hand: rather too many than too few. 10 to 20 us a kB."""
    if not text:
        return 0
    classes = text.encode("latin-1", "replace").translate(_CLASS_OF)
    # As one large number, a byte a character: 16 times it and itself moved by a byte make the bytes 16 * class + next
    # class. It begins with the end of a line, so that the first character counts too; the last pair has no next one.
    number = int.from_bytes(classes, "little") << 8 | _LINE_END
    pairs = ((number << 4) + (number >> 8)).to_bytes(len(classes) + 1, "little")[:-1]
    cost = sum(pairs.translate(_PAIR_COSTS))
    if not text.isascii():
        pages = text.encode("utf-16-le", "surrogatepass")[1::2]
        cost += sum(pages.translate(_COST_OF_PAGE)) + _RARE * len(_rare().findall(text))
    return max(math.ceil(cost / _UNIT), 1)


@cache
def _rare() -> re.Pattern[str]:
    """Chinese characters and Korean syllables that are not common. Made when first needed: it takes 50 ms."""
    common = {
        character
        for codec, firsts, seconds in _COMMON
        for character in b"".join(bytes((a, b)) for a in firsts for b in seconds).decode(codec, "ignore")
    }
    listed = re.escape("".join(sorted(common)))
    return re.compile(f"[^{listed}\0-\u4dff\ua000-\uabff\ud7a4-\U0010ffff]")


# What providers say.


def measured_ratio(input_tokens: int, own_count: int) -> float | None:
    """A provider's count by ours of the same prompt, where that tells something of other prompts."""
    if own_count < MIN_RATIO_TOKENS or not _can_be_true(input_tokens, own_count):
        return None
    return min(input_tokens / own_count, TOKEN_RATIO_BOUNDS[1])


def _can_be_true(input_tokens: int, own_count: int) -> bool:
    lowest, highest = TOKEN_RATIO_BOUNDS
    if own_count <= 0 or not isinstance(input_tokens, int):  # a user's own provider may report anything
        return False
    return lowest * own_count <= input_tokens <= highest * own_count + MAX_FRAMING_TOKENS


@dataclass(slots=True)
class PromptSize:
    """Tokens of a prompt that grows and is cut: by the provider's count as far as there is one, the rest by our own.

    A ratio below 1 holds only for the text it was measured on, since our count is too high by more for some texts than
    for others; text that no provider has counted is taken for `ratio` times our count, and that is at least 1.
    """

    ratio: float = 1.0
    own_count: int = 0
    """The whole prompt by our own count."""
    _measured: float = 0.0
    """What the provider has counted, less what was cut of it."""
    _new: int = 0
    """What it has not counted, by our own count."""
    _cut_ratio: float = 1.0
    """What a token of ours, cut from what the provider has counted, is taken for: never for more than it is."""

    @property
    def tokens(self) -> int:
        return max(math.ceil(self._measured + self._new * self.ratio), 0)

    def add(self, count: int) -> None:
        """Text of `count` tokens by our count is added."""
        self.own_count += count
        self._new += count

    def remove(self, count: int, *, is_measured: bool) -> None:
        """Text is cut; `is_measured` if a provider has counted it."""
        self.own_count -= count
        if is_measured:
            self._measured -= count * self._cut_ratio
        else:
            self._new -= count

    def measured(self, input_tokens: int) -> bool:
        """The provider has counted the prompt as it is now. False, and nothing changes, if that cannot be true."""
        if not _can_be_true(input_tokens, self.own_count):
            return False
        found = measured_ratio(input_tokens, self.own_count)
        if found is not None:
            self.ratio = max(found, 1.0)
        self._cut_ratio = min(input_tokens / self.own_count, 1.0)
        self._measured, self._new = float(input_tokens), 0
        return True


#: Role, separators and field names around each message or call.
MESSAGE_OVERHEAD_TOKENS: Final = 6
#: A picture at the largest size providers keep (Anthropic: width x height / 750, about 1,600).
IMAGE_TOKENS: Final = 1_600
#: Sound takes 32 tokens a second and pictures of a film 258 a second (Gemini's documentation, "Understand and count
#: tokens"), a page of a PDF 1,500 to 3,000 (Anthropic's, "PDF support"). By bytes that is: speech at 64 kbit/s, film at
#: 1 Mbit/s, and a page of 100 kB.
BYTES_A_TOKEN: Final = {content.Audio: 250, content.Video: 484, content.Document: 33}
#: Of what is not sent along and could be of any size.
FAR_MEDIA_TOKENS: Final = 3_000


def message_tokens(message: Message, count: TokenCounter) -> int:
    """Tokens of one message, what surrounds it included."""
    if isinstance(message, content.ToolMessage):
        shown = sum(media_tokens(media, count) for media in message.media)
        return count(message.content) + shown + MESSAGE_OVERHEAD_TOKENS
    if isinstance(message, content.SystemMessage):
        return count(message.text) + MESSAGE_OVERHEAD_TOKENS
    total = MESSAGE_OVERHEAD_TOKENS
    for part in message.parts:
        match part:
            case content.Text() | content.Thinking():
                total += count(part.text)
            case content.ToolCall():
                total += count(part.name) + count(part.arguments) + MESSAGE_OVERHEAD_TOKENS
            case content.Media():
                total += media_tokens(part, count)
            case content.ServerTool():
                total += count(content.json_text(part.replay.data))
    return total


def media_tokens(media: content.Media, count: TokenCounter) -> int:
    """Tokens of a picture, sound, film or file: a rough estimate, by its kind and its bytes."""
    if isinstance(media, content.Document) and media.text:
        return count(media.text) + MESSAGE_OVERHEAD_TOKENS
    if isinstance(media, content.Image):
        return IMAGE_TOKENS
    data_bytes = len(media.data_base64) * 3 // 4
    bytes_a_token = next(rate for kind, rate in BYTES_A_TOKEN.items() if isinstance(media, kind))
    return data_bytes // bytes_a_token + MESSAGE_OVERHEAD_TOKENS if data_bytes else FAR_MEDIA_TOKENS


def tools_tokens(tools: Sequence[ToolDefinition], count: TokenCounter) -> int:
    """Tokens of what the model sees of its tools."""
    return sum(count(tool.name) + count(tool.description) + count(content.json_text(tool.parameters)) for tool in tools)


# What the model is asked.


def instructions(options: RequestOptions, *, has_tools: bool) -> str:
    """The system prompt; what it says of the tools only where tools are offered."""
    parts = (options.system_prompt, options.tool_prompt if has_tools else "")
    return "\n\n".join(part for part in parts if part)


#: What stays of a shortened result: enough to see what it was.
SHORTENED_RESULT_CHARS: Final = 400
#: Of what stays, the share of the beginning: it says what the text is. The end has sums, errors and the latest lines.
HEAD_SHARE: Final = 2 / 3
#: How far a cut moves back to a line's end or, where there is none, to a space or comma: this share of the piece.
CUT_SLACK: Final = 0.25
#: History is cut to this share of the limit: cutting at each step would spoil the provider's prompt cache each time.
CUT_TO: Final = 0.75
_FORCED: Final = frozenset({ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED})


@dataclass(slots=True)
class _Piece:
    """An atom as it is shown, and its size, counted once."""

    full: Atom
    """As it is recorded: what is shortened again is shortened from this."""
    messages: Atom
    tokens: int
    is_measured: bool = False
    """Whether a provider has counted it, as part of a prompt."""


class PromptBuilder:
    """Holds what the model is shown, the tools on offer and the budgets; makes one ModelRequest after the other."""

    def __init__(self, started: RequestStarted, spent: Spending, count: TokenCounter) -> None:
        self._options = options = started.options
        self._count = count
        self._steps_taken = 0
        self._model = options.model
        self._tells_calls = False
        """The model takes no tools: calls and results of the history are told in words."""
        self.definitions = tuple(offer.definition for offer in started.tools if offer.is_shown)
        """Of the tools that the model is shown."""
        self._tools_tokens = tools_tokens(self.definitions, count)
        self.offers: dict[ToolName, ToolOffer] = {offer.definition.name: offer for offer in started.tools}
        self._spent = spent
        atoms = content.split_atoms(started.history)
        leading = 0
        while leading < len(atoms) and isinstance(atoms[leading][0], content.SystemMessage):
            leading += 1
        self._leading = tuple(message for atom in atoms[:leading] for message in atom)
        """What the history itself begins with: instructions of the conversation."""
        self._most: int | None = None
        """What a prompt may have at the most, besides what the window says: set once a model has refused one."""
        self._head = self._make_head()
        self._old = [self._piece(atom) for atom in atoms[leading:]]
        self._user = self._piece((started.user,))
        self._steps: list[_Piece] = []
        self.size = PromptSize(options.token_ratio)
        """Of all messages and tool definitions."""
        self.size.add(self._tools_tokens + sum(piece.tokens for piece in self._pieces()))
        self._are_tools_measured = False
        self._flat: list[Message] = []
        self._cut_tokens = 0
        self._flatten()

    @property
    def tokens(self) -> int:
        """Of all messages and tool definitions, as estimated by the counter and what providers said so far."""
        return self.size.tokens

    def _make_head(self) -> _Piece:
        told = instructions(self._options, has_tools=bool(self.definitions))
        return self._piece((*((content.SystemMessage(told),) if told else ()), *self._leading))

    # What is asked next.

    def next_request(self, *, again: bool) -> ModelRequest | Stop:
        """The next model call; `again` when the last one came to nothing, and so was no step."""
        options = self._options
        if self._steps_taken >= options.max_steps and not again:
            return Stop(Outcome.STEP_LIMIT, f"The limit of {options.max_steps} steps was reached.")
        if not self.fit():
            told = f"What must be sent needs about {self.tokens} tokens; the window has {options.context_tokens}."
            return Stop(Outcome.TOKEN_LIMIT, told)
        allowed = allow_step(options, self._spent, self.tokens)
        if isinstance(allowed, Stop):
            return allowed
        self._steps_taken += 0 if again else 1
        sampling, choice = options.sampling, options.tool_choice
        if allowed != sampling.max_output_tokens:
            sampling = replace(sampling, max_output_tokens=allowed)
        if not self._may_choose(choice):
            choice = ToolChoice()
        parallel = options.parallel_tool_calls if self.definitions else None
        return ModelRequest(
            self._model,
            self.messages(),
            self.definitions,
            choice,
            parallel,
            sampling=sampling,
            provider_options=options.provider_options,
            server_tools=options.server_tools,
            prompt_cache=options.prompt_cache,
            storage=options.storage,
            service_tier=options.service_tier,
            images_out=options.images_out,
            audio_out=options.audio_out,
        )

    def _may_choose(self, choice: ToolChoice) -> bool:
        """A call is forced in the first step only, or the model could never answer; and no tool that is not shown."""
        if choice.mode in _FORCED and self._steps:
            return False
        if choice.mode is ToolChoiceMode.NAMED:
            return any(definition.name == choice.name for definition in self.definitions)
        return bool(self.definitions or self._options.server_tools)

    def messages(self) -> tuple[Message, ...]:
        """What the model is shown; only this tuple itself is built for each step."""
        return tuple(self._flat)

    def told_cut(self) -> str:
        """What was cut to fit since this was asked last, in a sentence for a person; "" where nothing was."""
        cut, self._cut_tokens = self._cut_tokens, 0
        if cut <= 0:
            return ""
        told = f"Older messages and results of about {cut:,} tokens were shortened or left out of the prompt"
        window = self._options.context_tokens
        return f"{told}, to fit into the {f'{window:,} of the ' if window else ''}model's context."

    # What came of it.

    def charge(self, usage: Usage | None, cost: float | None, answer: content.AssistantMessage) -> str:
        """Count what a model call used, as `Spending.add` does, and return its note."""

        def estimate() -> Usage:
            return Usage(self.tokens, message_tokens(answer, self._count))

        note = self._spent.add(usage, cost, estimate, self._options)
        if usage is not None and self.size.measured(usage.input_tokens):
            self._are_tools_measured = True
            for piece in self._pieces():
                piece.is_measured = True
        return note

    def add_step(self, messages: Atom) -> None:
        """A finished turn with all its results (and the notes after them): from now on the model is shown it."""
        piece = self._piece(messages)
        self._steps.append(piece)
        self._flat.extend(piece.messages)
        self.size.add(piece.tokens)

    def go_on_from(self, response_id: str) -> None:
        """The provider knows the model's last turn by this id: only what follows it is sent, if it was so at first."""
        storage = self._options.storage
        if storage is not None and storage.previous_response_id and response_id:
            self._options = replace(self._options, storage=replace(storage, previous_response_id=response_id))

    def give_up_tools(self, model: str) -> None:
        """This model takes no tools: from now on it is the one to ask, without them, and nothing speaks of them."""
        self.size.remove(self._tools_tokens, is_measured=self._are_tools_measured)
        self.offers, self.definitions, self._model, self._tells_calls = {}, (), model, True
        self._show(self._head, self._make_head().full)
        for piece in (*self._old, *self._steps):
            self._show(piece, piece.messages)
        self._flatten()

    # How it is made to fit.

    def fit(self) -> bool:
        """Cut until there is room for the prompt and its answer. False when what must stay leaves none for an answer.

        The room for the answer shrinks, down to MIN_OUTPUT_TOKENS, before a request is refused.
        """
        window = self._options.context_tokens
        limits = [self._most, None if window is None else window - answer_room(self._options)]
        limit = min((limit for limit in limits if limit is not None), default=None)
        if limit is not None and self.tokens > limit:
            self._cut(limit)
        return window is None or self.tokens + MIN_OUTPUT_TOKENS <= window

    def cut_harder(self, context_tokens: int | None) -> bool:
        """The model has refused the prompt as too long: cut it to OVERFLOW_SHARE, and to the window that it named.

        Both hold for the rest of the request. False where what must stay does not fit, or nothing could be cut.
        """
        sent, window = self.tokens, self._options.context_tokens
        named = [tokens for tokens in (window, context_tokens) if tokens is not None]
        self._options = replace(self._options, context_tokens=min(named, default=None))
        self._most = int(sent * OVERFLOW_SHARE)
        fits = self.fit()
        self._most = max(self._most, self.tokens)  # what must stay may be more
        return fits and self.tokens < sent

    def _cut(self, limit: int) -> None:
        before, target = self.tokens, int(limit * CUT_TO)
        self._shorten(self._old, target)
        self._drop_old(target)
        self._shorten(self._steps[:-1], limit)
        while len(self._steps) > 1 and self.tokens > limit:
            self._drop(self._steps)
        self._shorten(self._steps[-1:], limit)
        self._cut_tokens += before - self.tokens
        self._flatten()

    def _pieces(self) -> tuple[_Piece, ...]:
        return (self._head, *self._old, self._user, *self._steps)

    def _piece(self, messages: Atom) -> _Piece:
        sizes = [message_tokens(message, self._count) for message in messages]
        window = self._options.context_tokens
        limit = None if window is None else int(window * MAX_RESULT_WINDOW_SHARE)
        if (limit is None or max(sizes, default=0) <= limit) and not self._tells_calls:
            return _Piece(messages, messages, sum(sizes))
        shown = tuple(
            shorten_to(message, limit, self._count) if limit is not None and size > limit else message
            for message, size in zip(messages, sizes, strict=True)
        )
        return _Piece(messages, *self._in_words(shown))

    def _in_words(self, messages: Atom) -> tuple[Atom, int]:
        """As the model is shown it, and its tokens."""
        shown = calls_as_text(messages) if self._tells_calls else messages
        return shown, sum(message_tokens(message, self._count) for message in shown)

    def _show(self, piece: _Piece, messages: Atom) -> None:
        """Show these messages in place of those that the piece has shown."""
        shown, tokens = self._in_words(messages)
        if shown != piece.messages:
            self.size.remove(piece.tokens, is_measured=piece.is_measured)
            self.size.add(tokens)
            piece.messages, piece.tokens, piece.is_measured = shown, tokens, False

    def _flatten(self) -> None:
        self._flat = [message for piece in self._pieces() for message in piece.messages]

    def _shorten(self, pieces: Sequence[_Piece], target: int) -> None:
        for piece in pieces:
            if self.tokens <= target:
                return
            shortened = tuple(shorten_result(message) for message in piece.full)
            if self._in_words(shortened)[1] < piece.tokens:
                self._show(piece, shortened)

    def _drop(self, pieces: list[_Piece]) -> None:
        piece = pieces.pop(0)
        self.size.remove(piece.tokens, is_measured=piece.is_measured)

    def _drop_old(self, target: int) -> None:
        """Drop from the oldest on, and never let the rest begin with an answer to a question that is gone."""
        before = len(self._old)
        while self._old and self.tokens > target:
            self._drop(self._old)
        is_cut = len(self._old) < before
        while is_cut and self._old and not isinstance(self._old[0].messages[0], content.UserMessage):
            self._drop(self._old)


# Long results.


def shorten_result(message: Message, chars: int = SHORTENED_RESULT_CHARS) -> Message:
    """A tool result cut to `chars` of its beginning and end, and what was left out; any other message as it is.

    So is a result that would hardly be shorter: one of up to twice as many characters.
    """
    if not isinstance(message, content.ToolMessage) or len(message.content) <= chars * 2:
        return message
    return replace(message, content=shorten_text(message.content, chars))


def shorten_to(message: Message, tokens: int, count: TokenCounter) -> Message:
    """A tool result of at most `tokens`, or as short as results get; any other message as it is."""
    if not isinstance(message, content.ToolMessage):
        return message
    shown, size = message.content, message_tokens(message, count)
    chars = len(shown)
    while size > tokens and chars > SHORTENED_RESULT_CHARS:
        # What is dense in tokens may be what stays: at most a tenth is kept more than fits, then it is cut again.
        chars = max(int(chars * min(tokens / size, 0.9)), SHORTENED_RESULT_CHARS)
        shown = shorten_text(message.content, chars)
        size = message_tokens(replace(message, content=shown), count)
    return replace(message, content=shown)


def shorten_text(text: str, chars: int) -> str:
    """The beginning and the end of a text, together at most `chars` characters, cut where a line ends if one is near.

    Between them it says how much is left out, and how to get it.
    """
    first = _cut_before(text, int(chars * HEAD_SHARE), int(chars * HEAD_SHARE * CUT_SLACK))
    last = _cut_after(text, len(text) - (chars - int(chars * HEAD_SHARE)), int(chars * (1 - HEAD_SHARE) * CUT_SLACK))
    left_out = text[first:last]
    lines = f" (about {left_out.count(chr(10)):,} lines)" if "\n" in left_out else ""
    told = (
        f"[... {last - first:,} of {len(text):,} characters{lines} are left out here: the result is too long for the "
        "model's context. For the rest, call the tool for less at a time: a range, a page, a narrower query. ...]"
    )
    return f"{text[:first]}\n{told}\n{text[last:]}"


def _cut_before(text: str, end: int, slack: int) -> int:
    """Where to end: behind the last line end, space or comma of the `slack` characters before `end`."""
    found = (text.rfind(mark, end - slack, end) + 1 for mark in ("\n", " ", ","))
    return next((at for at in found if at), end)


def _cut_after(text: str, start: int, slack: int) -> int:
    """Where to go on: behind the first line end, space or comma of the `slack` characters from `start` on."""
    found = (text.find(mark, start, start + slack) + 1 for mark in ("\n", " ", ","))
    return next((at for at in found if at), start)
