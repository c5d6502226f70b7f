"""Parts of a concatenation, stored in their places by the kernels that compute them.

    a = conv(x);  b = pool(x);  c = concat(a, b)
    c = conv(x);  c = pool(x, c)                   each stores in its part, no kernel copies

The first kernel allocates the whole, the others write to it in place. Runs when everything is
scheduled; the copy stays where something else reads a part, and where a kernel uses its output
otherwise than by plain loads and stores.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx
from tvm.ir.transform import PassContext
from tvm.target import Target

from ..._tvm.ir.buffer import declare
from ...core.contract.kernel_info import rename
from ...core.tir.loops import constant, find, with_fields
from ...core.untouched import is_rewritable
from ...schedule.elementwise.concat import CONCAT
from .slice_patterns import mentioned

_CALL_TIR, _IN_PLACE = (ir.Op.get(f"relax.{name}") for name in ("call_tir", "call_tir_inplace"))


@tvm.transform.module_pass(opt_level=0, name="StoreConcatParts")
class StoreConcatParts:
    """Let kernels on CPUs store their results where concatenations would copy them."""

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every rewritable function of one block."""
        target = Target.current(allow_none=True)
        if target is None or target.kind.name != "llvm":
            return mod
        functions = [
            gvar
            for gvar, func in mod.functions.items()
            if isinstance(func, relax.Function) and is_rewritable(func)
        ]
        before = mod
        kernels: dict[tuple, ir.GlobalVar] = {}
        for gvar in functions:
            if len(mod[gvar].body.blocks) == 1:
                mod = _Stored(mod, gvar, kernels).module()
        if mod is before:
            return mod
        mod = relax.transform.DeadCodeElimination()(mod)
        left = {gvar.name_hint for gvar in mod.functions}
        gone = {gvar.name_hint for gvar in before.functions} - left
        instead: dict[str, list[str]] = {name: [] for name in gone}
        for (name, *_), new in kernels.items():
            instead.setdefault(name, [name]).append(new.name_hint)
        rename(instead)
        return mod


@dataclass(frozen=True)
class _Part:
    """A result of a kernel that a concatenation reads."""

    kernel: ir.Var  # the variable of the kernel's call
    output: int  # which of its results
    begin: int  # where it is stored, along the axis


@dataclass(frozen=True)
class _Concat:
    """A concatenation of results of kernels."""

    var: ir.Var
    type: relax.TensorType
    axis: int
    parts: tuple[_Part, ...]


class _Stored:
    """One function, of whose concatenations parts are stored in place.

    Parameters
    ----------
    kernels
        Those made for other functions, by what they are made from.
    """

    def __init__(
        self, mod: tvm.IRModule, gvar: ir.GlobalVar, kernels: dict[tuple, ir.GlobalVar]
    ) -> None:
        self._mod, self._gvar, self._kernels = mod, gvar, kernels
        (self._block,) = mod[gvar].body.blocks
        self._values = {b.var: b.value for b in self._block.bindings}
        self._uses = Counter(v for value in self._values.values() for v in mentioned(value))
        self._uses.update(mentioned(mod[gvar].body.body))

    def module(self) -> tvm.IRModule:
        """Write the module with all concatenations that can be stored so."""
        chosen: dict[ir.Var, _Concat] = {}  # by kernel
        wholes: dict[ir.Var, _Concat] = {}
        for binding in self._block.bindings:
            concat = self._concat(binding)
            if concat is None or any(part.kernel in chosen for part in concat.parts):
                continue
            if all(self._function(concat, kernel) is not None for kernel in _kernels(concat)):
                chosen |= dict.fromkeys(_kernels(concat), concat)
                wholes[binding.var] = concat
        if not wholes:
            return self._mod
        bindings = list(self._bindings(chosen, wholes))
        func = self._mod[self._gvar]
        body = relax.SeqExpr([type(self._block)(bindings)], func.body.body)
        done = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
        self._mod.update_func(self._gvar, done)
        return relax.transform.Normalize()(self._mod)

    def _concat(self, binding: relax.Binding) -> _Concat | None:
        """Read a binding as a concatenation of what kernels compute for it alone."""
        call = binding.value
        if not _is_kernel(call):
            return None
        attrs = self._mod[call.args[0]].attrs
        if CONCAT not in attrs or any(constant(d) is None for d in binding.var.ty.shape.values):
            return None
        axis, *begins = map(int, attrs[CONCAT])
        found = [self._part(*one) for one in zip(call.args[1].fields, begins, strict=True)]
        parts = tuple(part for part in found if part is not None)
        if len(parts) < len(found):
            return None
        return _Concat(binding.var, binding.var.ty, axis, parts)

    def _part(self, expr: relax.Expr, begin: int) -> _Part | None:
        value, output = self._values.get(expr), 0
        if self._uses[expr] != 1:
            return None
        if isinstance(value, relax.TupleGetItem):
            expr, output = value.tuple_value, int(value.index)
            again = [v for v in self._values.values() if _is_item(v, expr, output)]
            if len(again) != 1 or self._uses[expr] != len(self._items(expr)):
                return None
            value = self._values.get(expr)
        return _Part(expr, output, begin) if _is_kernel(value) else None

    def _items(self, whole: ir.Var) -> dict[ir.Var, int]:
        """Find the variables of a call's results."""
        return {
            var: int(value.index)
            for var, value in self._values.items()
            if isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(whole)
        }

    def _function(self, concat: _Concat, kernel: ir.Var) -> ir.GlobalVar | None:
        """Make the function that stores a kernel's parts in the whole; ``None`` if it cannot."""
        call = self._values[kernel]
        gvar = call.args[0]
        begins = {p.output: p.begin for p in concat.parts if p.kernel.same_as(kernel)}
        shape = tuple(int(d) for d in concat.type.shape.values)
        is_first = kernel.same_as(next(iter(self._in_order(concat))))
        key = gvar.name_hint, shape, concat.axis, tuple(begins.items()), is_first
        if key not in self._kernels:
            outputs = len(_types(call))
            made = _storing(self._mod[gvar], outputs, concat, begins, is_first)
            if made is None:
                return None
            builder = relax.BlockBuilder(self._mod.clone())
            self._kernels[key] = builder.add_func(made, gvar.name_hint)
            self._mod = builder.get()
        return self._kernels[key]

    def _in_order(self, concat: _Concat) -> list[ir.Var]:
        kernels = _kernels(concat)
        return [var for var in self._values if any(var.same_as(kernel) for kernel in kernels)]

    def _bindings(
        self, chosen: Mapping[ir.Var, _Concat], wholes: Mapping[ir.Var, _Concat]
    ) -> Iterator[relax.Binding]:
        so_far: dict[ir.Var, ir.Var] = {}  # the whole, as it is behind the last kernel
        for binding in self._block.bindings:
            var, value = binding.var, binding.value
            source = value.tuple_value if isinstance(value, relax.TupleGetItem) else None
            if var in chosen:
                yield from self._call(binding, chosen[var], so_far)
            elif var in wholes:
                yield relax.VarBinding(var, so_far[var])
            elif source not in chosen:
                yield binding

    def _call(
        self, binding: relax.Binding, concat: _Concat, so_far: dict[ir.Var, ir.Var]
    ) -> Iterator[relax.Binding]:
        """Call a kernel that stores parts; its other results keep their variables."""
        call, kernel = binding.value, binding.var
        name = self._function(concat, kernel)
        stored = {p.output for p in concat.parts if p.kernel.same_as(kernel)}
        left = [i for i in range(len(_types(call))) if i not in stored]
        types = [*(_types(call)[i] for i in left), concat.type]
        args = list(call.args[1].fields)
        out = types if len(types) > 1 else types[0]
        whole = so_far.get(concat.var)
        if whole is None:
            made = relax.op.call_tir(name, relax.Tuple(args), out)
        else:
            places = [-1] * len(left) + [len(args)]
            made = relax.op.call_tir_inplace(name, relax.Tuple([*args, whole]), places, out)
        result = relax.DataflowVar(concat.var.name, concat.type, kernel.span)
        so_far[concat.var] = result
        if not left:
            yield relax.VarBinding(result, made)
            return
        both = relax.DataflowVar(kernel.name, relax.TupleType(types), kernel.span)
        yield relax.VarBinding(both, made)
        names = {output: var for var, output in self._items(kernel).items()}
        for place, output in enumerate(left):
            if output in names:
                yield relax.VarBinding(names[output], relax.TupleGetItem(both, place))
        yield relax.VarBinding(result, relax.TupleGetItem(both, len(left)))


def _kernels(concat: _Concat) -> list[ir.Var]:
    return list(dict.fromkeys(part.kernel for part in concat.parts))


def _is_kernel(value: object) -> bool:
    """Whether a value is a call of a kernel without scalars."""
    return isinstance(value, ir.Call) and value.op == _CALL_TIR and len(value.args) == 2


def _is_item(value: object, whole: ir.Var, place: int) -> bool:
    return (
        isinstance(value, relax.TupleGetItem)
        and value.tuple_value.same_as(whole)
        and int(value.index) == place
    )


def _types(call: ir.Call) -> list[relax.TensorType]:
    (ty,) = call.ty_args
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


def _storing(
    func: tirx.PrimFunc, outputs: int, concat: _Concat, begins: Mapping[int, int], is_first: bool
) -> tirx.PrimFunc | None:
    """Let a kernel store outputs in a whole, which stands before the other outputs or behind them.

    Parameters
    ----------
    outputs
        How many it has.
    begins
        By output, where its part begins.
    is_first
        Whether the whole is an output, rather than an input that is written in place.
    """
    params, body = list(func.params), func.body
    inputs, results = params[:-outputs], params[-outputs:]
    whole = declare(concat.type.shape.values, str(concat.type.dtype), "whole")
    for output, begin in begins.items():
        moved = _moved(body, results[output], whole, concat.axis, begin)
        if moved is None:
            return None
        body = moved
    left = [x for i, x in enumerate(results) if i not in begins]
    params = [*inputs, *left, whole] if is_first else [*inputs, whole, *left]
    attrs = {name: value for name, value in dict(func.attrs).items() if name != "global_symbol"}
    return tirx.PrimFunc(params, body, func.ret_type).with_attrs(attrs)


def _moved(
    body: tirx.Stmt, output: ir.Var, whole: ir.Var, axis: int, begin: int
) -> tirx.Stmt | None:
    """Move loads and stores of an output into a whole; ``None`` where it is used otherwise."""
    known = sum(s.buffer.same_as(output) for s in find(body, tirx.BufferStore))
    known += sum(x.source.same_as(output) for x in find(body, ir.TensorLoad))
    known += sum(
        region.source.same_as(output)
        for node in find(body, s_tir.SBlock)
        for region in (*node.reads, *node.writes)
    )
    if sum(var.same_as(output) for var in find(body, ir.Var)) != known:
        return None

    def at(indices: Sequence[ir.Expr]) -> list[ir.Expr]:
        return [_plus(i, begin) if n == axis else i for n, i in enumerate(indices)]

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        if not node.buffer.same_as(output):
            return node
        return tirx.BufferStore(whole, node.value, at(node.indices))

    def load(node: ir.TensorLoad) -> ir.Expr:
        return tirx.BufferLoad(whole, at(node.indices)) if node.source.same_as(output) else node

    def region(node: tirx.BufferRegion) -> tirx.BufferRegion:
        if not node.source.same_as(output):
            return node
        ranges = [
            ir.Range.from_min_extent(_plus(r.min, begin), r.extent) if n == axis else r
            for n, r in enumerate(node.region)
        ]
        return tirx.BufferRegion(whole, ranges)

    def renewed(node: s_tir.SBlock) -> s_tir.SBlock:
        if not any(r.source.same_as(output) for r in (*node.reads, *node.writes)):
            return node
        reads, writes = (list(map(region, regions)) for regions in (node.reads, node.writes))
        return with_fields(node, reads=reads, writes=writes)

    for rule in ((tirx.BufferStore, store), (ir.TensorLoad, load), (s_tir.SBlock, renewed)):
        body = tvm_ffi.structural_map(body, rule, order="post")
    return body


def _plus(place: ir.Expr, by: int) -> ir.Expr:
    if isinstance(place, tirx.Ramp):
        return tirx.Ramp(place.base + by, place.stride, place.lanes)
    return place + by
