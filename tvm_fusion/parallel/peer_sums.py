"""Sums of small tensors over workers, computed by kernels that write to peers' memory.

    y = allreduce(x)                          x: half, at most 256 kB
    s = residual + y                          float32, or half as x is
    n = half(rms_norm(s, weight))             peer_sum(x, residual, weight) -> s, n

NCCL's kernel for so few bytes takes as long as the weights of a product, and is followed by the sum
and the norm. What is larger, and what GPUs without NVLink exchange, stays NCCL's.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax
from tvm.ir.transform import PassContext
from tvm.target import Target

from ..core.constants.weight_names import of_no_weight, tracked
from ..core.decisions import Decision, record
from ..core.peer_memory import MOST_BYTES, MOST_ROWS, ROW_BYTES, WEIGHT
from ..core.untouched import is_lowered, is_rewritable
from ..device import parse
from ..device.links import has_peer_memory
from .peer_sum_kernel import VECTOR, Form, peer_sum
from .views import fixed

_CALL_TIR = ir.Op.get("relax.call_tir")
_HALF = ("float16", "bfloat16")


@dataclass(frozen=True)
class _Sum:
    """A sum over workers, and what is behind it; results are absent where the form has none."""

    form: Form
    total: relax.Var
    normed: relax.Var | None
    operands: tuple[Any, ...]
    epsilon: float


@tvm.transform.module_pass(opt_level=0, name="PeerSums")
class PeerSums:
    """Let kernels of our own compute small sums over workers, with what is behind them."""

    def __init__(self, size: int) -> None:
        self._size = size

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every rewritable function of a target whose GPUs reach each other's memory."""
        target = Target.current(allow_none=True)
        if target is None or not all(map(has_peer_memory, parse(target).devices)):
            return mod
        builder, peers, changed = relax.BlockBuilder(mod.clone()), self._peers(), {}
        for gvar, func in mod.functions.items():
            if is_rewritable(func) and not is_lowered(func):
                new = _Function(builder, func, self._size, peers).written()
                if new is not func:
                    changed[gvar] = new
        mod = builder.get()
        for gvar, new in changed.items():
            mod.update_func(gvar, new)
        return relax.transform.Normalize()(mod) if changed else mod

    def _peers(self) -> Any:
        """Make the weight that each worker fills when it is loaded; no other is like it."""
        own = np.frombuffer(WEIGHT.encode()[:8], "int64") + np.arange(self._size + 1)
        const = relax.const(tvm.runtime.tensor(own))
        names = tracked()
        if names is not None:
            names.name(const, WEIGHT)
        return of_no_weight(const)


class _Function:
    """One function."""

    def __init__(
        self, builder: relax.BlockBuilder, func: relax.Function, size: int, peers: Any
    ) -> None:
        self._builder, self._func, self._size, self._peers = builder, func, size, peers
        self._values: dict[relax.Var, Any] = {}
        self._readers: dict[relax.Var, list[relax.Var]] = {}
        for one in func.body.blocks:
            for binding in one.bindings:
                value = binding.value
                self._values[binding.var] = value
                for var in relax.analysis.free_vars(value):
                    self._readers.setdefault(var, []).append(binding.var)
        self._results = set(relax.analysis.free_vars(func.body.body))

    def written(self) -> relax.Function:
        """Write the function; the same object where nothing changes."""
        func = self._func
        found = {one.total: one for one in map(self._match, self._values) if one is not None}
        if not found:
            return func
        normed: dict[relax.Var, relax.Var] = {}
        blocks = []
        for one in func.body.blocks:
            bindings: list[relax.Binding] = []
            for binding in one.bindings:
                if binding.var in found:
                    bindings += self._called(found[binding.var], normed)
                elif binding.var in normed:
                    bindings.append(_shaped(binding.var, normed[binding.var]))
                else:
                    bindings.append(binding)
            blocks.append(type(one)(bindings))
        body = relax.SeqExpr(blocks, func.body.body)
        whole = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
        return relax.analysis.remove_all_unused(whole)

    def _called(self, one: _Sum, normed: dict[relax.Var, relax.Var]) -> list[relax.Binding]:
        """Call the kernel of a sum."""
        x = one.operands[0]
        shape = [int(extent) for extent in x.ty.shape.values]
        total, half = (relax.TensorType(shape, v.ty.dtype) for v in (one.total, x))
        dtypes = {} if one.form == "sum" else {"residual_dtype": str(one.total.ty.dtype)}
        if one.form == "norm":
            dtypes["scale_dtype"] = str(one.operands[2].ty.dtype)
        kernel = peer_sum(shape, str(x.ty.dtype), self._size, one.form, one.epsilon, **dtypes)
        gvar = self._builder.add_func(kernel, f"peer_{one.form}")
        types = {"sum": [half], "residual": [total]}.get(one.form, [total, half])
        out = types[0] if len(types) == 1 else relax.TupleType(types)
        operands = relax.Tuple([*one.operands, self._peers])
        call = relax.Call(_CALL_TIR, [gvar, operands], None, [out])
        sentence = f"{math.prod(shape)} sums over {self._size} workers are one kernel"
        what = {"residual": ", with the residual", "norm": ", with the residual and the norm"}
        sentence += what.get(one.form, "") + ", over their GPUs' memory."
        record(Decision(one.total.name, "", "accepted", "peer_sum", sentence))
        if one.normed is None:
            return [relax.VarBinding(one.total, call)]
        whole, second = relax.DataflowVar("sums", out), relax.DataflowVar("normed", half)
        normed[one.normed] = second
        return [
            relax.VarBinding(whole, call),
            relax.VarBinding(one.total, relax.TupleGetItem(whole, 0)),
            relax.VarBinding(second, relax.TupleGetItem(whole, 1)),
        ]

    def _match(self, var: relax.Var) -> _Sum | None:
        """Find what a sum over workers is followed by."""
        call = self._call(var, "ccl.allreduce")
        if call is None or str(call.attrs.op_type) != "sum":
            return None
        x = call.args[0]
        shape = fixed(x.ty.shape.values)
        if str(x.ty.dtype) not in _HALF or not shape or not _fits(shape):
            return None
        summand: relax.Var | None = var
        if (wide := self._only_reader(var, "astype")) is not None:
            summand = wide if str(wide.ty.dtype) == "float32" else None
        total = None if summand is None else self._only_reader(summand, "add")
        if total is None:
            return _Sum("sum", var, None, (x,), 0.0)
        rest = [arg for arg in self._values[total].args if arg != summand]
        if len(rest) != 1 or fixed(rest[0].ty.shape.values) != shape:
            return _Sum("sum", var, None, (x,), 0.0)
        return self._with_norm(total, x, rest[0]) or _Sum(
            "residual", total, None, (x, rest[0]), 0.0
        )

    def _with_norm(self, total: relax.Var, x: Any, residual: Any) -> _Sum | None:
        """Find the norm of a sum, which is rounded first; its result is rounded as well."""
        half = str(x.ty.dtype)
        for norm in self._norms_of(total, half):
            call = self._values[norm]
            axes = [int(axis) % total.ty.ndim for axis in call.attrs.axes]
            scale = call.args[1]
            if axes != [total.ty.ndim - 1] or str(scale.ty.dtype) not in ("float32", half):
                continue
            narrow: relax.Var | None = norm
            if str(norm.ty.dtype) != half:
                view = self._only_reader(norm, "reshape")
                narrow = self._only_reader(norm if view is None else view, "astype")
            if narrow is not None and str(narrow.ty.dtype) == half:
                epsilon = float(call.attrs.epsilon)
                return _Sum("norm", total, narrow, (x, residual, scale), epsilon)
        return None

    def _norms_of(self, total: relax.Var, half: str) -> list[relax.Var]:
        """List the norms of a sum in half, and of a float32 one that is rounded to half."""
        if str(total.ty.dtype) == half:
            return self._readers_of(total, "nn.rms_norm")
        rounded = [r for r in self._readers_of(total, "astype") if str(r.ty.dtype) == half]
        wide = [w for r in rounded for w in self._readers_of(r, "astype")]
        return [norm for w in wide for norm in self._readers_of(w, "nn.rms_norm")]

    def _call(self, var: relax.Var, name: str) -> relax.Call | None:
        value = self._values.get(var)
        is_it = isinstance(value, relax.Call) and getattr(value.op, "name", "") == f"relax.{name}"
        return value if is_it else None

    def _readers_of(self, var: relax.Var, name: str) -> list[relax.Var]:
        return [r for r in self._readers.get(var, ()) if self._call(r, name) is not None]

    def _only_reader(self, var: relax.Var, name: str) -> relax.Var | None:
        readers = self._readers.get(var, ())
        if len(readers) != 1 or var in self._results or self._call(readers[0], name) is None:
            return None
        return readers[0]


def _fits(shape: list[int]) -> bool:
    rows, width = math.prod(shape[:-1]), shape[-1]
    size = 2 * width
    return (
        rows <= MOST_ROWS
        and size <= ROW_BYTES
        and rows * size <= MOST_BYTES
        and not (width % VECTOR)
    )


def _shaped(var: relax.Var, value: relax.Var) -> relax.Binding:
    """Bind a variable to a value of its elements."""
    if fixed(var.ty.shape.values) == fixed(value.ty.shape.values):
        return relax.VarBinding(var, value)
    return relax.VarBinding(var, relax.op.reshape(value, var.ty.shape))
