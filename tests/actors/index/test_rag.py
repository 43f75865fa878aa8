"""Code search as the runtime gives it: fresh, by meaning where an embedding API is set, and never without an answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy
import pytest
from numpy.typing import NDArray
from support.shared_double import shared_double

from callboard.actors import Runtime, Settings
from callboard.actors.daemon import board_rows
from callboard.actors.daemon.tenants import Tenant
from callboard.actors.index import rag, vector_making
from callboard.actors.index.dense import Embedder, EmbeddingModel
from callboard.actors.index.rag import CodeSearch
from callboard.actors.testing.wire_double import RawAnswer, Traffic, WireDouble
from callboard.protocol.errors import RuntimeFailure

CODE = '''
def red():
    """Paints the fence."""

def green():
    """Paints the fence."""
'''


@pytest.fixture(autouse=True)
def vectors_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rag, "VECTOR_DELAY_SECONDS", 0.0)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "paint.py").write_text(CODE)
    return tmp_path


def search(runtime: Runtime) -> CodeSearch:
    found = runtime._wiring.search
    assert found is not None
    return found


def vectors(count: int) -> Iterator[RawAnswer]:
    """For any question the query is like `green`: the answers give text after text the same directions."""
    document = {"data": [{"index": n, "embedding": [1.0, float(n)]} for n in range(count)]}
    yield RawAnswer(document)


def test_a_changed_file_is_found_as_it_is_now(workspace: Path) -> None:
    async def change_and_search() -> str:
        async with Runtime(Settings(model="offline/x", workspace=workspace)) as runtime:
            await runtime.refresh_index()
            (workspace / "paint.py").write_text(CODE.replace("green", "violet"))
            await runtime.refresh_index()
            found = await search(runtime).search("violet", 2_000)
            return "".join(item.snippet for item in found.context)

    assert "def violet" in asyncio.run(change_and_search())


def test_the_embedding_api_is_asked_with_its_key(workspace: Path) -> None:
    async def ask(server: WireDouble) -> Traffic:
        settings = Settings(
            model="openai-compatible/m", base_url="http://127.0.0.1:1/v1", api_key="secret-key", workspace=workspace,
            embedding_model="openai-compatible/small", embedding_base_url=server.base_url(),
        )  # fmt: skip
        async with Runtime(settings) as runtime:
            await runtime.refresh_index()
            assert (await search(runtime).search("paints the fence", 2_000)).context
            return await asyncio.to_thread(server.wait_until, lambda traffic: bool(traffic.bodies))

    with shared_double([*vectors(1), *vectors(2)]) as server:
        traffic = asyncio.run(ask(server))
    assert traffic.bodies[0]["model"] == "small"
    assert traffic.requests[0].headers["authorization"] == "Bearer secret-key"


def test_a_failing_embedding_api_leaves_the_lexical_order(workspace: Path) -> None:
    async def ask(base_url: str) -> list[str]:
        settings = Settings(
            model="offline/x", workspace=workspace,
            embedding_model="openai-compatible/small", embedding_base_url=base_url,
        )  # fmt: skip
        async with Runtime(settings) as runtime:
            await runtime.refresh_index()
            return [name for item in (await search(runtime).search("green", 2_000)).context for name in item.symbols]

    with shared_double([RawAnswer({"error": {"message": "down"}}, 500)] * 4) as server:
        assert "green" in "".join(asyncio.run(ask(server.base_url())))


def test_a_search_that_fails_costs_its_question_and_not_the_actor(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Native code panics with what is no Exception; ten such questions ended the whole tree."""

    class Panic(BaseException):
        pass

    def broken(*_: object) -> None:
        raise Panic("index out of bounds")

    async def ask() -> None:
        async with Runtime(Settings(model="offline/x", workspace=workspace)) as runtime:
            await runtime.refresh_index()
            with monkeypatch.context() as patch:
                patch.setattr(rag, "assemble", broken)
                for _ in range(12):
                    with pytest.raises(RuntimeFailure, match="internal_error: code search failed: Panic: index out"):
                        await search(runtime).search("green", 2_000)
            assert (await search(runtime).search("green", 2_000)).context
            assert runtime.statistics().restarts == 0

    asyncio.run(ask())


class CountingModel(Embedder):
    """A model whose texts are counted, and that fails as often as it is told."""

    model = "counting"
    batch_size = 4

    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    def embed(self, texts: Sequence[str]) -> NDArray[numpy.float32]:
        self._seen += texts
        return numpy.array([[1.0, 0.2 * ("green" in text)] for text in texts], dtype=numpy.float32)

    def close(self) -> None:
        pass


Until = Callable[[Callable[[], bool]], None]


def test_vectors_are_made_in_the_background_and_made_on_after_the_actor_was_killed(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    seen: list[str] = []
    make = partial(CountingModel, seen)
    monkeypatch.setattr(rag, "LOCAL_MODEL", EmbeddingModel("counting", make, make))

    async def work() -> None:
        async with Runtime(Settings(model="offline/x", workspace=workspace)) as runtime:
            await runtime.refresh_index()
            await asyncio.to_thread(until, lambda: {"red", "green"} <= set(" ".join(seen).split()))
            await asyncio.to_thread(runtime.kill_actor, "root/vectorizer")
            (workspace / "more.py").write_text('def violet():\n    """Mends the gate."""\n    return 1\n')
            await runtime.refresh_index()
            await asyncio.to_thread(until, lambda: "violet" in " ".join(seen).split())

    asyncio.run(work())
    assert len(seen) == len(set(seen))


class HeldModel(CountingModel):
    """Gives no vectors until it is released."""

    batch_size = 1

    def __init__(self, seen: list[str], entered: threading.Event, release: threading.Event) -> None:
        super().__init__(seen)
        self._entered, self._release = entered, release

    def embed(self, texts: Sequence[str]) -> NDArray[numpy.float32]:
        self._entered.set()
        self._release.wait(30)
        return super().embed(texts)


def test_what_a_question_found_gets_its_vector_first_and_the_next_question_uses_it(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    """The tests of one line are the least likely of all tiles."""
    seen: list[str] = []
    entered, release = threading.Event(), threading.Event()
    monkeypatch.setattr(
        rag,
        "LOCAL_MODEL",
        EmbeddingModel("held", partial(CountingModel, []), partial(HeldModel, seen, entered, release)),
    )
    monkeypatch.setattr(vector_making, "GROUP", 4)
    monkeypatch.setattr(rag, "load_ahead", lambda folders: None)  # no tokens are counted here
    monkeypatch.setattr(rag, "VECTOR_SECONDS", 0.001)  # what the question asks for is heard after the group under way
    for n in range(20):
        (workspace / f"m{n}.py").write_text(f"def mend_{n}():\n    gate = hinge({n})\n    return gate\n")
    (workspace / "test_paint.py").write_text("def test_violet():\n    assert violet\n")

    async def work() -> None:
        async with Runtime(Settings(model="offline/x", workspace=workspace)) as runtime:
            await runtime.refresh_index()
            await asyncio.to_thread(until, entered.is_set)
            assert not (await search(runtime).search("is violet tested?", 20_000)).note
            release.set()
            await asyncio.to_thread(
                until, lambda: (state := runtime.vectors()) is not None and state.total > 20 and not state.missing
            )
            place = next(n for n, text in enumerate(seen) if "violet" in text)
            assert place < 3 * vector_making.GROUP, seen  # of those under way and the next ones
            index = await search(runtime).ask_index(lambda index: index)
            assert index._dense is not None
            dense = index._dense.search
            await asyncio.to_thread(until, lambda: dense._embedder is not None)  # without another question

    asyncio.run(work())


class FailingModel(CountingModel):
    def embed(self, texts: Sequence[str]) -> NDArray[numpy.float32]:
        raise RuntimeError("no memory for the model")


@pytest.mark.parametrize(("model", "made"), [(CountingModel, True), (FailingModel, False)], ids=["works", "fails"])
def test_how_far_the_vectors_are_is_seen(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, until: Until, model: type[CountingModel], made: bool
) -> None:
    make = partial(model, [])
    monkeypatch.setattr(rag, "LOCAL_MODEL", EmbeddingModel("counting", make, make))
    with Runtime(Settings(model="offline/x", workspace=workspace)) as runtime:
        tenant = cast(Tenant, SimpleNamespace(runtime=runtime))
        runtime.ask_sync("Where is the fence painted?")
        until(lambda: (state := runtime.vectors()) is not None and state.total > 0 and bool(state.missing) is not made)
        state = runtime.vectors()
        assert state is not None
        missing = 0 if made else state.total
        numbers = runtime.prometheus()
        assert f'callboard_search_tiles{{vector="missing"}} {missing:.1f}' in numbers
        assert f'callboard_search_tiles{{vector="made"}} {state.total - missing:.1f}' in numbers
        assert f'callboard_search_tiles{{vector="first"}} {state.first:.1f}' in numbers
        assert state.is_ready is made
        rows = list(board_rows._vectors(tenant))
        assert [row["why"] for row in rows] == ([] if made else [str(state)])
        assert made or "no memory for the model" in str(state)


def test_without_a_workspace_there_are_no_vectors() -> None:
    with Runtime(Settings(model="offline/x")) as runtime:
        assert runtime.vectors() is None
        assert "callboard_search_tiles{" not in runtime.prometheus()
