"""/v1/responses before the official clients, sync and async: what they send in, and what becomes of a response that is
cut off, deleted, left, or interrupted by a crash."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel
from support.conditions import wait_until
from support.running_daemon import RunningDaemon
from support.sdk_types import Lazy
from support.stateless_daemon import ended_requests, openai_client, stateless_daemon

if TYPE_CHECKING:
    import openai
else:
    openai = Lazy("openai")

Run = Callable[[Callable[[Any], Any]], Any]
MODEL = "gpt-4o"
BYTES = base64.b64encode(b"some bytes").decode()
PICTURE = {"type": "input_image", "image_url": f"data:image/png;base64,{BYTES}", "detail": "low"}
FILE = {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{BYTES}"}


class Place(BaseModel):
    city: str


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with stateless_daemon(tmp_path_factory.mktemp("daemon")) as found:
        yield found


@asynccontextmanager
async def aopenai_client(daemon: RunningDaemon) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key=daemon.token, max_retries=0) as found:
        yield found


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest, daemon: RunningDaemon) -> Run:
    """Gives a client's call what it needs: `run(lambda client: client.responses.create(...))`."""

    def run_sync(ask: Callable[[Any], Any]) -> Any:
        with openai_client(daemon) as client:
            return ask(client)

    def run_async(ask: Callable[[Any], Awaitable[Any]]) -> Any:
        async def asked() -> Any:
            async with aopenai_client(daemon) as client:
                return await ask(client)

        return asyncio.run(asked())

    return run_sync if request.param == "sync" else run_async


def test_pictures_and_files_are_seen(run: Run) -> None:
    elsewhere = {"type": "input_file", "file_url": "https://x.example/a.pdf"}
    parts = [{"type": "input_text", "text": "see "}, PICTURE, FILE, elsewhere]
    items = [{"role": "user", "content": parts}]
    made = run(lambda client: client.responses.create(model=MODEL, input=items))
    assert made.output_text == "I see: Image, Document, Document"


def test_what_is_no_picture_is_refused_by_name(run: Run) -> None:
    items = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,!"}]}]
    with pytest.raises(openai.BadRequestError, match="base64") as refused:
        run(lambda client: client.responses.create(model=MODEL, input=items))
    assert refused.value.param == "input.0.content.0.image_url"


def test_an_answer_has_the_form_of_a_class(run: Run) -> None:
    made = run(lambda client: client.responses.parse(model=MODEL, input="where?", text_format=Place))
    assert made.output_parsed == Place(city="Oslo")


def test_an_answer_that_is_cut_off_says_so(run: Run) -> None:
    made = run(lambda client: client.responses.create(model=MODEL, input="short hello", max_output_tokens=16))
    assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (made.output[0].status, made.output_text) == ("incomplete", "You said: hello")
    again = run(lambda client: client.responses.retrieve(made.id))
    assert again.status == "incomplete"


def test_a_stream_that_is_cut_off_ends_with_it(daemon: RunningDaemon) -> None:
    with openai_client(daemon) as client, client.responses.stream(model=MODEL, input="short hello") as stream:
        last = list(stream)[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert last.response.incomplete_details.reason == "max_output_tokens"


def test_a_response_that_runs_is_deleted_and_ends(run: Run, daemon: RunningDaemon) -> None:
    before = ended_requests(daemon, "cancelled")
    made = run(lambda client: client.responses.create(model=MODEL, input="wait", background=True))
    assert run(lambda client: client.responses.delete(made.id)) is None
    calls: list[Callable[[Any], Any]] = [
        lambda client: client.responses.retrieve(made.id),
        lambda client: client.responses.delete(made.id),
        lambda client: client.responses.cancel(made.id),
    ]
    for ask in calls:
        with pytest.raises(openai.NotFoundError, match="not found"):
            run(ask)
    wait_until(lambda: ended_requests(daemon, "cancelled") == before + 1)


@pytest.mark.parametrize("is_background", [False, True])
def test_a_client_that_leaves_in_the_middle_of_a_stream(daemon: RunningDaemon, is_background: bool) -> None:
    """It ends its request, but for one in the background."""
    before = ended_requests(daemon, "cancelled")
    with openai_client(daemon) as client:
        with client.responses.create(model=MODEL, input="slow hello", stream=True, background=is_background) as stream:
            first: Any = next(iter(stream))
        if is_background:
            assert client.responses.retrieve(first.response.id).status == "in_progress"
            assert client.responses.cancel(first.response.id).status == "cancelled"
        else:
            wait_until(lambda: client.responses.retrieve(first.response.id).status == "cancelled")
    wait_until(lambda: ended_requests(daemon, "cancelled") == before + 1)


def test_an_async_client_that_leaves_in_the_middle_of_a_stream(daemon: RunningDaemon) -> None:
    before = ended_requests(daemon, "cancelled")

    async def leave() -> None:
        async with aopenai_client(daemon) as client:
            stream = await client.responses.create(model=MODEL, input="slow hello", stream=True)
            async with stream:
                await anext(aiter(stream))

    asyncio.run(leave())
    wait_until(lambda: ended_requests(daemon, "cancelled") == before + 1)


def test_a_response_that_a_crash_interrupts_runs_to_its_end(tmp_path: Path) -> None:
    """Killed while the model had said nothing yet; the daemon that comes after asks it again."""
    gate = tmp_path / "gate"
    with stateless_daemon(tmp_path) as daemon, openai_client(daemon) as client:
        made = client.responses.create(model=MODEL, input=f"gate {gate}", background=True, metadata={"a": "b"})
        wait_until(lambda: client.responses.retrieve(made.id).status == "in_progress")
        daemon.process.kill()
        daemon.process.wait(timeout=20)
    gate.touch()
    with stateless_daemon(tmp_path) as daemon, openai_client(daemon) as client:
        wait_until(lambda: client.responses.retrieve(made.id).status == "completed")
        found = client.responses.retrieve(made.id)
        assert (found.output_text, found.metadata) == ("through", {"a": "b"})
        after = client.responses.create(model=MODEL, input="recall", previous_response_id=made.id)
        assert "through" in after.output_text
