"""Words of code: identifiers split into their parts, kept whole as well. Stems are tantivy's (lexical.py)."""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache

#: An identifier or a number; `\w` so that names in any script count.
WORD = re.compile(r"\w+")
#: HTTPResponse2xx -> HTTP Response 2 xx
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
#: The same for the outline of a word in any script: A for a capital letter, a for a small one, 0 for a digit, x for a
#: letter without case.
OUTLINE_PART = re.compile(r"A+(?!a)|A?a+|0+|x+")
#: Beyond this there are no combining marks in any language that is written today.
_LAST_MARK = 0x1F000
#: Longer words are hashes, base64 and the like: they are never asked for and swell the dictionary.
MAX_WORD_CHARS = 60
#: Longer digit runs are data.
MAX_DIGITS = 6


def word_set(text: str) -> frozenset[str]:
    """A table of words, written as text."""
    return frozenset(text.split())


#: Words of questions that say nothing about the code asked for.
STOP_WORDS = word_set(
    """a about across actually after against all along also am an and another any are as at be because been before being
    between but by can code codebase could did do does doing done during each either else ever every exactly explain
    file files find for from get gets getting give given go goes had happen happened happens has have having he her here
    his how i if implement implementation implemented implements in into is it its itself just kind let like locate look
    logic made main make makes many may me mechanism might more most much must my need no not now of off on once one
    only or other our out over part per place please project repo repository responsible s same shall she should show
    since so some something source still such t take takes tell than that the their them then there these they thing
    this those through to too under until up upon us use used uses using very via want was we were what when where
    whether which while who whole whose why will with within without work working works would you your"""
)
#: Endings which a stemmer leaves apart: who parses (`parser`) is not stemmed like what is `parsed`, nor `recovery` like
#: `recover`.
_ENDINGS = ("ers", "ors", "ery", "ation", "ion", "ing", "ed", "er", "or", "y")
#: Fewer letters before an ending are a word of their own: `user`, `error`, `body`.
_MIN_ROOT_CHARS = 4


@lru_cache(maxsize=400_000)
def expand(word: str) -> str:
    """The parts of one identifier and, if there are several, the whole: `maxRetries` -> `max retries maxretries`."""
    if len(word) > MAX_WORD_CHARS:
        return ""
    if word.isdigit():
        return word if len(word) <= MAX_DIGITS else ""
    if word.islower() and word.isalpha():
        return _folded(word)
    if word.isascii():
        parts = PART.findall(word)
    else:
        parts = [word[part.start() : part.end()] for part in OUTLINE_PART.finditer(_outline(word))]
    if len(parts) > 1:
        parts.append(word.strip("_"))
    return " ".join(map(_folded, parts))


def _folded(word: str) -> str:
    """Without case: `Straße` as `STRASSE`, and the Turkish `İ` as `i`."""
    return word.lower() if word.isascii() else word.casefold().replace("i\u0307", "i")


def _outline(word: str) -> str:
    outline = ""
    for letter in word:
        if letter == "_":
            outline += "_"
        elif letter.isupper() or letter.istitle():
            outline += "A"
        elif letter.islower():
            outline += "a"
        elif letter.isdecimal():
            outline += "0"
        else:  # a mark belongs to the letter before it
            outline += "a" if outline[-1:] in ("A", "a") and unicodedata.category(letter)[0] == "M" else "x"
    return outline


@cache
def _any_word() -> re.Pattern[str]:
    """WORD for all scripts: in many, vowels are marks on letters, which `\\w` leaves out. Takes 20 ms, once."""
    marks = "".join(chr(code) for code in range(0x300, _LAST_MARK) if unicodedata.category(chr(code))[0] == "M")
    return re.compile(f"[\\w{marks}]+")


def terms_of(text: str) -> str:
    """All words of a text, expanded, in order, separated by spaces. Ways to write one word count as one (NFKC), as they
    do in Python's own identifiers."""
    if text.isascii():
        return " ".join(map(expand, WORD.findall(text)))
    return " ".join(map(expand, _any_word().findall(unicodedata.normalize("NFKC", text))))


def query_words(query: str) -> list[str]:
    """The words of a question worth looking for, once each, in order; all of them if it has only stop words."""
    words = terms_of(query).split()
    wanted = [word for word in words if word not in STOP_WORDS and (len(word) > 1 or not word.isascii())]
    return list(dict.fromkeys(wanted or words))


def kin_of(word: str) -> list[str]:
    """Words of the same family that stemming does not join: `recovery` -> `recov recove recover recovor`. Those that do
    not exist cost nothing, since no document holds them."""
    if not word.isalpha():
        return []
    ending = next((each for each in _ENDINGS if word.endswith(each) and len(word) - len(each) >= _MIN_ROOT_CHARS), "")
    root = word.removesuffix(ending) if ending else word.rstrip("s").removesuffix("e")
    if len(root) < _MIN_ROOT_CHARS:
        return []
    kin = [root, f"{root}e", f"{root}er", f"{root}or"] if ending else [f"{root}er", f"{root}or"]
    return [each for each in kin if each != word]
