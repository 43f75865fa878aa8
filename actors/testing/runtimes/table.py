"""The table of docs/other_runtimes.md: which rule each runtime keeps and breaks, and what it does not promise."""

from __future__ import annotations

import platform
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Final

from msgspec import Struct, field

from callboard.actors.testing.runtimes.adapter import NotPromised
from callboard.actors.testing.runtimes.harness import Harness, adapter_type
from callboard.protocol.testing.generator import VERSION
from callboard.protocol.testing.observation import BESIDE, Conversation, Played, What
from callboard.protocol.testing.observed import NOT_OBSERVED, OBSERVED, judge

NOT_OBSERVED_IN: Final = "callboard.protocol.testing.observed.NOT_OBSERVED"
_BLOCK: Final = re.compile(r"(<!-- generated: table -->\n).*?(<!-- end -->)", re.DOTALL)
#: What a story leaves out: the conversation beside asks every few milliseconds.
_UNTOLD: Final = (What.PING, What.PONG)
_OF_TOOLS: Final = (What.STARTED, What.EFFECT, What.STOPPED)


class Survey(Struct):
    """What was seen of one runtime."""

    runtime: str
    version: str
    """The distribution and its version."""
    not_promised: tuple[NotPromised, ...]
    looked: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """In how many conversations a rule had something to look at."""
    broken: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """The breaches of a rule: how many calls the conversation has, and its seed."""

    def disclaimer(self, rule: str) -> NotPromised | None:
        """Why this rule is not promised, or None if it is."""
        return next((each for each in self.not_promised if rule.startswith(each.cases)), None)


def survey(harness: Harness, runtime: str, seeds: Iterable[int]) -> Survey:
    """Play the conversations of these seeds. A breach counts when the same seed shows it twice: a busy machine is slow
    now and then. Raises what `Harness.play` raises."""
    adapter = adapter_type(runtime)
    found = Survey(runtime, f"{adapter.distribution} {metadata.version(adapter.distribution)}", adapter.not_promised)
    for seed in seeds:
        played = harness.play(runtime, seed)
        first = judge(played)
        broken = {rule for rule, breaches in first.items() if breaches}
        if broken:
            broken &= {rule for rule, breaches in judge(harness.play(runtime, seed)).items() if breaches}
        for rule in first:
            found.looked[rule] += 1
        for rule in broken:
            found.broken[rule].append((size(played.conversation), seed))
    return found


def size(conversation: Conversation) -> int:
    """How much there is to read in a conversation."""
    return sum(1 + len(turn.calls) for turn in conversation.turns)


def render(surveys: Sequence[Survey], conversations: int) -> str:
    """The table and its notes, as Markdown."""
    notes: list[NotPromised] = []
    rows = [f"| rule | {' | '.join(each.runtime for each in surveys)} |", f"|---|{'---|' * len(surveys)}"]
    for rule in OBSERVED:
        rows.append(f"| {rule.name} | {' | '.join(_cell(each, rule.name, notes) for each in surveys)} |")
    versions = ", ".join(each.version for each in surveys)
    seeds = f"seeds 0 to {conversations - 1} of version {VERSION} of the generator"
    played = f"{conversations} conversations each, {seeds}, Python {platform.python_version()}: {versions}."
    told = [f"- [{number}] {note.why} ([page]({note.page}))" for number, note in enumerate(notes, start=1)]
    unseen = f"`{NOT_OBSERVED_IN}` says why these are not seen from outside: {', '.join(NOT_OBSERVED)}."
    parts = [played, *rows, "Not promised:", *told, "", unseen]
    lines = [f"\n{part}\n" if part.endswith(":") or part is played else part for part in parts]
    return "\n".join(lines).strip() + "\n"


def _cell(found: Survey, rule: str, notes: list[NotPromised]) -> str:
    looked, broken = found.looked[rule], sorted(found.broken[rule])
    if not broken:
        return str(looked or "-")
    share, seed = f"{len(broken)}/{looked}", f"({broken[0][1]})"
    disclaimer = found.disclaimer(rule)
    if disclaimer is None:
        return f"**{share}** {seed}"
    if disclaimer not in notes:
        notes.append(disclaimer)
    return f"{share} {seed} [{notes.index(disclaimer) + 1}]"


def insert(page: str, table: str) -> str:
    """The page with its generated block replaced."""
    return _BLOCK.sub(lambda block: f"{block[1]}{table}{block[2]}", page)


def story(played: Played) -> str:
    """What was planned and what was seen, line by line, and the rules that it breaks."""
    planned = played.conversation
    lines = ["the model's turns:"]
    for turn in planned.turns:
        lines.append(f"  stream {turn.stream}, ids {turn.ids}, text {turn.text!r}")
        lines += [f"    call {call.number} {call.tool} {call.arguments} id {call.call_id}" for call in turn.calls]
    lines.append(f"deadline {planned.run_seconds:g} s, at most {planned.max_steps} steps; seen:")
    start = played.seen[0].at if played.seen else 0.0
    for seen in played.seen:
        if seen.what in _UNTOLD or (seen.what in _OF_TOOLS and seen.number == BESIDE):
            continue
        step = f" step {seen.step}" if seen.what in (What.ASKED, What.SERVED, What.LEFT) else ""
        lines.append(f"  {seen.at - start:7.3f} {seen.what} {seen.number or ''}{step} {seen.detail}".rstrip())
    for rule, breaches in judge(played).items():
        lines += [f"{rule}: {'kept' if not breaches else 'BROKEN: ' + breaches[0]}"]
    return "\n".join(lines) + "\n"
