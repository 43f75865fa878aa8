"""What messages tell people to do can be done: commands, options, variables, settings and extras that they name exist.

Read from the source: every text of the product that is not a docstring.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from botocore.credentials import EnvProvider
from support.imports import ROOT, SOURCES, name, parsed
from support.offenders import no_offenders, places

from callboard import ErrorKind, Settings
from callboard.actors.cli.advice import advice
from callboard.actors.cli.arguments import parser
from callboard.actors.environment import VARIABLES
from callboard.actors.processes.spawning import CHILD
from callboard.providers.provider_registry import KEY_VARIABLES
from callboard.providers.provider_table import ROWS

PRODUCT = [path for path in SOURCES if "testing" not in path.parts]
#: Variables that belong to no field.
OTHER_VARIABLES = {"CALLBOARD_API_KEY", "CALLBOARD_PROFILE", "CALLBOARD_TOKEN"}
#: Words that say less than the plain ones.
PRIVATE_WORDS = re.compile(r"\b(nobody|whoever|whatever|anew|for ever|is told|asked wrongly)\b")
COMMAND = re.compile(r"(?:`|type: |\| |: )callboard ((?!\.)[^`]*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


@dataclass(frozen=True)
class Message:
    where: str
    text: str
    """What is filled in is `{}`."""


def messages(path: Path) -> Iterator[Message]:
    passed: set[int] = set()  # docstrings, and the parts of what has been told as a whole
    for node in ast.walk(parsed(path)):  # what is around a node comes before it
        if isinstance(node, ast.Expr):
            passed.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            passed.update(map(id, node.values))
            parts = (str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield Message(f"{name(path)}:{node.lineno}", "".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed:
            yield Message(f"{name(path)}:{node.lineno}", node.value)


@cache
def all_messages() -> list[Message]:
    return [message for path in PRODUCT for message in messages(path)]


def commands() -> dict[str, argparse.ArgumentParser]:
    (chosen,) = (each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    return dict(chosen.choices)


def options_of(command: argparse.ArgumentParser) -> set[str]:
    """Those of its own commands count too."""
    found = {text for action in command._actions for text in action.option_strings}
    below = (each for each in command._actions if isinstance(each, argparse._SubParsersAction))
    return found.union(*(options_of(parser) for each in below for parser in each.choices.values()))


def naming(pattern: re.Pattern[str]) -> list[tuple[Message, str]]:
    found = [(message, found) for message in all_messages() for found in pattern.findall(message.text)]
    assert found, f"no message has {pattern.pattern}"
    return found


def test_commands_exist_with_their_options() -> None:
    no_offenders(
        f"{message.where} names `callboard {command}`, but {wrong}"
        for message, command in naming(COMMAND)
        for wrong in wrong_in(command)
    )


def wrong_in(command: str) -> list[str]:
    """What there is not of a command line, without the word `callboard`."""
    first = command.split()[0]
    if first not in commands():
        return [f"{first} is no command"]
    return [f"{first} has no {each}" for each in OPTION.findall(command) if each not in options_of(commands()[first])]


#: What they name are options of ripgrep, of git and of the commands that a policy knows.
OF_OTHER_PROGRAMS = (
    "actors/builtins/ripgrep.py",
    "actors/edits/",
    "actors/policy/",
    "actors/processes/held_environment.py",
)


def test_options_exist() -> None:
    # The last one is of no user: a frozen program starts itself with it.
    known = options_of(parser()).union(*map(options_of, commands().values()), {CHILD})
    no_offenders(
        f"{message.where} names {option}"
        for message, option in naming(OPTION)
        if option not in known and not message.where.startswith(OF_OTHER_PROGRAMS)
    )


def test_variables_exist() -> None:
    of_clients = {name for row in ROWS.values() for names in row.variables.values() for name in names}
    known = {*VARIABLES.values(), *OTHER_VARIABLES, *KEY_VARIABLES.values(), *of_clients, EnvProvider.SECRET_KEY}
    named = naming(re.compile(r"\b[A-Z]+_[A-Z_]*(?:KEY|TOKEN)\b|CALLBOARD_\w+"))
    no_offenders(f"{message.where} names {variable}" for message, variable in named if variable not in known)


def test_settings_exist() -> None:
    named = [
        (message, setting)
        for pattern in (r"Settings\((\w+)=", r"the setting (\w+)")
        for message, setting in naming(re.compile(pattern))
    ]
    no_offenders(f"{message.where} names {each}" for message, each in named if each not in Settings.model_fields)


def test_extras_exist_and_are_installed_from_the_clone() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    named = re.compile(r"missing_extra\((?:[^()]|\([^()]*\))*?\"([\w-]+)\"\)")
    extras = [(name(path), extra) for path in SOURCES for extra in named.findall(path.read_text())]
    assert len(extras) >= 5
    assert [each for each in extras if each[1] not in setup["options.extras_require"]] == []
    assert [message.where for message, _ in naming(re.compile("pip install"))] == [
        message.where
        for message in all_messages()
        if message.where.startswith("protocol/errors.py") and "pip" in message.text
    ]


def test_pages_install_from_the_clone_while_nothing_is_published() -> None:
    published = re.compile(r"pip install[^\n`]*(?<![/\w])callboard\b(?:\[|'|$)", re.M)
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.py")]
    no_offenders(f"{where} says {found[0]}" for page in pages for where, found in places(published, page))


def test_messages_are_in_plain_words() -> None:
    no_offenders(
        f"{message.where} says {word}" for message in all_messages() for word in PRIVATE_WORDS.findall(message.text)
    )


def test_every_failure_of_a_model_call_has_an_advice() -> None:
    given = {kind: advice(kind, "openai/gpt-5") for kind in ErrorKind}
    no_offenders(f"{kind}: {text}" for kind, text in given.items() if len(text) <= 5 or "{" in text)
