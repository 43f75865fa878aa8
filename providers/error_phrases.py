"""What servers say of an error in words alone: a context that is too long, a model that takes no tools or no schema.

A phrase counts only where the message begins with it, after what gateways and SDKs are known to put before an error
(`_WRAPPERS`). So a message that quotes a user's text, a tool's result or another server's error does not match. Each
phrase has its source; the numbers in it may be named `window`: how many tokens the model takes, by its own count.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from callboard.protocol.errors import ErrorKind
from callboard.protocol.limits import MAX_CALL_TOKENS

_K = ErrorKind
#: A number of tokens, and one that is the model's window.
_N: Final = r"\d[\d,]{0,14}"
_WINDOW: Final = rf"(?P<window>{_N})"

#: What comes before the server's own words. Sources: SGLang "Bad Request: " (opencode 25230), Moonshot "Invalid
#: request: " (MoonshotAI-Cookbook 18), TGI and Together "Input validation error: " (text-generation-inference 695),
#: MiniMax "invalid params, " (MiniMax-M2 119), Alibaba "<400> InternalError.Algo.InvalidParameter: " (qwen-code 98),
#: botocore and Bedrock (goose 7504, bedrock-chat 95), OpenRouter "Upstream error from ...: ", LiteLLM (Devon 88), a
#: status that a proxy repeats (cline 3120). Numbers in this file's comments are issues of the repository named.
_WRAPPERS: Final = (
    r"(?:HTTP )?[45]\d\d(?: Bad Request)?:? (?:- )?",
    r"Error(?: code)?: ",
    r"Bad Request: ",
    r"Invalid request: ",
    r"Input validation error: ",
    r"invalid params, ",
    r"<\d{3}> [\w.]{1,60}: ",
    r"An error occurred \(\w{1,60}\) when calling the \w{1,60} operation: ",
    r"ValidationException: ",
    r"The model returned the following errors: ",
    r"Upstream error from [\w .-]{1,40}: ",
    # LiteLLM nests them: "litellm.X: litellm.Y: X: OpenAIException - ...".
    r"litellm\.[\w.]{1,60}: ",
    r"\w{1,40}(?:Exception|Error)(?: -|:) ",
    r"b['\"]",  # the bytes of the server behind it (suna 217)
    # The openai package's "Error code: 400 - {'error': {'message': ...", which proxies in Python pass on (OpenHands
    # 5350); Cohere's begins with an id.
    r"\{(?:'error': \{)?(?:'(?:id|object)': '[\w-]{1,60}', )?'message': ['\"]",
    r"context_length_exceeded: ",  # ik_llama.cpp 2051
)
#: More are not read: LiteLLM's take four, and the server's behind it may have its own.
_MAX_WRAPPERS: Final = 8
_TOOLS: Final = r"(?:tools?|tool[ _-](?:use|calls?|calling)|functions?|function[ _-]?(?:calls?|calling))"
_MODEL: Final = r"(?:\S{1,200}|(?:this|the) (?:model|API|endpoint|provider)|(?:the )?model \S{1,200})"

#: By kind, the first phrase that matches counts.
_TABLE: Final = (
    (
        _K.CONTEXT_LENGTH,
        (
            # Anthropic, also behind Bedrock (goose 7504), and SiliconFlow without the numbers (cc-haha 860).
            rf"prompt is too long(?:: {_N} tokens > {_WINDOW} maximum|\.?$)",
            rf"input length and `?max_tokens`? exceed context limit: {_N} \+ {_N} > {_WINDOW}",  # bolt.new 7414
            # OpenAI (deepwiki-open 144), vLLM (vllm 20409), DeepSeek, NVIDIA NIM, Llama on Bedrock; OpenRouter says
            # "endpoint's".
            rf"This (?:model|endpoint)['’]s maximum context length is {_WINDOW} tokens",
            # vLLM, where the answer leaves no room for the prompt.
            rf"'max_tokens' or 'max_completion_tokens' is too large: {_N}\. This model's maximum context length is "
            rf"{_WINDOW} tokens",
            r"Your input exceeds the context window of this model",  # OpenAI Responses
            rf"Input tokens exceed the configured limit of {_WINDOW} tokens",  # OpenAI, reasoning models
            rf"This model's maximum prompt length is {_WINDOW} but the request contains",  # xAI (cline 3120)
            # vLLM since 0.14 (vllm 36197) and before (its input processor).
            rf"You passed {_N} input tokens and requested {_N} output tokens\. However, the model's context length is "
            rf"only {_WINDOW}",
            rf"The (?:\w+ )?prompt \(length {_N}\) is longer than the maximum model length of {_WINDOW}",
            # SGLang, which Together runs too (opencode 25230, openclaw 129352).
            rf"The input \({_N} tokens\) is longer than the model's context length \({_WINDOW} tokens\)",
            rf"Requested token count exceeds the model's maximum context length of {_WINDOW} tokens",
            # Poolside on OpenRouter (pi 4943), others (pi 5677), Volcano (dify 32221).
            rf"Input length \(?{_N}(?: tokens)?\)? exceeds (?:the )?(?:model's )?maximum (?:allowed )?"
            rf"(?:input |context )?length(?: of)? \(?{_WINDOW}",
            # Gemini (arkavo-edge 371, older ones without numbers), and on Vertex.
            rf"The input token count(?: \({_N}\))? exceeds the maximum number of tokens allowed(?: \(?{_WINDOW})?",
            rf"Unable to submit request because the input token count is {_N} but (?:the )?model only supports up to "
            rf"{_WINDOW}",
            # Mistral, code 3051; "... and 0 draft tokens, too large ...".
            rf"Prompt contains {_N} tokens[^.]{{0,60}} too large for model with {_WINDOW} maximum context length",
            # Cohere (docs.cohere.com/reference/errors).
            r"too many tokens: total number of tokens (?:in the prompt|\(prompt and prediction\)) cannot exceed "
            rf"{_WINDOW}",
            # Command A says the limit too, after a sentence of advice or at once.
            rf"too many tokens: size limit exceeded by {_N} tokens(?:\.(?: Try using shorter or fewer inputs\.)? "
            rf"The limit for this model is {_WINDOW} tokens)?",
            rf"Your request exceeded model token limit(?:: {_WINDOW})?",  # Moonshot
            rf"model max length exceeded, max length: ?{_WINDOW}",  # Moonshot (MoonshotAI-Cookbook 18)
            rf"Range of input length should be \[1, ?{_WINDOW}\]",  # Alibaba (qwen-code 98)
            r"Prompt exceeds max length",  # Z.ai, code 1261 (zeroclaw 4124)
            r"tokens in request more than max tokens allowed",  # Z.ai, code 1210
            r"context window exceeds limit",  # MiniMax; the number behind it is its error code (MiniMax-M2 119)
            # llama.cpp (its type is exceed_context_size_error), and llama-cpp-python.
            rf"(?:the )?request (?:\({_N} tokens\) )?exceeds the available context size(?: \({_WINDOW} tokens\))?",
            r"Context size has been exceeded",
            r"context shift is disabled",  # llama.cpp 13577, where the answer fills the context
            rf"Requested tokens \({_N}\) exceed context window of {_WINDOW}",
            # LM Studio (lmstudio-bug-tracker 546, 2205, opencode 11141).
            rf"Trying to keep the first {_N} tokens when context the overflows\. However, the model is loaded with "
            rf"context length of only {_WINDOW}",
            r"The number of tokens to keep from the initial prompt is greater than the context length"
            rf"(?: \(n_keep: ?{_N} ?>= ?n_ctx: ?{_WINDOW}\))?",
            rf"Cannot truncate prompt with n_keep \({_N}\) >= n_ctx \({_WINDOW}\)",
            rf"Reached context length of {_WINDOW} tokens with model",
            # Ollama, by itself and for its cloud models; Fireworks says the second one too.
            r"prompt too long; exceeded (?:max )?context length",
            rf"The prompt is too long: {_N}(?:, model maximum context length: {_WINDOW}|$)",
            r"the input length exceeds the (?:maximum )?context length",
            # Groq (its code is context_length_exceeded); Cerebras adds the numbers (cline 5140).
            r"Please reduce the length of the messages or completion"
            rf"(?:\. Current length is {_N} while limit is {_WINDOW})?",
            # Hugging Face TGI and Together (chat-ui 340, text-generation-inference 695).
            rf"`inputs` tokens \+ `max_new_tokens` must be <= {_WINDOW}",
            rf"`inputs` must have less than {_WINDOW} tokens",
            r"Input token count \+ max_tokens parameter must be less than the context length of the model",  # Together
            # Bedrock: Claude and others, Nova, Titan.
            r"Input is too long for requested model",
            r"Input Tokens Exceeded: Number of input tokens exceeds maximum length",
            rf"Too many input tokens\. Max input tokens: {_WINDOW}",
            rf"prompt token count of {_N} exceeds the limit of {_WINDOW}",  # Copilot (copilot-api 65)
            rf"Request body too large for \S{{1,200}} model\. Max size: {_WINDOW} tokens",  # GitHub Models
            # Servers on this machine: oMLX (ClawX 658), Atlas (inference-atlas 186), DS4, mlx-serve (mlx-serve 66).
            rf"Prompt too long: {_N} tokens exceeds max(?:_seq_len| context window of) {_WINDOW}",
            rf"Prompt has {_N} tokens?, but the configured context size is {_WINDOW} tokens?",
            r"Prompt exceeds maximum context length",
        ),
    ),
    (
        _K.TOOLS_UNSUPPORTED,
        (
            r"No endpoints found that support (?:tool use|the provided 'tool_choice' value)",  # OpenRouter
            r'"auto" tool choice requires -{2}enable-auto-tool-choice and -{2}tool-call-parser to be set',  # vLLM, NIM
            r"(?:tools|tool_choice) param requires -{2}jinja flag",  # llama.cpp, as HTTP 500
            # Ollama names the model, DeepSeek too ("deepseek-reasoner does not support Function Calling"), Bedrock
            # says "This model doesn't support tool use in streaming mode", Together and Fireworks "model ...".
            rf"{_MODEL} (?:does not|doesn't) support {_TOOLS}\b",
            # Groq, Perplexity (pipecat 4862), Cerebras; Gemini's "... is not enabled for models/gemma-3-27b-it" and
            # Mistral's, code 3051; OpenAI's "Unsupported parameter: 'tools' is not supported with this model";
            # Alibaba's "The tool call is not supported".
            rf"(?:Unsupported parameter: |The )?[`'\"]?{_TOOLS}[`'\"]? (?:is|are) not (?:supported|enabled)\b",
            r"(?:Unrecognized request argument supplied|Unknown parameter): '?(?:tools|functions)\b",  # older OpenAI
        ),
    ),
    (
        _K.SCHEMA_UNSUPPORTED,
        (
            # OpenAI: the model (langchain 31490, openai-dotnet 276), and the schema (vercel/ai 6484); so Azure.
            r"Invalid parameter: 'response_format' of type 'json_schema' is not supported with",
            r"Invalid schema for (?:response_format|text\.format)\b",
            # DeepSeek (llm-exe 662, browser-use 215, litellm 31466).
            r"This response_format type is unavailable now",
            r"(?:Failed to deserialize the JSON body into the target type: )?(?:response_format: )?"
            r"response_format\.type [`'\"]?json_schema[`'\"]? is unavailable",
            # Groq: the model, the schema (beeai-framework 1215), tools beside it (vercel/ai 16540, agno 1065).
            r"This model does not support response format [`'\"]?json_schema",
            r"Invalid schema for response format\b",
            r"(?:['\"]?response_format['\"`]? json_object|json mode) cannot be combined with tool/function calling",
            # Gemini (python-genai 867, vercel/ai 16540, generative-ai-python 137).
            r"(?:Forced )?Function calling (?:\(ANY mode\) )?with a response mime type: 'application/json' is "
            r"unsupported",
            r"JSON mode is not enabled for",
            # Claude, elsewhere than at Anthropic (litellm 27846, anthropic-sdk-csharp 132), and older models.
            r"output_config(?:\.format)?: Extra inputs are not permitted",
            r"output_format: Extra inputs are not permitted",
            r"\S{1,200} does not support (?:output[ _]format|structured outputs?)\b",
            # llama.cpp (tools/server, common/chat.cpp).
            r"Cannot use custom grammar constraints with tools",
            r"Failed to (?:parse grammar|initialize samplers)",
            # OpenAI-compatible servers that check their fields (autogen 6255, vercel/ai 7808).
            r"['\"]?response_format['\"]? ?: (?:one of the following must be satisfied|value is not one of)",
            r"(?:Unsupported parameter|Unrecognized request argument supplied|Unknown parameter): "
            r"'?(?:response_format|text\.format)\b",
            r"[`'\"]?response_format(?:\.type)?[`'\"]? (?:of type '?json_schema'? )?(?:is|are) not supported\b",
        ),
    ),
    # Mistral's code 3051 is also said of what a model cannot do ("Image input is not enabled for this model").
    (_K.INVALID_REQUEST, (r"[\w ]{1,40} is not enabled for this model",)),
)
#: Phrases that mean it of one family only. OpenRouter says this of a request with `require_parameters` (docs/wire.md
#: quirk 79); of one without tools it is about something else (`http_errors.by_status`).
_OF_FAMILY: Final = {
    "openrouter": ((_K.TOOLS_UNSUPPORTED, (r"No endpoints found that can handle the requested parameters",)),),
}


@cache
def _phrases(family: str) -> tuple[tuple[ErrorKind, re.Pattern[str]], ...]:
    """Compiled when an error is first read: it takes 5 ms."""
    table = (*_TABLE, *_OF_FAMILY.get(family, ()))
    return tuple((kind, re.compile(phrase, re.IGNORECASE)) for kind, phrases in table for phrase in phrases)


@cache
def _wrapped() -> re.Pattern[str]:
    return re.compile(rf"\s*(?:{'|'.join(_WRAPPERS)}){{0,{_MAX_WRAPPERS}}}", re.IGNORECASE)


def kind_of_phrase(family: str, message: str) -> tuple[ErrorKind | None, int | None]:
    """What a server's message means by its words, and the window that it names; None and None for any other text."""
    start = _start(message)
    for kind, phrase in _phrases(family if family in _OF_FAMILY else ""):
        if found := phrase.match(message, start):
            return kind, window_of(found.groupdict().get("window"))
    return None, None


def unwrapped(message: str) -> str:
    """The message without what gateways and SDKs put before it."""
    return message[_start(message) :]


def _start(message: str) -> int:
    wrapped = _wrapped().match(message)
    return wrapped.end() if wrapped else 0


def window_of(value: object) -> int | None:
    """A window in tokens, from a number or its text; None for what cannot be one."""
    if isinstance(value, str) and value.replace(",", "").isascii() and value.replace(",", "").isdigit():
        value = int(value.replace(",", ""))
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_CALL_TOKENS else None
