"""Testing a tool of your own: `check_tool` calls it with arguments of all kinds that its schema allows.

    pip install -e '.[testing]'
    python examples/test_my_tool.py

`split_bill` has a fault planted in it. The kit finds it, and shows the smallest arguments that bring it out.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from callboard.protocol.errors import ToolError
from callboard.protocol.testing import check_tool

People = Annotated[int, Field(ge=0, le=100, description="How many people pay.")]


def split_bill(total_cents: Annotated[int, Field(ge=0)], people: People) -> dict[str, int]:
    """Split a bill between people who pay the same."""
    return {"each_cents": total_cents // people}


def split_bill_fairly(total_cents: Annotated[int, Field(ge=0)], people: People) -> dict[str, int]:
    """Split a bill between people who pay the same."""
    if people == 0:
        raise ToolError("people must be at least 1, to pay the bill.")
    return {"each_cents": total_cents // people}


def main() -> None:
    """Find the fault, then show that the repaired tool has none."""
    try:
        check_tool(split_bill)
    except AssertionError as error:
        print(f"found: {error}")
    else:
        raise SystemExit("the planted fault was not found")
    check_tool(split_bill_fairly)
    print("split_bill_fairly: nothing found")


if __name__ == "__main__":
    main()
