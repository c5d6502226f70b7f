"""Column reductions of few columns in two launches: parts of the terms, then the parts.

  first     partial[batch, part, k] = combine over the terms of a part; stores of each element
  second    C[batch, k] = combine over parts of partial[batch, part, k]

One launch has a block for a vector of columns: of 32 channels, a few multiprocessors read an image;
narrower vectors for more blocks read a part of each sector.
"""

import math
from dataclasses import dataclass, replace

from tvm import ir, relax, tirx

from ..._tvm.ir.buffer import declare
from ...core.contract.template import Emission, Kernel, Slot
from ...core.tir.expressions import load
from ...core.tir.loops import constant, index, substitute
from ...device import Device
from ...ecg.work import at
from ...program.group import Group
from ...program.stage import Axis
from ..contraction.problem.results import Result
from .config import column_blocks, column_config, narrowed
from .gpu import column_reduction_gpu
from .reduction import ColumnReduction, moved

# Of a column: on an H200 images of 56 by 56 pixels and 96 or 144 channels took 6.8 and 6.9 us in
# one launch, of 112 by 112 and 32 channels 3.6 in two; of 28 by 28 and 144 channels 2.7 in one.
LEAST_TERMS = 1 << 11
_WIDEST = 4  # float32 columns of a vector


@dataclass(frozen=True, eq=False)
class SplitColumns:
    """Both reductions and the workspace between them, ``(*batch, parts, columns)``."""

    first: ColumnReduction
    second: ColumnReduction
    partial: ir.Var

    @property
    def bytes_between(self) -> int:
        """Count what is written to the workspace and read again."""
        return 2 * 4 * math.prod(at(extent) for extent in self.partial.shape)

    def blocks(self, device: Device) -> int:
        """Count the blocks of the first launch."""
        view = narrowed(self.first, device)
        return column_blocks(view, column_config(view, device))

    def emission(self, group: Group, device: Device) -> Emission:
        """Write both kernels of a group."""
        program = group.program
        elements = [e.buffer for e in self.first.elements]
        early = [i for i, b in enumerate(program.outputs) if b in elements]
        late = [i for i, b in enumerate(program.outputs) if b not in elements]
        outputs = program.outputs
        first = replace(program, outputs=(*(outputs[i] for i in early), self.partial))
        second = replace(
            program,
            inputs=(*program.inputs, self.partial),
            outputs=tuple(outputs[i] for i in late),
        )
        views = [narrowed(view, device) for view in (self.first, self.second)]
        funcs = [
            column_reduction_gpu(part, view, column_config(view, device))
            for part, view in zip((first, second), views, strict=True)
        ]
        inputs = [Slot("input", i) for i in range(len(group.inputs))]
        scalars = [Slot("scalar", i) for i in range(len(group.scalars))]
        between = Slot("workspace", 0)
        return Emission(
            (
                Kernel(
                    funcs[0],
                    (*inputs, *scalars),
                    (*(Slot("output", i) for i in early), between),
                ),
                Kernel(
                    funcs[1],
                    (*inputs, between, *scalars),
                    tuple(Slot("output", i) for i in late),
                ),
            ),
            (relax.TensorType(list(self.partial.shape), "float32"),),
        )


def split_columns(view: ColumnReduction, device: Device) -> SplitColumns | None:
    """Split the terms of few columns; ``None`` where blocks are enough."""
    units = device.sm_count or 1
    terms = math.prod(constant(a.extent) or 1 for a in view.stage.reduce)
    is_narrow = narrowed(view, device).lanes < view.lanes  # vectors read a part of each sector
    axis = next((a for a in view.stage.reduce if constant(a.extent) != 1), None)
    if not is_narrow or terms < LEAST_TERMS or axis is None or view.dtype != "float32":
        return None
    columns = constant(view.k.extent) or 1
    vectors = math.prod(at(a.extent) for a in view.batch) * columns // view.lanes
    size = constant(axis.extent) or 1
    parts = max(d for d in range(1, max(1, units // vectors) + 1) if size % d == 0)
    if parts == 1 or any(constant(a.extent) is None for a in view.batch):
        return None
    part, inner, joined = (
        Axis(tirx.Var(name, "int64"), index(extent))
        for name, extent in (("part", parts), (axis.var.name, size // parts), ("p", parts))
    )
    place = {axis.var: part.var * index(size // parts) + inner.var}
    extents = [a.extent for a in (*view.batch, part, view.k)]
    partial = declare(extents, "float32", f"{view.stage.targets[0].name}_partial")
    where = [a.var for a in view.batch]
    reduce = tuple(inner if a is axis else a for a in view.stage.reduce)
    first = replace(
        view,
        stage=replace(view.stage, reduce=reduce),
        batch=(*view.batch, part),
        term=substitute(view.term, place),
        results=(Result(partial, (*where, part.var, view.k.var), view.total, None),),
        elements=tuple(moved(e, place) for e in view.elements),
    )
    second = replace(
        view,
        stage=replace(view.stage, reduce=(joined,)),
        term=load(partial, [*where, joined.var, view.k.var]),
        elements=(),
        lanes=math.gcd(columns, _WIDEST),
    )
    return SplitColumns(first, second, partial)
