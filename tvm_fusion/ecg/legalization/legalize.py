"""Operators become TensorIR, each PrimFunc with the record of the operator that it was."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.ir.transform import PassContext, Sequential
from tvm.target import Target

from ..._tvm.ir.structural import structural_map, structural_walk
from ...core.names.inherit import inheriting
from ...core.names.source import bindings_of, joined, names_of, sources_of
from ...core.tir.expressions import is_load_of, loads
from ...core.tir.integers import LARGEST_EXTENT, is_integer, wrapped
from ...core.untouched import on_rewritable
from ...errors import UserError, reason_of
from ...frontend.normalize.engine import Scope, op_name, rewrite_pass
from ...frontend.normalize.expand import IntegerPower
from ...frontend.normalize.rewritten import ClampTake
from ...words import few
from ..record import describe, stamp
from .accumulate import accumulates_in_half, between_casts, narrowed, widen
from .bound_indices import BoundIndices
from .expand import Expansion, Legalization, expand, expand_by_pass, splice, stand_in
from .operators import EXTREMA, LEGALIZATIONS, from_infinity
from .operators.rank_sort import SORTS
from .operators.rank_sort import has_kernel as has_ranks
from .operators.scan import NAME as CUMSUM
from .operators.scan import has_kernel, runs_across, summed_along_rows
from .operators.sorting import sorted_by_keys, takes_keys

# How these are expressed depends on the target; TVM does it in passes of their own.
DISPATCHED = (
    *("relax.sort", "relax.argsort", "relax.topk", "relax.cumsum", "relax.cumprod"),
    *("relax.bucketize", "relax.multinomial_from_uniform"),
)
# Communication, and questions about a tensor's memory: nothing to fuse, nothing to record.
_NO_KERNELS = ("relax.ccl.", "relax.dist.", "relax.inspect.", "relax.grad.")


_Remembered = dict[str, dict[str, "_Recorded"]]  # by target, then by operator
_remembered: ContextVar[_Remembered | None] = ContextVar("remembered", default=None)


@contextmanager
def remembering_legalizations() -> Iterator[None]:
    """Let all passes inside of ``with`` give equal operators the very same PrimFunc."""
    token = _remembered.set({})
    try:
        yield
    finally:
        _remembered.reset(token)


@tvm.transform.module_pass(opt_level=0, name="Legalize")
class Legalize:
    """Lower operators to PrimFuncs that remember their names and attributes.

    Each PrimFunc carries its :class:`tvm_fusion.ecg.record.OpRecord`; equal operators share one.
    Operators over half types that accumulate or compose do so in float32 inside; normalisations and
    variances are centred before they are squared. Runs under the current target, which decides how
    sorts and scans are expressed. PrimFuncs that are scheduled already or written at thread level
    are kernels and stay as they are.

    One instance gives equal operators of all modules that it is applied to the very same PrimFunc:
    what is known of a group of PrimFuncs, such as its claims, holds in the next module, too. So do
    all instances inside of :func:`tvm_fusion.ecg.legalization.legalize.remembering_legalizations`.

    Raises
    ------
    UserError
        For an operator with a shape or type that it cannot have.

    Examples
    --------
    >>> mod = module(lambda x: op.nn.relu(op.matmul(x, weight(16, 4))), (8, 16))
    >>> with cpu:
    ...     calls(mod), calls(Legalize()(mod))
    (['relax.matmul', 'relax.nn.relu'], ['matmul', 'relu'])
    """

    def __init__(self) -> None:
        self._by_target: _Remembered = {}

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every rewritable function."""
        target = str(Target.current(allow_none=True))
        remembered = _remembered.get()
        by_target = self._by_target if remembered is None else remembered
        known = by_target.get(target)
        if known is None:
            known = by_target[target] = _legalizations()
        # What reads no more than a shape, as ones_like, leaves the operand without a reader; so
        # does what takes the places of topk alone.
        lowered = relax.transform.LegalizeOps(known)
        unread = relax.transform.DeadCodeElimination()
        passes = [ClampTake(), IntegerPower(), SplitLongExtrema(), lowered, TupleFields(), unread]
        try:
            return Sequential(inheriting(on_rewritable(*passes), BoundIndices()))(mod)
        except UserError as error:
            failed = [entry.failed.pop() for entry in known.values() if entry.failed]
            if not failed:
                raise
            name = describe(failed[0]).name.removeprefix("relax.")
            raise UserError(
                f"operator {name}{_places(mod, failed[0])} cannot be lowered to a kernel "
                f"({str(error).rstrip('.')})"
            ) from error


@rewrite_pass
def TupleFields(value: Any, scope: Scope) -> Any:
    """Read the field of a tuple that is made in the same function as the variable that it is."""
    if not isinstance(value, relax.TupleGetItem):
        return None
    whole = scope.value(value.tuple_value)
    return whole.fields[value.index] if isinstance(whole, relax.Tuple) else None


@cache
def _known() -> Mapping[str, Legalization | None]:
    """Every operator that can become TensorIR, by name; None for what passes of TVM lower."""
    names = [str(n) for n in ir.Op.list_op_names() if str(n).startswith("relax.")]
    stock = {name: ir.Op.get(name).get_attr("FLegalize") for name in names}
    known = {n: f for n, f in stock.items() if f is not None and not n.startswith(_NO_KERNELS)}
    return {**dict.fromkeys(DISPATCHED), **known, **LEGALIZATIONS}


def _legalizations() -> dict[str, _Recorded]:
    """Functions for one target, on which what they remember depends."""
    return {name: _Recorded(legalization) for name, legalization in _known().items()}


def _places(mod: tvm.IRModule, call: relax.Call) -> str:
    """Name the model's operators that are such calls: of one operator over the same types."""

    def is_alike(other: Any) -> bool:
        same_operator = isinstance(other, relax.Call) and other.op.same_as(call.op)
        return same_operator and all(map(tvm_ffi.structural_equal, _types(other), _types(call)))

    functions = (func for func in mod.functions.values() if isinstance(func, relax.Function))
    bindings = (b for func in functions for b in bindings_of(func.body))
    names = names_of(joined(sources_of(b.var) for b in bindings if is_alike(b.value)))
    return f" (at {few(names)})" if names else ""


def _types(call: relax.Call) -> list[ir.Type]:
    return [arg.ty for arg in call.args]


class _Recorded:
    """A legalization that widens half types where needed and leaves a record.

    Parameters
    ----------
    legalization
        TVM's or ours; None for what passes of TVM lower.
    """

    def __init__(self, legalization: Legalization | None) -> None:
        self._legalization = legalization
        self._done: dict[tuple[Hashable, ...], Expansion] = {}
        #: The call that raised: errors pass through TVM without what they carry.
        self.failed: list[relax.Call] = []

    def __call__(self, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if takes_keys(call):
            return sorted_by_keys(builder, call)
        if runs_across(call):
            return summed_along_rows(builder, call)
        in_half = accumulates_in_half(call)
        inner, params = widen(call, builder) if in_half else stand_in(call, builder)
        key = _key(call, inner)
        if key is not None and key in self._done:
            return splice(self._done[key].standing_for(params), builder)
        legalization = self._for(inner, builder)
        if in_half and legalization is None:
            return between_casts(builder, inner, params, call)
        expansion = self._expand(inner, params, legalization)
        if expansion is None:
            return call
        if in_half:
            result = narrowed(expansion, call)
            if result is None:
                return between_casts(builder, inner, params, call)
            expansion = result
        expansion = _stamped(expansion, call)
        if key is not None and len(expansion.bindings) == 1:
            self._done[key] = expansion
        return splice(expansion, builder)

    def _for(self, call: relax.Call, builder: relax.BlockBuilder) -> Legalization | None:
        name = str(call.op.name)
        if name == CUMSUM and not has_kernel(builder.normalize(call)):
            return None
        if name in SORTS and not has_ranks(builder.normalize(call)):
            return None
        return self._legalization

    def _expand(
        self,
        call: relax.Call,
        params: dict[relax.Var, relax.Expr],
        legalization: Legalization | None,
    ) -> Expansion | None:
        if legalization is not None:
            try:
                return expand(call, params, legalization)
            # guard: told in a sentence; legalizations raise anything, from assertions on
            except Exception as error:
                self.failed.append(call)
                raise UserError(reason_of(error)) from error
        passes = [relax.backend.DispatchSampling(), relax.backend.DispatchSortScan()]
        return expand_by_pass(call, params, Sequential(passes))


def _key(call: relax.Call, inner: relax.Call) -> tuple[Hashable, ...] | None:
    """Tell calls apart that legalize differently; None where that would take more than this.

    Symbolic dimensions are told apart by identity, since different ones may have one name; numbers
    are written into PrimFuncs.
    """
    parts: list[Hashable] = [describe(call).to_json(), _type_key(call.ty)]
    order: dict[int, int] = {}
    for arg in inner.args:
        for leaf in arg.fields if isinstance(arg, relax.Tuple) else [arg]:
            parts.append(_type_key(leaf.ty))
            if isinstance(leaf, ir.GenericConst):
                parts.append(leaf.value.numpy().tobytes())
            elif isinstance(leaf, relax.ShapeExpr):
                parts += [str(leaf), *_symbols(leaf)]
            elif ir.is_prim_expr(leaf):
                parts += [str(leaf), *tirx.analysis.undefined_vars(leaf)]
            elif isinstance(leaf, relax.Var) and _has_extents(leaf.ty):
                parts += [order.setdefault(hash(leaf), len(order)), *_symbols(leaf.ty.shape)]
            else:
                return None
        parts.append(";")
    return tuple(parts)


def _type_key(ty: ir.Type) -> Hashable:
    """Tell types apart; printing those of static tensors takes longer than all else."""
    if type(ty) is relax.TensorType and ty.vdevice is None and _has_extents(ty):
        extents = list(ty.shape.values)
        if all(isinstance(extent, tirx.IntImm) for extent in extents):
            return str(ty.dtype), *(extent.value for extent in extents)
    return str(ty)


def _has_extents(ty: ir.Type) -> bool:
    return isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)


def _symbols(shape: relax.ShapeExpr) -> list[tirx.Var]:
    return [v for extent in shape.values for v in tirx.analysis.undefined_vars(extent)]


def _stamped(expansion: Expansion, call: relax.Call) -> Expansion:
    name = str(call.op.name)
    for gvar, func in expansion.funcs.items():
        if isinstance(func, tirx.PrimFunc):
            expansion = expansion.with_func(gvar, wrap_integers(func, name))
    if expansion.kernel is None:
        return expansion
    gvar, func = expansion.kernel
    if name in EXTREMA:
        func = from_infinity(func)
    return expansion.with_func(gvar, stamp(func, describe(call)))


# Extrema of whole tensors on a GPU: first of each row, then of what the rows gave.
#
# A reduction is one block's for each of its results, so that of a whole tensor is one block's
# alone: half a megabyte in float16 takes it some 40 us. In two steps all multiprocessors take part.
# Extrema are exact in any order; sums are not and stay.
#
#     max(x[a, b, c]):  rows[a, b] = max over c of x[a, b, c];  max over a, b of rows[a, b]
OPERATORS = {"relax.max": relax.op.max, "relax.min": relax.op.min}
MIN_TERMS = 1 << 14  # of a result: 16 loads for each thread of a block, as long as two launches
MIN_ROW = 32  # terms of a row, one for each thread of a warp
MAX_RESULTS = 8


@rewrite_pass
def SplitLongExtrema(value: Any, scope: Scope) -> Any:
    """Reduce the last axis first where few results have many terms each, on GPUs."""
    target = Target.current(allow_none=True)
    reduce = OPERATORS.get(op_name(value))
    if reduce is None or target is None or target.kind.name not in ("cuda", "rocm"):
        return None
    x, attrs = value.args[0], value.attrs
    shape = x.ty.shape
    if not isinstance(shape, relax.ShapeExpr) or not all(_is_known(e) for e in shape.values):
        return None
    extents = [int(extent) for extent in shape.values]
    rank = len(extents)
    axes = range(rank) if attrs.axis is None else {int(axis) % rank for axis in attrs.axis}
    terms = math.prod(extents[axis] for axis in axes)
    if rank - 1 not in axes or terms < MIN_TERMS or math.prod(extents) > MAX_RESULTS * terms:
        return None
    if extents[-1] < MIN_ROW or extents[-1] == terms:
        return None
    rows = scope.emit(reduce(x, [rank - 1], keepdims=True))
    return reduce(rows, sorted(axes), keepdims=bool(attrs.keepdims))


def _is_known(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm)


# Where user data begins: integers of an operator wrap around, in the TensorIR that it becomes.
#
#     C[i] = A[i] * 3 + B[i]                  C[i] = wrapping_add(wrapping_mul(A[i], 3), B[i])
#     S[i] = S[i] + A[i, k] * B[k]            stays: by sums of products TVM and templates tell
#                                             reductions; :mod:`tvm_fusion.lower.integers` ends that
#
# Indices, conditions of statements and what is bound to variables are index arithmetic.
# Their keys are the bits of floats, put in order by arithmetic that stays in its type.
_OF_BITS = frozenset({"relax.argmax", "relax.argmin"})


def wrap_integers(func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """Make the integers that an operator computes wrap around.

    Parameters
    ----------
    func
        Of one operator, not scheduled.

    Returns
    -------
    PrimFunc
        The same function where nothing can overflow.
    """
    if name in _OF_BITS:
        return func
    ranges: dict[ir.Var, tuple[int, int]] = {}
    updates: set[int] = set()

    def loop(node: tirx.For) -> None:
        ranges[node.loop_var] = _range(node.min, node.extent)

    def block(node: s_tir.SBlock) -> None:
        for iterator in node.iter_vars:
            ranges[iterator.var] = _range(iterator.dom.min, iterator.dom.extent)
        if node.init is not None:
            structural_walk(node.body, (tirx.BufferStore, lambda s: updates.add(hash(s))))

    structural_walk(func.body, [(tirx.For, loop), (s_tir.SBlock, block)])

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        value = node.value
        if not loads(value):
            return node
        if hash(node) in updates:
            value = _update(value, node.buffer, ranges)
        else:
            value = wrapped(value, ranges)
        if value.same_as(node.value):
            return node
        return tirx.BufferStore(node.buffer, value, list(node.indices))

    return func.with_body(structural_map(func.body, (tirx.BufferStore, store), order="post"))


def _update(value: Any, target: ir.Var, ranges: dict[ir.Var, tuple[int, int]]) -> ir.Expr:
    """Leave the sum or product of a reduction, and the product that is summed, as they are."""
    if not isinstance(value, (tirx.Add, tirx.Mul)) or not is_integer(str(value.ty.dtype)):
        return wrapped(value, ranges)
    for own, term in ((value.a, value.b), (value.b, value.a)):
        if not is_load_of(own, target):
            continue
        new = wrapped(term, ranges)
        if isinstance(value, tirx.Add) and isinstance(term, tirx.Mul):
            new = tirx.Mul(wrapped(term.a, ranges), wrapped(term.b, ranges))
        first = own.same_as(value.a)
        return type(value)(own, new) if first else type(value)(new, own)
    return wrapped(value, ranges)


def _range(least: Any, extent: Any) -> tuple[int, int]:
    size = int(extent) if isinstance(extent, tirx.IntImm) else LARGEST_EXTENT
    first = int(least) if isinstance(least, tirx.IntImm) else 0
    return first, first + max(size, 1) - 1
