"""`callboard models --providers`: every provider, how it is asked, where, and with which credential."""

from __future__ import annotations

import argparse

from callboard import Settings, UsageError
from callboard.actors.cli.terminal import print_json, print_line, table
from callboard.protocol.masking import for_log
from callboard.providers.provider_table import ROWS, ProviderRow

_HEADINGS = ("PROVIDER", "WIRE API", "KEY", "EXTRA", "ADDRESS", "WHAT IT IS")


def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """A table for people, or JSON, which also says where an address is documented."""
    if options.json:
        print_json([_as_json(row) for row in ROWS.values()])
    else:
        print_line(table([_HEADINGS, *map(_cells, ROWS.values())]))


def _cells(row: ProviderRow) -> tuple[str, ...]:
    key = row.key_variable or ("a login" if row.sign_in else "none")
    address = _set_address(row) or row.address or ("none" if row.is_local else "your own")
    return row.name, row.api, key, row.extra or "-", address, row.what


def _set_address(row: ProviderRow) -> str:
    """Where the environment says that it is, and the variable; "" where none says so."""
    try:
        address, source = Settings().address_for(row.name)
    except UsageError as error:
        return str(error)
    return for_log(f"{address} (by {source})") if address else ""


def _as_json(row: ProviderRow) -> dict[str, object]:
    return {
        "name": row.name,
        "api": row.api,
        "what": row.what,
        "address": row.address,
        "source": row.source,
        "key_variable": row.key_variable,
        "sign_in": row.sign_in,
        "extra": row.extra,
        "variables": {option: list(names) for option, names in row.variables.items()},
    }
