"""Mark functions that make the trips of a loop by calling themselves."""

from typing import Any

# Attribute of a function whose first parameter is a shape, the second extent of which is the number
# of trips: COUNTED where it makes all of them, CONDITIONAL where a condition may end it before.
LOOP = "tvm_fusion.loop"
COUNTED, CONDITIONAL = "counted", "conditional"


def loop_kind(func: Any) -> str:
    """Return :data:`COUNTED`, :data:`CONDITIONAL`, or an empty string for any other function."""
    return str(func.attrs.get(LOOP, "")) if func.attrs else ""
