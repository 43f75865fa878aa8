"""The "provider/model" that was probably meant by a name that is none. Loaded where one was wrong, and only then."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Final

#: What other libraries call a provider.
_ALIASES: Final[Mapping[str, str]] = {
    alias: provider
    for provider, aliases in {
        "alibaba": "dashscope qwen",
        "anthropic": "claude anthropic_text",
        "azure": "azure_openai azure-openai azure_ai azure-ai azureopenai",
        "bedrock": "aws amazon-bedrock amazon_bedrock bedrock_converse aws-bedrock amazon",
        "cohere": "cohere_chat command",
        "copilot": "github-copilot github_copilot github",
        "deepseek": "deepseek-ai deepseekai",
        "fireworks": "fireworks_ai fireworks-ai",
        "gemini": "google google-gla google-genai google_genai google-ai googleai",
        "huggingface": "hf hugging_face hugging-face",
        "llamacpp": "llama.cpp llama_cpp llama-cpp",
        "lmstudio": "lm_studio lm-studio",
        "mistral": "mistralai mistral-ai",
        "moonshot": "moonshotai kimi",
        "nvidia": "nvidia_nim nim",
        "ollama": "ollama_chat",
        "openai": "gpt chatgpt openai-api oai openai_chat",
        "openai-compatible": "openai_like openai-like custom_openai openai_compatible litellm",
        "perplexity": "perplexityai pplx",
        "together": "together_ai togetherai together-ai",
        "vertex": "vertex_ai vertexai google-vertex google_vertexai vertex-ai google-vertex-ai",
        "vllm": "hosted_vllm",
        "xai": "x-ai x.ai grok",
        "zai": "zhipu zhipuai z.ai z-ai",
    }.items()
    for alias in aliases.split()
}
#: Whose a model is, by the beginning of its name.
_FAMILIES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), provider)
    for pattern, provider in (
        (r"((us|eu|apac|global)\.)?(anthropic|amazon|meta|cohere|mistral)\.", "bedrock"),
        (r"gpt-|chatgpt|o[1-9](-|$)|text-embedding-|codex|davinci", "openai"),
        (r"claude", "anthropic"),
        (r"gemini", "gemini"),
        (r"(mis|magis|codes|minis|devs)tral|pixtral", "mistral"),
        (r"grok", "xai"),
        (r"deepseek", "deepseek"),
        (r"command-", "cohere"),
        (r"kimi|moonshot", "moonshot"),
        (r"glm-", "zai"),
        (r"sonar", "perplexity"),
        (r"llama|qwen|gemma|phi", "ollama"),
    )
)


def meant_model(given: str, known: Collection[str]) -> str:
    """ "provider/model", where `known` are the providers; "" where there is no guess."""
    text = given.strip().removeprefix("models/")
    head, separator, rest = _halves(text)
    if separator and rest:
        if (exact := _ALIASES.get(head.lower(), head.lower())) in known:
            return f"{exact}/{rest}"
        if separator == "/":
            return f"openrouter/{text}" if _family(rest) == "ollama" else _joined(_close(head, known), rest)
    family = _family(text)
    return _joined(family, text) if family in known else _joined(_close(head, known), rest)


def _joined(provider: str, name: str) -> str:
    return f"{provider}/{name}" if provider and name else ""


def _halves(text: str) -> tuple[str, str, str]:
    found = re.search(r"[/:]", text)
    return (text[: found.start()], found[0], text[found.end() :]) if found else (text, "", "")


def _close(head: str, known: Collection[str]) -> str:
    found = get_close_matches(head.lower(), [*known, *_ALIASES], n=1, cutoff=0.8)
    return _ALIASES.get(found[0], found[0]) if found else ""


def _family(name: str) -> str:
    return next((provider for pattern, provider in _FAMILIES if pattern.match(name)), "")
