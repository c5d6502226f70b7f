"""The fallback: one operator, scheduled by the first guarded rule that works for it.

On CPUs it takes tensors that are made of nothing (zeros to add up in, positions) along with the
operator that alone reads them: their elements are expressions in its loops.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import s_tir, tirx
from tvm.target import Target

from ...core.contract.template import Claim, Emission, Kernel, Refusal, Slot, Template
from ...device import Device
from ...ecg.graph import Graph, Operator
from ...ecg.mapping_types.table import MappingType
from ...ecg.work import at, bytes_of, is_cheap
from ...program.group import Group
from ...program.primitive import merged
from ..stage.guard import schedule_function
from .rules import rules


class Single(Template):
    """Any one operator, also those that are no program: scans, sorts, scatters, custom TIR.

    It may take several launches, and never refuses a single operator, so a build cannot fail here.
    """

    name = "single"
    is_fallback = True

    def __init__(self, is_gpu: bool) -> None:
        self._is_gpu = is_gpu

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim a group of one member, and what it reads that is made of nothing."""
        *made, op = group.members
        is_one = not made or (not self._is_gpu and len(group.outputs) == len(op.results))
        if op.func is None or not is_one or not all(map(_is_made_of_nothing, made)):
            return Refusal("one_operator_only", "The fallback takes one operator alone.")
        if made and not _can_merge(op.func):
            return Refusal("one_operator_only", "Its buffers have symbolic element offsets.")
        structure = _structure(op.func)
        return Claim(
            self,
            group,
            launches=structure.nests,
            bytes=group.bytes + 2 * structure.buffer_bytes,
            flops=op.flops,
            parallelism=max(1, sum(v.bytes for v in op.results) // 4096),
        )

    def propose(self, graph: Graph, device: Device) -> Iterable[tuple[Operator, ...]]:
        """Propose opaque operators with what they alone read that is made of nothing."""
        if self._is_gpu:
            return
        for op in graph.operators:
            if op.type is not MappingType.OPAQUE or op.func is None or not _can_merge(op.func):
                continue
            made = [
                v.producer
                for v in dict.fromkeys(op.tensors)
                if v.producer is not None and not v.leaves and set(v.consumers) == {op}
            ]
            if own := [m for m in made if m.func is not None and _is_made_of_nothing(m)]:
                yield (*own, op)

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Schedule the operator's own PrimFunc."""
        group, whole = claim.group, _with_all_results(claim.group)
        kinds, check = rules(target)
        func = _inlined(group.members[:-1], _plain(whole))
        func = schedule_function(group.title, func, target, kinds, check)
        (reading,) = Emission.one(func, group).kernels
        unread = [v for v in whole.outputs if v not in group.outputs]
        writes = tuple(
            Slot("workspace", unread.index(v))
            if v in unread
            else Slot("output", group.outputs.index(v))
            for v in whole.outputs
        )
        kernel = Kernel(func, reading.reads, writes)
        return Emission((kernel,), workspaces=tuple(v.type for v in unread))


def _with_all_results(group: Group) -> Group:
    """Return the group with every result of its operator as an output.

    A PrimFunc that keeps a result to itself allocates it, which a GPU kernel cannot.
    """
    whole = Group(group.members)
    whole.outputs = group.members[-1].results
    return whole


def _can_merge(func: tirx.PrimFunc) -> bool:
    """Whether FuseTIR can merge a PrimFunc: not where a symbol tells where a buffer begins."""
    offsets = [getattr(param.ty, "elem_offset", None) for param in func.params]
    return all(isinstance(offset, tirx.IntImm | None) for offset in offsets)


def _is_made_of_nothing(op: Operator) -> bool:
    """Whether elements are cheap expressions of their positions."""
    return not op.tensors and len(op.results) == 1 and is_cheap(op.func)


def _inlined(made: Sequence[Operator], func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Compute elements where they are read."""
    if not made:
        return func
    sch = s_tir.Schedule(func)
    for block in sch.get_child_blocks(sch.get_sblock("root"))[: len(made)]:
        sch.compute_inline(block)
    return sch.mod["main"]


def _plain(group: Group) -> tirx.PrimFunc:
    """Return the operator's PrimFunc with the group's parameters.

    Merging does not substitute symbolic arguments in calls of external functions; so a symbolic
    operator keeps its own PrimFunc where its parameters are the group's.
    """
    op = group.members[-1]
    is_symbolic = any(not isinstance(d, tirx.IntImm) for v in op.results for d in v.shape)
    own = (*op.operands, *op.results)
    has_its_parameters = own == (*group.inputs, *group.scalars, *group.outputs)
    if len(group) == 1 and op.func is not None and is_symbolic and has_its_parameters:
        return op.func
    return merged(group)


@dataclass(frozen=True)
class _Structure:
    """Expected loop nests behind the rules, and the buffers between them."""

    nests: int
    buffer_bytes: int


def _structure(func: tirx.PrimFunc) -> _Structure:
    """Count blocks; maps that write an internal buffer are inlined.

    A scheduled PrimFunc has a grid for every binding of ``blockIdx.x``.
    """
    blocks: list[s_tir.SBlock] = []
    attrs: list[tirx.AttrStmt] = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, blocks.append))
    tvm_ffi.structural_walk(func.body, (tirx.AttrStmt, attrs.append))
    grids = sum(
        a.attr_key == "thread_extent" and str(a.node.thread_tag) == "blockIdx.x" for a in attrs
    )
    inside = {b for block in blocks for b in block.alloc_buffers}
    nests, size = 0, 0
    for block in blocks:
        if _holds_blocks(block):
            continue
        written = {region.source for region in block.writes}
        is_map = block.init is None and isinstance(block.body, tirx.BufferStore)
        if written and written <= inside:
            if is_map:
                continue
            size += sum(at(bytes_of(b.ty.shape, str(b.ty.dtype))) for b in written)
        nests += 1
    return _Structure(max(1, nests, grids), size)


def _holds_blocks(block: s_tir.SBlock) -> bool:
    found: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(block.body, (s_tir.SBlock, found.append))
    return bool(found)
