"""Language models with weights of a GGUF file: ours and llama.cpp's time in turns."""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tvm_fusion
from tvm_fusion.frontend import gguf

from .llama_peer import LlamaCpp, write
from .models import model_of

ROUNDS, STEPS = 7, 16
KEYS = ("model", "weights", "layers", "words", "threads", "step")
TOLERANCE = 5e-2  # of the largest logit: activations are rounded to int8


def measure(
    name: str, kind: str, layers: int | None, words: int | None, length: int, prompts: list[int]
) -> list[dict[str, Any]]:
    """Compile a model whose activations are rounded as llama.cpp's are; time both in turns.

    Parameters
    ----------
    kind
        Of the blocks, such as Q4_0.
    """
    torch.set_grad_enabled(False)
    threads = torch.get_num_threads()
    clock = time.process_time if threads == 1 else time.perf_counter
    with tempfile.TemporaryDirectory(prefix="llm-") as folder:
        path = write(model_of(name, layers, words, length), kind, Path(folder, "model.gguf"))
        model = gguf.load(model_of(name, layers, words, length), path)
        programs = tvm_fusion.models.causal_lm(model, length)
        start = time.perf_counter()
        artifact = tvm_fusion.compile(programs, in_place=programs.caches, allow=["approximate"])
        compiled = time.perf_counter() - start
        session = tvm_fusion.load(artifact.export(Path(folder, "artifact"))).session()
        ids = {n: np.array([[5 + i % 1000 for i in range(n)]]) for n in prompts}
        error = _error(session, model, ids[prompts[0]])

        def seconds(function: str, tokens: np.ndarray, position: int) -> float:
            begin = clock()
            session.run(function, tokens, position=position)
            return clock() - begin

        found: dict[str, list[tuple[float, float | None]]] = {}
        one, at = np.array([[7]]), prompts[0]
        with LlamaCpp(path, threads, length, max(prompts)) as peer:
            for _ in range(ROUNDS):
                for n in prompts:
                    both = seconds("prefill", ids[n], 0), peer.prefill(n)
                    found.setdefault(f"prefill {n}", []).append(both)
                peer.prefill(at)
                session.prefill(ids[at], position=0)
                least = min(seconds("decode", one, at) for _ in range(STEPS))
                found.setdefault("decode", []).append((least, peer.decode(at, STEPS)))
    rows = []
    for step, times in found.items():
        ours, theirs = zip(*times, strict=True)
        tokens = int(step.removeprefix("prefill ")) if step != "decode" else 1
        row = {"model": name, "weights": kind, "layers": model.config.num_hidden_layers}
        row |= {"words": model.config.vocab_size, "threads": threads, "step": step}
        row |= {"tokens_s": tokens / statistics.median(ours), "error": error}
        if None not in theirs:
            row["llama_cpp_tokens_s"] = tokens / statistics.median(theirs)
        rows.append({**row, "compile_s": compiled})
    return rows


def _error(session: Any, model: Any, ids: np.ndarray) -> float:
    """Compare logits with those of PyTorch, which unpacks the weights."""
    wanted = model(torch.from_numpy(ids), use_cache=False, logits_to_keep=1).logits[:, -1].numpy()
    logits = session.prefill(ids)["logits"]
    error = float(np.abs(logits - wanted).max() / np.abs(wanted).max())
    if error > TOLERANCE:
        raise RuntimeError(f"logits differ by {error:.1e}")
    return error


def table_rows(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Write the rows of a table; a ratio below 1 says that llama.cpp is faster."""
    return [
        [
            *(str(row[n]) for n in KEYS),
            f"{row['tokens_s']:.1f}",
            *_peer(row),
            f"{row['error']:.1e}",
            f"{row['compile_s']:.0f}",
        ]
        for row in rows
    ]


HEADINGS = [*KEYS, "tokens/s", "llama.cpp", "ratio", "error", "compile (s)"]


def _peer(row: dict[str, Any]) -> tuple[str, str]:
    theirs = row.get("llama_cpp_tokens_s")
    if theirs is None:
        return "not measured", ""
    ratio = row["tokens_s"] / theirs
    return f"{theirs:.1f}", f"{ratio:.2f}" if ratio >= 1 else f"**{ratio:.2f}**"
