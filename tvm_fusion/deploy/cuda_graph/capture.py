"""Capture a function's kernels as one CUDA graph, except those that access its caller's tensors.

A CUDA graph reads and writes the addresses that it was captured with, and a caller's tensors lie
elsewhere every time. If one kernel reads inputs and needs nothing else before, it is launched ahead
of the graph; otherwise one kernel copies the inputs to where the graph reads them. The same holds
for results behind the graph. So an inference is three launches at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import tvm
import tvm_ffi
from tvm import DataType, ir, relax, tirx
from tvm.ir.transform import PassContext

from ...core.decisions import Decision, record
from ...core.untouched import is_lowered, is_rewritable
from ...schedule.stage.launches import launches
from .copies import copies
from .static_inputs import static_inputs

CAPTURED = "tvm_fusion.captured"  # marks a function whose kernels become a CUDA graph
MOST_LAUNCHES = 3  # of a function that would gain nothing
BYTES_A_LAUNCH = 2 << 20  # that are copied in the time that a launch takes


@tvm.transform.module_pass(opt_level=0, name="CaptureLaunches")
class CaptureLaunches:
    """Prepare functions of static shapes for TVM's RewriteCUDAGraph.

    A function is taken if it is one block of ``call_tir``, and of workers' exchanges, with more
    than :data:`MOST_LAUNCHES` launches, unless copies of its inputs would cost more than its
    launches; it is marked then. Its static inputs are read where they are.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every Relax function that may be rewritten and is not lowered yet."""
        builder = relax.BlockBuilder(mod.clone())
        found: dict[ir.GlobalVar, relax.Function] = {}
        for gvar, func in mod.functions.items():
            calls = (
                KernelCalls.of(mod, func) if is_rewritable(func) and not is_lowered(func) else None
            )
            count = 0 if calls is None else sum(calls.kernels.values())
            if calls is None or count <= MOST_LAUNCHES:
                continue
            capture = _Capture(builder, func, calls)
            if capture.copied_bytes <= count * BYTES_A_LAUNCH:
                found[gvar] = capture.function()
            else:
                record(_too_large(gvar.name_hint, capture.copied_bytes, count))
        mod = builder.get()
        for gvar, func in found.items():
            mod.update_func(gvar, func)
        return relax.transform.Normalize()(mod)


class _Capture:
    """One function, as it is written for capture."""

    def __init__(
        self, builder: relax.BlockBuilder, func: relax.Function, calls: KernelCalls
    ) -> None:
        self._builder, self._func, self._calls = builder, func, calls
        self._count = int((func.attrs or {}).get("num_input", len(func.params)))
        self._leaves = calls.leaves(func.body.body)
        self._moving = self._read_inputs()
        self._first, self._last = self._find_first(), self._find_last()
        self._inputs = [] if self._first is not None else self._moving
        self._results = [] if self._last is not None else self._computed()

    @property
    def copied_bytes(self) -> int:
        """Bytes of inputs and results that are copied."""
        return sum(_bytes(tensor.ty) for tensor in (*self._inputs, *self._results))

    def function(self) -> relax.Function:
        """Write it."""
        calls, func = self._calls, self._func
        ends = (self._first, self._last)
        middle = [kernel for kernel in calls.kernels if kernel not in ends]
        order = dict.fromkeys(k for k in (ends[0], *middle, ends[1]) if k is not None)
        before, places = self._copied(self._inputs, "inputs")
        behind, results = self._copied(self._results, "results")
        bindings = [
            relax.VarBinding(var, _over(places, calls.values[var]))
            for var in calls.ordered(list(order))
        ]
        result = relax.Var("result", func.ret_ty)
        behind.append(relax.VarBinding(result, self._result(results)))
        block = relax.DataflowBlock([*before, *bindings, *behind])
        body = relax.SeqExpr([block], result)
        whole = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
        return relax.analysis.remove_all_unused(whole).with_attr(CAPTURED, True)

    def _read_inputs(self) -> list[ir.Var]:
        """List the inputs that kernels read and that lie elsewhere every time."""
        static = static_inputs(self._func)
        read = {o for kernel in self._calls.kernels for o in self._calls.origins(kernel)}
        params = self._func.params[: self._count]
        return [p for i, p in enumerate(params) if i not in static and p in read]

    def _find_first(self) -> ir.Var | None:
        """Find the one kernel that reads inputs, if it can run before all others."""
        calls, moving = self._calls, set(self._moving)
        readers = [k for k in calls.kernels if moving.intersection(calls.origins(k))]
        if len(readers) != 1 or calls.kernels[readers[0]] != 1:
            return None
        return None if set(calls.kernels).intersection(calls.origins(readers[0])) else readers[0]

    def _find_last(self) -> ir.Var | None:
        """Find the one kernel that writes results, if no other reads them or changes its inputs."""
        calls = self._calls
        leaves = [calls.origin(leaf) for leaf in self._leaves]
        writers = {leaf: None for leaf in leaves if calls.is_written(leaf)}
        if len(writers) != 1 or calls.kernels[next(iter(writers))] != 1:
            return None
        (writer,) = writers
        after = list(calls.kernels)[list(calls.kernels).index(writer) + 1 :]
        changed = {origin for kernel in after for origin in calls.written_inputs(kernel)}
        if changed.intersection(calls.origins(writer)):
            return None
        return None if any(writer in calls.origins(k) for k in calls.kernels) else writer

    def _computed(self) -> list[relax.Expr]:
        """List the results that lie in the graph's memory; an input that is one does not."""
        origins = {leaf: self._calls.origin(leaf) for leaf in self._leaves}
        return [
            leaf
            for leaf, origin in origins.items()
            if self._calls.is_written(origin) or (origin in self._inputs and leaf != origin)
        ]

    def _copied(
        self, tensors: list[relax.Expr], name: str
    ) -> tuple[list[relax.VarBinding], dict[relax.Expr, ir.Var]]:
        """Copy tensors, and say where the copies are."""
        if not tensors:
            return [], {}
        types = [tensor.ty for tensor in tensors]
        gvar = self._builder.add_func(copies(types), "copy_tensors")
        out = types[0] if len(types) == 1 else relax.TupleType(types)
        call = ir.Call(CALL_TIR, [gvar, relax.Tuple(tensors)], None, [out])
        whole = relax.DataflowVar(name, out)
        bindings = [relax.VarBinding(whole, call)]
        if len(types) == 1:
            return bindings, {tensors[0]: whole}
        places: dict[relax.Expr, ir.Var] = {}
        for i, tensor in enumerate(tensors):
            places[tensor] = relax.DataflowVar(f"{name}{i}", tensor.ty)
            bindings.append(relax.VarBinding(places[tensor], relax.TupleGetItem(whole, i)))
        return bindings, places

    def _result(self, copies: dict[relax.Expr, ir.Var]) -> relax.Expr:
        """Write what the function returns, over the copies."""
        leaves = iter([copies.get(leaf, leaf) for leaf in self._leaves])

        def fill(ty: ir.Type) -> relax.Expr:
            if isinstance(ty, relax.TupleType):
                return relax.Tuple([fill(field) for field in ty.fields])
            return next(leaves)

        return fill(self._func.ret_ty)


def _too_large(function: str, size: int, count: int) -> Decision:
    sentence = (
        f"{count} launches of {function} are not one CUDA graph: each call would copy "
        f"{size / 1e6:.0f} MB of inputs and results; declare inputs that stay in place as static."
    )
    return Decision(function, "", "refused", "not_captured", sentence)


def _bytes(ty: relax.TensorType) -> int:
    return math.prod(map(int, ty.shape.values)) * DataType(ty.dtype).itemsize


def _over(places: dict[relax.Expr, ir.Var], value: relax.Expr) -> relax.Expr:
    return tvm_ffi.structural_map(value, (ir.Var, lambda v: places.get(v, v)), order="post")


# A function that launches kernels and nothing else: their calls, and where tensors come from.
CALL_TIR = ir.Op.get("relax.call_tir")
_IN_PLACE = ir.Op.get("relax.call_tir_inplace")
_RESHAPE = ir.Op.get("relax.reshape")
_DPS_PACKED = ir.Op.get("relax.call_dps_packed")
# Collectives, which NCCL's kernels do on the stream that is captured.
_COLLECTIVES = ("runtime.disco.allreduce", "runtime.disco.allgather")
_VIEWS = (ir.Var, ir.Tuple, ir.TupleGetItem, ir.GenericConst, ir.Call)


@dataclass
class KernelCalls:
    """What a function does that launches kernels and nothing else."""

    # Launches of the ``call_tir``, or of the workers' exchange, that binds a variable.
    kernels: dict[ir.Var, int] = field(default_factory=dict)
    values: dict[ir.Var, relax.Expr] = field(default_factory=dict)  # by variable, in order

    @classmethod
    def of(cls, mod: tvm.IRModule, func: relax.Function) -> KernelCalls | None:
        """Read a function; ``None`` if something else is in it, or a shape is not known."""
        if len(func.body.blocks) != 1 or not all(_is_static(p.ty) for p in func.params):
            return None
        found = cls()
        for binding in func.body.blocks[0].bindings:
            value = binding.value
            if not isinstance(binding, relax.VarBinding) or not _is_static(binding.var.ty):
                return None
            if isinstance(value, ir.Call) and value.op == _DPS_PACKED:
                if str(value.args[0].global_symbol) not in _COLLECTIVES:
                    return None
                found.kernels[binding.var] = 1
            elif isinstance(value, ir.Call) and value.op != _RESHAPE:
                callee = mod[value.args[0]] if value.op in (CALL_TIR, _IN_PLACE) else None
                if not isinstance(callee, tirx.PrimFunc) or len(value.args) != 2:
                    return None
                found.kernels[binding.var] = launches(callee)
            elif not isinstance(value, _VIEWS):
                return None
            found.values[binding.var] = value
        return found

    def origin(self, expr: relax.Expr) -> relax.Expr:
        """Follow views to the variable of their kernel, to a parameter or to a constant."""
        while True:
            if isinstance(expr, ir.TupleGetItem):
                whole = self.origin(expr.tuple_value)
                expr = whole.fields[expr.index] if isinstance(whole, ir.Tuple) else whole
            if isinstance(expr, ir.Call):
                expr = expr.args[0]
            if expr not in self.values or expr in self.kernels:
                return expr
            expr = self.values[expr]

    def origins(self, kernel: ir.Var) -> list[relax.Expr]:
        """List where the arguments of a kernel are from."""
        fields = self.values[kernel].args[1].fields
        return [self.origin(arg) for arg in fields if isinstance(arg.ty, relax.TensorType)]

    def written_inputs(self, kernel: ir.Var) -> list[relax.Expr]:
        """List where the arguments are from that a kernel writes in place."""
        call = self.values[kernel]
        if call.op != _IN_PLACE:
            return []
        places = [int(i) for i in call.attrs.inplace_indices]
        return [self.origin(call.args[1].fields[i]) for i in places if i >= 0]

    def is_written(self, origin: relax.Expr) -> bool:
        """Whether a tensor is a kernel's, in memory that is not a caller's."""
        return origin in self.kernels and self.values[origin].op != _IN_PLACE

    def leaves(self, expr: relax.Expr) -> list[relax.Expr]:
        """List the tensors of a result, as variables where they have some."""
        whole = self.values.get(expr, expr) if isinstance(expr, ir.Var) else expr
        if isinstance(whole, ir.Tuple):
            return [leaf for item in whole.fields for leaf in self.leaves(item)]
        if isinstance(expr.ty, relax.TupleType):
            fields = [relax.TupleGetItem(expr, i) for i in range(len(expr.ty.fields))]
            return [leaf for item in fields for leaf in self.leaves(item)]
        return [expr]

    def ordered(self, kernels: Sequence[ir.Var]) -> list[ir.Var]:
        """Order all variables as the kernels are, the others as soon as they are known."""
        others = [var for var in self.values if var not in self.kernels]
        found: dict[ir.Var, None] = {}
        missing: dict[ir.Var, int] = {}
        readers: dict[ir.Var, list[int]] = {}
        known: list[int] = []  # places of others that nothing is missing of, a heap
        for place, var in enumerate(others):
            used = [v for v in relax.analysis.free_vars(self.values[var]) if v in self.values]
            missing[var] = len(used)
            for v in used:
                readers.setdefault(v, []).append(place)
            if not used:
                known.append(place)

        def find(var: ir.Var) -> None:
            found[var] = None
            for place in readers.get(var, ()):
                missing[others[place]] -= 1
                if not missing[others[place]]:
                    heappush(known, place)

        for kernel in (None, *kernels):
            if kernel is not None:
                find(kernel)
            while known:
                find(others[heappop(known)])
        return list(found)


def _is_static(ty: ir.Type) -> bool:
    if isinstance(ty, relax.TupleType):
        return all(_is_static(field) for field in ty.fields)
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return False
    return all(isinstance(extent, tirx.IntImm) for extent in ty.shape.values)
