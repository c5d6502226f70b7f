"""Convert solutions of linear equations, inverses, and matrix exponentials."""

from typing import Any

from tvm import relax, tirx

from .....core.tir.loops import index
from .....core.tir.task_kernel import Local, loop
from ....registry import Unsupported
from ...call import Call, name_of, static
from ..registry import REAL
from .factorizations import lu
from .matrices import Batch, copy, swap_rows, tell_unchecked, triangular_solve

op = relax.op


def lu_solve(
    call: Call,
    both: Any,
    rows: Any,
    x: Any,
    front: list[int],
    n: int,
    columns: int,
    dtype: str,
    transposed: bool = False,
) -> Any:
    """Solve ``A X = B``, or ``A^T X = B``, by a factorization of A."""
    batch = Batch(call, front)

    def body(b: Any, lu: Any, rows: Any, given: Any, x: Any) -> None:
        copy(given, x, b, n, columns)

        def read(i: Any, j: Any) -> Any:
            return lu[b, j, i] if transposed else lu[b, i, j]

        def exchange(step: Any) -> None:
            k = index(n - 1) - step if transposed else step
            place = Local("int64", tirx.Cast("int64", rows[b, k]) - index(1))
            swap_rows(x, b, k, place.value, columns, dtype)

        if not transposed:
            with loop(0, n) as step:
                exchange(step)
        size = (b, n, columns, dtype)
        triangular_solve(read, x, *size, is_lower=True, is_unit=not transposed)
        triangular_solve(read, x, *size, is_lower=False, is_unit=transposed)
        if transposed:
            with loop(0, n) as step:
                exchange(step)

    inputs = [batch.flat(both, n, n), batch.flat(rows, n), batch.flat(x, n, columns)]
    return batch.emit("lu_solve", inputs, [([n, columns], dtype)], body)[0]


def _swapped(call: Call, x: Any) -> Any:
    rank = x.ty.ndim
    return call.emit(op.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2]))


@REAL.register("linalg_inv_ex")
def inverse(call: Call) -> Any:
    """Solve for the identity; a singular matrix gives infinities, and its number in ``info``."""
    call.raw("check_errors")
    tell_unchecked(call)
    shape, dtype = static(call.meta("A").shape), name_of(call.meta("A").dtype)
    *front, n, _ = shape
    both, rows, info = lu(call, call.tensor("A"), shape, dtype)
    eye = call.emit(op.eye(n, n, 0, dtype))
    return lu_solve(call, both, rows, eye, front, n, n, dtype), info


@REAL.register("_linalg_solve_ex")
def solve(call: Call) -> Any:
    """Solve ``A X = B`` or ``X A = B``."""
    call.raw("check_errors")
    tell_unchecked(call)
    a, b = call.meta("A"), call.meta("B")
    shape, dtype = static(a.shape), name_of(a.dtype)
    n = shape[-1]
    is_vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    x, of = call.tensor("B"), call.tensor("A")
    if is_vector:
        x = call.emit(op.expand_dims(x, b.ndim))
    is_left = call["left"]
    if not is_left:
        if is_vector:
            raise Unsupported("with a vector from the right", "give B as a matrix")
        of, x = _swapped(call, of), _swapped(call, x)
    columns = int(_extents(x)[-1])
    both, rows, info = lu(call, of, shape, dtype)
    out = static(call.out[0].shape)
    front = out[:-1] if is_vector else out[:-2]
    y = lu_solve(call, both, rows, x, front, n, columns, dtype)
    if not is_left:
        y = _swapped(call, y)
        both = both if not call.is_used(1) else _refuse_factors()
    return call.emit(op.reshape(y, out)), both, rows, info


def _refuse_factors() -> Any:
    raise Unsupported("with its factors used, from the right", "factorize by linalg.lu_factor")


def _extents(x: Any) -> list[int]:
    return [int(e) for e in x.ty.shape]


@REAL.register("linalg_lu_solve")
def solve_by_factors(call: Call) -> Any:
    """Solve by a given factorization."""
    dtype, out = call.dtype, static(call.out.shape)
    both, rows, x = call.tensor("LU"), call.tensor("pivots"), call.tensor("B")
    n, transposed = static(call.meta("LU").shape)[-1], call["adjoint"]
    if not call["left"]:  # X A = B is A^T X^T = B^T
        x, transposed = _swapped(call, x), not transposed
    columns = _extents(x)[-1]
    y = lu_solve(call, both, rows, x, out[:-2], n, columns, dtype, transposed)
    return y if call["left"] else _swapped(call, y)


def triangular(
    call: Call,
    t: Any,
    x: Any,
    front: list[int],
    n: int,
    columns: int,
    dtype: str,
    is_lower: bool,
    is_unit: bool = False,
    transposed: bool = False,
) -> Any:
    """Solve ``T X = B`` or ``T^T X = B`` for a triangular T."""
    batch = Batch(call, front)

    def body(b: Any, t: Any, given: Any, x: Any) -> None:
        copy(given, x, b, n, columns)

        def read(i: Any, j: Any) -> Any:
            return t[b, j, i] if transposed else t[b, i, j]

        is_first = is_lower != transposed
        triangular_solve(read, x, b, n, columns, dtype, is_lower=is_first, is_unit=is_unit)

    inputs = [batch.flat(t, n, n), batch.flat(x, n, columns)]
    return batch.emit("triangular_solve", inputs, [([n, columns], dtype)], body)[0]


@REAL.register("linalg_solve_triangular")
def solve_triangular(call: Call) -> Any:
    """Solve with a triangular matrix, from the left or the right."""
    t, x = call.tensor("self"), call.tensor("B")
    n, is_left = static(call.meta("self").shape)[-1], call["left"]
    front, dtype = static(call.out.shape)[:-2], call.dtype
    x = x if is_left else _swapped(call, x)
    lower, unit = not call["upper"], call["unitriangular"]
    columns = _extents(x)[-1]
    y = triangular(call, t, x, front, n, columns, dtype, lower, unit, transposed=not is_left)
    return y if is_left else _swapped(call, y)


@REAL.register("triangular_solve")
def old_triangular_solve(call: Call) -> Any:
    """Solve with a triangular matrix; the second result is the matrix itself."""
    t, x = call.tensor("A"), call.tensor("self")
    n, fake = static(call.meta("A").shape)[-1], call.out[0]
    front, dtype = static(fake.shape)[:-2], name_of(fake.dtype)
    lower, unit, is_transposed = not call["upper"], call["unitriangular"], call["transpose"]
    columns = _extents(x)[-1]
    y = triangular(call, t, x, front, n, columns, dtype, lower, unit, is_transposed)
    return y, call.emit(op.broadcast_to(t, [*front, n, n]))


@REAL.register("cholesky_solve")
def cholesky_solve(call: Call) -> Any:
    """Solve by the factor of ``A = L L^T``."""
    n, columns = static(call.out.shape)[-2:]
    front, upper = static(call.out.shape)[:-2], call["upper"]
    return _by_cholesky(call, call.tensor("input2"), call.tensor("self"), front, n, columns, upper)


@REAL.register("cholesky_inverse")
def cholesky_inverse(call: Call) -> Any:
    """Invert ``A = L L^T`` by its factor."""
    *front, n, _ = static(call.out.shape)
    eye = call.emit(op.eye(n, n, 0, call.dtype))
    return _by_cholesky(call, call.tensor("self"), eye, front, n, n, call["upper"])


def _by_cholesky(
    call: Call, factor: Any, x: Any, front: list[int], n: int, columns: int, upper: bool
) -> Any:
    size = (front, n, columns, call.dtype, not upper)
    y = triangular(call, factor, x, *size, transposed=upper)
    return triangular(call, factor, y, *size, transposed=not upper)


@REAL.register("linalg_matrix_exp")
def matrix_exponential(call: Call) -> Any:
    """Take the exponential: Taylor's polynomial of the matrix over 2^10, squared ten times.

    Of larger norms than 2^10 the polynomial loses digits before the squarings overflow anyway.
    """
    shape, dtype = static(call.out.shape), call.dtype
    n = shape[-1]
    if n == 0 or 0 in shape:
        return call.tensor("self")
    # In float64: squaring loses a digit every three times.
    x = call.tensor("self", "float64")
    eye = call.emit(op.eye(n, n, 0, "float64"))
    x = call.emit(op.multiply(x, relax.const(2.0**-10, "float64")))
    value = call.emit(op.broadcast_to(eye, shape))
    for k in range(12, 0, -1):
        step = call.emit(op.matmul(x, value))
        value = call.emit(op.add(eye, op.multiply(step, relax.const(1 / k, "float64"))))
    for _ in range(10):
        value = call.emit(op.matmul(value, value))
    return call.cast(value, dtype)
