"""`run_command`: a shell line in the workspace, ended with all that it has started when its time is up."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

from pydantic import Field

from callboard.actors.builtins.brief_result import BriefResult
from callboard.actors.builtins.command_output import READ_BYTES, Diagnostic, HeadAndTail
from callboard.actors.builtins.workspace import Workspace
from callboard.actors.processes import confined, run_shell
from callboard.actors.tools import Tool, ToolContext, tool
from callboard.protocol.errors import ToolError
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.limits import MAX_TOOL_TIMEOUT_SECONDS
from callboard.protocol.policy import Access, AccessKind

if TYPE_CHECKING:
    from callboard.actors.builtins import diagnostics
else:
    diagnostics = lazy_module("callboard.actors.builtins.diagnostics")

DEFAULT_SECONDS: Final = 120.0
#: Of the call's own deadline, what is left for ending the command and telling of it.
SPARE_SECONDS: Final = run_shell.GRACE_SECONDS + 1.0
#: Linux takes 131,072 bytes as one argument.
MAX_COMMAND_CHARS: Final = 30_000
MAX_VARIABLES: Final = 100
MAX_VALUE_CHARS: Final = 10_000

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Variables by which a loader, a shell or an interpreter runs other code than the line says. They can be set in the
#: line itself, where they are judged with it.
_DECIDES: Final = re.compile(
    r"LD_.*|DYLD_.*|GLIBC_TUNABLES|BASH_ENV|BASH_FUNC_.*|ENV|SHELLOPTS|BASHOPTS|IFS|PS4|PROMPT_COMMAND|PATH|HOME|TMPDIR"
    r"|SHELL|PYTHON.*|PERL5?.*|RUBY.*|NODE_.*|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|GIT_.*|.*_COMMAND|EDITOR|VISUAL|PAGER"
    r"|MANPAGER|LESSOPEN|LESSCLOSE|BROWSER"
)


@dataclass(frozen=True, slots=True)
class CommandAnswer(BriefResult):
    """The answer of `run_command`."""

    KEEPS: ClassVar = frozenset({"output"})

    exit_code: int | None
    """Left out where a signal ended the shell."""
    signal: str
    """Such as `SIGKILL`; empty where the shell ended by itself."""
    timed_out: bool
    seconds: float
    output: str
    """Both outputs of the command, in the order in which they were written."""
    output_bytes: int
    left_out_bytes: int
    """Of the output, between its beginning and its end."""
    cwd: str
    diagnostics: list[Diagnostic]
    """What compilers, linters and test runners have said in the output, as far as their forms are known."""
    diagnostics_left_out: int | None
    """How many more there are."""
    note: str = ""
    version: Literal[1] = 1


Command = Annotated[str, Field(min_length=1, max_length=MAX_COMMAND_CHARS)]
Variables = Annotated[
    dict[str, Annotated[str, Field(max_length=MAX_VALUE_CHARS)]] | None, Field(max_length=MAX_VARIABLES)
]


def command_accesses(arguments: Mapping[str, object]) -> Iterator[Access]:
    """What a policy judges: the line with its variables set before it, and its folder."""
    command, cwd, env = (arguments.get(name) for name in ("command", "cwd", "env"))
    if isinstance(command, str):
        set_before = "".join(
            f"export {name}={shlex.quote(str(value))}\n"
            for name, value in (env if isinstance(env, dict) else {}).items()
        )
        yield Access(AccessKind.COMMAND, f"{set_before}{command}", "command")
    if isinstance(cwd, str):
        yield Access(AccessKind.READ, cwd, "cwd")


def run_command_tool(workspace: Workspace) -> Tool:
    """`run_command`, in this workspace."""

    @tool(
        risk="execute",
        timeout=MAX_TOOL_TIMEOUT_SECONDS,
        latency="long",
        concurrency=4,
        accesses=command_accesses,
        paths=[str(workspace.root)],
    )
    def run_command(
        context: ToolContext,
        command: Command,
        cwd: str = ".",
        env: Variables = None,
        timeout_seconds: Annotated[float, Field(gt=0, le=MAX_TOOL_TIMEOUT_SECONDS)] = DEFAULT_SECONDS,
    ) -> CommandAnswer:
        """Run a line with bash (sh where there is none). It reads nothing, and all that it has started is ended with
        it: what should go on is for start_job.

        Args:
            command: The line, such as `make test 2>&1 | tail -50`.
            cwd: The folder it runs in, relative to the workspace.
            env: Variables beside those that it has.
            timeout_seconds: After so long it is ended, and what it has printed is returned.
        """
        folder = folder_of(workspace, cwd)
        variables = checked_line(command, env)
        seconds = min(timeout_seconds, context.remaining_seconds - SPARE_SECONDS)
        if seconds <= 0:
            raise ToolError("there is no time left for a command in this request")
        output, read = HeadAndTail(), HeadAndTail(READ_BYTES, READ_BYTES)

        def add(data: bytes) -> None:
            output.add(data)
            read.add(data)

        try:
            end = run_shell.run(command, folder, variables, seconds, add)
        except OSError as error:
            raise ToolError(f"the command could not be started: {error.strerror or error}") from error
        text = output.text()
        found, more = diagnosed(read, folder, workspace.root)
        note = " ".join(filter(None, (_note(end), confined.hint(text))))
        return CommandAnswer(
            end.exit_code, end.signal, end.timed_out, end.seconds, text, output.total, output.left_out,
            str(folder), found, more, note,
        )  # fmt: skip

    return run_command


def diagnosed(output: HeadAndTail, folder: str | Path, root: Path) -> tuple[list[Diagnostic], int | None]:
    """What compilers and test runners say in it, and how many more there are; None: no more."""
    found, more = diagnostics.diagnostics_of(output.text(), str(folder), str(root))
    return found, more or None


def folder_of(workspace: Workspace, cwd: str) -> Path:
    """Where a command runs. Raises ToolError."""
    folder = workspace.inside(cwd, "cwd")
    if not folder.is_dir():
        raise ToolError(f"{cwd!r} is not a directory", field="cwd", expected="a directory", received=cwd)
    return folder


def checked_line(command: str, env: Mapping[str, str] | None) -> dict[str, str]:
    """The variables of a command. Raises ToolError for what no shell could be given, or what would change the line."""
    if "\0" in command:
        message = "the command holds a NUL character, which no shell can be given"
        raise ToolError(message, field="command", expected="a shell line without NUL", received=command[:200])
    variables = dict(env or {})
    for name, value in variables.items():
        if not _NAME.fullmatch(name) or "\0" in value:
            message = f"{name!r} cannot be the name of a variable, or its value holds a NUL character"
            raise ToolError(message, field="env", expected="names such as DEBUG, values without NUL", received=name)
        if _DECIDES.fullmatch(name):
            raise ToolError(
                f"{name} decides what code the command runs, so it is not taken from env",
                field="env",
                expected="variables that only the program itself reads",
                received=name,
                retry_hint=f"Set it in the command: {name}=... ; there it is judged with it.",
            )
    return variables


def _note(end: run_shell.CommandEnd) -> str:
    if end.too_many_processes:
        return f"It was ended: it had more than {run_shell.MAX_PROCESSES} processes."
    if end.timed_out:
        return "It was ended: its time was up. Give a longer timeout_seconds, or start_job for what takes long."
    if end.left_running:
        return f"Processes that it left running were ended: {end.left_running}. start_job is for what should go on."
    return ""
