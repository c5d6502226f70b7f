"""Column reductions: sums over everything but the innermost axis, such as global average pooling.

C[batch, k] = combine over p of term(A[batch, p, k])        channels-last: p are pixels
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import DataType, ir, sym, tirx

from ...core.contract.template import Refusal
from ...core.tir.expressions import is_load_of, load, loads, variables
from ...core.tir.loops import constant, index, substitute
from ...program.program import Program
from ...program.stage import Axis, Stage
from ..contraction.problem.results import Result, result_of
from ..gpu.launch import VECTOR_BYTES, VECTOR_TYPES
from ..index.address import conditional_loads, is_aligned, lies_along, offset, same

_LEAST = 2  # columns of a vector
LEAST_TERMS = 32  # fewer are one thread's
_COMBINERS = (tirx.Add, tirx.Max, tirx.Min)


@dataclass(frozen=True, eq=False)
class ColumnReduction:
    """A reduction whose inputs are contiguous along a kept axis, then results."""

    stage: Stage
    batch: tuple[Axis, ...]  # kept axes but the columns
    k: Axis  # columns: contiguous in memory
    term: ir.Expr  # what is combined, over all axes
    combine: type  # ``tirx.Add``, ``tirx.Max`` or ``tirx.Min``
    total: ir.Var  # stands for the reduction in results
    results: tuple[Result, ...]  # maps of it
    # Maps of what is combined, over the same axes: outputs as large as the inputs.
    elements: tuple[Result, ...]
    lanes: int  # columns of a vector

    @property
    def dtype(self) -> str:
        """Type of the reduction."""
        return str(self.stage.targets[0].dtype)

    @property
    def is_gathered(self) -> bool:
        """Whether numbers of rows are data."""
        return any(loads(i) for x in loads(self.term) for i in x.indices)

    @property
    def vectors(self) -> list[ir.TensorLoad]:
        """The different loads of a term that are vectors of columns."""
        found: list[ir.TensorLoad] = []
        values = [self.term, *(e.value for e in self.elements)]
        sometimes = [x for v in values for x in conditional_loads(v)]
        for x in (x for v in values for x in loads(v)):
            is_new = not any(same(x, other) for other in (*found, *sometimes))
            if is_new and is_vector(x, self.k, self.lanes):
                found.append(x)
        return found


def column_reduction(program: Program, stages: Sequence[Stage]) -> ColumnReduction | Refusal:
    """Read a program as one column reduction.

    Parameters
    ----------
    stages
        Its stages, internal maps inlined.
    """
    found = [s for s in stages if not s.is_map]
    if len(found[0].targets) != 1:
        return Refusal("unsupported_combiner", f"{found[0].title} has several results.")
    (stage,) = found
    target, value = stage.targets[0], stage.values[0]
    if not isinstance(value, _COMBINERS) or stage.init is None:
        return _other_combiner(stage)
    own, term = (value.a, value.b) if is_load_of(value.a, target) else (value.b, value.a)
    if not is_load_of(own, target) or any(x.source.same_as(target) for x in loads(term)):
        return _other_combiner(stage)
    ones = {a.var: index(0) for a in stage.axes if constant(a.extent) == 1}
    wide = [a for a in stage.axes if a.var not in ones]
    reduce = {a.var for a in stage.reduce if constant(a.extent) != 1}
    varying = [x for x in loads(term) if reduce & variables(x)]
    # What is gathered by rows is in vectors; the numbers of the rows are not.
    numbers = [inner for x in varying for i in x.indices for inner in loads(i)]
    varying = [x for x in varying if not any(x.same_as(inner) for inner in numbers)]
    total = tirx.Var("total", str(target.dtype))
    results, elements = [], []
    for part in stages:
        if part.is_map:
            element = _element(part, stage, term)
            if element is not None:
                elements.append(element)
                continue
            result = result_of(part, stage, total)
            if isinstance(result, Refusal):
                return result
            if result.condition is not None:
                return Refusal(
                    "partial_results",
                    f"{part.title} reads only a part of the result of {stage.title}.",
                )
            results.append(result)
    if target in program.outputs:
        results.append(Result(target, stage.indices[0], total, None))
    for k in reversed(wide):
        if constant(k.extent) is None or any(k.var in variables(x) for x in numbers):
            continue
        view = ColumnReduction(
            stage,
            tuple(a for a in wide if a is not k),
            k,
            substitute(term, ones),
            type(value),
            total,
            tuple(results),
            tuple(moved(e, ones) for e in elements),
            1,
        )
        lanes = _lanes(view, [substitute(x, ones) for x in varying])
        if lanes >= _LEAST:
            return replace(view, lanes=lanes)
    return Refusal(
        "not_mine", f"{stage.title} does not reduce over contiguous columns in whole vectors."
    )


def _other_combiner(stage: Stage) -> Refusal:
    return Refusal("unsupported_combiner", f"{stage.title} is not a sum, maximum or minimum.")


def _element(part: Stage, stage: Stage, term: ir.Expr) -> Result | None:
    """Read a map of what is combined, over the axes of the reduction; ``None`` for anything else.

    It loads an element that the term loads, too: that tells which axes are which.
    """
    mine = {a.var: a.extent for a in part.axes if constant(a.extent) != 1}
    its = {a.var: a.extent for a in (*stage.axes, *stage.reduce) if constant(a.extent) != 1}
    if len(part.targets) != 1 or len(mine) != len(its) or part.reads & set(stage.targets):
        return None
    for own in loads(part.values[0]):
        for other in (x for x in loads(term) if x.source.same_as(own.source)):
            pairs = list(zip(own.indices, other.indices, strict=True))
            found = {a: b for a, b in pairs if a in mine and b in its}
            if set(found) == set(mine) and set(found.values()) == set(its):
                places = found | {a.var: index(0) for a in part.axes if a.var not in found}
                value = substitute(part.values[0], places)
                moved = substitute(own, places)
                if same(moved, other) and all(
                    tvm_ffi.structural_equal(index(mine[a]), index(its[b]))
                    for a, b in found.items()
                ):
                    indices = tuple(substitute(i, places) for i in part.indices[0])
                    return Result(part.targets[0], indices, value, None)
    return None


def moved(result: Result, places: dict[ir.Var, ir.Expr]) -> Result:
    """Replace axes of a result."""
    indices = tuple(substitute(i, places) for i in result.indices)
    return replace(result, indices=indices, value=substitute(result.value, places))


def _lanes(view: ColumnReduction, varying: Sequence[ir.TensorLoad]) -> int:
    """Choose the columns of a vector: as many as 16 bytes hold of the widest operand."""
    if not varying or any(str(x.source.dtype) not in VECTOR_TYPES for x in varying):
        return 0
    lanes = VECTOR_BYTES // max(DataType(str(x.source.dtype)).itemsize for x in varying)
    while lanes >= _LEAST:
        size = constant(view.k.extent) or 1
        stored = [load(e.buffer, e.indices) for e in view.elements]
        if size % lanes == 0 and all(is_vector(x, view.k, lanes) for x in (*varying, *stored)):
            return lanes
        lanes //= 2
    return 0


def is_vector(found: ir.TensorLoad, k: Axis, lanes: int) -> bool:
    """Whether an element is one of an aligned vector of columns."""
    indices = list(found.indices)
    if k.var not in variables(found) or str(found.source.dtype) not in VECTOR_TYPES:
        return False
    if not lies_along(found.source, indices, k, lanes):
        return False
    vector = tirx.Var("vector", "int64")
    place = substitute(offset(found.source, indices), {k.var: vector * lanes})
    return is_aligned(place, lanes, sym.Analyzer())
