"""The command line: time products against ONNX Runtime, write ``results`` and ``README.md``."""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tvm_fusion
from benchmarks import records
from benchmarks.harness import environment
from benchmarks.harness.client import ROOT
from benchmarks.markdown import table

HERE = Path(__file__).parent
RECORD = HERE / "results" / "nbits.json.xz"
BLOCK = 32
ROWS = (1, 8, 32, 128)
#: Columns and terms of the products of Qwen2-0.5B and of Qwen2-1.5B.
SHAPES = {
    "Qwen2-0.5B": ((896, 896), (4864, 896), (896, 4864), (151936, 896)),
    "Qwen2-1.5B": ((1536, 1536), (8960, 1536), (1536, 8960)),
}
#: Accuracy levels of ONNX Runtime: activations in float32, or rounded to int8 by block.
LEVELS = {0: "float32", 4: "int8"}
TOLERANCE = {0: 1e-5, 4: 2e-3}  # a tie that is rounded the other way is a step of int8
SECONDS, ROUNDS = 0.03, 9


def main() -> int:
    """Measure and render; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nbits", description=__doc__)
    parser.add_argument("--render", action="store_true", help="write the table again, no more")
    parser.add_argument("--model", choices=SHAPES, nargs="*", default=list(SHAPES))
    options = parser.parse_args()
    if not options.render:
        os.environ["TVM_NUM_THREADS"] = "1"  # CPU time of one thread, whatever else runs
        found = [row for model in options.model for row in measure(model)]
        record = {"environment": environment.describe(ROOT), "rows": records.columns(found)}
        records.write(RECORD, record)
    (HERE / "README.md").write_text(render(records.read(RECORD)))
    return 0


def measure(model: str) -> Iterator[dict[str, Any]]:
    """Time the products of a model, one artifact for all numbers of rows."""
    import onnxruntime as ort

    choices = ort.SessionOptions()
    choices.intra_op_num_threads = 1
    for columns, terms in SHAPES[model]:
        for level in LEVELS:
            product = matmul(columns, terms, level)
            session = ort.InferenceSession(product.SerializeToString(), choices)
            with tempfile.TemporaryDirectory(prefix="nbits-") as place:
                artifact = tvm_fusion.compile(product, dims={"m": tvm_fusion.DimRange(1, 512)})
                exe = tvm_fusion.load(artifact.export(place))
                yield from (
                    {"model": model, "n": columns, "k": terms, "m": rows, "level": level, **times}
                    for rows in ROWS
                    for times in [compared(exe, session, rows, terms, TOLERANCE[level])]
                )


def compared(exe: Any, session: Any, rows: int, terms: int, tolerance: float) -> dict[str, float]:
    """Check the results of both, and time them."""
    x = np.random.default_rng(0).standard_normal((rows, terms), "float32")
    calls = {
        "ours": lambda: exe(x=x)["y"],
        "onnxruntime": lambda: session.run(None, {"x": x})[0],
    }
    ours, theirs = (call() for call in calls.values())
    error = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    if error > tolerance:
        raise RuntimeError(f"results differ by {error:.1e} of the largest")
    return {f"{name}_us": us for name, us in interleaved(calls).items()}


def matmul(columns: int, terms: int, level: int) -> onnx.ModelProto:
    """Make a model of one product with random weights, of a symbolic number of rows."""
    rng = np.random.default_rng(0)
    blocks = terms // BLOCK
    weights = {
        "q": rng.integers(0, 256, (columns, blocks, BLOCK // 2)).astype("uint8"),
        "s": rng.uniform(0.01, 0.02, (columns, blocks)).astype("float32"),
    }
    sizes = {"K": terms, "N": columns, "bits": 4, "block_size": BLOCK, "accuracy_level": level}
    inputs = ["x", *weights]
    node = helper.make_node("MatMulNBits", inputs, ["y"], domain="com.microsoft", **sizes)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["m", extent])
        for name, extent in (("x", terms), ("y", columns))
    ]
    stored = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph([node], "product", ends[:1], ends[1:], stored)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=9)


def interleaved(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the medians of a call's CPU time in turns of all, in microseconds."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            count, begin = 0, time.process_time()
            while (spent := time.process_time() - begin) < SECONDS:
                call()
                count += 1
            found[name].append(spent / count * 1e6)
    return {name: statistics.median(times) for name, times in found.items()}


def render(record: dict[str, Any]) -> str:
    """Write the page."""
    rows = records.rows_of(record["rows"])
    ratios = [row["ours_us"] / row["onnxruntime_us"] for row in rows]
    lines = [
        "# Products with weights of 4 bits in blocks",
        "",
        "Generated from `results/nbits.json.xz` by `python -m benchmarks.nbits`; edits are lost.",
        "",
        f"`MatMulNBits` in blocks of {BLOCK} with one thread of {record['environment']['cpu']}:",
        "CPU time of a call in microseconds (median of turns), and its ratio to ONNX Runtime's:",
        "below 1, this project is faster. One artifact serves all numbers of rows (m). Activations",
        "are float32 (accuracy level 0), or rounded to int8 by block (level 4), in both.",
        "",
        f"Slower: {sum(r > 1 for r in ratios)} of {len(ratios)}; geometric mean of the ratios "
        f"{statistics.geometric_mean(ratios):.2f}.",
        "",
        *table(
            ["model", "n x k", "activations", *(f"m = {m}: ours, ratio" for m in ROWS)],
            [
                [
                    model,
                    f"{n} x {k}",
                    LEVELS[level],
                    *(_cell(rows, model, n, k, m, level) for m in ROWS),
                ]
                for model, n, k, level in dict.fromkeys(
                    (row["model"], row["n"], row["k"], row["level"]) for row in rows
                )
            ],
        ),
    ]
    return "\n".join(lines) + "\n"


def _cell(rows: list[dict[str, Any]], *about: Any) -> str:
    names = ("model", "n", "k", "m", "level")
    (row,) = [row for row in rows if tuple(row[name] for name in names) == about]
    ratio = row["ours_us"] / row["onnxruntime_us"]
    return f"{row['ours_us']:.0f}, {f'**{ratio:.2f}**' if ratio > 1 else f'{ratio:.2f}'}"


if __name__ == "__main__":
    raise SystemExit(main())
