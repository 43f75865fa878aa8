"""When the code of a call may begin, where it must be durable first that it does (effect "once" and "transaction")."""

from __future__ import annotations

from collections.abc import Callable


class GoAhead:
    """Of one call: its session gives it when the begin is durable, its worker waits for it.

    The two share this object, and no message: so a dispatcher or worker that is lost takes no go-ahead with it. For the
    loop thread only.
    """

    __slots__ = ("_tell", "is_given")

    def __init__(self) -> None:
        self.is_given = False
        self._tell: Callable[[], object] | None = None

    def give(self) -> None:
        """The code may begin from now on."""
        self.is_given = True
        tell, self._tell = self._tell, None
        if tell is not None:
            tell()

    def when_given(self, tell: Callable[[], object]) -> None:
        """Have this called once it is given, or at once. Of several, the last that was given is called."""
        if self.is_given:
            tell()
        else:
            self._tell = tell
