"""Running sums and products as one PrimFunc, on a GPU none of TVM's.

Sums of types that threads exchange are prefix sums, along the last axis on a GPU, which transposes,
sums along rows and transposes back for other axes; along any axis on a CPU. TVM's own way on a GPU
is a kernel over matrices of unknown size with a workspace and a second launch for each factor of
512 in a row, between reshapes; its serial form leaves the schedule open.

TVM's other scans of a GPU, of products and along other axes, read what other threads of their block
write with no barrier between (the interpreter of AMD code finds it). Here a thread goes along a
line instead:

    for each line, in parallel:
        total = 0, or 1
        for i along the line:
            total = total + x[i], or total * x[i];  y[i] = total

So do products of floating-point numbers overflow, vanish and round as in this order: of
``0, 1e30, 1e30`` the product of the last two is infinite, and 0 times it no number.
"""

from typing import Any

from tvm import relax, te, tirx, topi
from tvm.target import Target

from ....core.tir.loops import index
from ....core.tir.task_kernel import Extents, Local, loop, store, task_kernel

NAME = "relax.cumsum"
PRODUCT = "relax.cumprod"
SCANS = (NAME, PRODUCT)
#: Of which threads exchange values.
TYPES = frozenset({"float32", "float16", "bfloat16", "float64", "int32", "int64"})


def cumsum(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Compute the inclusive or exclusive prefix sum along an axis."""
    attrs = call.attrs

    def compute(x: te.Tensor) -> te.Tensor:
        axis = len(x.shape) - 1 if attrs.axis is None else int(attrs.axis) % len(x.shape)
        return topi.cumsum(x, axis, str(call.ty.dtype.dtype), bool(attrs.exclusive))

    return bb.call_te(compute, call.args[0], primfunc_name_hint="cumsum")


def along_lines(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Compute the running sum or product of each line in one thread."""
    attrs, is_product = call.attrs, str(call.op.name) == PRODUCT
    shape = list(call.args[0].ty.shape.values)
    axis, dtype = int(attrs.axis or 0) % len(shape), str(call.ty.dtype.dtype)

    def body(*given: Any) -> None:
        *line, x, y = given
        total = Local(dtype, tirx.const(1 if is_product else 0, dtype))
        with loop(0, index(x.shape[axis])) as k:
            at = [*line[:axis], k, *line[axis:]]
            if attrs.exclusive:
                store(y, at, total.value)
            value = tirx.Cast(dtype, x[tuple(at)])
            total.set(total.value * value if is_product else total.value + value)
            if not attrs.exclusive:
                store(y, at, total.value)

    own = Extents()
    extents = own.of(shape)
    tasks = [extent for i, extent in enumerate(extents) if i != axis]
    types = [(extents, str(call.args[0].ty.dtype.dtype)), (extents, dtype)]
    name = "cumprod" if is_product else "cumsum"
    func = task_kernel(name, tasks, types[:1], types[1:], body)
    return relax.call_tir(bb.add_func(func, name), list(call.args), out_ty=call.ty)


def runs_along_lines(call: relax.Call) -> bool:
    """Tell whether a thread goes along each line: on a GPU, where there is no prefix sum."""
    return _is_on_gpu() and _has_shape(call) and not (str(call.op.name) == NAME and _is_known(call))


def has_kernel(call: relax.Call) -> bool:
    """Whether a running sum goes along an axis and over types that kernels of the target know."""
    target = Target.current(allow_none=True)
    is_cpu = target is not None and target.kind.name == "llvm"
    axis, rank = call.attrs.axis, call.args[0].ty.ndim
    return (is_last(axis, rank) or (is_cpu and axis is not None)) and _is_known(call)


def is_rearranged(call: relax.Call) -> bool:
    """Tell whether a GPU scans another arrangement of a tensor: see :func:`rearranged`."""
    if str(call.op.name) not in SCANS or not _is_on_gpu() or not _has_shape(call):
        return False
    if is_last(call.attrs.axis, call.args[0].ty.ndim):
        return False
    return call.attrs.axis is None or not runs_along_lines(call)


def rearranged(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Transpose, sum along rows and transpose back; without an axis, a tensor is flattened."""
    x = call.args[0]
    if call.attrs.axis is None:
        return _along_rows(builder.emit(relax.op.flatten(x)), call)
    axis = int(call.attrs.axis) % x.ty.ndim
    order = [*(i for i in range(x.ty.ndim) if i != axis), axis]
    rows = builder.emit(relax.op.permute_dims(x, order))
    back = [order.index(i) for i in range(x.ty.ndim)]
    return relax.op.permute_dims(builder.emit(_along_rows(rows, call)), back)


def _along_rows(x: relax.Expr, call: relax.Call) -> relax.Call:
    scan = relax.op.cumprod if str(call.op.name) == PRODUCT else relax.op.cumsum
    return scan(x, -1, str(call.ty.dtype.dtype), bool(call.attrs.exclusive))


def _is_on_gpu() -> bool:
    target = Target.current(allow_none=True)
    return target is not None and "gpu" in target.keys


def _has_shape(call: relax.Call) -> bool:
    ty = call.args[0].ty
    return ty.ndim > 0 and isinstance(ty.shape, relax.ShapeExpr)


def _is_known(call: relax.Call) -> bool:
    ty = call.args[0].ty
    if not _has_shape(call):
        return False
    if any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in ty.shape.values):
        return False
    return {str(t.dtype.dtype) for t in (ty, call.ty)} <= TYPES


def is_last(axis: int | None, rank: int) -> bool:
    """Whether an axis is a tensor's last one; without an axis, a tensor is a single row."""
    return rank == 1 if axis is None else int(axis) in (-1, rank - 1)
