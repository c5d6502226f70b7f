"""A group whose operands and results have layouts: index maps become members of it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from tvm import ir, relax, tirx

from ..ecg.graph import Operator, Value
from .group import Group
from .layouts import Layout, read_map, write_map
from .stages.bind import share_buffer, share_parts

_CALL_TIR = ir.Op.get("relax.call_tir")
_numbers = count()
Naming = Callable[[tirx.PrimFunc, str], ir.GlobalVar]  # gives an operator's PrimFunc its name


@lru_cache(maxsize=4096)
def placeholder(func: tirx.PrimFunc, name: str) -> ir.GlobalVar:
    """Name the PrimFunc of an index map that is in no module, for claims."""
    return ir.GlobalVar(name)


@lru_cache(maxsize=4096)
def unique(func: tirx.PrimFunc, name: str) -> ir.GlobalVar:
    """Name the PrimFunc of an index map as no other function of a module is named."""
    return ir.GlobalVar(f"layout{next(_numbers)}_{name}")


@dataclass(frozen=True, eq=False)
class Variant:
    """A group under layouts, and which of its tensors stand for which of the original ones."""

    group: Group  # with the index maps as members
    original: Mapping[Value, Value]  # of its inputs and outputs: those of the original group


def variant(
    group: Group,
    layouts: Mapping[Value, Layout],
    naming: Naming = placeholder,
    twice: Collection[Value] = (),
) -> Variant:
    """Let a group read and write tensors in layouts.

    Parameters
    ----------
    group
        Over the layout of the graph.
    layouts
        Of some of its inputs and outputs.
    naming
        Names the PrimFuncs of index maps.
    twice
        Outputs among these that it writes in the layout of the graph as well.

    Returns
    -------
    Variant
        Its operators are copies, over the same buffers: no program has both.
    """
    new: dict[Value, Value] = {}
    original: dict[Value, Value] = {}
    members: list[Operator] = []
    for value in group.inputs:
        layout = layouts.get(value)
        if layout is None:
            new[value] = value
            original[value] = value
            continue
        stored = laid_out(value, layout)
        original[stored] = value
        op = read(stored, value, layout, naming)
        op.index = len(members) - len(group.inputs)
        members.append(op)
        share_buffer(op.results[0], value)
        new[value] = op.results[0]
    for op in group.members:
        operands = tuple(new[o] if isinstance(o, Value) else o for o in op.operands)
        copy = Operator(op.index, op.name, op.func, op.gvar, operands, (), op.binding)
        results = []
        for value in op.results:
            own = Value(value.name, value.type, copy, is_parameter=value.is_parameter)
            share_buffer(own, value)
            new[value] = own
            if value in group.outputs and (value not in layouts or value in twice):
                own.leaves = True
                original[own] = value
            results.append(own)
        copy.results = tuple(results)
        share_parts(copy, op)
        members.append(copy)
    last = group.members[-1].index
    for value in group.outputs:
        layout = layouts.get(value)
        if layout is not None:
            op = write(new[value], layout, naming)
            last += 1
            op.index = last
            members.append(op)
            original[op.results[0]] = value
    inside = set(members)
    for op in members:
        for value in dict.fromkeys(op.tensors):
            if value.producer in inside:
                value.consumers.append(op)
    return Variant(Group(members), original)


def laid_out(value: Value, layout: Layout) -> Value:
    """Make the tensor that holds another one in a layout."""
    type_ = relax.TensorType(layout.shape(value.shape), value.dtype, value.type.vdevice)
    return Value(f"{value.name}_{layout.name(len(value.shape))}", type_)


def read(stored: Value, value: Value, layout: Layout, naming: Naming) -> Operator:
    """Make the operator from a tensor in a layout to the tensor of the graph."""
    func = read_map(value.shape, value.dtype, layout)
    name = f"from_{layout.name(len(value.shape))}"
    return _operator(func, naming(func, name), stored, value.name, value.type)


def write(value: Value, layout: Layout, naming: Naming) -> Operator:
    """Make the operator from a tensor of the graph to the tensor in a layout, which leaves."""
    func = write_map(value.shape, value.dtype, layout)
    result = laid_out(value, layout)
    op = _operator(
        func, naming(func, f"to_{layout.name(len(value.shape))}"), value, result.name, result.type
    )
    op.results[0].leaves = True
    return op


def _operator(
    func: tirx.PrimFunc, gvar: ir.GlobalVar, operand: Value, name: str, type_: relax.TensorType
) -> Operator:
    var = relax.DataflowVar(name, type_)
    arg = relax.Var(operand.name, operand.type)
    call = relax.Call(_CALL_TIR, [gvar, relax.Tuple([arg])], None, [type_])
    op = Operator(0, name, func, gvar, (operand,), (), relax.VarBinding(var, call))
    op.results = (Value(name, type_, op),)
    return op
