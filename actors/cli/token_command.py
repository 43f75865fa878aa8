"""`callboard tokens`: who may call the daemon. What is made or removed counts at once, also where the daemon runs."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime

from callboard import UsageError
from callboard.actors.cli.arguments import whole_id
from callboard.actors.cli.columns import columns_of, table, wrapped
from callboard.actors.cli.terminal import print_json, print_line
from callboard.actors.daemon.access_tokens import AccessTokens, Scope
from callboard.actors.daemon.daemon_settings import DaemonPlan, read_plan


def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """List, make or remove."""
    plan = read_plan(options.config, options.profile)
    tokens = AccessTokens(plan.state_dir / "tokens.json")
    {"list": _list, "make": _make, "remove": _remove}[options.action](options, plan, tokens)


def _list(options: argparse.Namespace, _: DaemonPlan, tokens: AccessTokens) -> None:
    if options.json:
        print_json({"tokens": [each.shown() for each in tokens.tokens]})
        return
    if not tokens.tokens:
        print_line("no tokens; `callboard tokens make` makes one")
        return
    rows = [
        (each.id, each.scope.name.lower(), each.tenant, f"{datetime.fromtimestamp(each.made_at):%Y-%m-%d}", each.note)
        for each in tokens.tokens
    ]
    print_line(table([("ID", "SCOPE", "TENANT", "MADE", "NOTE"), *rows], columns_of(sys.stdout), (-1, 2)))


def _make(options: argparse.Namespace, plan: DaemonPlan, tokens: AccessTokens) -> None:
    names = [each.name for each in plan.tenants]
    tenant = options.tenant or names[0]
    if tenant not in names:
        raise UsageError(f"--tenant: the configuration has no tenant {tenant!r}; it has: {', '.join(names)}")
    made, secret = tokens.make(Scope.of(options.scope), tenant, options.note)
    told = f"callboard: token {made.id} of {tenant}, {options.scope}; it is shown this once"
    sys.stderr.write(f"{wrapped(told, columns_of(sys.stderr), '  ')}\n")
    print_line(secret)


def _remove(options: argparse.Namespace, _: DaemonPlan, tokens: AccessTokens) -> None:
    if not tokens.remove(whole_id(options.id, (each.id for each in tokens.tokens), "token")):
        raise UsageError(f"there is no token {options.id!r}; `callboard tokens list` shows them")
