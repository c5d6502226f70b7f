"""Check an ONNX model before any work: report every unsupported operator, type and dimension."""

from collections.abc import Mapping, Sequence

import onnx
from onnx import defs

from ..core.constants.narrow_types import NARROW
from .dimensions.findings import Findings
from .dimensions.symbolic import SymbolicDim
from .onnx_model.functions import schema_of
from .onnx_model.graph import nodes, opsets_of
from .onnx_model.rewrite import inlined, upgraded
from .onnx_model.types import ValueType
from .onnx_ops.registry import CONVERTERS, STANDARD, covers, defined, qualified_name
from .onnx_ops.reviewed import CARRY_NARROW, is_reviewed
from .registry import Unsupported

# Operator sets before it are translated by onnx's version converter.
OLDEST_OPSET = 7
# Functions of ONNX are made of operators that may be functions themselves.
_ROUNDS = 4
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
    model
        The model, local functions inlined.
    unbound
        The dimensions that are neither bound nor ranged.
    types
        Types of the model's values.

    Returns
    -------
    Findings
        Everything unsupported, in branches and loop bodies too.
    """
    versions = opsets_of(model)
    opset = versions[""]
    findings = Findings(unbound=unbound)
    if not OLDEST_OPSET <= opset <= defs.onnx_opset_version():
        what = f"opset {opset}" if opset else "no opset of the standard domain"
        findings.opset = f"{what} (supported: 1 to {defs.onnx_opset_version()})"
    ways: dict[str, str] = {}
    for node in nodes(model.graph):
        error = unsupported(node, versions)
        if error is not None:
            name = f"{qualified_name(node)} {error.reason}".rstrip()
            findings.operators[name] += 1
            ways[name] = error.advice or ""
        for dtype in () if error is not None else _narrow_dtypes(node, types or {}):
            name = f"{qualified_name(node)} of {dtype}"
            findings.operators[name] += 1
            ways[name] = f"for {name}, cast to float16 or int8 before it"
    findings.instead = ", ".join(way for _, way in sorted(ways.items()))
    for name, known in (types or {}).items():
        if known.dtype not in _DTYPES and known.dtype not in NARROW:
            findings.dtypes.setdefault(known.dtype, []).append(name)
    stored = {tensor.name for tensor in model.graph.initializer}
    for kind, infos in (("input", model.graph.input), ("output", model.graph.output)):
        for info in infos:
            if kind == "input" and info.name in stored:
                continue
            which = info.type.WhichOneof("value")
            if kind == "output" and which in ("sequence_type", "optional_type"):
                continue  # of how many tensors, the import finds out
            if which not in ("tensor_type", None):
                findings.values.append(f"{kind} {info.name} of {which.replace('_', ' ')}")
            elif kind == "input" and not info.type.tensor_type.HasField("shape"):
                findings.values.append(f"{kind} {info.name} of unknown rank")
            elif kind == "input" and not info.type.tensor_type.elem_type:
                findings.values.append(f"{kind} {info.name} without an element type")
    return findings


def _narrow_dtypes(node: onnx.NodeProto, types: Mapping[str, ValueType]) -> list[str]:
    """List the narrow element types that an operator would have to compute with."""
    if qualified_name(node) in CARRY_NARROW:
        return []
    names = (*node.input, *node.output)
    return sorted({types[n].dtype for n in names if n in types and types[n].dtype in NARROW})


def expanded(
    model: onnx.ModelProto, extents: Mapping[str, Sequence[int | None]]
) -> onnx.ModelProto:
    """Bring a model to operators that can be converted, as far as ONNX itself says how.

    Opsets before 7 go through onnx's version converter; operators without a converter that ONNX
    defines by a function are replaced by its body.

    Parameters
    ----------
    model
        The model, which stays as it is.

    Returns
    -------
    onnx.ModelProto
        The same object where there is nothing to do.
    """
    versions = opsets_of(model)
    if 0 < versions[""] < OLDEST_OPSET:
        model = upgraded(model, OLDEST_OPSET, extents)
    for _ in range(_ROUNDS):
        versions = opsets_of(model)
        names = {
            (node.domain, node.op_type)
            for node in nodes(model.graph)
            if unsupported(node, versions) is not None and _has_body(node, versions)
        }
        before = model
        model = inlined(model, sorted(names), extents) if names else model
        if model is before:
            break
    return model


def _has_body(node: onnx.NodeProto, versions: Mapping[str, int]) -> bool:
    if node.domain in STANDARD and not defined(node.op_type, versions[""]):
        return False
    if node.domain in STANDARD and node.op_type in _ADVICE:  # told by its own name
        return False
    schema = schema_of(node, versions)
    return bool(schema and (schema.has_function or schema.has_context_dependent_function))


def unsupported(node: onnx.NodeProto, versions: Mapping[str, int]) -> Unsupported | None:
    """Say why a node cannot be converted; None where it can, by a converter of ours or TVM's.

    Parameters
    ----------
    versions
        See :func:`.onnx_model.graph.opsets_of`.
    """
    name = qualified_name(node)
    for attribute in node.attribute:
        if attribute.name in ("axis", "axes"):  # TVM takes the lowest 32 bits
            for axis in (attribute.i, *attribute.ints):
                if abs(axis) >= 2**31:
                    return Unsupported(
                        f"with axis {axis}", f"for {name}, name an axis of the tensor"
                    )
    if covers(node, versions):
        refusal = CONVERTERS[name].refusal(node)
        if refusal is None:
            return None
        return Unsupported(refusal.reason, f"for {name}, {refusal.advice}")
    if name not in CONVERTERS and is_reviewed(node, versions[""]):
        return None
    return Unsupported("", advice_for(name, versions[""]))


# Advise what to do about ONNX operators that have no converter.
_ON_HOST = "do it before the model, on the host"
_BY_ADVICE = {
    "make the random numbers an input of the model": (
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"),
        "RandomUniformLike",
    ),
    _ON_HOST: (
        *("ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit"),
    ),
}
_ADVICE = {operator: way for way, operators in _BY_ADVICE.items() for operator in operators}
_OTHER_DOMAIN = (
    "register a converter (tvm_fusion.frontend.onnx_ops.register), "
    "or give the model a local function of that name to inline"
)
# ONNX Runtime's operators by who writes them: each can be had in another way, or in none.
_OPTIMIZED = (
    "take the model from before ONNX Runtime optimized it, or optimize it at ORT_ENABLE_BASIC, "
    "which makes standard operators only"
)
_GENERATION = "export the decoder alone, one step a call, and search for tokens on the host"
_BY_ADVICE_OF_MICROSOFT = {
    _OPTIMIZED: (
        *("BiasAdd", "BiasDropout", "BiasSoftmax", "BiasSplitGelu", "FusedMatMulActivation"),
        *("GemmFastGelu", "NhwcConv", "NhwcFusedConv", "NhwcMaxPool", "QLinearReduceMean"),
        *("QAttention", "QEmbedLayerNormalization", "QOrderedAttention", "QOrderedMatMul"),
        *("DecoderAttention", "LongformerAttention", "QuickGelu", "ReorderInput", "ReorderOutput"),
    ),
    _GENERATION: (
        *("BeamSearch", "GreedySearch", "NGramRepeatBlock", "Sampling", "WhisperBeamSearch"),
    ),
    _ON_HOST: ("Tokenizer", "MurmurHash3", "CropAndResize"),
}
_MICROSOFT = {name: way for way, names in _BY_ADVICE_OF_MICROSOFT.items() for name in names}
_DOMAINS = {
    "ai.onnx.ml": _ON_HOST,  # what is left there works on strings and dictionaries
    "ai.onnx.preview.training": "export the model for inference, without its optimizer",
}


def advice_for(name: str, opset: int) -> str:
    """Say what to do about an operator.

    Parameters
    ----------
    name
        With its domain unless that is ONNX's own.
    opset
        The model's version of the standard operators.

    Returns
    -------
    str
        An imperative that names the operator.
    """
    domain, _, operator = name.rpartition("::")
    if domain:
        advice = _DOMAINS.get(domain, _OTHER_DOMAIN)
        if domain == "com.microsoft":
            advice = _MICROSOFT.get(operator, _OTHER_DOMAIN)
        return f"for {name}, {advice}"
    since = first_opset(operator)
    if since > opset:
        return f"for {operator}, export with opset {since} or later"
    return f"for {operator}, {_ADVICE.get(operator, 'write it as other operators')}"


def first_opset(operator: str) -> int:
    """Return the first opset that has a standard operator, 0 where there is none."""
    versions = [
        schema.since_version
        for schema in defs.get_all_schemas_with_history()
        if schema.name == operator and not schema.domain
    ]
    return min(versions, default=0)
