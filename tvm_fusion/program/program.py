"""The normal form of a group of operators, from which every kernel template works.

A program is a short list of stages: maps and reductions over explicit axes. Layout operators and
cheap maps are gone, substituted into their readers; every remaining load is one of an input or of
an earlier stage's target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm import ir, tirx
from tvm.tirx import Buffer

from .stage import Stage
from .to_tir import element_of, prim_func_of


@dataclass(frozen=True, eq=False)
class Program:
    """What a group of operators computes."""

    # In the order of the group's inputs and outputs. No stage reads an output.
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    scalars: tuple[ir.Var, ...]  # symbolic variables that are no bare dimension of an input
    # In an order in which every target is complete before another stage reads it.
    stages: tuple[Stage, ...]
    # The first ``row_rank`` axes are the rows: the same in every stage, and every load of an
    # earlier stage's target stays within its own row: the first indices of the load, and of the
    # target's write, are the rows of the stage.
    row_rank: int

    @cached_property
    def internal(self) -> tuple[Buffer, ...]:
        """Targets that are no outputs, in the order in which they are written."""
        outside = set(self.outputs)
        return tuple(t for s in self.stages for t in s.targets if t not in outside)

    def element(self, output: int, indices: Sequence[ir.Expr]) -> ir.Expr:
        """Express one element of an output over loads of inputs and of reductions' targets.

        Parameters
        ----------
        indices
            The element, one index per dimension of the output (int64).

        Returns
        -------
        PrimExpr
            Maps are put in place, kept ones too unless that makes more than 256 nodes. An output
            that a reduction writes is a load of it.
        """
        return element_of(self.stages, self.outputs[output], indices)

    def prim_func(self) -> tirx.PrimFunc:
        """Write the program as an unscheduled PrimFunc: one block per stage.

        Parameters are the inputs, the scalars, then the outputs. Loops stand one to one with the
        block iterators, in the order ``axes``, ``reduce``.
        """
        params = [*self.inputs, *self.scalars, *self.outputs]
        return prim_func_of(self.stages, params, self.internal, "main")
