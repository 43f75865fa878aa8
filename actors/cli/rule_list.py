"""`callboard rules`: what was answered for always to questions for approval in this workspace."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from callboard.actors.cli.arguments import settings_of
from callboard.actors.cli.columns import print_wrapped
from callboard.actors.cli.terminal import print_json
from callboard.actors.policy.saved_rules import SavedRules
from callboard.protocol.readers import one_line_for_decision


def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """List them with their numbers, or remove one."""
    settings = settings_of(options)
    saved = SavedRules(settings.config_dir, settings.workspace)
    if options.remove is not None:
        removed = saved.remove(options.remove)
        print_wrapped(f"removed: {one_line_for_decision(str(removed))}")
        return
    rules = saved.rules()
    if options.json:
        print_json([{"number": number, **asdict(rule)} for number, rule in enumerate(rules, 1)])
    elif not rules:
        print_wrapped("no rules are saved for this workspace")
    for number, rule in enumerate(rules, 1):
        if not options.json:
            print_wrapped(f"{number}  {one_line_for_decision(str(rule))}  ({rule.saved_at})")
