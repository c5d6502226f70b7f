"""GEMMs on tile registers with a number of threads, and the registers alone, timed in turns."""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

ROUNDS, CALLS = 20, 8  # in turns; one after the other
STEPS, PRODUCTS = 1 << 14, 4  # of registers alone
TYPES = {"bf16": "bfloat16", "int8": "int8"}

Call = Callable[[], object]


def main(threads: int, *sizes: int) -> None:
    """Print an object with a row for each type and size."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ |= {"TVM_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
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
    print(json.dumps({"rows": found}), flush=True)


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
    """Multiply tiles that are in registers: four sums, two tiles of A, two of B.

    They hold numbers as the GEMM has: zeros take less power, so that the clock is faster.
    """
    import tvm
    from tvm import tirx

    from tvm_fusion.core.tir.expressions import load
    from tvm_fusion.core.tir.loops import block, index, loop, sequence
    from tvm_fusion.core.untouched import SCHEDULED
    from tvm_fusion.device import parse
    from tvm_fusion.schedule.instructions import tiles

    row = _row(short)
    config, whole = tiles.tile_config(), tiles.TileShape(tiles.TILE_ROWS, tiles.TILE_ROW_BYTES)
    given = _numbers(short, 0, (tiles.TILES // 2, tiles.TILE_ROWS * row.k))
    x = tirx.decl_buffer(list(given.shape), TYPES[short], "x")
    held = [
        tiles.TileAddress(load(x, [index(n), index(0)]), tiles.TILE_ROW_BYTES) for n in range(4)
    ]
    products = [tiles.multiply_tiles(row, 4 + i, 6 + j, 2 * i + j) for i in (0, 1) for j in (0, 1)]
    body = sequence(
        [
            tiles.configure(config, [whole] * tiles.TILES),
            *(tiles.load_tile(4 + n, address) for n, address in enumerate(held)),
            loop("k", index(STEPS), lambda _: sequence(products)),
            tiles.release(),
        ]
    )
    func = tirx.PrimFunc([x], block("root", block("task", body, [config])))
    func = func.with_attrs({"s_tir": True, "tirx.noalias": True, SCHEDULED: True})
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    built = tvm.compile(module, parse("cpu").tvm_target(), tir_pipeline="tvm_fusion")
    argument = tvm.runtime.tensor(given)
    return lambda: built["main"](argument)


def _numbers(short: str, seed: int, shape: tuple[int, int]) -> Any:
    """Draw small integers."""
    import ml_dtypes  # noqa: F401  # numpy's bfloat16
    import numpy as np

    return np.random.default_rng(seed).integers(-9, 9, shape).astype(TYPES[short])


def _gemm(short: str, size: int, is_any: bool) -> Call:
    """Compile a GEMM of square matrices whose B is packed at compile time."""
    import tvm
    from tvm import relax, tirx

    from tvm_fusion.device import parse

    dtype = TYPES[short]
    rows = tirx.Var("m", "int64") if is_any else size
    x = relax.Var("x", relax.TensorType((rows, size), dtype))
    weight = tvm.runtime.tensor(
        _numbers(short, 1, (size, size)).astype("int8" if dtype == "int8" else "float32")
    )
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
    argument = tvm.runtime.tensor(_numbers(short, 0, (size, size)))
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
    main(*map(int, sys.argv[1:]))
