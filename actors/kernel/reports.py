"""What a child's cell tells its supervisor."""

from typing import TYPE_CHECKING

from .monitors import ExitReason

if TYPE_CHECKING:
    from .cell import Cell

__all__ = ["ChildExited", "ChildStarted"]


class ChildStarted:
    """To a supervisor: the child's on_start has returned."""

    __slots__ = ("cell",)

    def __init__(self, cell: "Cell") -> None:
        self.cell = cell


class ChildExited:
    """To a supervisor: the child's incarnation has ended."""

    __slots__ = ("cell", "error", "incarnation", "reason")

    def __init__(self, cell: "Cell", incarnation: int, reason: ExitReason, error: BaseException | None) -> None:
        self.cell = cell
        self.incarnation = incarnation
        self.reason = reason
        self.error = error
