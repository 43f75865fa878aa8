"""A host that Prometheus scrapes: the example runs in its own process, and is scraped over HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from support.shared_double import shared_double

from callboard.actors.testing.wire_double import Turn


def test_the_example_can_be_scraped() -> None:
    example = Path(__file__).parents[2] / "examples" / "metrics_endpoint.py"
    with (
        shared_double([Turn("It rains.")]) as server,
        subprocess.Popen(
            [sys.executable, str(example), "0"],
            env={**os.environ, "CALLBOARD_MODEL": "vllm/any", "CALLBOARD_BASE_URL": server.base_url()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as program,
    ):
        assert program.stdin is not None
        assert program.stdout is not None
        address = program.stdout.readline().strip()
        program.stdin.write("What is the weather?\n")
        program.stdin.flush()
        assert program.stdout.readline() == "It rains.\n"
        with urllib.request.urlopen(address, timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            found = {(s.name, tuple(s.labels.items())): s.value for each in families for s in each.samples}
        program.stdin.close()
        assert program.wait(timeout=30) == 0
    assert found["shop_questions_total", ()] == 1
    assert found["callboard_requests_total", (("outcome", "answered"),)] == 1
