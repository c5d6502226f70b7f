"""Where the output channels of a result lie in memory, and which results can be stored."""

from collections.abc import Sequence

from tvm import ir, tirx

from ....core.tir.expressions import call_name, loads, variables
from ....core.tir.loops import find, index
from ...contraction.problem.sum_of_products import Result
from ...index.address import lies_along
from .problem import ConvProblem


def is_contiguous(result: Result, problem: ConvProblem, lanes: int) -> bool:
    """Whether vectors of output channels are contiguous in a result."""
    return lies_along(result.buffer, result.indices, problem.k, lanes)


def has_vectors(result: Result, problem: ConvProblem, lanes: int) -> bool:
    """Whether vectors of output channels compute a result, wherever these are stored."""
    along = [x for x in loads(result.value) if problem.k.var in variables(x)]
    return all(lies_along(x.source, x.indices, problem.k, lanes) for x in along)


def can_store(results: Sequence[Result], problem: ConvProblem, lanes: int) -> bool:
    """Whether output channels are contiguous in results, or these may be stored one by one.

    Concatenations may not, unless they are stored in vectors as well: their other channels would be
    lanes of zeros.
    """
    if problem.pool or any(is_contiguous(r, problem, lanes) for r in results):
        return True
    return all(
        _is_last(r, problem)
        or not any(call_name(c) == "if_then_else" for c in find(r.value, ir.Call))
        for r in results
    )


def shuffles_channels(result: Result, problem: ConvProblem, lanes: int) -> bool:
    """Whether channels of a pixel are near each other in a result, although not in order."""
    return _is_last(result, problem) and not is_contiguous(result, problem, lanes)


def _is_last(result: Result, problem: ConvProblem) -> bool:
    last = result.indices[-1] if len(result.indices) else index(0)
    return problem.k.var in variables(last)


def conditions_known(results: Sequence[Result], problem: ConvProblem) -> bool:
    """Whether conditions of results are about channels beyond the last one only."""
    k = problem.k.var
    return all(
        r.condition is None
        or (
            isinstance(r.condition, tirx.LT)
            and r.condition.a.same_as(k)
            and isinstance(r.condition.b, tirx.IntImm)
            and int(r.condition.b) == problem.channels
        )
        for r in results
    )
