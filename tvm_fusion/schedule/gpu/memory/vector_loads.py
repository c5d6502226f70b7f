"""Vector loads of a thread's tile: its distinct elements, gathered into aligned vectors."""

from dataclasses import dataclass, field

from tvm import DataType, ir, sym, tirx
from tvm.backend.cuda.op import cuda_func_call

from ...._tvm.ir.structural import structural_map
from ....core.tir.expressions import call_name, choice, variables
from ....core.tir.loops import constant, index
from ...index.address import is_aligned, offset
from ..launch import VECTOR_BYTES, VECTOR_TYPES

# Loads of eight elements of a half type from any address: aligned words, shifted when used.
#
#     load     word[0 .. 4] = the aligned words around the elements, as far as these exist
#     shift    to[i] = funnel_shift(word[i], word[i + 1]), by half a word or not at all
#
# A word of which the upper element alone does not exist is read by halves, so that nothing beyond
# the last element of a tensor is read. A word's lower element lies before the first one at worst:
# in the row before, as a tensor begins at an aligned address. Loads are not waited for before the
# shift.


ELEMENTS = 10  # of half types, that a load holds
_LOAD = """
__device__ __forceinline__ void tvm_fusion_load_words(void* to, const void* from, int count) {
  unsigned* word = (unsigned*)to;
  int odd = (int)((size_t)from >> 1 & 1);
  const unsigned* words = (const unsigned*)((size_t)from - 2 * odd);
  #pragma unroll
  for (int i = 0; i < 5; ++i) {
    int first = 2 * i - odd;
    word[i] = 0;
    if (first + 1 < count && first < 7) word[i] = words[i];
    else if (first < count) word[i] = *(const unsigned short*)(words + i);
  }
}
"""
_SHIFT = """
__device__ __forceinline__ void tvm_fusion_shift_words(void* to, const void* held,
                                                       const void* from) {
  unsigned* result = (unsigned*)to;
  const unsigned* word = (const unsigned*)held;
  int odd = (int)((size_t)from >> 1 & 1);
  #pragma unroll
  for (int i = 0; i < 4; ++i) result[i] = __funnelshift_r(word[i], word[i + 1], 16 * odd);
}
"""


def load_words(to: ir.TensorLoad, source: ir.TensorLoad, count: ir.Expr) -> tirx.Stmt:
    """Load the words around the first ``count`` of eight elements; other elements are zeros.

    Parameters
    ----------
    to
        The first of ten elements of registers.
    source
        The first element, at any address.
    """
    places = (tirx.address_of(to), tirx.address_of(source))
    number = tirx.Cast("int32", count)
    call = cuda_func_call("tvm_fusion_load_words", *places, number, source_code=_LOAD)
    return tirx.Evaluate(call)


def shift_words(to: ir.TensorLoad, held: ir.TensorLoad, source: ir.TensorLoad) -> tirx.Stmt:
    """Extract eight elements from the words that were loaded from a source."""
    places = map(tirx.address_of, (to, held, source))
    return tirx.Evaluate(cuda_func_call("tvm_fusion_shift_words", *places, source_code=_SHIFT))


BYTES = frozenset({"int8", "uint8"})
_WORD = 4  # bytes of the narrowest vector of bytes


@dataclass(frozen=True)
class VectorLoad:
    """Contiguous elements that one instruction loads."""

    first: ir.TensorLoad  # the first element
    elements: tuple[ir.Var, ...]  # the variable that stands for each

    def load(self, lane: ir.Expr) -> ir.TensorLoad:
        """Read one of the elements; the last index is beyond its extent where that is 1."""
        if not self.first.indices:  # a scalar
            return self.first
        *outer, last = self.first.indices
        return tirx.BufferLoad(self.first.source, [*outer, last + lane])


@dataclass
class _Family:
    """Elements of a buffer whose distances are known."""

    source: ir.Var
    start: ir.Expr
    found: dict[int, tuple[ir.Var, ir.TensorLoad]] = field(default_factory=dict)


class ElementLoads:
    """The elements that expressions read, each under one variable.

    Parameters
    ----------
    analyzer
        Knows the ranges of the variables in indices.
    is_copied
        Whether vectors are copied as bytes, of types without vector loads as well.
    """

    def __init__(self, analyzer: sym.Analyzer, is_copied: bool = False) -> None:
        self._analyzer, self._is_copied = analyzer, is_copied
        self._families: list[_Family] = []

    def read(self, expr: ir.Expr) -> ir.Expr:
        """Replace loads by variables; choices that indices decide vanish."""
        return structural_map(
            resolved(expr, self._analyzer), (ir.TensorLoad, self._variable), order="post"
        )

    def vectors(self) -> list[VectorLoad]:
        """Gather contiguous elements, the widest vectors of each buffer first.

        Elements that are indices of others stand before these.
        """
        found: list[VectorLoad] = []
        for family in self._families:
            places, start = sorted(family.found), 0
            while start < len(places):
                size = self._size(family, places[start])
                some = [family.found[places[start] + n] for n in range(size)]
                found.append(VectorLoad(some[0][1], tuple(variable for variable, _ in some)))
                start += size
        elements = {variable for vector in found for variable in vector.elements}
        depths: dict[ir.Var, int] = {}
        for vector in found:  # inner elements were found first
            used = {v for i in vector.first.indices for v in variables(i)} & elements
            depth = max((depths[v] + 1 for v in used), default=0)
            depths |= dict.fromkeys(vector.elements, depth)
        return sorted(found, key=lambda v: (depths[v.elements[0]], -len(v.elements)))

    def _variable(self, load: ir.TensorLoad) -> ir.Var:
        simplify = self._analyzer.simplify
        indices = [simplify(index(i)) for i in load.indices]
        place = simplify(offset(load.source, indices))
        dtype = str(load.ty.dtype)
        for family in self._families:
            if not family.source.same_as(load.source):
                continue
            distance = constant(simplify(place - family.start))
            if distance is not None:
                break
        else:
            distance, family = 0, _Family(load.source, place)
            self._families.append(family)
        if distance not in family.found:
            variable = tirx.Var("element", dtype)
            family.found[distance] = variable, tirx.BufferLoad(load.source, indices)
        return family.found[distance][0]

    def _size(self, family: _Family, place: int) -> int:
        """Choose the widest aligned vector that starts at a place."""
        first = family.found[place][1]
        dtype = str(first.ty.dtype)
        copied = [VECTOR_BYTES // DataType(dtype).itemsize] if self._is_copied else []
        for size in [*copied, *vector_sizes(dtype)]:
            some = [family.found.get(place + n) for n in range(size)]
            is_contiguous = all(
                x is not None and self._is_next(first, x[1], n) for n, x in enumerate(some)
            )
            if is_contiguous and is_aligned(family.start + place, size, self._analyzer):
                return size
        return 1

    def _is_next(self, first: ir.TensorLoad, other: ir.TensorLoad, lane: int) -> bool:
        if not first.indices:  # a single number
            return lane == 0
        # Dimensions of one element behind the one that moves do not count: [K, C, 1, 1].
        extents = [constant(d) for d in first.source.ty.shape]
        moving = max((n for n, d in enumerate(extents) if d != 1), default=len(extents) - 1)
        distances = [lane if n == moving else 0 for n in range(len(extents))]
        pairs = zip(first.indices, other.indices, distances, strict=True)
        return all(constant(self._analyzer.simplify(b - a)) == d for a, b, d in pairs)


def vector_sizes(dtype: str) -> list[int]:
    """List the numbers of elements of a type that one instruction loads, the most first."""
    if dtype not in VECTOR_TYPES | BYTES | {"float64"}:
        return []
    size = DataType(dtype).itemsize
    least = _WORD if dtype in BYTES else 2
    return [n for n in (16, 8, 4, 2) if least <= n and n * size <= VECTOR_BYTES]


def resolved(expr: ir.Expr, analyzer: sym.Analyzer) -> ir.Expr:
    """Take the branch of each choice that indices alone decide."""

    def decide(node: ir.Expr) -> ir.Expr:
        chosen = choice(node)
        if chosen is None:
            return node
        condition, then, otherwise = chosen
        decided = constant(analyzer.simplify(condition))
        return node if decided is None else then if decided else otherwise

    def call(node: ir.Call) -> ir.Expr:
        return decide(node) if call_name(node) == "if_then_else" else node

    kinds = [(ir.Call, call), (tirx.Select, decide)]
    return structural_map(expr, kinds, order="post")
