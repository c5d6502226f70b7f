"""What one thread of this CPU multiplies at most: fused multiply-adds of registers alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from tvm_fusion.core.tir.expressions import load
from tvm_fusion.core.tir.loops import block, index, local, loop, sequence
from tvm_fusion.core.untouched import SCHEDULED
from tvm_fusion.device import parse
from tvm_fusion.schedule.cpu.register_tile import VectorUnit, each

STEPS, UNROLLED = 1 << 12, 8  # a branch for each 28 of Zen 5 costs 7 %


def peak(clock: Callable[[], float]) -> float:
    """Measure fused multiply-adds of independent registers, in GFLOP/s of one thread."""
    unit = VectorUnit.of(parse("cpu").device)
    rows = unit.registers - 4
    x = tirx.decl_buffer([unit.lanes], "float32", "x")
    y = tirx.decl_buffer([rows, unit.lanes], "float32", "y")
    acc = local("acc", [rows, unit.lanes], "float32")

    def add(i: Any, lane: Any) -> tirx.Stmt:
        value = load(acc, [i, lane]) * load(x, [lane]) + load(x, [lane])
        return tirx.BufferStore(acc, value, [i, lane])

    begin = each(acc, lambda i, lane: tirx.BufferStore(acc, load(x, [lane]), [i, lane]))
    end = each(acc, lambda i, lane: tirx.BufferStore(y, load(acc, [i, lane]), [i, lane]))
    steps = loop("k", index(STEPS), lambda _: tirx.SeqStmt([each(acc, add)] * UNROLLED))
    func = tirx.PrimFunc([x, y], block("root", block("tile", sequence([begin, steps, end]), [acc])))
    func = func.with_attrs({"s_tir": True, "tirx.noalias": True, SCHEDULED: True})
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    built = tvm.compile(module, parse("cpu").tvm_target(), tir_pipeline="tvm_fusion")
    tensors = [np.full(unit.lanes, 0.5, "float32"), np.zeros((rows, unit.lanes), "float32")]
    arguments = [tvm.runtime.tensor(a) for a in tensors]
    best = float("inf")
    for _ in range(200):
        start = clock()
        built["main"](*arguments)
        best = min(best, clock() - start)
    return 2 * STEPS * UNROLLED * rows * unit.lanes / best / 1e9
