"""Vectors of truth values, which TVM 0.27 allows in kernels and then stumbles over.

A buffer of booleans that a kernel allocates and accesses by vectors of one width only becomes a
buffer of int8 vectors (StorageRewrite), whose stores then do not fit. And a common subexpression
that compares vectors of positions is bound to a variable, which the analyzer cannot bind.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir.transform import PassContext

from ._tvm_buffer import declare


@tirx.transform.prim_func_pass(opt_level=0, name="BytesForBooleans")
class BytesForBooleans:
    """Allocate bytes where a scheduled kernel allocates booleans."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Replace the buffers that blocks allocate; parameters stay as they are."""
        blocks: list[s_tir.SBlock] = []
        tvm_ffi.structural_walk(func.body, (s_tir.SBlock, lambda block, *_: blocks.append(block)))
        bytes_of = {
            buffer: declare(buffer.shape, "int8", buffer.name, buffer.scope())
            for block in blocks
            for buffer in block.alloc_buffers
            if str(buffer.ty.dtype) == "bool"
        }
        if not bytes_of:
            return func
        replaced = set(bytes_of.values())

        def load(found: ir.TensorLoad) -> ir.Expr:
            buffer = bytes_of.get(found.source, found.source)
            if buffer not in replaced:
                return found
            return tirx.BufferLoad(buffer, list(found.indices)) != tirx.IntImm("int8", 0)

        def store(found: tirx.BufferStore) -> tirx.Stmt:
            buffer = bytes_of.get(found.buffer, found.buffer)
            if buffer not in replaced:
                return found
            return tirx.BufferStore(buffer, tirx.Cast("int8", found.value), list(found.indices))

        return tvm_ffi.structural_map(
            func,
            [
                (ir.TensorLoad, load),
                (tirx.BufferStore, store),
                (ir.Var, lambda var: bytes_of.get(var, var)),
            ],
            order="post",
        )


@tirx.transform.prim_func_pass(opt_level=0, name="InlineVectorConditions")
class InlineVectorConditions:
    """Put comparisons of vectors back where a lowered kernel uses the variable bound to them."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Inline what reads no memory; LLVM finds the common subexpression again."""
        bindings: list[tirx.Bind] = []
        tvm_ffi.structural_walk(func.body, (tirx.Bind, lambda bind, *_: bindings.append(bind)))
        values: dict[ir.Var, ir.Expr] = {}

        def value_of(var: ir.Var) -> ir.Expr:
            return values.get(var, var)

        for bind in bindings:  # in order, so that each uses only earlier ones
            if _is_condition(bind.value):
                values[bind.var] = tvm_ffi.structural_map(
                    bind.value, (ir.Var, value_of), order="post"
                )
        if not values:
            return func
        gone = set(values)

        def without(sequence: tirx.SeqStmt) -> tirx.Stmt:
            kept = [s for s in sequence.seq if not (isinstance(s, tirx.Bind) and s.var in gone)]
            return sequence if len(kept) == len(sequence.seq) else _sequence(kept)

        # Statements first: after it, the variables that are left are uses.
        body = tvm_ffi.structural_map(func.body, (tirx.SeqStmt, without), order="post")
        return func.with_body(tvm_ffi.structural_map(body, (ir.Var, value_of), order="post"))


def _is_condition(value: ir.Expr) -> bool:
    """Whether a vector is, or is made from, truth values that are not read from memory."""
    if not isinstance(value.ty, ir.PrimType) or "x" not in str(value.ty.dtype):
        return False
    found: list[ir.Expr] = []
    tvm_ffi.structural_walk(value, (ir.Expr, lambda node, *_: found.append(node)))
    if any(isinstance(node, ir.TensorLoad) for node in found):
        return False
    types = [str(node.ty.dtype) for node in found if isinstance(node.ty, ir.PrimType)]
    return any(dtype.startswith("boolx") for dtype in types)


def _sequence(stmts: list[tirx.Stmt]) -> tirx.Stmt:
    return stmts[0] if len(stmts) == 1 else tirx.SeqStmt(stmts)
