"""Remove argument checks of kernels that their caller has made already.

TVM 0.27's MakePackedAPI asserts each property of each tensor: rank, type, device, every extent,
strides, memory. Each assertion has a branch and a call that raises a sentence of its own, 13 and
more a tensor. LLVM spent two fifths of its time on them in DenseNet-121's kernels for two CPU
cores, and 72 % of their object code was theirs.

    assert ndim(x) == 4, "... argument #0 ..."      x is a parameter of the model: stays
    assert ndim(w) == 6, "... argument #1 ..."      w is allocated by the virtual machine: dropped
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from tvm import ir, tirx
from tvm.ir.transform import PassContext

from .._tvm.ir.structural import structural_map

CHECKED = "tvm_fusion.checked_params"  # attribute: positions of parameters not to be checked
_NUMBER = " on argument #"  # what the part of a message before an argument's number ends with


@tirx.transform.prim_func_pass(opt_level=0, name="DropArgumentChecks")
class DropArgumentChecks:
    """Drop assertions about parameters that attribute ``checked_params`` lists.

    Runs behind MakePackedAPI.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite one packed function."""
        if not func.attrs or CHECKED not in func.attrs:
            return func
        checked = frozenset(str(int(k)) for k in func.attrs[CHECKED])
        nothing = tirx.Evaluate(tirx.IntImm("int32", 0))

        def drop(check: tirx.AssertStmt) -> tirx.Stmt:
            return nothing if _argument(check) in checked else check

        def without(sequence: tirx.SeqStmt) -> tirx.Stmt:
            kept = [stmt for stmt in sequence.seq if not _is_empty(stmt, nothing)]
            return sequence if len(kept) == len(sequence.seq) else _sequence(kept, nothing)

        callbacks = [(tirx.AssertStmt, drop), (tirx.SeqStmt, without)]
        body = structural_map(func.body, callbacks, order="post")
        return func.with_body(body).without_attr(CHECKED)


def _argument(check: tirx.AssertStmt) -> str | None:
    """Return the index, as text, of the argument that an assertion of MakePackedAPI is about."""
    parts = [part.value for part in check.message_parts]
    for before, number in itertools.pairwise(parts):
        if before.endswith(_NUMBER):
            return number
    return None


def _is_empty(stmt: tirx.Stmt, nothing: tirx.Stmt) -> bool:
    if isinstance(stmt, tirx.IfThenElse):  # strides are checked of tensors that have some
        return stmt.else_case is None and stmt.then_case.same_as(nothing)
    return stmt.same_as(nothing)


def _sequence(stmts: Sequence[tirx.Stmt], nothing: tirx.Stmt) -> tirx.Stmt:
    if not stmts:
        return nothing
    return stmts[0] if len(stmts) == 1 else tirx.SeqStmt(list(stmts))


def with_checked(func: tirx.PrimFunc, positions: Collection[int]) -> tirx.PrimFunc:
    """Say of a function's parameters that callers have checked them."""
    return func.with_attr(CHECKED, sorted(positions)) if positions else func
