"""From what `output=` names to its JSON Schema, and from a model's answer to an object of it.

pydantic reads the types and checks the answers. A type is looked at once: its schema, validators and whether code of
the user's runs in them are kept.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import GenericAlias, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NotRequired,
    Required,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)

from msgspec import Struct
from typing_extensions import TypedDict, TypeForm, get_type_hints, is_typeddict

from callboard.actors.tools.invoke import safe_text, shortened, text_of
from callboard.actors.tools.schema import trimmed
from callboard.protocol.content import bad_number
from callboard.protocol.errors import UsageError, said
from callboard.protocol.json_answers import json_documents
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.limits import MAX_MISFIT_CHARS, OUTPUT_TRIES
from callboard.protocol.output import Checked, OutputMode, OutputSpec

if TYPE_CHECKING:
    import pydantic
    import pydantic_core
    from pydantic import TypeAdapter

    from callboard.actors import wrong_calls
    from callboard.actors.tools import json_form, kept
    from callboard.protocol import annotation_reading
else:
    annotation_reading = lazy_module("callboard.protocol.annotation_reading")
    json_form = lazy_module("callboard.actors.tools.json_form")
    kept = lazy_module("callboard.actors.tools.kept")
    wrong_calls = lazy_module("callboard.actors.wrong_calls")
    pydantic = lazy_module("pydantic")
    pydantic_core = lazy_module("pydantic_core")

#: An answer of up to this size, of a type without code of the user's, is checked on the control loop: about 0.2 ms.
MAX_QUICK_CHARS: Final = 16_384
#: Wrong places told of in one answer, and characters of each wrong value.
_MAX_PLACES: Final = 20
_MAX_VALUE_CHARS: Final = 100
#: An exponent that may be beyond a float's.
_EXPONENT: Final = re.compile(r"[0-9][eE]\+?[0-9]{3}")
#: Of a type's name, and the modules before names in the repr of a type.
_MAX_NAME_CHARS: Final = 100
_MODULES: Final = re.compile(r"\b(?:\w+\.)*(?:<locals>\.)?(?=\w)")
#: Kinds of core schemas that pydantic writes a JSON Schema of, and that no answer can be.
_NOT_DATA: Final[Mapping[str, str]] = {
    "generator": "is read as it is used (generator); use list[...] instead",
    "is-subclass": "holds a class, which JSON cannot carry; use Literal[...] with the names of those that you know",
}
#: The field of an answer that is no object by itself: APIs want an object at the root.
WRAPPED: Final = "value"
_JSON_TYPES: Final = "str, int, float, bool, list, dict, Literal, Enum, a dataclass, a TypedDict, a pydantic model"

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Output(Struct, frozen=True):
    """How an answer of a type is asked for, beside the type:

        await runtime.ask("Where is Oslo?", output=Annotated[Place, Output(mode="prompt", tries=5)])

    `mode`: "native", "tool" or "prompt"; "": by what the model takes. `tries`: answers that may be given until one
    fits. `description`: what the model reads of the type. `name`: what people read in notes and errors, and the model
    where it is asked by a tool. "": its own.
    """

    mode: OutputMode | str = ""
    tries: int = OUTPUT_TRIES
    name: str = ""
    description: str = ""


#: Beside a type that its JSON Schema says all of (json_schema.py).
RAW: Final = "callboard: the schema is all there is of this type"


class OutputType(Generic[T_co]):
    """One type of answers. See `output_type`."""

    __slots__ = ("_plain", "_wrapped", "is_quick", "spec")

    def __init__(
        self, plain: TypeAdapter[T_co], wrapped: TypeAdapter[dict[str, T_co]] | None, spec: OutputSpec
    ) -> None:
        self._plain = plain
        self._wrapped = wrapped
        self.spec = spec
        """Its schema, name and modes."""
        self.is_quick = not _runs_user_code(plain.core_schema)
        """No code but pydantic's own runs when an answer is checked."""

    def read(self, text: str) -> T_co:
        """The object of an answer. Raises MisfitError where it does not fit, and what code of the user's raises."""
        first = ""
        if text.startswith("{"):  # most are JSON and nothing else: a third of the time
            with contextlib.suppress(pydantic.ValidationError, MisfitError):
                return self._validated(text)
        for document in json_documents(text):
            try:
                return self._validated(document)
            except pydantic.ValidationError as error:
                first = first or _told(error, document)
            except MisfitError as error:
                first = first or str(error)
        raise MisfitError(first or "it holds no JSON.")

    def check(self, text: str) -> tuple[Checked, T_co | None]:
        """Whether an answer fits, and its object. Never raises: an error of the user's code is named in it."""
        try:
            return Checked(), self.read(text)
        except MisfitError as error:
            return Checked(str(error)), None
        except BaseException as error:  # noqa: BLE001 - validators are the user's, and may raise anything
            told = f"the check of {self.spec.title} raised {text_of(error)}"
            return Checked(shortened(told, MAX_MISFIT_CHARS), is_broken=True), None

    def data(self, text: str) -> object:
        """The answer as plain JSON data, before it is validated. Raises ValueError where it holds none."""
        return self.unwrapped(pydantic_core.from_json(next(json_documents(text), text)))

    def unwrapped(self, data: object) -> object:
        """Without the field around an answer that is no object by itself. Where that is not there yet: None."""
        if self._wrapped is None or not isinstance(data, Mapping):
            return data
        return data.get(WRAPPED, data if data else None)

    def _validated(self, document: str) -> T_co:
        if _may_hold_bad_number(document) and (wrong := bad_number(document)):
            raise MisfitError(f"it holds {wrong}, which is not a finite number.")
        if self._wrapped is None:
            return self._plain.validate_json(document)
        try:
            return self._wrapped.validate_json(document)[WRAPPED]
        except pydantic.ValidationError as wrapped:
            try:  # models leave the field out that is there for the API's sake only
                return self._plain.validate_json(document)
            except pydantic.ValidationError:
                raise wrapped from None


class MisfitError(ValueError):
    """An answer does not fit its type; the text says where and why."""


def output_type(kind: TypeForm[T]) -> OutputType[T] | None:
    """What `output=` names; None for str, which is any text.

    Raises UsageError for what is no type, and for a type that JSON cannot carry, naming the field.
    """
    bare: Any = kind
    if bare is str:
        return None
    if isinstance(bare, Mapping):
        raise wrong_calls.not_an_output(bare)
    try:
        # What is written tells types apart that are equal and not the same: Annotated[int, 1] and Annotated[int, True].
        shelf, key = kept.shelf_for(bare), (OutputType, bare, repr(bare))
        found = shelf.get(key) if shelf is not None else None
    except TypeError:  # not hashable, such as Annotated with a list in it
        return _looked_at(bare)
    if not isinstance(found, OutputType):
        found = _looked_at(bare)
        if shelf is not None:
            shelf.keep(key, found)
    return found


def _looked_at(kind: Any) -> OutputType[Any]:
    if isinstance(kind, Output):
        raise UsageError("output: Output(...) goes beside a type; write output=Annotated[YourType, Output(...)]")
    beside = getattr(kind, "__metadata__", ())
    if any(each is Output for each in beside):
        raise UsageError("output: Output beside the type is a class; write Output(...)")
    told = next((each for each in beside if isinstance(each, Output)), Output())
    _check_told(told)
    name = told.name or _name_of(kind.__origin__ if hasattr(kind, "__metadata__") else kind)
    if inspect.isroutine(kind) or isinstance(kind, partial):  # pydantic would read its arguments
        raise UsageError(f"output: {name} is a function; name the type that you want")
    if kind is pydantic.BaseModel:
        raise UsageError("output: BaseModel has no fields; name a class of your own that is one")
    if open_type := _open_type(kind):
        raise UsageError(f"output: {name} leaves {open_type} open; name a type for it, as in Page[int]")
    try:
        portable = _portable(kind)
        plain = json_form.adapter_of(portable)
        schema = _schema_of(plain)
        for node in _nodes(plain.core_schema):
            if why := _NOT_DATA.get(str(node.get("type"))):
                raise UsageError(f"output: {name} {why}")
        wrapped = None
        rooted = _at_root(schema)
        if rooted is None:
            make_type: Any = TypedDict
            wrapped = json_form.adapter_of(make_type("Answer", {WRAPPED: portable}))
            rooted = _schema_of(wrapped)
    except UsageError:
        raise
    except Exception as error:  # what is given here is any object, and a type of the user's runs code of its own
        raise _refusal(kind, name, error) from error
    if told.description:
        rooted = {**rooted, "description": told.description}
    description = str(rooted.get("description", ""))
    modes = (OutputMode(told.mode),) if told.mode else tuple(OutputMode)
    spec = OutputSpec(rooted, name, description, modes, max_tries=told.tries, is_raw=RAW in beside)
    return OutputType(plain, wrapped, spec)


def _is_object(kind: object) -> bool:
    """Is it an object of some class, and no type at all?"""
    of_typing = type(kind).__module__ in ("typing", "types", "typing_extensions")
    return not isinstance(kind, type) and not of_typing and get_origin(kind) is None


def _check_told(told: Output) -> None:
    for name in ("name", "description"):
        if not isinstance(getattr(told, name), str):
            raise UsageError(f"output: {name} must be a text, not {getattr(told, name)!r}")
    if type(told.tries) is not int or told.tries < 1:
        raise UsageError(f"output: tries must be a whole number of 1 or more, not {told.tries!r}")
    if told.mode and told.mode not in tuple(OutputMode):
        raise UsageError(f"output: there is no mode {told.mode!r}; known are: {', '.join(OutputMode)}")


def _portable(kind: Any) -> Any:
    """The type with a TypedDict of `typing`, which pydantic refuses before Python 3.12, as one of typing_extensions."""
    if is_typeddict(kind) and type(kind).__module__ == "typing":
        hints = get_type_hints(kind, include_extras=True)
        entries = {name: _entry(kind, name, hint) for name, hint in hints.items()}
        make_type: Any = TypedDict
        made = make_type(kind.__name__, entries)
        made.__doc__ = kind.__doc__
        return made
    arguments = () if get_origin(kind) is Literal else get_args(kind)
    portable = tuple(map(_portable, arguments))
    if all(new is old for new, old in zip(portable, arguments, strict=True)):
        return kind
    origin = get_origin(kind)
    if origin is UnionType:
        return Union[portable]  # noqa: UP007 - made of a tuple
    return kind.copy_with(portable) if hasattr(kind, "copy_with") else origin[portable]


def _entry(kind: Any, name: str, hint: Any) -> Any:
    if (of := get_origin(hint)) in (Required, NotRequired):
        return of[_portable(get_args(hint)[0])]
    return _portable(hint) if name in kind.__required_keys__ else NotRequired[_portable(hint)]


def _name_of(kind: object) -> str:
    """As it is written in a program, without modules."""
    if isinstance(kind, type) and get_origin(kind) is None:
        return kind.__name__
    return shortened(_MODULES.sub("", safe_text(str, kind)), _MAX_NAME_CHARS)


def _schema_of(adapter: TypeAdapter[object]) -> dict[str, object]:
    return trimmed(json_form.json_schema_of(adapter, "validation"))


def _at_root(schema: dict[str, object]) -> dict[str, object] | None:
    """The schema where it is one of an object, with a reference at its root resolved; None where it is not."""
    ref = schema.get("$ref")
    if isinstance(ref, str):
        defs = schema.get("$defs")
        target = defs.get(ref.removeprefix("#/$defs/")) if isinstance(defs, dict) else None
        schema = {**target, **{key: item for key, item in schema.items() if key != "$ref"}} if target else schema
    combined = {"anyOf", "oneOf", "allOf", "$ref"} & set(schema)
    return None if combined or schema.get("type") != "object" else schema


# What is refused.


def _open_type(kind: object) -> str:
    """A type variable that nothing was put in for, by its name; "" where there is none."""
    if isinstance(kind, TypeVar):
        return str(kind)
    if isinstance(kind, type) and not isinstance(kind, GenericAlias) and issubclass(kind, pydantic.BaseModel):
        parameters = kind.__pydantic_generic_metadata__["parameters"]
    else:
        parameters = getattr(kind, "__parameters__", ())
    return ", ".join(map(str, parameters))


def _refusal(kind: object, name: str, error: Exception) -> UsageError:
    if _is_object(kind):
        return wrong_calls.not_an_output(kind)
    holder = next((each for each in (kind, *get_args(kind)) if _fields_of(each)), kind)
    place = ".".join(_place_of(holder, 0))
    of = f"{name}: the field {place!r}" if place else f"{name}"
    # Not pydantic's own remedies, which are about models of one's own.
    first = (said(error).splitlines() or [""])[0].partition(". Set `")[0].partition("; you should")[0]
    schemaless = f"{of} has no JSON Schema ({shortened(first, 300)})"
    return UsageError(f"output: {schemaless}; use types that JSON can carry: {_JSON_TYPES}")


#: Types within types, each in a field: deeper ones are named by the last field found.
_MAX_FIELD_DEPTH: Final = 8


def _place_of(kind: object, depth: int) -> Iterator[str]:
    """The way to the field whose type cannot be expressed, name by name."""
    for name, annotation in _fields_of(kind).items() if depth < _MAX_FIELD_DEPTH else ():
        try:
            _schema_of(json_form.adapter_of(annotation))
        except Exception:  # noqa: BLE001 - this is what is looked for
            yield name
            inner = next((each for each in (annotation, *get_args(annotation)) if _fields_of(each)), None)
            if inner is not None:
                yield from _place_of(inner, depth + 1)
            return


def _fields_of(kind: object) -> Mapping[str, Any]:
    origin = get_origin(kind) or kind
    if isinstance(origin, type) and issubclass(origin, pydantic.BaseModel):
        return {name: field.annotation for name, field in origin.model_fields.items()}
    if is_typeddict(origin) or is_dataclass(origin):
        own = annotation_reading.annotations_of(origin)
        names = [each.name for each in fields(origin)] if is_dataclass(origin) else list(own)
        try:
            hints: Mapping[str, object] = get_type_hints(origin, include_extras=True)
        except Exception:  # noqa: BLE001 - a name that does not exist: each annotation by itself
            hints = own
        return {name: hints.get(name, object) for name in names}
    return {}


# Whose code runs.

#: Where pydantic's core schemas hold functions.
_HOOKS: Final = ("function", "default_factory", "missing", "discriminator")
#: Methods of the user's: set where there are any.
_METHODS: Final = ("post_init", "custom_init")
_OWN_MODULES: Final = ("callboard", "pydantic", "pydantic_core", "builtins", "collections", "typing")


def _runs_user_code(core_schema: object) -> bool:
    return any(
        any(node.get(method) for method in _METHODS) or any(_is_users(node.get(hook)) for hook in _HOOKS)
        for node in _nodes(core_schema)
    )


def _is_users(hook: object) -> bool:
    if isinstance(hook, Mapping):
        hook = hook.get("function")
    if not callable(hook):
        return False
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return str(module).partition(".")[0] not in _OWN_MODULES


def _nodes(core_schema: object) -> Iterator[Mapping[str, object]]:
    """Every mapping in a core schema."""
    waiting: list[object] = [core_schema]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Mapping):
            yield node
            waiting += node.values()
        elif isinstance(node, list | tuple):
            waiting += node


# What the model reads of an answer that does not fit.


def _told(error: pydantic.ValidationError, document: str) -> str:
    faults = error.errors(include_url=False, include_context=False)
    lines = [_fault(fault, document) for fault in faults[:_MAX_PLACES]]
    if len(faults) > _MAX_PLACES:
        lines.append(f"and {len(faults) - _MAX_PLACES} more")
    return shortened("; ".join(lines), MAX_MISFIT_CHARS)


def _fault(fault: pydantic_core.ErrorDetails, document: str) -> str:
    if fault["type"] == "json_invalid":
        return f"{fault['msg']}, in {safe_text(str, document, _MAX_VALUE_CHARS)!r}"
    place = ".".join(map(str, fault["loc"])) or "the answer"
    if fault["type"] == "missing":
        return f"{place}: {fault['msg']}"
    return f"{place}: {fault['msg']}, received {safe_text(repr, fault['input'], _MAX_VALUE_CHARS)}"


def _may_hold_bad_number(document: str) -> bool:
    """Cheaply: only then is it worth to read the document once more."""
    return "NaN" in document or "Infinity" in document or _EXPONENT.search(document) is not None


def by_title(outputs: Iterable[object]) -> dict[str, OutputType[object]]:
    """By the titles of their forms. Raises UsageError for what is no type of an answer, and for two of one name."""
    found: dict[str, OutputType[object]] = {}
    for kind in outputs:
        form = output_type(cast("TypeForm[object]", kind))
        if form is None:
            continue
        title = form.spec.title
        if title in found and found[title].spec.schema != form.spec.schema:
            raise UsageError(f"outputs: two different types are called {title!r}; rename one")
        found[title] = form
    return found
