"""Axes and accesses of a block for the CPU schedule, and the inlining of elementwise blocks."""

from dataclasses import dataclass

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.schedule import SBlockRV

MAX_INLINED_NODES = 256  # expression nodes after inlining; diamonds would grow exponentially


@dataclass(frozen=True)
class BlockInfo:
    """A block ``write[...] = f(reads[...])`` whose loops correspond one to one to its iterators."""

    # Positions of the data-parallel and of the reduction iterators.
    spatial: tuple[int, ...]
    reduce: tuple[int, ...]
    variables: tuple[ir.Var, ...]  # the iterators' variables
    extents: tuple[int | None, ...]  # the iterators' extents; ``None`` where symbolic
    write: tirx.BufferStore  # the block's only store
    reads: tuple[ir.TensorLoad, ...]  # every load of the value, without those of the written buffer

    @property
    def is_map(self) -> bool:
        """No reduction: each output element is written once."""
        return not self.reduce

    @property
    def is_contraction(self) -> bool:
        """A reduction over two operands, one of whose vectors serves several output rows."""
        operands = {load.source for load in self.reads}
        return bool(
            self.reduce
            and self.spatial
            and len(operands) == 2
            and any(self.uses(load, self.spatial[-1]) for load in self.reads)
            and all(self.reusing_axes(load) for load in self.reads)
        )

    def reusing_axes(self, load: ir.TensorLoad) -> list[int]:
        """List spatial axes that do not index a load, along which its elements are reused."""
        return [a for a in self.spatial if self.extents[a] != 1 and not self.uses(load, a)]

    def uses(self, load: ir.TensorLoad, axis: int) -> bool:
        """Whether an iterator appears in the index of a load."""
        return any(_mentions(index, self.variables[axis]) for index in load.indices)

    def is_contiguous(self, load: ir.TensorLoad, axis: int) -> bool:
        """Whether neighbouring values of an iterator read neighbouring elements of a load."""
        variable = self.variables[axis]
        if not load.indices or any(_mentions(i, variable) for i in load.indices[:-1]):
            return False
        step = tvm_ffi.structural_map(
            load.indices[-1],
            (ir.Var, lambda v: v + 1 if v.same_as(variable) else v),
            order="post",
        )
        return sym.Analyzer().can_prove_equal(step - load.indices[-1], 1)


def block_info(sch: s_tir.Schedule, block: SBlockRV) -> BlockInfo | None:
    """Describe a block; ``None`` unless it is a single store with one loop per iterator."""
    stmt = sch.get(block)
    if not isinstance(stmt.body, tirx.BufferStore) or len(sch.get_loops(block)) != len(
        stmt.iter_vars
    ):
        return None
    kinds = [iv.iter_type for iv in stmt.iter_vars]
    if any(k not in (tirx.IterVar.DataPar, tirx.IterVar.CommReduce) for k in kinds):
        return None
    loads = _loads(stmt.body.value)
    return BlockInfo(
        spatial=tuple(i for i, k in enumerate(kinds) if k == tirx.IterVar.DataPar),
        reduce=tuple(i for i, k in enumerate(kinds) if k == tirx.IterVar.CommReduce),
        variables=tuple(iv.var for iv in stmt.iter_vars),
        extents=tuple(_constant(iv.dom.extent) for iv in stmt.iter_vars),
        write=stmt.body,
        reads=tuple(load for load in loads if not load.source.same_as(stmt.body.buffer)),
    )


def inline_maps(sch: s_tir.Schedule) -> None:
    """Inline every map into its consumers where that recomputes nothing expensive.

    Into maps always, up to a size of expression; into reductions only what is a plain copy that
    keeps the innermost axis, since the reduction would evaluate it once per term.
    """
    changed = True
    while changed:
        changed = False
        for block in sch.get_child_blocks(sch.get_sblock("root")):
            if _should_inline(sch, block):
                sch.compute_inline(block)
                changed = True


def _should_inline(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    info = block_info(sch, block)
    consumers = sch.get_consumers(block)
    if info is None or not info.is_map or not consumers or _is_output(sch, block):
        return False
    copies = 0
    for consumer in consumers:
        other = block_info(sch, consumer)
        if other is None or (not other.is_map and not _is_inner_copy(info)):
            return False
        uses = [
            load for load in _loads(other.write.value) if load.source.same_as(info.write.buffer)
        ]
        copies = max(copies, len(uses))
        if _size(other.write.value) + copies * _size(info.write.value) > MAX_INLINED_NODES:
            return False
    return True


def _is_inner_copy(info: BlockInfo) -> bool:
    value = info.write.value
    return isinstance(value, ir.TensorLoad) and info.is_contiguous(value, len(info.variables) - 1)


def _is_output(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    root = sch.get(sch.get_sblock("root"))
    written = sch.get(block).body.buffer
    return not any(written.same_as(buffer) for buffer in root.alloc_buffers)


def _loads(expr: ir.Expr) -> list[ir.TensorLoad]:
    found: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(expr, (ir.TensorLoad, found.append))
    return found


def _size(expr: ir.Expr) -> int:
    nodes: list[ir.Expr] = []
    tvm_ffi.structural_walk(expr, (ir.Expr, nodes.append))
    return len(nodes)


def _mentions(expr: ir.Expr, variable: ir.Var) -> bool:
    return any(v.same_as(variable) for v in tirx.analysis.undefined_vars(expr))


def _constant(extent: ir.Expr) -> int | None:
    return int(extent) if isinstance(extent, tirx.IntImm) else None
