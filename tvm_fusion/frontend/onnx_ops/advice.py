"""What to do about ONNX operators that have no converter."""

from __future__ import annotations

from onnx import defs

_UNROLL = "export it unrolled (a fixed number of steps), or run the loop outside of the model"
_RECURRENT = "export the recurrent cell as MatMul, Add, Sigmoid and Tanh, unrolled over time"
_QDQ = "quantize in QDQ format: the float operator between DequantizeLinear and QuantizeLinear"
_TEXT = "do it before the model, on the host"
_RANDOM = "make the random numbers an input of the model"
_FOURIER = "write the transform as MatMul with constant matrices of cosines and sines"
_LEARNING = "export the model for inference, without its optimizer"

_ADVICE = {
    "Loop": _UNROLL,
    "Scan": _UNROLL,
    "SequenceMap": _UNROLL,
    "LSTM": _RECURRENT,
    "GRU": _RECURRENT,
    "RNN": _RECURRENT,
    "ConvInteger": _QDQ,
    "QLinearConv": _QDQ,
    "QLinearMatMul": _QDQ,
    "DFT": _FOURIER,
    "STFT": _FOURIER,
    "MelWeightMatrix": "store the matrix as an initializer",
    "Bernoulli": _RANDOM,
    "Multinomial": _RANDOM,
    "RandomNormal": _RANDOM,
    "RandomNormalLike": _RANDOM,
    "RandomUniform": _RANDOM,
    "RandomUniformLike": _RANDOM,
    "ImageDecoder": _TEXT,
    "RegexFullMatch": _TEXT,
    "StringConcat": _TEXT,
    "StringNormalizer": _TEXT,
    "StringSplit": _TEXT,
    "TfIdfVectorizer": _TEXT,
    "Col2Im": "write it as ScatterElements with reduction=add, or as ConvTranspose",
    "DeformConv": "write it as GridSample and Conv",
    "Det": "write the determinant out for the size at hand",
    "TensorScatter": "write it as ScatterND",
    "BitCast": "store the tensor in the type that is wanted",
}
_OTHER_DOMAIN = (
    "register a converter (tvm_fusion.frontend.onnx_ops.register), "
    "or give the model a local function of that name to inline"
)
_DOMAINS = {
    "com.microsoft": "export without ONNX Runtime's graph optimizations, which make such operators",
    "ai.onnx.ml": _TEXT,
    "ai.onnx.preview.training": _LEARNING,
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
