"""Advise what to do about ONNX operators that have no converter."""

from __future__ import annotations

from onnx import defs

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
        *("GemmFastGelu", "NhwcConv", "NhwcFusedConv", "NhwcMaxPool", "QLinearAveragePool"),
        *("QLinearConcat", "QLinearReduceMean", "QLinearSoftmax", "QLinearWhere", "QuickGelu"),
        *("QAttention", "QEmbedLayerNormalization", "QOrderedAttention", "QOrderedMatMul"),
        *("DecoderAttention", "LongformerAttention", "ReorderInput", "ReorderOutput"),
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
    name : str
        With its domain unless that is ONNX's own.
    opset : int
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
