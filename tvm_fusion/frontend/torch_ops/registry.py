"""The registry of our converters, by the operator's name and overload: ``add.Tensor``."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from .call import Converter

CONVERTERS: dict[str, Converter] = {}
#: For some, what their converter takes: other calls are decomposed by torch.
TAKES: dict[str, Callable[[fx.Node], bool]] = {}


def converts(
    *names: str, takes: Callable[[fx.Node], bool] | None = None
) -> Callable[[Converter], Converter]:
    """Register a converter for operators.

    Parameters
    ----------
    *names : str
        Names with overloads; ``default`` may be left out.
    takes : callable, optional
        Says of a node whether the converter takes it; torch decomposes the operator where not.
    """

    def register(convert: Converter) -> Converter:
        for name in names:
            key = name if "." in name else f"{name}.default"
            CONVERTERS[key] = convert
            if takes is not None:
                TAKES[key] = takes
        return convert

    return register
