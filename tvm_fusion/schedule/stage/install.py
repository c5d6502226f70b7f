"""Install kernels: calls of groups become calls of PrimFuncs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax, tirx

from ...core.constants.numpy_types import numpy_dtype
from ...core.constants.weight_names import Packing, tracked
from ...core.contract.kernel_info import record
from ...core.contract.template import Emission, Slot
from ...core.tir.expressions import choice
from ...core.untouched import SCHEDULED
from ...device import parse as parse_target
from ...ecg.mapping_types.evaluate import evaluate
from ...ecg.mapping_types.loads import Unreadable
from ...program.stage import Stage, Unstructured
from ...program.stages.parse import parse
from ..cpu.schedule import schedule_cpu
from .emit import is_group

# Packed constants: packing functions, evaluated at compile time.
#
# Weights that the model names may be replaced when an artifact is loaded; so their packing
# functions go into the library as well. Here numpy evaluates them; those that compute anything are
# compiled for this machine.


# Packing functions that only move elements, evaluated by numpy: LLVM takes 20 to 300 ms for one.
#
#     packed[i, j, ...] = source[f(i, j, ...), g(i, j, ...), ...]    or a constant, by a condition
#
# Elements are handled as bits, so that the result is what the compiled function would write.


def gather(packing: tirx.PrimFunc, constant: tvm.runtime.Tensor) -> tvm.runtime.Tensor | None:
    """Evaluate a packing function.

    Parameters
    ----------
    packing
        From the constant to the packed form, static shapes, not scheduled.

    Returns
    -------
    tvm.runtime.Tensor or None
        The packed form; None where the function computes more than places of elements.
    """
    source, packed = (param.ty for param in packing.params)
    shape = tuple(int(d) for d in packed.shape)
    dtype = numpy_dtype(str(packed.dtype))
    if str(source.dtype) != str(packed.dtype) or 8 * dtype.itemsize != packed.dtype.dtype.bits:
        return None  # numpy has no elements of less than a byte
    if tuple(constant.shape) != tuple(int(d) for d in source.shape):
        return None
    try:
        stage = _only_map(packing)
        bits = constant.numpy().view(f"u{dtype.itemsize}")
        result = _Gather(stage, packing.params[0], bits, dtype).value(stage.values[0])
    except (Unstructured, Unreadable):
        return None
    result = np.ascontiguousarray(np.broadcast_to(result, [a.size or 0 for a in stage.axes]))
    return tvm.runtime.tensor(result.reshape(shape).view(dtype))


def _only_map(packing: tirx.PrimFunc) -> Stage:
    """Read the nest, which writes every element of the packed form in order."""
    parsed = parse(packing)
    target = packing.params[1]
    if len(parsed.stages) != 1 or not parsed.stages[0].is_map:
        raise Unreadable("is more than one map")
    (stage,) = parsed.stages
    places = [i for i in stage.indices[0] if not isinstance(i, tirx.IntImm)]
    in_order = len(places) == len(stage.axes) and all(
        place.same_as(axis.var) for place, axis in zip(places, stage.axes, strict=True)
    )
    extents = [int(d) for d in target.ty.shape]
    is_whole = np.prod(extents, dtype="int64") == np.prod([a.size or 0 for a in stage.axes])
    if not stage.targets[0].same_as(target) or not in_order or not is_whole:
        raise Unreadable("does not write every element in order")
    return stage


class _Gather:
    """Values over all axes of a stage, with extent 1 for axes that they do not depend on."""

    def __init__(self, stage: Stage, source: ir.Var, bits: np.ndarray, dtype: np.dtype) -> None:
        self._source, self._bits, self._dtype = source, bits, dtype
        grid = np.ix_(*(np.arange(axis.size or 0) for axis in stage.axes))
        self._env = {axis.var: at for axis, at in zip(stage.axes, grid, strict=True)}
        self._rank = len(grid)

    def value(self, expr: ir.Expr) -> np.ndarray:
        """Evaluate elements or a choice of them."""
        if isinstance(expr, ir.TensorLoad):
            if not expr.source.same_as(self._source):
                raise Unreadable("reads another tensor")
            return self._load([self._place(k, i) for k, i in enumerate(expr.indices)])
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return np.asarray(expr.value, self._dtype).view(self._bits.dtype)
        chosen = choice(expr)
        if chosen is None:
            raise Unreadable("computes elements")
        condition = np.asarray(evaluate(chosen[0], self._env))
        if condition.all():
            return self.value(chosen[1])
        return np.where(condition, self.value(chosen[1]), self.value(chosen[2]))

    def _place(self, dim: int, index: ir.Expr) -> np.ndarray:
        place = np.asarray(evaluate(index, self._env), "int64")
        # Beyond the tensor are only places where the condition around them is false.
        place = np.clip(place, 0, self._bits.shape[dim] - 1)
        return place if place.ndim else place.reshape([1] * self._rank)

    def _load(self, places: Sequence[np.ndarray]) -> np.ndarray:
        """Read the elements at places, one dimension after the other where that gives all."""
        along = [[k for k, extent in enumerate(p.shape) if extent > 1] for p in places]
        axes = [k for found in along for k in found]
        if len(set(axes)) < len(axes):  # an axis in two indices: as in the diagonal of a matrix
            return self._bits[tuple(places)]
        result = self._bits
        for dim, place in enumerate(places):
            flat = place.reshape(-1)
            if not np.array_equal(flat, np.arange(result.shape[dim])):
                result = result.take(flat, axis=dim)
        extents = [
            place.shape[k] for place, found in zip(places, along, strict=True) for k in found
        ]
        result = result.reshape(extents).transpose(np.argsort(axes))
        return result[tuple(slice(None) if k in axes else None for k in range(self._rank))]


class Packer:
    """Evaluates packing functions on this machine, each result once.

    Parameters
    ----------
    mod
        Whose constants are packed; it tells which names are taken.

    Attributes
    ----------
    functions : dict of str to PrimFunc
        Scheduled packing functions of weights that the model names, public, by name.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self._taken = {gvar.name_hint for gvar in mod.functions}
        self._known: dict[int, list[_Function]] = {}
        self._packed: dict[tuple[ir.GenericConst, str], ir.GenericConst] = {}
        self.functions: dict[str, tirx.PrimFunc] = {}

    def __call__(self, packing: tirx.PrimFunc, constant: ir.GenericConst) -> ir.GenericConst:
        """Pack a constant.

        Parameters
        ----------
        packing
            From the constant to the packed form, static shapes.

        Returns
        -------
        ir.GenericConst
            The same object for the same constant and equal functions.
        """
        function = self._function(packing)
        key = constant, function.name
        if key not in self._packed:
            self._packed[key] = relax.const(function(constant.value))
            names = tracked()
            if names is not None and names.knows(constant):
                shape = tuple(int(d) for d in packing.params[0].ty.shape)

                def again(sources: Sequence[ir.GenericConst]) -> ir.GenericConst:
                    return relax.const(function(sources[0].value))

                packing_ = Packing(function.name, shape)
                names.pack(self._packed[key], packing_, constant, again)
                self.functions[function.name] = function.scheduled
        return self._packed[key]

    def _function(self, packing: tirx.PrimFunc) -> _Function:
        known = self._known.setdefault(tvm_ffi.structural_hash(packing), [])
        for function in known:
            if tvm_ffi.structural_equal(function.packing, packing):
                return function
        name = next(n for n in map("pack{}".format, itertools.count()) if n not in self._taken)
        self._taken.add(name)
        known.append(_Function(packing, name))
        return known[-1]


@dataclass(frozen=True, eq=False)
class _Function:
    """A packing function; scheduled and compiled once, where that is needed."""

    packing: tirx.PrimFunc
    name: str

    def __call__(self, constant: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
        packed = gather(self.packing, constant)
        if packed is None:
            buffer = self.packing.params[-1].ty
            packed = tvm.runtime.empty(tuple(int(d) for d in buffer.shape), str(buffer.dtype))
            self._module[self.name](constant, packed)
        return packed

    @cached_property
    def scheduled(self) -> tirx.PrimFunc:
        schedule = schedule_cpu(self.packing, parse_target("cpu").tvm_target(), vectors=1)
        func = schedule.mod["main"] if schedule else self.packing
        target = tvm.target.Target.current()
        is_gpu = target is not None and "gpu" in target.keys  # weights are packed before its copy
        on_host = {"tirx.is_host_func": True} if is_gpu else {}
        return func.with_attrs({"global_symbol": self.name, SCHEDULED: True, **on_host})

    @cached_property
    def _module(self) -> tvm.runtime.Module:
        mod = tvm.IRModule({self.name: self.scheduled})
        return tvm.tirx.build(mod, parse_target("cpu").tvm_target(), pipeline="tvm_fusion")


_CALL_TIR = ir.Op.get("relax.call_tir")
_Names = Mapping[tirx.PrimFunc, ir.GlobalVar]


def install(mod: tvm.IRModule, emitted: Mapping[ir.GlobalVar, Emission]) -> tvm.IRModule:
    """Replace groups by their kernels.

    Parameters
    ----------
    mod
        Its Relax functions call the groups.

    Returns
    -------
    tvm.IRModule
        Without those groups. Packing functions of constants are evaluated; those of other inputs
        are called where the group was, and are still to be scheduled.
    """
    builder = relax.BlockBuilder(mod.clone())
    packer = Packer(mod)
    names: dict[tirx.PrimFunc, ir.GlobalVar] = {}
    for gvar, emission in emitted.items():
        for kernel in emission.kernels:
            func = _private(kernel.func).with_attr(SCHEDULED, True)
            names[kernel.func] = builder.add_func(func, gvar.name_hint)
        for position, packing in emission.packing.items():
            name = f"{gvar.name_hint}_pack{position}"
            names[packing] = builder.add_func(_private(packing), name)
        if emission.info is not None:
            record(emission.info, tuple(names[k.func].name_hint for k in emission.kernels))
    result = builder.get()
    for gvar, func in list(result.functions.items()):
        if gvar in emitted:
            del result[gvar]
        elif isinstance(func, relax.Function) and not is_group(func):
            result.update_func(gvar, _rewrite(mod, func, emitted, names, packer))
    for name, packing in packer.functions.items():
        result[name] = packing
    return relax.transform.Normalize()(result)


def _private(func: tirx.PrimFunc) -> tirx.PrimFunc:
    return func.without_attr("global_symbol")


def _rewrite(
    mod: tvm.IRModule,
    func: relax.Function,
    emitted: Mapping[ir.GlobalVar, Emission],
    names: _Names,
    packer: Packer,
) -> relax.Function:
    blocks = []
    for block in func.body.blocks:
        if isinstance(block, relax.DataflowBlock):
            bindings: list[relax.Binding] = []
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, relax.Call) and value.op in emitted:
                    group = mod[value.op]
                    bindings.extend(_calls(binding, group, emitted[value.op], names, packer))
                else:
                    bindings.append(binding)
            block = relax.DataflowBlock(bindings)
        blocks.append(block)
    body = relax.SeqExpr(blocks, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)


def _calls(
    binding: relax.VarBinding,
    group: relax.Function,
    emission: Emission,
    names: _Names,
    packer: Packer,
) -> list[relax.Binding]:
    """Rewrite one call of a group to the calls of its kernels."""
    args, span = list(binding.value.args), binding.value.span
    symbols = _symbols(group.params, args)
    has_symbols = bool(args) and isinstance(args[0].ty, relax.ShapeType)
    scalars = list(args.pop(0).values) if has_symbols else []
    exprs: dict[Slot, relax.Expr] = {}
    exprs.update({Slot("input", i): a for i, a in enumerate(args)})
    exprs.update({Slot("scalar", i): a for i, a in enumerate(scalars)})
    whole = binding.var.ty
    fields = list(whole.fields) if isinstance(whole, relax.TupleType) else [whole]
    outputs = [Slot("output", i) for i in range(len(fields))]
    types = dict(zip(outputs, fields, strict=True))
    for i, workspace in enumerate(emission.workspaces):
        types[Slot("workspace", i)] = _substituted(symbols, workspace)
    bindings: list[relax.Binding] = []
    for position, packing in emission.packing.items():
        slot = Slot("input", position)
        if isinstance(exprs[slot], ir.GenericConst):
            exprs[slot] = packer(packing, exprs[slot])
            continue
        packed = _substituted(_symbols(packing.params[:1], [exprs[slot]]), _type_of(packing))
        var = relax.DataflowVar(f"packed{position}", packed)
        operands = [names[packing], relax.Tuple([exprs[slot]])]
        call = relax.Call(_CALL_TIR, operands, None, [packed], span)
        bindings.append(relax.VarBinding(var, call))
        exprs[slot] = var
    for kernel in emission.kernels:
        written = [types[slot] for slot in kernel.writes]
        out = written[0] if len(written) == 1 else relax.TupleType(written)
        reads = relax.Tuple([exprs[slot] for slot in kernel.reads])
        call = relax.Call(_CALL_TIR, [names[kernel.func], reads], None, [out], span)
        if list(kernel.writes) == outputs:  # the usual case: the call gives what the group gave
            return [*bindings, relax.VarBinding(binding.var, call)]
        result = relax.DataflowVar("kernel", out)
        bindings.append(relax.VarBinding(result, call))
        for i, slot in enumerate(kernel.writes):
            if len(written) == 1:
                exprs[slot] = result
            else:
                exprs[slot] = relax.DataflowVar(f"{slot.kind}{slot.index}", types[slot])
                bindings.append(relax.VarBinding(exprs[slot], relax.TupleGetItem(result, i)))
    results = [exprs[slot] for slot in outputs]
    value = relax.Tuple(results) if isinstance(whole, relax.TupleType) else results[0]
    return [*bindings, relax.VarBinding(binding.var, value)]


def _symbols(params: Sequence[ir.Var], args: Sequence[relax.Expr]) -> dict[ir.Var, ir.Expr]:
    """Bind a function's symbolic variables to those of the arguments of a call."""
    known: dict[ir.Var, ir.Expr] = {}
    for param, arg in zip(params, args, strict=True):
        if isinstance(param.ty, relax.ShapeType):
            known.update(zip(param.ty.values, arg.values, strict=True))
            continue
        pairs = zip(param.ty.shape, arg.ty.shape, strict=True)
        known.update({mine: theirs for mine, theirs in pairs if isinstance(mine, ir.Var)})
    return known


def _substituted(symbols: Mapping[ir.Var, ir.Expr], type_: relax.TensorType) -> relax.TensorType:
    """Substitute the caller's symbolic variables in a type."""
    return tvm_ffi.structural_map(type_, (ir.Var, lambda v: symbols.get(v, v)), order="post")


def _type_of(packing: tirx.PrimFunc) -> relax.TensorType:
    """Return the type of a packing function's output: its last parameter."""
    buffer = packing.params[-1].ty
    return relax.TensorType(list(buffer.shape), str(buffer.dtype))
