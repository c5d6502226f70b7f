"""How a function says that variables of it are numbers of steps of whole extents."""

from collections.abc import Mapping
from typing import Any

#: A function's attribute: by name of such a variable, the extent's name and the step. The variables
#: are defined by one parameter, a shape of them.
STEPS = "tvm_fusion.steps"


def steps_of(func: Any) -> dict[str, tuple[str, int]]:
    """Return by name of a variable the whole extent's name and the step; empty without any."""
    found = (func.attrs or {}).get(STEPS, {})
    return {str(name): (str(whole), int(step)) for name, (whole, step) in found.items()}


def with_numbers_of_steps(func: Any, extents: Mapping[str, int]) -> dict[str, int]:
    """Add the values of a function's numbers of steps to those of whole extents."""
    found = {
        name: extents[whole] // step
        for name, (whole, step) in steps_of(func).items()
        if whole in extents
    }
    return {**extents, **found}
