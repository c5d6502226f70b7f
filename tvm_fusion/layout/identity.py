"""Groups that copy a tensor onto itself, because of the layouts that their images have in memory.

    graph     x[n, h, w, c]  -> permute_dims ->  y[n, c, h, w]
    memory    x[n, h, w, c]                      y[n, h, w, c]    the same tensor: no kernel

Such are the transposes around convolutions of a graph whose own images are channels-last.
"""

from tvm import ir, sym

from ..core.tir.loops import constant
from ..ecg.mapping_types.table import MappingType
from ..program.group import Group
from ..program.program import Program
from ..program.stage import Unstructured
from ..schedule.index.address import offset
from ..schedule.index.inline import inlined, inlined_size

_MOVES = (MappingType.ONE_TO_ONE, MappingType.REORGANIZE, MappingType.SHUFFLE)


def is_identity(group: Group) -> bool:
    """Whether a group's only output is its only input, element by element."""
    if len(group.inputs) != 1 or len(group.outputs) != 1:
        return False
    (source,), (result,) = group.inputs, group.outputs
    same = source.dtype == result.dtype and _shape(source.type) == _shape(result.type)
    if not same or any(op.type not in _MOVES for op in group.members):
        return False
    try:
        return _keeps_places(group.program)
    except Unstructured:
        return False


def _shape(type_: ir.Type) -> list[str]:
    return [str(extent) for extent in type_.shape]


def _keeps_places(program: Program) -> bool:
    if inlined_size(program) is not None:
        return False
    stages = inlined(program)
    if len(stages) != 1 or not stages[0].is_map:
        return False
    (stage,) = stages
    (value,), (target,), (where,) = stage.values, stage.targets, stage.indices
    if not isinstance(value, ir.TensorLoad):
        return False
    analyzer = sym.Analyzer()
    for axis in stage.axes:
        if constant(axis.extent) is not None:
            analyzer.bind(axis.var, ir.Range.from_min_extent(0, axis.extent))
    return analyzer.can_prove_equal(offset(value.source, value.indices), offset(target, where))
