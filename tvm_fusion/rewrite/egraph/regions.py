"""Regions: what laws see at once, between operators without algebraic properties."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tvm import ir, relax
from tvm.ir import GenericConst

from ...core.constants.weight_names import is_weight
from ...ecg.properties import Properties, properties_of
from ...frontend.normalize.extents.empty_operands import has_zero
from .analysis import FOLDED
from .head import Head, Heads, is_tensor, operands
from .terms import Term

_FEW = 16  # elements of a constant whose values are looked at, whatever they are
MOST = 32  # operators of a region: longer ones are cut where they are

# Without a property that DNNFusion names, but with laws of their own.
_KNOWN = frozenset(
    f"relax.{name}"
    for name in (
        *("where", "astype", "rsqrt", "power", "negative", "erf", "sin", "cos", "log1p", "expm1"),
        *("isnan", "isinf", "logical_not", "bitwise_not", "left_shift", "right_shift", "sign"),
        *("floor", "ceil", "round", "trunc", "nn.relu", "nn.leakyrelu", "nn.silu", "less"),
        *("greater", "less_equal", "greater_equal", "concat", "std", "variance", "cumprod"),
        *("full", "zeros", "ones", "full_like", "zeros_like", "ones_like"),
    )
)


def is_algebraic(expr: object, also: frozenset[str] = frozenset()) -> bool:
    """Whether laws know a binding's value: a call of an operator with one tensor as its result.

    ``also`` has names of operators that are known to the laws at hand.
    """
    if not isinstance(expr, relax.Call) or not isinstance(expr.op, ir.Op):
        return False
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return False
    if has_zero(ty):  # nothing to compute, and no constant to fold to
        return False
    name = expr.op.name
    known = properties_of(name) != Properties() or name in _KNOWN or name in also
    if any(isinstance(a.ty, relax.TupleType) and not isinstance(a, relax.Tuple) for a in expr.args):
        return False  # whose tensors have no names
    return known and all(
        isinstance(o, relax.Var | GenericConst) and isinstance(o.ty.shape, relax.ShapeExpr)
        for o in operands(expr)
    )


@dataclass(frozen=True, eq=False)
class Region:
    """Operators that laws see at once."""

    bindings: tuple[relax.VarBinding, ...]  # in order
    outputs: tuple[relax.Var, ...]  # what is read outside
    # What is read and not computed here, in the order of the first reads.
    leaves: tuple[ir.Expr, ...]

    def heads(self, heads: Heads) -> list[Head]:
        """Return the heads of the leaves."""
        return [_leaf(leaf, i, heads) for i, leaf in enumerate(self.leaves)]

    def terms(self, heads: Heads) -> tuple[Term, ...]:
        """Write the outputs as expressions of the leaves."""
        known = {
            hash(leaf): Term(head, (), leaf.ty)
            for leaf, head in zip(self.leaves, self.heads(heads), strict=True)
        }
        for binding in self.bindings:
            call = binding.value
            args = tuple(known[hash(o)] for o in operands(call))
            known[hash(binding.var)] = Term(heads.of(call), args, call.ty)
        return tuple(known[hash(var)] for var in self.outputs)


def _leaf(leaf: ir.Expr, index: int, heads: Heads) -> Head:
    if not isinstance(leaf, GenericConst):
        return heads.leaf("input", index)
    if np.prod(leaf.value.shape) <= FOLDED and not is_weight(leaf):
        array = leaf.value.numpy()
        if _is_telling(array):
            return heads.value(array, str(leaf.ty.dtype))
    return heads.leaf("constant", index)


def _is_telling(array: np.ndarray) -> bool:
    """Whether laws may ask for a constant's elements.

    They do not for those of a bias; and where these are not looked at, all layers are one region.
    """
    if array.size <= _FEW or (array == array.reshape(-1)[0]).all():
        return True
    return array.ndim == 2 and np.array_equal(array, np.eye(*array.shape))


def regions(block: relax.DataflowBlock, also: frozenset[str] = frozenset()) -> Iterator[Region]:
    """Cut a dataflow block into regions.

    An operator belongs to a region by how many operators without properties are on a path to it,
    at most: so whatever lies between two operators of a region is in it as well.

    Parameters
    ----------
    also
        Operators that laws know and :data:`_KNOWN` does not have.

    Yields
    ------
    Region
        In the order of their first operators, with two operators or more.
    """
    depths: dict[int, int] = {}
    position: dict[int, int] = {}
    kept: list[relax.VarBinding] = []
    for binding in block.bindings:
        reads = [hash(v) for v in relax.analysis.free_vars(binding.value)]
        depth = max((depths.get(v, 0) for v in reads), default=0)
        is_kept = isinstance(binding, relax.VarBinding) and is_algebraic(binding.value, also)
        depths[hash(binding.var)] = depth if is_kept else depth + 1
        if is_kept:
            position[hash(binding.var)] = len(kept)
            kept.append(binding)
    readers = _readers(block)
    for members in _components(kept, position, depths):
        for start in range(0, len(members), MOST):
            found = _region([kept[i] for i in members[start : start + MOST]], readers)
            if found is not None:
                yield found


def _components(
    kept: list[relax.VarBinding], position: dict[int, int], depths: dict[int, int]
) -> list[list[int]]:
    """Join operators of one depth along their edges, and along inputs that they share."""
    parent = list(range(len(kept)))

    def find(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first_reader: dict[tuple[int, int], int] = {}
    for i, binding in enumerate(kept):
        depth = depths[hash(binding.var)]
        for operand in operands(binding.value):
            if isinstance(operand, GenericConst):
                continue
            before = position.get(hash(operand))
            if before is None or depths[hash(operand)] != depth:
                before = first_reader.setdefault((hash(operand), depth), i)
            parent[find(i)] = find(before)
    found: dict[int, list[int]] = defaultdict(list)
    for i in range(len(kept)):
        found[find(i)].append(i)
    return sorted(found.values())


def _readers(block: relax.DataflowBlock) -> dict[int, list[int]]:
    """Map each variable to the variables that are computed from it."""
    found: dict[int, list[int]] = defaultdict(list)
    for binding in block.bindings:
        for var in relax.analysis.free_vars(binding.value):
            found[hash(var)].append(hash(binding.var))
    return found


def _region(bindings: list[relax.VarBinding], readers: dict[int, list[int]]) -> Region | None:
    inside = {hash(b.var) for b in bindings}
    outputs = [
        b.var
        for b in bindings
        if not isinstance(b.var, relax.DataflowVar)
        or any(r not in inside for r in readers[hash(b.var)])
    ]
    leaves: dict[int, ir.Expr] = {}
    for binding in bindings:
        for operand in operands(binding.value):
            if is_tensor(operand) and hash(operand) not in inside:
                leaves.setdefault(hash(operand), operand)
    if len(bindings) < 2 or not outputs:
        return None
    return Region(tuple(bindings), tuple(outputs), tuple(leaves.values()))
