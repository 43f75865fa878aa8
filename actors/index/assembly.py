"""From hits to what the model reads: exact bytes, stitched, spread over files, within the budget."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import orjson

from callboard.actors.index.code_index import CodeIndex, Hit
from callboard.actors.index.disk import IndexWriteError
from callboard.actors.index.encodings import line_end_before, shown_text
from callboard.actors.index.parsing import read_now
from callboard.actors.index.records import digest
from callboard.actors.index.token_count import count_tokens
from callboard.protocol.code_fences import AssembledContext, ContextItem, render_fence, top_k_for_budget
from callboard.protocol.errors import UsageError

logger = logging.getLogger("callboard.index")

#: Spans of one file this close to each other become one: what lies between is shorter than another fence.
STITCH_GAP_BYTES = 200
#: A neighbour with less than this share of the better one's score stays on its own: it would blur what was found.
STITCH_SCORE = 0.7
#: At most this share of the results from one file before the others have had their turn.
MAX_PER_FILE = 3
#: A span that does not fit is cut at a line end, unless less than this would be left of it.
MIN_CUT_BYTES = 200
#: Hits asked for beyond top_k: some are dropped or stitched.
SPARE = 2


@dataclass(frozen=True, slots=True)
class _Piece:
    """A span with its bytes as they are on disk now."""

    hit: Hit
    content: bytes


def assemble(index: CodeIndex, query: str, token_budget: int, note: str = "") -> AssembledContext:
    """The context for a question: the JSON of the result counts at most `token_budget` tokens.

    Spans are read again and compared with their hash; a file that has changed is indexed again and its new span
    taken, or the hit is dropped: what is shown is always the file's content as it is now. `note` becomes part of the
    result; while the first index of the workspace is being built, so does how far it is.

    Raises:
        UsageError: the budget is too small to say anything, or the query is empty.
    """
    if not query.strip():
        raise UsageError("the query is empty; say what to look for")
    k = top_k_for_budget(token_budget)
    state = index.state()
    context = AssembledContext(query, k, (), note if state.is_complete else "; ".join(filter(None, (str(state), note))))
    if _tokens(context) > token_budget:
        raise UsageError(f"a budget of {token_budget} tokens cannot hold even an empty result for this query")
    for piece in _stitched(_spread(_verified(index, query, k * SPARE))):
        if len(context.context) == k:
            break
        context = _with_piece(context, piece, token_budget)
    return context


def _verified(index: CodeIndex, query: str, k: int) -> list[_Piece]:
    """Hits whose bytes are what was indexed. Changed files are indexed again once and the question asked again."""
    pieces, changed = _read_hits(index, index.search(query, k))
    if changed and index.state().is_complete:
        try:
            index.refresh(paths=changed, wait_seconds=0.5)
        except IndexWriteError as error:
            logger.warning("changed files are left out of an answer: %s", error)
        else:
            pieces, _ = _read_hits(index, index.search(query, k))
    return pieces


def _read_hits(index: CodeIndex, hits: Sequence[Hit]) -> tuple[list[_Piece], list[str]]:
    content_of, is_secret = cache(read_now), cache(index.secret_files())
    pieces, changed = [], dict[str, None]()
    for hit in hits:
        if is_secret(hit.path):
            continue  # since the last refresh
        content = content_of(hit.path)
        if digest(content[hit.start_byte : hit.end_byte]) == hit.digest:
            pieces.append(_Piece(hit, content))
        else:
            changed[hit.path] = None
    return pieces, list(changed)


def _spread(pieces: Sequence[_Piece]) -> list[_Piece]:
    """No span inside another, no text twice, and no file with more than MAX_PER_FILE before the others' turn."""
    kept: list[_Piece] = []
    later: list[_Piece] = []
    texts: set[bytes] = set()
    per_file: dict[str, int] = {}
    for piece in pieces:
        hit = piece.hit
        if hit.digest in texts or any(_contains(other.hit, hit) for other in kept):
            continue
        texts.add(hit.digest)
        per_file[hit.path] = per_file.get(hit.path, 0) + 1
        (kept if per_file[hit.path] <= MAX_PER_FILE else later).append(piece)
    return kept + later


def _contains(outer: Hit, inner: Hit) -> bool:
    return outer.path == inner.path and outer.start_byte <= inner.start_byte and inner.end_byte <= outer.end_byte


def _stitched(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Join spans of one file that touch or nearly touch, at the place of the better one."""
    result: list[_Piece] = []
    for piece in pieces:
        hit = piece.hit
        near = next((n for n, other in enumerate(result) if _is_near(other.hit, hit)), None)
        if near is None:
            result.append(piece)
            continue
        best = result[near].hit
        joined = replace(
            best,
            start_byte=min(best.start_byte, hit.start_byte),
            end_byte=max(best.end_byte, hit.end_byte),
            start_line=min(best.start_line, hit.start_line),
            end_line=max(best.end_line, hit.end_line),
        )
        result[near] = _Piece(joined, piece.content)
    return result


def _is_near(left: Hit, right: Hit) -> bool:
    if left.path != right.path or right.score < STITCH_SCORE * left.score:
        return False
    gap = max(left.start_byte, right.start_byte) - min(left.end_byte, right.end_byte)
    return gap <= STITCH_GAP_BYTES


def _with_piece(context: AssembledContext, piece: _Piece, budget: int) -> AssembledContext:
    """The context with one more item, cut at a line end if need be; unchanged if it cannot fit."""
    hit, end = piece.hit, piece.hit.end_byte
    while True:
        longer = replace(context, context=(*context.context, _item(piece, end)))
        over = _tokens(longer) - budget
        if over <= 0:
            return longer
        # Four bytes a token is the rule of thumb; one step too many does no harm, one too few repeats the loop.
        end = line_end_before(piece.content, hit.start_byte, max(hit.start_byte, end - 4 * over), hit.encoding)
        if end - hit.start_byte < MIN_CUT_BYTES:
            return context


def _item(piece: _Piece, end: int) -> ContextItem:
    hit = piece.hit
    text = shown_text(piece.content, hit.start_byte, end, hit.encoding)
    last_line = hit.start_line + text.rstrip("\n").count("\n")
    snippet = render_fence(hit.path, hit.start_byte, end, text)
    return ContextItem(hit.path, f"{hit.start_line}-{last_line}", hit.name, hit.canonical_path, snippet)


def _tokens(context: AssembledContext) -> int:
    return count_tokens(orjson.dumps(context.as_json()).decode())
