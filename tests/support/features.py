"""The tables of docs/provider_details.md that say what each adapter takes, written by asking the adapters.

    PYTHONPATH=tests python -m support.features docs/provider_details.md     # writes the page's tables again

A cell of a request's feature is found by encoding a request with it and the same one without: it is in the body, the
notes name it, or a UsageError refuses it. A cell of an answer's feature is found by decoding an answer that has it.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from support.turns import Manner, Part, Turn, Wire, heard
from support.wire import answer
from support.wires import WIRES

from callboard.protocol.content import (
    AssistantMessage,
    Audio,
    Document,
    Image,
    Media,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    UserPart,
    Video,
)
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import (
    AudioOut,
    ModelRequest,
    PromptCache,
    ResponseStorage,
    Sampling,
    ToolChoice,
    ToolChoiceMode,
)
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.server_tools import (
    CodeExecution,
    FileSearch,
    ImageGeneration,
    RemoteMcp,
    ServerToolOffer,
    WebFetch,
    WebSearch,
)
from callboard.protocol.tools import ToolDefinition
from callboard.providers.adapter import Adapter, WireRequest
from callboard.providers.openai.dialects import SERVERS
from callboard.providers.provider_registry import adapter_for

YES, NOTED, REFUSED, DROPPED, NONE = "yes", "noted", "refused", "dropped", "-"
UNASKED_WORD, LEFT_OUT = "by itself", "left out"
#: What nothing else writes, and its base64: a text may be sent as a file.
WORD, MARK = "marked", "bWFya2Vk"
URL = f"https://example.org/{WORD}"
FLAG = ToolDefinition(
    ToolName("flag"),
    "Raise a flag.",
    {
        "type": "object",
        "properties": {"on": {"type": "boolean"}},
        "required": ["on"],
        "additionalProperties": False,
    },
)
CALL = ToolCall(CallId("call_0001"), FLAG.name, '{"on":true}')
ASKED = UserMessage.of("Hello")

Request = ModelRequest


@dataclass(frozen=True)
class Api:
    """A column: an adapter, and a model of it."""

    adapter: Adapter
    model: str
    wire: Wire
    """How its answers are written, for what an answer has."""


APIS = {
    "Chat Completions": Api(adapter_for("openai-chat"), "gpt-5.1", WIRES["chat"]),
    "Responses": Api(adapter_for("openai"), "gpt-5.1", WIRES["responses"]),
    "Messages": Api(adapter_for("anthropic"), "claude-sonnet-4-5", WIRES["messages"]),
    "Gemini": Api(adapter_for("gemini"), "gemini-2.5-flash", WIRES["gemini"]),
    "Converse": Api(adapter_for("bedrock"), "us.anthropic.claude-sonnet-4-5-20250929-v1:0", WIRES["converse"]),
}


@dataclass(frozen=True)
class Asked:
    """A feature of a request: the request without it and with it."""

    plain: Request
    full: Request
    marks: tuple[str, ...] = ()
    """One of these must be in the body where it was sent; (): anything that was not in the plain one's."""


def _plain(**fields: Any) -> Request:
    return ModelRequest("", fields.pop("messages", (ASKED,)), **fields)


def _sampling(**knobs: Any) -> Asked:
    return Asked(_plain(), _plain(sampling=Sampling(**knobs)))


def _with(**fields: Any) -> Asked:
    return Asked(_plain(), _plain(**fields))


def _tools(**fields: Any) -> Asked:
    return Asked(_plain(tools=(FLAG,)), replace(_plain(tools=(FLAG,)), **fields))


def _shown(part: UserPart) -> Asked:
    return Asked(_plain(), _plain(messages=(UserMessage((Text("Look:"), part)),)), (WORD, MARK.rstrip("=")))


def _result(media: Media) -> Asked:
    def history(*shown: Media) -> Request:
        result = ToolMessage(CALL.call_id, CALL.name, "done", media=shown)
        return _plain(messages=(ASKED, AssistantMessage((CALL,)), result), tools=(FLAG,))

    return Asked(history(), history(media), (MARK,))


def _offer(tool: ServerToolOffer) -> Asked:
    return _with(server_tools=(tool,))


#: A stored answer that the next request goes on with.
_STORED = ResponseStorage(store=True, previous_response_id="resp_1")
_TALKED = (ASKED, AssistantMessage((Text("Hi."),)), UserMessage.of("Well?"))

REQUESTS: Mapping[str, Asked] = {
    "image: bytes": _shown(Image("image/png", MARK)),
    "image: URL": _shown(Image("image/png", url=URL)),
    "image: file id": _shown(Image("image/png", file_id=f"file-{WORD}")),
    "PDF: bytes": _shown(Document("application/pdf", MARK, name="a.pdf")),
    "PDF: URL": _shown(Document("application/pdf", url=URL, name="a.pdf")),
    "PDF: file id": _shown(Document("application/pdf", file_id=f"file-{WORD}", name="a.pdf")),
    "plain text as a document": _shown(Document(text=WORD, name="a.txt")),
    "audio: bytes (WAV)": _shown(Audio("audio/wav", MARK)),
    "audio: URL": _shown(Audio("audio/wav", url=URL)),
    "video: bytes": _shown(Video("video/mp4", MARK)),
    "video: URL": _shown(Video("video/mp4", url=URL)),
    "a result with an image": _result(Image("image/png", MARK)),
    "a result with a PDF": _result(Document("application/pdf", MARK, name="a.pdf")),
    "a result with audio": _result(Audio("audio/wav", MARK)),
    "tools": Asked(_plain(), _plain(tools=(FLAG,)), ("flag",)),
    "`strict` tools": _tools(tools=(replace(FLAG, strict=True),)),
    "tool choice: none": _tools(tool_choice=ToolChoice(ToolChoiceMode.NONE)),
    "tool choice: required": _tools(tool_choice=ToolChoice(ToolChoiceMode.REQUIRED)),
    "tool choice: one by name": _tools(tool_choice=ToolChoice(ToolChoiceMode.NAMED, FLAG.name)),
    "`parallel_tool_calls`": _tools(parallel_tool_calls=False),
    "structured output": _with(response_schema=FLAG.parameters),
    "web search": _offer(WebSearch()),
    "web fetch": _offer(WebFetch()),
    "code execution": _offer(CodeExecution()),
    "file search": _offer(FileSearch(("store_1",))),
    "remote MCP": _offer(RemoteMcp("docs", "https://example.org/mcp")),
    "image generation": _offer(ImageGeneration()),
    "temperature": _sampling(temperature=0.5),
    "`top_p`": _sampling(top_p=0.5),
    "output limit": _sampling(max_output_tokens=77),
    "stop sequences": _sampling(stop=("END",)),
    "seed": _sampling(seed=7),
    "reasoning effort": _sampling(reasoning_effort="low"),
    "log probabilities": _sampling(logprobs=2),
    "service tier": _with(service_tier="auto"),
    "pictures in the answer": _with(images_out=True),
    "sound in the answer": _with(audio_out=AudioOut(format="pcm16")),
    "prompt cache for 5 minutes": Asked(_plain(prompt_cache=PromptCache.OFF), _plain()),
    "prompt cache for an hour": Asked(_plain(), _plain(prompt_cache=PromptCache.ONE_HOUR)),
    "stored answers": Asked(_plain(messages=_TALKED), _plain(messages=_TALKED, storage=_STORED)),
    "background answers": _with(storage=ResponseStorage(background=True)),
    "further options": Asked(_plain(), _plain(provider_options=(ExtraFields({WORD: 1}),)), (WORD,)),
}
#: Features that some servers give unasked, by the adapter's name: nothing is sent for them, and nothing is lost.
UNASKED: Mapping[str, frozenset[str]] = {
    "prompt cache for 5 minutes": frozenset({*SERVERS, "openai", "gemini", "openrouter", "copilot"}),
    "web search": frozenset({"perplexity"}),
}


def cell(adapter: Adapter, model: str, feature: str) -> str:
    """Is the feature sent, left out with a note, or refused?"""
    found = compared(adapter, model, REQUESTS[feature])
    return UNASKED_WORD if found == DROPPED and adapter.name in UNASKED.get(feature, ()) else found


def compared(adapter: Adapter, model: str, asked: Asked) -> str:
    """What becomes of that in which the two requests differ."""
    plain = adapter.encode(replace(asked.plain, model=model))
    try:
        full = adapter.encode(replace(asked.full, model=model))
    except UsageError:
        return REFUSED
    noted = set(full.notes) - set(plain.notes)
    body = full.body.decode()
    sent = any(mark in body for mark in asked.marks) if asked.marks else _written(full) != _written(plain)
    if sent:
        return f"{YES}, {NOTED}" if noted else YES
    return NOTED if noted else DROPPED


def _written(wire: WireRequest) -> object:
    return wire.url, wire.body, dict(wire.headers)


#: What an answer may have, by the kind of its part.
ANSWERS: Mapping[str, tuple[str, ...]] = {
    "answer: text": ("text",),
    "answer: thinking": ("thinking",),
    "answer: calls": ("call",),
    "answer: citations": ("cited",),
    "answer: images": ("image",),
    "answer: sound": ("audio",),
    "answer: the provider's own tools": ("search", "code"),
}


def answered(api: Api, kinds: Sequence[str]) -> str:
    """Is a part of this kind read, where the API has one?"""
    wire, own = api.wire, [kind for kind in kinds if kind in api.wire.rows]
    if not own:
        return NONE
    turn = _turn_of(wire, *own)
    return YES if heard(answer(wire.adapter, wire.body(turn, Manner()))) == wire.told(turn) else DROPPED


def goes_back(api: Api, kinds: Sequence[str]) -> str:
    """Does a part of this kind go back in the next request?"""
    wire, own = api.wire, [kind for kind in kinds if kind in api.wire.rows]
    if not own:
        return NONE

    def next_request(*kinds: str) -> ModelRequest:
        said = answer(wire.adapter, wire.body(_turn_of(wire, *kinds), Manner())).message
        return _plain(messages=(ASKED, said, UserMessage.of("And?")))

    full = next_request(*own, "text")
    # A line of text in place of a picture is not the picture.
    marks = tuple(part.data_base64 for part in full.messages[1].parts if isinstance(part, Media))  # type: ignore[union-attr]
    found = compared(api.adapter, api.model, Asked(next_request("text"), full, marks))
    return LEFT_OUT if found == DROPPED else found


def _turn_of(wire: Wire, *kinds: str) -> Turn:
    parts = [Part(kind, ("{}",) if kind == "call" else ("some text",), "flag") for kind in kinds]
    return Turn(
        tuple(dataclasses.replace(part, number=number) for number, part in enumerate(wire.sayable(parts))), None
    )


BACK: Mapping[str, tuple[str, ...]] = {
    "goes back: thinking": ("thinking",),
    "goes back: the provider's own tools": ("search", "code"),
    "goes back: images": ("image",),
}


def features_table() -> str:
    """Features by API."""
    rows = {
        **{name: [cell(api.adapter, api.model, name) for api in APIS.values()] for name in REQUESTS},
        **{name: [answered(api, kinds) for api in APIS.values()] for name, kinds in ANSWERS.items()},
        **{name: [goes_back(api, kinds) for api in APIS.values()] for name, kinds in BACK.items()},
    }
    everywhere = [name for name, cells in rows.items() if {*cells} == {YES}]
    told = f"All five: {', '.join(everywhere)}.\n\n"
    return told + _table(["", *APIS], ([name, *rows[name]] for name in rows if name not in everywhere))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# Chat Completions, server by server.

#: The columns of requests that are told as any feature is.
_OF_SERVERS = (
    "image: bytes",
    "image: URL",
    "PDF: bytes",
    "PDF: URL",
    "audio: bytes (WAV)",
    "audio: URL",
    "video: URL",
    "a result with an image",
    "`strict` tools",
    "`parallel_tool_calls`",
    "structured output",
    "web search",
    "web fetch",
    "code execution",
    "seed",
    "reasoning effort",
    "log probabilities",
    "service tier",
)


def _bodies(adapter: Adapter, *messages: Any) -> list[dict[str, Any]]:
    body = adapter.encode(ModelRequest("model", messages, (FLAG,))).body
    sent: list[dict[str, Any]] = json.loads(body)["messages"]
    return sent


def note_role(adapter: Adapter) -> str:
    """As whose words a note of ours in the middle of a conversation is sent (quirk 75)."""
    sent = _bodies(adapter, SystemMessage("Be brief."), ASKED, SystemMessage("a note"))
    [role] = [message["role"] for message in sent if "a note" in json.dumps(message)]
    return str(role)


def bridged(adapter: Adapter) -> str:
    """What is between tool results and a user's message (quirk 74)."""
    result = ToolMessage(CALL.call_id, CALL.name, "done")
    sent = _bodies(adapter, ASKED, AssistantMessage((CALL,)), result, UserMessage.of("And?"))
    roles = [message["role"] for message in sent]
    return "a bridge" if roles[-2:] == ["assistant", "user"] else NONE


def servers_table() -> str:
    """Features of servers that speak Chat Completions: what is so at most of them, and which are otherwise."""
    adapters = {
        name: adapter_for(name, base_url="http://localhost:1/v1") for name in (*SERVERS, "openrouter", "copilot")
    }
    found = {
        **{feature: {name: cell(each, "model", feature) for name, each in adapters.items()} for feature in _OF_SERVERS},
        "a note in the middle": {name: note_role(each) for name, each in adapters.items()},
        "a user's message after results": {name: bridged(each) for name, each in adapters.items()},
    }
    return _table(["", "most", "others"], ([feature, *_most_and_others(cells)] for feature, cells in found.items()))


def _most_and_others(cells: Mapping[str, str]) -> tuple[str, str]:
    most, *others = (value for value, _ in Counter(cells.values()).most_common())
    told = (f"{value}: {', '.join(f'`{name}`' for name in cells if cells[name] == value)}" for value in others)
    return most, "; ".join(told) or "none"


_BLOCK = re.compile(r"(<!-- written: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_TABLES: Mapping[str, Callable[[], str]] = {"features": features_table, "servers": servers_table}


def render(page: str) -> str:
    """The page with its tables as they are now."""
    return _BLOCK.sub(lambda block: block[1] + _TABLES[block[2]]() + block[3], page)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(render(path.read_text(encoding="utf-8")), encoding="utf-8")
