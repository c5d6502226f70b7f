"""A planned dataflow block as calls of groups with tensors between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import tvm
from tvm import ir, relax

from ..ecg.graph import Value
from ..program.group import Group
from ..program.images import convolved_rank
from ..program.layouts import is_image
from ..schedule.stage.emit import group_of, is_group


@dataclass(eq=False)
class Tensor:
    """One tensor of the caller that groups read or write."""

    var: relax.Var  # its variable
    # None for what comes from outside of the block or from something else than a group.
    producer: GroupCall | None = None
    readers: list[GroupCall] = field(default_factory=list)  # without duplicates
    # Whether it must be there in the layout of the graph: function inputs and outputs, and what
    # anything else than a group reads or writes.
    is_fixed: bool = False

    @cached_property
    def shape(self) -> tuple[ir.Expr, ...]:
        """Extents over the caller's symbolic variables."""
        return tuple(self.var.ty.shape.values)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


@dataclass(eq=False)
class GroupCall:
    """The call of a group."""

    binding: relax.VarBinding
    gvar: ir.GlobalVar  # the group's function
    group: Group  # read back from it, shared by all calls
    # By the group's inputs that are tensors of the caller, constants left out.
    reads: dict[Value, Tensor]
    # By the group's outputs; unused ones are left out.
    writes: dict[Value, Tensor] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[Value, Tensor]:
        """What it reads and writes."""
        return {**self.reads, **self.writes}


@dataclass(frozen=True, eq=False)
class Calls:
    """The calls of groups in one dataflow block, in order, and the tensors."""

    calls: Sequence[GroupCall]
    tensors: Sequence[Tensor]


def group_calls(block: relax.DataflowBlock, groups: Groups) -> Calls:
    """Read a block whose operators are planned."""
    tensors: dict[relax.Var, Tensor] = {}
    calls: list[GroupCall] = []
    several: dict[relax.Var, GroupCall] = {}  # variables that hold all outputs of a call

    def tensor_of(var: relax.Var) -> Tensor:
        if var not in tensors:
            tensors[var] = Tensor(var, is_fixed=True)
        return tensors[var]

    def define(call: GroupCall, output: int, var: relax.Var) -> None:
        value = call.group.outputs[output]
        if value in call.writes:  # a second variable for the same result
            call.writes[value].is_fixed = tensor_of(var).is_fixed = True
            return
        is_inner = all(isinstance(v, relax.DataflowVar) for v in (var, call.binding.var))
        tensors[var] = call.writes[value] = Tensor(var, call, is_fixed=not is_inner)

    def fix(expr: relax.Expr) -> None:
        for var in _variables(expr):
            if var in several:
                for tensor in several.pop(var).writes.values():
                    tensor.is_fixed = True
            elif isinstance(var.ty, relax.TensorType):
                tensor_of(var).is_fixed = True

    for binding in block.bindings:
        value = binding.value
        group = groups.get(value.op) if isinstance(value, relax.Call) else None
        if group is not None and isinstance(binding, relax.VarBinding):
            args = [a for a in value.args if not isinstance(a.ty, relax.ShapeType)]
            call = GroupCall(binding, value.op, group, {})
            for operand, arg in zip(group.inputs, args, strict=True):
                if isinstance(arg, relax.Var) and not operand.is_parameter:
                    tensor = call.reads[operand] = tensor_of(arg)
                    if call not in tensor.readers:
                        tensor.readers.append(call)
            calls.append(call)
            if len(group.outputs) == 1:
                define(call, 0, binding.var)
            else:
                several[binding.var] = call
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in several:
            define(several[value.tuple_value], value.index, binding.var)
        else:
            fix(value)
    return Calls(calls, list(tensors.values()))


def images_around_convolutions(found: Calls) -> list[Tensor]:
    """List the images that convolutions read or write, and what groups make of them."""
    first = [t for call in found.calls if (r := _rank(call)) for t in _images(call, r)]
    reached = dict.fromkeys(first)
    frontier = list(reached)
    while frontier:
        tensor = frontier.pop()
        for call in (*tensor.readers, *([tensor.producer] if tensor.producer else [])):
            for other in _images(call, tensor.rank):
                if other not in reached:
                    reached[other] = None
                    frontier.append(other)
    return [t for t in found.tensors if t in reached]


def is_convolution(call: GroupCall) -> bool:
    """Whether a group has a convolution whose images may have a layout."""
    return _rank(call) > 0


def _rank(call: GroupCall) -> int:
    return max(map(convolved_rank, call.group.members), default=0)


def _images(call: GroupCall, rank: int) -> Iterator[Tensor]:
    return (t for t in call.tensors.values() if t.rank == rank and is_image(t.shape))


def _variables(expr: relax.Expr) -> list[relax.Var]:
    found: list[relax.Expr] = []
    relax.analysis.post_order_visit(expr, found.append)
    return [e for e in found if isinstance(e, relax.Var)]


class Groups:
    """The groups of a module that templates have claimed, read back once each."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        self._known: dict[ir.GlobalVar, Group | None] = {}

    def get(self, callee: object) -> Group | None:
        """Return the group that a call's callee is, if it is one."""
        if not isinstance(callee, ir.GlobalVar):
            return None
        if callee not in self._known:
            func = self._mod[callee]
            self._known[callee] = group_of(self._mod, func) if is_group(func) else None
        return self._known[callee]
