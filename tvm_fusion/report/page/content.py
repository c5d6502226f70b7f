"""Everything that a page shows, as one object of plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...device import Device
from ...ecg.mapping import MappingType
from ...fusion.cost import CostModel
from ..explain import Explained
from .graphs import FusedGraph, imported_graph
from .kernels import kernels_of_groups, texts

#: Of kernels by name, the microseconds of each call in order.
Measured = Mapping[str, Sequence[float]]


def explanation_content(found: Explained, measured: Measured | None = None) -> dict[str, Any]:
    """Collect what the page of an explanation shows.

    Parameters
    ----------
    found : Explained
        The explanation with its plans and kernels.
    measured : mapping of str to sequence of float, optional
        Microseconds of the calls of each kernel, in order.

    Returns
    -------
    dict
        ``model``, ``target``, ``counts`` and ``stock`` (objects or None), ``assumed_dim``,
        ``types`` (of mapping), ``machine`` (``bandwidth`` in bytes and ``peaks`` by dtype in
        operations per second, as the prices assume them), ``imported``, ``operators``, ``edges``,
        ``groups``, ``kernels`` (TVMScript by name), ``rewriting``, ``notes``.
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
        del group["members"]
    _measure(groups, measured or {})
    cost = CostModel(planned.spec.device)
    stock = explanation.stock
    return {
        "model": explanation.source,
        "target": explanation.target,
        "device": planned.spec.device.name,
        "counts": asdict(explanation.counts),
        "stock": None if stock is None else {**asdict(stock), "from": explanation.stock_from},
        "assumed_dim": explanation.assumed_dim,
        "types": [mapping.value for mapping in MappingType],
        "machine": _machine(cost, planned.spec.device),
        "imported": imported_graph(planned.imported.mod),
        "operators": graph.operators,
        "edges": graph.edges,
        "groups": groups,
        "kernels": texts(found.scheduled, dict.fromkeys(n for name in names for n in name)),
        "rewriting": None if explanation.rewriting is None else explanation.rewriting.to_json(),
        "notes": _notes(explanation),
    }


def _machine(cost: CostModel, device: Device) -> dict[str, Any]:
    """Tell the rates that prices assume."""
    peaks = dict(device.peak_flops) or {"float32": cost.vector_peak}
    return {"bandwidth": cost.bandwidth, "peaks": peaks, "measured": False}


def _measure(groups: Iterable[dict[str, Any]], measured: Measured) -> None:
    """Give each group the times of its kernels' calls, which are in the order of the groups."""
    calls = {name: iter(times) for name, times in measured.items()}
    for group in groups:
        times = [next(calls[name], None) for name in group["kernels"] if name in calls]
        if times and len(times) == len(group["kernels"]) and None not in times:
            group["measured_us"] = sum(time for time in times if time is not None)


def _notes(explanation: Any) -> list[str]:
    """List what a stage could not do, and what the figures leave out."""
    told = [f"{d.producer}: {d.sentence}" for d in explanation.fallbacks]
    return [*explanation.counts.caveats, *told]
