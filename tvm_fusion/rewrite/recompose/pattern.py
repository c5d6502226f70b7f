"""Recomposition patterns: how an operator that an exporter wrote out is matched and rebuilt."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from tvm import ir, relax, tirx
from tvm.ir import GenericConst

from ...core.constants.evaluate import evaluate
from ...core.constants.weight_names import of_no_weight
from ...frontend.tensor_types import dtype_of
from ..nonfinite import NONE, NonFinite
from .matching.extents import known_shape, same_shape
from .matching.view import View

#: Writes an operator; takes what stands for the leaves now, in their order.
Build = Callable[..., ir.Expr]


@dataclass(frozen=True)
class Match:
    """An operator that was written out."""

    leaves: tuple[Any, ...]  # variables and constants of the function that the operator reads
    # Gives the expression to put in the place of the root, of the root's type. Takes a
    # :class:`Writer`, then what stands for the leaves.
    build: Build
    what: str = ""  # the operator in particular, for a record
    # Gives the same as operators that templates of their own take, where the pattern's template
    # does not.
    parts: Build | None = None
    needs: str = ""  # the flag that allows it, as of :class:`tvm_fusion.rewrite.egraph.law.Law`
    # Non-finite values of what was written out that the operator may not have, as of a law.
    changes: NonFinite = NONE


@dataclass(frozen=True)
class Mismatch:
    """Why something that looked like an operator is none."""

    at: relax.Var  # its anchor
    reason: str  # the end of a sentence that begins with what it is not


class Pattern(ABC):
    """Match one operator; the docstring of a subclass is its equation."""

    name: ClassVar[str]  # stable and public; the pattern is switched off by it
    # Operators that the last one written out may be, without ``relax.``.
    roots: ClassVar[frozenset[str]]
    # Operators of which one is among those written out: without any in a function, it is not looked
    # at.
    anchors: ClassVar[frozenset[str]]
    template: ClassVar[str] = ""  # the template that has to claim it; empty: any one

    @abstractmethod
    def match(self, view: View, root: relax.Var) -> Match | Mismatch | None:
        """Find the operator that ends in a variable.

        Parameters
        ----------
        root
            Bound to one of ``roots``.

        Returns
        -------
        Match, Mismatch or None
            None where nothing resembles the operator; a mismatch where its anchor is there and
            something else is not as it should be.
        """


class Writer:
    """Writes expressions into a block, constants folded."""

    def __init__(self, builder: relax.BlockBuilder) -> None:
        self._builder = builder

    def emit(self, expr: ir.Expr) -> ir.Expr:
        """Bind a call to a new variable; evaluate it where all its operands are constants."""
        call = self._builder.normalize(expr)
        if isinstance(call, relax.Call) and all(_is_static(arg) for arg in call.args):
            folded = evaluate(call)
            if folded is not None:
                return relax.const(folded, dtype_of(call))
        return self._builder.emit(call)

    def keep(self, expr: ir.Expr) -> ir.Expr:
        """Bind a call to a new variable, constant or not."""
        return self._builder.emit(expr)

    def cast(self, expr: ir.Expr, dtype: str) -> ir.Expr:
        """Bring a tensor to a dtype."""
        return expr if dtype_of(expr) == dtype else self.emit(relax.op.astype(expr, dtype))

    def reshape(self, expr: ir.Expr, shape: Sequence[Any]) -> ir.Expr:
        """Bring a tensor to a shape of as many elements."""
        if same_shape(known_shape(expr) or [], shape):
            return expr
        return self.emit(relax.op.reshape(expr, list(shape)))

    def broadcast(self, expr: ir.Expr, shape: Sequence[Any]) -> ir.Expr:
        """Repeat a tensor to a shape."""
        if same_shape(known_shape(expr) or [], shape):
            return expr
        return self.emit(relax.op.broadcast_to(expr, list(shape)))

    def scale(self, expr: ir.Expr, factor: float) -> ir.Expr:
        """Multiply with a number."""
        if factor == 1:
            return expr
        return self.emit(relax.op.multiply(expr, relax.const(factor, dtype_of(expr))))

    def filled(self, shape: Sequence[Any], value: float, dtype: str) -> ir.Expr:
        """Write a tensor of one number."""
        if all(isinstance(e, tirx.IntImm) for e in shape):
            return of_no_weight(relax.const(np.full([int(e) for e in shape], value), dtype))
        return self.emit(relax.op.full(list(shape), relax.const(value, dtype), dtype))

    def like(self, expr: ir.Expr, root: Any) -> ir.Expr:
        """Bring a result to a root's dtype and shape."""
        return self.reshape(self.cast(expr, dtype_of(root)), known_shape(root) or [])


def _is_static(arg: Any) -> bool:
    if isinstance(arg, relax.Tuple):
        return all(map(_is_static, arg.fields))
    return isinstance(arg, GenericConst) or not isinstance(arg, relax.Var | relax.Call)
