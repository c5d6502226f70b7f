"""The registry of ONNX converters of ours; preflight and the importer read it, nothing else does.

A converter takes a :class:`~.onnx_ops.node.Node` and returns the expression of its result, a list
of them, or None where TVM's converter is right about the node. It raises ``UserError`` for a node
that cannot be converted. A new operator is a function and a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx

from .onnx_ops import (
    blocks,
    constants,
    convolution,
    elementwise,
    indexing,
    integers,
    normalization,
    pooling,
    ranges,
    reductions,
    regions,
    resize,
    sequences,
    shapes,
    training,
)
from .onnx_ops.node import Node

STANDARD = ("", "ai.onnx")


@dataclass(frozen=True)
class Converter:
    """How an operator is converted.

    Attributes
    ----------
    convert : callable
        From a node to an expression, several, or None.
    takes_extents : bool
        Whether it takes shapes and extents as they are; otherwise they become tensors first.
    """

    convert: Callable[[Node], Any]
    takes_extents: bool = False


def qualified_name(node: onnx.NodeProto) -> str:
    """Name a node's operator, with its domain unless that is ONNX's own."""
    return node.op_type if node.domain in STANDARD else f"{node.domain}.{node.op_type}"


#: By operator, see :func:`qualified_name`.
CONVERTERS: dict[str, Converter] = {
    "AveragePool": Converter(pooling.average_pool),
    "BatchNormalization": Converter(training.batch_normalization),
    "Constant": Converter(constants.constant),
    "ConvTranspose": Converter(convolution.conv_transpose),
    "DepthToSpace": Converter(blocks.depth_to_space),
    "Dropout": Converter(training.dropout),
    "Elu": Converter(elementwise.elu),
    "Expand": Converter(shapes.expand, takes_extents=True),
    "EyeLike": Converter(constants.eye_like),
    "Hardmax": Converter(reductions.hardmax),
    "IsInf": Converter(elementwise.is_inf),
    "LRN": Converter(normalization.lrn),
    "LayerNormalization": Converter(normalization.layer_normalization),
    "MaxPool": Converter(pooling.max_pool),
    "MeanVarianceNormalization": Converter(normalization.mean_variance),
    "Mod": Converter(elementwise.mod, takes_extents=True),
    "NonMaxSuppression": Converter(regions.non_max_suppression),
    "OneHot": Converter(indexing.one_hot),
    "OptionalHasElement": Converter(sequences.has_element, takes_extents=True),
    "Pow": Converter(integers.power),
    "Range": Converter(ranges.convert, takes_extents=True),
    "Resize": Converter(resize.resize, takes_extents=True),
    "ReduceLogSumExp": Converter(reductions.reduce_log_sum_exp),
    "ReduceMax": Converter(reductions.reduce_max),
    "ReduceMin": Converter(reductions.reduce_min),
    "RoiAlign": Converter(regions.roi_align),
    "Selu": Converter(elementwise.selu),
    "SequenceInsert": Converter(sequences.insert),
    "Sign": Converter(elementwise.sign),
    "Slice": Converter(shapes.slice_by_attributes, takes_extents=True),
    "SpaceToDepth": Converter(blocks.space_to_depth),
    "Split": Converter(shapes.split),
    "ThresholdedRelu": Converter(elementwise.thresholded_relu),
    "TopK": Converter(reductions.top_k),
    "Unique": Converter(reductions.unique),
    "Upsample": Converter(resize.upsample, takes_extents=True),
}
