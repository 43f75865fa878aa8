"""Which tools of an MCP server are known as they are: what was allowed of one counts for no other of the same name.

Of each tool a fingerprint is kept when it is first seen, and again when a call of it was approved, in a file of the
user's own: a description that changes between two runs of a program is noticed as one that changes within a run.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, Literal

import orjson
from pydantic import TypeAdapter

from callboard.actors.kernel import logger_of
from callboard.actors.mcp.mcp_servers import McpServer
from callboard.actors.mcp.remote_values import RemoteTool
from callboard.actors.policy.owners_file import OwnersFile
from callboard.protocol.errors import UsageError

logger = logger_of("callboard.mcp")

#: Fingerprints of one server, which may list other names each second: four times the tools that it may offer. A tool
#: for which there is no room is asked about, so that a server cannot have an old fingerprint forgotten.
MAX_KNOWN: Final = 2_048
CHANGED: Final = "its MCP server describes it in another way than when it was first seen or last approved"
NOT_KNOWN: Final = "its MCP server has listed too many tools to tell whether this one has changed"
UNREADABLE: Final = "what was known of it cannot be read, so it may have changed"


@dataclass(slots=True)
class _Kept:
    version: Literal[1] = 1
    tools: dict[str, str] = field(default_factory=dict)
    """Fingerprints, by the hash of the tool's name at its server, since a name may be of any length."""


@cache
def _adapter() -> TypeAdapter[_Kept]:
    return TypeAdapter(_Kept)


class KnownTools:
    """Of one server. Its methods may be called from any thread; they read and write a file."""

    def __init__(self, name: str, server: McpServer, folder: Path) -> None:
        """`folder` is that of the runtime's state."""
        # Another command or address is another server, also under the same name.
        identity = orjson.dumps([server.command, server.args, server.url])
        path = folder.expanduser() / "mcp" / f"{name}-{hashlib.sha256(identity).hexdigest()[:16]}.json"
        self._file = OwnersFile(path, _adapter, _Kept, f"the known tools of the MCP server {name}")
        self._lock = threading.Lock()
        self._tools: dict[str, str] | None = None
        """None: the file was not read yet."""
        self._is_readable = True

    def meet(self, tools: Iterable[RemoteTool]) -> Mapping[str, str]:
        """These are listed now. Those that are not known so, by their names, and why; new ones are known from now on,
        unless the file cannot be read."""
        with self._lock:
            known = self._read()
            listed = {_key(tool): tool for tool in tools}
            new = {key: tool.fingerprint for key, tool in listed.items() if key not in known}
            new = dict(list(new.items())[: max(0, MAX_KNOWN - len(known))]) if self._is_readable else {}
            if new:
                known |= new
                self._save(new)
            return {
                tool.name: CHANGED if key in known else NOT_KNOWN if self._is_readable else UNREADABLE
                for key, tool in listed.items()
                if known.get(key) != tool.fingerprint
            }

    def knows(self, tool: RemoteTool) -> bool:
        """Is it known as it is? Reads no file."""
        return self._tools is not None and self._tools.get(_key(tool)) == tool.fingerprint

    def accept(self, tool: RemoteTool) -> None:
        """A call of it was approved."""
        with self._lock:
            self._read()[_key(tool)] = tool.fingerprint
            self._save({_key(tool): tool.fingerprint})

    def _read(self) -> dict[str, str]:
        if self._tools is None:
            try:
                self._tools = dict(self._file.read().tools)
            except UsageError as error:
                logger.warning("%s; until then each of its tools is asked about", error)
                self._tools, self._is_readable = {}, False
        return self._tools

    def _save(self, more: Mapping[str, str]) -> None:
        if not self._is_readable:
            return
        try:
            self._file.change(lambda kept: _Kept(tools={**kept.tools, **more}))
        except (UsageError, OSError) as error:
            logger.warning("which tools are known is kept for this run only: %s", error)


def _key(tool: RemoteTool) -> str:
    return hashlib.sha256(tool.name.encode(errors="surrogatepass")).hexdigest()
