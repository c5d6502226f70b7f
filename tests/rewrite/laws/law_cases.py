"""Cases of laws: what the names of a law's equation stand for, and both sides written with it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tvm import ir, relax, tirx

from tvm_fusion.rewrite.egraph.analysis import FOLDED
from tvm_fusion.rewrite.egraph.head import Heads, is_tensor, operands
from tvm_fusion.rewrite.egraph.law import Law
from tvm_fusion.rewrite.egraph.pattern import Apply, Number, Pattern, Tensor
from tvm_fusion.rewrite.egraph.terms import Term

N = 29  # stands for the symbolic dimension n
DTYPES = ("float32", "float16")


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    law: str  # name of the law
    # What the equation's names stand for. A text is a tensor: its extents, then ``:dtype`` if it is
    # not the case's, then ``const`` if it is known at compile time, or ``low..high`` for where its
    # random elements lie: ``"n 5:int32 0..7"``. A number or an array is a constant. A function of
    # tensors is an operator with its attributes.
    names: Mapping[str, Any]
    dtypes: tuple[str, ...] = DTYPES  # of what has no dtype of its own
    # Empty where the law holds. Otherwise the code of its refusal; ``no_match`` where it does not
    # see its left side, ``operands`` or ``type`` where the right side cannot be written.
    refused: str = ""
    # Instead of the law's own sides: functions of the tensors, by their names.
    left: Callable[..., ir.Expr] | None = None
    right: Callable[..., ir.Expr] | None = None
    backwards: bool = False  # whether the law is read from right to left

    @property
    def label(self) -> str:
        parts = (f"{k}={v}" for k, v in self.names.items() if isinstance(v, str | float | int))
        return f"{self.law}{'-backwards' if self.backwards else ''}({', '.join(parts)})"

    @property
    def has_symbol(self) -> bool:
        return any("n" in v.split(":")[0].split() for v in self.names.values() if _is_tensor(v))


def holds(law: str, *, dtypes: str = " ".join(DTYPES), **names: Any) -> Case:
    """Write a row of a case in which a law holds."""
    sides = {side: names.pop(side, None) for side in ("left", "right")}
    is_backwards = names.pop("backwards", False)
    return Case(law, names, tuple(dtypes.split()), "", **sides, backwards=is_backwards)


def refuses(law: str, code: str, **names: Any) -> Case:
    """Write a row of a case in which a law does not hold."""
    names.setdefault("dtypes", "float32")
    return replace(holds(law, **names), refused=code)


@dataclass
class Sides:
    """Both sides of a case as expressions over the same leaves."""

    case: Case
    dtype: str
    is_symbolic: bool
    heads: Heads = field(default_factory=Heads)  # of all terms
    # Text that a leaf was made from, by its head.
    specs: dict[Any, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._builder = relax.BlockBuilder()
        self._dim = tirx.Var("n", "int64") if self.is_symbolic else N
        self._leaves: dict[Any, Term] = {}  # by variable
        self._named = {
            name: self._tensor(name, value)
            for name, value in self.case.names.items()
            if not callable(value)
        }

    def write(self, side: Pattern | Callable[..., ir.Expr]) -> Term:
        """Write a pattern, or a function of the tensors, as a term."""
        if isinstance(side, Pattern):
            return self.term(self._instance(side))
        return self.term(side(**self._named))

    def left(self, law: Law) -> Term:
        """Write the side that is given."""
        return self.write(self.case.left or law.before)

    def right(self, law: Law) -> Term:
        """Write the side that is wanted."""
        side = self.case.right or law.after
        if side is None:
            raise AssertionError(f"{law.name} has no pattern as its right side: give right=")
        if isinstance(side, Number):
            ty = self.left(law).type
            return self.term(relax.op.full(ty.shape, relax.const(side.value, str(ty.dtype))))
        return self.write(side)

    def term(self, expr: ir.Expr) -> Term:
        """Write nested calls as a term."""
        if isinstance(expr, relax.Var):
            return self._leaves[expr]
        if isinstance(expr, ir.GenericConst):
            array = expr.value.numpy()
            is_small = array.size <= FOLDED
            head = (
                self.heads.value(array, str(expr.ty.dtype))
                if is_small
                else self.heads.leaf("constant", hash(expr))
            )
            return Term(head, (), expr.ty)
        parts: list[Term] = []

        def place(arg: Any) -> Any:
            if isinstance(arg, relax.Tuple):
                return relax.Tuple([place(f) for f in arg.fields])
            if isinstance(arg, relax.Call) or is_tensor(arg):
                parts.append(self.term(arg))
                return relax.Var("x", parts[-1].type)
            return arg

        args = [place(arg) for arg in expr.args]
        call = self._builder.normalize(relax.Call(expr.op, args, expr.attrs, expr.ty_args))
        assert len(parts) == len(operands(call))
        return Term(self.heads.of(call), tuple(parts), call.ty)

    def _tensor(self, name: str, value: Any) -> ir.Expr:
        if not _is_tensor(value):
            return relax.const(np.asarray(value), self.dtype)
        shape, dtype, rest = parse(value, self.dtype)
        ty = relax.TensorType([self._dim if d == "n" else int(d) for d in shape], dtype)
        var = relax.Var(name, ty)
        head = self.heads.leaf("constant" if "const" in rest else "input", len(self._leaves))
        self._leaves[var] = Term(head, (), ty)
        self.specs[head] = value
        return var

    def _instance(self, pattern: Pattern) -> ir.Expr:
        if isinstance(pattern, Tensor):
            return self._named[pattern.name]
        if isinstance(pattern, Number):
            return relax.const(np.asarray(pattern.value), self.dtype)
        assert isinstance(pattern, Apply)
        parts = [self._instance(part) for part in pattern.operands]
        function = self.case.names.get(pattern.attrs)
        if function is None:
            function = relax.op
            for name in pattern.name.split(".")[1:]:
                function = getattr(function, name)
        return function(*parts)


def parse(spec: str, dtype: str) -> tuple[list[str], str, list[str]]:
    """Read a tensor's text: extents, dtype, the rest."""
    before, _, after = spec.partition(":")
    words = before.split()
    shape = [w for w in words if w == "n" or w.isdigit()]
    rest = words[len(shape) :]
    if after:
        dtype, *rest = after.split()
    return shape, dtype, rest


def near_misses(law: Law) -> Iterator[tuple[Pattern, dict[str, str]]]:
    """Yield left sides with one thing wrong, with tensors that they have in place of others."""
    names: list[str] = []
    for i, part in enumerate(_parts(law.before)):
        if isinstance(part, Tensor):
            if part.is_constant:
                yield _replaced(law.before, i, Tensor(f"{part.name}_")), {f"{part.name}_": ""}
            elif part.name in names:
                other = Tensor(f"{part.name}_")
                yield _replaced(law.before, i, other), {other.name: part.name}
            names.append(part.name)
        elif isinstance(part, Number):
            other = 1 - part.value if part.value in (0, 1) else part.value + 3
            yield _replaced(law.before, i, Number(other)), {}
        elif isinstance(part, Apply):
            for name in _OTHERS.get(len(part.operands), ()):
                if name not in part.names:
                    yield _replaced(law.before, i, Apply(name, part.operands)), {}


# Some are not defined for a dtype, but one always is.
_OTHERS = {1: ("relax.tan", "relax.logical_not", "relax.bitwise_not"), 2: ("relax.mod",)}


def _parts(pattern: Pattern) -> Iterator[Pattern]:
    yield pattern
    for part in pattern.operands if isinstance(pattern, Apply) else ():
        yield from _parts(part)


def _replaced(pattern: Pattern, index: int, other: Pattern) -> Pattern:
    """Replace the part that :func:`_parts` gives at a position."""
    if index == 0:
        return other
    assert isinstance(pattern, Apply)
    parts, index = list(pattern.operands), index - 1
    for i, part in enumerate(parts):
        count = sum(1 for _ in _parts(part))
        if index < count:
            parts[i] = _replaced(part, index, other)
            break
        index -= count
    return replace(pattern, operands=tuple(parts))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, str)
