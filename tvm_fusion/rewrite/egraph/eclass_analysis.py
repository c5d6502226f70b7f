"""What is known of an e-class: its type, its value if it is constant, bounds of its elements.

egg calls this an e-class analysis: it is made for a node from what is known of its operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import tvm
from tvm import relax, tirx

from ...core.constants.evaluate import evaluate
from .bounds import ANY, Bounds
from .head import Head, type_key

FOLDED = 1024  # elements of a constant that is computed at once, so that laws know its value


class Node(NamedTuple):
    """An operator on classes; operands of a commutative one are in order."""

    head: Head
    operands: tuple[int, ...]


@dataclass(eq=False)
class EClass:
    """Expressions that are equal.

    Attributes
    ----------
    is_constant : bool
        Whether it is known at compile time.
    value : numpy.ndarray or None
        A small constant itself.
    bounds : Bounds
        Between which its elements lie, wherever they are finite.
    nodes : dict of Node to str
        Each with the law that wrote it; empty for what the region has.
    parents : dict of Node to int
        Nodes that read it, and their classes.
    """

    type: relax.TensorType
    is_constant: bool
    value: np.ndarray | None
    bounds: Bounds = ANY
    nodes: dict[Node, str] = field(default_factory=dict)
    parents: dict[Node, int] = field(default_factory=dict)


class Analysis:
    """Types and values of nodes; equal types are one object, so that they can be compared by id."""

    def __init__(self) -> None:
        self._types: dict[object, relax.TensorType] = {}
        self._variables: dict[int, relax.Var] = {}
        self._results: dict[tuple, relax.TensorType | None] = {}
        self._builder = relax.BlockBuilder()

    def intern(self, ty: relax.TensorType) -> relax.TensorType:
        """Return the one object that stands for all types equal to this one."""
        return self._types.setdefault(type_key(ty), ty)

    def variable(self, ty: relax.TensorType) -> relax.Var:
        """Return the variable that stands for classes of a type."""
        if id(ty) not in self._variables:
            self._variables[id(ty)] = relax.Var("x", ty)
        return self._variables[id(ty)]

    def infer(self, head: Head, types: Sequence[relax.TensorType]) -> relax.TensorType | None:
        """Infer a node's type; None where the operator does not take operands of these types."""
        key = (head, *map(id, types))
        if key not in self._results:
            self._results[key] = self._normalized(head.apply([*map(self.variable, types)]))
        return self._results[key]

    def _normalized(self, call: relax.Call) -> relax.TensorType | None:
        try:
            ty = self._builder.normalize(call).ty
        except (tvm.error.InternalError, ValueError, TypeError):
            return None
        is_known = isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)
        return self.intern(ty) if is_known else None

    def evaluate(
        self, head: Head, ty: relax.TensorType, operands: Sequence[EClass]
    ) -> np.ndarray | None:
        """Compute a node of small constants; None where it is larger, or cannot be computed."""
        if any(o.value is None for o in operands):
            return None
        consts = [relax.const(o.value, str(o.type.dtype)) for o in operands]
        call = self._builder.normalize(head.apply(consts))
        extents = [int(v) if hasattr(v, "value") else FOLDED + 1 for v in ty.shape.values]
        return evaluate(call) if 0 < np.prod(extents, dtype=np.int64) <= FOLDED else None


def is_static(ty: relax.TensorType) -> bool:
    """Whether all extents are numbers."""
    return all(isinstance(extent, tirx.IntImm) for extent in ty.shape.values)
