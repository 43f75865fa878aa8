"""`callboard ask`: bring the index up to date, ask, and print the answer as it comes."""

from __future__ import annotations

import argparse

import orjson

from callboard import ModelCallFailed, Reply, Runtime, UsageError
from callboard.actors.cli.advice import advised
from callboard.actors.cli.arguments import settings_of
from callboard.actors.cli.indexing import IndexProgress
from callboard.actors.cli.screen import Screen
from callboard.actors.index import IndexWriteError

#: What --json prints of a Reply.
_SHOWN = ("text", "request_id", "outcome", "steps", "usage", "cost")


async def run(options: argparse.Namespace) -> None:
    """Text goes to stdout; tool calls, notes and progress to stderr."""
    question = _checked(options.question)
    settings = settings_of(options)
    screen = Screen(quiet=options.json)
    async with Runtime(settings) as runtime:
        if note := await _refreshed(runtime):
            screen.remark(note)
        try:
            async for event in runtime.stream(question):
                screen.show(event)
                if isinstance(event, Reply) and options.json:
                    shown = {name: getattr(event, name) for name in _SHOWN}
                    screen.print_line(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
        except ModelCallFailed as failure:
            screen.end_line()
            raise advised(failure, settings) from None


async def _refreshed(runtime: Runtime) -> str:
    """Bring the index up to date. What is to be said about that: a full disk is no reason not to answer."""
    try:
        with IndexProgress() as progress:
            return (await runtime.refresh_index(progress)).note
    except IndexWriteError as error:
        return str(error)


def _checked(question: str) -> str:
    if not question.strip():
        raise UsageError('the question is empty; type: callboard ask "where is ... ?"')
    try:
        question.encode()
    except UnicodeEncodeError:
        raise UsageError("the question is not valid UTF-8; check the terminal's encoding (locale)") from None
    return question
