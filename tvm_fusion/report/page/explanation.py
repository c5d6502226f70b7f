"""What the page of an explanation shows, as one object of plain values."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import tvm
from tvm import relax, tirx

from ...core.decisions import Decision
from ...core.names.source import Sources, names_of, sources_of
from ...deploy.runtime.profile.result import Profile
from ...device import Device
from ...ecg.graph import Graph, Operator
from ...ecg.operator import Value
from ...fusion.cost import CostModel
from ...fusion.planning.plan import Plan
from ...fusion.planning.views import view_paths
from ..explain import Explained
from ..explain.run import member_of
from ..planned import PlannedModel
from .kernels import kernels_of_groups, texts
from .profile import call_content, machine_content

_LONGEST = 120  # characters of a type


def imported_graph(mod: tvm.IRModule) -> dict[str, Any]:
    """Read the operators of a module as it was imported, before anything is rewritten.

    Parameters
    ----------
    mod
        Its Relax functions are read; constants are no nodes.

    Returns
    -------
    dict
        ``nodes``: objects with ``variable``, ``names`` and ``tensors`` (what the user calls them),
        ``title``, ``type`` and ``function``; ``edges``: pairs of positions.
    """
    nodes: list[dict[str, Any]] = []
    edges: list[tuple[int, int]] = []
    for gvar, func in mod.functions.items():
        if not isinstance(func, relax.Function) or not isinstance(func.body, relax.SeqExpr):
            continue
        producers: dict[relax.Var, tuple[int, ...]] = {}
        for binding in (b for block in func.body.blocks for b in block.bindings):
            read = dict.fromkeys(p for var in _variables(binding) for p in producers.get(var, ()))
            if _only_renames(binding):
                producers[binding.var] = tuple(read)
                continue
            edges += [(producer, len(nodes)) for producer in read]
            producers[binding.var] = (len(nodes),)
            nodes.append(
                {
                    "variable": binding.var.name,
                    "title": _called(binding),
                    "type": _type(binding.var.ty),
                    "function": gvar.name_hint,
                    **_named(sources_of(binding.var)),
                }
            )
    return {"nodes": nodes, "edges": edges}


def _variables(binding: relax.Binding) -> Iterator[relax.Var]:
    """List what a binding reads; of a nested function or branch, what it captures."""
    if isinstance(binding.value, relax.Var):
        yield binding.value
    yield from relax.analysis.free_vars(binding.value)


def _only_renames(binding: relax.Binding) -> bool:
    renames = (relax.Var, relax.Tuple, relax.TupleGetItem, relax.ShapeExpr)
    return isinstance(binding, relax.VarBinding) and isinstance(binding.value, renames)


def _called(binding: relax.Binding) -> str:
    value = binding.value
    if isinstance(value, relax.Call) and getattr(value.op, "name", "") == "relax.call_tir":
        return str(value.args[0].name_hint)
    callee = getattr(value, "op", None)
    for name in ("name", "global_symbol", "name_hint"):
        if hasattr(callee, name):
            return str(getattr(callee, name)).removeprefix("relax.").removeprefix("nn.")
    return type(binding if isinstance(binding, relax.MatchCast) else value).__name__


def _named(sources: Sources) -> dict[str, list[str]]:
    """List what the user calls an operator, and its results."""
    tensors = dict.fromkeys(tensor for source in sources for tensor in source.tensors)
    return {"names": list(names_of(sources)), "tensors": list(tensors)}


def _type(type_: Any) -> str:
    """Write ``float32[1, 64, 56, 56]``; of several tensors the first ones."""
    if isinstance(type_, relax.TupleType):
        text = ", ".join(map(_type, type_.fields))
    elif isinstance(getattr(type_, "shape", None), relax.ShapeExpr):
        extents = (int(e) if isinstance(e, tirx.IntImm) else e for e in type_.shape.values)
        text = f"{type_.dtype}[{', '.join(map(str, extents))}]"
    else:
        text = str(getattr(type_, "dtype", "") or type(type_).__name__)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


class FusedGraph:
    """Operators, edges and groups of all dataflow blocks, with one number for each.

    Attributes
    ----------
    operators : list of dict
        ``variable``, ``names``, ``tensors``, ``title``, ``type`` (of the result), ``mapping``,
        ``function``, ``bytes``, ``flops``, and ``group``: position in the explanation's groups, or
        None for views and opaque operators, of which ``is_view`` tells the first.
    edges : list of dict
        ``from``, ``to``, ``bytes``; ``verdict`` (``accepted``, ``refused`` or None where nothing
        was decided), ``code``, ``sentence``, ``classes``; ``through``: views in between.
    """

    def __init__(self, planned: PlannedModel) -> None:
        self.operators: list[dict[str, Any]] = []
        self.edges: list[dict[str, Any]] = []
        groups = 0
        for block, plan in planned.plans.items():
            number = self._operators(planned.functions[block], plan, groups)
            groups += len(plan.claims)
            self._edges(plan, number)

    def _operators(self, function: str, plan: Plan, groups: int) -> Mapping[Operator, int]:
        group_of = {
            op: groups + i for i, claim in enumerate(plan.claims) for op in claim.group.members
        }
        number: dict[Operator, int] = {}
        for op in plan.graph.operators:
            number[op] = len(self.operators)
            member = member_of(op)
            self.operators.append(
                {
                    "variable": member.variable,
                    "title": member.title,
                    **_named(op.sources),
                    "type": ", ".join(_type(value.type) for value in op.results),
                    "mapping": member.type,
                    "function": function,
                    "bytes": op.result_bytes,
                    "flops": op.flops,
                    "group": group_of.get(op),
                    "is_view": op in plan.views,
                }
            )
        return number

    def _edges(self, plan: Plan, number: Mapping[Operator, int]) -> None:
        decisions = {(d.producer, d.consumer, d.through): d for d in plan.decisions}
        for producer, consumer, views, values in _paths(plan.graph, plan):
            through = tuple(view.name for view in views)
            decision = decisions.get((producer.name, consumer.name, through))
            self.edges.append(
                {
                    "from": number[producer],
                    "to": number[consumer],
                    "bytes": sum(value.bytes for value in values),
                    "through": [number[view] for view in views],
                    **_verdict(decision),
                }
            )


def _paths(
    graph: Graph, plan: Plan
) -> Iterator[tuple[Operator, Operator, tuple[Operator, ...], set[Value]]]:
    """Join the tensors from one operator to another that go through the same views."""
    joined: dict[tuple[Operator, Operator, tuple[Operator, ...]], set[Value]] = {}
    for edge in graph.edges():
        joined.setdefault((edge.producer, edge.consumer, ()), set()).add(edge.value)
    for path in view_paths(graph, plan.views):
        joined.setdefault((path.producer, path.consumer, path.views), set()).add(path.value)
    for (producer, consumer, views), values in joined.items():
        yield producer, consumer, views, values


def _verdict(decision: Decision | None) -> dict[str, Any]:
    if decision is None:
        return {"verdict": None, "code": "", "sentence": "", "classes": []}
    return {
        "verdict": decision.verdict,
        "code": decision.code,
        "sentence": decision.sentence,
        "classes": list(decision.classes),
    }


def explanation_content(found: Explained, profile: Profile | None = None) -> dict[str, Any]:
    """Collect what the page of an explanation shows.

    Parameters
    ----------
    found
        The explanation with its plans and kernels.
    profile
        Of an artifact of the same model: its times are those of the groups that it has.

    Returns
    -------
    dict
        ``model``, ``target``, ``counts`` and ``stock`` (objects or None), ``assumed_dim``,
        ``machine`` (``bandwidth`` in bytes and ``peaks`` by dtype in operations per second, as the
        prices assume them or ``measured``), ``imported``, ``operators``, ``edges``, ``groups``,
        ``kernels`` (texts by name and language), ``rewriting``, ``notes``; of a profile ``call``.
    """
    explanation, planned = found.explanation, found.planned
    graph = FusedGraph(planned)
    names = kernels_of_groups(planned, found.scheduled)
    groups = [
        {**asdict(group), "title": group.title, "kernels": list(kernels), "measured_us": None}
        for group, kernels in zip(explanation.groups, names, strict=True)
    ]
    for position, operator in enumerate(graph.operators):
        if operator["group"] is not None:
            groups[operator["group"]].setdefault("operators", []).append(position)
    for group in groups:
        del group["members"], group["templates"]  # which would be most of the page
    machine, call = _machine(planned.spec.device), None
    if profile is not None:
        _measure(groups, profile)
        machine, call = machine_content(profile) or machine, call_content(profile)
    stock = explanation.stock
    return {
        "model": explanation.source,
        "target": explanation.target,
        "device": planned.spec.device.name,
        "counts": asdict(explanation.counts),
        "stock": None if stock is None else {**asdict(stock), "from": explanation.stock_from},
        "assumed_dim": explanation.assumed_dim,
        "machine": machine,
        "call": call,
        "imported": imported_graph(planned.imported.mod),
        "operators": graph.operators,
        "edges": graph.edges,
        "groups": groups,
        "kernels": texts(planned, found.scheduled, dict.fromkeys(n for one in names for n in one)),
        "rewriting": None if explanation.rewriting is None else explanation.rewriting.to_json(),
        "notes": _notes(explanation),
    }


def _machine(device: Device) -> dict[str, Any]:
    """Tell the rates that prices assume."""
    cost = CostModel(device)
    peaks = dict(device.peak_flops) or {"float32": cost.vector_peak}
    return {"bandwidth": cost.bandwidth, "peaks": peaks, "measured": False}


def _measure(groups: Iterable[dict[str, Any]], profile: Profile) -> None:
    """Give each group the time of its kernels; equal groups in the order of the calls."""
    times: dict[tuple[str, ...], list[float]] = {}
    for row in profile.rows:
        times.setdefault(row.kernels, []).append(row.us)
    for group in groups:
        if left := times.get(tuple(group["kernels"])):
            group["measured_us"] = left.pop(0)


def _notes(explanation: Any) -> list[str]:
    """List what a stage could not do, and what the figures leave out."""
    told = [f"{d.producer}: {d.sentence}" for d in explanation.fallbacks]
    return [*explanation.counts.caveats, *told]
