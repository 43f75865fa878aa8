"""The reply of a request that has ended, from what the journal has of it."""

from __future__ import annotations

from collections.abc import Mapping

from callboard.actors.journal.journal_records import RequestEnd, RequestLog
from callboard.actors.requests.json_schema import raw_output
from callboard.actors.requests.outputs import MisfitError, OutputType
from callboard.actors.requests.replies import Reply, error_of
from callboard.protocol.commands import Finish, Outcome
from callboard.protocol.errors import RuntimeFailure, UsageError
from callboard.protocol.events import RequestStarted


def recorded_reply(log: RequestLog, end: RequestEnd, outputs: Mapping[str, OutputType[object]]) -> Reply[object]:
    """As its asker had it. `outputs`: the types of answers that this runtime knows, by the titles of their forms.

    Raises what its asker got in place of a reply, and UsageError where the type of its answer is not known here, or is
    another one now.
    """
    finish = end.finish
    if finish is None:
        raise RuntimeFailure(f"the request has no answer: {end.failure}")
    reply = Reply(
        finish.text,
        finish.usage,
        log.request_id,
        finish.outcome,
        finish.steps,
        finish.cost,
        tuple(message for _, message in log.messages),
        _output(log, finish, outputs),
        finish.reason,
        finish.finish_reason,
        end.notes,
        end.failures,
        finish.open_turn.outside if finish.open_turn is not None else (),
    )
    error = error_of(reply, end.error)
    if error is not None:
        raise error
    return reply


def _output(log: RequestLog, finish: Finish, outputs: Mapping[str, OutputType[object]]) -> object:
    title = log.begins.needs.output
    if not title:
        return finish.text
    if finish.outcome is not Outcome.ANSWERED:
        return None
    started = log.records[0].event if log.records else None
    spec = started.options.output if isinstance(started, RequestStarted) else None
    form = raw_output(spec) if spec is not None and spec.is_raw else outputs.get(title)
    if form is None:
        raise UsageError(
            f"the answer of this request is a {title}, a type that this runtime does not know: start it with "
            f"Runtime(outputs=[{title}])"
        )
    try:
        return form.read(finish.text)
    except MisfitError as misfit:
        raise UsageError(f"{title} has changed since this request was answered: {misfit}") from misfit
