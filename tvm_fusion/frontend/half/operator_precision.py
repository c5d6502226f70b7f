"""Classify operators by how they compute in half precision: the table of :mod:`.precision`."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, NamedTuple

from tvm import relax
from tvm.ir import GenericConst

from ..normalize.engine import op_name


class Precision(Enum):
    """How an operator computes when values are stored in a half type."""

    ACCUMULATE = "half operands, sums in float32"
    FLOAT32 = "operands and result in float32"
    FOLLOW = "float32 while a float32 value flows by, half otherwise"
    MOVE = "moves or selects values, in the type they are stored in"
    KEEP = "in the types of the model"


def _nn(names: str) -> set[str]:
    return {f"relax.nn.{name}" for name in names.split()}


def _relax(names: str) -> set[str]:
    return {f"relax.{name}" for name in names.split()}


ACCUMULATE = _relax("matmul") | _nn(
    "conv1d conv2d conv3d conv1d_transpose conv2d_transpose conv3d_transpose"
)
REDUCTIONS = _relax("sum mean variance std prod")
# Of the first argument they read the shape alone.
SHAPED_LIKE = _relax("full_like zeros_like ones_like")
# TVM has no bfloat16 code for them. Their answer takes no part in what is stored.
PREDICATES = _relax("isnan isfinite isinf")
FLOAT32 = (
    REDUCTIONS
    | PREDICATES
    | _relax(
        "cumsum cumprod exp log sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh "
        "sigmoid erf sqrt rsqrt power square log_add_exp"
    )
    | _nn(
        "softmax log_softmax layer_norm rms_norm group_norm instance_norm batch_norm gelu "
        "gelu_tanh silu selu softplus avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d "
        "adaptive_avg_pool2d adaptive_avg_pool3d attention attention_bias"
    )
)
COMPARISONS = _relax("equal not_equal less less_equal greater greater_equal")
# What rounds in a half type; the others of FOLLOW are exact in both.
ARITHMETIC = _relax("add subtract multiply divide")
# A view costs nothing where it is, so it need not end a chain in float32.
VIEWS = _relax("reshape permute_dims expand_dims squeeze flatten broadcast_to strided_slice")
FOLLOW = (
    VIEWS
    | ARITHMETIC
    | COMPARISONS
    | _relax("maximum minimum negative abs clip where floor ceil round sign")
    | _nn("relu leakyrelu prelu")
)
# One element of the result from one of each operand, or of those broadcast to it.
ELEMENTWISE = (
    (FOLLOW - VIEWS)
    | (FLOAT32 - REDUCTIONS - {n for n in FLOAT32 if n.startswith("relax.nn.")})
    | _nn("gelu gelu_tanh silu selu softplus")
)
MOVE = _relax(
    "concat stack split take gather_elements gather_nd tile repeat flip max min tril triu "
    "image.resize2d"
) | _nn("pad max_pool1d max_pool2d max_pool3d")


def precision_of(call: relax.Call) -> Precision:
    """Tell how a call computes; operators that are not listed keep their types."""
    name = _read_by(call)
    for names, precision in (
        (ACCUMULATE, Precision.ACCUMULATE),
        (FLOAT32, Precision.FLOAT32),
        (FOLLOW, Precision.FOLLOW),
        (MOVE, Precision.MOVE),
    ):
        if name in names:
            return precision
    return Precision.KEEP


class Reader(NamedTuple):
    """An operator that reads a value, or None where it is returned; and how that computes."""

    name: str | None
    precision: Precision


# A norm, or what its rows' squares are added up from.
_NORMS = _nn("layer_norm rms_norm") | _relax("power square")
_MADE = _nn("layer_norm rms_norm")
_SQUARE = "relax.square"


def is_residual(made_by: str, readers: Iterable[Reader]) -> bool:
    """Tell whether a sum goes on with a value that a norm reads, or made.

    Products and convolutions want it in a half type as well: it would be stored twice. Where a norm
    made it, that is worth its time, since each of an encoder's roundings would stay in the stream.
    """
    names = {reader.name for reader in readers}
    if "relax.add" not in names:
        return False
    return made_by in _MADE or (bool(names & _NORMS) and not names & ACCUMULATE)


def readers(func: relax.Function) -> dict[int, list[Reader]]:
    """List the readers of each variable and constant, by hash; who returns it keeps its type."""
    found: dict[int, list[Reader]] = defaultdict(list)

    def count(expr: Any) -> None:
        if isinstance(expr, relax.Call) and op_name(expr) not in PREDICATES:
            for leaf in leaves(expr):
                if isinstance(leaf, (relax.Var, GenericConst)):
                    found[hash(leaf)].append(Reader(_read_by(expr), precision_of(expr)))
        elif isinstance(expr, relax.SeqExpr):
            result = expr.body
            kept = [result] if isinstance(result, relax.Var) else _tuple_fields(result)
            for block in expr.blocks:
                for binding in block.bindings:
                    kept = [*kept, *_tuple_fields(binding.value)]
            for leaf in kept:
                found[hash(leaf)].append(Reader(None, Precision.KEEP))

    relax.analysis.post_order_visit(func.body, count)
    return found


def _read_by(call: relax.Call) -> str:
    name = op_name(call)
    is_square = name == "relax.multiply" and call.args[0].same_as(call.args[1])
    return _SQUARE if is_square else name


def leaves(call: relax.Call) -> Iterator[Any]:
    """Yield a call's arguments, the fields of those that are tuples."""
    for arg in call.args:
        yield from _tuple_fields(arg) if isinstance(arg, relax.Tuple) else [arg]


def _tuple_fields(expr: Any) -> list[Any]:
    return list(expr.fields) if isinstance(expr, relax.Tuple) else []
