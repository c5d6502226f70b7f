"""What the page of an explanation shows, as one object of plain values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from ...deploy.runtime.profile.result import Profile
from ...device import Device
from ...fusion.cost import CostModel
from ..explain import Explained
from .graphs import FusedGraph, imported_graph
from .kernels import kernels_of_groups, texts
from .profile import call_content, machine_content


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
        del group["members"]
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
