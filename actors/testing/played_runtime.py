"""What taking up (callboard.actors.taking_up) needs of a runtime, played: its requests, its tools and its models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from msgspec import Struct

from callboard.actors.builtins.asking_user import UserQuestions
from callboard.actors.journal.outbox import Outbox
from callboard.actors.journal.records_of_runtime import JournalRecords
from callboard.actors.kernel import ActorSystem
from callboard.actors.requests.open_requests import OpenRequest
from callboard.actors.requests.output_checks import CheckThreads
from callboard.actors.requests.outputs import OutputType
from callboard.actors.running import StartedRequest
from callboard.actors.taking_up import TakingUp
from callboard.actors.tools import Tool
from callboard.actors.wiring import Asked
from callboard.protocol.events import RequestStarted
from callboard.protocol.ids import RequestId, ToolName
from callboard.protocol.output import OutputSpec

Begin = Callable[[StartedRequest[object]], object]
"""Begins the session of a request that was taken up."""
Find = Callable[[RequestStarted, str, bool], Asked]
"""As `Wiring.taken_up`."""


class KnownForm(Struct, frozen=True):
    """As an OutputType, of which only this is looked at."""

    spec: OutputSpec


class _Settings(Struct, frozen=True):
    on_crash: str


class _Wiring(Struct, frozen=True):
    settings: _Settings
    offered_tools: Mapping[ToolName, Tool]
    find: Find

    def taken_up(self, started: RequestStarted, counter: str, *, is_direct: bool) -> Asked:
        return self.find(started, counter, is_direct)


class PlayedRuntime:
    """One process: its journal's actor runs, and it is about to take up what that has."""

    process_name = "played"

    def __init__(self, system: ActorSystem, outbox: Outbox, begin: Begin, *, has_approver: bool = True) -> None:
        self.system = system
        self.outbox = outbox
        self.has_approver = has_approver
        self.check_threads = CheckThreads()
        self.post = system.scheduler.call_soon
        self.left_open: dict[RequestId, OpenRequest] = {}
        self.sessions: dict[RequestId, object] = {}
        self.begin = begin

    def taking_up(
        self,
        tools: Iterable[Tool],
        find: Find,
        outputs: Iterable[OutputSpec] = (),
        *,
        questions: UserQuestions | None = None,
        on_crash: str = "resume",
    ) -> TakingUp:
        """The real one, over this runtime."""
        wiring = _Wiring(_Settings(on_crash), {tool.definition.name: tool for tool in tools}, find)
        forms = {spec.title: cast("OutputType[object]", KnownForm(spec)) for spec in outputs}
        records = JournalRecords(self.system.ref("root/journal"))
        return TakingUp(cast(Any, self), cast(Any, wiring), records, self.outbox, forms, questions)
