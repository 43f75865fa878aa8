"""What servers say of an error: one table from the API, the HTTP status, a code or the words of a message to its kind.

What follows from a kind (is it tried again, is a wait kept, is a fallback asked, what does the user do) is said once,
in `protocol.errors.KINDS_OF_ERRORS`. A row names its source: the API's documents, or an issue of a public repository.

A status or a code decides by itself (`KINDS`). Words count where those leave open what is wrong: a row of `_WORDS` says
which kinds it makes exact. A phrase counts only where the message begins with it, after what gateways and SDKs are
known to put before an error (`_WRAPPERS`). So a message that quotes a user's text, a tool's result or another server's
error does not match. The numbers in a phrase may be named `window`: how many tokens the model takes, by its own count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple

from callboard.protocol.errors import ErrorKind
from callboard.protocol.limits import MAX_CALL_TOKENS

ANY: Final = "*"
_K = ErrorKind

# ---------------------------------------------------------------- statuses and codes

#: HTTP statuses alone, where no code is known. 498 is Groq's (flex capacity exceeded), 524 Cloudflare's (origin slow).
_STATUSES: Final = {
    _K.INVALID_REQUEST: (400, 422),
    _K.AUTHENTICATION: (401,),
    _K.BILLING: (402,),
    _K.PERMISSION: (403,),
    _K.NOT_FOUND: (404, 405, 410),  # 410: NVIDIA's models beyond their end of life
    _K.TIMEOUT: (408, 504, 524),
    _K.OVERLOADED: (409, 425, 498, 503, 529),
    _K.REQUEST_TOO_LARGE: (413,),
    _K.RATE_LIMITED: (429,),
}
#: Codes, types and status words, for any HTTP status: OpenAI's, which the compatible servers copy, Anthropic's
#: (GitHub Copilot sends them too, on its messages route), llama.cpp's, Groq's, and words of others that mean nothing
#: else: Moonshot's (platform.moonshot.ai, "Errors"), Alibaba's (help.aliyun.com, "Error codes"), Azure's inner codes.
_CODES: Final = {
    _K.AUTHENTICATION: "invalid_api_key account_deactivated authentication_error invalid_authentication_error "
    "incorrect_api_key_error invalidapikey wrong_api_key",
    # insufficient_quota is a 429 that waiting does not cure; so are Moonshot's and Alibaba's.
    # Anthropic's credits_required comes as a 429 rate_limit_error (hermes-agent 109553), MiniMax's
    # insufficient_balance_error too (modelscope 1691); insufficient_funds is Vercel's gateway's;
    # insufficient_user_quota and pre_consume_token_quota_failed are one-api's and new-api's, as a 403 (FastGPT 916).
    _K.BILLING: "insufficient_quota billing_hard_limit_reached billing_not_active credit_balance_too_low billing_error "
    "exceeded_current_quota_error arrearage allocationquota.freetieronly credits_required insufficient_balance_error "
    "insufficient_balance insufficient_credits insufficient_funds insufficient_user_quota "
    "pre_consume_token_quota_failed",
    # ChatGPT's plans (pi 4172), Copilot's allowance of the month; LiteLLM's budgets, as 429 and 400 (litellm 40002).
    _K.QUOTA_SPENT: "usage_limit_reached budget_exceeded",
    # Groq's organization_restricted is a 400 (crewAI 783).
    _K.PERMISSION: "permission_error permission_denied_error accessdenied model.accessdenied organization_restricted "
    "unsupported_country_region_territory",
    _K.NOT_FOUND: "model_not_found deploymentnotfound not_found_error resource_not_found_error invalid_model "
    "model_not_supported model_not_available model_decommissioned unknown_model modelnotfound "
    "invalidendpointormodel.notfound",  # Groq (sqlmap-ai 3), GitHub Models, Alibaba, Volcano
    _K.CONTEXT_LENGTH: "context_length_exceeded exceed_context_size_error model_max_prompt_tokens_exceeded "
    "tokens_limit_reached",
    _K.REQUEST_TOO_LARGE: "string_above_max_length request_too_large badrequest.toolarge",
    _K.CONTENT_FILTER: "content_filter content_policy_violation responsibleaipolicyviolation datainspectionfailed "
    "data_inspection_failed",
    _K.RATE_LIMITED: "rate_limit_exceeded rate_limit_error rate_limit_reached_error rate_limited tokens requests "
    "too_many_requests_error too_many_tokens_error throttling throttling.ratequota throttling.allocationquota "
    "limit_requests limit_burst_rate",
    _K.OVERLOADED: "slow_down server_is_overloaded engine_overloaded engine_overloaded_error service_unavailable "
    "overloaded_error service_tier_capacity_exceeded queue_exceeded",
    _K.SERVER: "server_error internal_error internalservererror internal_server_error internalerror api_error",
    _K.TIMEOUT: "timeout_error requesttimeout",
    # The last one is ours, of FastAPI's list of what is wrong.
    _K.INVALID_REQUEST: "invalid_request_error invalid_prompt unsupported_value unsupported_parameter validation_error",
    _K.MALFORMED_TOOL_CALL: "tool_use_failed",  # Groq: what the model wrote was no call
    _K.TOOLS_UNSUPPORTED: "tools_not_supported tool_use_not_supported",
    _K.SCHEMA_UNSUPPORTED: "invalid_json_schema",  # OpenAI Responses
    # Azure: a model that has no chat; Copilot: one that has only the other API (copilot-api 208).
    _K.UNSUPPORTED: "operationnotsupported unsupported_api_for_model",
}
#: Bedrock's exceptions, as HTTP errors (header x-amzn-errortype) and in the stream; the last ones of AUTHENTICATION are
#: those of every AWS service ("Common Errors" of the API reference).
_BEDROCK: Final = {
    _K.AUTHENTICATION: "expiredtokenexception unrecognizedclientexception invalidsignatureexception "
    "incompletesignatureexception missingauthenticationtokenexception expiredtoken invalidclienttokenid",
    _K.PERMISSION: "accessdeniedexception",
    _K.BILLING: "servicequotaexceededexception",  # a quota of the account, which waiting does not raise
    _K.NOT_FOUND: "resourcenotfoundexception",
    _K.INVALID_REQUEST: "validationexception",
    _K.RATE_LIMITED: "throttlingexception",
    _K.OVERLOADED: "serviceunavailableexception modelnotreadyexception",
    _K.TIMEOUT: "modeltimeoutexception",
    _K.SERVER: "internalserverexception modelerrorexception modelstreamerrorexception internalfailure",
}
#: Numbers that are codes of one family. Z.ai: docs.z.ai/api-reference/api-code; 1304, 1308 and 1310 are limits of the
#: day, of five hours and of the week. Mistral: 3051 is said of a prompt that is too long, and of what the model cannot
#: do, which only the words tell apart; 3505 is "Service tier capacity exceeded". MiniMax, in `base_resp`:
#: platform.minimax.io/docs/api-reference/errorcode; 1039 is tokens a minute, 2056 the plan's window, 2061 a model that
#: the plan does not have.
_NUMBERS: Final = {
    "zai": {
        _K.AUTHENTICATION: "1000 1001 1002 1003 1004",
        _K.PERMISSION: "1110 1111 1112 1121 1220 1311",
        _K.BILLING: "1113 1309",
        _K.QUOTA_SPENT: "1304 1308 1310",
        _K.NOT_FOUND: "1211 1221 1222",
        _K.INVALID_REQUEST: "1210 1212 1213 1214 1215 1231",
        _K.SERVER: "1120 1200 1230 1234",
        _K.CONTEXT_LENGTH: "1261",
        _K.CONTENT_FILTER: "1300 1301",
        _K.RATE_LIMITED: "1302 1303 1305",
        _K.OVERLOADED: "1312",
    },
    "mistral": {
        _K.RATE_LIMITED: "1300",
        _K.NOT_FOUND: "1500",
        _K.INVALID_REQUEST: "3051 3230",
        _K.OVERLOADED: "3505",
    },
    "minimax": {
        _K.AUTHENTICATION: "1004 2049",
        _K.BILLING: "1008",
        _K.QUOTA_SPENT: "2056",
        _K.NOT_FOUND: "2061",
        _K.INVALID_REQUEST: "1042 2013",
        _K.CONTENT_FILTER: "1026 1027",
        _K.RATE_LIMITED: "1002 1039 1041 2045",
        _K.TIMEOUT: "1001",
        _K.SERVER: "1000 1013 1024 1033",
    },
}
KINDS: Final[Mapping[tuple[str, int, str], ErrorKind]] = {
    **{(ANY, status, ""): kind for kind, statuses in _STATUSES.items() for status in statuses},
    **{(ANY, 0, code): kind for kind, codes in _CODES.items() for code in codes.split()},
    **{("bedrock", 0, code): kind for kind, codes in _BEDROCK.items() for code in codes.split()},
    ("bedrock", 424, ""): _K.SERVER,  # ModelErrorException without its header (anthropic-sdk-python 432)
    ("azure", 401, "permissiondenied"): _K.PERMISSION,  # an Entra identity without the role
    **{
        (family, 0, number): kind
        for family, rows in _NUMBERS.items()
        for kind, numbers in rows.items()
        for number in numbers.split()
    },
    # Gemini's statuses (google.rpc.Code).
    ("gemini", 0, "invalid_argument"): _K.INVALID_REQUEST,
    ("gemini", 0, "failed_precondition"): _K.BILLING,  # free tier not available there: enable billing
    ("gemini", 0, "unauthenticated"): _K.AUTHENTICATION,
    ("gemini", 0, "api_key_invalid"): _K.AUTHENTICATION,  # sent as a 400; the reason is in details
    ("gemini", 0, "permission_denied"): _K.PERMISSION,
    ("gemini", 0, "not_found"): _K.NOT_FOUND,
    ("gemini", 0, "resource_exhausted"): _K.RATE_LIMITED,
    ("gemini", 0, "internal"): _K.SERVER,
    ("gemini", 0, "unavailable"): _K.OVERLOADED,
    ("gemini", 0, "deadline_exceeded"): _K.TIMEOUT,
    # OpenRouter and Copilot.
    ("openrouter", 403, ""): _K.CONTENT_FILTER,  # moderation
    # Groq: one request above the limit of a minute, which waiting does not cure.
    ("groq", 413, "rate_limit_exceeded"): _K.REQUEST_TOO_LARGE,
    # Cerebras sends a prompt that is too long back without a body (pi's list of overflow errors, pi issue 4943).
    ("cerebras", 413, ""): _K.CONTEXT_LENGTH,
    ("copilot", 0, "quota_exceeded"): _K.QUOTA_SPENT,  # premium requests of the month
}
#: Google's ids of a quota: "GenerateRequestsPerDayPerProjectPerModel-FreeTier" (comic-translate 403). RetryInfo asks
#: for seconds all the same, after which the day is still spent.
SPENT_QUOTAS: Final = re.compile(r"per(?:day|week|month)", re.IGNORECASE)

# ---------------------------------------------------------------- words

#: A number of tokens, and one that is the model's window.
_N: Final = r"\d[\d,]{0,14}"
_WINDOW: Final = rf"(?P<window>{_N})"

#: What comes before the server's own words. Sources: SGLang "Bad Request: " (opencode 25230), Moonshot "Invalid
#: request: " (MoonshotAI-Cookbook 18), TGI and Together "Input validation error: " (text-generation-inference 695),
#: MiniMax "invalid params, " (MiniMax-M2 119), Alibaba "<400> InternalError.Algo.InvalidParameter: " (qwen-code 98),
#: botocore and Bedrock (goose 7504, bedrock-chat 95), OpenRouter "Upstream error from ...: ", LiteLLM (Devon 88), a
#: status that a proxy repeats (cline 3120). Numbers in this file's comments are issues of the repository named.
NOT_JSON: Final = "the error is not JSON; "
_WRAPPERS: Final = (
    rf"{NOT_JSON}it said: ",  # ours, of a plain text
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
    # 5350); Cohere's begins with an id, LM Studio's has the words at once (lmstudio-bug-tracker 189).
    r"\{'error': ['\"]",
    r"\{(?:'error': \{)?(?:'(?:id|object)': '[\w-]{1,60}', )?'message': ['\"]",
    r"context_length_exceeded: ",  # ik_llama.cpp 2051
    r"<[a-z!/][^<>]{0,200}>\s{0,20}",  # a proxy's page begins with its title
)
#: More are not read: LiteLLM's take four, and the server's behind it may have its own.
_MAX_WRAPPERS: Final = 8
_TOOLS: Final = r"(?:tools?|tool[ _-](?:use|calls?|calling)|functions?|function[ _-]?(?:calls?|calling))"
_MODEL: Final = r"(?:\S{1,200}|(?:this|the) (?:model|API|endpoint|provider)|(?:the )?model \S{1,200})"

_MEDIA: Final = r"(?:image|audio|video|vision|pdf|file|document|multimodal|speech)s?"
_NAME: Final = r"[`'\"]?[^\s`'\"]{1,200}[`'\"]?"

#: A limit of an hour or more, and whose it is.
_LONG_LIMIT: Final = (
    r"(?:hourly|daily|weekly|monthly) (?:(?:\w{1,20}[- ]){0,3})(?:limit|quota|allowance|allocation|cap|budget)s?\b"
)
_WHO: Final = (
    r"(?:You(?: have|['’]ve)?|(?:Your|This|The) (?:[\w'’-]{1,40} ){1,3}(?:has|have|would)|Number of (?:\w{1,20} ){1,3}"
    r"(?:has|have))"
)

#: Kinds by a status or a code that leave open what is wrong.
_BROAD: Final = frozenset(
    {_K.INVALID_REQUEST, _K.OTHER, _K.SERVER, _K.NOT_FOUND, _K.REQUEST_TOO_LARGE, _K.CONTEXT_LENGTH}
)
#: Money and keys are told by 401, 403 and 429 as well; OpenRouter's 403 is a filter's otherwise.
_ALSO_REFUSED: Final = _BROAD | {_K.RATE_LIMITED, _K.PERMISSION, _K.AUTHENTICATION, _K.CONTENT_FILTER}
#: An error inside an answer of HTTP 200 that has no code.
_NOTHING_SAID: Final = frozenset({_K.OTHER})


class _Row(NamedTuple):
    kind: ErrorKind
    phrases: tuple[str, ...]
    refines: frozenset[ErrorKind] = _BROAD
    """The kinds by status and code that these words make exact; any other is believed."""
    family: str = ""
    """The only API whose words mean it; "": all."""


#: The first phrase that matches counts.
_WORDS: Final = (
    _Row(
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
    _Row(
        _K.BILLING,
        (
            # Anthropic, as a 400 invalid_request_error (claude-code 66314); its plans (pi 2943, hermes-agent 31668),
            # also as a 429 rate_limit_error (claude-code 42616, hermes-agent 109553).
            r"Your credit balance is too low\b",
            r"You['’]re out of extra usage\b",
            r"Third-party apps now draw from your extra usage\b",
            r"Extra usage is required for\b",
            r"Usage credits are required for\b",
            # xAI, as 429 and 403 (continue 10373, hermes-agent 26847, sub2api 4069).
            r"Your (?:newly created )?team \S{1,80} has either used all available credits\b",
            r"Your newly created team doesn't have any credits\b",
            r"You have run out of credits\b",
            # OpenAI (platform.openai.com/docs/guides/error-codes). Gemini begins alike, with another address behind it,
            # and says it of a limit of the minute.
            r"You exceeded your current quota, please check your plan and billing details\. For more information on "
            r"this error, read the docs",
            r"Billing hard limit has been reached",
            r"Your account is not active, please check your billing details",
            # DeepSeek (continue 9942), MiniMax, whose number stands behind it (MiniMax-M2 62), opencode
            # (oh-my-pi 3170), Z.ai; SiliconFlow and Moonshot in other orders.
            r"Insufficient[ _](?:account )?(?:balance|credits?|funds)\b",
            r"(?:Sorry, )?(?:your )?account balance is insufficient",
            r"Your account \S{1,200} is suspended due to insufficient balance",
            # OpenRouter (qwen-code 73, open-assistant 80), its limit of a key as a 403.
            r"This request requires more credits, or fewer max_tokens",
            r"Key limit exceeded \(total limit\)",
            # Hugging Face, Together, Fireworks (as a 412), NVIDIA, Alibaba (as a 400), Vercel's gateway (as a 403).
            r"You have (?:exceeded|depleted) your monthly included credits\b",
            r"Credit limit exceeded\b",
            r"Account \S{1,200} is suspended, possibly due to reaching the monthly spending limit",
            r"(?:Cloud|Account) credits (?:expired|exhausted)\b",
            r"Access denied, please make sure your account is in good standing",
            r"The free tier of the model has been exhausted",
            r"AI Gateway requires a valid credit card on file",
            # Gemini (prepaid), Vertex and AWS (no way to pay).
            r"Your prepay(?:ment)? credits are depleted",
            r"This API method requires billing to be enabled",
            r"Model access is denied due to INVALID_PAYMENT_INSTRUMENT\b",
            r"(?:user|token) quota is not enough\b",  # one-api, new-api (FastGPT 916)
        ),
        _ALSO_REFUSED,
    ),
    _Row(
        _K.QUOTA_SPENT,
        (
            # Anthropic, as a 400: the organisation's or the workspace's limit of the month, with the day of its end.
            r"You have reached your specifi(?:ed|c) (?:workspace )?API usage limits\b",
            # ChatGPT's plans (pi 4172, codex 3257), MiniMax's, Kimi's, Z.ai's, Ollama's cloud.
            r"The usage limit has been reached",
            r"You['’]ve (?:hit|reached) your (?:\w{1,20} )?usage limit\b",
            r"(?:you have|you['’]ve) reached your (?:hourly|daily|weekly|monthly|session) usage limit\b",
            r"Usage limit (?:exceeded|reached)\b",
            r"Weekly/Monthly Limit Exhausted\b",
            # OpenRouter's free models and keys (cline 5301, openclaude 1549), Cohere's trial keys, Copilot.
            r"Rate limit exceeded: free-models-per-day\b",
            r"Key limit exceeded \((?:daily|weekly|monthly) limit\)",
            r"You are using a Trial key, which is limited to \d{1,9} API calls / month",
            r"You have exceeded your (?:premium request allowance|monthly quota)\b",
            # GitHub Models (its window is a day), Cerebras, Cloudflare, Gemini's and Vertex's words where a gateway has
            # left out the details.
            r"Rate limit of \d{1,9} per 86400s exceeded\b",
            r"(?:Tokens|Requests) per day limit exceeded\b",
            r"Too many (?:tokens|requests) per (?:day|week|month)\b",  # Bedrock (aws re:Post, "ThrottlingException")
            r"you have used up your daily free allocation\b",
            r"You have exhausted your (?:daily quota|capacity) on this model\b",
            r"Quota exceeded for quota metric '[^']{1,200}' and limit '[^']{0,200}per day\b",
            # Anthropic's limit of the day as a 429 (AI-Scientist 115), Gemini's monthly spending cap
            # (ai.google.dev/gemini-api/docs/billing), and such words of others; Baidu's code 17.
            rf"{_WHO} (?:already )?(?:exceed(?:ed)?|reached|hit|exhausted|used up) (?:your|its|the) "
            rf"(?:(?:account|organization|team)(?:['’]s)? )?{_LONG_LIMIT}",
            rf"(?:(?:Your|The|Open api) )?{_LONG_LIMIT} (?:(?:is|was|has been) )?(?:exceeded|reached|hit|exhausted)\b",
            # LiteLLM's budgets without their type (litellm 4208, 14144; its documents, "Budgets, Rate Limits").
            r"Budget has been exceeded\b",
            r"Exceeded\w{0,20}Budget: ",
            r"No deployments available - crossed budget\b",
            r"LiteLLM \w{1,30}: [^,]{1,200}, exceeded budget for model=",
        ),
        _ALSO_REFUSED,
    ),
    _Row(
        _K.AUTHENTICATION,
        (
            # xAI (as a 400: continue 10778), OpenAI, Gemini (400), MiniMax (2049), SiliconFlow, llama.cpp, Mistral.
            r"(?:Incorrect|Invalid|Expired|Missing|No) API[ _-]?(?:key|token)\b",
            r"API[ _-]?key (?:is )?(?:not valid|invalid|not found|expired|missing)\b",
            r"Invalid (?:x-api-key|bearer token|access token|authentication|authorization|credentials|username or "
            r"password)\b",
            r"Authentication (?:fails|failed|required|error)\b",  # DeepSeek
            r"login fail\b",  # MiniMax, 1004
            r"No (?:cookie )?auth credentials found",  # OpenRouter
            r"You didn't provide an API key",  # OpenAI
            # FastAPI's security (fastapi.tiangolo.com/reference/security), the first as a 403.
            r"Not authenticated\b",
            r"Could not validate credentials",
            r"Unauthorized\b",
            r"The security token included in the request is (?:invalid|expired)",  # AWS, as a 403
        ),
        _BROAD | {_K.PERMISSION},
    ),
    _Row(
        _K.PERMISSION,
        (
            # Anthropic as a 400 (claude-code 8327), Groq (crewAI 783, one-api 1764).
            r"(?:(?:This|Your) )?(?:organization|account|workspace|team)(?: \S{1,80})? has been (?:disabled|restricted|"
            r"suspended|deactivated|banned|blocked)\b(?! due to)",
            r"This credential is only authorized for use with ",  # Anthropic, a plan's token as a 400
        ),
    ),
    _Row(
        _K.PERMISSION,
        (
            # From this country not: Gemini's FAILED_PRECONDITION (gemini-cli 1614; with more words it is about billing,
            # neo-chat 7), OpenAI, Claude on Bedrock.
            r"User location is not supported for the API use(?! without a billing)",
            r"Country, region, or territory not supported",
            r"Access to Anthropic models is not allowed from unsupported countries",
        ),
        _BROAD | {_K.BILLING},
    ),
    _Row(
        _K.CONTENT_FILTER,
        (
            # OpenAI's code invalid_prompt, which is of other faults too (codex 7250), and its safety system.
            r"(?:Invalid prompt: )?Your (?:prompt|request|input) was (?:flagged as potentially violating|rejected as a "
            r"result of|rejected by) (?:our|the) (?:usage polic(?:y|ies)|safety system)\b",
            r"The response was filtered due to the prompt triggering ",  # Azure, behind a gateway
            r"Output blocked by content filtering policy",  # Anthropic, as a 400
            r"Content Exists Risk\b",  # DeepSeek
            r"Content violates usage guidelines\b",  # xAI, as a 403
            r"The request was rejected because it was considered high risk",  # Moonshot
            r"(?:Input|Output) (?:text |image )?data may contain inappropriate content",  # Alibaba
        ),
        _BROAD | {_K.PERMISSION},
    ),
    _Row(
        _K.MALFORMED_TOOL_CALL,
        (
            # Nova on Bedrock, as a 424 and in the stream (harness-sdk 649, langchain-aws 567).
            r"Model produced invalid sequence as part of ToolUse\b",
            # Groq's tool_use_failed (console.groq.com, "Tool Use"), where a gateway has left out the code.
            r"Failed to call a function\. Please adjust your prompt",
            r"Tool call validation failed: ",
            r"Failed to parse tool call arguments as JSON",
        ),
    ),
    # Bedrock's 424, which gateways send as a 400 (anthropic-sdk-python 432).
    _Row(_K.SERVER, (r"The system encountered an unexpected error during processing\b",)),
    _Row(
        _K.TOOLS_UNSUPPORTED,
        (
            r"No endpoints found that support (?:tool use|the provided 'tool_choice' value)",  # OpenRouter
            r'"auto" tool choice requires -{2}enable-auto-tool-choice and -{2}tool-call-parser to be set',  # vLLM, NIM
            r"(?:tools|tool_choice) param requires -{2}jinja flag",  # llama.cpp, as HTTP 500
            r"Cannot use tools with stream",  # llama.cpp before May 2025, as HTTP 500
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
    _Row(
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
            # Anthropic, of what it compiles (anthropic-sdk-python 1185, TanStack/ai 682 and 686); behind a path or not.
            r"output_(?:config\.format|format)(?:\.schema)?: ",
            r"(?:Invalid schema: )?(?:The )?compiled grammar is too large",
            r"(?:Invalid schema: )?Schemas? (?:is too complex|contains? too many)\b",
            r"(?:Invalid schema: )?Circular reference detected in schema definitions",
            r"(?:Invalid schema: )?Grammar compilation timed out",
            r"Invalid JSON schema\b",  # OpenAI Responses, of a pattern; Groq, of a tool
            # Of a tool's schema: OpenAI (dify 32894, docker-agent 4155), Anthropic and Bedrock (litellm 39115,
            # pydantic-ai 5579). Of one that was not strict it is a bad request (`Refusals`).
            r"Invalid schema for (?:function|tool)\b",
            r"tools\.\d{1,4}\.custom(?:\.input_schema)?: (?:For '|JSON schema|Invalid schema|Schema)",
            r"Too many strict tools\b",
            # Gemini (python-genai 660), with and without the path of what it does not know.
            r"The specified schema produces a constraint that has too many states",
            r"A schema in GenerationConfig\b",
            r"Invalid JSON payload received\. Unknown name \S{1,200} at 'generation_config\.response_(?:json_)?schema",
            # vLLM and SGLang over xgrammar (vllm 26421), Cerebras.
            r"The provided JSON schema contains features not supported",
            r"(?:Failed to (?:compile|transform) (?:the )?json|Invalid (?:JSON )?grammar specification)\b",
            r"Unsupported JSON schema fields\b",
            # Cerebras of a strict schema, as a 422 (agno 6013).
            r"[`'\"]?additionalProperties[`'\"]? is required to be supplied and (?:set )?to (?:be )?false",
            # vLLM over llguidance, as a 500 and a 400 (club-3090 45; vllm, backend_guidance.py); Fireworks (pi 5352).
            r"Grammar error: ",
            r"JSON schema (?:is )?not supported\b",
            # LM Studio takes no json_object (lmstudio-bug-tracker 189, 169); Groq's schemas once took no streams
            # (langchain 23629, litellm 4804).
            r"body\.response_format(?:\.|: )",  # FastAPI's list of what is wrong, as Mistral's 422
            r"[`'\"]?response_format(?:\.type)?[`'\"]? (?:must be|does(?: not|n['’]t) support)\b",
            # llama.cpp, as a 500 (tools/server/server-common.cpp, server-task.cpp).
            r"Cannot use both json_schema and grammar",
            r"Either \"json_schema\" or \"grammar\" can be specified, but not both",
            r"(?:\"json_schema\": )?JSON schema conversion failed",
        ),
    ),
    _Row(
        _K.UNSUPPORTED,
        (
            # llama.cpp as a 500 (llama.cpp 13566, 15377, 12947), Mistral's 3051, Cerebras, Together.
            rf"{_MEDIA}(?:[ _](?:input|content|url|upload|modality|data))?s? (?:is|are) not (?:supported|enabled|"
            r"allowed)\b",
            r"(?:Failed to parse messages: )?Unsupported content part type\b",
            r"unsupported content\[\]\.type\b",
            r"Only 'text' content type is supported",
            r"This server does not support \w",
            # Ollama (ollama 17301), Bedrock, xAI and others: the model, and what it does not take.
            rf"{_MODEL} (?:does not|doesn['’]t) support (?:the )?(?:{_MEDIA}|thinking|reasoning|effort|chat|generate|"
            r"completions?|embeddings?|streaming|insert|system (?:messages?|prompts?|instructions?)|assistant message "
            r"prefill|parallel tool calls)\b",
            r"this model is missing data required for image input",
            rf"No endpoints found that support (?:input )?{_MEDIA}",  # OpenRouter, as a 404 (nexu 875)
            # vLLM.
            rf"{_NAME} is not a multimodal model",
            r"At most 0 \w{1,20}(?:\(s\))? may be provided",
            r"The model does not support Chat Completions API",
            # DeepSeek, OpenAI, Azure.
            r"(?:Failed to deserialize the JSON body into the target type: )?messages\[\d{1,6}\]\S{0,40}: unknown "
            r"variant `(?:image_url|input_audio|file)`",
            r"(?:Invalid content type\. )?image_url is only supported by certain models",
            r"This is not a chat model\b",
            r"This model is only supported in v1/",
            r"The \w{1,30} operation does not work with the specified model",
            # Anthropic and Gemini, of thinking; Gemini of instructions and sound; Bedrock of a model without chat.
            r"(?:[\w.'\"-]{1,40} )?thinking(?: \w{1,20})? is not (?:supported|enabled)\b",
            r"Developer instruction is not enabled for",
            rf"{_MEDIA} input modality is not enabled\b",
            r"This action doesn['’]t support the model that you provided",
            # Copilot, whose code is model_not_supported at times (copilot-api 208, copilot-cli 4337).
            rf"(?:The )?model {_NAME} is not (?:accessible|supported) (?:via|through) (?:the )?(?:/|Responses|Chat)",
            r"[\w ]{1,40} is not enabled for this model",  # Mistral's 3051 once more
        ),
    ),
    _Row(
        _K.NOT_FOUND,
        (
            # OpenAI, Groq, vLLM, Ollama, Cohere, Hugging Face, Cerebras, Alibaba, NVIDIA, xAI's 404: by name.
            rf"(?:The )?(?:requested )?(?:model|deployment) {_NAME} (?:(?:does not|doesn['’]t) exist|(?:was |is )?not "
            r"found|has been (?:decommissioned|deprecated|retired|removed)|was removed|has reached its end of life|is "
            r"(?:not available|no longer (?:available|supported)|deprecated|retired|not deployed|not supported by any "
            r"provider))\b",
            r"The requested model (?:is not (?:supported|available)|does not exist)\b",  # Copilot
            # xAI and DeepSeek as a 400 (easy-dataset 9, Paper2Slides 37), SiliconFlow's 20012, Fireworks.
            r"Model not found\b",
            r"Model (?:(?:does|is) )?not (?:exist|available)\b",
            r"The supported API model names are ",
            rf"{_NAME} is not a valid model\b",  # OpenRouter, as a 400 (anthropic-proxy 4)
            # Mistral, Perplexity, LM Studio, LiteLLM (platform.publicai.co 6, litellm 8821).
            r"(?:[\w/]{1,60}: )?Invalid model(?: name| identifier| ID)?(?: passed\b|[:.,]| ['\"`]|$)",
            r"(?:Unknown|Unsupported|No such) model\b",  # Azure, GitHub Models, MiniMax's 2013
            r"No models? (?:is |are )?(?:currently )?loaded",  # LM Studio
            rf"Unable to access (?:non-serverless )?model {_NAME}",  # Together
            rf"Not found the model {_NAME}",  # Moonshot
            # Gemini, Vertex.
            r"models/\S{1,200} is (?:not found for API version|no longer available)",
            r"This model (?:models/\S{1,200} )?is no longer (?:available|supported)",
            r"Publisher Model \S{1,300} (?:was not found|is not)",
            # Bedrock, as a ValidationException (opencode 11041, cline 2482, idp 708).
            r"The provided model identifier is invalid",
            r"Invocation of model ID \S{1,200} with on-demand throughput isn['’]t supported",
            r"The provided model doesn['’]t support on-demand throughput",
            r"This model version has reached the end of its life",
            rf"The {_NAME} model is not (?:supported|available)\b",  # ChatGPT's plans
            r"模型不存在",  # Z.ai
        ),
    ),
    # What a stream says of its server where there is no code (plain text behind `event: error`, FastAPI's `detail`).
    _Row(_K.RATE_LIMITED, (r"Rate limit (?:is )?(?:reached|exceeded|hit)\b", r"Too many requests\b"), _NOTHING_SAID),
    _Row(
        _K.OVERLOADED,
        (
            r"(?:upstream )?overloaded\b",
            r"(?:The |Our )?(?:server|service|model|engine|system)s? (?:is|are) (?:currently |temporarily )?"
            r"(?:overloaded|busy|at capacity|unavailable)\b",
            r"Service (?:temporarily )?unavailable\b",
        ),
        _NOTHING_SAID,
    ),
    _Row(
        _K.TIMEOUT,
        (r"Gateway Time-?out\b", r"(?:upstream )?request time(?:d )?-?out\b", r"stream timeout\b"),
        _NOTHING_SAID,
    ),
    _Row(
        _K.SERVER,
        (r"Internal (?:server )?error\b", r"Bad Gateway\b", r"upstream connect error\b"),  # the last one: Envoy
        _NOTHING_SAID,
    ),
    # OpenRouter says this of a request with `require_parameters` (docs/wire.md quirk 79); of one without tools it is
    # about something else (`http_errors.by_status`).
    _Row(
        _K.TOOLS_UNSUPPORTED,
        (r"No endpoints found that can handle the requested parameters",),
        family="openrouter",
    ),
)
_FAMILIES: Final = frozenset(row.family for row in _WORDS)


class _Phrase(NamedTuple):
    kind: ErrorKind
    refines: frozenset[ErrorKind]
    pattern: re.Pattern[str]


@cache
def _phrases(family: str) -> tuple[_Phrase, ...]:
    """Compiled when an error is first read: it takes 20 ms."""
    rows = (row for row in _WORDS if row.family in ("", family))
    return tuple(_Phrase(row.kind, row.refines, re.compile(p, re.IGNORECASE)) for row in rows for p in row.phrases)


@cache
def _wrapped() -> re.Pattern[str]:
    return re.compile(rf"\s*(?:{'|'.join(_WRAPPERS)}){{0,{_MAX_WRAPPERS}}}", re.IGNORECASE)


def kind_of_phrase(
    family: str, message: str, kind: ErrorKind = _K.INVALID_REQUEST
) -> tuple[ErrorKind | None, int | None]:
    """What a server's message means by its words, and the window that it names; None and None for any other text.
    `kind` is what its status and code say."""
    start = _start(message)
    for phrase in _phrases(family if family in _FAMILIES else ""):
        if kind in phrase.refines and (found := phrase.pattern.match(message, start)):
            return phrase.kind, window_of(found.groupdict().get("window"))
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
