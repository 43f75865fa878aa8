"""What messages tell people to do can be done: commands, options, variables, settings and extras that they name exist.

Read from the source: every text of the product that is not a docstring.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from botocore.credentials import EnvProvider

sys.path.insert(0, str(Path(__file__).parent))

from support.imports import ROOT, SOURCES, name

from callboard import ErrorKind, Settings
from callboard.actors.cli.advice import advice
from callboard.actors.cli.arguments import parser
from callboard.actors.processes.spawning import CHILD
from callboard.actors.settings import VARIABLES
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

    def __str__(self) -> str:
        return self.where


def messages(path: Path) -> Iterator[Message]:
    tree = ast.parse(path.read_text())
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    inside = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield Message(f"{name(path)}:{node.lineno}", "".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone | inside:
            yield Message(f"{name(path)}:{node.lineno}", node.value)


MESSAGES = [message for path in PRODUCT for message in messages(path)]


def commands() -> dict[str, argparse.ArgumentParser]:
    (chosen,) = (each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    return dict(chosen.choices)


def options_of(command: argparse.ArgumentParser) -> set[str]:
    """Those of its own commands count too."""
    found = {text for action in command._actions for text in action.option_strings}
    below = (each for each in command._actions if isinstance(each, argparse._SubParsersAction))
    return found.union(*(options_of(parser) for each in below for parser in each.choices.values()))


#: The last one is of no user: a frozen program starts itself with it.
OPTIONS = options_of(parser()).union(*map(options_of, commands().values()), {CHILD})


def naming(pattern: re.Pattern[str]) -> list[tuple[Message, str]]:
    return [(message, found) for message in MESSAGES for found in pattern.findall(message.text)]


@pytest.mark.parametrize(("message", "command"), naming(COMMAND), ids=str)
def test_commands_exist_with_their_options(message: Message, command: str) -> None:
    first = command.split()[0]
    assert first in commands(), f"{message.where} names `callboard {first}`, which is no command"
    for option in OPTION.findall(command):
        assert option in options_of(commands()[first]), f"{message.where}: callboard {first} has no {option}"


#: What they name are options of ripgrep, of git and of the commands that a policy knows.
OF_OTHER_PROGRAMS = ("actors/builtins/ripgrep.py", "actors/edits/", "actors/policy/command_table.py")
OWN_OPTIONS = [each for each in naming(OPTION) if not each[0].where.startswith(OF_OTHER_PROGRAMS)]


@pytest.mark.parametrize(("message", "option"), OWN_OPTIONS, ids=str)
def test_options_exist(message: Message, option: str) -> None:
    assert option in OPTIONS, message.where


@pytest.mark.parametrize(
    ("message", "variable"), naming(re.compile(r"\b[A-Z]+_[A-Z_]*(?:KEY|TOKEN)\b|CALLBOARD_\w+")), ids=str
)
def test_variables_exist(message: Message, variable: str) -> None:
    of_clients = {name for row in ROWS.values() for names in row.variables.values() for name in names}
    known = {*VARIABLES.values(), *OTHER_VARIABLES, *KEY_VARIABLES.values(), *of_clients, EnvProvider.SECRET_KEY}
    assert variable in known, message.where


@pytest.mark.parametrize(("message", "setting"), naming(re.compile(r"Settings\((\w+)=|the setting (\w+)")), ids=str)
def test_settings_exist(message: Message, setting: tuple[str, str]) -> None:
    assert "".join(setting) in Settings.model_fields, message.where


def test_extras_exist_and_are_installed_from_the_clone() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    named = re.compile(r"missing_extra\((?:[^()]|\([^()]*\))*?\"([\w-]+)\"\)")
    extras = [(name(path), extra) for path in SOURCES for extra in named.findall(path.read_text())]
    assert len(extras) >= 5
    assert [each for each in extras if each[1] not in setup["options.extras_require"]] == []
    assert [message.where for message, _ in naming(re.compile("pip install"))] == [
        message.where
        for message in MESSAGES
        if message.where.startswith("protocol/errors.py") and "pip" in message.text
    ]


@pytest.mark.parametrize("page", [*ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.py")], ids=name)
def test_pages_install_from_the_clone_while_nothing_is_published(page: Path) -> None:
    assert re.findall(r"pip install[^\n`]*(?<![/\w])callboard\b(?:\[|'|$)", page.read_text(), re.M) == []


def test_messages_are_in_plain_words() -> None:
    assert [(message.where, word) for message, word in naming(PRIVATE_WORDS)] == []


@pytest.mark.parametrize("kind", ErrorKind)
def test_every_failure_of_a_model_call_has_an_advice(kind: ErrorKind) -> None:
    assert len(advice(kind, "openai/gpt-5")) > 5
    assert "{" not in advice(kind, "openai/gpt-5")
