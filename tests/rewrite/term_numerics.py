"""Expressions in numbers: operators of the laws in numpy, apart from what folds constants.

The exact value of an expression is computed in float64. How far a form may be from it is found by
moving the result of every operator of the original by a rounding of its dtype, a few times (Monte
Carlo arithmetic; Parker, 1997).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tvm_fusion.core.constants.numpy_types import numpy_dtype
from tvm_fusion.rewrite.egraph.head import Head, Heads, is_tensor
from tvm_fusion.rewrite.egraph.terms import Term, subterms

REPLICAS = 4
SLACK = 16  # the largest error accepted, in what the replicas are apart
LIMIT = 2.0**126  # beyond, float32 may overflow

Change = Callable[[np.ndarray], np.ndarray]


def run(
    terms: Sequence[Term], heads: Heads, given: Mapping[Head, np.ndarray], change: Change
) -> dict[Term, np.ndarray]:
    """Compute all subterms, each changed before others read it."""
    done: dict[Term, np.ndarray] = {}
    for term in subterms(terms):
        if term.head.call is None:
            array = given.get(term.head)
            done[term] = heads.values[term.head].value.numpy() if array is None else array
        else:
            done[term] = change(
                apply(term.head, [done[o] for o in term.operands], str(term.type.dtype))
            )
    return done


def exactly(array: np.ndarray) -> np.ndarray:
    """Keep float64."""
    return array


def in_single(array: np.ndarray) -> np.ndarray:
    """Round to float32."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


def moved(rng: np.random.Generator) -> Change:
    """Move by what rounding to float32 might, where denormals may be taken for zeros."""

    def change(array: np.ndarray) -> np.ndarray:
        if array.dtype != np.float64:
            return array
        relative = rng.uniform(-(2.0**-24), 2.0**-24, array.shape)
        return array * (1 + relative) + rng.uniform(-(2.0**-126), 2.0**-126, array.shape)

    return change


def deviations(
    terms: Sequence[Term], heads: Heads, given: Mapping[Head, np.ndarray], seed: int = 0
) -> dict[Term, np.ndarray]:
    """Tell how far rounding may take each element of all subterms; infinitely where anything."""
    rng = np.random.default_rng(seed)
    given = {head: wide(array) for head, array in given.items()}
    exact = run(terms, heads, given, exactly)
    replicas = [run(terms, heads, given, moved(rng)) for _ in range(REPLICAS)]
    found = {}
    for term, reference in exact.items():
        if reference.dtype.kind != "f":
            found[term] = np.zeros(reference.shape)
            continue
        with np.errstate(all="ignore"):
            spread = np.max([np.abs(r[term] - reference) for r in replicas], axis=0)
        spread = np.where(np.isfinite(spread), spread, np.inf)
        where = finite(term, exact)
        # Few replicas agree by chance: what is apart elsewhere is apart here.
        around = spread[where & np.isfinite(spread)].max(initial=0.0)
        scale = np.abs(reference[where]).max(initial=0.0)
        found[term] = np.maximum(spread, around / 16) + 2.0**-25 * scale + 2.0**-120
    return found


def worst_error(
    before: Sequence[Term],
    after: Sequence[Term],
    heads: Heads,
    given: Mapping[Head, np.ndarray],
    seed: int = 0,
) -> tuple[float, int]:
    """Tell how far a form is from the original, over what is tolerated, and where it counts.

    Returns
    -------
    error : float
        At most one is fine.
    compared : int
        Elements at which the original and its intermediate results are finite.
    """
    exact = run(before, heads, {head: wide(array) for head, array in given.items()}, exactly)
    apart = deviations(before, heads, given, seed)
    new = run(after, heads, given, in_single)
    worst, compared = 0.0, 0
    for old, form in zip(before, after, strict=True):
        reference, result = exact[old], new[form]
        valid = finite(old, exact)
        compared += int(valid.sum())
        if reference.dtype.kind != "f":
            worst = max(worst, 0.0 if np.array_equal(result[valid], reference[valid]) else np.inf)
            continue
        with np.errstate(all="ignore"):
            error = np.abs(result.astype(np.float64) - reference) / (SLACK * apart[old])
        error = np.where(np.isinf(apart[old]), 0.0, np.where(np.isnan(error), np.inf, error))
        worst = max(worst, float(error[valid].max(initial=0.0)))
    return worst, compared


def apply(head: Head, operands: Sequence[np.ndarray], dtype: str) -> np.ndarray:
    """Compute one operator; floating point in the dtype of its operands, at least float32."""
    name = head.name.removeprefix("relax.")
    given = iter(operands)
    args = [_argument(arg, given) for arg in head.call.args]
    with np.errstate(all="ignore"):
        result = np.asarray(_FUNCTIONS[name](head.call.attrs, *args))
    if name == "astype" and result.dtype == np.float64 and dtype.startswith("float"):
        return result  # in float64 a cast between floating point types rounds nothing
    wanted = numpy_dtype(dtype)
    return result if result.dtype.kind == "f" and wanted.kind == "f" else result.astype(wanted)


def wide(array: np.ndarray) -> np.ndarray:
    """Take floating point for float64."""
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def finite(root: Term, values: Mapping[Term, np.ndarray]) -> np.ndarray:
    """Tell where all that an element is computed from is finite, and no float32 overflows."""
    found: dict[Term, np.ndarray] = {}
    for term in subterms([root]):
        value = values[term]
        fine = np.ones(value.shape, bool)
        if value.dtype.kind == "f":
            fine = np.isfinite(value) & (np.abs(value) < LIMIT)
        stays = term.head.name.removeprefix("relax.") in _IN_PLACE
        for operand in term.operands:
            fine = fine & (found[operand] if stays else found[operand].all())
        found[term] = fine
    return found[root]


def _argument(arg: Any, operands: Any) -> Any:
    if is_tensor(arg):
        return next(operands)
    fields = getattr(arg, "fields", None)
    if fields is not None:
        return [_argument(f, operands) for f in fields]
    values = getattr(arg, "values", None)
    if values is not None:
        return [int(v) for v in values]
    return arg.value


def _axes(attrs: Any) -> tuple[int, ...] | None:
    return None if attrs.axis is None else tuple(int(a) for a in attrs.axis)


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda attrs, x: function(x, axis=_axes(attrs), keepdims=bool(attrs.keepdims))


def _slice(_attrs: Any, x: np.ndarray, axes: Any, begins: Any, ends: Any, *strides: Any) -> Any:
    index = [slice(None)] * x.ndim
    steps = strides[0] if strides else [1] * len(axes)
    for axis, begin, end, step in zip(axes, begins, ends, steps, strict=True):
        index[axis] = slice(begin, end, step)
    return x[tuple(index)]


def _conv2d(attrs: Any, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    plain = all(int(v) == 1 for v in (*attrs.strides, *attrs.dilation, attrs.groups))
    if not plain or any(int(v) for v in attrs.padding):
        raise NotImplementedError("strides, dilation, groups and padding")
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w)


def _same_shape(x: np.ndarray, like: Any) -> np.ndarray:
    return x.reshape(like)


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[x.dtype])(x)


def _wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _attrs, *args: function(*args)


_NUMPY = {
    **{
        name: getattr(np, name)
        for name in (
            *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "negative"),
            *("abs", "sqrt", "square", "exp", "log", "tanh", "sin", "cos", "floor", "ceil", "sign"),
            *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "where"),
            *("logical_and", "logical_or", "logical_xor", "logical_not", "isnan", "isinf"),
            *("left_shift", "right_shift", "matmul", "trunc", "isfinite", "log1p", "expm1"),
            *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"),
        )
    },
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": _erf,
    "round": np.rint,
    "nn.relu": lambda x: np.maximum(x, 0),
    "nn.silu": lambda x: x / (1 + np.exp(-x)),
    "clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "reshape": _same_shape,
    "broadcast_to": np.broadcast_to,
}
# An element is computed from those in its own place.
_IN_PLACE = {*_NUMPY, "astype", "full"} - {"matmul", "reshape"}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _wrapping(function) for name, function in _NUMPY.items()},
    **{name: _reduction(getattr(np, name)) for name in ("sum", "mean", "max", "min", "prod")},
    "variance": _reduction(np.var),
    "std": _reduction(np.std),
    "astype": lambda attrs, x: _cast(x, str(attrs.dtype)),
    "permute_dims": lambda attrs, x: np.transpose(
        x, None if attrs.axes is None else [int(a) for a in attrs.axes]
    ),
    "expand_dims": lambda attrs, x: np.expand_dims(x, tuple(int(a) for a in attrs.axis)),
    "squeeze": lambda attrs, x: np.squeeze(x, _axes(attrs)),
    "full": lambda _attrs, shape, value: np.broadcast_to(value, shape),
    "zeros": lambda _attrs, shape: np.zeros(shape),
    "ones": lambda _attrs, shape: np.ones(shape),
    "concat": lambda attrs, parts: np.concatenate(parts, int(attrs.axis)),
    "strided_slice": _slice,
    "flip": lambda attrs, x: np.flip(x, int(attrs.axis)),
    "cumsum": lambda attrs, x: np.cumsum(x, int(attrs.axis)),
    "nn.conv2d": _conv2d,
}


def _cast(x: np.ndarray, dtype: str) -> np.ndarray:
    wanted = numpy_dtype(dtype)
    if x.dtype == np.float64 and wanted.kind in "fV":
        return x
    return x.astype(wanted)
