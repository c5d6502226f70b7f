"""Flatten buffer indices so that TVM 0.27 simplifies them correctly.

Its FlattenBuffer simplifies ``(i % 6 + 2) % 3`` as a part of ``i`` shifted by whole numbers, and
takes one shift for all parts of ``i`` in an index: ``(i + 10) % 5 + (i + 13) % 5`` becomes
``(i + 3) % 5 * 2``, and ``i % 64 % 7`` becomes ``i % 7``. Such divisions it does not see here.

It leaves ``(i // n + 1) * n + i % n`` alone where ``n`` is symbolic, and what it does not see. CUDA
has no vectors of such indices. LLVM knows that the elements
are contiguous, and where a condition guards the access it makes one masked access of several,
from an address whose division was left out if the first of them is not wanted: a crash.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import Pass, PassContext, Sequential
from tvm.s_tir import pipeline

from .._tvm.structural import structural_map
from ..core.expressions import loads
from ..core.loops import constant, find
from ..core.polynomial import Polynomials
from .bf16 import ComputeLegalizeElsewhere, LowerBF16
from .let import LetInRegisters
from .storage import SeparateStorage
from .whole_index import whole

DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)


def s_tir_pipeline() -> tuple[Pass, Callable[[], Pass], Callable[[], Pass]]:
    """TVM's pipeline of functions over SBlocks, with ours in the place of some of its passes.

    TVM gives passes no place between those before and after. Variables of large expressions go into
    registers behind the vectorization; see :mod:`tvm_fusion.lower.let`.
    """

    def vectorize(is_enabled: bool) -> Pass:
        return Sequential([tirx.transform.VectorizeLoop(is_enabled), LetInRegisters()])

    fp8 = tirx.transform.FP8ComputeLegalize
    ours = {
        "FlattenBuffer": FlattenRightly,
        "VectorizeLoop": vectorize,
        "StorageRewrite": SeparateStorage,
        "BF16ComputeLegalize": ComputeLegalizeElsewhere,
        "FP8ComputeLegalize": lambda: Sequential([fp8(), LowerBF16()]),
    }
    passes = SimpleNamespace(**{**vars(tirx.transform), **ours})
    names = {"tirx": SimpleNamespace(**{**vars(tirx), "transform": passes})}
    source = pipeline.default_s_tir_pipeline
    return FunctionType(source.__code__, {**source.__globals__, **names})()


@tirx.transform.prim_func_pass(opt_level=0, name="FlattenRightly")
class FlattenRightly:
    """TVM's FlattenBuffer between hiding and showing what it would shift wrongly."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Flatten one function; the others are not looked at."""
        hidden: dict[ir.Var, ir.Expr] = {}

        def hide(division: Any) -> ir.Expr:
            if not _shifts(division) or loads(division):  # FlattenBuffer flattens the loads
                return division
            variable = tirx.Var("hidden", division.ty.dtype)
            hidden[variable] = division
            return variable

        body = _with_indices(func.body, lambda i: _mapped(i, DIVISIONS, hide, "pre"))
        mod = tirx.transform.FlattenBuffer()(tvm.IRModule({"main": func.with_body(body)}))
        body = _mapped(mod["main"].body, (ir.Var,), lambda v: hidden.get(v, v))
        return mod["main"].with_body(_with_indices(body, contiguous))


def contiguous(index: ir.Expr) -> ir.Expr:
    """Put ``a`` for ``a // b * b + a % b``, whatever else is added or factors.

    Only where FlattenBuffer does not: where ``b`` is symbolic, or the division was hidden from it.
    Then where quotients of several divisors cancel together, all of them.

    Parameters
    ----------
    index : Expr
        A flat index.

    Returns
    -------
    Expr
        The same numbers.
    """
    for remainder in find(index, tirx.FloorMod):
        is_left = constant(remainder.b) is None or _shifts(remainder)
        if is_left and str(index.ty.dtype) == "int64":
            index = _without(remainder, index)
    if str(index.ty.dtype) == "int64" and find(index, tirx.FloorMod):
        return whole(index)
    return index


def _without(remainder: Any, index: ir.Expr) -> ir.Expr:
    """Write a remainder as ``a - a // b * b``, if the quotient cancels then."""
    atoms: list[tuple[ir.Expr, ir.Var]] = []

    def atom(expr: ir.Expr) -> ir.Var:
        for known, variable in atoms:
            if tvm_ffi.structural_equal(known, expr):
                return variable
        atoms.append((expr, tirx.Var("atom", expr.ty.dtype)))
        return atoms[-1][1]

    quotient = atom(tirx.FloorDiv(remainder.a, remainder.b))

    def spelled(expr: Any) -> ir.Expr:
        if isinstance(expr, (tirx.Add, tirx.Sub, tirx.Mul)):
            return type(expr)(spelled(expr.a), spelled(expr.b))
        if tvm_ffi.structural_equal(expr, remainder):
            return spelled(expr.a) - quotient * spelled(expr.b)
        return expr if isinstance(expr, (ir.Var, tirx.IntImm)) else atom(expr)

    found = Polynomials({}).expanded(spelled(index))
    if found is None or any(v.same_as(quotient) for v in tirx.analysis.undefined_vars(found)):
        return index
    back = {variable: expr for expr, variable in atoms}
    return _mapped(found, (ir.Var,), lambda v: back.get(v, v))


def _with_indices(body: tirx.Stmt, change: Callable[[ir.Expr], ir.Expr]) -> tirx.Stmt:
    def changed(indices: Sequence[ir.Expr]) -> list[ir.Expr] | None:
        new = [change(index) for index in indices]
        same = all(a.same_as(b) for a, b in zip(new, indices, strict=True))
        return None if same else new

    def load(access: ir.TensorLoad) -> ir.Expr:
        new = changed(access.indices)
        return access if new is None else tirx.BufferLoad(access.source, new)

    def store(access: tirx.BufferStore) -> tirx.Stmt:
        new = changed(access.indices)
        return access if new is None else tirx.BufferStore(access.buffer, access.value, new)

    kinds = [(ir.TensorLoad, load), (tirx.BufferStore, store)]
    return structural_map(body, kinds, order="post")


def _mapped(
    node: Any, kinds: Sequence[type], change: Callable[[Any], Any], order: str = "post"
) -> Any:
    return structural_map(node, [(kind, change) for kind in kinds], order=order)


def _shifts(division: Any) -> bool:
    """Whether a division needs padding: of a sum with a constant, or of another remainder."""
    return not _is_aligned(division.a, constant(division.b))


def _is_aligned(expr: ir.Expr, divisor: int | None) -> bool:
    """Whether parts of a dividend begin where those do that a divisor, None if symbolic, makes."""
    if isinstance(expr, ir.Var):
        return True
    if isinstance(expr, tirx.IntImm):
        return int(expr) == 0 if divisor is None else int(expr) % divisor == 0
    if isinstance(expr, (tirx.Add, tirx.Sub)):
        return _is_aligned(expr.a, divisor) and _is_aligned(expr.b, divisor)
    if isinstance(expr, tirx.Mul):
        factor = constant(expr.b)
        if divisor is not None and factor is not None:
            return _is_aligned(expr.a, divisor // math.gcd(divisor, factor))
        return _is_aligned(expr.a, divisor)
    if isinstance(expr, DIVISIONS):
        inner = constant(expr.b)
        if isinstance(expr, tirx.FloorDiv):
            whole = None if inner is None or divisor is None else divisor * inner
            return _is_aligned(expr.a, whole)
        fits = inner is not None and divisor is not None and inner % divisor == 0
        return fits and _is_aligned(expr.a, inner)
    return False
