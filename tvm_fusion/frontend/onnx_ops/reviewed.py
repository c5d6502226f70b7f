"""List TVM's own ONNX converters that are used, and what is known of their interfaces."""

import onnx
from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

from . import control_flow
from .registry import STANDARD, defined

_BY_NAME = {*_get_convert_map(), *control_flow.CONVERTERS}
# TVM's importer looks operators up by name alone. These names mean one thing in ONNX's own domain
# and another in Microsoft's, and the importer knows the latter.
_MICROSOFT_MEANING = {"Attention"}
# Microsoft's operators whose converters in TVM compute what ONNX Runtime computes.
_MICROSOFT = {"MatMulInteger16"}

# Operators whose converters know shapes, and extents, that are no tensors.
TAKE_SHAPES = {
    *("ConstantOfShape", "Expand", "Reshape", "Resize", "Slice"),
}
TAKE_EXTENTS = {"Range", "Slice", "Trilu"}
# Operators that convert narrow types, or move elements without a look at them.
CARRY_NARROW = {
    *("Cast", "CastLike", "Concat", "Constant", "DepthToSpace", "DequantizeLinear", "Expand"),
    *("Flatten", "Gather", "GatherElements", "GatherND", "Identity", "If", "Loop"),
    *("QuantizeLinear", "Reshape", "Scan", "Shape", "Size", "Slice", "SpaceToDepth", "Split"),
    *("Squeeze", "Tile", "Transpose", "Unsqueeze", "Where", "ConcatFromSequence", "Optional"),
    *("OptionalGetElement", "OptionalHasElement", "SequenceAt", "SequenceConstruct"),
    *("SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap"),
    *("SplitToSequence", "com.microsoft::GatherBlockQuantized"),
}
# Of one output, which is a sequence.
RETURN_SEQUENCES = {
    *("ConcatFromSequence", "Identity", "Optional", "OptionalGetElement", "SequenceConstruct"),
    *("SequenceEmpty", "SequenceErase", "SequenceInsert", "SplitToSequence"),
}


def is_reviewed(node: onnx.NodeProto, opset: int) -> bool:
    """Tell whether a node may be left to TVM's converter."""
    name = node.op_type
    if node.domain in STANDARD:
        return name in _BY_NAME and name not in _MICROSOFT_MEANING and defined(name, opset)
    return node.domain == "com.microsoft" and name in _MICROSOFT
