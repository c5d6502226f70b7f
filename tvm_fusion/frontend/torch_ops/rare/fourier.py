"""Convert Fourier transforms into products with constant matrices.

    [re | im] @ M        M of 2n x 2n: cosines and sines, one GEMM

Larger lengths are split into two factors (Cooley-Tukey), down to lengths up to 128:

    x[j1, j2], j = j1 * n2 + j2  ->  transform over j1  ->  times exp(2 pi i k1 j2 / n)
    ->  transform over j2  ->  X[k1 + n1 * k2]
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from tvm import relax

from ...registry import Unsupported
from ..call import Call, real_name_of, static
from ..complex_pairs import Pair, pair_of
from .registry import COMPLEX

op = relax.op

#: Lengths up to it are one product; a prime factor may be as large as the second.
_DIRECT = 128
_LARGEST_FACTOR = 2048


@cache
def _roots(rows: int, columns: int, period: int, sign: int) -> np.ndarray:
    """Return ``exp(sign 2 pi i j k / period)``, of the product's remainder, which is exact."""
    angles = np.outer(np.arange(rows), np.arange(columns)) % period * (2 * np.pi * sign / period)
    return np.exp(1j * angles)


class Transform:
    """Transforms along axes of static extents."""

    def __init__(self, call: Call, dtype: str):
        self._call, self._dtype, self._emit = call, dtype, call.emit

    def along(self, x: Pair, axis: int, sign: int) -> Pair:
        """Transform along an axis."""
        shape = _shape(x.real)
        rank = len(shape)
        order = [a for a in range(rank) if a != axis] + [axis]
        back = sorted(range(rank), key=lambda place: order[place])

        def move(y: Any, axes: list[int]) -> Any:
            return y if axes == list(range(rank)) else self._emit(op.permute_dims(y, axes))

        moved = Pair(move(x.real, order), move(x.imag, order))
        done = self.last(moved, [shape[a] for a in order], sign)
        return Pair(move(done.real, back), move(done.imag, back))

    def last(self, x: Pair, shape: list[Any], sign: int) -> Pair:
        """Transform along the last axis."""
        *front, n = shape
        static([n])
        if n == 1:
            return x
        first = _factor(n)
        if first == n:
            return self._direct(x, n, sign)
        second = n // first
        split = [*front, first, second]
        rank = len(front)
        swap = [*range(rank), rank + 1, rank]
        swapped = [*front, second, first]

        def both(f: Any, y: Pair) -> Pair:
            return Pair(self._emit(f(y.real)), self._emit(f(y.imag)))

        x = both(lambda y: op.permute_dims(self._emit(op.reshape(y, split)), swap), x)
        x = self.last(x, swapped, sign)  # [j2, k1]
        twiddle = _roots(second, first, n, sign)
        cosine, sine = self._const(twiddle.real), self._const(twiddle.imag)
        real = op.subtract(op.multiply(x.real, cosine), op.multiply(x.imag, sine))
        imag = op.add(op.multiply(x.real, sine), op.multiply(x.imag, cosine))
        x = Pair(self._emit(real), self._emit(imag))
        x = both(lambda y: op.permute_dims(y, swap), x)  # [k1, j2]
        x = self.last(x, split, sign)  # [k1, k2]
        return both(lambda y: op.reshape(self._emit(op.permute_dims(y, swap)), shape), x)

    def _direct(self, x: Pair, n: int, sign: int) -> Pair:
        w = _roots(n, n, n, sign)
        matrix = np.block([[w.real, w.imag], [-w.imag, w.real]])
        joined = self._emit(op.concat([x.real, x.imag], -1))
        return self.halves(self._emit(op.matmul(joined, self._const(matrix))), n)

    def halves(self, joined: Any, n: int) -> Pair:
        """Take the parts of ``[re | im]``."""
        axis = len(_shape(joined)) - 1
        parts = [op.strided_slice(joined, [axis], [n * i], [n * (i + 1)]) for i in (0, 1)]
        return Pair(*map(self._emit, parts))

    def of_reals(self, x: Any, n: int, count: int, sign: int) -> Pair:
        """Transform real tensors along the last axis; returns the first ``count`` values."""
        if _factor(n) == n:
            w = _roots(n, count, n, sign)
            matrix = np.concatenate([w.real, w.imag], 1)
            return self.halves(self._emit(op.matmul(x, self._const(matrix))), count)
        done = self.last(Pair(x, self._emit(op.zeros_like(x))), _shape(x), sign)
        return self._head(done, count)

    def to_reals(self, x: Pair, n: int, sign: int) -> Any:
        """Transform the half ``x`` of a hermitian sequence of ``n`` values to reals."""
        count = n // 2 + 1
        x = self._head(x, count)
        if _factor(n) == n:
            weight = np.full(count, 2.0)
            weight[0] = 1
            if n % 2 == 0:
                weight[-1] = 1
            w = _roots(count, n, n, sign) * weight[:, None]
            matrix = np.concatenate([w.real, -w.imag], 0)
            joined = self._emit(op.concat([x.real, x.imag], -1))
            return self._emit(op.matmul(joined, self._const(matrix)))
        axis = len(_shape(x.real)) - 1
        places = relax.const(np.arange(n - count, 0, -1), "int64")
        tail = [self._emit(op.take(y, places, axis)) for y in (x.real, x.imag)]
        # What a hermitian sequence has no imaginary part of does not count.
        keeps = np.ones(count)
        keeps[[0, -1] if n % 2 == 0 else [0]] = 0
        imag = self._emit(op.multiply(x.imag, self._const(keeps)))
        real = self._emit(op.concat([x.real, tail[0]], axis))
        imag = self._emit(op.concat([imag, self._emit(op.negative(tail[1]))], axis))
        return self.last(Pair(real, imag), _shape(real), sign).real

    def _head(self, x: Pair, count: int) -> Pair:
        axis = len(_shape(x.real)) - 1
        extent = _shape(x.real)[axis]
        if extent == count:
            return x
        if extent < count:
            width = [0, 0] * axis + [0, count - extent]
            return Pair(*(self._emit(op.nn.pad(y, width)) for y in (x.real, x.imag)))
        parts = (op.strided_slice(y, [axis], [0], [count]) for y in (x.real, x.imag))
        return Pair(*map(self._emit, parts))

    def _const(self, values: np.ndarray) -> Any:
        return relax.const(np.ascontiguousarray(values), self._dtype)


def _shape(x: Any) -> list[Any]:
    return [int(e) if hasattr(e, "value") else e for e in x.ty.shape]


def _count(fake: Any, axes: Sequence[int]) -> int:
    return math.prod(static([fake.shape[a] for a in axes]))


def _factor(n: int) -> int:
    """Return the factor to split off: the largest up to the root, or n for a single product."""
    if n <= _DIRECT:
        return n
    factor = next((f for f in range(math.isqrt(n), 1, -1) if n % f == 0), n)
    if factor == n and n > _LARGEST_FACTOR:
        raise Unsupported(f"of length {n}", "pad to a length whose prime factors are small")
    return factor


def _normalized(call: Call, x: Any, count: int) -> Any:
    scale = {0: 1.0, 1: 1 / math.sqrt(count), 2: 1 / count}[call["normalization"]]
    if scale == 1:
        return x
    parts = (x.real, x.imag) if isinstance(x, Pair) else (x,)
    dtype = real_name_of(call.out.dtype)
    done = [call.emit(op.multiply(y, relax.const(scale, dtype))) for y in parts]
    return Pair(*done) if isinstance(x, Pair) else done[0]


def _axes(call: Call) -> list[int]:
    rank = len(call.meta("self").shape)
    return [d % rank for d in call["dim"]]


@COMPLEX.register("_fft_c2c")
def complex_to_complex(call: Call) -> Any:
    """Transform complex tensors along axes."""
    dtype = real_name_of(call.out.dtype)
    x, sign = pair_of(call, call["self"], dtype), -1 if call["forward"] else 1
    axes, transform = _axes(call), Transform(call, dtype)
    count = _count(call.meta("self"), axes)
    for axis in axes:
        x = transform.along(x, axis, sign)
    return _normalized(call, x, count)


def _last(call: Call, x: Any, axis: int) -> tuple[Any, list[int]]:
    rank = len(_shape(x))
    order = [a for a in range(rank) if a != axis] + [axis]
    back = sorted(range(rank), key=lambda place: order[place])
    return (x if axis == rank - 1 else call.emit(op.permute_dims(x, order))), back


@COMPLEX.register("_fft_r2c")
def real_to_complex(call: Call) -> Any:
    """Transform real tensors; one-sided without the conjugate half along the last of the axes."""
    dtype = real_name_of(call.out.dtype)
    fake, axes = call.meta("self"), _axes(call)
    count = _count(fake, axes)
    *rest, axis = axes
    n = fake.shape[axis]
    x, back = _last(call, call.tensor("self", dtype), axis)
    transform = Transform(call, dtype)
    y = transform.of_reals(x, n, n // 2 + 1 if call["onesided"] else n, -1)
    y = Pair(*(call.emit(op.permute_dims(part, back)) for part in (y.real, y.imag)))
    for other in rest:
        y = transform.along(y, other, -1)
    return _normalized(call, y, count)


@COMPLEX.register("_fft_c2r")
def complex_to_real(call: Call) -> Any:
    """Transform the half of hermitian tensors back to reals."""
    dtype, axes = call.dtype, _axes(call)
    *rest, axis = axes
    x, n = pair_of(call, call["self"], dtype), call["last_dim_size"]
    transform = Transform(call, dtype)
    for other in rest:
        x = transform.along(x, other, 1)
    real, back = _last(call, x.real, axis)
    imag, _ = _last(call, x.imag, axis)
    y = transform.to_reals(Pair(real, imag), n, 1)
    y = call.emit(op.permute_dims(y, back))
    return _normalized(call, y, _count(call.out, axes))
