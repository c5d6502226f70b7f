"""Which row programs can be reduced in parts, and which parts their axes have."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import tvm_ffi
from tvm import ir, tirx

from .....core.tir.expressions import substitute
from .....core.tir.loops import constant
from ...program.passes import equal_axes
from ...program.row_program import RowProgram, RowStage
from .one_pass_variance import sum_of_deviations


def with_axes_of_maps(program: RowProgram) -> RowProgram:
    """Put the axes of sums in the order of the maps that read the same elements.

    Maps that write images with channels last have another order than the sums of a norm.

    Parameters
    ----------
    program
        Sums over rows, then maps.
    """
    first = next((s for s in program.stages if s.is_map and s.inner), None)
    if first is None:
        return program

    def reordered(stage: RowStage) -> RowStage:
        if stage.is_map or stage.inner or len(stage.reduce) != len(first.inner):
            return stage
        reads = [x for x in stage.loads if not program.is_internal(x.source)]
        for axes in itertools.permutations(stage.reduce):
            if not equal_axes(axes, first.inner):
                continue
            places = dict(
                zip(
                    [a.var for a in (*stage.rows, *axes)],
                    [a.var for a in (*first.rows, *first.inner)],
                    strict=True,
                )
            )
            moved = [substitute(x, places) for x in reads]
            if all(any(tvm_ffi.structural_equal(x, y) for y in first.loads) for x in moved):
                return replace(stage, reduce=tuple(axes))
        return stage

    return replace(program, stages=tuple(map(reordered, program.stages)))


def sums_then_maps(
    program: RowProgram,
) -> tuple[RowProgram, dict[RowStage, RowStage | None]] | None:
    """Tell which sums over whole rows a program has before maps of the same elements.

    Returns
    -------
    tuple or None
        The program, its sums in the order of the maps, with the sums; of those of squared
        deviations, the sum whose mean they are about. ``None`` where it has another form.
    """
    program = with_axes_of_maps(program)
    sums = [stage for stage in program.stages if not stage.is_map]
    maps = [stage for stage in program.stages if stage.is_map]
    if not sums or not maps or any(axis.size is None for axis in program.rows):
        return None
    axes = sums[0].reduce
    if any(axis.size is None for axis in axes) or not all(
        is_float_sum(program, stage) and equal_axes(stage.reduce, axes) for stage in sums
    ):
        return None
    if any(
        not equal_axes(stage.inner, axes) or any(map(program.is_internal, stage.targets))
        for stage in maps
    ):
        return None
    about = {stage: sum_of_deviations(program, stage) for stage in sums}
    if not all(is_independent(program, s) for s in sums if about[s] is None) or not all(
        about[total] is None for total in about.values() if total is not None
    ):
        return None
    return program, about


def is_float_sum(program: RowProgram, stage: RowStage) -> bool:
    """Whether a stage is a plain sum of float32 over a row, which only the program reads."""
    if stage.inner or len(stage.targets) != 1 or stage.combine is None:
        return False
    (start,), (target,), (where,) = stage.init, stage.targets, stage.indices
    return (
        isinstance(stage.combine.values[0], tirx.Add)
        and isinstance(start, tirx.FloatImm)
        and float(start.value) == 0
        and str(target.dtype) == "float32"
        and program.is_internal(target)
        and is_at_row(stage, where)
    )


def is_at_row(stage: RowStage, where: Sequence[ir.Expr]) -> bool:
    """Whether an element is a row's own: all axes in order, between zeros along axes of one row."""
    places = [i for i in where if constant(i) != 0]
    return len(places) == len(stage.rows) and all(
        i.same_as(a.var) for i, a in zip(places, stage.rows, strict=True)
    )


def is_independent(program: RowProgram, stage: RowStage) -> bool:
    """Whether a stage reads inputs only."""
    return not any(program.is_internal(load.source) for load in stage.loads)


def outer_extents(sizes: Sequence[int], most: int) -> list[int]:
    """Choose the parts along each axis, the outermost first: divisors, at most so many together.

    The last of several axes stays whole: it is the one that is contiguous in memory.
    """
    found = []
    for number, size in enumerate(sizes):
        is_whole = number > 0 and number == len(sizes) - 1
        limit = 1 if is_whole else min(size, most)
        parts = max(d for d in range(1, limit + 1) if size % d == 0)
        found.append(parts)
        most //= parts
    return found
