"""Def-use view of a function: the definition and the readers of every variable."""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from tvm import ir, relax, tirx
from tvm.ir import GenericConst

from ....frontend.normalize import engine
from ....frontend.tensor_types import HALF, dtype_of
from ...egraph.head import operands
from .coefficient import rounded
from .extents import extent, known_shape, longer, same_extent

ROUNDING = ("float16", "bfloat16", "float32", "float64")  # a cast between them only rounds

_SAME_SHAPE = frozenset({"reshape", "expand_dims", "squeeze", "flatten", "broadcast_to"})
_FILLED = frozenset({"full", "full_like", "broadcast_to", "reshape", "expand_dims", "squeeze"})
_FILLS = {"zeros": 0.0, "zeros_like": 0.0, "ones": 1.0, "ones_like": 1.0}
Known = TypeVar("Known")
_LARGE = 1 << 16  # elements of a constant that is not looked through for being one number


@dataclass(frozen=True)
class Reduction:
    """A reduction over some axes."""

    kind: str  # ``sum``, ``mean``, ``max``, ``min``, ``prod``, ``variance`` or ``std``
    source: ir.Expr  # what is reduced
    axes: tuple[int, ...]  # in order, counted from the front
    # Per axis of the result the axis of the source; None where the source's axis is reduced.
    kept: tuple[int | None, ...]

    @property
    def size(self) -> int | None:
        """Number of elements that one result is made of; None where it is symbolic."""
        extents = [extent(self.source.ty.shape.values[axis]) for axis in self.axes]
        return None if None in extents else math.prod(e for e in extents if e is not None)


_REDUCTIONS = ("sum", "mean", "max", "min", "prod", "variance", "std")


class View:
    """Definitions, readers and constants of a function.

    Parameters
    ----------
    func
        Not rewritten while the view is in use.

    Attributes
    ----------
    bindings : list of relax.VarBinding
        In dataflow blocks, in order.
    atoms : dict of str to ir.Expr
        What the atoms of polynomials that have no name of their own are.
    """

    def __init__(self, func: relax.Function) -> None:
        self.func = func
        self.bindings: list[relax.VarBinding] = []
        self.atoms: dict[str, Any] = {}
        self._values: dict[int, Any] = {}
        self._places: dict[int, int] = {}
        self._readers: dict[int, list[int]] = defaultdict(list)
        self._numbers: dict[int, float | None] = {}
        self._kept: list[Any] = []  # whose hashes are keys above
        self._known: dict[Hashable, Any] = {}
        for block in func.body.blocks:
            for binding in block.bindings:
                if isinstance(binding, relax.VarBinding):
                    self._values[hash(binding.var)] = binding.value
                    if isinstance(block, relax.DataflowBlock):
                        self._places[hash(binding.var)] = len(self.bindings)
                        self.bindings.append(binding)
                for var in relax.analysis.free_vars(binding.value):
                    self._readers[hash(var)].append(hash(binding.var))
        for var in relax.analysis.free_vars(func.body.body):
            self._readers[hash(var)].append(0)

    def once(self, key: Hashable, compute: Callable[[], Known]) -> Known:
        """Remember what is asked about a function by several patterns."""
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]

    def value(self, expr: Any) -> Any:
        """Return what a variable is bound to, aliases followed; anything else as it is."""
        while isinstance(expr, relax.Var) and hash(expr) in self._values:
            expr = self._values[hash(expr)]
        return expr

    def readers(self, var: relax.Var) -> list[int]:
        """List the hashes of the variables that are computed from one; 0 for the result."""
        return self._readers[hash(var)]

    def call(self, expr: Any, *names: str) -> relax.Call | None:
        """Return the call behind an expression if its operator is one of some (default: any).

        Parameters
        ----------
        *names
            Without ``relax.``, such as ``nn.softmax``.
        """
        value = self.value(expr)
        name = op_name(value)
        return value if name and (not names or name in names) else None

    def number(self, expr: Any) -> float | None:
        """Return the value that all elements of a constant have, however it is written.

        One of a half type stands for every number that is rounded to it.
        """
        key = hash(expr)
        if key not in self._numbers:
            self._kept.append(expr)
            self._numbers[key] = self._number(self.value(expr))
        return self._numbers[key]

    def _number(self, value: Any) -> float | None:
        if isinstance(value, tirx.IntImm | tirx.FloatImm):
            return rounded(float(value.value), str(value.ty.dtype))
        if isinstance(value, GenericConst):
            return _uniform(value)
        name = op_name(value)
        if name in _FILLS:
            return _FILLS[name]
        if name == "astype" and _is_rounding(value):
            return self.number(value.args[0])
        if name in _FILLED:
            return self.number(value.args[1 if name.startswith("full") else 0])
        return None

    def reduction(self, expr: Any) -> Reduction | None:
        """Read a reduction."""
        call = self.call(expr, *_REDUCTIONS)
        if call is None or known_shape(call.args[0]) is None:
            return None
        rank = len(call.args[0].ty.shape.values)
        given = call.attrs.axis
        axes = tuple(range(rank)) if given is None else tuple(sorted(int(a) % rank for a in given))
        kept = [None if axis in axes else axis for axis in range(rank)]
        if not call.attrs.keepdims:
            kept = [axis for axis in kept if axis is not None]
        return Reduction(op_name(call), call.args[0], axes, tuple(kept))

    def is_cast(self, expr: Any) -> bool:
        """Whether an expression is another one with its elements rounded, or not even that."""
        call = self.call(expr, "astype")
        return call is not None and _is_rounding(call)

    def narrow(self, expr: Any) -> Any:
        """Strip casts that keep every element: those from a half type to a wider one."""
        while self.is_cast(expr):
            source = self.value(expr).args[0]
            if dtype_of(source) not in HALF or dtype_of(expr) in HALF:
                break
            expr = source
        return expr

    def is_moved(self, expr: Any) -> bool:
        """Whether an expression is another one with axes of extent 1 added, dropped, repeated."""
        call = self.call(expr, *_SAME_SHAPE)
        if call is None or known_shape(call.args[0]) is None or known_shape(call) is None:
            return False
        if op_name(call) == "broadcast_to":
            return True
        before, after = (longer(e.ty.shape.values) for e in (call.args[0], call))
        return len(before) == len(after) and all(map(same_extent, before, after))

    def peel(self, expr: Any) -> Any:
        """Strip casts, and reshapes that only add or drop axes of extent 1."""
        while self.is_cast(expr) or self.is_moved(expr):
            expr = self.value(expr).args[0]
        return expr

    def backwards(self) -> Iterator[relax.VarBinding]:
        """Yield the bindings of operators in dataflow blocks, the last first."""
        for binding in reversed(self.bindings):
            if op_name(binding.value) and known_shape(binding.var) is not None:
                yield binding

    def between(self, root: relax.Var, leaves: Sequence[Any]) -> list[relax.VarBinding]:
        """List the bindings that a variable is computed with from some leaves, in order."""
        seen = {hash(leaf) for leaf in leaves}
        inside: set[int] = set()
        stack: list[Any] = [root]
        while stack:
            expr = stack.pop()
            if hash(expr) in seen or hash(expr) not in self._values:
                continue
            seen.add(hash(expr))
            inside.add(hash(expr))
            value = self._values[hash(expr)]
            stack.extend(operands(value) if isinstance(value, relax.Call) else [value])
        places = sorted(self._places[var] for var in inside & self._places.keys())
        return [self.bindings[place] for place in places]


def op_name(expr: Any) -> str:
    """Return the name of a call's operator without ``relax.``; empty for anything else."""
    return engine.op_name(expr).removeprefix("relax.")


def _is_rounding(cast: relax.Call) -> bool:
    return dtype_of(cast) in ROUNDING and dtype_of(cast.args[0]) in ROUNDING


def _uniform(constant: GenericConst) -> float | None:
    if not 0 < math.prod(int(d) for d in constant.value.shape) <= _LARGE:
        return None
    array = constant.value.numpy()
    if array.dtype.kind not in "fiuV":
        return None
    flat = np.asarray(array).reshape(-1)
    first = flat[0]
    if flat[-1] != first or not (flat == first).all():
        return None
    return rounded(float(first), dtype_of(constant))
