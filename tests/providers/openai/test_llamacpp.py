"""What a real llama.cpp server sent (test_local_llm.py), kept as examples."""

from __future__ import annotations

from support.wire import answer, sse

from callboard.protocol.model import FinishReason
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.provider_registry import adapter_for


def test_responses_without_output_index() -> None:
    first = {"id": "fc_1", "call_id": "call_1", "name": "flag", "type": "function_call", "status": "in_progress"}
    second = first | {"id": "fc_2", "call_id": "call_2"}
    done = {"status": "completed", "arguments": '{ "on" : true }'}
    kind = "response.function_call_arguments.delta"
    stream = sse(
        [
            {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}},
            {"type": "response.output_item.added", "item": first | {"arguments": ""}},
            {"type": kind, "delta": '{ "on" ', "item_id": "fc_1"},
            {"type": kind, "delta": ": true }", "item_id": "fc_1"},
            {"type": "response.output_item.added", "item": second | {"arguments": ""}},
            {"type": kind, "delta": '{ "on" : true }', "item_id": "fc_2"},
            {"type": "response.output_item.done", "item": first | done},
            {"type": "response.output_item.done", "item": second | done},
            {
                "type": "response.completed",
                "response": {"id": "resp_1", "status": "completed", "output": [first | done, second | done]},
            },
        ],
        named=True,
    )
    response = answer(OpenAIResponses(), stream, (11,))
    assert response.error is None
    assert [(call.call_id, call.name, call.arguments, call.complete) for call in response.tool_calls] == [
        ("call_1", "flag", '{ "on" : true }', True),
        ("call_2", "flag", '{ "on" : true }', True),
    ]


def test_chat_arguments_in_fragments_of_a_token() -> None:
    def delta(**fields: object) -> dict[str, object]:
        return {"id": "chatcmpl-1", "choices": [{"finish_reason": None, "index": 0, "delta": fields}]}

    def call(**function: str) -> dict[str, object]:
        return delta(tool_calls=[{"index": 0, "function": function}])

    start = {"index": 0, "id": "M4t9", "type": "function", "function": {"name": "flag", "arguments": "{"}}
    end = {"choices": [{"finish_reason": "tool_calls", "index": 0, "delta": {}}], "timings": {"cache_n": 13}}
    stream = sse(
        [
            delta(role="assistant", content=None),
            delta(tool_calls=[start]),
            call(arguments=' "on"'),
            call(arguments=":\n\n\t\tfalse"),
            call(arguments="}"),
            end,
        ],
        done=True,
    )
    response = answer(adapter_for("llamacpp"), stream, (3,))
    assert [(c.call_id, c.name, c.arguments) for c in response.tool_calls] == [
        ("M4t9", "flag", '{ "on":\n\n\t\tfalse}')
    ]
    assert response.finish_reason is FinishReason.TOOL_CALLS
