"""A process that has callboard loaded, of which the Python programs that tests start are forked.

An interpreter that loads callboard takes a second or two of CPU before its first line; a fork takes some milliseconds.
`Forking` has `subprocess.Popen`, and so all that is made of it, fork each command that is this interpreter with a
script, `-m` or `-c`. It is a process as any other: a child of the one that started it, with the descriptors, folder,
environment, arguments, session and exit status that it would have otherwise; /proc shows it so too. A command that
says how its interpreter is to start (an option such as -W, a variable such as PYTHONHASHSEED) gets an interpreter of
its own. So does every command of a test marked `fresh_interpreter`, because it is about what is loaded at a start.

Run as a program, this file is the zygote. It has one thread, serves one process, and ends with it.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import functools
import gc
import importlib
import inspect
import io
import json
import locale
import os
import platform
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, Final, NamedTuple

#: What most programs of tests are made of, also what they load when they first use it. What else one needs, it loads
#: itself; so it does with onnxruntime, which starts a thread when it is loaded, and a fork would lack that.
PRELOADED: Final = (
    "callboard.actors.runtime", "callboard.actors.cli.__main__", "callboard.actors.cli.ask",
    "callboard.actors.cli.chat", "callboard.actors.cli.doctor", "callboard.actors.cli.indexing",
    "callboard.actors.cli.serve_acp", "callboard.actors.cli.serve_command", "callboard.actors.cli.serve_mcp",
    "callboard.actors.cli.shell", "callboard.actors.daemon.http_server", "callboard.actors.mcp.http_client",
    "callboard.actors.mcp.tool_server", "callboard.actors.processes.init", "callboard.actors.index.parsing",
    "callboard.actors.index.refresh", "callboard.actors.index.token_count", "callboard.actors.index.integer_model",
    "callboard.actors.index.rag", "callboard.actors.builtins.code_tools", "callboard.actors.edits.edit_tools",
    "callboard.actors.edits.editing", "callboard.actors.following", "callboard.actors.new_request",
    "callboard.actors.running", "callboard.actors.taking_up", "callboard.actors.wiring",
    "callboard.actors.telemetry.opentelemetry_spans", "callboard.actors.telemetry.opentelemetry_metrics",
    "callboard.providers.http_adapters", "callboard.providers.transport", "callboard.providers.openai.background",
    "aiohttp", "cloudpickle", "docstring_parser", "httpx", "netrc", "numpy", "pydantic.json_schema",
    "stringprep", "tenacity", "tokenizers",
)  # fmt: skip
#: Variables which an interpreter reads when it starts, and what they do is done in the fork. With another value of any
#: other variable that begins with PYTHON it starts differently.
HANDLED: Final = frozenset(
    {"PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONWARNINGS", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"}
)
#: Locales in which standard input and output take bytes that are no text.
_C_LOCALES: Final = ("", "C", "POSIX", "C.UTF-8")
#: To load all that, and to answer, on a busy machine.
PATIENCE_SECONDS: Final = 60.0
_LENGTH: Final = struct.Struct("!Q")
_ANSWER: Final = struct.Struct("!i")
"""A process id, or 0."""

# linux/sched.h, linux/prctl.h, and the numbers of the system call
_SIGNAL_AND_FLAGS: Final = signal.SIGCHLD | 0x00008000 | 0x00200000 | 0x01000000
"""CLONE_PARENT: a sibling, not a child. CLONE_CHILD_CLEARTID and CLONE_CHILD_SETTID, as the C library's fork() does."""
_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_PR_GET_TID_ADDRESS: Final = 40
_PR_SET_MM, _PR_SET_MM_MAP = 35, 14


class Order(NamedTuple):
    """What a process is to be."""

    command: list[str]
    folder: str
    environment: dict[str, str]
    new_session: bool
    process_group: int
    passed: list[int]
    """The numbers of the descriptors beyond the standard ones."""


# -- in the process that starts programs


class Forking:
    """While it is on, programs are forked of a zygote, which is started when the first of them is."""

    def __init__(self) -> None:
        self.is_on = True
        self.has_forked = False
        self._zygote: _Zygote | None = None
        self._lock = threading.Lock()
        self._start_fresh = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        names = list(inspect.signature(self._start_fresh).parameters)

        @functools.wraps(self._start_fresh)
        def execute_child(*given: Any) -> None:
            if not self._fork(dict(zip(names, given, strict=True))):
                self._start_fresh(*given)

        subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]

    def start_ahead(self) -> None:
        """Start the zygote, which takes seconds, before a test waits for it. Returns at once."""
        with self._lock:
            self._running()

    def _running(self) -> _Zygote:
        """Called with the lock held."""
        if self._zygote is None:
            self._zygote = _Zygote(self._start_fresh)
        return self._zygote

    def close(self) -> None:
        """Have all programs started as ever. Those that were forked go on."""
        subprocess.Popen._execute_child = self._start_fresh  # type: ignore[attr-defined]
        if self._zygote is not None:
            self._zygote.close()

    def _fork(self, asked: dict[str, Any]) -> bool:
        """False: this is not to be forked."""
        if not (self.is_on and _is_program(asked)):
            return False
        environment = os.environ if asked["env"] is None else asked["env"]
        order = Order(
            [os.fsdecode(each) for each in asked["args"]],
            os.path.abspath(os.fsdecode(asked["cwd"] or ".")),
            {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
            asked["start_new_session"],
            asked["process_group"],
            list(asked["pass_fds"]),
        )
        with self._lock:
            zygote = self._running()
            if not zygote.can_make(order):
                return False
            ends = (asked["p2cread"], asked["c2pwrite"], asked["errwrite"])
            standard = [number if end == -1 else end for number, end in enumerate(ends)]
            try:
                pid = zygote.fork(order, [*standard, *order.passed])
            except BaseException:  # such as a test's time limit: the next answer would be that to this order
                zygote.close()
                self._zygote = None
                raise
        if pid == 0:
            return False
        popen = asked["self"]
        popen.pid = pid
        popen._child_created = self.has_forked = True
        popen._close_pipe_fds(
            *(asked[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )
        return True


def _is_program(asked: Mapping[str, Any]) -> bool:
    """Is this a program for this interpreter, without an option that says how to start it?"""
    args, extras = asked["args"], ("executable", "preexec_fn", "shell", "gid", "gids", "uid")
    if isinstance(args, str | bytes | os.PathLike) or any(asked[name] for name in extras) or asked["umask"] >= 0:
        return False
    if [*args[1:3]] == ["-m", "pytest"]:  # which rewrites modules as they are loaded
        return False
    if len(args) < 2 or args[0] != sys.executable or not os.path.isdir(asked["cwd"] or "."):
        return False
    kinds = {"-c", "-m"} if args[1] != "-P" else {"-P"} if args[2] == "-c" else {}
    return args[1] in kinds if str(args[1]).startswith("-") else str(args[1]).endswith(".py")


class _Zygote:
    """One that runs."""

    def __init__(self, start_fresh: Any) -> None:
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(PATIENCE_SECONDS)
        self._owner = os.getpid()
        self._environment = dict(os.environ)
        with theirs:
            # With an option, so that this one is not to be forked.
            command = [sys.executable, "-B" if sys.dont_write_bytecode else "-q", __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def can_make(self, order: Order) -> bool:
        """Would the interpreter start as the zygote's has?"""
        both = (self._environment, order.environment)
        names = {name for each in both for name in each if name.startswith("PYTHON")} - HANDLED
        is_utf8 = all(_locale(each) in _C_LOCALES or _locale(each).upper().endswith(("UTF-8", "UTF8")) for each in both)
        same = all(self._environment.get(name) == order.environment.get(name) for name in names)
        return self._owner == os.getpid() and is_utf8 and same

    def fork(self, order: Order, descriptors: Sequence[int]) -> int:
        """The id of a process, whose parent is this one; 0 where it would load other modules than the zygote has.

        Raises OSError.
        """
        data = json.dumps(order).encode()
        became, becomes = os.pipe()
        with open(became, "rb") as failure:
            with open(becomes, "wb") as told:
                socket.send_fds(self._ours, [_LENGTH.pack(len(data))], [*descriptors, told.fileno()])
                self._ours.sendall(data)
                (pid,) = _ANSWER.unpack(_read(self._ours, _ANSWER.size))
                if pid == 0:
                    return 0
            failed = failure.read()  # ends when the process is what was ordered, or has been killed meanwhile
        if failed:
            os.waitpid(pid, 0)
            raise OSError(int(failed), os.strerror(int(failed)))
        return int(pid)

    def close(self) -> None:
        """End it."""
        self._ours.close()
        if self._owner == os.getpid():
            self._process.kill()
            self._process.wait(PATIENCE_SECONDS)


def _locale(environment: Mapping[str, str]) -> str:
    return next((found for name in ("LC_ALL", "LC_CTYPE", "LANG") if (found := environment.get(name))), "")


def _read(connection: socket.socket, size: int) -> bytes:
    """Raises EOFError."""
    read = bytearray()
    while len(read) < size:
        data = connection.recv(size - len(read))
        if not data:
            raise EOFError("the other side has ended")
        read += data
    return bytes(read)


# -- in the zygote


def _shadows(order: Order, known: Sequence[str], names: frozenset[str]) -> bool:
    """Would its path lead to a module in place of one of these, such as a copy with a fault?"""
    script = os.path.dirname(order.command[1]) if order.command[1].endswith(".py") else "."
    folders = [script, *order.environment.get("PYTHONPATH", "").split(":")]
    for folder in {os.path.normpath(os.path.join(order.folder, each)) for each in folders} - set(known):
        for entry in os.scandir(folder) if os.path.isdir(folder) else ():  # a program has no suffix, and is none
            if (entry.name if entry.is_dir() else inspect.getmodulename(entry.name)) in names:
                return True
    return False


def _serve(connection: socket.socket, known: Sequence[str], names: frozenset[str]) -> tuple[Order, list[int]]:
    """Fork what is ordered. Returns in the fork; ends the zygote when nothing more can be ordered."""
    while True:
        head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, 253)
        if not head:
            sys.exit(0)
        head += _read(connection, _LENGTH.size - len(head))
        order = Order(*json.loads(_read(connection, *_LENGTH.unpack(head))))
        pid = 0 if (is_other := _shadows(order, known, names)) else _fork_sibling()
        if pid == 0 and not is_other:
            return order, descriptors
        connection.sendall(_ANSWER.pack(pid))
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_sibling() -> int:
    """As os.fork(), but the new process is a child of this one's parent, which can wait for it as for any other."""
    python, library = ctypes.pythonapi, ctypes.PyDLL(None, use_errno=True)
    place = ctypes.c_void_p()  # where the C library keeps the id of this thread
    if library.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(place)):
        raise OSError(ctypes.get_errno(), "prctl(PR_GET_TID_ADDRESS)")
    number, none = ctypes.c_long(_CLONE[platform.machine()]), ctypes.c_void_p()
    python.PyOS_BeforeFork()
    # The last two are this address and one that is not looked at, in an order that depends on the machine.
    pid: int = library.syscall(number, ctypes.c_ulong(_SIGNAL_AND_FLAGS), none, none, place, place)
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return pid


# -- in the fork


def _become(order: Order, descriptors: Sequence[int]) -> None:
    """All of the order but the program."""
    os.chdir(order.folder)
    if order.new_session:
        os.setsid()
    elif order.process_group >= 0:
        os.setpgid(0, order.process_group)
    for descriptor, place in zip(descriptors, (0, 1, 2, *order.passed), strict=True):
        os.dup2(descriptor, place, inheritable=True)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order.environment)
    time.tzset()
    sys.pycache_prefix = order.environment.get("PYTHONPYCACHEPREFIX") or None
    sys.dont_write_bytecode = bool(order.environment.get("PYTHONDONTWRITEBYTECODE"))
    if _locale(order.environment) in ("", "C", "POSIX") and not order.environment.get("LC_ALL"):
        os.environ["LC_CTYPE"] = "C.UTF-8"
    locale.setlocale(locale.LC_CTYPE, _locale(order.environment) or "C.UTF-8")
    _open_streams("surrogateescape" if _locale(order.environment) in _C_LOCALES else "strict", order.environment)
    if told := order.environment.get("PYTHONWARNINGS"):
        sys.warnoptions[:] = told.split(",")
        warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]
    importlib.invalidate_caches()
    _show(order)  # last: who finds it in /proc may kill it


def _open_streams(errors: str, environment: Mapping[str, str]) -> None:
    """As an interpreter does when it starts."""
    unbuffered = bool(environment.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        is_output = number > 0
        buffer: Any = open(  # noqa: SIM115 - for as long as the process is there
            number, "wb" if is_output else "rb", 0 if is_output and unbuffered else -1, closefd=False
        )
        getattr(buffer, "raw", buffer).name = f"<{name}>"
        stream = io.TextIOWrapper(
            buffer, "utf-8", "backslashreplace" if number == 2 else errors, "\n" if is_output else None,
            line_buffering=not unbuffered and (number == 2 or buffer.isatty()), write_through=unbuffered,
        )  # fmt: skip
        stream.mode = "w" if is_output else "r"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _show(order: Order) -> None:
    """Have /proc tell the command and the environment of this process."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = library.sbrk.restype = ctypes.c_void_p
    texts = [
        b"".join(os.fsencode(each) + b"\0" for each in part)
        for part in (order.command, [f"{name}={value}" for name, value in order.environment.items()])
    ]
    size = sum(map(len, texts))
    # For as long as the process is there: neither a file nor Python's own memory (2 = PROT_WRITE, MAP_PRIVATE).
    memory: int = library.mmap(None, ctypes.c_size_t(size), 1 | 2, 0x22, -1, ctypes.c_long(0))
    ctypes.memmove(memory, b"".join(texts), size)
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    # man 5 proc: fields 26 to 28 and 45 to 47; the list begins with the third
    code, code_end, stack, data, data_end, heap = (int(stat[field - 3]) for field in (26, 27, 28, 45, 46, 47))
    middle = memory + len(texts[0])
    values = (code, code_end, data, data_end, heap, library.sbrk(0), stack, memory, middle, middle, memory + size, 0)
    # struct prctl_mm_map; no auxiliary vector, no other file of the program
    told = struct.pack("=12QIi", *values, 0, -1)
    if library.prctl(_PR_SET_MM, _PR_SET_MM_MAP, told, ctypes.c_ulong(len(told)), ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_MM)")


def _run(order: Order, base_path: Sequence[str]) -> None:
    """The program, as the interpreter does."""
    is_safe = order.command[1] == "-P"
    kind, *rest = order.command[1 + is_safe :]
    sys.orig_argv = order.command
    own = [os.path.abspath(each) for each in order.environment.get("PYTHONPATH", "").split(":") if each]
    sys.path[:] = dict.fromkeys([*own, *base_path])
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __annotations__={}, __loader__=None)
    sys.modules["__main__"] = main
    if kind == "-m":
        sys.argv = ["-m", *rest[1:]]
        sys.path.insert(0, os.getcwd())
        for name in (rest[0], f"{rest[0]}.__main__"):  # else it warns that it is loaded already
            if not hasattr(sys.modules.get(name), "__path__"):
                sys.modules.pop(name, None)
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path[:0] = [] if is_safe else [""]
        exec(compile(rest[0], "<string>", "exec", dont_inherit=True), main.__dict__)
    else:
        sys.argv = [kind, *rest]
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))
        main.__dict__.update(__file__=kind, __cached__=None, __loader__=SourceFileLoader("__main__", kind))
        exec(compile(Path(kind).read_bytes(), kind, "exec", dont_inherit=True), main.__dict__)


def _keep(modules: Mapping[str, types.ModuleType]) -> None:
    """At the end of the process, leave these as they are: taking them to pieces copies all the memory that is shared
    with the zygote, 0.1 s of CPU."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(modules))
    for name in modules:
        sys.modules.pop(name, None)


class _End:
    """What the interpreter deletes when all of the program is gone: the process ends then. What the interpreter would
    do yet touches each of its strings, another 0.05 s of CPU."""

    def __init__(self, status: int) -> None:
        self._status = status

    def __del__(self) -> None:
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None and not stream.closed:
                    stream.flush()
        except Exception:  # noqa: BLE001 - of a stream of any kind: the interpreter knows what that comes to
            return
        os._exit(self._status)


def _run_to_the_end(order: Order, base_path: Sequence[str]) -> None:
    status: object = 0
    try:
        _run(order, base_path)
    except SystemExit as error:
        status = 0 if error.code is None else error.code
        raise
    except BaseException:
        status = None  # the interpreter shows it, and decides
        raise
    finally:
        if isinstance(status, int):
            sys._end = _End(int(status))  # type: ignore[attr-defined]  # sys is emptied after all modules


def _show_error(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """Without the lines of this file."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def _read_signatures() -> None:
    """Of the tools of a workspace, and the settings: what pydantic makes of them takes 0.3 s of CPU, and is kept."""
    from callboard.actors.builtins import Workspace, builtin_tools, code_tools, job_tools  # noqa: PLC0415 - in the zygote alone
    from callboard.actors.edits import edit_tools  # noqa: PLC0415 - in the zygote alone
    from callboard.actors.index import rag  # noqa: PLC0415 - in the zygote alone
    from callboard.actors.settings import Settings  # noqa: PLC0415 - in the zygote alone

    nothing: Any = None  # what they act on
    workspace = Workspace.at(Path(__file__).parent)
    builtin_tools(workspace)
    rag.context_tool(nothing)
    code_tools.code_tools(nothing, workspace)
    edit_tools.edit_tools(nothing, nothing)
    job_tools.job_tools(nothing, workspace)
    Settings(model="offline/x")


def _main(connection: socket.socket) -> None:
    own = os.environ.get("PYTHONPATH", "").split(":")
    base_path = [each for each in sys.path[1:] if each not in map(os.path.abspath, own)]
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy starts no threads; a fork has another environment
    for name in PRELOADED:
        importlib.import_module(name)
    _read_signatures()
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: a fork would have one of them only"
    modules = {name: module for name, module in sys.modules.items() if name not in ("__main__", "builtins", "sys")}
    names = frozenset(name.partition(".")[0] for name in sys.modules) - sys.stdlib_module_names - {"__main__"}
    gc.collect()
    gc.freeze()
    order, descriptors = _serve(connection, [*map(os.path.abspath, own), *base_path], names)
    sys.excepthook = _show_error
    atexit.register(_keep, modules)  # the first, so that it comes after those of the program
    connection.close()
    above = max([2, *order.passed]) + 1
    *moved, report = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    with open(report, "wb") as failure:
        try:
            _become(order, moved)
        except OSError as error:
            failure.write(str(error.errno).encode())
            raise
    _run_to_the_end(order, base_path)


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
