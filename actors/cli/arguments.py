"""What can be typed, and the settings that it makes."""

from __future__ import annotations

import argparse
import itertools
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import callboard
from callboard.protocol.errors import UsageError
from callboard.protocol.lazy_loading import lazy_module

if TYPE_CHECKING:
    import dataclasses

    from callboard.actors import config_file
else:
    dataclasses = lazy_module("dataclasses")
    config_file = lazy_module("callboard.actors.config_file")  # for a mistake in what was typed

#: From this on (difflib, 0 to 1) an option is probably another one misspelt.
_LIKENESS = 0.75
#: Stands for standard input, where it is typed as an argument.
STDIN = "-"
SHELLS = ("bash", "zsh", "fish")
#: The values of Trust, Mode and Confine, written out: reading them would load half of the tools' rooms.
TRUST: Final = ("careful", "balanced", "manual")
MODE: Final = ("ask", "plan", "build")
CONFINE: Final = ("off", "auto", "required")
#: Of an id: fewer characters would be found by chance.
MIN_ID_CHARS: Final = 4
#: Settings that can be typed, by their own names.
_SETTINGS = ("workspace", "model", "base_url", "confine", "journal")


class WrongArguments(UsageError):
    """What was typed is not a command. `usage` shows what can be typed."""

    def __init__(self, message: str, usage: str) -> None:
        self.usage = usage
        super().__init__(message)


class CommandParser(argparse.ArgumentParser):
    """Raises WrongArguments instead of ending the process, and names what was probably meant."""

    _typed: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it, for this command's part of the line."""
        self._typed = args or ()
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        words = self._typed[: self._typed.index("--")] if "--" in self._typed else self._typed
        command, known = _command_in(words, self)
        if command is self and self._subparsers is not None:  # behind a word that is no command
            words = list(itertools.takewhile(lambda word: word.startswith("-"), words))
        if before := _before_its_command(words, self, known):
            message = f"{before} belongs behind the command: {command.prog} {before}"
        for option in (word.partition("=")[0] for word in words):
            if re.fullmatch(r"-[A-Za-z]|--.+", option) and option not in known:  # what follows was taken for another
                message = f"unrecognized arguments: {option}{_meant(option, known)}"
                break
        raise WrongArguments(f"{message}; to see what can be typed: {command.prog} --help", command.format_usage())

    def format_help(self) -> str:
        """What it does, in the first line; then what can be typed."""
        said, self.description = self.description, None
        try:
            return f"{said}\n\n{super().format_help()}"
        finally:
            self.description = said

    def describe_commands(self) -> None:
        """The help of each command says what the list of commands says of it."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for listed in action._choices_actions:
                    text = str(listed.help)
                    action.choices[listed.dest].description = f"{text[0].upper()}{text[1:]}."
                    action.choices[listed.dest].describe_commands()

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if action.metavar == STDIN:
            raise argparse.ArgumentError(None, f"{value!r} is a word too many: put the question in quotes")
        choices = ", ".join(map(str, action.choices))
        meant = config_file.similar(str(value), dict.fromkeys(action.choices))
        raise argparse.ArgumentError(action, f"invalid choice: {value!r} (choose from {choices}){meant}")


def commands_below(command: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Those that may follow it, by their names."""
    return next((each.choices for each in command._actions if isinstance(each, argparse._SubParsersAction)), {})


def with_all_below(command: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The command, the commands that may follow it, and so on."""
    yield command
    for each in commands_below(command).values():
        yield from with_all_below(each)


def _command_in(words: Sequence[str], command: argparse.ArgumentParser) -> tuple[argparse.ArgumentParser, set[str]]:
    """The command that these words of a line name, from this one on, and the options that may stand in the line."""
    known = set(command._option_string_actions)
    below = commands_below(command)
    for number, word in enumerate(words):
        if word in below:
            found, more = _command_in(words[number + 1 :], below[word])
            return found, known | more
    return command, known


def _before_its_command(words: Sequence[str], command: argparse.ArgumentParser, known: Iterable[str]) -> str:
    """The first option that stands before the word that names its command; "" where none does."""
    below = commands_below(command)
    before = list(itertools.takewhile(lambda word: word not in below, words))
    if len(before) == len(words):
        return ""
    options = (word.partition("=")[0] for word in before if word.startswith("-"))
    here = next((each for each in options if each in known and each not in command._option_string_actions), "")
    return here or _before_its_command(words[len(before) + 1 :], below[words[len(before)]], known)


def _meant(option: str, known: Iterable[str]) -> str:
    names = [each[2:] for each in known if each.startswith("--")]
    found = config_file.likest(option[2:], sorted(names), _LIKENESS)
    return f"; did you mean '--{found}'?" if found else ""


def parser() -> CommandParser:
    """The commands. `command` of the result names the chosen one."""
    root = CommandParser(
        prog="callboard", description="A supervised actor runtime for LLM tool calls.", allow_abbrev=False
    )
    root.add_argument("--version", action="version", version=version())
    _add_config(root)
    root.set_defaults(profile="", config=None)  # which commands do not set again, where they are not given to them
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")

    asking = commands.add_parser("ask", help="ask about the code in a workspace", allow_abbrev=False)
    asking.add_argument("question", metavar="QUESTION", help='"-" reads it from standard input')
    asking.add_argument("input", metavar="-", nargs="?", choices=[STDIN], help="add what standard input holds")
    _add_workspace(asking, "the folder to ask about (CALLBOARD_WORKSPACE, else this one)")
    _add_model(asking, "the model to ask (CALLBOARD_MODEL, else offline/code-context)")
    asking.add_argument("--instructions", metavar="TEXT", help="instructions in place of those of the settings")
    for kind, what in (("image", "a picture"), ("file", "a file: a PDF, a text, a recording")):
        asking.add_argument(
            f"--{kind}",
            type=Path,
            action="append",
            default=[],
            metavar="FILE",
            help=f"show the model {what}; may be given several times",
        )
    _add_tools(asking)
    _add_journal(asking, "keep the question and its answer in this journal (CALLBOARD_JOURNAL)")
    _add_going_on(asking)
    asking.add_argument("--json", action="store_true", help="print one JSON object, also when it fails")

    _add_chat(commands.add_parser("chat", help="hold a conversation at the terminal", allow_abbrev=False))
    _add_acp(commands.add_parser("acp", help="serve an editor, by the Agent Client Protocol", allow_abbrev=False))

    indexing = commands.add_parser(
        "index", help="index a workspace, so that questions start at once", allow_abbrev=False
    )
    indexing.add_argument(
        "workspace",
        type=Path,
        nargs="*",
        metavar="DIR",
        help="the folder, or several together (CALLBOARD_WORKSPACE, else this one)",
    )
    indexing.add_argument(
        "--vectors", action="store_true", help="also make the vectors of all code, by which it is found by meaning"
    )
    indexing.add_argument("--watch", action="store_true", help="go on as files change, until Ctrl-C (extra watch)")
    _add_profile(indexing)

    doctoring = commands.add_parser(
        "doctor", help="check each configured provider's key and address by a small call", allow_abbrev=False
    )
    _add_model(doctoring, "the model to check (CALLBOARD_MODEL)")

    signing = commands.add_parser("login", help="sign in where a key is not enough", allow_abbrev=False)
    signing.add_argument("provider", choices=["copilot"])
    _add_profile(signing)

    listing = commands.add_parser("tools", help="list the tools that a model is offered", allow_abbrev=False)
    listing.add_argument("names", nargs="*", metavar="NAME", help="all that there is to say of this tool")
    _add_workspace(listing, "the folder they work in (CALLBOARD_WORKSPACE, else this one)")
    _add_profile(listing)
    _add_tools(listing)
    listing.add_argument("--json", action="store_true", help="print them as JSON, with their schemas")

    _add_owners_commands(commands)
    _add_journal_commands(commands)

    serving = commands.add_parser(
        "mcp", help="serve the tools to MCP clients, over stdin and stdout or HTTP", allow_abbrev=False
    )
    _add_workspace(serving, "the folder they work in (CALLBOARD_WORKSPACE, else this one)")
    _add_profile(serving)
    _add_tools(serving)
    serving.add_argument(
        "--http", nargs="?", const="", metavar="HOST:PORT", help="over HTTP (127.0.0.1:8340), not stdin and stdout"
    )
    serving.add_argument(
        "--token-file", type=Path, metavar="FILE", help="the bearer token of HTTP; made, and kept there, if missing"
    )
    serving.add_argument("--no-token", action="store_true", help="take calls of anyone on this machine")

    _add_serve(commands.add_parser("serve", help="answer clients of OpenAI's and Anthropic's APIs", allow_abbrev=False))

    _add_tokens(commands.add_parser("tokens", help="list, make and remove tokens of the daemon", allow_abbrev=False))

    _add_models(commands.add_parser("models", help="list the models that can be asked now", allow_abbrev=False))

    completing = commands.add_parser(
        "completion", help="print a script with which a shell completes these commands", allow_abbrev=False
    )
    completing.add_argument("shell", choices=SHELLS)
    root.describe_commands()
    return root


def _add_owners_commands(commands: argparse._SubParsersAction[CommandParser]) -> None:
    """What the owner decides besides questions: edits, files of a workspace, rules."""
    editing = commands.add_parser(
        "edits", help="list, apply or give up edits that tools have staged", allow_abbrev=False
    )
    editing.add_argument("action", choices=["list", "approve", "deny"], nargs="?", default="list")
    editing.add_argument("ids", nargs="*", metavar="ID", help="of the edits, as `list` shows them")
    _add_workspace(editing, "the folder they are in (CALLBOARD_WORKSPACE, else this one)")
    _add_profile(editing)
    editing.add_argument("--all", action="store_true", help="list those that are decided, too")
    editing.add_argument("--all-pending", dest="everything", action="store_true", help="decide on all that wait")
    editing.add_argument("--reason", default="", metavar="TEXT", help="of a denial: the model reads it")
    editing.add_argument("--json", action="store_true", help="print them as JSON")

    trusting = commands.add_parser(
        "trust", help="agree to files inside a workspace: tools, MCP servers, rules", allow_abbrev=False
    )
    _add_workspace(trusting, "the folder they are in (CALLBOARD_WORKSPACE, else this one)")
    _add_profile(trusting)
    trusting.add_argument("--forget", action="store_true", help="agree to none of them any more")

    ruling = commands.add_parser(
        "rules", help="list and remove what was answered for always to questions for approval", allow_abbrev=False
    )
    _add_workspace(ruling, "the folder they count in (CALLBOARD_WORKSPACE, else this one)")
    _add_profile(ruling)
    ruling.add_argument("--remove", type=_whole, metavar="NUMBER", help="remove the rule of this number")
    ruling.add_argument("--json", action="store_true", help="print them as JSON")


def _add_journal_commands(commands: argparse._SubParsersAction[CommandParser]) -> None:
    """What is done with a journal: an action each."""
    journal = commands.add_parser(
        "journal", help="list, search, export, check and clean up what a journal keeps", allow_abbrev=False
    )
    actions = journal.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, help_text: str, *, prints_json: bool = True) -> CommandParser:
        made = actions.add_parser(name, help=help_text, allow_abbrev=False)
        _add_journal(made, "the path of its file, or postgresql://... (CALLBOARD_JOURNAL)")
        _add_profile(made)
        if prints_json:
            made.add_argument("--json", action="store_true", help="print JSON")
        return made

    listing = action("list", "list conversations, the newest first")
    listing.add_argument(
        "--text", default="", metavar="WORDS", help="only those with all of these words in one message"
    )
    _add_narrowing(listing)
    showing = action("show", "show a conversation or a request")
    showing.add_argument("id", metavar="ID", help="of a conversation or a request")
    showing.add_argument("--at", metavar="MESSAGE", help="only up to the message with this id")
    requests = action("requests", "list requests, the newest first")
    _add_limit(requests)
    requests.add_argument("--until", type=_time, metavar="TIME", help="only what began before")
    searching = action("search", "find messages in which all words occur")
    searching.add_argument("words", nargs="+", metavar="WORD", help='the beginning of a word; "two words" as they are')
    _add_narrowing(searching)
    using = action("usage", "add up model calls, tokens, cost and tool calls")
    using.add_argument("--csv", action="store_true", help="print CSV")
    using.add_argument(
        "--by", action="append", choices=["day", "model", "tool", "conversation"], help="a line for each (day, model)"
    )
    _add_times(using)
    using.add_argument("--model", dest="of_model", default="", metavar="PROVIDER/MODEL", help="only this model")
    using.add_argument("--tool", default="", metavar="NAME", help="only calls of this tool")
    using.add_argument("--conversation", default="", metavar="ID", help="only this conversation")
    exporting = action("export", "print a conversation as JSON, or all of it as JSON lines", prints_json=False)
    exporting.add_argument("id", nargs="?", metavar="ID", help="of a conversation")
    exporting.add_argument("--at", metavar="MESSAGE", help="only up to the message with this id")
    importing = action("import", "add what `export` has printed", prints_json=False)
    importing.add_argument("file", type=Path, metavar="FILE", help='"-" reads standard input')
    deleting = action("delete", "delete conversations for good", prints_json=False)
    deleting.add_argument("ids", nargs="+", metavar="ID", help="of conversations")
    compacting = action("compact", "delete what is too old or too much, and give the space back", prints_json=False)
    compacting.add_argument("--keep-days", type=_positive, metavar="DAYS", help="(journal_keep_days)")
    compacting.add_argument("--max-bytes", type=_whole, metavar="BYTES", help="(journal_max_bytes)")
    action("verify", "read all of it and say what is damaged")
    action("repair", "save what is sound of a damaged file in a new one")
    replaying = action("replay", "show how a request went, and where this callboard goes another way")
    replaying.add_argument("request", metavar="REQUEST", help="the id of the request")
    replaying.add_argument(
        "--save", type=Path, metavar="FILE", help="keep it as JSON lines, for a test with `assert_replays`"
    )


def _add_tokens(keeping: argparse.ArgumentParser) -> None:
    _add_profile(keeping)
    actions = keeping.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the tokens", allow_abbrev=False)
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    making = actions.add_parser("make", help="make a token, and show it once", allow_abbrev=False)
    making.add_argument("--scope", choices=["use", "approve", "admin"], default="use", help="what it may do (use)")
    making.add_argument("--tenant", metavar="NAME", help="whose it is (the first of the configuration)")
    making.add_argument("--note", metavar="TEXT", default="", help="what it is for")
    removing = actions.add_parser("remove", help="let a token count no more", allow_abbrev=False)
    removing.add_argument("id", metavar="ID", help="of the token, as `list` shows it")
    for each in (listing, making, removing):
        _add_profile(each)


def _add_models(showing: argparse.ArgumentParser) -> None:
    showing.add_argument(
        "name", nargs="?", metavar="NAME", help="all that there is to say of a provider, or of provider/model"
    )
    showing.add_argument("--providers", action="store_true", help="list all providers, with their key variables")
    _add_profile(showing)
    showing.add_argument("--json", action="store_true", help="print JSON")


def _add_going_on(command: argparse.ArgumentParser) -> None:
    going_on = command.add_mutually_exclusive_group()
    going_on.add_argument("--conversation", metavar="ID", help="go on with this conversation of the journal")
    going_on.add_argument(
        "--continue", dest="goes_on", action="store_true", help="go on with the conversation asked last"
    )


def _add_chat(chatting: argparse.ArgumentParser) -> None:
    _add_workspace(chatting, "the folder to talk about (CALLBOARD_WORKSPACE, else this one)")
    _add_model(chatting, "the model to ask (CALLBOARD_MODEL, else offline/code-context)")
    chatting.add_argument("--instructions", metavar="TEXT", help="instructions in place of those of the settings")
    _add_tools(chatting)
    _add_journal(chatting, "keep the conversation in this journal (CALLBOARD_JOURNAL)")
    _add_going_on(chatting)
    chatting.add_argument("--url", metavar="URL", help="ask the daemon there, not a model of this process")
    chatting.add_argument("--token-file", type=Path, metavar="FILE", help="its bearer token (CALLBOARD_TOKEN)")


def _add_acp(serving: argparse.ArgumentParser) -> None:
    _add_workspace(serving, "the folder of sessions that name none (CALLBOARD_WORKSPACE, else this one)")
    _add_model(serving, "the model to ask (CALLBOARD_MODEL, else offline/code-context)")
    _add_tools(serving)
    _add_journal(serving, "keep sessions in this journal, so that they can be loaded (CALLBOARD_JOURNAL)")


def _add_serve(serving: argparse.ArgumentParser) -> None:
    serving.add_argument("--host", metavar="ADDRESS", help="where to listen (127.0.0.1)")
    serving.add_argument("--port", type=_from_zero, metavar="NUMBER", help="(8330; 0: any that is free)")
    serving.add_argument("--log-format", choices=["text", "json"], help="of the log on stderr (text)")
    _add_workspace(serving, "the folder that the tools work in (CALLBOARD_WORKSPACE, else none)")
    _add_model(serving, "the model of requests that name none (CALLBOARD_MODEL; without it they must)")
    _add_tools(serving)
    _add_journal(serving, 'in place of a file among the daemon\'s own; "off": none (CALLBOARD_JOURNAL)')


def _add_journal(command: argparse.ArgumentParser, help_text: str) -> None:
    command.add_argument("--journal", metavar="PATH", help=help_text)


def _add_narrowing(command: argparse.ArgumentParser) -> None:
    _add_limit(command)
    _add_times(command)
    command.add_argument(
        "--metadata",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="only conversations whose latest question had this; may be given several times",
    )


def _add_limit(command: argparse.ArgumentParser) -> None:
    command.add_argument("--limit", type=_whole, default=50, metavar="NUMBER", help="at most so many (50)")


def _add_times(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--since", type=_time, metavar="TIME", help="from this time on: 2026-11-23 or 2026-11-23T12:30, local time"
    )
    command.add_argument("--until", type=_time, metavar="TIME", help="before this time")


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 2026-11-23 or 2026-11-23T12:30") from error


def _whole(text: str, least: int = 1) -> int:
    try:
        number = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from error
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is below {least}")
    return number


def _from_zero(text: str) -> int:
    return _whole(text, 0)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from error
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days above 0")
    return number


def _add_workspace(command: argparse.ArgumentParser, help_text: str) -> None:
    more = "; given again: a further folder to read in"
    command.add_argument("--workspace", type=Path, action="append", metavar="DIR", help=help_text + more)


def _add_tools(command: argparse.ArgumentParser) -> None:
    """Which tools there are besides callboard's, and what they may do."""
    command.add_argument(
        "--tools",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file with tools of your own; may be given several times",
    )
    command.add_argument("--trust", choices=TRUST, help="how much runs unasked (balanced)")
    command.add_argument("--mode", choices=MODE, help="what it is for: answers, plans or changes (build)")
    command.add_argument(
        "--confine", choices=CONFINE, help="are tools held to their declared risk by the kernel? (auto)"
    )


def _add_model(command: argparse.ArgumentParser, help_text: str) -> None:
    command.add_argument("--model", metavar="PROVIDER/MODEL", help=help_text)
    command.add_argument(
        "--base-url", metavar="URL", help="where the model's API is, if not at its usual place (CALLBOARD_BASE_URL)"
    )
    _add_profile(command)


def _add_profile(command: argparse.ArgumentParser) -> None:
    """Which file the settings are read of, and which section of it."""
    command.add_argument(
        "--profile",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="a section of the configuration file (CALLBOARD_PROFILE)",
    )
    _add_config(command)


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        default=argparse.SUPPRESS,
        help="in place of the user's configuration file",
    )


def version() -> str:
    """One line with what a report of a fault should name."""
    where = f"{platform.system()} {platform.machine()}"
    return f"callboard {callboard.__version__}, Python {platform.python_version()}, {where}"


def wants_json(arguments: Sequence[str]) -> bool:
    """Was --json typed? Also where the rest is wrong."""
    typed = list(arguments)
    return "--json" in (typed[: typed.index("--")] if "--" in typed else typed)


def settings_of(options: argparse.Namespace) -> callboard.Settings:
    """The settings a command runs with: what was typed, then the environment, then the configuration file.

    Raises UsageError.
    """
    typed = {name: getattr(options, name) for name in _SETTINGS if name in vars(options)}
    given = with_folders({name: value for name, value in typed.items() if value is not None})
    # Most questions call no tool that needs a process; the first that does can wait for it.
    otherwise = {"workspace": Path(), "warm_workers": 0}
    names = {name: f"--{name.replace('_', '-')}" for name in given} | {"more_workspaces": "--workspace"}
    if options.command == "index":
        names = dict.fromkeys(given, "DIR")
    settings = callboard.Settings.from_file(
        options.profile, options.config, given=given, otherwise=otherwise, options=names
    )
    judged_by = {name: value for name in ("trust", "mode") if (value := getattr(options, name, None)) is not None}
    if not judged_by:
        return settings
    return settings.model_copy(update={"policy": dataclasses.replace(settings.policy, **judged_by)})


def with_folders(typed: dict[str, Any]) -> dict[str, Any]:
    """The fields of Settings for folders that were typed: the first one, and those besides it."""
    folders = typed.pop("workspace", None)
    if folders:
        typed["workspace"], *more = folders
        typed["more_workspaces"] = tuple(more)  # also none: those of a file are besides the folder there
    return typed


def place_of(settings: callboard.Settings) -> str | Path:
    """Where the journal is. Raises UsageError where none is named."""
    if settings.journal is None:
        raise UsageError("name the journal: --journal PATH, CALLBOARD_JOURNAL or `journal` in the configuration file")
    return settings.journal


def whole_id(given: str, ids: Iterable[str], noun: str) -> str:
    """The one of these ids that begins with what was typed; else that itself, known or not. Raises UsageError where
    several begin so, and for less than MIN_ID_CHARS of one. Of short ids: those of a journal it finds itself.
    """
    known = list(ids)
    begun = [each for each in known if each.startswith(given)]
    if given in known or not begun:
        return given
    if len(given) < MIN_ID_CHARS:
        raise UsageError(f"{given!r} is too short: {MIN_ID_CHARS} characters of the id of a {noun} are needed")
    if len(begun) > 1:
        raise UsageError(f"{len(begun):,} {noun}s begin with {given!r} ({', '.join(begun)}): give more of the id")
    return begun[0]
