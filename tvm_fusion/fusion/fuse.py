"""The fusion stage: plan every dataflow block, and write the plan into the module."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir.transform import PassContext
from tvm.target import Target

from ..core.contract.template import TEMPLATE, Ban
from ..core.contract.templates import templates
from ..core.current_target import current_target
from ..core.names.inherit import inheriting
from ..core.untouched import on_rewritable
from ..ecg.graph import Graph
from ..ecg.legalization.unlowered import check_legalized
from ..program.group import Group
from ..program.images import images_of
from .apply import apply_groups
from .claims import claim_book
from .planning.plan import Plan, plan


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
