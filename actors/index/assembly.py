"""From hits to what the model reads: exact bytes, whole symbols, spread over files, as much as the budget holds.

The best places come first, with the code that a guide among them names. What is left of the budget then goes to what
they call and are called by, to their neighbours in the best files, and to further hits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors.index.code_index import CodeIndex, Hit
from callboard.actors.index.disk import IndexWriteError
from callboard.actors.index.encodings import line_end_before, shown_text
from callboard.actors.index.fit import LOOKED_AT, AskedWords, fit_of, stems_in, words_in
from callboard.actors.index.notebooks import ENCODING as NOTEBOOK_ENCODING
from callboard.actors.index.parsing import read_now
from callboard.actors.index.records import digest
from callboard.actors.index.searching import NO_FILTERS, Filters, questions_of
from callboard.actors.index.token_count import count_tokens, counted, most_tokens
from callboard.protocol.code_fences import AssembledContext, ContextFit, ContextItem, render_fence
from callboard.protocol.errors import UsageError

logger = logging.getLogger("callboard.index")

#: Hits that are asked for: more than the largest budget shows of them.
HITS = 80
#: So many of the best hits come before anything else.
FIRST_HITS = 20
#: So many of them come before the code that prose among them names.
BEFORE_NAMED = 3
#: Spans of one file this close to each other become one: what lies between is shorter than another fence.
STITCH_GAP_BYTES = 200
#: At most this share of the budget for one file, before the other files have had their turn, and for one symbol: a
#: longer one is shown as far as it was found.
FILE_SHARE = 0.4
SYMBOL_SHARE = 0.25
#: A span that does not fit is cut at a line end, unless less than this would be left of it.
MIN_CUT_BYTES = 200
#: Tokens of a fence, its lines and names, besides the code; only to plan with, what is sent is counted exactly.
FENCE_TOKENS = 60
#: A token has a byte at least and rarely more than so many: what is longer than all of them need not be counted.
MOST_TOKEN_BYTES = 8
#: Words of the question that a place is said to hold.
MAX_WORDS = 4
#: Files that could not be read, of which an answer tells.
MAX_UNREAD = 10


_Key = tuple[str, int, int]
"""The path of a span, and its first and last byte."""


class _Span(Struct, frozen=True):
    """A stretch of a file that may be shown, with the file's bytes as they are on disk now."""

    hit: Hit
    start: int
    end: int
    content: bytes

    @property
    def stems(self) -> frozenset[str]:
        text = self.content[self.start : self.end].decode(self.hit.encoding, "replace")
        return stems_in(f"{self.hit.canonical_path} {text}")

    @property
    def key(self) -> _Key:
        return self.hit.path, self.start, self.end

    @property
    def text(self) -> str:
        """As it is counted."""
        return self.content[self.start : self.end].decode("utf-8", "replace")


class _Place(Struct):
    """What is shown of one stretch of a file: one span, or several that touch."""

    content: bytes
    spans: list[_Span]

    @property
    def start(self) -> int:
        return min(span.start for span in self.spans)

    @property
    def end(self) -> int:
        return max(span.end for span in self.spans)

    def is_near(self, span: _Span) -> bool:
        gap = max(self.start, span.start) - min(self.end, span.end)
        return self.spans[0].hit.path == span.hit.path and gap <= STITCH_GAP_BYTES

    def item(self, asked: Sequence[AskedWords]) -> ContextItem:
        hit = self.spans[0].hit
        text = shown_text(self.content, self.start, self.end, hit.encoding)
        first = _line_of(self.content, self.start, hit.encoding)
        in_order = sorted(self.spans, key=lambda span: (span.start, -span.end))
        symbols = tuple(dict.fromkeys(span.hit.canonical_path for span in in_order))
        last = first + text.rstrip("\n").count("\n")
        if hit.encoding == NOTEBOOK_ENCODING:  # between its cells are lines that are not shown
            last = _line_of(self.content, self.end, hit.encoding)
        words = words_in(asked, stems_in(f"{' '.join(symbols)} {text}"), MAX_WORDS)
        fence = render_fence(hit.path, self.start, self.end, text)
        return ContextItem(hit.path, f"{first}-{last}", symbols, fence, words)


class _Plan(Struct):
    """What is shown, in the order of its worth, and what it takes."""

    budget: int
    tokens: Mapping[_Key, int]
    """Of all spans that may be shown."""
    places: list[_Place] = field(default_factory=list)
    used: int = 0
    by_file: dict[str, int] = field(default_factory=dict)

    def holds(self, span: _Span) -> bool:
        """Whether it is shown already."""
        return any(
            place.spans[0].hit.path == span.hit.path and place.start <= span.start and span.end <= place.end
            for place in self.places
        )

    def add(self, span: _Span, file_share: float) -> bool:
        """Take it in, unless it is there or does not fit."""
        if self.holds(span):
            return True
        tokens = self.tokens[span.key] + FENCE_TOKENS
        path = span.hit.path
        if self.used + tokens > self.budget or self.by_file.get(path, 0) + tokens > file_share * self.budget:
            return False
        near = [place for place in self.places if place.is_near(span)]
        if near:
            near[0].spans += [span, *(each for place in near[1:] for each in place.spans)]
            self.places = [place for place in self.places if place not in near[1:]]
        else:
            self.places.append(_Place(span.content, [span]))
        self.used += tokens
        self.by_file[path] = self.by_file.get(path, 0) + tokens
        return True


def assemble(
    index: CodeIndex, query: str | Sequence[str], token_budget: int, note: str = "", filters: Filters = NO_FILTERS
) -> AssembledContext:
    """The context for a question, or for several at once: the JSON of the result counts at most `token_budget` tokens.

    Spans are read again and compared with their hash; a file that has changed is indexed again and its new span
    taken, or the hit is dropped: what is shown is always the file's content as it is now. `note` becomes part of the
    result; while the first index of the workspace is being built, so does how far it is.

    Raises:
        UsageError: the budget is too small to say anything, there is no query or too many, or a filter that is not
            known.
    """
    questions = questions_of(query)
    if not questions:
        raise UsageError("the query is empty; say what to look for")
    filters.check()
    state = index.state()
    empty = AssembledContext(questions, (), note if state.is_complete else "; ".join(filter(None, (str(state), note))))
    found = _verified(index, questions, filters)
    spans = {span.key: span for span in (*found.hits, *found.named, *found.near)}
    wholes = {key: _whole(span, SYMBOL_SHARE * token_budget) for key, span in spans.items()}
    candidates = spans | {span.key: span for span in wholes.values()}
    texts = [_text_of(empty), *(span.text for span in candidates.values())]
    counts = most_tokens(texts)
    if sum(counts) + FENCE_TOKENS * len(candidates) > SYMBOL_SHARE * token_budget:  # else all fits, in each share too
        counts = count_tokens(texts)  # one round trip for all that may be shown: a request looks at some hundred
    spent, *tokens = counts
    if spent > token_budget:
        raise UsageError(f"a budget of {token_budget} tokens cannot hold even an empty result for this query")
    if not found.hits:
        return _fitting(empty, [], found, token_budget, _why_nothing(index, filters))
    plan = _planned(found, wholes, _Plan(token_budget - spent, dict(zip(candidates, tokens, strict=True))))
    return _fitting(empty, plan.places, found, token_budget)


class _Found(Struct, frozen=True):
    """Spans whose bytes are what was indexed, and the files of those that were not."""

    hits: list[_Span]
    named: list[_Span]
    near: list[_Span]
    asked: tuple[AskedWords, ...]
    fit: ContextFit
    changed: list[str]
    unread: list[str]
    note: str


def _verified(index: CodeIndex, questions: tuple[str, ...], filters: Filters) -> _Found:
    """Changed files are indexed again once and the question asked again."""
    found = _read(index, questions, filters)
    if found.changed and index.state().is_complete:
        try:
            index.refresh(paths=found.changed, wait_seconds=0.5)
        except IndexWriteError as error:
            logger.warning("changed files are left out of an answer: %s", error)
        else:
            found = _read(index, questions, filters)
    return found


def _read(index: CodeIndex, questions: tuple[str, ...], filters: Filters) -> _Found:
    around = index.search_around(questions, HITS, FIRST_HITS, filters)
    content_of, is_secret = cache(read_now), cache(index.secret_files())
    changed = dict[str, None]()

    def spans(hits: Iterable[Hit]) -> list[_Span]:
        kept, texts = [], set[bytes]()
        for hit in hits:
            if is_secret(hit.path) or hit.digest in texts:  # since the last refresh; a copy
                continue
            content = content_of(hit.path)
            if digest(content[hit.start_byte : hit.end_byte]) == hit.digest:
                texts.add(hit.digest)
                kept.append(_Span(hit, hit.start_byte, hit.end_byte, content))
            else:
                changed[hit.path] = None
        return kept

    hits, named, near = spans(around.hits), spans(around.named), spans(around.near)
    fit = fit_of(around.asked, (((span.hit.path, span.start), span.stems) for span in hits[:LOOKED_AT]))
    unread = [path for path in changed if not content_of(path)]
    return _Found(
        hits,
        named,
        near,
        around.asked,
        fit,
        list(changed),
        [*unread, *index.unread_files(MAX_UNREAD)][:MAX_UNREAD],
        around.note,
    )


def _why_nothing(index: CodeIndex, filters: Filters) -> str:
    if not filters:
        return ""
    if not index.passing_files(filters):
        return f"no file of the workspace passes the filters ({filters}); ask again with others, or without"
    return f"nothing was found with the filters ({filters}); ask again without them"


def _planned(found: _Found, wholes: Mapping[_Key, _Span], plan: _Plan) -> _Plan:
    """`wholes`: for each span the symbol that it is a part of, or itself."""
    most = SYMBOL_SHARE * plan.budget

    def whole(span: _Span) -> _Span:
        longer = wholes[span.key]
        is_too_long = longer.end - longer.start > MOST_TOKEN_BYTES * most or plan.tokens[longer.key] > most
        return span if is_too_long else longer

    first, rest = found.hits[:FIRST_HITS], found.hits[FIRST_HITS:]
    for span in (*first[:BEFORE_NAMED], *found.named, *first[BEFORE_NAMED:]):
        if not any(plan.add(each, FILE_SHARE) for each in (whole(span), span)) and not plan.places:
            plan.places.append(_Place(span.content, [_cut(span, plan.budget - FENCE_TOKENS)]))
            plan.used = plan.budget
    for span in (*found.near, *first, *rest):
        plan.add(whole(span), 1.0)
    return plan


def _whole(span: _Span, most_tokens: float) -> _Span:
    """All of the symbol that the span is a part of, unless it holds others, is surely too long, or has changed."""
    if span.hit.whole is None:
        return span
    start, end, hashed = span.hit.whole
    if end - start > MOST_TOKEN_BYTES * most_tokens or digest(span.content[start:end]) != hashed:
        return span
    return replace(span, start=start, end=end)


def _cut(span: _Span, most_tokens: int) -> _Span:
    """The beginning of a span, up to a line end, that has so many tokens."""
    shorter = [span]
    while (end := shorter[-1].end) - span.start >= MIN_CUT_BYTES:
        limit = span.start + (end - span.start) * 3 // 4
        end = max(line_end_before(span.content, span.start, limit, span.hit.encoding), span.start)
        shorter.append(replace(span, end=end))
    counts = count_tokens([each.text for each in shorter])
    return next((each for each, tokens in zip(shorter, counts, strict=True) if tokens <= most_tokens), shorter[-1])


def _fitting(
    empty: AssembledContext, places: list[_Place], found: _Found, budget: int, why_nothing: str = ""
) -> AssembledContext:
    """The answer, without the last places as long as it is too long; what it then leaves out it says, if that fits."""
    judged = replace(empty, note="; ".join(filter(None, (empty.note, why_nothing, found.note))), fit=found.fit)
    for answer, tokens in counted(_answers(judged, places, found), _text_of, budget):
        if tokens <= budget:
            return answer
    return empty


def _answers(judged: AssembledContext, places: list[_Place], found: _Found) -> Iterator[AssembledContext]:
    """With all places, and with fewer and fewer; of each first the one that says what it leaves out."""
    while True:
        context = replace(judged, context=tuple(place.item(found.asked) for place in places))
        yield replace(context, left_out=_left_out(found, places), unread=tuple(found.unread))
        yield context
        if not places:
            return
        places = _shorter(places)


def _shorter(places: list[_Place]) -> list[_Place]:
    """Without the last place; of the only one the first three quarters, as long as that says anything."""
    if len(places) > 1:
        return places[:-1]
    (place,) = places
    spans = sorted(place.spans, key=lambda span: span.start)
    whole = replace(spans[0], end=place.end)
    limit = place.start + (place.end - place.start) * 3 // 4
    end = line_end_before(place.content, place.start, limit, spans[0].hit.encoding)
    return [_Place(place.content, [replace(whole, end=end)])] if end - place.start >= MIN_CUT_BYTES else []


def _left_out(found: _Found, places: Sequence[_Place]) -> tuple[str, ...]:
    """The best hits that are not shown, as `path:lines name`."""
    shown = [(place.spans[0].hit.path, place.start, place.end) for place in places]

    def is_shown(span: _Span) -> bool:
        return any(path == span.hit.path and start <= span.start and span.end <= end for path, start, end in shown)

    missing = (span.hit for span in found.hits[:FIRST_HITS] if not is_shown(span))
    return tuple(f"{hit.path}:{hit.start_line}-{hit.end_line} {hit.canonical_path}" for hit in missing)


def _line_of(content: bytes, offset: int, encoding: str) -> int:
    if encoding in ("utf-8", NOTEBOOK_ENCODING):
        return content.count(b"\n", 0, offset) + 1
    return content[:offset].decode(encoding, "replace").count("\n") + 1


def _text_of(context: AssembledContext) -> str:
    return orjson.dumps(context.as_json()).decode()
