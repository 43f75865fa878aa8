"""`callboard chat` without a terminal: questions and commands line by line."""

from __future__ import annotations

import subprocess
from typing import Any

from support.shared_double import shared_double

from callboard.actors.testing.wire_double import Turn


def test_a_pipe_asks_line_by_line(callboard: Any) -> None:
    with shared_double((Turn("One."), Turn("Two."))) as server:
        where = ("--model", "openai-compatible/any", "--base-url", server.base_url())
        process = callboard.start("chat", *where, stdin=subprocess.PIPE)
        out, err = process.communicate(b"first\nsecond\n/usage\n/nope\nnever asked\n", timeout=50)
    assert out.decode().startswith("One.\nTwo.\n2 answers, ")
    assert b"there is no command '/nope'" in err
    assert process.returncode == 2
    assert len(server.requests()) == 2
