"""What an editor is shown of a request: items of a stream and recorded messages as updates of the Agent Client Protocol
(agentclientprotocol.com, "Prompt turn", "Tool calls", "Agent plan")."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

import orjson
from acp import helpers, schema

from callboard import Audio, Document, Image, RunTool, TextDelta, ToolCallCompleted, ToolCallFailed, ToolProgressed
from callboard.actors.calls.approvals import about_call
from callboard.actors.cli.columns import counted
from callboard.actors.requests.asking import Prompt
from callboard.protocol.commands import AskApproval, Note, ReportFailure
from callboard.protocol.content import AssistantMessage, Message, Text, Thinking, ToolCall, ToolMessage, UserMessage
from callboard.protocol.events import ToolCallCancelled, ToolCallTimedOut
from callboard.protocol.ids import Tag
from callboard.protocol.masking import for_log
from callboard.protocol.model import Restarted, ThinkingDelta
from callboard.protocol.readers import one_line_for_decision
from callboard.protocol.tools import Risk

Update = helpers.SessionUpdate
#: Of a result, for the editor; the model reads all of it.
SHOWN_RESULT_CHARS: Final = 20_000
_KINDS: Final[Mapping[Risk, schema.ToolKind]] = {
    Risk.READ: "read",
    Risk.NETWORK: "fetch",
    Risk.WRITE: "edit",
    Risk.EXECUTE: "execute",
}
_STATES: Final[Mapping[str, schema.PlanEntryStatus]] = {state: state for state in get_args(schema.PlanEntryStatus)}
#: Arguments of the built-in tools, and of most others, that name a file.
_PATHS: Final = ("path", "file", "file_path")


#: Why a call has no result, where its event says no more.
_ENDINGS: Final[Mapping[type, str]] = {ToolCallTimedOut: "ended at its deadline", ToolCallCancelled: "cancelled"}


class SessionUpdates:
    """Of one session. `risk_of` tells what a tool may do."""

    def __init__(self, folder: Path, risk_of: Callable[[str], Risk | None]) -> None:
        self._folder = folder
        self._risk_of = risk_of
        self._shown: set[str] = set()
        """Calls of this request that the editor knows."""

    def begin(self) -> None:
        """A request begins."""
        self._shown.clear()

    def of_item(self, item: object) -> Iterator[Update]:
        """What one item of a stream is for the editor; nothing for most kinds."""
        match item:
            case TextDelta() if item.text:
                yield helpers.update_agent_message_text(item.text)
            case ThinkingDelta() if item.text:
                yield helpers.update_agent_thought_text(item.text)
            case Note():
                yield helpers.update_agent_thought_text(f"{item.text}\n")
            case Restarted():
                yield helpers.update_agent_thought_text(f"the answer begins again ({item.reason})\n")
            case AskApproval():
                yield from self.call(item.tag, item.name, item.arguments)
            case RunTool():
                yield from self.call(item.tag, item.name, item.arguments)
                yield helpers.update_tool_call(call_name(item.tag), status="in_progress")
                if item.name == "todo" and (plan := _plan(item.arguments)) is not None:
                    yield plan
            case ToolProgressed():
                yield _told(item.tag, "in_progress", item.message)
            case ToolCallCompleted():
                yield _told(item.tag, "completed", item.content)
            case ToolCallFailed() | ReportFailure():
                yield from self.call(item.tag, item.failure.tool, "{}")
                yield _told(item.tag, "failed", f"{item.failure.code}: {item.failure.message}")
            case ToolCallTimedOut() | ToolCallCancelled():
                yield _told(item.tag, "failed", _ENDINGS[type(item)])

    def call(self, tag: Tag, name: str, arguments: str) -> Iterator[Update]:
        """The call, where the editor does not know it yet."""
        if call_name(tag) in self._shown:
            return
        self._shown.add(call_name(tag))
        yield helpers.start_tool_call(
            call_name(tag),
            name,
            kind=_KINDS.get(self._risk_of(name) or Risk.UNDECLARED, "other"),
            status="pending",
            locations=self._locations(arguments),
            raw_input=_object(arguments),
        )

    def question(self, question: AskApproval) -> schema.ToolCallUpdate:
        """What a person decides on."""
        return schema.ToolCallUpdate(
            tool_call_id=call_name(question.tag),
            title=one_line_for_decision(question.name),
            kind=_KINDS.get(question.risk, "other"),
            status="pending",
            content=[
                helpers.tool_content(helpers.text_block(about_call(question))),
                *diff_blocks(question.preview, self._folder),
            ],
            locations=self._locations(question.arguments),
            raw_input=_object(question.arguments),
        )

    def of_message(self, message: Message) -> Iterator[Update]:
        """A recorded message, when a session is loaded."""
        match message:
            case UserMessage():
                texts = [part.text for part in message.parts if isinstance(part, Text) and part.text]
                yield from map(helpers.update_user_message_text, texts)
            case AssistantMessage():
                for part in message.parts:
                    yield from self._part(part)
            case ToolMessage():
                status: schema.ToolCallStatus = "failed" if message.is_error else "completed"
                yield helpers.update_tool_call(str(message.call_id), status=status, content=_content(message.content))

    def _part(self, part: object) -> Iterator[Update]:
        match part:
            case Text() if part.text:
                yield helpers.update_agent_message_text(part.text)
            case Thinking() if part.text:
                yield helpers.update_agent_thought_text(part.text)
            case ToolCall():
                yield helpers.start_tool_call(
                    str(part.call_id),
                    part.name,
                    kind=_KINDS.get(self._risk_of(part.name) or Risk.UNDECLARED, "other"),
                    locations=self._locations(part.arguments),
                    raw_input=_object(part.arguments),
                )

    def _locations(self, arguments: str) -> list[schema.ToolCallLocation]:
        found = _object(arguments)
        named = [found[name] for name in _PATHS if isinstance(found.get(name), str)]
        return [schema.ToolCallLocation(path=str(self._folder / str(each))) for each in named if "\0" not in str(each)]


def call_name(tag: Tag) -> str:
    """Of a call, unique in a session: providers use an id again in a later turn."""
    return f"{tag.request_id}/{tag.step}/{tag.call_id}"


def _told(tag: Tag, status: schema.ToolCallStatus, text: str) -> Update:
    return helpers.update_tool_call(call_name(tag), status=status, content=_content(text))


def _content(text: str) -> list[helpers.ToolCallContentVariant]:
    whole = for_log(text)  # masked before it is cut: half of a key does not look like one
    cut = whole[:SHOWN_RESULT_CHARS]
    more = f"\n... {counted(len(whole) - len(cut), 'more character')}" if len(whole) > len(cut) else ""
    return [helpers.tool_content(helpers.text_block(cut + more))] if text else []


def _object(arguments: str) -> dict[str, object]:
    try:
        found = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _plan(arguments: str) -> Update | None:
    """The model's list of what is to be done; None for one that is none: the tool refuses it."""
    items = _object(arguments).get("items")
    if not isinstance(items, list):
        return None
    pairs = [(each.get("text"), each.get("state", "pending")) for each in items if isinstance(each, dict)]
    return helpers.update_plan(
        helpers.plan_entry(str(text), status=_STATES.get(str(state), "pending")) for text, state in pairs
    )


# -- diffs

_HUNK: Final = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@")


def diff_blocks(diff: str, folder: Path) -> Sequence[schema.FileEditToolCallContent]:
    """A unified diff as the protocol has it: for each hunk the old and the new text of just that part of the file."""
    blocks: list[schema.FileEditToolCallContent] = []
    path, old, new, is_new = "", [""][:0], [""][:0], False

    def end_hunk() -> None:
        if old or new:
            text = None if is_new else "\n".join(old)
            blocks.append(helpers.tool_diff_content(str(folder / path), "\n".join(new), text))
        old.clear()
        new.clear()

    in_hunk = False
    for line in diff.split("\n"):
        if line.startswith("diff -") or (not in_hunk and line.startswith("--- ")):
            end_hunk()
            in_hunk, is_new = False, line == "--- /dev/null"
            path = line.removeprefix("--- ").removeprefix("a/") if line.startswith("--- ") and not is_new else path
        elif not in_hunk and line.startswith("+++ "):
            path = path if line == "+++ /dev/null" else line.removeprefix("+++ ").removeprefix("b/")
        elif _HUNK.match(line):
            end_hunk()
            in_hunk = True
        elif in_hunk:
            if line[:1] in (" ", "-"):
                old.append(line[1:])
            if line[:1] in (" ", "+"):
                new.append(line[1:])
    end_hunk()
    return blocks


# -- prompts

Block = (
    schema.TextContentBlock
    | schema.ImageContentBlock
    | schema.AudioContentBlock
    | schema.ResourceContentBlock
    | schema.EmbeddedResourceContentBlock
)


def prompt_of(blocks: Sequence[Block]) -> Prompt:
    """What the person typed and attached, in its order."""
    return [_prompt_part(each) for each in blocks]


def _prompt_part(block: Block) -> str | Image | Audio | Document:
    match block:
        case schema.TextContentBlock():
            return block.text
        case schema.ImageContentBlock():
            return Image(block.mime_type, block.data)
        case schema.AudioContentBlock():
            return Audio(block.mime_type, block.data)
        case schema.ResourceContentBlock():
            return f"[{block.name}]({block.uri})"
    resource = block.resource
    if isinstance(resource, schema.TextResourceContents):
        return about_resource(resource.uri, resource.text)
    media_type = resource.mime_type or "application/octet-stream"
    kind = Image if media_type.startswith("image/") else Document
    return kind(media_type, resource.blob, name=resource.uri.rpartition("/")[2])


def about_resource(uri: str, text: str) -> str:
    """A text with its place, in a fence that the text itself does not end."""
    longest = max(map(len, re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{uri}:\n{fence}\n{text}\n{fence}"
