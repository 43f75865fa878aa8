"""ProcessSource: where process workers get their child processes from.

It owns the init process, the fork servers and the children that wait for a call: for each tool in use a template, and
spares forked of it ahead. A worker asks for a child, runs one call in it and releases it; it gets a message when a
child has ended. A fork server that sends no receipt in time is killed and replaced; its children live on. That time is
counted in ticks of this actor, not by the clock: while the runtime itself is suspended, no time passes.
"""

from __future__ import annotations

import inspect
import itertools
import os
from collections import deque
from typing import Final
from weakref import ref

from msgspec import Struct

from callboard.actors.kernel import Actor, LoopScheduler, handles, logger_of
from callboard.actors.processes import supply
from callboard.actors.processes.child import could_not_load, unpack_load_error
from callboard.actors.processes.confined import Walls, loaded_packages, pack_walls
from callboard.actors.processes.confinement import Confine, confinement_of, kernel_support
from callboard.actors.processes.control import UNKNOWN_STATUS, Kind, Message, how_it_ended
from callboard.actors.processes.handle import ChildEnds
from callboard.actors.processes.keeper import SHORTAGES
from callboard.actors.processes.launch import ChildSocket, Heard, InitProcess, KeeperEnded, Missing
from callboard.actors.processes.spawning import why_not
from callboard.actors.processes.supply import ChildPlace, ForkedChild, Server, Template, TemplateState, superfluous
from callboard.actors.tools.decorator import Tool
from callboard.protocol.errors import UsageError
from callboard.protocol.tools import FailureCode, ToolFailure

logger = logger_of("callboard.tools")

#: How often the source looks at what is overdue, while anything is; what follows is counted in these.
TICK_SECONDS: Final = 0.1
#: A fork server that has sent no receipt for so long is killed. A fork takes 1 ms at rest.
SILENT_TICKS: Final = 20
#: A template that has not loaded its tool by then is killed; the next call tries again.
LOADING_TICKS: Final = 600
#: From an order to kill a child (3-9 ms at rest), or from its reply, until its fork server is suspected.
OVERDUE_TICKS: Final = 10
#: For children to close what they keep open, when the pool stops; then all are ended.
CLOSE_SECONDS: Final = 0.8
#: After a child was handed out its successor is forked this much later, unless a call waits for it: forking at once
#: would take the processor from the call.
FORK_AHEAD_SECONDS: Final = 0.005
#: How often it looks what was not used for a while, as a share of that time.
LOOKS_SHARE: Final = 0.25
#: A fork server, or an init process, that ended before it had worked is started again after this.
START_AGAIN_SECONDS: Final = 1.0

#: A process of ours that is no Python is given this many ticks, from its start, to be one; it takes 0.02 s at rest.
PYTHON_TICKS: Final = 100
#: For the model.
MISSING_HINT: Final = "The call was not run. Do not send it again: go on without it, and tell the user what is missing."

#: Never the same twice in this process, so that a source that was started again mistakes none.
_numbers: Final = itertools.count(1)


# -- to itself


class _Tick(Struct, frozen=True):
    pass


class _ForkAhead(Struct, frozen=True):
    template: Template


class _LookForIdle(Struct, frozen=True):
    pass


class _Launch(Struct, frozen=True):
    pass


class _EndInit(Struct, frozen=True):
    pass


FromWorkers = supply.Obtain | supply.Withdraw | supply.Release | supply.End | supply.WriteStack | supply.Replaced
SourceMessage = FromWorkers | Heard | KeeperEnded | _Tick | _ForkAhead | _LookForIdle | _Launch | _EndInit


class ProcessSource(Actor[SourceMessage]):
    """See the module. One per process pool."""

    def __init__(self, options: supply.ProcessOptions) -> None:
        self._options = options
        self._kernel = kernel_support()
        self._init: InitProcess | None = None
        self._contained: str | None = None
        """Its namespaces, once it has spoken."""
        self._namespaces = options.namespaces
        self._base: Server | None = None
        self._servers: dict[int, Server] = {}
        self._templates: dict[ref[Tool], Template] = {}
        """The last used comes last."""
        self._children: dict[int, ForkedChild] = {}
        self._running = 0
        """Children that a worker has, or has let go of and that have not ended."""
        self._ping: int | None = None
        """A number that the init process is to answer for, as it does when it listens; and since when it has not."""
        self._ping_ticks = 0
        self._planned: set[type] = set()
        """The messages to ourselves that a timer holds."""
        self._missing = Missing()
        self._init_ticks = 0
        self._stopping = False

    def on_start(self) -> None:
        scheduler = self.system.scheduler
        if not isinstance(scheduler, LoopScheduler):
            raise UsageError("a ProcessSource starts real processes; it needs a LoopScheduler")
        self._loop = scheduler.loop
        self.at_end(self._close)
        self._launch()

    def on_stopping(self) -> bool:
        """Put off until all processes have ended."""
        self._stopping = True
        if self._init is None:
            return True
        keeping = [child for child in self._children.values() if child.keeps_something]
        for child in keeping:
            self._let_end(child)
        self.tell_after(CLOSE_SECONDS if keeping else 0.0, _EndInit())
        return False

    @handles(_EndInit)
    def _end_init(self, _: _EndInit) -> None:
        if self._init is not None:
            self._init.close()
            if self._contained is None:  # it is being loaded, for most of a second, and nothing runs below it
                self._init.kill()

    def _close(self) -> None:
        """However it ends: what runs ends with it."""
        if self._init is not None:
            self._init.close()
        for server in self._servers.values():
            server.connection.close()
        for child in self._children.values():
            if child.worker is None:
                child.ends.close()

    # -- what workers ask -----------------------------------------------------------------------------------------

    @handles(supply.Obtain)
    def _obtain(self, message: supply.Obtain) -> None:
        name, worker = message.tool.name, message.worker
        try:
            message.tool.check()
            self._provide(message)
        except UsageError as error:
            worker.tell_control(supply.NotObtained(ToolFailure(name, FailureCode.CRASHED, str(error))))
        except Exception as error:
            logger.exception("no child process could be provided for %s, for a fault of callboard's own", name)
            if not any(child.worker is worker for child in self._children.values()):  # else it has got one
                self._withdraw(supply.Withdraw(worker))
                why = f"callboard failed to provide a process for {name}: {type(error).__name__}"
                worker.tell_control(supply.NotObtained(ToolFailure(name, FailureCode.INTERNAL_ERROR, why)))

    def _provide(self, message: supply.Obtain) -> None:
        template = self._templates.pop(ref(message.tool), None) or self._new_template(message.tool)
        self._templates[template.of] = template
        self._later(_LookForIdle, self._options.idle_seconds * LOOKS_SHARE)
        template.used_at = self.now()
        template.waiting.append(message.worker)
        if missing := self._missing.why(self.now()):
            self._fail_all(missing)
            return
        self._launch()
        self._serve(template)

    def _new_template(self, tool: Tool) -> Template:
        options = self._options
        made = Template(ref(tool), tool.name, tool.packed, tool.resource is not None)
        confinement = confinement_of(tool.contract, self._kernel, options.confine, options.workspace)
        if not confinement.is_on:
            return made
        made.walls = Walls(
            confinement,
            self._kernel.landlock,
            os.path.realpath(options.workspace) if options.workspace is not None else "",
            options.secrets.patterns,
            options.secrets.folders,
            loaded_packages(),
            (inspect.getsourcefile(tool.function) or "", *options.kept),
            options.memory_bytes,
            options.confine is Confine.REQUIRED,
        )
        return made

    @handles(supply.Replaced)
    def _replaced(self, message: supply.Replaced) -> None:
        template = self._templates.get(ref(message.tool))
        if template is not None:
            template.is_replaced = True
            self._drop_superfluous()

    @handles(supply.Withdraw)
    def _withdraw(self, message: supply.Withdraw) -> None:
        for template in self._templates.values():
            if message.worker in template.waiting:
                template.waiting.remove(message.worker)
                return
        for child in self._children.values():
            if child.worker == message.worker:  # it was on its way, and the worker has ended
                self._release(supply.Release(child.ends, supply.After.KEEP))
                return

    @handles(supply.Release)
    def _release(self, message: supply.Release) -> None:
        child = self._children.get(message.child.number)
        if child is None:
            message.child.close()
            return
        child.worker = None
        is_sound = message.after is supply.After.KEEP and not child.ending and not self._stopping
        if is_sound and self._is_kept(child.template):
            self._running -= 1
            child.place = ChildPlace.SPARE
            child.template.spares.append(child)
            self._serve_all()
            return
        self._let_end(child)
        if message.after is not supply.After.ENDS and not (is_sound and child.template.has_resource):
            self._kill(child)
        if child.template.waiting:
            self._serve(child.template)

    @handles(supply.End)
    def _end(self, message: supply.End) -> None:
        child = self._children.get(message.number)
        if child is None:
            return
        child.ending = True
        if message.kill:
            self._kill(child)
        else:
            self._order(Kind.TERMINATE, child.ends.number)
        self._later(_Tick)

    @handles(supply.WriteStack)
    def _write_stack(self, message: supply.WriteStack) -> None:
        if message.number in self._children:
            self._order(Kind.STACK, message.number, int(message.begins))

    # -- templates and spares -------------------------------------------------------------------------------------

    def _serve_all(self) -> None:
        for template in tuple(self._templates.values()):
            if template.waiting:
                self._serve(template)

    def _serve(self, template: Template) -> None:
        """Give the calls that wait their children, and see that there are some for the next."""
        was_served = False
        while template.waiting and template.spares and self._running < self._options.max_children:
            child = template.spares.pop()
            child.worker, child.place = template.waiting.popleft(), ChildPlace.TAKEN
            self._running += 1
            child.worker.tell_control(supply.Obtained(child.ends))
            was_served = True
        if template.is_replaced:
            self._drop_superfluous()
        if template.waiting or not was_served:
            self._fork_ahead(template)
        elif template.timer is None:
            template.timer = self.tell_after(FORK_AHEAD_SECONDS, _ForkAhead(template))

    @handles(_ForkAhead)
    def _time_to_fork(self, message: _ForkAhead) -> None:
        message.template.timer = None
        self._fork_ahead(message.template)

    def _fork_ahead(self, template: Template) -> None:
        if not self._is_kept(template):
            return
        if template.state is TemplateState.GONE:
            self._start_template(template)
        is_used = self.now() - template.used_at < self._options.idle_seconds
        room = self._options.max_children - self._running
        wanted = min(len(template.waiting), room) + (self._options.warm if is_used else 0)
        for _ in range(wanted - len(template.spares) - template.forking):
            server = self._base if template.state is TemplateState.UNFIT else template.server
            if server is None or not server.ready or template.state is TemplateState.LOADING:
                return
            if not self._fork(template, server):
                return

    def _fork(self, template: Template, server: Server) -> bool:
        number = next(_numbers)
        try:
            ends = ChildEnds(self._loop, number)
        except OSError as error:
            self._no_resources(template, error.strerror or str(error))
            return False
        with_tool = template.state is TemplateState.UNFIT
        order = Message(Kind.FORK, number)
        try:
            sent = ends.hand_over(lambda theirs: _give(server.connection, order, theirs, template, with_tool=with_tool))
        except OSError as error:
            ends.close()
            self._no_resources(template, error.strerror or str(error))
            return False
        if not sent:  # it has ended, or has stopped reading: the ticks see to that
            ends.close()
        else:
            self._children[number] = ForkedChild(ends, template, server)
            template.forking += 1
        server.pending.add(number)
        self._later(_Tick)
        return sent

    def _no_resources(self, template: Template, why: str) -> None:
        """The host has no descriptor, process or memory left: that costs the calls that wait for one."""
        why = f"no process could be started for the tool: {why}"
        self._refuse(template, ToolFailure(template.name, FailureCode.OVERLOADED, why))

    def _fail_all(self, missing: str) -> None:
        """Nothing helps but that somebody mends it: that is told at once, and no process is started meanwhile."""
        for template in self._templates.values():
            why = f"no process could be started for the tool: {missing}"
            self._refuse(template, ToolFailure(template.name, FailureCode.INTERNAL_ERROR, why, retry_hint=MISSING_HINT))

    def _lacks(self, missing: str) -> None:
        logger.error("the processes of tools cannot be started: %s", missing)
        self._missing.note(missing, self.now())
        self._fail_all(missing)

    def _refuse(self, template: Template, failure: ToolFailure) -> None:
        waiting, template.waiting = template.waiting, deque()
        for worker in waiting:
            worker.tell_control(supply.NotObtained(failure))

    def _start_template(self, template: Template) -> None:
        base, number = self._base, next(_numbers)
        if base is None or not base.ready:
            return
        try:
            connection = ChildSocket(self._loop, number, self.ref.tell_control)
            with connection.theirs as theirs:
                order = Message(Kind.TEMPLATE, number)
                sent = _give(base.connection, order, (theirs.fileno(),), template, with_tool=True)
        except OSError as error:
            self._no_resources(template, error.strerror or str(error))
            return
        base.pending.add(number)
        self._later(_Tick)
        if not sent:
            connection.close()
            return
        template.state = TemplateState.LOADING
        template.server = self._servers[number] = Server(number, connection, template)
        template.loading_since = self.now()
        self._drop_superfluous()

    def _drop(self, template: Template) -> None:
        """End its process and its spares; calls that run in its children continue."""
        self._templates.pop(template.of, None)
        self._end_spares(template)
        if template.server is not None:
            self._order(Kind.KILL, template.server.number)

    def _is_kept(self, template: Template) -> bool:
        """Else it was dropped, and ends with the calls that run in its children."""
        return self._templates.get(template.of) is template

    def _drop_superfluous(self) -> None:
        """The object that was a tool may die on any thread, so it tells no one: that is seen here, too."""
        for template in superfluous(list(self._templates.values()), self.now(), self._options.idle_seconds):
            self._drop(template)

    def _end_spares(self, template: Template) -> None:
        for child in template.spares:
            end = self._let_end if child.keeps_something else self._kill
            end(child)
            child.place = ChildPlace.UNWANTED
        template.spares.clear()

    @handles(_LookForIdle)
    def _look_for_idle(self, _: _LookForIdle) -> None:
        """A tool that was not used for a while keeps no children ready, and later no template."""
        self._planned.discard(_LookForIdle)
        self._drop_superfluous()
        for template in self._templates.values():
            if self.now() - template.used_at >= self._options.idle_seconds:
                self._end_spares(template)
        if self._templates:
            self._later(_LookForIdle, self._options.idle_seconds * LOOKS_SHARE)

    # -- what the init process says -------------------------------------------------------------------------------

    @handles(Heard)
    def _heard(self, heard: Heard) -> None:
        said = heard.message
        if said is None:  # the init process reports its end; KeeperEnded that of the init process
            return
        if self._init is not None and heard.number == self._init.number:
            self._heard_of_init(said)
        elif (server := self._servers.get(heard.number)) is not None:
            self._heard_of_server(server, said)

    def _heard_of_init(self, said: Message) -> None:
        if said.kind is Kind.CONTAINED:
            self._contained, self._missing = said.text, Missing()
            logger.info("tools run in %s", f"namespaces of their own: {said.text}" if said.text else "no namespaces")
        elif said.kind is Kind.NOT_FORKED:
            for template in self._templates.values():
                self._no_resources(template, os.strerror(said.value))
            self._server_ended(said.number, UNKNOWN_STATUS)
        elif said.kind is Kind.NOT_SIGNALLED:
            if (child := self._children.get(said.number)) is not None:
                logger.warning("a process of %s runs as another user and cannot be ended", child.template.name)
                self._child_gone(child, "runs as another user and could not be ended; it is left alone")
        elif said.kind is Kind.STACK:
            child = self._children.get(said.number)
            if child is not None and child.worker is not None:
                child.worker.tell_control(supply.StackWritten(said.number, said.text, said.value >= 0))
        elif said.number == self._ping:
            self._ping = None
        elif said.number in self._servers:
            self._server_ended(said.number, said.value)
        elif (child := self._children.get(said.number)) is not None:
            self._child_gone(child, said.text or how_it_ended(said.value))

    def _child_gone(self, child: ForkedChild, how: str) -> None:
        template = child.template
        del self._children[child.ends.number]
        if child.worker is not None:
            child.worker.tell_control(supply.ChildEnded(child.ends.number, how))
        else:
            child.ends.close()
        if child.place is ChildPlace.TAKEN:
            self._running -= 1
        elif child.place is ChildPlace.FORKING:
            template.forking -= 1
        elif child.place is ChildPlace.SPARE:
            template.spares.remove(child)
        child.server.pending.discard(child.ends.number)
        is_closing = any(each.place is ChildPlace.SPARE and each.ending for each in self._children.values())
        if self._stopping and not is_closing:
            self._end_init(_EndInit())
        self._serve_all()
        self._fork_ahead(template)

    @handles(KeeperEnded)
    def _keeper_ended(self, message: KeeperEnded) -> None:
        """All our processes have ended. (Or those of a former incarnation: then there is nothing to do.)"""
        if self._init is None or message.number != self._init.number:
            return
        has_worked, self._contained, self._init, self._base, self._ping = self._contained, None, None, None, None
        for server in self._servers.values():
            server.connection.close()
        self._servers.clear()
        for template in self._templates.values():
            template.state, template.server = TemplateState.GONE, None
        lost = list(self._children.values())
        if self._stopping:
            self.stopped()
            return
        if message.refused and self._namespaces:
            logger.info("tools run in no namespaces of their own, the kernel refuses them: %s", message.why)
            self._namespaces = False
        elif not message.is_missing_something:
            logger.error("the init process of the tools is lost: %s", message.why)
        for child in lost:
            self._child_gone(child, "ended with the init process of the tools, which was lost")
        if message.is_missing_something:
            self._lacks(message.why)
        elif message.refused or has_worked is not None:
            self._launch()
        else:
            for template in self._templates.values():
                self._no_resources(template, message.why)
            self._later(_Launch, START_AGAIN_SECONDS)

    # -- what fork servers say ------------------------------------------------------------------------------------

    def _heard_of_server(self, server: Server, said: Message) -> None:
        template = server.template
        server.ticks = 0
        if said.kind in (Kind.FORKED, Kind.NOT_FORKED):
            server.pending.discard(said.number)
            self._receipt(said)
        elif said.kind is Kind.READY:
            server.ready = True
            if template is not None:
                template.state = TemplateState.READY
                template.loaded(said.value * 1024, self.now())
                self._drop_superfluous()
                self._fork_ahead(template)
            else:
                for each in tuple(self._templates.values()):
                    self._fork_ahead(each)
        elif template is not None and said.kind is Kind.UNFIT:
            logger.warning(
                "tool %s cannot be forked (%s): each call loads it in a process of its own",
                template.name,
                said.text,
            )
            template.state = TemplateState.UNFIT
            template.loaded(0, self.now())  # it is not loaded again and again only to find that out
            self._fork_ahead(template)
        elif template is not None and said.kind is Kind.FAILED:
            template.state, template.server = TemplateState.GONE, None
            self._refuse(template, unpack_load_error(template.name, said.text))

    def _receipt(self, said: Message) -> None:
        child = self._children.get(said.number)
        if child is None:
            if said.kind is Kind.NOT_FORKED and said.number in self._servers:
                self._server_ended(said.number, said.value)
            return
        template = child.template
        template.forking -= 1
        if said.kind is Kind.NOT_FORKED:
            del self._children[said.number]
            child.ends.close()
            self._no_resources(template, os.strerror(said.value))
        elif self._is_kept(template):
            child.place = ChildPlace.SPARE
            template.spares.insert(0, child)  # one that has served before is used first, its caches are warm
            self._serve(template)
        else:
            child.place = ChildPlace.UNWANTED
            self._kill(child)

    def _server_ended(self, number: int, status: int) -> None:
        server = self._servers.pop(number, None)
        if server is None:
            return
        template = server.template
        server.connection.close()
        for unborn in server.pending:  # forked or not, the init process reports the end of each
            self._order(Kind.KILL, unborn)
        if template is None:
            self._base = None
            logger.warning("the fork server of the tools %s; it is replaced", how_it_ended(status))
            if server.ready:
                self._start_base()
            else:
                self._later(_Launch, START_AGAIN_SECONDS)
        elif template.server is server:
            template.server = None
            if template.state is TemplateState.UNFIT:
                return
            if template.state is TemplateState.LOADING and status != UNKNOWN_STATUS:
                self._refuse(template, could_not_load(template.name, f"its process {how_it_ended(status)}"))
            template.state = TemplateState.GONE
            if template.waiting:
                self._start_template(template)

    # -- starting, and what is overdue ----------------------------------------------------------------------------

    @handles(_Launch)
    def _launch_again(self, _: _Launch) -> None:
        self._planned.discard(_Launch)
        if any(template.waiting for template in self._templates.values()):
            self._launch()

    def _launch(self) -> None:
        """See that there is an init process, and a fork server below it."""
        if self._stopping or _Launch in self._planned or (self._init is None and why_not()):
            return
        options, post = self._options, self.ref.tell_control
        try:
            if self._init is None:
                self._init_ticks = 0
                self._later(_Tick)
                self._init = InitProcess(
                    self._loop, next(_numbers), options.memory_bytes, options.environment, self._namespaces, post
                )
            if self._base is None:
                self._start_base()
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno not in SHORTAGES:
                self._lacks(why)
                return
            for template in self._templates.values():
                self._no_resources(template, why)

    def _start_base(self) -> None:
        assert self._init is not None
        number = next(_numbers)
        connection = ChildSocket(self._loop, number, self.ref.tell_control)
        with connection.theirs as theirs:
            self._init.send(Message(Kind.START, number), (theirs.fileno(),))
        self._base = self._servers[number] = Server(number, connection, None)

    def _order(self, kind: Kind, number: int, value: int = 0) -> None:
        if self._init is not None and not self._init.send(Message(kind, number, value)):
            self._init.kill()  # it has not read for 200 messages

    def _kill(self, child: ForkedChild) -> None:
        child.ending = child.killed = True
        child.ticks = 0
        self._order(Kind.KILL, child.ends.number)
        self._later(_Tick)

    def _let_end(self, child: ForkedChild) -> None:
        """It ends by itself when its socket is closed. Where it does not, it is killed."""
        child.ending = True
        child.ends.close()
        self._later(_Tick)

    def _later(self, what: type[_Tick | _LookForIdle | _Launch], seconds: float = TICK_SECONDS) -> None:
        """Look at it after so long, once."""
        if what not in self._planned and not self._stopping:
            self._planned.add(what)
            self.tell_after(seconds, what())

    @handles(_Tick)
    def _tick(self, _: _Tick) -> None:
        self._planned.discard(_Tick)
        for server in tuple(self._servers.values()):
            if server.pending or not server.ready:
                server.ticks += 1
                if server.ticks % (SILENT_TICKS if server.pending else LOADING_TICKS) == 0:
                    self._give_up(server, "has not answered in time")
                self._later(_Tick)
        for child in tuple(self._children.values()):
            if child.ending:
                child.ticks += 1
                if child.ticks % OVERDUE_TICKS == 0:
                    self._overdue(child)
                self._later(_Tick)
        if self._init is not None and self._contained is None:
            self._init_ticks += self._init.is_started
            if self._init_ticks >= PYTHON_TICKS:
                self._init.expect_python()
            self._later(_Tick)
        if self._ping is not None:
            self._ping_ticks += 1
            if self._ping_ticks >= SILENT_TICKS and self._init is not None:
                logger.warning("the init process of the tools has not answered in time; it is replaced")
                self._init.kill()
            self._later(_Tick)

    def _overdue(self, child: ForkedChild) -> None:
        """It should be gone. Its fork server does not say so, or the init process does not listen."""
        if not child.killed:
            self._kill(child)
            return
        if child.ticks == OVERDUE_TICKS and child.server.number in self._servers:
            self._give_up(child.server, "does not tell that a child has ended")
        self._ask_for_a_sign()

    def _ask_for_a_sign(self) -> None:
        """Of the init process: it tells the end also of a process that it does not know."""
        if self._ping is None:
            self._ping, self._ping_ticks = next(_numbers), 0
            self._order(Kind.KILL, self._ping)

    def _give_up(self, server: Server, why: str) -> None:
        what = f"the template of {server.template.name}" if server.template else "the fork server of the tools"
        logger.warning("%s %s; it is replaced; running calls continue", what, why)
        self._order(Kind.KILL, server.number)
        self._ask_for_a_sign()


def _give(
    connection: ChildSocket, order: Message, descriptors: tuple[int, ...], template: Template, *, with_tool: bool
) -> bool:
    """Send the order, where it needs it with the packed tool. Raises OSError: out of descriptors."""
    if not with_tool:
        return connection.send(order, descriptors)
    tool = os.memfd_create(template.name)
    try:
        with open(tool, "wb", closefd=False) as file:
            file.write(pack_walls(template.walls) + template.packed)
        return connection.send(order, (*descriptors, tool))
    finally:
        os.close(tool)
