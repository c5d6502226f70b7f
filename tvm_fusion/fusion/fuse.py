"""The fusion stage: plan every dataflow block, and write the plan into the module."""

from collections.abc import Mapping, Sequence

import tvm
from tvm import ir, relax
from tvm.ir.transform import PassContext
from tvm.target import Target

from ..core.contract.template import TEMPLATE, Ban
from ..core.contract.templates import templates
from ..core.current_target import current_target
from ..core.names.inherit import inheriting
from ..core.untouched import on_rewritable
from ..ecg.graph import Graph, Operator, Value
from ..ecg.legalization.unlowered import check_legalized
from ..ecg.operator import flatten
from ..program.group import Group
from ..program.images import images_of
from ..program.primitive import call_group, call_tir, primitive_function
from .claims import claim_book
from .planning.plan import Plan, plan

Unit = Group | Operator  # what is emitted as one: a group, or an operator outside of all groups


def apply_groups(
    builder: relax.BlockBuilder,
    graph: Graph,
    groups: Sequence[Group],
    attrs: Mapping[Group, Mapping[str, object]],
) -> relax.DataflowBlock:
    """Rewrite a dataflow block so that each group is one call.

    Variables stay what they are, so that nothing outside of the block changes.

    Parameters
    ----------
    builder
        Takes the Primitive functions; equal ones are added once.
    attrs
        Attributes of each group's function.

    Returns
    -------
    relax.DataflowBlock
        Not normalised yet.
    """
    writer = _Writer(builder, graph)
    for unit in emission_order(graph, groups):
        if isinstance(unit, Group):
            writer.group(unit, attrs[unit])
        else:
            writer.operator(unit)
    return relax.DataflowBlock(writer.bindings)


def emission_order(graph: Graph, groups: Sequence[Group]) -> list[Unit]:
    """Sort groups and lone operators topologically, staying close to the order of the block.

    Raises
    ------
    ValueError
        If a group is not convex: something outside needs it and is needed by it.
    """
    unit_of: dict[Operator, Unit] = {op: g for g in groups for op in g.members}
    members: dict[Unit, list[Operator]] = {unit_of.get(op, op): [] for op in graph.operators}
    for op in graph.operators:
        members[unit_of.get(op, op)].append(op)
    order: list[Unit] = []
    done: set[Unit] = set()
    open_: set[Unit] = set()
    for start in graph.operators:
        stack: list[tuple[Unit, bool]] = [(unit_of.get(start, start), False)]
        while stack:
            unit, ready = stack.pop()
            if unit in done:
                continue
            if ready:
                done.add(unit)
                order.append(unit)
                continue
            if unit in open_:
                raise ValueError(f"{unit} is not convex")
            open_.add(unit)
            stack.append((unit, True))
            needs = [unit_of.get(p, p) for op in members[unit] for p in graph.predecessors(op)]
            stack.extend((n, False) for n in reversed(needs) if n is not unit and n not in done)
    return order


class _Writer:
    """Bindings of the new block, in order."""

    def __init__(self, builder: relax.BlockBuilder, graph: Graph) -> None:
        self._builder = builder
        self._graph = graph
        self.bindings: list[relax.Binding] = []
        self._exprs: dict[Value, relax.Expr] = {}
        self._own = {op.binding.var for op in graph.operators}
        self._waiting: dict[Value, list[relax.Var]] = {}
        self._tuples: dict[relax.Var, tuple] = {}
        bound = {b.var for b in graph.block.bindings}
        for var, value in graph.values.items():
            for v in flatten(value):
                if v.constant is not None:
                    self._exprs[v] = v.constant
            if var not in bound:  # a parameter, or of an earlier block; tuples once all is known
                if isinstance(value, Value):
                    if value.producer is None:
                        self._exprs[value] = var
                elif all(v.producer is None for v in flatten(value)):  # no copy of an operator
                    self._tuples[var] = value
        self._missing: dict[relax.Var, set[Value]] = {}
        for var, value in graph.values.items():
            if var in self._own or var not in bound:
                continue
            missing = {v for v in flatten(value) if v not in self._exprs}
            self._missing[var] = missing
            for v in missing:
                self._waiting.setdefault(v, []).append(var)
            if not missing:
                self._alias(var)
        for var, value in self._tuples.items():
            self._unpack(var, value)

    def group(self, group: Group, attrs: Mapping[str, object]) -> None:
        """Call a group; its outputs keep their variables."""
        func = primitive_function(group, attrs)
        gvar = self._builder.add_func(func, _name(group))
        args = [self._exprs_of(v) for v in group.inputs]
        call = call_group(gvar, group, args)
        if len(group.outputs) == 1:
            self._bind(group.outputs[0], call)
        else:
            whole = relax.DataflowVar("outputs", call.ty, call.span)
            self.bindings.append(relax.VarBinding(whole, call))
            for i, value in enumerate(group.outputs):
                self._bind(value, relax.TupleGetItem(whole, i))
        for var in (op.binding.var for op in group.members):
            if isinstance(var.ty, relax.TupleType) and not isinstance(var, relax.DataflowVar):
                self._alias(var)  # what is outside knows the tuple as a whole

    def operator(self, op: Operator) -> None:
        """Keep a binding as it was, but that a kernel may read copies of its operands."""
        binding = op.binding
        if op.is_opaque:
            self.bindings.append(binding)
        else:
            exprs = {v: self._exprs_of(v) for v in op.tensors}
            self.bindings.append(relax.VarBinding(binding.var, call_tir(op, exprs)))
        if isinstance(binding.var.ty, relax.TupleType):
            self._unpack(binding.var, self._graph.values[binding.var])
        else:
            for value in op.results:
                self._define(value, binding.var)

    def _unpack(self, whole: relax.Expr, value: Value | tuple) -> None:
        if isinstance(value, Value):
            self._define(value, whole)
            return
        for i, part in enumerate(value):
            item = relax.TupleGetItem(whole, i)
            if isinstance(part, Value) and not part.consumers and not part.leaves:
                continue
            var = relax.DataflowVar(f"item{i}", item_type(whole, i))
            self.bindings.append(relax.VarBinding(var, item))
            self._unpack(var, part)

    def _bind(self, value: Value, expr: relax.Expr) -> None:
        binding = value.operator.binding
        is_whole = not isinstance(binding.var.ty, relax.TupleType)
        var = binding.var if is_whole else relax.DataflowVar(value.name, value.type)
        self.bindings.append(relax.VarBinding(var, expr))
        self._define(value, var)

    def _define(self, value: Value, expr: relax.Expr) -> None:
        self._exprs[value] = expr
        for var in self._waiting.pop(value, []):
            self._missing[var].discard(value)
            if not self._missing[var]:
                self._alias(var)

    def _alias(self, var: relax.Var) -> None:
        def build(value: Value | tuple) -> relax.Expr:
            if isinstance(value, tuple):
                return relax.Tuple([build(v) for v in value])
            return self._exprs[value]

        self.bindings.append(relax.VarBinding(var, build(self._graph.values[var])))

    def _exprs_of(self, value: Value) -> relax.Expr:
        return value.constant if value.constant is not None else self._exprs[value]


def item_type(whole: relax.Expr, index: int) -> ir.Type:
    """Type of one field of a tuple-typed expression."""
    return whole.ty.fields[index]


def _name(group: Group) -> str:
    """Name a function after its first operators, as TVM's FuseOps does."""
    parts = [op.gvar.name_hint for op in group.members if op.gvar is not None]
    shown = parts if len(parts) <= 6 else [*parts[:5], f"and_{len(parts) - 5}_more"]
    return "fused_" + "_".join(shown)


@tvm.transform.module_pass(opt_level=0, name="FuseOperators")
class FuseOperators:
    """Group operators: each group becomes a Relax function marked ``Primitive``.

    Takes the place of TVM's FuseOps and gives what FuseOps gives, functions over ``call_tir`` that
    FuseTIR can merge; this package's ScheduleKernels makes kernels of them by the templates that
    claimed them (attribute ``tvm_fusion.template``). Runs under the target that kernels are for, on
    what :class:`tvm_fusion.transform.Legalize` made: operators as TensorIR.

    Parameters
    ----------
    banned : frozenset of (str, Hashable), optional
        Claims that emission has broken, not to be made again.

    Raises
    ------
    UserError
        If there is no current target.

    Examples
    --------
    >>> mod = module(lambda x: op.nn.relu(op.matmul(x, weight(16, 4))), (8, 16))
    >>> with cpu:
    ...     calls(FuseOperators()(Legalize()(mod)))
    ['fused_matmul_relu']
    """

    def __init__(self, banned: frozenset[Ban] = frozenset()) -> None:
        self._banned = banned

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every rewritable function.

        Raises
        ------
        UserError
            If there is no current target, or nothing has been lowered to TensorIR yet.
        """
        current_target("FuseOperators")
        check_legalized(mod, "FuseOperators")
        to_dataflow = inheriting(relax.transform.ConvertToDataflow(min_size=1))
        return on_rewritable(*to_dataflow, _Fuse(self._banned))(mod)


@tvm.transform.module_pass(opt_level=0, name="PlanAndApply")
class _Fuse:
    def __init__(self, banned: frozenset[Ban]) -> None:
        self._banned = banned

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        planned = plan_module(mod, current_target("FuseOperators"), self._banned)
        return apply_plans(mod, planned)


def plan_module(
    mod: tvm.IRModule, target: Target, banned: frozenset[Ban] = frozenset()
) -> dict[relax.DataflowBlock, Plan]:
    """Plan every dataflow block of every Relax function.

    Parameters
    ----------
    banned : frozenset of (str, Hashable)
        Claims not to be made.

    Returns
    -------
    dict of DataflowBlock to Plan
        In the order of functions and blocks.
    """
    asked = templates(target)
    book = claim_book(target, banned)
    plans: dict[relax.DataflowBlock, Plan] = {}
    for func in list(mod.functions.values()):
        if isinstance(func, relax.Function):
            for block in func.body.blocks:
                if isinstance(block, relax.DataflowBlock):
                    graph = Graph(mod, func, block)
                    with book.laying_out(images_of(graph)), book.asking_profile():
                        plans[block] = plan(graph, asked, book)
    return plans


def apply_plans(mod: tvm.IRModule, plans: dict[relax.DataflowBlock, Plan]) -> tvm.IRModule:
    """Write plans into the module: a Primitive function per distinct group, and its calls."""
    builder = relax.BlockBuilder(mod.clone())
    rewritten: dict[tvm.ir.GlobalVar, relax.Function] = {}
    for gvar, func in mod.functions.items():
        if isinstance(func, relax.Function):
            blocks = [_rewrite(builder, plans[b]) if b in plans else b for b in func.body.blocks]
            body = relax.SeqExpr(blocks, func.body.body)
            rewritten[gvar] = relax.Function(
                func.params, body, func.ret_ty, func.is_pure, func.attrs
            )
    result = builder.get()
    for gvar, func in rewritten.items():
        result.update_func(gvar, func)
    return relax.transform.Normalize()(result)


def _rewrite(builder: relax.BlockBuilder, planned: Plan) -> relax.DataflowBlock:
    attrs: dict[Group, dict[str, object]] = {
        claim.group: {TEMPLATE: claim.template.name} for claim in planned.claims
    }
    return apply_groups(builder, planned.graph, planned.groups, attrs)
