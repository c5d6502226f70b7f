"""Flat indices that TVM 0.27 gets right.

Its FlattenBuffer simplifies ``(i % 6 + 2) % 3`` as a part of ``i`` shifted by whole numbers, and
takes one shift for all parts of ``i`` in an index: ``(i + 10) % 5 + (i + 13) % 5`` becomes
``(i + 3) % 5 * 2``, and ``i % 64 % 7`` becomes ``i % 7``. Divisions that truncate it leaves alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.ir.transform import Pass, PassContext, Sequential
from tvm.s_tir import pipeline

DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)


def s_tir_pipeline() -> tuple[Pass, Callable[[], Pass], Callable[[], Pass]]:
    """TVM's pipeline of functions over SBlocks, in which indices are flattened rightly.

    TVM gives its passes no place between those before and after.
    """
    flatten = tirx.transform.FlattenBuffer

    def right_flatten() -> Pass:
        return Sequential([TruncateDivisions(), flatten()])

    passes = SimpleNamespace(**{**vars(tirx.transform), "FlattenBuffer": right_flatten})
    names = {"tirx": SimpleNamespace(**{**vars(tirx), "transform": passes})}
    source = pipeline.default_s_tir_pipeline
    return FunctionType(source.__code__, {**source.__globals__, **names})()


@tirx.transform.prim_func_pass(opt_level=0, name="TruncateDivisions")
class TruncateDivisions:
    """Make divisions in indices truncate, where FlattenBuffer would shift what is divided."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite one function; the others are not looked at."""
        accesses: list[Any] = []
        kinds = (ir.TensorLoad, tirx.BufferStore)
        tvm_ffi.structural_walk(func.body, [(kind, accesses.append) for kind in kinds])
        if not any(_is_shifted(index) for access in accesses for index in access.indices):
            return func
        analyzer = _bounds(func)

        def truncate(division: Any) -> ir.Expr:
            return _truncated(division, analyzer) if _shifts(division) else division

        def rewritten(indices: Sequence[ir.Expr]) -> list[ir.Expr]:
            kinds = [(kind, truncate) for kind in DIVISIONS]
            return [tvm_ffi.structural_map(index, kinds, order="post") for index in indices]

        def load(access: ir.TensorLoad) -> ir.Expr:
            return tirx.BufferLoad(access.source, rewritten(access.indices))

        def store(access: tirx.BufferStore) -> tirx.Stmt:
            return tirx.BufferStore(access.buffer, access.value, rewritten(access.indices))

        body = tvm_ffi.structural_map(
            func.body, [(ir.TensorLoad, load), (tirx.BufferStore, store)], order="post"
        )
        return func.with_body(body)


def _bounds(func: tirx.PrimFunc) -> sym.Analyzer:
    analyzer = sym.Analyzer()

    def loop(stmt: tirx.For) -> None:
        whole = ir.Range.from_min_extent(stmt.min, stmt.extent)
        analyzer.bind(stmt.loop_var, whole, allow_override=True)

    def threads(stmt: tirx.AttrStmt) -> None:
        if stmt.attr_key == "thread_extent":
            analyzer.bind(stmt.node.var, ir.Range(0, stmt.value), allow_override=True)

    tvm_ffi.structural_walk(func.body, [(tirx.For, loop), (tirx.AttrStmt, threads)])
    return analyzer


def _truncated(division: Any, analyzer: sym.Analyzer) -> ir.Expr:
    dividend, divisor = division.a, division.b
    remainder = tirx.truncmod(dividend, divisor)
    if not analyzer.can_prove(dividend >= 0):
        remainder = tirx.truncmod(remainder + divisor, divisor)
        dividend = dividend - remainder
    return remainder if isinstance(division, tirx.FloorMod) else tirx.truncdiv(dividend, divisor)


def _is_shifted(index: ir.Expr) -> bool:
    divisions: list[Any] = []
    tvm_ffi.structural_walk(index, [(kind, divisions.append) for kind in DIVISIONS])
    return any(map(_shifts, divisions))


def _shifts(division: Any) -> bool:
    """Whether a division needs padding: of a sum with a constant, or of another remainder."""
    return not _is_aligned(division.a, _constant(division.b))


def _is_aligned(expr: ir.Expr, divisor: int | None) -> bool:
    """Whether parts of a dividend begin where those do that a divisor, None if symbolic, makes."""
    if isinstance(expr, ir.Var):
        return True
    if isinstance(expr, tirx.IntImm):
        return int(expr) == 0 if divisor is None else int(expr) % divisor == 0
    if isinstance(expr, (tirx.Add, tirx.Sub)):
        return _is_aligned(expr.a, divisor) and _is_aligned(expr.b, divisor)
    if isinstance(expr, tirx.Mul):
        factor = _constant(expr.b)
        if divisor is not None and factor is not None:
            return _is_aligned(expr.a, divisor // math.gcd(divisor, factor))
        return _is_aligned(expr.a, divisor)
    if isinstance(expr, DIVISIONS):
        inner = _constant(expr.b)
        if isinstance(expr, tirx.FloorDiv):
            whole = None if inner is None or divisor is None else divisor * inner
            return _is_aligned(expr.a, whole)
        fits = inner is not None and divisor is not None and inner % divisor == 0
        return fits and _is_aligned(expr.a, inner)
    return False


def _constant(expr: ir.Expr) -> int | None:
    return int(expr) if isinstance(expr, tirx.IntImm) else None
