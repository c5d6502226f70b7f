"""The command line: language models of drawn weights in sessions, beside PyTorch's own decoding.

Shapes are those of the models, layers as many as asked for. PyTorch runs with its static cache;
both take turns in one process. It writes ``results/llm.json`` and ``README.md``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import tvm_fusion
from benchmarks.harness import environment
from benchmarks.harness.client import ROOT
from benchmarks.kernels.measure import alternate
from benchmarks.markdown import table
from benchmarks.records import read, write
from tvm_fusion.models.static_cache import name_of_cache

from .models import SHAPES, model_of

HERE = Path(__file__).parent
RECORD = HERE / "results" / "llm.json"
TOLERANCE = 1e-3


def main() -> int:
    """Measure and render; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llm", description=__doc__)
    parser.add_argument("--model", choices=SHAPES, default="Qwen2-0.5B")
    parser.add_argument("--layers", type=int, help="all when omitted")
    parser.add_argument("--vocabulary", type=int, help="the model's when omitted")
    parser.add_argument("--length", type=int, default=512, help="positions of the caches")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--render", action="store_true", help="write the table again, no more")
    options = parser.parse_args()
    if not options.render:
        rows = [measure(options)]
        write(RECORD, {"environment": environment.describe(ROOT), "models": rows})
    (HERE / "README.md").write_text(render(read(RECORD)))
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Compile a model, check its logits, and time prefill and decode in turns with PyTorch."""
    torch.set_grad_enabled(False)
    model = model_of(options.model, options.layers, options.vocabulary, options.length)
    start = time.perf_counter()
    programs = tvm_fusion.models.causal_lm(model, options.length)
    exported = time.perf_counter()
    artifact = tvm_fusion.compile(
        programs, options.target, in_place=programs.caches, precision=options.precision
    )
    compiled = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="llm-") as folder:
        session = tvm_fusion.load(artifact.export(Path(folder, "artifact"))).session()
        ids = np.random.default_rng(0).integers(3, model.config.vocab_size, (1, options.prompt))
        eager = _Eager(model, options.length)
        tensor, one = torch.from_numpy(ids), ids[:, :1]
        error = _difference(session.prefill(ids)["logits"], eager(tensor, 0))
        if options.precision == "fp32" and error > TOLERANCE:
            raise RuntimeError(f"logits differ by {error:.1e}")

        def wait(result: dict[str, Any]) -> None:
            np.asarray(result["logits"].numpy() if hasattr(result["logits"], "numpy") else 0)

        at, first = options.prompt, torch.from_numpy(one)
        prefill = alternate(
            [lambda: wait(session.prefill(ids, position=0)), lambda: eager(tensor, 0)]
        )
        decode = alternate(
            [lambda: wait(session.decode(one, position=at)), lambda: eager(first, at)]
        )
        functions = artifact.manifest["functions"]
        used = [set(entry["weights"]) for entry in functions.values()]
        return {
            "model": options.model,
            "layers": model.config.num_hidden_layers,
            "vocabulary": model.config.vocab_size,
            "target": options.target,
            "precision": options.precision,
            "threads": torch.get_num_threads(),
            "prompt": options.prompt,
            "prefill_tokens_s": [options.prompt / seconds for seconds in prefill],
            "decode_tokens_s": [1 / seconds for seconds in decode],
            "error": error,
            "export_s": exported - start,
            "compile_s": compiled - exported,
            "parameters_mb": sum(p.nbytes for p in model.parameters()) / 1e6,
            "weights_mb": sum(array.nbytes for array in artifact.weights.values()) / 1e6,
            "of_one_function_mb": sum(
                artifact.weights[name].nbytes
                for name in set.union(*used) - set.intersection(*used)
                if name in artifact.weights
            )
            / 1e6,
            "caches_mb": sum(np.prod(c.shape) * 4 for c in session.caches.values()) / 1e6,
            "kernels": {name: entry["kernels"] for name, entry in functions.items()},
        }


class _Eager:
    """The model as PyTorch runs it, over its static cache."""

    def __init__(self, model: Any, length: int):
        self._model = model
        self._cache = transformers.StaticCache(config=model.config, max_cache_len=length)

    def __call__(self, ids: torch.Tensor, position: int) -> np.ndarray:
        """Return the logits of the last token."""
        for layer in self._cache.layers:
            layer.cumulative_length.fill_(position)
        places = torch.arange(position, position + ids.shape[1])[None]
        outputs = self._model(
            input_ids=ids,
            position_ids=places,
            use_cache=True,
            logits_to_keep=1,
            **{name_of_cache(self._model): self._cache},
        )
        return outputs.logits[:, -1].numpy()


def _difference(found: Any, expected: np.ndarray) -> float:
    found = np.asarray(found if isinstance(found, np.ndarray) else found.numpy())
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def render(record: dict[str, Any]) -> str:
    """Write the table of a record."""
    lines = [
        "# Language models",
        "",
        "Generated by `python -m benchmarks.llm`; edits are lost.",
        "",
        "Shapes of the model, drawn weights, batch 1; PyTorch eager with its static cache takes"
        " turns in the same process. Medians of tokens per second; weights that only one of the two"
        " functions reads are stored beside those of both.",
        "",
    ]
    headings = ["model", "layers", "words", "target", "prefill", "PyTorch", "decode", "PyTorch"]
    headings += ["parameters (MB)", "stored (MB)", "of one function (MB)", "caches (MB)"]
    headings += ["export (s)", "compile (s)"]
    lines += table(headings, map(_row, record["models"]))
    return "\n".join(lines) + "\n"


def _row(row: dict[str, Any]) -> list[str]:
    rates = [*row["prefill_tokens_s"], *row["decode_tokens_s"]]
    sizes = ("parameters_mb", "weights_mb", "of_one_function_mb", "caches_mb")
    cells = [row["model"], str(row["layers"]), str(row["vocabulary"])]
    cells += [f"{row['target']}, {row['precision']}", *(f"{rate:.1f}" for rate in rates)]
    return [*cells, *(f"{row[n]:.1f}" for n in (*sizes, "export_s", "compile_s"))]


if __name__ == "__main__":
    raise SystemExit(main())
