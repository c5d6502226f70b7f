"""Slices of states that the kernel which computes them writes, rather than a kernel behind it.

    k, v = kernel(x);  keys, values = write_slices(keys, values, position, k, position, v)
    keys, values = kernel(x, position, keys, values)

A store of an element becomes one at its place in the state, if the state has that place. It runs
when everything is scheduled; kernels that load what they stored, or store it by other means than a
plain store, keep it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
import tvm_ffi
from tvm import ir, relax, s_tir, tirx

from ..._tvm.ir.buffer import declare
from ...core.tir.expressions import load
from ...core.tir.loops import constant, coordinates, find, substitute, when, whole, with_fields
from .slice_patterns import mentioned
from .slices import Slice, slices_of

_CALL_TIR, _IN_PLACE, _RESHAPE = (
    ir.Op.get(f"relax.{name}") for name in ("call_tir", "call_tir_inplace", "reshape")
)


def write_through(mod: tvm.IRModule) -> tvm.IRModule:
    """Let kernels write slices that nothing else reads.

    Parameters
    ----------
    mod
        Scheduled, with the writes of :func:`.in_place.update_in_place`.
    """
    for gvar, func in mod.functions.items():
        if isinstance(func, relax.Function) and len(func.body.blocks) == 1:
            mod = _written(mod, gvar, func)
    return mod


@dataclass(frozen=True)
class _Stored:
    """An output of a kernel that is a slice of a state."""

    kernel: ir.Var  # the variable of the kernel's call
    output: int  # which of its outputs
    slice: Slice  # where it is written
    # The arguments of the write.
    state: relax.Expr
    number: relax.Expr | None
    result: ir.Var  # the state that the write returns


def _written(mod: tvm.IRModule, gvar: ir.GlobalVar, func: relax.Function) -> tvm.IRModule:
    (block,) = func.body.blocks
    table = {b.var: b.value for b in block.bindings}
    uses = Counter(v for value in table.values() for v in mentioned(value))
    uses.update(mentioned(func.body.body))
    order = {b.var: i for i, b in enumerate(block.bindings)}
    slices: dict[ir.Var, list[_Stored]] = {}  # of each kernel
    funcs: dict[ir.Var, tirx.PrimFunc] = {}
    gone: set[ir.Var] = set()
    for binding in block.bindings:
        found = _stored(mod, binding, table, uses)
        if not found or not all(_is_ready(one, order) for one in found):
            continue
        joined = {k: [*slices.get(k, ()), *of] for k, of in _by_kernel(found).items()}
        made = {k: _kernel(mod[table[k].args[0]], table[k], of) for k, of in joined.items()}
        if all(made.values()):
            slices |= joined
            funcs |= made
            gone |= {binding.var, *(one.result for one in found)}
    if not gone:
        return mod
    mod, names = _named(mod, {k: (table[k].args[0], f) for k, f in funcs.items()})
    bindings: list[relax.Binding] = []
    for binding in block.bindings:
        if binding.var in slices:
            bindings += _call(binding, names[binding.var], slices[binding.var], table)
        elif binding.var not in gone and _source(binding.value) not in slices:
            bindings.append(binding)
    body = relax.SeqExpr([type(block)(bindings)], func.body.body)
    mod.update_func(gvar, relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs))
    return relax.transform.DeadCodeElimination([gvar.name_hint])(relax.transform.Normalize()(mod))


def _by_kernel(found: Sequence[_Stored]) -> dict[ir.Var, list[_Stored]]:
    grouped: dict[ir.Var, list[_Stored]] = {}
    for one in found:
        grouped.setdefault(one.kernel, []).append(one)
    return grouped


def _source(value: relax.Expr) -> relax.Expr | None:
    """Return the tuple of which an item is taken."""
    return value.tuple_value if isinstance(value, relax.TupleGetItem) else None


def _named(
    mod: tvm.IRModule, made: Mapping[ir.Var, tuple[ir.GlobalVar, tirx.PrimFunc]]
) -> tuple[tvm.IRModule, dict[ir.Var, ir.GlobalVar]]:
    """Add kernels: under the name of the one before, unless that is called elsewhere, too."""
    calls = Counter(
        call.args[0]
        for func in mod.functions.values()
        if isinstance(func, relax.Function)
        for call in _calls(func)
    )
    sites = Counter(gvar for gvar, _ in made.values())
    unused = {gvar for gvar, count in sites.items() if calls[gvar] == count}
    kept = {gvar: func for gvar, func in mod.functions.items() if gvar not in unused}
    builder = relax.BlockBuilder(tvm.IRModule(kept, attrs=mod.attrs))
    names = {k: builder.add_func(func, gvar.name_hint) for k, (gvar, func) in made.items()}
    return builder.get(), names


def _calls(func: relax.Function) -> list[ir.Call]:
    values = relax.analysis.get_var2val(func).values()
    return [v for v in values if isinstance(v, ir.Call) and v.op in (_CALL_TIR, _IN_PLACE)]


def _call(
    binding: relax.Binding,
    gvar: ir.GlobalVar,
    slices: Sequence[_Stored],
    table: Mapping[ir.Var, relax.Expr],
) -> list[relax.Binding]:
    """Call a kernel that writes slices; its other results keep their variables."""
    old = binding.value
    args, outputs = list(old.args[1].fields), _outputs(old)
    left = [i for i in range(len(outputs)) if i not in {one.output for one in slices}]
    places = [-1] * len(left)
    for one in slices:
        args += [x for x in (one.number, one.state) if x is not None]
        places.append(len(args) - 1)
    types = [*(outputs[i] for i in left), *(one.slice.state for one in slices)]
    variables = {v.index: k for k, v in table.items() if binding.var.same_as(_source(v))}
    if len(outputs) == 1:
        variables = {0: binding.var}
    results = [*(variables.get(i) for i in left), *(one.result for one in slices)]
    types_or_one = types if len(types) > 1 else types[0]
    call = relax.op.call_tir_inplace(gvar, relax.Tuple(args), places, types_or_one)
    if len(types) == 1:
        return [relax.VarBinding(results[0], call)]
    whole = relax.DataflowVar(binding.var.name, relax.TupleType(types), binding.var.span)
    items = [
        relax.VarBinding(result, relax.TupleGetItem(whole, i))
        for i, result in enumerate(results)
        if result is not None
    ]
    return [relax.VarBinding(whole, call), *items]


def _stored(
    mod: tvm.IRModule,
    binding: relax.Binding,
    table: Mapping[ir.Var, relax.Expr],
    uses: Counter[ir.Var],
) -> list[_Stored]:
    """Follow the slices of a write to the kernels that compute them; empty if one is not such."""
    call = binding.value
    if not isinstance(call, ir.Call) or call.op != _IN_PLACE:
        return []
    slices = slices_of(mod[call.args[0]])
    args = list(call.args[1].fields)
    states, rest = args[: len(slices)], args[len(slices) :]
    results = _items(binding.var, len(slices), table)
    stored = []
    for one, state, result in zip(slices, states, results, strict=True):
        number = None if one.number is None else rest.pop(0)
        values = rest.pop(0)
        while isinstance(table.get(values), ir.Call) and table[values].op == _RESHAPE:
            if uses[values] != 1:
                return []
            values = table[values].args[0]
        place, kernel = 0, values
        if isinstance(table.get(values), relax.TupleGetItem):
            place, kernel = int(table[values].index), table[values].tuple_value
            if _readers(kernel, place, table) != 1:
                return []
        made = table.get(kernel)
        is_kernel = isinstance(made, ir.Call) and made.op == _CALL_TIR and len(made.args) == 2
        if not is_kernel or uses[values] != 1 or uses[state] != 1 or result is None:
            return []
        stored.append(_Stored(kernel, place, one, state, number, result))
    return stored


def _items(var: ir.Var, count: int, table: Mapping[ir.Var, relax.Expr]) -> list[ir.Var | None]:
    """List the variables of a call's results."""
    if count == 1:
        return [var]
    items: list[ir.Var | None] = [None] * count
    for item, value in table.items():
        if isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(var):
            items[int(value.index)] = item
    return items


def _readers(whole: ir.Var, place: int, table: Mapping[ir.Var, relax.Expr]) -> int:
    return sum(
        isinstance(v, relax.TupleGetItem) and v.tuple_value.same_as(whole) and v.index == place
        for v in table.values()
    )


def _is_ready(one: _Stored, order: Mapping[ir.Var, int]) -> bool:
    """Whether a number is known when the kernel is launched."""
    if not isinstance(one.number, ir.Var):
        return True
    return order.get(one.number, -1) < order[one.kernel]


def _outputs(call: ir.Call) -> list[relax.TensorType]:
    (ty,) = call.ty_args
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


def _kernel(func: tirx.PrimFunc, call: ir.Call, slices: Sequence[_Stored]) -> tirx.PrimFunc | None:
    """Store slices in their states: parameters are inputs, numbers and states, other outputs."""
    given = len(call.args[1].fields)
    inputs, outputs = list(func.params)[:given], list(func.params)[given:]
    if len(outputs) != len(_outputs(call)):  # scalars behind them
        return None
    types = [*(x.ty for x in call.args[1].fields), *_outputs(call)]
    extents = {
        outer: own
        for ty, param in zip(types, func.params, strict=True)
        for outer, own in zip(ty.shape.values, param.ty.shape, strict=True)
        if isinstance(outer, ir.Var)
    }
    body, extra = func.body, []
    for number, one in enumerate(slices):
        at = _renamed(one.slice, extents)
        state = declare(at.state.shape.values, str(at.state.dtype), f"state{number}")
        place = None
        if at.number is not None:
            place = declare(at.number.shape.values, str(at.number.dtype), f"number{number}")
            extra.append(place)
        extra.append(state)
        stored = _stores(body, outputs[one.output], at, state, place)
        if stored is None:
            return None
        body = stored
    own = {one.output for one in slices}
    left = [x for i, x in enumerate(outputs) if i not in own]
    params = [*inputs, *extra, *left]
    known = {d for p in params for d in p.ty.shape if isinstance(d, ir.Var)}
    if not set(extents.values()) <= known:  # the outputs alone told them
        return None
    return tirx.PrimFunc(params, body, func.ret_type).with_attrs(func.attrs)


def _renamed(one: Slice, extents: Mapping[ir.Var, ir.Expr]) -> Slice:
    """Give a slice the symbolic extents of a kernel."""

    def of(ty: relax.TensorType) -> relax.TensorType:
        return relax.TensorType([substitute(d, extents) for d in ty.shape.values], ty.dtype)

    number = None if one.number is None else of(one.number)
    return replace(one, state=of(one.state), values=of(one.values), number=number)


def _stores(
    body: tirx.Stmt, output: ir.Var, at: Slice, state: ir.Var, number: ir.Var | None
) -> tirx.Stmt | None:
    """Replace the stores of an output; ``None`` where it is used in another way."""
    stores = [s for s in find(body, tirx.BufferStore) if s.buffer.same_as(output)]
    blocks = [
        r for b in find(body, s_tir.SBlock) for r in (*b.reads, *b.writes)
        if r.source.same_as(output)
    ]  # fmt: skip
    mentions = sum(v.same_as(output) for v in find(body, ir.Var))
    if not stores or mentions != len(stores) + len(blocks):
        return None
    if any(i.ty.dtype.lanes != 1 for s in stores for i in s.indices):
        return None
    given = list(at.values.shape.values)
    # Values that the state repeats are stored more than once.
    if not _equal(given, at.extents[len(at.extents) - len(given) :]):
        return None
    missing = len(at.extents) - len(given)

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        if not node.buffer.same_as(output):
            return node
        where = [tirx.IntImm("int64", 0)] * missing
        where += _regrouped(list(node.indices), list(output.ty.shape), given)
        inside = None
        if number is not None:
            one = [0] * len(number.ty.shape)
            if any(constant(d) != 1 for d in number.ty.shape):
                one = [where[at.axis]]
            place = tirx.Cast("int64", load(number, one))
            extent = at.state.shape.values[at.axis]
            if at.counts_from_end:
                place = tirx.Select(place < 0, place + extent, place)
            where[at.axis] = place
            inside = tirx.And(place >= 0, place < extent)
        value = node.value
        if str(value.ty.dtype) != str(at.state.dtype):
            value = tirx.Cast(str(at.state.dtype), value)
        made = tirx.BufferStore(state, value, where)
        return made if inside is None else when(inside, made)

    def renewed(node: s_tir.SBlock) -> s_tir.SBlock:
        if not any(r.source.same_as(output) for r in (*node.reads, *node.writes)):
            return node
        reads = [r for r in node.reads if not r.source.same_as(output)]
        writes = [w for w in node.writes if not w.source.same_as(output)]
        reads += [] if number is None else [whole(number)]
        return with_fields(node, reads=reads, writes=[*writes, whole(state)])

    body = tvm_ffi.structural_map(body, (tirx.BufferStore, store), order="post")
    return tvm_ffi.structural_map(body, (s_tir.SBlock, renewed), order="post")


def _regrouped(indices: list[ir.Expr], shape: list[ir.Expr], other: list[ir.Expr]) -> list[ir.Expr]:
    """Return the place in another shape; axes of one element more or fewer move nothing."""
    kept = [(i, d) for i, d in zip(indices, shape, strict=True) if constant(d) != 1]
    if _equal([d for _, d in kept], [d for d in other if constant(d) != 1]):
        left = iter([i for i, _ in kept])
        return [tirx.IntImm("int64", 0) if constant(d) == 1 else next(left) for d in other]
    flat: ir.Expr = tirx.IntImm("int64", 0)
    for i, extent in zip(indices, shape, strict=True):
        flat = flat * extent + i
    return coordinates(flat, other)


def _equal(extents: Sequence[ir.Expr], others: Sequence[ir.Expr]) -> bool:
    return len(extents) == len(others) and all(
        tvm_ffi.structural_equal(a, b) for a, b in zip(extents, others, strict=True)
    )
