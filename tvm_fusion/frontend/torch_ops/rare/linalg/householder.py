"""Convert QR factorizations: Householder reflections, as LAPACK stores and applies them."""

from typing import Any

from tvm import relax, tirx

from .....core.tir.loops import index
from .....core.tir.task_kernel import Local, loop, store, when
from ...call import Call, name_of, static
from ..registry import REAL
from .matrices import Batch, copy

op = relax.op


def householder(call: Call, a: Any, shape: list[int], dtype: str) -> list[Any]:
    """Factorize by reflections ``I - tau v v^T``, as LAPACK's geqrf stores them."""
    *front, m, n = shape
    batch, count = Batch(call, front), min(m, n)

    def body(b: Any, a: Any, qr: Any, tau: Any) -> None:
        zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
        copy(a, qr, b, m, n)
        with loop(0, count) as k:
            below = Local(dtype, zero)
            with loop(k + index(1), m) as i:
                below.set(below.value + qr[b, i, k] * qr[b, i, k])
            alpha, factor = Local(dtype, qr[b, k, k]), Local(dtype, zero)
            with when(below.value > zero):
                size = tirx.sqrt(alpha.value * alpha.value + below.value)
                beta = Local(dtype, tirx.Select(alpha.value > zero, -size, size))
                factor.set((beta.value - alpha.value) / beta.value)
                scale = Local(dtype, one / (alpha.value - beta.value))
                with loop(k + index(1), m) as i:
                    store(qr, [b, i, k], qr[b, i, k] * scale.value)
                store(qr, [b, k, k], beta.value)
            store(tau, [b, k], factor.value)
            with loop(k + index(1), n) as j:
                total = Local(dtype, qr[b, k, j])
                with loop(k + index(1), m) as i:
                    total.set(total.value + qr[b, i, k] * qr[b, i, j])
                total.set(total.value * factor.value)
                store(qr, [b, k, j], qr[b, k, j] - total.value)
                with loop(k + index(1), m) as i:
                    store(qr, [b, i, j], qr[b, i, j] - total.value * qr[b, i, k])

    outputs = [([m, n], dtype), ([count], dtype)]
    return batch.emit("householder", [batch.flat(a, m, n)], outputs, body)


def reflected(
    call: Call,
    vectors: Any,
    tau: Any,
    x: Any,
    front: list[int],
    sizes: tuple[int, int, int, int],
    dtype: str,
    is_forward: bool,
) -> Any:
    """Apply reflections to the rows of ``x``, from the first on or from the last.

    ``sizes`` are the rows and columns of ``vectors``, the number of reflections and the columns of
    ``x``.
    """
    m, width, count, columns = sizes
    batch = Batch(call, front)

    def body(b: Any, v: Any, tau: Any, x: Any, y: Any) -> None:
        copy(x, y, b, m, columns)
        with loop(0, count) as step:
            k = step if is_forward else index(count - 1) - step
            with loop(0, columns) as j:
                total = Local(dtype, y[b, k, j])
                with loop(k + index(1), m) as i:
                    total.set(total.value + v[b, i, k] * y[b, i, j])
                total.set(total.value * tau[b, k])
                store(y, [b, k, j], y[b, k, j] - total.value)
                with loop(k + index(1), m) as i:
                    store(y, [b, i, j], y[b, i, j] - total.value * v[b, i, k])

    if count == 0:
        return call.emit(op.broadcast_to(x, [*front, m, columns]))
    inputs = [batch.flat(vectors, m, width), batch.flat(tau, count), batch.flat(x, m, columns)]
    return batch.emit("reflections", inputs, [([m, columns], dtype)], body)[0]


@REAL.register("geqrf")
def geqrf(call: Call) -> Any:
    """Factorize by reflections."""
    shape, dtype = static(call.meta("self").shape), name_of(call.meta("self").dtype)
    return tuple(householder(call, call.tensor("self"), shape, dtype))


@REAL.register("linalg_householder_product")
def householder_product(call: Call) -> Any:
    """Multiply reflections: apply them to the first columns of the identity."""
    *front, m, n = static(call.meta("input").shape)
    count = static(call.meta("tau").shape)[-1]
    eye = call.emit(op.eye(m, n, 0, call.dtype))
    tensors = call.tensor("input"), call.tensor("tau")
    return reflected(call, *tensors, eye, front, (m, n, count, n), call.dtype, False)


@REAL.register("ormqr")
def ormqr(call: Call) -> Any:
    """Multiply a matrix by the orthogonal one that reflections make."""
    *front, rows, width = static(call.meta("self").shape)
    count = static(call.meta("input2").shape)[-1]
    x, transposed = call.tensor("input3"), call["transpose"]
    *_, m, n = static(call.meta("input3").shape)
    swap = [*range(len(front)), len(front) + 1, len(front)]
    is_left = call["left"]
    if not is_left:  # X Q = (Q^T X^T)^T
        x, (m, n) = call.emit(op.permute_dims(x, swap)), (n, m)
    tensors = call.tensor("self"), call.tensor("input2")
    sizes = (rows, width, count, n)
    y = reflected(call, *tensors, x, front, sizes, call.dtype, transposed == is_left)
    return y if is_left else call.emit(op.permute_dims(y, swap))


@REAL.register("linalg_qr")
def qr(call: Call) -> Any:
    """Factorize ``A = Q R`` with the signs of LAPACK."""
    fake, mode = call.meta("A"), call["mode"]
    shape, dtype = static(fake.shape), name_of(fake.dtype)
    *front, m, n = shape
    both, tau = householder(call, call.tensor("A"), shape, dtype)
    count = min(m, n)
    rows = m if mode == "complete" else count
    r = call.emit(op.triu(both, 0)) if m and n else both
    if rows < m:
        r = call.emit(op.strided_slice(r, [len(front)], [0], [rows]))
    if mode == "r":
        return call.emit(op.zeros([0], dtype)), r
    eye = call.emit(op.eye(m, rows, 0, dtype))
    q = reflected(call, both, tau, eye, front, (m, n, count, rows), dtype, False)
    return q, r
