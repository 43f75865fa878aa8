"""Annotations as they are read everywhere: without evaluating what the author did not mean to be evaluated.

Since Python 3.14 annotations are made when they are asked for, and asking fails where one names what is imported for
type checkers alone (`if TYPE_CHECKING`). Such a name is then a ForwardRef here, as it is a text under
`from __future__ import annotations`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    def annotations_of(thing: object) -> dict[str, object]:
        """Those of this function, class or module itself, not of the bases of a class; {} where it has none."""
        return get_annotations(thing, format=Format.FORWARDREF) if _may_have(thing) else {}

    def signature_of(function: Callable[..., object]) -> inspect.Signature:
        """`inspect.signature`. Raises what it raises."""
        return inspect.signature(function, annotation_format=Format.FORWARDREF)

    def settle(thing: type | FunctionType) -> None:
        """Make its annotations now, for what copies it: as texts where one of them names what is not there."""
        if getattr(thing, "__annotate__", None) is None:
            return
        try:
            thing.__annotations__  # noqa: B018 - Python keeps them from then on
        except Exception:  # noqa: BLE001 - an annotation is any expression
            thing.__annotations__ = get_annotations(thing, format=Format.STRING)

else:

    def annotations_of(thing: object) -> dict[str, object]:
        """Those of this function, class or module itself, not of the bases of a class; {} where it has none."""
        return inspect.get_annotations(thing) if _may_have(thing) else {}  # type: ignore[arg-type]

    def signature_of(function: Callable[..., object]) -> inspect.Signature:
        """`inspect.signature`. Raises what it raises."""
        return inspect.signature(function)

    def settle(thing: type | FunctionType) -> None:
        """They are made already."""


def _may_have(thing: object) -> bool:
    return callable(thing) or isinstance(thing, ModuleType)


def forward_name(annotation: object) -> str:
    """The text of an annotation that is kept as one, as it is or as a ForwardRef; "" for any other."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", "")
    return text if isinstance(text, str) else ""
