"""The command line: language models of random weights in sessions, against PyTorch and llama.cpp.

Shapes are those of the models, layers as many as asked for. PyTorch runs with its static cache;
both take turns in one process. With ``--weights Q4_0`` a GGUF file has them: activations are
rounded as llama.cpp's are, which takes turns instead, if ``LLAMA_CPP_PYTHON`` names a Python that
has it. It writes ``results/llm.json`` and ``README.md``.
"""

import argparse
import os
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
from benchmarks.markdown import table
from benchmarks.records import columns, read, rows_of, write
from benchmarks.turns import alternate
from tvm_fusion.models.static_cache import name_of_cache

from . import gguf_rows
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
    parser.add_argument("--weights", choices=("Q4_0", "Q8_0"), help="of a GGUF file")
    parser.add_argument("--threads", type=int, default=1, help="of a model with such weights")
    parser.add_argument("--render", action="store_true", help="write the table again, no more")
    options = parser.parse_args()
    if not options.render:
        record = read(RECORD) if RECORD.exists() else {}
        record["environment"] = environment.describe(ROOT)
        if options.weights is None:
            record["models"] = [measure(options)]
        else:
            record["gguf"] = _with_rows(record.get("gguf", []), _gguf_rows(options))
        write(RECORD, record)
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


def _gguf_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    os.environ["TVM_NUM_THREADS"] = str(options.threads)
    torch.set_num_threads(options.threads)
    given = options.model, options.weights, options.layers, options.vocabulary, options.length
    return gguf_rows.measure(*given, sorted({options.prompt, 512} & set(range(options.length))))


def _with_rows(old: list[list[Any]], new: list[dict[str, Any]]) -> list[list[Any]]:
    """Replace rows that were measured again."""
    kept = {tuple(row[n] for n in gguf_rows.KEYS): row for row in rows_of(old or [[]])}
    kept |= {tuple(row[n] for n in gguf_rows.KEYS): row for row in new}
    return columns(kept.values())


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
        "Shapes of the model, random weights, batch 1; PyTorch eager with its static cache takes"
        " turns in the same process. Medians of tokens per second; weights that only one of the two"
        " functions reads are stored in addition to those of both.",
        "",
    ]
    headings = ["model", "layers", "words", "target", "prefill", "PyTorch", "decode", "PyTorch"]
    headings += ["parameters (MB)", "stored (MB)", "of one function (MB)", "caches (MB)"]
    headings += ["export (s)", "compile (s)"]
    if "models" in record:
        lines += [*table(headings, map(_row, record["models"])), ""]
    lines += [
        "Weights in blocks of a GGUF file, activations rounded to int8 in blocks, against llama.cpp"
        " as built for the machine: tokens per second by the median of turns, of one thread in its"
        " CPU time; steps of `decode` are the least of some, behind the first prompt. The error is"
        " that of the logits, against PyTorch with the same weights unpacked.",
        "",
        *table(gguf_rows.HEADINGS, gguf_rows.table_rows(rows_of(record.get("gguf") or [[]]))),
    ]
    return "\n".join(lines) + "\n"


def _row(row: dict[str, Any]) -> list[str]:
    rates = [*row["prefill_tokens_s"], *row["decode_tokens_s"]]
    sizes = ("parameters_mb", "weights_mb", "of_one_function_mb", "caches_mb")
    cells = [row["model"], str(row["layers"]), str(row["vocabulary"])]
    cells += [f"{row['target']}, {row['precision']}", *(f"{rate:.1f}" for rate in rates)]
    return [*cells, *(f"{row[n]:.1f}" for n in (*sizes, "export_s", "compile_s"))]


if __name__ == "__main__":
    raise SystemExit(main())
