"""Weights of few bits in blocks that share a scale: one formula for all formats they come in.

    w[n, k] = (q[n, k] - zero) * scale[n, b] - minimum[n, b],      b = k // size

q of 2, 4 and 8 bits lie in one plane of bytes, the lowest bits first; of other widths in several:
5 bits in one of 4 and one of 1. In blocks of blocks (K-quants of GGUF) scales and minimums are
integers of few bits themselves, times one scale for all blocks of a super-block:

    scale[n, b] = scales[n, b] * super_scales[n, b // blocks of a super-block]

What importers write is this formula as operators, whichever format is read, so that kernels meet
one pattern; constant folding leaves it, since the planes take the fewest bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from tvm import relax

from ..tensor_types import dtype_of

op = relax.op


@dataclass(frozen=True)
class Packing:
    """How numbers lie in the arrays of a packed weight."""

    # Extents of the weight; rows are padded to whole blocks.
    rows: int
    columns: int
    size: int  # columns of a block
    # Bits of a number in each plane ``[rows, blocks, bytes]``, the lowest first; of numbers in half
    # precision, which lie in an array ``values``, there are none.
    planes: tuple[int, ...]
    zero: int = 0  # what is subtracted from all numbers
    scale_bits: int = 8  # of scales and minimums where they are integers: 8, or 4 of two a byte
    together: int = 1  # blocks of a super-block

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return -(-self.columns // self.size)


class Operators(Protocol):
    """What the formula needs of an array library; operands may be numbers."""

    def field(self, x: Any, shift: int, bits: int) -> Any:
        """Take bits out of bytes."""

    def stack(self, parts: Sequence[Any]) -> Any:
        """Join arrays along a new last axis."""

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        """Change the shape."""

    def cast(self, x: Any, dtype: Any) -> Any:
        """Change the dtype."""

    def first_columns(self, x: Any, count: int) -> Any:
        """Cut the last axis."""

    def add(self, x: Any, y: Any) -> Any:
        """Add."""

    def subtract(self, x: Any, y: Any) -> Any:
        """Subtract."""

    def multiply(self, x: Any, y: Any) -> Any:
        """Multiply."""


def dequantize(packing: Packing, arrays: Mapping[str, Any], dtype: Any, ops: Operators) -> Any:
    """Write the formula.

    Parameters
    ----------
    packing
        How numbers lie in the arrays.
    arrays
        ``plane0`` and so on, ``scales`` ``[rows, blocks]``; optionally ``zeros``, ``minimums``,
        ``super_scales`` and ``super_minimums``; or ``values``.
    dtype : str or torch.dtype
        Of the result, in which it is computed.

    Returns
    -------
    array
        The weight ``[rows, columns]``.
    """
    if not packing.planes:
        return ops.cast(arrays["values"], dtype)
    rows, blocks = packing.rows, packing.blocks

    def factors(name: str) -> Any:
        found, of = arrays[name], arrays.get(f"super_{name}")
        if of is None:
            return ops.reshape(ops.cast(found, dtype), [rows, blocks, 1])
        shape = [rows, blocks // packing.together, packing.together]
        each = unpacked(found, packing.scale_bits, shape, ops)
        wide = ops.reshape(ops.cast(of, dtype), [*shape[:2], 1])
        return ops.reshape(ops.multiply(ops.cast(each, dtype), wide), [rows, blocks, 1])

    weight = ops.cast(joined_planes(packing, arrays, ops), dtype)
    if "zeros" in arrays:
        zeros = ops.reshape(ops.cast(arrays["zeros"], dtype), [rows, blocks, 1])
        weight = ops.subtract(weight, zeros)
    elif packing.zero:
        weight = ops.subtract(weight, packing.zero)
    weight = ops.multiply(weight, factors("scales"))
    if "minimums" in arrays:
        weight = ops.subtract(weight, factors("minimums"))
    width = blocks * packing.size
    weight = ops.reshape(weight, [rows, width])
    return weight if width == packing.columns else ops.first_columns(weight, packing.columns)


def joined_planes(packing: Packing, arrays: Mapping[str, Any], ops: Operators) -> Any:
    """Unpack the numbers ``[rows, blocks, size]``, in the integers of the planes."""
    shape = [packing.rows, packing.blocks, packing.size]
    numbers = unpacked(arrays["plane0"], packing.planes[0], shape, ops)
    below = packing.planes[0]
    for i, bits in enumerate(packing.planes[1:], 1):
        part = unpacked(arrays[f"plane{i}"], bits, shape, ops)
        numbers = ops.add(numbers, ops.multiply(part, 1 << below))
        below += bits
    return numbers


def unpacked(x: Any, bits: int, shape: Sequence[int], ops: Operators) -> Any:
    """Unpack the numbers of bytes along the last axis, the lowest bits first."""
    if bits == 8:
        return ops.reshape(x, shape)
    parts = [ops.field(x, shift, bits) for shift in range(0, 8, bits)]
    return ops.reshape(ops.stack(parts), shape)


def unpack_array(data: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Unpack the first numbers of streams of bits along the last axis, of any width."""
    stream = np.unpackbits(data, axis=-1, bitorder="little")[..., : count * bits]
    digits = stream.reshape(*data.shape[:-1], count, bits)
    return np.packbits(digits, axis=-1, bitorder="little")[..., 0]


def pack_array(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Pack numbers of 1, 2, 4 or 8 bits along the last axis into bytes, the lowest bits first."""
    each = 8 // bits
    fields = numbers.astype(np.uint8).reshape(*numbers.shape[:-1], -1, each)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    packed: np.ndarray = np.bitwise_or.reduce(fields << shifts, axis=-1)
    return packed


def planes_of(bits: int) -> tuple[int, ...]:
    """Part the bits of a number into planes of 8, 4, 2 and 1 bits, the lowest first."""
    return tuple(width for width in (8, 4, 2, 1) if bits & width)


def split_planes(numbers: np.ndarray, planes: Sequence[int]) -> dict[str, np.ndarray]:
    """Pack numbers ``[rows, blocks, size]`` into planes."""
    found, below = {}, 0
    for i, bits in enumerate(planes):
        found[f"plane{i}"] = pack_array((numbers >> below) & ((1 << bits) - 1), bits)
        below += bits
    return found


class RelaxOperators:
    """The formula in Relax, each step bound to a variable."""

    def __init__(self, emit: Callable[[Any], Any]) -> None:
        self._emit = emit

    def field(self, x: Any, shift: int, bits: int) -> Any:
        """Shift and mask, where there is anything to."""
        dtype = dtype_of(x)
        if shift:
            x = self._emit(op.right_shift(x, relax.const(np.array(shift, dtype))))
        if shift + bits == 8:
            return x
        return self._emit(op.bitwise_and(x, relax.const(np.array((1 << bits) - 1, dtype))))

    def stack(self, parts: Sequence[Any]) -> Any:
        """Join along a new last axis."""
        rank = len(parts[0].ty.shape)
        return self._emit(op.concat([self._emit(op.expand_dims(p, rank)) for p in parts], rank))

    def reshape(self, x: Any, shape: Sequence[Any]) -> Any:
        """Change the shape where it is another."""
        if list(x.ty.shape) == list(shape):
            return x
        return self._emit(op.reshape(x, list(shape)))

    def cast(self, x: Any, dtype: str) -> Any:
        """Change the dtype where it is another."""
        return x if dtype_of(x) == dtype else self._emit(op.astype(x, dtype))

    def first_columns(self, x: Any, count: int) -> Any:
        """Cut the last axis."""
        return self._emit(op.strided_slice(x, [len(x.ty.shape) - 1], [0], [count]))

    def add(self, x: Any, y: Any) -> Any:
        """Add."""
        return self._emit(op.add(x, _operand(y, x)))

    def subtract(self, x: Any, y: Any) -> Any:
        """Subtract."""
        return self._emit(op.subtract(x, _operand(y, x)))

    def multiply(self, x: Any, y: Any) -> Any:
        """Multiply."""
        return self._emit(op.multiply(x, _operand(y, x)))


def _operand(y: Any, x: Any) -> Any:
    return relax.const(np.array(y).astype(dtype_of(x))) if isinstance(y, int) else y
