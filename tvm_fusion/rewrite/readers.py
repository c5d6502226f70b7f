"""Readers: who can tell NaN, infinities and zeros of a variable apart, in a whole function."""

from collections import defaultdict

import numpy as np
import tvm
from tvm import ir, relax

from .egraph.head import operands
from .nonfinite import ALL, NONE, ZERO, NonFinite, asked

_PAIRS = frozenset(f"relax.{n}" for n in ("power", "add", "subtract", "maximum", "minimum"))


class Readers:
    """What the results of a module's functions tell of the variables they are computed from.

    Parameters
    ----------
    mod
        The results of functions that others call are taken to be asked about; those of the others
        are the model's.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self._called: set[str] = set()
        self._last: tuple[relax.Function | None, dict[int, NonFinite]] = None, {}
        for func in mod.functions.values():
            if isinstance(func, relax.Function):
                relax.analysis.post_order_visit(func.body, self._count)

    def _count(self, expr: ir.Expr) -> None:
        if isinstance(expr, ir.GlobalVar):
            self._called.add(expr.name_hint)

    def of(self, name: str, func: relax.Function) -> dict[int, NonFinite]:
        """Say of which values of each variable a finite result may be computed.

        Parameters
        ----------
        name
            Of the function in the module.

        Returns
        -------
        dict of int to NonFinite
            By the variable's hash. What is not there is not read.
        """
        known, found = self._last
        if known is not None and known.same_as(func):
            return found
        found = defaultdict(lambda: NONE)
        for var in relax.analysis.free_vars(func.body.body):
            found[hash(var)] |= ALL | ZERO if name in self._called else NONE
        for block in reversed(func.body.blocks):
            for binding in reversed(block.bindings):
                _pass_on(binding, found[hash(binding.var)], found)
        self._last = func, found
        return found


def _pass_on(binding: relax.Binding, result: NonFinite, found: dict[int, NonFinite]) -> None:
    value = binding.value
    if _is_plain(value):
        for index, operand in enumerate(operands(value)):
            if isinstance(operand, relax.Var):
                found[hash(operand)] |= asked(value, index, result, _other(value, index))
        return
    is_view = isinstance(value, relax.Var | relax.Tuple | relax.TupleGetItem)
    for var in relax.analysis.free_vars(value):  # of a condition, another function, a foreign call
        found[hash(var)] |= result if is_view else ALL | ZERO


def _is_plain(value: ir.Expr) -> bool:
    """Whether a value is a call of an operator, of tensors that have names."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, ir.Op):
        return False
    tuples = [arg for arg in value.args if isinstance(arg.ty, relax.TupleType)]
    nested = [operand for operand in operands(value) if isinstance(operand, relax.Call)]
    return not nested and all(isinstance(arg, relax.Tuple) for arg in tuples)


def _other(call: relax.Call, index: int) -> np.ndarray | None:
    """Return the other operand of two, if it is a constant."""
    if call.op.name not in _PAIRS or not isinstance(call.args[1 - index], ir.GenericConst):
        return None
    return call.args[1 - index].value.numpy()
