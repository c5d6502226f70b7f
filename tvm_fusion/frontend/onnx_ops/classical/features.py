"""Convert what ai.onnx.ml does to features before a model: scaling, filling in, encoding."""

from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax

from ....core.decisions import Decision, record
from ...registry import Unsupported
from ..node import Node
from ..registry import register
from .forest import numbers
from .scores import of_strings

op = relax.op
_KINDS = {"int64s": "int64", "floats": "float32"}


@register("ai.onnx.ml::LabelEncoder", refuses=of_strings, since=2)
def label_encoder(node: Node) -> Any:
    """Convert a table from numbers to numbers: a search among the sorted keys.

    NaN is a key like any other. Where a key is there twice, the first counts, as in ONNX Runtime.
    """
    keys, values = _table(node, "keys"), _table(node, "values")
    for name in ("keys_strings", "values_strings", "default_string"):
        node.attribute(name)
    otherwise = _default(node, values.dtype.name)
    if not len(keys) or len(keys) != len(values):
        raise Unsupported(
            f"with {len(keys)} keys and {len(values)} values", "give each key a value"
        )
    if keys.dtype.name != node.dtype():
        raise Unsupported(f"of {node.dtype()} with keys of {keys.dtype}", "give both one type")
    keys, first = np.unique(keys, return_index=True)  # sorted, NaN last
    values, x = values[first], node.inputs[0]
    dtype, kind = keys.dtype.name, values.dtype.name
    result = relax.const(otherwise, kind)
    is_nan = op.isnan(x) if "float" in dtype and np.isnan(keys[-1]) else None
    known = keys if is_nan is None else keys[:-1]
    if len(known):
        x = node.emit(x)
        place = node.emit(op.bucketize(x, relax.const(known, dtype), out_int32=True))
        place = node.emit(op.minimum(place, relax.const(len(known) - 1, "int32")))
        found = op.take(relax.const(known, dtype), place, 0, mode="fast")
        is_key = node.emit(op.equal(node.emit(found), x))
        value = op.take(relax.const(values[: len(known)], kind), place, 0, mode="fast")
        result = op.where(is_key, node.emit(value), result)
    if is_nan is not None:
        result = op.where(node.emit(is_nan), relax.const(values[-1], kind), result)
    if not len(known):
        result = op.broadcast_to(node.emit(result), x.ty.shape)
    return result


@register("ai.onnx.ml::ZipMap")
def zip_map(node: Node) -> Any:
    """Drop ZipMap: its output is the matrix of scores, columns in the order of the classes."""
    ints, strings = node.attribute("classlabels_int64s"), node.attribute("classlabels_strings")
    classes = [str(c) for c in ints or ()] or [
        bytes(c).decode(errors="backslashreplace") for c in strings or ()
    ]
    shown = ", ".join(classes[:16]) + (", ..." if len(classes) > 16 else "")
    name = node.proto.output[0]
    sentence = (
        f"ZipMap is dropped: instead of a dictionary for each row, {name} is a tensor whose "
        f"columns are the classes {shown}."
    )
    record(Decision("ai.onnx.ml::ZipMap", name, "accepted", "zip_map_dropped", sentence))
    return node.inputs[0]


def _table(node: Node, side: str) -> np.ndarray:
    """Read the keys or the values, in whichever attribute they are."""
    for kind, dtype in _KINDS.items():
        if node.attribute(f"{side}_{kind}"):
            return numbers(node, f"{side}_{kind}", dtype)
    tensor = node.attribute(f"{side}_tensor")
    if tensor is None:
        return np.zeros(0, "int64")
    return np.array(numpy_helper.to_array(tensor)).reshape(-1)


def _default(node: Node, dtype: str) -> Any:
    """Read what becomes of all other numbers, -1 or -0.0 where the node does not say."""
    found = {
        "default_int64": node.attribute("default_int64"),
        "default_float": node.attribute("default_float"),
    }
    tensor = node.attribute("default_tensor")
    if tensor is not None:
        return numbers(node, "default_tensor", dtype).reshape(-1)[0]
    name = "default_float" if "float" in dtype else "default_int64"
    given = found[name]
    return np.array((-0.0 if "float" in dtype else -1) if given is None else given, dtype)


@register("ai.onnx.ml::Scaler")
def scaler(node: Node) -> Any:
    """Convert ``(x - offset) * scale``, each for all features or one of them."""
    offset, scale = (_for_features(node, numbers(node, name), name) for name in ("offset", "scale"))
    dtype = "float64" if node.dtype() == "float64" else "float32"
    x = node.emit(node.cast(node.inputs[0], dtype))
    centered = node.emit(op.subtract(x, relax.const(offset.astype(dtype), dtype)))
    scaled = node.emit(op.multiply(centered, relax.const(scale.astype(dtype), dtype)))
    return node.cast(scaled, "float32")


@register("ai.onnx.ml::Imputer")
def imputer(node: Node) -> Any:
    """Convert the replacement of one value, NaN for example, by others."""
    dtype = node.dtype()
    is_float = "float" in dtype
    kind = "float" if is_float else "int64"
    given = numbers(node, f"imputed_value_{kind}s", dtype)
    missing = np.array(node.attribute(f"replaced_value_{kind}", 0), dtype)
    if not len(given):
        raise Unsupported(f"of {dtype} without imputed_value_{kind}s", f"give it for {dtype}")
    columns = node.shape()[-1]
    values = _for_features(node, given if len(given) == columns else given[:1], "values")
    x = node.inputs[0]
    if is_float and np.isnan(missing):
        is_missing = op.isnan(x)
    else:
        is_missing = op.equal(x, relax.const(missing, dtype))
    return op.where(node.emit(is_missing), relax.const(values, dtype), x)


@register("ai.onnx.ml::Binarizer")
def binarizer(node: Node) -> Any:
    """Convert ``x > threshold`` as numbers of the type of x."""
    dtype, threshold = node.dtype(), node.attribute("threshold", 0.0)
    wide = dtype if "float" in dtype else "float32"
    x = node.emit(node.cast(node.inputs[0], wide))
    return node.cast(node.emit(op.greater(x, relax.const(threshold, wide))), dtype)


@register("ai.onnx.ml::Normalizer")
def normalizer(node: Node) -> Any:
    """Convert the division of rows by their largest element, or their L1 or L2 norm.

    A row whose norm is zero stays as it is.
    """
    norm = node.attribute("norm", "MAX")
    if len(node.shape()) not in (1, 2):
        raise Unsupported(f"of rank {len(node.shape())}", "give it one or two axes")
    x = node.emit(node.cast(node.inputs[0], "float32"))
    if norm == "MAX":
        size = op.max(x, [-1], keepdims=True)
    elif norm == "L1":
        size = op.sum(op.abs(x), [-1], keepdims=True)
    elif norm == "L2":
        size = op.sqrt(op.sum(op.multiply(x, x), [-1], keepdims=True))
    else:
        raise Unsupported(f"with norm {norm}", "use MAX, L1 or L2")
    size = node.emit(size)
    is_zero = op.equal(size, relax.const(0.0, "float32"))
    return op.divide(x, node.emit(op.where(is_zero, op.ones_like(size), size)))


@register("ai.onnx.ml::ArrayFeatureExtractor")
def array_feature_extractor(node: Node) -> Any:
    """Convert the choice of columns; of one axis it makes a row."""
    rank, count = len(node.shape()), node.static_shape(1)
    places = node.emit(op.reshape(node.inputs[1], [int(np.prod(count))]))
    known = node.constant(1)
    columns = node.shape()[-1]
    if known is not None and isinstance(columns, int) and known.size and known.max() >= columns:
        raise Unsupported(f"of column {known.max()} of {columns}", f"choose 0 to {columns - 1}")
    found = node.emit(op.take(node.inputs[0], places, rank - 1))
    return op.expand_dims(found, 0) if rank == 1 else found


@register("ai.onnx.ml::FeatureVectorizer")
def feature_vectorizer(node: Node) -> Any:
    """Convert the concatenation of inputs, each cut or padded with zeros to its own width."""
    count = len(node.proto.input)
    widths = node.attribute("inputdimensions") or [node.shape(i)[-1] for i in range(count)]
    if len(widths) != count:
        raise Unsupported(f"with {len(widths)} widths for {count} inputs", "give one for each")
    parts = []
    for i, width in enumerate(widths):
        x = node.emit(node.cast(node.inputs[i], "float32"))
        shape = node.shape(i)
        if len(shape) != 2:
            batch = 1 if len(shape) == 1 else shape[0]
            x = node.emit(op.reshape(x, [batch, int(np.prod(node.shape(i)[len(shape) > 1 :]))]))
        here = int(list(x.ty.shape)[1])
        if here > width:
            x = node.emit(op.strided_slice(x, [1], [0], [width]))
        elif here < width:
            x = node.emit(op.nn.pad(x, [0, 0, 0, width - here]))
        parts.append(x)
    return op.concat(parts, 1) if len(parts) > 1 else parts[0]


@register("ai.onnx.ml::OneHotEncoder", refuses=of_strings)
def one_hot_encoder(node: Node) -> Any:
    """Convert the comparison of each element with all categories: a last axis of ones and zeros."""
    categories = numbers(node, "cats_int64s", "int64")
    if not node.attribute("zeros", 1):
        raise Unsupported("that fails for an unknown category (zeros=0)", "use zeros=1")
    node.attribute("cats_strings")
    if len({*categories.tolist()}) != len(categories):
        raise Unsupported("with a category twice", "leave one out")
    x = node.emit(op.expand_dims(node.emit(node.cast(node.inputs[0], "int64")), -1))
    return op.astype(node.emit(op.equal(x, relax.const(categories, "int64"))), "float32")


def _for_features(node: Node, values: np.ndarray, name: str) -> np.ndarray:
    """Check numbers for all features, or one for each of the second axis: broadcast to the data."""
    shape = node.shape()
    place = min(1, len(shape) - 1)
    if len(values) == 1:
        return values
    if len(values) != shape[place]:
        raise Unsupported(
            f"with {len(values)} numbers ({name}) for {shape[place]} features",
            "give one, or one for each feature",
        )
    return values.reshape([-1 if axis == place else 1 for axis in range(len(shape))])
