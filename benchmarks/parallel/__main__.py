"""The command line: a language model of random weights on one worker and on several, in turns.

On GPUs each worker has one; on a CPU the workers share its cores, which shows what exchanges cost
and not what several sockets would save. It writes ``results/parallel.json.xz`` and ``README.md``.
What ``python3 -m benchmarks.parallel.gpu`` measured is taken by ``--take FILE``.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tvm_fusion
from benchmarks.harness import environment
from benchmarks.harness.client import ROOT
from benchmarks.llm.__main__ import SHAPES, model_of
from benchmarks.markdown import table
from benchmarks.records import read, write
from benchmarks.turns import alternate
from tvm_fusion.words import counted

HERE = Path(__file__).parent
RECORD = HERE / "results" / "parallel.json.xz"
# Of a logit, relative to the largest: workers add up in another order, and one worker's own logits
# are as far from those of float64 as two workers' are from its (1.6e-6 of a layer of Qwen3-0.6B).
KINDS = ("queued_us", "waiting_us")
TOLERANCE = {"fp32": 1e-5, "fp16": 2e-2, "bf16": 1e-1}


def main() -> int:
    """Measure and render; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel", description=__doc__)
    parser.add_argument("--model", choices=SHAPES, default="Llama-3.2-1B")
    parser.add_argument("--layers", type=int, help="all when omitted")
    parser.add_argument("--vocabulary", type=int, help="the model's when omitted")
    parser.add_argument("--length", type=int, default=512, help="positions of the caches")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--precision", choices=TOLERANCE, default="fp32")
    parser.add_argument("--by-price", action="store_true", help="split what pays, and not all")
    parser.add_argument("--take", type=Path, metavar="FILE", help="what was measured on GPUs")
    parser.add_argument("--render", action="store_true", help="write the table again, no more")
    options = parser.parse_args()
    record = read(RECORD)
    if options.take:
        record["gpu"] = read(options.take)
    elif not options.render:
        record |= {"environment": environment.describe(ROOT), "rows": measure(options)}
    write(RECORD, record)
    (HERE / "README.md").write_text(render(record))
    return 0


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Compile for each number of workers, check logits, and time all in turns."""
    torch.set_grad_enabled(False)
    model = model_of(options.model, options.layers, options.vocabulary, options.length)
    programs = tvm_fusion.models.causal_lm(model, options.length)
    ids = np.random.default_rng(0).integers(3, model.config.vocab_size, (1, options.prompt))
    rows, sessions, kept = [], [], []
    with tempfile.TemporaryDirectory(prefix="parallel-") as folder:
        for size in (1, *options.workers):
            many = {"workers": size} if size > 1 else {}
            if many and not options.by_price:
                many["shards"] = {"*": "split"}
            start = time.perf_counter()
            artifact = tvm_fusion.compile(
                programs,
                options.target,
                in_place=programs.caches,
                precision=options.precision,
                **many,
            )
            seconds = time.perf_counter() - start
            print(f"{counted(size, 'worker')}: compiled in {seconds:.0f} s", flush=True)
            kept.append(tvm_fusion.load(artifact.export(Path(folder, str(size)))))
            sessions.append(kept[-1].session())
            rows.append(
                {
                    "model": options.model,
                    "layers": model.config.num_hidden_layers,
                    "vocabulary": model.config.vocab_size,
                    "prompt": options.prompt,
                    "target": options.target,
                    "precision": options.precision,
                    "workers": size,
                    "compile_s": round(seconds, 1),
                    "split": artifact.manifest.get("workers", {}).get("split", []),
                }
            )
        logits = [_host(session.prefill(ids)) for session in sessions]
        for row, found in zip(rows, logits, strict=True):
            row["error"] = float(np.abs(found - logits[0]).max() / np.abs(logits[0]).max())
            if row["error"] > TOLERANCE[options.precision]:
                raise RuntimeError(
                    f"logits of {row['workers']} workers differ by {row['error']:.1e}"
                )
        one, at = ids[:, :1], options.prompt
        prefill = alternate([lambda s=s: _host(s.prefill(ids, position=0)) for s in sessions])
        decode = alternate([lambda s=s: _host(s.decode(one, position=at)) for s in sessions])
    for row, whole, single in zip(rows, prefill, decode, strict=True):
        row["prefill_ms"], row["decode_ms"] = 1e3 * whole, 1e3 * single
    return rows


def _host(outputs: dict[str, Any]) -> np.ndarray:
    logits = outputs["logits"]
    return np.asarray(logits.numpy() if hasattr(logits, "numpy") else logits, "float32")


def render(record: dict[str, Any]) -> str:
    """Write the page."""
    rows, cpu = record["rows"], record["environment"]
    cells = [
        [
            f"{row['model']}, {counted(row['layers'], 'layer')}",
            f"{row['vocabulary']:,}",
            str(row["prompt"]),
            row["target"],
            row["precision"],
            str(row["workers"]),
            f"{row['error']:.1e}",
            f"{row['prefill_ms']:.1f}",
            f"{row['decode_ms']:.2f}",
            "" if row["target"] == "cpu" else f"{rows[0]['decode_ms'] / row['decode_ms']:.2f}",
        ]
        for row in rows
    ]
    head = ["model", "vocabulary", "prompt", "target", "precision", "workers", "error",
            "prefill ms", "decode ms", "times faster"]  # fmt: skip
    lines = "\n".join(table(head, cells))
    return (
        "# Several workers\n\n"
        "Generated by `python -m benchmarks.parallel`; edits are lost. "
        f"{cpu['cpu']}, {counted(cpu['cpus'], 'CPU')}, {cpu['date'][:10]}.\n\n"
        "A decoder of random weights on one worker and on several, in turns in one run; medians. "
        "Errors are the largest difference of a logit from one worker's, relative to the largest "
        f"logit. Workers on one CPU share its cores, with whatever else runs there: rows of "
        f"target cpu show that results agree, and no gain.\n\n{lines}\n{_gpu(record.get('gpu'))}"
    )


def _gpu(record: dict[str, Any] | None) -> str:
    """Write the table of what was measured on GPUs."""
    if record is None:
        return ""
    cells = []
    for row in record["rows"]:
        for name in ("prefill", "decode"):
            one = row.get(name, {}).get("1 workers", {})
            for side, us in row.get(name, {}).items():
                times = [f"{us[kind] / 1e3:.3f}" for kind in KINDS]
                faster = [f"{one[kind] / us[kind]:.2f}" if one else "" for kind in KINDS]
                cells.append([row["name"], name, side, *times, *faster])
    speedup = "speedup over one worker, queued"
    head = ["model", "step", "side", "queued ms", "waiting ms", speedup, "waiting"]
    wrong = [f"* {row['name']}: {told}" for row in record["rows"] for told in row["wrong"]]
    return "\n".join(
        [
            "\n## GPUs",
            "",
            f"Target {record['target']}, by `python3 -m benchmarks.parallel.gpu`: queued calls are "
            "launched one behind the other, each waiting one is waited for by reading its logits. "
            "PyTorch's tensor parallel runs compiled, in a CUDA graph, on as many GPUs.",
            "",
            *table(head, cells),
            *([""] if wrong else []),
            *wrong,
            "",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
