"""What servers say in words alone, with the bytes of their own errors: a context that is too long, no tools here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wire import answer, events, sse

from callboard.protocol.errors import KINDS_OF_ERRORS, ErrorKind, with_advice
from callboard.protocol.limits import MAX_ANSWER_BYTES, MAX_CALLS_PER_STEP
from callboard.protocol.model import Error
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.error_table import kind_of_phrase
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.http_errors import by_status, error_from_body, error_from_payload, is_error
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.responses_api import OpenAIResponses

K = ErrorKind


def openai(message: object, code: object = None, kind: str = "invalid_request_error", **more: object) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code, **more}}


def gemini(message: str) -> dict[str, Any]:
    return {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}


def anthropic(message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


def mistral(message: str, code: object) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": "invalid_request_error", "param": None, "code": code}


def routed(raw: object, message: str = "Provider returned error", code: int = 400) -> dict[str, Any]:
    return {"error": {"message": message, "code": code, "metadata": {"raw": raw, "provider_name": "Anthropic"}}}


TOO_LONG = "prompt is too long: 209353 tokens > 200000 maximum"
OPENAI_WORDS = (
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 8545 tokens. Please reduce "
    "the length of the messages."
)


def recorded(name: str) -> list[dict[str, Any]]:
    """Errors of servers, one a line: of which server, the HTTP status (200 inside a stream), the body."""
    lines = (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{row['server']}-{number}" for number, row in enumerate(rows)]


#: With the window that the body names.
OVERFLOWS = recorded("context_too_long.jsonl")
NO_TOOLS = recorded("no_tools_here.jsonl")
NO_SCHEMA = recorded("no_schema_here.jsonl")


@pytest.mark.parametrize("row", OVERFLOWS, ids=ids(OVERFLOWS))
def test_quirk_77_a_context_that_is_too_long_is_one_kind_for_all(row: dict[str, Any]) -> None:
    body = b"" if row["body"] is None else orjson.dumps(row["body"])
    error = error_from_body(row["server"], row["status"], {}, body)
    assert (error.kind, error.context_tokens, error.retryable) == (K.CONTEXT_LENGTH, row["window"], False)


@pytest.mark.parametrize("row", NO_SCHEMA, ids=ids(NO_SCHEMA))
def test_every_servers_way_to_say_that_it_takes_no_schema_of_the_answer(row: dict[str, Any]) -> None:
    error = error_from_payload(row["server"], row["body"], row["status"])
    assert (error.kind, error.retryable) == (K.SCHEMA_UNSUPPORTED, False)
    assert by_status(error).kind is K.INVALID_REQUEST  # of a request that had none, it is about something else


@pytest.mark.parametrize(
    "message",
    [
        "the prompt quotes: Invalid schema for response_format 'x'",
        "Invalid value for response: no schema",
        "This model does not support image input",
        "Failed to parse the file",
    ],
)
def test_a_message_about_something_else_is_not_about_a_schema(message: str) -> None:
    assert error_from_payload("openai-chat", openai(message), 400).kind is not K.SCHEMA_UNSUPPORTED


@pytest.mark.parametrize("row", NO_TOOLS, ids=ids(NO_TOOLS))
def test_quirk_79_every_servers_way_to_say_that_it_takes_no_tools(row: dict[str, Any]) -> None:
    error = error_from_payload(row["server"], row["body"], row["status"])
    assert (error.kind, error.retryable) == (K.TOOLS_UNSUPPORTED, False)


def test_quirk_79_without_tools_the_refused_parameters_are_others() -> None:
    said = {"error": {"message": "No endpoints found that can handle the requested parameters.", "code": 404}}
    assert by_status(error_from_payload("openrouter", said, 404)).kind is K.NOT_FOUND
    assert error_from_payload("vllm", said, 404).kind is K.NOT_FOUND, "no other server says it"
    other = error_from_payload("openai", openai("m"), 400)
    assert by_status(other) == other


@pytest.mark.parametrize(
    ("message", "status", "kind"),
    [
        # A message that quotes what somebody else said, at any place but its start.
        (f"Invalid value for 'messages[3].content': '{TOO_LONG}'", 400, K.INVALID_REQUEST),
        (f"the tool said: {TOO_LONG}", 400, K.INVALID_REQUEST),
        (f"Could not parse the user's text: {OPENAI_WORDS}", 400, K.INVALID_REQUEST),
        ("this text does not support tools", 400, K.INVALID_REQUEST),
        ("the user wrote that the model does not support tools", 400, K.INVALID_REQUEST),
        ("Prompt is too long, he said", 400, K.INVALID_REQUEST),
        ("The input is too long for this field", 400, K.INVALID_REQUEST),
        ("max_tokens is too large: 5000. This model supports at most 4096 completion tokens", 400, K.INVALID_REQUEST),
        ("Image input is not enabled for this model", 400, K.UNSUPPORTED),
        ("too many tokens: max tokens must be less than or equal to 4096, the maximum output", 400, K.INVALID_REQUEST),
        ("{'role': 'user', 'message': 'prompt is too long: 3 tokens > 2 maximum'}", 400, K.INVALID_REQUEST),
        # A status or code that says something else is believed.
        (TOO_LONG, 429, K.RATE_LIMITED),
        (TOO_LONG, 401, K.AUTHENTICATION),
        ("Prompt tokens limit exceeded: 36163 > 29652. To increase, visit https://openrouter.ai/settings/credits", 402,
         K.BILLING),
    ],
)  # fmt: skip
def test_words_that_only_look_like_it(message: str, status: int, kind: ErrorKind) -> None:
    error = error_from_payload("openai", openai(message), status)
    assert (error.kind, error.context_tokens) == (kind, None)


def test_what_mistral_cannot_do_is_no_overflow() -> None:
    """Its code 3051 is of what the request holds, whatever that is; the words tell."""
    for words, kind in (
        ("Image input is not enabled for this model", K.UNSUPPORTED),
        ("Function calling is not enabled for this model", K.TOOLS_UNSUPPORTED),
        ("Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant", None),
        ("it will not fit", None),
    ):
        assert error_from_payload("mistral", mistral(words, 3051), 400).kind is (kind or K.INVALID_REQUEST)


@pytest.mark.parametrize(
    ("adapter", "body"),
    [
        (OpenAIChat(), sse([{"error": {"message": OPENAI_WORDS, "code": 400}}])),
        (OpenAIChat(), sse([{"choices": [{"index": 0, "delta": {"content": "So"}}]}, openai(OPENAI_WORDS)])),
        (OpenAIResponses(), sse([{"type": "error", "code": "context_length_exceeded", "message": OPENAI_WORDS}])),
        (OpenAIResponses(), sse([{"type": "response.failed", "response": {"status": "failed", "error": {
            "code": "context_length_exceeded", "message": OPENAI_WORDS}}}])),
        (Anthropic(), sse([anthropic("prompt is too long: 9000 tokens > 8192 maximum")], named=True)),
        (Gemini(), sse([gemini("The input token count (9000) exceeds the maximum number of tokens allowed (8192).")])),
    ],
    ids=["chat", "chat-late", "responses", "responses-failed", "anthropic", "gemini"],
)  # fmt: skip
@pytest.mark.parametrize("sizes", [(65536,), (1,), (7, 3)], ids=["whole", "bytes", "cut"])
def test_the_same_inside_a_stream(adapter: Any, body: bytes, sizes: tuple[int, ...]) -> None:
    error = events(adapter, body, sizes)[-1]
    assert isinstance(error, Error)
    assert (error.kind, error.context_tokens) == (K.CONTEXT_LENGTH, 8192)


@pytest.mark.parametrize("reason", ["model_context_window_exceeded"])
def test_a_finish_reason_is_a_cut_answer_and_no_overflow(reason: str) -> None:
    turn = answer(
        Anthropic(),
        json.dumps({"content": [{"type": "text", "text": "half"}], "stop_reason": reason}).encode(),
        streaming=False,
    )
    assert turn.error is None
    assert turn.text == "half"


def test_what_a_gateway_passes_on_is_shown_with_its_server() -> None:
    error = error_from_payload("openrouter", routed(json.dumps(anthropic(TOO_LONG))), 400)
    assert error.message == f"Provider returned error (Anthropic: {TOO_LONG})"
    plain = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"provider_name": "Azure"}}}
    assert error_from_payload("openrouter", plain, 400).message == "Provider returned error (Azure)"
    inside = openai(json.dumps(anthropic("messages: at least one message is required")))
    assert error_from_payload("x", inside, 400).message == "messages: at least one message is required"


def test_the_error_behind_a_gateway_says_what_kind_it_is() -> None:
    filtered = {
        "error": {"code": "content_filter", "message": "m", "innererror": {"code": "ResponsibleAIPolicyViolation"}}
    }
    assert error_from_payload("openrouter", routed(json.dumps(filtered)), 400).kind is K.CONTENT_FILTER
    assert error_from_payload("openrouter", routed(json.dumps(filtered), code=429), 429).kind is K.RATE_LIMITED
    deep: object = anthropic(TOO_LONG)
    for _ in range(30):
        deep = routed(deep)
    assert error_from_payload("openrouter", deep, 400).kind is K.INVALID_REQUEST, "only so many layers are looked at"


@pytest.mark.parametrize("tail", ["x" * 60_000, " " * 60_000, "9" * 60_000, "model " * 10_000, "400 " * 15_000])
@pytest.mark.parametrize(
    "head", ["", "This model's maximum context length is ", "Error: ", "Prompt contains 9 tokens "]
)
def test_long_messages_end_too(head: str, tail: str) -> None:
    """A pattern that backtracks would take hours for 60 kB."""
    assert kind_of_phrase("openrouter", head + tail) == (None, None)


ERRORS = [row["body"].get("error") for row in OVERFLOWS if isinstance(row["body"], dict)]
MESSAGES = [error["message"] for error in ERRORS if isinstance(error, dict) and "message" in error]


@given(st.text(max_size=80), st.sampled_from(MESSAGES))
def test_no_prefix_makes_a_quoted_message_match(prefix: str, quoted: str) -> None:
    """Only what gateways are known to put before an error is skipped."""
    said = f"{prefix}«{quoted}"
    assert kind_of_phrase("openai", said) == (None, None)


def xai(words: str, code: str = "invalid-argument") -> dict[str, Any]:
    return {"code": code, "error": words}


def minimax(code: int, words: str) -> dict[str, Any]:
    return {"id": "04", "choices": None, "created": 1, "base_resp": {"status_code": code, "status_msg": words}}


QUOTA_WORDS = (
    "You exceeded your current quota, please check your plan and billing details. For more information on this error, "
    "head to: https://ai.google.dev/gemini-api/docs/rate-limits. Please retry in 34.07s."
)


def of_quota(*ids: str) -> dict[str, Any]:
    """Gemini's 429 (comic-translate 403, gemini-cli 8437)."""
    violations = [{"quotaMetric": "generativelanguage.googleapis.com/free", "quotaId": each} for each in ids]
    details = [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": violations},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34s"},
    ]
    return {"error": {"code": 429, "message": QUOTA_WORDS, "status": "RESOURCE_EXHAUSTED", "details": details}}


PER_DAY, PER_MINUTE = (f"GenerateRequestsPer{each}PerProjectPerModel-FreeTier" for each in ("Day", "Minute"))
CREDIT = (
    "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase "
    "credits."
)
MMPROJ = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"


#: (the API, the HTTP status, what it answered, the kind, where that was seen: documents, or an issue of a repository)
IN_WORDS: list[tuple[str, int, Any, ErrorKind, str]] = [
    # No money.
    ("anthropic", 400, anthropic(CREDIT), K.BILLING, "claude-code 66314"),
    ("anthropic", 400, anthropic("You're out of extra usage. Add more at claude.ai/settings/usage and keep going."),
     K.BILLING, "pi 2943"),
    ("anthropic", 400, anthropic("Third-party apps now draw from your extra usage, not your plan limits. Add more at "
                                 "claude.ai/settings/usage and keep going."), K.BILLING, "hermes-agent 31668"),
    ("anthropic", 429, {"type": "error", "error": {
        "type": "rate_limit_error", "message": "Usage credits are required for this model.",
        "details": {"error_code": "credits_required", "model": "claude-fable-5"}}}, K.BILLING, "hermes-agent 109553"),
    ("anthropic", 429, {"type": "error", "error": {
        "type": "rate_limit_error", "message": "m", "details": {"error_code": "credits_required"}}}, K.BILLING,
     "the code alone"),
    ("anthropic", 429, {"type": "error", "error": {
        "type": "rate_limit_error", "message": "Extra usage is required for long context requests."}}, K.BILLING,
     "claude-code 42616"),
    ("xai", 429, xai("Your team 16f2 has either used all available credits or reached its monthly spending limit. To "
                     "continue making API requests, please purchase more credits or raise your spending limit."),
     K.BILLING, "continue 10373"),
    ("xai", 403, xai("Your team 8c26 has either used all available credits or reached its monthly spending limit."),
     K.BILLING, "warp 14863"),
    ("xai", 403, xai("You have run out of credits or need a Grok subscription."), K.BILLING, "sub2api 4069"),
    ("anthropic", 500, {"type": "error", "error": {"type": "api_error", "message": "insufficient balance (1008)"}},
     K.BILLING, "MiniMax-M2 62"),
    ("openai-compatible", 429, {"error": {"http_code": "429", "message": "insufficient balance (1008)",
                                          "type": "insufficient_balance_error"}}, K.BILLING, "modelscope 1691"),
    ("openai-compatible", 200, minimax(1008, "insufficient balance"), K.BILLING, "platform.minimax.io, errorcode"),
    ("openai-compatible", 401, openai("Insufficient balance. Manage your billing here: https://opencode.ai/x"),
     K.BILLING, "oh-my-pi 3170"),
    ("deepseek", 402, openai("Insufficient Balance", "invalid_request_error"), K.BILLING, "continue 9942"),
    ("openai-compatible", 403, {"code": 30001, "message": "Sorry, your account balance is insufficient", "data": None},
     K.BILLING, "docs.siliconflow.cn, error codes"),
    ("openrouter", 403, openai("Key limit exceeded (total limit). Manage it using https://openrouter.ai/settings/keys",
                               403), K.BILLING, "hermes-agent, error_classifier.py"),
    ("openai", 429, openai("You exceeded your current quota, please check your plan and billing details. For more "
                           "information on this error, read the docs: https://platform.openai.com/docs"), K.BILLING,
     "platform.openai.com, error codes; a gateway left out the code"),
    ("alibaba", 400, openai("Access denied, please make sure your account is in good standing.", "Arrearage"),
     K.BILLING, "help.aliyun.com, error codes"),
    ("fireworks", 412, {"error": {"message": "Account x is suspended, possibly due to reaching the monthly spending "
                                             "limit or failure to pay past invoices."}}, K.BILLING, "Fireworks"),
    # An allowance that comes back.
    ("anthropic", 400, anthropic("You have reached your specified API usage limits. You will regain access on "
                                 "2026-12-01 at 00:00 UTC."), K.QUOTA_SPENT, "the Console's spend limits"),
    ("anthropic", 400, anthropic("You have reached your specified workspace API usage limits. You will regain access "
                                 "on 2026-12-01 at 00:00 UTC."), K.QUOTA_SPENT, "the same of a workspace"),
    ("gemini", 429, of_quota(PER_DAY), K.QUOTA_SPENT, "comic-translate 403"),
    ("gemini", 429, of_quota(PER_MINUTE, PER_DAY), K.QUOTA_SPENT, "gemini-cli 8437"),
    ("gemini", 429, [of_quota(PER_DAY)], K.QUOTA_SPENT, "in an array, as a stream without alt=sse has it"),
    ("openai-compatible", 429, {"error": {"message": json.dumps(of_quota(PER_DAY)), "code": 429}}, K.QUOTA_SPENT,
     "void 557: passed on as a text"),
    ("gemini", 429, of_quota("GenerateContentInputTokensPerModelPerDay-FreeTier"), K.QUOTA_SPENT, "gemini-cli 8437"),
    ("gemini", 429, {"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": [
        {"reason": "RATE_LIMIT_EXCEEDED", "metadata": {"quota_limit": "GenerateContentPerDayPerProject"}}]}},
     K.QUOTA_SPENT, "google.rpc.ErrorInfo"),
    ("openrouter", 429, openai("Rate limit exceeded: free-models-per-day. Add 10 credits to unlock 1000 free model "
                               "requests per day", 429), K.QUOTA_SPENT, "cline 5301"),
    ("openai-compatible", 429, {"error": {"type": "usage_limit_reached", "message": "The usage limit has been reached",
                                          "plan_type": "plus", "resets_in_seconds": 13872}}, K.QUOTA_SPENT, "pi 4172"),
    ("openai-compatible", 200, minimax(2056, "usage limit exceeded"), K.QUOTA_SPENT, "platform.minimax.io, errorcode"),
    ("copilot", 402, openai("m", "quota_exceeded"), K.QUOTA_SPENT, "premium requests of the month"),
    ("bedrock", 429, {"message": "Too many tokens per day, please wait before trying again."}, K.QUOTA_SPENT,
     "aws re:Post, ThrottlingException"),
    ("openai-compatible", 429, openai("Rate limit of 50 per 86400s exceeded for UserByModelByDay. Please wait 54321 "
                                      "seconds before retrying.", "RateLimitReached"), K.QUOTA_SPENT, "GitHub Models"),
    ("cohere", 429, {"message": "You are using a Trial key, which is limited to 1000 API calls / month."},
     K.QUOTA_SPENT, "docs.cohere.com, rate limits"),
    # Limits that pass.
    ("gemini", 429, of_quota(PER_MINUTE), K.RATE_LIMITED, "gemini-cli 8437"),
    ("openrouter", 429, openai("Rate limit exceeded: free-models-per-min.", 429), K.RATE_LIMITED, "openrouter.ai/docs"),
    ("groq", 429, openai("Rate limit reached for model `m` on tokens per day (TPD): Limit 100000, Used 97050, "
                         "Requested 3619. Please try again in 9m38.016s.", "rate_limit_exceeded"), K.RATE_LIMITED,
     "continue 10920: a sliding window, whose wait is told"),
    ("xai", 429, xai("Too many tokens for team e9fe and model grok-4-0709. Your team's rate limit is"), K.RATE_LIMITED,
     "cline 4826"),
    ("openai-compatible", 200, minimax(1002, "rate limit"), K.RATE_LIMITED, "platform.minimax.io, errorcode"),
    # No such model.
    ("xai", 400, xai("Model not found: grok-5"), K.NOT_FOUND, "docs.x.ai"),
    ("xai", 404, xai("The model grok-beta does not exist or your team bdc3 does not have access to it.",
                     "Some requested entity was not found"), K.NOT_FOUND, "bilingual_book_maker 464"),
    ("deepseek", 400, openai("Model Not Exist", "invalid_request_error"), K.NOT_FOUND, "easy-dataset 9"),
    ("deepseek", 400, openai("The supported API model names are deepseek-v4-pro or deepseek-v4-flash, but you passed "
                             "gpt-4o-mini.", "invalid_request_error"), K.NOT_FOUND, "Paper2Slides 37"),
    ("openrouter", 400, openai("openai/gpt-nope is not a valid model ID", 400), K.NOT_FOUND, "anthropic-proxy 4"),
    ("openai-compatible", 400, {"error": json.dumps(openai("google/x:free is not a valid model ID", 400))}, K.NOT_FOUND,
     "anthropic-proxy 4: passed on as a text"),
    ("openai-compatible", 400, openai("The requested model 'gpt-4-1106-preview' does not exist."), K.NOT_FOUND,
     "sysaidmin 9, without its code"),
    ("groq", 400, openai("The model `qwen-qwq-32b` has been decommissioned and is no longer supported.",
                         "model_decommissioned"), K.NOT_FOUND, "sqlmap-ai 3"),
    ("groq", 400, openai("The model `gemma2-9b-it` has been decommissioned and is no longer supported."), K.NOT_FOUND,
     "openfang 834: behind a gateway"),
    ("openai-compatible", 400, openai({"error": "/chat/completions: Invalid model name passed in model=x"}, "400"),
     K.NOT_FOUND, "litellm 8821"),
    ("openai-compatible", 400, {"code": 20012, "message": "Model does not exist. Please check it carefully."},
     K.NOT_FOUND, "docs.siliconflow.cn"),
    ("bedrock", 400, {"message": "The provided model identifier is invalid.", "__type": "ValidationException"},
     K.NOT_FOUND, "opencode 11041"),
    ("bedrock", 400, {"message": "Invocation of model ID anthropic.claude with on-demand throughput isn’t supported."},
     K.NOT_FOUND, "cline 2482"),
    ("nvidia", 410, {"status": 410, "title": "Gone", "detail": "The model 'x' has reached its end of life."},
     K.NOT_FOUND, "models.dev 3146"),
    ("perplexity", 400, openai("Invalid model 'pplx-7b'. Permitted models can be found in the documentation.", 400),
     K.NOT_FOUND, "docs.perplexity.ai"),
    ("openai-compatible", 400, openai("invalid params, unknown model 'abab' (2013)"), K.NOT_FOUND, "MiniMax"),
    ("openai-compatible", 400, {"detail": "Model not found"}, K.NOT_FOUND, "FastAPI's HTTPException"),
    # A wrong key.
    ("xai", 400, xai("Incorrect API key provided: na***ys. You can obtain an API key from https://console.x.ai."),
     K.AUTHENTICATION, "continue 10778"),
    ("gemini", 400, gemini("API key not valid. Please pass a valid API key."), K.AUTHENTICATION, "ai.google.dev"),
    ("gemini", 400, gemini("API key expired. Please renew the API key."), K.AUTHENTICATION, "ai.google.dev"),
    ("openai-compatible", 200, minimax(1004, "login fail: Please carry the API secret key in the 'Authorization' "
                                             "field of the request header"), K.AUTHENTICATION, "errorcode"),
    ("openai-compatible", 403, {"detail": "Not authenticated"}, K.AUTHENTICATION, "fastapi.security.HTTPBearer"),
    ("openai-compatible", 200, {"detail": "Invalid API key"}, K.AUTHENTICATION, "FastAPI, inside a 200"),
    ("bedrock", 403, {"message": "The security token included in the request is expired"}, K.AUTHENTICATION, "AWS"),
    # What the model or its server cannot do, some by a 500 that no retry cures.
    ("llamacpp", 500, openai(MMPROJ, 500, "server_error"), K.UNSUPPORTED, "llama.cpp 15377"),
    ("llamacpp", 500, openai("image input is not supported by this server", 500, "server_error"), K.UNSUPPORTED,
     "llama.cpp 13566"),
    ("llamacpp", 500, openai(MMPROJ.replace("image", "audio"), 500, "server_error"), K.UNSUPPORTED,
     "server-common.cpp"),
    ("llamacpp", 500, openai('Failed to parse messages: Unsupported content part type: "image_url"; messages = [', 500,
                             "server_error"), K.UNSUPPORTED, "llama.cpp 12947"),
    ("llamacpp", 500, openai("Cannot use both json_schema and grammar", 500, "server_error"), K.SCHEMA_UNSUPPORTED,
     "server-common.cpp"),
    ("llamacpp", 500, openai('Either "json_schema" or "grammar" can be specified, but not both', 500, "server_error"),
     K.SCHEMA_UNSUPPORTED, "utils.hpp, before May 2025"),
    ("llamacpp", 500, openai("Cannot use custom grammar constraints with tools.", 500, "server_error"),
     K.SCHEMA_UNSUPPORTED, "server-common.cpp"),
    ("llamacpp", 500, openai('"json_schema": JSON schema conversion failed:\nUnrecognized schema', 500, "server_error"),
     K.SCHEMA_UNSUPPORTED, "server-task.cpp"),
    ("llamacpp", 500, openai("tools param requires --jinja flag", 500, "server_error"), K.TOOLS_UNSUPPORTED,
     "utils.hpp"),
    ("llamacpp", 501, openai("This server does not support chat completions. Start it without `--embeddings`", 501,
                             "not_supported_error"), K.UNSUPPORTED, "server.cpp"),
    ("ollama", 400, openai("this model does not support image input (ref: b8bd)"), K.UNSUPPORTED, "ollama 17301"),
    ("ollama", 400, openai('"gemma3:1b" does not support thinking'), K.UNSUPPORTED, "server/routes.go"),
    ("openrouter", 404, openai("No endpoints found that support image input", 404), K.UNSUPPORTED, "nexu 875"),
    ("deepseek", 400, openai("Failed to deserialize the JSON body into the target type: messages[1]: unknown variant "
                             "`image_url`, expected `text` at line 1 column 301"), K.UNSUPPORTED, "DeepSeek's parser"),
    ("vllm", 400, openai("At most 0 image(s) may be provided in one prompt."), K.UNSUPPORTED, "vllm/multimodal"),
    ("bedrock", 400, {"message": "This model doesn't support the image content block that you provided."},
     K.UNSUPPORTED, "Converse"),
    ("gemini", 400, gemini("Image input modality is not enabled for models/gemma-3-1b-it"), K.UNSUPPORTED, "Gemma"),
    # A schema that is refused, in other words than for the model.
    ("anthropic", 400, anthropic("The compiled grammar is too large, which would cause performance issues. Simplify "
                                 "your tool schemas or reduce the number of strict tools."), K.SCHEMA_UNSUPPORTED,
     "anthropic-sdk-python 1185"),
    ("anthropic", 400, anthropic("output_config.format.schema: Invalid schema: The compiled grammar is too large"),
     K.SCHEMA_UNSUPPORTED, "TanStack/ai 682"),
    ("anthropic", 400, anthropic("Schema is too complex for compilation. Try reducing the number of tools"),
     K.SCHEMA_UNSUPPORTED, "genkit 5230"),
    ("anthropic", 400, anthropic("Schemas contains too many parameters with union types (17 parameters with type "
                                 "arrays or anyOf)."), K.SCHEMA_UNSUPPORTED, "platform.claude.com, structured outputs"),
    ("openai", 400, openai("Invalid JSON schema: regex lookaround is not supported. Found at "
                           "$.properties.name.pattern.", "invalid_json_schema"), K.SCHEMA_UNSUPPORTED, "OpenAI"),
    ("openai", 400, openai("m", "invalid_json_schema"), K.SCHEMA_UNSUPPORTED, "the code alone"),
    ("gemini", 400, gemini("The specified schema produces a constraint that has too many states for serving."),
     K.SCHEMA_UNSUPPORTED, "python-genai 660"),
    ("vllm", 400, openai("The provided JSON schema contains features not supported by xgrammar."),
     K.SCHEMA_UNSUPPORTED, "vllm 26421"),
    ("groq", 400, openai("invalid JSON schema for tool get_weather, tools[0].function.parameters: m"),
     K.SCHEMA_UNSUPPORTED, "of a tool: it is sent without strict (Refusals), else it is a bad request"),
    ("openai", 400, openai("Invalid schema for function 'f': In context=(), 'allOf' is not permitted."),
     K.SCHEMA_UNSUPPORTED, "docker-agent 4155"),
    ("anthropic", 400, anthropic("tools.1.custom: For 'array' type, property 'maxItems' is not supported"),
     K.SCHEMA_UNSUPPORTED, "litellm 39115"),
    ("bedrock", 400, {"message": "The model returned the following errors: Too many strict tools (28). The maximum "
                                 "number of strict tools supported is 20."}, K.SCHEMA_UNSUPPORTED, "pydantic-ai 5579"),
    ("cerebras", 422, {"message": "'additionalProperties' is required to be supplied and set to false.",
                       "type": "invalid_request_error", "param": "response_format", "code": "wrong_api_format"},
     K.SCHEMA_UNSUPPORTED, "agno 6013"),
    ("lmstudio", 400, {"error": "'response_format.type' must be 'json_schema' or 'text'"}, K.SCHEMA_UNSUPPORTED,
     "lmstudio-bug-tracker 189"),
    ("lmstudio", 400, {"error": "'response_format.type' must be 'json_schema'"}, K.SCHEMA_UNSUPPORTED,
     "lmstudio-bug-tracker 307: before it took 'text'"),
    ("openai-compatible", 400, openai("Error code: 400 - {'error': \"'response_format.type' must be 'json_schema'\"}"),
     K.SCHEMA_UNSUPPORTED, "autogen 6588: behind a proxy in Python"),
    ("vllm", 500, openai('Grammar error: Unimplemented keys: ["propertyNames"]', 500, "InternalServerError"),
     K.SCHEMA_UNSUPPORTED, "club-3090 45"),
    ("vllm", 400, openai('Grammar error: Unimplemented keys: ["minItems"]', 400, "BadRequestError"),
     K.SCHEMA_UNSUPPORTED, "club-3090 45"),
    ("fireworks", 400, {"error": {"type": "invalid_request_error", "message": "JSON Schema not supported: could not "
                                  "understand the instance `{'required': ['criteria']}`."}, "type": "error"},
     K.SCHEMA_UNSUPPORTED, "pi 5352"),
    ("openai-compatible", 400, openai("JSON Schema not supported: could not understand the instance `{}`."),
     K.SCHEMA_UNSUPPORTED, "excel-mcp-server 114"),
    ("groq", 400, openai("response_format` does not support streaming"), K.SCHEMA_UNSUPPORTED, "langchain 23629"),
    ("openai-compatible", 400, openai("litellm.BadRequestError: GroqException - `response_format` does not support "
                                      "streaming"), K.SCHEMA_UNSUPPORTED, "litellm 4804"),
    ("mistral", 422, {"object": "error", "message": {"detail": [{"type": "value_error", "loc": [
        "body", "response_format", "json_schema"], "msg": "Value error, invalid schema"}]},
        "type": "invalid_request_error"}, K.SCHEMA_UNSUPPORTED, "Mistral's list of what is wrong"),
    # Allowances of a day or a month, and budgets, as rate limits, refusals and bad requests.
    ("gemini", 429, {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Your project has exceeded its "
                               "monthly spending cap. Please go to AI Studio at https://ai.studio/spend."}},
     K.QUOTA_SPENT, "ai.google.dev, billing"),
    ("openai-compatible", 429, openai("Budget has been exceeded! Current cost: 0.0, Max budget: 2.5", "429",
                                      "budget_exceeded"), K.QUOTA_SPENT, "litellm 40002"),
    ("openai-compatible", 400, openai("Budget has been exceeded! Current cost: 10.2, Max budget: 10.0", "400",
                                      "budget_exceeded"), K.QUOTA_SPENT, "litellm 14144"),
    ("openai-compatible", 400, openai("Budget has been exceeded! Current cost: 0.0010747, Max budget: 0.0", 400,
                                      "auth_error"), K.QUOTA_SPENT, "litellm 4208"),
    ("openai-compatible", 400, openai("litellm.BadRequestError: OpenAIException - Budget has been exceeded! Current "
                                      "cost: 14.1, Max budget: 100. Received Model Group=m", "400", ""),
     K.QUOTA_SPENT, "litellm 14144: one proxy behind another"),
    ("openai-compatible", 429, openai("No deployments available - crossed budget: Exceeded budget for deployment "
                                      "model_name: x: 0.363 >= 1d"), K.QUOTA_SPENT, "litellm 14144"),
    ("openai-compatible", 429, openai("LiteLLM User: engineer-1, exceeded budget for model=claude-opus-4-8", "429",
                                      "budget_exceeded"), K.QUOTA_SPENT, "docs.litellm.ai, budgets"),
    ("openai-compatible", 400, openai("ExceededBudget: End User=ishaan3 over budget. Spend=0.00088, Budget=0.0001",
                                      400, "auth_error"), K.QUOTA_SPENT, "docs.litellm.ai, budgets"),
    ("openai-compatible", 403, openai("user quota is not enough (request id: 1)", "insufficient_user_quota",
                                      "new_api_error"), K.BILLING, "FastGPT 916"),
    ("openai-compatible", 403, openai("user quota is not enough"), K.BILLING, "the words alone"),
    ("anthropic", 429, {"type": "error", "error": {
        "type": "rate_limit_error", "message": "Number of request tokens has exceeded your daily rate limit "
        "(https://docs.anthropic.com/claude/reference/rate-limits); see the response headers for current usage."}},
     K.QUOTA_SPENT, "AI-Scientist 115"),
    ("anthropic", 429, {"type": "error", "error": {
        "type": "rate_limit_error", "message": "Number of requests has exceeded your daily rate limit"}},
     K.QUOTA_SPENT, "the same of requests"),
    ("openai-compatible", 429, openai("You've exceeded your weekly token limit for the underlying LLM model."),
     K.QUOTA_SPENT, "statgpt-backend 199"),
    ("openai-compatible", 429, openai("You have reached your monthly limit."), K.QUOTA_SPENT, "a gateway"),
    ("openai-compatible", 429, openai("Hourly request limit reached"), K.QUOTA_SPENT, "a gateway"),
    ("openai-compatible", 400, {"code": "17", "message": "Open api daily request limit reached"}, K.QUOTA_SPENT,
     "Baidu's code 17"),
    ("anthropic", 429, {"type": "error", "error": {
        "type": "rate_limit_error", "message": "Number of request tokens has exceeded your per-minute rate limit"}},
     K.RATE_LIMITED, "of the minute"),
    ("openai-compatible", 400, openai("Invalid value: 'you have exceeded your daily limit'"), K.INVALID_REQUEST,
     "a quotation"),
    # Faults of the server and of the model's calls.
    ("bedrock", 424, {"message": "The system encountered an unexpected error during processing. Try your request "
                      "again."}, K.SERVER, "anthropic-sdk-python 432"),
    ("bedrock", 424, {"message": "m"}, K.SERVER, "the status alone: ModelErrorException"),
    ("openai-compatible", 400, openai("litellm.BadRequestError: BedrockException - The system encountered an "
                                      "unexpected error during processing. Try your request again."), K.SERVER,
     "behind a gateway"),
    ("bedrock", 424, {"message": "Model produced invalid sequence as part of ToolUse. Please refer to the model tool "
                      "use troubleshooting guide."}, K.MALFORMED_TOOL_CALL, "harness-sdk 649"),
    ("openai-compatible", 400, openai(
        "An error occurred (ModelErrorException) when calling the Converse operation: Model produced invalid sequence "
        "as part of ToolUse."), K.MALFORMED_TOOL_CALL, "harness-sdk 649"),
    ("openai-compatible", 400, openai("GroqException - Failed to call a function. Please adjust your prompt. See "
                                      "'failed_generation' for more details."), K.MALFORMED_TOOL_CALL,
     "console.groq.com, tool use; without its code"),
    ("openai-compatible", 424, openai("Error retrieving tool list from MCP server: 'x'."), K.INVALID_REQUEST,
     "OpenAI's 424 is no fault that passes"),
    # Who may not use it, and from where.
    ("anthropic", 400, anthropic("This organization has been disabled."), K.PERMISSION, "claude-code 8327"),
    ("anthropic", 400, anthropic("This credential is only authorized for use with Claude Code and cannot be used for "
                                 "other API requests."), K.PERMISSION, "Anthropic, a plan's token"),
    ("groq", 400, openai("Organization has been restricted. Please reach out to support if you believe this was in "
                         "error.", "organization_restricted"), K.PERMISSION, "crewAI 783"),
    ("openai-compatible", 400, openai("Organization has been restricted. Please reach out to support"), K.PERMISSION,
     "one-api 1764"),
    ("gemini", 400, {"error": {"code": 400, "message": "User location is not supported for the API use.",
                               "status": "FAILED_PRECONDITION"}}, K.PERMISSION, "gemini-cli 1614"),
    ("openrouter", 400, routed(json.dumps({"error": {
        "code": 400, "message": "User location is not supported for the API use.", "status": "FAILED_PRECONDITION"}})),
     K.PERMISSION, "dify 25946: behind a gateway"),
    ("gemini", 400, {"error": {"code": 400, "status": "FAILED_PRECONDITION", "message": "User location is not "
                               "supported for the API use without a billing account linked."}}, K.BILLING,
     "neo-chat 7"),
    ("gemini", 400, {"error": {"code": 400, "status": "FAILED_PRECONDITION", "message": "Gemini API free tier is not "
                               "available in your country. Please enable billing on your project."}}, K.BILLING,
     "ai.google.dev, troubleshooting"),
    ("openai", 400, openai("Country, region, or territory not supported", "unsupported_country_region_territory",
                           "request_forbidden"), K.PERMISSION, "platform.openai.com, error codes"),
    ("bedrock", 400, {"message": "Access to Anthropic models is not allowed from unsupported countries, regions, or "
                      "territories."}, K.PERMISSION, "Claude on Bedrock"),
    ("openai-compatible", 402, openai("Your account has been suspended."), K.BILLING, "its status is believed"),
    ("openai-compatible", 400, openai("messages[0]: this organization has been disabled"), K.INVALID_REQUEST,
     "a quotation"),
    # What a filter took, and the other API.
    ("openai", 400, openai("Invalid prompt: your prompt was flagged as potentially violating our usage policy. Please "
                           "try again with a different prompt", "invalid_prompt"), K.CONTENT_FILTER, "codex 7250"),
    ("openai", 400, openai("Your request was rejected as a result of our safety system."), K.CONTENT_FILTER, "OpenAI"),
    ("openai", 400, openai("Invalid prompt: it is empty", "invalid_prompt"), K.INVALID_REQUEST, "the code alone"),
    ("deepseek", 400, openai("Content Exists Risk", "invalid_request_error"), K.CONTENT_FILTER, "DeepSeek"),
    ("xai", 403, xai("Content violates usage guidelines."), K.CONTENT_FILTER, "docs.x.ai"),
    ("anthropic", 400, anthropic("Output blocked by content filtering policy"), K.CONTENT_FILTER, "Anthropic"),
    ("copilot", 400, openai("model gpt-5.3-codex is not accessible via the /chat/completions endpoint",
                            "unsupported_api_for_model"), K.UNSUPPORTED, "copilot-api 102"),
    ("copilot", 400, openai('model "gpt-5.6-luna" is not accessible via the /chat/completions endpoint',
                            "model_not_supported"), K.UNSUPPORTED, "copilot-cli 4337"),
    ("openai-compatible", 400, {"error": {"type": "error", "message": json.dumps({"error": {
        "message": 'model "gpt-5.4" is not accessible via the /chat/completions endpoint',
        "code": "unsupported_api_for_model"}})}}, K.UNSUPPORTED, "copilot-api 208: passed on as a text"),
    # A server that is down says so by its words alone inside a stream.
    ("openai-compatible", 200, {"detail": "Internal Server Error"}, K.SERVER, "FastAPI, inside a 200"),
    ("openai-compatible", 200, {"detail": "Too many requests"}, K.RATE_LIMITED, "slowapi, inside a 200"),
    ("openai-compatible", 200, {"status_code": 503, "message": "Service Unavailable"}, K.OVERLOADED, "a gateway"),
    ("openai-compatible", 200, {"code": "model_not_found", "message": "No available channel"}, K.NOT_FOUND, "one-api"),
]  # fmt: skip


@pytest.mark.parametrize(("server", "status", "body", "kind", "source"), IN_WORDS, ids=[
    f"{server}-{status}-{kind}-{number}" for number, (server, status, _, kind, _) in enumerate(IN_WORDS)])  # fmt: skip
def test_every_servers_own_words_have_their_kind(
    server: str, status: int, body: Any, kind: ErrorKind, source: str
) -> None:
    # Anthropic asks to try again after each of its 429s.
    error = error_from_payload(server, body, status, {"x-should-retry": "true"} if kind is K.BILLING else {})
    assert (error.kind, error.retryable) == (kind, KINDS_OF_ERRORS[kind].is_retried), source
    assert error.raw


@pytest.mark.parametrize("kind", K)
def test_every_kind_says_what_it_means_and_those_that_a_user_can_mend_how(kind: ErrorKind) -> None:
    facts = KINDS_OF_ERRORS[kind]
    assert facts.means
    if kind is K.MALFORMED:
        assert f" {MAX_CALLS_PER_STEP} calls in a turn or {MAX_ANSWER_BYTES // 1024**2} MiB" in facts.means
    assert with_advice(kind, "It failed.").startswith("It failed")
    assert not (facts.is_waited and not facts.is_retried)
    if kind in (K.BILLING, K.NOT_FOUND, K.AUTHENTICATION, K.QUOTA_SPENT, K.UNSUPPORTED):
        assert facts.todo
        assert with_advice(kind, "It failed.") == f"It failed; {facts.todo}"


def test_a_quota_of_the_day_is_not_asked_for_again_in_34_seconds() -> None:
    """RetryInfo names seconds for it all the same."""
    spent, short = (error_from_payload("gemini", of_quota(each), 429) for each in (PER_DAY, PER_MINUTE))
    assert (spent.retryable, spent.retry_after) == (False, None)
    assert (short.retryable, short.retry_after) == (True, 34.0)
    words = openai(
        "Rate limit of 50 per 86400s exceeded for UserByModelByDay. Please wait 54321 seconds before retrying."
    )
    assert error_from_payload("openai-compatible", words, 429).retry_after == 54321.0, "a true one is told"


def test_what_was_no_error_of_the_answers_schema_is_not_tried_again() -> None:
    """llama.cpp says by a 500 that a grammar is refused; of a request without a schema it is about something else."""
    said = error_from_payload("llamacpp", openai("Failed to parse grammar", 500, "server_error"), 500)
    assert (by_status(said).kind, by_status(said).retryable) == (K.UNSUPPORTED, False)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"detail": [{"type": "missing", "loc": ["body", "messages"], "msg": "Field required", "input": {}}]},
         "body.messages: Field required"),
        ({"detail": [{"loc": ["body", "n"], "msg": "too small"}, {"loc": ["body", 3], "msg": "odd"}]},
         "body.n: too small; body.3: odd"),
        ({"detail": "It is closed."}, "It is closed."),
        ({"detail": {"error": {"message": "deep"}}}, "deep"),
        (minimax(2013, "invalid params, messages is empty"), "invalid params, messages is empty"),
        ({"code": 20015, "message": "length", "data": None}, "length"),
        ({"status_code": 418, "message": "teapot"}, "teapot"),
        ({"error": {"message": {"error": "inner"}}}, "inner"),
    ],
)  # fmt: skip
def test_the_servers_words_are_kept(body: Any, told: str) -> None:
    error = error_from_payload("openai-compatible", body, 200)
    assert error.message == told
    assert told.rpartition(": ")[2] in error.raw


@pytest.mark.parametrize(
    "document",
    [
        {"id": "x", "choices": [], "base_resp": {"status_code": 0, "status_msg": "success"}},
        {"code": 0, "message": "success"}, {"code": 200, "message": "ok"}, {"message": {"role": "assistant"}},
        {"type": "ping"}, {"type": "status", "message": "Searching"}, {"usage": {"total_tokens": 3}}, {},
        {"choices": [{"delta": {}}], "code": 7, "message": "beside an answer"}, {"detail": None}, {"error": None},
    ],
)  # fmt: skip
def test_what_is_no_error(document: Any) -> None:
    assert not is_error(document)
