"""Blocks of GGUF's tensor types, taken apart into planes, scales and minimums.

Of the types: ``ggml-common.h`` and ``ggml-quants.c`` of ggml. A block is a structure of bytes; of
its numbers, those of a run of bytes lie next to each other by their bits: first the lowest of all
bytes of the run, then the next ones. Here each number's bits lie next to those of its neighbours.
Types of 4 bits that are places in a table (IQ4_NL, IQ4_XS, MXFP4) become what the table has, in a
byte each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np

from ..operators.packed_weights import Packing, pack_array, planes_of, split_planes

_SUPER = 256  # numbers of a super-block
_HALF, _BYTE = "<f2", "u1"


@dataclass(frozen=True)
class PackedWeight:
    """A matrix as its file has it, in planes: see :mod:`..operators.packed_weights`."""

    packing: Packing  # how numbers lie in the arrays
    # Planes, scales and minimums, the first axis of each counting rows.
    arrays: Mapping[str, np.ndarray] = field(repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.packing.rows, self.packing.columns

    @classmethod
    def of_halves(cls, values: np.ndarray) -> PackedWeight:
        """Keep a matrix of half precision, which is cast where it is used."""
        rows, columns = values.shape
        return cls(Packing(rows, columns, columns, ()), {"values": values})

    def take_rows(self, order: np.ndarray) -> PackedWeight:
        """Take some of the rows, in an order."""
        arrays = {name: array[order] for name, array in self.arrays.items()}
        return PackedWeight(replace(self.packing, rows=len(order)), arrays)


@dataclass(frozen=True)
class Format:
    """A type of blocks."""

    layout: np.dtype  # a block's fields
    columns: int  # numbers of a block in the file
    size: int  # numbers that share a scale
    # Of a number, and what is subtracted from it.
    bits: int
    zero: int
    numbers: Callable[[np.ndarray], np.ndarray]  # from blocks to their numbers ``[.., columns]``
    # From blocks to scales and minimums by name, of a block or a super-block each.
    factors: Callable[[np.ndarray], dict[str, np.ndarray]]
    scale_bits: int = 8  # of scales and minimums that are integers

    def read(self, data: np.ndarray, columns: int) -> PackedWeight:
        """Take the rows of bytes of a tensor apart."""
        rows = len(data)
        blocks = np.ascontiguousarray(data).view(self.layout)
        planes = planes_of(self.bits)
        together = self.columns // self.size
        packing = Packing(rows, columns, self.size, planes, self.zero, self.scale_bits, together)
        numbers = self.numbers(blocks).reshape(rows, packing.blocks, self.size)
        arrays = {"plane0": numbers} if planes == (8,) else split_planes(numbers, planes)
        for name, values in self.factors(blocks).items():
            values = values.reshape(rows, -1)
            is_packed = self.scale_bits < 8 and not name.startswith("super")
            arrays[name] = pack_array(values, self.scale_bits) if is_packed else values
        return PackedWeight(packing, arrays)


def _fields(data: np.ndarray, bits: int, run: int) -> np.ndarray:
    """Unpack the numbers of bytes along the last axis, run after run."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = data.reshape(*data.shape[:-1], -1, 1, run)
    numbers = (runs >> shifts) & np.uint8((1 << bits) - 1)
    return numbers.reshape(*data.shape[:-1], -1)


def _joined(low: np.ndarray, high: np.ndarray, bits: int) -> np.ndarray:
    return low | (high << np.uint8(bits))


def _scale(blocks: np.ndarray) -> dict[str, np.ndarray]:
    return {"scales": blocks["d"]}


def _scale_and_offset(blocks: np.ndarray) -> dict[str, np.ndarray]:
    return {"scales": blocks["d"], "minimums": -blocks["m"]}


def _six_bits(blocks: np.ndarray) -> dict[str, np.ndarray]:
    """Read eight scales and minimums: four of each whole, of the others two bits behind these."""
    scales, minimums, rest = np.split(blocks["scales"], 3, axis=-1)
    low, two = np.uint8(63), np.uint8(6)
    return {
        "scales": np.concatenate([scales & low, _joined(rest & 15, scales >> two, 4)], -1),
        "minimums": np.concatenate([minimums & low, _joined(rest >> 4, minimums >> two, 4)], -1),
        "super_scales": blocks["d"],
        "super_minimums": blocks["m"],
    }


def _q2_factors(blocks: np.ndarray) -> dict[str, np.ndarray]:
    scales = blocks["scales"]
    four = {"scales": scales & 15, "minimums": scales >> 4}
    return {**four, "super_scales": blocks["d"], "super_minimums": blocks["m"]}


def _q3_factors(blocks: np.ndarray) -> dict[str, np.ndarray]:
    low, high = np.split(blocks["scales"], [8], axis=-1)
    scales = _joined(_fields(low, 4, 8), _fields(high, 2, 4), 4).astype(np.int8) - np.int8(32)
    return {"scales": scales, "super_scales": blocks["d"]}


def _q6_factors(blocks: np.ndarray) -> dict[str, np.ndarray]:
    return {"scales": blocks["scales"], "super_scales": blocks["d"]}


def _xs_factors(blocks: np.ndarray) -> dict[str, np.ndarray]:
    low = _fields(blocks["low"], 4, 1)
    high = blocks["high"][:, :, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = _joined(low, high.astype(np.uint8), 4).astype(np.int8) - np.int8(32)
    return {"scales": scales, "super_scales": blocks["d"]}


def _powers(blocks: np.ndarray) -> dict[str, np.ndarray]:
    """Read scales that are exponents alone; numbers of the table are doubled."""
    powers = np.ldexp(np.float32(1), blocks["e"].astype(np.int32) - 128)
    return {"scales": powers.astype(ml_dtypes.bfloat16)}


def _looked_up(table: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    return lambda b: table[_fields(b["q"], 4, 16)]


def _block(**fields: tuple[str, int] | str) -> np.dtype:
    return np.dtype([(n, f) if isinstance(f, str) else (n, *f) for n, f in fields.items()])


_NONLINEAR = np.array(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int8
)
_E2M1 = np.array((0, 1, 2, 3, 4, 6, 8, 12), np.int8)  # of a sign, two bits and one, doubled

FORMATS = {
    "Q4_0": Format(
        _block(d=_HALF, q=(_BYTE, 16)), 32, 32, 4, 8,
        lambda b: _fields(b["q"], 4, 16), _scale,
    ),
    "Q4_1": Format(
        _block(d=_HALF, m=_HALF, q=(_BYTE, 16)), 32, 32, 4, 0,
        lambda b: _fields(b["q"], 4, 16), _scale_and_offset,
    ),
    "Q5_0": Format(
        _block(d=_HALF, h=(_BYTE, 4), q=(_BYTE, 16)), 32, 32, 5, 16,
        lambda b: _joined(_fields(b["q"], 4, 16), _fields(b["h"], 1, 1), 4), _scale,
    ),
    "Q5_1": Format(
        _block(d=_HALF, m=_HALF, h=(_BYTE, 4), q=(_BYTE, 16)), 32, 32, 5, 0,
        lambda b: _joined(_fields(b["q"], 4, 16), _fields(b["h"], 1, 1), 4), _scale_and_offset,
    ),
    "Q8_0": Format(
        _block(d=_HALF, q=("i1", 32)), 32, 32, 8, 0, lambda b: b["q"], _scale,
    ),
    "Q2_K": Format(
        _block(scales=(_BYTE, 16), q=(_BYTE, 64), d=_HALF, m=_HALF), _SUPER, 16, 2, 0,
        lambda b: _fields(b["q"], 2, 32), _q2_factors, scale_bits=4,
    ),
    "Q3_K": Format(
        _block(h=(_BYTE, 32), q=(_BYTE, 64), scales=(_BYTE, 12), d=_HALF), _SUPER, 16, 3, 4,
        lambda b: _joined(_fields(b["q"], 2, 32), _fields(b["h"], 1, 32), 2), _q3_factors,
    ),
    "Q4_K": Format(
        _block(d=_HALF, m=_HALF, scales=(_BYTE, 12), q=(_BYTE, 128)), _SUPER, 32, 4, 0,
        lambda b: _fields(b["q"], 4, 32), _six_bits,
    ),
    "Q5_K": Format(
        _block(d=_HALF, m=_HALF, scales=(_BYTE, 12), h=(_BYTE, 32), q=(_BYTE, 128)),
        _SUPER, 32, 5, 0,
        lambda b: _joined(_fields(b["q"], 4, 32), _fields(b["h"], 1, 32), 4), _six_bits,
    ),
    "Q6_K": Format(
        _block(q=(_BYTE, 128), h=(_BYTE, 64), scales=("i1", 16), d=_HALF), _SUPER, 16, 6, 32,
        lambda b: _joined(_fields(b["q"], 4, 64), _fields(b["h"], 2, 32), 4), _q6_factors,
    ),
    "IQ4_NL": Format(
        _block(d=_HALF, q=(_BYTE, 16)), 32, 32, 8, 0, _looked_up(_NONLINEAR), _scale,
    ),
    "IQ4_XS": Format(
        _block(d=_HALF, high="<u2", low=(_BYTE, 4), q=(_BYTE, 128)), _SUPER, 32, 8, 0,
        _looked_up(_NONLINEAR), _xs_factors,
    ),
    "MXFP4": Format(
        _block(e=_BYTE, q=(_BYTE, 16)), 32, 32, 8, 0,
        _looked_up(np.concatenate([_E2M1, -_E2M1])), _powers,
    ),
}  # fmt: skip

#: Types of whole numbers.
PLAIN = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F64": np.float64}
