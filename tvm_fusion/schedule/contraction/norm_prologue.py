"""A left operand that is a row program: a norm, or what else needs whole rows of another tensor.

Each task computes the rows of its block before the product reads them, so that they never reach
memory. Tasks that share rows compute them anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, tirx

from ..._tvm_buffer import declare
from ...fusion.expressions import load, loads, variables
from ...fusion.program import Axis, Program, Stage
from ..loops import constant, substitute
from ..template import Refusal
from .operands import factors_of, is_contraction


@dataclass(frozen=True)
class RowPrologue:
    """A program cut in two: rows, and the product that reads them.

    Attributes
    ----------
    rows : Program
        Reductions over rows, and maps of them; its last output is ``operand``.
    product : Program
        One contraction of ``operand``, the last of its inputs.
    operand : Var
        The left operand: a buffer of the rows' axes, then of the terms.
    """

    rows: Program
    product: Program
    operand: ir.Var

    @property
    def terms(self) -> int:
        """Elements of a row."""
        return math.prod(int(d) for d in self.operand.ty.shape[self.rows.rows :])


def row_prologue(program: Program) -> RowPrologue | Refusal:
    """Cut a program whose last reduction is a contraction of rows that the others compute.

    Parameters
    ----------
    program : Program
        With several reductions.

    Returns
    -------
    RowPrologue or Refusal
        The refusal says what is different.
    """
    reductions = [s for s in program.stages if not s.is_map]
    contractions = [s for s in reductions if is_contraction(s)]
    if len(contractions) != 1 or contractions[0] is not reductions[-1]:
        return Refusal(
            "not_mine", f"Of {len(reductions)} reductions, {len(contractions)} are contractions."
        )
    (stage,) = contractions
    after = _depending(program, stage)
    before = [s for s in program.stages if s not in after]
    computed = {t for s in before for t in s.targets}
    factor = _factor(stage, computed)
    if factor is None or any(
        x.source in computed for s in after for x in s.loads if s is not stage
    ):
        return Refusal("not_mine", f"More than one operand of {stage.name} needs reductions.")
    rows = stage.axes[: program.rows]
    axes = (*rows, *stage.reduce)
    if variables(factor) & {a.var for a in stage.axes} - {a.var for a in rows}:
        return Refusal("not_mine", f"The columns of {stage.name} need rows of their own.")
    if any(constant(a.extent) is None for a in stage.reduce):
        return Refusal("row_too_long", f"The terms of {stage.name} are not known.")
    shape = [a.extent for a in axes]
    operand = declare(shape, str(factor.ty.dtype), "rows")
    swapped = swap(stage, factor, load(operand, [a.var for a in axes]))
    written = [b for b in program.outputs if b in computed]
    fresh = tuple(Axis(tirx.Var(a.var.name, "int64"), a.extent) for a in axes)
    place = {a.var: f.var for a, f in zip(axes, fresh, strict=True)}
    copy = Stage(
        "operand",
        fresh,
        (),
        (operand,),
        (tuple(f.var for f in fresh),),
        (substitute(factor, place),),
        None,
    )
    product_stages = tuple(swapped if s is stage else s for s in after)
    return RowPrologue(
        _program(program, (*before, copy), (*written, operand)),
        replace(
            program,
            inputs=(*program.inputs, operand),
            outputs=tuple(b for b in program.outputs if b not in computed),
            stages=product_stages,
        ),
        operand,
    )


def _program(program: Program, stages: tuple[Stage, ...], outputs: tuple[ir.Var, ...]) -> Program:
    used = {x.source for s in stages for x in s.loads}
    inputs = tuple(b for b in program.inputs if b in used)
    return replace(program, inputs=inputs, outputs=outputs, stages=stages)


def _depending(program: Program, stage: Stage) -> list[Stage]:
    """List a stage and those that need it."""
    found, written = [stage], set(stage.targets)
    for other in program.stages:
        if other is not stage and written & other.reads:
            found.append(other)
            written |= set(other.targets)
    return found


def _factor(stage: Stage, computed: set[ir.Var]) -> ir.Expr | None:
    """Find the one factor that reads what other stages compute."""
    factors = [f for f in factors_of(stage) or () if any(x.source in computed for x in loads(f))]
    return factors[0] if len(factors) == 1 else None


def swap(stage: Stage, factor: ir.Expr, other: ir.Expr) -> Stage:
    """Put another expression in a factor's place."""

    def swap(node: ir.Expr) -> ir.Expr:
        return other if node.same_as(factor) else node

    values = tuple(
        tvm_ffi.structural_map(v, (type(factor), swap), order="post") for v in stage.values
    )
    return replace(stage, values=values)
