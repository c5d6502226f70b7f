"""llama.cpp against this project: GGUF files of random weights, and the process that reads them.

The environment variable ``LLAMA_CPP_PYTHON`` names a Python with llama-cpp-python, as built for the
machine; without it this one is asked. Where neither has it, rows say "not measured".
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import gguf

_WORKER = Path(__file__).with_name("llama_cpp_worker.py")
_FAMILY = {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}


def write(model: Any, kind: str, path: Path) -> Path:
    """Write a model of transformers as llama.cpp converts it, with its matrices in blocks."""
    config, arch = model.config, _FAMILY[model.config.model_type]
    type_ = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    table = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for own, parameter in model.named_parameters():
        name = table.get_name(own, try_suffixes=(".weight", ".bias"))
        value = parameter.detach().float().numpy()
        if value.ndim == 1:
            writer.add_tensor(name, value)
        else:
            writer.add_tensor(name, gguf.quantize(value, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class LlamaCpp:
    """A process that times llama.cpp.

    Parameters
    ----------
    threads, length, most
        Threads, positions of the cache, and most tokens of a call.

    Attributes
    ----------
    is_there : bool
        Whether a Python with llama-cpp-python was found.
    """

    def __init__(self, path: Path, threads: int, length: int, most: int) -> None:
        python = os.environ.get("LLAMA_CPP_PYTHON", sys.executable)
        call = [python, str(_WORKER), str(path), *map(str, (threads, length, most))]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            call, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.is_there = bool(self._process.stdout.readline())

    def prefill(self, tokens: int) -> float | None:
        """Return the seconds of a prompt."""
        return self._answer(f"prefill {tokens}")

    def decode(self, position: int, count: int) -> float | None:
        """Return the least seconds of some steps, each of the token at a position."""
        return self._answer(f"decode {position} {count}")

    def _answer(self, line: str) -> float | None:
        if not self.is_there:
            return None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def __enter__(self) -> LlamaCpp:
        """Return it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
