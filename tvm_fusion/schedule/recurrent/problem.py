"""A recurrent layer as kernels see it: its buffers, states and packed weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, relax, tirx

from ..._tvm.ir.buffer import declare
from ...core.contract.template import Slot
from ...core.recurrent.buffers import RecurrentBuffers
from ...core.recurrent.cell import Recurrence, recurrence_of
from ...core.tir.loops import index
from ...ecg.graph import Value
from ...program.group import Group
from ...program.stage import Axis
from ..contraction.problem.functions.packing import packing_function


@dataclass(frozen=True, eq=False)
class RecurrentProblem:
    """A recurrent layer of a group, which is nothing else."""

    buffers: RecurrentBuffers  # operands and results; results that nothing reads are absent
    # The buffers of the group's inputs and outputs.
    inputs: tuple[ir.Var, ...]
    outputs: tuple[ir.Var, ...]
    weights: int  # which of the inputs the recurrent weights are

    @classmethod
    def of(cls, group: Group) -> RecurrentProblem | None:
        """Read a group; None where it is something else."""
        (op, *others) = group.members
        layer = recurrence_of(op.func)
        if others or layer is None:
            return None
        tensors = [o for o in op.operands if isinstance(o, Value)]
        by_value: dict[Value, ir.Var] = {}
        buffers: dict[str, ir.Var] = {}
        names = (*layer.operands, *layer.results)
        for name, value in zip(names, (*tensors, *op.results), strict=True):
            is_wanted = value in group.inputs or value in group.outputs
            if is_wanted and value not in by_value:
                by_value[value] = declare(list(value.shape), value.dtype, name)
            if is_wanted:
                buffers[name] = by_value[value]
        return cls(
            RecurrentBuffers(layer, buffers),
            tuple(by_value[v] for v in group.inputs),
            tuple(by_value[v] for v in group.outputs),
            group.inputs.index(tensors[1]),
        )

    @property
    def layer(self) -> Recurrence:
        """The layer."""
        return self.buffers.layer

    def states(self) -> dict[str, ir.Var]:
        """Declare workspaces: two of the hidden state, one of each value that a row keeps."""
        buffers, layer = self.buffers, self.layer
        shape = [index(layer.directions), buffers.batch, index(buffers.hidden)]
        kept = {name: declare(shape, buffers.dtype, name) for name in layer.kept}
        return {"h": declare([index(2), *shape], buffers.dtype, "h"), **kept}

    def reads(self, scalars: int) -> tuple[Slot, ...]:
        """Slots of the inputs and of symbolic variables."""
        inputs = [Slot("input", i) for i in range(len(self.inputs))]
        return (*inputs, *(Slot("scalar", i) for i in range(scalars)))

    def packing(self, packed: ir.Var, order: str, axes: str, width: int) -> tirx.PrimFunc:
        """Make the function that packs the recurrent weights; missing units are zeros.

        Parameters
        ----------
        order
            Gates, as they stand in it.
        axes
            Its axes: ``D`` direction, ``N`` block of units, ``K`` unit of the state before,
            ``G`` gate, ``U`` unit of a block.
        """
        buffers = self.buffers
        variables = [tirx.Var(axis.lower(), "int64") for axis in axes]
        at = dict(zip(axes, variables, strict=True))
        unit = at["N"] * width + at["U"] if "N" in at else at["U"]
        inside = tirx.min(unit, index(buffers.hidden - 1))
        rows = [index(self.layer.gates.index(gate) * buffers.hidden) for gate in order]
        start = rows[-1]
        for number in range(len(rows) - 2, -1, -1):
            start = tirx.Select(tirx.EQ(at["G"], index(number)), rows[number], start)
        source = buffers.buffers["weights"]
        value: ir.Expr = tirx.BufferLoad(source, [at["D"], start + inside, at["K"]])
        if str(value.ty.dtype) != str(packed.dtype):
            value = tirx.Cast(str(packed.dtype), value)
        if "N" in at and buffers.hidden % width:
            zero = tirx.const(0, str(packed.dtype))
            value = tirx.if_then_else(unit < index(buffers.hidden), value, zero)
        loops = [Axis(v, extent) for v, extent in zip(variables, packed.shape, strict=True)]
        return packing_function(source, packed, loops, value)


def workspace_types(states: Sequence[ir.Var]) -> tuple[relax.TensorType, ...]:
    """List the types of workspaces."""
    return tuple(relax.TensorType(list(s.shape), str(s.dtype)) for s in states)
