"""TVM's own converters that were read and found right, with the arguments that they honour.

What is not here is ours, or refused. A call with another argument given is refused, too.
"""

from __future__ import annotations

REVIEWED: dict[str, tuple[str, ...]] = {
    "einsum.default": ("equation", "tensors"),
    "pixel_shuffle.default": ("self", "upscale_factor"),
}

#: Python's operators on extents and on torch's symbolic numbers, which have no schema.
PYTHON = ("add", "sub", "mul", "floordiv", "mod", "ge", "le", "gt", "lt", "eq", "ne", "neg", "cond")
