"""The local model for many texts: child processes, one a core. While somebody may wait for what they make, they give
way to other programs somewhat, and get a share of a busy machine too; then they have the lowest priority.

One thread a process makes more vectors a core than one model on two threads (61 to 55 a second). A model that crashes
takes its child with it and nothing else, and the memory that it takes is gone when the vectors are made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from callboard.actors.index.dense import Embedder, EmbeddingModel, import_whole
from callboard.actors.index.minilm import LocalEmbedder, convert_ahead
from callboard.actors.processes.spawning import Caller, Helper
from callboard.protocol.errors import RuntimeFailure, UsageError, said

if TYPE_CHECKING:
    from callboard.actors.index.dense import Vectors

#: Texts of one message to a child: a tenth of a second of work.
SHARE: Final = 16
#: For a child to load the model and embed a share, on a machine whose cores are all taken.
ANSWER_SECONDS: Final = 120.0
#: More children would fill memory before they fill the cores of a large machine: each holds 150 MB.
MAX_CHILDREN: Final = 4
#: At 19 a child gets a hundredth of a core of a machine that does other things: what is made first is made at this.
FIRST_NICENESS: Final = 5
LAST_NICENESS: Final = 19
#: The first byte of an answer.
_VECTORS, _REFUSED = b"+", b"-"


class BulkEmbedder(Embedder):
    """See the module."""

    model = LocalEmbedder.model
    batch_size = SHARE * 8

    def __init__(self) -> None:
        """Raises OSError: there are no more processes to be had; UsageError: the model is damaged."""
        import_whole("numpy")
        convert_ahead()
        count = max(1, min(MAX_CHILDREN, len(os.sched_getaffinity(0))))
        self._idle = [Helper(main, quiet=True) for _ in range(count)]
        self._helpers = tuple(self._idle)
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="index-vectors")
        self._is_given_up = False

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Raises RuntimeFailure: a child was lost; UsageError: the model cannot be loaded; CancelledError: given up."""
        import numpy  # noqa: PLC0415  optional extra

        shares = [texts[first : first + SHARE] for first in range(0, len(texts), SHARE)]
        rows: Vectors = numpy.concatenate(list(self._pool.map(self._of_share, shares)))
        return rows

    def _of_share(self, texts: Sequence[str]) -> Vectors:
        import numpy  # noqa: PLC0415  optional extra

        helper = self._idle.pop()  # there are as many threads as children
        try:
            answer = helper.ask(json.dumps(list(texts)).encode(), ANSWER_SECONDS)
        except (EOFError, TimeoutError) as error:
            if self._is_given_up:
                raise CancelledError("the making of vectors was given up") from error
            raise RuntimeFailure(f"internal_error: a process that makes vectors was lost: {error}") from error
        finally:
            self._idle.append(helper)
        if answer[:1] != _VECTORS:
            raise UsageError(answer[1:].decode("utf-8", "replace"))
        rows: Vectors = numpy.frombuffer(answer[1:], numpy.float32).reshape(len(texts), -1)
        return rows

    def give_way(self) -> None:
        """For good: a priority that was given up is not had again."""
        for helper in self._helpers:
            helper.be_nice(LAST_NICENESS)

    def give_up(self) -> None:
        """Their pipes end with them. Only `close` closes the pipes: here a thread may wait at one."""
        self._is_given_up = True
        for helper in self._helpers:
            helper.kill()

    def close(self) -> None:
        """Kill the children. The pipes are closed when nobody waits at them any more: their numbers are used again."""
        for helper in self._helpers:
            helper.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for helper in self._helpers:
            helper.close()


def main() -> None:
    """The child: a list of texts in, their vectors out, until its input ends."""
    os.nice(FIRST_NICENESS)
    caller = Caller()
    try:
        embedder = LocalEmbedder(threads=1)
    except Exception as error:  # noqa: BLE001  of native libraries too: who asks hears why
        refusal = _REFUSED + said(error).encode("utf-8", "replace")
        caller.serve(lambda _: refusal)
        return
    caller.serve(lambda texts: _VECTORS + embedder.embed(json.loads(texts)).tobytes())


LOCAL_MODEL: Final = EmbeddingModel(LocalEmbedder.model, LocalEmbedder, BulkEmbedder)
"""The model of the extra `embeddings`."""
