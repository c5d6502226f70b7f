"""How operators pass parts of tensors on: a rule for each kind of operator.

whole x whole       the operator as it is
part, elementwise   the same part; what it meets is split alike
columns             x whole, A split by columns: the product's columns are split
rows                x and A split along the inner axis: each worker has a summand of the product
a summand           goes through what is linear; anything else adds the workers' summands up first
no rule             the operator's operands are made whole
"""

from collections.abc import Callable
from typing import Any

from tvm import relax, tirx

from ..core.shards import Shard
from .plan import Partial, Split
from .products import grouped, matmul, take
from .rewriter import Rewriter, Rule, is_tensor
from .views import extent, reshaped, sliced

_RULES: dict[str, Rule] = {}

_UNARY = (
    "abs acos acosh asin asinh astype atan atanh bitwise_not ceil clip cos cosh erf exp floor "
    "full_like isfinite isinf isnan log logical_not negative nn.gelu nn.gelu_tanh nn.leakyrelu "
    "nn.relu nn.silu nn.softplus ones_like round rsqrt sigmoid sign sin sinh sqrt square tan tanh "
    "trunc zeros_like"
)
_BINARY = (
    "add bitwise_and bitwise_or bitwise_xor divide equal floor_divide floor_mod greater "
    "greater_equal left_shift less less_equal logical_and logical_or logical_xor maximum minimum "
    "mod multiply not_equal power right_shift subtract where"
)
_REDUCTIONS = "argmax argmin max mean min prod std sum variance"
_NORMS = "nn.layer_norm nn.rms_norm"
_LINEAR = {"add", "subtract", "negative", "multiply", "divide", "astype"}


def rule(names: str) -> Callable[[Rule], Rule]:
    """Let a function be the rule of operators."""

    def add(function: Rule) -> Rule:
        for name in names.split():
            _RULES[f"relax.{name}"] = function
        return function

    return add


def apply(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    """Rewrite a call for a worker.

    Returns
    -------
    Expr, State
        The worker's call, not bound yet, and how its result is spread.
    """
    name = getattr(call.op, "name", "")
    if name == "relax.call_tir":
        return grouped(rewriter, call) or unchanged(rewriter, call)
    function = _RULES.get(name, unchanged)
    states = [rewriter.state(arg) for arg in call.args]
    parts = any(rewriter.fields(arg) and any(rewriter.fields(arg)[1]) for arg in call.args)  # type: ignore[index]
    if not any(states) and not parts and function not in (matmul, take, concat):
        return unchanged(rewriter, call)
    return function(rewriter, call)


def unchanged(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    """Compute the operator on whole operands."""
    return again(call, [whole_of(rewriter, arg) for arg in call.args]), None


def whole_of(rewriter: Rewriter, arg: Any) -> Any:
    """Return a whole operand, or a tuple of whole ones."""
    if isinstance(arg, relax.Tuple):
        return relax.Tuple([whole_of(rewriter, field) for field in arg.fields])
    return rewriter.whole(arg)


def again(call: relax.Call, args: list[Any]) -> relax.Call:
    """Make the same call of other arguments."""
    return relax.Call(call.op, args, call.attrs, call.ty_args)


@rule(f"{_UNARY} {_BINARY}")
def elementwise(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    """Split all operands alike, counted from the last axis."""
    linear = _linear(rewriter, call)
    if linear is not None:
        return linear
    ndim = len(call.ty.shape.values)
    split = [arg for arg in call.args if isinstance(rewriter.state(arg), Split)]
    if not split:
        return unchanged(rewriter, call)
    state = rewriter.state(split[0])
    assert isinstance(state, Split)
    behind = len(split[0].ty.shape.values) - state.shard.axis
    args = []
    for arg in call.args:
        if not is_tensor(arg) or arg.ty.ndim == 0:
            args.append(rewriter.whole(arg))
            continue
        axis = len(arg.ty.shape.values) - behind
        if axis < 0 or extent(arg.ty.shape.values[axis]) == 1:
            args.append(rewriter.whole(arg))
            continue
        args.append(rewriter.split(arg, Shard(axis, state.shard.segments), state.key))
    return again(call, args), Split(Shard(ndim - behind, state.shard.segments), state.key)


def _linear(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any] | None:
    """Pass summands on through an operator that is linear in them."""
    name = call.op.name.removeprefix("relax.")
    states = [rewriter.state(arg) for arg in call.args]
    sums = [i for i, s in enumerate(states) if isinstance(s, Partial)]
    if not sums or name not in _LINEAR or any(isinstance(s, Split) for s in states):
        return None
    is_float = str(call.ty.dtype).startswith(("float", "bfloat"))
    if not is_float or not str(call.args[sums[0]].ty.dtype).startswith(("float", "bfloat")):
        return None
    if len(call.args) == 2:
        both = len(sums) == 2
        if name in ("add", "subtract") and not both:
            return None
        if (name == "multiply" and both) or (name == "divide" and sums != [0]):
            return None
    grown = rewriter.shape(call) if is_tensor(call) else []
    if grown != rewriter.shape(call.args[sums[0]]):
        return None
    one, other = states[sums[0]], states[sums[-1]]
    assert isinstance(one, Partial)
    assert isinstance(other, Partial)
    state = Partial(rewriter.plan.join(one.key, other.key), one.dtype)
    return again(call, [rewriter.local(arg) for arg in call.args]), state


@rule("reshape expand_dims squeeze flatten")
def view(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    """Follow a part through a change of shape."""
    arg, state = call.args[0], rewriter.state(call.args[0])
    after = list(call.ty.shape.values)
    rest = list(call.args[1:])
    if isinstance(state, Partial):
        return again(call, [rewriter.local(arg), *rest]), state
    assert isinstance(state, Split)
    before = list(arg.ty.shape.values)
    shard = reshaped(before, after, state.shard, rewriter.plan.size)
    if shard is None:
        rewriter.cut_by_reshape(state, before, after)
        return unchanged(rewriter, call)
    if call.op.name == "relax.reshape":
        after[shard.axis] = tirx.IntImm("int64", shard.extent // rewriter.plan.size)
        rest = [relax.ShapeExpr(after)]
    return again(call, [rewriter.local(arg), *rest]), Split(shard, state.key)


@rule("permute_dims")
def permute(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    """Move the axis that is split."""
    arg, state = call.args[0], rewriter.state(call.args[0])
    local = again(call, [rewriter.local(arg)])
    if isinstance(state, Partial):
        return local, state
    assert isinstance(state, Split)
    axes = call.attrs.axes
    order = list(map(int, axes)) if axes is not None else list(range(arg.ty.ndim))[::-1]
    order = [axis % arg.ty.ndim for axis in order]
    return local, Split(Shard(order.index(state.shard.axis), state.shard.segments), state.key)


@rule("broadcast_to")
def broadcast(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    """Broadcast a part along other axes."""
    arg, state = call.args[0], rewriter.state(call.args[0])
    if not isinstance(state, Split):
        return unchanged(rewriter, call)
    shape = list(call.ty.shape.values)
    axis = len(shape) - arg.ty.ndim + state.shard.axis
    if extent(shape[axis]) != state.shard.extent:
        return unchanged(rewriter, call)
    shape[axis] = tirx.IntImm("int64", state.shard.extent // rewriter.plan.size)
    local = again(call, [rewriter.local(arg), relax.ShapeExpr(shape)])
    return local, Split(Shard(axis, state.shard.segments), state.key)


@rule("concat")
def concat(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    """Concatenate parts: along their own axis, segments follow each other."""
    if not isinstance(call.args[0], relax.Tuple):
        return unchanged(rewriter, call)
    fields = list(call.args[0].fields)
    states = [rewriter.state(field) for field in fields]
    first = next((s for s in states if isinstance(s, Split)), None)
    if first is None:
        return unchanged(rewriter, call)
    axis = int(call.attrs.axis or 0) % call.ty.ndim
    if first.shard.axis != axis:
        parts = [rewriter.split(field, first.shard, first.key) for field in fields]
        return again(call, [relax.Tuple(parts)]), first
    if not all(isinstance(s, Split) and s.shard.axis == axis for s in states):
        return unchanged(rewriter, call)
    segments: tuple[int, ...] = ()
    for state in states:
        assert isinstance(state, Split)
        rewriter.plan.join(first.key, state.key)
        segments += state.shard.segments
    locals_ = relax.Tuple([rewriter.local(field) for field in fields])
    return again(call, [locals_]), Split(Shard(axis, segments), first.key)


@rule("strided_slice")
def strided_slice(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    """Slice other axes, or whole segments of the one that is split."""
    arg, state = call.args[0], rewriter.state(call.args[0])
    if isinstance(state, Partial):
        return again(call, [rewriter.local(arg), *call.args[1:]]), state
    assert isinstance(state, Split)
    axes = [int(value) % arg.ty.ndim for value in call.args[1]]
    local = [rewriter.local(arg), *call.args[1:]]
    if state.shard.axis not in axes:
        return again(call, local), state
    at = axes.index(state.shard.axis)
    begin, end = (extent(values[at]) for values in call.args[2:4])
    steps = [extent(v) for v in call.args[4]] if len(call.args) > 4 else [1] * len(axes)
    if begin is None or end is None or steps[at] != 1 or begin < 0 or end < 0:
        return unchanged(rewriter, call)
    end = min(end, state.shard.extent)
    segments = sliced(state.shard, begin, end)
    if segments is None:
        rewriter.cut_columns(state, {begin, end})
        return unchanged(rewriter, call)
    size = rewriter.plan.size
    places = [list(values) for values in call.args[2:4]]
    places[0][at], places[1][at] = begin // size, end // size
    step = list(call.args[4]) if len(call.args) > 4 else None
    inbound = bool(call.attrs.assume_inbound)
    new = relax.op.strided_slice(rewriter.local(arg), axes, *places, step, inbound)
    return new, Split(Shard(state.shard.axis, segments), state.key)


@rule("split")
def split(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    """Split other axes, or between segments of the one that is split over workers."""
    arg, state = call.args[0], rewriter.state(call.args[0])
    fields = call.ty.fields
    axis = int(call.attrs.axis) % arg.ty.ndim
    if isinstance(state, Partial) or (isinstance(state, Split) and state.shard.axis != axis):
        return again(call, [rewriter.local(arg)]), [state] * len(fields)
    assert isinstance(state, Split)
    lengths = [extent(field.shape.values[axis]) for field in fields]
    if None in lengths:
        return unchanged(rewriter, call)
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]  # type: ignore[arg-type]
    shards = []
    for begin, end in zip([0, *ends], ends, strict=False):
        segments = sliced(state.shard, begin, end)
        if segments is None:
            rewriter.cut_columns(state, set(ends[:-1]))
            return unchanged(rewriter, call)
        shards.append(Split(Shard(axis, segments), state.key))
    places = [end // rewriter.plan.size for end in ends[:-1]]
    return relax.op.split(rewriter.local(arg), places, axis), shards


@rule(_REDUCTIONS)
def reduce(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    """Reduce other axes; sums of a part are summands."""
    arg, state = call.args[0], rewriter.state(call.args[0])
    name = call.op.name.removeprefix("relax.")
    local = again(call, [rewriter.local(arg)])
    if isinstance(state, Partial):
        return (local, state) if name in ("sum", "mean") else unchanged(rewriter, call)
    assert isinstance(state, Split)
    given = call.attrs.axis
    if given is None:
        axes = list(range(arg.ty.ndim))
    else:
        axes = [int(a) % arg.ty.ndim for a in (given if hasattr(given, "__iter__") else [given])]
    if state.shard.axis in axes:
        is_float = str(call.ty.dtype).startswith(("float", "bfloat"))
        return (
            (local, Partial(state.key, str(arg.ty.dtype)))
            if name == "sum" and is_float
            else unchanged(rewriter, call)
        )
    before = 0 if call.attrs.keepdims else sum(axis < state.shard.axis for axis in axes)
    shard = Shard(state.shard.axis - before, state.shard.segments)
    return local, Split(shard, state.key)


@rule("nn.softmax nn.log_softmax cumsum cumprod sort")
def along(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    """Compute along an axis that is whole."""
    arg, state = call.args[0], rewriter.state(call.args[0])
    axis = call.attrs.axis
    if not isinstance(state, Split) or axis is None:
        return unchanged(rewriter, call)
    if int(axis) % arg.ty.ndim == state.shard.axis:
        return unchanged(rewriter, call)
    return again(call, [rewriter.local(arg), *call.args[1:]]), state


@rule(_NORMS)
def norm(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    """Normalise along axes that are whole."""
    arg, state = call.args[0], rewriter.state(call.args[0])
    axes = [int(axis) % arg.ty.ndim for axis in call.attrs.axes]
    if not isinstance(state, Split) or state.shard.axis in axes:
        return unchanged(rewriter, call)
    return again(call, [rewriter.local(arg), *map(rewriter.whole, call.args[1:])]), state


@rule("nn.attention nn.attention_bias")
def attention(rewriter: Rewriter, call: relax.Call) -> tuple[Any, Any]:
    """Attend with some of the heads, which are the third axis of queries, keys and values."""
    state = rewriter.state(call.args[0])
    if not isinstance(state, Split) or state.shard.axis != 2:
        return unchanged(rewriter, call)
    args = [rewriter.split(arg, state.shard, state.key) for arg in call.args[:3]]
    for bias in call.args[3:]:
        one = extent(bias.ty.shape.values[1]) == 1
        shard = Shard(1, state.shard.segments)
        args.append(rewriter.whole(bias) if one else rewriter.split(bias, shard, state.key))
    return again(call, args), state


rule("matmul")(matmul)
rule("take")(take)
