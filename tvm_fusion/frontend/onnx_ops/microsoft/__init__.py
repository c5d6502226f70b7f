"""Convert operators of ONNX Runtime's domain; semantics: its ``docs/ContribOperators.md``."""

from . import (  # noqa: F401  # for their registrations
    attention,
    experts,
    fused,
    group_query_attention,
    quantized,
)
