"""What each command does, with the runtime's public interface only."""

from __future__ import annotations

import argparse

import orjson
from rich.console import Console

from callboard.actors.cli.progress import IndexProgress
from callboard.actors.cli.screen import Screen
from callboard.actors.index import CodeIndex, RefreshSummary
from callboard.actors.reply import Reply
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.protocol.errors import UsageError

#: Indexing a million lines takes under a minute; this bounds a broken disk.
INDEX_TIMEOUT_SECONDS = 3_600.0


async def ask(options: argparse.Namespace) -> None:
    """Bring the index up to date, ask, and print the answer as it comes."""
    settings = _settings(options)
    question = options.question
    if not question.strip():
        raise UsageError('the question is empty; type: callboard ask "where is ... ?"')
    async with Runtime(settings) as runtime:
        with IndexProgress(Console(stderr=True)) as progress:
            await runtime.refresh_index(progress, timeout_seconds=INDEX_TIMEOUT_SECONDS)
        screen = Screen(Console(stderr=True), quiet=options.json)
        async for event in runtime.stream(question):
            screen.show(event)
            if isinstance(event, Reply) and options.json:
                screen.print_line(orjson.dumps(_as_json(event), option=orjson.OPT_INDENT_2).decode())


async def index(options: argparse.Namespace) -> None:
    """Index a workspace and say what was found."""
    console = Console(stderr=True)
    workspace = options.workspace.expanduser().resolve()
    if not workspace.is_dir():
        raise UsageError(f"there is no folder {workspace}; name one that exists")
    with CodeIndex.open(workspace) as code, IndexProgress(console) as progress:
        summary = code.refresh(progress)
    console.print(_sentence(summary), highlight=False, soft_wrap=True)


def _settings(options: argparse.Namespace) -> Settings:
    given: dict[str, object] = {"workspace": options.workspace}
    if options.model:
        given["model"] = options.model
    if options.base_url:
        given["base_url"] = options.base_url
    return Settings(**given)


def _sentence(summary: RefreshSummary) -> str:
    """What a refresh did, for a person."""
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(summary.skipped.items()))
    parts = [
        f"{summary.indexed:,} files indexed, {summary.unchanged:,} unchanged, {summary.removed:,} removed",
        f"{summary.symbols:,} symbols in {summary.files:,} files",
        f"skipped: {skipped}" if skipped else "",
        summary.note,
    ]
    return "; ".join(filter(None, parts))


def _as_json(reply: Reply) -> dict[str, object]:
    return {
        "text": reply.text,
        "request_id": reply.request_id,
        "outcome": reply.outcome,
        "steps": reply.steps,
        "usage": {
            "input_tokens": reply.usage.input_tokens,
            "output_tokens": reply.usage.output_tokens,
            "cached_tokens": reply.usage.cached_tokens,
            "reasoning_tokens": reply.usage.reasoning_tokens,
        },
        "cost": reply.cost,
    }
