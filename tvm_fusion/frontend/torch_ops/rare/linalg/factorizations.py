"""Convert LU and Cholesky factorizations, and determinants."""

from typing import Any

from tvm import relax, tirx

from .....core.tir.loops import index
from .....core.tir.task_kernel import Local, loop, store, when
from ....registry import Unsupported
from ...call import Call, name_of, static
from ..registry import REAL
from .matrices import Batch, copy, place_of_largest, swap_rows, tell_unchecked

op = relax.op


def lu(call: Call, a: Any, shape: list[int], dtype: str, pivots: bool = True) -> list[Any]:
    """Factorize ``P A = L U`` with the largest pivot of each column.

    Returns
    -------
    list of relax.Expr
        L and U in one matrix, the rows exchanged (from 1), and the first zero pivot (from 1) or 0.
    """
    *front, m, n = shape
    batch, count = Batch(call, front), min(m, n)

    def body(b: Any, a: Any, lu: Any, rows: Any, info: Any) -> None:
        copy(a, lu, b, m, n)
        store(info, [b], 0)
        with loop(0, count) as k:
            place = place_of_largest(lu, b, k, k, m, dtype) if pivots else Local("int64", k)
            store(rows, [b, k], tirx.Cast("int32", place.value + index(1)))
            swap_rows(lu, b, k, place.value, n, dtype)
            pivot = Local(dtype, lu[b, k, k])
            with when(tirx.all(pivot.value == tirx.const(0, dtype), info[b] == 0)):
                store(info, [b], tirx.Cast("int32", k + index(1)))
            with when(pivot.value != tirx.const(0, dtype)), loop(k + index(1), m) as i:
                factor = Local(dtype, lu[b, i, k] / pivot.value)
                store(lu, [b, i, k], factor.value)
                with loop(k + index(1), n) as j:
                    store(lu, [b, i, j], lu[b, i, j] - factor.value * lu[b, k, j])

    outputs = [([m, n], dtype), ([count], "int32"), ([], "int32")]
    return batch.emit("lu", [batch.flat(a, m, n)], outputs, body)


@REAL.register("linalg_lu_factor_ex")
def lu_factor(call: Call) -> Any:
    """Factorize by LU."""
    call.raw("check_errors")
    shape, dtype = static(call.meta("A").shape), name_of(call.meta("A").dtype)
    return tuple(lu(call, call.tensor("A"), shape, dtype, call["pivot"]))


@REAL.register("linalg_lu")
def lu_of(call: Call) -> Any:
    """Factorize into a permutation and two triangles."""
    shape, dtype = static(call.meta("A").shape), name_of(call.meta("A").dtype)
    if not call["pivot"]:
        raise Unsupported("without pivots", "leave pivot at its default")
    both, rows, _ = lu(call, call.tensor("A"), shape, dtype)
    return _unpacked(call, both, rows, shape, dtype)


@REAL.register("lu_unpack")
def lu_unpack(call: Call) -> Any:
    """Take a factorization apart."""
    shape, dtype = static(call.meta("LU_data").shape), name_of(call.meta("LU_data").dtype)
    p, lower, upper = _unpacked(
        call, call.tensor("LU_data"), call.tensor("LU_pivots"), shape, dtype
    )
    empty = call.emit(op.zeros([0], dtype))
    if not call["unpack_data"]:
        lower = upper = empty
    return (p if call["unpack_pivots"] else empty), lower, upper


def _unpacked(call: Call, both: Any, rows: Any, shape: list[int], dtype: str) -> Any:
    *front, m, n = shape
    batch, count = Batch(call, front), min(m, n)

    def body(b: Any, both: Any, rows: Any, p: Any, lower: Any, upper: Any) -> None:
        zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
        with loop(0, m) as i, loop(0, m) as j:
            store(p, [b, i, j], tirx.Select(i == j, one, zero))
        # The exchanges, undone from the last on, are those of the identity's rows.
        with loop(0, count) as step:
            k = index(count - 1) - step
            place = Local("int64", tirx.Cast("int64", rows[b, k]) - index(1))
            swap_rows(p, b, k, place.value, m, dtype)
        with loop(0, m) as i, loop(0, count) as j:
            below = tirx.Select(i > j, both[b, i, j], tirx.Select(i == j, one, zero))
            store(lower, [b, i, j], below)
        with loop(0, count) as i, loop(0, n) as j:
            store(upper, [b, i, j], tirx.Select(i <= j, both[b, i, j], zero))

    outputs = [([m, m], dtype), ([m, count], dtype), ([count, n], dtype)]
    inputs = [batch.flat(both, m, n), batch.flat(rows, count)]
    return tuple(batch.emit("lu_unpack", inputs, outputs, body))


def _diagonal_product(call: Call, both: Any, rows: Any, shape: list[int], dtype: str) -> list[Any]:
    """Return the determinant, its sign and the logarithm of its magnitude."""
    *front, n, _ = shape
    batch = Batch(call, front)

    def body(b: Any, both: Any, rows: Any, det: Any, sign: Any, log: Any) -> None:
        zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
        product, parity, total = Local(dtype, one), Local(dtype, one), Local(dtype, zero)
        with loop(0, n) as k:
            value = Local(dtype, both[b, k, k])
            with when(tirx.Cast("int64", rows[b, k]) != k + index(1)):
                product.set(-product.value)
                parity.set(-parity.value)
            product.set(product.value * value.value)
            with when(value.value < zero):
                parity.set(-parity.value)
            with when(value.value == zero):
                parity.set(zero)
            total.set(total.value + tirx.log(tirx.abs(value.value)))
        store(det, [b], product.value)
        store(sign, [b], parity.value)
        store(log, [b], total.value)

    if n == 0:
        ones = call.emit(op.ones(front, dtype))
        return [ones, ones, call.emit(op.zeros(front, dtype))]
    inputs = [batch.flat(both, n, n), batch.flat(rows, n)]
    return batch.emit("determinant", inputs, [([], dtype)] * 3, body)


@REAL.register("_linalg_det")
def determinant(call: Call) -> Any:
    """Multiply the pivots."""
    shape, dtype = static(call.meta("A").shape), name_of(call.meta("A").dtype)
    both, rows, _ = lu(call, call.tensor("A"), shape, dtype)
    return _diagonal_product(call, both, rows, shape, dtype)[0], both, rows


@REAL.register("_linalg_slogdet")
def log_determinant(call: Call) -> Any:
    """Add the logarithms of the pivots."""
    shape, dtype = static(call.meta("A").shape), name_of(call.meta("A").dtype)
    both, rows, _ = lu(call, call.tensor("A"), shape, dtype)
    _, sign, log = _diagonal_product(call, both, rows, shape, dtype)
    return sign, log, both, rows


@REAL.register("linalg_cholesky_ex", "cholesky")
def cholesky(call: Call) -> Any:
    """Factorize ``A = L L^T``; of ``cholesky`` a matrix that is not positive is not told."""
    if "check_errors" in call:
        call.raw("check_errors")
        tell_unchecked(call)
    fake = call.meta("self")
    shape, dtype = static(fake.shape), name_of(fake.dtype)
    *front, n, _ = shape
    batch, is_upper = Batch(call, front), call["upper"]

    def body(b: Any, a: Any, lower: Any, info: Any) -> None:
        zero = tirx.const(0, dtype)

        def at(i: Any, j: Any) -> list[Any]:
            return [b, j, i] if is_upper else [b, i, j]

        with loop(0, n) as i, loop(0, n) as j:
            store(lower, [b, i, j], zero)
        store(info, [b], 0)
        with loop(0, n) as j:
            total = Local(dtype, a[tuple(at(j, j))])
            with loop(0, j) as k:
                value = lower[tuple(at(j, k))]
                total.set(total.value - value * value)
            with when(tirx.all(tirx.Not(total.value > zero), info[b] == 0)):
                store(info, [b], tirx.Cast("int32", j + index(1)))
            pivot = Local(dtype, tirx.sqrt(total.value))
            store(lower, at(j, j), pivot.value)
            with loop(j + index(1), n) as i:
                rest = Local(dtype, a[tuple(at(i, j))])
                with loop(0, j) as k:
                    rest.set(rest.value - lower[tuple(at(i, k))] * lower[tuple(at(j, k))])
                store(lower, at(i, j), rest.value / pivot.value)

    outputs = [([n, n], dtype), ([], "int32")]
    results = batch.emit("cholesky", [batch.flat(call.tensor("self"), n, n)], outputs, body)
    return tuple(results) if isinstance(call.out, list | tuple) else results[0]
