"""One GEMM on tile registers (AMX), beside what they multiply at most in the same run.

``python -m benchmarks.cpu_half.gemm [--sizes 1024] [--threads 1 2 16] [--json FILE]`` compiles
GEMMs of bfloat16 and int8 with a constant B, of a known and of any number of rows, and times them
and products of registers alone in turns; beside them PyTorch's of bfloat16, which is oneDNN's,
where PyTorch is installed. Shares are of one core's peak, times the threads.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.workers import Worker

ROUNDS, CALLS = 20, 8  # in turns; one after the other
STEPS, PRODUCTS = 1 << 14, 4  # of registers alone
TYPES = {"bf16": "bfloat16", "int8": "int8"}

Call = Callable[[], object]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each number of threads in a process of its own; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_half.gemm", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1024], help="M = N = K")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2, 16])
    parser.add_argument("--json", type=Path, help="default: gemm.json in $OUT, if it is set")
    options = parser.parse_args(arguments)
    path = options.json or Path(os.environ.get("OUT", "."), "gemm.json")
    rows: list[dict[str, Any]] = []
    for threads in options.threads:
        code = f"from benchmarks.cpu_half.gemm import measure; measure({options.sizes}, {threads})"
        worker = Worker("-c", code, environment={"TVM_NUM_THREADS": str(threads)})
        line = worker.line(120.0)
        if not line:
            print(f"{threads} threads: {worker.ended()}")
            return 1
        worker.close()
        rows += json.loads(line)
        path.write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(
            f"{row['type']} {row['size']} rows {row['rows']:8} {row['threads']:2} threads"
            f" {row['ms']:8.3f} ms {row['tops']:6.2f} T/s {100 * row['share']:5.1f} % of peak"
        )
    return 0


def measure(sizes: Sequence[int], threads: int) -> None:
    """Print rows of JSON."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    calls: dict[tuple[str, int, str], Call] = {}
    for short in TYPES:
        calls[short, 0, "peak"] = _registers(short)
        for size in sizes:
            for rows in ("known", "any"):
                calls[short, size, rows] = _gemm(short, size, rows == "any")
    for size in sizes:
        if (peer := _torch(size, threads)) is not None:
            calls["bf16", size, "PyTorch"] = peer
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for case, call in calls.items():
            for _ in range(CALLS):
                start = time.perf_counter()
                call()
                least[case] = min(least[case], time.perf_counter() - start)
    found = []
    for (short, size, rows), seconds in least.items():
        if size:
            peak = _work(short) / least[short, 0, "peak"] * threads
            rate = 2 * size**3 / seconds
            row = {"type": short, "size": size, "rows": rows, "threads": threads}
            row |= {"ms": 1e3 * seconds, "tops": rate / 1e12, "share": rate / peak}
            found.append(row)
    print(json.dumps(found), flush=True)


def _row(short: str) -> Any:
    from tvm_fusion.device import parse
    from tvm_fusion.schedule.instructions.table import find

    row = find(parse("cpu").device, "amx", TYPES[short], TYPES[short])
    if row is None:
        raise RuntimeError(f"this CPU has no tile registers of {TYPES[short]}")
    return row


def _work(short: str) -> float:
    row = _row(short)
    return 2.0 * STEPS * PRODUCTS * row.m * row.n * row.k


def _registers(short: str) -> Call:
    """Multiply tiles that are in registers: four sums, two tiles of A, two of B."""
    import numpy as np
    import tvm
    from tvm import tirx

    from tvm_fusion.core.tir.loops import block, index, loop, sequence
    from tvm_fusion.core.untouched import SCHEDULED
    from tvm_fusion.device import parse
    from tvm_fusion.schedule.instructions import tiles

    row = _row(short)
    config, whole = tiles.tile_config(), tiles.TileShape(tiles.TILE_ROWS, tiles.TILE_ROW_BYTES)
    x = tirx.decl_buffer([1], "float32", "x")
    products = [tiles.multiply_tiles(row, 4 + i, 6 + j, 2 * i + j) for i in (0, 1) for j in (0, 1)]
    body = sequence(
        [
            tirx.BufferStore(x, tirx.const(0.0, "float32"), [index(0)]),
            tiles.configure(config, [whole] * tiles.TILES),
            loop("k", index(STEPS), lambda _: sequence(products)),
            tiles.release(),
        ]
    )
    func = tirx.PrimFunc([x], block("root", block("task", body, [config])))
    func = func.with_attrs({"s_tir": True, "tirx.noalias": True, SCHEDULED: True})
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    built = tvm.compile(module, parse("cpu").tvm_target(), tir_pipeline="tvm_fusion")
    argument = tvm.runtime.tensor(np.zeros(1, "float32"))
    return lambda: built["main"](argument)


def _gemm(short: str, size: int, is_any: bool) -> Call:
    """Compile a GEMM of square matrices whose B is packed at compile time."""
    import numpy as np
    import tvm
    from tvm import relax, tirx

    from tvm_fusion.device import parse

    dtype = TYPES[short]
    a, b = (np.random.default_rng(i).integers(-9, 9, (size, size)) for i in (0, 1))
    rows = tirx.Var("m", "int64") if is_any else size
    x = relax.Var("x", relax.TensorType((rows, size), dtype))
    weight = tvm.runtime.tensor(b.astype("int8" if dtype == "int8" else "float32"))
    builder, target = relax.BlockBuilder(), parse("cpu").tvm_target()
    with target, builder.function("main", [x]):
        with builder.dataflow():
            w = relax.const(weight)
            w = w if dtype == "int8" else relax.op.astype(w, dtype)
            sums = "int32" if dtype == "int8" else dtype
            y = builder.emit_output(relax.op.matmul(x, w, out_dtype=sums))
        builder.emit_func_output(y)
    pipelines = {"relax_pipeline": "tvm_fusion", "tir_pipeline": "tvm_fusion"}
    with target:
        built = tvm.compile(builder.get(), target, **pipelines)
    given = relax.VirtualMachine(built, tvm.cpu())
    import ml_dtypes  # numpy's bfloat16

    argument = tvm.runtime.tensor(a.astype(dtype if dtype == "int8" else ml_dtypes.bfloat16))
    return lambda: given["main"](argument)


def _torch(size: int, threads: int) -> Call | None:
    """Multiply by PyTorch; ``None`` where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(threads)
    a, b, out = (torch.randn(size, size).bfloat16() for _ in range(3))
    return lambda: torch.mm(a, b, out=out)


if __name__ == "__main__":
    sys.exit(main())
