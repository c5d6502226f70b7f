"""Where user data begins: integers of an operator wrap around, in the TensorIR that it becomes.

    C[i] = A[i] * 3 + B[i]                  C[i] = wrapping_add(wrapping_mul(A[i], 3), B[i])
    S[i] = S[i] + A[i, k] * B[k]            stays: by sums of products TVM and templates tell
                                            reductions; :mod:`tvm_fusion.lower.integers` ends that

Indices, conditions of statements and what is bound to variables are index arithmetic.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, s_tir, tirx

from .._tvm.structural import structural_map, structural_walk
from ..core.expressions import is_load_of, loads
from ..core.integers import LARGEST_EXTENT, is_integer, wrapped

# Their keys are the bits of floats, put in order by arithmetic that stays in its type.
_OF_BITS = frozenset({"relax.argmax", "relax.argmin"})


def wrap_integers(func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """Make the integers that an operator computes wrap around.

    Parameters
    ----------
    func : PrimFunc
        Of one operator, not scheduled.

    Returns
    -------
    PrimFunc
        The same function where nothing can overflow.
    """
    if name in _OF_BITS:
        return func
    ranges: dict[ir.Var, tuple[int, int]] = {}
    updates: set[int] = set()

    def loop(node: tirx.For) -> None:
        ranges[node.loop_var] = _range(node.min, node.extent)

    def block(node: s_tir.SBlock) -> None:
        for iterator in node.iter_vars:
            ranges[iterator.var] = _range(iterator.dom.min, iterator.dom.extent)
        if node.init is not None:
            structural_walk(node.body, (tirx.BufferStore, lambda s: updates.add(hash(s))))

    structural_walk(func.body, [(tirx.For, loop), (s_tir.SBlock, block)])

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        value = node.value
        if not loads(value):
            return node
        if hash(node) in updates:
            value = _update(value, node.buffer, ranges)
        else:
            value = wrapped(value, ranges)
        if value.same_as(node.value):
            return node
        return tirx.BufferStore(node.buffer, value, list(node.indices))

    return func.with_body(structural_map(func.body, (tirx.BufferStore, store), order="post"))


def _update(value: Any, target: ir.Var, ranges: dict[ir.Var, tuple[int, int]]) -> ir.Expr:
    """Leave the sum or product of a reduction, and the product that is summed, as they are."""
    if not isinstance(value, (tirx.Add, tirx.Mul)) or not is_integer(str(value.ty.dtype)):
        return wrapped(value, ranges)
    for own, term in ((value.a, value.b), (value.b, value.a)):
        if not is_load_of(own, target):
            continue
        new = wrapped(term, ranges)
        if isinstance(value, tirx.Add) and isinstance(term, tirx.Mul):
            new = tirx.Mul(wrapped(term.a, ranges), wrapped(term.b, ranges))
        first = own.same_as(value.a)
        return type(value)(own, new) if first else type(value)(new, own)
    return wrapped(value, ranges)


def _range(least: Any, extent: Any) -> tuple[int, int]:
    size = int(extent) if isinstance(extent, tirx.IntImm) else LARGEST_EXTENT
    first = int(least) if isinstance(least, tirx.IntImm) else 0
    return first, first + max(size, 1) - 1
