"""`callboard edits`: the edits that tools have staged in this workspace and that wait for their owner."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from msgspec.structs import asdict

from callboard import Proposal, ProposalState, Runtime, UsageError
from callboard.actors.cli.arguments import settings_of, whole_id
from callboard.actors.cli.columns import counted, print_wrapped
from callboard.actors.cli.terminal import print_json, print_line
from callboard.protocol.readers import ForDecision, for_decision, one_line_for_decision

_OPEN: Final = (ProposalState.PENDING, ProposalState.APPLYING)


async def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """List them with their diffs, apply some, or give some up."""
    async with Runtime(settings_of(options)) as runtime:
        if options.action == "list":
            _list([each for each in runtime.proposals() if options.all or each.state in _OPEN], as_json=options.json)
            return
        ids = _chosen(options, runtime.proposals())
        if options.action == "approve":
            decided = await runtime.approve_edits(ids)
        else:
            decided = await runtime.deny_edits(ids, options.reason)
    if options.json:
        print_json([asdict(each) for each in decided])
    for each in decided if not options.json else ():
        print_wrapped(_line(each))
    if options.action == "approve" and any(each.state is not ProposalState.APPLIED for each in decided):
        raise UsageError("not all of these edits could be applied: see above why")


def _chosen(options: argparse.Namespace, proposals: Sequence[Proposal]) -> list[str]:
    """What was typed, whole; without ids, all that wait."""
    pending = [each.id for each in proposals if each.state in _OPEN]
    if options.ids:
        return [whole_id(each, (edit.id for edit in proposals), "edit") for each in options.ids]
    if not options.everything:
        if not pending:
            raise UsageError(
                "no edits wait in this workspace; `callboard edits list --all` shows those that are decided"
            )
        waiting = counted(len(pending), "edit that waits", "edits that wait")
        raise UsageError(f"name the edits, or give --all-pending for the {waiting}")
    return pending


def _list(proposals: list[Proposal], *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(each) for each in proposals])
        return
    if not proposals:
        print_wrapped("no edits wait in this workspace")
    for each in proposals:
        print_wrapped(_line(each))
        print_line(for_decision(each.diff).rstrip("\n"))


def _line(proposal: Proposal) -> ForDecision:
    files = ", ".join(f"{file.kind} {one_line_for_decision(file.path)}" for file in proposal.files)
    why = f" ({one_line_for_decision(proposal.reason)})" if proposal.reason else ""
    tool = one_line_for_decision(proposal.tool)
    return ForDecision(f"{proposal.id}  {proposal.state}{why}  {tool}: {files}")
