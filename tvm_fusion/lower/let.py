"""Replace many ``Let`` variables of an expression by elements of a local buffer.

TVM 0.27's LLVM code generator simplifies what a variable is bound to with all earlier bindings put
in its place: an expression of ten variables that are used thrice each grows beyond any size. What
is loaded from a buffer is not looked through, so such variables are stored into buffers of a
thread, which LLVM keeps in registers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import tvm_ffi
from tvm import DataType, ir, tirx
from tvm.ir.transform import PassContext

from .._tvm.buffer import scratch
from .._tvm.structural import structural_map, structural_walk
from .._tvm.target import target_kind

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
