"""Annotations as they are read everywhere: without evaluating what the author did not mean to be evaluated.

Since Python 3.14 annotations are made when they are asked for, and asking fails where one names what is imported for
type checkers alone (`if TYPE_CHECKING`). Such a name is then a ForwardRef here, as it is a text under
`from __future__ import annotations`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    def annotations_of(thing: object) -> dict[str, object]:
        """Those of this function, class or module itself, not of the bases of a class; {} where it has none."""
        return get_annotations(thing, format=Format.FORWARDREF) if _may_have(thing) else {}

    def signature_of(function: Callable[..., object]) -> inspect.Signature:
        """`inspect.signature`. Raises what it raises."""
        return inspect.signature(function, annotation_format=Format.FORWARDREF)

else:

    def annotations_of(thing: object) -> dict[str, object]:
        """Those of this function, class or module itself, not of the bases of a class; {} where it has none."""
        return inspect.get_annotations(thing) if _may_have(thing) else {}  # type: ignore[arg-type]

    def signature_of(function: Callable[..., object]) -> inspect.Signature:
        """`inspect.signature`. Raises what it raises."""
        return inspect.signature(function)


def _may_have(thing: object) -> bool:
    return callable(thing) or isinstance(thing, ModuleType)


def forward_name(annotation: object) -> str:
    """The text of an annotation that is kept as one, as it is or as a ForwardRef; "" for any other."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", "")
    return text if isinstance(text, str) else ""
