"""Words of code: identifiers split into their parts, kept whole as well. Stems are tantivy's (lexical.py)."""

from __future__ import annotations

import re
from functools import lru_cache

#: An identifier or a number; `\w` so that names in any script count.
WORD = re.compile(r"\w+")
#: HTTPResponse2xx -> HTTP Response 2 xx
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W_a-zA-Z0-9]+")
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
        return word
    parts = [part.lower() for part in PART.findall(word)]
    if len(parts) > 1:
        parts.append(word.lower().strip("_"))
    return " ".join(parts)


def terms_of(text: str) -> str:
    """All words of a text, expanded, in order, separated by spaces."""
    return " ".join(map(expand, WORD.findall(text)))


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
