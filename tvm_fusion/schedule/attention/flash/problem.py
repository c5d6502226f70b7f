"""Attention as FlashAttention on tensor cores reads it: operands of a half type, score, results."""

from dataclasses import dataclass

from tvm import DataType, ir, tirx

from ....core.tir.expressions import call_name, loads, variables
from ....core.tir.loops import find
from ....program.stage import Axis
from ...contraction.problem.epilogue.fuse import is_vector_code
from ...gpu.launch import VECTOR_BYTES
from ...index.address import conditions_of, known_step, same
from ..problem.kv_vectors import contiguous_loads, has_uniform_conditions, vector_width
from ..problem.mask_bounds import Bound
from ..problem.pattern import FLOAT, Pattern
from ..problem.score_form import ScoreForm

HALVES = ("float16", "bfloat16")
VECTOR = 8  # elements of a half type


@dataclass(frozen=True)
class Operand:
    """Elements of q, k or v."""

    element: ir.Expr  # in the half type
    along: Axis  # the head dimension
    # What vectors are copied from, each under conditions of its own; empty where elements are
    # computed, or are no aligned vectors.
    loads: tuple[ir.TensorLoad, ...]

    @property
    def extent(self) -> int:
        """Elements of a row."""
        return int(self.along.extent)

    @property
    def extent16(self) -> int:
        """The same, padded to whole fragments."""
        return -(-self.extent // 16) * 16

    def conditions(self, load: ir.TensorLoad) -> list[ir.Expr]:
        """List the conditions under which a vector is copied from a load."""
        return conditions_of(load, self.element)


@dataclass(frozen=True)
class FlashProblem:
    """What the kernel computes."""

    pattern: Pattern  # the attention
    query: Axis  # runs along the queries of a head
    half: str  # type of the operands of mma
    # The operands.
    q: Operand
    k: Operand
    v: Operand
    factor: ir.Expr | None  # factor of the scores that differs between rows or keys
    score: ScoreForm  # the input of softmax
    staged: str  # type in which finished elements pass through shared memory
    is_vector: bool  # whether results are stored in vectors

    @property
    def loaded_bounds(self) -> tuple[Bound, ...]:
        """The bounds that are read from memory by the row."""
        return tuple(b for b in self.score.bounds if b.is_loaded)

    @property
    def skips(self) -> bool:
        """Whether blocks skip tiles of keys."""
        return self.score.skips


def flash_problem(pattern: Pattern) -> FlashProblem | None:
    """Read a matched attention; ``None`` where operands are of no half type.

    Parameters
    ----------
    pattern
        The attention, constants written into it.
    """
    query = pattern.query
    if query is None:
        return None
    factors: list[ir.Expr] = []
    found: list[tuple[ir.Expr, Axis]] = []
    for operand, dtype, axis in zip(
        (pattern.q, pattern.k, pattern.v),
        pattern.operand_dtypes,
        (pattern.depth, pattern.depth, pattern.column),
        strict=True,
    ):
        element = operand
        if axis is pattern.depth:
            factor, element = _factored(operand, pattern.depth.var)
            factors += [] if factor is None else [factor]
        found.append((_narrowed(element, dtype), axis))
    types = {str(element.ty.dtype) for element, _ in found}
    (half,) = types if len(types) == 1 else (FLOAT,)
    if half not in HALVES:
        return None
    total = None
    for factor in factors:
        total = factor if total is None else total * factor
    is_constant = isinstance(total, tirx.FloatImm) and float(total.value) > 0
    q, k, v = (_operand(pattern, element, axis) for element, axis in found)
    score = ScoreForm.of(pattern, total if is_constant else None, takes_loads=True)
    staged, is_vector = _results(pattern, half)
    return FlashProblem(
        pattern, query, half, q, k, v, None if is_constant else total, score, staged, is_vector
    )


def _factored(operand: ir.Expr, along: ir.Var) -> tuple[ir.Expr | None, ir.Expr]:
    """Separate constant factors and those of a whole row."""
    if isinstance(operand, tirx.Mul):
        for factor, element in ((operand.b, operand.a), (operand.a, operand.b)):
            if along not in variables(factor):
                outer, element = _factored(element, along)
                if outer is None:
                    return factor, element
                if isinstance(outer, tirx.FloatImm) and isinstance(factor, tirx.FloatImm):
                    return tirx.const(float(outer.value) * float(factor.value), FLOAT), element
                return outer * factor, element
    return None, operand


def _narrowed(element: ir.Expr, dtype: str) -> ir.Expr:
    """Cast an element to its half type; one of another type stays as it is."""
    if call_name(element) == "if_then_else":
        condition, *branches = element.args
        then, otherwise = (_narrowed(branch, dtype) for branch in branches)
        if str(then.ty.dtype) == str(otherwise.ty.dtype):
            return tirx.if_then_else(condition, then, otherwise)
    if isinstance(element, tirx.Cast) and str(element.value.ty.dtype) in HALVES:
        return element.value
    return tirx.Cast(dtype, element) if dtype in HALVES else element


def _operand(pattern: Pattern, element: ir.Expr, along: Axis) -> Operand:
    found = contiguous_loads(pattern, element, along) if _is_movement(element) else ()
    if found and pattern.query is not None:
        found = found if vector_width([(x, along) for x in found]) == VECTOR else ()
    if any(not has_uniform_conditions(x, element, along, VECTOR) for x in found):
        found = ()
    if any(
        along.var in variables(x) and not any(same(x, y) for y in found) for x in loads(element)
    ):
        found = ()
    return Operand(element, along, found)


def _is_movement(element: ir.Expr) -> bool:
    """Whether an element is a load, or a choice of loads by position."""
    if call_name(element) == "if_then_else":
        return all(_is_movement(branch) for branch in element.args[1:])
    return isinstance(element, ir.TensorLoad)


def _results(pattern: Pattern, half: str) -> tuple[str, bool]:
    """Choose the type in which results are staged, and whether they are vectors."""
    product = pattern.product
    total = product.total
    staged = str(total.ty.dtype)
    if staged == FLOAT:
        casts = [
            c
            for r in product.results
            for c in find(r.value, tirx.Cast)
            if c.value.same_as(total) and str(c.ty.dtype) == half
        ]
        uses = sum(v.same_as(total) for r in product.results for v in find(r.value, ir.Var))
        staged = half if uses and uses == len(casts) else FLOAT
    lanes = VECTOR_BYTES // DataType(staged).itemsize
    (column,) = [a for a in product.stage.axes if pattern.own[a.var].same_as(pattern.column.var)]
    is_vector = int(pattern.column.extent) % lanes == 0
    axes = [a.var for a in product.stage.axes if a is not column]
    for r in product.results:
        step = known_step(r.buffer, r.indices, column.var, axes)
        is_vector &= step == 1 and is_vector_code(r, total)
    return staged, is_vector
