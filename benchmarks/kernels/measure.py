"""One process: checks each case, times it and its peer in turns, prints JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import tvm
from tvm import relax

from tvm_fusion.core.contract.template import Claim, Refusal
from tvm_fusion.device import Device
from tvm_fusion.program.group import Group
from tvm_fusion.schedule.contraction.cpu.norm_gemm_template import NormGemm

from . import cases, machine

ROUNDS = 7
SECONDS = 0.05  # of one turn
WARM = 0.04  # seconds of a turn before: the other library's threads still wait for work, busily
TOLERANCE = 1e-5


def alternate(runs: Sequence[Callable[[], object]], turns: int = ROUNDS) -> list[float]:
    """Return the seconds of each run: the median over rounds in which all have their turn."""
    for run in runs:
        run()
    rounds: list[list[float]] = [[] for _ in runs]
    for _ in range(turns):
        for run, seconds in zip(runs, rounds, strict=True):
            start = time.perf_counter()
            while time.perf_counter() - start < WARM:
                run()
            times, start = [], time.perf_counter()
            while not times or time.perf_counter() - start < SECONDS:
                begin = time.perf_counter()
                run()
                times.append(time.perf_counter() - begin)
            seconds.append(statistics.median(times))
    return [statistics.median(seconds) for seconds in rounds]


def product(case: cases.Product) -> dict[str, Any]:
    """Compare with numpy's BLAS; rates in 1e9 operations a second, of all threads."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((case.rows, case.terms)).astype("float32")
    w = rng.standard_normal((case.terms, case.columns)).astype("float32")
    left = relax.Var("x", relax.TensorType(x.shape, "float32"))
    right = (
        relax.const(w) if case.constant else relax.Var("w", relax.TensorType(w.shape, "float32"))
    )
    params = [left] if case.constant else [left, right]
    run = cases.compiled(params, lambda emit: relax.op.matmul(left, right))
    given = [tvm.runtime.tensor(a) for a in ((x,) if case.constant else (x, w))]
    exact = x.astype("float64") @ w
    error = float(np.abs(run(*given).numpy() - exact).max() / np.abs(exact).max())
    if error > TOLERANCE:
        raise RuntimeError(f"{case.name} is wrong: relative error {error:.1e}")
    ours, blas = alternate([lambda: run(*given), lambda: x @ w])
    return {
        "name": case.name,
        "ours": case.operations / ours / 1e9,
        "blas": case.operations / blas / 1e9,
        "bytes_per_second": (x.nbytes + w.nbytes + exact.nbytes // 2) / ours / 1e9,
        "error": error,
    }


def rows(name: str) -> dict[str, Any]:
    """Measure a map of rows in memory: 1e9 bytes a second, each tensor once."""
    body, tensors = cases.ROWS[name]
    count = body.__code__.co_argcount
    full = [cases.LARGE] + [cases.LARGE if name == "add" else cases.LARGE[1:]] * (count - 1)
    params = [relax.Var(f"x{i}", relax.TensorType(s, "float32")) for i, s in enumerate(full)]
    run = cases.compiled(params, lambda emit: body(*params))
    rng = np.random.default_rng(0)
    given = [tvm.runtime.tensor(rng.standard_normal(s).astype("float32")) for s in full]
    copied, size = machine.copy()
    read, read_size = machine.read()
    ours, copy_seconds, read_seconds = alternate([lambda: run(*given), copied, read])
    bytes_ = tensors * int(np.prod(cases.LARGE)) * 4
    bandwidth = size / copy_seconds if tensors > 1 else read_size / read_seconds
    return {
        "name": name,
        "ours": bytes_ / ours / 1e9,
        "stream": bandwidth / 1e9,
    }


def norm(rows: int) -> dict[str, Any]:
    """Measure norms before products, apart and together: microseconds of one of each."""
    x = relax.Var("x", relax.TensorType((rows, cases.WIDTH), "float32"))
    claim = NormGemm.claim

    def never(self: NormGemm, group: Group, device: Device) -> Refusal:
        return Refusal("not_mine", "Kernels are to be apart.")

    def always(self: NormGemm, group: Group, device: Device) -> Claim | Refusal:
        found = claim(self, group, device)
        return replace(found, flops=0, bytes=0) if isinstance(found, Claim) else found

    runs = []
    for way in (never, always):
        with patch.object(NormGemm, "claim", way):
            runs.append(cases.compiled([x], lambda emit: cases.norms(emit, x)))
    given = np.random.default_rng(1).standard_normal((rows, cases.WIDTH)).astype("float32")
    tensor = tvm.runtime.tensor(given)
    results = [run(tensor).numpy() for run in runs]
    error = float(np.abs(results[0] - results[1]).max() / np.abs(results[0]).max())
    if error > TOLERANCE:
        raise RuntimeError(f"norms of {rows} rows differ: relative error {error:.1e}")
    apart, together = (
        seconds / cases.LAYERS * 1e6 for seconds in alternate([lambda r=r: r(tensor) for r in runs])
    )
    return {"rows": rows, "apart": apart, "together": together}


def main() -> None:
    """Measure everything with the threads that the environment sets."""
    threads = int(sys.argv[1])
    run, operations = machine.multiply_adds(threads)
    read, size = machine.read()
    peak, stream = alternate([run, read])
    record = {
        "peak": operations / peak / 1e9,
        "read": size / stream / 1e9,
        "squares": [product(case) for case in cases.squares()],
        "drawn": [product(case) for case in cases.drawn()],
        "vectors": [product(case) for case in cases.vectors()],
        "rows": [rows(name) for name in cases.ROWS],
        "norms": [norm(rows) for rows in cases.NORMED],
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
