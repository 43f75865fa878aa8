"""Random responses of the Responses API, and the same response told as a stream in each way that servers have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

Document = dict[str, Any]

_texts = st.text(max_size=12)
_spoken = st.text(min_size=1, max_size=12)


@dataclass(frozen=True)
class Manner:
    """How a server tells its events."""

    output_index: str = "right"
    """right, none, zero: the same for all items; late: one more in the deltas than in the item's own events (vLLM)"""
    content_index: str = "right"
    """right, none, on: counted through all items (Bedrock); rolling: counted up with every delta (vLLM)"""
    item_id: str = "stable"
    """stable, none, rotating: another in every event (Copilot)"""
    announced: bool = True
    """Items and parts are announced by `.added`."""
    text_done: bool = True
    item_done: str = "in place"
    """in place, at the end (llama.cpp), none"""
    deltas: bool = True
    final_output: bool = True
    """Does the last event hold the whole output?"""


#: Manners seen on real servers, in which no event leaves any doubt: nothing may be told again.
SEEN = {
    "openai": Manner(),
    "copilot": Manner(item_id="rotating"),
    "copilot, without the output at the end": Manner(item_id="rotating", final_output=False),
    "llama.cpp": Manner(output_index="none", content_index="none", item_done="at the end"),
    "bedrock": Manner(content_index="on"),
    "vllm": Manner(content_index="rolling", output_index="late", text_done=False),
    "lm studio": Manner(deltas=False),
    "codex's backend": Manner(final_output=False),
    "neither index nor id": Manner(output_index="none", content_index="none", item_id="none"),
    "one index for all": Manner(output_index="zero", content_index="right"),
    "deltas and the end": Manner(text_done=False, item_done="none"),
    "nothing announced": Manner(announced=False),
}
manners = st.builds(
    Manner,
    output_index=st.sampled_from(["right", "none", "zero", "late"]),
    content_index=st.sampled_from(["right", "none", "on", "rolling"]),
    item_id=st.sampled_from(["stable", "none", "rotating"]),
    announced=st.booleans(),
    text_done=st.booleans(),
    item_done=st.sampled_from(["in place", "at the end", "none"]),
    deltas=st.booleans(),
)


@st.composite
def _message(draw: st.DrawFn, number: int, parts: int) -> Document:
    content = []
    for _ in range(draw(st.integers(1, parts))):
        if draw(st.integers(0, 9)) == 0:
            content.append({"type": "refusal", "refusal": draw(_spoken)})
            continue
        cited = [
            {"type": "url_citation", "url": f"https://example.org/{n}", "title": "T", "start_index": 0, "end_index": n}
            for n in range(draw(st.integers(0, 2)))
        ]
        content.append({"type": "output_text", "text": draw(_spoken), "annotations": cited, "logprobs": []})
    phase = draw(st.sampled_from([None, "commentary", "final_answer"]))
    return {
        "type": "message",
        "id": f"msg_{number}",
        "role": "assistant",
        "status": "completed",
        "content": content,
        **({"phase": phase} if phase else {}),
    }


@st.composite
def _reasoning(draw: st.DrawFn, number: int, parts: int) -> Document:
    slot, kind = draw(st.sampled_from([("summary", "summary_text"), ("content", "reasoning_text")]))
    told = [{"type": kind, "text": draw(_spoken)} for _ in range(draw(st.integers(0, parts)))]
    item: Document = {"type": "reasoning", "id": f"rs_{number}", "summary": [], "status": "completed"}
    return {**item, slot: told, "encrypted_content": draw(st.sampled_from(["", "ZW5j"]))}


def _says(item: Document) -> bool:
    return bool(item["summary"] or item.get("content"))


@st.composite
def _call(draw: st.DrawFn, number: int, parts: int) -> Document:
    more = draw(st.sampled_from([{}, {"namespace": "crm"}, {"caller": {"type": "program", "caller_id": "p"}}]))
    call: Document = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": "lookup"}
    return {**call, "arguments": draw(st.sampled_from(["{}", '{"city": "Rome"}'])), "status": "completed", **more}


@st.composite
def _tool(draw: st.DrawFn, number: int, parts: int) -> Document:
    action = {"type": draw(st.sampled_from(["search", "open_page"])), "query": draw(_texts)}
    kind = draw(st.sampled_from(["web_search_call", "x_search_call", "image_generation_call"]))
    item: Document = {"type": kind, "id": f"ws_{number}", "status": "completed", "action": action}
    return {**item, "result": "aWcK"} if kind == "image_generation_call" else item


@st.composite
def responses(draw: st.DrawFn, parts: int = 3, *, spoken: bool = False) -> Document:
    """A whole response, whose texts have at most so many parts. `spoken`: each of its items is told in deltas."""
    kinds = draw(st.lists(st.sampled_from([_message, _message, _reasoning, _call, _tool]), max_size=5))
    output = [draw(kind(number, parts)) for number, kind in enumerate(kinds)]
    if spoken:
        output = [item for item in output if "action" not in item and (item["type"] != "reasoning" or _says(item))]
    details = {"cached_tokens": 3}
    usage = {"input_tokens": 20, "input_tokens_details": details, "output_tokens": 9, "total_tokens": 29}
    response: Document = {"id": "resp_1", "object": "response", "model": "gpt", "service_tier": "default"}
    return {**response, "status": "completed", "output": output, "usage": usage}


@dataclass
class _Teller:
    """Tells one response."""

    draw: st.DrawFn
    response: Document
    manner: Manner
    contradicts: bool
    counted: int = 0
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def events(self) -> Iterator[Document]:
        yield {"type": "response.created", "response": {**self.response, "status": "in_progress", "output": []}}
        ends = []
        for index, item in enumerate(self.response["output"]):
            yield from self.item(index, item)
            if self.manner.item_done != "none":
                ends.append({"type": "response.output_item.done", **self.at(index), "item": item})
            if self.manner.item_done == "in place":
                yield ends.pop()
        yield from ends
        output = self.response["output"] if self.manner.final_output else []
        yield {"type": "response.completed", "response": {**self.response, "output": output}}

    def at(self, index: int, of_delta: int = 0) -> Document:
        told = {"right": index, "zero": 0, "late": index + of_delta}
        return {"output_index": told[self.manner.output_index]} if self.manner.output_index in told else {}

    def named(self, item: Document) -> Document:
        named = {"stable": item["id"], "rotating": f"rotated_{next(self.numbers)}"}
        return {"item_id": named[self.manner.item_id]} if self.manner.item_id in named else {}

    def item(self, index: int, item: Document) -> Iterator[Document]:
        if self.manner.announced:
            begun = {**item, "content": [], "summary": [], "arguments": "", "status": "in_progress"}
            begun = {key: value for key, value in begun.items() if key in item and key != "result"}
            yield {"type": "response.output_item.added", **self.at(index), "item": begun}
        if item["type"] == "function_call":
            for piece in self.pieces(item["arguments"]):
                yield {"type": "response.function_call_arguments.delta", **self.place(index, item), "delta": piece}
            return
        for place, part in enumerate(item.get("content", [])):
            yield from self.part(index, item, part, {"content_index": place})
            self.counted += 1
        for place, part in enumerate(item.get("summary", [])):
            yield from self.part(index, item, part, {"summary_index": place})

    def place(self, index: int, item: Document) -> Document:
        return {**self.at(index, 1), **self.named(item)}

    def part(self, index: int, item: Document, part: Document, where: Document) -> Iterator[Document]:
        stem = {"summary_text": "reasoning_summary_text"}.get(part["type"], part["type"])
        whole = "refusal" if stem == "refusal" else "text"
        if self.manner.announced:
            kind = "reasoning_summary_part" if "summary_index" in where else "content_part"
            added = {"type": f"response.{kind}.added", "part": {**part, whole: ""}}
            yield {**added, **self.place(index, item), **self.where(where)}
        for number, piece in enumerate(self.pieces(part[whole])):
            moved = self.where(where, number)
            yield {"type": f"response.{stem}.delta", **self.place(index, item), **moved, "delta": piece, "logprobs": []}
        for cited in part.get("annotations", ()):
            told = {"type": "response.output_text.annotation.added", "annotation": cited}
            yield {**told, **self.place(index, item), **self.where(where)}
        if self.manner.text_done or not self.manner.deltas:
            told = {"type": f"response.{stem}.done", whole: part[whole]}
            yield {**told, **self.place(index, item), **self.where(where)}

    def where(self, where: Document, delta: int = 0) -> Document:
        if "summary_index" in where:
            return {} if self.manner.content_index == "none" else where
        place = where["content_index"]
        told = {"right": place, "on": self.counted, "rolling": place + delta}
        return {"content_index": told[self.manner.content_index]} if self.manner.content_index in told else {}

    def pieces(self, text: str) -> list[str]:
        if not self.manner.deltas:
            return []
        if self.contradicts and self.draw(st.booleans()):
            text = self.draw(_texts)
        marks = sorted(self.draw(st.lists(st.integers(0, len(text)), max_size=3)))
        return [text[a:b] for a, b in zip([0, *marks], [*marks, len(text)], strict=True)]


def told(draw: st.DrawFn, response: Document, manner: Manner, *, contradicts: bool = False) -> list[Document]:
    """The events of a stream that tells `response`; with `contradicts` some deltas say something else."""
    return list(_Teller(draw, response, manner, contradicts).events())
