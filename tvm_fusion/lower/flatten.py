"""Flatten buffer indices so that TVM 0.27 simplifies them correctly.

Its FlattenBuffer simplifies ``(i % 6 + 2) % 3`` as a part of ``i`` shifted by whole numbers, and
takes one shift for all parts of ``i`` in an index: ``(i + 10) % 5 + (i + 13) % 5`` becomes
``(i + 3) % 5 * 2``, and ``i % 64 % 7`` becomes ``i % 7``. Such divisions it does not see here.

It leaves ``(i // n + 1) * n + i % n`` alone where ``n`` is symbolic, and what it does not see. CUDA
has no vectors of such indices. LLVM knows that the elements
are contiguous, and where a condition guards the access it makes one masked access of several,
from an address whose division was left out if the first of them is not wanted: a crash.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FunctionType, SimpleNamespace
from typing import Any

import tvm
import tvm_ffi
from tvm import DataType, ir, s_tir, tirx
from tvm.ir.transform import Pass, PassContext, Sequential
from tvm.s_tir import pipeline

from .._tvm.ir.buffer import scratch
from .._tvm.ir.structural import structural_map, structural_walk
from .._tvm.ir.target import target_kind
from ..core.tir.expressions import loads
from ..core.tir.loops import constant, find
from ..core.tir.polynomial import Polynomials
from .narrow_types import ComputeLegalizeElsewhere, LowerBF16
from .whole_index import whole

DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)


def s_tir_pipeline(
    before_all_reduce: Callable[[], Pass],
) -> tuple[Pass, Callable[[], Pass], Callable[[], Pass]]:
    """TVM's pipeline of functions over SBlocks, with ours in the place of some of its passes.

    TVM gives passes no place between those before and after. Variables of large expressions go into
    registers behind the vectorization; see :mod:`tvm_fusion.lower.flatten`.

    Parameters
    ----------
    before_all_reduce
        Makes the pass in front of LowerThreadAllreduce.
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
    reduce = s_tir.transform.LowerThreadAllreduce
    s_tir_passes = SimpleNamespace(
        **{
            **vars(s_tir.transform),
            "LowerThreadAllreduce": lambda: Sequential([before_all_reduce(), reduce()]),
        }
    )
    names = {
        "tirx": SimpleNamespace(**{**vars(tirx), "transform": passes}),
        "s_tir": SimpleNamespace(**{**vars(s_tir), "transform": s_tir_passes}),
    }
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


# Disable the reuse of shared memory by TVM 0.27's StorageRewrite on AMD GPUs.
#
# StorageRewrite lets buffers whose lifetimes do not overlap share an allocation; the second one is
# declared as a view of the first one's data. TVM's AMDGPU code generator gives every declared
# pointer the global address space, so the kernel reads and writes shared memory (LDS) through
# global instructions: ``addrspacecast (ptr addrspace(3) ... to ptr addrspace(1))`` in LLVM's IR, a
# memory fault on the device. Registers that share an allocation fare the same way. Each buffer
# keeps an allocation of its own here, at the price of some LDS (1 KiB of 9 in a GEMV); LLVM does
# the rest.
@tirx.transform.prim_func_pass(opt_level=0, name="SeparateStorage")
class SeparateStorage:
    """TVM's StorageRewrite, but for functions that run on AMD GPUs.

    Those that keep buffers in warp memory are rewritten there, too: LowerWarpMemory needs the
    allocation around the threads, where StorageRewrite moves it. What it shares besides is found
    when the machine code is checked.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite one function."""
        if target_kind(func) == "rocm" and not _has_warp_memory(func):
            return func
        return tirx.transform.StorageRewrite()(ir.IRModule({"main": func}))["main"]


def _has_warp_memory(func: tirx.PrimFunc) -> bool:
    found: list[tirx.AllocBuffer] = []
    tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, found.append))
    return any(alloc.buffer.scope() == "warp" for alloc in found)


# Replace many ``Let`` variables of an expression by elements of a local buffer.
#
# TVM 0.27's LLVM code generator simplifies what a variable is bound to with all earlier bindings
# put in its place: an expression of ten variables that are used thrice each grows beyond any size.
# What is loaded from a buffer is not looked through, so such variables are stored into buffers of a
# thread, which LLVM keeps in registers.
# Of an expression with its variables put in place: an arc tangent has 10,606; 17,000 take a minute.
MOST_NODES = 12_000


@tirx.transform.prim_func_pass(opt_level=0, name="LetInRegisters")
class LetInRegisters:
    """Store the variables of large expressions, vectors or numbers, before they are used.

    Runs behind VectorizeLoop.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite the stores of one function that runs on a CPU."""
        if target_kind(func) != "llvm":
            return func

        def store(node: tirx.BufferStore) -> tirx.Stmt:
            if _inlined_nodes(node.value) <= MOST_NODES or _is_lazy(node.value):
                return node
            made = _Temporaries()
            value = made.expr(node.value)
            last = tirx.BufferStore(node.buffer, value, node.indices)
            return tirx.SeqStmt([*made.allocations, *made.stores, last])

        body = structural_map(func.body, (tirx.BufferStore, store), order="post")
        return func.with_body(body)


@dataclass
class _Temporaries:
    """What is allocated and stored for one expression, in order."""

    allocations: list[tirx.Stmt] = field(default_factory=list)
    stores: list[tirx.Stmt] = field(default_factory=list)

    def expr(self, expr: ir.Expr) -> ir.Expr:
        """Store the variables that an expression binds; returns it over loads of them."""
        values: dict[ir.Var, ir.Expr] = {}

        def without(let: tirx.Let) -> ir.Expr:
            values[let.var] = let.value
            return let.body

        bare = structural_map(expr, (tirx.Let, without), order="post")
        loads: dict[int, ir.Expr] = {}  # by the hashes of variables, which are their addresses

        def loaded(part: ir.Expr) -> ir.Expr:
            return structural_map(part, (ir.Var, lambda v: loads.get(hash(v), v)), order="post")

        for var in _in_order(expr):
            loads[hash(var)] = self._stored(var, loaded(values[var]))
        return loaded(bare)

    def _stored(self, var: ir.Var, value: ir.Expr) -> ir.Expr:
        dtype = DataType(str(var.ty.dtype))
        lanes = dtype.lanes
        element = str(dtype).partition("x")[0] if lanes > 1 else str(dtype)
        buffer = scratch([tirx.IntImm("int32", max(lanes, 2))], element, var.name, scope="local")
        zero = tirx.IntImm("int32", 0)
        place = tirx.Ramp(zero, tirx.IntImm("int32", 1), lanes) if lanes > 1 else zero
        self.allocations.append(tirx.AllocBuffer(buffer))
        self.stores.append(tirx.BufferStore(buffer, value, [place]))
        return tirx.BufferLoad(buffer, [place])


def _in_order(expr: ir.Expr) -> list[ir.Var]:
    """List the variables that an expression binds, each behind those that its value mentions."""
    found: dict[ir.Var, None] = {}

    def visit(let: tirx.Let) -> tvm_ffi.WalkResult:
        inner: ir.Expr = let
        while isinstance(inner, tirx.Let):  # long chains are no deep recursion
            if inner.var not in found:
                walk(inner.value)
                found[inner.var] = None
            inner = inner.body
        walk(inner)
        return tvm_ffi.WalkResult.SKIP

    def walk(part: ir.Expr) -> None:
        structural_walk(part, (tirx.Let, visit), order="pre")

    walk(expr)
    return list(found)


def _is_lazy(expr: ir.Expr) -> bool:
    """Whether a part may not be computed always: loads under conditions."""
    calls: list[ir.Call] = []
    structural_walk(expr, (ir.Call, calls.append))
    return any(getattr(call.op, "name", "") == "tirx.if_then_else" for call in calls)


def _inlined_nodes(expr: ir.Expr) -> int:
    """Count the nodes that an expression has with all variables put in place; 0 without any."""
    sizes: dict[ir.Var, int] = {}

    def nodes(part: ir.Expr) -> int:
        count = 0

        def visit_let(let: tirx.Let) -> tvm_ffi.WalkResult:
            nonlocal count
            inner: ir.Expr = let
            while isinstance(inner, tirx.Let):
                if inner.var not in sizes:
                    sizes[inner.var] = nodes(inner.value)
                count += 1 + 2 * sizes[inner.var]  # the binding, its variable and its value
                inner = inner.body
            count += nodes(inner)
            return tvm_ffi.WalkResult.SKIP

        def visit(node: ir.Expr) -> None:
            nonlocal count
            count += sizes.get(node, 1) if isinstance(node, ir.Var) else 1

        callbacks = [(tirx.Let, visit_let), (ir.Expr, visit)]
        structural_walk(part, callbacks, order="pre")
        return count

    count = nodes(expr)
    return count if sizes else 0
