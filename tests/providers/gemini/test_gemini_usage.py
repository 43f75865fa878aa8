"""Gemini: what an answer cost. The total is what is billed, so ours must be the provider's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.wire import answer, sse

from callboard.protocol.model import Usage
from callboard.providers.gemini.gemini_api import Gemini

ADAPTER = Gemini()
COUNTS = ("promptTokenCount", "toolUsePromptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")


def usage_after(*metadata: dict[str, Any], headers: dict[str, str] | None = None, **document: Any) -> Any:
    chunks = [{"candidates": [{"content": {"parts": [{"text": "a"}]}}], "usageMetadata": each} for each in metadata]
    end = {"candidates": [{"finishReason": "STOP"}], "modelVersion": "gemini-3-pro", **document}
    return answer(ADAPTER, sse([*chunks, end]), headers=headers)


@st.composite
def counts(draw: st.DrawFn) -> dict[str, int]:
    """Metadata as the API's reference defines it: counts that are 0 are left out, the total is the sum of all."""
    told = {name: draw(st.integers(0, 10_000)) for name in COUNTS}
    told["promptTokenCount"] += 1
    told["totalTokenCount"] = sum(told.values())
    told["cachedContentTokenCount"] = draw(st.integers(0, told["promptTokenCount"]))
    return {name: count for name, count in told.items() if count}


without_counts = st.sampled_from([{}, {"trafficType": "ON_DEMAND"}, {"promptTokenCount": 0}, {"totalTokenCount": None}])


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.one_of(counts(), without_counts), max_size=5), counts(), st.lists(without_counts, max_size=2))
def test_quirk_67_the_last_usage_with_counts_is_the_answers(
    before: list[dict[str, Any]], last: dict[str, int], after: list[dict[str, Any]]
) -> None:
    turn = usage_after(*before, last, *after)
    assert turn.usage.total_tokens == last["totalTokenCount"]
    assert turn.usage == Usage(
        last.get("promptTokenCount", 0) + last.get("toolUsePromptTokenCount", 0),
        last.get("candidatesTokenCount", 0) + last.get("thoughtsTokenCount", 0),
        cached_tokens=last.get("cachedContentTokenCount", 0),
        reasoning_tokens=last.get("thoughtsTokenCount", 0),
    )
    assert last.items() <= turn.raw_usage.items()


count = st.one_of(st.integers(-5, 40), st.none(), st.sampled_from(["7", 1.5, float("inf"), True, [], 10**12]))
any_metadata = st.dictionaries(st.sampled_from([*COUNTS, "totalTokenCount", "cachedContentTokenCount"]), count)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(any_metadata, min_size=1, max_size=3))
def test_any_usage_adds_up_to_the_total_or_is_not_known(metadata: list[dict[str, Any]]) -> None:
    turn = usage_after(*metadata)
    total = turn.raw_usage.get("totalTokenCount")
    if turn.usage is None:
        return
    assert turn.usage.cached_tokens <= turn.usage.input_tokens
    assert turn.usage.reasoning_tokens <= turn.usage.output_tokens
    if isinstance(total, int | float) and not isinstance(total, bool) and 1 <= total <= 1e9:
        assert turn.usage.total_tokens == int(total)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        # llm-gemini #75: thoughts among the candidates' tokens.
        (
            {"promptTokenCount": 7, "candidatesTokenCount": 30, "thoughtsTokenCount": 20, "totalTokenCount": 37},
            Usage(7, 30, reasoning_tokens=20),
        ),
        # The same for the results of the provider's own tools.
        (
            {"promptTokenCount": 9, "toolUsePromptTokenCount": 4, "candidatesTokenCount": 3, "totalTokenCount": 12},
            Usage(9, 3),
        ),
        # new-api #1358: 11 + 9 = 20 of 88, the thoughts were not counted by themselves.
        ({"promptTokenCount": 11, "candidatesTokenCount": 9, "totalTokenCount": 88}, Usage(11, 77)),
        ({"candidatesTokenCount": 9, "totalTokenCount": 20}, Usage(11, 9)),
        ({"promptTokenCount": 11, "candidatesTokenCount": 9}, Usage(11, 9)),
        # More than the total in any reading.
        ({"promptTokenCount": 11, "candidatesTokenCount": 9, "totalTokenCount": 15}, None),
        ({"promptTokenCount": 5, "cachedContentTokenCount": 9, "totalTokenCount": 5}, None),
        (
            {"promptTokenCount": 3, "toolUsePromptTokenCount": 9, "candidatesTokenCount": 2, "totalTokenCount": 5},
            None,
        ),
        ({"totalTokenCount": 15}, None),
        ({"candidatesTokenCount": "many", "promptTokenCount": float("nan")}, None),
    ],
)
def test_counts_that_are_counted_otherwise(metadata: dict[str, Any], expected: Usage | None) -> None:
    assert usage_after(metadata).usage == expected


@pytest.mark.parametrize("metadata", [[], [{}], [{"trafficType": "ON_DEMAND"}]])
def test_quirk_80_usage_that_never_came_is_not_known(metadata: list[dict[str, Any]]) -> None:
    assert usage_after(*metadata).usage is None


def test_tokens_by_kind() -> None:
    metadata = {
        "promptTokenCount": 50,
        "candidatesTokenCount": 1300,
        "totalTokenCount": 1350,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 20}, {"modality": "AUDIO", "tokenCount": 30}],
        "candidatesTokensDetails": [{"modality": "IMAGE", "tokenCount": 1290}, {"modality": "AUDIO"}, 7],
    }
    assert usage_after(metadata).usage == Usage(50, 1300, input_audio_tokens=30, output_image_tokens=1290)
    # Details that cannot be true do not cost the counts.
    metadata["promptTokensDetails"] = [{"modality": "AUDIO", "tokenCount": 51}]
    assert usage_after(metadata).usage == Usage(50, 1300)


@pytest.mark.parametrize(
    ("metadata", "headers", "tier"),
    [
        ({"promptTokenCount": 1, "serviceTier": "flex"}, {"X-Gemini-Service-Tier": "standard"}, "flex"),
        ({"promptTokenCount": 1}, {"X-Gemini-Service-Tier": "standard"}, "standard"),
        ({"promptTokenCount": 1, "trafficType": "ON_DEMAND_PRIORITY"}, {}, "ON_DEMAND_PRIORITY"),
        ({"promptTokenCount": 1, "serviceTier": 7}, {}, ""),
    ],
)
def test_the_service_tier(metadata: dict[str, Any], headers: dict[str, str], tier: str) -> None:
    assert usage_after(metadata, headers=headers).service_tier == tier


def test_the_ids_and_the_model_of_an_answer() -> None:
    turn = usage_after({"promptTokenCount": 1}, responseId="r-9", headers={"x-request-id": "q-1"})
    assert (turn.response_id, turn.provider_request_id, turn.model) == ("r-9", "q-1", "gemini-3-pro")


def chosen(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logProbability": logprob, "tokenId": 7}


def test_log_probabilities() -> None:
    def piece(text: str, *tokens: str, **more: Any) -> dict[str, Any]:
        result = {
            "chosenCandidates": [chosen(token, -0.5) for token in tokens],
            "topCandidates": [{"candidates": [chosen(token, -0.5), chosen("x", -2.0)]} for token in tokens],
        }
        candidate = {"content": {"parts": [{"text": text}]}, "logprobsResult": result, "avgLogprobs": -0.5, **more}
        return {"candidates": [candidate]}

    streamed = answer(ADAPTER, sse([piece("Hi ", "Hi", " "), piece("you", "you", finishReason="STOP")]))
    whole = piece("Hi you", "Hi", " ", "you", finishReason="STOP")
    assert streamed == answer(ADAPTER, json.dumps(whole).encode(), streaming=False)
    assert [each.token for each in streamed.logprobs] == ["Hi", " ", "you"]
    assert streamed.logprobs[0].top == (("Hi", -0.5), ("x", -2.0))


@pytest.mark.parametrize(
    "result",
    [
        {"chosenCandidates": [{"token": 7}]},
        {"chosenCandidates": [{"token": "a", "logProbability": "high"}]},
        {"chosenCandidates": [chosen("a", -1.0)] * 20_001},
    ],
)
def test_an_answer_is_not_lost_over_its_log_probabilities(result: dict[str, Any]) -> None:
    end = {"content": {"parts": [{"text": "b"}]}, "logprobsResult": result, "finishReason": "STOP"}
    turn = answer(ADAPTER, sse([{"candidates": [end]}]))
    assert (turn.text, turn.error, turn.logprobs) == ("b", None, ())
    assert "log probabilities" in " ".join(turn.notes)


def test_probability_one_is_left_out_of_the_wire() -> None:
    """JSON of protocol buffers has no zeros: a logarithm of 0 is a field that is missing."""
    end = {"content": {"parts": [{"text": "b"}]}, "logprobsResult": {"chosenCandidates": [{"token": "b"}]}}
    turn = answer(ADAPTER, sse([{"candidates": [{**end, "finishReason": "STOP"}]}]))
    assert [(each.token, each.logprob, each.top) for each in turn.logprobs] == [("b", 0.0, ())]
