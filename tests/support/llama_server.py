"""A real llama.cpp server in a process of its own, with a model that is made on the spot.

The model has no layer that does anything: its last matrix says which token follows which, by margins that no rounding
and no sampling can turn. So what it says is known to the byte on any machine, while the server around it is the real
one: its chat template, tokenizer, grammars of forced calls, parsers and three wire APIs. Needs the packages
`xllamacpp` and `gguf` (both in the extra `dev`; they have wheels for Linux on x86-64 and ARM).
Run by itself this file is the server process: it prints its address and ends with its standard input.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

#: What the model answers. A token decides which one follows, so no byte of these comes twice.
SAYS = "Wörld 🎭."
#: What it thinks before, if it is a thinking one. The line end is the first character of the closing tag's token.
THINKS = "Hum?\n"
#: The arguments that it gives to a tool with one required boolean, `on`.
ARGUMENTS = '{"on":true}'
CONTEXT = 2048

#: Three special tokens, one for each byte, and texts that are one token. U+2581 is how this tokenizer writes a space.
_PIECES = ("\u2581", "<tool_call>\n", "<think>\n", "\n</think>\n\n")
_END, _FIRST_BYTE, _FIRST_PIECE = 2, 3, 3 + 256
_SPACE, _CALL, _THINK, _UNTHINK = range(_FIRST_PIECE, _FIRST_PIECE + len(_PIECES))
_VOCABULARY = _FIRST_PIECE + len(_PIECES)
_WIDTH, _HEADS, _INNER = 272, 2, 64
#: Between a token and the next best one, in logits: a chance of e^-40 at temperature 1.
_MARGIN = 40.0
_EXIT_SECONDS = 20.0

#: In the manner of Hermes and Qwen: the server finds out from it how calls and thoughts are written.
_TEMPLATE = """
{%- if tools %}<|im_start|>system
You may call functions. Signatures are within <tools></tools>:
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
For each call return a json object within <tool_call></tool_call>:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
THOUGHT{{ message.content or "" }}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{%- endif %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
_THOUGHT = """{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}"""


def template(thinking: bool) -> str:
    """The chat template of the model."""
    return _TEMPLATE.replace("THOUGHT", _THOUGHT if thinking else "")


def tokens_of(text: str) -> list[int]:
    """The tokens of a text as this model writes it: a byte each, but for the space."""
    return [_SPACE if byte == ord(" ") else _FIRST_BYTE + byte for byte in text.encode()]


def prompt_tokens(prompt: str) -> int:
    """How many tokens the server must count for a prompt: its bytes and the start token."""
    return 1 + len(prompt.encode())


def answer_tokens(*texts: str, calls: int = 0, thinks: bool = False) -> int:
    """How many tokens the server must count for an answer: one for each byte of its texts and of its calls' JSON, one
    for the start of a call, one for each end of a thought, one for the end of the turn."""
    call = 1 + len('{"name":"flag","arguments":}</tool_call>') + len(ARGUMENTS)
    thought = len(THINKS.rstrip()) + 2 if thinks else 0
    return sum(len(text.encode()) for text in texts) + calls * call + thought + 1


def write_model(path: Path, thinking: bool) -> None:
    """A llama model in GGUF, 2 MB."""
    gguf, np = import_module("gguf"), import_module("numpy")  # in the server's tests only

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_vocab_size(_VOCABULARY)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *_PIECES])
    writer.add_token_scores([0.0] * _VOCABULARY)
    kinds = gguf.TokenType
    special = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL]
    writer.add_token_types([*special, *([kinds.BYTE] * 256), *([kinds.NORMAL] * len(_PIECES))])
    writer.add_bos_token_id(1)
    writer.add_add_space_prefix(False)
    writer.add_eos_token_id(_END)
    writer.add_chat_template(template(thinking))

    def tensor(name: str, values: Any) -> None:
        writer.add_tensor(name, np.asarray(values, dtype=np.float32))

    # A token's embedding is a one in its own place, which the norm multiplies by the square root of the width.
    tensor("token_embd.weight", np.eye(_VOCABULARY, _WIDTH))
    tensor("output_norm.weight", np.ones(_WIDTH))
    tensor("output.weight", np.pad(_logits(thinking), ((0, 0), (0, _WIDTH - _VOCABULARY))) / np.sqrt(_WIDTH))
    for name in ("attn_norm", "ffn_norm"):
        tensor(f"blk.0.{name}.weight", np.ones(_WIDTH))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        tensor(f"blk.0.{name}.weight", np.zeros((_WIDTH, _WIDTH)))
    for name in ("ffn_gate", "ffn_up"):
        tensor(f"blk.0.{name}.weight", np.zeros((_INNER, _WIDTH)))
    tensor("blk.0.ffn_down.weight", np.zeros((_WIDTH, _INNER)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _logits(thinking: bool) -> Any:
    """Of each token (row) after each other one (column)."""
    np = import_module("numpy")
    logits = np.zeros((_VOCABULARY, _VOCABULARY))
    # Where a grammar refuses what would follow: the end, else a call, else the shortest JSON.
    wishes = [_END, _CALL, *tokens_of('}]"<0tfn,{:')]
    for rank, token in enumerate(wishes):
        logits[token, :] = _MARGIN * (len(wishes) - rank)
    thought = [_THINK, *tokens_of(THINKS.rstrip()), _UNTHINK] if thinking else []
    # The prompt ends in a line end.
    turn = [*tokens_of("\n"), *thought, *tokens_of(SAYS), _END]
    for token, follower in pairwise(turn):
        logits[follower, token] = _MARGIN * (len(wishes) + 1)
    return logits


class LlamaServer:
    """The server process, as a context manager."""

    def __init__(self, folder: Path, *, thinking: bool = False) -> None:
        self._model, self._thinking = folder / "tiny.gguf", thinking

    def __enter__(self) -> LlamaServer:
        write_model(self._model, self._thinking)
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self._model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = next((line[8:].strip() for line in self._process.stdout if line.startswith("address ")), "")
        assert self.url, "the llama.cpp server did not start"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_EXIT_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()


def _serve(model: str) -> None:
    xllamacpp = import_module("xllamacpp")

    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = model, {"tiny"}
    params.n_ctx, params.n_predict, params.port = CONTEXT, 256, 0
    params.use_jinja, params.warmup, params.n_parallel = True, False, 1
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    sys.stdout.write(f"\naddress {server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _serve(sys.argv[1])
