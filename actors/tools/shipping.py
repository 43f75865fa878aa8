"""How a tool gets into a child process: by name where the child can import it, else by value.

By name is preferred, since a module that is imported keeps its own state and its own imports. By value serves
functions of `__main__`, of a notebook, of a test module, and closures.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import io
import pickle
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec
from operator import attrgetter
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, get_args

from callboard.actors.tools.schema import Signature
from callboard.protocol.errors import UsageError
from callboard.protocol.lazy_loading import lazy_module

if TYPE_CHECKING:
    import cloudpickle  # type: ignore[import-untyped]

    from callboard.protocol import annotation_reading
else:
    annotation_reading = lazy_module("callboard.protocol.annotation_reading")
    cloudpickle = lazy_module("cloudpickle")

#: Dataclasses tell "nothing was given" by these very objects; in the child, a copy of one would read as a default.
_DATACLASS_MARKS = ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY")
#: cloudpickle's list of by-value modules belongs to the whole process.
_by_value_lock = threading.Lock()


class Shipped(NamedTuple):
    """What arrives in the child: these attributes of the Tool."""

    name: str
    function: Callable[..., object]
    signature: Signature
    resource: Callable[[], object] | None = None


class ByValue(NamedTuple):
    """The tool, and what annotations kept as text need of a module that the child does not have."""

    shipped: Shipped
    module: str
    names: dict[str, object]


class ByName(NamedTuple):
    """Where the child finds the tool."""

    module: str
    qualname: str


def pack(
    name: str,
    function: Callable[..., object],
    signature: Signature,
    resource: Callable[[], object] | None = None,
) -> bytes:
    """The tool as bytes. Raises UsageError, naming the cause, when it cannot be shipped."""
    module = sys.modules.get(function.__module__ or "")
    importable = module is not None and _child_can_import(module)
    if module is not None and importable and _is_found(module, function):
        return pickle.dumps(ByName(module.__name__, function.__qualname__))
    with _by_value(None if importable else module):
        try:
            names = {} if importable or module is None else _named_in_text(signature, module)
            return _dumped(
                ByValue(Shipped(name, function, signature, resource), function.__module__ or "__main__", names)
            )
        except Exception as error:  # pickling runs __reduce__ of any class
            raise UsageError(
                f"tool {name} cannot be shipped to a child process: {_culprit(function, error)}; "
                "create it inside the function, or in a module that is imported and not the "
                "script that is started, or use "
                "isolation='thread'"
            ) from error


def _cached(function: Callable[..., object], parameters: tuple[tuple[str, Any], ...]) -> Callable[..., object]:
    """A function with a cache, in the child: pickle sends it by its name, which is not there."""
    cached: Callable[..., object] = lru_cache(**dict(parameters))(function)
    return cached


@cache
def _pickler() -> Callable[[io.BytesIO], pickle.Pickler]:
    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """cloudpickle's, but the marks of dataclasses go by name."""

        dispatch_table: ClassVar[ChainMap[type, Callable[..., object]]] = ChainMap(
            {
                **{type(getattr(dataclasses, name)): lambda _, name=name: name for name in _DATACLASS_MARKS},
                type(lru_cache(_cached)): lambda cached: (
                    _cached,
                    (cached.__wrapped__, tuple(cached.cache_parameters().items())),
                ),
            },
            cloudpickle.Pickler.dispatch_table,
        )

        def reducer_override(self, obj: object) -> object:
            """With the annotations of what goes by value, which it leaves out where they are not made yet."""
            if isinstance(obj, type | FunctionType) and not _goes_by_name(obj):
                annotation_reading.settle(obj)
            return super().reducer_override(obj)

    return Pickler


def _goes_by_name(thing: object) -> bool:
    found: bool = cloudpickle.cloudpickle._should_pickle_by_reference(thing)
    return found


def _dumped(value: object) -> bytes:
    stream = io.BytesIO()
    _pickler()(stream).dump(value)
    return stream.getvalue()


def unpack(packed: bytes) -> Shipped:
    """The tool again, in the child. Raises what the import of its module raises."""
    found = pickle.loads(packed)
    if isinstance(found, ByValue):
        if found.names:
            vars(sys.modules.setdefault(found.module, ModuleType(found.module))).update(found.names)
        return found.shipped
    tool: object = attrgetter(found.qualname)(importlib.import_module(found.module))
    return Shipped._make(getattr(tool, field) for field in Shipped._fields)


def _named_in_text(signature: Signature, module: ModuleType) -> dict[str, object]:
    """What text annotations (`from __future__ import annotations`) name, of all classes of this module in use."""
    names: dict[str, object] = {}
    todo: list[object] = [signature.returns, *(parameter.annotation for parameter in signature.parameters)]
    seen: set[type] = set()
    while todo:
        annotation = todo.pop()
        todo += get_args(annotation)
        text = annotation_reading.forward_name(annotation)
        fresh = {name: vars(module)[name] for name in _names(text) if name in vars(module) and name not in names}
        names |= fresh
        todo += fresh.values()
        if isinstance(annotation, type) and annotation.__module__ == module.__name__ and annotation not in seen:
            seen.add(annotation)
            todo += (each for base in annotation.__mro__ for each in annotation_reading.annotations_of(base).values())
    return names


def _names(text: str) -> list[str]:
    try:
        tree = ast.parse(text or "()", mode="eval")
    except SyntaxError:  # a word of a Literal, no annotation
        return []
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]


def _is_found(module: ModuleType, function: Callable[..., object]) -> bool:
    """Does the name lead to the tool made of this very function?"""
    try:
        return getattr(attrgetter(function.__qualname__)(module), "function", None) is function
    except AttributeError:
        return False


def _child_can_import(module: ModuleType) -> bool:
    """Would another process with our sys.path get the same module by this name?"""
    if module.__name__ == "__main__":
        return False
    origin = getattr(module.__spec__, "origin", None)
    path = None
    parts = module.__name__.split(".")
    for depth in range(1, len(parts) + 1):
        spec = _find_spec(".".join(parts[:depth]), path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return spec is not None and spec.origin == origin


def _find_spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    # importlib.util.find_spec would answer from sys.modules, where the module is however it came there.
    specs = (finder.find_spec(name, path) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)


@contextmanager
def _by_value(module: ModuleType | None) -> Iterator[None]:
    """Within: what this module defines is pickled by value. `__main__` always is."""
    if module is None or module.__name__ == "__main__":
        yield
        return
    with _by_value_lock:
        registered = module.__name__ in cloudpickle.list_registry_pickle_by_value()
        if not registered:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            if not registered:
                cloudpickle.unregister_pickle_by_value(module)


def _culprit(function: Callable[..., object], error: Exception) -> str:
    """The variable of the function that does not pickle, or the whole error if none alone is to blame."""
    code = function.__code__
    captured = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    values = {name: cell.cell_contents for name, cell in captured.items()}
    values |= {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    if inspect.ismethod(function):
        values["self"] = function.__self__
    for name, value in values.items():
        try:
            _dumped(value)
        except Exception as reason:  # noqa: BLE001 - as above
            return f"its variable {name!r} ({type(value).__name__}) cannot be pickled ({reason})"
    return str(error)
