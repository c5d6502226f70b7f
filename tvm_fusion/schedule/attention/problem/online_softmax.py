"""Online softmax: the running statistics of a row, and partial results merged by them.

m_i: running max of the scores s; l_i: running sum of exp(s - m_i); acc: of exp(s - m_i) * v

rescale to m_new:     alpha = exp(m_i - m_new); m_i = m_new; l_i *= alpha; acc *= alpha
merge of partials p:  m = max(m_p); x = sum(exp(m_p - m) * x_p), for x = l and for x = acc
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tvm import ir, tirx

from ....core.tir.loops import Body, loop, sequence, substitute
from ...contraction.problem.epilogue.fuse import store_results
from .pattern import FLOAT, Pattern

LOWEST = -3.4028234663852886e38  # what a running max starts from


def float_(value: float) -> ir.Expr:
    """Write a float32 constant."""
    return tirx.const(value, FLOAT)


def assign(element: ir.TensorLoad, value: ir.Expr) -> tirx.Stmt:
    """Store a value where an element is loaded from."""
    return tirx.BufferStore(element.source, value, list(element.indices))


@dataclass(frozen=True)
class SoftmaxState:
    """The running statistics of one row."""

    # Running max, and running sum of exponentials.
    m_i: ir.TensorLoad
    l_i: ir.TensorLoad
    alpha: ir.TensorLoad  # gets the factor by which a rescaling multiplies accumulators

    def rescale(
        self, m_new: ir.Expr, exp: Callable[[ir.Expr], ir.Expr] = tirx.exp
    ) -> list[tirx.Stmt]:
        """Move the statistics to a new maximum."""
        return [
            assign(self.alpha, exp(self.m_i - m_new)),
            assign(self.m_i, m_new),
            assign(self.l_i, self.l_i * self.alpha),
        ]

    def scale(self, acc: ir.TensorLoad) -> tirx.Stmt:
        """Move an accumulator to the new maximum."""
        return assign(acc, acc * self.alpha)


def initialize(m_i: ir.TensorLoad, l_i: ir.TensorLoad) -> list[tirx.Stmt]:
    """Start the statistics of a row of which no score has been seen."""
    return [assign(m_i, float_(LOWEST)), assign(l_i, float_(0))]


@dataclass(frozen=True)
class Merge:
    """Partial results of one row, each relative to its own maximum."""

    # The maximum over all partials; a register for ``exp(m_p - m)``.
    m: ir.TensorLoad
    factor: ir.TensorLoad
    # Loops over the partials: in a fixed order, so that results are deterministic.
    each: Callable[[Body], tirx.Stmt]
    m_of: Callable[[ir.Expr], ir.Expr]  # maximum of a partial

    def maximum(self) -> tirx.Stmt:
        """Take the maxima of all partials into ``m``."""
        return self.each(lambda p: assign(self.m, tirx.max(self.m, self.m_of(p))))

    def add(self, *sums: tuple[ir.TensorLoad, Callable[[ir.Expr], ir.Expr]]) -> tirx.Stmt:
        """Add up partial sums, each pair an accumulator and what it takes of a partial."""

        def one(p: ir.Expr) -> tirx.Stmt:
            added = [assign(x, x + of(p) * self.factor) for x, of in sums]
            return sequence([assign(self.factor, tirx.exp(self.m_of(p) - self.m)), *added])

        return self.each(one)


# Results of attention: stored through the epilogue, and rows that are masked completely.
def store_result(pattern: Pattern, at: Mapping[ir.Var, ir.Expr], value: ir.Expr) -> tirx.Stmt:
    """Store an element of the result, the epilogue applied to it."""
    product = pattern.product
    if str(product.total.ty.dtype) != FLOAT:
        value = tirx.Cast(str(product.total.ty.dtype), value)
    return store_results(product, pattern.place(at), value)


def divisor(pattern: Pattern, at: Mapping[ir.Var, ir.Expr], m_i: ir.Expr, l_i: ir.Expr) -> ir.Expr:
    """Return what a row's sum of values is divided by, to be guarded where rows are dead.

    The exponentials of minus infinity less a finite maximum (``LOWEST``) are 0, so is their sum,
    and that of the values is what zeros weigh. With a NaN or plus infinity, both are NaN.

    The exponential of a sink is infinite where it is far above the scores, or all are hidden: the
    result is 0 then, as is that of weights which are too small.
    """
    if pattern.sink is not None:
        return l_i + tirx.exp(substitute(pattern.sink, at) - m_i)
    if not pattern.zeros_dead_rows:
        return l_i
    return tirx.Select(tirx.EQ(l_i, float_(0)), float_(1), l_i)


def mean_of(
    pattern: Pattern,
    at: Mapping[ir.Var, ir.Expr],
    acc: ir.TensorLoad,
    m: ir.TensorLoad,
    l_i: ir.TensorLoad,
) -> tirx.Stmt:
    """Divide a merged sum of values by that of their weights."""
    mean = assign(acc, acc / divisor(pattern, at, m, l_i))
    if pattern.masked_weight is None:
        return mean
    # Not the other way round: NaN compares false.
    otherwise = sequence(masked_row(pattern, at, acc))
    return tirx.IfThenElse(l_i > float_(0), mean, otherwise)


def masked_row(
    pattern: Pattern, at: Mapping[ir.Var, ir.Expr], total: ir.TensorLoad
) -> list[tirx.Stmt]:
    """Sum the values of a row weighted by ``masked_weight``, which a guard puts for NaN."""

    def add(key: ir.Expr) -> tirx.Stmt:
        known = {**at, pattern.key.var: key}
        term = substitute(pattern.masked_weight, known) * substitute(pattern.v, known)
        return assign(total, total + term)

    return [assign(total, float_(0)), loop("key", pattern.key.extent, add)]
