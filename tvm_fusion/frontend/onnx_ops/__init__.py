"""Convert ONNX operators that TVM's importer lacks or gets wrong; ``README.md``: how to add one.

A module a family; importing it registers its converters.
"""

from ..registry import Unsupported
from . import (  # noqa: F401  # for their registrations
    bits,
    caches,
    casts,
    classical,
    column_to_image,
    convolution,
    creation,
    deformable,
    depth_to_space,
    detection,
    elementwise,
    fourier,
    gemm,
    group_query_attention,
    indexing,
    linear_algebra,
    microsoft,
    microsoft_attention,
    microsoft_experts,
    microsoft_layers,
    microsoft_quantized,
    normalization,
    padding,
    pooling,
    quantize,
    quantized,
    recurrent,
    reductions,
    resize,
    rotary_embedding,
    sequences,
    shapes,
    text,
    training,
)
from .importer import Importer
from .node import Node
from .registry import CONVERTERS, other_than, qualified_name, register

__all__ = [
    "CONVERTERS",
    "Importer",
    "Node",
    "Unsupported",
    "other_than",
    "qualified_name",
    "register",
]
