"""Fast math for rows with half-type results on a GPU: below the rounding of the result."""

import math

import tvm_ffi
from tvm import ir, tirx

from .....core.tir.expressions import call_name, loads
from ....math.half_math import HALF_TYPES
from ...program.row_program import RowProgram, RowStage
from .one_pass_variance import with_one_pass_variance


def with_half_precision_math(program: RowProgram, one_pass: bool = False) -> RowProgram:
    """Save instructions where the error stays below the rounding of a half-type result.

    * A round trip from float32 through a half type is dropped, which is more exact.
    * Where all results are of half types, a mean is a sum times a reciprocal; and where it is
      subtracted before a factor, it is subtracted after it, with one multiply-add. Either error is
      as large as the mean's own rounding.
    * An exponential that only enters ratios of half-type results, as in softmax, may be off by a
      factor of less than ``1 + 2**-16``: ``exp2`` of a rounded exponent has two thirds of the
      instructions. So may a sum of such; differences and float32 results are exact as before.

    Parameters
    ----------
    one_pass
        Whether the variance of a row is computed together with its mean.
    """
    program = program.map_values(without_round_trips)
    if _has_half_results(program):
        program = _with_loose_means(program)
        program = with_one_pass_variance(program) if one_pass else program
    return program.with_stages(
        [
            stage.with_values([_power_of_two(stage.values[0])])
            if _is_exponential(stage) and _makes_ratios(program, stage)
            else stage
            for stage in program.stages
        ]
    )


def without_round_trips(value: ir.Expr) -> ir.Expr:
    """Drop conversions from float32 to a half type and back."""

    def drop(cast: tirx.Cast) -> ir.Expr:
        inner = cast.value
        is_rounding = isinstance(inner, tirx.Cast) and str(inner.ty.dtype) in HALF_TYPES
        if not is_rounding or not _is_float32(cast) or not _is_float32(inner.value):
            return cast
        return inner.value

    return tvm_ffi.structural_map(value, (tirx.Cast, drop), order="post")


def _has_half_results(program: RowProgram) -> bool:
    """Whether all results of a program are of half types."""
    return all(
        str(target.dtype) in HALF_TYPES
        for stage in program.stages
        for target in stage.targets
        if not program.is_internal(target)
    )


def _with_loose_means(program: RowProgram) -> RowProgram:
    def is_sum(expr: ir.Expr) -> bool:
        if not isinstance(expr, ir.TensorLoad) or not program.is_internal(expr.source):
            return False
        producer = program.producer(expr.source)
        combine = producer.combine
        return combine is not None and isinstance(combine.values[0], tirx.Add)

    def divided(quotient: tirx.Div) -> ir.Expr:
        if not is_sum(quotient.a) or not isinstance(quotient.b, tirx.FloatImm):
            return quotient
        return quotient.a * tirx.const(1 / quotient.b.value, str(quotient.ty.dtype))

    def is_mean(expr: ir.Expr) -> bool:
        return isinstance(expr, tirx.Mul) and is_sum(expr.a) and isinstance(expr.b, tirx.FloatImm)

    def is_scale(expr: ir.Expr) -> bool:
        """Whether an expression depends on sums of the row only."""
        reads = loads(expr)
        return bool(reads) and all(is_sum(load) for load in reads)

    def shifted(product: tirx.Mul) -> ir.Expr:
        for difference, scale in ((product.a, product.b), (product.b, product.a)):
            if isinstance(difference, tirx.Sub) and is_mean(difference.b) and is_scale(scale):
                return difference.a * scale - difference.b * scale
        return product

    def loose(value: ir.Expr) -> ir.Expr:
        value = tvm_ffi.structural_map(value, (tirx.Div, divided), order="post")
        return tvm_ffi.structural_map(value, (tirx.Mul, shifted), order="post")

    return program.map_values(loose)


def _is_exponential(stage: RowStage) -> bool:
    value = stage.values[0]
    return stage.is_map and _is_float32(value) and call_name(value) == "exp"


def _power_of_two(value: ir.Call) -> ir.Expr:
    return tirx.exp2(value.args[0] * tirx.const(math.log2(math.e), "float32"))


def _makes_ratios(program: RowProgram, producer: RowStage) -> bool:
    """Whether a stage's results are used as factors of half-type results only."""
    (buffer,) = producer.targets
    if not program.is_internal(buffer):
        return False
    return all(
        _takes_factor(program, reader, buffer)
        for reader in program.stages
        if any(load.source.same_as(buffer) for load in reader.loads)
    )


def _takes_factor(program: RowProgram, reader: RowStage, buffer: ir.Var) -> bool:
    (value, *more) = reader.values
    if more:
        return False
    if reader.combine is not None:
        is_sum = isinstance(reader.combine.values[0], tirx.Add)
        is_term = isinstance(value, ir.TensorLoad) and value.source.same_as(buffer)
        return is_sum and is_term and _makes_ratios(program, reader)
    if isinstance(value, tirx.Cast) and str(value.ty.dtype) in HALF_TYPES:
        return _is_float32(value.value) and _is_factor(value.value, buffer)
    return _is_float32(value) and _is_factor(value, buffer) and _makes_ratios(program, reader)


def _is_factor(expr: ir.Expr, buffer: ir.Var) -> bool:
    """Whether a buffer's element is only a factor or divisor of an expression."""
    if not any(load.source.same_as(buffer) for load in loads(expr)):
        return True
    if isinstance(expr, tirx.Mul | tirx.Div):
        return _is_factor(expr.a, buffer) and _is_factor(expr.b, buffer)
    return isinstance(expr, ir.TensorLoad) and expr.source.same_as(buffer)


def _is_float32(expr: ir.Expr) -> bool:
    return str(expr.ty.dtype) == "float32"
