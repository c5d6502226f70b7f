"""Variables bound in an expression become elements of registers, where they are many.

TVM 0.27's LLVM code generator simplifies what a variable is bound to with all earlier bindings put
in its place: an expression of ten variables that are used thrice each grows beyond any size. What
is loaded from a buffer is not looked through, so such variables are stored into buffers of a
thread, which LLVM keeps in registers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tvm import DataType, ir, tirx
from tvm.ir.transform import PassContext

from .._tvm.buffer import scratch
from .._tvm.structural import structural_map, structural_walk
from .._tvm.target import target_kind

MOST_NODES = 20_000  # of an expression with its variables put in place; an arc tangent has 10,606


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
            made = _Registers()
            value = made.expr(node.value)
            last = tirx.BufferStore(node.buffer, value, node.indices)
            return tirx.SeqStmt([*made.allocations, *made.stores, last])

        body = structural_map(func.body, (tirx.BufferStore, store), order="post")
        return func.with_body(body)


@dataclass
class _Registers:
    """What is allocated and stored for one expression, in order."""

    allocations: list[tirx.Stmt] = field(default_factory=list)
    stores: list[tirx.Stmt] = field(default_factory=list)

    def expr(self, expr: ir.Expr) -> ir.Expr:
        """Store the variables that an expression binds; returns it over loads of them."""
        while True:
            lets: list[tirx.Let] = []
            structural_walk(expr, (tirx.Let, lets.append))
            if not lets:
                return expr
            outer = next(let for let in lets if not any(_inside(let, other) for other in lets))
            load = self._stored(outer.var, self.expr(outer.value))
            body = _replaced(outer.body, outer.var, load)
            expr = _swapped(expr, outer, body)

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


def _inside(let: tirx.Let, other: tirx.Let) -> bool:
    if let.same_as(other):
        return False
    inner: list[tirx.Let] = []
    structural_walk(other, (tirx.Let, inner.append))
    return any(node.same_as(let) for node in inner)


def _swapped(expr: ir.Expr, let: tirx.Let, body: ir.Expr) -> ir.Expr:
    def swap(node: tirx.Let) -> ir.Expr:
        return body if node.same_as(let) else node

    return structural_map(expr, (tirx.Let, swap), order="pre")


def _replaced(expr: ir.Expr, var: ir.Var, value: ir.Expr) -> ir.Expr:
    return structural_map(expr, (ir.Var, lambda v: value if v.same_as(var) else v), order="post")


def _is_lazy(expr: ir.Expr) -> bool:
    """Whether a part may not be computed always: loads under conditions."""
    calls: list[ir.Call] = []
    structural_walk(expr, (ir.Call, calls.append))
    return any(getattr(call.op, "name", "") == "tirx.if_then_else" for call in calls)


def _inlined_nodes(expr: ir.Expr) -> int:
    """Count the nodes that an expression has with all variables put in place."""
    lets: list[tirx.Let] = []
    structural_walk(expr, (tirx.Let, lets.append))
    values = {let.var: let.value for let in lets}
    sizes: dict[ir.Var, int] = {}

    def nodes(part: ir.Expr) -> int:
        found: list[ir.Expr] = []
        structural_walk(part, (ir.Expr, found.append))
        return sum(size(node) if isinstance(node, ir.Var) else 1 for node in found)

    def size(var: ir.Var) -> int:
        if var not in sizes:
            sizes[var] = nodes(values[var]) if var in values else 1
        return sizes[var]

    return nodes(expr) if lets else 0
