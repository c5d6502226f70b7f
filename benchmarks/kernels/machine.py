"""What this machine can do: its rate of fused multiply-adds, and the bandwidth of its memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import ir, tirx

from tvm_fusion._tvm.ir.buffer import declare
from tvm_fusion.core.tir.expressions import load
from tvm_fusion.core.tir.loops import block, index, local, loop
from tvm_fusion.core.untouched import SCHEDULED
from tvm_fusion.device import parse
from tvm_fusion.schedule.cpu.register_tile import VectorUnit, in_vectors

SUMS = 12  # independent vectors of sums: more than the latency of two units asks for
STEPS = 1 << 20
BYTES = 256 << 20  # of a read: larger than any cache


def multiply_adds(threads: int) -> tuple[Callable[[], None], float]:
    """Return a run of multiply-adds that touch registers only, and its operations.

    Parameters
    ----------
    threads
        Each runs its own.
    """
    target = parse("cpu").tvm_target()
    lanes = VectorUnit.of(target).lanes
    factors = declare([index(2)], "float32", "factors")
    result = declare([index(threads), index(SUMS), index(lanes)], "float32", "result")

    def task(number: ir.Expr) -> tirx.Stmt:
        sums = local("sums", [SUMS, lanes], "float32")
        zero, one = index(0), index(1)

        def each(body: Callable[[ir.Expr, ir.Expr], tirx.Stmt]) -> tirx.Stmt:
            return loop(
                "i", SUMS, lambda i: in_vectors(lanes, lambda j: body(i, j)), tirx.ForKind.UNROLLED
            )

        def step(i: ir.Expr, j: ir.Expr) -> tirx.Stmt:
            value = load(sums, [i, j]) * load(factors, [zero]) + load(factors, [one])
            return tirx.BufferStore(sums, value, [i, j])

        stmts = [
            each(lambda i, j: tirx.BufferStore(sums, tirx.const(1.0, "float32"), [i, j])),
            loop("step", STEPS, lambda _: each(step)),
            each(lambda i, j: tirx.BufferStore(result, load(sums, [i, j]), [number, i, j])),
        ]
        return block("task", tirx.SeqStmt(stmts), [sums])

    var = tirx.Var("task", "int64")
    body = tirx.For(var, index(0), index(threads), tirx.ForKind.PARALLEL, task(var))
    func = tirx.PrimFunc([factors, result], block("root", body)).with_attrs(
        {"s_tir": True, "tirx.noalias": True, SCHEDULED: True, "global_symbol": "main"}
    )
    built = tvm.tirx.build(tvm.IRModule({"main": func}), target, pipeline="tvm_fusion")
    given = tvm.runtime.tensor(np.array([0.999, 1e-6], "float32"))
    out = tvm.runtime.tensor(np.zeros((threads, SUMS, lanes), "float32"))
    return lambda: built["main"](given, out), 2.0 * threads * STEPS * SUMS * lanes


def read() -> tuple[Callable[[], object], int]:
    """Return a run that reads memory and writes next to nothing (BLAS's dot), and its bytes."""
    x = np.ones(BYTES // 4, "float32")
    return lambda: np.dot(x, x), x.nbytes


def copy() -> tuple[Callable[[], object], int]:
    """Return a run that copies memory, and the bytes that it reads and writes."""
    x = np.ones(BYTES // 8, "float32")
    y = np.zeros_like(x)
    return lambda: np.copyto(y, x), 2 * x.nbytes
