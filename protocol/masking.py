"""Values that look like keys, replaced in what models, logs, terminals and failures show.

Two kinds are found: formats that their makers gave a prefix (`FORMATS`), and values behind a name that says what they
are (`password = "..."`, `API_KEY=...`), as long as the value looks made up by a machine or chosen as a password, not
like a word, a path or a reference. What is found is covered with a mask of as many bytes, so byte offsets into the text
stay exact; line ends are kept, and the signs by which a shell or a program tells code from words (`SIGNS`), so that no
code hides in what looks like a key. The time is linear in the length of the text: every pattern begins with a literal
or is tried at a known place, and looks at a bounded number of bytes from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from string import ascii_letters, digits
from typing import Final, NamedTuple, NewType

from callboard.protocol.key_formats import FORMATS, NO_KEY
from callboard.protocol.lazy_loading import lazy_pattern

#: Begins every mask, and ends those of six bytes and more, with asterisks in between. Unicode has it for a key on
#: keyboards ("X in a rectangle box"); it is in no file of the standard library. Three bytes in UTF-8: a
#: shorter piece is all asterisks.
MARK: Final = "\N{X IN A RECTANGLE BOX}"
_MARK: Final = MARK.encode()
#: A private key of 16,384 bits has 13 kB in PEM. Where the part that is shown is cut out of a text, so much more of it
#: is masked, since the cut may go through a key.
LONGEST_KEY_BYTES: Final = 14_000
#: A value that reaches into the part that is shown begins at most this far before it, and ends at most so far behind.
WINDOW_BYTES: Final = 64 * 1024

Span = tuple[int, int]
ForModel = NewType("ForModel", str)
"""With values that look like keys covered: a model's provider reads it."""
ForLog = NewType("ForLog", str)
"""Likewise, for logs, spans, failures and what the command line tells on the way."""


def mask(text: str) -> ForModel:
    """The text with every value that looks like a key covered; the number of its bytes in UTF-8 stays the same."""
    data = text.encode("utf-8", "surrogatepass")
    spans = _spans(data)
    return ForModel(_covered(data, spans, 0, len(data)).decode("utf-8", "surrogatepass") if spans else text)


def for_log(text: str) -> ForLog:
    """The same for what people read of what happened: logs, spans, failures, what the command line tells."""
    return ForLog(mask(text))


def mask_bytes(data: bytes, start: int = 0, end: int | None = None) -> bytes:
    """`data[start:end]` as it is shown. What is before and behind it decides too: it may cut through a key."""
    stop = len(data) if end is None else min(end, len(data))
    first = max(0, start - WINDOW_BYTES)
    spans = _spans(data[first : stop + WINDOW_BYTES])
    return _covered(data, [(first + begin, first + until) for begin, until in spans], start, stop)


def has_mask(text: str) -> bool:
    """Does the text hold a mask, or a piece of one? What does cannot be written back: the value would be lost."""
    return MARK in text


def _covered(data: bytes, spans: list[Span], start: int, end: int) -> bytes:
    pieces: list[bytes] = []
    shown = start
    for begin, until in sorted(spans):
        begin, until = max(begin, shown), min(until, end)
        if begin >= until:
            continue
        pieces.append(data[shown:begin])
        lines = data[begin:until].splitlines(keepends=True)
        pieces.extend(_cover(line) for line in lines)
        shown = until
    pieces.append(data[shown:end])
    return b"".join(pieces)


#: Never covered. A password may hold them; what is between them is covered then.
SIGNS: Final = b";&|<>()$`\"'"
_PIECES: Final = lazy_pattern(rb"[%b]+|[^%b]+" % (SIGNS, SIGNS))


def _cover(line: bytes) -> bytes:
    """A mask for one line, without its end and the spaces before its text."""
    return b"".join(each if each[0] in SIGNS else _cover_piece(each) for each in _PIECES.findall(line))


def _cover_piece(line: bytes) -> bytes:
    text = line.strip()
    if not text:
        return line
    before, behind = line[: len(line) - len(line.lstrip())], line[len(line.rstrip()) :]
    size, mark = len(text), len(_MARK)
    if size < mark:
        return before + b"*" * size + behind
    closing = _MARK if size >= 2 * mark else b""
    return before + _MARK + b"*" * (size - mark - len(closing)) + closing + behind


# -- formats that their makers gave a prefix -------------------------------------------------------------------------


def _by_prefix() -> dict[bytes, tuple[re.Pattern[bytes], ...]]:
    found: dict[bytes, tuple[re.Pattern[bytes], ...]] = {}
    for each in FORMATS:
        found[each.prefix.encode()] = (*found.get(each.prefix.encode(), ()), lazy_pattern(each.rest.encode()))
    return found


def _any_prefix(prefixes: Iterable[bytes]) -> bytes:
    """Where one of them begins a word, the longest. By first letters: 200 alternatives would be tried one by one."""
    by_letter: dict[bytes, list[bytes]] = {}
    for each in sorted(prefixes, key=len, reverse=True):
        by_letter.setdefault(each[:1], []).append(re.escape(each[1:]))
    letters = (re.escape(letter) + b"(?:" + b"|".join(rests) + b")" for letter, rests in by_letter.items())
    return b"(?<![A-Za-z0-9])(?=(" + b"|".join(letters) + b"))"


_RESTS: Final = _by_prefix()
_STARTS: Final = lazy_pattern(_any_prefix(_RESTS))
#: A letter or digit before the prefix makes it part of another word, unless it is the end of another key.
_IN_A_WORD: Final = lazy_pattern(rb"[A-Za-z0-9]")


#: A key is one long word. Looking for the prefixes in these alone takes a quarter of the time: few words are so long.
_SHORTEST_KEY: Final = 15
_SPACES: Final = bytes(each if chr(each) in f"{ascii_letters}{digits}_.+/=-" else ord(" ") for each in range(256))


def _formats(data: bytes) -> Iterator[Span]:
    words = b" ".join(word for word in data.translate(_SPACES).split() if len(word) >= _SHORTEST_KEY)
    starts = set(_STARTS.findall(words))
    begun = {each for each in _RESTS if any(start.startswith(each) for start in starts)} if starts else set[bytes]()
    found = _keys(data, begun)
    if found:  # behind the end of a key another may begin within the same word
        found = _keys(data, {each for each in _RESTS if each in words})
    ends: set[int] = set()
    for at, end in sorted(found):
        if at in ends or not (at and _IN_A_WORD.match(data, at - 1)):
            ends.add(end)
            yield at, end


def _keys(data: bytes, prefixes: set[bytes]) -> list[Span]:
    found: list[Span] = []
    for prefix in prefixes:
        for rest in _RESTS[prefix]:
            at = data.find(prefix)
            while at >= 0:
                key = rest.match(data, at + len(prefix))
                if key and key.lastgroup != NO_KEY and _is_key(prefix, key.group()):
                    found.append((at, key.end()))
                at = data.find(prefix, key.end() if key else at + len(prefix))
    return found


def _is_key(prefix: bytes, rest: bytes) -> bool:
    """Not `sk-xxxxxxxxxxxxxxxxxxxx`, nor the name of a CSS class."""
    body = rest.rpartition(b"/")[2] if b"/" in prefix else rest
    return len(set(body)) >= _DISTINCT and (_DIGIT.search(body) is not None or _LONG_RUN.search(body) is not None)


#: Placeholders repeat a few characters; of twenty random ones out of 16, fewer than seven are distinct once in 10^5.
_DISTINCT: Final = 7
_DIGIT: Final = lazy_pattern(rb"[0-9]")
#: Letters without a break as few words have them.
_LONG_RUN: Final = lazy_pattern(rb"[A-Za-z]{16,}")


# -- shapes that can be told without a name --------------------------------------------------------------------------


class Shape(NamedTuple):
    """`pattern` is looked for where `literal` occurs; its group 1 is masked, where `judged` only if it looks random."""

    literal: bytes
    pattern: re.Pattern[bytes]
    judged: bool
    source: str


#: What may be between two lines of a key that stands in a comment, a quotation or the source of a program.
_BETWEEN_LINES: Final = rb"""(?: [\s"'`+,#*>;|] | //[ ] | \\[nr] )"""
# Groups of several parts are repeated greedily and not possessively: before Python 3.11.5 a possessive one keeps what
# its last, failed round had passed. They stay linear, since their parts begin with different characters.
SHAPES: Final = (
    Shape(
        b"PRIVATE KEY",
        lazy_pattern(
            rb"""
            ----[ ]?BEGIN[ ][A-Z0-9 ]{0,40}PRIVATE\ KEY(?:\ BLOCK)?-----?
            (%(between)b*+
             # Such as Proc-Type: 4,ENCRYPTED
             (?: [A-Za-z-]{3,20}+:\ [^\r\n\\"']{0,200}+ %(between)b*+ ){0,8}
             (?: [A-Za-z0-9+/=]{16,}+ | [A-Za-z0-9+/=]{2,}+ (?= [\r\n"'`\\] ) )
             (?: %(between)b++ [A-Za-z0-9+/=]++ (?= [\r\n"'`\\,-] | \Z ) )* )
            """
            % {b"between": _BETWEEN_LINES},
            re.VERBOSE,
        ),
        judged=False,
        source="RFC 7468 (PEM), RFC 4716 (SSH2), RFC 9580 (OpenPGP)",
    ),
    Shape(
        b"Private-Lines:",
        lazy_pattern(rb"Private-Lines: [0-9]{1,4}\r?\n((?:[A-Za-z0-9+/=]++\r?\n?)++)"),
        judged=False,
        source="PuTTY user manual, appendix C",
    ),
    Shape(
        b"://",
        lazy_pattern(
            rb"(?i)://[^\s:/?#@\"'`<>]{0,128}+:(?!pass(?:word|wd)?@|pwd@|secret@|token@)([^\s/@\"'`<>(){}$%*]{4,512}+)@"
        ),
        judged=False,
        source="RFC 3986, 3.2.1: user information",
    ),
    Shape(b"://", lazy_pattern(rb"://([A-Za-z0-9_-]{20,512}+)@"), judged=True, source="a token as the user of a URL"),
    Shape(
        b"=",
        lazy_pattern(rb"[?&](?:sig|key|code|auth|signature)=([^\s&\"'`<>#;|()$]{12,512}+)"),
        judged=True,
        source="learn.microsoft.com: shared access signatures; Google: keys in the query",
    ),
    Shape(
        b":AA",
        lazy_pattern(rb"(?<![0-9])([0-9]{8,10}+:AA[\w-]{30,})"),
        judged=False,
        source="core.telegram.org/bots",
    ),
    *(
        Shape(word, lazy_pattern(word + rb"[ \t]++([A-Za-z0-9._~+/-]{12,4096}+={0,2})"), True, "RFC 6750, RFC 7617")
        for word in (b"Bearer", b"bearer", b"BEARER", b"Basic", b"basic", b"Token", b"SSWS")
    ),
    *(
        Shape(literal, lazy_pattern(pattern), False, source)
        for literal, pattern, source in (
            (b"sha256~", rb"sha256~([\w-]{43})(?![\w-])", "docs.openshift.com: OAuth tokens"),
            (b"token-", rb"token-([a-z0-9]{5}:[a-z0-9]{50,})", "ranchermanager.docs.rancher.com: API keys"),
            (b"_gitlab_session", rb"_gitlab_session=([0-9a-f]{32})", "docs.gitlab.com: session cookies"),
            (b"-us", rb"-us(?=[0-9]{1,2}(?![0-9]))(?<=([0-9a-f]{32})-us)", "mailchimp.com/developer: API keys"),
        )
    ),
    *(
        # Their mark is in the middle or at the end. What is before it is tried at the beginnings of words alone.
        Shape(literal, lazy_pattern(rb"(?<![A-Za-z0-9])" + pattern), False, source)
        for literal, pattern, source in (
            (b".atlasv1.", rb"([A-Za-z0-9]{14}\.atlasv1\.[\w-]{50,})", "developer.hashicorp.com/terraform: API tokens"),
            (b"Q~", rb"([\w~.-]{3}[0-9]Q~[\w~.-]{31,34})", "learn.microsoft.com/entra: client secrets"),
            (b"JQQJ9", rb"([A-Za-z0-9]{52}JQQJ9[A-Za-z0-9+/]{20,})", "learn.microsoft.com: Azure keys"),
            (b"AZDO", rb"([A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4})", "learn.microsoft.com/azure/devops: access tokens"),
            (b"_mmk", rb"([A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk)", "support.maxmind.com: license keys"),
            (b"NRAL", rb"([0-9a-fA-F]{30,40}NRAL)", "docs.newrelic.com: license keys"),
        )
    ),
    Shape(
        b"login",
        lazy_pattern(rb"login\s{1,9}+[^\s]{1,128}+\s{1,9}+password\s{1,9}+([^\s;&|<>()$`\"']{6,512}+)"),
        judged=False,
        source="netrc(5)",
    ),
    Shape(
        b"AKIA",
        lazy_pattern(rb"AKIA[A-Z0-9]{16}[^A-Za-z0-9/+\n]{1,20}([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])"),
        judged=False,
        source="docs.aws.amazon.com/IAM: a downloaded access key, both parts in a row",
    ),
    Shape(
        b"--",
        lazy_pattern(
            rb"--(?<![\w-]--)(?:[a-z]{1,20}-){0,3}(?:password|passwd|passphrase|token|secret|key)[ \t]++"
            rb"[\"']?([^\s\"'`$<>(){};&|]{6,512}+)"
        ),
        judged=True,
        source="options of command lines",
    ),
)


def _shapes(data: bytes) -> Iterator[Span]:
    for literal, pattern, judged, _ in SHAPES:
        if literal in data:
            for found in pattern.finditer(data):
                if not judged or _looks_random(found.group(1)):
                    yield found.span(1)


# -- values behind a name --------------------------------------------------------------------------------------------


class SecretName(NamedTuple):
    """How a name ends whose value is a secret; `before` is what must precede it, where it alone says too little."""

    literal: bytes
    ending: re.Pattern[bytes]
    before: re.Pattern[bytes] | None = None
    chosen: bool = False
    """By a person: shorter, and nearer to a word."""


NAMES: Final = (
    SecretName(b"pass", lazy_pattern(rb"pass(?:word|wd|phrase|code)?+"), chosen=True),
    SecretName(b"pwd", lazy_pattern(rb"pwd"), chosen=True),
    SecretName(b"secret", lazy_pattern(rb"secrets?+")),
    SecretName(b"token", lazy_pattern(rb"token")),
    SecretName(b"credential", lazy_pattern(rb"credentials?+")),
    SecretName(b"auth", lazy_pattern(rb"auth"), lazy_pattern(rb"(?:^|[^a-z0-9])$")),
    SecretName(
        b"key",
        lazy_pattern(rb"key"),
        lazy_pattern(
            rb"(?:api|access|secret|private|account|signing|encryption|decryption|auth|master|session|shared|client"
            rb"|deploy|service|license|storage|admin|app|crypt|hmac|jwt|webhook|subscription|token|security)[_. -]?$"
        ),
    ),
)
#: The longest word that may have to precede a name, and what separates them.
_LOOK_BEHIND: Final = 16

#: From the end of a name to the end of its value. Repeated characters are possessive: each byte is looked at once.
_VALUE: Final = lazy_pattern(
    rb"""
    (?:[_-]?(?:value|b64|base64|[0-9]{1,2}))?                      # API_KEY_2, SECRET_VALUE
    (?P<closed>\\?["'`])?+ \]?+ [ \t]*+
    (?: : [ \t]*+ [A-Za-z][\w.\[\]|]{0,40}+ (?:[ ]\|[ ]None)?+ [ \t]*+ = (?!=)   # name: type = value
      | string [ \t]*+ = (?!=)                                     # Go: name string = value
      | [!:=?]{1,2}+ (?<=[:=]) >?+
      | ,?+ \s{0,40}+ \\?["']?+ value \\?["']?+ [ \t]*+ [:=]         # name: NAME, value: ..., <add key="" value=""/>
      | (?(closed) , | > )                                         # get("NAME", "value"), <name>value</name>
    )
    [ \t]*+ [rbfuRBFU@]{0,2}+
    (?: "(?P<double>(?:[^"\\\n]|\\.){4,512}+)"
      | '(?P<single>(?:[^'\\\n]|\\.){4,512}+)'
      | `(?P<tick>[^`\\\n]{4,512}+)`
      | \\"(?P<inner>[^"\\\n]{4,512}+)\\"
      | (?P<bare>[^\s"'`,;(){}\[\]<>&|\#\\=]{6,512}+={0,2}+) (?![(\[{=]) (?P<last>(?=[ \t]*+[\r\n]|[ \t]*+\Z))?+
    )
    """,
    re.VERBOSE,
)
_QUOTED: Final = ("double", "single", "tick", "inner")


def _named(data: bytes) -> Iterator[Span]:
    lower = data.lower()
    for literal, ending, before, chosen in NAMES:
        if literal not in lower:
            continue
        at = 0
        while found := ending.search(lower, at):
            at = found.end()
            if before is not None and not before.search(lower[max(0, found.start() - _LOOK_BEHIND) : found.start()]):
                continue
            if value := _VALUE.match(data, at):
                kind = next((each for each in _QUOTED if value[each] is not None), "bare")
                to_the_end = value["last"] is not None and not data.endswith(b"= ", at, value.start("bare"))
                if _is_secret(value[kind], chosen, is_clear=kind != "bare" or to_the_end):
                    yield value.span(kind)
                at = value.end()


#: Stands for a value that is elsewhere, or is no value: a variable, a template, a path, an address, a checksum.
_REFERENCE: Final = lazy_pattern(
    rb"[$%<{(\[@&*~|]|\.{0,2}/[a-z]|(?:arn|urn|env|vault|file|sha[0-9]{1,3}|md5)[:-]|[a-z][a-z0-9+.-]{1,20}+://"
    rb"|0x[0-9a-f]{1,31}\Z|.{0,512}?(?:\$\{|\{\{|\$\()",
    re.IGNORECASE | re.DOTALL,
)
#: Words with a few digits, joined by what joins words in names, paths and versions.
_WORDS: Final = lazy_pattern(
    rb"[^A-Za-z0-9\x80-\xff]*+(?:[A-Za-z\x80-\xff]++[0-9]{0,3}+|[0-9]{1,4}+[A-Za-z]{0,3}+)"
    rb"(?:[_.:/\s-]++(?:[A-Za-z\x80-\xff]++[0-9]{0,3}+|[0-9]{1,4}+[A-Za-z]{0,3}+))*[^A-Za-z0-9\x80-\xff]*+\Z"
)
_ONE_WORD_WITH_DIGITS: Final = lazy_pattern(rb"[A-Za-z\x80-\xff]{3,}+[0-9]{1,3}\Z")
_SYMBOL_INSIDE: Final = lazy_pattern(rb"\w[!@#$%^&*+?~]++\w")
_LETTER: Final = lazy_pattern(rb"[A-Za-z\x80-\xff]")
#: Shorter values are words of a code, such as "utf8".
_SHORTEST: Final = 8
_SHORTEST_CHOSEN: Final = 6


def _is_secret(value: bytes, chosen: bool, is_clear: bool) -> bool:
    """`is_clear`: certainly a value, in quotes or up to the end of its line; a bare word may be a variable's name."""
    if not chosen:
        return _looks_random(value)
    if len(value) < _SHORTEST_CHOSEN or len(set(value)) < _SHORTEST_CHOSEN - 2 or _cannot_be(value):
        return False
    if _WORDS.match(value):
        return is_clear and _ONE_WORD_WITH_DIGITS.match(value) is not None
    return _DIGIT.search(value) is not None or (is_clear and _SYMBOL_INSIDE.search(value) is not None)


def _looks_random(value: bytes) -> bool:
    """Letters and digits mixed as in no word, path or version."""
    if len(value) < _SHORTEST or len(set(value)) < _DISTINCT or _cannot_be(value) or _WORDS.match(value):
        return False
    return _DIGIT.search(value) is not None and _LETTER.search(value) is not None


def _cannot_be(value: bytes) -> bool:
    return _MARK in value or any(each in value for each in b" \t") or _REFERENCE.match(value) is not None


#: Nothing to cover: a mask, or what is left of one.
_COVERED: Final = lazy_pattern(rb"(?:%b|[*\s%b])*+\Z" % (_MARK, SIGNS))
#: A mask changes what its neighbours look like: behind it begins a word, and a word that a longer one had swallowed is
#: seen. Ordinary texts need two looks, the second to see that nothing is left.
_MOST_LOOKS: Final = 8


def _spans(data: bytes) -> list[Span]:
    """What is to be covered, so that nothing is found in what is shown; no span begins or ends within a character."""
    spans: list[Span] = []
    shown = data
    for _ in range(_MOST_LOOKS):
        found = [span for span in _look(shown) if not _COVERED.match(shown, *span)]
        if not found:
            return spans
        spans += found
        shown = _covered(data, spans, 0, len(data))
    # Only a text that was made to hide keys from us needs more: none of it is shown.
    return [(0, len(data))]


def _look(data: bytes) -> Iterator[Span]:
    for begin, end in (*_formats(data), *_shapes(data), *_named(data)):
        yield _character(data, begin), _character(data, end)


def _character(data: bytes, at: int) -> int:
    """Where the next character begins: a pattern that counts bytes may stop within one."""
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return at
