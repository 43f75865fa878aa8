"""Is the daemon alive, is it ready, what has it counted."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from callboard.actors.daemon.access_tokens import Scope
from callboard.actors.daemon.api_errors import json_response
from callboard.actors.daemon.daemon import Daemon
from callboard.actors.daemon.daemon_numbers import exposition_with
from callboard.actors.daemon.endpoint import Endpoint, HttpCall
from callboard.actors.daemon.native_io import waited


async def healthz(daemon: Daemon, _: Request) -> Response:
    """The process answers, and what it runs lives."""
    return _failed(daemon) or json_response({"status": "ok"})


async def readyz(daemon: Daemon, _: Request) -> Response:
    """It takes requests: not while it starts or drains, nor when the actors of a tenant have ended."""
    ready = daemon.is_ready
    return _failed(daemon) or json_response({"status": "ready" if ready else daemon.state}, 200 if ready else 503)


def _failed(daemon: Daemon) -> Response | None:
    return json_response({"status": "failed", "reason": daemon.failure}, 503) if daemon.failure else None


async def metrics(call: HttpCall) -> Response:
    """Of the tenant, of the daemon and of its process, as Prometheus reads them."""
    runtime, numbers = call.tenant.runtime, call.daemon.numbers
    text = await waited(lambda: exposition_with(runtime.prometheus_collector(), numbers))
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


ENDPOINTS: Final = (
    Endpoint("GET", "/healthz", handle_open=healthz, scope=None, summary="Does the process answer?"),
    Endpoint("GET", "/readyz", handle_open=readyz, scope=None, summary="Does it take requests?"),
    Endpoint("GET", "/metrics", metrics, scope=Scope.ADMIN, summary="Metrics of the tenant, for Prometheus"),
)
