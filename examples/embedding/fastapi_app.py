"""FastAPI: a streaming endpoint.

    pip install fastapi uvicorn
    uvicorn --app-dir examples/embedding fastapi_app:app
    curl -N 'localhost:8000/stream?question=What+is+the+weather+in+Oslo%3F'

One runtime for each server process, on the lifespan of the app. A client that goes away cancels its request: the stream
from the model is closed and the running tools are killed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from weather import SETTINGS, weather

from callboard import CallboardError, Reply, Runtime, RunTool, TextDelta


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Start the runtime before the first request, stop it after the last."""
    async with Runtime(SETTINGS, tools=[weather]) as runtime:
        app.state.runtime = runtime
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/stream", response_class=EventSourceResponse)
async def stream(request: Request, question: str) -> AsyncIterator[ServerSentEvent]:
    """The answer as server-sent events: text, calls, and at last `done` or `error`."""
    try:
        async for event in request.app.state.runtime.stream(question):
            match event:
                case TextDelta(text):
                    yield ServerSentEvent(event="text", data=text)
                case RunTool(name=name):
                    yield ServerSentEvent(event="call", data=name)
                case Reply(cost=cost):
                    yield ServerSentEvent(event="done", data={"cost": cost})
    except CallboardError as error:  # the status line has been sent: the error is an event
        yield ServerSentEvent(event="error", data=str(error))


@app.get("/ask")
async def ask(request: Request, question: str) -> dict[str, str]:
    """The answer in one piece."""
    reply = await request.app.state.runtime.ask(question)
    return {"text": reply.text}


@app.exception_handler(CallboardError)
async def failed(_request: Request, error: CallboardError) -> JSONResponse:
    """What a client is told when the model gave no answer."""
    return JSONResponse({"error": str(error)}, status_code=502)
