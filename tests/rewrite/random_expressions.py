"""Random expressions over small tensors of odd shapes, with the operators that laws know."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from tvm import relax
from tvm.relax import op

from tests.rewrite.suite.expression import module, whole
from tvm_fusion.rewrite.egraph.head import Head, Heads
from tvm_fusion.rewrite.egraph.regions import Region

FLOAT, INT, BOOL = "float32", "int32", "bool"
SHAPES = ((3, 5), (3, 5), (3, 5), (3, 1), (1, 5), (5,), (), (5, 3), (2, 3, 5))
_SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 1e-40, -1e-30, 1e9, 3e4)
_NUMBERS = (0.0, 1.0, -1.0, 2.0, 0.5, 3.0, -0.25, 6.0)

_UNARY = {
    FLOAT: (
        *(op.negative, op.abs, op.square, op.nn.relu, op.exp, op.log, op.sqrt, op.rsqrt),
        *(op.tanh, op.sigmoid, op.negative, op.nn.relu),
    ),
    INT: (op.negative, op.abs, op.square, op.nn.relu),
    BOOL: (op.logical_not,),
}
_BINARY = {
    FLOAT: (
        *(op.add, op.add, op.add, op.subtract, op.subtract, op.multiply, op.multiply),
        *(op.multiply, op.divide, op.maximum, op.minimum),
    ),
    INT: (op.add, op.add, op.subtract, op.multiply, op.multiply, op.maximum, op.minimum),
    BOOL: (op.logical_and, op.logical_or, op.logical_xor),
}
_REDUCTIONS = {
    FLOAT: (op.sum, op.sum, op.mean, op.max, op.min, op.prod),
    INT: (op.sum, op.max, op.min),
}
_COMPARISONS = (op.less, op.greater, op.less_equal, op.greater_equal, op.equal, op.not_equal)


@dataclass(frozen=True, eq=False)
class Tensor:
    """An expression with its type; ``is_exact`` tells that no rounding has gone into it."""

    expr: relax.Expr
    shape: tuple[int, ...]
    dtype: str
    is_exact: bool = False


@dataclass(eq=False)
class Sample:
    """A random region."""

    region: Region  # of all its operators
    seed: int  # of the values of its leaves

    def given(self, heads: Heads) -> dict[Head, np.ndarray]:
        """Draw values of the leaves; zeros, denormals and large ones are among them."""
        rng = np.random.default_rng(self.seed)
        found = {}
        for head, leaf in zip(self.region.heads(heads), self.region.leaves, strict=True):
            if head not in heads.values:
                shape = tuple(int(v) for v in leaf.ty.shape.values)
                found[head] = _draw(rng, shape, str(leaf.ty.dtype))
        return found


def _draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype == BOOL:
        return rng.random(shape) < 0.5
    if dtype == INT:
        large = rng.random(shape) < 0.2
        return np.where(
            large, rng.integers(-(2**31), 2**31, shape), rng.integers(-4, 5, shape)
        ).astype(dtype)
    values = rng.normal(0.0, 2.0, shape)
    special = rng.random(shape) < 0.15
    return np.where(special, rng.choice(_SPECIAL, shape), values).astype(dtype)


@st.composite
def samples(draw: Callable, most: int = 9) -> Sample:
    """Draw a region of a few operators."""
    pool = [
        Tensor(_variable(f"x{i}", s, FLOAT), s, FLOAT, True)
        for i, s in enumerate(draw(st.lists(st.sampled_from(SHAPES), min_size=2, max_size=4)))
    ]
    for name, dtype in (("i", INT), ("j", INT), ("m", BOOL)):
        shape = draw(st.sampled_from(SHAPES[:5]))
        pool.append(Tensor(_variable(name, shape, dtype), shape, dtype, True))
    leaves = len(pool)
    for _ in range(draw(st.integers(2, most))):
        kind = draw(st.sampled_from(_KINDS))
        made = kind(draw, pool)
        if made is not None:
            pool.append(made)
    if len(pool) == leaves:
        pool.append(Tensor(op.exp(pool[0].expr), pool[0].shape, FLOAT))
    outputs = [pool[-1]]
    if len(pool) > leaves + 1 and draw(st.booleans()):
        outputs.append(draw(st.sampled_from(pool[leaves:-1])))
    params = [t.expr for t in pool[:leaves]]
    mod = module(params, [t.expr for t in outputs])
    return Sample(whole(mod), draw(st.integers(0, 2**16)))


def _variable(name: str, shape: tuple[int, ...], dtype: str) -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


def _any(draw: Callable, pool: list[Tensor], *dtypes: str) -> Tensor:
    """Draw one of the tensors, the latest ones more often: expressions get deep."""
    found = [t for t in pool if t.dtype in dtypes]
    return draw(st.sampled_from([*found, *found[-3:], *found[-2:]]))


def _fitting(draw: Callable, pool: list[Tensor], like: Tensor) -> Tensor:
    """Draw a tensor that broadcasts with another one, or a number."""
    found = [t for t in pool if t.dtype == like.dtype and _broadcast(t, like) is not None]
    if like.dtype != BOOL and draw(st.integers(0, 4)) == 0:
        value = draw(st.sampled_from(_NUMBERS))
        return Tensor(
            relax.const(value if like.dtype == FLOAT else int(value), like.dtype),
            (),
            like.dtype,
            True,
        )
    return draw(st.sampled_from([*found, *found[-3:]]))


def _broadcast(*tensors: Tensor) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(*(t.shape for t in tensors))
    except ValueError:
        return None


def _unary(draw: Callable, pool: list[Tensor]) -> Tensor:
    x = _any(draw, pool, FLOAT, FLOAT, INT, BOOL)
    function = draw(st.sampled_from(_UNARY[x.dtype]))
    return Tensor(function(x.expr), x.shape, x.dtype, x.dtype != FLOAT)


def _binary(draw: Callable, pool: list[Tensor]) -> Tensor:
    x = _any(draw, pool, FLOAT, INT, BOOL)
    y = _fitting(draw, pool, x)
    if draw(st.booleans()):
        x, y = y, x
    function = draw(st.sampled_from(_BINARY[x.dtype]))
    shape = np.broadcast_shapes(x.shape, y.shape)
    return Tensor(function(x.expr, y.expr), shape, x.dtype, x.dtype != FLOAT)


def _comparison(draw: Callable, pool: list[Tensor]) -> Tensor:
    """Compare what is exact: rounding must not decide."""
    exact = [t for t in pool if t.is_exact]
    x = _any(draw, exact, FLOAT, INT)
    y = _fitting(draw, exact, x)
    function = draw(st.sampled_from(_COMPARISONS))
    shape = np.broadcast_shapes(x.shape, y.shape)
    return Tensor(function(x.expr, y.expr), shape, BOOL, True)


def _choice(draw: Callable, pool: list[Tensor]) -> Tensor | None:
    c, x = _any(draw, pool, BOOL), _any(draw, pool, FLOAT, INT)
    y = _fitting(draw, pool, x)
    shape = _broadcast(c, x, y)
    if shape is None:
        return None
    return Tensor(op.where(c.expr, x.expr, y.expr), shape, x.dtype, x.dtype != FLOAT)


def _reduction(draw: Callable, pool: list[Tensor]) -> Tensor | None:
    x = _any(draw, pool, FLOAT, INT)
    if not x.shape:
        return None
    axis = draw(st.integers(0, len(x.shape) - 1))
    keepdims = draw(st.booleans())
    function = draw(st.sampled_from(_REDUCTIONS[x.dtype]))
    rest = (1,) if keepdims else ()
    shape = (*x.shape[:axis], *rest, *x.shape[axis + 1 :])
    expr = function(x.expr, axis=[axis], keepdims=keepdims)
    return Tensor(expr, shape, x.dtype, x.dtype != FLOAT)


def _product(draw: Callable, pool: list[Tensor]) -> Tensor | None:
    matrices = [t for t in pool if t.dtype == FLOAT and len(t.shape) == 2]
    pairs = [(a, b) for a in matrices for b in matrices if a.shape[1] == b.shape[0]]
    if not pairs:
        return None
    a, b = draw(st.sampled_from(pairs))
    return Tensor(op.matmul(a.expr, b.expr), (a.shape[0], b.shape[1]), FLOAT)


def _move(draw: Callable, pool: list[Tensor]) -> Tensor:
    x = _any(draw, pool, FLOAT, INT)
    kind = draw(st.sampled_from(("permute", "reshape", "expand", "slice", "concat")))
    if kind == "permute" or not x.shape:
        return Tensor(op.permute_dims(x.expr), x.shape[::-1], x.dtype, x.is_exact)
    if kind == "reshape":
        shape = (int(np.prod(x.shape)),)
        return Tensor(op.reshape(x.expr, shape), shape, x.dtype, x.is_exact)
    if kind == "expand":
        return Tensor(op.expand_dims(x.expr, 0), (1, *x.shape), x.dtype, x.is_exact)
    if kind == "concat":
        shape = (2 * x.shape[0], *x.shape[1:])
        return Tensor(op.concat([x.expr, x.expr], 0), shape, x.dtype, x.is_exact)
    end = draw(st.integers(1, x.shape[0]))
    expr = op.strided_slice(x.expr, axes=[0], begin=[0], end=[end])
    return Tensor(expr, (end, *x.shape[1:]), x.dtype, x.is_exact)


def _cast(draw: Callable, pool: list[Tensor]) -> Tensor:
    x = _any(draw, pool, INT, BOOL)
    dtype = draw(st.sampled_from((FLOAT, INT)))
    return Tensor(op.astype(x.expr, dtype), x.shape, dtype, dtype == INT)


_KINDS = (
    *(_binary,) * 8,
    *(_unary,) * 4,
    *(_reduction,) * 3,
    *(_product,) * 2,
    *(_choice, _comparison, _move, _cast),
)
