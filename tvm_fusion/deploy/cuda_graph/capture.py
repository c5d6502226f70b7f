"""Capture a function's kernels as one CUDA graph, except those that access its caller's tensors.

A CUDA graph reads and writes the addresses that it was captured with, and a caller's tensors lie
elsewhere every time. If one kernel reads inputs and needs nothing else before, it is launched ahead
of the graph; otherwise one kernel copies the inputs to where the graph reads them. The same holds
for results behind the graph. So an inference is three launches at most.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import DataType, ir, relax
from tvm.ir.transform import PassContext

from ...core.decisions import Decision, record
from ...core.untouched import is_lowered, is_rewritable
from .copies import copies
from .kernel_calls import CALL_TIR, KernelCalls
from .static_inputs import static_inputs

CAPTURED = "tvm_fusion.captured"  # marks a function whose kernels become a CUDA graph
MOST_LAUNCHES = 3  # of a function that would gain nothing
BYTES_A_LAUNCH = 2 << 20  # that are copied in the time that a launch takes


@tvm.transform.module_pass(opt_level=0, name="CaptureLaunches")
class CaptureLaunches:
    """Prepare functions of static shapes for TVM's RewriteCUDAGraph.

    A function is taken if it is one block of ``call_tir`` with more than :data:`MOST_LAUNCHES`
    launches, unless copies of its inputs would cost more than its launches; it is marked then. Its
    static inputs are read where they are.
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
        """Find the one kernel that writes results, if no other reads them."""
        calls = self._calls
        leaves = [calls.origin(leaf) for leaf in self._leaves]
        writers = {leaf: None for leaf in leaves if calls.is_written(leaf)}
        if len(writers) != 1 or calls.kernels[next(iter(writers))] != 1:
            return None
        (writer,) = writers
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
        f"{count} launches of {function} are no CUDA graph, for {size / 1e6:.0f} MB of inputs and "
        "results would be copied in each call; name inputs that stay in place static."
    )
    return Decision(function, "", "refused", "not_captured", sentence)


def _bytes(ty: relax.TensorType) -> int:
    return math.prod(map(int, ty.shape.values)) * DataType(ty.dtype).itemsize


def _over(places: dict[relax.Expr, ir.Var], value: relax.Expr) -> relax.Expr:
    return tvm_ffi.structural_map(value, (ir.Var, lambda v: places.get(v, v)), order="post")
