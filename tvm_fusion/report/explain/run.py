"""From a model to its explanation: planned, really scheduled, counted."""

import os
from collections.abc import Hashable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import tvm

from ..._tvm.versions import PIPELINE
from ...config import Config, FusionConfig
from ...core.contract.forms import Form
from ...core.contract.template import Claim, Refusal, Template
from ...core.contract.templates import templates
from ...core.contract.tuned import TUNED
from ...core.decisions import Decision, record, recording
from ...core.names.source import names_of
from ...core.tir.whole_extents import with_numbers_of_steps
from ...deploy.count import Count, count, count_stock
from ...deploy.count.machine import ONE_TRIP
from ...deploy.memory.weights import MIN_BYTES, lift_constants
from ...device.target import TargetSpec
from ...ecg.mapping_types.table import most_complex
from ...ecg.operator import Operator
from ...ecg.work import ASSUMED_DIM
from ...errors import reason_of
from ...frontend.program_file import is_program_file
from ...fusion.cost import CostModel
from ...fusion.planning.plan import Plan
from ...fusion.planning.views import ViewPath, view_paths
from ...layout.record import COMPARED, EDGE, KERNEL
from ...parallel.plan import OF_WORKERS
from ...rewrite import rules
from ...rewrite.egraph.changes import Rewrites, noting
from ...rewrite.recompose.patterns import PATTERNS
from ..planned import PlannedModel, plan_model
from .parts import Answer, Counts, Edge, Group, Member
from .result import Explanation
from .rewriting import Rewriting


def explain(
    model: Any,
    target: Any = "cpu",
    config: Config | None = None,
    *,
    stock: bool = True,
    rewrites: bool = False,
    forms: bool = False,
) -> Explanation:
    """Explain what a compilation does with a model's operators, and why.

    The model is planned and scheduled as in :func:`tvm_fusion.compile`; no machine code is made,
    so no device and none of its tools are needed.

    Parameters
    ----------
    model : str, os.PathLike, onnx.ModelProto, torch.export.ExportedProgram or tvm.IRModule
        The model, or the path of an ONNX or ``.pt2`` file.
    target : str, dict or tvm.target.Target
        See :func:`tvm_fusion.device.parse`.
    config : FusionConfig or dict, optional
        What to choose.
    stock : bool
        Whether to count what stock TVM makes of the model as well, which takes another
        compilation.
    rewrites : bool
        Whether to tell what the rewriting stage changed, and which rules did; the search for the
        fewest that suffice takes a while.
    forms : bool
        Whether to tell between which templates the planner chose, and between which forms of
        kernels these: see :class:`tvm_fusion.report.explain.parts.Group`.

    Returns
    -------
    Explanation

    Raises
    ------
    UserError
        For a model, target or option that cannot be compiled.

    Examples
    --------
    >>> model = onnx.parser.parse_model(
    ...     '<ir_version: 8, opset_import: ["": 17]>'
    ...     "mlp (float[64, 256] x, float[256, 256] w) => (float[64, 256] y)"
    ...     "{ h = MatMul(x, w) a = Relu(h) y = MatMul(a, w) }"
    ... )
    >>> found = tvm_fusion.explain(model, target="cuda:sm_90a", stock=False)
    >>> [group.title for group in found.groups], found.counts.kernels
    (['matmul + relu', 'matmul'], 2)
    >>> [(edge.producer.title, edge.consumer.title, edge.code) for edge in found.refused]
    [('relu', 'matmul', 'mapping_red')]
    """
    return explained(model, target, config, stock=stock, rewrites=rewrites, forms=forms).explanation


@dataclass(frozen=True)
class Explained:
    """An explanation with what it was made of."""

    explanation: Explanation
    planned: PlannedModel  # the model with its plans
    scheduled: tvm.IRModule  # its kernels


def explained(
    model: Any,
    target: Any = "cpu",
    config: Config | None = None,
    *,
    stock: bool = True,
    rewrites: bool = False,
    forms: bool = False,
) -> Explained:
    """Explain a model as :func:`explain` does, and keep its plans and kernels."""
    with recording() as decisions:
        with noting() if rewrites else nullcontext() as noted:
            planned = plan_model(model, target, config)
        scheduled = planned.scheduled(planned.plans)
        stock = stock and planned.config.workers == 1  # which computes the whole model
        of_stock, stock_from = count_stock_tvm(model, planned) if stock else (None, "")
    cost = CostModel(planned.spec.device)
    choices = _Choices(planned.spec, cost) if forms else None
    counted = count_scheduled(planned, scheduled)
    explanation = Explanation(
        source=planned.imported.source,
        target=planned.spec.text,
        assumed_dim=ASSUMED_DIM if planned.imported.dims else None,
        groups=tuple(
            _group(planned.functions[block], claim, cost, choices)
            for block, plan in planned.plans.items()
            for claim in plan.claims
        ),
        refused=tuple(
            edge
            for block, plan in planned.plans.items()
            for edge in _refused(planned.functions[block], plan)
        ),
        views=tuple(member_of(op) for plan in planned.plans.values() for op in plan.views),
        opaque=tuple(
            member_of(op)
            for plan in planned.plans.values()
            for op in plan.graph.operators
            if op.is_opaque
        ),
        fallbacks=tuple(d for d in decisions if d.verdict == "fallback"),
        layouts=tuple(d for d in decisions if d.code in (EDGE, KERNEL, COMPARED)),
        tuned=tuple(d for d in decisions if d.code == TUNED),
        measured=tuple(
            d
            for plan in planned.plans.values()
            for d in plan.decisions
            if d.verdict == "accepted" and d.measured_us is not None
        ),
        workers=tuple(d for d in decisions if d.code in OF_WORKERS),
        counts=counted,
        stock=of_stock,
        stock_from=stock_from,
        rewriting=None if noted is None else _rewriting(noted, planned.config),
        recomposed=_recomposed(decisions),
    )
    return Explained(explanation, planned, scheduled)


def _recomposed(decisions: Iterable[Decision]) -> dict[str, tuple[str, ...]]:
    """List operators that were found in the model, with the Relax operators they are known by."""
    found = {d.consumer for d in decisions if d.code in ("recomposed", "recognised")}
    return {
        pattern.name: tuple(sorted(pattern.anchors))
        for pattern in PATTERNS
        if pattern.name in found
    }


def _rewriting(noted: Rewrites, config: FusionConfig) -> Rewriting:
    if config.rewrite == "none":
        unused = dict.fromkeys(rules.names(), "nothing is rewritten")
    else:
        unused = rules.unused(config.flags, config.without)
    return Rewriting(tuple(noted.changes), dict(noted.uses), unused)


def member_of(op: Operator) -> Member:
    """Describe an operator of a graph."""
    if op.record is not None:
        operator = op.record.name
    elif op.gvar is not None:
        operator = op.gvar.name_hint
    else:
        operator = _opaque_name(op)
    title = operator if op.is_opaque else op.title
    tensors = tuple(dict.fromkeys(name for source in op.sources for name in source.tensors))
    return Member(op.name, operator, title, op.type.value, names_of(op.sources), tensors)


def _opaque_name(op: Operator) -> str:
    """Name what an opaque binding calls, or else the kind of its expression."""
    value = getattr(op.binding, "value", None)
    callee = getattr(value, "op", None)
    for name in ("name", "global_symbol", "name_hint"):
        if hasattr(callee, name):
            return str(getattr(callee, name))
    return type(op.binding if value is None else value).__name__


class _Choices:
    """Asks what was chosen between for a group, once about equal groups."""

    def __init__(self, spec: TargetSpec, cost: CostModel) -> None:
        self._asked = templates(spec.tvm_target())
        self._device = spec.device
        self._cost = cost
        self._known: dict[Hashable, tuple[tuple[Answer, ...], tuple[Form, ...]]] = {}

    def __call__(self, claim: Claim) -> tuple[tuple[Answer, ...], tuple[Form, ...]]:
        claim = claim.laid_out or claim
        key = claim.template.name, claim.group.key
        if key not in self._known:
            answers = tuple(self._answer(template, claim) for template in self._asked)
            self._known[key] = answers, claim.template.forms(claim, self._device)
        return self._known[key]

    def _answer(self, template: Template, chosen: Claim) -> Answer:
        if template is chosen.template:
            return Answer(template.name, self._cost.estimate(chosen), True, "")
        found = template.claim(chosen.group, self._device)
        if isinstance(found, Refusal):
            return Answer(template.name, None, False, found.sentence)
        us = self._cost.estimate(found)
        if template.is_fallback:
            why = "It is taken only where no other template has kernels for the group."
        elif us >= self._cost.estimate(chosen):
            why = "Estimated to be no faster."
        else:
            why = "It was measured to be slower, or making its kernels failed."
        return Answer(template.name, us, False, why)


def _group(function: str, claim: Claim, cost: CostModel, choices: _Choices | None) -> Group:
    estimate = cost.cost(claim)
    group = claim.group
    answers, forms = choices(claim) if choices is not None else ((), ())
    return Group(
        function=function,
        members=tuple(map(member_of, group.members)),
        type=most_complex(op.type for op in group.members).value,
        template=claim.template.name,
        launches=claim.launches,
        bytes=claim.bytes,
        hidden_bytes=group.hidden_bytes,
        flops=claim.flops,
        us=estimate.us,
        source=estimate.source,
        arithmetic=(claim.laid_out or claim).arithmetic,
        most=cost.most_of(claim),
        templates=answers,
        forms=forms,
    )


def _refused(function: str, plan: Plan) -> list[Edge]:
    """Look up the operators of refused edges, which a decision only names."""
    edges: dict[tuple, list[ViewPath]] = {}
    direct = (ViewPath(e.producer, (), e.consumer, e.value) for e in plan.graph.edges())
    for path in (*direct, *view_paths(plan.graph, plan.views)):
        through = tuple(view.name for view in path.views)
        edges.setdefault((path.producer.name, path.consumer.name, through), []).append(path)
    # One operator may read several results of another: a decision each, and one answer here.
    refused = {
        (d.producer, d.consumer, d.through): d for d in plan.decisions if d.verdict == "refused"
    }
    return [
        Edge(
            function=function,
            producer=member_of(edges[ends][0].producer),
            consumer=member_of(edges[ends][0].consumer),
            bytes=sum(value.bytes for value in {path.value for path in edges[ends]}),
            code=decision.code,
            sentence=decision.sentence,
            classes=decision.classes,
            through=tuple(map(member_of, edges[ends][0].views)),
        )
        for ends, decision in refused.items()
        if ends in edges
    ]


# Kernels that a model launches: those of the plan, and those of stock TVM next to it.
def count_scheduled(planned: PlannedModel, scheduled: Any) -> Counts:
    """Count what scheduled functions launch, once they are lowered."""
    lowered = planned.lowered(lift_constants(scheduled, MIN_BYTES).mod)
    target = planned.spec.tvm_target()
    dims = _extents(planned)
    counted = count(lowered, target, function=planned.main, dims=dims, tir_pipeline=PIPELINE)
    return _facts(counted)


def count_stock_tvm(model: Any, planned: PlannedModel) -> tuple[Counts | None, str]:
    """Count stock TVM from its own importer if that takes the same model, else from our import.

    None where its passes refuse the model, or a loop of the model would count as one trip.
    """
    target, mod = planned.spec.tvm_target(), planned.imported.mod
    origin = "this package's importer"
    theirs = _stock_import(model, planned)
    if theirs is not None:
        mod, origin = theirs, "TVM's importer"
    try:
        counted = count_stock(mod, target, function=planned.main, dims=_extents(planned))
    # guard: recorded; one schedule rule's assertion ends stock TVM's whole pipeline
    except Exception as error:
        sentence = f"Stock TVM cannot compile the model ({reason_of(error)}); it is not counted."
        record(Decision("stock TVM", "", "fallback", "stock_failed", sentence))
        return None, ""
    if any(ONE_TRIP in caveat for caveat in counted.caveats):
        sentence = "Stock TVM's kernels are not counted: its passes hide how long the loops are."
        record(Decision("stock TVM", "", "fallback", "stock_loop_not_counted", sentence))
        return None, ""
    return _facts(counted), origin


def _stock_import(model: Any, planned: PlannedModel) -> Any:
    """Import an ONNX model in its own precision and of fixed shapes; None for any other model."""
    inputs = planned.imported.signatures[planned.main].inputs
    shapes = {spec.name: list(spec.shape) for spec in inputs}
    is_path = isinstance(model, (str, os.PathLike)) and not is_program_file(model)
    if not is_path and type(model).__name__ != "ModelProto":
        return None
    if planned.config.precision != "fp32" or planned.imported.dims:
        return None
    import onnx
    from tvm.relax.frontend.onnx import from_onnx

    from ...frontend.quiet import quiet_importer

    try:
        with quiet_importer():
            return from_onnx(onnx.load(model) if is_path else model, shape_dict=shapes)
    # guard: recorded; TVM's importer lacks what ours adds and raises anything
    except Exception as error:
        sentence = f"TVM's importer cannot take the model ({reason_of(error)}); ours is counted."
        record(Decision("stock TVM", "", "fallback", "stock_import_failed", sentence))
        return None


def _extents(planned: PlannedModel) -> dict[str, int]:
    """Take symbolic dimensions at the upper ends of their ranges, as the manifest does."""
    highest = {name: dim.high for name, dim in planned.imported.dims.items()}
    return with_numbers_of_steps(planned.imported.mod[planned.main], highest)


def _facts(counted: Count) -> Counts:
    return Counts(
        counted.kernels, counted.calls, counted.intermediate_bytes, tuple(counted.caveats)
    )
