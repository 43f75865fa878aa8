"""Django: a sync view, an async view, and streaming responses of both kinds; a whole site in one file.

    pip install django uvicorn
    python examples/embedding/django_site.py runserver            # WSGI: sync
    uvicorn --app-dir examples/embedding django_site:asgi         # ASGI: async

The runtime is started by the first request of each process: `migrate` and other commands need none, and a server may
fork its workers after the apps are loaded. In a project of your own, `runtime` belongs into a module of its own.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path
from weather import SETTINGS, weather

from callboard import CallboardError, Runtime, TextDelta

settings.configure(
    ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY=os.environ.get("SECRET_KEY", "of an example"), USE_TZ=True
)
django.setup()

_runtime = Runtime(SETTINGS, tools=[weather])
_starting = threading.Lock()
_started_in = 0


def runtime() -> Runtime:
    """The runtime of this process, started by its first request and stopped when it ends."""
    global _started_in
    with _starting:
        if _started_in != os.getpid():
            _runtime.start()
            atexit.register(_runtime.stop)
            _started_in = os.getpid()
    return _runtime


def ask(request: HttpRequest) -> HttpResponse:
    """A sync view."""
    try:
        return HttpResponse(runtime().ask_sync(request.GET["question"]).text)
    except CallboardError as error:
        return JsonResponse({"error": str(error)}, status=502)


async def ask_async(request: HttpRequest) -> HttpResponse:
    """An async view. A client that goes away cancels it, and so its request."""
    try:
        return HttpResponse((await runtime().ask(request.GET["question"])).text)
    except CallboardError as error:
        return JsonResponse({"error": str(error)}, status=502)


def stream(request: HttpRequest) -> StreamingHttpResponse:
    """A sync view: the answer as it comes. A client that goes away is noticed at the next piece."""

    def pieces() -> Iterator[str]:
        for event in runtime().stream_sync(request.GET["question"]):
            if isinstance(event, TextDelta):
                yield event.text

    return StreamingHttpResponse(pieces(), content_type="text/plain; charset=utf-8")


async def stream_async(request: HttpRequest) -> StreamingHttpResponse:
    """An async view: the answer as it comes."""

    async def pieces() -> AsyncIterator[str]:
        async for event in runtime().stream(request.GET["question"]):
            if isinstance(event, TextDelta):
                yield event.text

    return StreamingHttpResponse(pieces(), content_type="text/plain; charset=utf-8")


urlpatterns = [path(view.__name__, view) for view in (ask, ask_async, stream, stream_async)]
asgi, wsgi = get_asgi_application(), get_wsgi_application()

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
