"""A model for several workers: every function once for each worker, with its part of the weights.

rewrite   each function with all weights split that may be; what is split together is a region
price     regions that do not pay stay whole; rewrite again until none changes
write     the functions of each worker, which differ in their constants alone
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from tvm import IRModule, ir, relax
from tvm.ir import GenericConst

from ..core.constants.weight_names import constants
from ..core.decisions import Decision, record
from ..core.shards import Shard
from ..device.links import Link, link_of
from ..device.model import Device
from ..errors import UserError
from ..frontend import Imported
from ..signature import Signature, TensorSpec
from ..words import counted, few
from .plan import Collective, Plan, Product, Region, Restart, Split, innermost
from .rewriter import Rewriter, regions_of
from .rules import apply

_GB = 1e9
_MICROSECOND = 1e-6
_UNKNOWN_BANDWIDTH, _UNKNOWN_FLOPS = 50 * _GB, 1e12  # of devices whose figures are not known
_ASSUMED_DTYPES = ("float16", "float32")


def seconds_saved(products: list[Product], device: Device, size: int) -> float:
    """Estimate what workers save who read and compute a part of each product."""
    bandwidth = device.memory_bandwidth or _UNKNOWN_BANDWIDTH
    known = [device.peak_flops[d] for d in _ASSUMED_DTYPES if d in device.peak_flops]
    flops = known[0] if known else _UNKNOWN_FLOPS
    whole = sum(max(one.weight_bytes / bandwidth, one.flops / flops) for one in products)
    return whole * (1 - 1 / size)


def seconds_spent(collectives: list[Collective], link: Link, size: int) -> float:
    """Estimate what collectives take, by rings: a sum travels twice, a gathered tensor once."""
    spent = 0.0
    for one in collectives:
        trips = 2 if one.kind == "allreduce" else 1
        spent += link.latency + trips * one.nbytes * (size - 1) / size / link.bandwidth
    return spent


def pays(region: Region, device: Device, size: int) -> tuple[bool, str]:
    """Decide whether a region is split, and say why."""
    link = link_of(device)
    saved = seconds_saved(region.products, device, size) / _MICROSECOND
    spent = seconds_spent(region.collectives, link, size) / _MICROSECOND
    count = len(region.collectives)
    take = "takes" if count == 1 else "take"
    rest = f"{counted(count, 'exchange')} over {link.name} {take} {spent:.0f} us"
    verb = "saves" if saved > spent else "would save"
    return saved > spent, f"splitting it {verb} {saved:.0f} us, and {rest}"


_MOST_ROUNDS = 1000  # of a plan that only grows; more is an error of ours
_PERMUTE = ir.Op.get("relax.permute_dims")


@dataclass(frozen=True)
class Sharded:
    """A model for several workers."""

    parts: list[Imported]  # by rank, what each worker computes, with shapes of its parts
    # By function, ``inputs`` and ``outputs`` that are split, as the manifest has them.
    shards: dict[str, dict[str, Any]]
    sentences: list[str]  # what is split, and why
    # By rank, by hash of each constant of the first worker's, the one in its place.
    twins: list[dict[int, Any]]


def shard(
    imported: Imported,
    size: int,
    roles: Mapping[str, str],
    writes: Mapping[str, str],
    device: Device,
) -> Sharded:
    """Spread a model over workers.

    Parameters
    ----------
    roles
        By pattern of weights' names, one of :data:`tvm_fusion.config.ROLES`.
    writes
        Inputs that functions write to, with the outputs that they hold.
    device
        Of each worker, for prices.

    Raises
    ------
    UserError
        For a pattern that no weight has, and for heads that the workers do not divide.
    """
    called = _named(imported)
    names = {hash(const): name for const, name in called.items()}
    _check_roles(roles, names.values())
    plan = Plan(size, roles, names)
    while True:
        regions = _settled(plan, imported, called, writes)
        refused = {k: r for k, r in regions.items() if not _accepted(plan, k, r, device, size)}
        if not refused:
            break
        before = len(plan.whole)
        plan.whole |= {k for k in names if plan.root(k) in refused}
        plan.inputs = {n: s for n, s in plan.inputs.items() if plan.root(n) not in refused}
        if len(plan.whole) == before:
            break
    sentences = _tell(plan, regions, device, size)
    writers = [_Writer(plan, imported, called, writes, rank) for rank in range(size)]
    found = [writer.written() for writer in writers]
    twins = [_twins(found[0][0], writers[0], writer) for writer in writers]
    return Sharded([part for part, _ in found], found[0][1], sentences, twins)


def _twins(first: Imported, one: _Writer, other: _Writer) -> dict[int, Any]:
    """Find what another worker has in the places of the first one's constants."""
    twins = {hash(const): const for const in constants(first.mod)}
    for known, (const, _) in one.slices.items():
        twins[hash(const)] = other.slices[known][0]
    return twins


def _named(imported: Imported) -> dict[GenericConst, str]:
    """Name constants that the model does not name, too: ``constant``, by their order.

    Their parts are named after them. Those that stay whole stay without a name, since what follows
    from their indices, such as a mask, is computed where no other elements may take their place.
    """
    names = dict(imported.weight_names)
    for number, const in enumerate(constants(imported.mod)):
        if isinstance(const.ty, relax.TensorType) and const.ty.ndim > 1:
            names.setdefault(const, f"constant{number or ''}")
    return names


def _settled(
    plan: Plan, imported: Imported, called: Mapping[GenericConst, str], writes: Mapping[str, str]
) -> dict[Any, Region]:
    """Rewrite all functions until the plan stays as it is."""
    for _ in range(_MOST_ROUNDS):
        plan.forget_regions()
        writer = _Writer(plan, imported, called, writes, 0)
        plan.is_stale = False
        try:
            writer.written()
        except Restart:
            continue
        if plan.is_stale:
            continue
        return regions_of(plan, writer.rewriters)
    raise RuntimeError("the plan of parts does not settle")


def _check_roles(roles: Mapping[str, str], names: Any) -> None:
    known = sorted({innermost(name) for name in names})
    for pattern in roles:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise UserError(f"shards for {pattern!r}, which no weight is named", few(known, 12))


def _is_forced(plan: Plan, region: Region) -> bool:
    by_name = {plan.name(key): key for key in plan.known}
    roles = {plan.role(by_name[name]) for name in region.roles if name in by_name}
    return bool(roles & {"columns", "rows", "split"})


def _accepted(plan: Plan, key: Any, region: Region, device: Device, size: int) -> bool:
    if _is_forced(plan, region) or not region.products:
        return True
    is_paid, why = pays(region, device, size)
    if not is_paid:
        names = tuple(innermost(name) for name in region.roles)
        sentence = f"{few(names)} is whole on each of {counted(size, 'worker')}: {why}."
        record(Decision(names[0], "", "refused", "shard_costs_more", sentence))
    return is_paid


def _tell(plan: Plan, regions: Mapping[Any, Region], device: Device, size: int) -> list[str]:
    """Record what is split, and what is not because its extents do not allow it."""
    sentences = []
    for region in regions.values():
        names = [innermost(name) for name in region.roles]
        if not names:
            continue
        how = few([f"{innermost(n)} by {role}" for n, role in region.roles.items()], 8)
        why = "as shards say" if _is_forced(plan, region) else pays(region, device, size)[1]
        sentence = f"{counted(size, 'worker')} have parts of {how}: {why}."
        sentences.append(sentence)
        record(Decision(names[0], "", "accepted", "sharded", sentence))
    for key in plan.uneven:
        name = innermost(plan.name(key))
        sentence = f"{name} is whole on each of {counted(size, 'worker')}, which do not divide it."
        record(Decision(name, "", "refused", "shard_uneven", sentence))
    return sentences


class _Writer:
    """Writes the functions of one worker."""

    def __init__(
        self,
        plan: Plan,
        imported: Imported,
        called: Mapping[GenericConst, str],
        writes: Mapping[str, str],
        rank: int,
    ) -> None:
        self._plan, self._imported, self._writes, self._rank = plan, imported, writes, rank
        self._called = called
        self.slices: dict[Any, Any] = {}
        self.rewriters: list[Rewriter] = []
        self._shards: dict[str, dict[str, Any]] = {}

    def written(self) -> tuple[Imported, dict[str, dict[str, Any]]]:
        """Return the worker's model, and what of its inputs and outputs is split."""
        imported, signatures = self._imported, {}
        names = dict(imported.weight_names)
        builder = relax.BlockBuilder(imported.mod.clone())
        functions = {}
        for gvar, func in imported.mod.functions.items():
            if gvar.name_hint in imported.signatures:
                signature = imported.signatures[gvar.name_hint]
                functions[gvar] = self._function(builder, gvar.name_hint, func, signature)
                signatures[gvar.name_hint] = self._signature(gvar.name_hint, signature)
        mod = builder.get().clone()
        for gvar, func in functions.items():
            del mod[gvar]
            fresh = ir.GlobalVar(gvar.name_hint)
            relax.expr._update_type(fresh, func.ty)
            mod[fresh] = func
        names.update((part, f"part({name})") for part, name in self._names())
        ordered = {name: signatures[name] for name in imported.signatures}
        mod = IRModule(mod.functions, attrs=imported.mod.attrs)
        return replace(imported, mod=mod, signatures=ordered, weight_names=names), self._shards

    def _names(self) -> list[tuple[Any, str]]:
        return [(p, self._called.get(c, "indices")) for p, c in self.slices.values()]

    def _function(
        self, builder: relax.BlockBuilder, name: str, func: relax.Function, signature: Signature
    ) -> relax.Function:
        self._shards[name] = {"inputs": {}, "outputs": {}}
        outputs = [spec.name for spec in signature.outputs]
        written = {
            param: spec.name
            for param, spec in zip(func.params, signature.inputs, strict=True)
            if self._writes.get(spec.name) in outputs
        }
        bounds = {name: dim.high for name, dim in self._imported.dims.items()}
        rewriter = Rewriter(self._plan, builder, self._rank, bounds, self.slices, written)
        if len(func.body.blocks) != 1 or not isinstance(func.body.blocks[0], relax.DataflowBlock):
            sentence = f"{name} is whole on each worker: it branches or has effects."
            record(Decision(name, "", "refused", "shard_branches", sentence))
            return func
        self.rewriters.append(rewriter)
        params = [self._param(rewriter, name, p, written.get(p)) for p in func.params]
        builder.begin_scope(params)
        builder._begin_dataflow_block()
        try:
            for binding in func.body.blocks[0].bindings:
                _bind(rewriter, binding)
            result = builder.emit_output(self._result(rewriter, name, func, signature))
        finally:
            block = builder._end_block()
            builder.end_scope()
        body = relax.SeqExpr([block], result)
        return relax.Function(params, body, result.ty, func.is_pure, func.attrs)

    def _param(
        self, rewriter: Rewriter, function: str, param: relax.Var, written: str | None
    ) -> relax.Var:
        shard = self._plan.inputs.get(written) if written is not None else None
        if shard is None:
            new = relax.Var(param.name, param.ty, param.span)
            rewriter.bind(param, new, None)
            return new
        shape = list(param.ty.shape.values)
        shape[shard.axis] = shard.extent // self._plan.size
        new = relax.Var(param.name, relax.TensorType(shape, param.ty.dtype), param.span)
        rewriter.bind(param, new, Split(shard, written))
        self._shards[function]["inputs"][written] = shard.as_json()
        return new

    def _result(
        self, rewriter: Rewriter, name: str, func: relax.Function, signature: Signature
    ) -> Any:
        """Make results whole, but those that are written over inputs of parts."""
        body: Any = func.body.body
        values = relax.analysis.get_var2val(func)
        while isinstance(body, relax.Var) and not isinstance(body.ty, relax.TensorType):
            if not isinstance(values.get(body), (relax.Var, relax.Tuple)):
                break
            body = values[body]
        if not isinstance(body, relax.Tuple):
            return rewriter.whole(body)
        holders = {self._writes.get(i.name): i.name for i in signature.inputs}
        results = []
        for field, spec in zip(body.fields, signature.outputs, strict=True):
            shard = self._plan.inputs.get(holders.get(spec.name, ""))
            if shard is None:
                results.append(rewriter.whole(field))
                continue
            results.append(rewriter.split(field, shard, holders[spec.name]))
            self._shards[name]["outputs"][spec.name] = shard.as_json()
        return relax.Tuple(results)

    def _signature(self, name: str, signature: Signature) -> Signature:
        def part(spec: TensorSpec, entry: Any) -> TensorSpec:
            if entry is None:
                return spec
            shard, shape = Shard.of_json(entry), list(spec.shape)
            shape[shard.axis] = shard.extent // self._plan.size
            return replace(spec, shape=tuple(shape))

        shards = self._shards[name]
        inputs = tuple(part(s, shards["inputs"].get(s.name)) for s in signature.inputs)
        outputs = tuple(part(s, shards["outputs"].get(s.name)) for s in signature.outputs)
        return replace(signature, inputs=inputs, outputs=outputs)


def _bind(rewriter: Rewriter, binding: relax.Binding) -> None:
    """Write one binding."""
    var = binding.var
    if isinstance(binding, relax.MatchCast):
        local = rewriter.builder.match_cast(rewriter.whole(binding.value), binding.ty)
        rewriter.bind(var, local, None)
        return
    value, state = binding.value, None
    if isinstance(value, relax.Call):
        local, state = apply(rewriter, value)
        if _is_transposed_constant(value):
            rewriter.bind_transposed(var, value.args[0])
        elif state is None:
            rewriter.computed.note(var, value)
    elif isinstance(value, relax.TupleGetItem):
        fields = rewriter.fields(value.tuple_value)
        if fields is not None:
            rewriter.bind(var, fields[0][value.index], fields[1][value.index])
            return
        local = relax.TupleGetItem(rewriter.whole(value.tuple_value), value.index)
    elif isinstance(value, relax.Var):
        rewriter.bind(var, *rewriter.known(value))
        return
    elif isinstance(value, relax.Tuple):
        local = [rewriter.local(field) for field in value.fields]
        rewriter.bind(var, local, [rewriter.state(field) for field in value.fields])
        return
    else:
        local = rewriter.substituted(value)
    new = rewriter.emit(local, var.name)
    if isinstance(state, list):
        items = [rewriter.emit(relax.TupleGetItem(new, i)) for i in range(len(state))]
        rewriter.bind(var, items, state)
    else:
        rewriter.bind(var, new, state)


def _is_transposed_constant(call: relax.Call) -> bool:
    """Whether a call transposes a constant matrix."""
    if call.op != _PERMUTE or not isinstance(call.args[0], GenericConst) or call.ty.ndim != 2:
        return False
    return call.attrs.axes is None or [int(axis) for axis in call.attrs.axes] == [1, 0]
