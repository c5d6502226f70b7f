"""Convert singular values, eigenvalues of symmetric matrices, and pseudoinverses.

One-sided Jacobi rotations: pairs of columns are turned until all are orthogonal to each other.

    for each sweep, for each pair of columns p, q of W = A V:
        turn both, and those of V, by the angle that makes W[:, p] . W[:, q] zero
    singular values: the lengths of W's columns

Vectors have any sign, and any basis where values are equal: they are refused.
"""

from typing import Any

from tvm import relax, tirx

from .....core.tir.loops import index
from .....core.tir.task_kernel import Local, loop, store, when
from ....registry import Unsupported
from ....tensor_types import dtype_of
from ...call import Call, name_of, static
from ..registry import REAL
from .matrices import Batch

op = relax.op

_WIDE = "float64"
#: Convergence is quadratic; 8 sweeps do for matrices of some hundreds of columns.
_SWEEPS = 14


def _f(value: float) -> Any:
    return tirx.const(value, _WIDE)


def _rotate(matrix: Any, b: Any, p: Any, q: Any, rows: int, c: Any, s: Any) -> None:
    with loop(0, rows) as i:
        one, other = Local(_WIDE, matrix[b, i, p]), Local(_WIDE, matrix[b, i, q])
        store(matrix, [b, i, p], c * one.value - s * other.value)
        store(matrix, [b, i, q], s * one.value + c * other.value)


def orthogonalized(call: Call, a: Any, shape: list[int]) -> list[Any]:
    """Return ``W = A V`` with orthogonal columns, and the orthogonal V, in float64."""
    *front, m, n = shape
    batch = Batch(call, front)

    def body(b: Any, a: Any, w: Any, v: Any) -> None:
        with loop(0, m) as i, loop(0, n) as j:
            store(w, [b, i, j], a[b, i, j])
        with loop(0, n) as i, loop(0, n) as j:
            store(v, [b, i, j], tirx.Select(i == j, _f(1), _f(0)))
        with loop(0, _SWEEPS), loop(0, n) as p, loop(p + index(1), n) as q:
            alpha, beta, gamma = Local(_WIDE, 0.0), Local(_WIDE, 0.0), Local(_WIDE, 0.0)
            with loop(0, m) as i:
                alpha.set(alpha.value + w[b, i, p] * w[b, i, p])
                beta.set(beta.value + w[b, i, q] * w[b, i, q])
                gamma.set(gamma.value + w[b, i, p] * w[b, i, q])
            # Columns of zeros, and what is orthogonal already, stay.
            small = _f(1e-32) * alpha.value * beta.value
            with when(gamma.value * gamma.value > small):
                zeta = Local(_WIDE, (beta.value - alpha.value) / (_f(2) * gamma.value))
                size = tirx.abs(zeta.value) + tirx.sqrt(_f(1) + zeta.value * zeta.value)
                t = Local(_WIDE, tirx.Select(zeta.value < _f(0), _f(-1), _f(1)) / size)
                c = Local(_WIDE, _f(1) / tirx.sqrt(_f(1) + t.value * t.value))
                s = Local(_WIDE, c.value * t.value)
                _rotate(w, b, p, q, m, c.value, s.value)
                _rotate(v, b, p, q, n, c.value, s.value)

    outputs = [([m, n], _WIDE), ([n, n], _WIDE)]
    return batch.emit("jacobi", [batch.flat(call.cast(a, _WIDE), m, n)], outputs, body)


def _lengths(call: Call, w: Any) -> Any:
    squares = call.emit(op.sum(op.multiply(w, w), [-2]))
    return call.emit(op.sqrt(squares))


def _tall(call: Call, a: Any, shape: list[int]) -> tuple[Any, list[int], bool]:
    *front, m, n = shape
    if m >= n:
        return a, shape, False
    rank = len(shape)
    swap = [*range(rank - 2), rank - 1, rank - 2]
    return call.emit(op.permute_dims(a, swap)), [*front, n, m], True


@REAL.register("_linalg_svd")
def singular_values(call: Call) -> Any:
    """Find singular values, the largest first."""
    if call.is_used(0) or call.is_used(2):
        raise Unsupported(
            "with singular vectors", "compute them outside of the model, or use linalg.svdvals"
        )
    for name in ("full_matrices", "compute_uv", "driver"):
        call.raw(name)
    shape, dtype = static(call.meta("A").shape), name_of(call.meta("A").dtype)
    out = static(call.out[1].shape)
    if 0 in out or 0 in shape:
        return None, call.emit(op.zeros(out, dtype)), None
    a, shape, _ = _tall(call, call.tensor("A"), shape)
    w, _ = orthogonalized(call, a, shape)
    values = call.emit(op.sort(_lengths(call, w), -1, True))
    return None, call.cast(values, dtype), None


def _symmetric(call: Call, a: Any, shape: list[int], is_lower: bool) -> tuple[Any, Any]:
    """Return the symmetric matrix of one triangular part, and the identity."""
    n, rank = shape[-1], len(shape)
    half = call.emit((op.tril if is_lower else op.triu)(a, 0))
    mirrored = call.emit(op.permute_dims(half, [*range(rank - 2), rank - 1, rank - 2]))
    eye = call.emit(op.eye(n, n, 0, dtype_of(a)))
    once = call.emit(op.multiply(half, eye))
    return call.emit(op.subtract(op.add(half, mirrored), once)), eye


@REAL.register("_linalg_eigh")
def eigenvalues(call: Call) -> Any:
    """Find the eigenvalues of symmetric matrices, the smallest first.

    They are those of the positive definite ``A + c I``, less c, where c is above the largest
    magnitude: its singular values are its eigenvalues.
    """
    call.raw("compute_v")
    if call.is_used(1):
        raise Unsupported(
            "with eigenvectors", "compute them outside of the model, or use linalg.eigvalsh"
        )
    shape, dtype = static(call.meta("A").shape), name_of(call.meta("A").dtype)
    out = static(call.out[0].shape)
    if 0 in out:
        return call.emit(op.zeros(out, dtype)), None
    whole, eye = _symmetric(call, call.tensor("A", _WIDE), shape, call["UPLO"] == "L")
    bound = call.emit(op.max(op.sum(op.abs(whole), [-1], keepdims=True), [-2], keepdims=True))
    bound = call.emit(op.multiply(bound, relax.const(1.5, _WIDE)))
    shifted = call.emit(op.add(whole, op.multiply(eye, bound)))
    w, _ = orthogonalized(call, shifted, shape)
    values = call.emit(op.sort(_lengths(call, w), -1, False))
    values = call.emit(op.subtract(values, op.reshape(bound, [*out[:-1], 1])))
    return call.cast(values, dtype), None


@REAL.register("linalg_pinv.atol_rtol_tensor", "linalg_pinv.atol_rtol_float")
def pseudoinverse(call: Call) -> Any:
    """Invert on the singular vectors whose values are above a tolerance: ``V S^-2 W^T``."""
    fake = call.meta("self")
    shape, dtype = static(fake.shape), call.dtype
    if 0 in shape:
        return op.zeros(call.shape(), dtype)
    a = call.tensor("self")
    if call["hermitian"]:
        a, _ = _symmetric(call, a, shape, True)
    a, tall, is_transposed = _tall(call, a, shape)
    w, v = orthogonalized(call, a, tall)
    length = _lengths(call, w)
    largest = call.emit(op.max(length, [-1], keepdims=True))

    def limit(name: str, default: float) -> Any:
        given = call[name]
        if given is None:
            return relax.const(default, _WIDE)
        value = call.as_tensor(given, _WIDE)
        return call.emit(op.expand_dims(value, -1)) if value.ty.ndim else value

    resolution = 2.0**-52 if dtype == "float64" else 2.0**-23
    rtol = max(shape[-2:]) * resolution if call.raw("atol") is None else 0.0
    bound = op.maximum(limit("atol", 0.0), op.multiply(limit("rtol", rtol), largest))
    keeps = call.emit(op.greater(length, bound))
    one, zero = relax.const(1, _WIDE), relax.const(0, _WIDE)
    square = op.where(keeps, op.multiply(length, length), one)
    weight = call.emit(op.where(keeps, op.divide(one, square), zero))
    scaled = call.emit(op.multiply(v, op.expand_dims(weight, -2)))
    rank = len(shape)
    swap = [*range(rank - 2), rank - 1, rank - 2]
    result = call.emit(op.matmul(scaled, op.permute_dims(w, swap)))
    result = call.emit(op.permute_dims(result, swap)) if is_transposed else result
    return call.cast(result, dtype)
