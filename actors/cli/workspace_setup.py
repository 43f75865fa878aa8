"""What the files inside a workspace add to a command: tools, MCP servers and rules, once their owner has agreed.

Rules that ask or deny count at once: they only narrow. All else counts for nothing until a person has agreed to the
very content of its file, at a terminal; and where there is none, it is said that it does not count.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from msgspec import Struct

from callboard import Settings, Tool, UsageError
from callboard.actors.cli.approval_prompt import has_terminal, lines_of_text, throw_away_input
from callboard.actors.cli.arguments import settings_of
from callboard.actors.cli.columns import columns_of, table
from callboard.actors.cli.terminal import print_line, printable
from callboard.actors.config_file import similar
from callboard.actors.mcp.mcp_servers import McpServer, mcp_servers_of
from callboard.actors.mcp.named_files import named_files
from callboard.actors.policy.workspace_trust import (
    RULES,
    SERVERS,
    FileState,
    WorkspaceFile,
    WorkspaceTrust,
)
from callboard.actors.tools.tool_file import load_tool_text, tools_in, tools_of_files
from callboard.protocol.policy import Rule
from callboard.protocol.readers import one_line_for_decision

_QUESTION = "agree to these contents? [y]es  [n]o, go on without them  [v]iew all "
_NAMED = "an MCP server's command runs it, or reads it"
_WHAT = {RULES: "rules", SERVERS: "MCP servers"}


class WorkspaceSetup(Struct, frozen=True):
    """What a command runs with."""

    settings: Settings
    tools: tuple[Tool, ...]
    note: str = ""
    """Which files do not count, and what to do about that; "" where there are none."""


def set_up(options: argparse.Namespace, *, may_ask: bool = False) -> WorkspaceSetup:
    """The settings and tools that were typed, with what the files of the workspace add to them.

    `may_ask`: a person at the terminal is asked about files that are new or have changed. Blocks. Raises UsageError.
    """
    settings, tools = settings_of(options), tools_of_files(options.tools)
    if settings.workspace is None:
        return WorkspaceSetup(settings, tools)
    trust = _trust(settings.config_dir, settings.workspace)
    files = trust.files()
    if may_ask and _open(files) and has_terminal() and _agrees(_open(files)):
        trust.agree(_open(files))
        files = trust.files()
    return _with(settings, tools, trust, files)


def _trust(config_dir: Path, workspace: Path) -> WorkspaceTrust:
    def named(file: WorkspaceFile) -> Iterable[str]:
        try:
            return named_files(servers_in(file).values(), workspace)
        except UsageError:  # once it is agreed to, it is said why
            return ()

    return WorkspaceTrust(config_dir, workspace, named)


def _with(
    settings: Settings, tools: tuple[Tool, ...], trust: WorkspaceTrust, files: Sequence[WorkspaceFile]
) -> WorkspaceSetup:
    rules: list[Rule] = []
    servers: dict[str, McpServer] = {}
    idle: list[str] = []
    """Files of which not all counts."""
    for file in files:
        if file.state is FileState.UNUSABLE or file.is_named:
            continue
        if file.path == RULES:
            found = rules_in(file)
            rules += [rule for rule in found if file.counts or rule.is_strict]
            idle += [file.path] if not (file.counts or all(rule.is_strict for rule in found)) else []
        elif not file.counts:
            idle.append(file.path)
        elif file.path == SERVERS:
            servers = servers_in(file)
        else:
            tools += tools_in(load_tool_text(trust.workspace / file.path, file.data))
    if rules:
        policy = dataclasses.replace(settings.policy, rules=(*settings.policy.rules, *rules))
        settings = settings.model_copy(update={"policy": policy})
    if servers:
        settings = settings.model_copy(update={"mcp_servers": {**servers, **settings.mcp_servers}})
    return WorkspaceSetup(settings, tools, _note(idle, [file for file in files if file.fault]))


def rules_in(file: WorkspaceFile) -> tuple[Rule, ...]:
    """`[[rules]]` of a rules.toml, each with the fields of `Rule`. Raises UsageError."""
    try:
        document = tomllib.loads(file.data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{file.path} of the workspace is not valid TOML: {error}; correct it, or remove it") from None
    tables = document.get("rules", [])
    if (
        document.keys() - {"rules"}
        or not isinstance(tables, list)
        or not all(isinstance(each, dict) for each in tables)
    ):
        raise UsageError(f"{file.path} of the workspace holds rules alone; write [[rules]] before each of them")
    known = {each.name: None for each in fields(Rule)}
    rules = []
    for number, each in enumerate(tables, 1):
        for name in each.keys() - known.keys():
            raise UsageError(f"rule {number} in {file.path} has no field {name!r}{similar(name, known)}")
        try:
            rules.append(Rule(**each))
        except UsageError as error:
            raise UsageError(f"rule {number} in {file.path}: {error}") from None
    return tuple(rules)


def servers_in(file: WorkspaceFile) -> dict[str, McpServer]:
    """`{"mcpServers": {NAME: {...}}}`, as other programs keep it. Raises UsageError."""
    try:
        document = json.loads(file.data)
        named = document["mcpServers"]
        return dict(mcp_servers_of({name: _fields_of(each) for name, each in named.items()}))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{file.path} of the workspace: {why}; correct it, or remove it") from None


def _fields_of(server: Mapping[str, object]) -> dict[str, object]:
    """Without the kind of transport, which is seen by the other fields."""
    return {name: value for name, value in server.items() if name != "type"}


def _open(files: Sequence[WorkspaceFile]) -> tuple[WorkspaceFile, ...]:
    """Those that a person may agree to."""
    return tuple(file for file in files if file.state in (FileState.NEW, FileState.CHANGED))


def _note(idle: Sequence[str], unusable: Sequence[WorkspaceFile]) -> str:
    told = [f"{file.path} of the workspace does not count: {file.fault}" for file in unusable]
    if idle:
        verb = "does" if len(idle) == 1 else "do"
        told.append(
            f"{', '.join(idle)} of the workspace {verb} not count until you agree to the content; type: callboard trust"
        )
    return "; ".join(told)


def _agrees(files: Sequence[WorkspaceFile]) -> bool:
    """Show the files to the person at the terminal, and ask."""
    _show(files, whole=False)
    throw_away_input()
    while True:
        sys.stderr.write(_QUESTION)
        sys.stderr.flush()
        typed = sys.stdin.readline()
        answer = typed.strip().lower()
        if answer in ("y", "yes"):
            return True
        if answer in ("n", "no") or not typed:
            return False
        if answer in ("v", "view"):
            _show(files, whole=True)


def _show(files: Sequence[WorkspaceFile], *, whole: bool) -> None:
    sys.stderr.write("Files of this workspace change what callboard does:\n")
    for file in files:
        what = _NAMED if file.is_named else _WHAT.get(file.path, "Python code that callboard runs, for its tools")
        text = file.data.decode(errors="backslashreplace").removesuffix("\n")
        lines = lines_of_text(f"{one_line_for_decision(file.path)} ({file.state}; {what})", text, whole=whole)
        sys.stderr.write("".join(f"{line}\n" for line in lines))


def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """`callboard trust`: what the owner has agreed to in this workspace, and what is left to agree to."""
    settings = settings_of(options)
    if settings.workspace is None:
        raise UsageError("there is no workspace; give one with --workspace DIR")
    trust = _trust(settings.config_dir, settings.workspace)
    if options.forget:
        trust.forget()
    files = trust.files()
    if not options.forget and _open(files) and has_terminal() and _agrees(_open(files)):
        trust.agree(_open(files))
        files = trust.files()
    if not files:
        print_line("no file of this workspace changes what callboard does")
        return
    rows = [(printable(file.path), file.state, printable(file.fault)) for file in files]
    print_line(table([("FILE", "STATE", "FAULT"), *rows], columns_of(sys.stdout)))
    if _open(files) and not has_terminal():
        raise UsageError("there is no terminal to ask at; type `callboard trust` at one to agree to these files")
