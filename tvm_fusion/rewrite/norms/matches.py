"""Norms between a product and products with constant matrices, as the graph has them.

    product [+ ..] -> norm -> product [, product ..] [, a sum with a product]

At a half precision (:mod:`...frontend.half.precision`) a model keeps the sums in front of its norms
in float32, whose range and digits a product that stores rows in a half type would lose: these norms
stay kernels, and a decision says so.
A norm that anything else reads would be a kernel of its own again, and others take less than their
statistics: those stay, and a decision tells why.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from ...core.decisions import Decision, record
from ...frontend.normalize.engine import op_name
from ...frontend.tensor_types import HALF, dtype_of, static
from .operators import WIDTH, row_values

NORMS = ("relax.nn.layer_norm", "relax.nn.rms_norm")
FLOATS = (*HALF, "float32")
VECTOR = 8  # columns of a product that are stored together
LEAST_ROWS = 64  # with fewer, products are of other kernels
MOST_COLUMNS = 2048  # of x: every thread adds up the statistics of its rows
# Root of the mean square, and largest element, of a float16 matrix: its least normal numbers are
# 2^-14, and a column's mean that is taken off may double an element.
LEAST, MOST = 2.0**-10, 2.0**14
# What may stand between a product and the norm behind it.
_LIGHT = tuple(f"relax.{name}" for name in ("add", "astype", "reshape"))


@dataclass(frozen=True)
class Norm:
    """A norm that products read: its call, its rows, their elements, the products' half type."""

    call: relax.Call
    rows: int
    columns: int
    dtype: str

    @property
    def is_centred(self) -> bool:
        """Whether it takes the mean off: a layer norm, not an RMS norm."""
        return op_name(self.call) == NORMS[0]

    @property
    def epsilon(self) -> float:
        """What is added to the variance."""
        return float(self.call.attrs.epsilon)

    @property
    def row_values(self) -> Callable[..., Any]:
        """Make the operator of statistics that gives mean and rstd of rows, or rstd alone."""
        return row_values(self.rows, self.columns, self.epsilon)

    @property
    def scale(self) -> GenericConst:
        """Its scale, of each column."""
        return self.call.args[1]

    @property
    def shift(self) -> GenericConst | None:
        """What it adds to each column, if it does."""
        return self.call.args[2] if self.is_centred else None


def norms_between_products(func: relax.Function, multiprocessors: int) -> dict[int, Norm]:
    """Find the norms between products with constant matrices that are faster without a kernel.

    Returns
    -------
    dict of int to Norm
        By the hash of the norm's variable; refusals are recorded.
    """
    values = {hash(b.var): b.value for b in _bindings(func)}
    users: dict[int, list[relax.VarBinding]] = {}
    for b in _bindings(func):
        for var in relax.analysis.free_vars(b.value):
            users.setdefault(hash(var), []).append(b)
    found: dict[int, Norm] = {}
    for b in _bindings(func):
        readers = list(_readers(users, b.var)) if op_name(b.value) in NORMS else []
        if not any(map(is_product, readers)):
            continue
        norm = _between(b, readers, values, multiprocessors)
        if isinstance(norm, str):
            record(Decision(b.var.name, "", "refused", "no_norm_statistics", norm))
        else:
            found[hash(b.var)] = norm
    return found


def _between(
    binding: relax.VarBinding,
    readers: Sequence[Any],
    values: dict[int, Any],
    multiprocessors: int,
) -> Norm | str:
    """Read a norm in front of products, or say why it keeps its kernel."""
    call = binding.value
    products = [x for x in readers if is_product(x)]
    columns = _columns(call)
    widths = [_columns(x) or 1 for x in products]
    kinds = {dtype_of(x.args[1]) for x in products}
    if kinds <= set(HALF) and dtype_of(call.args[0]) == "float32":
        return (
            "Its rows are float32, as a model keeps them at a half precision; the product "
            f"before it would store them as {' and '.join(sorted(kinds))}, which rounds them "
            "and may overflow."
        )
    is_odd = len(kinds) > 1 or any(width % VECTOR for width in widths)
    norm = None if is_odd else _read(call, *kinds)
    if norm is None:
        return (
            f"It takes at least {LEAST_ROWS} rows of one half type, of a multiple of {WIDTH} "
            f"and at most {MOST_COLUMNS} elements, constant weights, and products after it of "
            f"a multiple of {VECTOR} columns."
        )
    if not _is_behind(call.args[0], values, columns, is_product):
        return "Its operand is not the sum of a product and a residual."
    if not all(_is_exact(norm, x.args[1]) for x in products):
        return "Its scale times the weight of a product after it overflows or underflows float16."
    if not isinstance(binding.var, relax.DataflowVar) or not all(
        is_product(x) or _is_residual(x, values, columns) for x in readers
    ):
        return "It has readers other than products and the residual sums after them."
    gain = gain_us(norm.rows, norm.columns, widths, multiprocessors)
    if gain > 0:
        return norm
    return (
        f"It saves less than the statistics of its {norm.rows} rows cost in the products "
        f"after it: {-gain:.1f} us by the model."
    )


def _readers(users: Mapping[int, Sequence[relax.VarBinding]], var: relax.Var) -> Iterator[Any]:
    """Yield what reads a variable, through reshapes and casts; those that are results, too."""
    for b in users.get(hash(var), ()):
        is_moved = is_same_rows(b.value)
        if not is_moved or not isinstance(b.var, relax.DataflowVar):
            yield b.value
        if is_moved:
            yield from _readers(users, b.var)


def _is_residual(value: Any, values: dict[int, Any], columns: int | None) -> bool:
    """Whether a value is a sum with a product, which computes the norm in its epilogue."""
    return op_name(value) == "relax.add" and any(
        _is_behind(x, values, columns, lambda y: op_name(y) == "relax.matmul") for x in value.args
    )


def is_same_rows(value: Any) -> bool:
    """Whether a value is a reshape, or a cast between types of floating point."""
    name = op_name(value)
    return name == "relax.reshape" or (name == "relax.astype" and dtype_of(value) in FLOATS)


def _read(call: relax.Call, dtype: str) -> Norm | None:
    x, weights = call.args[0], call.args[1:]
    sizes = [static(d) for d in x.ty.shape.values] if x.ty.shape is not None else [None]
    if None in sizes or dtype_of(x) != dtype or dtype_of(call) != dtype:
        return None
    *lead, columns = (s for s in sizes if s is not None)
    axes = [int(a) % len(sizes) for a in call.attrs.axes]
    rows = int(np.prod(lead))
    if axes != [len(sizes) - 1] or not all(isinstance(w, GenericConst) for w in weights):
        return None
    if columns % WIDTH or not WIDTH < columns <= MOST_COLUMNS or rows < LEAST_ROWS:
        return None
    return Norm(call, rows, columns, dtype)


def _is_exact(norm: Norm, weight: GenericConst) -> bool:
    """Whether a matrix times the scale stays within the normal numbers of its type."""
    if dtype_of(weight) != "float16":
        return True
    matrix, scale = (np.abs(x.value.numpy().astype("float64")) for x in (weight, norm.scale))
    typical = np.sqrt((matrix**2).mean() * (scale**2).mean())
    return bool(typical > LEAST and matrix.max() * scale.max() < MOST)


def _is_behind(
    x: Any, values: dict[int, Any], columns: int | None, is_wanted: Callable[[Any], bool]
) -> bool:
    """Whether the nearest that is wanted has as many columns as a tensor, after light operators."""
    frontier, seen = [x], 0
    while frontier and seen < 16:
        value = values.get(hash(frontier.pop(0)))
        seen += 1
        if value is not None and is_wanted(value):
            return _columns(value) == columns
        if value is not None and op_name(value) in _LIGHT:
            frontier += [a for a in value.args if isinstance(a, relax.Var)]
    return False


def _columns(x: relax.Expr) -> int | None:
    """Count a tensor's columns; None where they are not known."""
    shape = x.ty.shape
    return static(shape.values[-1]) if isinstance(shape, relax.ShapeExpr) else None


def is_product(value: Any) -> bool:
    """Whether a value is a product with a constant matrix of a half type."""
    return (
        op_name(value) == "relax.matmul"
        and isinstance(value.args[1], GenericConst)
        and value.args[1].ty.ndim == 2
        and dtype_of(value.args[1]) in HALF
    )


def _bindings(func: relax.Function) -> Iterator[relax.VarBinding]:
    if isinstance(func.body, relax.SeqExpr):
        for block in func.body.blocks:
            yield from (b for b in block.bindings if isinstance(b, relax.VarBinding))


# What norms as factors of rows save: the model that decides about them.
#
#     saved   the norm's launch, and its pass over x, which it reads and writes
#     paid    by each product behind it: statistics of rows, which every thread reads and adds up
#     for
#             each tile of results, and the factors of each result
#
# Fitted on one H100 to a product, a layer norm and a product, of 64 to 8,192 rows of 128 to 2,048
# elements (float16), 18 shapes: the model is right about all but one that gain or lose 0.3 us. The
# one, 512x768 and 3,072 columns behind it, loses 0.3 us of 13.1; 1024x640 and 1,920 gain 1.4 of
# 13.7, 4096x768 and 3,072 lose 4.4 of 52.8 (benchmarks/gpu/FUSED_GEMMS.md).
NORM, BYTES_PER_US = 1.4, 5.0e6  # of a norm's kernel; bytes of a half type come from the cache
TILE = 128 * 128  # results of which a multiprocessor reads the statistics of rows once
STATISTIC = 0.08  # us of each tile of results, for each tile of statistics of a row
RESULTS_PER_US = 5.0e4  # of a multiprocessor
HALF_BYTES = 2


def gain_us(rows: int, columns: int, widths: Iterable[int], multiprocessors: int) -> float:
    """Estimate what statistics with the product before a norm save; negative: cost.

    Parameters
    ----------
    widths
        Columns of each product behind the norm.

    Returns
    -------
    float
        Microseconds.
    """
    saved = NORM + 2 * HALF_BYTES * rows * columns / BYTES_PER_US
    for width in widths:
        results = rows * width / multiprocessors
        saved -= STATISTIC * columns / WIDTH * max(1.0, results / TILE)
        saved -= results / RESULTS_PER_US
    return saved
