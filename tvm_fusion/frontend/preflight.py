"""What can be said about an ONNX model before any work: what it holds that is not supported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx
from onnx import defs

from .dims import SymbolicDim
from .findings import Findings
from .onnx_advice import advice_for
from .onnx_converters import CONVERTERS, STANDARD, qualified_name
from .onnx_file import subgraphs
from .onnx_rewrite import inlined, upgraded
from .onnx_types import ValueType

MICROSOFT = "com.microsoft"
# TVM's importer looks operators up by name alone. These names mean one thing in ONNX's own domain
# and another in Microsoft's, and the importer knows the latter.
_MICROSOFT_MEANING = {"Attention"}
# Microsoft's operators whose converters in TVM compute what Microsoft's documentation says.
_MICROSOFT_BY_TVM = {
    *("Attention", "BiasGelu", "EmbedLayerNormalization", "FastGelu", "Gelu"),
    *("MatMulInteger16", "SkipLayerNormalization"),
}
# Written by exporters before ONNX defined them, in ONNX's own domain, as they were defined later.
_EARLY = {"LayerNormalization"}
# Handled by the importer itself rather than by a converter.
_DIRECT = {"If"}
# The operators before it are translated by onnx's version converter.
OLDEST_OPSET = 7
_DTYPES = {
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
}


def inspect(
    model: onnx.ModelProto,
    unbound: Sequence[SymbolicDim],
    types: Mapping[str, ValueType] | None = None,
) -> Findings:
    """Check a model against what the importer can convert.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, local functions inlined.
    unbound : sequence of SymbolicDim
        The dimensions that are neither bound nor ranged.
    types : mapping of str to ValueType, optional
        Types of the model's values.

    Returns
    -------
    Findings
        Everything unsupported, in branches and loop bodies too.
    """
    opset = opset_of(model)
    findings = Findings(unbound=unbound)
    if not OLDEST_OPSET <= opset <= defs.onnx_opset_version():
        what = f"opset {opset}" if opset else "no opset of the standard domain"
        findings.opset = f"{what} (supported: 1 to {defs.onnx_opset_version()})"
    for node in nodes(model.graph):
        if not supported(node, opset):
            findings.operators[qualified_name(node)] += 1
    findings.instead = ", ".join(advice_for(name, opset) for name in sorted(findings.operators))
    for name, known in (types or {}).items():
        if known.dtype not in _DTYPES:
            findings.dtypes.setdefault(known.dtype, []).append(name)
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


def expanded(
    model: onnx.ModelProto, extents: Mapping[str, Sequence[int | None]]
) -> onnx.ModelProto:
    """Bring a model to operators that can be converted, as far as ONNX itself says how.

    Opsets before 7 go through onnx's version converter; operators without a converter that ONNX
    defines by a function are replaced by its body.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which stays as it is.
    extents : mapping of str to sequence of (int or None)
        Shapes of the inputs.

    Returns
    -------
    onnx.ModelProto
        The same object where there is nothing to do.
    """
    opset = opset_of(model)
    if 0 < opset < OLDEST_OPSET:
        model = upgraded(model, OLDEST_OPSET, extents)
        opset = opset_of(model)
    names = sorted(
        {
            (node.domain, node.op_type)
            for node in nodes(model.graph)
            if node.domain in STANDARD and not supported(node, opset) and _has_body(node, opset)
        }
    )
    return inlined(model, names, extents) if names else model


def _has_body(node: onnx.NodeProto, opset: int) -> bool:
    if not defs.has(node.op_type, min(opset, defs.onnx_opset_version()), ""):
        return False
    schema = defs.get_schema(node.op_type, min(opset, defs.onnx_opset_version()), "")
    return bool(schema.has_function or schema.has_context_dependent_function)


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


def supported(node: onnx.NodeProto, opset: int) -> bool:
    """Tell whether there is a converter of an operator, by ours or by TVM's importer."""
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    name = qualified_name(node)
    if node.domain in STANDARD:
        known = name in CONVERTERS or name in _DIRECT or name in _get_convert_map()
        return (
            known
            and name not in _MICROSOFT_MEANING
            and (
                # An opset newer than the installed onnx is reported as such.
                opset > defs.onnx_opset_version()
                or defs.has(node.op_type, opset, "")
                or name in _EARLY
            )
        )
    return name in CONVERTERS or (node.domain == MICROSOFT and node.op_type in _MICROSOFT_BY_TVM)
