"""How many tokens a text, a message and a prompt have.

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
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final

from msgspec import Struct

from callboard.protocol import content
from callboard.protocol.content import Message
from callboard.protocol.limits import MAX_FRAMING_TOKENS, MIN_RATIO_TOKENS, TOKEN_RATIO_BOUNDS
from callboard.protocol.tools import ToolDefinition

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
    return (_estimate_short if len(text) <= _SHORT else _estimate_long if len(text) <= _LONG else _estimate)(text)


def _estimate(text: str) -> int:
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


#: Such texts come again and again: names of tools, their schemas, arguments, results that stand in the prompt already.
_SHORT: Final = 512
_estimate_short: Final = lru_cache(maxsize=2_048)(_estimate)
#: Each of these comes a few times in a row: as it is recorded, shortened, cleared, told in words, or summarised.
_LONG: Final = 16_384
_estimate_long: Final = lru_cache(maxsize=64)(_estimate)


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


class PromptSize(Struct):
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
    return _MESSAGE_TOKENS[type(message)](message, count) + MESSAGE_OVERHEAD_TOKENS


def _result_tokens(message: content.ToolMessage, count: TokenCounter) -> int:
    shown = sum(media_tokens(media, count) for media in message.media) if message.media else 0
    return count(message.content) + shown


def _tokens_of_parts(message: content.UserMessage | content.AssistantMessage, count: TokenCounter) -> int:
    total = 0
    for part in message.parts:
        total += _PART_TOKENS[type(part)](part, count)
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


#: What each kind of message comes to, without what surrounds it.
_MESSAGE_TOKENS: Final[Mapping[type[Message], Callable[[Any, TokenCounter], int]]] = {
    content.SystemMessage: lambda message, count: count(message.text),
    content.UserMessage: _tokens_of_parts,
    content.AssistantMessage: _tokens_of_parts,
    content.ToolMessage: _result_tokens,
}
#: What each kind of a message's parts comes to.
_PART_TOKENS: Final[Mapping[type[content.AssistantPart | content.UserPart], Callable[[Any, TokenCounter], int]]] = {
    content.Text: lambda part, count: count(part.text),
    content.Thinking: lambda part, count: count(part.text),
    content.ToolCall: lambda part, count: count(part.name) + count(part.arguments) + MESSAGE_OVERHEAD_TOKENS,
    content.ServerTool: lambda part, count: count(content.json_text(part.replay.data)),
    **dict.fromkeys((content.Image, content.Audio, content.Video, content.Document), media_tokens),
}


def tools_tokens(tools: Sequence[ToolDefinition], count: TokenCounter) -> int:
    """Tokens of what the model sees of its tools."""
    return sum(count(tool.name) + count(tool.description) + count(content.json_text(tool.parameters)) for tool in tools)
