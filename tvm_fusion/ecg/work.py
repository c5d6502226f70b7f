"""How much work a PrimFunc is, counted from TensorIR, and how large tensors are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import tvm
from tvm import ir, s_tir, sym, tirx

from .._tvm.ir.structural import structural_map, structural_walk
from .operation_count import arithmetic

#: A number, or an expression over symbolic dimensions.
Count: TypeAlias = "int | ir.Expr"

ASSUMED_DIM = 128  # stands for a symbolic dimension wherever a number is needed
CHEAP_OPERATIONS = 8  # per result element: cheaper than writing four bytes and reading them again


def flops(func: tirx.PrimFunc) -> Count:
    """Count arithmetic on tensor elements: iterations times operations of each store's value.

    Addition, multiplication, comparison, minimum, maximum and rounding count 1 (a multiply-add 2),
    division and square roots 4, other intrinsics (exp, tanh, erf, pow) 16. Conversions, index
    arithmetic and choices by position (padding) count nothing; of two branches the costlier counts.

    Parameters
    ----------
    func
        Scheduled or not; only its loops and stores are looked at. The body of a ``while`` counts
        once.

    Returns
    -------
    int or ir.Expr
        An expression where dimensions are symbolic; see :func:`at`.
    """
    total: Count = 0
    for store in _survey(func).stores:
        total = total + _times(store.iterations, store.operations)
    return total


def bytes_of(shape: Sequence[Any], dtype: str) -> Count:
    """Size of a tensor; types below eight bits are packed."""
    elements = _product(shape)
    bits = _bits(dtype)
    if bits % 8 == 0:
        return _times(elements, bits // 8)
    if isinstance(elements, int):
        return math.ceil(elements * bits / 8)
    return (elements * bits + 7) // 8


def at(count: Count, dims: Mapping[str, int] | None = None, default: int = ASSUMED_DIM) -> int:
    """Evaluate a count that may be symbolic.

    ``default`` may be too small for what is computed from it: of 128 samples, a window of 512 has
    less than no place, and one step of 256 is none. A symbolic factor that comes out at zero or
    below counts as 1: negative work would make repetition pay, without end, and templates divide
    by counts of rows.

    Parameters
    ----------
    count : int or ir.Expr
        From one of the functions of this module, or any extent.
    dims
        Values of symbolic dimensions by name.
    default
        Value of every other symbolic dimension.

    Returns
    -------
    int
        The value.
    """
    if not isinstance(count, ir.Expr) or isinstance(count, tirx.IntImm):
        return int(count)
    if isinstance(count, tirx.Mul):  # by factors: two negative ones would go unnoticed
        return at(count.a, dims, default) * at(count.b, dims, default)
    values = dims or {}
    is_assumed = False

    def value(var: ir.Var) -> tirx.IntImm:
        nonlocal is_assumed
        is_assumed |= var.name not in values
        return tirx.IntImm(str(var.ty.dtype), values.get(var.name, default))

    numeric = structural_map(count, (ir.Var, value), order="post")
    result = int(sym.Analyzer().simplify(numeric))
    return 1 if result < 1 and is_assumed else result


def assumed_flops(func: tirx.PrimFunc) -> int:
    """Evaluate :func:`flops` with every symbolic dimension at :data:`ASSUMED_DIM`."""
    # Each store on its own: a negative factor is not seen any more in a sum.
    return sum(at(_times(s.iterations, s.operations)) for s in _survey(func).stores)


@lru_cache(maxsize=4096)
def is_cheap(func: tirx.PrimFunc) -> bool:
    """Tell whether computing an element again costs less than keeping it.

    No reduction, no intrinsic above a square root, no division by a tensor that makes the sum
    exceed ``CHEAP_OPERATIONS`` per element of the results. Moving data around is cheap.
    """
    survey = _survey(func)
    if survey.has_reduction or survey.is_opaque or not survey.stores:
        return False
    if any(store.is_expensive for store in survey.stores):
        return False
    results = sum(at(survey.writes.get(hash(buffer), 0)) for buffer in _buffers(func))
    return assumed_flops(func) <= CHEAP_OPERATIONS * max(results, 1)


@dataclass(frozen=True)
class _Store:
    iterations: Count
    operations: int
    is_expensive: bool


@dataclass
class _Survey:
    """One pass over a PrimFunc: its stores, and how often each buffer is written, by its hash."""

    symbols: frozenset[ir.Var]  # of the signature
    stores: list[_Store] = field(default_factory=list)
    writes: dict[int, Count] = field(default_factory=dict)
    has_reduction: bool = False
    is_opaque: bool = False  # external code, or loops of its own inside a block

    def statement(self, stmt: Any, times: Count) -> None:
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                self.statement(part, times)
        elif isinstance(stmt, tirx.For):
            self.statement(stmt.body, _times(times, self._trips(stmt)))
        elif isinstance(stmt, s_tir.SBlockRealize):
            self._block(stmt.block, times)
        elif isinstance(stmt, tirx.BufferStore):
            self._store(stmt, times)
        elif isinstance(stmt, tirx.IfThenElse):
            self.statement(stmt.then_case, times)
            if stmt.else_case is not None:
                self.statement(stmt.else_case, times)
        elif isinstance(stmt, (tirx.AttrStmt, tirx.While)):
            self.statement(stmt.body, times)
        elif isinstance(stmt, tirx.Bind):
            operations, expensive, _ = arithmetic(stmt.value)
            self.stores.append(_Store(times, operations, expensive))
        elif isinstance(stmt, tirx.Evaluate):
            self.is_opaque |= any(
                isinstance(buffer.ty, tirx.BufferType) for buffer in _find(stmt.value, ir.Var)
            )

    def _trips(self, loop: tirx.For) -> Count:
        """Count the iterations of a loop; what data or other loops decide is anyone's guess."""
        if not set(tirx.analysis.undefined_vars(loop.extent)) <= self.symbols:
            return ASSUMED_DIM
        trips = _extent(loop.extent)
        return max(trips, 0) if isinstance(trips, int) else trips

    def _block(self, block: s_tir.SBlock, times: Count) -> None:
        self.has_reduction |= block.init is not None or any(
            v.iter_type == tirx.IterVar.CommReduce for v in block.iter_vars
        )
        if block.init is not None:  # the accumulator is the block's own from here on
            for store in _find(block.init, tirx.BufferStore):
                self.writes.setdefault(hash(store.buffer), 0)
        is_scope = bool(_find(block.body, s_tir.SBlock))
        self.is_opaque |= not is_scope and bool(_find(block.body, tirx.For, tirx.While))
        self.statement(block.body, times)

    def _store(self, store: tirx.BufferStore, times: Count) -> None:
        operations, expensive, _ = arithmetic(store.value)
        self.stores.append(_Store(times, operations, expensive))
        key = hash(store.buffer)
        # A scan or a scatter: what it adds to was written by an earlier iteration.
        self.has_reduction |= any(hash(x.source) == key for x in _find(store.value, ir.TensorLoad))
        self.writes[key] = self.writes.get(key, 0) + times


def _survey(func: tirx.PrimFunc) -> _Survey:
    shapes = [extent for buffer in _buffers(func) for extent in buffer.ty.shape]
    symbols = {v for extent in shapes for v in tirx.analysis.undefined_vars(extent)}
    survey = _Survey(frozenset(symbols.union(func.params)))
    survey.statement(func.body, 1)
    return survey


def _buffers(func: tirx.PrimFunc) -> Iterator[tirx.Var]:
    return (p for p in func.params if isinstance(p.ty, tirx.BufferType))


def _as_int64(count: Count) -> ir.Expr:
    return tirx.IntImm("int64", count) if isinstance(count, int) else count.astype("int64")


def _bits(dtype: str) -> int:
    return 8 if dtype == "bool" else int(tvm.DataType(dtype).bits)


def _extent(extent: Any) -> Count:
    return int(extent) if isinstance(extent, (int, tirx.IntImm)) else extent


def _product(factors: Sequence[Any]) -> Count:
    product: Count = 1
    for factor in factors:
        product = _times(product, _extent(factor))
    return product


def _times(a: Count, b: Count) -> Count:
    """Multiply without ``1 * n``, ``0 * n`` and int32 overflow."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if isinstance(a, int):
        a, b = b, a
    if isinstance(b, int) and b in (0, 1):
        return a if b else 0
    return _as_int64(a) * _as_int64(b)


def _find(node: Any, *kinds: type) -> list[Any]:
    found: list[Any] = []
    structural_walk(node, (kinds, found.append))
    return found
