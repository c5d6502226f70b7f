"""Mapping type of one input and one output from all reads between them."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, sym, tirx
from tvm.error import InternalError
from tvm.sym.iter_affine_map import IterMapLevel

from .enumerate import IndexMap, Problem, Undecided, enumerate_type
from .inverse import is_int, product, row_major
from .loads import has_load, variables_of
from .place import Read
from .table import MappingType

_FEW = 8  # different index maps up to which equality is also sought by algebra


@dataclass(frozen=True)
class Pair:
    """Class of one input and one output."""

    type: MappingType  # the mapping type
    how: str  # what showed it, such as "identity", "reduction iterator" or "enumeration"
    note: str = ""  # what is uncertain about it, if anything


def decide(
    reads: Sequence[Read],
    dims: Sequence[ir.Var],
    out_shape: Sequence[ir.Expr],
    in_shape: Sequence[ir.Expr],
) -> Pair:
    """Classify the relation that `reads` describe.

    Parameters
    ----------
    reads
        Every read of the input for the output element at `dims`; at least one.
    dims
        Variables that stand for the output's index.
    out_shape, in_shape
        Extents, static or symbolic.

    Returns
    -------
    Pair
        Where no proof is found, the verdict errs on the complex side and says so in its note.

    Raises
    ------
    tvm_fusion.ecg.mapping_types.loads.Unreadable
        If an index cannot be evaluated.
    """
    return _Decision(reads, dims, out_shape, in_shape).pair()


class _Decision:
    def __init__(
        self,
        reads: Sequence[Read],
        dims: Sequence[ir.Var],
        out_shape: Sequence[ir.Expr],
        in_shape: Sequence[ir.Expr],
    ) -> None:
        self.reads, self.dims = reads, dims
        self.out_shape, self.in_shape = out_shape, in_shape
        self.ranges = {
            dim: ir.Range.from_min_extent(tirx.IntImm(dim.ty.dtype, 0), extent)
            for dim, extent in zip(dims, out_shape, strict=True)
        }
        self.analyzer = sym.Analyzer()
        for var, range_ in self.ranges.items():
            self.analyzer.bind(var, range_)
        self.is_bijection = False  # whether that is proved
        self.free = {var for read in reads for var in read.free}
        for read in reads:
            for var, range_ in read.free.items():
                self.analyzer.bind(var, range_, allow_override=True)

    def pair(self) -> Pair:
        groups = self._different()
        if any(set(variables_of(*indices)) & self.free for indices in groups):
            return Pair(MappingType.MANY_TO_MANY, "reduction iterator")
        if any(read.data_dependent for read in self.reads):
            how = "data-dependent index"
            if self._at_most_one(groups):
                return Pair(MappingType.ONE_TO_MANY, how)
            return Pair(MappingType.MANY_TO_MANY, how)
        maps = [IndexMap(t, self._alternatives(reads)) for t, reads in groups.items()]
        if len(maps) > 1 and self._at_most_one(groups):
            return Pair(MappingType.ONE_TO_MANY, "data-dependent choice")
        if len(maps) == 1:
            proved = self._by_axes(maps[0]) or self._by_algebra(maps[0])
            if proved is not None:
                return proved
        return self._by_enumeration(maps)

    def _different(self) -> dict[tuple[ir.Expr, ...], list[Read]]:
        """Group the reads by the element that they read."""
        groups: dict[tvm_ffi.StructuralKey, list[Read]] = {}
        for read in self.reads:
            key = tvm_ffi.StructuralKey([self.analyzer.simplify(i) for i in read.indices])
            groups.setdefault(key, []).append(read)
        if len(groups) > _FEW:
            return {tuple(key.key): reads for key, reads in groups.items()}
        merged: dict[tuple[ir.Expr, ...], list[Read]] = {}
        for key, reads in groups.items():
            indices = tuple(key.key)
            for known in merged:
                if all(map(self.analyzer.can_prove_equal, known, indices)):
                    merged[known] += reads
                    break
            else:
                merged[indices] = list(reads)
        return merged

    def _alternatives(self, reads: Iterable[Read]) -> tuple[tuple[ir.Expr, ...], ...]:
        """Return the conditions of each read, without those that depend on data: they may hold."""
        alternatives = []
        for read in reads:
            conditions = tuple(
                condition
                for condition in read.conditions
                if not has_load(condition)
                and not set(variables_of(condition)) & self.free
                and not self.analyzer.can_prove(condition)
            )
            if not conditions:
                return ()
            alternatives.append(conditions)
        return tuple(alternatives)

    def _at_most_one(self, groups: dict[tuple[ir.Expr, ...], list[Read]]) -> bool:
        """Whether data decide which one of several elements is read."""
        guards = [
            [{tvm_ffi.StructuralKey(c) for c in read.conditions if has_load(c)} for read in reads]
            for reads in groups.values()
        ]
        return all(
            _exclude(first, second)
            for one, other in itertools.combinations(guards, 2)
            for first, second in itertools.product(one, other)
        )

    def _by_axes(self, index_map: IndexMap) -> Pair | None:
        """Decide where every index is a dimension of the output: the common case."""
        out_axes = [
            (dim, n)
            for dim, n in zip(self.dims, self.out_shape, strict=True)
            if not self._is_unit(n)
        ]
        in_axes = [
            (index, n)
            for index, n in zip(index_map.indices, self.in_shape, strict=True)
            if not self._is_unit(n)
        ]
        if index_map.alternatives or not all(isinstance(index, ir.Var) for index, _ in in_axes):
            return None
        extents, used = dict(out_axes), [index for index, _ in in_axes]
        if len(set(used)) < len(used) or not set(used) <= set(extents):
            return None
        if len(used) < len(extents):
            return Pair(MappingType.ONE_TO_MANY, "missing axis")
        if not all(self.analyzer.can_prove_equal(extents[index], n) for index, n in in_axes):
            return None
        if used != list(extents):
            return Pair(MappingType.SHUFFLE, "permutation")
        if self._same_shape():
            return Pair(MappingType.ONE_TO_ONE, "identity")
        return Pair(MappingType.REORGANIZE, "unit axes")

    def _by_algebra(self, index_map: IndexMap) -> Pair | None:
        """Decide by TVM's iterator maps whether the map is one-to-one, and keeps the order."""
        if len(index_map.alternatives) > 1:
            return None
        same_size = self.analyzer.can_prove_equal(product(self.out_shape), product(self.in_shape))
        whole = same_size and not index_map.alternatives
        moved = MappingType.ONE_TO_ONE if self._same_shape() else MappingType.REORGANIZE
        target = self._flat(self.dims, self.out_shape)
        position = self._flat(index_map.indices, self.in_shape)
        if whole and self.analyzer.can_prove_equal(position, target):
            return Pair(moved, "row-major order")
        predicate: ir.Expr = tirx.IntImm("bool", 1)
        for condition in index_map.alternatives[0] if index_map.alternatives else ():
            predicate = tirx.And(predicate, condition)
        # Indices simplified one by one may lose what they share, the original ones are longer.
        for indices in (index_map.indices, self.reads[0].indices):
            position = self._position_if_one_to_one(indices, self.analyzer.simplify(predicate))
            if position is None:
                continue
            if not whole:
                return Pair(MappingType.ONE_TO_ONE, "iterator map", "part of the input")
            if self.analyzer.can_prove_equal(position, target):
                return Pair(moved, "iterator map")
            self.is_bijection = True
        return None

    def _position_if_one_to_one(
        self, indices: Sequence[ir.Expr], predicate: ir.Expr
    ) -> ir.Expr | None:
        """Return the row-major position in the input, as the normal form of iterator maps."""
        try:
            level = IterMapLevel.Bijective
            if not sym.detect_iter_map(indices, self.ranges, predicate, level).indices:
                return None
            return sym.iter_map_simplify([row_major(indices, self.in_shape)], self.ranges)[0]
        except InternalError:  # an index that TVM's analysis does not foresee: enumerate
            return None

    def _by_enumeration(self, maps: Sequence[IndexMap]) -> Pair:
        problem = Problem(
            tuple(maps), tuple(self.dims), tuple(self.out_shape), tuple(self.in_shape)
        )
        try:
            return Pair(enumerate_type(problem, self._same_shape()), "enumeration")
        except Undecided as undecided:
            if self.is_bijection:
                return Pair(MappingType.SHUFFLE, "iterator map", f"order unknown: {undecided}")
            return Pair(MappingType.MANY_TO_MANY, "conservative", str(undecided))

    def _is_unit(self, extent: ir.Expr) -> bool:
        return is_int(extent, 1) or self.analyzer.can_prove_equal(extent, 1)

    def _same_shape(self) -> bool:
        return len(self.out_shape) == len(self.in_shape) and all(
            map(self.analyzer.can_prove_equal, self.out_shape, self.in_shape)
        )

    def _flat(self, indices: Sequence[ir.Expr], shape: Sequence[ir.Expr]) -> ir.Expr:
        return self.analyzer.simplify(row_major(indices, shape))


def _exclude(first: set[tvm_ffi.StructuralKey], second: set[tvm_ffi.StructuralKey]) -> bool:
    """Whether one set of conditions holds the negation of one of the other."""

    def denied(conditions: set[tvm_ffi.StructuralKey]) -> set[tvm_ffi.StructuralKey]:
        return {tvm_ffi.StructuralKey(tirx.Not(condition.key)) for condition in conditions}

    return bool(denied(first) & second or denied(second) & first)
