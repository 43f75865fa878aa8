"""`callboard ask`: bring the index up to date, ask, and print the answer as it comes."""

from __future__ import annotations

import argparse

import orjson

from callboard import ModelCallFailed, Reply, Runtime, UsageError
from callboard.actors.cli.advice import advised
from callboard.actors.cli.arguments import settings_of
from callboard.actors.cli.indexing import IndexProgress
from callboard.actors.cli.screen import Screen

#: What --json prints of a Reply.
_SHOWN = ("text", "request_id", "outcome", "steps", "usage", "cost")


async def run(options: argparse.Namespace) -> None:
    """Text goes to stdout; tool calls, notes and progress to stderr."""
    question = _checked(options.question)
    settings = settings_of(options)
    screen = Screen(quiet=options.json)
    async with Runtime(settings) as runtime:
        with IndexProgress() as progress:
            summary = await runtime.refresh_index(progress)
        if summary.note:
            screen.remark(summary.note)
        try:
            async for event in runtime.stream(question):
                screen.show(event)
                if isinstance(event, Reply) and options.json:
                    shown = {name: getattr(event, name) for name in _SHOWN}
                    screen.print_line(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
        except ModelCallFailed as failure:
            screen.end_line()
            raise advised(failure, settings) from None
        finally:
            if note := runtime.index_note():
                screen.remark(note)


def _checked(question: str) -> str:
    if not question.strip():
        raise UsageError('the question is empty; type: callboard ask "where is ... ?"')
    try:
        question.encode()
    except UnicodeEncodeError:
        raise UsageError("the question is not valid UTF-8; check the terminal's encoding (locale)") from None
    return question
