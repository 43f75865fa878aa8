"""Does `encode` carry everything? Each text of a request bears a mark of its own, which must be in the body, once.

Nothing here knows any API: a body is JSON in which marks are looked for, with what stands around them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import orjson
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, field
from msgspec.structs import replace

from callboard.protocol.content import (
    AssistantMessage,
    Image,
    Message,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import ModelRequest, Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.testing.strategies import histories
from callboard.protocol.tools import ToolDefinition

#: The tools that requests offer: their names are marks, as are their descriptions and those of their parameters.
_TOOL_NAMES: Final = (ToolName("MARKtoolA"), ToolName("MARKtoolB"))
_TEXTS: Final = {
    name: {"description": f"{name}says", "parameter": f"{name}takes", "property": f"{name}field"}
    for name in _TOOL_NAMES
}
TOOLS: Final = tuple(
    ToolDefinition(
        name,
        texts["description"],
        {
            "type": "object",
            "properties": {texts["property"]: {"type": "string", "description": texts["parameter"]}},
            "required": [texts["property"]],
        },
    )
    for name, texts in _TEXTS.items()
)


class _Mark(Struct, frozen=True):
    """A text that must be in the body once."""

    text: str
    what: str
    """Whose text it is, for people."""
    kind: str
    ordered: bool = True
    """It stands behind the marks before it. The instructions at the start may stand anywhere."""
    pair: str = ""
    """On a call and on its result: which one of the history it is."""


class _Marked(Struct):
    """A history whose texts are marks."""

    messages: list[Message] = field(default_factory=list)
    marks: list[_Mark] = field(default_factory=list)

    def mark(self, what: str, kind: str, *, ordered: bool = True, pair: str = "") -> str:
        text = f"MARK{len(self.marks):04d}"  # eight characters of base64, so that it may be a picture too
        self.marks.append(_Mark(text, f"{what} of message {len(self.messages)}", kind, ordered, pair))
        return text

    def add(self, message: Message) -> None:
        match message:
            case SystemMessage():
                leading = all(isinstance(before, SystemMessage) for before in self.messages)
                self.messages.append(SystemMessage(self.mark("the system text", "system", ordered=not leading)))
            case UserMessage(parts):
                self.messages.append(UserMessage(tuple(self._user_part(part) for part in parts)))
            case AssistantMessage(parts):
                self.messages.append(AssistantMessage(tuple(self._assistant_part(part) for part in parts)))
            case ToolMessage():
                turn = max(n for n, one in enumerate(self.messages) if isinstance(one, AssistantMessage))
                text = self.mark("the result", "result", pair=f"{turn}/{message.call_id}")
                self.messages.append(replace(message, content=text))

    def _user_part(self, part: Any) -> Any:
        if isinstance(part, Image):
            return Image("image/png", data_base64=self.mark("the picture", "picture"))
        return Text(self.mark("the user's text", "user"))

    def _assistant_part(self, part: Any) -> Any:
        if isinstance(part, ToolCall):
            mark = self.mark("the arguments", "call", pair=f"{len(self.messages)}/{part.call_id}")
            return replace(part, arguments=f'{{"x":"{mark}"}}', complete=True, replay=None)
        if isinstance(part, Text):
            return Text(self.mark("the model's text", "assistant"))
        return Thinking(part.text) if isinstance(part, Thinking) else part  # foreign thinking need not go along


class _Body(Struct, frozen=True):
    """What `encode` made."""

    data: bytes
    notes: str
    elsewhere: str
    """The address and headers: some options stand there."""

    def document(self) -> Any:
        """The JSON."""
        return orjson.loads(self.data)

    def leaves(self) -> list[tuple[str, frozenset[str]]]:
        """Each text in the body, in order, with the texts that stand beside it in the objects it is in."""
        return list(_leaves(self.document(), frozenset()))


def check_encode(adapter: Any, model: str, quiet: Callable[[Any], Any]) -> None:
    """Histories of every shape, tools and options. Raises AssertionError for what is lost, doubled or out of order."""

    shown = _takes_pictures(adapter, model)

    def carries(shape: Any) -> None:
        marked = _Marked()
        for message in _history(shape):
            marked.add(message if shown else _without_pictures(message))
        _check_marks(_encode(adapter, ModelRequest(model, tuple(marked.messages), TOOLS)), marked.marks)

    @quiet
    @given(histories())  # as they are, with blank texts and another provider's data
    def is_steady(history: tuple[Message, ...]) -> None:
        taken = history if shown else map(_without_pictures, history)
        _encode(adapter, ModelRequest(model, (*taken, UserMessage.of("go")), TOOLS))

    for shape in (_RICH_SHAPE, _PLAIN_SHAPE):
        carries(shape)
    quiet(given(_SHAPES)(carries))()
    is_steady()
    _check_tools(adapter, model)
    _check_options(adapter, model)


def check_replay(adapter: Any, model: str, name: str, turn: AssistantMessage, kept: frozenset[str]) -> None:
    """What a turn brought to be given back (signatures, encrypted reasoning) goes back with it."""
    results = [ToolMessage(call.call_id, call.name, "done") for call in turn.tool_calls]
    body = _encode(adapter, ModelRequest(model, (UserMessage.of("go"), turn, *results, UserMessage.of("on")), TOOLS))
    sent = {text for text, _ in body.leaves()}
    lost = sorted(text for text in kept if text not in sent)
    assert not lost or body.notes, (
        f"the turn of the answer {name!r} goes back without {lost[0]!r}, which must be given back to the provider"
    )


#: One exchange: the parts of what a person says (a picture?), thinking before the answer, the calls, a note after them.
_EXCHANGE: Final = st.tuples(
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.booleans(),
    st.lists(st.sampled_from(_TOOL_NAMES), max_size=4),
    st.booleans(),
)
#: Instructions at the start, exchanges, and what the person says last.
_SHAPES: Final = st.tuples(
    st.booleans(), st.lists(_EXCHANGE, max_size=4), st.lists(st.booleans(), min_size=1, max_size=4)
)

#: All of it at once: what is lost is found at the first try.
_RICH_SHAPE: Final = (
    True,
    [([False, False, True], True, [*_TOOL_NAMES, _TOOL_NAMES[0]], True)] * 2,
    [False, True, False],
)
#: Only texts, several in a message: an adapter may write these in another way than those beside a picture.
_PLAIN_SHAPE: Final[Any] = (False, [([False, False], False, [], False)], [False, False])


def _history(shape: Any) -> Iterator[Message]:
    """A conversation of this shape; its texts are replaced by marks."""
    instructed, exchanges, last = shape
    if instructed:
        yield SystemMessage("instructions")
    for pictures, thinks, names, noted in exchanges:
        yield _asks(pictures)
        calls = [ToolCall(CallId(f"id{number}"), name, "{}") for number, name in enumerate(names)]
        yield AssistantMessage((*([Thinking("hm")] if thinks else []), Text("says"), *calls))
        yield from (ToolMessage(call.call_id, call.name, "result") for call in calls)
        if noted:
            yield SystemMessage("a note in the middle")
    yield _asks(last)


def _asks(pictures: Sequence[bool]) -> UserMessage:
    return UserMessage(tuple(Image("image/png", "x") if picture else Text("asks") for picture in pictures))


def _takes_pictures(adapter: Any, model: str) -> bool:
    """Not every model does. An adapter may refuse one, by an error that names the part and the model."""
    try:
        _encode(adapter, ModelRequest(model, (_asks([True]),)), may_refuse=True)
    except UsageError as error:
        if "Image" not in str(error):
            raise
        refusal = str(error)
    else:
        return True
    assert model in refusal, f"the refusal of a picture does not name the model {model!r}: {refusal}"
    return False


def _without_pictures(message: Message) -> Message:
    if not isinstance(message, UserMessage):
        return message
    return UserMessage(tuple(Text("shown") if isinstance(part, Image) else part for part in message.parts))


# Encoding.


def _encode(adapter: Any, request: ModelRequest, *, may_refuse: bool = False) -> _Body:
    """Twice: the bytes are the same, and the request is as it was. Raises UsageError only where it `may_refuse`."""
    given_one = copy.deepcopy(request)
    try:
        body, again = _body(adapter.encode(given_one)), _body(adapter.encode(given_one))
        body.document()
    except Exception as error:
        if may_refuse and isinstance(error, UsageError):
            raise
        raised = f"raised {type(error).__name__}: {error}"
        fault = f"gives no JSON ({error})" if isinstance(error, orjson.JSONDecodeError) else raised
        raise AssertionError(f"encode {fault}, for {request!r:.300}") from None
    assert given_one == request, f"encode changes the request it is given: {request!r:.300}"
    assert again.data == body.data, f"encode gives different bytes for {request!r:.300}"
    return body


def _body(made: Any) -> _Body:
    data = made if isinstance(made, bytes) else made.body
    elsewhere = f"{getattr(made, 'url', '')} {sorted(getattr(made, 'headers', {}).items())}"
    return _Body(data, "\n".join(getattr(made, "notes", ())), elsewhere)


def _leaves(value: Any, beside: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    if isinstance(value, str):
        yield value, beside
    elif isinstance(value, Mapping):
        beside |= {inner for inner in value.values() if isinstance(inner, str)}
        for inner in value.values():
            yield from _leaves(inner, beside)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, beside)


# Histories.


def _check_marks(body: _Body, marks: Sequence[_Mark]) -> None:
    leaves = body.leaves()
    places: dict[str, tuple[int, int]] = {}
    beside: dict[str, frozenset[str]] = {}
    for mark in marks:
        found = [(n, text.index(mark.text)) for n, (text, _) in enumerate(leaves) if mark.text in text]
        times = sum(text.count(mark.text) for text, _ in leaves)
        assert times == 1, f"{mark.what} is in the body {times} times: {body.data.decode()[:400]}"
        places[mark.text] = found[0]
        beside[mark.text] = leaves[found[0][0]][1]
    for one, other in pairwise(mark for mark in marks if mark.ordered):
        assert places[one.text] < places[other.text], f"{other.what} stands before {one.what}"
        glued = one.kind == other.kind == "user" and _adjacent(places[one.text], places[other.text])
        assert not glued, f"{other.what} is glued to the text before it: they are two parts"
    _check_roles(marks, beside)
    _check_pairs(marks, beside)


def _adjacent(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] == other[0] and other[1] == one[1] + len("MARK0000")


def _check_roles(marks: Sequence[_Mark], beside: Mapping[str, frozenset[str]]) -> None:
    """A person's text and the model's: something beside them says which is which."""

    def around(kind: str) -> set[frozenset[str]]:
        return {_plain(beside[mark.text]) for mark in marks if mark.kind == kind}

    assert not around("user") & around("assistant"), "nothing in the body tells the user's text from the model's"


def _check_pairs(marks: Sequence[_Mark], beside: Mapping[str, frozenset[str]]) -> None:
    """A text that stands beside one call and beside one result of its turn pairs them: it must be the right pair.

    An API without ids pairs them by their order, which has been checked.
    """
    turns = {mark.pair.split("/")[0] for mark in marks if mark.pair}
    for turn in turns:
        of_turn = [mark for mark in marks if mark.pair.split("/")[0] == turn and mark.pair]
        near = {mark.text: _plain(beside[mark.text]) for mark in of_turn}
        for call in (mark for mark in of_turn if mark.kind == "call"):
            for result in (mark for mark in of_turn if mark.kind == "result" and mark.pair != call.pair):
                shared = near[call.text] & near[result.text]
                only = {text for text in shared if sum(text in texts for texts in near.values()) == 2}
                assert not only, f"{result.what} is paired by {min(only)!r} with {call.what}, which is another call's"


def _plain(texts: frozenset[str]) -> frozenset[str]:
    return frozenset(text for text in texts if "MARK" not in text)


# Tools and options.


def _check_tools(adapter: Any, model: str) -> None:
    body = _encode(adapter, ModelRequest(model, (UserMessage.of("go"),), TOOLS))
    beside = dict(body.leaves())
    for name, texts in _TEXTS.items():
        assert name in beside, f"the tool's name {name!r} is not in the body"
        assert texts["property"].encode() in body.data, f"the parameters of {name!r} are not in the body"
        for what in ("description", "parameter"):
            times = body.data.count(texts[what].encode())
            assert times == 1, f"the {what} text {texts[what]!r} of {name!r} is in the body {times} times"
            assert name in beside.get(texts[what], ()), f"the {what} text of {name!r} does not stand with that tool"


_SCHEMA: Final = {
    "type": "object",
    "properties": {"answer": {"type": "string", "description": "MARKschema"}},
    "required": ["answer"],
    "additionalProperties": False,
}
#: (what, the fields that are changed, what must then stand in the body)
_OPTIONS: Final[tuple[tuple[str, Mapping[str, Any], Any], ...]] = (
    ("temperature", {"sampling": Sampling(temperature=0.375)}, 0.375),
    ("top_p", {"sampling": Sampling(top_p=0.8125)}, 0.8125),
    ("max_output_tokens", {"sampling": Sampling(max_output_tokens=47_110)}, 47_110),
    ("stop", {"sampling": Sampling(stop=("MARKstop",))}, "MARKstop"),
    ("seed", {"sampling": Sampling(seed=90_210)}, 90_210),
    ("reasoning_effort", {"sampling": Sampling(reasoning_effort="low")}, None),
    ("reasoning_effort", {"sampling": Sampling(reasoning_effort="high")}, None),
    ("tool_choice", {"tool_choice": ToolChoice(ToolChoiceMode.NONE)}, None),
    ("tool_choice", {"tool_choice": ToolChoice(ToolChoiceMode.REQUIRED)}, None),
    ("tool_choice", {"tool_choice": ToolChoice(ToolChoiceMode.NAMED, _TOOL_NAMES[0])}, None),
    ("tool_choice", {"tool_choice": ToolChoice(ToolChoiceMode.NAMED, _TOOL_NAMES[1])}, None),
    ("parallel_tool_calls", {"parallel_tool_calls": True}, None),
    ("parallel_tool_calls", {"parallel_tool_calls": False}, None),
    ("response_schema", {"response_schema": _SCHEMA}, "MARKschema"),
    ("provider_options", {"provider_options": (ExtraFields({"MARKoption": "MARKvalue"}),)}, "MARKvalue"),
    ("provider_options", {"provider_options": (ExtraFields(headers={"x-mark": "MARKheader"}),)}, "MARKheader"),
    ("stream", {"stream": False}, None),
    ("model", {"model": "MARKmodel"}, "MARKmodel"),
)


def _check_options(adapter: Any, model: str) -> None:
    """Each option changes what is sent, and each of its values in another way; or a note says that it is left out."""
    base = ModelRequest(model, (UserMessage.of("go"),), TOOLS)
    seen = {("", _sent(_encode(adapter, base)))}
    for name, changed, value in _OPTIONS:
        try:
            body = _encode(adapter, replace(base, **changed), may_refuse=True)
        except UsageError:
            continue  # what the API cannot be asked is said, not dropped
        if name in body.notes:
            continue
        shown = f"{name}={next(iter(changed.values()))!r}"
        same = [other for other, sent in seen if sent == _sent(body)]
        # `parallel_tool_calls=True` is every API's default, and `stream` may be too.
        assert not same or (same == [""] and name == "parallel_tool_calls"), (
            f"{shown} sends the same as {same[0] or 'the request without it'}, and no note says that it is left out"
        )
        assert value is None or _holds(body, value), f"{shown} is not in what is sent, and no note says so"
        seen.add((shown, _sent(body)))


def _sent(body: _Body) -> tuple[bytes, str]:
    return body.data, body.elsewhere


def _holds(body: _Body, value: Any) -> bool:
    if isinstance(value, str):
        return value.encode() in body.data or value in body.elsewhere
    return value in _numbers(body.document())


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _numbers(inner)
