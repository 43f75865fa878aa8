"""callboard in a notebook: its cells run by a real kernel, and interrupted."""

from __future__ import annotations

import json
import os
import queue
from collections.abc import Iterator

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from support.host_programs import EXAMPLES, PATIENCE_SECONDS, SAYS_IT_RAINS, Stage, wait_until
from support.marked import processes_with
from support.shared_double import stall

#: Each test starts several programs, on a machine that may be busy with other tests.
pytestmark = [pytest.mark.deep, pytest.mark.timeout(150)]

CELLS = [
    "".join(cell["source"])
    for cell in json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    if cell["cell_type"] == "code"
]
IMPORTS_AND_START, ASK, STREAM, STOP = CELLS


class Kernel:
    """A running kernel."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self._client = client

    def begin(self, code: str) -> str:
        """Send a cell; for `result`."""
        return str(self._client.execute(code, stop_on_error=False))

    def result(self, cell: str) -> tuple[str, str]:
        """What a cell printed, and the name of the exception that ended it."""
        printed, failed = "", ""
        while True:
            try:
                message = self._client.get_iopub_msg(timeout=PATIENCE_SECONDS)
            except queue.Empty:
                raise AssertionError(f"the cell did not end; it printed {printed!r}") from None
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                printed += content["text"]
            elif message["msg_type"] == "error":
                failed = content["ename"]
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                return printed, failed

    def run(self, code: str) -> tuple[str, str]:
        """Send a cell, and wait for its end."""
        return self.result(self.begin(code))

    def interrupt(self) -> None:
        """As the button does. A cell that awaits ends when the kernel's loop next wakes, for which any message does:
        the interrupt itself does not wake it (ipython/ipykernel issue 881)."""
        self.manager.interrupt_kernel()
        self._client.kernel_info()


@pytest.fixture
def kernel(stage: Stage) -> Iterator[Kernel]:
    manager = KernelManager()
    mark = f"kernel-{os.urandom(8).hex()}"
    manager.start_kernel(env={**stage.environment(), "MARK": mark}, cwd=str(stage.folder))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE_SECONDS)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
        manager.cleanup_resources()
        manager.context.term()
    wait_until(lambda: not processes_with(mark), "an end of all processes of the kernel")


def test_the_notebook_runs(kernel: Kernel) -> None:
    assert kernel.run(IMPORTS_AND_START) == ("", "")
    assert kernel.run(ASK) == ("It rains in Oslo.\n", "")
    assert kernel.run(STREAM) == ('[weather {"city":"Oslo"}]\nIt rains in Oslo.\ncost: None\n', "")
    assert kernel.run(STOP) == ("", "")


@pytest.mark.parametrize("cell", [ASK, STREAM, ASK.replace("await runtime.ask", "runtime.ask_sync")])
def test_interrupting_a_cell_cancels_its_request_and_the_next_cell_runs(
    kernel: Kernel, stage: Stage, cell: str
) -> None:
    kernel.run(IMPORTS_AND_START)
    stage.play(stall("It rains "))
    asked = kernel.begin(cell)
    stage.double.wait_until(lambda traffic: len(traffic.requests) == 1)
    kernel.interrupt()
    _, failed = kernel.result(asked)
    assert failed in ("KeyboardInterrupt", "CancelledError")
    stage.wait_until_model_left()
    stage.play(SAYS_IT_RAINS)
    assert kernel.run(ASK) == ("It rains in Oslo.\n", "")


def test_a_runtime_that_is_not_stopped_ends_with_the_kernel(kernel: Kernel) -> None:
    kernel.run(IMPORTS_AND_START)
    assert kernel.run(ASK) == ("It rains in Oslo.\n", "")


def test_running_the_first_cell_again_replaces_the_runtime(kernel: Kernel) -> None:
    """As people do in notebooks: the old one is ended, with a warning."""
    kernel.run(IMPORTS_AND_START)
    printed, failed = kernel.run(IMPORTS_AND_START)
    assert (failed, "dropped without stop()" in printed) == ("", True)
    assert kernel.run(ASK) == ("It rains in Oslo.\n", "")
    runtimes = "import threading; print(sum(t.name == 'callboard-watchdog' for t in threading.enumerate()))"
    wait_until(lambda: kernel.run(runtimes)[0] == "1\n", "an end of the first runtime")
