"""Choose the tiles of a shared-memory transpose."""

from __future__ import annotations

from tvm import ir

from ...core.loops import constant
from ...program.stage import Axis
from ..address import offset, stride
from ..gpu.launch import STATIC_SHARED_BYTES, VECTOR_BYTES, VECTOR_TYPES
from ..gpu.warp import LANES
from .alignment import WORD, aligned_width, have_same_alignment, overlap_of, shift_of, step_of
from .guarded_loads import bytes_of, guarded_loads
from .iteration_space import TILED_STRIDE, IterationSpace
from .transpose_config import ROW, TransposeConfig

MIN_COLUMNS = 16  # of the last axis: of fewer, most of a tile would be empty


def transpose_config(
    space: IterationSpace, shared_bytes: int = STATIC_SHARED_BYTES
) -> TransposeConfig | None:
    """Choose tiles; ``None`` where nothing is transposed, or tiles do not cover it.

    Parameters
    ----------
    space : IterationSpace
        The iteration space.
    shared_bytes : int
        Shared memory that is left.
    """
    across = space.transposed_axis()
    if across is None:
        return None
    row, last = space.axes[across], space.axes[-1]
    if (constant(last.extent) or MIN_COLUMNS) < MIN_COLUMNS:
        return None
    sides = [(s.buffer, offset(s.buffer, s.indices)) for s in space.outputs]
    if any(str(s.buffer.ty.dtype) not in VECTOR_TYPES for s in space.stores) or any(
        step_of(space, place, last) != 1 for _, place in sides
    ):
        return None
    found = guarded_loads(space)
    transposed = tuple(r for r in found if _is_transposed(space, r.element, row, last))
    if not transposed:
        return None
    shift = shift_of(space)
    if shift:
        width = VECTOR_BYTES // max(bytes_of(buffer) for buffer, _ in sides)
    else:
        width = min(aligned_width(space, place, last, bytes_of(buffer)) for buffer, place in sides)

    def is_straight(found: ir.TensorLoad) -> bool:
        place = offset(found.source, found.indices)
        if step_of(space, place, last) != 1:
            return False
        if shift:
            return have_same_alignment(place, sides[0][1], width)
        return aligned_width(space, place, last, bytes_of(found)) >= width

    straight = tuple(r.element for r in found if r.condition is None and is_straight(r.element))
    per_word = max(WORD // bytes_of(r.element) for r in transposed)
    words = _words(constant(row.extent), constant(last.extent), per_word)
    overlaps = tuple(overlap_of(space, r, row) for r in transposed)
    config = TransposeConfig(
        space, across, transposed, straight, width, per_word, words, shift, overlaps
    )
    return config if config.shared_bytes <= shared_bytes else None


def _words(across: int | None, last: int | None, per_word: int) -> int:
    """Choose the length of a tile's rows; their number follows."""
    if last is not None and last <= LANES:
        return 2 * ROW
    short = (
        words for words in (ROW // 4, ROW // 2) if across is not None and across <= words * per_word
    )
    return next(short, ROW)


def _is_transposed(space: IterationSpace, found: ir.TensorLoad, row: Axis, last: Axis) -> bool:
    place = offset(found.source, found.indices)
    away = stride(place, last.var, space.variables)
    size = None if away is None else constant(away)
    return (
        str(found.ty.dtype) in VECTOR_TYPES
        and away is not None
        and (size is None or abs(size) >= TILED_STRIDE)
        and step_of(space, place, row) == 1
    )
