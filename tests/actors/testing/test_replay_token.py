"""Tokens, and what a failure tells: every failing run can be played again from one line, as its smallest deviation."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.testing.replay_token import VERSION, RunToken
from callboard.actors.testing.simulated_run import SimulatedRun, attempt, check, main, run_of, token_of
from callboard.protocol.errors import UsageError
from callboard.protocol.testing.trace import Trace

CHOSEN = st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 99)), min_size=1, max_size=5).map(tuple)


@given(
    st.builds(
        RunToken,
        st.integers(0, 1 << 60),
        st.none() | st.integers(0, 1 << 60),
        st.sampled_from(["fifo", "uniform", "pct"]) | CHOSEN,
    )
)
def test_a_token_is_read_as_it_was_written(token: RunToken) -> None:
    assert RunToken.parse(str(token)) == token


@pytest.mark.parametrize("text", ["", "7", "v1", "v3:1:1", "v3:1:1:lifo", "v3:1:1:5", "v3:-1:1:pct", "v3:1:1:pct:x"])
def test_what_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a token"):
        RunToken.parse(text)


def test_a_token_of_another_version_is_refused_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"v{VERSION + 1}:1:1:pct"]) == 2
    said = capsys.readouterr().err
    assert f"of version {VERSION + 1}" in said
    assert said.count("\n") == 1


class Overtaken(SimulatedRun):
    """A planted fault of the code under test: it fails when the second request's model is asked before the first's."""

    def play(self) -> list[Trace]:
        traces = super().play()
        begun = [line.split()[1] for line in self.scheduler.trace if line.endswith(" start") and "sessions/" in line]
        if begun != sorted(begun):
            raise RuntimeError(f"planted: begun in the order {begun}")
        return traces


def overtaken(token: RunToken) -> SimulatedRun:
    run = run_of(token)
    return Overtaken([request.scenario for request in run.requests.values()], run.faults, token.make_schedule())


def test_a_failure_of_any_kind_tells_its_story_and_the_line_that_plays_it_again() -> None:
    runs = ((token, run_of(token)) for token in map(token_of, range(400)))
    two = (token for token, run in runs if len(run.requests) == 2 and not run.faults.deaths)  # each is begun once
    token = next(token for token in two if attempt(token, overtaken)[1])
    with pytest.raises(AssertionError) as failure:
        check(token, overtaken)
    told = str(failure.value)
    assert told.startswith("RuntimeError: planted")
    named = told.count(", ahead of ")
    assert 1 <= named <= 2, "one request is begun ahead of another, and nothing else matters"
    line = told.splitlines()[-1]
    assert line.startswith("play it again: python -m callboard.actors.testing.simulated_run 'v")
    again = RunToken.parse(line.split("'")[1])
    assert isinstance(again.schedule, tuple)
    assert len(again.schedule) == named
    assert attempt(again, overtaken)[1]


def test_the_replay_line_can_be_pasted() -> None:
    command = [sys.executable, "-m", "callboard.actors.testing.simulated_run", str(token_of(3))]
    played = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert played.stdout.startswith("nothing is wrong with this run\nseed 3, faults 3")
    assert played.stderr == ""
