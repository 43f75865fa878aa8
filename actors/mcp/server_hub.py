"""All MCP servers of a runtime: their links, their tools together, and what they ask a person."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Container, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import orjson

from callboard.actors.calls.approvals import Approver, Verdict
from callboard.actors.kernel import ChildSpec, logger_of
from callboard.actors.mcp.known_tools import KnownTools
from callboard.actors.mcp.mcp_servers import McpServer
from callboard.actors.mcp.remote_tools import OfferedTool
from callboard.actors.mcp.remote_values import ElicitForm, ServerState, ServerStatus
from callboard.actors.mcp.server_actor import ConnectionEnded, server_spec
from callboard.actors.mcp.server_link import AskedFor, ServerLink
from callboard.actors.mcp.server_thread import AnyErrand, ServerThread
from callboard.actors.policy.addresses import NONE_ALLOWED, AllowedAddresses
from callboard.actors.tools.invoke import safe_text
from callboard.protocol.commands import AskApproval
from callboard.protocol.errors import UsageError, missing_extra
from callboard.protocol.ids import CallId
from callboard.protocol.tools import Risk

logger = logger_of("callboard.mcp")

#: A runtime that starts waits so long for its servers; one that takes longer is offered when it is there.
START_WAIT_SECONDS: Final = 10.0


class ServerHub:
    """See the module. It outlives the starts and stops of its runtime. Raises UsageError without the extra `mcp`."""

    def __init__(
        self,
        servers: Mapping[str, McpServer],
        own_names: Callable[[], Iterable[str]],
        tokens: Path | None = None,
        allowed: AllowedAddresses = NONE_ALLOWED,
        *,
        state: Path,
    ) -> None:
        """`own_names` are taken by other tools; `tokens` is the folder for what OAuth brings; `allowed` are private
        addresses that a server may send us to; `state` is the folder where it is kept which tools are known."""
        if servers and find_spec("mcp") is None:
            raise UsageError(missing_extra("mcp_servers", "mcp"))
        self._own_names = own_names
        self._tokens = tokens
        self._allowed = allowed
        self._approver: Approver | None = None
        self._publish: Callable[[ServerLink], object] = lambda _link: None
        self._questions = itertools.count(1)
        self.links = {
            name: ServerLink(
                name, server, self._taken, lambda link: self._publish(link), KnownTools(name, server, state)
            )
            for name, server in servers.items()
        }

    def link(self, name: str) -> ServerLink:
        """That of one server. Raises UsageError for a name that is in no setting."""
        if name not in self.links:
            known = ", ".join(self.links) or "none"
            raise UsageError(f"there is no MCP server {name!r}; the servers of this runtime are: {known}")
        return self.links[name]

    @property
    def tools(self) -> tuple[OfferedTool, ...]:
        """What all servers offer now."""
        return tuple(tool for link in self.links.values() for tool in link.tools)

    @property
    def statuses(self) -> tuple[ServerStatus, ...]:
        """How each server is."""
        return tuple(link.status for link in self.links.values())

    def specs(
        self, approver: Approver, publish: Callable[[ServerLink], object]
    ) -> tuple[ChildSpec[ConnectionEnded], ...]:
        """The actors of a runtime that starts now. `publish` is told of each change, from any thread."""
        self._approver, self._publish = approver, publish
        for link in self.links.values():
            if link.status.state in (ServerState.FAILED, ServerState.STOPPED):
                link.starts_again()
        return tuple(server_spec(link, self._open) for link in self.links.values())

    def wait(self, seconds: float = START_WAIT_SECONDS) -> None:
        """Until each server is there or has failed once; a slow one is not waited for longer."""
        until = time.monotonic() + seconds
        for link in self.links.values():
            if not link.settled.wait(max(0.0, until - time.monotonic())):
                logger.warning("MCP server %s is not there yet; its tools are offered when it is", link.name)

    def _taken(self, server: str) -> Container[str]:
        others = (tool.name for link in self.links.values() if link.name != server for tool in link.tools)
        return {*others, *self._own_names()}

    def _open(self, link: ServerLink, ended: Callable[[Exception | None], object]) -> ServerThread:
        async def live(thread: ServerThread) -> None:
            # The SDK takes 0.8 s to import, here on the connection's own thread.
            from callboard.actors.mcp.server_connection import ServerConnection  # noqa: PLC0415

            connection = ServerConnection(
                link.name,
                link.server,
                lambda facts, listing: link.listed(thread, connection, facts, listing),
                self._elicited,
                self._allowed,
                self._tokens,
            )
            await connection.live(thread)

        return ServerThread(link.name, live, ended)

    async def _elicited(self, form: ElicitForm, errand: AnyErrand | None) -> Mapping[str, object] | None:
        """Put a server's question to who approves calls; None where it is about no call, or is declined."""
        about = errand.about if errand is not None else None
        if self._approver is None or not isinstance(about, AskedFor):
            return None
        run, loop = about.context.run, asyncio.get_running_loop()
        answered: asyncio.Future[Verdict] = loop.create_future()
        number = next(self._questions)
        tag = run.tag._replace(call_id=CallId(f"{run.tag.call_id}/question-{number}"))
        asked = {"message": form.message, **({"url": form.url} if form.url else {"form": form.schema})}
        question = AskApproval(
            tag,
            run.name,
            orjson.dumps(asked).decode(),
            Risk.UNDECLARED,
            rule=f"the MCP server {form.server} asks you, in a call of {run.name}",
        )

        def decide(verdict: Verdict) -> None:
            loop.call_soon_threadsafe(lambda: None if answered.done() else answered.set_result(verdict))

        try:
            self._approver.ask(question, decide, about.asker)
            verdict = await answered
        except asyncio.CancelledError:
            self._approver.withdraw(tag)
            raise
        except Exception as error:  # noqa: BLE001 - an approver that cannot ask means no
            logger.warning("MCP server %s: its question was not put: %s", form.server, safe_text(str, error))
            return None
        return _answer(form, verdict)


def _answer(form: ElicitForm, verdict: Verdict) -> Mapping[str, object] | None:
    """What the server reads: what was filled in, over its own defaults."""
    from callboard.actors.mcp.remote_schema import fit_result_schema, misfit  # noqa: PLC0415 - on a thread of ours

    if not verdict.granted:
        return None
    if form.url:
        return {}
    properties = form.schema.get("properties")
    fields = properties if isinstance(properties, Mapping) else {}
    defaults = {
        name: each["default"] for name, each in fields.items() if isinstance(each, Mapping) and "default" in each
    }
    filled = orjson.loads(verdict.arguments) if verdict.arguments else {}
    answer = {**defaults, **filled}
    if wrong := misfit(fit_result_schema(form.schema) or {}, answer):
        told = "MCP server %s: its question is declined, since the answer does not fit: %s"
        logger.warning(told, form.server, wrong.expected)
        return None
    return answer
