"""What TVM's importer cannot convert of an ONNX model, found before any work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
from onnx import defs

from .dims import SymbolicDim
from .findings import Findings
from .onnx_file import subgraphs

STANDARD = ("", "ai.onnx")
MICROSOFT = "com.microsoft"
# TVM's importer looks operators up by name alone. These names mean one thing in ONNX's own domain
# and another in Microsoft's, and the importer knows the latter.
_MICROSOFT_MEANING = {"Attention"}
# Handled by the importer itself rather than by a converter.
_DIRECT = {"If"}
# Before it, binary operators broadcast by attributes that the importer does not read.
_OLDEST_OPSET = 7


def inspect(model: onnx.ModelProto, unbound: Sequence[SymbolicDim]) -> Findings:
    """Check a model against what TVM's importer can convert.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, local functions inlined.
    unbound : sequence of SymbolicDim
        The dimensions that are neither bound nor ranged.

    Returns
    -------
    Findings
        Everything unsupported, in branches and loop bodies too.
    """
    opset = opset_of(model)
    findings = Findings(unbound=unbound)
    if not _OLDEST_OPSET <= opset <= defs.onnx_opset_version():
        what = f"opset {opset}" if opset else "no opset of the standard domain"
        findings.opset = f"{what} (supported: {_OLDEST_OPSET} to {defs.onnx_opset_version()})"
    for node in nodes(model.graph):
        if not _supported(node, opset):
            domain = "" if node.domain in STANDARD else f"{node.domain}."
            findings.operators[f"{domain}{node.op_type}"] += 1
    stored = {tensor.name for tensor in model.graph.initializer}
    for kind, infos in (("input", model.graph.input), ("output", model.graph.output)):
        for info in infos:
            if kind == "input" and info.name in stored:
                continue
            which = info.type.WhichOneof("value")
            if which not in ("tensor_type", None):
                findings.values.append(f"{kind} {info.name} of {which.replace('_', ' ')}")
            elif kind == "input" and not info.type.tensor_type.HasField("shape"):
                findings.values.append(f"{kind} {info.name} of unknown rank")
    return findings


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's standard operator set that a model uses, 0 if it names none."""
    return next((o.version for o in model.opset_import if o.domain in STANDARD), 0)


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the graphs inside them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in subgraphs(attribute):
                yield from nodes(inner)


def _supported(node: onnx.NodeProto, opset: int) -> bool:
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    if node.op_type not in _DIRECT and node.op_type not in _get_convert_map():
        return False
    if node.domain in STANDARD:
        return node.op_type not in _MICROSOFT_MEANING and (
            # An opset newer than the installed onnx is reported as such.
            opset > defs.onnx_opset_version() or defs.has(node.op_type, opset, "")
        )
    return node.domain == MICROSOFT and (
        node.op_type in _MICROSOFT_MEANING or not defs.has(node.op_type, "")
    )
