"""Match a program as attention: by what its stages compute, never by names of operators."""

from collections.abc import Collection, Mapping, Sequence

import tvm_ffi
from tvm import ir, tirx

from ....core.contract.template import Refusal
from ....core.tir.expressions import loads, variables
from ....core.tir.loops import constant, substitute
from ....program.contractions import is_contraction
from ....program.program import Program
from ....program.stage import Axis, Stage
from ...contraction.problem.sum_of_products import SumOfProducts, analyse
from ...index.inline import inlined, inlined_size
from .pattern import FLOAT, Pattern, widened
from .sink import of_keys, split_sink
from .weights import Weights, read_weights

FLOATS = ("float32", "float16")


def read(program: Program, floats: Collection[str] = FLOATS) -> Pattern | Refusal:
    """Match a program as attention, or give the difference.

    Parameters
    ----------
    floats
        Types that scores may have.

    Returns
    -------
    Pattern or Refusal
        ``not_mine`` for a program that is no attention at all.
    """
    reductions = [s for s in program.stages if not s.is_map]
    if len(reductions) != 4 or not is_contraction(reductions[0]):
        return Refusal(
            "not_mine",
            "It is not two matrix products with a softmax (a maximum and a sum) between them.",
        )
    if any(len(s.targets) != 1 or len(s.reduce) != 1 for s in reductions):
        return Refusal(
            "several_axes",
            f"A reduction ({_titles(reductions)}) has several results or several axes.",
        )
    refusal = inlined_size(program)
    if refusal is not None:
        return refusal
    stages = inlined(program)
    scores, maximum, total, product = (s for s in stages if not s.is_map)
    if not isinstance(maximum.values[0], tirx.Max) or not isinstance(total.values[0], tirx.Add):
        return Refusal(
            "no_softmax" if is_contraction(product) else "not_mine",
            f"The reductions after {scores.title} ({_titles((maximum, total))}) are not the "
            "maximum and the sum of a softmax.",
        )
    if not is_contraction(product):
        return Refusal(
            "second_product", f"{product.title} after the softmax is not a product with values."
        )
    between = [s.targets[0] for s in (scores, maximum, total)]
    for stage in stages:
        if stage.is_map and not stage.reads.isdisjoint(between):
            sentence = (
                f"{stage.title} reads scores or softmax statistics, which attention kernels "
                "never write to memory."
            )
            return Refusal("scores_used_elsewhere", sentence)
    if not program.outputs or any(t in program.outputs for t in between):
        return Refusal(
            "scores_used_elsewhere",
            "Scores or softmax statistics are read outside of the group; attention kernels never "
            "write them to memory.",
        )
    whole = (scores, maximum, total, product)
    if any(str(s.targets[0].ty.dtype) not in floats for s in whole):
        dtypes = dict.fromkeys(str(s.targets[0].ty.dtype) for s in whole)
        return Refusal(
            "unsupported_dtype",
            f"Scores, statistics or results are {', '.join(dtypes)}; "
            f"attention kernels take {', '.join(floats)}.",
        )
    return _Reader(program, stages, *whole).pattern()


class _Reader:
    """Match one stage after the other, all expressed over the axes of the scores."""

    def __init__(
        self,
        program: Program,
        stages: Sequence[Stage],
        scores: Stage,
        maximum: Stage,
        total: Stage,
        product: Stage,
    ) -> None:
        self._program = program
        self._stages = stages
        self._scores, self._maximum, self._total = scores, maximum, total
        self._product = product
        self._axes = ScoreAxes(scores, maximum, total)

    def pattern(self) -> Pattern | Refusal:
        """Match the stages one after the other."""
        first = self._contraction(self._scores, [self._scores])
        second = self._contraction(
            self._product, [self._product, *(s for s in self._stages if s.is_map)]
        )
        if isinstance(first, Refusal):
            return first
        if isinstance(second, Refusal):
            return second
        if second.column_split is not None:
            return Refusal(
                "epilogue_elsewhere",
                f"An output of the group needs several columns of the result of "
                f"{self._product.title}.",
            )
        key = self._axes.key()
        if isinstance(key, Refusal):
            return key
        found = []
        for stage in (self._maximum, self._total):
            terms = _added(stage, key.extent)
            if isinstance(terms, Refusal):
                return terms
            found.append([self._axes.express(stage, term) for term in terms])
        (score, sink), added = found
        if score is None or (sink is None) != (added[1] is None):
            return scores_elsewhere(self._maximum)
        exponent = tirx.exp(score - self._axes.row_max)
        expected = [exponent, None if sink is None else tirx.exp(sink - self._axes.row_max)]
        if not tvm_ffi.structural_equal(added, expected, map_free_vars=False):
            return Refusal(
                "no_softmax",
                f"It is not a softmax: {self._total.title} does not sum the exponentials of the "
                f"scores less their maximum by {self._maximum.title}, over the same axis.",
            )
        weighted = [f for f in (second.left, second.right) if self._reads_softmax(f)]
        if len(weighted) != 1:
            return Refusal(
                "second_product",
                f"{self._product.title} does not multiply values by softmax weights.",
            )
        own = self._axes.axes_of(self._product)
        if own is None or not is_same(own.get(self._product.reduce[0].var), key.var):
            return Refusal(
                "second_product",
                f"{self._product.title} does not reduce the axis of the softmax.",
            )
        return self._finish(first, second, key, score, sink, exponent, weighted[0], own)

    def _finish(
        self,
        first: SumOfProducts,
        second: SumOfProducts,
        key: Axis,
        score: ir.Expr,
        sink: ir.Expr | None,
        exponent: ir.Expr,
        weighted: ir.Expr,
        own: Mapping[ir.Var, ir.Var],
    ) -> Pattern | Refusal:
        normal = weighted
        if sink is not None:
            normal = of_keys(weighted, self._product.reduce[0].var, key.extent)
        normal = self._axes.express(self._product, normal)
        weights = (
            None if normal is None else read_weights(normal, score, exponent, self._axes.row_sum)
        )
        if not isinstance(weights, Weights):
            return weights or scores_elsewhere(self._product)
        if sink is not None and (
            weights.masked_weight is not None or {self._axes.raw, key.var} & variables(sink)
        ):
            return Refusal(
                "more_than_scores",
                f"{self._maximum.title} also reduces values that depend on the scores, or weights "
                "that are NaN are replaced.",
            )
        if {self._axes.raw, self._axes.row_max} & variables(weights.value):
            return Refusal(
                "weights_changed",
                "Operators after the softmax read its scores again, for more than to replace "
                "results by zero where all scores are minus infinity.",
            )
        columns = [a for a in self._product.axes if a.var not in own]
        if len(columns) != 1:
            return Refusal(
                "second_product",
                f"{self._product.title} does not have exactly one axis of columns.",
            )
        value = second.right if weighted.same_as(second.left) else second.left
        k, q = first.left, first.right
        if key.var not in variables(k):
            k, q = q, k
        if key.var in variables(q):
            return Refusal(
                "query_varies_with_key",
                f"Both operands of {self._scores.title} vary along the axis of the softmax.",
            )
        value = substitute(value, own)
        others = [a for a in self._scores.axes if a.var is not key.var]
        used = variables(k) | variables(value)
        rows = [a for a in others if a.var not in used]
        query = max(rows, key=_extent, default=None)
        exprs = (q, k, value, score, weights.value, weights.masked_weight, sink)
        try:
            wide = [None if e is None else widened(e) for e in exprs]
        except ValueError as reason:
            return Refusal("unsupported_dtype", f"Operands of attention: {reason}.")
        if any(e is not None and str(e.ty.dtype) != FLOAT for e in wide):
            return Refusal(
                "unsupported_dtype",
                f"Operands of {self._scores.title} or {self._product.title} are not floating "
                "point of at most 32 bits.",
            )
        dtypes = (_dtype(q), _dtype(k), _dtype(value))
        q, k, value, score, weight, masked_weight, sink = wide
        return Pattern(
            tuple(a for a in others if a is not query),
            query,
            key,
            self._scores.reduce[0],
            columns[0],
            q,
            k,
            value,
            self._axes.raw,
            score,
            weights.exponential,
            weight,
            masked_weight,
            weights.zeros_dead_rows,
            sink,
            second,
            {**own, columns[0].var: columns[0].var},
            dtypes,
        )

    def _contraction(self, stage: Stage, stages: Sequence[Stage]) -> SumOfProducts | Refusal:
        """Match one product, its operands taken as inputs."""
        program = self._program
        outputs = program.outputs if stage is self._product else (stage.targets[0],)
        alone = Program(program.inputs, outputs, program.scalars, tuple(stages), 0)
        return analyse(alone, stages)

    def _reads_softmax(self, factor: ir.Expr) -> bool:
        return any(x.source.same_as(self._total.targets[0]) for x in loads(factor))


def _added(stage: Stage, keys: ir.Expr) -> tuple[ir.Expr, ir.Expr | None] | Refusal:
    """Return the terms that a reduction adds to its own value: of keys, and of a sink."""
    update, target, axis = stage.values[0], stage.targets[0], stage.reduce[0]
    is_own = isinstance(update.a, ir.TensorLoad) and update.a.source.same_as(target)
    term = update.b if is_own else update.a
    return split_sink(term, axis.var, axis.extent, keys) or Refusal(
        "more_than_scores",
        f"{stage.title} reduces rows of {axis.extent} elements, not the {keys} scores of a row and "
        "at most one attention sink after them.",
    )


def _titles(stages: Sequence[Stage]) -> str:
    return ", ".join(dict.fromkeys(stage.title for stage in stages))


def _extent(axis: Axis) -> float:
    return constant(axis.extent) or float("inf")


def _dtype(operand: ir.Expr) -> str:
    """Return the type of an operand before it was widened for a product in float32."""
    while isinstance(operand, tirx.Cast) and str(operand.ty.dtype) == FLOAT:
        operand = operand.value
    return str(operand.ty.dtype)


# The axes of the scores of an attention, and terms of other stages expressed over them.
#
# Scores and statistics of softmax are put for variables, as a kernel keeps them in registers.
class ScoreAxes:
    """How the stages of softmax and of the second product read the scores.

    Attributes
    ----------
    raw : Var
        The product of q and k.
    row_max, row_sum : Var
        Statistics of a row of scores.
    """

    def __init__(self, scores: Stage, maximum: Stage, total: Stage) -> None:
        self._scores, self._maximum, self._total = scores, maximum, total
        dtype = str(scores.targets[0].ty.dtype)
        self.raw = tirx.Var("raw", FLOAT)
        self._product = self.raw if dtype == FLOAT else tirx.Cast(dtype, self.raw)
        self.row_max = tirx.Var("row_max", str(maximum.targets[0].ty.dtype))
        self.row_sum = tirx.Var("sum", str(total.targets[0].ty.dtype))

    def key(self) -> Axis | Refusal:
        """Return the axis of the scores that softmax reduces."""
        own = self.axes_of(self._maximum)
        along = (own or {}).get(self._maximum.reduce[0].var)
        axis = next((a for a in self._scores.axes if is_same(along, a.var)), None)
        if axis is None:
            return scores_elsewhere(self._maximum)
        return axis

    def axes_of(self, stage: Stage) -> dict[ir.Var, ir.Var] | None:
        """Map a stage's axes to the scores' axes; it must read scores at its own position."""
        target = self._scores.targets[0]
        reads = [x for v in stage.values for x in loads(v) if x.source.same_as(target)]
        if not reads:
            return None
        where = self._scores.indices[0]
        own: dict[ir.Var, ir.Var] = {}
        mine = {a.var for a in (*stage.axes, *stage.reduce)}
        for written, read in zip(where, reads[0].indices, strict=True):
            if isinstance(written, ir.Var):
                if read not in mine or read in own:
                    return None
                own[read] = written
        if len(own) != len(self._scores.axes):
            return None
        same = all(
            tvm_ffi.structural_equal(list(reads[0].indices), list(x.indices), map_free_vars=False)
            for x in reads[1:]
        )
        return own if same else None

    def express(self, stage: Stage, value: ir.Expr | None) -> ir.Expr | None:
        """Express a term over the axes of the scores; ``None`` if it reads other rows."""
        own = self.axes_of(stage)
        if value is None or own is None:
            return None
        placeholders = (
            (self._scores, self._product),
            (self._maximum, self.row_max),
            (self._total, self.row_sum),
        )
        reads_other_row = False

        def swap(load: ir.TensorLoad) -> ir.Expr:
            nonlocal reads_other_row
            for part, placeholder in placeholders:
                if load.source.same_as(part.targets[0]):
                    reads_other_row |= not self._is_own_row(part, load)
                    return placeholder
            return load

        # Indices are over the scores' axes when loads are looked at.
        found = substitute(substitute(value, own), {}, swap)
        return None if reads_other_row else found

    def _is_own_row(self, part: Stage, load: ir.TensorLoad) -> bool:
        """Whether a load over the scores' axes is of their own row."""
        if part is self._scores:
            return True  # axes_of saw to it
        own = self.axes_of(part) or {}
        return all(
            not isinstance(written, ir.Var) or is_same(own.get(written), read)
            for written, read in zip(part.indices[0], load.indices, strict=True)
        )


def is_same(one: ir.Expr | None, other: ir.Expr) -> bool:
    """Whether there is an expression, and it is the same object as another."""
    return one is not None and one.same_as(other)


def scores_elsewhere(stage: Stage) -> Refusal:
    """Refuse a stage that reads scores of other rows."""
    return Refusal(
        "scores_elsewhere",
        f"{stage.title} does not read the scores of its own row, each element once.",
    )
