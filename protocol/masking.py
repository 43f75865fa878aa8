"""Values that look like keys, replaced in what models, logs, terminals and failures show.

Two kinds are found: formats that their makers gave a prefix (`FORMATS`), and values behind a name that says what they
are (`password = "..."`, `API_KEY=...`), as long as the value looks made up by a machine or chosen as a password, not
like a word, a path or a reference. What is found is covered with a mask of as many bytes, so byte offsets into the text
stay exact; line ends are kept. The time is linear in the length of the text: every pattern begins with a literal or is
tried at a known place, and looks at a bounded number of bytes from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import ascii_letters, digits
from typing import Final, NamedTuple

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


def mask(text: str) -> str:
    """The text with every value that looks like a key covered; the number of its bytes in UTF-8 stays the same."""
    data = text.encode("utf-8", "surrogatepass")
    spans = _spans(data)
    return _covered(data, spans, 0, len(data)).decode("utf-8", "surrogatepass") if spans else text


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


def _cover(line: bytes) -> bytes:
    """A mask for one line, without its end and the spaces before its text."""
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


class KeyFormat(NamedTuple):
    """Keys that begin with `prefix`; `rest` is what follows it, `source` who says so."""

    prefix: str
    rest: str
    source: str


_WORD: Final = "[A-Za-z0-9]"
_URL_SAFE: Final = "[A-Za-z0-9_-]"
_BASE64: Final = "[A-Za-z0-9+/]"
_HEX: Final = "[0-9a-fA-F]"

#: A group of this name holds what is no key, and is not looked at again: a word of one prefix after the other would
#: be read to its end from each of them.
_NO_KEY: Final = "no_key"

#: Lengths are the least that is taken for a key, somewhat below what the makers give out.
FORMATS: Final[tuple[KeyFormat, ...]] = (
    KeyFormat("sk-", rf"{_URL_SAFE}{{16,}}", "platform.openai.com, docs.anthropic.com, openrouter.ai, deepseek.com"),
    KeyFormat("sk_", rf"(?:live|test|prod)_{_WORD}{{16,}}", "docs.stripe.com/keys, docs.clerk.com"),
    KeyFormat("pk_", rf"(?:live|test|prod)_{_WORD}{{16,}}", "docs.stripe.com/keys"),
    KeyFormat("rk_", rf"(?:live|test|prod)_{_WORD}{{16,}}", "docs.stripe.com/keys"),
    KeyFormat("whsec_", rf"{_BASE64}{{24,}}=*", "docs.stripe.com/webhooks"),
    KeyFormat("AIza", rf"{_URL_SAFE}{{30,}}", "cloud.google.com/docs/authentication/api-keys"),
    KeyFormat("ya29.", rf"{_URL_SAFE}{{20,}}", "developers.google.com/identity/protocols/oauth2"),
    KeyFormat("GOCSPX-", rf"{_URL_SAFE}{{20,}}", "developers.google.com/identity/protocols/oauth2"),
    *(KeyFormat(f"gh{kind}_", rf"{_WORD}{{20,}}", "github.blog/2021-04-05: token formats") for kind in "pousr"),
    KeyFormat("github_pat_", r"\w{22,}", "docs.github.com/authentication: fine-grained tokens"),
    *(
        KeyFormat(f"gl{kind}-", r"[\w.-]{16,}", "docs.gitlab.com/security/tokens")
        for kind in ("pat", "dt", "ft", "rt", "soat", "cbt", "ptt", "imt", "agent", "oas", "ffct")
    ),
    KeyFormat("xox", r"[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{16,}", "docs.slack.dev/authentication/tokens"),
    KeyFormat("xapp-", r"[A-Za-z0-9-]{16,}", "docs.slack.dev/authentication/tokens"),
    KeyFormat("hooks.slack.com/", r"(?:services|workflows|triggers)/[\w/+-]{16,}", "docs.slack.dev: incoming webhooks"),
    KeyFormat("AKIA", r"[A-Z0-9]{16}(?![A-Z0-9])", "docs.aws.amazon.com/IAM: unique identifiers"),
    KeyFormat("ASIA", r"[A-Z0-9]{16}(?![A-Z0-9])", "docs.aws.amazon.com/IAM: unique identifiers"),
    KeyFormat("ABSK", rf"{_BASE64}{{60,}}=*", "docs.aws.amazon.com/bedrock: API keys"),
    KeyFormat("SG.", rf"{_URL_SAFE}{{16,}}\.{_URL_SAFE}{{16,}}", "docs.sendgrid.com: API keys"),
    KeyFormat("key-", r"[0-9a-f]{32}(?![0-9A-Za-z])", "documentation.mailgun.com"),
    KeyFormat("SK", r"[0-9a-f]{32}(?![0-9A-Za-z])", "twilio.com/docs/iam/api-keys"),
    KeyFormat("hf_", rf"{_WORD}{{20,}}", "huggingface.co/docs/hub/security-tokens"),
    KeyFormat("gsk_", rf"{_WORD}{{20,}}", "console.groq.com/docs"),
    KeyFormat("xai-", rf"{_WORD}{{20,}}", "docs.x.ai"),
    KeyFormat("csk-", rf"{_WORD}{{20,}}", "inference-docs.cerebras.ai"),
    KeyFormat("pplx-", rf"{_WORD}{{20,}}", "docs.perplexity.ai"),
    KeyFormat("nvapi-", rf"{_URL_SAFE}{{20,}}", "docs.api.nvidia.com"),
    KeyFormat("r8_", rf"{_WORD}{{20,}}", "replicate.com/docs/topics/security/api-tokens"),
    KeyFormat("tvly-", rf"{_URL_SAFE}{{16,}}", "docs.tavily.com"),
    KeyFormat("jina_", rf"{_URL_SAFE}{{20,}}", "jina.ai/embeddings"),
    KeyFormat("pcsk_", rf"{_URL_SAFE}{{20,}}", "docs.pinecone.io"),
    KeyFormat("lsv2_", rf"(?:pt|sk)_{_URL_SAFE}{{20,}}", "docs.smith.langchain.com"),
    KeyFormat("npm_", rf"{_WORD}{{30,}}", "docs.npmjs.com: about access tokens"),
    KeyFormat("pypi-", rf"{_URL_SAFE}{{32,}}", "pypi.org/help#apitoken"),
    KeyFormat("rubygems_", rf"{_HEX}{{32,}}", "guides.rubygems.org/api-key-scopes"),
    KeyFormat("dckr_", rf"(?:pat|oat)_{_URL_SAFE}{{20,}}", "docs.docker.com/security/access-tokens"),
    *(KeyFormat(f"do{kind}_v1_", rf"{_HEX}{{32,}}", "docs.digitalocean.com/reference/api") for kind in "opr"),
    KeyFormat("shp", rf"(?:at|ca|pa|ss|tka)_{_HEX}{{24,}}", "shopify.dev/docs/apps/auth"),
    KeyFormat("dapi", rf"{_HEX}{{32}}(?![0-9A-Za-z])", "docs.databricks.com: personal access tokens"),
    *(KeyFormat(f"hv{kind}.", rf"{_URL_SAFE}{{20,}}", "developer.hashicorp.com: vault tokens") for kind in "sbr"),
    KeyFormat("PMAK-", r"[A-Za-z0-9-]{24,}", "learning.postman.com"),
    KeyFormat("lin_", rf"(?:api|oauth)_{_WORD}{{20,}}", "linear.app/developers"),
    KeyFormat("ntn_", rf"{_WORD}{{20,}}", "developers.notion.com"),
    KeyFormat("figd_", rf"{_URL_SAFE}{{20,}}", "figma.com/developers/api"),
    *(KeyFormat(f"gls{kind}_", r"[A-Za-z0-9+/=_]{24,}", "grafana.com/docs: service account tokens") for kind in "ac"),
    KeyFormat("glc_", r"[A-Za-z0-9+/=]{24,}", "grafana.com/docs: access policy tokens"),
    KeyFormat("NRAK-", r"[A-Z0-9]{20,}", "docs.newrelic.com: user keys"),
    *(KeyFormat(f"sntry{kind}_", r"[A-Za-z0-9+/=_]{24,}", "docs.sentry.io: auth tokens") for kind in "su"),
    KeyFormat("sbp_", rf"{_HEX}{{32,}}", "supabase.com/docs"),
    KeyFormat("pul-", rf"{_HEX}{{32,}}", "pulumi.com/docs: access tokens"),
    KeyFormat("tskey-", r"[A-Za-z0-9-]{16,}", "tailscale.com/kb: auth keys"),
    KeyFormat("dp.", r"(?:pt|st|ct|sa|scim|audit)\.[\w.-]{20,}", "docs.doppler.com: token formats"),
    KeyFormat("ATATT3", r"[A-Za-z0-9_=-]{24,}", "support.atlassian.com: API tokens"),
    KeyFormat("HRKU-", rf"{_URL_SAFE}{{24,}}", "devcenter.heroku.com"),
    KeyFormat("sq0", rf"(?:atp|csp|idp)-{_URL_SAFE}{{20,}}", "developer.squareup.com"),
    KeyFormat("AGE-SECRET-KEY-", r"[0-9A-Z]{20,}", "age-encryption.org/v1"),
    KeyFormat("ops_", r"eyJ[A-Za-z0-9_=-]{40,}", "developer.1password.com: service accounts"),
    KeyFormat(
        "eyJ",
        rf"{_URL_SAFE}{{8,}}\.eyJ{_URL_SAFE}{{8,}}\.{_URL_SAFE}*|(?P<{_NO_KEY}>{_URL_SAFE}*+)",
        "RFC 7519: JSON Web Token",
    ),
)
_RESTS: Final = tuple((each.prefix.encode(), lazy_pattern(each.rest.encode())) for each in FORMATS)
#: A letter or digit before the prefix makes it part of another word, unless it is the end of another key.
_IN_A_WORD: Final = lazy_pattern(rb"[A-Za-z0-9]")


#: A key is one long word. Looking for the prefixes in these alone takes a quarter of the time: few words are so long.
_SHORTEST_KEY: Final = 15
_SPACES: Final = bytes(each if chr(each) in f"{ascii_letters}{digits}_.+/=-" else ord(" ") for each in range(256))


def _formats(data: bytes) -> Iterator[Span]:
    words = b" ".join(word for word in data.translate(_SPACES).split() if len(word) >= _SHORTEST_KEY)
    found: list[tuple[int, int]] = []
    for prefix, rest in _RESTS:
        at = data.find(prefix) if prefix in words else -1
        while at >= 0:
            key = rest.match(data, at + len(prefix))
            if key and key.lastgroup != _NO_KEY and _is_key(prefix, key.group()):
                found.append((at, key.end()))
            at = data.find(prefix, key.end() if key else at + len(prefix))
    ends: set[int] = set()
    for at, end in sorted(found):
        if at in ends or not (at and _IN_A_WORD.match(data, at - 1)):
            ends.add(end)
            yield at, end


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
        lazy_pattern(rb"[?&](?:sig|key|code|auth|signature)=([^\s&\"'`<>#]{12,512}+)"),
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
        for word in (b"Bearer", b"bearer", b"BEARER", b"Basic", b"basic", b"Token")
    ),
    Shape(
        b"login",
        lazy_pattern(rb"login\s{1,9}+[^\s]{1,128}+\s{1,9}+password\s{1,9}+([^\s]{6,512}+)"),
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
            rb"[\"']?([^\s\"'`$<>(){}]{6,512}+)"
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
_COVERED: Final = lazy_pattern(rb"(?:%b|[*\s])*+\Z" % _MARK)
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
