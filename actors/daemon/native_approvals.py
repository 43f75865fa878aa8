"""The native API: what a person decides. Approvals of calls, staged edits, results of deferred calls."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from callboard.actors.calls.approvals import Approval
from callboard.actors.daemon.access_tokens import Scope
from callboard.actors.daemon.api_errors import ApiError, not_found
from callboard.actors.daemon.endpoint import Endpoint, HttpCall
from callboard.actors.daemon.native_answers import ApprovalShown, ApprovalsShown, EditShown, EditsShown, WasDone
from callboard.actors.daemon.native_bodies import (
    AnswerApproval,
    ApproveEdits,
    CompleteCall,
    DenyEdits,
    EditsQuery,
    FailCall,
    ProgressOfCall,
)
from callboard.actors.daemon.native_io import answered, body_as, path_step, query_as, waited
from callboard.actors.edits.proposals import Proposal, ProposalState
from callboard.actors.runtime import Runtime


async def list_approvals(call: HttpCall) -> Response:
    """Calls that wait for a person."""
    timeout = call.tenant.runtime.settings.approval_timeout_seconds
    return answered(ApprovalsShown(approvals=[ApprovalShown.of(each, timeout) for each in call.tenant.desk.open]))


async def answer_approval(call: HttpCall) -> Response:
    """One answer a call: a second one finds nothing."""
    body, key = body_as(call, AnswerApproval), (call.path("request_id"), path_step(call), call.path("call_id"))
    asked = next((each.question for each in call.tenant.desk.open if each.key == key), None)
    call.told.update(zip(("request_id", "step", "call_id"), key, strict=True))
    call.told.update(answer=str(body.answer), tool="unknown" if asked is None else asked.name)
    if not call.tenant.desk.answer(*key, Approval(body.answer, body.reason, body.arguments)):
        raise not_found("no such call waits for approval: it was answered, has timed out, or never was")
    return answered(WasDone(done=True))


# -- edits


async def list_edits(call: HttpCall) -> Response:
    """Those that wait; with `all`, those that are decided too."""
    query, runtime = query_as(call, EditsQuery), call.tenant.runtime
    if runtime.settings.workspace is None:
        return _shown(())
    found = await waited(runtime.proposals)
    return _shown(tuple(each for each in found if query.all or each.state is ProposalState.PENDING))


async def approve_edits(call: HttpCall) -> Response:
    """Apply them; `state` and `reason` say what became of each."""
    body, runtime = body_as(call, ApproveEdits), _with_workspace(call)
    await _check_ids(runtime, body.ids)
    call.told["answer"] = "approve"
    return _decided(call, await runtime.approve_edits(body.ids, contents=body.contents))


async def deny_edits(call: HttpCall) -> Response:
    """Give them up."""
    body, runtime = body_as(call, DenyEdits), _with_workspace(call)
    await _check_ids(runtime, body.ids)
    call.told["answer"] = "deny"
    return _decided(call, await runtime.deny_edits(body.ids, body.reason))


def _with_workspace(call: HttpCall) -> Runtime:
    runtime = call.tenant.runtime
    if runtime.settings.workspace is None:
        raise ApiError(409, "no_workspace", "this tenant has no workspace, and so no edits")
    return runtime


async def _check_ids(runtime: Runtime, ids: list[str] | None) -> None:
    known = {each.id for each in await waited(runtime.proposals)} if ids else set()
    if unknown := [each for each in ids or () if each not in known]:
        raise ApiError(404, "not_found", f"there is no edit {unknown[0]!r:.100}", param="ids")


def _decided(call: HttpCall, found: tuple[Proposal, ...]) -> Response:
    call.told["edits"] = " ".join(each.id for each in found)
    return _shown(found)


def _shown(found: tuple[Proposal, ...]) -> Response:
    return answered(EditsShown(edits=[EditShown.of(each) for each in found]))


# -- deferred calls


async def complete_call(call: HttpCall) -> Response:
    """The model reads the result as if the tool had returned it."""
    body, runtime, (request_id, step, call_id) = body_as(call, CompleteCall), call.tenant.runtime, _open_call(call)
    return _taken(await waited(lambda: runtime.complete_call(request_id, step, call_id, body.result)))


async def fail_call(call: HttpCall) -> Response:
    """The model reads the message."""
    body, runtime, (request_id, step, call_id) = body_as(call, FailCall), call.tenant.runtime, _open_call(call)
    return _taken(await waited(lambda: runtime.fail_call(request_id, step, call_id, body.message)))


async def report_progress(call: HttpCall) -> Response:
    """Those who follow the request see it."""
    body, runtime, (request_id, step, call_id) = body_as(call, ProgressOfCall), call.tenant.runtime, _open_call(call)
    return _taken(await waited(lambda: runtime.report_progress(request_id, step, call_id, body.message, body.fraction)))


def _open_call(call: HttpCall) -> tuple[str, int, str]:
    """Of a request that runs: a result for another one would be a dead letter for each time it is sent."""
    request_id = call.path("request_id")
    if not call.tenant.runtime.is_running(request_id):
        raise _no_call()
    return request_id, path_step(call), call.path("call_id")


def _taken(was_taken: bool) -> Response:
    if not was_taken:
        raise _no_call()
    return answered(WasDone(done=True))


def _no_call() -> ApiError:
    return not_found("no such call is open: it has its result, has timed out, was cancelled, or never was")


_CALL: Final = "{request_id}/{step:int}/{call_id:path}"
_APPROVE: Final = Scope.APPROVE
ENDPOINTS: Final = (
    Endpoint(
        "GET", "/api/approvals", list_approvals, summary="Calls that wait for approval, with diffs",
        answer=ApprovalsShown,
    ),
    Endpoint(
        "POST", f"/api/approvals/{_CALL}", answer_approval, scope=_APPROVE, summary="Approve or deny a call",
        body=AnswerApproval, answer=WasDone,
    ),
    Endpoint("GET", "/api/edits", list_edits, summary="Staged edits", query=EditsQuery, answer=EditsShown),
    Endpoint(
        "POST", "/api/edits/approve", approve_edits, scope=_APPROVE, summary="Apply staged edits", body=ApproveEdits,
        answer=EditsShown,
    ),
    Endpoint(
        "POST", "/api/edits/deny", deny_edits, scope=_APPROVE, summary="Give staged edits up", body=DenyEdits,
        answer=EditsShown,
    ),
    Endpoint(
        "POST", f"/api/calls/{_CALL}/complete", complete_call, scope=_APPROVE, summary="The result of a deferred call",
        body=CompleteCall, answer=WasDone,
    ),
    Endpoint(
        "POST", f"/api/calls/{_CALL}/fail", fail_call, scope=_APPROVE, summary="A deferred call has failed",
        body=FailCall, answer=WasDone, may_be_large=False,
    ),
    Endpoint(
        "POST", f"/api/calls/{_CALL}/progress", report_progress, scope=_APPROVE,
        summary="How far a deferred call is", body=ProgressOfCall, answer=WasDone, may_be_large=False,
    ),
)  # fmt: skip
