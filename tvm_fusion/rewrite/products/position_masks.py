"""Masks that positions decide, computed by each attention that reads them."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.target import Target

from ...core.tir.loops import constant
from ...frontend.normalize.engine import Scope, op_name, rewrite

FEW = 64  # elements of what a mask is computed from: positions and lengths, one of each sequence
MOST = 32  # operators of a mask
_MASKED = ("relax.add", "relax.where")
_COMPARISONS = tuple(f"relax.{name}" for name in ("less", "less_equal", "greater", "greater_equal"))
_OPERATORS = (
    *_COMPARISONS,
    *(f"relax.{name}" for name in ("add", "subtract", "arange", "astype", "where")),
    *(f"relax.logical_{name}" for name in ("and", "or", "not")),
    *(f"relax.{name}" for name in ("broadcast_to", "expand_dims", "permute_dims", "reshape")),
)


@tvm.transform.module_pass(opt_level=0, name="PositionMasks")
class PositionMasks:
    """``scores + where(key <= position + query, 0, -inf)``: a mask of its own for all scores.

    Layers share one mask, which would be written for all of a cache. Attention that compares
    positions itself reads none, and leaves out the keys that no query of a block sees. On GPUs
    masks stay shared.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Rewrite in every rewritable function, for a CPU."""
        target = Target.current()
        if target is None or target.kind.name != "llvm":
            return mod
        return rewrite(mod, _masked)


def _masked(value: Any, scope: Scope) -> Any:
    """Repeat the shared mask of the sum, or of the choice, that softmax reads."""
    if op_name(value) != "relax.nn.softmax":
        return None
    scores = scope.call(value.args[0], *_MASKED)
    chains = [] if scores is None else [_chain(x, scope) for x in scores.args]
    if scores is None or not any(chains):
        return None
    known: dict[int, relax.Var] = {}
    args = [
        _repeated(x, scope, known) if chain else x
        for x, chain in zip(scores.args, chains, strict=True)
    ]
    masked = scope.emit(relax.Call(scores.op, args, scores.attrs))
    return relax.Call(value.op, [masked], value.attrs)


def _chain(x: Any, scope: Scope) -> bool | None:
    """Tell whether operators that make a mask have other readers; ``None`` of no mask."""
    found: list[relax.Call] = []
    frontier, is_shared = [x], False
    while frontier:
        x = frontier.pop()
        if _is_given(x):
            continue
        value = scope.value(x)
        if op_name(value) not in _OPERATORS or len(found) == MOST:
            return None
        found.append(value)
        is_shared |= scope.uses(x) > 1
        frontier += [arg for arg in value.args if isinstance(arg, relax.Var | GenericConst)]
    return is_shared if any(op_name(call) in _COMPARISONS for call in found) else None


def _is_given(x: Any) -> bool:
    """Whether a mask reads a value as it is: a constant, a size, or few elements."""
    if isinstance(x, GenericConst) or not isinstance(x.ty, relax.TensorType):
        return True
    shape = getattr(x.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return False
    extents = [constant(extent) for extent in shape.values]
    return math.prod(e or FEW + 1 for e in extents) <= FEW


def _repeated(x: Any, scope: Scope, known: dict[int, relax.Var]) -> Any:
    """Compute a mask once more."""
    if not isinstance(x, relax.Var) or _is_given(x):
        return x
    if hash(x) not in known:
        call = scope.value(x)
        args = [_repeated(arg, scope, known) for arg in call.args]
        known[hash(x)] = scope.emit(relax.Call(call.op, args, call.attrs))
    return known[hash(x)]
