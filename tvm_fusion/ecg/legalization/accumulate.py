"""Operators over half types accumulate in float32.

Sums, means, products and composite functions lose their digits when every intermediate result is
rounded to eight or eleven bits; stock computes all of them in the type of the operands. Here such
an operator is legalized at float32, and only its parameters are narrowed.
"""

from collections.abc import Mapping
from typing import Any

from tvm import ir, relax, tirx
from tvm.target import Target

from ..._tvm.ir.structural import structural_map, structural_walk
from ..._tvm.ir.target import has_feature
from ...core.decisions import Decision, record
from ...core.untouched import has_blocks, is_scheduled
from ...device.cpu_features import FLOAT16_ARITHMETIC
from ...frontend.half.intermediates import adds_or_multiplies
from .expand import Expansion, is_call_tir, stand_in
from .narrow import HALF, WIDE, narrow

# Means of bfloat16 whose sums leave float32's range, although the means do not.
#
# Terms are summed at 2^-16 of their size, and what divides the sum puts the factor back: both are
# exact, since float32 holds 2^-16 of bfloat16's least number.


MEANS = frozenset(
    {
        *("relax.mean", "relax.variance"),
        *(f"relax.nn.{kind}avg_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3)),
    }
)
_FACTOR = 2.0**-16


def scaled(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Sum smaller terms in the float32 kernel of one of :data:`MEANS`.

    Parameters
    ----------
    func
        Unscheduled. A first sum that is read by anything but a quotient is left as it is; a second
        one is of a variance's squares, which overflow by themselves.
    """
    total = _first_sum(func)

    def is_total(expr: ir.Expr) -> bool:
        return isinstance(expr, ir.TensorLoad) and hash(expr.source) == total

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        if hash(node.buffer) != total or not isinstance(node.value, tirx.Add):
            return node
        value = node.value.a + node.value.b * tirx.const(_FACTOR, "float32")
        return tirx.BufferStore(node.buffer, value, node.indices)

    def quotient(node: tirx.Div) -> ir.Expr:
        return node * tirx.const(1 / _FACTOR, "float32") if is_total(node.a) else node

    handlers = ((tirx.BufferStore, store), (tirx.Div, quotient))
    return func.with_body(structural_map(func.body, handlers, order="post"))


def _first_sum(func: tirx.PrimFunc) -> int | None:
    """Find the first buffer that terms are added to, by its hash, if the rest only divides it."""
    sums: list[int] = []
    loads: list[int] = []
    expected: list[int] = []

    def store(node: tirx.BufferStore) -> None:
        first = node.value.a if isinstance(node.value, tirx.Add) else None
        if isinstance(first, ir.TensorLoad) and hash(first.source) == hash(node.buffer):
            sums.append(hash(node.buffer))
            expected.append(hash(node.buffer))

    def quotient(node: tirx.Div) -> None:
        if isinstance(node.a, ir.TensorLoad):
            expected.append(hash(node.a.source))

    structural_walk(
        func.body,
        [
            (ir.TensorLoad, lambda load: loads.append(hash(load.source))),
            (tirx.BufferStore, store),
            (tirx.Div, quotient),
        ],
    )
    return sums[0] if sums and loads.count(sums[0]) == expected.count(sums[0]) else None


#: Operators that stock computes step by step in their own type, and functions that devices have for
#: float32 only. Moves, comparisons and other elementwise operations are exact or round once anyway.
WIDENED = frozenset(
    {
        "relax.collapse_sum_like",
        "relax.collapse_sum_to",
        "relax.cumprod",
        "relax.cumsum",
        "relax.einsum",
        "relax.image.affine_grid",
        "relax.image.grid_sample",
        "relax.log_add_exp",
        "relax.matmul",
        "relax.mean",
        "relax.prod",
        "relax.std",
        "relax.sum",
        "relax.variance",
        *(f"relax.image.resize{n}d" for n in (1, 2, 3)),
        *(f"relax.nn.conv{n}d" for n in (1, 2, 3)),
        *(f"relax.nn.conv{n}d_transpose" for n in (1, 2, 3)),
        *(f"relax.nn.avg_pool{n}d" for n in (1, 2, 3)),
        *(f"relax.nn.adaptive_avg_pool{n}d" for n in (1, 2, 3)),
        *(f"relax.nn.{name}" for name in ("softmax", "log_softmax", "attention", "attention_bias")),
        *(f"relax.nn.{kind}_norm" for kind in ("batch", "layer", "group", "instance", "rms")),
        *(f"relax.nn.{name}" for name in ("gelu", "gelu_tanh", "silu", "selu", "softplus")),
        *(f"relax.{name}" for name in ("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh")),
        *(f"relax.{name}" for name in ("cosh", "sinh", "tan")),
        *(f"relax.nn.{name}" for name in ("cross_entropy_with_logits", "nll_loss")),
    }
)


#: Widened as well where code generators lower them to several steps in their own type: on CPUs and
#: AMD's devices. CUDA has a function of half types for each.
FUNCTIONS = frozenset(
    f"relax.{name}"
    for name in (
        *("exp", "log", "log2", "log10", "log1p", "sigmoid", "tanh", "erf", "power"),
        *("sin", "cos", "sqrt", "rsqrt", "mod", "floor_mod", "floor_divide", "remainder"),
    )
)

#: Widened as well on a CPU that computes a half type in float32: only so are there vectors of
#: functions and accumulators that no step converts, and what is rounded is each operator's result,
#: as in PyTorch.
WIDENED_ON_CPU = frozenset(
    {
        *(f"relax.{name}" for name in ("add", "subtract", "multiply", "divide", "power", "mod")),
        *(f"relax.{name}" for name in ("maximum", "minimum", "max", "min", "clip", "floor_mod")),
        *(f"relax.{name}" for name in ("exp", "log", "log2", "log10", "log1p", "sqrt", "rsqrt")),
        *(f"relax.{name}" for name in ("tanh", "sigmoid", "erf", "square", "floor_divide")),
        *(f"relax.{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "atan")),
        *(f"relax.{name}" for name in ("floor", "ceil", "round", "trunc", "sign")),
        *(f"relax.nn.{name}" for name in ("leakyrelu", "prelu", "relu6")),
        *(f"relax.nn.max_pool{n}d" for n in (1, 2, 3)),
    }
)


def accumulates_in_half(call: relax.Call) -> bool:
    """Tell whether stock would compute a call's intermediate results in a half type."""
    types = {str(ty.dtype.dtype) for ty in _tensors(call.ty)}
    name, target = str(call.op.name), Target.current(allow_none=True)
    if name.startswith("relax.image.resize") and str(call.attrs.method) == "nearest_neighbor":
        return False  # it copies elements
    if name.startswith("relax.scatter_"):
        return bool(types & set(HALF)) and adds_or_multiplies(call)
    if target is not None and target.kind.name == "llvm" and types & _computed_in_float32(target):
        return name in WIDENED or name in FUNCTIONS or name in WIDENED_ON_CPU
    if not types & set(HALF):
        return False
    steps = target is None or target.kind.name in ("llvm", "rocm")
    return name in WIDENED or (steps and name in FUNCTIONS)


def _computed_in_float32(target: Target) -> frozenset[str]:
    """Half types that a CPU only stores."""
    has_float16 = any(has_feature(target, name) for name in FLOAT16_ARITHMETIC)
    return frozenset({"bfloat16"} if has_float16 else HALF)


def widen(
    call: relax.Call, builder: relax.BlockBuilder
) -> tuple[relax.Call, dict[relax.Var, relax.Expr]]:
    """Rewrite a call over float32 stand-ins for its tensors of half types.

    Returns
    -------
    relax.Call
        Its attributes ask for float32 wherever they asked for a half type.
    dict
        The stand-ins, and what they stand for.
    """
    wide, params = stand_in(call, builder, lambda dtype: WIDE if dtype in HALF else dtype)
    return relax.Call(wide.op, wide.args, _wide_attrs(wide.attrs), wide.ty_args), params


def narrowed(expansion: Expansion, call: relax.Call) -> Expansion | None:
    """Cast a float32 expansion to the call's types; None unless it is one blocked PrimFunc."""
    value = expansion.bindings[-1].value
    if len(expansion.bindings) != 1 or not is_call_tir(value) or expansion.kernel is None:
        return None
    gvar, func = expansion.kernel
    if not has_blocks(func) or is_scheduled(func) or len(value.args) != 2:
        return None
    if str(call.op.name) in MEANS and str(call.args[0].ty.dtype.dtype) == "bfloat16":
        func = scaled(func)
    operands = list(value.args[1].fields)
    results, wanted = _tensors(value.ty_args), _tensors(call.ty)
    outside = [expansion.params.get(arg) for arg in operands]
    if len(operands) + len(results) != len(func.params) or len(results) != len(wanted):
        return None
    dtypes = [
        _changed(inner.ty, outer.ty) if outer is not None else None
        for inner, outer in zip(operands, outside, strict=True)
    ]
    dtypes += [_changed(inner, outer) for inner, outer in zip(results, wanted, strict=True)]
    out_ty = [
        relax.TensorType(inner.shape, outer.dtype, inner.vdevice)
        for inner, outer in zip(results, wanted, strict=True)
    ]
    new_call = relax.call_tir(gvar, value.args[1], out_ty if len(out_ty) > 1 else out_ty[0])
    binding = relax.VarBinding(relax.Var("result", call.ty), new_call)
    func = narrow(func, dtypes)
    return Expansion(expansion.params, (binding,), {**expansion.funcs, gvar: func})


def between_casts(
    builder: relax.BlockBuilder,
    wide: relax.Call,
    params: dict[relax.Var, relax.Expr],
    call: relax.Call,
) -> relax.Expr:
    """Convert, apply the operator to float32, convert back: what cannot be narrowed inside."""
    name = str(call.op.name)
    sentence = f"{name} over half types is computed in float32 between conversions of its operands"
    record(Decision(name, "", "fallback", "converted_around", sentence))
    actual = {
        hash(param): builder.emit(relax.op.astype(expr, WIDE))
        if isinstance(param.ty, relax.TensorType) and _changed(param.ty, expr.ty)
        else expr
        for param, expr in params.items()
    }
    args = [_replaced(arg, actual) for arg in wide.args]
    result = builder.emit(relax.Call(wide.op, args, wide.attrs, wide.ty_args))
    if not isinstance(call.ty, relax.TupleType):
        return relax.op.astype(result, str(call.ty.dtype.dtype))
    items = [builder.emit(relax.TupleGetItem(result, i)) for i in range(len(call.ty.fields))]
    casts = [
        builder.emit(relax.op.astype(item, str(ty.dtype.dtype))) if _changed(item.ty, ty) else item
        for item, ty in zip(items, call.ty.fields, strict=True)
    ]
    return relax.Tuple(casts)


def _wide_attrs(attrs: ir.Attrs | None) -> ir.Attrs | None:
    """Attributes with float32 in place of a half result or accumulator type."""
    if attrs is None:
        return None
    info = type(attrs).__tvm_ffi_type_info__
    fields = {field.name: getattr(attrs, field.name) for field in info.fields}
    halves = [n for n in ("dtype", "out_dtype") if str(fields.get(n)) in HALF]
    if not halves:
        return attrs
    return ir.make_node(info.type_key, **{**fields, **dict.fromkeys(halves, WIDE)})


def _changed(inner: relax.TensorType, outer: relax.TensorType) -> str | None:
    """Return the outer element type if it differs."""
    dtype = str(outer.dtype.dtype)
    return None if dtype == str(inner.dtype.dtype) else dtype


def _tensors(ty: Any) -> list[relax.TensorType]:
    if isinstance(ty, relax.TensorType):
        return [ty]
    fields = ty.fields if isinstance(ty, relax.TupleType) else ty
    return [leaf for field in fields for leaf in _tensors(field)] if _iterable(fields) else []


def _iterable(value: Any) -> bool:
    return hasattr(value, "__iter__")


def _replaced(expr: relax.Expr, actual: Mapping[int, relax.Expr]) -> relax.Expr:
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_replaced(field, actual) for field in expr.fields])
    return actual.get(hash(expr), expr)
