"""The native API: tools, the supervision tree, dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.responses import Response

from callboard.actors import kernel
from callboard.actors.daemon.access_tokens import Scope
from callboard.actors.daemon.api_errors import ApiError, not_found
from callboard.actors.daemon.endpoint import Endpoint, HttpCall
from callboard.actors.daemon.native_answers import (
    Done,
)
from callboard.actors.daemon.native_bodies import ActorPath, Nothing
from callboard.actors.daemon.native_io import answered, body_as, waited
from callboard.actors.daemon.system_answers import (
    ActorShown,
    ActorsShown,
    DeadLetterShown,
    DeadLettersShown,
    ToolShown,
    ToolsShown,
)
from callboard.protocol.errors import UsageError, said


async def list_tools(call: HttpCall) -> Response:
    """All, each with what the policy says of it."""
    runtime = call.tenant.runtime

    def read() -> ToolsShown:
        offered = frozenset(each.definition.name for each in runtime.offered())
        return ToolsShown(tools=[ToolShown.of(each, offered) for each in runtime.tools()])

    return answered(await waited(read))


async def list_actors(call: HttpCall) -> Response:
    """The tree, as it is now."""
    return answered(ActorsShown(actors=[ActorShown.of(each) for each in call.tenant.runtime.tree()]))


async def restart_actor(call: HttpCall) -> Response:
    """Stop it in order and start it again."""
    path, runtime = _known_path(call), call.tenant.runtime
    await _done(lambda: runtime.restart_actor(path))
    return answered(Done(done=True))


async def kill_actor(call: HttpCall) -> Response:
    """End it as a crash would; its supervisor sees to the rest."""
    path, runtime = _known_path(call), call.tenant.runtime
    await _done(lambda: runtime.kill_actor(path))
    return answered(Done(done=True))


async def _done(do: Callable[[], None]) -> None:
    """An actor that lives may be one that is spared."""
    try:
        await waited(do)
    except UsageError as error:
        raise ApiError(409, "not_done", said(error)) from None


def _known_path(call: HttpCall) -> str:
    path = body_as(call, ActorPath).path
    waiting = list(call.tenant.runtime.tree())
    while waiting:
        found = waiting.pop()
        if found.name == path:
            return path
        waiting += found.children
    raise not_found(f"there is no actor {path!r}; GET /api/actors shows those that live")


async def list_dead_letters(call: HttpCall) -> Response:
    """The latest messages that no actor handled."""
    runtime, now = call.tenant.runtime, kernel.LoopScheduler.now()
    letters = runtime.dead_letters()
    shown = [DeadLetterShown.of(each, now, may_replay=runtime.may_replay(each)) for each in letters]
    return answered(DeadLettersShown(dead_letters=shown))


async def replay_dead_letter(call: HttpCall) -> Response:
    """Send its message again, once."""
    body_as(call, Nothing)
    number, runtime = int(call.path("number")), call.tenant.runtime
    if all(each.serial != number for each in runtime.dead_letters()):
        raise not_found(f"there is no dead letter {number}: it was sent again already, or newer ones have replaced it")
    try:
        await waited(lambda: runtime.replay_dead_letter(number))
    except UsageError as error:
        raise ApiError(409, "not_replayable", said(error)) from None
    return answered(Done(done=True))


_ADMIN: Final = Scope.ADMIN
ENDPOINTS: Final = (
    Endpoint("GET", "/api/tools", list_tools, summary="Tools, with what the policy says of each", answer=ToolsShown),
    Endpoint("GET", "/api/actors", list_actors, scope=_ADMIN, summary="The supervision tree", answer=ActorsShown),
    Endpoint(
        "POST", "/api/actors/restart", restart_actor, scope=_ADMIN, summary="Restart an actor", body=ActorPath,
        answer=Done, may_be_large=False,
    ),
    Endpoint(
        "POST", "/api/actors/kill", kill_actor, scope=_ADMIN, summary="Kill an actor", body=ActorPath, answer=Done,
        may_be_large=False,
    ),
    Endpoint(
        "GET", "/api/dead-letters", list_dead_letters, scope=_ADMIN, summary="Messages that no actor handled",
        answer=DeadLettersShown,
    ),
    Endpoint(
        "POST", "/api/dead-letters/{number:int}/replay", replay_dead_letter, scope=_ADMIN,
        summary="Send a dead letter again", body=Nothing, answer=Done, may_be_large=False,
    ),
)  # fmt: skip
