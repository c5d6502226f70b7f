"""Sort numbers by integer keys of a total order (NaN included); bisect sorted rows.

TVM compares numbers with ``<``. Beside NaN that is no order at all: what stands before and behind
one is not sorted, and std::stable_sort has no defined behaviour. Its function for CPUs knows no
bfloat16, and integers of 8, 32 and 64 bits only. As in PyTorch, NaN is the largest of all here,
both zeros are equal, and equal ones keep their order:

    keys = the bits of x, negated below 0             elementwise, fused with what x comes from
    keys, places = sort, argsort or topk of keys      TVM's, of int32 or int64
    y = the number that has the key's bits            elementwise, fused with what reads y

What topk returns beside its places is read from x there, with the sign of its zeros.
"""

from collections.abc import Callable
from typing import Any

import tvm
from tvm import ir, relax, te, tirx
from tvm.target import Target

from ....core.tir.loops import index
from ....core.tir.task_kernel import Extents, Local, repeat_while, store, task_kernel
from .extrema import ordered

BUCKETIZE = "relax.bucketize"


def bucketize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Count the boundaries before each value, or with ``right`` up to it, by bisection.

        for each value, in parallel:
            low, high = 0, number of boundaries
            while low < high: keep the half that the value stands in
            y[value] = low

    TVM's own loop over values is a CPU's parallel one, which no GPU runs.
    """
    is_right = bool(call.attrs.right)

    def body(*given: Any) -> None:
        *at, values, boundaries, made = given
        low, high = Local("int64", 0), Local("int64", index(boundaries.shape[0]))
        with repeat_while(low.value < high.value):
            middle = Local("int64", (low.value + high.value) >> index(1))
            element = boundaries[middle.value]
            # One condition for both ends: TVM turns a negated ``>=`` into ``<``, and with NaN,
            # which stands behind all numbers, neither holds.
            is_behind = element > values[tuple(at)] if is_right else element >= values[tuple(at)]
            low.set(tirx.Select(is_behind, low.value, middle.value + index(1)))
            high.set(tirx.Select(is_behind, middle.value, high.value))
        store(made, at, tirx.Cast(str(made.dtype), low.value))

    own = Extents()
    types = [
        (own.of(ty.shape.values), str(ty.dtype.dtype))
        for ty in (*(arg.ty for arg in call.args), call.ty)
    ]
    *inputs, made = types
    func = task_kernel("bucketize", inputs[0][0], inputs, [made], body)
    return relax.call_tir(bb.add_func(func, "bucketize"), list(call.args), out_ty=call.ty)


_SORTS = ("relax.sort", "relax.argsort", "relax.topk")
_OF_FLOATS = {"float16": "int32", "bfloat16": "int32", "float32": "int32", "float64": "int64"}
#: Types that TVM's function for CPUs does not take, and a larger one that it does.
_OF_INTEGERS = {"int16": "int32", "uint16": "int32", "uint32": "int64"}


def takes_keys(call: relax.Call) -> bool:
    """Tell whether a call sorts what is to be sorted by keys of another type."""
    return str(call.op.name) in _SORTS and _key_type(call.args[0].ty) is not None


def sorted_by_keys(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Sort keys, and return the numbers that they stand for."""
    x = call.args[0]
    dtype, key_type = str(x.ty.dtype.dtype), _key_type(x.ty)

    def number(key: ir.Expr) -> ir.Expr:
        return _number(key, dtype)

    def numbers(sorted_keys: relax.Expr) -> relax.Expr:
        if dtype in _OF_INTEGERS:
            return relax.op.astype(sorted_keys, dtype)
        return _map(builder, number, sorted_keys, "sorted_numbers")

    if dtype in _OF_INTEGERS:
        keys = builder.emit(relax.op.astype(x, key_type))
    else:
        keys = builder.emit(_map(builder, _key, x, "sort_keys"))
    if isinstance(call.ty, relax.TupleType) and dtype in _OF_FLOATS:
        attrs = call.attrs
        options = {"largest": bool(attrs.largest), "dtype": str(call.ty.fields[1].dtype.dtype)}
        places = relax.op.topk(keys, int(attrs.k), int(attrs.axis), "indices", **options)
        places = builder.emit(places)
        values = relax.op.gather_elements(x, places, int(attrs.axis) % x.ty.ndim)
        return relax.Tuple([builder.emit(values), places])
    result = relax.Call(call.op, [keys], call.attrs, call.ty_args)
    if isinstance(call.ty, relax.TupleType):
        both = builder.emit(result)
        values, places = (builder.emit(relax.TupleGetItem(both, i)) for i in range(2))
        return relax.Tuple([builder.emit(numbers(values)), places])
    is_place = str(call.op.name) == "relax.argsort" or (
        str(call.op.name) == "relax.topk" and str(call.attrs.ret_type) == "indices"
    )
    return result if is_place else numbers(builder.emit(result))


def _key_type(ty: relax.Type) -> str | None:
    dtype = str(ty.dtype.dtype) if ty.dtype is not None else ""
    target = Target.current(allow_none=True)
    is_cpu = target is not None and target.kind.name == "llvm"
    return _OF_FLOATS.get(dtype) or (_OF_INTEGERS.get(dtype) if is_cpu else None)


def _map(
    builder: relax.BlockBuilder,
    function: Callable[[ir.Expr], ir.Expr],
    x: relax.Expr,
    name: str,
) -> relax.Expr:
    def compute(tensor: te.Tensor) -> te.Tensor:
        return te.compute(tensor.shape, lambda *i: function(tensor(*i)), name=name)

    return builder.call_te(compute, x, primfunc_name_hint=name)


def _key(number: ir.Expr) -> ir.Expr:
    return ordered(number, tirx.max_value)


def _number(key: ir.Expr, dtype: str) -> ir.Expr:
    """Return the number of a key: of NaN's a NaN, of both zeros' the positive one."""
    integer = str(key.ty.dtype)
    sign = tirx.shift_right(key, tirx.const(tvm.DataType(integer).bits - 1, integer))  # -1 or 0
    magnitude = tirx.bitwise_xor(key, sign) - sign
    bits = tirx.bitwise_or(magnitude, tirx.bitwise_and(sign, tirx.min_value(integer)))
    number = tirx.reinterpret("float64" if integer == "int64" else "float32", bits)
    return number if str(number.ty.dtype) == dtype else tirx.Cast(dtype, number)
