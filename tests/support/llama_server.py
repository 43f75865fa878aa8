"""A real llama.cpp server in a process of its own, with a model of random weights made on the spot.

The model has one tiny layer and a byte for a token: it babbles, but the server around it is the real one, and what it
streams, with tools and forced calls by grammar, is what llama.cpp streams. Needs the packages `xllamacpp` and `gguf`.
Run by itself the file is the server process: it prints its address and ends with its standard input.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

#: Three special tokens, one for each byte, the space (which this tokenizer writes as U+2581), the start of a call.
_VOCABULARY = 3 + 256 + 2
_END, _CALL = 2, 260
#: `options` of a request that make the babbling model call where a call is forced, and stop where the grammar lets it.
CALLS_AND_STOPS = {"logit_bias": {str(_END): 100, str(_CALL): 50}}
_WIDTH, _HEADS, _INNER, _CONTEXT = 32, 2, 64, 8192
_EXIT_SECONDS = 20.0

#: In the manner of Hermes and Qwen: the server finds out from it how calls are written, and forces them by grammar.
TEMPLATE = """
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
{{ message.content or "" }}
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


def write_model(path: Path) -> None:
    """A llama model in GGUF, 100 kB of random weights."""
    gguf, np = import_module("gguf"), import_module("numpy")  # for the opt-in tests only

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_vocab_size(_VOCABULARY)
    writer.add_tokenizer_model("llama")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "<tool_call>\n"]
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * _VOCABULARY)
    kinds = gguf.TokenType
    special = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL]
    writer.add_token_types([*special, *([kinds.BYTE] * 256), kinds.NORMAL, kinds.NORMAL])
    writer.add_bos_token_id(1)
    writer.add_add_space_prefix(False)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    dice = np.random.default_rng(7)

    def tensor(name: str, *shape: int) -> None:
        values = np.ones(shape) if "norm" in name else dice.normal(0, 0.05, shape)
        writer.add_tensor(name, values.astype(np.float32))

    tensor("token_embd.weight", _VOCABULARY, _WIDTH)
    tensor("output_norm.weight", _WIDTH)
    tensor("output.weight", _VOCABULARY, _WIDTH)
    for name in ("attn_norm", "ffn_norm"):
        tensor(f"blk.0.{name}.weight", _WIDTH)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        tensor(f"blk.0.{name}.weight", _WIDTH, _WIDTH)
    for name in ("ffn_gate", "ffn_up"):
        tensor(f"blk.0.{name}.weight", _INNER, _WIDTH)
    tensor("blk.0.ffn_down.weight", _WIDTH, _INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaServer:
    """The server process, as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._model = folder / "tiny.gguf"

    def __enter__(self) -> LlamaServer:
        write_model(self._model)
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
    params.model.path = model
    params.n_ctx, params.n_predict, params.port = _CONTEXT, 64, 0
    params.use_jinja, params.warmup, params.n_parallel = True, False, 1
    params.cpuparams.n_threads = 1
    params.chat_template = TEMPLATE
    server = xllamacpp.Server(params)
    sys.stdout.write(f"\naddress {server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    _serve(sys.argv[1])
