"""Drop what code generators need not see, and name what they cannot print."""

import itertools
import re
from collections.abc import Collection, Sequence

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from .._tvm.ir.structural import structural_map
from ..core.tir.loops import find


@tirx.transform.prim_func_pass(opt_level=0, name="DropEmptyLoops")
class DropEmptyLoops:
    """Take out loops of a static extent of zero: those of a tensor without elements.

    TVM 0.27 drops the thread axis of such a loop: its body runs in one block all the same, and
    writes to a tensor that has no memory.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Put a statement without effect in place of each."""

        def change(loop: tirx.For) -> tirx.Stmt:
            is_empty = isinstance(loop.extent, tirx.IntImm) and int(loop.extent) <= 0
            return tirx.Evaluate(tirx.const(0)) if is_empty else loop

        body = structural_map(func.body, (tirx.For, change), order="post")
        return func if body.same_as(func.body) else func.with_body(body)


@tirx.transform.prim_func_pass(opt_level=0, name="DropScopePragmas")
class DropScopePragmas:
    """Take out the mark ``pragma_scope`` of TOPI's scans, sorts and scatters.

    No pass reads it, and LLVM's code generator of TVM 0.27 warns of an unknown pragma for each.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: ir.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Put the body in place of each."""

        def change(mark: tirx.AttrStmt) -> tirx.Stmt:
            return mark.body if mark.attr_key == "pragma_scope" else mark

        body = structural_map(func.body, (tirx.AttrStmt, change), order="post")
        return func if body.same_as(func.body) else func.with_body(body)


# Names of variables that TVM's C code generators can print.
#
# TVM 0.27 writes a parameter's name into CUDA source as it is. Relax parameters carry a model's
# input names, FuseTIR hands them on to kernels, and ``gpu_0/data_0`` is no identifier in C. Buffers
# in registers that are named after a parameter have the same fault.


@tirx.transform.prim_func_pass(opt_level=0, name="ValidNames")
class ValidNames:
    """Rename variables of PrimFuncs with parameters whose names are no C identifiers."""

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rename where needed; a function without such names is returned as it is."""
        if all(param.name.isidentifier() for param in func.params):
            return func
        renamed = {
            var: ir.Var(re.sub(r"\W", "_", var.name), var.ty)
            for var in dict.fromkeys([*func.params, *find(func.body, ir.Var)])
            if not var.name.isidentifier()
        }
        return tvm_ffi.structural_map(
            func, (ir.Var, lambda var: renamed.get(var, var)), order="post"
        )


# Remove argument checks of kernels that their caller has made already.
#
# TVM 0.27's MakePackedAPI asserts each property of each tensor: rank, type, device, every extent,
# strides, memory. Each assertion has a branch and a call that raises a sentence of its own, 13 and
# more a tensor. LLVM spent two fifths of its time on them in DenseNet-121's kernels for two CPU
# cores, and 72 % of their object code was theirs.
#
#     assert ndim(x) == 4, "... argument #0 ..."      x is a parameter of the model: stays
#     assert ndim(w) == 6, "... argument #1 ..."      w is allocated by the virtual machine: dropped


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
