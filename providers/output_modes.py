"""How each provider's models are best asked for an answer of a certain form: by the API's own field, or otherwise.

A row says which of a provider's models take a JSON Schema of the answer, whether they take one beside tools, and which
schemas they take. Where nothing is known the field is tried without tools beside it: a server that refuses it is asked
in another way, which costs one request an hour. Behind each row is where it comes from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from callboard.protocol.errors import UsageError
from callboard.protocol.output import OutputMode, is_any_object
from callboard.providers.anthropic.messages_dialects import MESSAGES_SERVERS
from callboard.providers.openai.dialects import SERVERS
from callboard.providers.schema_dialects import ANTHROPIC_ANSWER, GEMINI_ANSWER, SchemaDialect
from callboard.providers.tool_schema import adapted

_EVERY: Final = re.compile("")
_NONE: Final = re.compile(r"(?!)")


class OutputForms(Struct, frozen=True):
    """What the models of one provider take."""

    native: re.Pattern[str] = _EVERY
    """Models that take a schema of the answer (found anywhere in the name)."""
    beside_tools: re.Pattern[str] = _NONE
    """Of those, the ones that take it beside tools too."""
    recursive: bool = True
    """The schema may refer to itself."""
    strict: SchemaDialect | None = None
    """The schema must be one that this dialect says in full: the API has no other for answers."""
    tools: bool = True
    """Its models take tools."""


#: Guide "Structured outputs": gpt-4o-2024-08-06 and later, gpt-4o-mini; earlier ones answer "Invalid parameter:
#: 'response_format' of type 'json_schema' is not supported with this model" (langchain-ai/langchain#31490).
_OPENAI: Final = re.compile(
    r"^(?!.*(?:gpt-3\.5|gpt-35|gpt-4(?!o|\.\d)|gpt-4o-2024-05|o1-(?:mini|preview)))", re.IGNORECASE
)
#: platform.claude.com, "Structured outputs": from Claude 4.5 on, beside tools too.
_CLAUDE: Final = re.compile(
    r"claude-(?!2|3|instant)(?!(?:opus|sonnet)-4(?:-0|-1|-2025(?:0514|0805))?(?:$|[@:]|-v))", re.IGNORECASE
)
#: ai.google.dev, "Structured outputs": from Gemini 1.5 on, beside tools from Gemini 3 on; before that "Function calling
#: with a response mime type: 'application/json' is unsupported" (googleapis/python-genai#867). Recursion is unrolled to
#: some depth only.
_GEMINI: Final = re.compile(r"gemini-(?!1\.0|pro)", re.IGNORECASE)
_GEMINI_3: Final = re.compile(r"gemini-(?:[3-9]|\d\d)", re.IGNORECASE)
_CLAUDE_FORMS: Final = OutputForms(_CLAUDE, _CLAUDE, strict=ANTHROPIC_ANSWER)
_GEMINI_FORMS: Final = OutputForms(_GEMINI, _GEMINI_3, recursive=False)
_OPENAI_FORMS: Final = OutputForms(_OPENAI, _OPENAI)
#: By tool calls, or in words.
_WITHOUT: Final = OutputForms(_NONE)

_ROWS: Final[Mapping[str, OutputForms]] = {
    **{name: _OPENAI_FORMS for name in ("openai", "openai-responses", "openai-chat", "azure", "azure-responses")},
    "anthropic": _CLAUDE_FORMS,
    "gemini": _GEMINI_FORMS,
    # docs.aws.amazon.com, "Structured outputs": Claude 4.5 and later, and open models; Nova takes a tool only.
    "bedrock": OutputForms(
        re.compile(rf"{_CLAUDE.pattern}|qwen3|gpt-oss|mistral-large-3|ministral|deepseek|kimi|minimax", re.IGNORECASE),
        _CLAUDE,
        strict=ANTHROPIC_ANSWER,
    ),
    # console.groq.com, "Structured Outputs": these models; "json mode cannot be combined with tool/function calling"
    # (vercel/ai PR 16540).
    "groq": OutputForms(re.compile(r"gpt-oss|kimi-k2|llama-4", re.IGNORECASE)),
    # docs.x.ai, "Structured Outputs": with tools from Grok 4 on.
    "xai": OutputForms(beside_tools=re.compile(r"grok-[4-9]", re.IGNORECASE)),
    # "Structured Outputs Guide"; it takes no tools.
    "perplexity": OutputForms(tools=False),
    # The model's own API decides: openrouter.ai, "Structured Outputs".
    "openrouter": OutputForms(beside_tools=re.compile(r"^(?:openai/|anthropic/|google/gemini-[3-9])", re.IGNORECASE)),
    "copilot": OutputForms(_OPENAI),
    "scripted": OutputForms(beside_tools=_EVERY),
}
#: Servers whose grammar keeps the model from calling tools: ollama/ollama#11037, ggml-org/llama.cpp#27114, and vLLM.
#: They and all others that speak Chat Completions take a schema where no tools are offered.
_ALONE: Final = OutputForms()


def forms_of(provider: str, model: str) -> OutputForms:
    """What is known of the models of a provider of callboard's; of any other it is asked in words."""
    if provider == "vertex":
        return _CLAUDE_FORMS if "claude" in model else _GEMINI_FORMS
    if (row := _ROWS.get(provider)) is not None:
        return row
    if (chat := SERVERS.get(provider)) is not None:
        return _ALONE if chat.answer_format is not None else _WITHOUT
    if (messages := MESSAGES_SERVERS.get(provider)) is not None:
        return _CLAUDE_FORMS if messages.schemas else _WITHOUT
    return OutputForms(_NONE, tools=False)


def output_modes(provider: str, model: str, schema: Mapping[str, object]) -> tuple[tuple[OutputMode, ...], bool]:
    """The ways to ask this model for such an answer, the best first, and whether NATIVE excludes tools beside it.

    Raises UsageError for a provider without a model behind it.
    """
    if provider == "offline":
        raise UsageError("offline/... answers from the code index, in no form of one's own; leave output out")
    forms = forms_of(provider, model)
    modes = [OutputMode.TOOL, OutputMode.PROMPT] if forms.tools else [OutputMode.PROMPT]
    chat = SERVERS.get(provider)
    has_json_mode = chat is not None and chat.answer_format is None and chat.json_mode
    if (forms.native.search(model) and _takes(forms, schema)) or (has_json_mode and is_any_object(schema)):
        modes.insert(0, OutputMode.NATIVE)
    return tuple(modes), forms.beside_tools.search(model) is None


def _takes(forms: OutputForms, schema: Mapping[str, object]) -> bool:
    if forms.strict is not None and not adapted(schema, forms.strict).strict:
        return False
    return forms.recursive or not adapted(schema, GEMINI_ANSWER).is_recursive
