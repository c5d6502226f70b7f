"""The prefix-sum problem: a running sum along one axis, between maps of its elements.

y[place] = after(sums[place], ...),  sums[place] = before(place) summed along the axis
"""

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import DataType, ir, tirx

from ...core.contract.template import Refusal
from ...core.tir.expressions import load, loads, map_loads, substitute
from ...ecg.graph import Operator, Value
from ...ecg.legalization.operators.scan import NAME
from ...program.group import Group
from ...program.program import Program
from ...program.stage import Unstructured
from ...program.stages.bind import buffer_of
from ...program.stages.compose import compose
from ..index.estimate import operations
from ..math.half_math import HALF_TYPES

_NOT_MINE = Refusal("not_mine", "It is not a cumulative sum with maps around it.")
_PARTS = Refusal("not_in_place", "A map around a cumulative sum reads its elements elsewhere.")


@dataclass(frozen=True)
class Map:
    """What maps make of one place: an expression over its indices."""

    indices: tuple[ir.Var, ...]
    value: ir.Expr

    def at(self, place: Sequence[ir.Expr]) -> ir.Expr:
        """Express the element at a place."""
        return substitute(self.value, dict(zip(self.indices, place, strict=True)))

    @property
    def is_load(self) -> bool:
        """Whether it is an element of a tensor as it is."""
        return isinstance(self.value, ir.TensorLoad)


@dataclass(frozen=True)
class PrefixSumProblem:
    """A running sum along one axis, of what maps make of inputs; outputs are maps of it."""

    # Of the group, in its order.
    inputs: tuple[ir.Var, ...]
    outputs: tuple[ir.Var, ...]
    before: Map  # what is summed
    after: tuple[Map, ...]  # what each output is, over loads of ``sums``
    sums: ir.Var  # the running sums; memory does not hold them, unless they are an output
    is_exclusive: bool  # whether an element is no part of its own sum
    axis: int  # the axis; the last one on GPUs

    @property
    def shape(self) -> list[ir.Expr]:
        """Extents of what is summed."""
        return list(self.sums.shape)

    @property
    def rows(self) -> list[ir.Expr]:
        """Extents before the last."""
        return self.shape[:-1]

    @property
    def length(self) -> ir.Expr:
        """Elements of a row."""
        return self.shape[-1]

    @property
    def dtype(self) -> str:
        """Type in which sums are computed."""
        dtype = str(self.sums.dtype)
        return "float32" if dtype in HALF_TYPES else dtype

    @property
    def is_plain(self) -> bool:
        """Whether nothing is computed but sums of a tensor's elements."""
        return self.before.is_load and all(one.is_load for one in self.after)

    @property
    def types(self) -> set[str]:
        """Types of what lies next to each other in memory as the elements of a row do."""
        read = (x.source for one in (self.before, *self.after) for x in loads(one.value))
        return {str(b.dtype) for b in (*read, *self.outputs)}

    @property
    def itemsize(self) -> int:
        """Bytes of the widest of these."""
        return max(DataType(t).itemsize for t in self.types)

    @property
    def operations(self) -> int:
        """Operations of an element."""
        return 1 + sum(operations(one.value) for one in (self.before, *self.after))

    def results(self, place: Sequence[ir.Expr], held: ir.Expr) -> list[tuple[ir.Var, ir.Expr]]:
        """List what is stored at a place, and in which outputs.

        Parameters
        ----------
        held
            The sum there, in the type of the sums in memory.
        """

        def summed(read: ir.TensorLoad) -> ir.Expr:
            return held if read.source.same_as(self.sums) else read

        found = zip(self.outputs, self.after, strict=True)
        return [(output, map_loads(one.at(place), summed)) for output, one in found]


def prefix_sum(group: Group) -> PrefixSumProblem | Refusal:
    """Read a group as a cumulative sum with maps before and behind it."""
    scans = [op for op in group.members if op.record is not None and op.record.name == NAME]
    if len(scans) != 1:
        return _NOT_MINE
    (scan,) = scans
    assert scan.record is not None
    (source,), (result,) = scan.tensors, scan.results
    rank, axis = len(result.shape), scan.record.attrs["axis"]
    inside = set(group.members)
    first = _producers([source], inside)
    behind = [op for op in group.members if op is not scan and op not in first]
    # What they read of the maps before the sum, they compute themselves.
    read = [v for op in behind for v in op.tensors if v is not result]
    behind = [op for op in group.members if op in {*behind, *_producers(read, inside - {scan})}]
    try:
        before = _map(group, first, source, rank)
        after = [_map(group, behind, output, rank, result) for output in group.outputs]
    except Unstructured as reason:
        return Refusal("unstructured", str(reason))
    sums = buffer_of(result)
    maps = [one for one in (before, *after) if one is not None]
    if len(maps) <= len(after) or not all(_is_in_place(one, sums) for one in maps[1:]):
        return _PARTS
    if any(loads(i) for one in maps for x in loads(one.value) for i in x.indices):
        return Refusal("gathers", "A map around a cumulative sum looks places up in a tensor.")
    inputs, outputs = (tuple(map(buffer_of, vs)) for vs in (group.inputs, group.outputs))
    exclusive = bool(scan.record.attrs["exclusive"])
    along = rank - 1 if axis is None else int(axis) % rank
    return PrefixSumProblem(inputs, outputs, maps[0], tuple(maps[1:]), sums, exclusive, along)


def _producers(values: Sequence[Value], inside: set[Operator]) -> list[Operator]:
    """List the operators of a group that compute values."""
    found: dict[Operator, None] = {}
    frontier = [v.producer for v in values]
    while frontier:
        op = frontier.pop()
        if op in inside and op not in found and op is not None:
            found[op] = None
            frontier += [v.producer for v in op.tensors]
    return sorted(found, key=lambda op: op.index)


def _map(
    group: Group, members: Sequence[Operator], value: Value, rank: int, result: Value | None = None
) -> Map | None:
    """Express an element of a value over those of a group's inputs, and of the sums.

    None where it is no map, or of another shape.
    """
    indices = tuple(ir.Var(f"i{n}", ir.PrimType("int64")) for n in range(rank))
    if value is result or value in group.inputs:
        return Map(indices, load(buffer_of(value), indices))
    if result is not None and not _is_same_shape(value, result):
        return None
    needed = _producers([value], set(members))
    inner = {v for op in needed for v in op.results}
    given = list(dict.fromkeys(v for op in needed for v in op.tensors if v not in inner))
    program: Program = compose(needed, given, [value])
    if not all(stage.is_map for stage in program.stages):
        return None
    return Map(indices, program.element(0, indices))


def _is_same_shape(one: Value, other: Value) -> bool:
    if len(one.shape) != len(other.shape):
        return False
    return all(map(tvm_ffi.structural_equal, one.shape, other.shape))


def _is_in_place(one: Map, sums: ir.Var) -> bool:
    """Whether a map reads the sums of its own place alone."""
    reads = [x for x in loads(one.value) if x.source.same_as(sums)]
    return all(
        index.same_as(own) or (isinstance(extent, tirx.IntImm) and int(extent) == 1)
        for x in reads
        for index, own, extent in zip(x.indices, one.indices, sums.shape, strict=True)
    )
