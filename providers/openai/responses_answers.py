"""OpenAI Responses: answers. Facts: docs/wire.md 1.2, quirks 12-16, 56, 63 and 73.

An answer says everything up to four times: in deltas, in a `.done` event, in the finished item, in the final response.
What is finished completes what its deltas said, and never adds it again. Which item and which text an event is about:
servers give an index, an id, both, or neither, and some change the id (GitHub Copilot) or the index (vLLM, LiteLLM)
from event to event. `StreamedItems` and `StreamedItem.text_for` find it by what fits.

Where the finished items say otherwise than what was emitted (another text, another order), they win: at the end of the
answer there is one Restarted, and then the whole turn as they have it. So nothing is held back while it streams, and
all who read the events know already what to do about it. Calls are run only after the end, so none was run in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from itertools import chain
from typing import ClassVar, Final

from callboard.protocol import content, model
from callboard.protocol.content import Citation, Replay
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import FinishReason, StreamEvent, TextDelta, ThinkingDelta, TokenLogprob
from callboard.providers.base_decoder import MAX_LOGPROBS, AnswerHead, BaseDecoder
from callboard.providers.http_errors import make_error
from callboard.providers.json_values import (
    Json,
    JsonObject,
    as_text,
    count_at,
    fields_at,
    likely_token,
    object_at,
    object_of,
    objects_at,
    said_at,
    span_at,
    text_at,
    text_of,
    usage_of,
    whole_counts,
)
from callboard.providers.openai.responses_items import found_tools, shown_text, tool_name
from callboard.providers.openai.responses_tracking import (
    REASONING,
    SUMMARY,
    TEXT,
    TEXT_EVENTS,
    Prose,
    StreamedItem,
    StreamedItems,
    StreamedText,
    TextEvent,
    call_of,
    in_order,
    paired_texts,
    whole_texts,
)
from callboard.providers.response_builder import REPEATED_ID

_INCOMPLETE: Final = {"max_output_tokens": FinishReason.LENGTH, "content_filter": FinishReason.CONTENT_FILTER}
#: Of a response that is worked on in the background.
PENDING: Final = frozenset({"queued", "in_progress"})
#: OpenRouter says "complete" (docs/wire.md 1.2); a response that is only begun says so in its last event where the
#: server has forgotten to change it. By any other word the answer is not known to be whole (quirk 69).
_WHOLE: Final = PENDING | {"completed", "complete", ""}
#: A call's own fields that must go back with it: a tool of a namespace, a call that a program of the server's makes.
_CALL_REPLAY: Final = ("namespace", "caller", "async")
#: Behind a message that says what it is (`phase`: commentary, or the answer): as one text they must not be glued.
_BREAK: Final = "\n\n"
#: By what an event says of itself, of any type.
_DELTAS: Final[Mapping[Json, TextEvent]] = {kind: told for kind, told in TEXT_EVENTS.items() if not told.whole}
_Out = list[StreamEvent]


class ResponsesDecoder(BaseDecoder):
    """Events of the Responses API. `origin` marks what must go back to where it came from."""

    def __init__(self, head: AnswerHead, origin: str) -> None:
        super().__init__(head)
        self._origin = origin
        self._owners: dict[str, int] = {}
        """Which item has a call_id: each item is a call of its own, even where a server repeats one."""
        self._held_logprobs = 0
        self._contradicted = False
        """The finished items say otherwise than what was emitted."""
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._items = StreamedItems()
        self._spoken = 0
        """Messages that have a text."""
        self._last_glued = 0
        """The last of them that begins without a break."""
        self._phased = False
        """Has one of them said what it is?"""
        self._owners.clear()
        self._blocks = 0
        self._begun_items = 0
        self._emitting: StreamedItem | None = None
        """The item that was emitted last."""
        self._writing: StreamedText | None = None
        """The text that was emitted last, if nothing else was since."""
        self._place: tuple[object, ...] | None = None
        """Where the deltas say that it is."""
        self._item_id: Json = None
        """Of which item, by the delta that began there."""
        self._refused = False
        self._searches = 0

    def on_json(self, event: str, document: JsonObject, out: _Out) -> None:
        # Nearly all events are deltas, so these come first: a call for each of their fields would cost a tenth.
        if (told := _DELTAS.get(document.get("type"))) is not None:
            self._text_delta(document, told, out)
            return
        # Some servers leave the event line out, none the type.
        kind = text_at(document, "type") or event
        self._place = None
        if (handler := self._EVENTS.get(kind)) is not None:
            handler(self, document, out)
        elif (told := TEXT_EVENTS.get(kind)) is not None:
            (self._text_done if told.whole else self._text_delta)(document, told, out)
        elif not kind.startswith("response."):
            self.fail_if_error(document, out)

    def on_body(self, document: Json, out: _Out) -> None:
        document = object_of(document)
        status = text_at(document, "status") or "completed"
        if status in PENDING:
            self.response_id = text_at(document, "id") or self.response_id
            why = f"The response is still {status}: it was asked for in background mode."
            self.fail(out, make_error(ErrorKind.OTHER, why, code=status))
            return
        if "output" not in document and status not in self._FAILURES:
            raise KeyError("output")
        self._created({"response": document}, out)
        self._response_ended({"response": document}, out)

    def on_end(self, out: _Out, marked: bool) -> None:
        self.fail_truncated(out)

    # Texts.

    def _text_delta(self, document: JsonObject, told: TextEvent, out: _Out) -> None:
        get = document.get
        delta = get("delta")
        if not isinstance(delta, str):
            delta = as_text(delta)
        if not delta:
            return
        place, item_id = (told, get("output_index"), get(told.place)), get("item_id")
        text = self._writing
        if text is None or place != self._place or (item_id != self._item_id and self._may_be_another(*place, item_id)):
            text = self._text_of(document, told)
            self._place, self._item_id = place, item_id
            self._refused = self._refused or told.refusal
            if text.lead and not text.written.tell():
                out.append(self._lead(text))
        if logprobs := get("logprobs"):
            text.logprobs += self._bounded(_logprobs(logprobs))
        text.written.write(delta)
        out.append(told.kind(delta, text.block))

    def _may_be_another(self, told: TextEvent, index: Json, place: Json, item_id: Json) -> bool:
        """Is an id that changes from one delta to the next that of another item?"""
        return index is None or self._items.knows(item_id)

    def _text_of(self, document: JsonObject, told: TextEvent) -> StreamedText:
        """The text that a delta is a piece of; it is about to be emitted."""
        item, place = self._item_of(document, told.item), _index(document, told.place)
        text = item.text_for(told, place) or self._new_text(item, told.slot, place)
        self._emits(item, text)
        return text

    def _new_text(self, item: StreamedItem, slot: str, place: int | None) -> StreamedText:
        item.begins_text = False
        text = StreamedText(slot, place, self._next_block())
        if slot == TEXT and not item.texts:
            self._spoken += 1
            item.spoke = self._spoken
            text.lead = _BREAK if self._phased else ""
            self._phased = self._phased or bool(item.phase)
            self._last_glued = self._last_glued if text.lead else self._spoken
        item.texts.append(text)
        return text

    def _note_phase(self, item: StreamedItem, phase: str) -> None:
        """A message says what it is; where one behind it has begun by then, they have been glued."""
        item.phase = phase or item.phase
        if item.spoke and item.phase:
            self._phased = True
            self._contradicted = self._contradicted or self._last_glued > item.spoke

    def _lead(self, text: StreamedText) -> TextDelta:
        return TextDelta(text.lead, text.block, Replay(self._origin, {"lead": text.lead}))

    def _next_block(self) -> int:
        self._blocks += 1
        return self._blocks - 1

    def _emits(self, item: StreamedItem, text: StreamedText | None) -> None:
        """Note what is emitted now. A text or an item that others have followed already is torn apart by that."""
        resumed = text is not None and text is not self._writing and text.written.tell() > 0
        if resumed or (item is not self._emitting and item.began is not None):
            self._contradicted = True
        self._writing, self._emitting = text, item
        if item.began is None:
            item.began = self._begun_items
            self._begun_items += 1

    def _text_done(self, document: JsonObject, told: TextEvent, out: _Out) -> None:
        self._place = None
        self._refused = self._refused or told.refusal
        whole = said_at(document, told.whole)
        item, place = self._item_of(document, told.item), _index(document, told.place)
        text = item.finished_text_for(told, place, whole)
        if text is None and whole:
            text = self._new_text(item, told.slot, place)
        if text is not None:
            text.closed = True
            text.logprobs = text.logprobs or self._bounded(_logprobs(document.get("logprobs")))
            self._complete(item, text, told.kind, whole, out)

    def _complete(self, item: StreamedItem, text: StreamedText, kind: Prose, whole: str, out: _Out) -> None:
        """Emit what `whole` has more than its deltas."""
        if whole.startswith(text.written.getvalue()):
            if rest := whole[text.written.tell() :]:
                self._emits(item, text)
                if text.lead and not text.written.tell():
                    out.append(self._lead(text))
                text.written.write(rest)
                out.append(kind(rest, text.block))
        elif whole:
            self._contradicted = True
            text.written = _begun(whole)

    def _bounded(self, tokens: list[TokenLogprob]) -> list[TokenLogprob]:
        self._held_logprobs += len(tokens)
        if self._held_logprobs > MAX_LOGPROBS:
            raise ValueError(f"log probabilities of more than {MAX_LOGPROBS} tokens")
        return tokens

    def _note_logprobs(self, text: StreamedText, finished: list[TokenLogprob]) -> None:
        if not text.noted and (tokens := finished or text.logprobs):
            text.noted = True
            self.note_logprobs(tokens)

    def _part_added(self, document: JsonObject, out: _Out) -> None:
        index, item_id = _index(document, "output_index"), _said(document, "item_id")
        item = self._items.about("message", index, item_id) or self._items.about("reasoning", index, item_id)
        if item is not None:
            item.begins_text = True

    def _annotation_added(self, document: JsonObject, out: _Out) -> None:
        item = self._item_of(document, "message")
        text = item.text_for(TEXT_EVENTS["response.output_text.delta"], _index(document, "content_index"))
        if text is not None and (annotation := object_at(document, "annotation")):
            self._cite([annotation], text, out)

    def _cite(self, annotations: Sequence[JsonObject], text: StreamedText, out: _Out) -> None:
        text.citations += annotations
        found = map(_citation, annotations)
        self.cite(out, (each.moved_by(len(text.lead)) for each in found) if text.lead else found, text.block)

    # Items.

    def _item_of(self, document: JsonObject, kind: str) -> StreamedItem:
        index, item_id = document.get("output_index"), document.get("item_id")
        item = self._items.take(
            kind, index if isinstance(index, int) else None, item_id if isinstance(item_id, str) else ""
        )
        if not item.held:
            item.held = True
            self.hold()
        return item

    def _item_added(self, document: JsonObject, out: _Out) -> None:
        item = object_of(document.get("item"))
        kind = text_of(item["type"])
        self.calls.settle(out)
        state = self._items.announced(kind, _index(document, "output_index"), text_at(item, "id"))
        state.held = True
        self.hold()
        if kind == "function_call":
            self._name_call(state, item, out)
        else:
            self._note_phase(state, _said(item, "phase"))

    def _item_done(self, document: JsonObject, out: _Out) -> None:
        item = object_of(document.get("item"))
        kind = text_of(item["type"])
        state = self._items.finished(kind, _index(document, "output_index"), item)
        if state is not None:
            self.hold()
            self._finish_item(state, item, out)

    def _finish_item(self, state: StreamedItem, item: JsonObject, out: _Out) -> None:
        self.calls.settle(out)
        is_new, state.final = state.final is None, item
        if (finish := self._ITEM_ENDS.get(state.kind)) is not None:
            finish(self, state, item, out)
        elif is_new:
            self._tool_done(state, item, out)

    def _tool_done(self, state: StreamedItem, item: JsonObject, out: _Out) -> None:
        self._emits(state, None)
        self._searches += state.kind == "web_search_call" and fields_at(item, "action").get("type") == "search"
        replay = Replay(self._origin, item)
        told = (tool_name(item), _said(item, "call_id"), shown_text(item), found_tools(item))
        out.append(model.ServerToolEvent(state.kind, replay, *told))

    def _image_done(self, state: StreamedItem, item: JsonObject, out: _Out) -> None:
        if state.began is not None:
            return
        if not (data := text_at(item, "result")):
            self._tool_done(state, item, out)
            return
        self._emits(state, None)
        # The bytes are kept once: they are put back when the item is sent.
        replay = Replay(self._origin, {key: value for key, value in item.items() if key != "result"})
        media_type = f"image/{text_at(item, 'output_format') or 'png'}"
        image = content.Image(media_type, data, name=text_at(item, "id"), replay=replay)
        self.show(out, image, self._next_block())

    def _message_done(self, state: StreamedItem, item: JsonObject, out: _Out) -> None:
        parts = objects_at(item, "content")
        self._note_phase(state, _said(item, "phase"))
        self._refused = self._refused or any(part.get("type") == "refusal" for part in parts)
        # An item that comes without its citations says nothing about them; likewise `_finish_texts`.
        cites = any(part.get("annotations") for part in parts)
        texts = self._finish_texts(state, TEXT, whole_texts(item, TEXT), out)
        for part, text in zip(parts, texts, strict=True):
            if text is not None:
                if cites:
                    self._finish_citations(_objects_in(part.get("annotations")), text, out)
                self._note_logprobs(text, _logprobs(part.get("logprobs")))
        if (phase := item.get("phase")) and state.texts:
            # Later requests must carry it (openai SDK: "dropping it can degrade performance").
            lead = state.texts[-1].lead
            kept = {"phase": phase, **({"lead": lead} if lead else {})}
            self._keep(state, TextDelta, Replay(self._origin, kept), out)

    def _finish_citations(self, annotations: list[JsonObject], text: StreamedText, out: _Out) -> None:
        told = len(text.citations)
        if annotations[:told] == text.citations:
            self._cite(annotations[told:], text, out)
        else:
            self._contradicted = True

    def _reasoning_done(self, state: StreamedItem, item: JsonObject, out: _Out) -> None:
        texts: list[StreamedText | None] = []
        for slot in (SUMMARY, REASONING):
            texts += self._finish_texts(state, slot, whole_texts(item, slot), out)
        self._contradicted = self._contradicted or not in_order(texts)
        kept = {key: value for key, value in item.items() if key != "status" and value is not None}
        self._keep(state, ThinkingDelta, Replay(self._origin, kept), out)

    def _keep(self, state: StreamedItem, kind: Prose, replay: Replay, out: _Out) -> None:
        """Emit what must go back with the item's last text, or with a text of its own where it has none."""
        if not state.texts:
            self._emits(state, self._new_text(state, SUMMARY, None))
        text = state.texts[-1]
        out.append(kind("", text.block, replay) if text is self._writing else model.ReplayDelta(replay, text.block))

    def _finish_texts(self, state: StreamedItem, slot: str, wholes: list[str], out: _Out) -> list[StreamedText | None]:
        """Complete the texts of one slot. Returns the text that each of `wholes` is; None where it is empty."""
        kind: Prose = TextDelta if slot == TEXT else ThinkingDelta
        mine = [text for text in state.texts if text.slot == slot]
        if not state.has_whole_texts():
            # An item that comes without its texts says nothing about them.
            return [None] * len(wholes)
        found = paired_texts(mine, wholes)
        for place, whole in enumerate(wholes):
            text = found[place]
            if text is None and whole:
                text = found[place] = self._new_text(state, slot, place)
            if text is not None:
                self._complete(state, text, kind, whole, out)
        self._contradicted = self._contradicted or not set(mine) <= set(found) or not in_order(found)
        return found

    # Calls.

    def _name_call(self, state: StreamedItem, item: JsonObject, out: _Out) -> None:
        # The arguments in here come again, by deltas or by the item's end.
        call_id, name = call_of(item)
        own = {key: item[key] for key in _CALL_REPLAY if item.get(key)}
        replay = Replay(self._origin, own) if own else None
        if not state.call[1]:
            self._emits(state, None)
            state.call, state.call_replay = (call_id, name), replay
        elif name and ((call_id, name) != state.call or replay != state.call_replay):
            self._contradicted = True
        call_id = call_id or text_at(item, "id")
        owned = self._owners.setdefault(call_id, state.number) == state.number
        if not owned and call_id:
            self.calls.notes = (REPEATED_ID,)
        self.calls.delta(out, index=state.number, id=call_id if owned else "", name=name, replay=replay)

    def _call_done(self, state: StreamedItem, item: JsonObject, out: _Out) -> None:
        self._name_call(state, item, out)
        self._finish_arguments(state, as_text(item.get("arguments")), out)
        if item.get("status") != "incomplete":
            self.calls.complete(out, index=state.number)

    def _arguments_delta(self, document: JsonObject, out: _Out) -> None:
        state = self._item_of(document, "function_call")
        self.calls.delta(out, index=state.number, arguments=document.get("delta"))

    def _arguments_done(self, document: JsonObject, out: _Out) -> None:
        state = self._item_of(document, "function_call")
        self._finish_arguments(state, as_text(document.get("arguments")), out)

    def _finish_arguments(self, state: StreamedItem, whole: str, out: _Out) -> None:
        told = self.calls.arguments_at(state.number)
        if whole.startswith(told):
            if rest := whole[len(told) :]:
                self.calls.delta(out, index=state.number, arguments=rest)
        elif whole:
            self._contradicted = True
            state.arguments = whole

    # Ends.

    def _created(self, document: JsonObject, out: _Out) -> None:
        response = object_at(document, "response")
        self.response_id = text_at(response, "id") or self.response_id
        self.calls.seed = self.response_id
        self.service_tier = text_at(response, "service_tier") or self.service_tier

    def _response_ended(self, document: JsonObject, out: _Out) -> None:
        """The last event. What it says of the answer counts more than what it is called."""
        response = object_of(document["response"])
        if response.get("error"):
            self.fail_payload({"error": response["error"]}, out)
            return
        status, event = text_at(response, "status"), text_at(document, "type").removeprefix("response.")
        if fail := self._FAILURES.get(status) or self._FAILURES.get(event):
            fail(self, document, out)
        else:
            self._conclude(response, status, status == "incomplete" or event == "incomplete", out)

    def _conclude(self, response: JsonObject, status: str, cut: bool, out: _Out) -> None:
        self._created({"response": response}, out)
        self._note_rest(self._catch_up(response, out), out)
        if cut or status not in _WHOLE:
            raw_reason = text_at(object_at(response, "incomplete_details"), "reason") or status or "incomplete"
            reason = _INCOMPLETE.get(raw_reason, FinishReason.OTHER)
        else:
            raw_reason, reason = "complete" if status == "complete" else "completed", self._whole(out)
        usage = fields_at(response, "usage")
        counts = _usage(usage, self._searches)
        self.end(out, model.Done(reason, raw_reason, counts, usage, text_at(response, "model")))

    def _note_rest(self, items: list[StreamedItem], out: _Out) -> None:
        """What can be said only when all items are known."""
        if self._contradicted:
            self._tell_again(items, out)
        for item in self._items.all:
            for text in item.texts:
                self._note_logprobs(text, [])

    def _whole(self, out: _Out) -> FinishReason:
        """Why a whole turn ended. Calls whose items were not finished are, by its end."""
        for item in self._items.all:
            if item.kind == "function_call" and item.final is None:
                self.calls.complete(out, index=item.number)
        self.calls.settle(out)
        if self.calls.count:
            return FinishReason.TOOL_CALLS
        return FinishReason.REFUSAL if self._refused else FinishReason.STOP

    def _failed(self, document: JsonObject, out: _Out) -> None:
        self.fail(out, make_error(ErrorKind.SERVER, "The response failed, and the server did not say why."))

    def _cancelled(self, document: JsonObject, out: _Out) -> None:
        self.fail(out, make_error(ErrorKind.CANCELLED, "The response was cancelled at the server."))

    def _catch_up(self, response: JsonObject, out: _Out) -> list[StreamedItem]:
        """Complete the items of the final response, and see whether they began in the order in which it has them."""
        documents = objects_at(response, "output")
        items: list[StreamedItem] = []
        last = -1
        for document, state in zip(documents, self._items.matching(documents), strict=True):
            state = state or self._items.open(text_of(document["type"]))
            if state.final != document:
                self._finish_item(state, document, out)
            if state.began is not None:
                self._contradicted = self._contradicted or state.began < last
                last = state.began
            items.append(state)
        self._contradicted = self._contradicted or _is_selective(items)
        if items:
            # What was never finished and is not in the final response was part of another item, misnumbered.
            unknown = [item for item in self._items.all if item.final is None]
            self._contradicted = self._contradicted or any(item.began is not None for item in unknown)
            self._items.all = [item for item in self._items.all if item.final is not None]
        return items

    def _tell_again(self, items: list[StreamedItem], out: _Out) -> None:
        """Void the turn, and emit it as its finished items have it. An item that the final response does not have
        stays behind the one that it came behind."""
        behind: dict[StreamedItem | None, list[StreamedItem]] = {None: [], **{item: [] for item in items}}
        anchor: StreamedItem | None = None
        for item in self._items.all:
            if item in behind:
                anchor = item
            else:
                behind[anchor].append(item)
        for item in self._items.all:
            if item.kind == "function_call" and item.arguments is None:
                item.arguments = self.calls.arguments_at(item.number)
        out.append(model.Restarted("the finished answer differs from what was streamed"))
        self._begin_turn()
        self._contradicted = False
        self.calls.restart()
        self.logprobs.clear()
        for item in chain(behind[None], *([item, *behind[item]] for item in items)):
            self._tell_item(item, out)

    def _tell_item(self, old: StreamedItem, out: _Out) -> None:
        state = self._items.open(old.kind, old.index)
        if old.final is not None:
            self._finish_item(state, old.final, out)
            return
        state.phase = old.phase
        kind: Prose = TextDelta if old.kind == "message" else ThinkingDelta
        for text in old.texts:
            again = self._new_text(state, text.slot, text.place)
            again.logprobs = text.logprobs
            self._complete(state, again, kind, text.written.getvalue(), out)
            self._cite(text.citations, again, out)
        if old.kind == "function_call":
            call_id, name = old.call
            self._name_call(state, {"call_id": call_id, "name": name}, out)
            self._finish_arguments(state, old.arguments or "", out)

    _FAILURES: ClassVar[Mapping[str, Callable[[ResponsesDecoder, JsonObject, _Out], None]]] = {
        "failed": _failed,
        "cancelled": _cancelled,
    }
    _EVENTS: ClassVar[Mapping[str, Callable[[ResponsesDecoder, JsonObject, _Out], None]]] = {
        "response.created": _created,
        "response.in_progress": _created,
        "response.queued": _created,
        "response.output_item.added": _item_added,
        "response.output_item.done": _item_done,
        "response.content_part.added": _part_added,
        "response.reasoning_part.added": _part_added,
        "response.reasoning_summary_part.added": _part_added,
        "response.output_text.annotation.added": _annotation_added,
        "response.function_call_arguments.delta": _arguments_delta,
        "response.function_call_arguments.done": _arguments_done,
        "error": BaseDecoder.fail_payload,
        "response.error": BaseDecoder.fail_payload,
        "response.completed": _response_ended,
        "response.incomplete": _response_ended,
        "response.failed": _response_ended,
        "response.cancelled": _response_ended,
        "response.done": _response_ended,
    }
    _ITEM_ENDS: ClassVar[Mapping[str, Callable[[ResponsesDecoder, StreamedItem, JsonObject, _Out], None]]] = {
        "message": _message_done,
        "reasoning": _reasoning_done,
        "function_call": _call_done,
        "image_generation_call": _image_done,
    }


class FollowedResponse(ResponsesDecoder):
    """A response that several HTTP answers tell, one after the other: each continues where the last one broke off."""

    def __init__(self, head: AnswerHead, origin: str) -> None:
        super().__init__(head, origin)
        self.sequence = -1
        """The number of the last event."""
        self.concluded = False
        """The response itself has ended, well or badly."""

    def on_json(self, event: str, document: JsonObject, out: _Out) -> None:
        number = document.get("sequence_number")
        if isinstance(number, int):
            if number <= self.sequence:
                return
            self.sequence = number
        super().on_json(event, document, out)
        self.concluded = self.ended

    def on_body(self, document: Json, out: _Out) -> None:
        super().on_body(document, out)
        self.concluded = object_of(document).get("status") not in PENDING

    def fail_payload(self, payload: Json, out: _Out) -> None:
        super().fail_payload(payload, out)
        self.concluded = True


def _is_selective(items: Sequence[StreamedItem]) -> bool:
    """Does the final response tell the texts of some items, and leave out those of others that were streamed?"""
    told = {item for item in items if item.has_whole_texts()}
    kinds = {item.kind for item in told}
    return any(item.kind in kinds and item not in told and item.has_written() for item in items)


def _index(document: JsonObject, key: str) -> int | None:
    """The place that `key` names; None where it names none."""
    index = document.get(key)
    return index if isinstance(index, int) else None


def _begun(text: str) -> StringIO:
    buffer = StringIO()
    buffer.write(text)
    return buffer


def _objects_in(value: Json) -> list[JsonObject]:
    """The objects in a list; none in anything else. For what an answer is not lost over."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _logprobs(value: Json) -> list[TokenLogprob]:
    """The log probabilities of a text's tokens, as far as they can be read."""
    return [
        TokenLogprob(token, logprob, tuple(filter(None, map(likely_token, _objects_in(raw.get("top_logprobs"))))))
        for raw in _objects_in(value)
        for token, logprob in filter(None, [likely_token(raw)])
    ]


def _citation(raw: JsonObject) -> Citation:
    """An annotation. `index` is the place of the file among those that were found or given, not of a character."""
    start, end = span_at(raw, "start_index", "end_index")
    return Citation(
        url=_said(raw, "url"),
        title=_said(raw, "title") or _said(raw, "filename"),
        start=start,
        end=end,
        document=count_at(raw, "index"),
        file_id=_said(raw, "file_id"),
        raw=raw,
    )


def _said(raw: JsonObject, key: str) -> str:
    value = raw.get(key)
    return value if isinstance(value, str) else ""


def _usage(raw: JsonObject, searches: int) -> model.Usage | None:
    """Input includes the cached tokens already, output the reasoning; where a server counts them beside, they are added
    (`whole_counts`)."""
    read, written = fields_at(raw, "input_tokens_details"), fields_at(raw, "output_tokens_details")
    asked, answered = count_at(raw, "input_tokens"), count_at(raw, "output_tokens")
    cached, cache_write = count_at(read, "cached_tokens") or 0, count_at(read, "cache_write_tokens") or 0
    reasoned = count_at(written, "reasoning_tokens") or 0
    if asked is None and answered is None:
        return None
    asked, answered = whole_counts(
        asked or 0, answered or 0, cached, cache_write, reasoned, count_at(raw, "total_tokens")
    )
    return usage_of(
        input_tokens=asked,
        output_tokens=answered,
        cached_tokens=cached,
        cache_write_tokens=cache_write,
        reasoning_tokens=reasoned,
        web_searches=searches or None,
    )
