"""One question, in a runtime of its own: for scripts, notebooks and the first minutes.

print(ask_sync("What is the weather in Oslo?", model="openai/gpt-6.1-sol", tools=[weather]))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Unpack, overload

from typing_extensions import TypeForm

from callboard.actors.requests.asking import AskOptions, Prompt
from callboard.actors.requests.replies import Reply, StreamItem, SyncEvents, SyncStream, T
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.protocol.errors import explained
from callboard.protocol.lazy_loading import lazy_module

if TYPE_CHECKING:
    from callboard.actors import wrong_calls
else:
    wrong_calls = lazy_module("callboard.actors.wrong_calls")

_asked = explained(lambda *wrong: wrong_calls.of_question(*wrong))


@overload
def ask_sync(prompt: Prompt, *, settings: Settings | None = None, **options: Unpack[AskOptions]) -> Reply: ...
@overload
def ask_sync(
    prompt: Prompt, *, output: TypeForm[T], settings: Settings | None = None, **options: Unpack[AskOptions]
) -> Reply[T]: ...
@_asked
def ask_sync(
    prompt: Prompt,
    *,
    output: TypeForm[T] | None = None,
    settings: Settings | None = None,
    **options: Unpack[AskOptions],
) -> Reply[T] | Reply:
    """`Runtime.ask_sync`, in a runtime that is started for this question and stopped after it: some milliseconds.

    Calls that the policy asks about are denied: there is no `approve`. Raises what `Runtime.ask_sync` raises.
    """
    with Runtime(settings) as runtime:
        return (
            runtime.ask_sync(prompt, **options)
            if output is None
            else runtime.ask_sync(prompt, output=output, **options)
        )


@overload
def stream_sync(prompt: Prompt, *, settings: Settings | None = None, **options: Unpack[AskOptions]) -> OwnStream: ...
@overload
def stream_sync(
    prompt: Prompt, *, output: TypeForm[T], settings: Settings | None = None, **options: Unpack[AskOptions]
) -> OwnStream[T]: ...
@_asked
def stream_sync(
    prompt: Prompt,
    *,
    output: TypeForm[T] | None = None,
    settings: Settings | None = None,
    **options: Unpack[AskOptions],
) -> OwnStream[T] | OwnStream:
    """`Runtime.stream_sync`, in a runtime that is started when the iteration begins and stopped when it ends.

        for text in stream_sync("What is the weather in Oslo?", model="openai/gpt-6.1-sol").texts():
            print(text, end="", flush=True)

    Raises UsageError for bad settings at once, the rest from the iteration.
    """
    runtime = Runtime(settings)
    if output is None:
        return OwnStream(runtime, lambda: runtime.stream_sync(prompt, **options))
    return OwnStream(runtime, lambda: runtime.stream_sync(prompt, output=output, **options))


class OwnStream(SyncEvents[T]):
    """What `stream_sync` gives. Nothing is asked before it is iterated; a second iteration asks once more."""

    def __init__(self, runtime: Runtime, ask: Callable[[], SyncStream[T]]) -> None:
        self._runtime, self._ask = runtime, ask

    def __iter__(self) -> Iterator[StreamItem[T]]:
        with self._runtime:
            yield from self._ask()
